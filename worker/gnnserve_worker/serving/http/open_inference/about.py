"""Description of a served model by the Open Inference Protocol: metadata, configuration, statistics, the index.

A model is the service, its versions are the variants. The configuration is that of Triton's `ModelConfig`, the
statistics are those of Triton's extension; of both, what a graph has.
"""

from __future__ import annotations

from typing import Any

from gnnserve_worker.asking.tensors import Datatype, TensorKind
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.open_inference.models import NamedModel
from gnnserve_worker.serving.http.tensors.served import input_kinds
from gnnserve_worker.serving.metrics.counters import VariantUsage

EXTENSIONS = ("binary_tensor_data", "model_configuration", "parameters", "statistics")
PLATFORM = "gnnserve"
_CONFIG_TYPES = {
    Datatype.INT64: "TYPE_INT64",
    Datatype.FP32: "TYPE_FP32",
    Datatype.BYTES: "TYPE_STRING",
    Datatype.BOOL: "TYPE_BOOL",
}
_NS = 1_000_000_000
_NOTHING = {"count": 0, "ns": 0}


def describe_server(version: str) -> dict[str, Any]:
    return {"name": PLATFORM, "version": version, "extensions": EXTENSIONS}


def describe_model(model: NamedModel, revision: ServedRevision, version: str | None) -> dict[str, Any]:
    asked = model.asked_of(revision)
    return {
        "name": model.name,
        "versions": model.versions(revision),
        "platform": PLATFORM,
        "inputs": [_metadata(kind) for kind in input_kinds(asked, revision).values()],
        "outputs": [_metadata(kind) for kind in asked.tensors.outputs(version)],
    }


def _metadata(kind: TensorKind) -> dict[str, Any]:
    return {"name": kind.name, "datatype": kind.datatype, "shape": kind.shape}


def describe_config(model: NamedModel, revision: ServedRevision, version: str | None) -> dict[str, Any]:
    """`max_batch_size` 0: shapes are whole, and the server makes batches of requests by itself."""
    asked = model.asked_of(revision)
    return {
        "name": model.name,
        "platform": PLATFORM,
        "backend": PLATFORM,
        "max_batch_size": 0,
        "input": [_configured(kind) | {"optional": kind.is_optional} for kind in input_kinds(asked, revision).values()],
        "output": [_configured(kind) for kind in asked.tensors.outputs(version)],
        "parameters": {"revision": {"string_value": revision.manifest.revision}},
    }


def _configured(kind: TensorKind) -> dict[str, Any]:
    return {"name": kind.name, "data_type": _CONFIG_TYPES[kind.datatype], "dims": kind.shape}


def describe_usage(service: str, variant: str, usage: VariantUsage) -> dict[str, Any]:
    """Requests that got no answer belong to no variant, so that none are told here; /metrics has them by reason."""

    def duration(count: int, seconds: float) -> dict[str, int]:
        return {"count": count, "ns": round(seconds * _NS)}

    return {
        "name": service,
        "version": variant,
        "last_inference": round(usage.last_s * 1000),
        "inference_count": usage.seeds,
        "execution_count": usage.batches,
        "inference_stats": {
            "success": duration(usage.answers, usage.answers_s),
            "fail": _NOTHING,
            "queue": duration(usage.answers, usage.queue_s),
            "compute_input": duration(usage.batches, usage.input_s),
            "compute_infer": duration(usage.batches, usage.compute_s),
            "compute_output": _NOTHING,
            "cache_hit": _NOTHING,
            "cache_miss": _NOTHING,
        },
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def describe_index(model: NamedModel, revision: ServedRevision) -> list[dict[str, Any]]:
    return [{"name": model.name, "version": name, "state": "READY", "reason": ""} for name in model.versions(revision)]

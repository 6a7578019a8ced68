"""Every call of the Open Inference Protocol over gRPC, and every way to get one wrong, as data.

The model is that of `open_inference_calls.py`. Messages are written as JSON of protobuf, by the names of the `.proto`
file, and can be sent to another server.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.conformance.open_inference_calls import MODEL, REVISION


@dataclass(frozen=True, slots=True)
class Rpc:
    """A call, and what has to come back."""

    name: str
    method: str
    message: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    status: str = "OK"
    has: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the answer has, with these values; lists of messages by their fields. 64-bit integers are texts, as
    JSON of protobuf has them."""
    error: str = ""
    """Our sentence, where the call is wrong; the protocol wants one, whichever it is."""
    code: str = ""
    """Our code of the error."""


def bytes_of(data: bytes) -> str:
    return b64encode(data).decode()


def ids(*of: int) -> bytes:
    return struct.pack(f"<{len(of)}q", *of)


def tensor(*, shape: list[int], name: str = "nodes", datatype: str = "INT64", **fields: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, **fields}


def listed(*of: int, **fields: Any) -> dict[str, Any]:
    return tensor(shape=fields.pop("shape", [len(of)]), contents={"int64_contents": of}, **fields)


def infer(name: str, *inputs: dict[str, Any], raw: list[bytes] | None = None, **fields: Any) -> Rpc:
    expected = {key: fields.pop(key) for key in ("metadata", "status", "has", "error", "code") if key in fields}
    message = {"model_name": MODEL, "inputs": list(inputs), **fields}
    if raw is not None:
        message["raw_input_contents"] = list(map(bytes_of, raw))
    return Rpc(name, "ModelInfer", message, **expected)


def wrong(name: str, *inputs: dict[str, Any], error: str, code: str = "InvalidValue", **fields: Any) -> Rpc:
    return infer(name, *inputs, error=error, code=code, status=fields.pop("status", "INVALID_ARGUMENT"), **fields)


_LABELS = {"name": "labels", "datatype": "INT64", "shape": ["2"]}
_RAW = {"raw_output_contents": [bytes_of(ids(40, 10)), bytes_of(struct.pack("<8f", -1, -1, -1, 1, 1, -1, -1, -1))]}
_TWO = tensor(shape=[2])
_ANOTHER = {"name": MODEL, "version": "9"}
_NO_VERSION = {
    "status": "INVALID_ARGUMENT", "code": "UnknownVariant",
    "error": f'version: revision {REVISION} has no variant "9"; choose from x1, x4, x8, or leave it out',
}  # fmt: skip
_NO_MODEL = {
    "status": "NOT_FOUND", "code": "UnknownModel",
    "error": 'model: there is no model "nope"; this worker serves digits',
}  # fmt: skip

TOLD = (
    Rpc("the server lives", "ServerLive", has={"live": True}),
    Rpc("the server is ready", "ServerReady", has={"ready": True}),
    Rpc("loading what is loaded", "RepositoryModelLoad", {"model_name": MODEL}),
    Rpc("the server's metadata", "ServerMetadata", has={"name": "gnnserve"}),
    Rpc("the model is ready", "ModelReady", {"name": MODEL}, has={"ready": True}),
    Rpc("a version is ready", "ModelReady", {"name": MODEL, "version": "x4"}, has={"ready": True}),
    Rpc("what there is not is not ready", "ModelReady", {"name": "nope"}),
    Rpc("a version that there is not is not ready", "ModelReady", _ANOTHER),
    Rpc(
        "the model's metadata", "ModelMetadata", {"name": MODEL},
        has={
            "name": MODEL, "versions": ["x1", "x4", "x8"], "platform": "gnnserve",
            "inputs": [{"name": "nodes", "datatype": "INT64", "shape": ["-1"]}],
            "outputs": [
                {"name": "labels", "datatype": "INT64", "shape": ["-1"]},
                {"name": "scores", "datatype": "FP32", "shape": ["-1", "4"]},
                {"name": "embeddings", "datatype": "FP32"},
            ],
        },
    ),
    Rpc("a version's metadata", "ModelMetadata", {"name": MODEL, "version": "x4"}, has={"name": MODEL}),
    Rpc(
        "the model's configuration", "ModelConfig", {"name": MODEL},
        has={"config": {"name": MODEL, "input": [{"name": "nodes", "data_type": "TYPE_INT64", "dims": ["-1"]}]}},
    ),
    Rpc("a version's configuration", "ModelConfig", {"name": MODEL, "version": "x8"}, has={"config": {"name": MODEL}}),
    Rpc("a version's statistics", "ModelStatistics", {"name": MODEL, "version": "x8"},
        has={"model_stats": [{"name": MODEL, "version": "x8"}]}),
    Rpc("the model's statistics", "ModelStatistics", {"name": MODEL},
        has={"model_stats": [{"version": "x1"}, {"version": "x4"}, {"version": "x8"}]}),
    Rpc("all statistics", "ModelStatistics", has={"model_stats": [{"version": "x1"}, {}, {}]}),
    Rpc("the index", "RepositoryIndex", has={"models": [{"name": MODEL, "version": "x1", "state": "READY"}, {}, {}]}),
    Rpc("the index of what is ready", "RepositoryIndex", {"ready": True}, has={"models": [{}, {}, {}]}),
)  # fmt: skip

ANSWERED = (
    infer("bytes are answered by bytes", _TWO, raw=[ids(3, 4)], has={
        "model_name": MODEL, "model_version": "x1",
        "parameters": {"revision": {"string_param": REVISION}, "objective_met": {"bool_param": True}},
        "outputs": [_LABELS, {"name": "scores", "datatype": "FP32", "shape": ["2", "4"]}], **_RAW,
    }),
    infer("lists are answered by lists", listed(3, 4), has={
        "outputs": [
            _LABELS | {"contents": {"int64_contents": ["40", "10"]}},
            {"name": "scores", "contents": {"fp32_contents": [-1, -1, -1, 1, 1, -1, -1, -1]}},
        ],
    }),
    infer("a parameter wants bytes", listed(3, 4), parameters={"binary_data_output": {"bool_param": True}}, has=_RAW),
    infer("an identifier comes back", listed(3, 4), id="q 1 \u00eb", has={"id": "q 1 \u00eb"}),
    infer("outputs come in the order asked", listed(3, 4), outputs=[{"name": "scores"}, {"name": "labels"}],
          has={"outputs": [{"name": "scores"}, _LABELS]}),
    infer("embeddings come when asked for", listed(3), outputs=[{"name": "embeddings"}],
          has={"outputs": [{"shape": ["1", "3"], "contents": {"fp32_contents": [3, 3, 3]}}]}),
    infer("a column of ids", listed(3, 4, shape=[2, 1]), has={"outputs": [_LABELS, {}]}),
    infer("a client of HTTP repeats the number of bytes", tensor(
        shape=[2], parameters={"binary_data_size": {"int64_param": 16}}), raw=[ids(3, 4)], has=_RAW),
    infer("a parameter without a value is as absent", listed(3, 4), parameters={"seed": {}},
          has={"outputs": [_LABELS, {}]}),
    infer("all parameters", listed(3, 4), parameters={
        "latency_ms": {"int64_param": 60000}, "accuracy_tolerance_permille": {"double_param": 12.5},
        "strict": {"bool_param": True}, "seed": {"uint64_param": 7}, "binary_data_output": {"bool_param": False},
    }, has={"model_version": "x1"}),
    infer("a tolerance gets the fastest within it", listed(3),
          parameters={"accuracy_tolerance_permille": {"int64_param": 12}}, has={"model_version": "x4"}),
    infer("metadata says the same", listed(3), metadata={"gnnserve-accuracy-tolerance-permille": "12"},
          has={"model_version": "x4"}),
    infer("parameters go before metadata", listed(3), metadata={"gnnserve-accuracy-tolerance-permille": "12"},
          parameters={"accuracy_tolerance_permille": {"int64_param": 30}}, has={"model_version": "x8"}),
    infer("metadata names the version", listed(3), metadata={"gnnserve-variant": "x8"}, has={"model_version": "x8"}),
    infer("the message names the version", listed(3, 4), model_version="x4",
          has={"model_version": "x4", "outputs": [_LABELS, {}]}),
    infer("the message goes before metadata", listed(3, 4), model_version="x4", metadata={"gnnserve-variant": "x8"},
          has={"model_version": "x4"}),
)  # fmt: skip

WRONG = (
    infer("no such model", listed(3), model_name="nope", **_NO_MODEL),
    infer("no such version", listed(3), model_version="9", **_NO_VERSION),
    Rpc("metadata of no model", "ModelMetadata", {"name": "nope"}, **_NO_MODEL),
    Rpc("metadata without a name", "ModelMetadata", status="NOT_FOUND", code="UnknownModel",
        error='model: there is no model ""; this worker serves digits'),
    Rpc("metadata of no version", "ModelMetadata", _ANOTHER, **_NO_VERSION),
    Rpc("a configuration of no model", "ModelConfig", {"name": "nope"}, **_NO_MODEL),
    Rpc("statistics of no version", "ModelStatistics", _ANOTHER, **_NO_VERSION),
    Rpc("an index of another repository", "RepositoryIndex", {"repository_name": "r"}, status="INVALID_ARGUMENT",
        code="InvalidValue", error='repository_name: there is no repository "r"; leave it out: there is one'),
    Rpc("loading what there is not", "RepositoryModelLoad", {"model_name": "nope"}, **_NO_MODEL),
    Rpc("loading otherwise", "RepositoryModelLoad",
        {"model_name": MODEL, "parameters": {"config": {"string_param": "{}"}}}, status="INVALID_ARGUMENT",
        code="UnknownField", error="parameters.config: a model is not configured by clients"),
    Rpc("unloading", "RepositoryModelUnload", {"model_name": MODEL}, status="UNIMPLEMENTED", code="MethodNotAllowed",
        error="unload: models are not unloaded by clients; change the service's manifest: the worker follows it"),
    Rpc("unloading from another repository", "RepositoryModelUnload", {"repository_name": "r", "model_name": MODEL},
        status="INVALID_ARGUMENT", code="InvalidValue", error='repository_name: there is no repository "r"'),
    wrong("no inputs", error="nodes: the input is missing; name the nodes to classify in it", code="MissingField"),
    wrong("an unknown input", listed(3), listed(4, name="edges"), code="UnknownField",
          error='inputs[1].name: there is no input "edges"; known are nodes'),
    wrong("overlays that the service does not take", listed(3), listed(4, name="overlay.nodes"), code="NoOverlays",
          error="overlay: the service takes none"),
    wrong("an input twice", listed(3), listed(4), error="inputs[1].name: nodes is there twice; give each input once"),
    wrong("a wrong datatype", tensor(shape=[1], datatype="FP32"), code="InvalidType",
          error="nodes: datatype FP32, where INT64 is expected; send it as INT64"),
    wrong("no datatype", tensor(shape=[1], datatype=""), code="InvalidType",
          error="nodes: datatype , where INT64 is expected; send it as INT64"),
    wrong("too many dimensions", listed(3, 4, shape=[1, 2]),
          error="nodes: shape [1,2], where [-1] is expected; -1 is any length"),
    wrong("no shape", listed(3, shape=[]), error="nodes: shape [], where [-1] is expected; -1 is any length"),
    wrong("a negative length", listed(3, shape=[-2]),
          error="nodes: shape [-2], where [-1] is expected; -1 is any length"),
    wrong("more elements than the shape", listed(3, 4, shape=[1]),
          error="nodes: 2 elements, where its shape [1] has 1; send as many elements as the shape says"),
    wrong("fewer elements than the shape", listed(3, shape=[3]),
          error="nodes: 1 element, where its shape [3] has 3; send as many elements as the shape says"),
    wrong("no contents", _TWO, error="nodes: 0 elements, where its shape [2] has 2"),
    wrong("a list of another datatype", tensor(shape=[1], contents={"int_contents": [3]}), code="InvalidType",
          error="nodes.contents: int_contents has elements, where INT64 is expected; send them in int64_contents"),
    wrong("two lists", tensor(shape=[1], contents={"int64_contents": [3], "fp32_contents": [3]}), code="InvalidType",
          error="nodes.contents: fp32_contents has elements, where INT64 is expected; send them in int64_contents"),
    wrong("lists and bytes", listed(3), raw=[ids(3)],
          error="nodes.contents: it is there, and raw_input_contents as well; leave out one of them"),
    wrong("fewer bytes than the tensor has", _TWO, raw=[ids(3)], code="InvalidBinary",
          error="nodes: 8 bytes, where its shape [2] has 8 for each of 2 elements"),
    wrong("bytes of another input", _TWO, raw=[ids(3, 4), ids(5)], code="InvalidBinary",
          error="raw_input_contents: 2 entries for 1 input; send one for each, in their order"),
    wrong("bytes of one input alone", listed(3, name="nodes"), tensor(shape=[1], name="nodes"), raw=[ids(3)],
          error="nodes.contents: it is there, and raw_input_contents as well; leave out one of them"),
    wrong("a number of bytes that is wrong", tensor(
        shape=[2], parameters={"binary_data_size": {"int64_param": 15}}), raw=[ids(3, 4)], code="InvalidBinary",
        error="nodes.parameters.binary_data_size: 15, where raw_input_contents has 16 bytes for it"),
    wrong("a number of bytes without any", listed(3, parameters={"binary_data_size": {"int64_param": 8}}),
          error="nodes.parameters.binary_data_size: the request has no bytes", code="InvalidBinary"),
    wrong("a huge shape", tensor(shape=[2**62]), code="TooManyNodes",
          error="nodes: 4,611,686,018,427,387,904 nodes, more than the 500 that one request may have"),
    wrong("no elements", listed(), error="nodes: the list is empty; name at least one node id", code="EmptyNodes"),
    wrong("an unknown node", listed(3, 1000), code="UnknownNode",
          error="nodes[1]: node 1000 is not in the graph; node ids are 0 to 999"),
    wrong("more nodes than a request may have", listed(*range(501)), code="TooManyNodes",
          error="nodes: 501 nodes, more than the 500 that one request may have"),
    wrong("an unknown output", listed(3), outputs=[{"name": "logits"}],
          error='outputs[0].name: there is no output "logits"; choose from labels, scores, embeddings'),
    wrong("an output twice", listed(3), outputs=[{"name": "labels"}, {"name": "labels"}],
          error="outputs[1].name: labels is asked for twice; ask for each output once"),
    wrong("an unknown parameter", listed(3), parameters={"patience": {"int64_param": 5}}, code="UnknownField",
          error="parameters.patience: there is no such parameter; known are latency_ms, accuracy_tolerance_permille, "
                "strict, seed, min_offset, timeout, priority, binary_data_output"),
    wrong("an unknown parameter of an input", listed(3, parameters={"shared_memory_region": {"string_param": "r"}}),
          error="nodes.parameters.shared_memory_region: there is no such parameter", code="UnknownField"),
    wrong("an unknown parameter of an output", listed(3), code="UnknownField",
          outputs=[{"name": "labels", "parameters": {"classification": {"int64_param": 2}}}],
          error="outputs[0].parameters.classification: there is no such parameter; known are binary_data"),
    wrong("a latency of another type", listed(3), parameters={"latency_ms": {"bool_param": True}}, code="InvalidType",
          error="parameters.latency_ms: expected a number, got true; give a number"),
    wrong("a latency that is no number", listed(3), parameters={"latency_ms": {"double_param": "NaN"}},
          error="parameters.latency_ms: nan is out of range"),
    wrong("a latency out of range", listed(3), parameters={"latency_ms": {"int64_param": -1}},
          error="parameters.latency_ms: -1 is out of range; give milliseconds above 0 and at most 3,600,000"),
    wrong("a seed out of range", listed(3), parameters={"seed": {"uint64_param": 2**64 - 1}},
          error="parameters.seed: 18446744073709551615 is out of range"),
    wrong("metadata out of range", listed(3), metadata={"gnnserve-latency-ms": "soon"},
          error="gnnserve-latency-ms: 'soon' is not a number"),
    wrong("an offset of a graph that does not change", listed(3), parameters={"min_offset": {"int64_param": 1}},
          error="parameters.min_offset: the graph of this service does not change", code="NoUpdates",
          status="FAILED_PRECONDITION"),
    wrong("a strict request that cannot be met", listed(3), status="FAILED_PRECONDITION", code="ObjectiveInfeasible",
          parameters={"latency_ms": {"double_param": 0.001}, "strict": {"bool_param": True}},
          error="no variant answers 1 node within 0.001 ms; the fastest, x8, needs"),
)  # fmt: skip

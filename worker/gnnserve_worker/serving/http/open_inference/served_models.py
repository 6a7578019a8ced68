"""Calls of the Open Inference Protocol about a server and its models besides predictions, over HTTP as over gRPC.

What is told is of the lane that answers now.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection
from typing import Any

from gnnserve_worker.asking.question import ErrorCode, RequestError, unknown_model
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.engine.engine import Engine
from gnnserve_worker.serving.engine.model import ModelState
from gnnserve_worker.serving.http.codecs.open_inference_paths import OpenInferenceCall
from gnnserve_worker.serving.http.open_inference.about import (
    describe_config,
    describe_index,
    describe_model,
    describe_server,
    describe_usage,
)
from gnnserve_worker.serving.http.open_inference.models import MODELS, NamedModel
from gnnserve_worker.serving.metrics.metrics import ServingMetrics

_MANIFEST_REMEDY = "change the service's manifest: the worker follows it"


class ServedModels:
    """The models of a server: those of its service."""

    def __init__(self, service: str, engine: Engine, metrics: ServingMetrics, is_leaving: Callable[[], bool]) -> None:
        """`is_leaving`: whether clients are to go elsewhere, though they are answered."""
        self._service = service
        self._named: dict[str, NamedModel] = {model.name: model for model in (kind(service) for kind in MODELS)}
        self._engine = engine
        self._model = engine.models[service]
        self._metrics = metrics
        self._is_leaving = is_leaving
        self._version = importlib.metadata.version("gnnserve")
        self._of_model: dict[OpenInferenceCall, Callable[[NamedModel, ServedRevision, str | None], dict[str, Any]]] = {
            OpenInferenceCall.METADATA: describe_model,
            OpenInferenceCall.CONFIG: describe_config,
            OpenInferenceCall.STATISTICS: self._list_usage,
        }
        """What the calls about a model answer, by its revision and the version that is named."""

    def describe_server(self) -> dict[str, Any]:
        return describe_server(self._version)

    def why_dead(self) -> str:
        """Why the process must be restarted; empty: it lives."""
        return "" if self._engine.failure is None else "the engine's thread died"

    def why_unready(self) -> str:
        """Why no requests should be sent here now; empty: they should."""
        state = self._model.state
        if state is ModelState.READY:
            return "the worker is about to drain" if self._is_leaving() else self._model.why_failing()
        problem = f": {self._model.problem}" if state is ModelState.LOADING and self._model.problem else ""
        return f"the worker is {state.lower()}{problem}"

    def why_model_unready(self, model: str, version: str | None) -> str:
        """The same of a model, or of a version. Raises RequestError where there is none of that name."""
        named = self._find(model)
        why, lane = self.why_unready(), self._model.lane
        if why or lane is None:
            return why
        if version is not None:
            named.check_version(version, lane.revision)
        return named.why_unready(lane.revision)

    def describe(self, call: OpenInferenceCall, model: str | None, version: str | None) -> dict[str, Any] | Refusal:
        """The answer to a call about a model, or about all of them (None). Raises RequestError where there is none of
        that name."""
        # Statistics are the variants': those of the service are those of all of its models.
        named = self._find(self._service if model is None else model)
        lane = self._model.lane
        if lane is None:
            return self._model.refuse()
        if version is not None:
            named.check_version(version, lane.revision)
        return self._of_model[call](named, lane.revision, version)

    def list_models(self, *, only_ready: bool) -> list[dict[str, Any]]:
        lane, why = self._model.lane, self.why_unready()
        if lane is None or why:
            return [] if only_ready else [{"name": self._service, "state": "UNAVAILABLE", "reason": why}]
        listed: list[dict[str, Any]] = []
        for model in self._named.values():
            if not model.is_listed(lane.revision):
                continue
            why = model.why_unready(lane.revision)
            if not why:
                listed += describe_index(model, lane.revision)
            elif not only_ready:
                listed.append({"name": model.name, "state": "UNAVAILABLE", "reason": why})
        return listed

    def load(self, model: str, parameters: Collection[str]) -> Refusal | None:
        """Answer a client that loads a model before it asks: None, for success, where the model is loaded. Raises
        RequestError where there is none of that name, and for `parameters`, the names of what the client configures."""
        self._find(model)
        if parameters:
            raise RequestError(
                ErrorCode.UNKNOWN_FIELD, f"parameters.{min(parameters)}", "a model is not configured by clients",
                _MANIFEST_REMEDY,
            )  # fmt: skip
        return self._model.refuse() if self._model.lane is None else None

    def unload(self, model: str) -> None:
        """Raises RequestError in any case: a service that is declared is answered for."""
        self._find(model)
        problem = "models are not unloaded by clients"
        raise RequestError(ErrorCode.METHOD_NOT_ALLOWED, "unload", problem, _MANIFEST_REMEDY)

    def _find(self, name: str) -> NamedModel:
        found = self._named.get(name)
        if found is None:
            raise unknown_model(name, self._service)
        return found

    def _list_usage(self, model: NamedModel, revision: ServedRevision, version: str | None) -> dict[str, Any]:
        names = model.versions(revision) if version is None else [version]
        return {
            "model_stats": [describe_usage(model.name, name, self._metrics.counters.usage_of(name)) for name in names]
        }

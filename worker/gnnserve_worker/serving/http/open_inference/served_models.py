"""What the Open Inference Protocol tells of a server and its models besides predictions, over HTTP as over gRPC.

What is told is of the lane that answers now.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from gnnserve_worker.asking.question import ErrorCode, RequestError, unknown_model
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.scheduling.refusal import Refusal
from gnnserve_worker.serving.engine import Engine
from gnnserve_worker.serving.http.codecs.open_inference_paths import Call
from gnnserve_worker.serving.http.open_inference.about import (
    describe_config,
    describe_index,
    describe_model,
    describe_server,
    describe_usage,
)
from gnnserve_worker.serving.http.predict import check_variant
from gnnserve_worker.serving.metrics import ServingMetrics
from gnnserve_worker.serving.model import ModelState

_MANIFEST_REMEDY = "change the service's manifest: the worker follows it"


class ServedModels:
    """The models of a server: its service."""

    def __init__(self, service: str, engine: Engine, metrics: ServingMetrics, is_leaving: Callable[[], bool]) -> None:
        """`is_leaving`: whether clients are to go elsewhere, though they are answered."""
        self._service = service
        self._engine = engine
        self._model = engine.models[service]
        self._metrics = metrics
        self._is_leaving = is_leaving
        self._version = importlib.metadata.version("gnnserve")
        self._of_model: dict[Call, Callable[[ServedRevision, str | None], dict[str, Any]]] = {
            Call.METADATA: partial(describe_model, service),
            Call.CONFIG: partial(describe_config, service),
            Call.STATISTICS: self._list_usage,
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
        self._check_model(model)
        why, lane = self.why_unready(), self._model.lane
        if not why and lane is not None and version is not None:
            check_variant(version, (), False, lane.revision, "version")
        return why

    def describe(self, call: Call, model: str | None, version: str | None) -> dict[str, Any] | Refusal:
        """The answer to a call about a model, or about all of them (None). Raises RequestError where there is none of
        that name."""
        if model is not None:
            self._check_model(model)
        lane = self._model.lane
        if lane is None:
            return self._model.refuse()
        if version is not None:
            check_variant(version, (), False, lane.revision, "version")
        return self._of_model[call](lane.revision, version)

    def list_models(self, *, only_ready: bool) -> list[dict[str, Any]]:
        lane, why = self._model.lane, self.why_unready()
        if lane is not None and not why:
            return describe_index(self._service, lane.revision)
        return [] if only_ready else [{"name": self._service, "state": "UNAVAILABLE", "reason": why}]

    def load(self, model: str, parameters: Collection[str]) -> Refusal | None:
        """Answer a client that loads a model before it asks: None, for success, where the model is loaded. Raises
        RequestError where there is none of that name, and for `parameters`, the names of what the client configures."""
        self._check_model(model)
        if parameters:
            raise RequestError(
                ErrorCode.UNKNOWN_FIELD, f"parameters.{min(parameters)}", "a model is not configured by clients",
                _MANIFEST_REMEDY,
            )  # fmt: skip
        return self._model.refuse() if self._model.lane is None else None

    def unload(self, model: str) -> None:
        """Raises RequestError in any case: a service that is declared is answered for."""
        self._check_model(model)
        problem = "models are not unloaded by clients"
        raise RequestError(ErrorCode.METHOD_NOT_ALLOWED, "unload", problem, _MANIFEST_REMEDY)

    def _check_model(self, name: str) -> None:
        if name != self._service:
            raise unknown_model(name, self._service)

    def _list_usage(self, revision: ServedRevision, version: str | None) -> dict[str, Any]:
        names = revision.capabilities if version is None else (version,)
        return {"model_stats": [describe_usage(self._service, name, self._metrics.usage_of(name)) for name in names]}

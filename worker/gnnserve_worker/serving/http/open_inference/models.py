"""Models of the Open Inference Protocol that one service is: its predictions, and beside them its recommendations."""

from __future__ import annotations

from typing import Protocol

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.nearest.revision_index import OpenIndex
from gnnserve_worker.serving.http.codecs.recommending.asked import not_comparable, opened
from gnnserve_worker.serving.http.codecs.recommending.tensors import RECOMMENDS, RecommendModel
from gnnserve_worker.serving.http.predict import check_variant
from gnnserve_worker.tasks.served import AskedModel


class NamedModel(Protocol):
    name: str

    def is_listed(self, revision: ServedRevision) -> bool:
        """Whether a list of all models has it."""

    def asked_of(self, revision: ServedRevision) -> AskedModel: ...

    def versions(self, revision: ServedRevision) -> list[str]:
        """Variants that answer for it."""

    def check_version(self, version: str, revision: ServedRevision) -> None:
        """Raises RequestError where it has no such version."""

    def why_unready(self, revision: ServedRevision) -> str:
        """Why it does not answer though the service does; empty: it answers."""


class PredictionsModel:
    """A `NamedModel`: the service itself."""

    def __init__(self, service: str) -> None:
        self.name = service

    def is_listed(self, revision: ServedRevision) -> bool:
        return True

    def asked_of(self, revision: ServedRevision) -> AskedModel:
        return revision.task

    def versions(self, revision: ServedRevision) -> list[str]:
        return [variant.name for variant in revision.answering.variants]

    def check_version(self, version: str, revision: ServedRevision) -> None:
        check_variant(version, (), False, revision, "version")

    def why_unready(self, revision: ServedRevision) -> str:
        return ""


class RecommendationsModel:
    """A `NamedModel`: its versions are the variants whose embeddings the index can be searched with."""

    def __init__(self, service: str) -> None:
        self.name = f"{service}{RECOMMENDS}"

    def is_listed(self, revision: ServedRevision) -> bool:
        """Where there is an index, or one is being made: other services have no recommendations."""
        return any(index.opened is not None or index.is_expected for index in revision.compute.indexes)

    def asked_of(self, revision: ServedRevision) -> AskedModel:
        return RecommendModel(revision)

    def versions(self, revision: ServedRevision) -> list[str]:
        index = _first_opened(revision)
        return [] if index is None else revision.comparable_variants(index.manifest.weights)

    def check_version(self, version: str, revision: ServedRevision) -> None:
        check_variant(version, (), False, revision, "version")
        index = _first_opened(revision)
        if index is not None and version not in (able := revision.comparable_variants(index.manifest.weights)):
            raise not_comparable(version, index, able, "version")

    def why_unready(self, revision: ServedRevision) -> str:
        indexes = revision.compute.indexes
        try:
            if not indexes:
                raise revision.task.recommending.no_part(revision.manifest.revision)
            for index in indexes:
                opened(index, revision)
        except RequestError as error:
            return error.problem
        return ""


def _first_opened(revision: ServedRevision) -> OpenIndex | None:
    """Where links join two types, each has an index, both of one variant."""
    return next((found for index in revision.compute.indexes if (found := index.find()) is not None), None)


MODELS = (PredictionsModel, RecommendationsModel)


def listed_models(service: str, revision: ServedRevision) -> list[NamedModel]:
    models: list[NamedModel] = [kind(service) for kind in MODELS]
    return [model for model in models if model.is_listed(revision)]

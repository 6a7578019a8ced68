"""Finished variants that the user gives (`spec.variants.given`): read and checked before anything is computed.

Dynamic GNN inference as-a-service, section 3.3, takes a user's own variants or a master; this is the former. Without
torch, as `checkpoint.py`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.given import Given
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.variants import Variants
from gnnserve_worker.generation.checkpoint import load_checkpoint
from gnnserve_worker.graph.sources.files import pinned_digest
from gnnserve_worker.graph.store import FeatureColumn, GraphData
from gnnserve_worker.models.registry import Tensors

_SHOWN_NAMES = 12


@dataclass(frozen=True, slots=True, eq=False)
class GivenVariant:
    name: str
    """The name without storage and fan-outs."""
    columns: np.ndarray
    """int64: ids of the features that it reads, each once, in the order of the first layer's inputs."""
    tensors: Tensors


def given_digests(variants: Variants) -> dict[str, str]:
    """SHA-256 of the file of each given variant, by its name. InputError: one is missing, or not the pinned one."""
    return {
        name: pinned_digest(f"{_field(place)}.checkpoint", given.checkpoint.uri.path, given.checkpoint.sha256)
        for place, (name, given) in enumerate(zip(variants.given_names(), variants.given, strict=True))
    }


def load_given(spec: GNNServiceSpec, digests: Mapping[str, str], graph: GraphData) -> tuple[GivenVariant, ...]:
    """The given variants in the order of the spec. Raises InputError."""
    variants = spec.variants
    return tuple(
        _load(spec, place, name, given, digests[name], graph)
        for place, (name, given) in enumerate(zip(variants.given_names(), variants.given, strict=True))
    )


def _field(place: int) -> str:
    return f"spec.variants.given[{place}]"


def _load(spec: GNNServiceSpec, place: int, name: str, given: Given, digest: str, graph: GraphData) -> GivenVariant:
    # Imported here: a start that finds its revision needs digests alone.
    from gnnserve_worker.generation.checkpoint_over_rows import WantedOverRows  # noqa: PLC0415

    field = _field(place)
    columns = resolve_columns(f"{field}.columns", given.columns, graph.feature_columns, graph.features.shape[1])
    remedy = (
        f"{field}.columns are {len(columns):,} features, and the first layer reads {{}}: list the columns that it was "
        "trained on"
    )
    wanted = WantedOverRows(spec.model, len(columns), len(graph.classes), columns_remedy=remedy)
    try:
        tensors = load_checkpoint(given.checkpoint, digest, wanted)
    except InputError as error:
        raise InputError(f"{field}.checkpoint.uri", error.problem, error.remedy) from error
    return GivenVariant(name, columns, tensors)


def resolve_columns(
    field: str, stated: Sequence[int | str], source: Sequence[FeatureColumn], features: int
) -> np.ndarray:
    """Ids (int64) of the features that names and indices stand for, in their order. Raises InputError."""
    ends = np.cumsum([column.width for column in source]).tolist()
    places = {column.name: range(end - column.width, end) for column, end in zip(source, ends, strict=True)}
    found: list[int] = []
    seen: dict[int, int | str] = {}
    for column in stated:
        for feature in _features_of(field, column, places, features):
            if feature in seen:
                first = seen[feature]
                what = (
                    f"{column!r} twice" if first == column else f"{first!r} and {column!r}, which is the same feature"
                )
                raise InputError(field, f"lists {what}", "list each column once")
            seen[feature] = column
            found.append(feature)
    return np.array(found, dtype=np.int64)


def _features_of(field: str, column: int | str, places: Mapping[str, range], features: int) -> range:
    if isinstance(column, int):
        if column < features:
            return range(column, column + 1)
        raise InputError(
            field,
            f"lists {column:,}, and the graph has {features:,} features",
            f"use indices from 0 to {features - 1:,}",
        )
    if column in places:
        return places[column]
    if not places:
        raise InputError(
            field, f"names {column!r}, and this source gives its features no names", "list their indices, from 0"
        )
    near = difflib.get_close_matches(column, places, n=1)
    shown = ", ".join([*places][:_SHOWN_NAMES]) + ", …" * (len(places) > _SHOWN_NAMES)
    raise InputError(
        field,
        f"names {column!r}, which is no feature column of the graph; it has {shown}",
        f"did you mean {near[0]!r}?" if near else "name some of these",
    )

"""The tensors that a served graph takes in the Open Inference Protocol, as its metadata describes them. Those that it
gives are its task's."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.inference.served import ServedRevision

NODES = "nodes"
NEW_NODES, EDGES, OVERRIDES = "overlay.nodes", "overlay.edges", "overlay.overrides"
NEW_FEATURES, OVERRIDE_FEATURES = f"{NEW_NODES}.features", f"{OVERRIDES}.features"
EDGE_FEATURES, EDGE_TIMES = f"{EDGES}.features", f"{EDGES}.times"
_NAMED_NODES = TensorKind(NODES, Datatype.BYTES, (ANY_LENGTH,))
"""Ids that are texts, or texts of integers behind a type: `paper/17`."""


def given_kind(name: str, datatype: str, revision: ServedRevision) -> TensorKind | None:
    """The tensor of that name as a request brings it; None: there is no such input."""
    if name == NODES and datatype == Datatype.BYTES and revision.graph.naming.takes_texts:
        return _NAMED_NODES
    return input_kinds(revision).get(name)


def read_by(revision: ServedRevision) -> tuple[Any, ...]:
    """All of a revision that `read_request` reads a request by: where this is the same, a request that was read before
    need not be read again."""
    naming, brought = revision.graph.naming, _brought_to(revision)
    return naming.are_texts, naming.takes_texts, brought, revision.has_embeddings


def input_kinds(revision: ServedRevision) -> Mapping[str, TensorKind]:
    """The tensors that a request may bring, by name."""
    return _inputs(revision.graph.naming.are_texts, _brought_to(revision))


def _brought_to(revision: ServedRevision) -> tuple[int, int, bool] | None:
    """Features of a node, features of an edge, and whether edges have times; None: nothing can be brought."""
    overlays = revision.compute.overlays
    return (overlays.features, overlays.edge_features, overlays.edge_times) if overlays.takes_arrays else None


@functools.lru_cache(8)
def _inputs(has_text_ids: bool, brought: tuple[int, int, bool] | None) -> Mapping[str, TensorKind]:
    """`brought`: as of `_brought_to`."""
    ids = Datatype.BYTES if has_text_ids else Datatype.INT64
    kinds = [TensorKind(NODES, ids, (ANY_LENGTH,))]
    if brought is not None:
        features, edge_features, edge_times = brought
        kinds += [
            TensorKind(NEW_NODES, ids, (ANY_LENGTH,), is_optional=True),
            TensorKind(NEW_FEATURES, Datatype.FP32, (ANY_LENGTH, features), is_optional=True),
            TensorKind(EDGES, ids, (ANY_LENGTH, 2), is_optional=True),
            TensorKind(OVERRIDES, ids, (ANY_LENGTH,), is_optional=True),
            TensorKind(OVERRIDE_FEATURES, Datatype.FP32, (ANY_LENGTH, features), is_optional=True),
        ]
        if edge_features:
            kinds.append(TensorKind(EDGE_FEATURES, Datatype.FP32, (ANY_LENGTH, edge_features), is_optional=True))
        if edge_times:
            kinds.append(TensorKind(EDGE_TIMES, Datatype.INT64, (ANY_LENGTH,), is_optional=True))
    return {kind.name: kind for kind in kinds}

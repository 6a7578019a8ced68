"""The tensors that a served graph takes in the Open Inference Protocol, as its metadata describes them. Those that it
gives are its task's."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.tasks.served import AskedModel

OVERLAY = "overlay."
"""Names of all inputs begin with it that bring something."""
NEW_NODES, EDGES, OVERRIDES = f"{OVERLAY}nodes", f"{OVERLAY}edges", f"{OVERLAY}overrides"
NEW_FEATURES, OVERRIDE_FEATURES = f"{NEW_NODES}.features", f"{OVERRIDES}.features"
EDGE_FEATURES, EDGE_TIMES = f"{EDGES}.features", f"{EDGES}.times"


def given_kind(name: str, datatype: str, asked: AskedModel, revision: ServedRevision) -> TensorKind | None:
    """The tensor of that name as a request brings it; None: there is no such input."""
    tensors, takes_texts = asked.tensors, revision.graph.naming.takes_texts
    if name == tensors.items and datatype == Datatype.BYTES and takes_texts:
        # Ids that are texts, or texts of integers behind a type: `paper/17`.
        return _items(name, tensors.shape, Datatype.BYTES)
    kind = input_kinds(asked, revision).get(name)
    if kind is not None and name in tensors.own.ids and datatype == Datatype.BYTES and takes_texts:
        return structs.replace(kind, datatype=Datatype.BYTES)
    return kind


def read_by(revision: ServedRevision) -> tuple[Any, ...]:
    """All of a revision that `read_request` reads a request by: where this is the same, a request that was read before
    need not be read again."""
    naming, brought = revision.graph.naming, _brought_to(revision)
    return naming.are_texts, naming.takes_texts, brought, revision.has_embeddings, revision.task.tensors.items


def input_kinds(asked: AskedModel, revision: ServedRevision) -> Mapping[str, TensorKind]:
    """The tensors that a request may bring, by name."""
    tensors = asked.tensors
    are_texts, brought = revision.graph.naming.are_texts, _brought_to(revision)
    return _inputs(tensors.items, tensors.shape, are_texts, brought, tensors.own.kinds)


def example_input(asked: AskedModel, revision: ServedRevision) -> dict[str, Any]:
    """A tensor of items that the graph permits, in JSON."""
    kind = input_kinds(asked, revision)[asked.tensors.items]
    items = next(iter(asked.first_request().values()))[:2]
    return {"name": kind.name, "shape": [len(items), *kind.shape[1:]], "datatype": kind.datatype, "data": items}


def _brought_to(revision: ServedRevision) -> tuple[int, int, bool] | None:
    """Features of a node, features of an edge, and whether edges have times; None: nothing can be brought."""
    overlays = revision.compute.overlays
    return (overlays.features, overlays.edge_features, overlays.edge_times) if overlays.takes_arrays else None


@functools.lru_cache(8)
def _items(name: str, shape: tuple[int, ...], datatype: Datatype) -> TensorKind:
    return TensorKind(name, datatype, shape)


@functools.lru_cache(8)
def _inputs(
    items: str,
    shape: tuple[int, ...],
    has_text_ids: bool,
    brought: tuple[int, int, bool] | None,
    own: tuple[TensorKind, ...],
) -> Mapping[str, TensorKind]:
    """`brought`: as of `_brought_to`. `own`: as of `OwnInputs.kinds`."""
    ids = Datatype.BYTES if has_text_ids else Datatype.INT64
    kinds = [_items(items, shape, ids), *own]
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

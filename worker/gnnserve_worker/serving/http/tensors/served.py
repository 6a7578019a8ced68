"""The tensors that a served graph takes in the Open Inference Protocol, as its metadata describes them. Those that it
gives are its task's."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from msgspec import structs

from gnnserve_worker.asking.overlay_arrays import ArrayForm
from gnnserve_worker.asking.tensors import ANY_LENGTH, Datatype, TensorKind
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.tasks.served import AskedModel

OVERLAY = "overlay."
"""Names of all inputs begin with it that bring something."""
NEW_NODES, EDGES, OVERRIDES = f"{OVERLAY}nodes", f"{OVERLAY}edges", f"{OVERLAY}overrides"
NEW_FEATURES, OVERRIDE_FEATURES = f"{NEW_NODES}.features", f"{OVERRIDES}.features"
EDGE_RELATIONS, EDGE_FEATURES, EDGE_TIMES = f"{EDGES}.relations", f"{EDGES}.features", f"{EDGES}.times"

JOINING = (
    TensorKind(NEW_NODES, Datatype.BYTES, (ANY_LENGTH,), is_optional=True),
    TensorKind(EDGES, Datatype.BYTES, (ANY_LENGTH, 2), is_optional=True),
    TensorKind(EDGE_RELATIONS, Datatype.BYTES, (ANY_LENGTH,), is_optional=True),
)
"""Tensors of nodes that are made of those that they are joined to, and so have no features: types are in their ids."""


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
    naming, brought = revision.graph.naming, revision.compute.overlays.array_form
    return naming.are_texts, naming.takes_texts, brought, revision.has_embeddings, revision.task.tensors.items


def input_kinds(asked: AskedModel, revision: ServedRevision) -> Mapping[str, TensorKind]:
    """The tensors that a request may bring, by name."""
    tensors = asked.tensors
    are_texts, brought = revision.graph.naming.are_texts, revision.compute.overlays.array_form
    return _inputs(tensors.items, tensors.shape, are_texts, brought, tensors.own.kinds)


def example_input(asked: AskedModel, revision: ServedRevision) -> dict[str, Any]:
    """A tensor of items that the graph permits, in JSON."""
    kind = input_kinds(asked, revision)[asked.tensors.items]
    items = next(iter(asked.first_request().values()))[:2]
    return {"name": kind.name, "shape": [len(items), *kind.shape[1:]], "datatype": kind.datatype, "data": items}


@functools.lru_cache(8)
def _items(name: str, shape: tuple[int, ...], datatype: Datatype) -> TensorKind:
    return TensorKind(name, datatype, shape)


@functools.lru_cache(8)
def _inputs(
    items: str, shape: tuple[int, ...], has_text_ids: bool, brought: ArrayForm, own: tuple[TensorKind, ...]
) -> Mapping[str, TensorKind]:
    """`own`: as of `OwnInputs.kinds`."""
    kinds = [_items(items, shape, _id_type(are_texts=has_text_ids)), *own]
    if brought.are_taken:
        ids = _id_type(are_texts=brought.has_text_ids)
        kinds.append(_optional(NEW_NODES, ids))
        kinds += (_optional(f"{NEW_FEATURES}{one.suffix}", Datatype.FP32, one.columns) for one in brought.types)
        kinds.append(_optional(EDGES, ids, 2))
        if brought.names_types:
            kinds.append(_optional(EDGE_RELATIONS, Datatype.BYTES))
        kinds.append(_optional(OVERRIDES, ids))
        kinds += (_optional(f"{OVERRIDE_FEATURES}{one.suffix}", Datatype.FP32, one.columns) for one in brought.types)
        for relation in brought.relations:
            if relation.columns:
                kinds.append(_optional(f"{EDGE_FEATURES}{relation.suffix}", Datatype.FP32, relation.columns))
            if relation.has_time:
                kinds.append(_optional(f"{EDGE_TIMES}{relation.suffix}", Datatype.INT64))
    return {kind.name: kind for kind in kinds}


def _id_type(*, are_texts: bool) -> Datatype:
    return Datatype.BYTES if are_texts else Datatype.INT64


def _optional(name: str, datatype: Datatype, *columns: int) -> TensorKind:
    return TensorKind(name, datatype, (ANY_LENGTH, *columns), is_optional=True)

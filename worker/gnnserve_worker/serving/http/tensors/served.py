"""The tensors that a served graph takes and gives in the Open Inference Protocol, as its metadata describes them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.tensors.datatypes import Datatype, TensorKind

NODES = "nodes"
NEW_NODES, EDGES, OVERRIDES = "overlay.nodes", "overlay.edges", "overlay.overrides"
NEW_FEATURES, OVERRIDE_FEATURES = f"{NEW_NODES}.features", f"{OVERRIDES}.features"
_ANY = -1
_TYPED_NODES = TensorKind(NODES, Datatype.BYTES, (_ANY,))
"""Ids with their type, `paper/17`, of a graph of several."""


def given_kind(name: str, datatype: str, revision: ServedRevision) -> TensorKind | None:
    """The tensor of that name as a request brings it; None: there is no such input."""
    kind = input_kinds(revision).get(name)
    if revision.types is not None and name == NODES and datatype == Datatype.BYTES:
        return _TYPED_NODES  # also where ids within the type are integers
    return kind


def read_by(revision: ServedRevision) -> tuple[Any, ...]:
    """All of a revision that `read_request` reads a request by: where this is the same, a request that was read before
    need not be read again."""
    features = None if revision.overlays is None else revision.overlays.columns.features
    return revision.has_text_ids, revision.types is not None, features, revision.has_embeddings


def input_kinds(revision: ServedRevision) -> Mapping[str, TensorKind]:
    """The tensors that a request may bring, by name."""
    features = None if revision.overlays is None else revision.overlays.columns.features
    return _inputs(revision.has_text_ids, features)


@functools.lru_cache(8)
def _inputs(has_text_ids: bool, features: int | None) -> Mapping[str, TensorKind]:
    """`features`: of a node; None: requests cannot bring anything along."""
    ids = Datatype.BYTES if has_text_ids else Datatype.INT64
    kinds = [TensorKind(NODES, ids, (_ANY,))]
    if features is not None:
        kinds += [
            TensorKind(NEW_NODES, ids, (_ANY,), is_optional=True),
            TensorKind(NEW_FEATURES, Datatype.FP32, (_ANY, features), is_optional=True),
            TensorKind(EDGES, ids, (_ANY, 2), is_optional=True),
            TensorKind(OVERRIDES, ids, (_ANY,), is_optional=True),
            TensorKind(OVERRIDE_FEATURES, Datatype.FP32, (_ANY, features), is_optional=True),
        ]
    return {kind.name: kind for kind in kinds}


def output_kinds(revision: ServedRevision, version: str | None = None) -> tuple[TensorKind, ...]:
    """The tensors that can be asked for; of a version, if one is named."""
    classes = len(revision.classes)
    kinds = [
        TensorKind("labels", *_labels_of(revision, classes)),
        TensorKind("scores", Datatype.FP32, (_ANY, classes)),
    ]
    widths = {
        variant.network.embedding_columns
        for variant in revision.manifest.variants
        if revision.capabilities[variant.name].embeddings and version in {None, variant.name}
    }
    if widths:
        width = widths.pop() if len(widths) == 1 else _ANY
        kinds.append(TensorKind("embeddings", Datatype.FP32, (_ANY, width), is_optional=True))
    return tuple(kinds)


def _labels_of(revision: ServedRevision, classes: int) -> tuple[Datatype, tuple[int, ...]]:
    if revision.multi_label:  # a column for each class
        return Datatype.BOOL, (_ANY, classes)
    return Datatype.BYTES if revision.class_texts else Datatype.INT64, (_ANY,)

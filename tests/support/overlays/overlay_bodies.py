"""Overlays in each form of a request, and their arrangement."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker, with_overlays

from gnnserve_api.files.repository import SourceColumn
from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import NodeIds, lay_out, string_ids
from gnnserve_worker.graph.overlay import PACKED_HEADER, Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary_overlay import BinaryOverlayCodec
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.requests import Question

NODES = 8
COLUMNS = (
    SourceColumn("amount", 1, None),
    SourceColumn("embedding", 3, (0.5, 0.25, 0.0)),
    SourceColumn("hour", 1, (12.0,)),
)
TOLD = PACKED_HEADER + 1
TEXTS = [f"user-{i}" for i in range(NODES)]
JSON, ARRAYS = JsonCodec(), BinaryOverlayCodec()


def arrange(
    features: np.ndarray, overridden: np.ndarray, edges: np.ndarray, seeds: np.ndarray, *_: np.ndarray
) -> tuple[Overlay, np.ndarray]:
    """What was brought, as it was told, behind an overlay that has nothing."""
    assert features.flags.writeable and features.flags.c_contiguous and features.dtype == np.float32
    assert edges.dtype == overridden.dtype == seeds.dtype == np.int64
    told = np.concatenate((np.zeros(TOLD, np.int64), overridden, edges.ravel()))
    return Overlay(len(features) - len(overridden), features, told, nodes=len(overridden), edges=len(edges)), seeds


def stored_features(positions: np.ndarray) -> np.ndarray:
    return (10 * positions[:, None] + np.arange(5)).astype(np.float32)


def revision(
    columns: tuple[SourceColumn, ...] = COLUMNS, ids: NodeIds | None = None, *, keeps_features: bool = True
) -> ServedRevision:
    features = sum(column.width for column in columns) or 5
    support = OverlaySupport(FeatureColumns(features, columns), arrange, stored_features if keeps_features else None)
    return with_overlays(FakeWorker(nodes=NODES, ids=ids).revision(), support)


POSITIONS = revision()
NAMED = revision(ids=string_ids(*lay_out(TEXTS)))


def ask(
    body: dict[str, Any] | str, of: ServedRevision = POSITIONS, limits: OverlayLimits = DEFAULT_OVERLAY_LIMITS
) -> Question:
    text = body if isinstance(body, str) else json.dumps(body)
    return question_of(JSON, text.encode(), of, limits=limits)


def brought(question: Question) -> tuple[list[list[float]], list[int], list[list[int]], list[int]]:
    overlay = question.overlay
    assert overlay is not None
    told = overlay.packed[TOLD:]
    overridden, edges = told[: overlay.nodes], told[overlay.nodes :].reshape(-1, 2)
    return overlay.features.tolist(), overridden.tolist(), edges.tolist(), question.nodes.tolist()


def arrays(
    nodes: list[int], new: list[Any], edges: list[Any], overridden: list[int], features: list[list[float]]
) -> bytes:
    numbers = [*nodes, *(end for edge in edges for end in edge), *overridden]
    head = struct.pack("<4q", len(nodes), len(new), len(edges), len(overridden))
    return head + np.array(numbers, "<i8").tobytes() + np.array(features, "<f4").tobytes()

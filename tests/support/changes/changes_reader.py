"""A revision that reads batches of changes, and arrays of batches."""

from __future__ import annotations

from typing import Any

import numpy as np
from tests.support.serving.serving import FakeWorker

from gnnserve_api.files.repository import SourceColumn
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, encode_batch
from gnnserve_worker.graph.change_ids import IntegerIds, TextIds
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import NodeIds, lay_out
from gnnserve_worker.inference.served import ServedRevision

NODES = 8
COLUMNS = (
    SourceColumn("amount", 1, None),
    SourceColumn("embedding", 3, (0.5, 0.25, 0.0)),
    SourceColumn("hour", 1, (12.0,)),
)


def never(*_: np.ndarray) -> Any:
    raise AssertionError


def revision(
    columns: tuple[SourceColumn, ...] = COLUMNS, ids: NodeIds | None = None, *, multi_label: bool = False
) -> ServedRevision:
    features = sum(column.width for column in columns) or 5
    support = OverlaySupport(FeatureColumns(features, columns), never)
    return FakeWorker(nodes=NODES, ids=ids, overlays=support, multi_label=multi_label).revision()


def arrays(
    counts: ChangeCounts,
    ids: list[int] | list[str],
    features: list[list[float]] | None = None,
    labels: bytes = b"",
) -> bytes:
    laid_out = TextIds(*lay_out(ids)) if ids and isinstance(ids[0], str) else IntegerIds(np.array(ids, np.int64))  # type: ignore[arg-type]
    rows = np.array(features or [], np.float32).reshape(counts.rows, -1 if counts.rows else 5)
    return encode_batch(ChangeBatch(counts, laid_out, rows, labels))

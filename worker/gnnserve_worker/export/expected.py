"""gnnserve's own scores beside a program: of an example, and those by which gnnserve serves the program again.

Features that are served again are the source's, so that scores are expected of rows that are kept as exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.export.check import spread_nodes
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tables.formats import FORMATS
from gnnserve_worker.tasks.published import PairScoring

_NODES, _KEY = 32, 0


def exact_twin(manifest: RevisionManifest, described: VariantManifest, folder: Path) -> str | None:
    """Name of the variant that runs the same network over the same rows as exactly as the source has features. None:
    the revision keeps them in fewer bits alone. `folder`: the revision's."""
    if FORMATS[manifest.tables[described.table].storage].is_exact:
        return described.name
    weights = (folder / described.weights).read_bytes()
    exact = (one for one in manifest.variants if FORMATS[manifest.tables[one.table].storage].is_exact)
    alike = (one for one in exact if _alike(manifest, one) == _alike(manifest, described))
    return next((one.name for one in alike if (folder / one.weights).read_bytes() == weights), None)


def _alike(manifest: RevisionManifest, one: VariantManifest) -> tuple[VariantManifest, tuple[object, ...]]:
    """All that two variants over the same rows have in common, in whatever storage."""
    table = manifest.tables[one.table]
    shared = msgspec.structs.replace(
        one, name="", table="", weights="", compute="float32", thresholds=None, calibration=None
    )
    return shared, (table.kind, table.source_columns, table.made_by, table.by_relation, table.types)


def expected_scores(revision: LoadedRevision, name: str, pairs: PairScoring | None) -> Mapping[str, np.ndarray]:
    """Arrays that `spec.model.expected` takes: scores of nodes over all of their neighbours, by the source's ids.
    `pairs`: how pairs of scores are scored; None: they are not."""
    whole, ids, schema = revision.over_whole_lists(name), revision.ids.asked, revision.graph.schema
    kinds = [] if pairs is None else [schema.place_of(type_) for type_ in dict.fromkeys(pairs.types) if type_]
    ranges = [(schema.first_nodes[kind], schema.types[kind].nodes) for kind in kinds]
    answers = []
    for first, count in ranges or [(0, revision.answered_nodes)]:
        nodes = first + spread_nodes(count, _NODES)
        # One by one: what all of them reach together may be the whole graph.
        rows = np.concatenate([infer_batch(whole, name, one, _KEY).scores for one in nodes[:, None]])
        called = nodes if ids is None else np.array([ids.shown(node, node + 1)[0] for node in nodes.tolist()])
        answers.append(NodeRows(called, rows))
    called, rows = (np.concatenate(parts) for parts in zip(*answers, strict=True))
    return {"nodes": called, "scores": rows, **pair_scores(pairs, answers)}


class NodeRows(NamedTuple):
    """Scores of nodes of one type."""

    nodes: np.ndarray
    """What they are called, [nodes]."""
    rows: np.ndarray
    """float32 [nodes, columns]"""


def pair_scores(pairs: PairScoring | None, answers: Sequence[NodeRows]) -> dict[str, np.ndarray]:
    """Scores of nodes with others: where `answers` are of one type of each with the next one, else of those of the
    first type with those of the last. Empty: pairs are not scored."""
    if pairs is None:
        return {}
    first, last = answers[0], answers[-1]
    begins, ends = slice(-1), slice(1, None)
    if len(answers) > 1:
        begins = ends = slice(min(len(first.nodes), len(last.nodes)))
    called = np.stack([first.nodes[begins], last.nodes[ends]], axis=1)
    return {"pairs": called, "pair_scores": pairs.decoder.score(first.rows[begins], last.rows[ends])}

"""Expected scores of pairs, beside those of nodes: they tell that rows are read as by the user's own decoder."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_worker.generation.expected.comparison import scored_nodes
from gnnserve_worker.generation.expected.file import ExpectedNodes, find_nodes
from gnnserve_worker.generation.expected.listed import ListedScores, listed_scores
from gnnserve_worker.graph.sources import archive
from gnnserve_worker.graph.sources.checked_arrays import reading
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.tasks.generated import GivenDecoder

_PAIRS, _SCORES = "pairs", "pair_scores"
_HOW = "write it with numpy.savez(PATH, nodes=…, scores=…, pairs=…, pair_scores=…), as docs/programs.md shows"


def compare_all_pairs(
    spec: GNNServiceSpec, graph: GraphData, rows_of: Callable[[str], Callable[[np.ndarray], np.ndarray]],
    decoder: GivenDecoder | None,
) -> None:  # fmt: skip
    """Hold all expected scores of pairs of the spec against those that the decoder makes of rows. `rows_of`: by what
    `ListedScores` calls its weights. `decoder` None: outputs are answers. InputError: as of `compare_pairs`."""
    if decoder is None:
        return
    for listed in listed_scores(spec):
        compare_pairs(listed, scored_nodes(spec, graph), rows_of(listed.weights), decoder)


def compare_pairs(
    listed: ListedScores, of: ExpectedNodes, rows_of: Callable[[np.ndarray], np.ndarray], decoder: GivenDecoder
) -> None:
    """Hold scores of pairs against those that the decoder makes of rows. `rows_of`: rows of nodes, float32 [nodes,
    columns]. InputError: they differ by more than they may, or a decoder with weights has none."""
    field, path = f"{listed.field}.uri", listed.expected.uri.path
    if path.suffix != ".npz":
        found = None
    else:
        with reading(field, path, ".npz", _HOW), archive.opened(path) as arrays:
            there = _PAIRS in arrays.names and _SCORES in arrays.names
            found = (arrays.read(_PAIRS), arrays.read(_SCORES)) if there else None
    if found is None:
        if decoder.weights:
            raise InputError(
                field, f"{path} has no arrays {_PAIRS} and {_SCORES}, which tell that the decoder's weights are read "
                "as your model reads them", _HOW,
            )  # fmt: skip
        return
    pairs, expected = found
    if pairs.ndim != 2 or pairs.shape[1] != 2 or expected.shape != (len(pairs),) or not len(pairs):
        shapes = f"{_PAIRS} {list(pairs.shape)} and {_SCORES} {list(expected.shape)}"
        raise InputError(field, f"{path}: has {shapes}, expected [pairs, 2] and [pairs]", _HOW)
    positions = find_nodes(field, path, _PAIRS, pairs.ravel(), of)
    nodes, places = np.unique(positions, return_inverse=True)
    rows = rows_of(nodes)
    scores = decoder.decoder.score(rows[places[0::2]], rows[places[1::2]]).astype(np.float64)
    scale = float(np.abs(expected).max()) or 1.0
    off = np.abs(scores - expected) * (1000 / scale)
    off = np.where(np.isnan(off), np.inf, off)
    tolerance, worst = listed.expected.tolerance_permille, int(off.argmax())
    if off[worst] > tolerance:
        raise InputError(
            listed.field,
            f"scores of {int((off > tolerance).sum()):,} of {len(pairs):,} pairs differ by more than {tolerance:g} "
            f"permille of the largest, the worst by {off[worst]:.4g}: pair {pairs[worst].tolist()}: expected "
            f"{expected[worst]:.6g}, computed {scores[worst]:.6g}",
            "rows of nodes are equal, so that the decoder is another one: check task.links.decoder, its weights, and "
            "that scores are before a sigmoid",
        )

"""Lists of an index whose scores are a perceptron's: what is found has the scores of its own pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gnnserve_api.files.embeddings import IndexMetric
from gnnserve_api.spec.task import Decoder
from gnnserve_worker.generation.embeddings import index as building
from gnnserve_worker.models.decoder import build_decoder
from gnnserve_worker.nearest.comparison import ByScore
from gnnserve_worker.nearest.files import open_index
from gnnserve_worker.nearest.search import exact_best
from gnnserve_worker.progress import silent

ROWS, DIMENSIONS, COUNT = 30_000, 8, 10


def test_what_several_lists_find_has_the_scores_of_its_own_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "MOST_EXACT_BYTES", 0)
    draw = np.random.default_rng(0)
    shape = (DIMENSIONS, DIMENSIONS)
    weights = {name: draw.standard_normal(shape).astype(np.float32) for name in ("first", "second")}
    weights |= {name: draw.standard_normal(DIMENSIONS).astype(np.float32) for name in ("bias", "out")}
    decoder = build_decoder(Decoder.MLP, {**weights, "end": np.zeros(1, np.float32)}, DIMENSIONS)
    comparison = ByScore(decoder, stand_first=False)
    nodes, asking = (draw.standard_normal((count, DIMENSIONS)).astype(np.float32) for count in (ROWS, 20))
    origin = building.EmbeddingsOrigin("a test", "", "x1", "", None, "a test", IndexMetric.SCORE)
    made = building.build_index(nodes, origin, tmp_path / "index", silent, asking, comparison)
    assert made.kind == "Approximate" and made.probed is not None and made.lists is not None
    assert made.probed > 1
    index, queries = open_index(tmp_path / "index", made), comparison.queries(asking)
    best = exact_best([comparison.rows(nodes)], queries, COUNT)[0]
    excluded, allowed = best[:, 0], np.arange(ROWS) % 3 > 0
    for place, first in enumerate(excluded.tolist()):
        for passes in (None, allowed):
            found = index.search(queries.some(np.array([place])), COUNT, np.array([first]), passes)
            pairs = np.repeat(asking[place : place + 1], len(found.positions), 0)
            np.testing.assert_allclose(found.products, decoder.score(pairs, nodes[found.positions]), atol=1e-4)
            assert first not in found.positions and (passes is None or passes[found.positions].all())

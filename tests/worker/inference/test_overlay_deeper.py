"""Layers stored behind the first, where requests bring nodes: answers are those of the graph that has them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.changes.living import generated
from tests.support.overlays.overlays import World

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_worker.inference.batch import infer_batch

CLOSE = 1e-5
RULES = [EdgeRules(Direction.UNDIRECTED), EdgeRules(Direction.DIRECTED)]
MODELS = ("GraphSAGE", "GIN", "GCN", "GAT")
STORED = {"two of three": ((2,), 3), "two and three of four": ((2, 3), 4), "scores": ((3,), 3), "one": ((1,), 1)}
"""Stored layers, and how many the network has."""


class Scene:
    """A world whose graphs are served by equal networks, of which layers are stored."""

    def __init__(self, root: Path, architecture: str, rules: EdgeRules, stored: tuple[int, ...], layers: int) -> None:
        self.world = world = World(3, rules, edges=12)
        variants = {"pruning": {"factors": [1]}, "stored": [*stored], "storedFollowChanges": True}
        self.loaded, self.rebuilt = (
            generated(root, name, architecture, (graph, features, rules), variants=variants, layers=layers)
            for name, graph, features in (
                ("stored", world.graph, world.features),
                ("rebuilt", world.rebuilt, world.rebuilt_features),
            )
        )

    def expected(self, variant: str) -> np.ndarray:
        return infer_batch(self.rebuilt, variant, self.world.seeds, 0).scores


@pytest.mark.campaign
@pytest.mark.parametrize("rules", RULES, ids=lambda rules: rules.direction)
@pytest.mark.parametrize(("stored", "layers"), STORED.values(), ids=STORED)
@pytest.mark.parametrize("architecture", MODELS)
def test_answers_are_those_of_the_graph_that_has_what_requests_bring(
    tmp_path: Path, architecture: str, stored: tuple[int, ...], layers: int, rules: EdgeRules
) -> None:
    scene = Scene(tmp_path, architecture, rules, stored, layers)
    for layer in stored:
        variant = f"stored{layer}"
        expected = scene.expected(variant)
        most = CLOSE * float(np.abs(expected).max())
        found = scene.world.answers(scene.loaded, variant)
        np.testing.assert_allclose(found, expected, rtol=0, atol=most, err_msg=variant)

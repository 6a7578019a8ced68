"""A served revision whose stored layers may be stale, and the graph that it should have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from tests.support.changes.living import DEEPER, FEATURES, ROOM_BYTES, PlainGraph, generated, ids_of

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.limits import RefreshBudget
from gnnserve_worker.graph.change_batch import BatchEffect, ChangeBatch
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision

NODES = 40
CLOSE = 1e-5
UNDIRECTED, DIRECTED = EdgeRules(Direction.UNDIRECTED), EdgeRules(Direction.DIRECTED)
ALL = RefreshBudget(rows=1_000_000, microseconds=10**9)
FEW = RefreshBudget(rows=2, microseconds=10**9)
NEVER = RefreshBudget(rows=0, microseconds=500, background_permille=0)
NO_FEATURES = np.zeros((0, FEATURES), np.float32)


class Scene:
    """A revision that may be stale, and the graph that it should have."""

    def __init__(
        self,
        root: Path,
        budget: RefreshBudget | None,
        architecture: str = "GraphSAGE",
        rules: EdgeRules = UNDIRECTED,
        stored: tuple[int, ...] = (1, 2),
        nodes: int = NODES,
        layers: int | None = None,
    ) -> None:
        """`layers`: as of `generated`."""
        self.layers = layers
        self.root, self.architecture = root, architecture
        self.variants: dict[str, object] = {**DEEPER, "stored": [*stored]}
        self.plain = PlainGraph(nodes, 31, rules)
        self.loaded = generated(
            root, "living", architecture, self.plain.built(), variants=self.variants, max_delta_bytes=ROOM_BYTES,
            layers=layers,
        )  # fmt: skip
        self.living = LivingRevision(self.loaded, ROOM_BYTES, refresh=budget)
        self.served = served_revision(self.loaded, self.living)
        self.draw, self.fresh = np.random.default_rng(32), [*range(100_000, 10_000, -1)]

    def change(self, batches: int, size: int = 4) -> None:
        self.apply([self.plain.random_batch(self.draw, size, self.fresh) for _ in range(batches)])

    def apply(self, batches: list[ChangeBatch]) -> None:
        assert all(isinstance(said, BatchEffect) for said in self.living.apply(self.living.offset + 1, batches))

    @property
    def nodes(self) -> np.ndarray:
        return self.living.graph.ids.find(ids_of([*self.plain.lists]))

    def answers(self, variant: str = "stored2") -> np.ndarray:
        return self.served.compute.infer(variant, self.nodes, 0).scores

    def errors(self) -> np.ndarray:
        return self.living.refreshing.layers[-1].rows.errors

    def over(self, plain: PlainGraph, digest: str) -> LoadedRevision:
        """A revision of that graph, with the same weights."""
        return generated(
            self.root, digest, self.architecture, plain.built(), variants=self.variants, layers=self.layers
        )

    def rebuilt(self) -> dict[str, np.ndarray]:
        """Answers of the graph built anew, by variant."""
        built = self.over(self.plain, "rebuilt")
        seeds = np.arange(len(self.plain.lists))
        return {name: infer_batch(built, name, seeds, 0).scores for name in built.variants}

    def assert_exact(self, within: float = CLOSE) -> None:
        expected = self.rebuilt()
        for name in expected.keys() & self.loaded.variants.keys():
            close = 3e-2 if name.endswith("-int8") else within
            np.testing.assert_allclose(self.answers(name), expected[name], atol=close, rtol=close, err_msg=name)

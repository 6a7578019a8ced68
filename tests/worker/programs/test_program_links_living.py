"""Programs that give rows of nodes over a graph that changes: pairs are scored and recommended as by their modules over
the graph that has the changes, before and after these are folded into it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
import torch_geometric.nn as pyg
from tests.support.changes.living import ROOM_BYTES, write_and_apply
from tests.support.programs import program_links as one_type
from tests.support.programs import program_links_types as several_types
from tests.support.programs.program_types import FREE, example, whole_graph
from tests.support.programs.program_types_generated import GrownGraph
from tests.support.programs.programs import export
from tests.support.serving.following_index import followed
from tests.support.serving.serving import FakeWorker, running

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.changes.follower import catch_up
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.generation.embeddings.publishing import publish_embeddings
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.http.changes.reading import read_changes

UID = "f7b4c2a0-0000-4000-8000-000000000004"
UPDATES = {"updates": {"log": {"sqlite": {}}}}


class Grown(Protocol):
    """A graph with its changes, by the ids of its nodes."""

    def change(self, draw: np.random.Generator) -> dict[str, Any]:
        """A batch of changes, which the graph has from then on."""

    def rows(self) -> dict[Any, np.ndarray]:
        """Rows of all nodes, as the module gives them over the whole graph."""

    def ends(self) -> tuple[list[Any], list[Any]]:
        """Ids of the nodes at either end of links."""

    def score(self, first: np.ndarray, second: np.ndarray) -> float: ...


@dataclass
class OneType:
    given: one_type.Given
    features: dict[int, np.ndarray] = field(default_factory=lambda: dict(enumerate(one_type.FEATURES)))
    pairs: set[tuple[int, int]] = field(
        default_factory=lambda: {(first, second) for first, second in one_type.EDGES.T.tolist() if first < second}
    )
    fresh: int = 1000

    def change(self, draw: np.random.Generator) -> dict[str, Any]:
        def row() -> list[float]:
            listed: list[float] = draw.normal(size=one_type.COLUMNS).astype(np.float32).tolist()
            return listed

        new = [{"id": self.fresh + place, "features": row()} for place in range(2)]
        self.fresh += 2
        other = [{"id": int(node), "features": row()} for node in draw.choice([*self.features], 2, replace=False)]
        self.features |= {one["id"]: np.array(one["features"], np.float32) for one in (*new, *other)}
        drawn = draw.choice([*self.features], (12, 2)).tolist() + [[one["id"], 7] for one in new]
        edges = {(min(pair), max(pair)) for pair in drawn if pair[0] != pair[1]} - self.pairs
        left = [sorted(self.pairs)[place] for place in draw.choice(len(self.pairs), 5, replace=False)]
        (gone,) = draw.choice([node for node in self.features if node != 7], 1).tolist()
        self.pairs = {pair for pair in (self.pairs | edges) - {*left} if gone not in pair}
        del self.features[gone]
        return {
            "nodes": new, "overrides": other, "edges": [*map(list, edges)], "removedEdges": [*map(list, left)],
            "removedNodes": [gone],
        }  # fmt: skip

    def rows(self) -> dict[Any, np.ndarray]:
        places = {node: place for place, node in enumerate(self.features)}
        ends = np.array([[places[first], places[second]] for first, second in sorted(self.pairs)]).T
        found = self.given.module.rows(np.stack([*self.features.values()]), np.concatenate([ends, ends[::-1]], axis=1))
        return dict(zip(self.features, found, strict=True))

    def ends(self) -> tuple[list[Any], list[Any]]:
        return [*self.features], [*self.features]

    def score(self, first: np.ndarray, second: np.ndarray) -> float:
        return float(self.given.scores(np.stack([first, second]), [[0, 1]])[0])


@dataclass
class SeveralTypes:
    module: several_types.Encoder
    graph: GrownGraph = field(default_factory=GrownGraph)

    def change(self, draw: np.random.Generator) -> dict[str, Any]:
        return self.graph.drawn_changes(draw)

    def rows(self) -> dict[Any, np.ndarray]:
        users, items = self.module.over(self.graph.arrays())
        firsts, seconds = self.ends()
        return dict(zip((*firsts, *seconds), (*users, *items), strict=True))

    def ends(self) -> tuple[list[Any], list[Any]]:
        firsts, seconds = ([f"{kind}/{node}" for node in self.graph.rows[kind]] for kind in ("user", "item"))
        return firsts, seconds

    def score(self, first: np.ndarray, second: np.ndarray) -> float:
        return float(first @ second)


class Follower:
    """A worker over a service that has a log of changes, and what the graph should be."""

    def __init__(
        self, folder: Path, repository: Repository, service: GNNService, revision: RevisionManifest, grown: Grown
    ) -> None:
        self.repository, self.service, self.revision, self.grown = repository, service, revision, grown
        self.updates = UpdatesOptions(SqliteFile(folder / "log.sqlite"), UID, ROOM_BYTES)
        self.draw, self._sequence, self._opened = np.random.default_rng(5), 0, list[LoadedRevision]()
        self.start()

    def start(self) -> None:
        """Open the newest revision, and apply what the log has beyond it."""
        publish_embeddings(self.repository, "default/tiny", self.revision.revision, None, {}, "a test", silent)
        loaded = load_revision(self.repository, self.revision.revision, ROOM_BYTES)
        self._opened.append(loaded)
        self.living = LivingRevision(loaded, ROOM_BYTES)
        with opened_log(self.updates.log, UID) as log:
            catch_up(log, self.living, lambda _: None)
        self.served = served_revision(loaded, self.living)

    def close(self) -> None:
        for loaded in self._opened:
            for one in loaded.programs:
                one.close()

    def compact(self) -> None:
        self.revision = compact(self.service, self.repository, self.updates)

    def change(self, count: int) -> None:
        batches = [
            read_changes(json.dumps(self.grown.change(self.draw)).encode(), b"application/json", self.served)[1]
            for _ in range(count)
        ]
        self._sequence = write_and_apply(self.updates, self._sequence, self.living, batches)

    def assert_it_answers(self) -> None:
        rows, (firsts, seconds) = self.grown.rows(), self.grown.ends()
        newest = [[firsts[-1], seconds[-1]]]
        pairs = newest + [[firsts[one], seconds[other]] for one, other in self.draw.integers(0, len(seconds), (30, 2))]
        asked = firsts[-1]
        wanted = {other: self.grown.score(rows[asked], rows[other]) for other in seconds if other != asked}
        best = sorted(wanted.values(), reverse=True)[:6]

        async def scenario() -> tuple[Any, Any, Any]:
            async with running(FakeWorker(loaded=False)) as client:
                client.switch(self.served)
                scores = (await client.http.post("/v1/predict", json={"pairs": pairs})).json()
                body = {"node": asked, "count": 6, "exclude": "nothing"}
                nodes = (await client.http.get("/v1/nodes?count=1000")).json()
                return scores, await followed(client, body, self.living.offset), nodes

        scores, told, nodes = asyncio.run(scenario())
        largest = max(1.0, *map(abs, wanted.values()))
        expected = [self.grown.score(rows[first], rows[second]) for first, second in pairs]
        np.testing.assert_allclose(scores["scores"], expected, rtol=0, atol=1e-5 * largest)
        assert scores["offset"] == self.living.offset
        np.testing.assert_allclose([one["score"] for one in told["items"]], best, rtol=0, atol=1e-5 * largest)
        for one in told["items"]:
            assert one["score"] == pytest.approx(wanted[one["id"]], abs=1e-5 * largest)
        assert nodes["total"] == len(rows)
        assert {*nodes["nodes"]} == {*rows}


def one(folder: Path, module: one_type.Encoder, relation: np.ndarray | None = None, **program: Any) -> Follower:
    given = one_type.Given.of(folder, module, relation)
    service = given.service(program, UPDATES)
    revision = given.generate(program)
    return Follower(folder, given.repository, service, revision, OneType(given))


def sage(folder: Path) -> Follower:
    return one(folder, one_type.Encoder(pyg.SAGEConv))


def gcn(folder: Path) -> Follower:
    """Counts edges, gives classes beside its rows, and has a decoder with weights."""
    relation = np.linspace(-1, 2, one_type.HIDDEN, dtype=np.float32)
    return one(folder, one_type.Encoder(pyg.GCNConv, has_head=True), relation, readsDegrees=True)


def users_and_items(folder: Path) -> Follower:
    module = several_types.Encoder().eval()
    export(module, example(), FREE, folder / "model.onnx", ("user", "item"))
    rows = np.concatenate(module.over(whole_graph()))
    np.savez(folder / "expected.npz", nodes=np.array(several_types.IDS), scores=rows)
    given = several_types.Given(folder, module, rows)
    return Follower(folder, given.repository, given.service(UPDATES), given.generate(), SeveralTypes(module))


@pytest.mark.campaign
@pytest.mark.parametrize("scene", [sage, gcn, users_and_items])
def test_pairs_and_recommendations_follow_changes_and_compactions(
    tmp_path: Path, scene: Callable[[Path], Follower]
) -> None:
    follower = scene(tmp_path)
    try:
        follower.change(4)
        follower.assert_it_answers()
        follower.compact()
        follower.start()
        assert follower.living.offset == follower.living.base_offset == 4
        follower.assert_it_answers()
        follower.change(3)
        follower.assert_it_answers()
    finally:
        follower.close()

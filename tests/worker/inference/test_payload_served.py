"""Features and times of edges from a user's files to answers, in a graph of several types: imported, published, served,
brought by requests, changed over HTTP, read again after a restart, compacted, and gone back to. After each step the
graph is the one that is imported from tables as they would be then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.graphs.several_types import TypedParts, load_types, typed_source
from tests.support.graphs.shop_payload import BUYS, relations_of, shop_with_payload, tables_of
from tests.support.machine.waiting import WAIT_S
from tests.support.models.networks_of_types import service_of
from tests.support.overlays.typed_overlays import read
from tests.support.sampling.samplers import sampler_of
from tests.support.serving.secured_worker import started
from typer.testing import CliRunner

from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.http.changes import CHANGES_TYPE
from gnnserve_cli.main import app
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.worker_log import Updates
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.compaction.restoring import bring
from gnnserve_worker.generation import pipeline
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts, encode_batch
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.graph.store import Graph, GraphData, Relation
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.pods.followed_log import FollowedLog
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.sampling.payload import gather_payload
from gnnserve_worker.serving.security.credentials import Credentials

WRITING = "writing-0123456789ab"
HEADERS = {"authorization": f"Bearer {WRITING}"}
UID = "f7b4c2a0-0000-4000-8000-000000000003"
ROOM_BYTES = 1 << 22
Read = set[tuple[str, str, float, float, int]]
"""Reader, what it reads, amount, discount and time."""


@dataclass
class Shop:
    """The shop as a user would keep it in tables, and the service over it."""

    folder: Path
    parts: TypedParts = field(default_factory=shop_with_payload)

    def __post_init__(self) -> None:
        self.service = service_of(
            tables_of(self.folder / "tables", self.parts), {"training": {"epochs": 1}}, {"stored": []}
        )
        self.repository = Repository(self.folder / "repository", "default", "shop")
        self.updates = UpdatesOptions(SqliteFile(self.folder / "log.sqlite"), UID, ROOM_BYTES)
        self.manifest: RevisionManifest = pipeline.generate(self.service, self.repository)
        self.tokens = self.folder / "tokens"
        self.tokens.write_text(WRITING)

    def rebuilt(self) -> GraphData:
        """What importing makes of the tables as they are now."""
        return load_types(typed_source(tables_of(self.folder / "now", self.parts)))

    def buy(self, user: int, item: int, *row: float) -> None:
        edges = self.parts.edges[BUYS]
        for name, value in zip(("src", "dst", "amount", "discount", "at"), (user, item, *row), strict=True):
            edges[name] = np.append(edges[name], edges[name].dtype.type(value))

    def return_(self, user: int, item: int) -> None:
        edges = self.parts.edges[BUYS]
        kept = (edges["src"] != user) | (edges["dst"] != item)
        for name in edges:
            edges[name] = edges[name][kept]

    def come(self, features: list[float]) -> int:
        users = self.parts.nodes["user"]
        users["features"] = np.concatenate((users["features"], np.array([features], np.float32)))
        for name in ("train_mask", "val_mask", "test_mask"):
            users[name] = np.append(users[name], False)
        users["labels"] = np.append(users["labels"], 0)
        users["num_nodes"] = np.array(len(users["labels"]))
        return len(users["labels"]) - 1

    @contextmanager
    def server(self) -> Iterator[Serving]:
        """A server over the newest revision, which has applied what the log has."""
        followed, opened = FollowedLog(self.updates), list[LivingRevision]()

        def serve(loaded: LoadedRevision, living: LivingRevision) -> ServedRevision:
            opened.append(living)
            return served_revision(loaded, living)

        served = followed.open(lambda most: load_revision(self.repository, self.manifest.revision, most), serve)
        of = _Followed(followed.updates, served)
        with (
            started(Credentials(write_tokens=self.tokens), of=of) as running,  # type: ignore[arg-type]
            httpx.Client(base_url=f"http://127.0.0.1:{running.port}", timeout=WAIT_S) as client,
        ):
            yield Serving(client, served, opened[0])


@dataclass(slots=True, weakref_slot=True)
class _Followed:
    """In the place of `FakeWorker`, for a server of tests."""

    updates: Updates
    served: ServedRevision

    def revision(self) -> ServedRevision:
        return self.served


@dataclass(frozen=True, slots=True)
class Serving:
    client: httpx.Client
    served: ServedRevision
    living: LivingRevision
    """The graph as predictions of that server see it."""

    @property
    def relations(self) -> tuple[Relation, ...]:
        return relations_of(self.living)

    def bought(self, user: str, overlay: dict[str, Any] | None = None) -> Read:
        """The items that a user reads, with the payload of each edge, as a request that brings this overlay sees it."""
        question = read(self.served, {"nodes": [user], **({} if overlay is None else {"overlay": overlay})})
        living = self.living.graph
        graph = living.graph
        view = view_of(graph.nodes, [Part(1, question.overlay, None)], question.nodes)
        sample = sampler_of(graph)(
            graph.indptr, graph.indices, question.nodes, (-1,), 1, Scratch(), share=True,
            view=None if view is None else view.sampling, names_positions=True,
        )  # fmt: skip
        payloads = [None if one is None else one.in_use for one in living.payloads]
        found: Read = set()
        for one, payload in zip(graph.schema.relations, gather_payload(graph, payloads, sample, view), strict=True):
            if payload is None or one.target != "user":
                continue
            items = [item_of(graph, int(node), question.overlay) for node in sample.neighbours[payload.edges]]
            for item, (amount, discount), at in zip(items, payload.features, payload.times, strict=True):
                found.add((user, item, float(amount), float(discount), int(at)))
        return found


def assert_payload_is(found: tuple[Relation, ...], expected: GraphData) -> None:
    """Whether lists have the entries, rows and payload of a graph that was built anew."""
    for one, own in zip(found, expected.relations, strict=True):
        assert (one.key, one.payload is None) == (own.key, own.payload is None)
        np.testing.assert_array_equal(one.lists.indptr, own.lists.indptr)
        np.testing.assert_array_equal(one.lists.indices, own.lists.indices)
        if one.payload is None or own.payload is None:
            continue
        assert (one.payload.columns, one.payload.time_column) == (("amount", "discount"), "at")
        for found_part, part in (
            (one.payload.features, own.payload.features),
            (one.payload.times, own.payload.times),
        ):
            np.testing.assert_array_equal(found_part[one.lists.payload_rows], part[own.lists.payload_rows])


def item_of(graph: Graph, node: int, overlay: Overlay | None) -> str:
    if node >= graph.nodes:
        assert overlay is not None
        node = int(overlay.origins[node - graph.nodes])
    return f"item/{node - int(graph.schema.first_nodes[1])}"


def expected_of(shop: Shop, user: int, called: str) -> Read:
    edges = shop.parts.edges[BUYS]
    last = {}
    for source, item, *row in zip(*(edges[name] for name in ("src", "dst", "amount", "discount", "at")), strict=True):
        if source == user:
            amount, discount, at = row
            last[int(item)] = float(amount), float(discount), int(at)
    return {(called, f"item/{item}", *row) for item, row in last.items()}


def sent(answer: httpx.Response, offset: int, unchanged: int = 0) -> None:
    assert answer.status_code == 200, answer.text
    assert (answer.json()["offset"], answer.json()["unchanged"]) == (offset, unchanged)


def bytes_of(edges: list[list[str]], rows: list[tuple[float, float, int]], removed: list[list[str]]) -> bytes:
    """Edges that come and leave in the binary form with types and payload."""
    texts = [text for edge in (*edges, *removed) for text in edge]
    return encode_batch(ChangeBatch(
        ChangeCounts(edges=len(edges), removed_edges=len(removed)), TextIds(*lay_out(texts), TEXTS_WITH_TYPES),
        np.zeros((0, 4), np.float32),
        edge_features=np.array([row[:2] for row in rows], np.float32), edge_times=np.array([row[2] for row in rows]),
    ))  # fmt: skip


def test_edges_have_their_features_and_times_from_files_to_a_compacted_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    shop, row = Shop(tmp_path), [0.5, 1.0, 0.0, 2.0]
    generated, imported = shop.manifest, shop.rebuilt()
    first, again = (int(shop.parts.edges[BUYS][name][0]) for name in ("src", "dst"))
    user = f"user/{first}"
    with shop.server() as serving:
        assert_payload_is(serving.relations, shop.rebuilt())
        assert serving.bought(user) == expected_of(shop, first, user)
        told = serving.client.get("/v1/variants").json()
        assert "edgeFeatures" not in told
        given = {one["name"]: (one.get("edgeFeatures"), one.get("edgeTime")) for one in told["relations"]}
        assert {name: has for name, has in given.items() if any(has)} == {"buys": (["amount", "discount"], "at")}

        overlay = {"edges": [[user, "buys", f"item/{again}"]], "edgeFeatures": [[9.5, 1.0]], "edgeTimes": [77]}
        answer = serving.client.post("/v1/predict", json={"nodes": [user], "overlay": overlay})
        assert answer.status_code == 200, answer.text
        without = expected_of(shop, first, user)
        without -= {edge for edge in without if edge[1] == f"item/{again}"}
        assert serving.bought(user, overlay) == without | {(user, f"item/{again}", 9.5, 1.0, 77)}
        assert serving.bought(user) == expected_of(shop, first, user)
        answer = serving.client.post("/v1/predict", json={"nodes": [user], "overlay": {"edges": overlay["edges"]}})
        assert answer.status_code == 400
        assert "edges of user buys item have 2 features, amount, discount" in answer.json()["error"]["message"]

        new = shop.come(row)
        edges = [[f"user/{new}", "buys", "item/3"], [user, "buys", f"item/{again}"], [user, "knows", f"user/{new}"]]
        body = {
            "nodes": [{"id": f"user/{new}", "features": row, "label": "class0"}], "edges": edges,
            "edgeFeatures": [[1.25, 2.0], [3.5, 4.0], None], "edgeTimes": [-5, 2**50, None],
        }  # fmt: skip
        sent(serving.client.post("/v1/changes", json=body, headers=HEADERS), 1)
        shop.buy(new, 3, 1.25, 2.0, -5)
        shop.return_(first, again)
        shop.buy(first, again, 3.5, 4.0, 2**50)
        known = shop.parts.edges["user", "knows", "user"]
        known["src"], known["dst"] = np.append(known["src"], first), np.append(known["dst"], new)
        content = bytes_of([[f"user/{new}", "buys", "item/4"]], [(0.125, 8.0, 6)], [edges[0]])
        headers = {**HEADERS, "content-type": CHANGES_TYPE}
        sent(serving.client.post("/v1/changes", content=content, headers=headers), 2)
        shop.return_(new, 3)
        shop.buy(new, 4, 0.125, 8.0, 6)
        page = serving.client.get("/v1/changes", params={"after": 0, "content": True}).json()["records"]
        assert page[0]["content"]["edgeFeatures"] == body["edgeFeatures"]
        assert page[0]["content"]["edgeTimes"] == body["edgeTimes"]
        assert (page[1]["content"]["edgeFeatures"], page[1]["content"]["edgeTimes"]) == ([[0.125, 8.0]], [6])
        refused = serving.client.post("/v1/changes", json={"edges": [edges[0]], "edgeTimes": [1]}, headers=HEADERS)
        assert refused.status_code == 400
        assert refused.json()["error"]["field"] == "edgeFeatures[0]"
        assert_payload_is(serving.relations, shop.rebuilt())

    with shop.server() as serving:  # which applies the log anew
        assert_payload_is(serving.relations, shop.rebuilt())
        assert serving.bought(f"user/{new}") == expected_of(shop, new, f"user/{new}")

    shop.manifest = compact(shop.service, shop.repository, shop.updates)
    written = shop.repository.read_graph(shop.manifest.graph)
    assert_payload_is(written.relations, shop.rebuilt())
    # Edges that were merged, given again or removed have no row any more.
    rows = [len(one.payload.features) for one in written.relations if one.payload is not None]
    assert rows == [len(set(zip(*(shop.parts.edges[BUYS][end].tolist() for end in ("src", "dst")), strict=True)))] * 2
    older = load_revision(shop.repository, generated.revision, ROOM_BYTES)
    brought = bring(older, [kind.features for kind in imported.types], written, ROOM_BYTES, silent)
    assert_payload_is(relations_of(brought.living), shop.rebuilt())
    with shop.server() as serving:
        assert serving.living.base_offset == 2
        assert serving.bought(user) == expected_of(shop, first, user)
        answer = serving.client.post("/v1/predict", json={"nodes": [f"user/{new}"], "minOffset": 2})
        assert answer.status_code == 200, answer.text
        rows = tmp_path / "rows.csv"
        rows.write_text(
            f"change,source,relation,target\nadd-edge,{user},knows,user/{new}\nadd-edge,{user},buys,item/5\n"
        )
        apply = ["changes", "apply", str(rows), str(serving.client.base_url), "--token-file", str(shop.tokens)]
        refused = CliRunner().invoke(app, apply)
        assert refused.exit_code == 2
        assert (
            "row 3, in batch 1: the server answered 400 MissingField: edgeFeatures[1]: it is missing" in refused.stderr
        )
        rows.write_text(
            f"change,source,relation,target,edgeFeatures,edgeTime\nremove-edge,user/{new},buys,item/4,,\n"
            f'add-edge,user/{new},buys,item/5,"[0.25, 1]",12\nadd-edge,user/{new},knows,user/{first},,\n'
        )
        applied = CliRunner().invoke(app, apply)
        assert applied.exit_code == 0, applied.stderr
        shop.return_(new, 4)
        shop.buy(new, 5, 0.25, 1.0, 12)
        known["src"], known["dst"] = np.append(known["src"], new), np.append(known["dst"], first)
        assert_payload_is(serving.relations, shop.rebuilt())
        assert serving.bought(f"user/{new}") == {(f"user/{new}", "item/5", 0.25, 1.0, 12)}

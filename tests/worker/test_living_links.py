"""Links of a graph that changes: what networks give of nodes is what they give over the graph built anew, before and
after the log is folded into it; and links that are held out stay so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import safetensors.numpy
import torch
from tests.support.generated import generate_over
from tests.support.living import FEATURES, MODELS, ROOM_BYTES, PlainGraph, RandomModels, batch_of, ids_of, stored_ids
from tests.support.living_relations import PlainTypedGraph
from tests.worker.test_new_ends import made
from tests.worker.test_overlays_over_relations import embeddings_of
from tests.worker.test_recommend_links import of_users, service_of

from gnnserve_api.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.repository import ChangedSource, RevisionManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.spec.task import Links
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.compaction.folding import fold
from gnnserve_worker.generation import one_relation
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import Applied, ChangeBatch, ChangeCounts, encode_batch
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, TextIds
from gnnserve_worker.graph.ids import lay_out
from gnnserve_worker.graph.links import Pairs
from gnnserve_worker.graph.store import GraphData, Splits
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.models.folding import EIGENVALUES, SHARES
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.generated import Imported
from gnnserve_worker.tasks.score_links.held_out import HeldOutLinks, hold_out_links

NODES, CLOSE = 40, 2e-5
UID = "f7b4c2a0-0000-4000-8000-000000000003"
VARIANTS = {"pruning": {"factors": [1, 2]}, "stored": [1, 2], "storedFollowChanges": True, "storage": ["float32"]}


def spec_of(architecture: str) -> GNNServiceSpec:
    return GNNServiceSpec.model_validate(
        {
            "graph": {"source": {"npz": {"uri": "file:///made-up.npz"}}, "normalization": "Disabled"},
            "model": {"fanouts": [-1, -1], "hidden": 8, **MODELS[architecture]},
            "task": {"links": {"dimensions": 6}},
            "variants": VARIANTS,
        }
    )


def data_of(plain: PlainGraph, digest: str) -> GraphData:
    graph, features, rules = plain.built()
    none, ids = Splits(*(np.zeros(0, np.int64) for _ in range(3))), stored_ids([*plain.lists])
    return GraphData.of_one_type("made up", digest, graph, features, np.zeros(0, np.int64), (), none, rules, ids)


def generated(repository: Repository, spec: GNNServiceSpec, imported: Imported) -> RevisionManifest:
    models = RandomModels(spec.model.network(6))
    with patch.object(one_relation, "worth_keeping", tuple):
        return generate_over(spec, imported.graph, imported.problem, repository, lambda data, features: models)


def assert_equal(found: LoadedRevision, plain: PlainGraph, expected: LoadedRevision) -> None:
    ids = found.ids.asked if found.changes is None else found.changes.graph.ids
    assert ids is not None
    positions = ids_of([*plain.lists]).find_in(ids)
    for name in expected.variants:
        rows = infer_batch(found, name, positions, 0).scores
        others = infer_batch(expected, name, np.arange(len(positions)), 0).scores
        np.testing.assert_allclose(rows, others, atol=CLOSE, rtol=CLOSE, err_msg=name)


def pairs_of(*parts: Pairs) -> list[tuple[int, int]]:
    return [pair for part in parts for pair in zip(part.first.tolist(), part.second.tolist(), strict=True)]


@pytest.mark.parametrize(
    ("architecture", "rules"),
    [("GCN", EdgeRules(Direction.UNDIRECTED)), ("GraphSAGE", EdgeRules(Direction.DIRECTED, Duplicates.KEEP))],
    ids=["both-ways", "one-way"],
)
def test_after_any_changes_and_once_they_are_folded_links_are_those_of_the_graph_built_anew(
    tmp_path: Path, architecture: str, rules: EdgeRules
) -> None:
    plain, spec, draw = PlainGraph(NODES, 3, rules), spec_of(architecture), np.random.default_rng(4)
    settings, source = spec.task.asked(), data_of(plain, "source")
    assert isinstance(settings, Links)
    imported = hold_out_links(spec, settings, source)
    assert isinstance(imported.problem, HeldOutLinks)
    held_out = pairs_of(imported.problem.links.validation, imported.problem.links.test)
    # Repeated links count once, whatever the source does with repeated edges.
    plain.rules = EdgeRules(rules.direction)
    plain.lists = {id_: sorted({*listed}) for id_, listed in plain.lists.items()}
    for pair in held_out:
        plain.remove_edge(*pair)
    repository = Repository(tmp_path, "tests", "links")
    manifest = generated(repository, spec, imported)
    loaded = load_revision(repository, manifest.revision, ROOM_BYTES)
    living, fresh = LivingRevision(loaded, ROOM_BYTES), [*range(10_000, 9_000, -1)]
    batches = [plain.random_batch(draw, 10, fresh) for _ in range(6)]
    # A link that was held out comes to be known.
    known = next(pair for pair in held_out if {*pair} <= plain.lists.keys())
    batches.append(batch_of(np.zeros((0, FEATURES), np.float32), edges=[known]))
    plain.add_edge(*known)
    log = SqliteLog(tmp_path / "log.sqlite", UID)
    log.append([Entry("tests", place, one.counts.items, encode_batch(one)) for place, one in enumerate(batches)])
    assert all(isinstance(said, Applied) for said in living.apply(1, batches))
    version = replace(data_of(plain, "version"), made_of=ChangedSource("source", UID, 7, 7, 7))
    anew = hold_out_links(spec, settings, source, version)
    rebuilt = load_revision(repository, generated(repository, spec, anew).revision)
    assert_equal(loaded, plain, rebuilt)

    folded = fold(opened := load_revision(repository, manifest.revision, ROOM_BYTES), [source.features], log, UID,
                  ROOM_BYTES, silent)  # fmt: skip
    assert folded is not None
    repository.put_graph(folded.data)
    carried = carry_over(manifest, opened, folded, repository, silent)
    assert carried.links is not None and carried.links.first.end == len(plain.lists)
    assert_equal(load_revision(repository, carried.revision), plain, rebuilt)

    # What is held out stays so, but for links that are known now and those of nodes that have left.
    assert isinstance(anew.problem, HeldOutLinks)
    ids, links = [*plain.lists], anew.problem.links
    listed = {(sender, reader) for reader, senders in plain.lists.items() for sender in senders}
    expected = {pair for pair in held_out if {*pair} <= plain.lists.keys() and pair not in listed}
    assert known not in expected and len(expected) > 3
    assert {(ids[first], ids[second]) for first, second in pairs_of(links.validation, links.test)} == expected
    trained = {(ids[first], ids[second]) for first, second in pairs_of(links.train)}
    assert trained <= listed and not trained & expected


def typed_batch(
    nodes: list[str], edges: list[tuple[str, str, str]], removed_edges: list[tuple[str, str, str]], removed: list[str]
) -> ChangeBatch:
    texts = [*nodes, *(text for edge in (*edges, *removed_edges) for text in edge), *removed]
    counts = ChangeCounts(len(nodes), 0, 0, len(edges), len(removed_edges), len(removed))
    return ChangeBatch(counts, TextIds(*lay_out(texts), TEXTS_WITH_TYPES), np.zeros((len(nodes), 0), np.float32))


def batch_of_body(body: dict[str, Any], width: int) -> ChangeBatch:
    """`body`: as clients send it. `width`: features of the type that has most."""
    nodes, overrides = body["nodes"], body["overrides"]
    texts = [one["id"] for one in nodes] + [f"{one['id']['type']}/{one['id']['id']}" for one in overrides]
    texts += [text for edge in (*body["edges"], *body["removedEdges"]) for text in edge] + body["removedNodes"]
    rows = np.zeros((len(nodes) + len(overrides), width), np.float32)
    for row, one in zip(rows, (*nodes, *overrides), strict=True):
        given = one.get("features", [])
        row[: len(given)] = given
    sizes = (len(body[name]) for name in ("edges", "removedEdges", "removedNodes"))
    counts = ChangeCounts(len(nodes), len(overrides), 0, *sizes)
    return ChangeBatch(counts, TextIds(*lay_out(texts), TEXTS_WITH_TYPES), rows)


def test_links_over_types_are_those_of_the_graph_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    given = made(tmp_path, "GraphSAGE", monkeypatch)
    model, manifest = given.model.float(), given.loaded.manifest
    assert manifest is not None
    repository = Repository(tmp_path / "repository", "default", "shop")
    loaded = load_revision(repository, manifest.revision, ROOM_BYTES)
    living, plain, draw = (
        LivingRevision(loaded, ROOM_BYTES),
        PlainTypedGraph(given.data, model),
        np.random.default_rng(3),
    )
    log = SqliteLog(tmp_path / "log.sqlite", UID)
    for place in range(8):
        batch = batch_of_body(plain.random_batch(draw, 8), loaded.new_nodes.features)
        log.append([Entry("tests", place, batch.counts.items, encode_batch(batch))])
        (said,) = living.apply(place + 1, [batch])
        assert isinstance(said, Applied), said
    built, inputs = plain.built()
    with embeddings_of(model, inputs), torch.no_grad():
        outputs = model.outputs(built)
    names = [f"{kind}/{id_}" for kind in ("user", "item") for id_ in plain.rows[kind]]
    expected = np.concatenate([outputs[kind].numpy() for kind in ("user", "item")])
    for variant in ("projected", "stored1"):
        np.testing.assert_allclose(rows_of(loaded, names, variant), expected, atol=CLOSE, rtol=CLOSE, err_msg=variant)

    opened = load_revision(repository, manifest.revision, ROOM_BYTES)
    folded = fold(opened, [kind.features for kind in given.data.types], log, UID, ROOM_BYTES, silent)
    assert folded is not None
    repository.put_graph(folded.data)
    carried = load_revision(repository, carry_over(manifest, opened, folded, repository, silent).revision)
    for variant in carried.variants:
        np.testing.assert_allclose(rows_of(carried, names, variant), expected, atol=CLOSE, rtol=CLOSE, err_msg=variant)
    assert carried.manifest is not None and carried.manifest.links is not None
    links = carried.manifest.links
    assert (links.first.end - links.first.start, links.weights) == (
        len(plain.rows["user"]),
        given.loaded.manifest.links.weights,
    )


class JoinedNodes:
    """LightGCN's rows by the ids of nodes: as they were generated, and what each node is joined to."""

    def __init__(self, loaded: LoadedRevision) -> None:
        graph, schema = loaded.graph, loaded.graph.schema
        names = [f"{kind.name}/{place}" for kind in schema.types for place in range(kind.nodes)]
        rows = infer_batch(loaded, "x1", np.arange(graph.nodes), 0).scores
        self.base, self.touched = dict(zip(names, rows, strict=True)), set[str]()
        self.joined = {name: {names[other] for other in graph.list_of(node)} for node, name in enumerate(names)}
        weights = read_tensors_of(loaded)
        shares = weights.get(SHARES, np.ones(len(names), np.float32))
        self.shares = dict(zip(names, shares.tolist(), strict=True))
        self.values = weights.get(EIGENVALUES)

    def random_batch(self, draw: np.random.Generator) -> ChangeBatch:
        def one(kind: str) -> str:
            found = [name for name in self.joined if name.startswith(kind)]
            return found[draw.integers(len(found))]

        new = [f"{kind}/{1000 + len(self.base)}" for kind in ("user", "item")]
        self.base |= dict.fromkeys(new, np.zeros(8, np.float32))
        self.shares |= dict.fromkeys(new, 0.0)
        self.joined |= {name: set() for name in new}
        self.touched |= {*new}
        gone = one("tag") if draw.random() < 0.3 else ""
        edges = [(one("user"), "buys", one("item")) for _ in range(4)]
        user = one("user")
        there = [(user, "buys", other) for other in sorted(self.joined[user]) if other.startswith("item")][:1]
        there = [edge for edge in there if edge not in edges]
        for first, _, second in edges:
            self.change(first, second, adds=True)
        for first, _, second in there:
            self.change(first, second, adds=False)
        for other in self.joined.pop(gone, ()):
            self.joined[other].discard(gone)
            self.touched.add(other)
        return typed_batch(new, edges, there, [gone] if gone else [])

    def change(self, first: str, second: str, *, adds: bool) -> None:
        for one, other in ((first, second), (second, first)):
            if (other in self.joined[one]) is not adds:
                (self.joined[one].add if adds else self.joined[one].remove)(other)
                self.touched.add(one)

    def rows(self) -> dict[str, np.ndarray]:
        return {name: self._row(name) if name in self.touched else self.base[name] for name in self.joined}

    def _row(self, name: str) -> np.ndarray:
        found = sum((self.shares[one] * self.base[one] for one in sorted(self.joined[name])), np.zeros(8, np.float32))
        if self.values is not None:
            found = np.divide(found, self.values, out=np.zeros_like(found), where=self.values > 0)
        length = float(np.linalg.norm(found)) if self.values is None or name.startswith("user") else 1.0
        return found / length if length else found


def read_tensors_of(loaded: LoadedRevision) -> dict[str, np.ndarray]:
    assert loaded.manifest is not None and loaded.manifest.links is not None and loaded.origin.folder is not None
    weights = loaded.manifest.links.weights
    return {} if weights is None else safetensors.numpy.load_file(loaded.origin.folder / weights)


def rows_of(loaded: LoadedRevision, names: list[str], variant: str = "x1") -> np.ndarray:
    if loaded.changes is None:
        assert loaded.ids.asked is not None
        return infer_batch(loaded, variant, loaded.ids.asked.find_texts(names), 0).scores
    graph = loaded.changes.graph
    kinds = [graph.stored.place_of(name.partition("/")[0]) for name in names]
    numbers = [
        int(
            graph.places.first_nodes[kind]
            + graph.ids_of[kind].find_integers(np.array([int(name.partition("/")[2])]))[0]
        )
        for kind, name in zip(kinds, names, strict=True)
    ]
    return infer_batch(loaded, variant, np.array(numbers), 0).scores


@pytest.mark.parametrize("compared_with", ["Drawn", "Nothing"])
def test_rows_of_light_gcn_are_the_sums_of_those_that_nodes_are_joined_to_now(
    tmp_path: Path, compared_with: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    spec = of_users(tmp_path)
    spec["task"]["links"]["comparedWith"] = compared_with
    repository = Repository(tmp_path / "repository", "default", "shop")
    manifest = generate(service_of(spec), repository, silent)
    loaded = load_revision(repository, manifest.revision, ROOM_BYTES)
    plain, living = JoinedNodes(load_revision(repository, manifest.revision)), LivingRevision(loaded, ROOM_BYTES)
    log, draw = SqliteLog(tmp_path / "log.sqlite", UID), np.random.default_rng(2)
    for place in range(12):
        batch = plain.random_batch(draw)
        log.append([Entry("tests", place, batch.counts.items, encode_batch(batch))])
        (said,) = living.apply(place + 1, [batch])
        assert isinstance(said, Applied), said
    names, expected = [*plain.joined], np.stack([*plain.rows().values()])
    assert len(plain.touched) > 40
    np.testing.assert_allclose(rows_of(loaded, names), expected, atol=1e-5)

    opened = load_revision(repository, manifest.revision, ROOM_BYTES)
    folded = fold(opened, [None] * 3, log, UID, ROOM_BYTES, silent)
    assert folded is not None
    repository.put_graph(folded.data)
    carried = load_revision(repository, carry_over(manifest, opened, folded, repository, silent).revision)
    np.testing.assert_allclose(rows_of(carried, names), expected, atol=1e-5)
    links = carried.manifest.links if carried.manifest is not None else None
    assert links is not None and links.second.end - links.second.start == sum(one.startswith("item") for one in names)
    shares = read_tensors_of(carried).get(SHARES)
    assert shares is None or len(shares) == carried.graph.nodes


def test_rows_are_learnt_anew_of_the_links_that_there_are_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    service = service_of(of_users(tmp_path) | {"updates": {"log": {"sqlite": {}}}})
    repository = Repository(tmp_path / "repository", "default", "shop")
    made, updates = (
        generate(service, repository, silent),
        UpdatesOptions(SqliteFile(tmp_path / "log.sqlite"), UID, 1 << 22),
    )
    batch = typed_batch(["user/900"], [("user/900", "buys", "item/3"), ("user/3", "buys", "item/9")], [], ["user/0"])
    with opened_log(updates.log, UID) as log:
        log.append([Entry("tests", 0, batch.counts.items, encode_batch(batch))])
    carried = compact(service, repository, updates)
    with opened_log(updates.log, UID) as log:
        again = typed_batch([], [("user/900", "buys", "item/4")], [], [])
        log.append([Entry("tests", 1, 1, encode_batch(again))])
    learnt = compact(service, repository, updates, retrain=True)
    assert made.links is not None and learnt.links is not None
    assert len({made.graph, carried.graph, learnt.graph}) == 3
    # One user has left with the held-out links that it had.
    held_out = [one.validation_links + one.test_links for one in (made.links, learnt.links)]
    assert 0 < held_out[1] < held_out[0]
    lengths = np.linalg.norm(rows_of(load_revision(repository, learnt.revision), ["user/900", "item/4"]), axis=1)
    np.testing.assert_allclose(lengths, 1, atol=1e-5)

"""Links of a graph that changes: what networks give of nodes is what they give over the graph built anew, before and
after the log is folded into it; and links that are held out stay so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.support.changes.living import FEATURES, ROOM_BYTES, PlainGraph, batch_of, ids_of
from tests.support.changes.living_links import (
    UID,
    ChangingLinks,
    JoinedLinks,
    JoinedNodes,
    LinksOfOneType,
    LinksOfTypes,
    batch_of_body,
    data_of,
    generated,
    largest_error,
    pairs_of,
    read_tensors_of,
    rows_of,
    spec_of,
    typed_batch,
)
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.generation.new_ends import made
from tests.support.generation.recommended_links import of_users, service_of
from tests.support.overlays.typed_overlays import embeddings_of

from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.repository import ChangedSource
from gnnserve_api.spec.task import Links
from gnnserve_worker.changes.log import Entry
from gnnserve_worker.changes.options import SqliteFile, UpdatesOptions
from gnnserve_worker.changes.registry import opened_log
from gnnserve_worker.changes.sqlite_log import SqliteLog
from gnnserve_worker.compaction.carrying import carry_over
from gnnserve_worker.compaction.compact import compact
from gnnserve_worker.compaction.folding import fold
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.change_batch import BatchEffect, encode_batch
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.models.folding import SHARES
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.progress import silent
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.score_links.held_out import HeldOutLinks, hold_out_links

NODES, CLOSE = 40, 2e-5


def assert_equal(found: LoadedRevision, plain: PlainGraph, expected: LoadedRevision) -> None:
    ids = found.ids.asked if found.changes is None else found.changes.graph.ids
    assert ids is not None
    positions = ids_of([*plain.lists]).find_in(ids)
    for name in expected.variants:
        rows = infer_batch(found, name, positions, 0).scores
        others = infer_batch(expected, name, np.arange(len(positions)), 0).scores
        np.testing.assert_allclose(rows, others, atol=CLOSE, rtol=CLOSE, err_msg=name)


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
    assert all(isinstance(said, BatchEffect) for said in living.apply(1, batches))
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
        assert isinstance(said, BatchEffect), said
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


@pytest.mark.campaign
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
        assert isinstance(said, BatchEffect), said
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


def of_one_type(folder: Path, patched: pytest.MonkeyPatch) -> ChangingLinks:
    return LinksOfOneType(folder, "GraphSAGE")


def of_types(folder: Path, patched: pytest.MonkeyPatch) -> ChangingLinks:
    given = made(folder, "GraphSAGE", patched)
    assert given.loaded.manifest is not None
    repository = Repository(folder / "repository", "default", "shop")
    return LinksOfTypes(repository, given.loaded.manifest.revision, given.data, given.model.float())


def of_light_gcn(folder: Path, patched: pytest.MonkeyPatch) -> ChangingLinks:
    repository = Repository(folder / "repository", "default", "shop")
    return JoinedLinks(repository, generate(service_of(of_users(folder)), repository, silent).revision)


@pytest.mark.parametrize("links_of", [of_one_type, of_types, of_light_gcn])
def test_scores_after_hundreds_of_changes_are_those_of_the_graph_that_has_them(
    tmp_path: Path, links_of: Callable[[Path, pytest.MonkeyPatch], ChangingLinks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make bench-updates` does the same with ten thousand."""
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")
    links, draw, changes = links_of(tmp_path, monkeypatch), np.random.default_rng(11), 0
    while changes < 400:
        changes += links.change(draw)
    errors = largest_error(links, 500, draw)
    assert errors
    assert max(errors.values()) <= 1e-5, errors

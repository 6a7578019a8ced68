"""A search looks at what can be made of a model, whatever its graph, its task and its network are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.support.changes.living import ROOM_BYTES
from tests.support.changes.living_types import CLOSE, batch_of, numbers_of, served_by
from tests.support.generation.given_links import Sage, service
from tests.support.generation.steps import HeardSteps
from tests.support.graphs.graphs import npz_arrays, service_of, write_npz
from tests.support.graphs.link_folders import light_gcn, typed_folder
from tests.support.graphs.several_types import load_types, shop, typed_source, write_folder
from tests.support.models.hetero_pyg import HIDDEN, HeteroModel
from tests.support.programs.generated_programs import Given, Models, contract
from tests.support.programs.program_links import GRAPH

from gnnserve_api.errors import RepositoryError
from gnnserve_api.families import CHANGED_GRAPH, RowAxis, point_of
from gnnserve_api.files.profile import VariantProfile
from gnnserve_api.files.repository import RevisionManifest
from gnnserve_api.files.search import SearchedVariant
from gnnserve_api.limits import RefreshBudget
from gnnserve_api.spec.made_variants import search_space
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.search import search
from gnnserve_worker.generation.search.latency_model import Degrees
from gnnserve_worker.generation.search.training import Promise
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.relation_lists import joined_lists
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository

STORAGES = ("", "-float16", "-bfloat16", "-int8")
CHANGES: dict[str, Any] = {
    "nodes": [{"id": "user/900", "features": [1, 2, 3, 4]}],
    "overrides": [{"id": "item/3", "features": [1, 2, 3]}],
    "edges": [["user/900", "buys", "item/3"], ["user/900", "knows", "user/4"], ["user/4", "buys", "item/7"]],
    "removedNodes": ["item/9"],
}


@pytest.fixture(autouse=True)
def short_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0.02")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory)


def searching(wanted: GNNService, **changed: Any) -> GNNService:
    body = wanted.model_dump(mode="json", by_alias=True, exclude_unset=True)
    pruning = body["spec"].get("variants", {}).get("pruning", {})
    body["spec"]["variants"] = {"search": "Auto", "pruning": pruning, **changed}
    return GNNService.model_validate(body)


def searched(folder: Path, wanted: GNNService) -> tuple[RevisionManifest, set[str]]:
    """The revision, whose variants all answer, and all names that the search looked at."""
    repository, heard = Repository(folder / "repository", "default", "tiny"), HeardSteps()
    published = generate(wanted, repository, heard)
    if wanted.spec.variants.budget.seconds > 1:  # otherwise steps that were expected are left out
        heard.check()
    record = published.profile.search
    assert record is not None
    kept = [verdict.name for verdict in record.variants if verdict.is_kept]
    assert {variant.name for variant in published.variants} == {*kept} and kept
    names = {verdict.name for verdict in record.variants}
    assert names <= {*wanted.spec.possible_variants()}
    assert {*published.tables} == {table for variant in published.variants for table in variant.tables}
    loaded = load_revision(repository, published.revision)
    for name in kept:
        scores = infer_batch(loaded, name, np.arange(10), 0, with_embeddings=False).scores
        assert len(scores) == 10 and np.isfinite(scores).all()
    for one in loaded.programs:
        one.close()
    return published, names


def typed(folder: Path, **parts: Any) -> GNNService:
    """A network over types whose weights are given."""
    source = write_folder(folder / "shop", shop())
    data = load_types(typed_source(source))
    module = HeteroModel(data)
    with torch.no_grad():
        module(data)
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, folder / "w.safetensors")
    model = {"hidden": HIDDEN, "fanouts": [4, 2], "checkpoint": {"uri": (folder / "w.safetensors").as_uri()}}
    spec = {"graph": {"source": {"typed": source}, "normalization": "Disabled"}, "model": model, **parts}
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "tiny"}, "spec": spec}
    return GNNService.model_validate(body)


def test_over_types_products_layers_storages_fanouts_and_perceptrons_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("x2", 0.3), Promise("mlp0", 0.2)))
    wanted = searching(typed(tmp_path))
    _, names = searched(tmp_path, wanted)
    expected = {f"projected{storage}{fewer}" for storage in STORAGES for fewer in ("", "-f2x1", "-f1x1")}
    assert {*expected, "stored1-int8", "stored1-f2", "mlp0", "mlp0-int8"} <= names
    assert {name for name in names if name.startswith("x")} == {f"x2{storage}" for storage in STORAGES}


def test_links_over_types_are_searched_with_the_rows_that_the_last_layer_gives(tmp_path: Path) -> None:
    links = {"links": {"dimensions": 2, "relation": "buys"}}
    published, names = searched(tmp_path, searching(typed(tmp_path, task=links), budget={"seconds": 1}))
    assert {"projected-int8-f2x1", "stored1", "stored2", "stored2-int8"} <= names
    assert published.profile.metric == "rocAuc"


@pytest.mark.parametrize("follows", [False, True], ids=["stand", "follow"])
def test_beside_changes_the_best_variant_that_answers_is_the_best_that_follows(tmp_path: Path, follows: bool) -> None:
    links = {"links": {"dimensions": 2, "relation": "buys"}}
    asked = {"storedFollowChanges": True} if follows else {}
    wanted = searching(typed(tmp_path, task=links, updates={"log": {"sqlite": {}}}), budget={"seconds": 1}, **asked)
    published, _ = searched(tmp_path, wanted)
    record = published.profile.search
    assert record is not None
    whys = {one.name: one.why for one in record.variants if one.is_kept}
    answering = published.profile.answering(CHANGED_GRAPH).variants
    assert any("follows changes" in whys[one.name] or "with an overlay" in whys[one.name] for one in answering)
    standing = {one.name for one in published.variants} - {one.name for one in answering}
    assert standing <= {*wanted.spec.standing_variants()}
    assert "stored2" not in standing if follows else "stored1" not in standing
    repository = Repository(tmp_path / "repository", "default", "tiny")
    loaded = load_revision(repository, published.revision, ROOM_BYTES)
    assert loaded.changes is not None
    assert bool(loaded.changes.layers) == any(point_of(one).rows is RowAxis.HIDDEN for one in answering)


def keeping(names: set[str], variants: Sequence[VariantProfile], *_: object) -> tuple[SearchedVariant, ...]:
    """Verdicts that keep these, however fast they are here."""
    said = (SearchedVariant(one.name, one.name in names, "as the test says") for one in variants)
    return tuple(sorted(said, key=lambda one: not one.is_kept))


@pytest.mark.parametrize("deepest", ["stored2", "stored1"])
def test_within_a_budget_what_a_search_keeps_answers_as_if_it_were_kept_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deepest: str
) -> None:
    """Rows of perceptrons over hops wait beside those of the first layer. Where no layer behind it is kept, none is
    stale."""
    keeps = {"projected", "stored1", "stored1-f2", deepest, f"{deepest}-int8", "mlp1", "mlp2", "mlp2-int8"}
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("mlp2", 0.3), Promise("mlp1", 0.2)))
    monkeypatch.setattr(search, "select", partial(keeping, keeps))
    updates = {"log": {"sqlite": {}}, "refresh": {"rows": 1_000_000, "microseconds": 1_000_000}}
    wanted = typed(tmp_path, updates=updates, variants={"search": "Auto", "storedFollowChanges": True})
    published, _ = searched(tmp_path, wanted)
    assert {one.name for one in published.variants} == keeps
    assert wanted.spec.updates is not None
    repository = Repository(tmp_path / "repository", "default", "tiny")
    for name in sorted(keeps):  # each of rows that no other variant has made right
        exact, within_budget = (
            changed(load_revision(repository, published.revision, ROOM_BYTES), budget)
            for budget in (None, wanted.spec.updates.refresh_budget)
        )
        assert not exact.refreshing.is_any_stale
        assert within_budget.refreshing.is_any_stale == (deepest == "stored2")
        expected, found = (
            served.compute.infer(name, numbers_of(served, [*range(30), 900]), 0).scores
            for served in map(served_by, (exact, within_budget))
        )
        close = 0.05 * float(np.abs(expected).max()) if name.endswith("int8") else CLOSE
        np.testing.assert_allclose(found, expected, atol=close, rtol=close, err_msg=name)


def changed(loaded: LoadedRevision, budget: RefreshBudget | None) -> LivingRevision:
    living = LivingRevision(loaded, ROOM_BYTES, refresh=budget)
    (said,) = living.apply(living.offset + 1, [batch_of(CHANGES, served_by(living))])
    assert isinstance(said, BatchEffect)
    return living


def test_a_further_network_of_links_over_types_makes_no_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of what the last layer gives are there, whatever is trained after them."""
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("x2", 0.3), Promise("mlp0", 0.2)))
    links = {"links": {"dimensions": 2, "relation": "buys"}}
    _, names = searched(tmp_path, searching(typed(tmp_path, task=links)))
    assert {"stored2", "x2", "mlp0"} <= names


def test_links_are_searched_by_the_metric_of_the_task(tmp_path: Path) -> None:
    checkpoint = {"checkpoint": {"uri": Sage().save(tmp_path / "weights.safetensors")}, "fanouts": [4, 4]}
    wanted = searching(service(tmp_path, checkpoint), metric="MRR", budget={"seconds": 1})
    published, names = searched(tmp_path, wanted)
    assert {"x1", "projected-f2x2", "stored1-bfloat16", "stored2-int8"} <= names
    assert published.profile.metric == "mrr"
    kept = published.profile.search
    assert kept is not None and any("validation nodes tell" in verdict.why for verdict in kept.variants)


def test_networks_of_fewer_columns_learn_links_where_they_are_promising(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("x2", 0.2), Promise("mlp0", 0.1)))
    wanted = searching(service(tmp_path, {"fanouts": [4, 4], "training": {"epochs": 2}}))
    published, names = searched(tmp_path, wanted)
    assert {"x1", "x2", "x2-int8", "mlp0", "mlp0-int8"} <= names
    assert published.training is not None
    assert [run.name for run in published.training.runs] == ["x1", "x2", "mlp0"]


def test_rows_of_propagated_features_are_not_tried_over_links_that_a_given_model_is_judged_by(tmp_path: Path) -> None:
    checkpoint = {"checkpoint": {"uri": Sage().save(tmp_path / "weights.safetensors")}}
    assert search_space(searching(service(tmp_path, checkpoint)).spec).hops == (0,)
    assert search_space(searching(service(tmp_path, {})).spec).hops == (0, 1, 2)


def test_of_embeddings_the_storages_are_tried(tmp_path: Path) -> None:
    wanted = searching(light_gcn(typed_folder(shop(), tmp_path / "shop")))
    _, names = searched(tmp_path, wanted)
    assert names == {f"x1{storage}" for storage in STORAGES}


def test_of_a_program_storages_fanouts_and_perceptrons_are_tried(
    tmp_path: Path, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "promises", lambda *_: (Promise("mlp0", 0.2),))
    made = Given(tmp_path, models, "SAGE", None)
    wanted = searching(made.service(contract(), model={"training": {"epochs": 3}}))
    _, names = searched(tmp_path, wanted)
    programs = {f"x1{storage}{fewer}" for storage in STORAGES for fewer in ("", "-f16x16", "-f8x8")}
    assert names == programs | {f"mlp0{storage}" for storage in STORAGES}


def test_beside_propagated_features_something_that_follows_changes_is_kept(tmp_path: Path) -> None:
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(GRAPH)).as_uri()
    model = {"architecture": "SGC", "fanouts": [0], "training": {"epochs": 2}}
    wanted = service_of(uri, model=model, updates={"log": {"sqlite": {}}}, variants={"search": "Auto"})
    published, _ = searched(tmp_path, wanted)
    assert any(point_of(variant).capabilities.changes for variant in published.variants)
    load_revision(Repository(tmp_path / "repository", "default", "tiny"), published.revision, ROOM_BYTES)
    fewest, _ = searched(tmp_path / "one", searching(wanted, budget={"variants": 1}))
    with pytest.raises(RepositoryError, match=r"none of its variants follows changes.*oneRow of hops 0 in place"):
        load_revision(Repository(tmp_path / "one" / "repository", "default", "tiny"), fewest.revision, ROOM_BYTES)


def test_a_program_that_counts_edges_is_searched_without_fewer_neighbours(tmp_path: Path, models: Models) -> None:
    made = Given(tmp_path, models, "GCN", None)
    wanted = searching(made.service(contract(readsDegrees=True)), budget={"seconds": 1})
    assert search_space(wanted.spec).fanouts == ()


@pytest.mark.parametrize(
    ("parts", "fanouts"),
    [
        pytest.param({"fanouts": [9, 4]}, {(4, 2), (2, 1)}, id="a half and a quarter"),
        pytest.param({}, {(16, 16), (8, 8)}, id="of whole lists a number for each hop"),
    ],
)
def test_fewer_neighbours_of_a_program(
    tmp_path: Path, models: Models, parts: dict[str, Any], fanouts: set[tuple[int, ...]]
) -> None:
    made = Given(tmp_path, models, "SAGE", None)
    assert {*search_space(searching(made.service(contract(**parts))).spec).fanouts} == fanouts


def test_neighbours_of_all_relations_are_counted(tmp_path: Path) -> None:
    data = load_types(typed_source(write_folder(tmp_path / "shop", shop())))
    degrees = Degrees.of(joined_lists(data))
    reads = {one.key: one.lists.edges / data.type_named(one.target).nodes for one in data.relations}
    (first,) = degrees.drawn((-1,))
    assert first == pytest.approx(sum(mean for key, mean in reads.items() if key.endswith(" user")))
    (fewer,) = degrees.drawn((1,))
    assert 0 < fewer < first
    both = degrees.drawn((-1, -1))
    assert both[0] == pytest.approx(first) and both[1] > 0

"""Variants over several types that a user has trained, each with a width of its own: equal to torch_geometric's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.support.changes.living_relations import PlainTypedGraph
from tests.support.changes.living_types import ROOM_BYTES, batch_of, numbers_of, served_by
from tests.support.generation.given_links import generated, refusal
from tests.support.graphs.several_types import TypedParts, load_types, shop, typed_source, write_folder
from tests.support.models import hetero_pyg
from tests.support.models.hetero_pyg import HIDDEN, HeteroModel
from tests.support.overlays.typed_overlays import read

from gnnserve_api.families import point_of
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.graph.change_batch import BatchEffect
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.batch_view import Part, view_of


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def with_features() -> TypedParts:
    """The shop, whose tags have features too."""
    parts = shop()
    parts.nodes["tag"]["features"] = np.random.default_rng(7).normal(size=(5, 3)).astype(np.float32)
    return parts


def saved(folder: Path, name: str, data: GraphData, hidden: int) -> tuple[HeteroModel, dict[str, Any]]:
    """A model of that width, and what a manifest says of its weights."""
    torch.manual_seed(hidden)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hetero_pyg, "HIDDEN", hidden)
        module = HeteroModel(data)
    with torch.no_grad():
        module(data)
    path = folder / f"{name}.safetensors"
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, path)
    return module, {"checkpoint": {"uri": path.as_uri()}}


def service(folder: Path, source: dict[str, Any], variants: dict[str, Any], **parts: Any) -> GNNService:
    spec = {
        "graph": {"source": {"typed": source}, "normalization": "Disabled"},
        "model": {"hidden": HIDDEN, "fanouts": [-1, -1], **parts.pop("model", {})},
        "variants": variants,
        **parts,
    }
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "tiny"}, "spec": spec}
    return GNNService.model_validate(body)


def scores_of(loaded: LoadedRevision, variant: str, nodes: np.ndarray) -> np.ndarray:
    return infer_batch(loaded, variant, nodes, key=0, with_embeddings=False).scores


def wanted_of(module: HeteroModel, data: GraphData, kind: str = "user") -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = module.outputs(data)[kind].numpy()
    return found


def test_given_variants_stand_beside_the_model_with_their_own_width(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", with_features())
    data = load_types(typed_source(source))
    (whole, model), (narrow, given) = (saved(tmp_path, f"w{hidden}", data, hidden) for hidden in (HIDDEN, 4))
    np.savez(tmp_path / "expected.npz", nodes=np.arange(30), scores=wanted_of(narrow, data))
    given |= {"hidden": 4, "name": "narrow", "expected": {"uri": (tmp_path / "expected.npz").as_uri()}}
    variants = {"given": [given], "storage": ["float32", "int8"], "stored": [1]}
    published, loaded = generated(tmp_path, service(tmp_path, source, variants, model=model))
    names = {variant.name for variant in published.variants}
    assert {"projected", "stored1", "narrow", "narrow-int8"} <= names
    assert [one.weights for one in published.compared] == ["narrow"]
    users = np.arange(30)
    assert scores_of(loaded, "projected", users) == pytest.approx(wanted_of(whole, data), abs=1e-5)
    assert scores_of(loaded, "narrow", users) == pytest.approx(wanted_of(narrow, data), abs=1e-5)
    (variant,) = (one for one in published.variants if one.name == "narrow")
    assert variant.family == "given-projected" and point_of(variant).capabilities.overlay
    assert published.tables["narrow"].made_by == "narrow."


def test_given_variants_follow_changes_and_answer_about_nodes_that_come_with_requests(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", with_features())
    data = load_types(typed_source(source))
    networks = {f"w{hidden}": saved(tmp_path, f"w{hidden}", data, hidden) for hidden in (HIDDEN, 4)}
    given = [{**networks[f"w{hidden}"][1], "hidden": hidden, "name": f"w{hidden}"} for hidden in (HIDDEN, 4)]
    variants = {"given": given, "pruning": {"factors": []}, "projection": "Disabled"}
    published, _ = generated(tmp_path, service(tmp_path, source, variants))
    loaded = load_revision(Repository(tmp_path / "repository", "default", "tiny"), published.revision, ROOM_BYTES)
    living, plain, draw = LivingRevision(loaded, ROOM_BYTES), PlainTypedGraph(data, None), np.random.default_rng(3)
    for _ in range(4):
        said = living.apply(living.offset + 1, [batch_of(plain.random_batch(draw, 8), served_by(living))])
        assert all(isinstance(one, BatchEffect) for one in said), said
    served, changed = served_by(living), plain.built()[0]
    seeds, row, item = numbers_of(served, plain.target_ids), [1.0, 2.0, 3.0, 4.0], next(iter(plain.rows["item"]))
    new = {"nodes": [{"id": "user/9999", "features": row}], "edges": [["user/9999", "buys", f"item/{item}"]]}
    question = read(served, {"nodes": ["user/9999"], "overlay": new})
    plain.rows["user"][9999] = np.array(row, np.float32)
    relations = [(one.source, one.name, one.target) for one in data.relations]
    plain.change_edge(relations.index(("user", "buys", "item")), 9999, item, adds=True)
    joined = plain.built()[0]
    for name, (module, _) in networks.items():
        found = served.compute.infer(name, seeds.copy(), 0).scores
        np.testing.assert_allclose(found, wanted_of(module, changed), atol=1e-4, rtol=1e-4)
        nodes = question.nodes.copy()
        view = view_of(served.graph.first_new, [Part(len(nodes), question.overlay, None)], nodes)
        of_new = served.compute.infer(name, nodes, 0, view=view).scores
        np.testing.assert_allclose(of_new, wanted_of(module, joined)[-1:], atol=1e-4, rtol=1e-4)


def test_where_all_are_given_nothing_is_trained(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", with_features())
    data = load_types(typed_source(source))
    module, given = saved(tmp_path, "w", data, HIDDEN)
    variants = {"given": [given], "pruning": {"factors": []}, "projection": "Disabled"}
    published, loaded = generated(tmp_path, service(tmp_path, source, variants))
    assert [variant.name for variant in published.variants] == ["given-1"] and published.training is None
    assert scores_of(loaded, "given-1", np.arange(30)) == pytest.approx(wanted_of(module, data), abs=1e-5)


def test_of_links_all_variants_are_judged_without_what_is_held_out(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", with_features())
    data = load_types(typed_source(source))
    module, given = saved(tmp_path, "w", data, HIDDEN)
    variants = {"given": [given], "pruning": {"factors": []}, "projection": "Disabled"}
    links = {"links": {"relation": "buys", "dimensions": hetero_pyg.CLASSES}}
    published, loaded = generated(tmp_path, service(tmp_path, source, variants, task=links))
    assert published.links is not None
    for end in (published.links.first, published.links.second):
        found = scores_of(loaded, "given-1", np.arange(end.start, end.end))
        assert found == pytest.approx(wanted_of(module, data, end.type), abs=1e-5)


def test_embeddings_of_types_without_features_are_those_of_one_network(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", shop())
    _, given = saved(tmp_path, "w", load_types(typed_source(source)), HIDDEN)
    variants = {"given": [given], "pruning": {"factors": []}, "projection": "Disabled"}
    said = refusal(tmp_path, service(tmp_path, source, variants))
    assert "spec.variants.given[0]: reads embeddings of nodes of type tag, which have no features" in said


@pytest.mark.parametrize(
    ("variants", "said"),
    [
        ({"projection": "Disabled"}, "variants.projection must not be Disabled with graph.source.typed"),
        (
            {"given": [{"checkpoint": {"uri": "file:///w.safetensors"}, "columns": [0]}]},
            "columns of variants.given must",
        ),
    ],
)
def test_what_products_leave_no_choice_about_is_refused(tmp_path: Path, variants: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        service(tmp_path, {"npz": {"uri": "file:///shop"}}, variants)

"""Weights of networks that score links, given with what reads their outputs in pairs: answers are those of the modules,
over the graph with all links, and variants are judged over the graph without those that are held out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import roc_auc_score
from tests.support.generation.given_links import ROWS, Sage, generated, refusal, service
from tests.support.graphs.links import load_links
from tests.support.graphs.several_types import load_types, shop, typed_source, write_folder
from tests.support.models.hetero_pyg import CLASSES, HIDDEN, HeteroModel
from tests.support.programs.program_links import FEATURES, NODES

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation import one_relation
from gnnserve_worker.graph.links import Pairs, relations_without_held_out
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.tasks.score_links.links import served_links


@pytest.fixture(autouse=True)
def _quick_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSERVE_PROFILE_SECONDS", "0")


def perceptron() -> torch.nn.Module:
    torch.manual_seed(9)
    return torch.nn.Sequential(torch.nn.Linear(2 * ROWS, 7), torch.nn.ReLU(), torch.nn.Linear(7, 1))


def rows_of(loaded: LoadedRevision, variant: str, nodes: np.ndarray | None = None) -> np.ndarray:
    asked = np.arange(NODES) if nodes is None else nodes
    return infer_batch(loaded, variant, asked, key=0, with_embeddings=False).scores


def edges_without_held_out(wanted: GNNService) -> tuple[np.ndarray, Any]:
    """The edges of the graph but for held-out links, and the links."""
    assert wanted.spec.task.links is not None
    parted = load_links(wanted.spec.graph.source, wanted.spec.task.links, Path("unused"))
    (relation,) = relations_without_held_out(parted.imported, parted.links)
    return np.stack([relation.lists.indices.astype(np.int64), relation.lists.targets()]), parted.links


def auc_of(rows: np.ndarray, links: Any) -> float:
    """Of test links, by the dot product of rows."""

    def scores(pairs: Pairs) -> np.ndarray:
        found: np.ndarray = (rows[pairs.first] * rows[pairs.second]).sum(axis=1)
        return found

    truths = np.repeat([1, 0], [len(links.test), len(links.test_negatives)])
    return float(roc_auc_score(truths, np.concatenate([scores(links.test), scores(links.test_negatives)])))


def test_given_weights_answer_over_all_links_and_are_judged_without_those_that_are_held_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(one_relation, "worth_keeping", tuple)
    module = Sage()
    np.savez(tmp_path / "expected.npz", nodes=np.arange(NODES), scores=module.rows())
    model = {
        "checkpoint": {"uri": module.save(tmp_path / "weights.safetensors")},
        "expected": {"uri": (tmp_path / "expected.npz").as_uri()},
    }
    wanted = service(tmp_path, model, {"stored": [1, 2], "storage": ["float32", "int8"]})
    published, loaded = generated(tmp_path, wanted)
    assert published.training is None and [one.weights for one in published.compared] == ["spec.model"]
    without, links = edges_without_held_out(wanted)
    hidden, whole = auc_of(module.rows(edges=without), links), auc_of(module.rows(), links)
    assert abs(hidden - whole) > 1e-3  # what is held out would tell its own answer
    for name in ("x1", "projected", "stored1", "stored2"):
        assert rows_of(loaded, name) == pytest.approx(module.rows(), abs=1e-5)
        assert published.profile.variant(name).test_accuracy == pytest.approx(hidden, abs=1e-6)
    read = {table for variant in published.variants for table in variant.tables}
    assert {*published.tables} == read  # no copy that variants were judged by is left


def test_the_decoder_stands_beside_the_encoder_in_the_file(tmp_path: Path) -> None:
    decoder = perceptron()
    module, pairs = Sage(decoder), np.random.default_rng(2).integers(0, NODES, (30, 2))
    rows = module.rows()
    with torch.no_grad():
        ends = torch.tensor(np.concatenate([rows[pairs[:, 0]], rows[pairs[:, 1]]], axis=1))
        scores = decoder(ends).numpy().ravel()
    expected = {"nodes": np.arange(NODES), "scores": rows, "pairs": pairs, "pair_scores": scores}
    np.savez(tmp_path / "expected.npz", **expected)
    model = {
        "checkpoint": {"uri": module.save(tmp_path / "weights.safetensors")},
        "expected": {"uri": (tmp_path / "expected.npz").as_uri()},
    }
    published, loaded = generated(tmp_path, service(tmp_path, model, decoder="MLP"))
    served = served_links(published, loaded.origin.folder)
    assert served.score(rows_of(loaded, "x1"), *pairs.T) == pytest.approx(scores, abs=1e-4)
    # By another decoder, or with other pairs, nothing is published.
    assert "decoder.0.weight" in refusal(tmp_path / "dot", service(tmp_path, model))
    np.savez(tmp_path / "expected.npz", **{**expected, "pair_scores": scores + 1})
    assert "rows of nodes are equal, so that the decoder is another one" in refusal(
        tmp_path / "other", service(tmp_path, model, decoder="MLP")
    )


def test_a_perceptron_beside_given_weights_learns_rows_that_their_decoder_reads(tmp_path: Path) -> None:
    """The decoder's hidden layer is wider than the rows."""
    decoder = perceptron()
    checkpoint = {"uri": Sage(decoder).save(tmp_path / "weights.safetensors")}
    model = {"checkpoint": checkpoint, "training": {"epochs": 2}}
    published, loaded = generated(tmp_path, service(tmp_path, model, {"oneRow": [{"hops": 0}]}, decoder="MLP"))
    assert published.training is not None and {run.name for run in published.training.runs} == {"mlp0"}
    rows = rows_of(loaded, "mlp0")
    with torch.no_grad():
        scores = decoder(torch.tensor(np.concatenate([rows[[0, 1]], rows[[2, 3]]], axis=1))).numpy().ravel()
    served = served_links(published, loaded.origin.folder)
    assert served.score(rows, np.array([0, 1]), np.array([2, 3])) == pytest.approx(scores, abs=1e-5)


def test_weights_of_the_decoder_may_be_a_file_of_their_own(tmp_path: Path) -> None:
    module, weights = Sage(), torch.linspace(0.5, 2, ROWS)
    save_file({"relation.weight": weights[None].contiguous()}, tmp_path / "decoder.safetensors")
    checkpoint = {"uri": module.save(tmp_path / "weights.safetensors")}
    decoder = {"decoder": {"uri": (tmp_path / "decoder.safetensors").as_uri()}}
    wanted = service(tmp_path, {"checkpoint": {**checkpoint, **decoder}}, decoder="DistMult")
    published, loaded = generated(tmp_path, wanted)
    rows, ends = module.rows(), np.array([[0, 1, 2], [3, 4, 5]])
    scores = (rows[ends[0]] * weights.numpy() * rows[ends[1]]).sum(axis=1)
    assert served_links(published, loaded.origin.folder).score(rows_of(loaded, "x1"), *ends) == pytest.approx(
        scores, abs=1e-5
    )
    save_file({"relation.weight": 2 * weights[None].contiguous()}, tmp_path / "decoder.safetensors")
    assert generated(tmp_path, wanted)[0].revision != published.revision
    absent = refusal(tmp_path / "absent", service(tmp_path, {"checkpoint": checkpoint}, decoder="DistMult"))
    assert "spec.model.checkpoint.decoder: is absent, also in" in absent


def test_variants_of_links_are_given_with_columns_and_widths_of_their_own(tmp_path: Path) -> None:
    columns = [4, 0, 2]
    narrow, wide = Sage(columns=len(columns), hidden=4), Sage()
    given = [
        {"checkpoint": {"uri": narrow.save(tmp_path / "narrow.safetensors")}, "columns": columns, "hidden": 4},
        {"checkpoint": {"uri": wide.save(tmp_path / "wide.safetensors")}, "name": "wide"},
    ]
    alone = {"given": given, "pruning": {"factors": []}, "projection": "Disabled"}
    wanted = service(tmp_path, {}, alone)
    published, loaded = generated(tmp_path, wanted)
    assert [variant.name for variant in published.variants] == ["wide", "given-1"]
    assert published.training is None
    assert rows_of(loaded, "given-1") == pytest.approx(narrow.rows(FEATURES[:, columns]), abs=1e-5)
    assert rows_of(loaded, "wide") == pytest.approx(wide.rows(), abs=1e-5)
    without, links = edges_without_held_out(wanted)
    judged = auc_of(narrow.rows(FEATURES[:, columns], without), links)
    assert published.profile.variant("given-1").test_accuracy == pytest.approx(judged, abs=1e-6)


def test_all_given_weights_have_one_decoder(tmp_path: Path) -> None:
    torch.manual_seed(1)
    one, other = Sage(perceptron()), Sage(torch.nn.Sequential(torch.nn.Linear(2 * ROWS, 7), torch.nn.Linear(7, 1)))
    given = [
        {"checkpoint": {"uri": each.save(tmp_path / f"{place}.safetensors")}} for place, each in enumerate((one, other))
    ]
    alone = {"given": given, "pruning": {"factors": []}, "projection": "Disabled"}
    said = refusal(tmp_path, service(tmp_path, {}, alone, decoder="MLP"))
    assert "spec.variants.given[1].checkpoint.decoder: has other numbers than" in said


def test_a_network_over_types_is_given_with_links(tmp_path: Path) -> None:
    source = write_folder(tmp_path / "shop", shop())
    data = load_types(typed_source(source))
    module = HeteroModel(data)
    with torch.no_grad():
        outputs = module.outputs(data)
    save_file({key: value.contiguous() for key, value in module.state_dict().items()}, tmp_path / "w.safetensors")
    spec = {
        "graph": {"source": {"typed": source}, "normalization": "Disabled"},
        "model": {
            "hidden": HIDDEN, "fanouts": [-1, -1],
            "checkpoint": {"uri": (tmp_path / "w.safetensors").as_uri()},
        },
        "task": {"links": {"dimensions": CLASSES, "relation": "buys"}},
        "variants": {"stored": [1]},
    }  # fmt: skip
    body = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "tiny"}, "spec": spec}
    published, loaded = generated(tmp_path, GNNService.model_validate(body))
    assert published.links is not None
    rows = np.concatenate([outputs[kind.name].numpy() for kind in loaded.graph.schema.types])
    ends = [np.arange(end.start, end.end) for end in (published.links.first, published.links.second)]
    accuracies = []
    for name in ("projected", "stored1", "stored2"):
        for nodes in ends:
            assert rows_of(loaded, name, nodes) == pytest.approx(rows[nodes], abs=1e-5)
        accuracies.append(published.profile.variant(name).test_accuracy)
    assert accuracies == pytest.approx([accuracies[0]] * 3, abs=1e-6)

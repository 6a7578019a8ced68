"""Networks that score links are exported with their decoder, and served again as programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
import safetensors.numpy
import torch
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.graphs.link_folders import light_gcn, typed_folder
from tests.support.graphs.several_types import TypedParts, shop, write_folder

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportedDecoder, ExportFormat, ExportManifest
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.export.write import (
    DECODER,
    EXAMPLE,
    EXPECTED,
    MANIFEST,
    README,
    check_variant,
    export_variant,
)
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.tasks.score_links.links import served_links

GRAPH = planted_graph([2, 5, 9], nodes=200, columns=12)
COLUMNS = 16
MODEL = {"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 1}}


def links_service(folder: Path, graph: dict[str, np.ndarray], decoder: str, **spec: Any) -> GNNService:
    folder.mkdir()
    task = {"links": {"dimensions": COLUMNS, "decoder": decoder}}
    uri = write_npz(folder / "graph.npz", graph).as_uri()
    return service_of(uri, task=task, normalization="Disabled", **spec)


def trained(folder: Path, decoder: str) -> LoadedRevision:
    service = links_service(folder / "source", npz_arrays(GRAPH), decoder, model=MODEL)
    repository = Repository(folder / "first", "default", "tiny")
    return load_revision(repository, generate(service, repository).revision, build=build_exact)


def exported(loaded: LoadedRevision, folder: Path) -> ExportManifest:
    export_variant(loaded, "default/tiny", "x1", [ExportFormat.ONNX], folder, "a test")
    return msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)


def graph_of_revision(loaded: LoadedRevision) -> dict[str, np.ndarray]:
    """Arrays of a source with the lists of the revision, which lack held-out links."""
    return {**npz_arrays(GRAPH), "indptr": loaded.graph.indptr, "indices": loaded.graph.indices}


@pytest.mark.parametrize("decoder", ["Dot", "DistMult", "MLP"])
def test_rows_and_their_decoder_are_served_again_with_equal_scores(decoder: str, tmp_path: Path) -> None:
    loaded, folder = trained(tmp_path, decoder), tmp_path / "made"
    made = exported(loaded, folder)
    assert made.decoder == ExportedDecoder(decoder, None if decoder == "Dot" else DECODER)
    assert (folder / DECODER).exists() == (decoder != "Dot")
    assert [(each.name, each.shape[1]) for each in made.outputs] == [("scores", COLUMNS)]

    model = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    again = links_service(tmp_path / "again", graph_of_revision(loaded), decoder, model=model)
    repository = Repository(tmp_path / "second", "default", "tiny")
    served = load_revision(repository, generate(again, repository).revision)
    ends, nodes = np.random.default_rng(3).integers(0, 200, (2, 40)), np.arange(200)
    scores = []
    for revision in (loaded.over_whole_lists("x1"), served):
        assert revision.manifest is not None
        rows = infer_batch(revision, "x1", nodes, 0).scores
        scores.append(served_links(revision.manifest, revision.origin.folder).score(rows, *ends))
    for one in served.programs:
        one.close()
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-5 * np.abs(scores[0]).max())


def test_scores_over_a_graph_without_held_out_links_are_refused_with_that_cause(tmp_path: Path) -> None:
    loaded, folder = trained(tmp_path, "Dot"), tmp_path / "made"
    exported(loaded, folder)
    model = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    again = links_service(tmp_path / "again", npz_arrays(GRAPH), "Dot", model=model)
    with pytest.raises(InputError, match="without the links that are held out the scores are equal") as caught:
        generate(again, Repository(tmp_path / "second", "default", "tiny"))
    assert "give expected scores over all links, or a source without these" in str(caught.value)


def test_pairs_are_scored_without_gnnserve_as_the_page_says(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    exported(trained(tmp_path, "MLP"), folder)
    example = safetensors.numpy.load_file(folder / EXAMPLE)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    (rows,) = session.run(["scores"], {each.name: example[each.name] for each in session.get_inputs()})
    module = torch.nn.Sequential(torch.nn.Linear(2 * COLUMNS, COLUMNS), torch.nn.ReLU(), torch.nn.Linear(COLUMNS, 1))
    weights = safetensors.numpy.load_file(folder / DECODER)
    module.load_state_dict({name: torch.tensor(tensor) for name, tensor in weights.items()})
    places = np.searchsorted(example["nodes"], example["pairs"])
    with torch.no_grad():
        found = module(torch.tensor(rows[places].reshape(len(places), -1)))[:, 0].numpy()
    np.testing.assert_allclose(found, example["pair_scores"], rtol=0, atol=1e-4)
    page = (folder / README).read_text(encoding="utf-8")
    assert "`Linear`, `ReLU` and `Linear`" in page
    assert "The probability of a link is 1 / (1 + exp(" in page
    assert "task: {links: {decoder: MLP, dimensions: 16, …}}" in page


# --- between types


def typed_service(
    folder: Path, parts: TypedParts, decoder: str, model: dict[str, Any], relation: str, normalization: str
) -> GNNService:  # fmt: skip
    source = write_folder(folder, parts)
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "shop"},
            "spec": {
                "graph": {"source": {"typed": source}, "normalization": normalization},
                "task": {"links": {"relation": relation, "dimensions": 8, "decoder": decoder}},
                "model": model,
            },
        }
    )


def parts_with_features() -> TypedParts:
    """Without labels, and with features of tags."""
    parts = shop()
    for name in ("labels", "train_mask", "val_mask", "test_mask"):
        del parts.nodes["user"][name]
    parts.nodes["tag"]["features"] = np.random.default_rng(4).normal(size=(5, 2)).astype(np.float32)
    return parts


def parts_of_revision(loaded: LoadedRevision) -> TypedParts:
    """A source with the edges of the revision, which lack held-out links."""
    parts, graph = parts_with_features(), loaded.graph
    for key in parts.edges:
        place = next(at for at, one in enumerate(graph.schema.relations) if (one.source, one.name, one.target) == key)
        first_source, first = (graph.schema.first_nodes[graph.schema.place_of(kind)] for kind in (key[0], key[2]))
        count = graph.schema.types[graph.schema.place_of(key[2])].nodes
        read = [dict(graph.lists_by_relation(first + node))[place] - first_source for node in range(count)]
        targets = np.repeat(np.arange(count), [len(one) for one in read])
        parts.edges[key] = {"src": np.concatenate(read).astype(np.int32), "dst": targets.astype(np.int32)}
    return parts


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("architecture", "decoder", "relation"),
    [("GraphSAGE", "MLP", "buys"), ("GAT", "DistMult", "buys"), ("RGCN", "Dot", "buys"), ("GraphSAGE", "Dot", "knows")],
)
def test_rows_by_type_and_their_decoder_are_served_again_with_equal_scores(
    architecture: str, decoder: str, relation: str, tmp_path: Path
) -> None:
    repository, folder = Repository(tmp_path / "first", "default", "shop"), tmp_path / "made"
    model = {"architecture": architecture, "hidden": 8, "fanouts": [4, 3], "training": {"epochs": 2}}
    service = typed_service(tmp_path / "source", parts_with_features(), decoder, model, relation, "Standardize")
    loaded = load_revision(repository, generate(service, repository).revision, build=build_exact)
    export_variant(loaded, "default/shop", "projected", [ExportFormat.ONNX], folder, "a test")
    made = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    ends = ("user", "item") if relation == "buys" else ("user", "user")
    assert [each.name for each in made.outputs] == ["scores", "scores_item"][: len({*ends})]
    assert max(each.largest_difference for each in made.checks) < 1e-5
    example = safetensors.numpy.load_file(folder / EXAMPLE)
    assert len(example["pairs"]) == len(example["pair_scores"]) > 5

    again = Repository(tmp_path / "second", "default", "shop")
    program = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    parts = parts_of_revision(loaded)
    manifest = generate(typed_service(tmp_path / "again", parts, decoder, program, relation, "Disabled"), again)
    served, schema = load_revision(again, manifest.revision), loaded.graph.schema
    starts = [schema.first_nodes[schema.place_of(kind)] for kind in ends]
    nodes = np.random.default_rng(3).integers(0, 20, (2, 40)) + np.array(starts)[:, None]
    scores = []
    for revision, name in ((loaded.over_whole_lists("projected"), "projected"), (served, "x1")):
        assert revision.manifest is not None
        rows = [infer_batch(revision, name, one, 0).scores for one in nodes]
        links = served_links(revision.manifest, revision.origin.folder)
        scores.append(links.decoder.score(*rows))
    for one in served.programs:
        one.close()
    np.testing.assert_allclose(scores[1], scores[0], rtol=0, atol=1e-5 * np.abs(scores[0]).max())
    if decoder == "Dot":  # what differs is told of nodes of all types
        twice = typed_service(tmp_path / "twice", parts, decoder, program, relation, "Standardize")
        with pytest.raises(InputError, match=r"spec\.model\.expected.*spec\.graph\.normalization"):
            generate(twice, Repository(tmp_path / "third", "default", "shop"))


def test_rows_of_a_table_by_type_are_refused_with_what_to_do(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "repository", "default", "shop")
    manifest = generate(light_gcn(typed_folder(shop(), tmp_path / "source")), repository)
    with pytest.raises(InputError, match=r"reads a row of each node and no neighbours.*gnnserve embeddings export"):
        check_variant(manifest, manifest.variants[0].name)

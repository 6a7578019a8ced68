"""Listed layers that are exported: each operation, and whole variants, which are served again as programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.support.changes.listed import BOTH_WAYS, ONE_TYPE, SAGE, SEVERAL_TYPES, service_over, source_of
from tests.support.changes.living import PlainGraph
from tests.support.models.random_layers import RandomGraph, draw_case, one_type, several_types
from tests.support.programs.program_types_generated import hetero_data

from gnnserve_api.errors import InputError
from gnnserve_api.files.edges import Direction, Duplicates, EdgeRules
from gnnserve_api.files.export import ExportedArray, ExportFormat, ExportManifest
from gnnserve_api.files.layers import Convolution
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.export.check import LARGE_BATCHES
from gnnserve_worker.export.listed import ListedModule, ReadFeatures, graph_inputs
from gnnserve_worker.export.programs import FORMATS, trace
from gnnserve_worker.export.write import EXPECTED, MANIFEST, check_variant, export_variant
from gnnserve_worker.generation.layer_convolutions import CONVOLUTIONS, Reading
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.generation.programs.running import ProgramScores
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository

GRAPHS = {"one type": one_type, "several types": several_types}
RULES = EdgeRules(Direction.UNDIRECTED, Duplicates.KEEP)


@pytest.mark.campaign
@pytest.mark.parametrize("make", GRAPHS.values(), ids=GRAPHS)
@pytest.mark.parametrize("kind", Convolution)
def test_each_convolution_is_written_as_a_program_that_scores_as_its_kernels_do(
    tmp_path: Path, kind: Convolution, make: Callable[[np.random.Generator], RandomGraph]
) -> None:
    case = draw_case(1, make, kind)
    schema, columns = case.graph.data.schema, case.graph.columns
    program = program_of(case.layers, schema, columns)
    given = graph_inputs("x1", program, schema, (0,))
    features = [ReadFeatures(Scaling(Normalization.DISABLED), np.arange(width)) for width in columns]
    module = ListedModule(case.layers, schema, case.tensors, features, given, {0: "scores"}, gives_embeddings=False)
    inputs, path = given.exported(schema), tmp_path / "model.onnx"
    outputs = (ExportedArray("scores", "float32", (inputs[0].name, program.scores.columns), "scores"),)
    FORMATS[ExportFormat.ONNX].write(trace(module, inputs), inputs, outputs, path, sums_by_segments=False)
    graph = case.graph.tensors(torch.float32)
    arrays = {name: graph.features[kind_].numpy() for kind_, name in given.features.items()}
    arrays |= {name: graph.edges[place].numpy() for place, name in given.edges.items()}
    arrays |= {
        name: np.stack([one.numpy() for one in graph.edge_columns[place].values()], axis=1)
        for place, name in given.edge_features.items()
    }
    found = FORMATS[ExportFormat.ONNX].load(path)(arrays)["scores"]
    runner = LayersRunner(case.tensors, program, schema)
    expected = ProgramScores(program, case.graph.as_programs_read, runner).scores(np.arange(schema.types[0].nodes))
    np.testing.assert_allclose(found, expected, rtol=0, atol=case.tolerance, err_msg=f"{case.layers}")


def generated(folder: Path, source: dict[str, Any], model: dict[str, Any], **parts: Any) -> LoadedRevision:
    repository = Repository(folder / "repository", "default", "tiny")
    variants = {"storage": ["float32", "int8"], "stored": [1], **parts.pop("variants", {})}
    service = service_over(source, model, variants, **parts)
    return load_revision(repository, generate(service, repository).revision, build=build_exact)


def written(folder: Path, loaded: LoadedRevision, variant: str, formats: list[ExportFormat]) -> ExportManifest:
    export_variant(loaded, "default/tiny", variant, formats, folder, "a test")
    made = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    assert [each.format for each in made.checks if each.batches == LARGE_BATCHES] == formats
    assert max(each.largest_difference for each in made.checks) < 1e-5
    return made


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["attention and degrees", "what is read beside", "one that counts lists"])
def test_exports_are_served_again(tmp_path: Path, name: str) -> None:
    plain = PlainGraph(60, 3, RULES)
    source, model = source_of(tmp_path, plain), {**ONE_TYPE, "one that counts lists": BOTH_WAYS}[name]
    loaded = generated(tmp_path, source, model, normalization="Standardize")
    folder = tmp_path / "made"
    made = written(folder, loaded, "x1", [ExportFormat.ONNX])
    assert [each.name for each in made.inputs] == ["x", "edges"]
    wanted = infer_batch(loaded.over_whole_lists("x1"), "x1", np.arange(60), 0)
    again = Repository(tmp_path / "again", "default", "tiny")
    program = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    revision = generate(service_over(source, program, {"storage": ["float32"]}), again)
    served = load_revision(again, revision.revision)
    found = infer_batch(served, "x1", np.arange(60), 0)
    for one in served.programs:
        one.close()
    assert found.embeddings is not None and wanted.embeddings is not None
    np.testing.assert_allclose(found.scores, wanted.scores, rtol=0, atol=1e-5 * np.abs(wanted.scores).max())
    np.testing.assert_allclose(found.embeddings, wanted.embeddings, rtol=0, atol=1e-5 * np.abs(wanted.embeddings).max())


@pytest.mark.campaign
def test_exports_over_several_types_read_columns_of_edges(tmp_path: Path) -> None:
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    loaded = generated(tmp_path, source, SEVERAL_TYPES)
    made = written(tmp_path / "made", loaded, "x1", [ExportFormat.TORCH, ExportFormat.ONNX])
    assert {each.name for each in made.inputs} == {
        "x_user", "x_item", "edges_user_knows_user", "edges_item_bought_by_user", "edges_user_buys_item",
        "edge_features_item_bought_by_user",
    }  # fmt: skip


@pytest.mark.campaign
def test_one_softmax_over_all_relations_is_exported(tmp_path: Path) -> None:
    """HGT."""
    hgt = {
        "conv": "Transformer", "width": 8, "heads": 2, "root": False, "combine": "Attention", "activation": "Gelu",
        "residual": "Gated", "outputProduct": True,
    }  # fmt: skip
    before = [{"products": [{"width": 8, "activation": "Relu"}]}]
    model = {"before": before, "layers": [hgt, hgt], "head": [{}], "fanouts": [-1, -1]}
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    written(tmp_path / "made", generated(tmp_path, source, model), "x1", [ExportFormat.ONNX])


@pytest.mark.campaign
def test_layers_over_fewer_columns_are_exported_as_they_answer(tmp_path: Path) -> None:
    model = {"layers": [SAGE, SAGE], "head": [{}], "fanouts": [4, 3]}
    variants = {"pruning": {"factors": [1, 2]}}
    loaded = generated(tmp_path, source_of(tmp_path, PlainGraph(60, 3, RULES)), model, variants=variants)
    written(tmp_path / "made", loaded, "x2", [ExportFormat.ONNX])


@pytest.mark.campaign
def test_layers_over_fewer_columns_of_each_type_are_exported_as_they_answer(tmp_path: Path) -> None:
    source = {"typed": {**hetero_data(tmp_path), "target": "user", "reverse": "Disabled"}}
    variants = {"pruning": {"factors": [1, 2]}}
    loaded = generated(tmp_path, source, SEVERAL_TYPES, variants=variants, normalization="Standardize")
    written(tmp_path / "made", loaded, "x2", [ExportFormat.ONNX])


def test_what_no_program_can_have_is_refused(tmp_path: Path) -> None:
    model = {"layers": [{**SAGE, "width": 4}, SAGE], "head": [{}], "fanouts": [-1, -1]}
    kept = {"cascades": [{"first": "projected", "then": "x1", "passOnPercents": [50]}], "stored": [1]}
    loaded = generated(tmp_path, source_of(tmp_path, PlainGraph(60, 3, RULES)), model, variants=kept)
    assert loaded.manifest is not None
    with pytest.raises(InputError, match=r"stored1 reads layer 1 as it was computed for each node .* export x1"):
        check_variant(loaded.manifest, "stored1")
    with pytest.raises(InputError, match=r"projected computes what the whole network does by products .* export x1"):
        check_variant(loaded.manifest, "projected")


def _branching(module: Any, read: Reading) -> torch.Tensor:
    rows = module(read.rows, read.edges)
    return rows if rows.sum() > 0 else -rows


def _unknown_to_onnx(module: Any, read: Reading) -> torch.Tensor:
    return torch.special.bessel_j0(module(read.rows, read.edges))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (_branching, r"VARIANT: torch cannot trace layers\[1\] \(Layer\): .* export another variant, or have"),
        (
            _unknown_to_onnx,
            r"ONNX cannot have layers\[1\]: it has no operation for prims.bessel_j0; export it with --format torch",
        ),
    ],
    ids=["a branch by numbers", "an operation of torch alone"],
)
def test_layers_that_no_program_can_have_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[[Any, Reading], torch.Tensor], words: str
) -> None:
    model = {"layers": [{"conv": "GCN", "width": 8}, SAGE], "head": [{}], "fanouts": [-1, -1]}
    loaded = generated(tmp_path, source_of(tmp_path, PlainGraph(60, 3, RULES)), model)
    sage = Convolution.GRAPH_SAGE
    monkeypatch.setitem(CONVOLUTIONS, sage, replace(CONVOLUTIONS[sage], call=call))
    with pytest.raises(InputError, match=words):
        export_variant(loaded, "default/tiny", "x1", [ExportFormat.ONNX], tmp_path / "made", "a test")
    assert not (tmp_path / "made").exists()

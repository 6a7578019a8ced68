"""Exported programs answer as the engine does: every architecture, every kind of table, other sizes than those that
were traced, and inputs that are padded."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
import safetensors.numpy
import torch
from tests.support.gpu.gpu_revisions import projected_revision
from tests.support.gpu.gpu_revisions import revision as revision_of
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportedArray, ExportFormat, ExportManifest
from gnnserve_api.variants import Storage
from gnnserve_worker.export import check as check_module
from gnnserve_worker.export.check import TOLERANCE, check_program
from gnnserve_worker.export.contract import inputs_of, outputs_of
from gnnserve_worker.export.inputs import Inputs, draw_inputs, pad_inputs
from gnnserve_worker.export.modules import VariantModule
from gnnserve_worker.export.programs import FORMATS, Program, trace
from gnnserve_worker.export.write import export_variant
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.repository.repository import Repository

GRAPH = planted_graph([1, 4, 7], nodes=150)
KEY = 3
ARCHITECTURES = pytest.mark.parametrize(
    ("architecture", "fanouts", "heads"),
    [("GraphSAGE", (4, 3), None), ("GIN", (4,), None), ("GCN", (3, 2), None), ("GAT", (4, 3), 2), ("SGC", (0,), None),
     ("SIGN", (0, 0), None)],
    ids=["GraphSAGE", "GIN", "GCN", "GAT", "SGC", "SIGN"],
)  # fmt: skip


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    return Repository(tmp_path_factory.mktemp("export") / "repository", "default", "tiny")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> LoadedRevision:
    """Variants of every family, nearly untrained."""
    uri = write_npz(tmp_path_factory.mktemp("graph") / "graph.npz", npz_arrays(GRAPH)).as_uri()
    variants = {
        "pruning": {"factors": [1, 2]},
        "storage": ["float32", "int8"],
        "stored": [1, 2],
        "oneRow": [{"hops": 2}],
        "channels": [{"factor": 2}, {"factor": 2, "table": "Projected"}],
        "cascades": [{"first": "mlp2-int8", "then": "x1", "passOnPercents": [5]}],
    }
    model = {"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 1}}
    service = service_of(uri, model=model, variants=variants, normalization="Standardize")
    return load_revision(repository, generate(service, repository).revision, build=build_exact)


def module_of(revision: LoadedRevision, name: str) -> VariantModule:
    network = revision.variants[name].network
    return VariantModule(network, gives_embeddings=network.hidden > 0)


def assert_close(found: np.ndarray, expected: np.ndarray) -> None:
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))


def program_of(module: torch.nn.Module) -> Program:
    def run(inputs: Inputs) -> Inputs:
        found = module(**{name: torch.tensor(array) for name, array in inputs.items()})
        return {name: tensor.numpy() for name, tensor in found.items()}

    return run


def assert_answers_are_the_engines(revision: LoadedRevision, name: str) -> None:
    variant = revision.variants[name]
    module = module_of(revision, name)
    for seeds, padding in (([7, 3, 50], 0), ([0], 4)):
        inputs = draw_inputs(revision, variant, np.array(seeds), KEY)
        assert list(inputs) == [each.name for each in inputs_of(variant)]
        padded = pad_inputs(inputs, padding)
        found = module(**{each: torch.tensor(array) for each, array in padded.items()})
        expected = infer_batch(revision, name, np.array(seeds), KEY)
        assert_close(found["scores"].numpy()[: len(seeds)], expected.scores)
        if expected.embeddings is not None:
            assert_close(found["embeddings"].numpy()[: len(seeds)], expected.embeddings)


@pytest.mark.campaign
@ARCHITECTURES
@pytest.mark.parametrize("storage", [Storage.FLOAT32, Storage.BFLOAT16, Storage.INT8], ids=str)
def test_modules_answer_as_the_engine(
    architecture: str, fanouts: tuple[int, ...], heads: int | None, storage: Storage
) -> None:
    for name in ("x1", "x2"):
        assert_answers_are_the_engines(revision_of(architecture, fanouts, storage=storage, heads=heads), name)
    assert_answers_are_the_engines(projected_revision(architecture, fanouts, storage, heads=heads), "projected")


@pytest.mark.campaign
@pytest.mark.parametrize(
    "fanouts", [(5,), (-1, -1), (3, 2, 2)], ids=["one layer", "whole neighbourhoods", "three layers"]
)
@pytest.mark.parametrize("architecture", ["GraphSAGE", "GCN", "GAT"])
def test_modules_of_any_depth_answer_as_the_engine(architecture: str, fanouts: tuple[int, ...]) -> None:
    heads = 4 if architecture == "GAT" else None
    assert_answers_are_the_engines(revision_of(architecture, fanouts, heads=heads), "x1")


def test_modules_of_every_family_answer_as_the_engine(loaded: LoadedRevision) -> None:
    assert {"x2", "channels2-projected-int8", "stored1", "stored2", "channels2", "mlp2"} <= loaded.variants.keys()
    for name in loaded.variants:
        assert_answers_are_the_engines(loaded, name)


@pytest.mark.campaign
@ARCHITECTURES
def test_programs_of_each_architecture_answer_as_the_engine(
    architecture: str, fanouts: tuple[int, ...], heads: int | None, tmp_path: Path
) -> None:
    """Written, read back, and run for sizes that were not traced, a node without neighbours among them."""
    revision = revision_of(architecture, fanouts, heads=heads)
    alone = int(np.flatnonzero(np.diff(revision.graph.indptr) == 0)[0])
    variant = revision.variants["x1"]
    inputs, outputs = inputs_of(variant), outputs_of(variant, "Scores.", gives_embeddings=variant.network.hidden > 0)
    program = trace(module_of(revision, "x1"), inputs)
    for made in FORMATS.values():
        made.write(program, inputs, outputs, tmp_path / made.file, sums_by_segments=True)
        run = made.load(tmp_path / made.file)
        for seeds, padding in (([alone], 0), ([5, 80, 2, 9], 6)):
            drawn = draw_inputs(revision, variant, np.array(seeds), KEY)
            found = run(pad_inputs(drawn, padding))["scores"][: len(seeds)]
            assert_close(found, infer_batch(revision, "x1", np.array(seeds), KEY).scores)
        assert max(c.largest_difference for c in check_program(revision, variant, made.format, run)) < 1e-5
    # ONNX Runtime's threads lose updates there.
    assert not _reductions(onnx.load(tmp_path / "model.onnx").graph)


def _reductions(graph: Any) -> list[str]:
    """Scatters of an ONNX graph, and of the graphs in it, that combine what they write with what is there."""
    found = []
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type.startswith("Scatter") and attribute.name == "reduction" and attribute.s != b"none":
                found.append(node.op_type)
            for inner in (attribute.g, *attribute.graphs):
                found += _reductions(inner)
    return found


@dataclass(frozen=True, slots=True)
class Exported:
    made: ExportManifest
    folder: Path

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        return safetensors.numpy.load_file(self.folder / name)


@pytest.fixture(scope="module", params=["x2", "channels2-projected", "stored1-int8"])
def exported(
    request: pytest.FixtureRequest, loaded: LoadedRevision, tmp_path_factory: pytest.TempPathFactory
) -> Exported:
    folder = tmp_path_factory.mktemp("exports") / request.param
    formats = list(ExportFormat) if request.param == "x2" else [ExportFormat.TORCH]
    return Exported(export_variant(loaded, "default/tiny", request.param, formats, folder, "a test"), folder)


def test_what_is_written_is_checked_first(exported: Exported) -> None:
    made, folder = exported.made, exported.folder
    assert [(check.format, check.batches, check.padding) for check in made.checks] == [
        (chosen, batches, padding) for chosen in made.programs for batches, padding in ((1, 0), (1, 5), (20, 0))
    ]
    assert [check.nodes for check in made.checks[:2]] == [8, 3]
    assert 8000 <= made.checks[2].rows < 9000
    assert max(check.largest_difference for check in made.checks) < TOLERANCE
    assert msgspec.json.decode((folder / "export.json").read_bytes(), type=ExportManifest) == made
    assert [path.name for path in folder.parent.iterdir()] == [made.variant]


def test_programs_run_as_their_page_says(exported: Exported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(exported.folder)
    programs = re.findall(r"```python\n(.*?)```", Path("README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(programs) == len(exported.made.programs)
    for program in programs:
        left: dict[str, Any] = {}
        exec(compile(program, "README.md", "exec"), left)  # noqa: S102  (our own page)
        scores = left["scores"] if "scores" in left else left["outputs"]["scores"].numpy()
        np.testing.assert_allclose(scores, exported.arrays("example.safetensors")["scores"], atol=TOLERANCE)


def test_embeddings_are_given_where_the_variant_gives_them(exported: Exported) -> None:
    names = [each.name for each in exported.made.outputs]
    assert names == (["scores", "embeddings"] if exported.made.variant == "x2" else ["scores"])
    assert ("embeddings" in exported.arrays("example.safetensors")) == (exported.made.variant == "x2")


def test_features_become_rows_as_the_page_says(exported: Exported) -> None:
    if exported.made.rows.stored_layer is not None:
        assert not (exported.folder / "rows.safetensors").exists()
        return
    recipe, example = exported.arrays("rows.safetensors"), exported.arrays("example.safetensors")
    scaled = (np.asarray(GRAPH.features) - recipe["mean"]) / recipe["deviation"]
    rows = {"rows": scaled[:, recipe["columns"]]}
    if "product" in recipe:
        rows = {"rows": scaled @ recipe["product"], "own_rows": scaled @ recipe["own_product"]}
    for name, expected in rows.items():
        assert_close(example[name][: len(example["nodes"])], expected[example["nodes"]].astype(np.float32))
    assert exported.made.rows.normalization == "Standardize"
    assert list(exported.made.rows.columns) == recipe["columns"].tolist()


def test_the_archive_has_no_pickle(exported: Exported) -> None:
    with zipfile.ZipFile(exported.folder / "model.pt2") as archive:
        pickles = [each.filename for each in archive.infolist() if each.filename.endswith(".pt") and each.file_size]
    assert pickles == []


def test_programs_are_described_in_json(exported: Exported) -> None:
    told = json.loads((exported.folder / "export.json").read_text(encoding="utf-8"))
    assert told["classes"] == [0, 1, 2]
    assert told["fanouts"] == ([4] if exported.made.variant == "stored1-int8" else [4, 3])
    assert (told["rows"]["storage"], told["rows"]["scales"] is None) in {("float32", True), ("int8", False)}
    example = exported.arrays("example.safetensors")
    for each in told["inputs"]:
        assert (example[each["name"]].dtype, example[each["name"]].ndim) == (each["dtype"], len(each["shape"]))


def test_tables_that_hold_for_the_stored_graph_alone_say_so(loaded: LoadedRevision, tmp_path: Path) -> None:
    made = export_variant(loaded, "default/tiny", "stored2", [], tmp_path / "made", "a test")
    assert (made.rows.stored_layer, made.rows.normalization, made.rows.columns) == (2, None, ())
    assert not (tmp_path / "made" / "rows.safetensors").exists()
    page = (tmp_path / "made" / "README.md").read_text(encoding="utf-8")
    assert "does not tell how to make rows of other nodes" in page
    assert "An answer takes one row of a node and no neighbours." in page
    assert [each.name for each in made.inputs] == ["rows"]


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ("mlp2-int8-then-x1-p5", "is a cascade, which asks one network .* export mlp2-int8 and x1, each for itself"),
        ("x3", "has no 'x3'; name one of x1, x1-int8, x2, "),
    ],
)
def test_what_cannot_be_exported_is_refused(loaded: LoadedRevision, variant: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words):
        export_variant(loaded, "default/tiny", variant, [ExportFormat.TORCH], tmp_path / "made", "a test")
    assert not list(tmp_path.iterdir())


def test_a_program_that_differs_is_not_left_behind(
    loaded: LoadedRevision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_module, "TOLERANCE", -1.0)
    with pytest.raises(RuntimeError, match="x1 as torch differs from gnnserve's own scores"):
        export_variant(loaded, "default/tiny", "x1", [ExportFormat.TORCH], tmp_path / "made", "a test")
    assert not list(tmp_path.iterdir())


def test_a_program_that_differs_in_one_large_batch_is_refused(loaded: LoadedRevision) -> None:
    right = program_of(module_of(loaded, "x1"))
    sizes: list[int] = []

    def run(inputs: Inputs) -> Inputs:
        scores = right(inputs)["scores"]
        sizes.append(len(inputs["rows"]))
        return {"scores": scores + (0.01 if len(sizes) == 15 else 0)}

    with pytest.raises(RuntimeError, match=r"x1 as onnx differs .* in a batch of up to [0-9]+ rows"):
        check_program(loaded, loaded.variants["x1"], ExportFormat.ONNX, run)
    assert len(sizes) == 22
    assert min(sizes[2:]) >= 2000


def test_scores_that_are_no_numbers_are_refused(loaded: LoadedRevision) -> None:
    right = program_of(module_of(loaded, "x1"))
    with pytest.raises(RuntimeError, match="by inf"):
        check_program(
            loaded,
            loaded.variants["x1"],
            ExportFormat.ONNX,
            lambda inputs: {"scores": right(inputs)["scores"] * np.nan},
        )


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("reduce", "values"),
    [("sum", "rows"), ("sum", "products"), ("sum", "weighted"), ("max", "rows"), ("max", "products")],
)
def test_segments_are_reduced_in_onnx_as_one_by_one(reduce: str, values: str, tmp_path: Path) -> None:
    """Targets with no, one, as many and far more edges than others, in and out of order, with edges of no target."""
    random = np.random.default_rng(4)
    run = _written(_Segments(reduce, values), tmp_path)
    degrees = [
        [],
        [0, 0],
        [1, 1, 1],
        [10] * 40,
        [3000, 0, 1, 5],
        [0, 1, 2000, 2, 0],
        *(random.integers(0, most, 60).tolist() for most in (2, 5, 17, 300)),
    ]
    for case in degrees:
        targets = np.concatenate([np.repeat(np.arange(len(case)), case), np.full(7, len(case))]).astype(np.int64)
        sources = np.where(targets < len(case), random.integers(0, 50, len(targets)), 50)
        rows, own = (random.normal(size=(size, 6)).astype(np.float32) for size in (51, len(case)))
        rows[50] = np.nan
        expected = np.concatenate([own.astype(np.float64), np.zeros((1, 6))])
        operator = np.add if reduce == "sum" else np.maximum
        read = rows[sources].astype(np.float64)
        factor = {"rows": 1.0, "products": 1.5, "weighted": read[:, :2].sum(axis=1, keepdims=True) / 4}[values]
        operator.at(expected, targets, read * factor)
        for order in (np.arange(len(targets)), random.permutation(len(targets))):
            found = run(rows, own, np.stack([sources, targets])[:, order])
            np.testing.assert_allclose(found, expected[:-1], rtol=1e-6, atol=1e-5)


class _Segments(torch.nn.Module):
    def __init__(self, reduce: str, values: str) -> None:
        """`values`: rows of the table as they are, times 1.5, or times weights of two heads, added up."""
        super().__init__()
        self.reduce, self.values = reduce, values

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        edges = inputs["edges"]
        room = torch.nn.functional.pad(inputs["own"], (0, 0, 0, 1))
        values = inputs["rows"].index_select(0, edges[0])
        if self.values == "weighted":
            heads = values.unsqueeze(1) * (values[:, :2] / 4).unsqueeze(2)
            return {"scores": (room + room.new_zeros(room.shape[0], 2, 6).index_add(0, edges[1], heads).sum(1))[:-1]}
        values = values if self.values == "rows" else values * 1.5
        if self.reduce == "sum":
            return {"scores": room.index_add(0, edges[1], values)[:-1]}
        return {"scores": room.scatter_reduce(0, edges[1][:, None].expand_as(values), values, "amax")[:-1]}


def _written(module: _Segments, folder: Path) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    shapes = {"rows": (torch.float32, ("n", 6)), "own": (torch.float32, ("t", 6)), "edges": (torch.int64, (2, "e"))}
    inputs = tuple(ExportedArray(name, str(dtype)[6:], shape, "") for name, (dtype, shape) in shapes.items())
    outputs = (ExportedArray("scores", "float32", ("t", 6), ""),)
    FORMATS[ExportFormat.ONNX].write(
        trace(module, inputs), inputs, outputs, folder / "segments.onnx", sums_by_segments=True
    )
    run = FORMATS[ExportFormat.ONNX].load(folder / "segments.onnx")
    return lambda rows, own, edges: run({"rows": rows, "own": own, "edges": edges})["scores"]

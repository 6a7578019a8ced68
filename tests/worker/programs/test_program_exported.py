"""Programs that `gnnserve export` wrote are served again, and answer as the variants that they were made of."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.support.gpu.gpu_revisions import projected_revision
from tests.support.gpu.gpu_revisions import revision as revision_of
from tests.support.graphs.graphs import npz_arrays, planted_graph, service_of, write_npz
from tests.support.programs.programs import check_program_file

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportedArray, ExportFormat, ExportManifest
from gnnserve_api.files.graph_schema import one_type
from gnnserve_api.files.programs import ProgramManifest, ProgramOutput, contract_problems
from gnnserve_api.variants import Storage
from gnnserve_worker.export.contract import inputs_of, outputs_of
from gnnserve_worker.export.inputs import draw_inputs
from gnnserve_worker.export.modules import VariantModule
from gnnserve_worker.export.programs import FORMATS, trace
from gnnserve_worker.export.write import EXPECTED, MANIFEST, README, export_variant
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.inference.batch import draw_sample, infer_batch
from gnnserve_worker.models.network import Activations
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import build_exact, load_revision
from gnnserve_worker.programs.exported import contract_of_export, input_of
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import Scratch

SEEDS, KEY = np.array([7, 3, 50, 81], np.int64), 3
REVISIONS = {
    "GraphSAGE": lambda: (revision_of("GraphSAGE", (4, 3)), "x1"),
    "GraphSAGE, own rows": lambda: (projected_revision("GraphSAGE", (4, 3), Storage.INT8), "projected"),
    "GIN": lambda: (revision_of("GIN", (4,)), "x2"),
    "GCN": lambda: (revision_of("GCN", (3, 2), storage=Storage.BFLOAT16), "x1"),
    "GAT": lambda: (revision_of("GAT", (4, 3), heads=2), "x1"),
}


def contract_of(revision: LoadedRevision, name: str, architecture: str) -> ProgramManifest:
    """As `contract_of_export`, without a file."""
    variant = revision.variants[name]
    inputs = tuple(input_of(each, adds_itself=architecture in ("GCN", "GAT")) for each in inputs_of(variant))
    hidden = variant.network.hidden
    embeddings = ProgramOutput("embeddings", hidden) if hidden else None
    scores = ProgramOutput("scores", variant.network.classes)
    return ProgramManifest("model.onnx", "", len(variant.fanouts), inputs, scores, embeddings)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", REVISIONS)
def test_exports_are_served_again(kind: str, tmp_path: Path) -> None:
    revision, name = REVISIONS[kind]()
    variant = revision.variants[name]
    program = contract_of(revision, name, kind.split(",", maxsplit=1)[0])
    schema = one_type(revision.graph.nodes, len(revision.graph.indices))
    assert contract_problems(program, schema) == []
    made = FORMATS[ExportFormat.ONNX]
    outputs = outputs_of(variant, "Scores.", gives_embeddings=variant.network.hidden > 0)
    module = VariantModule(variant.network, gives_embeddings=variant.network.hidden > 0)
    made.write(
        trace(module, inputs_of(variant)), inputs_of(variant), outputs, tmp_path / made.file, sums_by_segments=True
    )
    check_program_file(tmp_path / made.file, program)
    runner = ProgramRunner(tmp_path / made.file, 1)
    network = ProgramNetwork(program, schema, runner, (variant.columns,))
    for share in (False, True):
        sample = draw_sample(revision, variant, SEEDS, KEY, None, Scratch(), share=share)
        scores = np.empty((len(SEEDS), network.classes), np.float32)
        embeddings = np.empty((len(SEEDS), network.hidden), np.float32) if network.hidden else None
        gathered = network.gather(variant.table, sample, Activations())
        network.infer(gathered, sample, Activations(), scores, embeddings)
        expected = infer_batch(revision, name, SEEDS, KEY)
        np.testing.assert_allclose(scores, expected.scores, rtol=0, atol=1e-5 * float(np.abs(expected.scores).max()))
        if embeddings is not None:
            assert expected.embeddings is not None
            np.testing.assert_allclose(embeddings, expected.embeddings, rtol=0, atol=1e-5)
    runner.close()


@pytest.mark.parametrize("kind", REVISIONS)
def test_inputs_are_those_that_exporting_draws(kind: str) -> None:
    revision, name = REVISIONS[kind]()
    variant = revision.variants[name]
    program = contract_of(revision, name, kind.split(",", maxsplit=1)[0])
    sample = draw_sample(revision, variant, SEEDS, KEY, None, Scratch(), share=False)
    network = ProgramNetwork(program, one_type(0, 0), ProgramRunner(Path("none"), 1), (variant.columns,))
    found = network.gather(variant.table, sample, Activations()).arrays
    expected = draw_inputs(revision, variant, SEEDS, KEY)
    assert found.keys() == expected.keys()
    for each, array in expected.items():
        np.testing.assert_array_equal(found[each], array, strict=True)


def test_a_folder_is_served_again_by_the_scores_that_are_in_it(tmp_path: Path) -> None:
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(planted_graph([1, 4, 7], nodes=150))).as_uri()
    model = {"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 1}}
    first, second = (Repository(tmp_path / name, "default", "tiny") for name in ("first", "second"))
    service = service_of(uri, model=model, normalization="Standardize")
    loaded = load_revision(first, generate(service, first).revision, build=build_exact)
    folder = tmp_path / "made"
    export_variant(loaded, "default/tiny", "x1", [ExportFormat.ONNX], folder, "a test")
    page = (folder / README).read_text(encoding="utf-8")
    assert "expected: {uri: FOLDER/expected.npz}" in page
    assert "graph: {normalization: Standardize, …}" in page
    model = {"program": {"uri": folder.as_uri()}, "expected": {"uri": (folder / EXPECTED).as_uri()}}
    again = service_of(uri, model=model, normalization="Standardize")
    served = load_revision(second, generate(again, second).revision)
    nodes = np.arange(150)
    found, wanted = (infer_batch(one, "x1", nodes, 0).scores for one in (served, loaded.over_whole_lists("x1")))
    for one in served.programs:
        one.close()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_what_is_written_is_read_as_a_contract(tmp_path: Path) -> None:
    uri = write_npz(tmp_path / "graph.npz", npz_arrays(planted_graph([1, 4, 7], nodes=150))).as_uri()
    service = service_of(uri, model={"hidden": 16, "fanouts": [4, 3], "training": {"epochs": 1}})
    repository = Repository(tmp_path / "repository", "default", "tiny")
    loaded = load_revision(repository, generate(service, repository).revision, build=build_exact)
    folder = tmp_path / "made"
    export_variant(loaded, "default/tiny", "x1", [ExportFormat.ONNX], folder, "a test")
    made = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=ExportManifest)
    program = contract_of_export(made, "")
    assert (program.hops, program.scores.columns, program.weighs_neighbours) == (2, 3, False)
    assert msgspec.json.decode(msgspec.json.encode(program), type=ProgramManifest) == program
    check_program_file(folder / program.file, program)
    with pytest.raises(InputError, match="was written as torch; export it with --format onnx"):
        contract_of_export(msgspec.structs.replace(made, programs={ExportFormat.TORCH: "model.pt2"}), "")
    newer = (*made.inputs, ExportedArray("edge_colours_1", "int64", ("edges_1",), ""))
    with pytest.raises(InputError, match="does not know the input 'edge_colours_1'"):
        contract_of_export(msgspec.structs.replace(made, inputs=newer), "")

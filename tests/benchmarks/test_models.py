"""Models as programs: what servers are verified by, what they are asked to serve, and what becomes of the figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.models import models_files, models_neighbours
from benchmarks.models.models import BENCHMARK
from benchmarks.models.models_files import ModelFiles, described_server, probe_scores, program_server
from benchmarks.models.models_neighbours import MODES, OTHERS, described_manifest, program_manifest
from benchmarks.models.models_operations import SEEDS, operation_head, operation_rows
from benchmarks.models.models_speed import MODULES, ratios_of
from benchmarks.models.operation_costs import Alone, BenchedGraph, measure_operation, measure_rates
from benchmarks.models.operation_rooflines import COUNTS, HopCounts, Rates, Sizes, Work, hops_of
from benchmarks.peers.programs.modules import random_module
from benchmarks.peers.ratios import MANY_CONNECTIONS, MANY_SEEDS, ONE_SEED, Figures
from benchmarks.shapes import PROBES, Shape, ShapeFiles, power_law_graph

from gnnserve_api.files.layers import Convolution
from gnnserve_api.spec.service import GNNService

SHAPE = Shape("tiny", nodes=400, edges=2000, features=6, hidden=8, classes=3)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ShapeFiles:
    folder = tmp_path_factory.mktemp("shape")
    features = np.random.default_rng(0).standard_normal((SHAPE.nodes, SHAPE.features), dtype=np.float32)
    for name, array in zip(("indptr", "indices", "features"), (*power_law_graph(SHAPE), features), strict=True):
        np.save(folder / f"{name}.npy", array)
    return ShapeFiles(SHAPE, folder)


@pytest.mark.parametrize("name", MODULES)
def test_probes_scores_are_those_of_the_model_over_the_whole_graph_and_of_the_model_that_is_cut(
    name: str, files: ShapeFiles
) -> None:
    module: Any = random_module(name, SHAPE.features, SHAPE.hidden, SHAPE.classes)
    expected = probe_scores(module, files)
    indptr = np.asarray(files.array("indptr"))
    targets = np.repeat(np.arange(SHAPE.nodes), np.diff(indptr))
    edges = torch.from_numpy(np.stack([np.asarray(files.array("indices"), np.int64), targets]))
    x = torch.from_numpy(np.array(files.array("features")))
    with torch.inference_mode():
        whole = module(x, edges).numpy()
        cut = module.cut(x, [edges, edges], [SHAPE.nodes] * 2).numpy()
    np.testing.assert_allclose(whole[-PROBES:], expected, atol=1e-5)
    np.testing.assert_allclose(cut, whole, atol=1e-5)


def test_manifests_are_valid_and_have_the_same_fan_outs(
    files: ShapeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models_files, "prepare_sources", lambda _: tmp_path)
    of = ModelFiles("gat", files, tmp_path, np.zeros((PROBES, 3)))
    for server in (program_server(of, tmp_path), described_server(of, tmp_path)):
        (manifest,) = (Path(part) for part in server.command if part.endswith(".json"))
        GNNService.model_validate(json.loads(manifest.read_text()))
    model = json.loads((tmp_path / "gat-program.json").read_text())["spec"]["model"]
    assert model["program"]["fanouts"] == json.loads((tmp_path / "gat-described.json").read_text())["spec"]["model"][
        "fanouts"
    ]  # fmt: skip


def figures(p50_ms: float, requests_per_s: float) -> Figures:
    return Figures(p50_ms, 2 * p50_ms, requests_per_s)


def test_a_program_is_compared_with_the_best_of_others_by_each_figure() -> None:
    ours = {ONE_SEED: figures(2, 1), MANY_CONNECTIONS: figures(1, 100), MANY_SEEDS: figures(30, 1)}
    one = {ONE_SEED: figures(1, 1), MANY_CONNECTIONS: figures(1, 50), MANY_SEEDS: figures(90, 1)}
    two = {ONE_SEED: figures(4, 1), MANY_CONNECTIONS: figures(1, 80), MANY_SEEDS: figures(60, 1)}
    assert ratios_of(ours, [one, two]) == {ONE_SEED: 2.0, MANY_CONNECTIONS: 0.8, MANY_SEEDS: 0.5}


@pytest.mark.parametrize("times", [0.9, 1.1])
def test_a_program_that_takes_longer_than_torch_misses(times: float) -> None:
    ratios = {"torch": {ONE_SEED: times, MANY_SEEDS: times}}
    found = {"speed": {name: {"ratios": ratios, "servers": {"pyg": {"largestError": 1e-6}}} for name in MODULES}}
    judged = {name: verdict["passed"] for name, verdict in BENCHMARK.judged(found).items() if "torch" in name}
    assert judged == dict.fromkeys(judged, times <= 1) and len(judged) == 4


def test_manifests_of_neighbours_are_valid(files: ShapeFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_neighbours, "prepare_sources", lambda _: tmp_path)
    for manifest in (described_manifest(files, OTHERS[0]), program_manifest(tmp_path)):
        GNNService.model_validate(manifest)
    assert (tmp_path / "mischief.onnx").is_file()


@pytest.mark.parametrize(
    ("failed", "refused", "p99_ms", "passes"),
    [(0, 15, 12.0, True), (1, 10, 12.0, False), (0, 10, 14.0, False), (0, 25, 12.0, False)],
)
def test_neighbours_must_lose_no_request_and_little_time(
    failed: int, refused: int, p99_ms: float, passes: bool
) -> None:
    of = {"requests": 10_000, "failed": 0, "refused": 10, "p99_ms": 10.0, "recovered_s": 0.0}
    modes = {name: {**of, "p99_ms": p99_ms, "failed": failed, "refused": refused} for name in MODES}
    modes["healthy"] = of
    judged = BENCHMARK.judged({"neighbours": {"modes": modes}})
    assert len(judged) == 12
    assert all(verdict["passed"] for verdict in judged.values()) is passes


def test_a_convolution_is_measured_beside_torch_geometric_over_the_same_samples(files: ShapeFiles) -> None:
    graph, kinds = BenchedGraph.of(files), {}
    rates, first = measure_rates(graph, quick=True), Alone.of(Convolution.GRAPH_SAGE, graph, quick=True)
    for kind in (Convolution.GRAPH_SAGE, Convolution.GATV2, Convolution.TAG):
        kinds[kind.value] = measure_operation(kind, graph, rates, first, quick=True)
    found = {"operations": {"shape": "tiny", "rates": {}, "kinds": kinds}}
    judged = BENCHMARK.judged(found)
    difference = judged["operations: largest difference of scores from torch_geometric's"]
    assert difference["passed"] and difference["measured"] > 0
    rows = {row[0]: row for row in operation_rows(found["operations"])}
    assert len(rows["GATv2"]) == len(operation_head(found["operations"]))
    assert float(rows["TAG"][-1]) > 0


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_a_convolution_that_takes_longer_than_torch_geometric_misses(times: float) -> None:
    measured = {seeds: {"layers_ms": times, "torch_ms": 1.0} for seeds in SEEDS}
    judged = BENCHMARK.judged({"operations": {"shape": "tiny", "kinds": {"GCN": measured}}})
    assert {one["passed"] for name, one in judged.items() if name.startswith("operations")} == {times <= 1}


@pytest.mark.parametrize("times", [1.4, 1.6])
def test_a_convolution_that_is_further_from_its_roofline_than_the_first_misses(times: float) -> None:
    beside = {"layers_ms": 0.5, "torch_ms": 1.0}
    kinds = {
        kind: {name: {**beside, "alone_ms": alone_ms, "roofline_ms": least_ms, "first_ms": first_ms} for name in SEEDS}
        for kind, alone_ms, least_ms, first_ms in (("GraphSAGE", 10.0, 2.0, 10.0), ("GATv2", 32.0 * times, 4.0, 16.0))
    }
    judged = BENCHMARK.judged({"operations": {"shape": "tiny", "rates": {}, "kinds": kinds}})
    (of_rooflines,) = (one for name, one in judged.items() if "roofline" in name)
    assert of_rooflines["passed"] == (times <= 1.5)
    assert of_rooflines["measured"] == f"{times:.2f} (GATv2)"


def test_counts_of_a_convolution_are_those_of_its_definition() -> None:
    # Two seeds that read three edges and four of a hop further, of the rows of two and three more nodes.
    (outer, inner) = hops_of(np.array([2, 2, 3]), np.array([0, 1, 1, 2, 2, 3, 3]), 2)
    assert outer == HopCounts(targets=4, edges=7, rows=7)
    assert inner == HopCounts(targets=2, edges=3, rows=4)
    work = COUNTS[Convolution.GRAPH_SAGE]([outer], Sizes(8))
    # Rows of neighbours, those of the targets and what is written; sums, and a product of means and own rows.
    assert work == Work(4 * 8 * (7 + 4 + 4), 7 * 8 + 2 * 4 * 16 * 8)
    assert Work(2e9, 3e9).least_ms(Rates(gb_per_s=1.0, gflop_per_s=3.0)) == 3000.0
    assert COUNTS.keys() == {*Convolution}

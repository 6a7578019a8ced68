"""Reductions that torch exports run by rows, and score as before; others are left alone."""

from __future__ import annotations

import hashlib
import shutil
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch_geometric.nn as pyg
from onnx import TensorProto, helper
from tests.support.programs.programs import export_over_graph, save

from gnnserve_api.files.programs import ProgramOutput
from gnnserve_worker.programs.failure import ProgramFailedError
from gnnserve_worker.programs.providers import CPU, ON_CPU
from gnnserve_worker.programs.race import check_repeats
from gnnserve_worker.programs.rewriting import reduce_by_rows, rewritten
from gnnserve_worker.programs.runner import ProgramRunner

COLUMNS, CLASSES, NODES, EDGES = 6, 4, 3000, 24_000
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
LARGE = 1 << 30
RANDOM = np.random.default_rng(3)
# Few targets with very many edges, and many with none.
INPUTS = {
    "x": RANDOM.normal(size=(NODES, COLUMNS)).astype(np.float32),
    "edge_index": np.stack(
        [RANDOM.integers(0, NODES, EDGES), (NODES * RANDOM.random(EDGES) ** 3).astype(np.int64)]
    ).astype(np.int64),
}
CONVOLUTIONS: dict[str, Callable[[], torch.nn.Module]] = {
    "SAGE of means": lambda: pyg.SAGEConv(COLUMNS, CLASSES),
    "SAGE of maxima": lambda: pyg.SAGEConv(COLUMNS, CLASSES, aggr="max"),
    "SAGE of minima": lambda: pyg.SAGEConv(COLUMNS, CLASSES, aggr="min"),
    "GATv2 of two heads": lambda: pyg.GATv2Conv(COLUMNS, CLASSES // 2, heads=2, add_self_loops=False),
    "GATv2 of one head": lambda: pyg.GATv2Conv(COLUMNS, CLASSES, add_self_loops=False),
    "GIN": lambda: pyg.GINConv(torch.nn.Linear(COLUMNS, CLASSES)),
    "GCN": lambda: pyg.GCNConv(COLUMNS, CLASSES),
}


class Layer(torch.nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.layer = CONVOLUTIONS[name]()

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(x, edge_index)
        return found


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def export(name: str) -> Path:
        return export_over_graph(Layer(name), COLUMNS, tmp_path_factory.mktemp("exported") / "model.onnx")

    return export


def scores_of(program: bytes | str, inputs: dict[str, np.ndarray]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(program, options, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, inputs)[0]
    return found


def expanded_reductions(program: bytes) -> int:
    """ScatterElements whose index is an expansion to columns; one of numbers, as of degrees, has none."""
    graph = onnx.load_model_from_string(program).graph
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in graph.value_info}
    expanded = {node.output[0] for node in graph.node if node.op_type == "Expand" and ranks[node.output[0]] > 1}
    return sum(node.op_type == "ScatterElements" and node.input[1] in expanded for node in graph.node)


@pytest.mark.campaign
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_score_as_before(name: str, exported: Callable[[str], Path]) -> None:
    path = exported(name)
    assert expanded_reductions(path.read_bytes()) > 0
    digest = hashlib.sha256(path.read_bytes()).digest()
    program = rewritten(path, LARGE)
    assert program is not None
    assert hashlib.sha256(path.read_bytes()).digest() == digest
    assert expanded_reductions(program) == 0
    no_edges = {**INPUTS, "edge_index": np.zeros((2, 0), np.int64)}
    for inputs in (INPUTS, no_edges):
        np.testing.assert_array_equal(scores_of(program, inputs), scores_of(str(path), inputs))
    with torch.no_grad():
        wanted = Layer(name).eval()(*(torch.tensor(each) for each in INPUTS.values())).numpy()
    np.testing.assert_allclose(scores_of(program, INPUTS), wanted, rtol=1e-5, atol=1e-6 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("name", ["SAGE of means", "SAGE of maxima", "GATv2 of two heads"])
def test_twenty_runs_at_the_same_time_are_equal(name: str, exported: Callable[[str], Path]) -> None:
    path = exported(name)
    runner = ProgramRunner(path, 2)
    try:
        (found,) = check_repeats(runner, INPUTS, (ProgramOutput("scores", CLASSES),), NODES)
    finally:
        runner.close()
    np.testing.assert_array_equal(found, scores_of(str(path), INPUTS))


def reduction_graph(
    *,
    reduction: str | None = "add",
    axis: int | None = 0,
    columns: tuple[int | str, ...] = (COLUMNS,),
    index: tuple[int | str, ...] | None = None,
    wide: tuple[int | str, ...] | None = None,
    kind: int = FLOAT,
    states: bool = True,
    values: tuple[int | str, ...] | None = None,
    domain: str = "",
    extra: tuple[str, ...] = (),
) -> onnx.GraphProto:
    """x, the index and values of edges, reduced; `index` and `wide`: the sizes that are stated of the index before and
    behind its expansion."""
    index = index or ("edges", *(1 for _ in columns))
    wide = wide or ("edges", *columns)
    attributes: dict[str, Any] = {"axis": axis, "reduction": reduction}
    given = {name: value for name, value in attributes.items() if value is not None}
    return helper.make_graph(
        [
            helper.make_node("Shape", ["values"], ["sizes"]),
            helper.make_node("Expand", ["index", "sizes"], ["wide"]),
            helper.make_node("ScatterElements", ["x", "wide", "values"], ["scores"], domain=domain, **given),
        ],
        "reduction",
        [
            helper.make_tensor_value_info("x", kind, ["nodes", *columns]),
            helper.make_tensor_value_info("index", INT64, list(index)),
            helper.make_tensor_value_info("values", kind, list(values or ("edges", *columns))),
        ],
        [helper.make_tensor_value_info("scores", kind, ["nodes", *columns])]
        + [helper.make_tensor_value_info(name, INT64, list(wide)) for name in extra],
        value_info=[helper.make_tensor_value_info("wide", INT64, list(wide))] if states and "wide" not in extra else [],
    )


def operators_after(graph: onnx.GraphProto) -> Counter[str]:
    model = helper.make_model(graph)
    before = model.SerializeToString()
    changed = reduce_by_rows(model)
    assert changed or model.SerializeToString() == before
    return Counter(node.op_type for node in model.graph.node)


@pytest.mark.parametrize("reduction", ["add", "max", "min"])
@pytest.mark.parametrize("columns", [(COLUMNS,), (2, COLUMNS), (1,)])
def test_an_index_that_is_expanded_to_columns_is_read_once_for_each_row(
    reduction: str, columns: tuple[int, ...], tmp_path: Path
) -> None:
    graph = reduction_graph(reduction=reduction, columns=columns)
    assert operators_after(graph)["ScatterND"] == 1
    path = save(reduction_graph(reduction=reduction, columns=columns), tmp_path / "model.onnx")
    program = rewritten(path, LARGE)
    assert program is not None
    assert not expanded_reductions(program)
    # Counted from the end, too; and what is not finite.
    index = RANDOM.integers(-20, 20, (500, *(1 for _ in columns)))
    values = RANDOM.normal(size=(500, *columns)).astype(np.float32)
    values.flat[:3] = np.inf, -np.inf, -0.0
    inputs = {"x": RANDOM.normal(size=(20, *columns)).astype(np.float32), "index": index, "values": values}
    np.testing.assert_array_equal(scores_of(program, inputs), scores_of(str(path), inputs))


def test_the_axis_may_be_counted_from_the_end_or_left_out() -> None:
    for axis in (-2, None):
        assert operators_after(reduction_graph(axis=axis))["ScatterND"] == 1


def test_an_expansion_that_is_read_elsewhere_stays(tmp_path: Path) -> None:
    assert operators_after(reduction_graph())["Expand"] == 0
    after = operators_after(reduction_graph(extra=("wide",)))
    assert (after["Expand"], after["ScatterND"]) == (1, 1)
    inner = helper.make_graph(
        [helper.make_node("ReduceMax", ["wide"], ["most"], keepdims=0)],
        "inner", [], [helper.make_tensor_value_info("most", INT64, [])],
    )  # fmt: skip
    graph = reduction_graph()
    graph.node.append(helper.make_node("If", ["is"], ["largest"], then_branch=inner, else_branch=inner))
    assert operators_after(graph)["Expand"] == 1


def test_reductions_by_one_index_share_it_and_new_names_are_free() -> None:
    graph = reduction_graph()
    graph.node[0].name = "first"
    graph.node.append(helper.make_node("ScatterElements", ["scores", "wide", "values"], ["more"], reduction="max"))
    graph.node.append(helper.make_node("Identity", ["more"], ["gnnserve_rows_0"]))
    graph.value_info.append(helper.make_tensor_value_info("more", FLOAT, ["nodes", COLUMNS]))
    model = helper.make_model(graph)
    assert reduce_by_rows(model) == 2
    onnx.checker.check_model(model)
    assert Counter(node.op_type for node in model.graph.node)["Reshape"] == 1


@pytest.mark.parametrize(
    "graph",
    [
        reduction_graph(reduction=None),
        reduction_graph(reduction="none"),
        reduction_graph(reduction="mul"),
        reduction_graph(axis=1),
        reduction_graph(domain="com.example"),
        reduction_graph(kind=TensorProto.FLOAT16),
        reduction_graph(states=False),
        reduction_graph(columns=()),
        reduction_graph(columns=("columns",)),
        reduction_graph(index=("edges", COLUMNS)),
        reduction_graph(index=(1, 1)),
        reduction_graph(index=("other", 1)),
        reduction_graph(index=(1,)),
        reduction_graph(index=("", 1), wide=("", COLUMNS)),
        reduction_graph(wide=("edges", COLUMNS - 1)),
    ],
    ids=[
        "no reduction", "none", "mul", "along columns", "a custom operator", "half precision", "no sizes stated",
        "one number for each edge",
        "free columns", "an index of each number", "one row for all", "another number of rows", "an axis less",
        "free rows without a name", "some columns alone",
    ],
)  # fmt: skip
def test_whatever_is_not_certain_is_left_alone(graph: onnx.GraphProto) -> None:
    assert operators_after(graph)["ScatterND"] == 0


def test_an_index_for_each_edge_and_no_expansion_is_left_alone() -> None:
    graph = reduction_graph()
    graph.node[2].input[1] = "index"
    assert operators_after(graph)["ScatterND"] == 0


def test_a_program_without_such_reductions_and_a_large_one_stay_files(tmp_path: Path) -> None:
    path = save(reduction_graph(), tmp_path / "model.onnx")
    assert rewritten(path, path.stat().st_size) is not None
    assert rewritten(path, path.stat().st_size - 1) is None
    assert rewritten(save(reduction_graph(axis=1), path), LARGE) is None


def test_sizes_that_are_not_true_are_refused_when_it_runs(tmp_path: Path) -> None:
    # Fewer columns come than the file states; ScatterElements would write these.
    graph = reduction_graph(values=("edges", "some"), wide=("edges", COLUMNS))
    runner = ProgramRunner(save(graph, tmp_path / "model.onnx"), 1)
    inputs = {
        "x": np.zeros((5, COLUMNS), np.float32),
        "index": np.zeros((3, 1), np.int64),
        "values": np.ones((3, COLUMNS - 1), np.float32),
    }
    try:
        with pytest.raises(ProgramFailedError, match="ScatterND"):
            runner.run(inputs, (ProgramOutput("scores", COLUMNS),), 5)
    finally:
        runner.close()


def test_weights_beside_the_file_are_found(exported: Callable[[str], Path], tmp_path: Path) -> None:
    path = exported("SAGE of means")
    beside = tmp_path / "beside" / "model.onnx"
    beside.parent.mkdir()
    onnx.save(onnx.load(path), beside, save_as_external_data=True, location="weights.bin", size_threshold=64)
    assert rewritten(beside, LARGE) is not None
    runner = ProgramRunner(beside, 1)
    try:
        (found,) = runner.run(INPUTS, (ProgramOutput("scores", CLASSES),), NODES)
    finally:
        runner.close()
    np.testing.assert_array_equal(found, scores_of(str(path), INPUTS))


def test_a_file_is_rewritten_once_for_all_processes(exported: Callable[[str], Path], tmp_path: Path) -> None:
    file = Path(shutil.copy(exported("SAGE of means"), tmp_path / "model.onnx"))
    runner = ProgramRunner(file, 1)
    output = (ProgramOutput("scores", CLASSES),)
    (first,) = runner.run(INPUTS, output, NODES)
    file.write_bytes(b"not read again")
    assert runner.move(ON_CPU) == CPU, "another process"
    (again,) = runner.run(INPUTS, output, NODES)
    runner.close()
    np.testing.assert_array_equal(again, first)

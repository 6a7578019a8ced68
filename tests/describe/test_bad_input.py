"""Graphs, modules and wishes of a hostile or clumsy user: each is told with the true reason, and nothing is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
import torch_geometric.nn as pyg
import yaml
from tests.support.programs.described import CLASSES, COLUMNS, GRAPH, NODES, Net
from torch_geometric.data import Data, HeteroData

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe import Wishes, describe
from gnnserve_describe.__main__ import main
from gnnserve_describe.given_checks import check_values
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.layout import layout_of
from gnnserve_describe.load import load_model
from gnnserve_describe.write import MANIFEST, PROGRAM, name_of_service

EDGES = GRAPH.edge_index
NO_WISHES = Wishes()


def net() -> Net:
    return Net(pyg.SAGEConv).eval()


def over(**changed: Any) -> Data:
    return Data(**{"x": GRAPH.x, "edge_index": EDGES, "y": GRAPH.y, **changed})


def refusal(module: torch.nn.Module, graph: Any, folder: Path, wishes: Wishes = NO_WISHES) -> str:
    with pytest.raises(InputError) as refused:
        describe(module, graph, folder / "refused", wishes)
    assert list(folder.iterdir()) == []
    assert refused.value.remedy
    return str(refused.value)


def changed_at(tensor: torch.Tensor, place: Any, value: float) -> torch.Tensor:
    made = tensor.clone()
    made[place] = value
    return made


def without_label(kind: str) -> HeteroData:
    data = HeteroData()
    data[kind].x, data[kind].y = torch.randn(9, COLUMNS), torch.arange(9) % CLASSES
    data[kind, "to", kind].edge_index = torch.randint(0, 9, (2, 20))
    return data


def sparse(values: float) -> torch.Tensor:
    numbers = torch.unique(EDGES, dim=1)
    return torch.sparse_coo_tensor(
        numbers, torch.full((numbers.shape[1],), values), (NODES, NODES), check_invariants=True
    )


def hetero_without_edges() -> HeteroData:
    data = without_label("user")
    data["user", "knows", "user"].weight = torch.ones(3)
    return data


GRAPHS: dict[str, tuple[Callable[[], Any], str]] = {
    "edges to missing nodes": (
        lambda: over(edge_index=changed_at(EDGES, (0, 3), NODES + 7)),
        f"edge_index[0][3] is {NODES + 7}, expected 0 to {NODES - 1}",
    ),
    "negative ends": (lambda: over(edge_index=changed_at(EDGES, (1, 2), -1)), "edge_index[1][2] is -1"),
    "no nodes": (lambda: over(x=torch.zeros(0, COLUMNS), edge_index=EDGES[:, :0], y=GRAPH.y[:0]), "has no nodes"),
    "not a number": (lambda: over(x=changed_at(GRAPH.x, (4, 0), float("nan"))), "x is not finite in 1 of 160 rows"),
    "edges transposed": (lambda: over(edge_index=EDGES.t()), "give them as edge_index, int64 [2, edges]"),
    "weighted matrix": (lambda: Data(x=GRAPH.x, adj_t=sparse(0.5), y=GRAPH.y), "has other values than 1"),
    "names with spaces": (lambda: without_label("my user"), "the type 'my user' has characters that no server takes"),
    "relation without edges": (hetero_without_edges, "relation user knows user has no edge_index"),
    "a text": (lambda: "hello", "it is of type str, and no graph"),
    "a tensor": (lambda: GRAPH.x, "it is of type Tensor, and no graph"),
    "a dictionary of something else": (lambda: {"x": 1}, "edge_index (int64 [2, edges]) among x int"),
    "several types": (lambda: without_label("user"), "the types user, so that forward is given dictionaries"),
}  # fmt: skip


@pytest.mark.parametrize("case", GRAPHS)
def test_a_graph_that_is_none_is_told_by_its_place(case: str, tmp_path: Path) -> None:
    make, words = GRAPHS[case]
    assert words in refusal(net(), make(), tmp_path)


def test_integers_that_float32_does_not_keep_are_told() -> None:
    key = RelationKey()
    numbers = torch.tensor([3, 1 << 30])
    with pytest.raises(InputError, match="n_id has the integer 1,073,741,824, and features are served as float32"):
        check_values(GraphTensors({"": {"n_id": numbers}}, {key: EDGES}, {key: {}}))
    check_values(GraphTensors({"": {"x": torch.ones(2)}}, {key: EDGES}, {key: {"edge_time": numbers}}))


@pytest.mark.parametrize(
    ("wishes", "words"),
    [
        (Wishes(nodes=0), "--nodes: is 0; expected 1 or more"),
        (Wishes(hops=129), "--hops: is 129; expected 0 to 128"),
        (Wishes(hops=-1), "--hops: is -1"),
        (Wishes(seed=-1), "--seed: is -1"),
        (Wishes(ids=[[1, 2], [3]]), "--ids: they are"),
        (Wishes(ids=[7] * NODES), "--ids: some are there more than once"),
    ],
)
def test_numbers_that_cannot_be_asked_for_are_told(wishes: Wishes, words: str, tmp_path: Path) -> None:
    assert words in refusal(net(), over(), tmp_path, wishes)


KEPT: dict[str, torch.Tensor] = {}


class KeepingOutside(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        counts = torch.zeros(x.size(0)).index_add(0, edge_index[1], torch.ones(edge_index.size(1)))
        return super().forward(x / (1 + KEPT.setdefault("counts", counts)).unsqueeze(1), edge_index)


class Centering(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x - x.mean(dim=0), edge_index)


class MultiplyingSparse(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(edge_index.size(1))
        return super().forward(torch.sparse_coo_tensor(edge_index.flip(0), ones, (len(x), len(x))) @ x, edge_index)


class Multiplying(Net):
    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        return self.head(self.first.lin_l(adj @ x))


class Choosing(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x, edge_index).argmax(dim=1)


class Silent(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> None:
        return None


class Halving(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x.half(), edge_index)


def without_numbers() -> Net:
    with torch.device("meta"):
        return net()


def diverged() -> Net:
    module = net()
    module.head.weight.data[0, 0] = float("nan")
    return module


MODULES: dict[str, tuple[Callable[[], torch.nn.Module], list[str]]] = {
    "weights that are no numbers": (diverged, ["weights are not finite: head.weight", "before training diverged"]),
    "no numbers": (without_numbers, ["has no numbers", "load_state_dict"]),
    "quantised": (
        lambda: torch.ao.quantization.quantize_dynamic(net(), {torch.nn.Linear}),
        ["it was quantised (Linear)", "as it was before"],
    ),
    "another format": (lambda: Halving(pyg.SAGEConv).half(), ["same dtype", "in place of one that is named"]),
    "keeps outside of itself": (
        lambda: KeepingOutside(pyg.SAGEConv), ["KEPT.setdefault", "over another graph", "outside of forward"]
    ),
    "mean over nodes": (lambda: Centering(pyg.SAGEConv), ["x - x.mean(dim=0)", "the graph as a whole", "BatchNorm"]),
    "sparse product": (lambda: MultiplyingSparse(pyg.SAGEConv), ["with a sparse matrix", "index_add"]),
    "product with edges": (lambda: Multiplying(pyg.SAGEConv), ["adj is given as edges, int64 [2, edges]", "index_add"]),
    "classes": (lambda: Choosing(pyg.SAGEConv), ["as the numbers of classes are", "before argmax"]),
    "nothing": (lambda: Silent(pyg.SAGEConv), ["it returns no tensor", "a row for each node"]),
    "script": (
        lambda: torch.jit.trace(net(), (GRAPH.x, EDGES), check_trace=False), ["made by torch.jit", "Python code"]
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", MODULES)
def test_a_module_that_cannot_be_served_is_told_by_its_line(case: str, tmp_path: Path) -> None:
    make, words = MODULES[case]
    KEPT.clear()
    told = refusal(make(), over(), tmp_path)
    assert [word for word in words if word not in told] == [], told


class InDouble(Net):
    """With weights, features and scores in float64, and something beside its tensors in its state."""

    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv)
        self.double()

    def get_extra_state(self) -> dict[str, int]:
        return {"version": 3}

    def set_extra_state(self, state: dict[str, int]) -> None:
        del state

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x, edge_index).double()


def test_formats_of_the_users_become_those_of_servers(tmp_path: Path) -> None:
    graph = over(x=GRAPH.x.double(), edge_index=EDGES.int(), y=torch.zeros(NODES, dtype=torch.long))
    made = describe(torch.nn.DataParallel(InDouble()), graph, tmp_path / "described", Wishes(nodes=9))
    (scores,) = onnx.load(made.folder / PROGRAM).graph.output
    assert scores.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    told = " ".join(made.findings)
    assert "torch.float64" in told
    assert "inside of DataParallel" in told
    assert f"labels of 1 classes, and scores {CLASSES} columns" in told


class OneColumn(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, note: str) -> torch.Tensor:
        return super().forward(x, edge_index)[:, :1] * len(note)


def test_one_column_is_told_and_texts_of_the_users_break_no_manifest(tmp_path: Path) -> None:
    module = OneColumn(pyg.SAGEConv).eval()
    name = "a" * 49 + "-b: {}\nspec: evil"
    made = describe(module, (GRAPH.x, EDGES, "one\nkind: Evil"), tmp_path / "x y", Wishes(nodes=9, name=name))
    document = yaml.safe_load((made.folder / MANIFEST).read_text())
    assert (document["kind"], document["metadata"]["name"]) == ("GNNService", "a" * 49)
    assert any("served for no task so far" in each and "labels 0 and 1" in each for each in made.findings)


def test_names_of_services_end_in_a_letter_or_digit() -> None:
    assert name_of_service("a" * 49 + "-b") == "a" * 49
    assert name_of_service("../Über / x") == "ber-x"
    assert name_of_service("///") == "model"


def test_types_that_differ_in_a_hyphen_have_inputs_of_their_own() -> None:
    keys = [RelationKey("a", "b_c", "a-b"), RelationKey("a_b", "c", "a_b"), RelationKey("a", "b-c", "a_b")]
    rows = {"x": torch.zeros(1, 1)}
    nothing = torch.zeros((2, 0), dtype=torch.long)
    graph = GraphTensors({"a-b": rows, "a_b": rows, "a": rows}, dict.fromkeys(keys, nothing), {key: {} for key in keys})
    names = [each.name for each in layout_of(graph).inputs]
    assert len(set(names)) == len(names) == 6


SCRIPT = """
import argparse, sys, torch
parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=3)
width = parser.parse_args().width
model = torch.nn.Linear(width, 2)
def stops():
    sys.exit(3)
def needs(width):
    return torch.nn.Linear(width, 2)
"""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stops", "ends the program (sys.exit, with 3) when it is imported or called; put what reads the command line"),
        ("needs", "is a function that needs arguments: width; write a function without arguments"),
        ("width", "is a int, no torch.nn.Module"),
        ("missing", "has no 'missing'; name one of: parser, width, model, stops, needs"),
    ],
)
def test_a_script_is_imported_with_its_defaults_and_does_not_end_the_program(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / f"script_that_{name}.py"
    file.write_text(SCRIPT)
    assert main([f"{file}:{name}", "--graph", f"{file}:{name}", "--out", str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err


def test_what_torch_deprecates_in_torch_geometric_is_no_warning_about_the_file_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "script_that_warns.py"
    file.write_text(
        "import warnings\n"
        "import torch\n"
        "warnings.warn('`torch.jit.script` is deprecated. Please switch.', FutureWarning)\n"
        "model = torch.nn.Linear(3, 2)\n"
    )
    module, _ = load_model(f"{file}:model")  # a warning is an error in tests
    assert isinstance(module, torch.nn.Linear)

"""Scores that a user's own model gave: compared before anything is published, and told apart by what differs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.torch
import torch
from tests.support.graphs.graphs import graph_of, npz_arrays, planted_graph, service_of, write_npz
from torch import nn
from torch.nn import functional

from gnnserve_api.errors import InputError
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.model import ExpectedScores
from gnnserve_worker.generation import networks
from gnnserve_worker.generation.expected.comparison import ScoreComparison
from gnnserve_worker.generation.expected.file import ExpectedNodes, GivenScores, read_scores
from gnnserve_worker.generation.expected.listed import ListedScores
from gnnserve_worker.generation.expected.one_relation import other_directions
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.repository.repository import Repository

pyg = networks.pyg
COLUMNS, HIDDEN, CLASSES, NODES = 6, 6, 3, 60
_REGULAR = planted_graph((0, 1, 2), nodes=NODES, columns=COLUMNS, seed=4)
GRAPH = _REGULAR.with_lists(graph_of([_REGULAR.graph.list_of(node)[: node % 5 + 1].tolist() for node in range(NODES)]))
EDGES = torch.from_numpy(np.stack([GRAPH.graph.indices.astype(np.int64), GRAPH.graph.targets()]))
FEATURES = torch.from_numpy(np.asarray(GRAPH.features))
VARIANTS = {"pruning": {"factors": [1]}, "projection": "Disabled"}


class Stack(nn.Module):
    """Two convolutions and what stands between them."""

    def __init__(self, conv: Callable[[int, int], nn.Module], between: Callable[..., Any] = torch.relu, *,
                 residual: bool = False, end: Callable[..., Any] | None = None) -> None:  # fmt: skip
        super().__init__()
        torch.manual_seed(1)
        self.convs = nn.ModuleList([conv(COLUMNS, HIDDEN), conv(HIDDEN, CLASSES)])
        self.between, self.residual, self.end = between, residual, end

    def forward(self, rows: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        hidden = self.between(self.convs[0](rows, edges))
        scores: torch.Tensor = self.convs[1](hidden + rows if self.residual else hidden, edges)
        return scores if self.end is None else self.end(scores)


def _sage(**options: Any) -> Callable[[int, int], nn.Module]:
    return lambda inputs, outputs: pyg.SAGEConv(inputs, outputs, **options)


def _gcn(**options: Any) -> Callable[[int, int], nn.Module]:
    return lambda inputs, outputs: pyg.GCNConv(inputs, outputs, **options)


def _gat(inputs: int, outputs: int) -> nn.Module:
    return pyg.GATConv(inputs, outputs // 2, heads=2) if outputs == HIDDEN else pyg.GATConv(inputs, outputs)


def _gin(between: type[nn.Module] = nn.ReLU) -> Callable[[int, int], nn.Module]:
    def made(inputs: int, outputs: int) -> nn.Module:
        products = nn.Sequential(nn.Linear(inputs, outputs), between(), nn.Linear(outputs, outputs))
        return pyg.GINConv(products, train_eps=True)

    return made


MODELS: dict[str, dict[str, Any]] = {
    "GraphSAGE": {"architecture": "GraphSAGE"},
    "GCN": {"architecture": "GCN"},
    "GAT": {"architecture": "GAT", "heads": 2, "outputHeads": 1},
    "GIN": {"architecture": "GIN"},
}


def _scores(model: nn.Module, rows: torch.Tensor = FEATURES, edges: torch.Tensor = EDGES) -> np.ndarray:
    with torch.no_grad():
        return model.eval()(rows, edges).numpy()


def _write(folder: Path, model: nn.Module, scores: np.ndarray, nodes: np.ndarray | None = None) -> None:
    write_npz(folder / "graph.npz", npz_arrays(GRAPH))
    state = {key: value.contiguous() for key, value in model.state_dict().items()}
    safetensors.torch.save_file(state, folder / "model.safetensors")
    np.savez(folder / "expected.npz", nodes=np.arange(NODES) if nodes is None else nodes, scores=scores)


def _generate(folder: Path, model: dict[str, Any], expected: dict[str, Any] | None = None, **parts: Any) -> Any:
    given = {
        "hidden": HIDDEN, "fanouts": [3, 2], **model, "checkpoint": {"uri": (folder / "model.safetensors").as_uri()},
        "expected": {"uri": (folder / "expected.npz").as_uri(), **(expected or {})},
    }  # fmt: skip
    service = service_of((folder / "graph.npz").as_uri(), model=given, **{"variants": VARIANTS, **parts})
    return generate(service, Repository(folder / "repository", "default", "tiny"))


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("name", "conv"), [("GraphSAGE", _sage()), ("GCN", _gcn()), ("GAT", _gat), ("GIN", _gin())],
    ids=["GraphSAGE", "GCN", "GAT", "GIN"],
)  # fmt: skip
def test_scores_that_are_equal_are_recorded(tmp_path: Path, name: str, conv: Callable[[int, int], nn.Module]) -> None:
    module = Stack(conv)
    some = np.array([7, 3, 50])
    _write(tmp_path, module, _scores(module)[some], some)

    (compared,) = provenance_of(_generate(tmp_path, MODELS[name]), "a test", 1, 1).compared

    assert (compared.weights, compared.nodes, compared.scores) == ("spec.model", 3, "Logits")
    assert compared.difference_permille < 0.01


def test_propagated_features_are_compared_too(tmp_path: Path) -> None:
    for name, model, architecture in (
        ("sgc", pyg.SGConv(COLUMNS, CLASSES, K=2), {"architecture": "SGC", "fanouts": [0], "hops": 2}),
        ("mlp", pyg.MLP([COLUMNS, HIDDEN, CLASSES], norm=None), {"architecture": "SIGN", "fanouts": [0, 0], "hops": 0}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        with torch.no_grad():
            scores = model.eval()(FEATURES, EDGES) if name == "sgc" else model.eval()(FEATURES)
        holder = nn.Module()
        holder.conv = model
        _write(folder, holder if name == "sgc" else model, scores.numpy())
        made = _generate(folder, architecture)
        assert made.compared[0].difference_permille < 0.01


_ELSE: dict[str, tuple[str, Callable[[], Stack], str]] = {
    "sum": ("GraphSAGE", lambda: Stack(_sage(aggr="sum")), "with the sum of the neighbours"),
    "maximum": ("GraphSAGE", lambda: Stack(_sage(aggr="max")), "with the maximum of the neighbours"),
    "unit rows": ("GraphSAGE", lambda: Stack(_sage(normalize=True)), "with outputs of layers divided by their length"),
    "ELU": ("GraphSAGE", lambda: Stack(_sage(), functional.elu), "with ELU between layers"),
    "GELU": ("GCN", lambda: Stack(_gcn(), functional.gelu), "with GELU between layers"),
    "GAT with ELU": ("GAT", lambda: Stack(_gat, functional.elu), "with ELU between layers"),
    "nothing": ("GCN", lambda: Stack(_gcn(), nn.Identity()), "with nothing between layers"),
    "residual": ("GraphSAGE", lambda: Stack(_sage(), residual=True), "with a residual h + x behind the activation"),
    "no normalisation": ("GCN", lambda: Stack(_gcn(normalize=False)), "without normalisation (normalize=False)"),
    "no loops": ("GCN", lambda: Stack(_gcn(add_self_loops=False)), "without the self-loops that are added"),
    "LeakyReLU": ("GIN", lambda: Stack(_gin(), functional.leaky_relu), "with LeakyReLU between layers"),
    "LeakyReLU inside": (
        "GIN", lambda: Stack(_gin(nn.LeakyReLU), functional.leaky_relu),
        "with LeakyReLU between layers and between the products of each",
    ),
    "two": (
        "GraphSAGE", lambda: Stack(_sage(aggr="max"), functional.elu),
        "with ELU between layers and with the maximum of the neighbours",
    ),
    "ReLU at the end": ("GCN", lambda: Stack(_gcn(), end=torch.relu), "with ReLU behind the last layer too"),
}  # fmt: skip


@pytest.mark.parametrize("name", _ELSE)
def test_a_model_that_computes_otherwise_is_refused_with_what_it_does(tmp_path: Path, name: str) -> None:
    architecture, make, words = _ELSE[name]
    module = make()
    _write(tmp_path, module, _scores(module))

    with pytest.raises(InputError) as refused:
        _generate(tmp_path, MODELS[architecture])

    message = str(refused.value)
    assert message.startswith("spec.model.expected: scores of ")
    assert "node " in message
    assert f"; {words} " in message
    assert "the scores are equal to " in message
    assert "this cannot be served yet" in message
    assert not list((tmp_path / "repository").glob("**/revision.json"))


def test_scores_of_scaled_features_name_the_setting_that_serves_them(tmp_path: Path) -> None:
    module = Stack(_sage())
    rows = FEATURES / FEATURES.abs().sum(dim=1, keepdim=True)
    _write(tmp_path, module, _scores(module, rows))

    with pytest.raises(InputError, match=r"with features scaled by RowNormalize .*set spec.graph.normalization to Row"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_edges_the_other_way_are_found(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, _scores(module, edges=EDGES.flip(0)))

    with pytest.raises(InputError, match=r"with edges the other way the scores are equal"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_a_directed_model_on_edges_that_count_both_ways_names_the_direction(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, _scores(module))
    source = {"npz": {"uri": (tmp_path / "graph.npz").as_uri(), "direction": "Undirected"}}

    with pytest.raises(InputError, match=r"equal to .*: set spec.graph.source.npz.direction to Directed"):
        _generate(tmp_path, MODELS["GraphSAGE"], graph={"source": source})


def test_other_directions_of_tables_are_fields_of_their_edges() -> None:
    tables = {"nodes": {"uri": "/n.csv", "id": "id", "label": "label"}, "edges": {"uri": "/e.csv"}}
    found = [*other_directions(GraphSource.model_validate({"csv": tables}))]

    assert [(one.field, one.stated) for one, _ in found] == [
        ("csv.edges.direction", "Directed"), ("csv.edges.direction", "Reversed"),
    ]  # fmt: skip
    assert [str(source.csv and source.csv.edges.direction) for _, source in found] == ["Directed", "Reversed"]


@pytest.mark.parametrize("stated", ["Disabled", "Standardize"])
def test_features_that_were_scaled_over_all_nodes_name_both_fields(tmp_path: Path, stated: str) -> None:
    module = Stack(_sage())
    rows = (FEATURES - FEATURES.mean(dim=0)) / FEATURES.std(dim=0, correction=0)
    _write(tmp_path, module, _scores(module, rows))
    arrays = npz_arrays(GRAPH)
    features = next(name for name, values in arrays.items() if values.shape == (NODES, COLUMNS))
    write_npz(tmp_path / "graph.npz", {**arrays, features: arrays[features] * 3 + 1})
    source = {"npz": {"uri": (tmp_path / "graph.npz").as_uri()}}

    with pytest.raises(InputError, match=r"over all nodes .*normalization to Standardize and .*scope to Transductive"):
        _generate(tmp_path, MODELS["GraphSAGE"], graph={"source": source, "normalization": stated})


def test_columns_in_another_order_are_named(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, _scores(module)[:, [2, 0, 1]])

    with pytest.raises(InputError, match=r"columns seem to be 2, 0, 1\. Write them in the order of .* \(0, 1, 2\)"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_rows_of_other_nodes_are_named(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, np.roll(_scores(module), 1, axis=0))

    with pytest.raises(InputError, match="rows of scores seem to belong to other nodes: that of node"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_data_of_edges_that_is_not_read_is_suspected(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, np.random.default_rng(0).normal(size=(NODES, CLASSES)))
    write_npz(tmp_path / "graph.npz", {**npz_arrays(GRAPH), "weight": np.ones(GRAPH.edges, np.float32)})

    with pytest.raises(InputError, match="may have used edge weights, and weight of the edges is not read"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_nodes_that_are_empty_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"nodes": [None, "a"], "scores": [[1.0, 0.0]] * 2}), tmp_path / "expected.parquet")
    expected = ExpectedScores.model_validate({"uri": str(tmp_path / "expected.parquet")})

    with pytest.raises(InputError, match="nodes: row 0 is empty"):
        read_scores(ListedScores("spec.model.expected", "spec.model", expected), ExpectedNodes(3, None, 2))


def test_logarithms_that_are_said_to_be_probabilities_are_told(tmp_path: Path) -> None:
    module = Stack(_sage(), end=lambda scores: scores.log_softmax(-1))
    _write(tmp_path, module, _scores(module))

    with pytest.raises(InputError, match=r"logarithms of probabilities \(log_softmax\): write their exp\(\)$"):
        _generate(tmp_path, MODELS["GraphSAGE"], {"scores": "Probabilities"})


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (lambda scores: scores.log_softmax(-1), "the file has logarithms of probabilities (log_softmax)"),
        (lambda scores: scores.softmax(-1), "set spec.model.expected.scores to Probabilities"),
    ],
)
def test_scores_in_another_form_are_named(tmp_path: Path, end: Callable[..., Any], said: str) -> None:
    module = Stack(_sage(), end=end)
    _write(tmp_path, module, _scores(module))

    with pytest.raises(InputError) as refused:
        _generate(tmp_path, MODELS["GraphSAGE"])

    assert said in str(refused.value)


def test_probabilities_are_compared_behind_a_softmax(tmp_path: Path) -> None:
    module = Stack(_sage(), end=lambda scores: scores.softmax(-1))
    _write(tmp_path, module, _scores(module))

    made = _generate(tmp_path, MODELS["GraphSAGE"], {"scores": "Probabilities"})

    assert made.compared[0].scores == "Probabilities"


def test_scores_of_nothing_that_is_known_say_what_to_check(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, np.random.default_rng(0).normal(size=(NODES, CLASSES)))

    with pytest.raises(InputError, match=r"none of \d+ other ways to compute the network gives them.*evaluation mode"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_a_tolerance_is_kept(tmp_path: Path) -> None:
    module = Stack(_sage())
    scores = _scores(module)
    _write(tmp_path, module, scores + 0.005 * np.abs(scores).max())

    with pytest.raises(InputError, match=r"differ by more than 1 permille of the largest"):
        _generate(tmp_path, MODELS["GraphSAGE"])
    assert (
        4.8 < _generate(tmp_path, MODELS["GraphSAGE"], {"tolerancePermille": 6}).compared[0].difference_permille < 5.1
    )


def test_another_file_of_scores_at_the_same_place_is_compared_anew(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, _scores(module))
    first = _generate(tmp_path, MODELS["GraphSAGE"])
    assert _generate(tmp_path, MODELS["GraphSAGE"]).revision == first.revision

    _write(tmp_path, module, _scores(module)[:9], np.arange(9))
    second = _generate(tmp_path, MODELS["GraphSAGE"])
    assert second.revision != first.revision
    assert second.recipe == first.recipe

    _write(tmp_path, module, _scores(module) + 1)
    with pytest.raises(InputError, match="differ by more than"):
        _generate(tmp_path, MODELS["GraphSAGE"])


def test_parquet_is_read_too(tmp_path: Path) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, _scores(module))
    table = pa.table({"nodes": np.arange(NODES), "scores": _scores(module).tolist()})
    pq.write_table(table, tmp_path / "expected.parquet")

    made = _generate(tmp_path, MODELS["GraphSAGE"], {"uri": (tmp_path / "expected.parquet").as_uri()})

    assert made.compared[0].nodes == NODES


@pytest.mark.parametrize(
    ("scores", "said"),
    [
        ([["a", "b"]], r"scores are list<.*: string>, expected lists of numbers"),
        ([0.5], "scores are double, expected lists of numbers"),
        ([[[1.0], [2.0]]], "expected lists of numbers"),
        ([None], "scores are null, expected lists of numbers"),
        ([[None, 1.0]], r"scores\[0\] has values that are not finite"),
    ],
)
def test_columns_that_are_no_scores_are_named(tmp_path: Path, scores: list[Any], said: str) -> None:
    pq.write_table(pa.table({"nodes": [0], "scores": scores}), tmp_path / "expected.parquet")
    expected = ExpectedScores.model_validate({"uri": str(tmp_path / "expected.parquet")})

    with pytest.raises(InputError, match=said):
        read_scores(ListedScores("spec.model.expected", "spec.model", expected), ExpectedNodes(3, None, 2))


def test_nodes_are_called_as_the_source_calls_them(tmp_path: Path) -> None:
    np.savez(tmp_path / "expected.npz", nodes=["c", "a"], scores=np.arange(4.0).reshape(2, 2))
    expected = ExpectedScores.model_validate({"uri": (tmp_path / "expected.npz").as_uri()})
    listed = ListedScores("spec.model.expected", "spec.model", expected)

    found = read_scores(listed, ExpectedNodes(3, string_ids(*lay_out(["a", "b", "c"])), 2))

    assert found.positions.tolist() == [2, 0]
    with pytest.raises(InputError, match=r"nodes are .*, expected integers, as the source's ids are"):
        read_scores(listed, ExpectedNodes(3, integer_ids(np.array([5, 6, 7])), 2))


def test_several_classes_of_a_node_are_compared_behind_a_sigmoid() -> None:
    expected = ExpectedScores.model_validate({"uri": "file:///e.npz", "scores": "Probabilities"})
    given = GivenScores(np.arange(2), [0, 1], np.array([[0.5, 0.75], [0.25, 0.5]]))
    several = ScoreComparison(ListedScores("f", "spec.model", expected), given, (0, 1), multi_label=True)

    assert several.differences(np.log([[1, 3], [1 / 3, 1]])).max() < 1e-9


def test_scores_that_are_no_numbers_equal_none() -> None:
    given = GivenScores(np.arange(2), [0, 1], np.array([[0.5, 0.75], [0.25, 0.5]]))
    expected = ExpectedScores.model_validate({"uri": "file:///e.npz", "scores": "Logits"})
    comparison = ScoreComparison(ListedScores("f", "spec.model", expected), given, (0, 1), multi_label=False)
    computed = np.array([[0.5, 0.75], [np.nan, 0.5]])

    differences = comparison.differences(computed)
    assert differences.max() > expected.tolerance_permille
    refused = str(comparison.refuse(computed, differences, (), comparison.worst_rows(differences)))
    assert "scores of 1 of 2 nodes differ" in refused
    assert "node 1, class 0: expected 0.25, computed nan" in refused


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"nodes": np.arange(3)}, "has no array scores; it has nodes"),
        ({"nodes": np.arange(3), "scores": np.zeros((3, 2))}, "scores are float64 [3, 2], expected floats [nodes, 3]"),
        ({"nodes": np.arange(2), "scores": np.zeros((3, 3))}, "nodes are [2], and scores [3, 3]"),
        ({"nodes": np.array([0, 1, NODES]), "scores": np.zeros((3, 3))}, "nodes has 60, which is no node of the graph"),
        ({"nodes": np.array([0, 1, 1]), "scores": np.zeros((3, 3))}, "nodes has 1 more than once"),
        ({"nodes": np.array(["a", "b", "c"]), "scores": np.zeros((3, 3))}, "expected positions of nodes from 0"),
        ({"nodes": np.arange(3), "scores": np.full((3, 3), np.nan)}, "scores[0] has values that are not finite"),
    ],
)
def test_what_does_not_fit_the_graph_is_named(tmp_path: Path, arrays: dict[str, Any], said: str) -> None:
    module = Stack(_sage())
    _write(tmp_path, module, _scores(module))
    np.savez(tmp_path / "expected.npz", **arrays)

    with pytest.raises(InputError) as refused:
        _generate(tmp_path, MODELS["GraphSAGE"])

    assert str(refused.value).startswith("spec.model.expected.uri: ")
    assert said in str(refused.value)


def test_given_variants_have_expected_scores_of_their_own(tmp_path: Path) -> None:
    module, columns = Stack(_sage()), [5, 4, 3, 2, 1, 0]
    _write(tmp_path, module, _scores(module, FEATURES[:, columns]))
    given = {
        "checkpoint": {"uri": (tmp_path / "model.safetensors").as_uri()}, "columns": columns, "name": "own",
        "expected": {"uri": (tmp_path / "expected.npz").as_uri()},
    }  # fmt: skip
    variants = {"pruning": {"factors": []}, "projection": "Disabled", "given": [given]}
    model = {"hidden": HIDDEN, "fanouts": [3, 2]}
    service = service_of((tmp_path / "graph.npz").as_uri(), model=model, variants=variants)

    made = generate(service, Repository(tmp_path / "repository", "default", "tiny"))

    assert (made.compared[0].weights, made.compared[0].difference_permille < 0.01) == ("own", True)
    given["columns"] = columns[::-1]
    with pytest.raises(InputError, match=r"^spec.variants.given\[0\].expected: scores of"):
        generate(
            service_of((tmp_path / "graph.npz").as_uri(), model=model, variants=variants),
            Repository(tmp_path / "repository", "default", "tiny"),
        )


def test_expected_scores_need_a_checkpoint() -> None:
    with pytest.raises(ValueError, match="expected may be given with a checkpoint or a program only"):
        service_of("file:///data/graph.npz", model={"expected": {"uri": "file:///data/expected.npz"}})

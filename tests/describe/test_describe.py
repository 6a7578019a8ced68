"""A live module becomes a folder whose program gives its scores over samples of neighbours, or a sentence alone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import torch_geometric.nn as pyg
import yaml
from safetensors.numpy import load_file
from tests.support.graphs.graphs import table_of
from tests.support.programs.described import CLASSES, COLUMNS, GRAPH, NODES, TYPED_GRAPH, EdgeNet, Net, TypedNet
from tests.support.programs.programs import check_program_file
from torch_geometric.data import Data

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import one_type
from gnnserve_api.files.programs import InputRole, ProgramManifest, RelationKey, contract_problems
from gnnserve_api.manifest import load_manifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_describe import Description, Wishes, describe
from gnnserve_describe.graph_file import GRAPH as GRAPH_FILE
from gnnserve_describe.write import EXPECTED, LAYERS, LAYERS_MANIFEST, MANIFEST, PROGRAM, WEIGHTS
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.models.network import Activations
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.sampling.neighbours import Scratch, sample_neighbours

functional = torch.nn.functional


def gcn(cached: bool = False) -> Net:
    return Net(lambda width, out: pyg.GCNConv(width, out, cached=cached))


def contract_of(made: Description) -> ProgramManifest:
    """The contract as the manifest has it."""
    spec = yaml.safe_load((made.folder / MANIFEST).read_text())["spec"]["model"]["program"]
    file = spec.pop("uri")
    return msgspec.convert({**spec, "file": file}, ProgramManifest)


# What is described


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Description:
    module = gcn(cached=True)
    module.eval()(GRAPH.x, GRAPH.edge_index)
    return describe(module.train(), GRAPH, tmp_path_factory.mktemp("gcn") / "described")


def test_the_folder_has_all_that_is_served(described: Description) -> None:
    files = {PROGRAM, EXPECTED, WEIGHTS, MANIFEST, GRAPH_FILE, LAYERS, LAYERS_MANIFEST}
    assert {each.name for each in described.folder.iterdir()} == files
    assert not [each for each in described.folder.parent.iterdir() if each != described.folder]
    # Another user, as a pod's, reads all of them or none.
    assert len({each.stat().st_mode for each in described.folder.iterdir()}) == 1
    assert contract_of(described) == described.program
    assert set(load_file(described.folder / WEIGHTS)) == set(gcn().state_dict())


def test_the_manifest_is_whole_and_its_graph_is_the_users(described: Description) -> None:
    spec = load_manifest(described.folder / MANIFEST).spec
    assert spec.model.program is not None
    graph = load_source(spec.graph.source, Path("unused"))
    target = graph.target
    assert (target.nodes, len(graph.classes)) == (NODES, CLASSES)
    np.testing.assert_array_equal(target.features, GRAPH.x)


def test_the_program_is_one_that_servers_take(described: Description) -> None:
    check_program_file(described.folder / PROGRAM, described.program)
    schema = one_type(NODES, GRAPH.edge_index.shape[1], COLUMNS)
    assert contract_problems(described.program, schema) == []


def test_expected_scores_are_of_hubs_of_isolated_nodes_and_of_others(described: Description) -> None:
    with np.load(described.folder / EXPECTED) as arrays:
        nodes, scores = arrays["nodes"], arrays["scores"]
    assert scores.shape == (len(nodes), CLASSES)
    degrees = np.bincount(GRAPH.edge_index[1], minlength=NODES)
    assert int(degrees.argmax()) in nodes
    assert set(np.flatnonzero(degrees == 0)) & set(nodes)
    wanted = gcn().eval()(GRAPH.x, GRAPH.edge_index).detach().numpy()
    np.testing.assert_allclose(scores, wanted[nodes], rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_a_worker_gives_the_expected_scores(described: Description) -> None:
    order = np.argsort(GRAPH.edge_index[1].numpy(), kind="stable")
    indices = GRAPH.edge_index[0].numpy()[order].astype(np.int32)
    counts = np.bincount(GRAPH.edge_index[1], minlength=NODES)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    program = described.program
    runner = ProgramRunner(described.folder / PROGRAM, 1)
    network = ProgramNetwork(program, one_type(NODES, len(indices), COLUMNS), runner, (COLUMNS,))
    with np.load(described.folder / EXPECTED) as arrays:
        nodes, wanted = arrays["nodes"], arrays["scores"]
    fanouts = (FULL_NEIGHBOURHOOD,) * program.sampled_hops
    sample = sample_neighbours(indptr, indices, nodes, fanouts, 0, Scratch(), share=True, names_leaves=True)
    scores = np.empty_like(wanted)
    gathered = network.gather(table_of(GRAPH.x.numpy()), sample, Activations())
    network.infer(gathered, sample, Activations(), scores)
    runner.close()
    np.testing.assert_allclose(scores, wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())


def test_what_was_changed_for_the_description_is_told(described: Description) -> None:
    told = " ".join(described.findings)
    assert "was in training mode" in told
    assert "cached=True" in told


def test_columns_of_edges_are_inputs(tmp_path: Path) -> None:
    made = describe(EdgeNet().eval(), GRAPH, tmp_path / "edges")
    roles = [(each.name, each.role) for each in made.program.inputs]
    assert roles == [
        ("x", InputRole.FEATURES), ("edge_index", InputRole.EDGES), ("edge_attr", InputRole.EDGE_FEATURES)
    ]  # fmt: skip
    assert made.check.difference < 1e-5
    assert (made.program.hops, made.program.reads_degrees) == (2, False)


def test_types_and_relations_have_inputs_by_their_names(tmp_path: Path) -> None:
    made = describe(TypedNet().eval(), TYPED_GRAPH, tmp_path / "typed")
    inputs = {each.name: each for each in made.program.inputs}
    assert inputs["x_author"].type == "author"
    assert inputs["edge_attr_author_writes_paper"].relation == RelationKey("author", "writes", "paper")
    assert inputs["edge_index_paper_cites_paper"].role is InputRole.EDGES
    assert (made.program.hops, made.program.scores.columns) == (2, CLASSES)
    assert made.check.difference < 1e-5


class OfData(torch.nn.Module):
    """A graph in, probabilities and embeddings out; `pos` is read too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = pyg.SAGEConv(COLUMNS + 2, 8), torch.nn.Linear(8, CLASSES)

    def forward(self, data: Data) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.first(torch.cat([data.x, data.pos], dim=1), data.edge_index).relu()
        return self.head(hidden).softmax(dim=-1), hidden


def test_a_graph_object_is_taken_apart_and_probabilities_are_given_as_logits(tmp_path: Path) -> None:
    graph = GRAPH.clone()
    graph.pos = torch.rand(NODES, 2)
    module = OfData().eval()
    made = describe(module, graph, tmp_path / "data")
    assert [each.name for each in made.program.inputs] == ["x", "edge_index"]
    assert "x has the columns of x (6), pos (2), in this order: so must the graph's" in made.findings
    assert made.program.embeddings is not None and made.program.embeddings.columns == 8
    with np.load(made.folder / EXPECTED) as arrays:
        nodes, scores = arrays["nodes"], torch.from_numpy(arrays["scores"])
    wanted = module(graph)[0].detach()[torch.from_numpy(nodes)]
    torch.testing.assert_close(scores.softmax(dim=-1), wanted)
    assert "ends in a softmax" in " ".join(made.findings)


def test_what_a_module_writes_into_its_inputs_is_gone(tmp_path: Path) -> None:
    class Writing(Net):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return super().forward(x.mul_(0.5), edge_index)

    before = GRAPH.x.clone()
    made = describe(Writing(pyg.SAGEConv).double().eval(), GRAPH, tmp_path / "writing")
    torch.testing.assert_close(GRAPH.x, before)
    assert made.check.difference < 1e-5
    assert "weights are torch.float64: it is described in torch.float32" in made.findings


def test_times_of_edges_are_integers(tmp_path: Path) -> None:
    class Ageing(Net):
        def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_time: torch.Tensor) -> torch.Tensor:
            recent = edge_index[:, edge_time > 500]
            return super().forward(x, recent)

    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, edge_time=torch.arange(GRAPH.num_edges) * 2, y=GRAPH.y)
    made = describe(Ageing(pyg.SAGEConv).eval(), graph, tmp_path / "times")
    assert [each.role for each in made.program.inputs][2:] == [InputRole.EDGE_TIMES]
    spec = load_manifest(made.folder / MANIFEST).spec
    assert load_source(spec.graph.source, Path("unused")).schema.has_payload


def test_one_logit_of_two_classes_becomes_two_columns(tmp_path: Path) -> None:
    class Single(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = pyg.SAGEConv(COLUMNS, 1)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return torch.sigmoid(self.first(x, edge_index)).squeeze(-1)

    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, y=GRAPH.y % 2)
    module = Single().eval()
    made = describe(module, graph, tmp_path / "single")
    assert made.program.scores.columns == 2
    with np.load(made.folder / EXPECTED) as arrays:
        nodes, scores = arrays["nodes"], torch.from_numpy(arrays["scores"])
    wanted = module(GRAPH.x, GRAPH.edge_index).detach()[torch.from_numpy(nodes)]
    torch.testing.assert_close(scores.softmax(dim=-1)[:, 1], wanted)


class KeepsHidden(Net):
    """Keeps a tensor of the training behind it."""

    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv)
        self.train()(GRAPH.x, GRAPH.edge_index)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> Any:
        if self.training:
            self.kept = [x * self.head.weight.sum()]
        return super().forward(x, edge_index)


class Relational(torch.nn.Module):
    """Types of edges choose the product."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.first = convolution(COLUMNS, CLASSES, 5)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
        return self.first(x, edge_index, edge_type)


class Masked(torch.nn.Module):
    """A layer for each kind of edges, which a mask picks."""

    def __init__(self, convolution: Any) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([convolution(COLUMNS, CLASSES) for _ in range(2)])

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
        rows = [layer(x, edge_index[:, edge_type == kind]) for kind, layer in enumerate(self.layers)]
        return torch.stack(rows).sum(dim=0)


class CountedByBincount(Net):
    def __init__(self, is_weighted: bool) -> None:
        super().__init__(pyg.SAGEConv)
        self.is_weighted = is_weighted

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, edge_attr: torch.Tensor) -> torch.Tensor:
        weights = edge_attr[:, 0].abs() if self.is_weighted else None
        counts = torch.bincount(edge_index[1], weights, minlength=x.size(0)).float()
        return super().forward(x, edge_index) + torch.log1p(counts).unsqueeze(1)


class OfTransformer(torch.nn.Module):
    """HGT, which reads a number back."""

    def __init__(self) -> None:
        super().__init__()
        self.first = pyg.HGTConv({"paper": 7, "author": 5}, 8, TYPED_GRAPH.metadata(), heads=2)
        self.head = torch.nn.Linear(8, CLASSES)

    def forward(self, x_dict: dict, edge_index_dict: dict) -> torch.Tensor:
        return self.head(self.first(x_dict, edge_index_dict)["paper"])


WITH_COLUMNS = Data(
    x=GRAPH.x, edge_index=GRAPH.edge_index, y=GRAPH.y,
    edge_attr=torch.linspace(-1, 1, 2 * GRAPH.num_edges).reshape(-1, 2),
)  # fmt: skip
SERVED = {
    "keeps a tensor of training": (KeepsHidden, GRAPH),
    "product by type of edge": (lambda: Relational(pyg.RGCNConv), GRAPH),
    "product by type of edge, fast": (lambda: Relational(pyg.FastRGCNConv), GRAPH),
    "means by masks": (lambda: Masked(pyg.SAGEConv), GRAPH),
    "attention by masks": (lambda: Masked(pyg.GATConv), GRAPH),
    "counts edges": (lambda: CountedByBincount(False), WITH_COLUMNS),
    "counts edges by weights": (lambda: CountedByBincount(True), WITH_COLUMNS),
    "attention over types": (OfTransformer, TYPED_GRAPH),
}


@pytest.mark.campaign
@pytest.mark.parametrize("form", SERVED)
def test_modules_of_forms_that_are_hard_to_export_are_described(form: str, tmp_path: Path) -> None:
    make, graph = SERVED[form]
    torch.manual_seed(6)
    module = make()
    made = describe(module, graph, tmp_path / "described")
    assert made.check.difference <= 1e-5
    roles = {each.role for each in made.program.inputs}
    assert roles <= {InputRole.FEATURES, InputRole.EDGES, InputRole.EDGE_FEATURES}
    assert not isinstance(module, KeepsHidden) or module.kept[0].requires_grad, "the user's module stays as it is"


# What is refused


class Dropping(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return functional.dropout(super().forward(x, edge_index))


class Training(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(
            super().forward(x, edge_index), self.norm.running_mean[:4], self.norm.running_var[:4], training=True
        )


class Looping(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        rows = []
        for row in range(x.size(0)):
            rows.append(x[row] * 2)
        return super().forward(torch.stack(rows), edge_index)


class ReadingBack(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        widest = int(torch.bincount(edge_index[1]).max())
        return super().forward(x, edge_index) + torch.ones(widest).sum()


class FlatTable(Net):
    def __init__(self) -> None:
        super().__init__(pyg.SAGEConv)
        self.table = torch.nn.Parameter(torch.zeros(COLUMNS * NODES))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x + self.table.view(-1, COLUMNS), edge_index)


class Deciding(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x, edge_index)
        if x.size(0) > 10_000:
            return scores * 2
        return scores


class Counting(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        nodes = int(x.size(0))
        return super().forward(x, edge_index) + torch.tensor([0.0] * nodes).unsqueeze(1)


class Leaving(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.from_numpy(np.tanh(x.numpy())), edge_index)


class OfEdges(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        scores = super().forward(x, edge_index)
        return scores[edge_index[0]] + scores[edge_index[1]]


class OfGraph(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(x, edge_index).mean(dim=0, keepdim=True)


@torch.library.custom_op("gnnserve_tests::twice", mutates_args=())
def twice(rows: torch.Tensor) -> torch.Tensor:
    return rows * 2


@twice.register_fake
def _(rows: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(rows)


class OwnOperator(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return super().forward(twice(x), edge_index)


class Lonely(Net):
    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weather: torch.Tensor) -> torch.Tensor:
        return super().forward(x, edge_index)


REFUSED = {
    "random": (lambda: Dropping(pyg.SAGEConv), ["random numbers", "test_describe.py", "functional.dropout(super()"]),
    "trains": (lambda: Training(pyg.SAGEConv), ["norm.running_mean", "still trains"]),
    "loops": (lambda: Looping(pyg.SAGEConv), ["rows.append(x[row] * 2)", "loop over data", "scatter"]),
    "reads back": (lambda: ReadingBack(pyg.SAGEConv), ["test_describe.py", "number back", ".item()"]),
    "decides by sizes": (
        lambda: Deciding(pyg.SAGEConv), ["if x.size(0) > 10_000", "computes otherwise for graphs of another size"]
    ),
    "fixes a size": (
        lambda: Counting(pyg.SAGEConv), ["nodes = int(x.size(0))", "a number of nodes or edges is fixed"]
    ),
    "leaves torch": (lambda: Leaving(pyg.SAGEConv), ["np.tanh", "it leaves torch", "operations of torch"]),
    "was not called": (lambda: Net(lambda _, out: pyg.SAGEConv(-1, out)), ["has no width yet", "call it once"]),
    "graph norm": (
        lambda: Net(pyg.SAGEConv, pyg.LayerNorm(8)), ["norm (torch_geometric's LayerNorm", "mode='node'"]
    ),
    "rows behind each other": (FlatTable, ["runs over its own graph alone", "as features"]),
    "scores edges": (lambda: OfEdges(pyg.SAGEConv), ["it scores edges", "not served yet"]),
    "scores graphs": (lambda: OfGraph(pyg.SAGEConv), ["the graph as a whole", "before the pooling"]),
    "own operator": (
        lambda: OwnOperator(pyg.SAGEConv), ["no translation of gnnserve_tests.twice", "operations of torch"]
    ),
    "unknown argument": (lambda: Lonely(pyg.SAGEConv), ["forward: it takes 'weather'", "--inputs"]),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_served_is_told_with_the_next_step_and_leaves_nothing(case: str, tmp_path: Path) -> None:
    make, words = REFUSED[case]
    graph = Data(x=GRAPH.x, edge_index=GRAPH.edge_index, y=GRAPH.y)
    with pytest.raises(InputError) as refused:
        describe(make(), graph, tmp_path / "refused")
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_too_few_hops_are_refused_with_those_that_are_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--hops: 1 is given, and nodes 2 hops away change scores; say 2"):
        describe(Net(pyg.SAGEConv).eval(), GRAPH, tmp_path / "few", Wishes(hops=1))


def test_a_folder_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        describe(Net(pyg.SAGEConv), GRAPH, tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_no_edges_that_forward_could_read_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no edge_index"):
        describe(Net(pyg.SAGEConv), SimpleDict(x=GRAPH.x), tmp_path / "none")


class SimpleDict(SimpleNamespace):
    def __iter__(self) -> Any:
        return iter(vars(self).items())

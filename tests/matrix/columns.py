"""What a column of docs/capabilities.md needs so that its manifests can be run as they are: the files that they name,
in one folder, and what makes them quick.

No node has more than five neighbours by a relation, with what is brought, as few as any manifest of the page samples:
all are read, and variants that compute the same network over fewer neighbours, or ahead of time, answer alike.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from tests.support.graphs.graphs import npz_arrays, random_splits, write_npz
from tests.support.graphs.several_types import TypedParts, load_types, typed_source, write_folder
from tests.support.models.hetero_pyg import HIDDEN, HeteroModel
from tests.support.models.pyg import edges_of_graph, module_of, to_tensors
from tests.support.programs.programs import export_over_graph

from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.generated.capabilities import SETUPS, Setup, merged
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.layers import layers_manifest
from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.layer_modules import LayersModule, canonical
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.layers.shapes import columns_of

NODES, COLUMNS, CLASSES, ROWS = 60, 8, 2, 64
"""Two classes, which thresholds tell apart, and rows of programs as wide as the page has them."""
_SHOP_NODES = 40
MOST_NEIGHBOURS = 5
_DECODER = "decoder.safetensors"
_HIDDEN = {"conv": "GraphSAGE", "width": HIDDEN, "norm": "Batch", "activation": "Elu"}
"""A convolution with a norm and ELU behind it, as no architecture has them."""
_READS_EDGES = {"conv": "GATv2", "edgeColumns": ["0", "1"]}
_BESIDE_SCORED = [
    {"relation": dict(zip(("source", "name", "target"), key, strict=True)), **conv}
    for key, conv in (
        (("user", "buys", "item"), {"conv": "GraphSAGE"}),
        (("item", "rev_buys", "user"), {"conv": "GraphSAGE"}),
        (("item", "has", "tag"), _READS_EDGES),
        (("tag", "rev_has", "item"), _READS_EDGES),
        (("user", "knows", "user"), _READS_EDGES),
    )
]
"""Convolutions of the shop where links are scored: what these have beside their ends is not learnt from."""
_LAYERS = [_HIDDEN, _READS_EDGES]
_LAYERS_OF_LINKS = [_HIDDEN, {"conv": "GraphSAGE"}]
_LAYERS_OF_TYPED_LINKS = [_HIDDEN, {"relations": _BESIDE_SCORED}]
_LAYERED = {"graph": {"normalization": "Disabled"}, "model": {"hidden": HIDDEN, "training": {"epochs": 2}}}


@dataclass(frozen=True)
class Column:
    setup: Setup
    write: Callable[[Path], object]
    """Write the files that manifests of the column name."""
    parts: Mapping[str, Any]
    """Fields that the page's manifests leave to be chosen, and that make a generation short."""
    asks_pairs: bool = False
    named_types: tuple[str, str] = ("", "")
    """Types of the nodes that are asked about: of the first, and of the second one of pairs. Empty: ids have none."""

    def completed(self, *features: Mapping[str, Any]) -> dict[str, Any]:
        """The spec of the page's manifest that asks for these, with what it leaves to be chosen, and so do variants
        that are given. Where a perceptron scores pairs, weights that are given name its file."""
        spec = merged(self.setup.spec, self.parts, *features)
        has_perceptron = spec.get("task", {}).get("links", {}).get("decoder") == "MLP"
        of_pairs = {"checkpoint": {"decoder": {"uri": _DECODER}}} if has_perceptron else {}
        if "checkpoint" in spec["model"]:
            spec = merged(spec, {"model": of_pairs})
        of_given = {"program": self.parts["model"]["program"]} if "program" in spec["model"] else of_pairs
        given = [merged(one, of_given) for one in spec.get("variants", {}).get("given", ())]
        return merged(spec, {"variants": {"given": given}}) if given else spec

    @property
    def scored(self) -> str:
        """The relation whose links are scored."""
        relation: str = self.parts.get("task", {}).get("links", {}).get("relation", "")
        return relation

    @property
    def first(self) -> int | str:
        return self._id(0, 7)

    @property
    def new(self) -> int | str:
        """Id that no node of the graph has."""
        return self._id(0, 1000)

    @property
    def newer(self) -> int | str:
        """Another one."""
        return self._id(0, 1001)

    @property
    def other(self) -> int | str:
        """A node to ask about beside the first one, which it is not joined to."""
        return self._id(1, 20)

    @property
    def between(self) -> int | str:
        """A node that an edge more is given to."""
        return self._id(1, 30)

    def _id(self, end: int, node: int) -> int | str:
        return f"{self.named_types[end]}/{node}" if self.named_types[end] else node

    def with_payload(self, edges: Sequence[Sequence[Any]], having: Collection[str]) -> dict[str, list[Any]]:
        """Edges as changes and overlays bring them, with the features and times that they have in the column's files.
        `having`: relations whose edges have some in the revision that is asked, "" in a graph of one type. Edges of a
        new node are like those of the first one."""
        if not having:
            return {"edges": [*edges]}
        rows: list[Any] = []
        times: list[Any] = []
        for edge in edges:
            has_some = (edge[1] if len(edge) == 3 else "") in having
            kinds = {str(end).rpartition("/")[0] for end in (edge[0], edge[-1])}
            ends = np.array([self._stored(end) for end in (edge[0], edge[-1])])
            given = _edge_columns(*ends[:, None], is_both_ways=len(kinds) == 1)
            rows.append(given["edge_attr"][0].tolist() if has_some else None)
            times.append(given["edge_time"][0].tolist() if has_some else None)
        return {"edges": [*edges], "edgeFeatures": rows, "edgeTimes": times}

    def _stored(self, id_: int | str) -> int:
        """Number of the stored node that it is, or that it is like."""
        like = self.first if id_ in {self.new, self.newer} else id_
        return int(str(like).rpartition("/")[2])

    @property
    def features_of_first(self) -> list[float]:
        rows = _shop().nodes["user"]["features"] if self.named_types[0] else np.asarray(_one_type().features)
        listed: list[float] = rows[7].tolist()
        return listed


def _one_type() -> GraphData:
    """A ring with chords: each node is joined to those beside it and to the one across."""
    across = np.arange(NODES)[:, None] + np.array([-1, 1, NODES // 2])
    lists = Graph(np.arange(NODES + 1, dtype=np.int64) * 3, np.sort(across % NODES, axis=1).astype(np.int32).ravel())
    labels = np.arange(NODES) * CLASSES // NODES
    features = np.random.default_rng(0).normal(size=(NODES, COLUMNS)).astype(np.float32)
    features[np.arange(NODES), labels] += 3
    return GraphData.of_one_type(
        "made up", "made up", lists, features, labels.astype(np.int64), tuple(range(CLASSES)), random_splits(NODES, 0),
        EdgeRules(Direction.UNDIRECTED),
    )  # fmt: skip


def _shop() -> TypedParts:
    """Users buy items and know each other, items have tags."""
    draw, every = np.random.default_rng(1), np.arange(_SHOP_NODES)
    labels = every * CLASSES // _SHOP_NODES

    def ends(*steps: int) -> dict[str, np.ndarray]:
        targets = (every[:, None] + np.array(steps)) % _SHOP_NODES
        return {"src": np.repeat(every, len(steps)).astype(np.int32), "dst": targets.astype(np.int32).ravel()}

    users = {
        "features": (draw.normal(size=(_SHOP_NODES, 6)) + 2 * labels[:, None]).astype(np.float32),
        "labels": labels.astype(np.int64),
        **{f"{name}_mask": every % 3 == place for place, name in enumerate(("train", "val", "test"))},
    }
    others = {
        name: {"features": draw.normal(size=(_SHOP_NODES, columns)).astype(np.float32)}
        for name, columns in (("item", 5), ("tag", 4))
    }
    nodes = {name: {"num_nodes": np.array(_SHOP_NODES), **arrays} for name, arrays in {"user": users, **others}.items()}
    edges = {
        ("user", "buys", "item"): ends(0, 1, 5), ("item", "has", "tag"): ends(0), ("user", "knows", "user"): ends(1),
    }  # fmt: skip
    return TypedParts(nodes, edges)


def _edge_columns(sources: np.ndarray, targets: np.ndarray, *, is_both_ways: bool) -> dict[str, np.ndarray]:
    """Two features and a time of each edge, which follow from its ends. `is_both_ways`: whether [a, b] and [b, a] are
    one edge."""
    first, second = (np.sort([sources, targets], axis=0)) if is_both_ways else (sources, targets)
    features = np.stack([(3 * first + 5 * second) % 7, (5 * first + 2 * second) % 11], axis=1) / 8
    return {"edge_attr": features.astype(np.float32), "edge_time": first + 100 * second}


def _write_one_type(folder: Path, outputs: int = CLASSES, *, has_edge_columns: bool = False) -> None:
    data = _one_type()
    ends = data.graph.indices.astype(np.int64), np.repeat(np.arange(NODES), np.diff(data.graph.indptr))
    of_edges = _edge_columns(*ends, is_both_ways=True) if has_edge_columns else {}
    write_npz(folder / "graph.npz", {**npz_arrays(data), **of_edges})
    module = module_of("GraphSAGE", (10, 10), COLUMNS, hidden=HIDDEN, classes=outputs)
    save_file(to_tensors(module), folder / "weights.safetensors")
    _write_decoder(folder, outputs)


def _write_shop(folder: Path) -> None:
    source = write_folder(folder / "shop", _shop())
    data = load_types(typed_source(source))
    torch.manual_seed(3)
    model = HeteroModel(data)
    with torch.no_grad():
        model(data)
    tensors = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "weights.safetensors")
    _write_decoder(folder, CLASSES)


def _write_decoder(folder: Path, dimensions: int) -> None:
    """A perceptron over two rows of so many columns."""
    torch.manual_seed(7)
    module = torch.nn.Sequential(torch.nn.Linear(2 * dimensions, HIDDEN), torch.nn.ReLU(), torch.nn.Linear(HIDDEN, 1))
    save_file(to_tensors(module), folder / _DECODER)


def _write_listed(folder: Path) -> None:
    _write_one_type(folder, has_edge_columns=True)
    source = GraphSource.model_validate({"npz": {"uri": (folder / "graph.npz").as_uri(), **_READ}})
    _write_weights_of_layers(folder, load_source(source, Path("unused")), CLASSES, _LAYERS)


def _write_listed_links(folder: Path) -> None:
    _write_one_type(folder, HIDDEN)
    _write_weights_of_layers(folder, _one_type(), HIDDEN, _LAYERS_OF_LINKS)


def _write_listed_shop(folder: Path, *, learns_labels: bool) -> None:
    """`learns_labels`: the type that has labels comes first then."""
    parts = _shop()
    for (source, _, target), arrays in parts.edges.items():
        ends = arrays["src"].astype(np.int64), arrays["dst"].astype(np.int64)
        arrays.update(_edge_columns(*ends, is_both_ways=source == target))
    named = write_folder(folder / "shop", parts)
    source = GraphSource(typed=typed_source({"npz": {**named["npz"], **_READ}}))
    data = load_source(source, Path("unused"), learns_labels=learns_labels)
    layers = _LAYERS if learns_labels else _LAYERS_OF_TYPED_LINKS
    _write_weights_of_layers(folder, data, CLASSES, layers)
    _write_decoder(folder, CLASSES)


def _write_weights_of_layers(folder: Path, data: GraphData, outputs: int, listed: list[Any]) -> None:
    model, columns = Model.model_validate({"layers": listed}), columns_of(data.schema)
    layers = layers_manifest(
        data.schema, columns[0], outputs, (), model.layers or (), model.jumping_knowledge, (), head_reads_input=False
    )
    torch.manual_seed(6)
    save_file(canonical(LayersModule(layers, data.schema, columns)), folder / "weights.safetensors")


class _Encoder(torch.nn.Module):
    """A program as people bring it, with a norm that no layer of ours has: classes, and rows that they are made of."""

    def __init__(self) -> None:
        super().__init__()
        import torch_geometric.nn as pyg

        torch.manual_seed(5)
        self.first, self.second = pyg.SAGEConv(COLUMNS, HIDDEN), pyg.SAGEConv(HIDDEN, ROWS)
        self.norm, self.head = torch.nn.BatchNorm1d(HIDDEN), torch.nn.Linear(ROWS, CLASSES)

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = self.second(torch.nn.functional.elu(self.norm(self.first(x, edge_index))), edge_index)
        return self.head(rows), rows


def _write_program(folder: Path, *, expects_rows: bool) -> None:
    _write_one_type(folder)
    module, data = _Encoder().eval(), _one_type()
    export_over_graph(module, COLUMNS, folder / "model.onnx", ("logits", "rows"))
    with torch.no_grad():
        scores, rows = module(torch.from_numpy(np.asarray(data.features)), edges_of_graph(data.graph))
    expected = rows if expects_rows else scores
    np.savez(folder / "expected.npz", nodes=np.arange(NODES), scores=expected.numpy())


_LINKS = {"task": {"links": {"dimensions": HIDDEN}}}
# As wide as what torch_geometric's model ends in.
_BUYS = {"task": {"links": {"dimensions": CLASSES, "relation": "buys"}}}
_BRIEF = {"model": {"training": {"epochs": 2, "batchSize": 32}}}
_PROGRAM = {"model": {"program": {"scores": {"columns": CLASSES}}, "training": {"epochs": 2}}}
_READ = {"edgeColumns": "Read"}


def _listed(layers: list[Any], *parts: Mapping[str, Any]) -> Mapping[str, Any]:
    model = {"layers": layers, "training": {"epochs": 2}}
    return merged({"graph": {"normalization": "Disabled"}, "model": model}, *parts)


_READ_ONE_TYPE = {"graph": {"source": {"npz": _READ}}}
_READ_TYPES = {"graph": {"source": {"typed": {"npz": _READ}}}}
_USERS_AND_ITEMS = ("user", "item")
_FILES: Mapping[str, tuple[Callable[[Path], object], Mapping[str, Any], tuple[str, str]]] = {
    "classes, one type": (_write_one_type, _LAYERED, ("", "")),
    "classes, several types": (_write_shop, _LAYERED, ("user", "user")),
    "links, one type": (partial(_write_one_type, outputs=HIDDEN), merged(_LAYERED, _LINKS), ("", "")),
    "links, several types": (_write_shop, merged(_LAYERED, _BUYS), _USERS_AND_ITEMS),
    "links by LightGCN": (_write_shop, merged(_BUYS, _BRIEF), _USERS_AND_ITEMS),
    "classes by a program": (partial(_write_program, expects_rows=False), _PROGRAM, ("", "")),
    "links by a program": (partial(_write_program, expects_rows=True), _PROGRAM, ("", "")),
    "classes by listed layers": (_write_listed, _listed(_LAYERS, _READ_ONE_TYPE), ("", "")),
    "classes by listed layers, several types": (
        partial(_write_listed_shop, learns_labels=True),
        _listed(_LAYERS, _READ_TYPES),
        ("user", "user"),
    ),
    "links by listed layers": (_write_listed_links, _listed(_LAYERS_OF_LINKS, _LINKS), ("", "")),
    "links by listed layers, several types": (
        partial(_write_listed_shop, learns_labels=False),
        _listed(_LAYERS_OF_TYPED_LINKS, _READ_TYPES, _BUYS),
        _USERS_AND_ITEMS,
    ),
}
"""Files, fields and types of each column. One that the page gets is described here, too."""

COLUMNS_OF_PAGE: Mapping[str, Column] = {
    setup.name: Column(setup, write, parts, "task" in setup.spec, types)
    for setup in SETUPS
    for write, parts, types in [_FILES[setup.name]]
}

"""Contents of a graph of the user's: a `Data` or `HeteroData` of torch_geometric, or a mapping of tensors.

Nothing here imports torch_geometric: its objects are told by what they have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.graph import Blocks

FEATURE_NAMES = ("x", "feat", "feats", "features", "node_feat", "node_features", "inputs", "in_feat", "h", "n_feat")
EDGE_NAMES = ("edge_index", "edges", "edge_list", "adj_t", "adj", "adjacency", "A", "edge", "ei")
MATRIX_NAMES = ("adj_t", "adj", "adjacency", "A")
"""Names of edges that are a matrix, mostly."""
PAYLOAD_NAMES = ("edge_attr", "edge_weight", "edge_feat", "edge_features", "edge_type", "edge_time", "weight", "e_feat")
TIME_NAMES = ("edge_time", "time", "timestamp", "t")
GRAPH_NAMES = ("data", "batch", "graph", "g", "hetero_data", "batch_data")
COUNT_NAMES = ("num_nodes", "n_nodes", "size", "N")
LABEL_NAMES = ("y", "labels", "label")
_WHERE = "--graph"


@dataclass(frozen=True, slots=True, eq=False)
class GivenGraph:
    """Contents of the user's object."""

    nodes: Mapping[str, Blocks]
    edges: Mapping[RelationKey, torch.Tensor]
    payload: Mapping[RelationKey, Blocks]
    labels: Mapping[str, torch.Tensor]
    counts: Mapping[str, int]
    masks: Mapping[str, Blocks] = field(default_factory=dict)
    """Masks of nodes, by type."""


def _edges_in(items: Mapping[str, Any], holder: str, remedy: str) -> torch.Tensor:
    """InputError: there are none."""
    found = next((edge_list(items[name]) for name in EDGE_NAMES if name in items), None)
    if found is None:
        raise InputError(_WHERE, f"{holder} has no edge_index (it has {listed(items)})", remedy)
    return found


def graph_of_data(data: Any) -> GivenGraph:
    items = dict(_items(data))
    remedy = "give a torch_geometric Data or HeteroData, or a tuple of the arguments of forward"
    edges = _edges_in(items, f"a {type(data).__name__}", remedy)
    count = _node_count(items, edges)
    nodes, payload = {}, {}
    for name, value in items.items():
        if not torch.is_tensor(value) or name in EDGE_NAMES or value.is_sparse or value.dim() not in (1, 2):
            continue
        is_of_edges = len(value) == edges.shape[1] and (len(value) != count or names_edges(name))
        if is_of_edges:
            payload[name] = plain(value)
        elif len(value) == count:
            nodes[name] = plain(value)
    labels = _labels("", nodes)
    features = {name: block for name, block in nodes.items() if _may_be_read(name)}
    key = RelationKey()
    return GivenGraph({"": features}, {key: edges}, {key: payload}, labels, {"": count}, {"": _masks(nodes)})


def graph_of_dgl(given: Any) -> GivenGraph:
    """A graph of DGL's, of one type of nodes and of edges."""
    if len(given.ntypes) > 1 or len(given.etypes) > 1:
        raise InputError(
            _WHERE, f"a graph of DGL with the types {listed(given.ntypes)}", "graphs of DGL are read where they have "
            "one type: dgl.to_homogeneous makes one (with edata['_TYPE']); or describe the model over "
            "torch_geometric's HeteroData",
        )  # fmt: skip
    sources, targets = given.edges()
    key = RelationKey()
    nodes = {name: plain(value) for name, value in given.ndata.items() if value.dim() in (1, 2)}
    payload = {name: plain(value) for name, value in given.edata.items() if value.dim() in (1, 2)}
    edges = torch.stack([sources, targets]).cpu().long()
    features = {name: block for name, block in nodes.items() if _may_be_read(name)}
    labels, counts = _labels("", nodes), {"": int(given.num_nodes())}
    return GivenGraph({"": features}, {key: edges}, {key: payload}, labels, counts, {"": _masks(nodes)})


def graph_of_hetero(data: Any) -> GivenGraph:
    nodes: dict[str, Blocks] = {}
    labels: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    masks: dict[str, Blocks] = {}
    for kind in data.node_types:
        tensors = {
            name: plain(value)
            for name, value in data[kind].items()
            if torch.is_tensor(value) and value.dim() in (1, 2) and len(value) == data[kind].num_nodes
        }
        counts[kind] = int(data[kind].num_nodes)
        masks[kind] = _masks(tensors)
        labels |= _labels(kind, tensors)
        nodes[kind] = {name: block for name, block in tensors.items() if _may_be_read(name)}
    edges, payload = {}, {}
    for source, name, target in data.edge_types:
        key, store = RelationKey(source, name, target), data[source, name, target]
        items = dict(store.items())
        remedy = "give each relation its edges, or delete it from the graph"
        edges[key] = _edges_in(items, f"relation {source} {name} {target}", remedy)
        payload[key] = {
            each: plain(value)
            for each, value in items.items()
            if torch.is_tensor(value)
            and each not in EDGE_NAMES
            and value.dim() in (1, 2)
            and len(value) == edges[key].shape[1]
        }
    return GivenGraph(nodes, edges, payload, labels, counts, masks)


def _masks(nodes: Blocks) -> Blocks:
    return {name: block for name, block in nodes.items() if name.endswith("_mask") and block.dim() == 1}


def _labels(kind: str, tensors: Blocks) -> dict[str, torch.Tensor]:
    name = next((name for name in LABEL_NAMES if name in tensors), None)
    return {} if name is None else {kind: tensors[name]}


def _items(data: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(data, Mapping):
        return iter(data.items())
    # A `Data` iterates over its pairs.
    return iter(data)


def edge_list(value: Any) -> torch.Tensor:
    """int64 [2, edges] of an edge list, or of a sparse matrix whose rows read its columns (`adj_t`)."""
    if not torch.is_tensor(value):
        raise InputError(_WHERE, f"edges are a {type(value).__name__}", "give them as edge_index, int64 [2, edges]")
    if value.layout is not torch.strided:
        matrix = value.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
        if not bool((matrix.values() == 1).all()):
            raise InputError(
                _WHERE, "the sparse matrix of edges has other values than 1, which edge_index has no place for",
                "give edge_index and edge_weight (torch_geometric.utils.to_edge_index, then rows and columns swapped), "
                "and let forward take both",
            )  # fmt: skip
        rows, columns = matrix.indices()
        return torch.stack([columns, rows]).cpu()
    if value.dim() != 2 or value.shape[0] != 2 or value.is_floating_point():
        raise InputError(
            _WHERE, f"edges are {value.dtype} {list(value.shape)}", "give them as edge_index, int64 [2, edges]"
        )
    return value.detach().cpu().long().contiguous()


def _node_count(items: Mapping[str, Any], edges: torch.Tensor) -> int:
    for name in FEATURE_NAMES:
        if torch.is_tensor(items.get(name)):
            return len(items[name])
    if isinstance(items.get("num_nodes"), int):
        return int(items["num_nodes"])
    return int(edges.max()) + 1 if edges.numel() else 0


def names_edges(name: str) -> bool:
    return name in PAYLOAD_NAMES or name in TIME_NAMES or "edge" in name


def _may_be_read(name: str) -> bool:
    return name not in LABEL_NAMES and not name.endswith("_mask")


def plain(value: torch.Tensor) -> torch.Tensor:
    """On the processor; floating point numbers in float32, as servers have them and as the module is described."""
    found = value.detach().cpu().contiguous()
    return found.float() if found.is_floating_point() else found


def listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


def names_of(blocks: Mapping[Any, Blocks]) -> list[str]:
    return list(dict.fromkeys(name for each in blocks.values() for name in each))


def is_dense(value: torch.Tensor) -> bool:
    return value.layout is torch.strided


def is_edge_list(value: torch.Tensor) -> bool:
    if not is_dense(value):
        return True
    return value.dim() == 2 and value.shape[0] == 2 and not value.is_floating_point()

"""torch_geometric's examples over nodes of several types: their networks, written anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch_geometric.nn as pyg
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.model_table.entries import Entry, Made, Task
from benchmarks.model_table.graphs import CLASSES, COLUMNS, WIDTH, Key, SeveralTypes, over_types, several_types
from benchmarks.model_table.outcomes import Reason

FAMILY = "torch_geometric: several types"
_LINK = "https://github.com/pyg-team/pytorch_geometric/blob/master/examples/"

Rows = Mapping[str, Tensor]
Edges = Mapping[Key, Tensor]


@cache
def dblp() -> SeveralTypes:
    """hetero_conv_dblp.py gives conferences a constant as their feature."""
    types = {"author": COLUMNS, "paper": 8, "term": 5, "conference": 1}
    return several_types(types, [("author", "to", "paper"), ("paper", "to", "term"), ("paper", "in", "conference")])


@cache
def mag() -> SeveralTypes:
    return several_types(
        {"paper": COLUMNS, "author": COLUMNS, "institution": COLUMNS, "field": COLUMNS},
        [("author", "affiliated_with", "institution"), ("author", "writes", "paper"), ("paper", "cites", "paper"),
         ("paper", "has_topic", "field")],
    )  # fmt: skip


@cache
def movies() -> SeveralTypes:
    """Two relations between movies, as AddMetaPaths leaves them."""
    return several_types(
        {"movie": COLUMNS}, [("movie", "metapath_0", "movie"), ("movie", "metapath_1", "movie")], reverses=False
    )


@cache
def ratings() -> SeveralTypes:
    return several_types(
        {"user": WIDTH, "movie": COLUMNS}, [("user", "rates", "movie"), ("movie", "metapath_0", "movie")]
    )


@cache
def purchases() -> SeveralTypes:
    return several_types({"user": WIDTH, "item": WIDTH}, [("user", "to", "item"), ("item", "to", "item")])


class HeteroSage(nn.Module):
    """HeteroConv of SAGEConv over all relations, and a Linear for the type that is scored."""

    def __init__(self, edge_types: list[Key], target: str, act: Callable[[Tensor], Tensor], layers: int = 2) -> None:
        super().__init__()
        self.target, self.act = target, act
        self.convs = nn.ModuleList(
            [pyg.HeteroConv({key: pyg.SAGEConv((-1, -1), WIDTH) for key in edge_types}) for _ in range(layers)]
        )
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        for conv in self.convs:
            x_dict = {key: self.act(x) for key, x in conv(x_dict, edge_index_dict).items()}
        found: Tensor = self.lin(x_dict[self.target])
        return found


class Han(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.han_conv = pyg.HANConv(-1, WIDTH, heads=8, dropout=0.6, metadata=movies().metadata)
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        found: Tensor = self.lin(self.han_conv(x_dict, edge_index_dict)["movie"])
        return found


class Hgt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin_dict = nn.ModuleDict({kind: pyg.Linear(-1, WIDTH) for kind in dblp().x})
        self.convs = nn.ModuleList([pyg.HGTConv(WIDTH, WIDTH, dblp().metadata, 2)])
        self.lin = nn.Linear(WIDTH, CLASSES)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        x_dict = {kind: self.lin_dict[kind](x).relu_() for kind, x in x_dict.items()}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        found: Tensor = self.lin(x_dict["author"])
        return found


class PlainSage(nn.Module):
    """Module that examples give to to_hetero: SAGEConvs, and perhaps a Linear behind them."""

    def __init__(self, layers: int, columns: int | None, *, acts_last: bool) -> None:
        super().__init__()
        self.convs = nn.ModuleList([pyg.SAGEConv((-1, -1), WIDTH) for _ in range(layers)])
        self.lin = None if columns is None else pyg.Linear(-1, columns)
        self.acts_last = acts_last

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for place, conv in enumerate(self.convs):
            x = conv(x, edge_index)
            x = x.relu() if self.acts_last or place < len(self.convs) - 1 else x
        return x if self.lin is None else self.lin(x)


def to_hetero_of(module: nn.Module, graph: SeveralTypes) -> nn.Module:
    made: nn.Module = pyg.to_hetero(module, graph.metadata, aggr="sum")
    return made


def hetero_conv(graph: SeveralTypes, target: str, act: Callable[[Tensor], Tensor]) -> Made:
    return over_types(HeteroSage(graph.metadata[1], target, act), graph, target)


def to_hetero_mag() -> Made:
    return over_types(to_hetero_of(PlainSage(2, CLASSES, acts_last=True), mag()), mag(), "paper")


class MagLayer(nn.Module):
    def __init__(
        self, columns: int, width: int, node_types: list[str], edge_types: list[Key], *, is_last: bool
    ) -> None:
        super().__init__()
        self.conv = pyg.HeteroConv({key: pyg.SAGEConv(columns, width) for key in edge_types})
        self.dropout, self.is_last = nn.Dropout(0.5), is_last
        self.norm_dict = nn.ModuleDict() if is_last else nn.ModuleDict({
            kind: pyg.BatchNorm(width) for kind in node_types
        })  # fmt: skip

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Rows:
        x_dict = self.conv(x_dict, edge_index_dict)
        if self.is_last:
            return x_dict
        return {kind: self.norm_dict[kind](self.dropout(x.relu())) for kind, x in x_dict.items()}


class Mag240(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        types, keys = mag().metadata
        some = [
            [key for key in keys if key[0] == "paper"], [key for key in keys if key[0] != "institution"], keys,
        ]  # fmt: skip
        widths = [(COLUMNS, WIDTH), (WIDTH, WIDTH), (WIDTH, CLASSES)]
        self.convs = nn.ModuleList([
            MagLayer(*width, types, each, is_last=place == 2)
            for place, (width, each) in enumerate(zip(widths, some, strict=True))
        ])  # fmt: skip

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Rows:
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return x_dict


class BipartiteEncoder(nn.Module):
    """User encoder of bipartite_sage.py, bipartite_sage_unsup.py and taobao.py, beside that of items."""

    def __init__(self, item: str, between: Key, to_user: Key) -> None:
        super().__init__()
        self.item, self.between, self.to_user = item, between, to_user
        self.item1, self.item2 = pyg.SAGEConv(-1, WIDTH), pyg.SAGEConv(WIDTH, WIDTH)
        self.user1 = pyg.SAGEConv(-1, WIDTH)
        self.user2, self.user3 = pyg.SAGEConv((-1, -1), WIDTH), pyg.SAGEConv((-1, -1), WIDTH)
        self.item_lin, self.user_lin = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> dict[str, Tensor]:
        item, user, between = x_dict[self.item], x_dict["user"], edge_index_dict[self.between]
        to_user = edge_index_dict[self.to_user]
        read = self.user1(item, between).relu()
        user = self.user2((item, user), to_user).relu()
        user = self.user3((read, user), to_user).relu()
        item = self.item2(self.item1(item, between).relu(), between).relu()
        return {"user": self.user_lin(user), self.item: self.item_lin(item)}


def bipartite(graph: SeveralTypes, item: str, between: Key, to_user: Key) -> Made:
    return over_types(BipartiteEncoder(item, between, to_user), graph, "user")


class Dmgi(nn.Module):
    """Rows that dmgi_unsup.py has learnt, one for each movie (`model.Z`): its classifier reads these. Its own forward
    draws random numbers for the loss alone."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.Z = nn.Parameter(torch.randn(nodes, WIDTH))

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        del x_dict, edge_index_dict
        return self.Z


def dmgi() -> Made:
    return over_types(Dmgi(len(movies().x["movie"])), movies(), "movie")


class RdlSage(nn.Module):
    """rdl.py behind the encoders of columns: times by sines, HeteroConv, norms of each node, a head."""

    def __init__(self, graph: SeveralTypes) -> None:
        super().__init__()
        types, keys = graph.metadata
        self.times = nn.ModuleDict({kind: nn.Linear(WIDTH, COLUMNS) for kind in types})
        self.convs = nn.ModuleList([
            pyg.HeteroConv({key: pyg.SAGEConv((COLUMNS, COLUMNS), COLUMNS, aggr="sum") for key in keys}, aggr="sum")
            for _ in range(2)
        ])  # fmt: skip
        self.norms = nn.ModuleList(
            [nn.ModuleDict({kind: pyg.LayerNorm(COLUMNS, mode="node") for kind in types}) for _ in range(2)]
        )
        self.head = pyg.MLP([COLUMNS, 1], norm="batch_norm", plain_last=True)
        self.encoding = pyg.PositionalEncoding(WIDTH)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        # The last column is the time that has passed, in days.
        x_dict = {kind: x[:, :COLUMNS] + self.times[kind](self.encoding(x[:, COLUMNS])) for kind, x in x_dict.items()}
        for conv, norms in zip(self.convs, self.norms, strict=True):
            x_dict = {kind: norms[kind](x).relu() for kind, x in conv(x_dict, edge_index_dict).items()}  # type: ignore[index]
        found: Tensor = self.head(x_dict["driver"])
        return found


def rdl() -> Made:
    graph = several_types({"driver": COLUMNS + 1, "race": COLUMNS + 1}, [("driver", "f2p_race", "race")])
    return over_types(RdlSage(graph), graph, "driver")


class Signed(nn.Module):
    """signed_gcn.py: positive and negative edges are two relations of one type."""

    def __init__(self) -> None:
        super().__init__()
        self.model = pyg.SignedGCN(COLUMNS, WIDTH, num_layers=2, lamb=5)

    def forward(self, x_dict: Rows, edge_index_dict: Edges) -> Tensor:
        positive, negative = edge_index_dict.values()
        found: Tensor = self.model(x_dict["movie"], positive, negative)
        return found


class EdgeDecoder(nn.Module):
    """Linear, ReLU, Linear over the rows of a user and of the other type, by dictionaries or one by one."""

    def __init__(self, other: str | None = None) -> None:
        super().__init__()
        self.other = other
        self.lin1, self.lin2 = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, *given: Any) -> Tensor:
        *rows, (row, col) = given
        users, others = rows if self.other is None else (rows[0]["user"], rows[0][self.other])
        found: Tensor = self.lin2(self.lin1(torch.cat([users[row], others[col]], dim=-1)).relu()).view(-1)
        return found


class InnerProduct(nn.Module):
    def forward(self, x_dict: Rows, edge_label_index: Tensor) -> Tensor:
        return (x_dict["user"][edge_label_index[0]] * x_dict["movie"][edge_label_index[1]]).sum(dim=-1)


def _entry(name: str, make: Callable[[], Made], task: Task = Task.CLASSES, *reasons: Reason, note: str = "") -> Entry:
    return Entry(name, FAMILY, f"{_LINK}{name.partition(':')[0]}", task, make, reasons, note)


def _links(
    name: str, make: Callable[[], Made], decoder: Callable[[], nn.Module], relation: str, note: str = ""
) -> Entry:
    return _entry(name, lambda: replace(make(), decoder=decoder(), relation=relation), Task.LINKS, note=note)


def _encoder(layers: int) -> Callable[[], Made]:
    return lambda: over_types(to_hetero_of(PlainSage(layers, None, acts_last=False), ratings()), ratings(), "user")


def _purchases() -> Made:
    return bipartite(purchases(), "item", ("item", "to", "item"), ("item", "rev_to", "user"))


_FEATURES = "embeddings of nodes are given as features"
_METAPATH = ("movie", "metapath_0", "movie")
ENTRIES = (
    _entry("hetero/hetero_conv_dblp.py", lambda: hetero_conv(dblp(), "author", functional.leaky_relu)),
    _entry("hetero/han_imdb.py", lambda: over_types(Han(), movies(), "movie"), Task.CLASSES, Reason.WHOLE_GRAPH),
    _entry("hetero/hgt_dblp.py", lambda: over_types(Hgt(), dblp(), "author")),
    _entry("hetero/hierarchical_sage.py", lambda: hetero_conv(mag(), "paper", torch.relu),
           note="without trim_to_layer, which computes the same scores"),
    _entry("hetero/to_hetero_mag.py", to_hetero_mag),
    _entry("pytorch_lightning/relational_gnn.py", lambda: over_types(
        to_hetero_of(PlainSage(2, CLASSES, acts_last=True), mag()), mag(), "paper")),
    _entry("multi_gpu/mag240m_graphsage.py", lambda: over_types(Mag240(), mag(), "paper")),
    _entry("hetero/dmgi_unsup.py", dmgi, Task.ROWS, note="the rows that it has learnt, as the example reads them"),
    _entry("relbench_example.py", lambda: over_types(
        to_hetero_of(PlainSage(2, 1, acts_last=True), mag()), mag(), "paper"), Task.REGRESSION),
    _entry("rdl.py", rdl, Task.REGRESSION, note="torch_frame's encoders of columns before it are left out"),
    _links("hetero/hetero_link_pred.py", _encoder(2), lambda: EdgeDecoder("movie"), "rates"),
    _links("hetero/temporal_link_pred.py", _encoder(2), lambda: EdgeDecoder("movie"), "rates"),
    _links("hetero/recommender_system.py", _encoder(3), InnerProduct, "rates"),
    _links("hetero/bipartite_sage.py", lambda: bipartite(ratings(), "movie", _METAPATH, ("movie", "rev_rates", "user")),
           EdgeDecoder, "rates", _FEATURES),
    _links("hetero/bipartite_sage_unsup.py", _purchases, EdgeDecoder, "user to item", _FEATURES),
    _links("multi_gpu/taobao.py", _purchases, EdgeDecoder, "user to item", _FEATURES),
    _entry("signed_gcn.py", lambda: over_types(Signed(), movies(), "movie"), Task.EDGES),
)  # fmt: skip

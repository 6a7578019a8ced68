"""One call of a convolution of torch_geometric: what it is given, and what readers of several kinds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from gnnserve_api.files.layers import Aggregation
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.layers.products import products_of, tensors_of
from gnnserve_describe.layers.values import (
    Convolved,
    EdgeColumns,
    Edges,
    EncodedColumns,
    Features,
    NotLayersError,
    Tensors,
    Unread,
    Value,
)

Nested: TypeAlias = Callable[[torch.nn.Module, int, Value], Value]
"""Value of a module of rows, given the width of these and their value."""


@dataclass(frozen=True, slots=True, eq=False)
class ReadConvolutions:
    """Convolutions whose sum a module gives."""

    convolutions: tuple[Convolved, ...]
    own: tuple[Value, torch.Tensor] | None = None
    """Rows of the nodes themselves, and the matrix that they are multiplied by; None: they are not added."""
    bias: torch.Tensor | None = None
    shares_softmax: bool = False
    """Whether one softmax is over the edges of all of them; then they have the bias."""


@dataclass(frozen=True, slots=True, eq=False)
class ConvolutionCall:
    """One call of a convolution."""

    module: Any
    given: Mapping[str, Any]
    value_of: Callable[[Any], Value | None]
    nested: Nested
    whole: Callable[[Features], Features]
    """All columns of the features of the type."""

    @property
    def name(self) -> str:
        return type(self.module).__name__

    def refused(self, why: str) -> NotLayersError:
        return NotLayersError(f"{self.name} {why}")

    def _read(self, given: Any, wrong: str) -> Value | None:
        """NotLayersError: a function before it was not understood. `wrong`: what the module reads then."""
        value = self.value_of(given)
        if isinstance(value, Unread):
            raise self.refused(f"reads {wrong}: {value.why}")
        return value

    def node_rows(self, given: Any) -> Value | None:
        """None: nothing is given."""
        if given is None:
            return None
        value = self.value_of(given)
        if isinstance(value, Unread):
            raise NotLayersError(value.why)
        if value is None or not value.is_rows or given.dim() != 2:
            raise self.refused("reads rows that are not computed of features alone")
        return value

    @property
    def ends(self) -> tuple[Value, Value | None]:
        """Rows of the nodes that are read, and of those that read them."""
        given = self.given["x"]
        pair = given if isinstance(given, tuple | list) else (given, given)
        rows, own = (self.node_rows(each) for each in pair)
        if rows is None:
            raise self.refused("reads no rows")
        return rows, own

    @property
    def rows(self) -> Value:
        """Rows of a convolution whose nodes read nodes of their own type."""
        rows, own = self.ends
        if own is not rows:
            raise self.refused("reads nodes of another type, and is listed for one type alone")
        return rows

    @property
    def relation(self) -> RelationKey:
        return self.edges.relation

    @property
    def edges(self) -> Edges:
        wrong = "other edges than the graph's"
        edges = self._read(self.given.get("edge_index"), wrong)
        if not isinstance(edges, Edges):
            raise self.refused(f"reads {wrong}")
        if getattr(self.module, "flow", "source_to_target") != "source_to_target":
            raise self.refused("reads edges the other way (flow)")
        return edges

    def columns(self, *names: str) -> EdgeColumns | None:
        """Columns of the edges that it is given by one of the names. None: by none."""
        given = next((self.given[name] for name in names if self.given.get(name) is not None), None)
        if given is None:
            return None
        wrong = "what was computed of columns of the edges, in place of these"
        value = self._read(given, wrong)
        if not isinstance(value, EdgeColumns) or value.where != self.edges.where:
            raise self.refused(f"reads {wrong}")
        return value

    def encoded_columns(self, name: str) -> EncodedColumns | None:
        """Columns of the edges, perhaps behind a product. None: by none."""
        value = self.value_of(self.given.get(name))
        if isinstance(value, EncodedColumns):
            return value
        found = self.columns(name)
        return None if found is None else EncodedColumns(found, torch.eye(found.count), torch.zeros(found.count))

    @property
    def edge_weight(self) -> str:
        column = self.columns("edge_weight")
        if column is not None and column.count != 1:
            raise self.refused(f"reads {column.count} columns as weights of edges")
        return "" if column is None else str(column.first)

    @property
    def edge_columns(self) -> tuple[str, ...]:
        found = self.columns("edge_attr")
        return () if found is None else tuple(str(found.first + place) for place in range(found.count))

    def sums_up(self) -> None:
        """NotLayersError: it aggregates otherwise than its kind does."""
        found = type(self.module.aggr_module).__name__
        if found != "SumAggregation":
            raise self.refused(f"aggregates by {found} in place of a sum")

    def needs(self, **wanted: Any) -> None:
        """NotLayersError: an attribute has another value."""
        for name, value in wanted.items():
            found = getattr(self.module, name, value)
            if found != value:
                raise self.refused(f"has {name}={found!r}, which no layer has")


Reader: TypeAlias = Callable[[ConvolutionCall], Convolved | ReadConvolutions]


# What several kinds have


def dense_tensors(module: Any, name: str) -> Tensors:
    """Weight and, where it has one, bias of a product inside."""
    inner = module.get_submodule(name)
    bias = {} if inner.bias is None else {f"{name}.bias": inner.bias}
    return {f"{name}.weight": inner.weight, **bias}


def bias_tensors(module: Any) -> Tensors:
    return {} if module.bias is None else {"bias": module.bias}


AGGREGATIONS = {
    "MeanAggregation": Aggregation.MEAN,
    "SumAggregation": Aggregation.SUM,
    "MaxAggregation": Aggregation.MAX,
    "MinAggregation": Aggregation.MIN,
    "StdAggregation": Aggregation.STD,
    "VarAggregation": Aggregation.VAR,
    "SoftmaxAggregation": Aggregation.SOFTMAX,
}


def aggregations_of(call: ConvolutionCall, module: Any, columns: int) -> tuple[tuple[Aggregation, ...], Tensors]:
    """Aggregations of a module, and their temperatures."""
    several = getattr(module, "aggrs", None)
    if several is not None and getattr(module, "mode", "cat") != "cat":
        raise call.refused(f"combines aggregations by {module.mode}, and those of a layer stand beside each other")
    found, tensors = [], dict[str, torch.Tensor]()
    for place, each in enumerate([module] if several is None else several):
        kind = AGGREGATIONS.get(type(each).__name__)
        if kind is None or getattr(each, "semi_grad", False):
            raise call.refused(f"aggregates by {type(each).__name__}, which no layer does")
        found.append(kind)
        if kind is Aggregation.SOFTMAX:
            name = "aggr_module.t" if several is None else f"aggr_module.aggrs.{place}.t"
            tensors[name] = torch.as_tensor(each.t, dtype=torch.float32).reshape(-1).expand(columns)
    return tuple(found), tensors


def mlp_of(call: ConvolutionCall, rows: Value, name: str) -> tuple[dict[str, Any], Tensors]:
    """Products inside under that name, as fields of a manifest, and their tensors."""
    width = rows.width
    products = products_of(call.nested(call.module.get_submodule(name), width, Features("", 0, width, width)))
    if not products:
        raise call.refused(f"has no products ({name})")
    mlp = tuple(each.manifest for each in products)
    return {"mlp": mlp, "width": mlp[-1].width}, tensors_of(name, products)

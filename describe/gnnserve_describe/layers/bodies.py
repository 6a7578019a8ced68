"""One layer of one type of nodes, read out of the value that it gives: convolutions, and what stands around them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from gnnserve_api.files.layers import (
    Activation,
    Combination,
    Convolution,
    ConvolutionManifest,
    Residual,
    ResidualPlace,
)
from gnnserve_describe.layers.joined import convolutions_joined
from gnnserve_describe.layers.products import Step, Steps, steps_of, why_not
from gnnserve_describe.layers.values import (
    Activated,
    Aggregated,
    Attended,
    Beside,
    Combined,
    Convolved,
    Extreme,
    Features,
    Normed,
    NotLayersError,
    Product,
    TypedAttention,
    Value,
    values_below,
)


@dataclass(frozen=True, slots=True, eq=False)
class LinearMap:
    """Sum of values, each times a matrix, and of one row for all nodes."""

    terms: Mapping[Value, torch.Tensor]
    """Matrices [outputs, inputs]."""
    row: torch.Tensor | None

    @property
    def is_identity(self) -> bool:
        return self.row is None and self.scalar == 1.0

    @property
    def scalar(self) -> float | None:
        """The number that the only value is multiplied by; None: a matrix, or several values."""
        if len(self.terms) != 1:
            return None
        (matrix,) = self.terms.values()
        return scalar_of(matrix)


def scalar_of(matrix: torch.Tensor) -> float | None:
    """The number that the identity is multiplied by to be that matrix; None: it is another one."""
    if matrix.shape[0] != matrix.shape[1]:
        return None
    number = matrix[0, 0]
    return float(number) if torch.equal(matrix, number * torch.eye(len(matrix))) else None


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """A residual: a layer's input, or the network's, with the matrix that it is multiplied by."""

    value: Value
    matrix: torch.Tensor
    row: torch.Tensor | None
    share: float
    """Number that what it is added to is multiplied by."""
    place: ResidualPlace
    is_gated: bool = False
    """Whether it is what a gate leaves of the input, in place of a matrix."""
    gate: torch.Tensor | None = None
    """Number of the gate; None: this type has none."""

    @property
    def kind(self) -> Residual:
        if self.is_gated:
            return Residual.GATED
        number = scalar_of(self.matrix) if self.row is None else None
        if number == self.share == 0.5:
            return Residual.AVERAGED
        if self.share != 1:
            raise NotLayersError(f"a layer's output is multiplied by {self.share:g} before its input is added")
        return Residual.ADDED if number == 1 else Residual.PROJECTED


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A layer of one type."""

    convolutions: tuple[Convolved, ...]
    combination: Combination | None
    """None: there is one convolution, and nothing to combine."""
    steps: Steps
    own: tuple[Value, torch.Tensor, torch.Tensor | None] | None
    """Rows, matrix and row of what is added beside the convolutions."""
    added: Added | None
    output: tuple[torch.Tensor, torch.Tensor] | None = None
    """Matrix and row of a product behind the steps; None: there is none."""

    @property
    def is_pre_activated(self) -> bool:
        """Whether its only convolution reads a norm or an activation of what is added."""
        if self.added is None or len(self.convolutions) != 1:
            return False
        read, base = _behind_steps(self.convolutions[0].rows)
        return bool(read) and base is self.added.value


class Bodies:
    """Layers within the values that outputs are computed of."""

    def __init__(self, *outputs: Value) -> None:
        self._levels: dict[Value, int] = {}
        self._bodies: dict[Value, Body | NotLayersError] = {}
        self._read = set(_rows_that_are_read(*outputs))
        """Rows that convolutions read: layers end there."""

    def level(self, value: Value) -> int:
        """Convolutions on the longest way to the features."""
        if value not in self._levels:
            below = max(map(self.level, value.parts), default=0)
            self._levels[value] = below + isinstance(value, Convolved | Aggregated)
        return self._levels[value]

    def is_body(self, value: Value) -> bool:
        """Whether a layer gives it, without a product behind that could be its own."""
        try:
            body = self.body(value)
        except NotLayersError:
            return False
        _, base = _behind_steps(value)
        return not isinstance(base, Product) or not body.convolutions

    def body(self, value: Value) -> Body:
        """NotLayersError: it is none."""
        if value not in self._bodies:
            try:
                self._bodies[value] = self._body(value)
            except NotLayersError as error:
                self._bodies[value] = error
        found = self._bodies[value]
        if isinstance(found, NotLayersError):
            raise found
        return found

    def linear(self, value: Value, *, within: int | None = None) -> LinearMap:
        """The value by what it is a linear function of: rows that convolutions read, what layers give, and all that no
        product or sum makes. `within`: sums of that level are taken apart though they may be layers."""
        terms: dict[Value, torch.Tensor] = {}
        row = self._linear(value, torch.eye(value.width), terms, within, is_outermost=True)
        return LinearMap(terms, row)

    def _linear(
        self, value: Value, matrix: torch.Tensor, terms: dict[Value, torch.Tensor], within: int | None, *,
        is_outermost: bool = False,
    ) -> torch.Tensor | None:  # fmt: skip
        """Adds a value times a matrix to the terms; what is returned is added to all rows."""
        is_apart = is_outermost or (
            value not in self._read and (self.level(value) == within or not self.is_body(value))
        )
        match value:
            case Product() if is_apart:
                row = self._linear(value.rows, matrix @ value.weight, terms, within)
                return _plus(row, None if value.bias is None else matrix @ value.bias)
            case Combined() if is_apart:
                row = None if value.row is None else matrix @ value.row
                for factor, each in value.terms:
                    row = _plus(row, self._linear(each, factor * matrix, terms, within))
                return row
            case Beside() if is_apart:
                row, first = None, 0
                for each in value.values:
                    part = matrix[:, first : first + each.width]
                    row, first = _plus(row, self._linear(each, part, terms, within)), first + each.width
                return row
            case _:
                terms[value] = terms[value] + matrix if value in terms else matrix
                return None

    def _body(self, value: Value) -> Body:
        level = self.level(value)
        if level == 0:
            raise NotLayersError(why_not(value, "convolutions"))
        steps: list[Step] = []
        added: Added | None = None
        before = 0
        while True:
            found, value = _behind_steps(value)
            steps += found
            if not isinstance(value, Combined) or self._has_convolution(value, level):
                break
            if added is not None:
                raise NotLayersError("a layer's input is added in two places")
            before = len(steps)
            added, value = self._added(value, level)
        if isinstance(value, TypedAttention):
            if steps or added is not None:
                raise NotLayersError("a norm, an activation or a residual stands behind HGTConv, which has its own")
            return _typed(value)
        whole = steps_of(steps)
        if whole is None:
            raise NotLayersError("a layer has two norms or two activations")
        body = self._core(value, level)
        if added is not None:
            if body.added is not None:
                raise NotLayersError("a layer's input is added in two places")
            body = replace(body, added=replace(added, place=_place(steps, before)))
        elif body.added is not None:
            body = replace(body, added=replace(body.added, place=_place(steps, len(steps))))
        if steps and body.is_pre_activated:
            raise NotLayersError("norms or activations stand before and behind a convolution whose input is added")
        return replace(body, steps=whole)

    def _has_convolution(self, value: Value, level: int) -> bool:
        """Whether a convolution of that level is a term, with nothing but products behind it."""
        return any(
            isinstance(each, Convolved | Aggregated | Attended) and self.level(each) == level
            for each in self.linear(value, within=level).terms
        )

    def _added(self, value: Combined, level: int) -> tuple[Added, Value]:
        """What is added behind a norm or an activation, and what it is added to."""
        found = self.linear(value, within=level)
        deep = {each: scalar_of(matrix) for each, matrix in found.terms.items() if self.level(each) == level}
        lower = {each: matrix for each, matrix in found.terms.items() if self.level(each) < level}
        if len(deep) != 1 or len(lower) != 1:
            raise NotLayersError("a layer adds two branches, or rows of several layers before it")
        ((inner, share),), ((of, matrix),) = deep.items(), lower.items()
        if share is None:
            raise NotLayersError(why_not(inner, "convolutions"))
        return Added(of, matrix, found.row, share, ResidualPlace.BEHIND_ACTIVATION), inner

    def _one_of(self, found: LinearMap) -> tuple[torch.Tensor, Value, torch.Tensor | None]:
        if len(found.terms) != 1:
            raise NotLayersError("a layer adds rows of several layers before it")
        ((value, matrix),) = found.terms.items()
        return matrix, value, found.row

    # Convolutions, and what is added to them as they are

    def _core(self, value: Value, level: int) -> Body:
        if isinstance(value, Extreme | Beside):
            parts = tuple(self._one_convolution(each, level) for each in value.values)
            if isinstance(value, Beside):
                joined = convolutions_joined(parts)
                return Body(joined, Combination.CAT if len(joined) > 1 else None, Steps(), None, None)
            return Body(parts, Combination.MAX if value.is_largest else Combination.MIN, Steps(), None, None)
        if isinstance(value, Features | Activated | Normed):
            raise NotLayersError(why_not(value, "convolutions"))
        found = self.linear(value, within=level)
        deep = {each: matrix for each, matrix in found.terms.items() if self.level(each) == level}
        lower = {each: matrix for each, matrix in found.terms.items() if self.level(each) < level}
        if len(deep) == 1 and isinstance(next(iter(deep)), Attended):
            return self._attended(found, deep, lower, level)
        if not deep or any(not isinstance(each, Convolved | Aggregated) for each in deep):
            other = next((each for each in deep if not isinstance(each, Convolved | Aggregated)), value)
            raise NotLayersError(why_not(other, "convolutions"))
        own, added = self._beside(lower, found.row, deep, level)
        row = found.row if own is None and (added is None or added.row is None) else None
        numbers = [scalar_of(matrix) for matrix in deep.values()]
        mean, combination = 1.0 / len(deep), None if len(deep) == 1 else Combination.SUM
        if len(deep) > 1 and all(number is not None and abs(number - mean) < 1e-6 for number in numbers):
            convolutions = [self._convolution(each, torch.eye(each.width)) for each in deep]
            combination = Combination.MEAN
        elif added is not None and added.share != 1:
            convolutions = [self._convolution(each, torch.eye(each.width)) for each in deep]
        else:
            convolutions = [self._convolution(each, matrix) for each, matrix in deep.items()]
        if row is not None:
            if combination is Combination.MEAN:
                raise NotLayersError("a row is added to a mean of convolutions")
            convolutions[0] = with_row(convolutions[0], row)
        own = _with_residuals_of(convolutions, own)
        return Body(tuple(replace(each, own_weight=None) for each in convolutions), combination, Steps(), own, added)

    def _attended(
        self, found: LinearMap, deep: Mapping[Value, torch.Tensor], lower: Mapping[Value, torch.Tensor], level: int
    ) -> Body:
        """Convolutions of one softmax, and what is added to them."""
        ((attended, matrix),) = deep.items()
        if not isinstance(attended, Attended) or scalar_of(matrix) != 1:
            raise NotLayersError("a product stands behind attention over several kinds of edges")
        own, added = self._beside(lower, found.row, deep, level)
        convolutions = list(attended.convolutions)
        if found.row is not None and own is None and (added is None or added.row is None):
            convolutions[0] = with_row(convolutions[0], found.row)
        return Body(tuple(convolutions), Combination.ATTENTION, Steps(), own, added)

    def _beside(
        self, lower: Mapping[Value, torch.Tensor], row: torch.Tensor | None, deep: Mapping[Value, torch.Tensor],
        level: int,
    ) -> tuple[tuple[Value, torch.Tensor, torch.Tensor | None] | None, Added | None]:  # fmt: skip
        """The node's own row beside convolutions: with a matrix, or what is added as it is."""
        if not lower:
            return None, None
        own: tuple[Value, torch.Tensor, torch.Tensor | None] | None = None
        added: Added | None = None
        shares = {scalar_of(matrix) for matrix in deep.values()}
        for value, matrix in lower.items():
            number = scalar_of(matrix)
            is_half = len(deep) == 1 and shares == {0.5} and number == 0.5 and row is None
            is_before = self.level(value) == level - 1
            if added is None and (not is_before or number == 1 or is_half):
                added = Added(value, matrix, None, 0.5 if is_half else 1.0, ResidualPlace.BEFORE_NORM)
            elif own is None:
                own = value, matrix, row
            else:
                raise NotLayersError("a layer adds rows of several layers before it")
        if own is None and row is not None and added is not None and added.kind is Residual.PROJECTED:
            added = replace(added, row=row)
        return own, added

    def _one_convolution(self, value: Value, level: int) -> Convolved:
        found = self.linear(value, within=level)
        matrix, of, row = self._one_of(found)
        if row is not None or not isinstance(of, Convolved | Aggregated) or self.level(of) != level:
            raise NotLayersError(why_not(of, "convolutions"))
        made = self._convolution(of, matrix)
        if made.own_weight is not None:
            raise NotLayersError("a convolution with a residual of its own is combined by no sum")
        return made

    def _convolution(self, value: Value, matrix: torch.Tensor) -> Convolved:
        """A convolution times a matrix."""
        if isinstance(value, Aggregated):
            return self._aggregated(value, matrix)
        if not isinstance(value, Convolved):
            raise NotLayersError(why_not(value, "convolutions"))
        if scalar_of(matrix) == 1:
            return value
        is_of_heads = value.manifest.heads > 1 and scalar_of(matrix) is None
        if not value.scales or value.own_weight is not None or is_of_heads:
            raise NotLayersError(f"a product stands behind {value.manifest.conv}, before the next layer")
        tensors = {
            name: (matrix @ tensor if name in value.scales else tensor) for name, tensor in value.tensors.items()
        }
        return replace(value, manifest=msgspec.structs.replace(value.manifest, width=len(matrix)), tensors=tensors)

    def _aggregated(self, value: Aggregated, matrix: torch.Tensor) -> Convolved:
        """GraphConv without the node's own row."""
        rows = value.rows
        if isinstance(rows, Product):
            found = self.linear(rows)
            is_plain = len(found.terms) == 1 and found.row is None and value.aggregation in _LINEAR
            if is_plain:
                ((rows, inner),) = found.terms.items()
                matrix = matrix @ inner
        column = value.weight
        manifest = ConvolutionManifest(
            Convolution.GRAPH_CONV, width=len(matrix), bias=False, root=False, aggregations=(value.aggregation,),
            edge_weight="" if column is None else str(column.first), where=value.where,
        )  # fmt: skip
        return Convolved(manifest, {"lin_rel.weight": matrix}, value.relation, rows, None)


_LINEAR = ("Sum", "Mean")
"""Aggregations that commute with products."""

_BIASES = {
    Convolution.GRAPH_SAGE: "lin_l.bias",
    Convolution.GRAPH_CONV: "lin_rel.bias",
    Convolution.GCN: "bias",
    Convolution.GAT: "bias",
    Convolution.TAG: "bias",
    Convolution.CHEBYSHEV: "bias",
    Convolution.SGC: "lin.bias",
    Convolution.RGAT: "bias",
}
"""Tensors that are added to all rows."""


def with_row(convolved: Convolved, row: torch.Tensor) -> Convolved:
    """With a row that is added to all."""
    name = _BIASES.get(convolved.manifest.conv)
    if name is None or convolved.manifest.has_unit_rows:
        raise NotLayersError(f"a row is added behind {convolved.manifest.conv}")
    tensors = {**convolved.tensors, name: row + convolved.tensors.get(name, torch.zeros(len(row)))}
    return replace(convolved, manifest=msgspec.structs.replace(convolved.manifest, bias=True), tensors=tensors)


def _typed(value: TypedAttention) -> Body:
    """HGTConv of one type."""
    size = value.own.width
    share = Added(
        value.own, torch.eye(size), None, 1.0, ResidualPlace.BEHIND_ACTIVATION, is_gated=True, gate=value.gate
    )  # fmt: skip
    steps = Steps(activation=Activated(value, Activation.GELU))
    added = share if value.is_gated else None
    return Body(
        value.convolutions, Combination.ATTENTION, steps, None, added, output=(value.weight, value.bias)
    )  # fmt: skip


def _with_residuals_of(
    convolutions: Sequence[Convolved], own: tuple[Value, torch.Tensor, torch.Tensor | None] | None
) -> tuple[Value, torch.Tensor, torch.Tensor | None] | None:
    """Residuals that convolutions have inside, beside the layer's."""
    for each in convolutions:
        if each.own_weight is None:
            continue
        if each.own is None or (own is not None and own[0] is not each.own):
            raise NotLayersError("two convolutions of a layer add other rows")
        own = (each.own, each.own_weight, None) if own is None else (own[0], own[1] + each.own_weight, own[2])
    return own


def _place(steps: Sequence[Step], before: int) -> ResidualPlace:
    """Place of what is added within so many steps, the last one first."""
    if before == 0:
        return ResidualPlace.BEHIND_ACTIVATION
    return ResidualPlace.BEFORE_NORM if isinstance(steps[before - 1], Normed) else ResidualPlace.BEFORE_ACTIVATION


def _behind_steps(value: Value) -> tuple[list[Step], Value]:
    steps: list[Step] = []
    value = _activated_together(value)
    while isinstance(value, Normed | Activated):
        steps.append(value)
        value = value.rows
    return steps, value


def _activated_together(value: Value) -> Value:
    """Rows beside each other with one activation, as the activation of these rows."""
    if not isinstance(value, Beside) or not all(isinstance(each, Activated) for each in value.values):
        return value
    branches = [each for each in value.values if isinstance(each, Activated)]
    if len({(each.activation, each.slope) for each in branches}) > 1 or any(
        each.weight is not None for each in branches
    ):
        return value
    return replace(branches[0], rows=Beside(tuple(each.rows for each in branches)))


def _plus(one: torch.Tensor | None, two: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or two is None:
        return two if one is None else one
    return one + two


def _rows_that_are_read(*outputs: Value) -> Iterator[Value]:
    for each in values_below(*outputs):
        if isinstance(each, Convolved):
            yield from each.parts
        elif isinstance(each, Aggregated) and not isinstance(each.rows, Product):
            yield each.rows

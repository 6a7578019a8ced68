"""A network read layer by layer out of the value that a module gives: from the head back to the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
import torch

from gnnserve_api.files.layers import (
    Combination,
    DenseManifest,
    JumpingKnowledge,
    LayerManifest,
    LayersManifest,
    Residual,
    ResidualPlace,
    TypeProductsManifest,
)
from gnnserve_api.files.programs import RelationKey
from gnnserve_describe.layers.beside import with_rows_beside
from gnnserve_describe.layers.bodies import Added, Bodies, Body, LinearMap
from gnnserve_describe.layers.convolutions import of_layer
from gnnserve_describe.layers.products import (
    Dense,
    Step,
    behind_identity,
    dense,
    peeled,
    products_of,
    steps_of,
    tensors_of,
    why_not,
)
from gnnserve_describe.layers.values import (
    Activated,
    Beside,
    Convolved,
    Extreme,
    Features,
    NotLayersError,
    Unread,
    Value,
    Weighed,
    values_below,
)


@dataclass(frozen=True, slots=True, eq=False)
class LayersRead:
    """A network with its weights, which are those of the module."""

    layers: LayersManifest
    tensors: Mapping[str, torch.Tensor]
    """By the keys of `files/layers.py`."""
    states: Sequence[Value]
    """What the head reads of the layers, of each layer."""
    has_other_embeddings: bool = False
    """Whether the module returns other rows beside its scores than those that are served as embeddings."""

    def gives_beside(self, value: Value | None) -> bool:
        """Whether these rows are given beside the scores: what the head reads of the layers."""
        if not self.layers.head:
            return False
        is_last = len(self.states) == 1 and value is self.states[0]
        return is_last or (isinstance(value, Beside) and list(value.values) == list(self.states))


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    products: list[Dense]
    """In their order."""
    states: Sequence[Value]
    """What layers give, of each layer that is read; the last one alone where jumping knowledge is Last."""
    kind: JumpingKnowledge
    reads_input: bool = False
    tensors: Mapping[str, torch.Tensor] | None = None
    """Tensors of jumping knowledge."""

    @property
    def manifests(self) -> tuple[DenseManifest, ...]:
        return tuple(each.manifest for each in self.products)


def read_layers(
    outputs: Mapping[str, Value], columns: Mapping[str, int], relations: Sequence[RelationKey], *, adds_class: bool
) -> LayersRead:
    """`outputs`: rows of each type that is scored. `columns`: features of each type, by their places; `relations`: by
    theirs. `adds_class`: a column of zeros is put before the only one. NotLayersError: the module is no such
    network."""
    for each in values_below(*outputs.values()):
        if isinstance(each, Unread):
            raise NotLayersError(each.why)
    reader = _Reader(Bodies(*outputs.values()), columns, relations)
    heads = {kind: reader.head(kind, output) for kind, output in outputs.items()}
    (head, *others) = heads.values()
    if others and any(each.reads_input or each.kind is not JumpingKnowledge.LAST for each in heads.values()):
        raise NotLayersError("rows of two types are computed of several layers, or of features beside")
    if any(each.manifests != head.manifests for each in others):
        raise NotLayersError("rows of two types have products of other widths, norms or activations behind the layers")
    if adds_class:
        head = replace(head, products=[*head.products, Dense(torch.tensor([[0.0], [1.0]]), None)])
    states = {kind: each.states[-1] for kind, each in heads.items() if each.states}
    by_type = {kind: each.products for kind, each in heads.items()} if others and head.products else {}
    return reader.network(head, states, by_type)


class _Reader:
    def __init__(self, bodies: Bodies, columns: Mapping[str, int], relations: Sequence[RelationKey]) -> None:
        self._bodies, self._columns, self._relations = bodies, columns, relations
        self._types = list(columns)

    # Behind the layers

    def head(self, kind: str, value: Value) -> _Head:
        """`kind`: type of the rows."""
        products: list[Dense] = []
        while not self._bodies.is_body(value):
            steps, base = peeled(value)
            jumped = _jumped(base)
            if jumped is not None:
                return replace(jumped, products=behind_identity(base.width, steps) + products)
            if self._bodies.is_body(base):
                products, value = behind_identity(base.width, steps) + products, base
                break
            found = _of_whole_features(self._bodies.linear(base))
            (first, *others) = found.terms
            if first is base and not isinstance(base, Features):
                raise NotLayersError(why_not(base, "layers"))
            if others:
                alike = self._activated_alike(found)
                if alike is None:
                    return self._of_several(kind, found, steps, products)
                first, matrix = alike
            else:
                matrix = found.terms[first]
            if first is base:
                # Features, perhaps with a norm and an activation.
                made = products_of(value) + products
                return _Head(made or dense(torch.eye(base.width), None, ()), [], JumpingKnowledge.LAST)
            products = dense(matrix, found.row, steps) + products
            value = first
        return _Head(products, [value], JumpingKnowledge.LAST)

    def _activated_alike(self, found: LinearMap) -> tuple[Value, torch.Tensor] | None:
        """Branches with one activation, as one of their columns beside each other, and the matrix that it is multiplied
        by. None: they are layers, or differ."""
        branches = [each for each in found.terms if isinstance(each, Activated) and not self._bodies.is_body(each)]
        kinds = {(each.activation, each.slope, each.weight is None) for each in branches}
        if len(branches) < len(found.terms) or len(kinds) > 1 or branches[0].weight is not None:
            return None
        inner = Beside(tuple(each.rows for each in branches))
        return replace(branches[0], rows=inner), torch.cat(list(found.terms.values()), dim=1)

    def _of_several(self, kind: str, found: LinearMap, steps: Sequence[Step], products: list[Dense]) -> _Head:
        """A product over the features, or over several layers beside each other."""
        features, states = None, dict[int, Value]()
        for each in found.terms:
            if isinstance(each, Features):
                features = each
            elif not self._bodies.is_body(each):
                raise NotLayersError(why_not(each, "layers"))
            elif self._bodies.level(each) in states:
                raise NotLayersError("the head reads two branches of one layer")
            else:
                states[self._bodies.level(each)] = each
        if not states:
            raise NotLayersError("the head reads features of several kinds")
        last = max(states)
        every = self._states_up_to(kind, states[last]) if len(states) > 1 else [states[last]]
        for level, each in states.items():
            if len(states) > 1 and each is not every[level - 1]:
                raise NotLayersError("the head reads rows that are no layer's output")
        matrices = [found.terms.get(each, torch.zeros(1)) for each in every]
        rows = len(next(iter(found.terms.values())))
        blocks = [
            matrix if each in found.terms else torch.zeros(rows, each.width)
            for each, matrix in zip(every, matrices, strict=True)
        ]
        if features is not None:
            whole = torch.zeros(rows, features.columns)
            whole[:, features.first : features.first + features.count] = found.terms[features]
            blocks.insert(0, whole)
        made = dense(torch.cat(blocks, dim=1), found.row, steps)
        jumping = JumpingKnowledge.CAT if len(states) > 1 else JumpingKnowledge.LAST
        return _Head(made + products, every, jumping, features is not None)

    def _states_up_to(self, kind: str, value: Value) -> list[Value]:
        """Outputs of all layers of a type, the first one first."""
        found = [value]
        while self._bodies.level(value) > 1:
            claims = _Claims()
            self._layer(self._bodies.level(value), {kind: value}, claims, _Claims())
            value = claims.of_type(kind)
            found.insert(0, value)
        return found

    # Layers

    def network(self, head: _Head, states: Mapping[str, Value], by_type: Mapping[str, Sequence[Dense]]) -> LayersRead:
        """`states`: what the last layer gives, of each type that is scored. `by_type`: products of the head of each;
        empty: there is one head."""
        tensors = dict(tensors_of("head", head.products)) if not by_type else {}
        tensors |= {f"jumping.{name}": each for name, each in (head.tensors or {}).items()}
        layers: list[LayerManifest] = []
        inputs = _Claims()
        target = next(iter(states), "")
        last = max(map(self._bodies.level, states.values()), default=0)
        if head.kind is not JumpingKnowledge.LAST and len(head.states) != last:
            raise NotLayersError(f"the head reads {len(head.states)} of {last} layers")
        for number in range(last, 0, -1):
            claims = _Claims()
            manifest, made = self._layer(number, states, claims, inputs)
            layers.insert(0, manifest)
            tensors |= made
            if number > 1 and head.kind is not JumpingKnowledge.LAST:
                claims.claim(target, head.states[number - 2])
            states = claims.found if number > 1 else inputs.with_all(claims)
        before = []
        for place, kind in enumerate(self._types):
            products = products_of(states[kind]) if kind in states else []
            if products:
                before.append(TypeProductsManifest(place, tuple(each.manifest for each in products)))
                tensors |= tensors_of(f"before.{place}", products)
        written = self._complete(layers, tensors, before)
        for place, width in written.items() if by_type else ():
            # Of a type that is not scored the first one's, as wide as its rows.
            first, *more = by_type.get(self._types[place], head.products)
            fits = first.weight.shape[1] == width
            of_type = [first if fits else replace(first, weight=torch.zeros(len(first.weight), width)), *more]
            tensors |= tensors_of(f"heads.{place}", of_type)
        described = LayersManifest(
            tuple(layers), tuple(before), head.kind, head.manifests, head.reads_input, bool(by_type)
        )
        plain = {name: each.detach().float().contiguous() for name, each in tensors.items()}
        return LayersRead(described, plain, head.states)

    def _complete(
        self, layers: Sequence[LayerManifest], tensors: dict[str, torch.Tensor], before: Sequence[TypeProductsManifest]
    ) -> Mapping[int, int]:
        """Tensors of types that a layer writes though nothing reads them: with rows of their own, all that are read.
        What is returned are the widths of what the last layer writes."""
        widths = {place: self._columns[kind] for place, kind in enumerate(self._types) if self._columns.get(kind)}
        widths |= {each.type: each.products[-1].width for each in before}
        for number, layer in enumerate(layers):
            written: dict[int, int] = {}
            for each in layer.convs:
                place = self._types.index(self._relations[each.relation].target)
                is_cat = layer.combination is Combination.CAT
                written[place] = written.get(place, 0) + each.width if is_cat else each.width
            key = f"layers.{number}"
            for place in set(widths) - set(written) if layer.own else ():
                written[place] = layer.convs[0].width
            (some, *_) = [place for place in written if not layer.own or f"{key}.own.{place}.weight" in tensors]
            for place, width in written.items():
                if layer.own and f"{key}.own.{place}.weight" not in tensors:
                    tensors |= _product(f"{key}.own.{place}", torch.zeros(width, widths[place]), None)
                    for part in ("norms", "activations"):
                        begin = f"{key}.{part}.{some}."
                        of_some = {
                            name.removeprefix(begin): each for name, each in tensors.items() if name.startswith(begin)
                        }
                        tensors |= {f"{key}.{part}.{place}.{name}": each for name, each in of_some.items()}
            widths = written
        return widths

    def _layer(
        self, number: int, states: Mapping[str, Value], claims: _Claims, inputs: _Claims
    ) -> tuple[LayerManifest, dict[str, torch.Tensor]]:
        """The layer that gives these values, and its tensors. What it reads is claimed."""
        tensors: dict[str, torch.Tensor] = {}
        layers: list[LayerManifest] = []
        bodies = with_rows_beside({kind: self._bodies.body(value) for kind, value in states.items()})
        for kind, value in states.items():
            if self._bodies.level(value) != number:
                raise NotLayersError(f"layer {number} has no convolution for nodes of type {kind!r}")
        has_own = any(body.own is not None for body in bodies.values())
        for kind, given in bodies.items():
            body, is_pre = _pre_activated(given, claims)
            manifest, made = self._body(number, kind, body, claims, inputs, is_pre=is_pre)
            layers.append(manifest)
            tensors |= made
        merged = _merged(layers)
        convs = tuple(sorted(merged.convs, key=lambda each: each.relation))
        if len({(each.relation, each.where) for each in convs}) < len(convs):
            raise NotLayersError(f"layer {number} has two convolutions over one relation")
        return msgspec.structs.replace(merged, convs=convs, own=has_own), tensors

    def _body(
        self, number: int, kind: str, body: Body, claims: _Claims, inputs: _Claims, *, is_pre: bool
    ) -> tuple[LayerManifest, dict[str, torch.Tensor]]:
        place, key = self._types.index(kind), f"layers.{number - 1}"
        convs = []
        for each in body.convolutions:
            self._claim_ends(each, kind, claims, inputs)
            relation = self._relations.index(each.relation)
            convs.append(msgspec.structs.replace(of_layer(each.manifest, number), relation=relation))
        tensors = {
            f"{key}.convs.{name_of}.{name}": tensor
            for name_of, each in zip(LayerManifest(tuple(convs)).keys, body.convolutions, strict=True)
            for name, tensor in each.tensors.items()
        }
        width = (
            body.convolutions[0].width
            if body.combination is not Combination.CAT
            else sum(each.width for each in body.convolutions)
        )
        if body.own is not None:
            rows, matrix, row = body.own
            claims.claim(kind, rows)
            tensors |= _product(f"{key}.own.{place}", matrix, row)
        residual, reads_input = Residual.NONE, False
        if body.added is not None:
            residual = body.added.kind
            reads_input = self._claim_added(kind, body.added, number, claims, inputs)
            if residual is Residual.PROJECTED:
                tensors |= _product(f"{key}.residuals.{place}", body.added.matrix, body.added.row)
            if body.added.gate is not None:
                tensors[f"{key}.residuals.{place}.gate"] = body.added.gate.reshape(1)
        if body.output is not None:
            tensors |= _product(f"{key}.outputs.{place}", *body.output)
        normed = claims.raw_width(kind, width) if is_pre else width
        tensors |= body.steps.tensors(f"{key}.norms.{place}", f"{key}.activations.{place}", normed)
        manifest = LayerManifest(
            tuple(convs), body.combination or Combination.SUM, False, is_pre_activated=is_pre, residual=residual,
            residual_place=body.added.place if body.added is not None else ResidualPlace.BEHIND_ACTIVATION,
            reads_input=reads_input, output_product=body.output is not None, **body.steps.fields,  # type: ignore[arg-type]
        )  # fmt: skip
        return manifest, tensors

    def _claim_ends(self, each: Convolved, kind: str, claims: _Claims, inputs: _Claims) -> None:
        relation = each.relation
        if relation not in self._relations or relation.target != kind:
            raise NotLayersError(f"a convolution over {relation.name or 'edges'} gives rows of {kind or 'nodes'}")
        claims.claim(relation.source, each.rows)
        if each.own is not None:
            claims.claim(kind, each.own)
        if each.first is not None:
            inputs.claim(kind, each.first)

    def _claim_added(self, kind: str, added: Added, number: int, claims: _Claims, inputs: _Claims) -> bool:
        """Whether it is of the network's input."""
        is_input = number > 1 and self._bodies.level(added.value) == 0
        (inputs if is_input else claims).claim(kind, added.value)
        return is_input


class _Claims:
    """Rows of each type that a layer reads, which are the same ones wherever they are read."""

    def __init__(self) -> None:
        self.found: dict[str, Value] = {}
        self.raw: Value | None = None
        """Rows before the norm and the activation that stand before a convolution."""
        self.activated: Value | None = None

    def claim(self, kind: str, value: Value) -> None:
        if value is self.activated and self.raw is not None:
            value = self.raw
        if self.found.setdefault(kind, value) is not value:
            raise NotLayersError(f"a layer reads two kinds of rows of {kind or 'the nodes'}")

    def of_type(self, kind: str) -> Value:
        if kind not in self.found:
            raise NotLayersError(f"a layer reads no rows of nodes of type {kind!r} that others read")
        return self.found[kind]

    def raw_width(self, kind: str, width: int) -> int:
        return self.found[kind].width if kind in self.found else width

    def with_all(self, others: _Claims) -> dict[str, Value]:
        for kind, value in others.found.items():
            self.claim(kind, value)
        return self.found


def _pre_activated(body: Body, claims: _Claims) -> tuple[Body, bool]:
    """The body whose norm and activation stand before its convolution, where they do."""
    if not body.is_pre_activated or body.added is None:
        return body, False
    rows = body.convolutions[0].rows
    steps, claims.raw = peeled(rows)
    claims.activated = rows
    whole = steps_of(steps)
    if whole is None:
        raise NotLayersError("two norms or two activations stand before a convolution")
    added = replace(body.added, place=ResidualPlace.BEHIND_ACTIVATION)
    return replace(body, steps=whole, added=added), True


def _merged(layers: Sequence[LayerManifest]) -> LayerManifest:
    """One layer of those of its types. NotLayersError: they differ."""
    first, *others = layers
    several = [each for each in layers if len(each.convs) > 1]
    combination = several[0].combination if several else first.combination
    for each in layers:
        alike = msgspec.structs.replace(each, convs=(), combination=Combination.SUM)
        if alike != msgspec.structs.replace(first, convs=(), combination=Combination.SUM):
            raise NotLayersError("types have other norms, activations or residuals than each other in one layer")
    if any(each.combination is not combination for each in several):
        raise NotLayersError("types combine their relations in different ways in one layer")
    convs = tuple(conv for each in (first, *others) for conv in each.convs)
    return msgspec.structs.replace(first, convs=convs, combination=combination)


def _of_whole_features(found: LinearMap) -> LinearMap:
    """Columns of the features as products of all of them, where there are several."""
    parts = [each for each in found.terms if isinstance(each, Features)]
    if len(parts) < 2:
        return found
    whole = torch.zeros(len(found.terms[parts[0]]), parts[0].columns)
    for each in parts:
        whole[:, each.first : each.first + each.count] += found.terms[each]
    others = {each: matrix for each, matrix in found.terms.items() if each not in parts}
    features = Features(parts[0].type, 0, parts[0].columns, parts[0].columns)
    return LinearMap({features: whole, **others}, found.row)


def _jumped(base: Value) -> _Head | None:
    if isinstance(base, Extreme) and base.is_largest:
        return _Head([], base.values, JumpingKnowledge.MAX)
    if isinstance(base, Weighed):
        return _Head([], base.values, JumpingKnowledge.LSTM, tensors=base.tensors)
    return None


def _product(key: str, matrix: torch.Tensor, row: torch.Tensor | None) -> dict[str, torch.Tensor]:
    return {f"{key}.weight": matrix, f"{key}.bias": torch.zeros(len(matrix)) if row is None else row}

"""Puts modules of a file in the order of a network: what stands before the layers, in them, and behind them.

Names tell numbers and words (`lin_in`, `bns.1`), shapes tell which module can follow which. Where both leave a choice,
the usual one is taken and listed as an assumption. A network that is stated leaves fewer choices (`Stated`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, permutations, product
from typing import TypeAlias

from gnnserve_api.files.layers import (
    Activation,
    Convolution,
    DenseManifest,
    JumpingKnowledge,
    Norm,
)
from gnnserve_api.files.programs import RelationKey
from gnnserve_worker.models.layer_kind import LINEAR
from gnnserve_worker.readers.convolutions import FoundConvolution, convolution_of
from gnnserve_worker.readers.description import CheckpointDescription, CheckpointLayer
from gnnserve_worker.readers.facts import CLASSES, with_facts
from gnnserve_worker.readers.kinds import JUMPING, KINDS
from gnnserve_worker.readers.names import (
    ModuleGroup,
    Scope,
    grouped,
    is_embedding,
    is_of_list,
    is_residual,
    order_of,
    stands_before,
    stem_of,
)
from gnnserve_worker.readers.parts import (
    Assumption,
    FoundProduct,
    is_prelu,
    last_number,
    norm_of,
    parent_of,
    product_of,
)
from gnnserve_worker.readers.places import Arrangement, LayerPlace, ProductPlace, Stated
from gnnserve_worker.readers.typed import read_typed, types_in

_MOST_PERMUTED = 6
_OLD_GCN = "GCNConv of torch_geometric below 2.0 (or GraphConv of DGL)"


def arrange(
    description: CheckpointDescription,
    type_names: Sequence[str] = (),
    stated: Stated = Stated(),  # noqa: B008
    relations: Sequence[RelationKey] = (),
) -> Arrangement:
    """The modules of a file in the order of a network. `type_names`, `relations`: of the graph, beside those that names
    tell."""
    types = {*type_names, *(kind for module in description.layers for kind in types_in(module))}
    groups = grouped(_as_one_kind(description.layers), types)
    found = Arrangement(unread=list(description.others))
    norms: list[ModuleGroup] = []
    products: list[ProductPlace] = []
    convolutions: list[ModuleGroup] = []
    for group in groups:
        module = group.one
        if module.kind.is_convolution:
            convolutions.append(group)
        elif module.kind is JUMPING:
            found.jumping, found.jumping_module = JumpingKnowledge.LSTM, module
        elif norm_of(module) is not None or is_prelu(module):
            norms.append(group)
        elif product_of(module) is not None and not (module.kind is not LINEAR and is_embedding(group.name)):
            products.append(ProductPlace(group.name, _products_of(group)))
        else:
            found.unread += group.tensors
    _put_layers(found, convolutions, stated, relations)
    _put_products(found, products, stated)
    _choose_widths(found, stated)
    _put_norms(found, norms, stated)
    return found


def _as_one_kind(modules: Sequence[CheckpointLayer]) -> Sequence[CheckpointLayer]:
    """A square matrix looks like a Linear, and is a GCNConv of old where its neighbours in a list are."""
    old = next(kind for kind in KINDS if kind.name == _OLD_GCN)
    stems = {stem_of(one.name) for one in modules if one.kind is old}
    return [
        replace(one, kind=old) if one.kind is LINEAR and stem_of(one.name) in stems and _is_square(one) else one
        for one in modules
    ]


def _is_square(module: CheckpointLayer) -> bool:
    rows, columns = module.shapes["weight"]
    return rows == columns


def _products_of(group: ModuleGroup) -> dict[Scope, FoundProduct]:
    return {scope: one for scope, module in group.modules.items() if (one := product_of(module)) is not None}


# --- layers


def _put_layers(
    found: Arrangement, groups: Sequence[ModuleGroup], stated: Stated, relations: Sequence[RelationKey]
) -> None:
    places: list[LayerPlace] = []
    for number, group in enumerate(sorted(groups, key=lambda one: order_of(one.name))):
        listed = stated.relations[number] if number < len(stated.relations) else range(len(relations))
        typed = read_typed(group.one, [relations[place] for place in listed])
        if typed is not None:
            places.append(LayerPlace(group.name, {**typed.convolutions}, typed=typed))
            continue
        kinds = stated.convolutions[number] if number < len(stated.convolutions) else ()
        read = {scope: _convolution(module, kinds) for scope, module in group.modules.items()}
        if any(one is None for one in read.values()):
            found.unread += group.tensors
            continue
        places.append(LayerPlace(group.name, {scope: one for scope, one in read.items() if one is not None}))
    for place in stated.pre_activated:
        if place < len(places):
            places[place].is_pre_activated = True
    found.layers = places
    if len({stem_of(one.name) for one in places}) > 1 and not stated.convolutions:
        order = ", ".join(one.name for one in places)
        found.assumed.append(Assumption("layers", order, "one behind the other, over the same edges"))
    if _follows(places) or not places:
        return
    others = [list(one) for one in permutations(places) if _follows(one)] if len(places) <= _MOST_PERMUTED else []
    if not others:
        one, two = next((one, two) for one, two in pairwise(places) if not _can_follow(one, two))
        found.problem = f"{two.name} reads {two.inputs} columns, and {one.name} before it gives {one.width}"
        return
    found.layers = others[0]
    if len(others) > 1:
        order = ", ".join(one.name for one in found.layers)
        found.assumed.append(Assumption("layers", order, "names tell no order, and several fit"))


def _convolution(module: CheckpointLayer, kinds: Sequence[Convolution]) -> FoundConvolution | None:
    """As the kind that is stated, or that its class is, where the module may be several."""
    named = CLASSES.get(module.facts.name)
    wanted = [*kinds, *([] if named is None else [named])]
    found = next((one for kind in wanted if (one := convolution_of(module, kind)) is not None), convolution_of(module))
    return found if found is None or not module.facts.attributes else with_facts(found, module.facts)


def _follows(places: Sequence[LayerPlace]) -> bool:
    return all(_can_follow(one, two) for one, two in pairwise(places))


def _can_follow(one: LayerPlace, two: LayerPlace) -> bool:
    return any(two.inputs in each.widths for each in one.convolutions.values())


def _choose_widths(found: Arrangement, stated: Stated) -> None:
    """Choose how heads are treated, where tensors do not tell, by what reads them."""
    for place, layer in enumerate(found.layers):
        behind = found.layers[place + 1].inputs if place + 1 < len(found.layers) else None
        if place < len(stated.widths):
            behind = stated.widths[place]
        elif behind is None and found.head:
            behind = next((width for width in layer.one.widths if width in found.head[0].inputs), None)
        elif behind is None and layer.one.other_width is not None:
            behind = layer.one.other_width
            found.assumed.append(Assumption("layers[].averageHeads", "true", "of the last layer"))
        if behind is not None:
            layer.convolutions = {scope: one.with_width(behind) for scope, one in layer.convolutions.items()}


# --- products before and behind the layers, and residuals


_Reading: TypeAlias = tuple[JumpingKnowledge, bool, set[int]]
"""What a head reads of the layers, whether features stand beside, and how wide that may be."""


@dataclass(frozen=True, slots=True)
class _Split:
    before: tuple[ProductPlace, ...]
    head: tuple[ProductPlace, ...]
    jumping: JumpingKnowledge
    reads_input: bool
    score: int


def _put_products(found: Arrangement, products: list[ProductPlace], stated: Stated) -> None:
    products = sorted(products, key=lambda one: order_of(one.name))
    products = _without_residuals(found, products, stated)
    if not found.layers:
        best = _perceptron(products, stated.before or 0)
    else:
        best = max(_splits(found, products, stated), key=lambda one: one.score)
    found.before, found.head = list(best.before), list(best.head)
    if found.jumping_module is None:
        found.jumping = best.jumping
    found.head_reads_input = best.reads_input
    left = [one for one in products if one not in found.before and one not in found.head]
    for one in left:
        if not _is_residual_by_shape(found, one):
            found.unplaced += [key for each in one.of.values() for taken in each.tensors.values() for key in taken.keys]


def _perceptron(products: Sequence[ProductPlace], before: int) -> _Split:
    """All products behind each other, where they fit. `before`: how many stand before layers without tensors."""
    for order in permutations(products) if len(products) <= _MOST_PERMUTED else [tuple(products)]:
        if _are_behind_each_other(order):
            return _Split(tuple(order[:before]), tuple(order[before:]), JumpingKnowledge.LAST, False, 0)
    return _Split((), (), JumpingKnowledge.LAST, False, 0)


def _splits(found: Arrangement, products: Sequence[ProductPlace], stated: Stated) -> Iterator[_Split]:
    first = {one.inputs for one in found.layers[0].convolutions.values()}
    if len(products) > _MOST_PERMUTED:
        yield from _splits_in_order(first, _readings(found, first, stated), products, stated)
        return
    for before in _chains_to(first, products):
        if stated.before not in (None, len(before)):
            continue
        rest = [one for one in products if one not in before]
        features = before[0].inputs if before else first
        for jumping, reads_input, width in _readings(found, features, stated):
            for head in _chains_from(width, rest):
                if stated.head not in (None, len(head)):
                    continue
                left = len(rest) - len(head)
                score = _score(before, 1) + _score(head, -1) - 20 * left
                score -= 2 * (jumping is not JumpingKnowledge.LAST) + 2 * reads_input
                yield _Split(before, head, jumping, reads_input, score)
    yield _Split((), (), JumpingKnowledge.LAST, False, -20 * len(products) - 100)


def _splits_in_order(
    first: set[int], readings: Iterator[_Reading], products: Sequence[ProductPlace], stated: Stated
) -> Iterator[_Split]:
    """Splits of many products: those that stand first in their order, and those that stand last."""
    before = [
        tuple(products[:count])
        for count in range(len(products) + 1)
        if stated.before in (None, count) and _are_behind_each_other(products[:count])
    ]
    for jumping, reads_input, widths in readings:
        for start in range(len(products) + 1):
            head = tuple(products[start:])
            if not _are_behind_each_other(head) or stated.head not in (None, len(head)):
                continue
            for chain in before:
                fits = not (head and not head[0].inputs & widths) and not (chain and chain[-1].width not in first)
                if fits and len(chain) <= start:
                    score = _score(chain, 1) + _score(head, -1) - 20 * (start - len(chain))
                    yield _Split(chain, head, jumping, reads_input, score)
    yield _Split((), (), JumpingKnowledge.LAST, False, -20 * len(products) - 100)


def _are_behind_each_other(products: Sequence[ProductPlace]) -> bool:
    return all(one.width in two.inputs for one, two in pairwise(products))


def _readings(found: Arrangement, features: set[int], stated: Stated) -> Iterator[_Reading]:
    """What the head may read, and how wide that is."""
    last = {width for one in found.layers[-1].convolutions.values() for width in one.widths}
    every = {sum(widths) for widths in product(*(one.one.widths for one in found.layers))}
    for jumping, widths in ((JumpingKnowledge.LAST, last), (JumpingKnowledge.CAT, every)):
        is_cat = stated.jumping is JumpingKnowledge.CAT
        if stated.jumping is not None and is_cat is not (jumping is JumpingKnowledge.CAT):
            continue
        for reads_input in (False, True):
            if stated.reads_input not in (None, reads_input):
                continue
            beside = features if reads_input else {0}
            yield jumping, reads_input, {one + two for one in widths for two in beside}


def _chains_to(widths: set[int], products: Sequence[ProductPlace]) -> Iterator[tuple[ProductPlace, ...]]:
    """Products behind each other, the last of which gives so many columns."""
    yield ()
    for one in products:
        if one.width in widths:
            rest = [other for other in products if other is not one]
            yield from ((*chain, one) for chain in _chains_to(one.inputs, rest))


def _chains_from(widths: set[int], products: Sequence[ProductPlace]) -> Iterator[tuple[ProductPlace, ...]]:
    """Products behind each other, the first of which reads so many columns."""
    yield ()
    for one in products:
        if one.inputs & widths:
            rest = [other for other in products if other is not one]
            yield from ((one, *chain) for chain in _chains_from({one.width}, rest))


def _score(chain: Sequence[ProductPlace], wanted: int) -> int:
    """How well names of products fit to where they stand, and to their order."""
    hints = sum(3 * wanted * stands_before(one.name) for one in chain)
    ordered = sum(1 if order_of(one.name) < order_of(two.name) else -1 for one, two in pairwise(chain))
    return hints + ordered


def _without_residuals(found: Arrangement, products: list[ProductPlace], stated: Stated) -> list[ProductPlace]:
    """The products that are no residuals of layers; those that are get their places. They are called so, or a list has
    one for each layer, as wide as what the layer reads and gives."""
    wanted = range(len(found.layers)) if stated.projected is None else stated.projected
    for layer in found.layers:
        if any(one.residual for one in layer.convolutions.values()):
            layer.residual = ProductPlace(layer.name, {})
    families: dict[str, list[ProductPlace]] = {}
    for one in products:
        families.setdefault(stem_of(one.name), []).append(one)
    used: list[ProductPlace] = []
    for family in families.values():
        is_named = is_residual(family[0].name)
        layers = [found.layers[place] for place in wanted if found.layers[place].residual is None]
        if not is_named and (len(family) != len(found.layers) or len(family) < 2 or stated.projected == ()):
            continue
        pairs = list(zip(family, layers, strict=False))
        if len(family) < len(layers):  # each to the first layer that it fits, in their order
            pairs, left = [], list(layers)
            for one in family:
                at = next((place for place, layer in enumerate(left) if _fits(one, layer)), None)
                if at is not None:
                    pairs.append((one, left[at]))
                    left = left[at + 1 :]
        if len(pairs) == len(family) and all(_fits(one, layer) for one, layer in pairs):
            for one, layer in pairs:
                layer.residual = one
            used += family
    return [one for one in products if one not in used]


def _fits(one: ProductPlace, layer: LayerPlace) -> bool:
    return one.width in layer.one.widths and layer.inputs in one.inputs


def _is_residual_by_shape(found: Arrangement, one: ProductPlace) -> bool:
    """Put a product beside the one layer that it fits."""
    fitting = [layer for layer in found.layers if layer.residual is None and _fits(one, layer)]
    if len(fitting) != 1:
        return False
    fitting[0].residual = one
    return True


# --- norms and activations


@dataclass(frozen=True, slots=True)
class _Host:
    """A place behind which a norm or an activation may stand."""

    name: str
    width: int
    layer: LayerPlace | None
    product: ProductPlace | None
    is_last: bool
    stated: tuple[Norm, Activation] | None
    """What stands there; None: it is not known."""

    def is_free_for(self, group: ModuleGroup) -> bool:
        """Whether what the group is may stand here."""
        norm = norm_of(group.one)
        if self.stated is not None:
            of_norm, activation = self.stated
            if (norm.norm is not of_norm) if norm is not None else activation is not Activation.PRELU:
                return False
        if norm is None:
            (slopes,) = group.one.shapes["weight"]
            is_taken = bool(self.layer.slopes) if self.layer else self._product.activation is Activation.PRELU
            return not is_taken and slopes in (1, self.width)
        is_taken = bool(self.layer.norms) if self.layer else self._product.norm is not Norm.NONE
        is_before = self.layer is not None and self.layer.is_pre_activated
        return not is_taken and norm.width == (self.layer.inputs if self.layer and is_before else self.width)

    @property
    def _product(self) -> DenseManifest:
        if self.product is None:
            raise ValueError("a place is of a layer or of a product")
        return self.product.one.manifest

    def put(self, group: ModuleGroup) -> None:
        norms = {scope: norm for scope, module in group.modules.items() if (norm := norm_of(module)) is not None}
        if self.layer is not None:
            if norms:
                self.layer.norms = norms
            else:
                self.layer.slopes = dict(group.modules)
        if self.product is not None:
            for scope, each in self.product.of.items():
                module = group.modules.get(scope, group.one)
                norm = norm_of(module)
                self.product.of[scope] = each.with_prelu(module) if norm is None else each.with_norm(norm)


def _hosts(found: Arrangement, stated: Stated) -> list[_Host]:
    """In the order of the network."""
    last = found.head[-1] if found.head else found.layers[-1] if found.layers else None
    places: list[LayerPlace | ProductPlace] = [*found.before, *found.layers, *found.head]
    is_stated = stated.places is not None and len(stated.places) == len(places)
    return [
        _Host(
            one.name,
            one.width,
            one if isinstance(one, LayerPlace) else None,
            one if isinstance(one, ProductPlace) else None,
            one is last,
            stated.places[number] if is_stated and stated.places is not None else None,
        )
        for number, one in enumerate(places)
    ]


def _put_norms(found: Arrangement, groups: Sequence[ModuleGroup], stated: Stated) -> None:
    """Put norms and PReLUs where their names tell, and lists of them where they fit: numbered ones first, since one
    without a number may stand at any place that is left."""
    families: dict[str, list[ModuleGroup]] = {}
    for group in sorted(groups, key=lambda one: order_of(one.name)):
        if not _is_put_nearby(found, group, stated):
            families.setdefault(stem_of(group.name), []).append(group)
    for _, family in sorted(families.items(), key=lambda one: "#" not in one[0]):
        if not (_is_put_by_number(found, family, stated) or _is_put_in_order(found, family, stated)):
            found.unplaced += [key for group in family for key in group.tensors]


def _is_put_by_number(found: Arrangement, family: Sequence[ModuleGroup], stated: Stated) -> bool:
    """Put each behind the layer of its number: `bn2` behind `conv2`."""
    numbered = {
        last_number(one.name): one
        for one in _hosts(found, stated)
        if one.layer is not None and is_of_list(one.name) is is_of_list(family[0].name)
    }
    chosen = [numbered.get(last_number(group.name)) for group in family]
    pairs = [(one, group) for one, group in zip(chosen, family, strict=True) if one is not None]
    if len(pairs) < len(family) or not all(one.is_free_for(group) for one, group in pairs):
        return False
    for one, group in pairs:
        one.put(group)
    return True


def _is_put_nearby(found: Arrangement, group: ModuleGroup, stated: Stated) -> bool:
    """Put a module behind the one before it in a list, beside the only layer of a folder, or in an MLP with the product
    of its number."""
    hosts = _hosts(found, stated)
    stem, number, parent = stem_of(group.name), last_number(group.name), parent_of(group.name)
    listed = [one for one in hosts if "#" in stem and stem_of(one.name) == stem and last_number(one.name) < number]
    within = [one for one in hosts if parent and parent_of(one.name) == parent]
    beside = [one for one in hosts if parent_of(parent) and parent_of(parent_of(one.name)) == parent_of(parent)]
    if listed:
        chosen = [max(listed, key=lambda one: last_number(one.name))]
    elif len(within) == 1 and within[0].layer is not None:
        chosen = within
        layer, norm = within[0].layer, norm_of(group.one)
        is_other = norm is not None and within[0].width != norm.width == layer.inputs and not layer.norms
        if is_other and stated.places is None:
            layer.is_pre_activated = True
            layer.norms = {scope: one for scope, each in group.modules.items() if (one := norm_of(each)) is not None}
            return True
    elif all(one.product is not None for one in beside):
        chosen = [one for one in beside if last_number(one.name) == number]
    else:
        chosen = []
    if not chosen or not chosen[0].is_free_for(group):
        return False
    chosen[0].put(group)
    return True


def _is_put_in_order(found: Arrangement, family: Sequence[ModuleGroup], stated: Stated) -> bool:
    """Put a list: one behind each layer, or behind each but the last, or behind products before or behind them, too. A
    single one without a number is used behind every layer that it fits."""
    hosts = _hosts(found, stated)
    hidden = [one for one in hosts if one.layer is not None and (not one.is_last or stated.places is not None)]
    free_layers = [one for one in hidden if one.is_free_for(family[0])]
    if len(family) == 1 and last_number(family[0].name) < 0 and free_layers:
        for one in free_layers:
            one.put(family[0])
        if len(free_layers) > 1:
            names = ", ".join(one.name for one in free_layers)
            found.assumed.append(Assumption("layers", f"{family[0].name} stands behind {names}", "it is one"))
        return True
    free = [one for one in hosts if any(one.is_free_for(group) for group in family)]
    first = next((place for place, one in enumerate(free) if one.layer is not None), 0)
    starts = sorted(range(len(free) - len(family) + 1), key=lambda start: (start != first, start))
    slices = [free[start : start + len(family)] for start in starts]
    fitting = [
        chosen for chosen in slices if all(one.is_free_for(group) for one, group in zip(chosen, family, strict=True))
    ]
    if not fitting:
        return False
    for group, host in zip(family, min(fitting, key=lambda chosen: any(one.is_last for one in chosen)), strict=True):
        host.put(group)
    return True

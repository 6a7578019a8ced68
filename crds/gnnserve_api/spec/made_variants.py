"""Which variants are made of a model, listed or searched for, by what its networks read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from gnnserve_api.spec.channels import ChannelsTable
from gnnserve_api.spec.graph import GraphSpec
from gnnserve_api.spec.heterogeneous_rules import reads_products
from gnnserve_api.spec.model import Model
from gnnserve_api.spec.program import Program
from gnnserve_api.spec.pruning import DEFAULT_FACTORS, FactorChoice
from gnnserve_api.spec.searched import (
    SEARCHED_FACTORS,
    SEARCHED_HOPS,
    SearchSpace,
    sampled_fanouts,
    smaller_fanouts,
)
from gnnserve_api.spec.task import Task
from gnnserve_api.spec.variants import ProjectionMode, Variants
from gnnserve_api.variants import MAX_LAYERS


class _Spec(Protocol):
    """The parts of a GNNServiceSpec that say it."""

    graph: GraphSpec
    model: Model
    variants: Variants
    task: Task


@dataclass(frozen=True, slots=True)
class _ModelKind:
    """Models whose variants are made alike."""

    is_kind_of: Callable[[_Spec], bool]
    made: Callable[[_Spec], Variants]
    """The listed variants that are made."""
    space: Callable[[_Spec, tuple[int, ...]], SearchSpace]
    """What a search tries. The second argument: factors of columns, where networks read columns of features."""
    unread_factors: Callable[[_Spec], str] = lambda spec: ""
    """Why no variant is made of the listed factors, as a clause about fields of the spec; empty: some are."""


def made_variants(spec: _Spec) -> Variants:
    """Variants whose names are possible."""
    return _kind_of(spec).made(spec)


def why_no_factors(spec: _Spec) -> str:
    """Why nothing is made of spec.variants.pruning.factors, as a clause about fields of the spec; empty: variants are,
    or there are none."""
    return _kind_of(spec).unread_factors(spec) if spec.variants.pruning.factors else ""


def search_space(spec: _Spec, factors: tuple[int, ...] = SEARCHED_FACTORS) -> SearchSpace:
    """What a search tries of the model. `factors`: those of columns; a graph of few columns has not all of them."""
    return _kind_of(spec).space(spec, factors)


def possible_spaces(spec: _Spec) -> tuple[SearchSpace, ...]:
    """Search spaces of which a search has one. Whether rows of products of listed layers are narrower than features,
    and are tried in place of these, the graph tells."""
    space = search_space(spec)
    return (space,) if spec.model.layers is None else (space, replace(space, has_products=False))


def _kind_of(spec: _Spec) -> _ModelKind:
    return next(kind for kind in _KINDS if kind.is_kind_of(spec))


def _variants_of_whole_rows(spec: _Spec) -> Variants:
    """Variants of a model that reads all columns of its rows, and no product of them: a program, or embeddings of
    nodes, whose rows are stored as they are."""
    pruning = spec.variants.pruning.model_copy(update={"factors": (1,)})
    return spec.variants.model_copy(update={"pruning": pruning, "projection": ProjectionMode.DISABLED})


def _variants_of_listed(spec: _Spec) -> Variants:
    """Variants of listed layers: x1, those of fewer columns that a list asks for, which need networks of their own, and
    those that channels are pruned of, and products that are made of each node alone."""
    listed = () if spec.variants.is_searched or _unread_of_listed(spec) else spec.variants.pruning.factors
    factors = tuple(sorted({1, *listed, *_pruned_of_channels(spec)}))
    pruning = spec.variants.pruning.model_copy(update={"factors": factors})
    return spec.variants.model_copy(update={"pruning": pruning})


def _unread_of_listed(spec: _Spec) -> str:
    """As of `_unread_of_products`."""
    return _none_of_default_list(spec, {1, *spec.variants.pruning.factors}, "model.layers")


def _none_of_default_list(spec: _Spec, factors: Iterable[int], who: str) -> str:
    """The default list, which manifests have without saying so, makes none where it never made any: each factor needs
    another network."""
    if tuple(sorted(factors)) != DEFAULT_FACTORS or spec.variants.pruning.choice is not FactorChoice.ALL:
        return ""
    return (
        f"{who} makes no variants of the default list of factors; list others, as [1, 4, 16], or set "
        "variants.pruning.choice to Auto, which makes those that pay"
    )


def _pruned_of_channels(spec: _Spec) -> set[int]:
    """Factors of columns that networks with fewer channels are made of, and read the rows of."""
    return {one.column_factor for one in spec.variants.channels if one.table is ChannelsTable.FEATURES}


def _variants_of_products(spec: _Spec) -> Variants:
    """Variants of networks that read products of each relation: of factors of pruning, which need networks and tables
    of their own, those of a list that asks for fewer columns, and those that channels are pruned of; where links are
    scored, what the last layer gives is always stored, a row for each node."""
    listed = () if spec.variants.is_searched else spec.variants.pruning.factors
    is_made = max(listed, default=1) > 1 and not _unread_of_products(spec)
    factors = tuple(factor for factor in listed if is_made or factor in _pruned_of_channels(spec))
    pruning = spec.variants.pruning.model_copy(update={"factors": factors})
    stored = spec.task.asked().stored_layers(spec.variants.stored, len(spec.model.fanouts))
    return spec.variants.model_copy(update={"pruning": pruning, "stored": stored})


def _unread_of_products(spec: _Spec) -> str:
    """Reason why factors make no variants; empty: they make some."""
    if spec.variants.pruning.factors == (1,) and 1 not in _pruned_of_channels(spec):
        return "graph.source.typed makes no x1 alone, since projected computes the same; list others beside, as [1, 4]"
    return _none_of_default_list(spec, spec.variants.pruning.factors, "graph.source.typed")


def _unread_of_whole_rows(why: str) -> Callable[[_Spec], str]:
    """Reason of models whose rows are read whole: factors above 1 make nothing."""
    return lambda spec: why if max(spec.variants.pruning.factors) > 1 else ""


# --- what a search tries


def _space_of_program(spec: _Spec, factors: Sequence[int]) -> SearchSpace:
    """Storages of what it reads, fewer neighbours than it reads, and perceptrons that learn its scores."""
    fanouts = () if spec.model.program is None else fewer_neighbours(spec.model.program)
    return SearchSpace(spec.variants, factors=(1,), fanouts=fanouts, hops=_one_row_hops(spec))


def _space_of_listed(spec: _Spec, factors: Sequence[int]) -> SearchSpace:
    """Search space of listed layers: their features, and rows that are made of each node alone, or behind a layer."""
    layers = tuple(range(1, len(spec.model.layers or ()) + 1))
    return SearchSpace(
        spec.variants,
        factors=(1,),
        has_products=True,
        layers=layers,
        fanouts=smaller_fanouts(spec.model.fanouts),
        hops=_one_row_hops(spec),
    )


def fewer_neighbours(program: Program) -> tuple[tuple[int, ...], ...]:
    """Fan-outs that a search tries of a program; of each number of hops, where the program's folder says how many. None
    where layers count edges, which are right over whole lists alone."""
    if program.fanouts is not None:
        return smaller_fanouts(program.fanouts)
    hops = range(1, MAX_LAYERS + 1) if program.hops is None else [program.hops] * (program.hops <= MAX_LAYERS)
    return () if program.reads_degrees else tuple(fanouts for count in hops for fanouts in sampled_fanouts(count))


def _space_of_embeddings(spec: _Spec, factors: Sequence[int]) -> SearchSpace:
    """Storages: an answer is a row for each node, and their product."""
    return SearchSpace(spec.variants, factors=(1,))


def _space_of_products(spec: _Spec, factors: Sequence[int]) -> SearchSpace:
    """All columns are read as products: no x1, whose rows are wider where features are."""
    layers = len(spec.model.fanouts)
    return SearchSpace(
        spec.variants,
        factors=tuple(factor for factor in factors if factor > 1),
        has_products=True,
        layers=tuple(range(1, layers + 1)),
        fanouts=smaller_fanouts(spec.model.fanouts),
        hops=_one_row_hops(spec),
    )


def _one_row_hops(spec: _Spec) -> tuple[int, ...]:
    return spec.task.asked().one_row_hops(SEARCHED_HOPS, is_given=spec.model.is_given)


def _space_of_rows(spec: _Spec, factors: tuple[int, ...]) -> SearchSpace:
    model = spec.model
    return SearchSpace(
        spec.variants,
        factors=factors,
        has_products=True,
        layers=() if model.reads_one_row else tuple(range(1, len(model.fanouts) + 1)),
        fanouts=smaller_fanouts(model.fanouts),
        hops=_one_row_hops(spec),
    )


_KINDS = (
    _ModelKind(
        lambda spec: spec.model.layers is not None, _variants_of_listed, _space_of_listed, _unread_of_listed
    ),
    _ModelKind(
        lambda spec: spec.model.is_program, _variants_of_whole_rows, _space_of_program,
        _unread_of_whole_rows("model.program reads all columns of a row"),
    ),
    _ModelKind(
        lambda spec: spec.model.learns_embeddings, _variants_of_whole_rows, _space_of_embeddings,
        _unread_of_whole_rows("model.architecture LightGCN reads embeddings, and no columns"),
    ),
    _ModelKind(reads_products, _variants_of_products, _space_of_products, _unread_of_products),
    _ModelKind(lambda spec: True, lambda spec: spec.variants, _space_of_rows),
)  # fmt: skip
"""Listed layers; programs; embeddings of nodes; networks that read products of each relation; networks that read
rows of nodes. The first one counts that a model is of."""

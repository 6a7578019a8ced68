"""The variants that a search makes, as specs that a user could have listed: so every family makes them as it always
does, and their names are known before any is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gnnserve_api.spec.model import Model
from gnnserve_api.spec.variants import OneRow, Projection, Variants
from gnnserve_api.variants import Storage, one_row_name, variant_name

SEARCHED_FACTORS = (1, 2, 4, 8, 16)
"""Factors of pruned variants. x1 is the reference: the network as it was trained, made without training another."""
_HOPS = (0, 1, 2)
"""How often features are propagated for one-row variants."""
_SHARES = (2, 4)
"""What fan-outs are divided by."""


@dataclass(frozen=True, slots=True)
class Round:
    """Variants that are made together."""

    variants: Variants
    trains: str = ""
    """The variant, in float32, whose network must be trained before; empty: all are made of the first network."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.variants.listed_names(), *self.variants.optional_names())


def derived_rounds(variants: Variants, model: Model, factors: Sequence[int] = SEARCHED_FACTORS) -> tuple[Round, ...]:
    """What is made of the first network without training: x1 in float32; what has a product stored, or a layer, in
    every storage, and each of these with half and a quarter of the neighbours. `factors`: those that are searched."""
    reference = _listing(variants, factors=(1,), storage=(Storage.FLOAT32,), projection=Projection.DISABLED)
    layers = () if model.reads_one_row else tuple(range(1, len(model.fanouts) + 1))
    derived = _listing(
        variants,
        factors=(),
        storage=tuple(Storage),
        projection=Projection.AUTO,
        stored=layers,
        fanouts=smaller_fanouts(model.fanouts),
    )
    return (*((Round(reference),) if 1 in factors else ()), Round(derived))


def trained_rounds(variants: Variants, factors: Sequence[int] = SEARCHED_FACTORS) -> tuple[Round, ...]:
    """What needs networks of its own: pruned variants and one-row variants, in every storage."""
    listing = partial(_listing, variants, storage=tuple(Storage), projection=Projection.DISABLED)
    pruned = (Round(listing(factors=(factor,)), variant_name(factor)) for factor in factors if factor > 1)
    one_row = (Round(listing(factors=(), one_row=(OneRow(hops=hops),)), one_row_name(hops)) for hops in _HOPS)
    return (*pruned, *one_row)


def merged(variants: Variants, rounds: Sequence[Round]) -> Variants:
    """The variants of several trained rounds, made together: they may share tables."""
    return _listing(
        variants,
        factors=tuple(factor for each in rounds for factor in each.variants.pruning.factors),
        storage=tuple(Storage),
        projection=Projection.DISABLED,
        one_row=tuple(one for each in rounds for one in each.variants.one_row),
    )


def smaller_fanouts(fanouts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Half and a quarter of them, each once; none where all neighbours are read, or none."""
    if min(fanouts) < 1:
        return ()
    fewer = (tuple(max(1, fanout // share) for fanout in fanouts) for share in _SHARES)
    return tuple(dict.fromkeys(found for found in fewer if found != tuple(fanouts)))


def _listing(
    variants: Variants,
    factors: tuple[int, ...],
    storage: tuple[Storage, ...],
    projection: Projection,
    stored: tuple[int, ...] = (),
    fanouts: tuple[tuple[int, ...], ...] = (),
    one_row: tuple[OneRow, ...] = (),
) -> Variants:
    return variants.model_copy(
        update={
            "pruning": variants.pruning.model_copy(update={"factors": factors}),
            "storage": storage,
            "projection": projection,
            "stored": stored,
            "fanouts": fanouts,
            "one_row": one_row,
        }
    )

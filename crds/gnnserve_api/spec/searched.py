"""The variants that a search makes, as specs that a user could have listed: so every family makes them as it always
does, and their names are known before any is made. What there is to try of a model is its `SearchSpace`, which
`made_variants.py` hands out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gnnserve_api.spec.variants import OneRow, ProjectionMode, Variants
from gnnserve_api.variants import Storage, one_row_name, variant_name

SEARCHED_FACTORS = (1, 2, 4, 8, 16)
"""Factors of pruned variants. x1 is the reference: the network as it was trained, made without training another."""
SEARCHED_HOPS = (0, 1, 2)
"""How often features are propagated for one-row variants."""
_SHARES = (2, 4)
"""What fan-outs are divided by."""
_SAMPLED = (16, 8)
"""Fan-outs of each hop that are tried where all neighbours are read."""


@dataclass(frozen=True, slots=True)
class Round:
    """Variants that are made together."""

    variants: Variants
    trains: str = ""
    """The variant, in float32, whose network must be trained before; empty: all are made of the first network."""

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.variants.listed_names(), *self.variants.optional_names())


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Values that a search may try of a model."""

    variants: Variants
    """What the manifest says of variants that a search reads too."""
    factors: tuple[int, ...] = ()
    """Factors of the columns that networks read. 1: the network as it is; others need networks of their own."""
    has_products: bool = False
    """Whether the first layer's products can be stored: nothing is lost by that but rounding."""
    layers: tuple[int, ...] = ()
    """Layers that can be stored."""
    fanouts: tuple[tuple[int, ...], ...] = ()
    """Smaller fan-outs."""
    hops: tuple[int, ...] = ()
    """Hops of one-row variants, each of which needs a network of its own."""

    @property
    def derived_rounds(self) -> tuple[Round, ...]:
        """What is made of the first network without training: in every storage what has a product stored, or a layer,
        each with smaller fan-outs too, and x1 in float32 beside it; where no product is stored, x1 in all of them."""
        own = tuple(factor for factor in self.factors if factor == 1)
        if not self.has_products:
            return (Round(self._listing(factors=own, stored=self.layers, fanouts=self.fanouts)),)
        products = self._listing(projection=ProjectionMode.AUTO, stored=self.layers, fanouts=self.fanouts)
        reference = self._listing(factors=own, storage=(Storage.FLOAT32,))
        return (*((Round(reference),) if own else ()), Round(products))

    @property
    def trained_rounds(self) -> tuple[Round, ...]:
        """What needs networks of its own: pruned variants and one-row variants, in every storage."""
        pruned = (
            Round(self._listing(factors=(factor,)), variant_name(factor)) for factor in self.factors if factor > 1
        )
        one_row = (Round(self._listing(one_row=(OneRow(hops=hops),)), one_row_name(hops)) for hops in self.hops)
        return (*pruned, *one_row)

    @property
    def rounds(self) -> tuple[Round, ...]:
        """All of them, in the order in which a search makes them."""
        return (*self.derived_rounds, *self.trained_rounds)

    def merged(self, rounds: Sequence[Round]) -> Variants:
        """The variants of several trained rounds, made together: they may share tables."""
        return self._listing(
            factors=tuple(factor for each in rounds for factor in each.variants.pruning.factors),
            one_row=tuple(one for each in rounds for one in each.variants.one_row),
        )

    def _listing(
        self,
        factors: tuple[int, ...] = (),
        storage: tuple[Storage, ...] = tuple(Storage),
        projection: ProjectionMode = ProjectionMode.DISABLED,
        stored: tuple[int, ...] = (),
        fanouts: tuple[tuple[int, ...], ...] = (),
        one_row: tuple[OneRow, ...] = (),
    ) -> Variants:
        return self.variants.model_copy(
            update={
                "pruning": self.variants.pruning.model_copy(update={"factors": factors}),
                "storage": storage,
                "projection": projection,
                "stored": stored,
                "fanouts": fanouts,
                "one_row": one_row,
            }
        )


def smaller_fanouts(fanouts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Half and a quarter of them, each once; none where all neighbours are read, or none."""
    if min(fanouts) < 1:
        return ()
    fewer = (tuple(max(1, fanout // share) for fanout in fanouts) for share in _SHARES)
    return tuple(dict.fromkeys(found for found in fewer if found != tuple(fanouts)))


def sampled_fanouts(hops: int) -> tuple[tuple[int, ...], ...]:
    """Fan-outs of so many hops that are tried where all neighbours are read."""
    return tuple((fanout,) * hops for fanout in _SAMPLED) if hops else ()

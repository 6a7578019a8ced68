"""Families of variants: each has its own trade of accuracy for latency.

A variant is a table of rows to gather, the hops to sample before it, and the network to run over them; its family says
how these three differ from those of the model as it was trained. What is said here is for those who route, describe and
draw variants; how a family's variants are made is `generation/families/` of the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FamilyName(StrEnum):
    PRUNED = "pruned"
    """A prefix of the ranked feature columns, and a network for just these."""
    PROPAGATED = "propagated"
    """A prefix of the ranked columns of features that were propagated over the graph; no neighbours are sampled."""
    PROJECTED = "projected"
    """The first layer's product per node instead of features."""
    PROPAGATED_PROJECTED = "propagated-projected"
    """A row of scores per node, of features that were propagated over the graph."""
    STORED = "stored"
    """The first layer's output, over all neighbours, as the second layer's product per node."""
    STORED_DEEPER = "stored-deeper"
    """The same of a later layer; of the last one it is the scores."""
    STORED_DEEPER_FOLLOWING = "stored-deeper-following"
    """The same, with all that its rows are made of kept, so that it follows changes of the graph."""
    GIVEN = "given"
    """Feature columns and a network that the user has chosen and trained."""
    PROGRAM = "program"
    """All feature columns, and a program that the user has made, run by a process of its own."""
    FANOUTS = "fanouts"
    """A pruned variant's table and network, with fewer neighbours sampled."""
    PROJECTED_FANOUTS = "projected-fanouts"
    """A projected variant's table and network, with fewer neighbours sampled."""
    STORED_FANOUTS = "stored-fanouts"
    """A stored variant's table and network, with fewer neighbours sampled."""
    STORED_DEEPER_FANOUTS = "stored-deeper-fanouts"
    """The same of a later layer."""
    STORED_DEEPER_FOLLOWING_FANOUTS = "stored-deeper-following-fanouts"
    """The same of one that follows changes of the graph."""
    GIVEN_FANOUTS = "given-fanouts"
    """A given variant's table and network, with fewer neighbours sampled."""
    PROGRAM_FANOUTS = "program-fanouts"
    """A program's table and file, with fewer neighbours sampled."""
    CHANNELS = "channels"
    """A prefix of the ranked feature columns, and a network with fewer hidden channels."""
    CHANNELS_PROJECTED = "channels-projected"
    """The first layer's product of such a network, per node."""
    CHANNELS_STORED = "channels-stored"
    """The first layer's output of such a network, over all neighbours, as the second layer's product per node."""
    CHANNELS_FANOUTS = "channels-fanouts"
    """The table and network of a variant with fewer channels, with fewer neighbours sampled."""
    CHANNELS_PROJECTED_FANOUTS = "channels-projected-fanouts"
    """The same of one that reads products."""
    CHANNELS_STORED_FANOUTS = "channels-stored-fanouts"
    """The same of one whose first layer is stored."""
    ONE_ROW = "one-row"
    """A perceptron of its own over a node's features, whose first layer is stored per node."""
    PROPAGATED_ONE_ROW = "propagated-one-row"
    """The same over features beside those that were propagated over the graph."""
    CASCADE = "cascade"
    """Two variants: the second answers about nodes that the first is not sure of."""
    STORED_GRAPH_CASCADE = "stored-graph-cascade"
    """The same where one of the two answers about nodes of the stored graph alone."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a request may need beyond the graph as it was generated, and what a family can give."""

    overlay: bool = False
    """Nodes, features and edges that the request brings along."""
    changes: bool = False
    """Features and edges that have changed since."""
    instants: bool = False
    """The graph as it was at a moment that the request names."""
    embeddings: bool = False
    """The model's last hidden layer, beside the scores."""

    def cover(self, needed: Capabilities) -> bool:
        return (
            self.overlay >= needed.overlay
            and self.changes >= needed.changes
            and self.instants >= needed.instants
            and self.embeddings >= needed.embeddings
        )

    def both(self, other: Capabilities) -> Capabilities:
        """What is among these and among the others."""
        return Capabilities(
            self.overlay and other.overlay,
            self.changes and other.changes,
            self.instants and other.instants,
            self.embeddings and other.embeddings,
        )

    def in_words(self, article: str = "an") -> str:
        """What a request that needs these has: `an overlay and embeddings`."""
        parts = ((f"{article} overlay", self.overlay), ("embeddings", self.embeddings))
        return " and ".join(name for name, is_needed in parts if is_needed)


STORED_GRAPH = Capabilities()
"""Needed of every variant: answers about nodes of the graph as it was generated."""


@dataclass(frozen=True, slots=True)
class Family:
    name: FamilyName
    description: str
    """A few words for people that describe one of its variants."""
    capabilities: Capabilities
    is_asked_for: bool
    """Whether the manifest lists its variants. Others are added unasked, and kept only where no other variant is as
    accurate and as fast."""
    stores_product: bool
    """Whether a row of its tables is a layer's product, as wide as that layer's output. Otherwise it is feature
    columns, of which a variant reads a prefix. Cascades count as such: what a profile says of their rows is of the
    first of two tables."""
    spans_widths: bool
    """Whether its variants of one storage differ in nothing but the columns that they read, so that latency is a curve
    over columns."""
    stands_for_all_columns: bool = False
    """Whether it computes what the model does over all feature columns, without a table of these."""
    has_all_channels: bool = True
    """Whether its networks have as many hidden channels as the model, so that they compute as much per row."""


# What is propagated holds the neighbours of the graph as it was generated: such variants can follow nothing else.
# Other rows are made from features alone and neighbours are sampled for each request, so those variants can follow all.
_FOLLOWS_ALL = Capabilities(overlay=True, changes=True, instants=True, embeddings=True)
_FOLLOWS_ALL_ALONE = Capabilities(overlay=True, changes=True, instants=True)
"""A network of its own, whose hidden layer is not the model's."""
_FOLLOWS_NOTHING = Capabilities(embeddings=True)
# A stored first layer is corrected where an overlay reaches, and made anew where a change does; further layers reach
# too far for that. None has the last hidden layer: products of it are gathered in its place.
_FOLLOWS_OVERLAYS = Capabilities(overlay=True, changes=True)
_FOLLOWS_CHANGES = Capabilities(changes=True)
"""A change is carried on over as many hops as layers are stored, which is too much for a request's overlay."""

FAMILIES: Mapping[FamilyName, Family] = {
    family.name: family
    for family in (
        Family(
            FamilyName.PRUNED,
            description="reads the most important feature columns",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=True,
            stores_product=False,
            spans_widths=True,
        ),
        Family(
            FamilyName.PROPAGATED,
            description="reads columns of propagated features, and no neighbours",
            capabilities=_FOLLOWS_NOTHING,
            is_asked_for=True,
            stores_product=False,
            spans_widths=True,
        ),
        Family(
            FamilyName.PROJECTED,
            description="first layer stored per node: nothing lost but rounding",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=False,
            stores_product=True,
            spans_widths=False,
            stands_for_all_columns=True,
        ),
        Family(
            FamilyName.PROPAGATED_PROJECTED,
            description="scores stored per node: nothing lost but rounding",
            capabilities=_FOLLOWS_NOTHING,
            is_asked_for=False,
            stores_product=True,
            spans_widths=False,
            stands_for_all_columns=True,
        ),
        Family(
            FamilyName.STORED,
            description="first layer stored per node, over all neighbours",
            capabilities=_FOLLOWS_OVERLAYS,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.STORED_DEEPER,
            description="a later layer stored per node, over all neighbours",
            capabilities=STORED_GRAPH,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.STORED_DEEPER_FOLLOWING,
            description="a later layer stored per node, made anew where the graph changes",
            capabilities=_FOLLOWS_CHANGES,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.GIVEN,
            description="given, with feature columns of its own",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
        ),
        Family(
            FamilyName.PROGRAM,
            description="a program of your own, over all feature columns",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
        ),
        Family(
            FamilyName.FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
        ),
        Family(
            FamilyName.PROJECTED_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=False,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.STORED_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_OVERLAYS,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.STORED_DEEPER_FANOUTS,
            description="samples fewer neighbours",
            capabilities=STORED_GRAPH,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.STORED_DEEPER_FOLLOWING_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_CHANGES,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.GIVEN_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
        ),
        Family(
            FamilyName.PROGRAM_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_ALL,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
        ),
        Family(
            FamilyName.CHANNELS,
            description="reads feature columns; fewer hidden channels",
            capabilities=_FOLLOWS_ALL_ALONE,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
            has_all_channels=False,
        ),
        Family(
            FamilyName.CHANNELS_PROJECTED,
            description="fewer hidden channels, first layer stored per node",
            capabilities=_FOLLOWS_ALL_ALONE,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
            has_all_channels=False,
        ),
        Family(
            FamilyName.CHANNELS_STORED,
            description="fewer hidden channels, first layer stored per node, over all neighbours",
            capabilities=_FOLLOWS_OVERLAYS,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
            has_all_channels=False,
        ),
        Family(
            FamilyName.CHANNELS_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_ALL_ALONE,
            is_asked_for=True,
            stores_product=False,
            spans_widths=False,
            has_all_channels=False,
        ),
        Family(
            FamilyName.CHANNELS_PROJECTED_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_ALL_ALONE,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
            has_all_channels=False,
        ),
        Family(
            FamilyName.CHANNELS_STORED_FANOUTS,
            description="samples fewer neighbours",
            capabilities=_FOLLOWS_OVERLAYS,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
            has_all_channels=False,
        ),
        Family(
            FamilyName.ONE_ROW,
            description="a perceptron over the node's own features, one stored row",
            capabilities=_FOLLOWS_ALL_ALONE,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.PROPAGATED_ONE_ROW,
            description="a perceptron over propagated features, one stored row",
            capabilities=STORED_GRAPH,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.CASCADE,
            description="one variant answers, another one where it is not confident",
            capabilities=_FOLLOWS_OVERLAYS,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
        Family(
            FamilyName.STORED_GRAPH_CASCADE,
            description="one variant answers, another one where it is not confident",
            capabilities=STORED_GRAPH,
            is_asked_for=True,
            stores_product=True,
            spans_widths=False,
        ),
    )
}


class OfFamily(Protocol):
    """A variant, as a profile, a manifest or a report describes it."""

    @property
    def family(self) -> FamilyName: ...


def family_of(variant: OfFamily) -> Family:
    return FAMILIES[variant.family]


def cascade_of(first: OfFamily, then: OfFamily) -> FamilyName:
    """The family of a cascade of these two. None gives embeddings: the hidden layers of two networks differ."""
    follows = family_of(first).capabilities.both(family_of(then).capabilities)
    return FamilyName.CASCADE if follows.overlay else FamilyName.STORED_GRAPH_CASCADE

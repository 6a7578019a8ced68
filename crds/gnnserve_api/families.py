"""Variants as points on axes: each axis is one way to trade accuracy for latency.

A variant is a table of rows to gather, the hops to sample before it, and the network to run over them; its point says
how these differ from those of the model as it was trained. What routing, reports and pages ask of a variant follows
from its point, and so does its family: the word by which manifests, profiles and answers tell the point. How variants
are made is `generation/families/` of the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Protocol

from msgspec import Meta


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities of a variant beyond the graph as it was generated, and needs of a request."""

    overlay: bool = False
    """Nodes, features and edges that the request brings along."""
    changes: bool = False
    """Features and edges that have changed since."""
    embeddings: bool = False
    """The model's last hidden layer, beside the scores."""

    def cover(self, needed: Capabilities) -> bool:
        return (
            self.overlay >= needed.overlay and self.changes >= needed.changes and self.embeddings >= needed.embeddings
        )

    def both(self, other: Capabilities) -> Capabilities:
        """What is among these and among the others."""
        return Capabilities(
            self.overlay and other.overlay,
            self.changes and other.changes,
            self.embeddings and other.embeddings,
        )

    def in_words(self, article: str = "an") -> str:
        """What a request that needs these has: `an overlay and embeddings`."""
        parts = ((f"{article} overlay", self.overlay), ("embeddings", self.embeddings))
        return " and ".join(name for name, is_needed in parts if is_needed)


STORED_GRAPH = Capabilities()
"""Needed of every variant: answers about nodes of the graph as it was generated."""
CHANGED_GRAPH = Capabilities(changes=True)
"""Needed of every variant of a service with `spec.updates`: one that does not follow changes answers nothing there."""


class RowAxis(StrEnum):
    """Rows of the table."""

    FEATURES = "features"
    """Feature columns, of which a variant reads a prefix."""
    PRODUCTS = "products"
    """The product of the first layer."""
    HIDDEN = "hidden"
    """The output of a layer over all neighbours, as the next layer's product; of the last layer, the scores."""
    STAGES = "stages"
    """The rows of two other variants."""


class ColumnAxis(StrEnum):
    """Feature columns that rows are made of."""

    ALL = "all"
    RANKED = "ranked"
    """The first ones in the order of the ranking."""
    CHOSEN = "chosen"
    """Columns that the user has trained a network for."""


class ChannelAxis(StrEnum):
    """Hidden channels of the network."""

    ALL = "all"
    FEWER = "fewer"


class HopAxis(StrEnum):
    """Neighbours that are sampled for a request."""

    SAMPLED = "sampled"
    """As many as the model samples."""
    FEWER = "fewer"
    """Smaller fan-outs, over the table and the network of another variant."""
    PROPAGATED = "propagated"
    """None, since the features were propagated over the graph ahead of time."""
    OWN_ROW = "own row"
    """None: a node's own features are all that is read."""


class FollowAxis(StrEnum):
    """Changes that the rows are kept right for, beyond the graph as it was generated."""

    OVERLAYS = "overlays"
    """What a request brings along, and changes."""
    CHANGES = "changes"
    """Changes alone: rows are made anew over several hops by one layer, or an earlier release generated them."""
    NOTHING = "nothing"
    """Rows hold neighbours of the graph as it was generated, and what they are made of is not kept."""


class NetworkAxis(StrEnum):
    """Network that is run over the rows."""

    MODEL = "model"
    """Layers of the model."""
    PROGRAM = "program"
    """A program that the user has made, in a process of its own."""
    LISTED = "listed"
    """Layers that the manifest lists, with weights that the user has trained."""
    PERCEPTRON = "perceptron"
    """A perceptron of its own over one row per node."""
    CASCADE = "cascade"
    """The networks of two other variants: the second answers about nodes that the first is not sure of."""


@dataclass(frozen=True, slots=True)
class VariantPoint:
    rows: RowAxis
    columns: ColumnAxis = ColumnAxis.ALL
    channels: ChannelAxis = ChannelAxis.ALL
    hops: HopAxis = HopAxis.SAMPLED
    follows: FollowAxis = FollowAxis.OVERLAYS
    network: NetworkAxis = NetworkAxis.MODEL

    def propagated(self) -> VariantPoint:
        """The point over propagated features, whose neighbours are those of the graph as it was generated."""
        return replace(self, hops=HopAxis.PROPAGATED, follows=FollowAxis.NOTHING)

    @property
    def family(self) -> str:
        """The word for the point in manifests, profiles and answers: `channels-projected-fanouts`."""
        of_model, is_propagated = self.network is NetworkAxis.MODEL, self.hops is HopAxis.PROPAGATED
        is_hidden, follows = self.rows is RowAxis.HIDDEN, self.follows
        words = {
            "stored-graph": self.rows is RowAxis.STAGES and follows is FollowAxis.NOTHING,
            "propagated": is_propagated,
            "channels": self.channels is ChannelAxis.FEWER,
            "pruned": self.columns is ColumnAxis.RANKED and self.network is NetworkAxis.LISTED,
            "given": self.columns is ColumnAxis.CHOSEN,
            "projected": self.rows is RowAxis.PRODUCTS and (of_model or self.network is NetworkAxis.LISTED),
            "stored": is_hidden,
            "deeper": is_hidden and of_model and follows is not FollowAxis.OVERLAYS,
            "overlays": is_hidden and self.network is NetworkAxis.LISTED and follows is FollowAxis.OVERLAYS,
            "following": follows is FollowAxis.CHANGES or (is_propagated and follows is not FollowAxis.NOTHING),
            "program": self.network is NetworkAxis.PROGRAM,
            "layers": self.network is NetworkAxis.LISTED,
            "one-row": self.network is NetworkAxis.PERCEPTRON,
            "cascade": self.network is NetworkAxis.CASCADE,
            "fanouts": self.hops is HopAxis.FEWER,
        }
        return "-".join(word for word, is_said in words.items() if is_said) or "pruned"

    @property
    def description(self) -> str:
        """A few words for people that describe one of its variants."""
        is_propagated, is_narrow = self.hops is HopAxis.PROPAGATED, self.channels is ChannelAxis.FEWER
        is_product = self.rows is RowAxis.PRODUCTS
        features = "propagated features" if is_propagated else "the node's own features"
        product = "scores" if is_propagated else "first layer"
        narrow = "fewer hidden channels, " if is_narrow else ""
        told = (
            (self.hops is HopAxis.FEWER, "samples fewer neighbours"),
            (self.network is NetworkAxis.CASCADE, "one variant answers, another one where it is not confident"),
            (self.network is NetworkAxis.PROGRAM, "a program of your own, over all feature columns"),
            (self.network is NetworkAxis.LISTED, f"{_LISTED_LAYERS}, {narrow}{self._rows_of_listed}"),
            (self.network is NetworkAxis.PERCEPTRON, f"a perceptron over {features}, one stored row"),
            (self.columns is ColumnAxis.CHOSEN and is_product, "given, first layer stored per node"),
            (self.columns is ColumnAxis.CHOSEN, "given, with feature columns of its own"),
            (self.rows is RowAxis.HIDDEN, f"{narrow}{_STORED_LAYERS[self.follows]}"),
            (is_product and is_narrow, f"{narrow}first layer stored per node"),
            (is_propagated and self.follows is not FollowAxis.NOTHING, _FOLDED_ROWS),
            (is_product, f"{product} stored per node: nothing lost but rounding"),
            (is_propagated, "reads columns of propagated features, and no neighbours"),
            (is_narrow, "reads feature columns; fewer hidden channels"),
            (True, "reads the most important feature columns"),
        )
        return next(words for is_so, words in told if is_so)

    @property
    def _rows_of_listed(self) -> str:
        """Rows that layers of the manifest read, in a few words."""
        lost = ": nothing lost but rounding" if self.channels is ChannelAxis.ALL else ""
        told = (
            (self.rows is RowAxis.HIDDEN, _STORED_LISTED[self.follows]),
            (self.rows is RowAxis.PRODUCTS, f"what is of a node alone stored per node{lost}"),
            (self.columns is ColumnAxis.RANKED, "over the most important feature columns"),
            (True, "over all feature columns"),
        )
        return next(words for is_so, words in told if is_so)

    @property
    def capabilities(self) -> Capabilities:
        # Rows must be made from features alone for embeddings: behind a stored layer products of the last hidden layer
        # are gathered in its place. The hidden layer of a network of its own is not the model's.
        is_of_features = self.rows in {RowAxis.FEATURES, RowAxis.PRODUCTS}
        has_model_layers = self.network in {NetworkAxis.MODEL, NetworkAxis.PROGRAM, NetworkAxis.LISTED}
        return Capabilities(
            overlay=self.follows is FollowAxis.OVERLAYS,
            changes=self.follows is not FollowAxis.NOTHING,
            embeddings=is_of_features and has_model_layers and self.channels is ChannelAxis.ALL,
        )

    @property
    def reads_edges(self) -> bool:
        """Whether each answer rests on neighbours, drawn or in rows. Those of a cascade do where the stage's do."""
        return self.hops is not HopAxis.OWN_ROW and self.network is not NetworkAxis.CASCADE

    @property
    def has_all_channels(self) -> bool:
        """Whether its network has all hidden channels of the model's."""
        return self.channels is ChannelAxis.ALL

    @property
    def makes_rows_of_features(self) -> bool:
        """Whether rows of nodes that requests bring are made of their features. Embeddings that were learnt are made of
        those of other nodes."""
        return self.capabilities.overlay and self.hops is not HopAxis.PROPAGATED

    @property
    def runs_whole_model(self) -> bool:
        """Whether its network is the model's over all columns, or what is left of it behind stored rows: outputs of all
        such variants can be compared."""
        has_all = self.channels is ChannelAxis.ALL and self.columns is ColumnAxis.ALL
        return self.network is NetworkAxis.MODEL and has_all

    @property
    def is_asked_for(self) -> bool:
        """Whether the manifest lists its variants. Others are added unasked, and kept only where no other variant is as
        accurate and as fast."""
        is_equal = self.runs_whole_model or (self.network is NetworkAxis.LISTED and self.channels is ChannelAxis.ALL)
        return self.rows is not RowAxis.PRODUCTS or not is_equal

    @property
    def stores_product(self) -> bool:
        """Whether a row of its tables is a layer's product, as wide as that layer's output. Otherwise it is feature
        columns, of which a variant reads a prefix. Cascades count as such: what a profile says of their rows is of the
        first of two tables."""
        return self.rows is not RowAxis.FEATURES

    @property
    def reads_ranked_columns(self) -> bool:
        """Whether it reads the first of the ranked columns of nodes and their neighbours."""
        return self.columns is ColumnAxis.RANKED and self.hops is not HopAxis.PROPAGATED

    @property
    def spans_widths(self) -> bool:
        """Whether its variants of one storage differ in nothing but the columns that they read, so that latency is a
        curve over columns."""
        is_whole = self.channels is ChannelAxis.ALL and self.hops is not HopAxis.FEWER
        return self.columns is ColumnAxis.RANKED and is_whole

    @property
    def stands_for_all_columns(self) -> bool:
        """Whether it computes what the model does over all feature columns, without a table of these."""
        return not self.is_asked_for and self.hops is not HopAxis.FEWER


_MADE_ANEW = "made anew where the graph changes"
_STORED_LAYERS = {
    FollowAxis.OVERLAYS: "a layer stored per node, over all neighbours",
    FollowAxis.CHANGES: f"a layer stored per node, {_MADE_ANEW}",
    FollowAxis.NOTHING: "a later layer stored per node, over all neighbours",
}

_LISTED_LAYERS = "the layers that the manifest lists"
_STORED_LISTED = {
    FollowAxis.OVERLAYS: "the first ones stored per node, over all neighbours",
    FollowAxis.CHANGES: f"the first ones stored per node, {_MADE_ANEW}",
    FollowAxis.NOTHING: "the first ones stored per node, over all neighbours",
}
_FOLDED_ROWS = f"an embedding per node, {_MADE_ANEW}"

PRUNED = VariantPoint(RowAxis.FEATURES, ColumnAxis.RANKED)
"""A prefix of the ranked feature columns, and a network for just these."""
FOLDED = replace(PRUNED.propagated(), follows=FollowAxis.OVERLAYS)
"""Embeddings that were learnt of nodes, a row for each, made of those that a node is joined to where it has none."""
PROJECTED = VariantPoint(RowAxis.PRODUCTS)
"""The first layer's product per node instead of features."""
STORED = VariantPoint(RowAxis.HIDDEN)
"""A layer's output, over all neighbours, as the next layer's product per node."""
GIVEN = VariantPoint(RowAxis.FEATURES, ColumnAxis.CHOSEN)
"""Feature columns and a network that the user has chosen and trained."""
GIVEN_PRODUCTS = replace(GIVEN, rows=RowAxis.PRODUCTS)
"""A network that the user has trained, over products of its first layer."""
PROGRAM = VariantPoint(RowAxis.FEATURES, network=NetworkAxis.PROGRAM)
"""All feature columns, and a program that the user has made."""
LISTED = VariantPoint(RowAxis.FEATURES, network=NetworkAxis.LISTED)
"""All feature columns, and layers that the manifest lists."""
PRUNED_LISTED = replace(LISTED, columns=ColumnAxis.RANKED)
"""A prefix of the ranked feature columns, and layers that the manifest lists, with weights for just these."""
PROJECTED_LISTED = replace(LISTED, rows=RowAxis.PRODUCTS)
"""Rows made of each node alone before the first aggregation, and the layers that the manifest lists behind them."""
STORED_LISTED = replace(LISTED, rows=RowAxis.HIDDEN, follows=FollowAxis.NOTHING)
"""The output of the first of the layers that the manifest lists, over all neighbours, and the layers behind them."""
STORED_LISTED_FOLLOWING = replace(STORED_LISTED, follows=FollowAxis.CHANGES)
"""The same, whose rows are made anew where the graph changes."""
STORED_LISTED_OVERLAYS = replace(STORED_LISTED, follows=FollowAxis.OVERLAYS)
"""Layers which read neighbours and no further nodes: rows are made anew where requests reach, too."""
ONE_ROW = VariantPoint(RowAxis.PRODUCTS, hops=HopAxis.OWN_ROW, network=NetworkAxis.PERCEPTRON)
"""A perceptron over a node's own features, whose first layer is stored per node."""
CASCADE = VariantPoint(RowAxis.STAGES, network=NetworkAxis.CASCADE)
"""Two variants: the second answers about nodes that the first is not sure of."""


def _points() -> Iterator[VariantPoint]:
    """Every point that variants are made at, in the order of the profile."""
    deeper = replace(STORED, follows=FollowAxis.NOTHING)
    following = replace(STORED, follows=FollowAxis.CHANGES)
    of_models = (
        PRUNED, PRUNED.propagated(), FOLDED, PROJECTED, PROJECTED.propagated(), STORED, deeper, following, GIVEN,
        GIVEN_PRODUCTS, PROGRAM, LISTED, PRUNED_LISTED, PROJECTED_LISTED, STORED_LISTED, STORED_LISTED_FOLLOWING,
        STORED_LISTED_OVERLAYS,
    )  # fmt: skip
    listed = (LISTED, PRUNED_LISTED, PROJECTED_LISTED, STORED_LISTED_FOLLOWING, STORED_LISTED_OVERLAYS)
    narrowed = (PRUNED, PROJECTED, STORED, following, *listed)
    of_fewer_channels = [replace(point, channels=ChannelAxis.FEWER) for point in narrowed]
    for points in (of_models, of_fewer_channels):
        yield from points
        yield from (replace(point, hops=HopAxis.FEWER) for point in points if point.hops is HopAxis.SAMPLED)
    fixed_rows = ONE_ROW.propagated()
    yield from (ONE_ROW, fixed_rows, replace(fixed_rows, follows=FollowAxis.CHANGES))
    yield from (replace(CASCADE, follows=follows) for follows in FollowAxis)


POINTS: Mapping[str, VariantPoint] = {point.family: point for point in _points()}
"""Points by their families, in the order of the profile."""

Family = Annotated[str, Meta(pattern=f"^({'|'.join(POINTS)})$")]
"""A key of `POINTS`, as files have it."""


class OfFamily(Protocol):
    """A variant, as a profile, a manifest or a report describes it."""

    @property
    def family(self) -> str: ...


def point_of(variant: OfFamily) -> VariantPoint:
    return POINTS[variant.family]


def cascade_of(first: OfFamily, then: OfFamily) -> VariantPoint:
    """The point of a cascade of these two, which takes overlays and follows changes where both do."""
    able = point_of(first).capabilities.both(point_of(then).capabilities)
    changing = FollowAxis.CHANGES if able.changes else FollowAxis.NOTHING
    return CASCADE if able.overlay else replace(CASCADE, follows=changing)

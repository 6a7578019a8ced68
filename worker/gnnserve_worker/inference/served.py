"""The revision that a worker answers from, as the engine and the protocols see it.

Narrow, so that they can be tried without kernels or files: a manifest, a few facts and one function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import msgspec
import numpy as np

from gnnserve_api.classes import Classes
from gnnserve_api.errors import InputError
from gnnserve_api.families import STORED_GRAPH, Capabilities, family_of
from gnnserve_api.provenance import Provenance, provenance_of
from gnnserve_api.repository import NodeIdKind, RevisionManifest
from gnnserve_api.routing import RoutingTable
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_api.tiers import points_of, stated_tiers
from gnnserve_api.typed import TypedGraphManifest, TypeManifest
from gnnserve_worker.graph.ids import NodeIds
from gnnserve_worker.graph.living_ids import LivingIds, look_up_one
from gnnserve_worker.graph.living_typed import LivingTypedGraph
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.inference.batch import Infer, infer_batch, warm_up
from gnnserve_worker.inference.cascade import with_cascades
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.inference.index_follower import IndexFollower, reach_of
from gnnserve_worker.inference.links import ServedLinks, served_links
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.overlay_support import (
    OverlaySupport,
    TypedOverlaySupport,
    overlay_support,
    typed_support,
    why_no_overlays,
)
from gnnserve_worker.inference.thresholds import decisive_scores
from gnnserve_worker.nearest.parts import index_parts
from gnnserve_worker.nearest.revision_index import RevisionIndex
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.repository.watched import WatchedFiles
from gnnserve_worker.sampling.repeats import most_by_hop

MEAN_OVER_NODES = "accuracy"
"""The metric of a profile that is a mean over nodes, so that a stream of labelled nodes can be compared with it."""
_MOST_HELD_OUT = 2000
_CHANGED_GRAPH = Capabilities(changes=True)


class TableError(InputError):
    """A routing table asks for variants that its revision does not have: correct the table, or the manifest."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Nodes that took no part in training, with their labels."""

    nodes: np.ndarray
    """int64, positions in the graph."""
    truths: np.ndarray
    """int64 [nodes], classes; or uint8 [nodes, classes] where nodes may have several."""


@dataclass(frozen=True, slots=True)
class ServedRevision:
    manifest: RevisionManifest
    nodes: int
    """Positions of nodes are below it. Where the graph changes, room for new nodes is counted."""
    classes: Classes
    """The graph's own label of each score column."""
    multi_label: bool
    provenance: Provenance
    infer: Infer
    """Runs a batch; one thread at a time may call it."""
    warm_up: Callable[[], None]
    """Run once, before the first batch."""
    ids: NodeIds | LivingIds | None = None
    """Ids by which requests name nodes; None: their positions, 0 to nodes - 1."""
    types: TypedGraphManifest | None = None
    """Types of nodes and relations, as the revision has them; `nodes` and `ids` are of the type that is classified.
    None: nodes have one type, or links join types (`joins_types`), whose nodes are called by texts with their types."""
    type_ids: Mapping[str, NodeIds | LivingIds | None] = field(default_factory=dict)
    """`ids` of each type of `numbered_types`."""
    files: WatchedFiles | None = None
    """Files that the revision is mapped from; None: none that could change."""
    device_stats: Callable[[], DeviceStats] = lambda: ON_CPU
    """State of the device on which `infer` computes now. Any thread may call it; it is quick."""
    forget_copies: Callable[[], None] = lambda: None
    """Its files are as they were verified, and may have been something else meanwhile: what was copied out of them
    since it was loaded is copied again, and no batch that begins later reads an older copy. From any thread but that
    of `infer`, whose batch it waits for."""
    would_gain: Callable[[], bool] = lambda: False
    """Whether it would have more of its device's memory, were it loaded again beside itself: another revision had that
    as this one was loaded, and has given it back. From any thread, and quickly."""
    overlays: OverlaySupport | None = None
    """None: requests cannot bring anything along, and `no_overlays` says why."""
    no_overlays: str = ""
    typed_overlays: TypedOverlaySupport | None = None
    """The same of a graph of several types, whose requests have another form, in JSON alone; `overlays` is None then.
    """
    replica: LivingRevision | None = None
    """What applies changes to it; None: its graph stays as it is."""
    applied_offset: Callable[[], int] | None = None
    """The offset of the log of changes that its graph has now; a batch that begins later sees at least that. From any
    thread, and quickly. None: the graph does not change."""
    is_gone: np.ndarray | None = None
    """Whether the node at that position has left the graph, bool; any thread may read it. None: nodes do not leave."""
    would_wait: Callable[[], bool] = lambda: False
    """Whether a batch would wait now for changes that are being applied. From any thread, and quickly."""
    held_out: HeldOut | None = None
    """What accuracy in service is compared with where the profile's metric is no mean over nodes; None: the profile's,
    or there are no such nodes."""
    links: ServedLinks | None = None
    """What makes scores of pairs; None: nodes are classified."""
    indexes: tuple[RevisionIndex, ...] = ()
    """Those that recommendations are found in, of the nodes that may be recommended; empty: it has no place for any."""
    index_follower: IndexFollower | None = None
    """What is computed beside the index where the graph changes; None: it does not, or there is no place for an index.
    """
    neighbours_of: Callable[[int], np.ndarray] | None = None
    """Positions in the neighbour list of a stored node, as it is now, int32; over several types, numbers of the nodes
    that it reads by any relation. None: the graph is not known."""
    readers_of: Callable[[int], np.ndarray] | None = None
    """Positions of the nodes whose neighbour lists name a stored node, int64; all lists are looked through for it.
    None: the graph is not known, has several types or changes."""
    lists_by_relation: Callable[[int], Sequence[tuple[int, np.ndarray]]] | None = None
    """What a stored node (its number) of a graph of several types reads by each relation of its type, as it is now: the
    relation's place, and numbers of nodes, int32. None: nodes have one type."""
    labels: np.ndarray | None = None
    """Labels of stored nodes as the graph's source has them: int64 [nodes], classes, -1 where unknown; or uint8 [nodes,
    classes]. Mapped."""
    most_embedding_columns: int = field(init=False)
    """Largest width of embeddings, over all variants."""
    most_drawn_per_seed: float = field(init=False)
    """Most rows that a variant gathers for a seed; infinite where it reads whole neighbourhoods."""
    class_ids: np.ndarray = field(init=False)
    """`classes` as int64; empty where they are texts."""
    joins_types: bool = field(init=False)
    """Whether links join nodes of types, which their ids name: user/17."""
    has_text_ids: bool = field(init=False)
    class_texts: tuple[bytes, ...] = field(init=False)
    """`classes` as JSON; empty where they are integers."""
    thresholds: Mapping[str, np.ndarray] = field(init=False)
    """`VariantManifest.thresholds` as float32, by variant; empty where no variant has any."""

    first_new: int = field(init=False)
    """Nodes that requests bring are numbered from it on: behind all nodes, those of other types among them."""
    has_embeddings: bool = field(init=False)
    """Whether a variant can give its last hidden layer: a network of one layer has none."""
    capabilities: Mapping[str, Capabilities] = field(init=False)
    """What each variant can give that not every request needs."""
    tier_permille: Mapping[str, int] = field(init=False)
    """By variant, the accuracy tolerance from which on it answers; without those that never do."""

    def __post_init__(self) -> None:
        columns = max(variant.network.embedding_columns for variant in self.manifest.variants)
        object.__setattr__(self, "most_embedding_columns", columns)
        drawn = {variant.name: _most_drawn(variant.fanouts) for variant in self.manifest.variants}
        most_drawn = max([*drawn.values(), *(drawn[one.first] + drawn[one.then] for one in self.manifest.cascades)])
        object.__setattr__(self, "most_drawn_per_seed", most_drawn)
        types = self.numbered_types
        object.__setattr__(self, "first_new", self.nodes if types is None else types.first_nodes[-1])
        joins_types = self.links is not None and bool(self.links.manifest.first.type)
        object.__setattr__(self, "joins_types", joins_types)
        object.__setattr__(self, "has_text_ids", self.node_ids is NodeIdKind.STRINGS)
        are_texts = bool(self.classes) and isinstance(self.classes[0], str)
        object.__setattr__(self, "class_ids", np.array([] if are_texts else self.classes, np.int64))
        object.__setattr__(self, "class_texts", tuple(map(msgspec.json.encode, self.classes)) if are_texts else ())
        thresholds = {
            variant.name: np.array(variant.thresholds, np.float32)
            for variant in self.manifest.variants
            if variant.thresholds is not None
        }
        object.__setattr__(self, "thresholds", thresholds)
        tiers = stated_tiers(points_of(self.manifest.profile))
        bare = {variant.name for variant in self.manifest.variants if not variant.network.embedding_columns}
        gives = {v.name: family_of(v).capabilities for v in self.manifest.profile.variants}
        gives |= {name: replace(gives[name], embeddings=False) for name in bare if name in gives}
        object.__setattr__(self, "capabilities", gives)
        object.__setattr__(self, "has_embeddings", any(each.embeddings for each in gives.values()))
        by_variant = {within.point.name: permille for permille, within in tiers.items()}
        object.__setattr__(self, "tier_permille", by_variant)

    def decisive_scores(self, variant: str, scores: np.ndarray) -> np.ndarray:
        """Scores of that variant as labels are decided by them."""
        return decisive_scores(scores, self.thresholds.get(variant)) if self.thresholds else scores

    @property
    def needed(self) -> Capabilities:
        """What a variant must be capable of to answer at all."""
        return STORED_GRAPH if self.replica is None else _CHANGED_GRAPH

    @property
    def numbered_types(self) -> TypedGraphManifest | None:
        """`types` as nodes are numbered: where the graph changes, room for new nodes of each type is counted."""
        return self.types if self.typed_overlays is None else self.typed_overlays.graph

    @property
    def node_count(self) -> int:
        """How many nodes the graph has."""
        return self.nodes if self.replica is None else self.replica.nodes

    @property
    def node_ids(self) -> NodeIdKind:
        return NodeIdKind.POSITIONS if self.ids is None else self.ids.kind

    def shown_ids(self, start: int, end: int) -> list[int | str]:
        """Ids of the nodes at positions start to end - 1, as far as they exist."""
        return _shown(self.ids, self.nodes, start, end)

    def shown_ids_of(self, kind: TypeManifest, start: int, end: int) -> list[int | str]:
        """The same of one of `types`."""
        ids = self.type_ids[kind.name]
        return _shown(ids, ids.count if isinstance(ids, LivingIds) else kind.nodes, start, end)

    def nodes_of(self, kind: TypeManifest) -> int:
        """How many nodes of one of `types` the graph has."""
        ids = self.type_ids[kind.name]
        return ids.nodes if isinstance(ids, LivingIds) else kind.nodes

    def ids_of(self, kind: TypeManifest) -> NodeIdKind:
        """What nodes of one of `types` are called by."""
        ids = self.type_ids[kind.name]
        return ids.kind if isinstance(ids, LivingIds) else NodeIdKind(kind.node_ids)

    def check(self, table: RoutingTable) -> None:
        """Raises TableError where the table routes to variants that do not exist here. Their costs do no harm."""
        known = [variant.name for variant in self.manifest.profile.variants]
        wanted = [*table.weights] if table.base_variant is None else [table.base_variant, *table.weights]
        if unknown := [name for name in wanted if name not in known]:
            raise TableError(
                f"routing mode {table.mode}",
                f"revision {self.manifest.revision} has no variant {', '.join(unknown)}",
                f"choose from {', '.join(known)}",
            )


def _shown(ids: NodeIds | LivingIds | None, nodes: int, start: int, end: int) -> list[int | str]:
    end = min(end, nodes)
    if start >= end:
        return []
    return [*(range(start, end) if ids is None else ids.shown(start, end))]


def _most_drawn(fanouts: tuple[int, ...]) -> float:
    if FULL_NEIGHBOURHOOD in fanouts:
        return math.inf
    return sum(most_by_hop(fanouts))


def served_revision(loaded: LoadedRevision, replica: LivingRevision | None = None) -> ServedRevision:
    """`replica`: what applies changes to it, where it was opened for them."""
    if loaded.manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    no_overlays = why_no_overlays(loaded.manifest, is_typed=loaded.graph.schema.has_names)
    infer = with_cascades(partial(infer_batch, loaded), loaded.manifest.cascades)
    indexes = _indexes_of(loaded, loaded.manifest)
    edges = loaded.graph.edges if replica is None else replica.first_edges
    return ServedRevision(
        manifest=loaded.manifest,
        nodes=loaded.answered_nodes,
        classes=loaded.classes,
        multi_label=loaded.multi_label,
        provenance=provenance_of(
            loaded.manifest,
            loaded.source,
            edges,
            len(loaded.splits.train),
            loaded.graph.schema.relations,
        ),
        infer=infer if replica is None else replica.guarded(infer),
        warm_up=partial(_warm_up, loaded),
        ids=loaded.ids if replica is None else replica.graph.ids,
        typed_overlays=typed_support(loaded),
        types=_types_of(loaded),
        type_ids=_type_ids_of(loaded),
        replica=replica,
        applied_offset=None if replica is None else lambda: replica.offset,
        is_gone=None if replica is None else replica.graph.is_gone,
        would_wait=(lambda: False) if replica is None else lambda: replica.is_busy,
        files=loaded.files,
        overlays=None if no_overlays else overlay_support(loaded, loaded.manifest),
        no_overlays=no_overlays,
        held_out=_held_out(loaded, loaded.manifest),
        links=served_links(loaded.manifest, loaded.decoder),
        indexes=indexes,
        index_follower=None if replica is None or not indexes else IndexFollower(replica, indexes[0], reach_of(loaded)),
        neighbours_of=loaded.graph.list_of,
        readers_of=loaded.graph.readers_of if replica is None and isinstance(loaded.graph, Graph) else None,
        lists_by_relation=(
            loaded.graph.lists_by_relation if loaded.graph.schema.has_names and loaded.decoder is None else None
        ),
        labels=loaded.labels,
    )


def _types_of(loaded: LoadedRevision) -> TypedGraphManifest | None:
    if loaded.decoder is not None:  # its nodes have one numbering, and ids with their types
        return None
    if isinstance(loaded.living, LivingTypedGraph):
        return loaded.living.stored
    return loaded.graph.schema if loaded.graph.schema.has_names else None


def _type_ids_of(loaded: LoadedRevision) -> Mapping[str, NodeIds | LivingIds | None]:
    if isinstance(loaded.living, LivingTypedGraph):
        return {kind.name: ids for kind, ids in zip(loaded.living.stored.types, loaded.living.ids_of, strict=True)}
    return loaded.type_ids


def _indexes_of(loaded: LoadedRevision, manifest: RevisionManifest) -> tuple[RevisionIndex, ...]:
    if loaded.folder is None:
        return ()
    # Where the graph changes, nodes are counted as they were published.
    answered = len(loaded.labels) if manifest.links is None else loaded.answered_nodes
    indexes = tuple(
        RevisionIndex(loaded.folder, manifest.revision, part)
        for part in index_parts(manifest.links, loaded.answered_type, answered)
    )
    for index in indexes:
        index.look()
    return indexes


def _held_out(loaded: LoadedRevision, manifest: RevisionManifest) -> HeldOut | None:
    """Evenly spread test nodes, or validation nodes where there are none."""
    if manifest.profile.metric == MEAN_OVER_NODES or manifest.links is not None:
        return None
    nodes = loaded.splits.test if len(loaded.splits.test) else loaded.splits.validation
    if not len(nodes):
        return None
    places = np.linspace(0, len(nodes) - 1, min(len(nodes), _MOST_HELD_OUT)).astype(np.int64)
    spread = np.asarray(nodes[places], np.int64)
    truths = np.array(loaded.labels[spread])
    is_known = np.ones(len(spread), bool) if truths.ndim == 2 else truths >= 0
    return HeldOut(spread[is_known], truths[is_known])


def _warm_up(loaded: LoadedRevision) -> None:
    warm_up(loaded)
    ids = loaded.ids if loaded.living is None else loaded.living.ids
    if ids is not None:
        look_up_one(ids)

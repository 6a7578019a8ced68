"""The serving path over made-up revisions of every kind, and training's sampler, for the sake of what they compile.

They are published and loaded as any other, because kernels are compiled for the arrays that they are given: mapped ones
are read-only, which is a type of its own. What a machine would not do by itself, here it does all the same: an image
is built where it will not serve.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from gnnserve_api.files.repository import NetworkManifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD, NO_NEIGHBOURS, Architecture, Model
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeCounts
from gnnserve_worker.graph.change_ids import TEXTS_WITH_TYPES, IntegerIds
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.graph.living_lists import living_lists
from gnnserve_worker.graph.relation_lists import places_of_one_type
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.inference.living import LivingRevision
from gnnserve_worker.inference.made_up import (
    MadeUpVariant,
    made_up_graph,
    made_up_types,
    publish_made_up,
    publish_made_up_types,
)
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.layers.rehearsal import rehearse_layers
from gnnserve_worker.models import blas
from gnnserve_worker.models.binary import warm_up_binary
from gnnserve_worker.models.nonzero import LEAST_INPUTS, NonzeroProduct
from gnnserve_worker.models.pair_queries import warm_up_sums
from gnnserve_worker.models.registry import OF_ONE_TYPE, RELATIONAL, spec_of
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.programs.numbering import number_sample, own_weights, relations_of
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.sampling.neighbours import NeighbourSample, SampleWeights, Scratch, sample_neighbours
from gnnserve_worker.sampling.padded import PadScratch, TreeArrays, TreeShares, pad_sample
from gnnserve_worker.sampling.subgraph import SubgraphSampler
from gnnserve_worker.staleness.movement import Movement
from gnnserve_worker.staleness.stale_rows import StaleRows
from gnnserve_worker.tables.table import Aggregator

_NODES, _DEGREE, _COLUMNS, _HIDDEN, _CLASSES = 100, 5, 24, 16, 3
_FANOUTS = ((3, 2), (3,), (FULL_NEIGHBOURHOOD, FULL_NEIGHBOURHOOD))
_SEEDS = (1, 2, 64)
_DELTA_BYTES = 1 << 20


class Half(StrEnum):
    """Halves that take about as long. Two processes may rehearse them side by side."""

    ANSWERING = "answering"
    """Graphs of one type that stay as they are, and training."""
    CHANGING = "changing"
    """Graphs that change, and those of several types."""


def rehearse(*halves: Half) -> None:
    """Everything that any revision may make serving do, and the sampling of any training; or these halves of it."""
    _compute_in_bfloat16_anywhere()
    for half in halves or Half:
        with tempfile.TemporaryDirectory(prefix="gnnserve-rehearsal-") as folder:
            _HALVES[half](Path(folder))


def rehearse_changes(graph: str, architecture: Architecture, tables: Collection[str]) -> None:
    """What changes of the graph do to a revision of that architecture. `graph`: a key of `_CHANGED`. `tables`: of its
    variants, as `MadeUpVariant.table` names them."""
    # What rows of the others are made of.
    needed = {*tables, f"features-{Storage.FLOAT32}", f"projected-{Storage.FLOAT32}"}
    variants = [variant for variant in _variants() if variant.table in needed and variant.compute == "float32"]
    with tempfile.TemporaryDirectory(prefix="gnnserve-rehearsal-") as folder:
        _CHANGED[graph](Path(folder), architecture, variants)


def _answer(root: Path) -> None:
    _sample_for_training()
    _lay_out_for_gpus()
    _number_for_programs()
    NonzeroProduct.build(np.zeros((LEAST_INPUTS, 1), np.float32), np.zeros(1, np.float32), None, None)
    warm_up_binary()
    warm_up_sums()
    rehearse_layers()
    _infer(_revisions(root))


def _change(root: Path) -> None:
    _mark_stale_rows()
    _infer(_revisions_over_types(root))
    _change_graphs_of_types(root)
    _change_graphs(root)


_HALVES: Mapping[Half, Callable[[Path], None]] = {Half.ANSWERING: _answer, Half.CHANGING: _change}


def _infer(revisions: Iterator[LoadedRevision]) -> None:
    for revision in revisions:
        served_revision(revision).compute.warm_up()
        for variant in revision.variants:
            for count in _SEEDS:
                seeds = np.arange(count, dtype=np.int64)
                infer_batch(revision, variant, seeds, key=0)
                # As they come out of the body of a request.
                infer_batch(revision, variant, np.frombuffer(seeds.tobytes(), dtype=np.int64), key=0)


def _change_graphs(root: Path) -> None:
    """Everything that a revision of each architecture does where its graph changes."""
    for architecture in OF_ONE_TYPE:
        replica = _change_graph(root, architecture, _variants())
        # As compaction writes it.
        replica.make_stored_rows_anew()
        kept = replica.graph.kept
        replica.graph.lists.of_these(kept)
        replica.graph.ids.of_these(kept)


def _change_graph(root: Path, architecture: Architecture, variants: Sequence[MadeUpVariant]) -> LivingRevision:
    """A revision that has answered and been changed."""
    graph = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES)
    repository, revision = _publish(root, architecture, graph, _FANOUTS[0], variants)
    loaded = load_revision(repository, revision, _DELTA_BYTES)
    replica = LivingRevision(loaded, _DELTA_BYTES)
    served_revision(loaded, replica).compute.warm_up()
    counts = ChangeCounts(new_nodes=1, overrides=1, edges=1, removed_edges=1, removed_nodes=1)
    ids = IntegerIds(np.array([_NODES, 2, 0, _NODES, 0, _NODES, 1]))
    replica.apply(1, [ChangeBatch(counts, ids, np.zeros((2, _COLUMNS), np.float32))])
    # As where a list is very long.
    replica.graph.lists.follow(replica.drafting.graph.lists, np.arange(2), most_brief=0)
    return replica


def _change_made_up_types(root: Path, architecture: Architecture, variants: Sequence[MadeUpVariant]) -> None:
    _change_graph_of_types(*_publish_over_types(root, architecture, variants))


_CHANGED: Mapping[str, Callable[[Path, Architecture, Sequence[MadeUpVariant]], object]] = {
    "one-type": _change_graph,
    "by-type": _change_made_up_types,
}
"""A revision over a graph of each kind, published and changed."""


def _change_graphs_of_types(root: Path) -> None:
    """The same over graphs of several types."""
    for architecture in RELATIONAL:
        repository = Repository(root, "rehearsal", _name_over_types(architecture))
        _change_graph_of_types(repository, repository.revisions()[0].revision)


def _change_graph_of_types(repository: Repository, revision: str) -> None:
    loaded = load_revision(repository, revision, _DELTA_BYTES)
    replica = LivingRevision(loaded, _DELTA_BYTES)
    served_revision(loaded, replica).compute.warm_up()
    counts = ChangeCounts(new_nodes=1, overrides=1, edges=1, removed_edges=1, removed_nodes=1)
    edge = ["user/3", "buys", f"item/{_NODES}"]
    ids = TEXTS_WITH_TYPES.lay_out([f"item/{_NODES}", "user/2", *edge, *edge, "user/1"])
    replica.apply(1, [ChangeBatch(counts, ids, np.zeros((2, _COLUMNS), np.float32))])
    replica.graph.lists.follow(replica.drafting.graph.lists, np.arange(2), most_brief=0)


def _sample_for_training() -> None:
    """From arrays in memory, not mapped ones: a graph is trained on before it is published."""
    graph = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES).graph
    SubgraphSampler(graph.indptr, graph.indices, weighted=True).sample(np.arange(2, dtype=np.int64), (2,), key=0)


def _mark_stale_rows() -> None:
    """As where stored layers may be stale, with what neighbours weigh and without."""
    graph, nodes = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES).graph, np.arange(2)
    lists = living_lists(graph.indptr, graph.indices, np.zeros((_NODES, 2), np.int64), np.zeros(_NODES, np.int32))
    rows = StaleRows(_NODES)
    for roots in (None, np.ones(_NODES, np.float32)):
        movement = Movement(lists, lists, places_of_one_type(_NODES), roots)
        rows.mark(*movement.of_first_layer(np.zeros((1, 2), np.int64), nodes, nodes))


def _lay_out_for_gpus() -> None:
    """A sample as GPUs take it, with what neighbours weigh and without."""
    one, starts = np.zeros(1, np.int32), np.array([0, 1])
    shares = TreeShares(np.zeros(2, np.float32), np.zeros(1, np.float32))
    tree = TreeArrays.over((1,), 1, np.zeros(2, np.int32), np.zeros(1, np.int32), shares)
    sample = NeighbourSample((1,), one, starts, one.copy(), one.copy(), None, starts, np.ones(1, np.int64))
    weighed = msgspec.structs.replace(sample, weights=SampleWeights(np.ones(1, np.float32), np.ones(1, np.float32)))
    for each in (sample, weighed):
        pad_sample(each, tree, PadScratch())


def _number_for_programs() -> None:
    """A sample as programs take it, whose arrays are the same whatever the types and views."""
    graph = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES).graph
    seeds = np.arange(2, dtype=np.int64)
    sample = sample_neighbours(graph.indptr, graph.indices, seeds, (2, 2), 0, Scratch(), share=True)
    numbered = number_sample(sample, relations_of(graph.schema))
    own_weights(numbered, sample.starts, np.ones(len(sample.nodes), np.float32))


def _compute_in_bfloat16_anywhere() -> None:
    """Compute in bfloat16 even on a processor that is slow at it: where the image serves it may be fast."""
    has_mkl = blas.mkl() is not None
    blas.has_fast_bfloat16 = lambda: has_mkl  # type: ignore[assignment]


def _revisions(root: Path) -> Iterator[LoadedRevision]:
    plain = made_up_graph(_NODES, _DEGREE, _COLUMNS, _CLASSES)
    # Not another revision for each kind of ids: what finds nodes knows nothing of networks.
    ids = (None, integer_ids(np.arange(_NODES)), string_ids(*lay_out([f"node {i}" for i in range(_NODES)])))
    graphs = [plain.with_ids(found) for found in ids]
    for architecture in OF_ONE_TYPE:
        for graph, sampled in zip(graphs, _FANOUTS, strict=True):
            repository, revision = _publish(root, architecture, graph, sampled, _variants())
            yield load_revision(repository, revision)


def _publish(
    root: Path,
    architecture: Architecture,
    graph: GraphData,
    sampled: tuple[int, ...],
    variants: Sequence[MadeUpVariant],
) -> tuple[Repository, str]:
    """A revision of the architecture with those of the variants that it can have: its repository and its name."""
    fanouts = NO_NEIGHBOURS if spec_of(architecture).aggregator is Aggregator.NONE else sampled
    repository = Repository(root, "rehearsal", _name_of(architecture, sampled))
    network = Model(architecture=architecture, hidden=_HIDDEN, fanouts=fanouts).network(_CLASSES)
    network = _with_several_heads(network)
    # A stored layer leaves another one.
    able = [variant for variant in variants if variant.kind != "stored" or network.layers > 1]
    return repository, publish_made_up(repository, graph, network, able).revision


def _revisions_over_types(root: Path) -> Iterator[LoadedRevision]:
    """Over graphs of several types, one of each architecture."""
    for architecture in RELATIONAL:
        yield load_revision(*_publish_over_types(root, architecture, _variants()))


def _publish_over_types(
    root: Path, architecture: Architecture, variants: Sequence[MadeUpVariant]
) -> tuple[Repository, str]:
    """As `_publish`, over several types. Stored layers are left out: their rows are read as those of projected tables
    are."""
    data = made_up_types(_NODES, _DEGREE, _COLUMNS, _CLASSES)
    repository = Repository(root, "rehearsal", _name_over_types(architecture))
    network = Model(architecture=architecture, hidden=_HIDDEN, fanouts=_FANOUTS[0]).network(_CLASSES)
    network = _with_several_heads(network)
    # Attention is computed in float32, whatever the storage.
    able = [
        variant
        for variant in variants
        if variant.kind != "stored" and (variant.compute == "float32" or network.attention is None)
    ]
    return repository, publish_made_up_types(repository, data, network, able).revision


def _variants() -> list[MadeUpVariant]:
    return [
        MadeUpVariant(f"{kind}-{storage}-{compute}", 1, kind, storage, compute)
        for kind in ("features", "projected", "stored")
        for storage in Storage
        for compute in ("float32", "bfloat16")
        if storage is not Storage.FLOAT32 or compute == "float32"
    ]


def _with_several_heads(network: NetworkManifest) -> NetworkManifest:
    """The network with several heads, which have kernels of their own."""
    if network.attention is None:
        return network
    return msgspec.structs.replace(
        network, attention=msgspec.structs.replace(network.attention, heads=2, output_heads=2)
    )


def _name_over_types(architecture: Architecture) -> str:
    return f"typed-{architecture}".lower()


def _name_of(architecture: Architecture, sampled: tuple[int, ...]) -> str:
    return f"{architecture}-{len(sampled)}-{abs(sampled[0])}".lower()

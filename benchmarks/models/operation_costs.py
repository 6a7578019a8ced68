"""Cost of each convolution of a network as layers, beside the same network in torch_geometric.

Both read the same samples of a public data set's shape, in this process and one thread, so that sampling, requests and
batching are in neither time. A network has two hops: two layers, or one whose convolution reads two. torch_geometric's
modules compute what the next layer reads and no more, as `trim_to_layer` would have it, since that is its best.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import msgspec
import numpy as np
import threadpoolctl
import torch

from benchmarks.engine.bandwidth import measure_rows
from benchmarks.engine.gemm import measure_peaks
from benchmarks.models.models_files import QUICK_SHAPE
from benchmarks.models.models_operations import FIRST, MANY, SEEDS
from benchmarks.models.operation_rooflines import COUNTS, Rates, Sizes, Work, hops_of
from benchmarks.shapes import FANOUTS, SHAPES, Shape, ShapeFiles, prepare
from gnnserve_api.files.edges import Direction, EdgeRules
from gnnserve_api.files.graph_schema import GraphSchema, one_type
from gnnserve_api.files.layers import (
    Activation,
    Aggregation,
    Convolution,
    ConvolutionManifest,
    DegreeScaler,
    DenseManifest,
    LayerManifest,
    LayersManifest,
    TypeProductsManifest,
)
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, canonical, tensors_of
from gnnserve_worker.generation.programs.running import ProgramGraph, ProgramScores
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.programs.contract import LaidOut

HOPS = 2
_EDGE_COLUMNS = ("amount", "rate")
_LIST_OF_A_RIM = 10
"""Neighbours that are drawn a hop deeper, for networks that count lists."""
_OPTIONS: Mapping[Convolution, Mapping[str, Any]] = {
    Convolution.GRAPH_SAGE: {},
    Convolution.GCN: {},
    Convolution.GRAPH_CONV: {"aggregations": (Aggregation.SUM,)},
    Convolution.GAT: {"heads": 4},
    Convolution.GATV2: {"heads": 4},
    Convolution.TRANSFORMER: {"heads": 4},
    Convolution.GIN: {"mlp": True},
    Convolution.GINE: {"mlp": True, "edge_columns": _EDGE_COLUMNS},
    Convolution.PNA: {
        "aggregations": (Aggregation.MEAN, Aggregation.MIN, Aggregation.MAX, Aggregation.STD),
        "scalers": (DegreeScaler.IDENTITY, DegreeScaler.AMPLIFICATION, DegreeScaler.ATTENUATION),
    },
    Convolution.TAG: {"hops": HOPS},
    Convolution.CHEBYSHEV: {"hops": HOPS},
    Convolution.SGC: {"hops": HOPS},
    Convolution.APPNP: {"hops": HOPS, "alpha": 0.1},
    Convolution.GCNII: {"alpha": 0.1, "theta": 0.5, "shares_weights": True},
    Convolution.AGNN: {},
    Convolution.GEN: {"mlp": True, "edge_columns": _EDGE_COLUMNS},
    Convolution.FILM: {"negative_slope": 0.0},
    Convolution.RGAT: {"heads": 4},
}
_QUICK = (Convolution.GRAPH_SAGE, Convolution.GATV2, Convolution.GINE, Convolution.TAG)


def layers_of(kind: Convolution, width: int, classes: int) -> LayersManifest:
    """A network of two hops with a product before and a head, as examples of torch_geometric have them."""
    before = (TypeProductsManifest(0, (DenseManifest(width, activation=Activation.RELU),)),)
    return LayersManifest(_layers_of(kind, width), before, head=(DenseManifest(classes),))


def _layers_of(kind: Convolution, width: int) -> tuple[LayerManifest, ...]:
    """Layers of two hops."""
    options = dict(_OPTIONS[kind])
    if options.pop("mlp", False):
        options["mlp"] = (DenseManifest(width, activation=Activation.RELU), DenseManifest(width))
    conv = ConvolutionManifest(kind, width=width, **options)
    return (LayerManifest((conv,), activation=Activation.RELU),) * (HOPS // conv.hops)


@dataclass(frozen=True, slots=True)
class BenchedGraph:
    """A public data set's shape, whose edges have columns."""

    graph: ProgramGraph
    schema: GraphSchema
    shape: Shape

    @classmethod
    def of(cls, files: ShapeFiles) -> BenchedGraph:
        shape, draw = files.shape, np.random.default_rng(1)
        indptr, indices = (np.array(files.array(name)) for name in ("indptr", "indices"))
        features = draw.normal(size=(len(indices), len(_EDGE_COLUMNS))).astype(np.float32)
        payload = EdgePayload(_EDGE_COLUMNS, features, "", np.zeros(0, np.int64))
        schema = one_type(
            shape.nodes, len(indices), shape.features, edge_rules=EdgeRules(Direction.UNDIRECTED),
            payload=payload.manifest,
        )  # fmt: skip
        lists = Graph(indptr, indices, schema, np.arange(len(indices), dtype=np.int32))
        return cls(ProgramGraph(lists, [np.array(files.array("features"))], [payload]), schema, shape)

    def with_rows(self, columns: int, draw: np.random.Generator) -> BenchedGraph:
        """This graph, whose nodes have random rows."""
        rows = draw.standard_normal((self.shape.nodes, columns), dtype=np.float32)
        (kind,) = self.schema.types
        schema = msgspec.structs.replace(self.schema, types=(msgspec.structs.replace(kind, features=columns),))
        lists = replace(self.graph.lists, schema=schema)
        return BenchedGraph(replace(self.graph, lists=lists, features=[rows]), schema, self.shape)


def measure_operations(*, quick: bool) -> dict[str, Any]:
    graph = BenchedGraph.of(prepare(QUICK_SHAPE if quick else SHAPES["arxiv"]))
    torch.set_num_threads(1)
    with threadpoolctl.threadpool_limits(1):
        kinds = _QUICK if quick else tuple(Convolution)
        rates, first = measure_rates(graph, quick=quick), Alone.of(Convolution(FIRST), graph, quick=quick)
        found = {kind.value: measure_operation(kind, graph, rates, first, quick=quick) for kind in kinds}
    return {"shape": graph.shape.name, "rates": asdict(rates), "kinds": found}


def measure_operation(
    kind: Convolution, graph: BenchedGraph, rates: Rates, first: Alone, *, quick: bool
) -> dict[str, Any]:
    shape = graph.shape
    layers = layers_of(kind, shape.hidden, shape.classes)
    torch.manual_seed(1)
    module = LayersModule(layers, graph.schema, [shape.features]).eval()
    program = program_of(layers, graph.schema, [shape.features])
    runner = LayersRunner(canonical(module), program, graph.schema)
    fanouts = (*FANOUTS, *[_LIST_OF_A_RIM] * (program.sampled_hops - HOPS))
    scores = ProgramScores(program, graph.graph, runner, fanouts=fanouts)
    draw, found = np.random.default_rng(2), {}
    for name, most in SEEDS.items():
        seeds = min(most, shape.seeds_end)
        laid = [scores.lay_out(draw.choice(shape.seeds_end, seeds, replace=False)) for _ in range(3 if quick else 9)]
        ours = [partial(runner.run, one.arrays, (program.scores,), seeds) for one in laid]
        theirs = [
            partial(cut, module, tensors_of(program, graph.schema, one.arrays), cuts_of(layers, one.arrays))
            for one in laid
        ]
        times = _alternating_ms(ours, theirs, rounds=1 if quick else 3)
        found[name] = {"layers_ms": times[0], "torch_ms": times[1]}
        if not program.reads_degrees and not program.weighs_neighbours:
            differences = [np.abs(a()[0] - b()[:seeds].numpy()).max() for a, b in zip(ours, theirs, strict=True)]
            found[name]["difference"] = float(max(differences))
    found[MANY] |= measure_alone(kind, graph, rates, first, quick=quick)
    return found


@dataclass(frozen=True, slots=True)
class Alone:
    """Convolutions by themselves, over rows as wide as a hidden layer."""

    layers: LayersManifest
    program: ProgramManifest
    runner: LayersRunner
    laid: Sequence[LaidOut]
    """Samples of some batches, as they are laid out for the program."""
    seeds: int

    @classmethod
    def of(cls, kind: Convolution, graph: BenchedGraph, *, quick: bool) -> Alone:
        shape, draw = graph.shape, np.random.default_rng(3)
        wide, layers = graph.with_rows(shape.hidden, draw), LayersManifest(_layers_of(kind, shape.hidden))
        torch.manual_seed(1)
        module = LayersModule(layers, wide.schema, [shape.hidden]).eval()
        program = program_of(layers, wide.schema, [shape.hidden])
        runner = LayersRunner(canonical(module), program, wide.schema)
        fanouts = (*FANOUTS, *[_LIST_OF_A_RIM] * (program.sampled_hops - HOPS))
        scores, seeds = ProgramScores(program, wide.graph, runner, fanouts=fanouts), min(SEEDS[MANY], shape.seeds_end)
        drawn = [draw.choice(shape.seeds_end, seeds, replace=False) for _ in range(3 if quick else 9)]
        return cls(layers, program, runner, [scores.lay_out(each) for each in drawn], seeds)

    def runs(self) -> list[Callable[[], object]]:
        return [partial(self.runner.run, one.arrays, (self.program.scores,), self.seeds) for one in self.laid]


def measure_rates(graph: BenchedGraph, *, quick: bool) -> Rates:
    """Rates of this machine by one thread: of rows of neighbours, as wide as a hidden layer and in the order in which
    samples name them, and of matrix products."""
    arrays = Alone.of(Convolution.GRAPH_SAGE, graph, quick=quick).laid[0].arrays
    row_bytes, seconds = arrays["features_0"].itemsize * graph.shape.hidden, 0.1 if quick else 2.0
    rows = measure_rows(arrays["features_0"], row_bytes, arrays["edges_0"][0], 1, seconds)
    return Rates(rows.fetch, measure_peaks(1, seconds)["float32"])


def measure_alone(
    kind: Convolution, graph: BenchedGraph, rates: Rates, first: Alone, *, quick: bool
) -> dict[str, float]:
    """Time of the convolutions alone, the least that it could be, and the time of the first kind, measured in turns
    with it: over minutes one and the same kind has taken 1.6 times as long."""
    alone = Alone.of(kind, graph, quick=quick)
    alone_ms, first_ms = _alternating_ms(alone.runs(), first.runs(), rounds=1 if quick else 3)
    works = [work_of(kind, alone.layers, one.arrays) for one in alone.laid]
    roofline_ms = median(one.least_ms(rates) for one in works)
    return {"alone_ms": alone_ms, "roofline_ms": roofline_ms, "first_ms": first_ms}


def work_of(kind: Convolution, layers: LayersManifest, arrays: Mapping[str, np.ndarray]) -> Work:
    """Bytes and operations of the layers in a sample, which is laid out for their program."""
    hops = hops_of(arrays["nodes_per_hop_0"], arrays["edges_0"][1], HOPS)
    conv = layers.layers[0].convs[0]
    sizes = Sizes(conv.width, conv.heads, len(conv.edge_columns))
    each = HOPS // len(layers.layers)
    return sum((COUNTS[kind](hops[at : at + each], sizes) for at in range(0, HOPS, each)), Work())


def cuts_of(layers: LayersManifest, arrays: Mapping[str, np.ndarray]) -> list[tuple[int, int]]:
    """Rows and edges that each layer reads, the first ones of the sample, and behind them the rows of the seeds."""
    nodes, read_by = np.cumsum(arrays["nodes_per_hop_0"]), arrays["edges_0"][1]
    left = layers.hops - np.cumsum([0, *(layer.hops for layer in layers.layers)])
    return [(int(nodes[hops]), int((read_by < nodes[hops - 1]).sum()) if hops else 0) for hops in left]


@torch.inference_mode()
def cut(module: LayersModule, graph: GraphTensors, cuts: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Scores of the seeds, each layer of which computes what the next one reads. `cuts`: as `cuts_of` returns."""
    *read, (seeds, _) = cuts
    inputs = module.before["0"](graph.features[0][: cuts[0][0]])
    states = inputs
    for layer, (rows, edges) in zip(module.layers, read, strict=True):
        columns = {name: one[:edges] for name, one in graph.edge_columns[0].items()}
        within = GraphTensors([graph.features[0][:rows]], [graph.edges[0][:, :edges]], [columns])
        states = layer({0: states[:rows]}, {0: inputs[:rows]}, within)[0]
    found: torch.Tensor = module.head(states[:seeds])
    return found


def _alternating_ms(
    first: Sequence[Callable[[], object]], second: Sequence[Callable[[], object]], rounds: int
) -> tuple[float, float]:
    """Medians of both, in turns, once each was called."""
    first[0]()
    second[0]()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for pair in zip(first, second, strict=True):
            for one, kept in zip(pair, times, strict=True):
                begun_s = time.perf_counter()
                one()
                kept.append(1e3 * (time.perf_counter() - begun_s))
    return median(times[0]), median(times[1])

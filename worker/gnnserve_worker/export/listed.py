"""Layers that a manifest lists as a program: torch_geometric's own modules (`generation/layer_modules.py`) with the
variant's weights, which are traced. No operation is written here for a second time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import safetensors.numpy
import torch
from msgspec import UNSET
from torch import Tensor, nn

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportFormat
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import Convolution, LayersManifest
from gnnserve_api.files.programs import InputRole, ProgramManifest, ProgramOutput, RelationKey
from gnnserve_api.files.repository import NetworkKind, RevisionManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.export.feature_scaling import FeatureScaling
from gnnserve_worker.export.graph_program import GraphExport, GraphInputs, outputs_of
from gnnserve_worker.export.made_up import MadeUpGraph, empty_rows, features_like, graph_like, payload_like
from gnnserve_worker.export.programs import FORMATS
from gnnserve_worker.generation.layer_modules import GraphTensors, LayersModule, load_canonical
from gnnserve_worker.graph.store import Graph, GraphIds
from gnnserve_worker.layers.convolutions.kind import Degrees
from gnnserve_worker.layers.shapes import columns_of, degrees_of
from gnnserve_worker.models.feature_products import Scaling
from gnnserve_worker.models.rows import BY_NODE, RowMaker
from gnnserve_worker.models.type_rows import type_row_maker
from gnnserve_worker.opening.loaded import CORRECTION, LoadedRevision, LoadedVariant
from gnnserve_worker.programs.layered import EMBEDDINGS
from gnnserve_worker.sampling.normalised import inverse_roots
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tables.table import Table

_PADDING = 2
"""Nodes of each type, and edges between them, that are added to each call: sums over no edge are none that ONNX
has."""
_COUNT_READERS = frozenset({Convolution.CHEBYSHEV})
"""Convolutions whose module counts the nodes that read a node, in place of those that it reads: their lists are a hop
further."""
_KEY = 0


def check_listed(manifest: RevisionManifest, variant: VariantManifest) -> None:
    """InputError: the variant's rows are made of more than features, or by no module of torch_geometric."""
    made = [one for one in manifest.variants if one.network.kind is NetworkKind.LISTED and one.stored is None]
    others = " or ".join(one.name for one in made)
    remedy = f"export {others}" if others else "generate it with variants.projection Disabled"
    if variant.stored is not None and variant.stored.layer:
        raise InputError(
            "VARIANT",
            f"{variant.name} reads layer {variant.stored.layer} as it was computed for each node of the graph, and a "
            "program takes features",
            remedy,
        )
    if any(layer.reads_products for layer in _whole_of(variant).layers.layers):
        raise InputError(
            "VARIANT",
            f"{variant.name} computes what the whole network does by products of its first layer, which no module of "
            "torch_geometric takes",
            remedy,
        )


@dataclass(frozen=True, slots=True)
class _Whole:
    """The whole network of a variant."""

    program: ProgramManifest
    layers: LayersManifest
    prefix: str
    """Beginning of the keys of its weights."""


def _whole_of(variant: VariantManifest) -> _Whole:
    followed = None if variant.stored is None else variant.stored.followed
    program = variant.network.program if followed is None else followed.network.program
    assert program is not UNSET and program.layers is not UNSET  # noqa: S101 - its kind says so
    return _Whole(program, program.layers, "" if followed is None else CORRECTION)


def listed_export(
    revision: LoadedRevision, described: VariantManifest, gives_embeddings: bool, scored_types: Sequence[str]
) -> GraphExport:
    """InputError: it reads nodes without features, or nothing of how rows are made is kept."""
    whole, schema, variant = _whole_of(described), revision.graph.schema, revision.variants[described.name]
    rows = variant.rows
    if not isinstance(rows, RowMaker):
        raise InputError(
            "REVISION", "an earlier gnnserve made it, and kept nothing of how its features were scaled",
            "generate it again",
        )  # fmt: skip
    scored = tuple(map(schema.place_of, scored_types)) or (0,)
    given = graph_inputs(described.name, whole.program, schema, scored)
    outputs = outputs_of(variant.network.classes, scored_types)
    hidden = ProgramOutput(EMBEDDINGS, variant.network.hidden) if gives_embeddings else None
    contract = ProgramManifest(
        FORMATS[ExportFormat.ONNX].file, "", _hops_of(whole.layers), tuple(given.of_program(schema)), outputs[0],
        hidden,
        # torch_geometric's modules count the edges that they are given.
        reads_degrees=bool(degrees_of(whole.layers, schema) - {Degrees.NONE}),
        other_scores=tuple(outputs[1:]),
    )  # fmt: skip
    scores = dict(zip(scored, (each.name for each in outputs), strict=True))
    features = [ReadFeatures(one.scaling, one.columns_of(described.columns)) for one in rows.made_of]
    tensors = _weights_of(revision, described.weights, whole.prefix)
    make = partial(
        ListedModule, whole.layers, schema, tensors, features, given, scores, gives_embeddings=gives_embeddings
    )
    made_up = _made_up_graph(revision, variant, rows, whole.layers, contract, scores)
    return GraphExport(described.name, schema, given, contract, scores, make, made_up, sums_by_segments=False)


def _hops_of(layers: LayersManifest) -> int:
    """Hops of what the modules read."""
    return layers.hops + any(conv.conv in _COUNT_READERS for layer in layers.layers for conv in layer.convs)


def graph_inputs(name: str, program: ProgramManifest, schema: GraphSchema, scored: Sequence[int]) -> GraphInputs:
    """Inputs of what the layers read; each type that has nodes among these has features."""
    places = {RelationKey(one.source, one.name, one.target): at for at, one in enumerate(schema.relations)}
    read = {
        schema.place_of(each.type)
        for each in program.inputs
        if each.role in (InputRole.FEATURES, InputRole.NODES_PER_HOP)
    }
    types = sorted(read | set(scored))
    bare = [schema.types[kind].name for kind in types if not schema.types[kind].features]
    if bare:
        raise InputError(
            "VARIANT", f"{name} reads nodes of type {' and '.join(bare)}, which have no features",
            "give them features in the source, and generate again",
        )  # fmt: skip
    relations, having = (
        sorted(places[each.relation] for each in program.inputs if each.role is role and each.relation is not None)
        for role in (InputRole.EDGES, InputRole.EDGE_FEATURES)
    )
    return GraphInputs.of(schema, types, relations, having)


def _weights_of(revision: LoadedRevision, name: str, prefix: str) -> dict[str, np.ndarray]:
    assert revision.origin.folder is not None  # noqa: S101 - only what is published is exported
    found = safetensors.numpy.load((revision.origin.folder / name).read_bytes())
    return {key.removeprefix(prefix): one for key, one in found.items() if key.startswith(prefix)}


# --- the program


@dataclass(frozen=True, slots=True)
class ReadFeatures:
    """How the network reads features of a type."""

    scaling: Scaling
    columns: np.ndarray
    """Columns of the source, int64, in their order."""


class ListedModule(nn.Module):
    """The whole network. Inputs and outputs are given by name."""

    def __init__(
        self, layers: LayersManifest, schema: GraphSchema, tensors: Mapping[str, np.ndarray],
        features: Sequence[ReadFeatures], given: GraphInputs, scores: Mapping[int, str], *, gives_embeddings: bool,
    ) -> None:  # fmt: skip
        """`tensors`: under the canonical keys. `features`: of each type. `scores`: names of outputs by type."""
        super().__init__()
        self.schema, self.given, self.scores, self.gives_embeddings = schema, given, scores, gives_embeddings
        self.widths = layers.columns or columns_of(schema)
        self.scaled = nn.ModuleDict({str(kind): FeatureScaling(features[kind].scaling) for kind in given.features})
        for kind in given.features:
            self.register_buffer(f"columns_{kind}", torch.tensor(features[kind].columns))
        # A network for each type that has scores: they differ in their heads alone.
        self.networks = nn.ModuleDict()
        for kind in scores:
            self.networks[str(kind)] = made = LayersModule(layers, schema, self.widths, scored=kind)
            load_canonical(made, tensors)
        self.requires_grad_(requires_grad=False)

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        counts = {kind: inputs[name].shape[0] for kind, name in self.given.features.items()}
        graph = self._graph_of(inputs, counts)
        found: dict[str, Tensor] = {}
        embedded: dict[str, Tensor] = {}
        for (kind, name), network in zip(self.scores.items(), self.networks.values(), strict=True):
            assert isinstance(network, LayersModule)  # noqa: S101 - as they were made
            scores, rows = network.outputs(graph)
            found[name] = scores[: counts[kind]]
            if self.gives_embeddings and not embedded:
                embedded[EMBEDDINGS] = rows[: counts[kind]]
        return {**found, **embedded}

    def _graph_of(self, inputs: Mapping[str, Tensor], counts: Mapping[int, int]) -> GraphTensors:
        """The graph, with nodes and edges behind those of the call: `_PADDING` of each type and relation. Of what no
        score depends on there are these alone."""
        return GraphTensors(
            [self._features_of(kind, inputs) for kind in range(len(self.schema.types))],
            [self._edges_of(place, inputs, counts) for place in range(len(self.schema.relations))],
            [self._columns_of(place, inputs) for place in range(len(self.schema.relations))],
            [self._added_to(place, counts)[:, :1] for place in range(len(self.schema.relations))],
        )

    def _features_of(self, kind: int, inputs: Mapping[str, Tensor]) -> Tensor:
        added = torch.zeros(_PADDING, self.widths[kind])
        if kind not in self.given.features:
            return added
        read = self.scaled[str(kind)](inputs[self.given.features[kind]])
        return torch.cat([read.index_select(1, self.get_buffer(f"columns_{kind}")), added])

    def _added_to(self, place: int, counts: Mapping[int, int]) -> Tensor:
        """Edges between added nodes: int64 [2, `_PADDING`]."""
        one, numbers = self.schema.relations[place], torch.arange(_PADDING)
        ends = (self.schema.place_of(one.source), self.schema.place_of(one.target))
        read, reading = (counts.get(kind, 0) for kind in ends)
        return torch.stack([numbers + read, numbers.flip(0) + reading])

    def _edges_of(self, place: int, inputs: Mapping[str, Tensor], counts: Mapping[int, int]) -> Tensor:
        added = self._added_to(place, counts)
        return torch.cat([inputs[self.given.edges[place]], added], dim=1) if place in self.given.edges else added

    def _columns_of(self, place: int, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        payload = self.schema.relations[place].payload
        if payload is UNSET:
            return {}
        rows = torch.ones(_PADDING, len(payload.columns))
        if place in self.given.edge_features:
            rows = torch.cat([inputs[self.given.edge_features[place]], rows])
        return dict(zip(payload.columns, rows.unbind(1), strict=True))


# --- what it is compared with


def _made_up_graph(
    revision: LoadedRevision, variant: LoadedVariant, rows: RowMaker, layers: LayersManifest,
    contract: ProgramManifest, scored: Mapping[int, str],
) -> MadeUpGraph:  # fmt: skip
    random, schema = np.random.default_rng(_KEY), revision.graph.schema
    graph = graph_like(schema, random)
    features = features_like(columns_of(schema), [one.scaling for one in rows.made_of], random)
    table = _table_over(graph, variant, rows, features)
    reading = replace(
        revision.reading,
        payloads=tuple(
            payload_like(one, one.edges, _told_apart(layers, place), random)
            for place, one in enumerate(graph.schema.relations)
        ),
    )
    if len(schema.types) > 1:
        reading = replace(reading, sample=partial(sample_relations, layout=graph.layout))
    if variant.network.weighs_neighbours:
        reading = replace(reading, neighbour_roots=inverse_roots(graph.indptr, graph.indices))
    whole = tuple(-1 if fanout else 0 for fanout in variant.fanouts)
    served = replace(variant, table=table, fanouts=whole, relation_fanouts=())
    ids = GraphIds({kind.name: None for kind in schema.types})
    made = replace(
        revision, graph=graph, reading=reading, ids=ids, variants={variant.name: served}, tables={}, changes=None
    )
    return MadeUpGraph(made, served, features, contract, scored)


def _told_apart(layers: LayersManifest, relation: int) -> dict[str, list[float]]:
    """Numbers by which columns tell kinds of edges apart, by the columns' names."""
    found: dict[str, list[float]] = {}
    for layer in layers.layers:
        for conv in layer.convs:
            if conv.where is not None and conv.relation == relation:
                found.setdefault(conv.where.column, []).append(conv.where.equals)
    return found


def _table_over(graph: Graph, variant: LoadedVariant, rows: RowMaker, features: np.ndarray) -> Table:
    """The variant's table, in float32, of these features."""
    own, types = variant.table, len(graph.schema.types)
    empty = empty_rows(graph.nodes, own.columns)
    table, places = Table(own.kind, own.columns, empty, empty), BY_NODE
    if types > 1:
        unscaled = [Scaling(Normalization.DISABLED)] * types
        places = type_row_maker(replace(table, kind="features"), graph.layout, unscaled, [0] * types).places
    replace(rows, table=table, places=places).renew(features, np.arange(graph.nodes)).put()
    return table

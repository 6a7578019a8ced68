"""A variant over several types as a program: which inputs it takes, and what it is compared with.

Its inputs are those of programs that people bring: features by type as the source has them, edges by relation, the
nodes that are asked about first. A revision keeps products of features, not these, so that the program is compared over
a graph that is made up, of the revision's types and relations: with the scores of the variant's own layers, over tables
that are made of made-up features as rows of new nodes are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np
import safetensors.numpy
from torch import nn

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportCheck, ExportedArray, ExportFormat
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, ProgramOutput, RelationKey
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.columns.rows import over_all_columns
from gnnserve_worker.export.check import LARGE_BATCHES, ReferenceCase, compare, require_within, spread_nodes
from gnnserve_worker.export.programs import FORMATS, Program
from gnnserve_worker.export.relation_modules import RelationModule, RelationNetwork
from gnnserve_worker.graph.relation_lists import merged_lists
from gnnserve_worker.graph.store import Graph, GraphIds
from gnnserve_worker.inference.batch import draw_sample, infer_batch
from gnnserve_worker.inference.made_up import rows_of_all
from gnnserve_worker.models.architecture import RelationalLayer, RelationalShape, layer_of
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.models.relation_rows import relation_row_maker
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.opening.type_recipe import type_recipe
from gnnserve_worker.programs.contract import lay_out
from gnnserve_worker.programs.layered import EMBEDDINGS, SCORES
from gnnserve_worker.sampling.neighbours import Scratch
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tables.formats import FLOAT32
from gnnserve_worker.tables.table import NO_SCALES, Rows, Table, WritableRows

_NODES, _MOST_READ = 3000, 6
"""Nodes of each type of the graph that is made up, and most that a node reads by a relation."""
_FEW, _FEWER, _KEY = 8, 3, 0
_MOST_ASKED = 1024


def check_exportable(manifest: RevisionManifest, variant: VariantManifest) -> None:
    """InputError: the variant's rows are made of more than features."""
    if variant.stored is not None:
        others = [one.name for one in manifest.variants if one.stored is None]
        raise InputError(
            "VARIANT",
            f"{variant.name} reads layer {variant.stored.layer} as it was computed for each node of the graph, and a "
            "program over several types takes features",
            f"export {' or '.join(others)}" if others else "generate a projected variant (spec.variants.projection)",
        )


@dataclass(frozen=True, slots=True)
class RelationalExport:
    """A `VariantExport` of a variant over several types."""

    variant: LoadedVariant
    network: RelationNetwork
    gives_embeddings: bool
    contract: ProgramManifest
    made_up: _MadeUp
    features: Mapping[int, str]
    """Names of inputs by the place of their type."""
    edges: Mapping[int, str]
    """Names of inputs by the place of their relation."""
    scores: Mapping[int, str]
    """Names of outputs by the place of their type."""

    @property
    def inputs(self) -> tuple[ExportedArray, ...]:
        types, relations = self.network.schema.types, self.network.schema.relations
        features = [
            ExportedArray(
                name, "float32", (name, types[kind].features or 0),
                f"Features of nodes of type {types[kind].name}, as the source has them; the nodes that are asked about "
                "come first.",
            )
            for kind, name in self.features.items()
        ]  # fmt: skip
        edges = [
            ExportedArray(
                name, "int64", (2, name),
                f"Edges of {relations[place].key}: in the first row the place of the node that is read in "
                f"`{self.features[self.network.source_of(place)]}`, in the second that of the node that reads it in "
                f"`{self.features[self.network.target_of(place)]}`.",
            )
            for place, name in self.edges.items()
        ]  # fmt: skip
        return (*features, *edges)

    def outputs(self, scores: str) -> tuple[ExportedArray, ...]:
        """`scores`: a sentence about the scores."""
        rows, network = self.features, self.variant.network
        found = [
            ExportedArray(name, "float32", (rows[kind], network.classes), scores) for kind, name in self.scores.items()
        ]
        if self.gives_embeddings:
            found.append(ExportedArray(EMBEDDINGS, "float32", (rows[0], network.hidden), "The last hidden layer."))
        return tuple(found)

    def module(self) -> nn.Module:
        return RelationModule(
            self.network, self.features, self.edges, self.scores, gives_embeddings=self.gives_embeddings
        )

    def checks(self, chosen: ExportFormat, program: Program) -> list[ExportCheck]:
        """Raises RuntimeError where scores differ by more than the tolerance."""
        made_up = self.made_up
        checks = [compare(chosen, [made_up.ask_few(count)], program) for count in (_FEW, _FEWER)]
        checks.append(compare(chosen, made_up.large_batches(), program))
        require_within(checks, self.variant.name)
        return checks

    def example(self) -> dict[str, np.ndarray]:
        question = self.made_up.ask_few(_FEW)
        return {**question.inputs, **question.outputs}

    def rows(self) -> None:
        """Inputs are features."""

    def row_recipe(self) -> dict[str, np.ndarray]:
        return {}


def relational_export(
    revision: LoadedRevision, described: VariantManifest, gives_embeddings: bool, scored_types: Sequence[str]
) -> RelationalExport:
    """InputError: scores depend on embeddings that were learnt."""
    variant, kept = revision.variants[described.name], _read(revision, described.weights)
    scored = tuple(map(revision.graph.schema.place_of, scored_types)) or (0,)
    network = replace(_network_of(revision, described, kept), scored=scored)
    schema, layers = network.schema, len(network.layers)
    kinds = sorted(network.written(0))
    learnt = [schema.types[kind].name for kind in kinds if schema.types[kind].features is None]
    if learnt:
        raise InputError(
            "VARIANT",
            f"{described.name} reads nodes of type {' and '.join(learnt)}, which have no features: an embedding was "
            "learnt for each, which holds for the nodes of this graph alone",
            "give them features in the source, and generate again",
        )
    relations = sorted({place for number in range(1, layers + 1) for place in network.read(number)})
    features = dict(zip(kinds, _names("x", [schema.types[kind].name for kind in kinds]), strict=True))
    edges = dict(zip(relations, _names("edges", [schema.relations[one].key for one in relations]), strict=True))
    hidden = ProgramOutput(EMBEDDINGS, variant.network.hidden) if gives_embeddings else None
    others = _names("scores", scored_types[1:])
    outputs = [
        ProgramOutput(name, variant.network.classes, type_)
        for name, type_ in zip((SCORES, *others), scored_types or [""], strict=True)
    ]
    contract = ProgramManifest(
        FORMATS[ExportFormat.ONNX].file, "", layers, tuple(_program_inputs(schema, features, edges)), outputs[0],
        hidden, other_scores=tuple(outputs[1:]),
    )  # fmt: skip
    scores = dict(zip(scored, (each.name for each in outputs), strict=True))
    made_up = _MadeUp.of(revision, described, kept, network, contract, scores)
    return RelationalExport(variant, network, gives_embeddings, contract, made_up, features, edges, scores)


def _program_inputs(
    schema: GraphSchema, features: Mapping[int, str], edges: Mapping[int, str]
) -> Iterator[ProgramInput]:
    for kind, name in features.items():
        yield ProgramInput(name, InputRole.FEATURES, type=schema.types[kind].name)
    for place, name in edges.items():
        one = schema.relations[place]
        yield ProgramInput(name, InputRole.EDGES, relation=RelationKey(one.source, one.name, one.target))


def _network_of(
    revision: LoadedRevision, described: VariantManifest, kept: Mapping[str, np.ndarray]
) -> RelationNetwork:
    manifest, schema, own = revision.manifest, revision.graph.schema, described.network
    assert manifest is not None and manifest.row_source is not None  # noqa: S101
    source = manifest.row_source
    if source.tensors is None:
        raise InputError(
            "REVISION", f"{manifest.revision} was made by an earlier gnnserve and kept nothing of its first layer",
            "generate it again",
        )  # fmt: skip
    made_by = _read(revision, source.tensors)
    recipe = type_recipe(source, schema, made_by, lambda _: np.zeros(own.hidden, np.float32))
    shape, table = RelationalShape.of(schema, own), manifest.tables[described.table]
    if table.has_columns_of_types:
        first = over_all_columns(layer_of(0, kept), schema, [one.width for one in recipe.types], made_by)
    else:
        first = layer_of(0, made_by, table.made_by)
    layers = [first, *(layer_of(number, kept) for number in range(1, own.layers))]
    with_heads = [shape.with_heads(layer, number) for number, layer in enumerate(layers)]
    return RelationNetwork(schema, with_heads, recipe.scalings)


def _read(revision: LoadedRevision, name: str) -> dict[str, np.ndarray]:
    assert revision.origin.folder is not None  # noqa: S101
    found: dict[str, np.ndarray] = safetensors.numpy.load((revision.origin.folder / name).read_bytes())
    return found


def _names(prefix: str, called: Sequence[str]) -> list[str]:
    """Names of inputs or outputs, each once, of letters and digits that programs may have in names."""
    found: list[str] = []
    for one in called:
        name = f"{prefix}_{re.sub(r'[^a-z0-9]+', '_', one.lower()).strip('_')}"
        found.append(name if name not in found else f"{name}_{len(found)}")
    return found


def _shuffled(question: ReferenceCase, random: np.random.Generator) -> ReferenceCase:
    """The same with edges of each relation in another order."""
    edges = {
        name: array[:, random.permutation(array.shape[1])]
        for name, array in question.inputs.items()
        if array.dtype == np.int64
    }
    return replace(question, inputs={**question.inputs, **edges})


@dataclass(frozen=True, slots=True)
class _MadeUp:
    """The variant over a graph that is made up, with features of its nodes."""

    revision: LoadedRevision
    variant: LoadedVariant
    features: np.ndarray
    """float32 [nodes, columns of the widest type]"""
    contract: ProgramManifest
    scored: Mapping[int, str]
    """Names of outputs by the place of their type."""

    @staticmethod
    def of(
        export: LoadedRevision, described: VariantManifest, kept: Mapping[str, np.ndarray],
        network: RelationNetwork, contract: ProgramManifest, scored: Mapping[int, str],
    ) -> _MadeUp:  # fmt: skip
        """`export`: the revision. `kept`: the variant's weights."""
        random, variant = np.random.default_rng(_KEY), export.variants[described.name]
        graph = _graph_like(network.schema, random)
        spread = rows_of_all(graph.schema)
        first = network.layers[0]
        table = _empty_table(first, spread.rows, spread.own_rows)
        reads = RelationTable.of(graph, spread.first_rows)
        widths = [kind.features or first_inputs(network, place) for place, kind in enumerate(graph.schema.types)]
        features = _features_like(network, widths, random)
        maker = relation_row_maker(table, reads, first, network.scalings, widths)
        maker.renew(features, np.arange(graph.nodes)).put()
        layers = build_network(
            described.network, kept, table.columns, projected=True, compute="float32", relations=reads
        )
        served = replace(
            variant, table=table, columns=table.columns, fanouts=(-1,) * len(network.layers), relation_fanouts=(),
            network=layers,
        )  # fmt: skip
        reading = replace(export.reading, sample=partial(sample_relations, layout=graph.layout))
        ids = GraphIds({kind.name: None for kind in graph.schema.types})
        made = replace(
            export, graph=graph, reading=reading, ids=ids, variants={variant.name: served}, tables={},
            changes=None,
        )  # fmt: skip
        return _MadeUp(made, served, features, contract, scored)

    def ask_few(self, count: int) -> ReferenceCase:
        return self.ask(np.concatenate([first + spread_nodes(_NODES, count) for first in self._scored_nodes()]))

    def _scored_nodes(self) -> list[int]:
        """The first node of each type that has scores."""
        schema = self.revision.graph.schema
        return [schema.first_nodes[kind] for kind in self.scored]

    def ask(self, nodes: np.ndarray) -> ReferenceCase:
        """`nodes`: each once."""
        schema = self.revision.graph.schema
        sample = draw_sample(self.revision, self.variant, nodes, _KEY, None, Scratch(), share=True)

        def read(names: np.ndarray, kind: int, *, own: bool = False) -> np.ndarray:
            return self.features[names, : schema.types[kind].features]

        laid = lay_out(self.contract, schema, sample, read)
        answer = infer_batch(self.revision, self.variant.name, nodes, _KEY)
        kinds = np.zeros(len(nodes), np.int64) if laid.kinds is None else laid.kinds
        outputs = {"nodes": nodes}
        for kind, name in self.scored.items():
            outputs[name] = answer.scores[kinds == kind][np.argsort(laid.seeds[kinds == kind])]
        if self.contract.embeddings is not None and answer.embeddings is not None:
            outputs[EMBEDDINGS] = answer.embeddings
        rows = sum(len(array) for array in laid.arrays.values() if array.dtype == np.float32)
        return ReferenceCase(laid.arrays, outputs, rows, tuple(self.scored.values()))

    def large_batches(self) -> Iterator[ReferenceCase]:
        """Batches of growing sizes. In every other one edges are in no order."""
        random = np.random.default_rng(_KEY)
        for number, count in enumerate(np.linspace(64, _MOST_ASKED, LARGE_BATCHES)):
            drawn = [first + random.choice(_NODES, int(count), replace=False) for first in self._scored_nodes()]
            question = self.ask(np.concatenate(drawn).astype(np.int64))
            yield _shuffled(question, random) if number % 2 else question


def first_inputs(network: RelationNetwork, kind: int) -> int:
    """Columns that the first layer reads of a type without features."""
    first = network.layers[0]
    read = [matrix for place, matrix in first.relations.items() if network.source_of(place) == kind]
    read += [first.own[kind]] if kind in first.own else []
    return len(read[0]) if read else 1


def _graph_like(schema: GraphSchema, random: np.random.Generator) -> Graph:
    """Random lists by each relation, some of them empty, over as many nodes of each type."""
    types = tuple(msgspec.structs.replace(kind, nodes=_NODES) for kind in schema.types)
    lists, relations = [], []
    for one in schema.relations:
        counts = random.integers(0, _MOST_READ + 1, _NODES)
        counts[random.integers(0, _NODES, _NODES // 4)] = 0
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        lists.append(Graph(indptr, random.integers(0, _NODES, int(indptr[-1])).astype(np.int32)))
        relations.append(msgspec.structs.replace(one, edges=int(indptr[-1])))
    made = GraphSchema(types, tuple(relations))
    return Graph(*merged_lists(made, lists), made)


def _features_like(network: RelationNetwork, widths: Sequence[int], random: np.random.Generator) -> np.ndarray:
    """Features of nodes, spread as those of each type were before they were scaled."""
    features = np.zeros((_NODES * len(widths), max(widths)), np.float32)
    for kind, (width, scaling) in enumerate(zip(widths, network.scalings, strict=True)):
        drawn = random.standard_normal((_NODES, width))
        if scaling.mean is not None and scaling.deviation is not None:
            drawn = drawn * scaling.deviation + scaling.mean
        features[kind * _NODES : (kind + 1) * _NODES, :width] = drawn
    return features


def _empty_table(first: RelationalLayer, rows: int, own_rows: int) -> Table:
    def empty(count: int) -> Rows:
        values = np.zeros((count, FLOAT32.padded_columns(first.columns)), np.float32)
        return Rows(FLOAT32, values, NO_SCALES, WritableRows(values, NO_SCALES))

    return Table("projected", first.columns, empty(rows), empty(own_rows))

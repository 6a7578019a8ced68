"""A variant over several types as a program: which inputs it takes, and what it is compared with.

A revision keeps products of features, not these, so that the program is compared over a graph that is made up, of the
revision's types and relations: with the scores of the variant's own layers, over tables that are made of made-up
features as rows of new nodes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import safetensors.numpy

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportFormat
from gnnserve_api.files.programs import ProgramManifest, ProgramOutput
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.columns.rows import over_all_columns
from gnnserve_worker.export.graph_program import GraphExport, GraphInputs, outputs_of
from gnnserve_worker.export.made_up import MadeUpGraph, empty_rows, features_like, graph_like
from gnnserve_worker.export.programs import FORMATS
from gnnserve_worker.export.relation_modules import RelationModule, RelationNetwork
from gnnserve_worker.graph.store import GraphIds
from gnnserve_worker.inference.made_up import rows_of_all
from gnnserve_worker.models.architecture import RelationalShape, layer_of
from gnnserve_worker.models.registry import build_network
from gnnserve_worker.models.relation_rows import relation_row_maker
from gnnserve_worker.models.relation_table import RelationTable
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.opening.type_recipe import type_recipe
from gnnserve_worker.programs.layered import EMBEDDINGS
from gnnserve_worker.sampling.relations import sample_relations
from gnnserve_worker.tables.table import Table

_KEY = 0


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


def relational_export(
    revision: LoadedRevision, described: VariantManifest, gives_embeddings: bool, scored_types: Sequence[str]
) -> GraphExport:
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
    given = GraphInputs.of(schema, kinds, relations, ())
    hidden = ProgramOutput(EMBEDDINGS, variant.network.hidden) if gives_embeddings else None
    outputs = outputs_of(variant.network.classes, scored_types)
    contract = ProgramManifest(
        FORMATS[ExportFormat.ONNX].file, "", layers, tuple(given.of_program(schema)), outputs[0], hidden,
        other_scores=tuple(outputs[1:]),
    )  # fmt: skip
    scores = dict(zip(scored, (each.name for each in outputs), strict=True))
    make = partial(RelationModule, network, given.features, given.edges, scores, gives_embeddings=gives_embeddings)
    made_up = _made_up_graph(revision, described, kept, network, contract, scores)
    return GraphExport(described.name, schema, given, contract, scores, make, made_up)


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


def _made_up_graph(
    export: LoadedRevision, described: VariantManifest, kept: Mapping[str, np.ndarray], network: RelationNetwork,
    contract: ProgramManifest, scored: Mapping[int, str],
) -> MadeUpGraph:  # fmt: skip
    """`export`: the revision. `kept`: the variant's weights."""
    random, variant = np.random.default_rng(_KEY), export.variants[described.name]
    graph = graph_like(network.schema, random)
    spread = rows_of_all(graph.schema)
    first = network.layers[0]
    table = Table(
        "projected", first.columns, empty_rows(spread.rows, first.columns), empty_rows(spread.own_rows, first.columns)
    )
    reads = RelationTable.of(graph, spread.first_rows)
    widths = [kind.features or first_inputs(network, place) for place, kind in enumerate(graph.schema.types)]
    features = features_like(widths, network.scalings, random)
    maker = relation_row_maker(table, reads, first, network.scalings, widths)
    maker.renew(features, np.arange(graph.nodes)).put()
    layers = build_network(described.network, kept, table.columns, projected=True, compute="float32", relations=reads)
    served = replace(
        variant, table=table, columns=table.columns, fanouts=(-1,) * len(network.layers), relation_fanouts=(),
        network=layers,
    )  # fmt: skip
    reading = replace(export.reading, sample=partial(sample_relations, layout=graph.layout))
    ids = GraphIds({kind.name: None for kind in graph.schema.types})
    made = replace(
        export, graph=graph, reading=reading, ids=ids, variants={variant.name: served}, tables={}, changes=None
    )
    return MadeUpGraph(made, served, features, contract, scored)


def first_inputs(network: RelationNetwork, kind: int) -> int:
    """Columns that the first layer reads of a type without features."""
    first = network.layers[0]
    read = [matrix for place, matrix in first.relations.items() if network.source_of(place) == kind]
    read += [first.own[kind]] if kind in first.own else []
    return len(read[0]) if read else 1

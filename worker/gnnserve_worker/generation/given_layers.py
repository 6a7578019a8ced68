"""Reading the layers that a manifest lists, with the weights of its checkpoint. Pure but for that file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.spec.layers import layers_manifest
from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.checkpoint import given_decoder_of, given_weights, wanted_of
from gnnserve_worker.generation.given_program import GivenProgram
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.generation.steps import RequestedRevision
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.shapes import columns_of, problems_of, tensor_shapes
from gnnserve_worker.models.registry import Tensors, without_decoder
from gnnserve_worker.readers.matching import match
from gnnserve_worker.tasks.generated import DecoderTensors, LearningProblem

FIELD = "spec.model.layers"


@dataclass(frozen=True, slots=True)
class _WantedLayers:
    """The `WantedNetwork` of a list of layers."""

    layers: LayersManifest
    schema: GraphSchema
    shapes: Mapping[str, tuple[int, ...]]

    def fit(self, tensors: Tensors) -> Tensors:
        return match(self.layers, self.schema, tensors, self.shapes)


def read_layers(wanted: RequestedRevision, graph: GraphData, problem: LearningProblem) -> GivenProgram:
    """The network of `spec.model.layers` over the graph, to be learnt where no checkpoint is given. InputError: the
    layers do not fit the graph or each other, or the checkpoint has other weights."""
    spec, schema = wanted.spec, graph.schema
    model, columns = spec.model, columns_of(schema)
    layers = _manifest(model, schema, columns[0], spec.task.asked().outputs(len(graph.classes)))
    if problems := problems_of(layers, schema, columns):
        raise InputError(FIELD, "; ".join(problems), "correct the layers, or the graph that they are over")
    program = program_of(layers, schema, columns, problem.answered_types(schema))
    if spec.task.asked().reads_pairs:  # of rows that the last product or layer gives
        program = msgspec.structs.replace(program, embeddings=None)
    fanouts = _fanouts(model, program)
    if model.checkpoint is None or wanted.identity.checkpoint is None:
        without = DecoderTensors(FIELD, {}, "", "", "")
        return GivenProgram(
            Path(), program, "", fanouts=fanouts, field=FIELD, layers=GivenLayers(None, schema, without)
        )
    network = wanted_of(spec, _WantedLayers(layers, schema, tensor_shapes(layers, schema, columns)))
    weights = given_weights(model, wanted.identity.checkpoint, network, wanted.progress) or {}
    tensors, _ = without_decoder(weights)
    given = GivenLayers(tensors, schema, given_decoder_of("spec.model.checkpoint", model.checkpoint, weights))
    return GivenProgram(
        model.checkpoint.uri.path.parent,
        msgspec.structs.replace(program, sha256=given.digest),
        wanted.identity.checkpoint,
        fanouts=fanouts,
        field=FIELD,
        layers=given,
    )


def _manifest(model: Model, schema: GraphSchema, columns: int, outputs: int) -> LayersManifest:
    return layers_manifest(
        schema, columns, outputs, model.before, model.layers or (), model.jumping_knowledge, model.head,
        head_reads_input=model.head_reads_input, head_by_type=model.head_by_type,
    )  # fmt: skip


def _fanouts(model: Model, program: ProgramManifest) -> tuple[int, ...] | None:
    """Neighbours that are sampled per hop; None: all of them. InputError: there is none for each hop."""
    if len(model.fanouts) != max(1, program.hops):
        raise InputError(
            "spec.model.fanouts", f"{list(model.fanouts)} has {len(model.fanouts)} numbers, and layers read "
            f"{program.hops} hops", "give a number for each hop, or -1 for each",
        )  # fmt: skip
    return None if min(model.fanouts) <= 0 else model.fanouts

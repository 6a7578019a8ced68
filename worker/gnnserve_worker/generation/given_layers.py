"""Reading the layers that a manifest lists, with the weights of its checkpoints. Pure but for these files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.spec.layers import layers_manifest
from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_worker.generation.checkpoint import WantedNetwork, given_decoder_of, load_checkpoint, wanted_of
from gnnserve_worker.generation.expected.listed import MODEL
from gnnserve_worker.generation.given_program import GivenProgram
from gnnserve_worker.generation.listed_layers import GivenLayers
from gnnserve_worker.generation.steps import RequestedRevision
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.shapes import columns_of, problems_of, tensor_shapes
from gnnserve_worker.models.registry import Tensors, without_decoder
from gnnserve_worker.progress import Progress
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


def read_layers(wanted: RequestedRevision, graph: GraphData, problem: LearningProblem) -> tuple[GivenProgram, ...]:
    """The network of `spec.model.layers` over the graph, to be learnt where no checkpoint is given, and behind it the
    same layers with the weights of each of `spec.variants.given`. InputError: the layers do not fit the graph or each
    other, or a checkpoint has other weights."""
    spec, schema = wanted.spec, graph.schema
    model, columns = spec.model, columns_of(schema)
    layers = _manifest(model, schema, columns[0], spec.task.asked().outputs(len(graph.classes)))
    answered = problem.answered_types(schema)
    found = [one for kind in answered for one in problems_of(layers, schema, columns, kind)]
    if found:
        raise InputError(FIELD, "; ".join(dict.fromkeys(found)), "correct the layers, or the graph that they are over")
    program = program_of(layers, schema, columns, answered)
    if spec.task.asked().reads_pairs:  # of rows that the last product or layer gives
        program = msgspec.structs.replace(program, embeddings=None)
    without = GivenLayers(None, schema, DecoderTensors(FIELD, {}, "", "", ""))
    learnt = GivenProgram(Path(), program, "", fanouts=_fanouts(model, program), field=FIELD, layers=without)
    network = wanted_of(spec, _WantedLayers(layers, schema, tensor_shapes(layers, schema, columns)))
    programs, listed = list[GivenProgram](), [*_listed(wanted)]
    for done, one in enumerate(listed):
        wanted.progress(Progress("load checkpoint", done, len(listed)))
        programs.append(learnt if one.checkpoint is None else _with_checkpoint(one, learnt, network))
    return tuple(programs)


@dataclass(frozen=True, slots=True)
class _ListedWeights:
    """Weights of the layers, as a manifest names them."""

    checkpoint: Checkpoint | None
    """None: they are learnt."""
    digest: str
    weights: str
    """As `GivenProgram.weights`."""
    field: str
    """The field that has the checkpoint."""


def _listed(wanted: RequestedRevision) -> Iterator[_ListedWeights]:
    """Weights of the model, then those of spec.variants.given."""
    spec, identity = wanted.spec, wanted.identity
    yield _ListedWeights(spec.model.checkpoint, identity.checkpoint or "", MODEL, "spec.model")
    for place, (name, one) in enumerate(zip(spec.variants.given_names(), spec.variants.given, strict=True)):
        yield _ListedWeights(one.checkpoint, identity.given[name], name, f"spec.variants.given[{place}]")


def _with_checkpoint(one: _ListedWeights, learnt: GivenProgram, network: WantedNetwork) -> GivenProgram:
    """The layers with given weights in place of those that would be learnt."""
    assert one.checkpoint is not None and learnt.layers is not None  # noqa: S101 - asked of these alone
    field = f"{one.field}.checkpoint"
    weights = load_checkpoint(one.checkpoint, one.digest, network, field)
    tensors, _ = without_decoder(weights)
    layers = GivenLayers(tensors, learnt.layers.schema, given_decoder_of(field, one.checkpoint, weights))
    return replace(
        learnt,
        folder=one.checkpoint.uri.path.parent,
        contract=msgspec.structs.replace(learnt.contract, sha256=layers.digest),
        digest=one.digest,
        weights=one.weights,
        field=FIELD if one.weights == MODEL else field,
        layers=layers,
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

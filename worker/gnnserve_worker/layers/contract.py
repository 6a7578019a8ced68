"""Contract of a network as layers: the program that it stands for everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest, ProgramOutput
from gnnserve_worker.layers.shapes import CLASSIFIED, inputs_of, output_columns, reads_degrees

FILE = "weights.safetensors"


def program_of(
    layers: LayersManifest, schema: GraphSchema, columns: Sequence[int], answered: Sequence[int] = CLASSIFIED,
    sha256: str = "",
) -> ProgramManifest:  # fmt: skip
    """The layers as a program with rows of the types that are asked about. `columns`: features of each type.
    `answered`: places of those types. `sha256`: of its weights."""
    first, *others = answered
    scores, embedded = output_columns(layers, schema, columns, first)
    names = [kind.name for kind in schema.types]
    return ProgramManifest(
        FILE, sha256, layers.hops, inputs_of(layers, schema, answered), ProgramOutput("scores", scores, names[first]),
        ProgramOutput("embeddings", embedded, names[first]) if embedded else None, reads_degrees(layers, schema),
        other_scores=tuple(ProgramOutput(f"scores_{place}", scores, names[place]) for place in others), layers=layers,
    )  # fmt: skip


def answered_types(program: ProgramManifest, schema: GraphSchema) -> tuple[int, ...]:
    """Places of the types that a program gives rows of, the first one being that of its scores."""
    return tuple(schema.place_of(each.type) for each in (program.scores, *program.other_scores))

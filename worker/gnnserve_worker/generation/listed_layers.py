"""Listed layers with their weights, as they are run before there is a revision."""

from __future__ import annotations

from dataclasses import dataclass

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_worker.layers.contract import program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.tasks.generated import DecoderTensors


def columns_of(schema: GraphSchema) -> tuple[int, ...]:
    """Features of each type; 0: it has none."""
    return tuple(kind.features or 0 for kind in schema.types)


@dataclass(frozen=True, slots=True)
class GivenLayers:
    """Weights of listed layers, under the keys of `files.layers`."""

    tensors: Tensors
    schema: GraphSchema
    decoder: DecoderTensors

    def runner(self, program: ProgramManifest) -> LayersRunner:
        return LayersRunner(self.tensors, program, self.schema)

    def like(self, program: ProgramManifest, layers: LayersManifest) -> ProgramManifest:
        """The program with other layers, which may read more of a sample."""
        answered = [self.schema.place_of(each.type) for each in (program.scores, *program.other_scores)]
        return program_of(layers, self.schema, columns_of(self.schema), answered, program.sha256)

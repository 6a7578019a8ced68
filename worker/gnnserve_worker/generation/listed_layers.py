"""Listed layers with their weights, as they are run before there is a revision."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import safetensors.numpy

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_worker.layers.contract import answered_types, program_of
from gnnserve_worker.layers.runner import LayersRunner
from gnnserve_worker.layers.shapes import columns_of
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.tasks.generated import DecoderTensors


@dataclass(frozen=True, slots=True)
class GivenLayers:
    """Weights of listed layers, under the keys of `files.layers`."""

    tensors: Tensors | None
    """None: they are learnt first."""
    schema: GraphSchema
    decoder: DecoderTensors

    @property
    def digest(self) -> str:
        """SHA-256 of the file that has the weights."""
        return hashlib.sha256(safetensors.numpy.save(dict(self.tensors or {}))).hexdigest()

    def learnt(self, tensors: Tensors) -> GivenLayers:
        """With weights that were learnt."""
        return replace(self, tensors=tensors)

    def runner(self, program: ProgramManifest) -> LayersRunner:
        if self.tensors is None:
            raise ValueError("the layers are to be trained first")
        return LayersRunner(self.tensors, program, self.schema)

    def like(self, program: ProgramManifest, layers: LayersManifest) -> ProgramManifest:
        """The program with other layers, which may read more of a sample."""
        answered = answered_types(program, self.schema)
        return program_of(layers, self.schema, columns_of(self.schema), answered, program.sha256)

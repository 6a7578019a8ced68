"""A model that is given as a program: its file, what each of its inputs and outputs is, and its limits."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gnnserve_api.device import SIZE, SIZE_REQUIREMENT, size_bytes
from gnnserve_api.files.programs import (
    MAX_HOPS,
    InputRole,
    ProgramInput,
    ProgramLimits,
    ProgramManifest,
    ProgramOutput,
    RelationKey,
)
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, Sha256, text, with_defaults
from gnnserve_api.spec.paths import ProgramPath, TensorsPath
from gnnserve_api.spec.rules import rule
from gnnserve_api.variants import MAX_FANOUT, MAX_LAYERS

MAX_INPUTS = 64
MOST_PROGRAM_PERMILLE = 0.01
"""Largest difference of a program's score from the expected one, in permille of the largest: 1e-5, what float32
leaves."""
_NAME = Field(min_length=1, max_length=256)
_HAS_CONTRACT = "has(self.inputs) && size(self.inputs) > 0"


class RelationNames(ApiModel):
    """A relation of a graph of several types."""

    source: Annotated[str, _NAME]
    """Type of the nodes that are read."""
    name: Annotated[str, _NAME]
    """Name of the relation."""
    target: Annotated[str, _NAME]
    """Type of the nodes that read."""


class InputSpec(ApiModel):
    name: Annotated[str, _NAME]
    """Name of the input in the program."""
    role: Annotated[InputRole, Field(alias="is")]
    """Content of the input."""
    type: Annotated[str, Field(max_length=256)] = ""
    """Type of the nodes of Features and NodesPerHop. Empty: the only one."""
    relation: RelationNames | None = None
    """Relation of Edges, EdgeFeatures, EdgeTimes and EdgesPerHop. Absent: the only one."""
    hops: Annotated[int, Field(ge=1, le=MAX_HOPS + 1)] | None = None
    """Number of hops from a seed within which nodes read the edges of this input. Absent: all edges of the sample. A
    network of L layers that takes a list of edges for each has L, L - 1, … 1."""
    layer: Annotated[int, Field(ge=1, le=MAX_LAYERS + 1)] | None = None
    """Number of the layer that reads LayerEdges, LayerTargets or NormalisedWeights: from 1, among all layers. Absent:
    the input is of all layers."""
    of_targets: bool = False
    """Whether NormalisedWeights are of the nodes themselves, in place of edges."""
    without_self: bool = False
    """Whether edges from a node to itself are left out, since the layer adds the node itself."""

    def as_input(self) -> ProgramInput:
        one = self.relation
        relation = RelationKey() if one is None else RelationKey(one.source, one.name, one.target)
        return ProgramInput(
            self.name, self.role, self.type, relation, self.hops, self.layer, self.of_targets, self.without_self
        )


class OutputSpec(ApiModel):
    name: Annotated[str, _NAME]
    """Name of the output in the program."""
    columns: Annotated[int, Field(ge=1, le=65_536)]
    """Number of columns of the output, whose first rows are of the seeds."""
    type: Annotated[str, Field(max_length=256)] = ""
    """Type of the nodes that the rows are of, where links join types. Empty: the type that is classified."""

    def as_output(self) -> ProgramOutput:
        return ProgramOutput(self.name, self.columns, self.type)


class LimitsSpec(ApiModel):
    memory: Annotated[str, text(SIZE, SIZE_REQUIREMENT, 9)] = "2Gi"
    """Largest amount of memory that the program's process takes, as in 2Gi, beside that of ONNX Runtime. A run that
    needs more fails, and a new process is started."""
    seconds: Annotated[float, Field(gt=0, le=600)] = 10.0
    """Longest time of one run, in seconds. A longer one is ended, and a new process is started."""

    def to_limits(self) -> ProgramLimits:
        return ProgramLimits(memory_bytes=size_bytes(self.memory), seconds=self.seconds)


class DecoderWeights(ApiModel):
    """Weights of what makes a score of two rows, where links are scored."""

    uri: TensorsPath
    """Path of a file with the weights: for DistMult a vector with a number for each column of the rows; for MLP the
    matrices and biases of two linear layers, the first of which reads both rows beside each other. The content of the
    file is part of the revision's identity."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the file that `uri` names. Another file is refused. Absent: any file is read."""


class ProgramFile(ApiModel):
    """A model exported as ONNX, which is served as it is: its file, and what each of its inputs and outputs is."""

    uri: ProgramPath
    """Path, or address on the Hugging Face Hub, of an ONNX file, or path of the folder that `gnnserve-describe` or
    `gnnserve export` wrote. The folder's manifest.yaml or export.json says what inputs, scores and hops are, which are
    then left out here. The content of its files is part of the revision's identity."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the ONNX file. Another file is refused. Absent: any file is read."""
    hops: Annotated[int, Field(ge=0, le=MAX_HOPS)] | None = None
    """Number of layers that read neighbours. Absent: as the folder says."""
    reads_degrees: bool = False
    """Whether layers count edges, as GCN, PNA and Chebyshev do for degrees. Such a program is right over
    whole lists of neighbours alone, one hop more than its layers, and samples none."""
    inputs: Annotated[tuple[InputSpec, ...], Field(max_length=MAX_INPUTS)] = ()
    """Inputs of the program, each once. Empty: as the folder says."""
    scores: OutputSpec | None = None
    """Output with the scores, a column for each class, before softmax or sigmoid. Absent: as the folder says."""
    embeddings: OutputSpec | None = None
    """Output with the embeddings of the nodes. Absent: none, or as the folder says."""
    other_scores: Annotated[tuple[OutputSpec, ...], Field(max_length=MAX_INPUTS)] = ()
    """Outputs with rows of nodes of other types than scores are of, where links join types: each with a type, and as
    many columns as scores. Empty: none, or as the folder says."""
    fanouts: (
        Annotated[tuple[Annotated[int, Field(ge=1, le=MAX_FANOUT)], ...], Field(min_length=1, max_length=MAX_LAYERS)]
        | None
    ) = None
    """Neighbours sampled per layer in place of all, the seed's draw first; for programs that do not read degrees.
    Absent: all neighbours, so that answers are those of the model."""
    decoder: DecoderWeights | None = None
    """Weights of task.links.decoder, for DistMult and MLP. Absent: none, or as the folder says."""

    _contract_is_whole = rule(
        f"({_HAS_CONTRACT}) ? has(self.hops) && has(self.scores) : "
        "!has(self.hops) && !has(self.scores) && !has(self.embeddings) && !self.readsDegrees && "
        "(!has(self.otherScores) || size(self.otherScores) == 0)",
        "hops, inputs and scores must be given together, and embeddings, otherScores and readsDegrees beside them "
        "only; all are left out where uri is a folder that gnnserve-describe or gnnserve export wrote",
    )

    _counted_lists_are_whole = rule(
        "!has(self.fanouts) || !self.readsDegrees",
        "fanouts must be left out with readsDegrees: the layers count edges, which are right over whole lists alone",
    )

    _each_hop_has_a_fanout = rule(
        "!has(self.fanouts) || !has(self.hops) || size(self.fanouts) == self.hops",
        "fanouts {self.fanouts} must be one number for each of hops[, which is {self.hops}]",
    )

    _rows_are_as_wide = rule(
        "!has(self.otherScores) || !has(self.scores) || self.otherScores.all(one, one.columns == self.scores.columns)",
        "columns of otherScores must be as many as those of scores[, {self.scores.columns}]: rows of all types are as "
        "wide",
    )

    @property
    def has_contract(self) -> bool:
        """Whether inputs and outputs are said here, and not in the folder that `uri` names."""
        return bool(self.inputs)

    def contract(self, file: str, sha256: str) -> ProgramManifest:
        """What a revision keeps of it. Only where it has a contract."""
        if self.hops is None or self.scores is None:
            raise ValueError("the contract of the program is in its folder")
        return ProgramManifest(
            file,
            sha256,
            self.hops,
            tuple(each.as_input() for each in self.inputs),
            self.scores.as_output(),
            None if self.embeddings is None else self.embeddings.as_output(),
            self.reads_degrees,
            other_scores=tuple(each.as_output() for each in self.other_scores),
        )


class Program(ProgramFile):
    """A model exported as ONNX, which is served as it is, and the limits of what runs it."""

    limits: Annotated[LimitsSpec, Audience.GENERATION | Audience.WORKERS] = with_defaults(LimitsSpec)
    """Limits of the process that runs the program, and of the process of each program in variants.given. Workers follow
    other ones without a restart, and no revision is made of them; generation refuses a program that needs more."""

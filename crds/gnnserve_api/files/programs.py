"""Contract of a program: what each of its inputs and outputs is. It is kept in a revision beside the file."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.layers import LayersManifest

MAX_HOPS = 128
"""Hops that a program may read. Beyond some, each neighbourhood is all that a node is joined to: what such a program
may read is limited by the edges of a neighbourhood."""


class InputRole(StrEnum):
    """Role of an input. Nodes of a sample are numbered by type, seeds first, then hop by hop; edges stand hop by hop.

    Those behind the count of seeds are of a program that `gnnserve export` wrote, by layer; a program has these alone,
    or none of them. Normalised weights without a layer are of edges and nodes as the others number them.
    """

    FEATURES = "Features"
    """float32 [nodes, columns], of a type"""
    EDGES = "Edges"
    """int64 [2, edges], of a relation: the node that is read, and the node that reads it"""
    EDGE_FEATURES = "EdgeFeatures"
    """float32 [edges, columns], of a relation"""
    EDGE_TIMES = "EdgeTimes"
    """int64 [edges], of a relation"""
    NODES_PER_HOP = "NodesPerHop"
    """int64 [hops + 1], of a type: how many nodes each hop adds, the seeds first"""
    EDGES_PER_HOP = "EdgesPerHop"
    """int64 [hops], of a relation"""
    SEED_COUNT = "SeedCount"
    """int64 []: how many of the first nodes are seeds"""
    ROWS = "Rows"
    """float32 [rows, columns]: of rows of the sample and of its leaves, a node perhaps several times"""
    OWN_ROWS = "OwnRows"
    """float32 [rows, columns]: of the rows alone, as they are read of nodes themselves"""
    LAYER_EDGES = "LayerEdges"
    """int64 [2, edges], of a layer: where each source is in the rows that it reads, and the number of its target"""
    LAYER_TARGETS = "LayerTargets"
    """int64 [targets], of a layer"""
    NORMALISED_WEIGHTS = "NormalisedWeights"
    """float32 [edges] or, `of_targets`, [targets]: what the sum over whole lists weighs each by; without a layer, of
    all edges of a sample over one type, and of its nodes but those of the last hop"""

    @property
    def is_of_relation(self) -> bool:
        return self in _OF_RELATION

    @property
    def is_of_type(self) -> bool:
        return self in (InputRole.FEATURES, InputRole.NODES_PER_HOP)


_OF_LAYER = frozenset({InputRole.LAYER_EDGES, InputRole.LAYER_TARGETS, InputRole.NORMALISED_WEIGHTS})
_LAYERED = _OF_LAYER | {InputRole.ROWS, InputRole.OWN_ROWS}
_OF_RELATION = frozenset({InputRole.EDGES, InputRole.EDGE_FEATURES, InputRole.EDGE_TIMES, InputRole.EDGES_PER_HOP})
_OF_PAYLOAD = frozenset({InputRole.EDGE_FEATURES, InputRole.EDGE_TIMES})
_BY_HOPS = _OF_PAYLOAD | {InputRole.EDGES}
_FLOATS = frozenset(
    {InputRole.FEATURES, InputRole.EDGE_FEATURES, InputRole.ROWS, InputRole.OWN_ROWS, InputRole.NORMALISED_WEIGHTS}
)


class RelationKey(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A relation by its names; all are empty where all nodes are of one type."""

    source: str = ""
    name: str = ""
    target: str = ""


class ProgramInput(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    name: str
    role: InputRole = msgspec.field(name="is")
    type: str = ""
    """Type of nodes, for features and counts of nodes; empty: the only one."""
    relation: RelationKey = RelationKey()
    """Relation of edges, of what edges have, and of counts of edges."""
    hops: int | None = None
    """Edges that are read by nodes fewer than so many hops from a seed; None: all. A network that takes a list of edges
    for each of its L layers reads L, L - 1, … 1."""
    layer: int | None = None
    """Number of the layer that a layered role is of, the first being 1."""
    of_targets: bool = False
    """Weights of the targets themselves, instead of their edges'."""
    without_self: bool = False
    """Edges from a node to itself are left out, since the layer adds the node itself; their weights too."""

    @property
    def is_layered(self) -> bool:
        """Whether it is laid out by layer."""
        return self.role in _LAYERED and not self.is_of_sample

    @property
    def is_of_layer(self) -> bool:
        """Whether it names the layer that it is of."""
        return self.role in _OF_LAYER and not self.is_of_sample

    @property
    def is_of_sample(self) -> bool:
        """Whether it is weights of all edges or nodes of a sample."""
        return self.role is InputRole.NORMALISED_WEIGHTS and self.layer is None

    @property
    def dtype(self) -> str:
        return "float32" if self.role in _FLOATS else "int64"

    @property
    def rank(self) -> int:
        match self.role:
            case InputRole.FEATURES | InputRole.EDGES | InputRole.EDGE_FEATURES | InputRole.LAYER_EDGES:
                return 2
            case InputRole.ROWS | InputRole.OWN_ROWS:
                return 2
            case InputRole.SEED_COUNT:
                return 0
            case _:
                return 1

    @property
    def free_axis(self) -> int | None:
        """The axis that counts nodes or edges, whose size differs from call to call; None: sizes are the same."""
        match self.role:
            case InputRole.EDGES | InputRole.LAYER_EDGES:
                return 1
            case InputRole.SEED_COUNT | InputRole.NODES_PER_HOP | InputRole.EDGES_PER_HOP:
                return None
            case _:
                return 0


class ProgramOutput(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """float32 [nodes or seeds, columns]: its first rows are those of the seeds."""

    name: str
    columns: int
    type: str = ""
    """Type of the nodes; empty: the one that is classified."""


class ProgramLimits(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """Limits of the process that runs a program."""

    memory_bytes: int = 2 << 30
    """Beyond what ONNX Runtime itself takes."""
    seconds: float = 10.0
    """Longest time of one run."""
    start_seconds: float = 60.0
    """Longest time until a new process can be asked."""


class ProgramManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    file: str
    """Path of the program, in ONNX, inside the folder of what has the contract: of the revision, where that has it."""
    sha256: str
    hops: int
    """Layers that read neighbours."""
    inputs: tuple[ProgramInput, ...]
    scores: ProgramOutput
    embeddings: ProgramOutput | None = None
    reads_degrees: bool = False
    """Whether layers count the edges that they are given: right alone where lists are whole, and one hop deeper."""
    data_files: tuple[str, ...] = ()
    """Paths of files beside it that have its weights; empty: it has them itself."""
    limits: ProgramLimits = ProgramLimits()
    """Limits that it was generated by; a routing table may have others."""
    other_scores: tuple[ProgramOutput, ...] = ()
    """Scores of nodes of other types, each with its type."""
    layers: LayersManifest | UnsetType = UNSET
    """The network, where it is computed by our own kernels, and its file has weights alone. Absent: the file is the
    network, in ONNX."""

    def scored_type(self, schema: GraphSchema) -> str:
        """Name of the type that `scores` are of."""
        return self.scores.type or schema.target.name

    def scores_of(self, type_: str, schema: GraphSchema) -> ProgramOutput | None:
        """The output with scores of nodes of a type; None: there is none."""
        if type_ == self.scored_type(schema):
            return self.scores
        return next((each for each in self.other_scores if each.type == type_), None)

    def row_columns(self, schema: GraphSchema) -> tuple[int, ...]:
        """Columns of a row of each type that it reads: of features, or of what is stored of its first layers."""
        stored = UNSET if self.layers is UNSET else self.layers.stored
        if stored is UNSET:
            own = () if self.layers is UNSET else self.layers.columns
            return own or tuple(kind.features or 0 for kind in schema.types)
        columns = {one.type: one.columns for one in stored.rows}
        return tuple(columns.get(place, 0) for place in range(len(schema.types)))

    @property
    def sampled_hops(self) -> int:
        return self.hops + self.reads_degrees

    @property
    def embedding_columns(self) -> int:
        """Width of its embeddings; 0: it gives none."""
        return 0 if self.embeddings is None else self.embeddings.columns

    def giving_rows(self) -> ProgramManifest:
        """The program as one whose rows of nodes are read in pairs: its embeddings, or what it calls scores where it
        gives nothing beside."""
        if self.embeddings is None:
            return self
        rows = msgspec.structs.replace(self.embeddings, type=self.scores.type)
        return msgspec.structs.replace(self, scores=rows, embeddings=None)

    @property
    def is_layered(self) -> bool:
        return any(each.is_layered for each in self.inputs)

    @property
    def weighs_neighbours(self) -> bool:
        return any(each.role is InputRole.NORMALISED_WEIGHTS for each in self.inputs)

    @property
    def reads_payload(self) -> bool:
        return any(each.role in _OF_PAYLOAD for each in self.inputs)

    @property
    def outputs(self) -> tuple[ProgramOutput, ...]:
        beside = () if self.embeddings is None else (self.embeddings,)
        return (self.scores, *self.other_scores, *beside)


def contract_problems(program: ProgramManifest, schema: GraphSchema) -> list[str]:
    """What is wrong with the contract over such a graph, a sentence each with the next step."""
    inputs = program.inputs
    problems = [
        f"{name!r} is given {count} times; give each input of the program once"
        for name, count in Counter(each.name for each in inputs).items()
        if count > 1
    ]
    layered = [each.name for each in inputs if each.is_layered]
    if layered and len(layered) < len(inputs):
        problems.append(
            f"{', '.join(layered)} are by layer as gnnserve export writes them, and others are not; give inputs of one "
            "kind"
        )
    if layered and RelationKey() not in _keys_of(schema):
        problems.append(
            f"{', '.join(layered)} are by layer, which programs over one type have, and the graph has several; give "
            "features by type, and edges by relation"
        )
    if program.hops < 0:
        problems.append(f"hops is {program.hops}; give the number of layers that read neighbours")
    for each in inputs:
        problems += _problems_of_input(each, program, schema)
    if program.scored_type(schema) not in types_of(schema):
        problems.append(
            f"{program.scores.name} is of type {program.scores.type!r}; the graph has {_listed(types_of(schema))}"
        )
    for output in program.other_scores:
        problems += _problems_of_output(output, program, schema)
    return problems


def types_of(schema: GraphSchema) -> list[str]:
    return [kind.name for kind in schema.types]


def _problems_of_output(each: ProgramOutput, program: ProgramManifest, schema: GraphSchema) -> list[str]:
    own = program.scored_type(schema)
    others = [name for name in types_of(schema) if name != own]
    if each.type not in others:
        there = f"it has {_listed(others)} beside {own!r}" if others else "it has no others"
        return [f"{each.name} is of type {each.type!r}, and the graph has no such other type: {there}"]
    if each.columns != program.scores.columns:
        return [
            f"{each.name} has {each.columns} columns, and {program.scores.name} has {program.scores.columns}: rows of "
            "all types are as wide"
        ]
    return []


def _problems_of_input(each: ProgramInput, program: ProgramManifest, schema: GraphSchema) -> list[str]:
    problems = []
    types = types_of(schema)
    if each.role.is_of_type and each.type not in types:
        problems.append(f"{each.name} is of type {each.type!r}; the graph has {_listed(types)}")
    without = [kind.name for kind in schema.types if kind.features is None]
    if each.role is InputRole.FEATURES and each.type in without:
        problems.append(
            f"{each.name} is features of type {each.type!r}, whose nodes have none; give them in the source"
        )
    relations = _keys_of(schema)
    if each.role in _OF_PAYLOAD and each.relation in relations:
        problems += _problems_of_payload(each, schema)
    if each.role.is_of_relation and each.relation not in relations:
        wanted = " ".join((each.relation.source, each.relation.name, each.relation.target))
        problems.append(f"{each.name} is of relation {wanted!r}; the graph has {_listed(list(relations.values()))}")
    if each.hops is not None and (each.role not in _BY_HOPS or not 1 <= each.hops <= program.sampled_hops):
        problems.append(
            f"{each.name} has hops {each.hops}; edges and what they have may have 1 to {program.sampled_hops}, others "
            "none: leave it out"
        )
    if each.is_of_sample and RelationKey() not in relations:
        problems.append(
            f"{each.name} is weights of neighbours, which samples over one type have, and the graph has several; count "
            "edges in the program, and set readsDegrees"
        )
    if each.is_of_sample and each.without_self:
        problems.append(f"{each.name} has withoutSelf, which is of weights by layer; leave it out")
    if each.is_of_layer and not 1 <= (each.layer or 0) <= program.sampled_hops:
        problems.append(f"{each.name} is {each.role} of layer {each.layer}; give a layer, 1 to {program.sampled_hops}")
    return problems


def _problems_of_payload(each: ProgramInput, schema: GraphSchema) -> list[str]:
    (payload,) = (
        one.payload for one in schema.relations if RelationKey(one.source, one.name, one.target) == each.relation
    )
    has_times = payload is not UNSET and bool(payload.time)
    has_features = payload is not UNSET and bool(payload.columns)
    if has_times if each.role is InputRole.EDGE_TIMES else has_features:
        return []
    read = "times" if each.role is InputRole.EDGE_TIMES else "features"
    key = " ".join((each.relation.source, each.relation.name, each.relation.target))
    edges = schema.names.edges_of(key)
    return [
        f"{each.name} is {read} of {edges}, which have none; let the source read them, as docs/data.md says, unless "
        "these are the links that are scored, whose columns nothing reads"
    ]


def _keys_of(schema: GraphSchema) -> dict[RelationKey, str]:
    """Keys of the relations, for people, by their names."""
    return {RelationKey(one.source, one.name, one.target): one.key for one in schema.relations}


def _listed(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)

"""The files of a repository: `graph.json` and `revision.json`.

Both name every file beside them with its size and SHA-256, and both are written last: a folder without one is
unfinished work. Each carries a checksum of itself. A reader refuses a newer `schemaVersion` than it knows. Version 2
gave revisions several tables; version 3 gave nodes and classes the ids of their source, and profiles the
published window (`LatencyProfile.window_p50_ms`) and figures on test nodes; version 4 made each variant state its
table, hops and network (`repository_schema3.py` reads the revisions before it).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api import decoding
from gnnserve_api.families import Family
from gnnserve_api.files.cascades import CascadeManifest
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.factors import ChosenFactors
from gnnserve_api.files.given_weights import ComparedScores, LabelMisfit
from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    Classes,
    GraphSchema,
    PayloadManifest,
    RelationRowPlaces,
    TypeRows,
    one_type,
)
from gnnserve_api.files.links import LinkCalibration, LinksManifest
from gnnserve_api.files.profile import Compute, Profile
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.training import TrainingManifest
from gnnserve_api.variants import Storage

SCHEMA_VERSION = 4
"""Schema version of revisions."""
GRAPH_SCHEMA_VERSION = 3
"""Schema version of graphs of a source, whose files did not change since."""
CHANGED_GRAPH_SCHEMA_VERSION = 4
"""Schema version of graphs that a log of changes is part of."""
TYPED_SCHEMA_VERSION = 5
"""Schema version of graphs of several types, and of their revisions."""
PAYLOAD_SCHEMA_VERSION = 6
"""Schema version of graphs whose edges have features or times."""
PROGRAM_SCHEMA_VERSION = 7
"""Schema version of revisions with a program."""
PAIRS_SCHEMA_VERSION = 8
"""Schema version of revisions with cascades that decide about pairs, and of those with tables that have one row of each
node beside tables that have one for each relation, or with tables by relation of several networks, or of layers behind
the first that follow changes."""
LISTED_SCHEMA_VERSION = 9
"""Schema version of revisions with layers that a manifest lists."""
COLUMNS_SCHEMA_VERSION = 10
"""Schema version of revisions with networks over columns of features of each of several types."""
PRODUCTS_SCHEMA_VERSION = 11
"""Schema version of revisions with listed layers over rows of nodes alone, over fewer columns of features, with fewer
hidden channels, and with stored ones whose rows are made anew where requests reach."""
STALE_SCHEMA_VERSION = 12
"""Schema version of revisions whose profile says what stale rows of stored layers cost."""
FOLLOWED_ROWS_SCHEMA_VERSION = 13
"""Schema version of revisions with one-row variants over several hops that follow changes, or cascades that follow them
and take no overlays."""
LATEST_SCHEMA_VERSION = FOLLOWED_ROWS_SCHEMA_VERSION
"""The latest of all."""

PROGRAM = "Program"
"""Architecture of a network that is a program, whatever is inside it."""
_NO_HOPS = (0,)
"""Fan-outs of a program that reads a node's own row alone."""


class NodeIdKind(StrEnum):
    """Kind of the ids that requests call nodes by."""

    POSITIONS = "Positions"
    """0 to nodes - 1: the source numbers its nodes."""
    INTEGERS = "Integers"
    """The source's own integers."""
    STRINGS = "Strings"
    """The source's own texts."""


class FileEntry(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    bytes: int
    sha256: str


class ChangedSource(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A source's graph, and what a log of changes has up to an offset."""

    source: str
    """Digest of the source's graph."""
    log: str
    """uid of the service whose log it is."""
    offset: int
    total_changes: int
    """Items of the log's batches up to the offset."""
    checksum: int
    """That of the log's record at the offset. Another log has another, and so has one that was restored from a backup
    and then written."""


class GraphVersion(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Graph that is kept because it is not its source's any more, so that generation can begin with it."""

    made_of: ChangedSource
    columns: tuple[SourceColumn, ...]
    """The source's columns in the order of the features, type after type; empty if the source does not name them."""
    edge_rules: EdgeRules | None
    """None: nodes are of several types, and each relation has rules of its own."""
    files: dict[str, FileEntry]
    """Features as in the source, in files beside those of the graph. Serving does not read them."""
    type_columns: tuple[int, ...] | UnsetType = UNSET
    """How many of `columns` are of each type, where there are several; else absent."""


class GraphManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`graphs/<digest>/graph.json`."""

    schema_version: int
    digest: str
    source: str
    """Where it came from, for people: `builtin Digits` or the file's URI."""
    nodes: int
    edges: int
    features: int
    classes: Classes
    """The graph's own label of each class, ascending: score column i belongs to `classes[i]`."""
    multi_label: bool
    train_nodes: int
    validation_nodes: int
    test_nodes: int
    files: dict[str, FileEntry]
    node_ids: NodeIdKind = NodeIdKind.POSITIONS
    """Versions 1 and 2 knew no other."""
    version: GraphVersion | UnsetType = UNSET
    """Absent: it is the graph of its source."""
    named: GraphSchema | UnsetType = msgspec.field(default=UNSET, name="typed")
    """Types and relations that have names. Absent: its nodes are of one type. Otherwise `nodes` and `edges` count all
    types; labels, masks and `nodeIds` are of the first type, and `features` is what the widest type has."""
    payload: PayloadManifest | UnsetType = UNSET
    """Features and times of edges where nodes are of one type; each of several relations has its own."""
    checksum: str = ""
    """`checksum_of` the rest."""

    @property
    def schema(self) -> GraphSchema:
        """Types and relations; where the file leaves them out, one of each without a name."""
        return self.schema_by(None)

    def keeps_rules(self, rules: EdgeRules | None) -> bool:
        """Whether it is known how edges become entries of lists. `rules`: as of `schema_by`."""
        return self.named is not UNSET or rules is not None

    def schema_by(self, rules: EdgeRules | None) -> GraphSchema:
        """`rules`: those that a revision over it keeps (`RevisionManifest.edge_rules`); the file of a graph of one type
        has them in a version alone."""
        if self.named is not UNSET:
            return self.named
        own = None if self.version is UNSET else self.version.edge_rules
        return one_type(
            self.nodes, self.edges, self.features, self.node_ids.value, own or rules or AS_LISTED, self.payload
        )


class RowsManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """One matrix with a row per node, as `tables/table.py` stores it."""

    values: str
    """Path inside the revision: .npy [nodes, columns and padding], float32, the bits of float16 as int16, those of
    bfloat16 as uint16, or int8."""
    scales: str | None
    """Path of float32 [nodes], for int8: a row's numbers are its integers times its scale."""


TableKind = Literal["features", "projected", "aggregated"]
"""The rank-ordered features, of which a variant reads a prefix; a product of a layer's input, X·W of the first; or what
a layer aggregates over all neighbours, before its bias, which corrects such a product where an overlay reaches."""


class TableManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Table that variants gather from."""

    kind: TableKind
    storage: Storage
    columns: int
    """Columns without the padding."""
    rows: RowsManifest
    """What is read of neighbours, and of the node itself where `own` is absent."""
    own: RowsManifest | None = None
    """What is read of the node itself: X·W_own of a projected GraphSAGE."""
    source_columns: tuple[int, ...] | None = None
    """Original column ids, for features: column j of the table is `source_columns[j]` of the source. None: as the
    ranking has them."""
    made_by: str = ""
    """What the keys of the weights that a projected table was made by begin with, in `RowSource.tensors`, or those of
    the columns of each type that a table of features has. Empty: they are the model's, or it has all columns."""
    by_relation: RelationRowPlaces | UnsetType = msgspec.field(default=UNSET, name="typed")
    """Absent: it has a row for each node."""
    types: int | UnsetType = UNSET
    """How many types, the first ones, it has a row of each node of. Absent: of features all; of products that stand for
    a whole answer the first one alone."""

    @property
    def has_columns_of_types(self) -> bool:
        """Whether it has columns of features of each of several types, for networks over relations."""
        return self.kind == "features" and self.types is not UNSET

    def types_with_rows(self, schema: GraphSchema) -> int:
        """As `types`, of a table without `by_relation`."""
        if self.types is not UNSET:
            return self.types
        return 1 if self.kind == "projected" else len(schema.types)

    def row_counts(self, schema: GraphSchema) -> tuple[int, int]:
        """Rows that it has over a graph: of neighbours, and of nodes themselves."""
        if self.by_relation is not UNSET:
            return self.by_relation.rows, self.by_relation.own_rows
        return (schema.first_nodes[self.types_with_rows(schema)],) * 2


class AttentionManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings of attention that GAT's weights do not tell."""

    heads: int
    """How many each hidden layer has; their outputs stand beside each other, `NetworkManifest.hidden` columns."""
    output_heads: int
    """How many the last layer has; the mean of their outputs is the scores."""
    negative_slope: float
    """Slope of the leaky ReLU over attention scores below 0."""


class NetworkKind(StrEnum):
    """How a network is opened and run."""

    LAYERS = "Layers"
    """Layers of a known architecture, built from their weights."""
    PROGRAM = "Program"
    """A program, run by a process of its own."""
    LISTED = "Listed"
    """Layers that a manifest lists, which stand for a program and are run by the worker itself."""


class NetworkManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Settings that are needed to rebuild a network from its weights."""

    architecture: str
    hidden: int
    fanouts: tuple[int, ...]
    """What it was trained with, an entry per layer: the seed's draw first (PyG's `num_neighbors`); all -1: full
    neighbourhood. A variant may be served with others (`VariantManifest.fanouts`)."""
    classes: int
    mlp_hidden: int | None = None
    """Width between the two products of each GIN layer; None: of the layer's output."""
    attention: AttentionManifest | None = None
    """GAT's alone."""
    hops: int | None = None
    """SGC's and SIGN's alone: how often the features in its tables were propagated over the graph."""
    program: ProgramManifest | UnsetType = UNSET
    """What a program is given, and gives. Absent: the network is of layers, not of the architecture `PROGRAM`."""

    @property
    def kind(self) -> NetworkKind:
        if self.program is UNSET:
            return NetworkKind.LAYERS
        return NetworkKind.PROGRAM if self.program.layers is UNSET else NetworkKind.LISTED

    @property
    def reads_features(self) -> bool:
        """Whether it is computed as a whole, from rows of features: a program, or layers that stand for one."""
        return self.program is not UNSET

    @property
    def layers(self) -> int:
        return len(self.fanouts)

    @property
    def embedding_columns(self) -> int:
        """Width of the last hidden layer; 0 for a network of one layer, which has none."""
        if self.program is not UNSET:
            return self.program.embedding_columns
        return self.hidden if self.layers > 1 else 0

    @property
    def projected_columns(self) -> int:
        """Width of a row of a projected table: the first product, and behind it what attention scores rows by."""
        outputs = self.hidden if self.layers > 1 else self.classes
        if self.attention is None:
            return self.mlp_hidden or outputs
        heads = self.heads_of(0)
        return (outputs if self.layers > 1 else heads * outputs) + 2 * heads

    def heads_of(self, layer: int) -> int:
        """1 where a layer has no attention."""
        if self.attention is None:
            return 1
        return self.attention.output_heads if layer == self.layers - 1 else self.attention.heads


def program_network(program: ProgramManifest, fanouts: tuple[int, ...] | None = None) -> NetworkManifest:
    """The network that a program is. `fanouts`: neighbours that are sampled per hop; None: all of them."""
    whole = (-1,) * program.sampled_hops or _NO_HOPS
    return NetworkManifest(
        architecture=PROGRAM,
        hidden=program.embedding_columns,
        fanouts=whole if fanouts is None else fanouts,
        classes=program.scores.columns,
        program=program,
    )


class CorrectionManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Correction that makes rows of a table of a stored layer for nodes that a request brings, or whose neighbours it
    changes."""

    network: NetworkManifest
    """The network with all its layers; the variant's weights hold them under `correction.`."""
    products: str
    """The table, in float32, of the products of the layer's inputs."""
    aggregated: str | None
    """The table, in float32, of what the layer aggregates. None: it cannot be continued, and is aggregated anew."""


class LayerTables(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Tables that the rows of a stored layer are made of."""

    products: str
    """The table, in float32, of the products of the layer's inputs. Of all but the first it is the layer before."""
    aggregated: str | None = None
    """The table, in float32, of what the layer aggregates. None: it is aggregated anew."""


class FollowedManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Recipe that makes rows of a later layer anew where the graph changes."""

    network: NetworkManifest
    """The network with all its layers; the variant's weights hold them under `correction.`."""
    layers: tuple[LayerTables, ...]
    """From the first layer to the one that is stored; none where that is 0."""


class StoredManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Layers that were computed ahead of time for a table."""

    layer: int
    """The layer, the first being 1, whose output over all neighbours the table was made of. 0: what is made of each
    node alone before the first of listed layers."""
    correction: CorrectionManifest | None = None
    """None: its rows are not corrected where an overlay reaches."""
    followed: FollowedManifest | None = None
    """None, without a correction too: its rows hold for the graph as it was generated alone."""


class PropagatedManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Recipe that makes rows of propagated features anew where the graph changes. The variant's weights hold the first
    product and what propagated features were scaled by, under `correction.`."""

    features: str
    """Key of the table of the features of all nodes."""


class VariantManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Everything that makes a variant: the table to gather from, the hops to sample, the network to run."""

    name: str
    family: Family
    table: str
    """Key of the revision's `tables`."""
    columns: int
    """Leading columns of the table that are read per row."""
    fanouts: tuple[int, ...]
    """Neighbours that are sampled per layer, the seed's draw first; all -1: full neighbourhood."""
    network: NetworkManifest
    compute: Compute
    """What the matrix products run in where the processor has it; float32 elsewhere."""
    weights: str
    """Path of the network's safetensors, or of its program, inside the revision. Variants may share a file."""
    thresholds: tuple[float, ...] | None = None
    """What is taken from the score of each class before labels are decided: a node has the classes that are then above
    0; of classes that exclude each other, the highest. None: nothing."""
    stored: StoredManifest | None = None
    """None: its table was made of features alone, not of hidden layers."""
    calibration: LinkCalibration | None = None
    """None: it classifies nodes."""
    relation_fanouts: tuple[tuple[int, ...], ...] | UnsetType = UNSET
    """What is sampled by each relation of a graph of several types, in their order, in place of `fanouts`, which bound
    it. Absent: as many by each."""
    propagated: PropagatedManifest | UnsetType = UNSET
    """Absent: its rows hold no neighbours, or those of the graph as it was generated."""

    @property
    def network_files(self) -> tuple[str, ...]:
        """Paths of all files that its network is opened from."""
        program = self.network.program
        return (self.weights,) if program is UNSET else (self.weights, *program.data_files)

    @property
    def tables(self) -> tuple[str, ...]:
        """Keys of all tables that it reads."""
        if self.propagated is not UNSET:
            return (self.table, self.propagated.features)
        if self.stored is None:
            return (self.table,)
        made_of: list[str | None] = []
        if (correction := self.stored.correction) is not None:
            made_of = [correction.products, correction.aggregated]
        if (followed := self.stored.followed) is not None:
            made_of = [name for layer in followed.layers for name in (layer.products, layer.aggregated)]
        return (self.table, *(name for name in made_of if name is not None))


NOT_RANKED = "None"
"""Method of a ranking that was not made: no variant was made by leaving columns out."""


class RankingManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    method: str
    settings: dict[str, float]
    """Every number that shaped the ranking (the publication leaves Lasso's open, so they are recorded)."""
    columns: tuple[int, ...]
    """Original column ids, most important first: column j of a features table is `columns[j]` of the source, unless the
    table states its own. As the source has them where they are not ranked."""
    others: tuple[RankingRun, ...] = ()
    """Rankings by the other seeds of `spec.variants.pruning.stabilitySeeds`."""
    chosen: ChosenFactors | UnsetType = UNSET
    """Which factors were left out with `spec.variants.pruning.choice: Auto`; else absent."""

    @property
    def is_chosen(self) -> bool:
        """Whether generation chose among the listed factors."""
        return self.chosen is not UNSET


class RankingRun(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Ranking of another master, trained only to see how far the order depends on the seed."""

    seed: int
    columns: tuple[int, ...]


class SourceColumn(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A column of the source's node table that became one feature, or several."""

    name: str
    width: int
    """Features that it became: 1, or the length of its lists."""
    fill: tuple[float, ...] | None
    """What stands where values are missing, a number per feature; None: missing values are refused."""


class RowSource(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """How a row of any table is made from the raw features of a node, beside the ranking and the tables' storages."""

    columns: tuple[SourceColumn, ...]
    """The source's columns in the order of the features; empty if the source does not name them."""
    normalization: str
    """The normalisation that was applied: never Auto."""
    tensors: str | None
    """Path of a safetensors file: `mean` and `deviation`, float64 [features], with Standardize; with projected tables
    the first layer's weights that are in them, under the checkpoint's keys behind `TableManifest.made_by`. None: there
    are neither."""
    types: tuple[TypeRows, ...] | UnsetType = UNSET
    """Rows by type, where there are several; else absent."""


class TaskSection(Protocol):
    """A section of a revision's manifest that is about its task alone. A task without one answers for nodes of the
    first type, and has no files of its own."""

    @property
    def listed_files(self) -> tuple[str, ...]:
        """Paths of the task's own files, which the revision lists."""

    @property
    def answers_all_types(self) -> bool:
        """Whether nodes of every type have outputs, so that rows of all of them are read."""

    def asked_alone(self, schema: GraphSchema) -> slice:
        """Positions of the nodes that others of another type are chosen for; empty: there are no such types."""

    def over(self, schema: GraphSchema) -> TaskSection:
        """The section over the same types with other numbers of nodes: another version of the graph, or room for new
        nodes behind each type."""


class RevisionManifest(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """`revisions/<revision>/revision.json`: its presence is the commit."""

    schema_version: int
    revision: str
    recipe: str
    """Digest of the part of the spec that generation depends on."""
    graph: str
    """Digest of the graph: `graphs/<digest>`."""
    model: str
    """Digest of all weights (`model_digest`)."""
    checkpoint: str | None
    """SHA-256 of the file that the weights came from, those of `given` apart; None: they were trained."""
    created_at: str
    """UTC, RFC 3339."""
    generator: str
    """`gnnserve <version>`, and the versions of torch and torch_geometric where they trained."""
    scope: str
    ranking: RankingManifest
    tables: dict[str, TableManifest]
    """Tables by name: `features-float32`, `projected-int8`."""
    variants: tuple[VariantManifest, ...]
    """Variants in the order of the profile; at least one."""
    profile: Profile
    files: dict[str, FileEntry]
    training: TrainingManifest | None = None
    """How the weights were trained; None: all were given, or an earlier gnnserve made the revision."""
    row_source: RowSource | None = None
    """What turns raw features into rows of the tables; None: an earlier gnnserve made the revision and kept nothing of
    this. Such a revision can take neither nodes nor changes of features until it is generated again."""
    edge_rules: EdgeRules | None = None
    """None: an earlier gnnserve made the revision, which can take no edges until it is generated again."""
    given: dict[str, str] = {}
    """SHA-256 of the file of each of `spec.variants.given`, by its name without storage and fan-outs. Weights of the
    other variants come from `checkpoint`, or were trained."""
    cascades: tuple[CascadeManifest, ...] = ()
    """Variants that consist of two of `variants`; behind these in the profile."""
    links: LinksManifest | None = None
    """None: nodes are classified."""
    assumptions: dict[str, str] | UnsetType = UNSET
    """What was assumed of given weights, since their files do not tell it, by name. Absent: all weights were
    trained, or an earlier gnnserve made the revision."""
    compared: tuple[ComparedScores, ...] | UnsetType = UNSET
    """Expected scores that given weights were held against. Absent: there were none."""
    label_misfits: tuple[LabelMisfit, ...] | UnsetType = UNSET
    """Variants of given weights that do not fit the labels. Absent: there are none, or an earlier gnnserve made the
    revision."""
    checksum: str = ""
    """`checksum_of` the rest, as it stands in the file."""

    @property
    def sections(self) -> Mapping[str, TaskSection]:
        """Sections that tasks have written, by their fields; empty: the task has none."""
        written = {"links": self.links}
        return {field: section for field, section in written.items() if section is not None}

    @property
    def task_files(self) -> tuple[str, ...]:
        return tuple(name for section in self.sections.values() for name in section.listed_files)

    @property
    def answers_all_types(self) -> bool:
        return any(section.answers_all_types for section in self.sections.values())

    @property
    def expected(self) -> dict[str, str]:
        """SHA-256 of each file of expected scores, by the weights that they are of."""
        return {} if self.compared is UNSET else {one.weights: one.sha256 for one in self.compared}


def model_digest(variants: Sequence[VariantManifest], files: Mapping[str, FileEntry]) -> str:
    """Digest of the weights of all variants, by name: equal for equal models over different graphs. Weights that
    `files` does not list are left out: a reader refuses such a manifest."""
    lines = [
        f"{variant.name} {files[name].sha256}"
        for variant in variants
        for name in variant.network_files
        if name in files
    ]
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]


AnyManifest = TypeVar("AnyManifest", GraphManifest, RevisionManifest)


def checksum_of(manifest: GraphManifest | RevisionManifest | dict[str, Any]) -> str:
    """SHA-256 of the manifest without its checksum: a hand's edit shows, even one that is valid JSON.

    Of what stands in a file, for readers: fields that its version did not have are not part of it.
    """
    if isinstance(manifest, dict):
        return hashlib.sha256(msgspec.json.encode({**manifest, "checksum": ""})).hexdigest()
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(manifest, checksum=""))).hexdigest()


def sealed(manifest: AnyManifest) -> AnyManifest:
    """The manifest with its checksum, and otherwise as a reader will see it: JSON turns the 1 of a float field into
    1.0."""
    read_back: AnyManifest = decoding.decode(msgspec.json.encode(manifest), type(manifest))
    return msgspec.structs.replace(read_back, checksum=checksum_of(read_back))

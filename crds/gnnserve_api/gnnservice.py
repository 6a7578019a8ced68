"""The `GNNService` resource: what a user writes, for `gnnserve run` and `kubectl apply` alike.

Pydantic, because this is where a person's text enters: its messages name the field and the value. The CRD is
generated from these types (`schema.py`); rules that span fields are stated twice, as CEL for the API server and
as a validator here, side by side. A field enters with the work that makes it do something.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from gnnserve_api import batching as _batching
from gnnserve_api import objective as _objective
from gnnserve_api.device import SIZE, SIZE_REQUIREMENT, CachePolicy, Device
from gnnserve_api.pod_settings import ApiModel, Gpu, PodSettings, cel, text
from gnnserve_api.recipe import digest_of_recipe
from gnnserve_api.routing import RoutingMode, RoutingTable
from gnnserve_api.variants import Storage, projected_name, variant_name

GROUP = "gnnserve.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "GNNService"
FULL_NEIGHBOURHOOD = -1
MAX_TREE_NODES = 1_000_000
"""Nodes that one seed may sample; more is a typing error in `fanouts` rather than a wish."""

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""A DNS label that begins with a letter: the name becomes a Service's."""
_DNS_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_Name = Annotated[
    str,
    text(
        r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$",
        "the name of a Kubernetes object: lower-case letters, digits, '-' and '.'",
        253,
    ),
]
"""Of an object that the user has made."""


class Builtin(StrEnum):
    DIGITS = "Digits"
    """scikit-learn's 1,797 handwritten digits, linked to their 10 nearest neighbours."""


class NpzSource(ApiModel):
    """A graph in one numpy `.npz` file."""

    uri: Annotated[str, text(r"^file:///[^?#]+$", "file:/// and an absolute path, as in file:///data/graph.npz", 2048)]
    """Where the file is: `file:///` and an absolute path, percent-encoded."""
    sha256: Annotated[str, text(r"^[0-9a-f]{64}$", "64 hexadecimal digits in lower case", 64)] | None = None
    """Expected SHA-256 of the file. When set, another file is refused, and a new value generates anew."""


_Sha256 = Annotated[str, text(r"^[0-9a-f]{64}$", "64 hexadecimal digits in lower case", 64)]
_Sha256ByFile = Annotated[dict[str, _Sha256], Field(max_length=16)]


class Direction(StrEnum):
    """Which way messages go along an edge from a source to a target."""

    UNDIRECTED = "Undirected"
    """Both ways, whichever of the two is listed."""
    DIRECTED = "Directed"
    """From the source to the target: the target reads the source's features."""
    REVERSED = "Reversed"
    """From the target to the source."""


class PublishedSource(ApiModel):
    """A public data set, read from the files that its authors published."""

    direction: Direction = Direction.UNDIRECTED
    """Which way messages go along the published edges."""
    mirror: (
        Annotated[
            str,
            text(
                r"^(https?://[^\s/@?#]+(/[^\s?#]*)?|file:///[^?#]+)$",
                "an address or a folder without a user in it, as in https://mirror/ogb or file:///data/ogb",
                2048,
            ),
        ]
        | None
    ) = None
    """Where the published files are found instead: a web address or, for machines without a network, a folder."""
    sha256: _Sha256ByFile = {}  # noqa: RUF012 - pydantic copies it
    """Expected SHA-256 by file name, as in `{arxiv.zip: …}`. Files that differ are refused."""


class OgbName(StrEnum):
    ARXIV = "ogbn-arxiv"
    """169,343 papers that cite each other; 128 features, 40 classes, split by year."""
    PRODUCTS = "ogbn-products"
    """2,449,029 products that are bought together; 100 features, 47 classes, split by sales."""


class OgbSource(PublishedSource):
    """A node data set of the Open Graph Benchmark."""

    name: OgbName
    """Which one."""


class PygName(StrEnum):
    FLICKR = "Flickr"
    """89,250 images; 500 features, 7 classes (GraphSAINT)."""
    REDDIT2 = "Reddit2"
    """232,965 posts with 23.2 million directed edges; 602 features, 41 classes (GraphSAINT)."""
    YELP = "Yelp"
    """716,847 users; 300 features, 100 classes, several per node (GraphSAINT)."""
    AMAZON_PRODUCTS = "AmazonProducts"
    """1,569,960 products; 200 features, 107 classes, several per node (GraphSAINT)."""
    CORA = "Cora"
    """2,708 papers; 1,433 features, 7 classes, public split (Planetoid)."""
    CITESEER = "CiteSeer"
    """3,327 papers; 3,703 features, 6 classes, public split (Planetoid)."""
    PUBMED = "PubMed"
    """19,717 papers; 500 features, 3 classes, public split (Planetoid)."""
    COMPUTERS = "Computers"
    """13,752 products; 767 features, 10 classes, no split of its own (Amazon)."""
    PHOTO = "Photo"
    """7,650 products; 745 features, 8 classes, no split of its own (Amazon)."""
    COAUTHOR_CS = "CoauthorCS"
    """18,333 authors; 6,805 features, 15 classes, no split of its own (Coauthor)."""
    COAUTHOR_PHYSICS = "CoauthorPhysics"
    """34,493 authors; 8,415 features, 5 classes, no split of its own (Coauthor)."""


class PygSource(PublishedSource):
    """A data set under the name that torch_geometric gives it."""

    name: PygName
    """Which one."""


_Column = Annotated[str, Field(min_length=1, max_length=253)]
_TableUri = Annotated[
    str, text(r"^file:///[^?#]+$", "file:/// and an absolute path, as in file:///data/nodes.parquet", 2048)
]


class MissingFeature(StrEnum):
    REFUSE = "Refuse"
    """An error that names the first one."""
    ZERO = "Zero"
    """0 instead."""
    MEAN = "Mean"
    """The mean of what the column has."""


class NodeTable(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.label) != (has(self.labels) && size(self.labels) > 0)",
                "exactly one of label and labels must be given",
            )
        )
    )

    uri: _TableUri
    """A file, or a folder whose files of this format are read in the order of their names."""
    id: _Column = "id"
    """Column of the ids: integers or texts, each once. Requests use them."""
    label: _Column | None = None
    """Column of the class: integers or texts; nothing where it is unknown."""
    labels: Annotated[tuple[_Column, ...], Field(max_length=1000)] = ()
    """Columns of 0 and 1, one per class, where a node may have several. Instead of `label`."""
    features: Annotated[tuple[_Column, ...], Field(max_length=10_000)] = ()
    """Columns of features: numbers, true and false, or lists of numbers that all have one length. A name that no column
    has may be a pattern, in which `*` stands for any text and `?` for one character. Empty: every such column that has
    no other use."""
    exclude_features: Annotated[tuple[_Column, ...], Field(max_length=10_000)] = ()
    """Columns that are no features, by name or pattern: `[year, "embedding_*"]`."""
    split: _Column | None = None
    """Column that says train, validation (or val, valid) or test; anything else is in none. Absent: the labelled nodes
    are split 60/20/20 by a fixed permutation."""
    missing: MissingFeature = MissingFeature.REFUSE
    """What becomes of a feature that is missing or not a number."""

    @model_validator(mode="after")
    def _one_kind_of_label(self) -> NodeTable:
        if (self.label is None) == (not self.labels):
            raise ValueError("exactly one of label and labels must be given")
        return self


class Duplicates(StrEnum):
    MERGE = "Merge"
    """One edge of each."""
    KEEP = "Keep"
    """As they are: a neighbour that is listed twice counts, and is drawn, twice."""


class SelfLoops(StrEnum):
    KEEP = "Keep"
    """As they are."""
    REMOVE = "Remove"
    """None."""


class DanglingEdge(StrEnum):
    REFUSE = "Refuse"
    """An error that names the first one."""
    DROP = "Drop"
    """The edge is left out, and counted."""


class EdgeTable(ApiModel):
    uri: _TableUri
    """A file, or a folder whose files of this format are read in the order of their names."""
    source: _Column = "source"
    """Column of the node where an edge begins: an id of the node table."""
    target: _Column = "target"
    """Column of the node where it ends."""
    direction: Direction = Direction.UNDIRECTED
    """Which way messages go along an edge."""
    duplicates: Duplicates = Duplicates.MERGE
    """What becomes of edges between the same two nodes."""
    self_loops: SelfLoops = SelfLoops.KEEP
    """What becomes of edges from a node to itself."""
    dangling: DanglingEdge = DanglingEdge.REFUSE
    """What becomes of edges with an end that is missing, or that the node table does not have."""


_Delimiter = Annotated[str, Field(min_length=1, max_length=1)]


class CsvNodeTable(NodeTable):
    delimiter: _Delimiter | None = None
    """One character between the values of this table. Absent: the source's."""


class CsvEdgeTable(EdgeTable):
    delimiter: _Delimiter | None = None
    """One character between the values of this table. Absent: the source's."""


class DecimalMark(StrEnum):
    POINT = "."
    """`1.5` is one and a half."""
    COMMA = ","
    """`1,5` is one and a half, and `1.5` is a text."""


class ParquetSource(ApiModel):
    """A graph in Parquet files: one table of nodes, one of edges."""

    nodes: NodeTable
    """A row per node."""
    edges: EdgeTable
    """A row per edge."""


class CsvSource(ApiModel):
    """A graph in CSV files with a header line, compressed or not: one table of nodes, one of edges."""

    nodes: CsvNodeTable
    """A row per node."""
    edges: CsvEdgeTable
    """A row per edge."""
    delimiter: _Delimiter = ","
    """One character between values; a tab is written "\\t"."""
    decimal: DecimalMark = DecimalMark.POINT
    """What stands before the fraction of a number. Where commas are also between values, numbers with a decimal comma
    are in quotation marks."""


class GraphSource(ApiModel):
    """Where the graph comes from; exactly one member."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "[has(self.builtin), has(self.npz), has(self.ogb), has(self.pyg), has(self.parquet), has(self.csv)]"
                ".filter(given, given).size() == 1",
                "exactly one of builtin, npz, ogb, pyg, parquet and csv must be set",
            )
        )
    )

    builtin: Builtin | None = None
    """A graph that ships with gnnserve."""
    npz: NpzSource | None = None
    """A graph in one numpy `.npz` file."""
    ogb: OgbSource | None = None
    """A data set of the Open Graph Benchmark."""
    pyg: PygSource | None = None
    """A data set that torch_geometric knows."""
    parquet: ParquetSource | None = None
    """Your own tables of nodes and edges, as Parquet."""
    csv: CsvSource | None = None
    """Your own tables of nodes and edges, as CSV."""

    @model_validator(mode="after")
    def _exactly_one(self) -> GraphSource:
        given = [self.builtin, self.npz, self.ogb, self.pyg, self.parquet, self.csv]
        if sum(member is not None for member in given) != 1:
            raise ValueError("exactly one of builtin, npz, ogb, pyg, parquet and csv must be set")
        return self

    def described(self) -> str:
        """For people, in one line: `builtin Digits`, `file:///data/x.npz`, `ogbn-arxiv`."""
        if self.npz is not None:
            return self.npz.uri
        if (published := self.ogb or self.pyg) is not None:
            return f"{published.name}, {published.direction}"
        if (tables := self.parquet or self.csv) is not None:
            return f"{tables.nodes.uri} and {tables.edges.uri}, {tables.edges.direction}"
        return f"builtin {self.builtin}"


class Normalization(StrEnum):
    AUTO = "Auto"
    """Standardize dense features, RowNormalize sparse ones; Disabled with a model.checkpoint, whose weights expect the
    features that they were trained on."""
    STANDARDIZE = "Standardize"
    """Zero mean and unit deviation per column, from the nodes that training may see. Sparse features become
    dense: at most 16 GiB."""
    ROW_NORMALIZE = "RowNormalize"
    """Each node's features divided by the sum of their absolute values."""
    L2_ROW_NORMALIZE = "L2RowNormalize"
    """Each node's features divided by their Euclidean length, as scikit-learn's normalize does (norm='l2')."""
    DISABLED = "Disabled"
    """Features as they are in the source."""


class GraphVolume(ApiModel):
    """Where `file:///` URIs are found in the cluster."""

    claim_name: _Name
    """A PersistentVolumeClaim in the namespace of the service."""
    mount_path: Annotated[str, text(r"^/[^:]*[^:/]$", "an absolute path without ':', as in /data", 1024)] = "/data"
    """Where pods see it, read-only: `file:///data/graph.npz` is its `graph.npz`."""


class Graph(ApiModel):
    source: GraphSource
    """Where the graph comes from."""
    volume: GraphVolume | None = None
    """The volume with the source's files. In a cluster only; `gnnserve run` reads the files of its own machine."""
    normalization: Normalization = Normalization.AUTO
    """How features are scaled before training and serving."""


class Architecture(StrEnum):
    GRAPHSAGE = "GraphSAGE"
    """GraphSAGE with mean aggregation (torch_geometric.nn.GraphSAGE)."""
    GIN = "GIN"
    """Graph isomorphism network with sum aggregation (torch_geometric.nn.GIN)."""


class Scope(StrEnum):
    INDUCTIVE = "Inductive"
    """Training sees only training nodes and the edges between them."""
    TRANSDUCTIVE = "Transductive"
    """Training sees the whole graph, and the labels of training nodes."""


AUTO: Literal["Auto"] = "Auto"
_MOST_EPOCHS = 10_000
_EPOCHS = f"Auto, or a whole number from 1 to {_MOST_EPOCHS}"


def _parse_epochs(value: object) -> object:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MOST_EPOCHS
    if not is_count and value != AUTO:
        nearby = isinstance(value, str) and value.lower() == AUTO.lower()
        raise ValueError(f"must be {_EPOCHS}{f'; did you mean {AUTO}?' * nearby}")
    return value


Epochs = Annotated[
    int | Literal["Auto"],
    BeforeValidator(_parse_epochs),
    WithJsonSchema(
        {
            "x-kubernetes-int-or-string": True,
            "maxLength": 32,
            **cel(
                (
                    f"type(self) == string ? self == '{AUTO}' : self >= 1 && self <= {_MOST_EPOCHS}",
                    f"must be {_EPOCHS}",
                )
            ),
        }
    ),
]


class Training(ApiModel):
    epochs: Epochs = 30
    """Passes over the training nodes; the epoch with the best validation score is kept. Auto: until validation has not
    improved for a while, of each variant on its own; right for small graphs too, where 30 epochs are few steps."""
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 1024
    """Training nodes per step."""
    scope: Scope = Scope.INDUCTIVE
    """Whether training may see nodes outside of the training split."""
    learning_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    """Step size of Adam. Absent: 0.01 for GraphSAGE, 0.001 for GIN, whose sums make larger steps diverge."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] = 0.0005
    """L2 penalty on the weights."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """Share of hidden units dropped in training."""
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = 0
    """Seed of initial weights, batches, sampling and Random ranking."""


class Checkpoint(ApiModel):
    """Weights that are served as they are; nothing is trained."""

    uri: Annotated[
        str,
        text(
            r"^file:///[^?#]+[.]safetensors$",
            "file:/// and the absolute path of a .safetensors file, as in file:///data/model.safetensors",
            2048,
        ),
    ]
    """State dict of a torch_geometric.nn.GraphSAGE or GIN, or of a model of their convolutions (conv1, conv2),
    percent-encoded. Its content is part of the revision's
    identity: another file at the same place generates anew. Over more than 16,384 feature columns it is not pruned:
    generation then refuses factors other than `[1]`, and the ranking method Lasso, which knows that limit without a
    checkpoint too."""
    sha256: Annotated[str, text(r"^[0-9a-f]{64}$", "64 hexadecimal digits in lower case", 64)] | None = None
    """Expected SHA-256 of the file. When set, another file is refused."""


Fanout = Annotated[int, Field(ge=FULL_NEIGHBOURHOOD, le=1024)]


class Model(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.fanouts.all(f, f > 0) || self.fanouts.all(f, f == -1)",
                "fanouts must be all positive, or all -1 for the full neighbourhood",
            ),
            (
                # f0 + f0·f1 + f0·f1·f2 + …, by Horner's rule
                "self.fanouts[0] * (1 + (size(self.fanouts) < 2 ? 0 : self.fanouts[1] * "
                "(1 + (size(self.fanouts) < 3 ? 0 : self.fanouts[2] * "
                "(1 + (size(self.fanouts) < 4 ? 0 : self.fanouts[3])))))) < 1000000",
                "fanouts would sample over 1,000,000 nodes for one seed: use smaller ones, or -1 for all neighbours",
            ),
            ("self.architecture == 'GIN' || !has(self.mlpHidden)", "mlpHidden may be given with architecture GIN only"),
        )
    )  # fmt: skip

    architecture: Architecture = Architecture.GRAPHSAGE
    """Kind of graph neural network."""
    hidden: Annotated[int, Field(ge=1, le=4096)] = 128
    """Width of the hidden layers."""
    mlp_hidden: Annotated[int, Field(ge=1, le=4096)] | None = None
    """GIN only: width between the two products of each layer. Absent: as wide as the layer's output, which is what
    torch_geometric.nn.GIN has."""
    fanouts: Annotated[tuple[Fanout, ...], Field(min_length=1, max_length=4)] = (25, 10)
    """Neighbours sampled per layer, the seed's draw first; one entry per layer. All -1: every neighbour."""
    training: Training = Training()
    """How the model is trained. With a checkpoint only scope and seed count."""
    checkpoint: Checkpoint | None = None
    """Weights to serve instead of training."""

    @model_validator(mode="after")
    def _mlp_hidden_is_of_gin(self) -> Model:
        if self.mlp_hidden is not None and self.architecture is not Architecture.GIN:
            raise ValueError(
                f"mlpHidden {self.mlp_hidden} may be given with architecture GIN only: leave it out, or use GIN"
            )
        return self

    @model_validator(mode="after")
    def _fanouts_agree(self) -> Model:
        full = [fanout == FULL_NEIGHBOURHOOD for fanout in self.fanouts]
        if (any(full) and not all(full)) or 0 in self.fanouts:
            raise ValueError(f"fanouts {list(self.fanouts)} must be all positive, or all -1 for the full neighbourhood")
        if not any(full):
            tree_nodes, width = 1, 1
            for fanout in self.fanouts:
                width *= fanout
                tree_nodes += width
            if tree_nodes > MAX_TREE_NODES:
                raise ValueError(
                    f"fanouts {list(self.fanouts)} would sample up to {tree_nodes:,} nodes for one seed; "
                    f"the limit is {MAX_TREE_NODES:,}: use smaller fanouts, or -1 for the full neighbourhood"
                )
        return self


class RankingMethod(StrEnum):
    RANDOM = "Random"
    """A seeded permutation: the baseline."""
    GREEDY = "Greedy"
    """By the first layer's absolute weights."""
    LASSO = "Lasso"
    """By coefficients that survive an L1 penalty on the first layer's output."""


class LassoSettings(ApiModel):
    """Settings that Dynamic GNN inference as-a-service, section 3.2, leaves open; recorded with the ranking."""

    epochs: Annotated[int, Field(ge=1, le=100_000)] = 200
    """Rises of the penalty."""
    steps_per_epoch: Annotated[int, Field(ge=1, le=10_000)] = 5
    """Gradient steps at each penalty."""
    initial_penalty_permille: Annotated[int, Field(ge=0, le=1000)] = 0
    """First penalty, in permille of the one that alone would remove every column."""
    penalty_step_permille: Annotated[int, Field(ge=1, le=1000)] = 5
    """Rise of the penalty per epoch, in the same unit."""


class WideTables(StrEnum):
    AUTO = "Auto"
    """The default factors without those whose tables would be dense copies of sparse features, of over 1 GiB and over
    16 times what the features take; `projected`, which computes what x1 computes, stands in for them. Another list of
    factors, and variants that spec.routing names, are written as they are."""
    KEEP = "Keep"
    """Every factor."""


DEFAULT_FACTORS = (1, 2, 4, 8)


class Pruning(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.method != 'Random' || self.stabilitySeeds == 0",
                "stabilitySeeds must be 0 with method Random, which depends on its seed alone",
            )
        )
    )

    method: RankingMethod = RankingMethod.GREEDY
    """How feature columns are ranked before the least important ones are dropped."""
    factors: Annotated[
        tuple[Annotated[int, Field(ge=1, le=65_536)], ...],
        Field(min_length=1, max_length=16, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = DEFAULT_FACTORS
    """One variant for each factor k: it reads the first ⌊features/k⌋ ranked columns and is named xk."""
    wide_tables: WideTables = WideTables.AUTO
    """Which factors are written where features are sparse and very wide. Tables are dense."""
    lasso: LassoSettings = LassoSettings()
    """Settings of the Lasso method."""
    stability_seeds: Annotated[int, Field(ge=0, le=10)] = 0
    """How many more masters are trained and ranked, each with a seed of its own, to tell in the report how far the
    ranking depends on it. They are not served."""

    @model_validator(mode="after")
    def _factors_differ(self) -> Pruning:
        if len(set(self.factors)) != len(self.factors):
            raise ValueError(f"factors {list(self.factors)} must not repeat")
        return self

    @model_validator(mode="after")
    def _stability_is_of_a_method_that_looks(self) -> Pruning:
        if self.method is RankingMethod.RANDOM and self.stability_seeds:
            raise ValueError(
                f"stabilitySeeds {self.stability_seeds} must be 0 with method Random, which depends on its seed alone"
            )
        return self


class Projection(StrEnum):
    AUTO = "Auto"
    """Variants whose first linear layer is applied ahead of time, for every node. Exact but for rounding; kept only
    where no other variant is as accurate and as fast."""
    DISABLED = "Disabled"
    """Only the factors that are listed."""


MAX_LISTED_VARIANTS = 32
"""So that all of them fit into a Job's termination message, and a profile takes minutes."""


class Variants(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"size(self.pruning.factors) * size(self.storage) <= {MAX_LISTED_VARIANTS}",
                f"factors times storages must be at most {MAX_LISTED_VARIANTS} variants",
            )
        )
    )

    pruning: Pruning = Pruning()
    """Variants that read fewer feature columns."""
    storage: Annotated[
        tuple[Storage, ...],
        Field(min_length=1, max_length=4, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = (Storage.FLOAT32,)
    """How tables of features are stored. Every factor is served from each: x4 from float32, x4-int8 from int8."""
    projection: Projection = Projection.AUTO
    """Whether projected variants are added."""

    def listed_names(self) -> tuple[str, ...]:
        """Variants that every revision has: a factor in a storage."""
        storages = [storage for storage in Storage if storage in self.storage]
        return tuple(variant_name(factor, storage) for factor in sorted(self.pruning.factors) for storage in storages)

    def optional_names(self) -> tuple[str, ...]:
        """Variants that a revision may have: those that are kept only where the profile finds them worth it."""
        if self.projection is not Projection.AUTO:
            return ()
        return tuple(projected_name(storage) for storage in Storage if storage in self.storage)

    @model_validator(mode="after")
    def _storages_differ(self) -> Variants:
        if len(set(self.storage)) != len(self.storage):
            raise ValueError(f"storage {[str(storage) for storage in self.storage]} must not repeat")
        listed = len(self.pruning.factors) * len(self.storage)
        if listed > MAX_LISTED_VARIANTS:
            raise ValueError(
                f"{len(self.pruning.factors)} factors times {len(self.storage)} storages are {listed} variants; they "
                f"must be at most {MAX_LISTED_VARIANTS}"
            )
        return self


class ObjectiveSpec(ApiModel):
    """For requests that state none of their own. Absent or empty: the most accurate variant, no deadline."""

    latency_ms: Annotated[float, Field(gt=0, le=3_600_000)] | None = None
    """Milliseconds from arrival to answer; the most accurate variant within it answers."""
    accuracy_tolerance_permille: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Permille of accuracy (10 is one point) that an answer may be below the most accurate variant."""

    percentile: Annotated[float, Field(gt=0, le=99.99)] = 99
    """Percent of the requests that are to be answered within their latency, refused ones counted as missed; for the
    condition ObjectiveMet and for alerts."""

    def to_objective(self) -> _objective.Objective:
        return _objective.Objective(
            latency_ms=self.latency_ms, accuracy_tolerance_permille=self.accuracy_tolerance_permille
        )


class BatchingSpec(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(("self.maxQueuedSeeds >= self.maxSeeds", "maxQueuedSeeds must be at least maxSeeds"))
    )

    max_seeds: Annotated[int, Field(ge=1, le=65_536)] = 1024
    """Nodes computed together; larger requests are split."""
    max_queued_seeds: Annotated[int, Field(ge=1, le=16_777_216)] = 65_536
    """Nodes that may wait; beyond it requests are refused with 429. Also the largest request."""

    def to_batching(self) -> _batching.Batching:
        return _batching.Batching(max_seeds=self.max_seeds, max_queued_seeds=self.max_queued_seeds)

    @model_validator(mode="after")
    def _queue_holds_a_batch(self) -> BatchingSpec:
        if self.max_queued_seeds < self.max_seeds:
            raise ValueError(f"maxQueuedSeeds {self.max_queued_seeds} must be at least maxSeeds {self.max_seeds}")
        return self


class PrometheusSpec(ApiModel):
    url: (
        Annotated[
            str,
            text(
                r"^https?://[^\s/@?#]+(/[^\s?#]*)?$", "the address of a Prometheus, as in http://prometheus:9090", 512
            ),
        ]
        | None
    ) = None
    """Where Prometheus answers, without a user or password in it. Absent: the operator's setting."""


class RoutingSpec(ApiModel):
    """Which variant answers which request."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("(self.mode == 'Static') == has(self.variant)", "variant must be given in mode Static, and only there"),
            ("(self.mode == 'Weights') == has(self.weights)", "weights must be given in mode Weights, and only there"),
            (
                "!has(self.weights) || self.weights.exists(name, self.weights[name] > 0)",
                "one of the weights must be above 0",
            ),
        )
    )

    mode: RoutingMode = RoutingMode.ADAPTIVE
    """Who chooses, and from what."""
    variant: Annotated[str, Field(max_length=63)] | None = None
    """Mode Static: the variant that answers."""
    weights: (
        Annotated[dict[str, Annotated[int, Field(ge=0, le=1_000_000)]], Field(min_length=1, max_length=48)] | None
    ) = None
    """Mode Weights: the share of the requests that each variant answers, as in `{x1: 9, x4: 1}`."""
    interval_seconds: Annotated[int, Field(ge=1, le=3600)] = 15
    """How often the operator looks at the measured load and latency."""
    prometheus: PrometheusSpec = PrometheusSpec()
    """Where they are measured."""

    @property
    def named_variants(self) -> tuple[str, ...]:
        return tuple(self.weights or ()) if self.variant is None else (self.variant,)

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> RoutingSpec:
        if (self.mode is RoutingMode.STATIC) != (self.variant is not None):
            raise ValueError(f"mode {self.mode}: variant must be given in mode Static, and only there")
        if (self.mode is RoutingMode.WEIGHTS) != (self.weights is not None):
            raise ValueError(f"mode {self.mode}: weights must be given in mode Weights, and only there")
        if self.weights is not None and not any(self.weights.values()):
            raise ValueError(f"weights {self.weights} are all 0: one of them must be above 0")
        return self


class Generation(PodSettings):
    """The Job that trains and profiles. In a cluster only."""

    gpu: Gpu | None = None
    """A GPU to train on. Absent: the CPU."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further attempts after one that failed for another reason than bad input."""
    deadline_seconds: Annotated[int, Field(ge=60, le=2_592_000)] = 86_400
    """Time for all attempts together."""


class CacheSpec(ApiModel):
    """What a worker with a GPU keeps in its memory."""

    policy: CachePolicy = CachePolicy.FREQUENCY
    """Which rows of a table that does not fit into the GPU's memory are kept there."""


class Worker(PodSettings):
    """The pods that answer. But for `device`, `gpuMemory`, `cache` and `batching`, in a cluster only."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.device != 'GPU' || has(self.gpu)",
                "gpu must be given with device GPU, so that pods are placed where there is one: gpu: {} asks for one "
                "nvidia.com/gpu",
            ),
            (
                "self.device != 'CPU' || !has(self.gpu)",
                "gpu must not be given with device CPU, which would leave it idle",
            ),
        )
    )

    replicas: Annotated[int, Field(ge=0, le=1000)] = 1
    """Number of workers."""
    device: Device = Device.AUTO
    """On what they compute."""
    gpu: Gpu | None = None
    """A GPU to compute on, for each of them. Absent: pods ask for none."""
    gpu_memory: Annotated[str, text(SIZE, SIZE_REQUIREMENT, 9)] | None = None
    """Memory of the GPU that a worker takes at most: weights, buffers, graph and tables, then the cache with what is
    left. Absent: all that is free."""
    cache: CacheSpec = CacheSpec()
    """What they keep there of tables that it has no room for."""
    batching: BatchingSpec = BatchingSpec()
    """How requests are queued and grouped."""

    @model_validator(mode="after")
    def _gpu_is_asked_for_where_it_is_used(self) -> Worker:
        if self.device is Device.GPU and self.gpu is None:
            raise ValueError(
                "gpu must be given with device GPU, so that pods are placed where there is one: gpu: {} asks for one "
                "nvidia.com/gpu"
            )
        if self.device is Device.CPU and self.gpu is not None:
            raise ValueError("gpu must not be given with device CPU, which would leave it idle")
        return self


class AccessMode(StrEnum):
    READ_WRITE_ONCE = "ReadWriteOnce"
    """Pods of one node."""
    READ_WRITE_MANY = "ReadWriteMany"
    """Pods of every node: for workers on several of them."""


DEFAULT_STORAGE = "10Gi"
"""Size of a claim that is not described."""


class RepositoryClaim(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.storageClassName) == has(oldSelf.storageClassName) && "
                "(!has(self.storageClassName) || self.storageClassName == oldSelf.storageClassName) && "
                "self.accessMode == oldSelf.accessMode",
                "storageClassName and accessMode are fixed once the claim is made: create another service to move",
            ),
        )
    )

    storage: Annotated[str, text(r"^[1-9][0-9]{0,5}(Mi|Gi|Ti)$", "a size, as in 500Mi, 10Gi or 1Ti", 8)] = (
        DEFAULT_STORAGE
    )
    """Size of the claim, at least. It may grow later where the storage class allows that, and cannot become less than
    what the claim has (`status.repositoryStorage`)."""
    storage_class_name: _Name | None = None
    """Absent: the cluster's default class."""
    access_mode: AccessMode = AccessMode.READ_WRITE_ONCE
    """Which pods may mount it."""


class RepositorySpec(ApiModel):
    """Where revisions are kept. In a cluster only; `gnnserve run` has `--repository`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!has(self.claimName) || !has(self.claim)", "at most one of claimName and claim may be set"),
            (
                "has(self.claimName) == has(oldSelf.claimName) && "
                "(!has(self.claimName) || self.claimName == oldSelf.claimName)",
                "claimName is fixed, because the revisions are there: create another service to move",
            ),
            (
                # With one of the two there, the other stands for the defaults.
                "has(self.claim) == has(oldSelf.claim) || [self, oldSelf].all(one, !has(one.claim) || "
                "(!has(one.claim.storageClassName) && one.claim.accessMode == 'ReadWriteOnce'))",
                "storageClassName and accessMode are fixed once the claim is made, also where claim is absent, which "
                "stands for the cluster's default class and ReadWriteOnce: create another service to move",
            ),
        )
    )

    claim_name: _Name | None = None
    """A PersistentVolumeClaim of yours, which several services may share. It outlives the service."""
    claim: RepositoryClaim | None = None
    """The claim that is made for the service and deleted with it. Absent, and no claimName: one with these defaults."""

    @model_validator(mode="after")
    def _at_most_one(self) -> RepositorySpec:
        if self.claim_name is not None and self.claim is not None:
            raise ValueError("at most one of claimName and claim may be set")
        return self


class EndpointTls(ApiModel):
    secret_name: _Name
    """A Secret of type kubernetes.io/tls in the namespace of the service. A renewed certificate is followed without a
    restart."""


class EndpointTokens(ApiModel):
    secret_name: _Name
    """A Secret in the namespace of the service. Each of its values is an accepted token: 16 to 4096 letters, digits and
    -._~+/ with = at the end. Several make rotation possible; changes are followed without a restart."""


class EndpointSpec(ApiModel):
    """How clients reach the workers, and which of them get answers. In a cluster only; `gnnserve run` has `--tls-cert`,
    `--tls-key` and `--token-file`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.tls) || !has(self.tokens) || self.tls.secretName != self.tokens.secretName",
                "tls and tokens must name two Secrets: every value of the second is an accepted token",
            )
        )
    )

    tls: EndpointTls | None = None
    """HTTPS, on port 443 of the Service. Absent: HTTP, on port 80."""
    tokens: EndpointTokens | None = None
    """Requests must send `Authorization: Bearer` and one of these tokens. Absent: anyone who reaches a worker is
    answered."""

    @model_validator(mode="after")
    def _secrets_differ(self) -> EndpointSpec:
        if self.tls is not None and self.tokens is not None and self.tls.secret_name == self.tokens.secret_name:
            raise ValueError(
                f"tls and tokens both name the Secret {self.tls.secret_name!r}, and must name two: every value of the "
                "second is an accepted token"
            )
        return self


_RECIPE_PARTS: Any = {"graph": {"source", "normalization"}, "model": True, "variants": True}
"""Where a file lies in a pod changes nothing about what is in it."""


class GNNServiceSpec(ApiModel):
    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.model.checkpoint) || self.variants.pruning.stabilitySeeds == 0",
                "variants.pruning.stabilitySeeds must be 0 with a model.checkpoint, beside which nothing is trained",
            )
        )
    )

    graph: Graph
    """The graph that is served."""
    model: Model = Model()
    """The model that is trained on it, or given."""
    variants: Variants = Variants()
    """The variants that are generated from the model."""
    objective: ObjectiveSpec = ObjectiveSpec()
    """What requests get that state no objective of their own."""
    routing: RoutingSpec = RoutingSpec()
    """Which variant answers which request."""
    endpoint: EndpointSpec = EndpointSpec()
    """How clients reach the workers, and which of them get answers."""
    worker: Worker = Worker()
    """The workers that answer."""
    generation: Generation = Generation()
    """The Job that trains and profiles."""
    repository: RepositorySpec = RepositorySpec()
    """Where revisions are kept."""
    image: (
        Annotated[str, text(r"^[^\s]+$", "a reference without spaces, as in registry/gnnserve/worker:1", 512)] | None
    ) = None
    """Image of generation and worker pods. Absent: the operator's setting."""
    image_pull_secrets: Annotated[tuple[_Name, ...], Field(max_length=8)] = ()
    """Secrets to pull the image with, by name."""
    suspend: bool = False
    """Stop generation and every worker, and keep the data."""

    @model_validator(mode="after")
    def _stability_is_of_trained_masters(self) -> GNNServiceSpec:
        seeds = self.variants.pruning.stability_seeds
        if self.model.checkpoint is not None and seeds:
            raise ValueError(
                f"variants.pruning.stabilitySeeds {seeds} must be 0 with a model.checkpoint, beside which nothing is "
                "trained"
            )
        return self

    def impossible_variants(self) -> tuple[str, ...]:
        """Variants that `routing` names and that no revision of this spec has. Not a rule of the schema: a spec that
        breaks it was always accepted, and stays readable."""
        possible = {*self.variants.listed_names(), *self.variants.optional_names()}
        return tuple(name for name in self.routing.named_variants if name not in possible)

    def uncertain_variants(self) -> tuple[str, ...]:
        """Variants that `routing` names and that generation may leave out."""
        return tuple(name for name in self.routing.named_variants if name in self.variants.optional_names())

    def recipe(self) -> str:
        """Digest of what generation depends on: equal recipes need no new training."""
        return digest_of_recipe(self._canonical().model_dump(mode="json", include=_RECIPE_PARTS))

    def routing_table(self, revision: str, recipe: str | None = None) -> RoutingTable:
        """What workers are told while they answer from that revision, before anything was measured. `recipe` is the
        revision's, which may be an older spec's; None: it is this spec's."""
        return RoutingTable(
            revision=revision,
            recipe=self.recipe() if recipe is None else recipe,
            objective=self.objective.to_objective(),
            batching=self.worker.batching.to_batching(),
            mode=self.routing.mode,
            base_variant=self.routing.variant,
            weights=self.routing.weights or {},
        )

    def _canonical(self) -> GNNServiceSpec:
        """What generates the same gets the same spec: order of factors and storages, another method's settings, and
        how to train what is given do nothing."""
        pruning, training = self.variants.pruning, self.model.training
        changes: dict[str, Any] = {"factors": tuple(sorted(pruning.factors))}
        if pruning.method != RankingMethod.LASSO:
            changes["lasso"] = LassoSettings()
        variants = self.variants.model_copy(
            update={
                "pruning": pruning.model_copy(update=changes),
                "storage": tuple(storage for storage in Storage if storage in self.variants.storage),
            }
        )
        model = self.model
        if model.checkpoint is not None:
            model = model.model_copy(update={"training": Training(scope=training.scope, seed=training.seed)})
        graph = self.graph.model_copy(update={"source": _without_mirror(self.graph.source)})
        return self.model_copy(update={"graph": graph, "variants": variants, "model": model})


def _without_mirror(source: GraphSource) -> GraphSource:
    """Where a published data set was fetched from says nothing about what is in it."""
    for name in ("ogb", "pyg"):
        published = getattr(source, name)
        if published is not None:
            return source.model_copy(update={name: published.model_copy(update={"mirror": None})})
    return source


class Metadata(BaseModel):
    """The part of Kubernetes' ObjectMeta that gnnserve reads; the rest is kept out of its way."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=63)]
    namespace: Annotated[str, Field(pattern=_DNS_LABEL, max_length=63)] = "default"


class GNNService(ApiModel):
    """One graph neural network, served as several variants that trade accuracy for latency."""

    api_version: Literal["gnnserve.dev/v1alpha1"]
    kind: Literal["GNNService"]
    metadata: Metadata
    spec: GNNServiceSpec

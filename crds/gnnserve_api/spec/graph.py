"""The graph that is served: where it comes from, and how its features are scaled."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, assert_never

from gnnserve_api.files.edges import EdgeColumns
from gnnserve_api.spec.audience import Audience
from gnnserve_api.spec.fields import ApiModel, ObjectName, Sha256, text
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_api.spec.paths import SourcePath
from gnnserve_api.spec.published import OgbSource, PygSource
from gnnserve_api.spec.rules import rule
from gnnserve_api.spec.source_kinds import ONE_TYPE, SEVERAL_TYPES, GraphSourceKind
from gnnserve_api.spec.tables import CsvSource, ParquetSource


class Builtin(StrEnum):
    DIGITS = "Digits"
    """scikit-learn's 1,797 handwritten digits, linked to their 10 nearest neighbours."""


class NpzDirection(StrEnum):
    """Direction of messages along the edges that the file's lists have."""

    UNDIRECTED = "Undirected"
    """Both ways: the other direction of an edge is added where the lists do not have it."""
    DIRECTED = "Directed"
    """As the lists have them: a node reads the nodes of its list."""


class NpzSource(ApiModel):
    """A graph in one numpy `.npz` file."""

    uri: SourcePath
    """Path of the `.npz` file. A relative path begins in the manifest's folder, and in a cluster at
    `graph.volume.mountPath`."""
    sha256: Sha256 | None = None
    """Expected SHA-256 of the `.npz` file. Another file is refused, and a new value generates anew. Absent: any file is
    read."""
    direction: NpzDirection | None = None
    """Direction of messages along edges, also along edges of changes and overlays. Absent: decided when the file is
    read, Undirected where every edge is listed both ways and else Directed; write it, so that another file does not
    change it."""
    edge_columns: EdgeColumns = EdgeColumns.IGNORE
    """Treatment of the arrays `edge_attr` (numbers, [edges] or [edges, columns]) and `edge_time` (integers), which are
    in the order of `indices`."""


GivenSource = Builtin | NpzSource | OgbSource | PygSource | ParquetSource | CsvSource | HeterogeneousSource


class GraphSource(ApiModel):
    """Source of the graph: exactly one of builtin, npz, ogb, pyg, parquet, csv and typed."""

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
    typed: HeterogeneousSource | None = None
    """A graph of several types of nodes and relations."""

    _exactly_one = rule(
        "[has(self.builtin), has(self.npz), has(self.ogb), has(self.pyg), has(self.parquet), has(self.csv), "
        "has(self.typed)].filter(given, given).size() == 1",
        "exactly one of builtin, npz, ogb, pyg, parquet, csv and typed must be set",
    )

    def given(self) -> GivenSource:
        """The member that is set."""
        return self._members()[0]

    @property
    def kind(self) -> GraphSourceKind:
        """The kind of graph that the source has."""
        match given := self.given():
            case Builtin() | NpzSource() | OgbSource() | PygSource() | ParquetSource() | CsvSource():
                return ONE_TYPE
            case HeterogeneousSource():
                return SEVERAL_TYPES
            case _:
                assert_never(given)

    def _members(self) -> list[GivenSource]:
        members = (self.builtin, self.npz, self.ogb, self.pyg, self.parquet, self.csv, self.typed)
        return [member for member in members if member is not None]

    def described(self) -> str:
        """For people, in one line: `builtin Digits`, `data/x.npz`, `ogbn-arxiv`."""
        match given := self.given():
            case Builtin():
                return f"builtin {given}"
            case NpzSource():
                return str(given.uri) if given.direction is None else f"{given.uri}, {given.direction}"
            case OgbSource() | PygSource():
                return f"{given.name}, {given.direction}"
            case ParquetSource() | CsvSource():
                return f"{given.nodes.uri} and {given.edges.uri}, {given.edges.direction}"
            case HeterogeneousSource():
                return given.described()
            case _:
                assert_never(given)


class Normalization(StrEnum):
    AUTO = "Auto"
    """Standardize dense features, RowNormalize sparse ones; Disabled with a model.checkpoint, a model.program or
    variants.given, whose weights expect the features that they were trained on."""
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
    """The volume of the data, where a manifest's paths are found in the cluster."""

    claim_name: ObjectName
    """Name of the PersistentVolumeClaim with the data, in the namespace of the service."""
    mount_path: Annotated[str, text(r"^/[^:]*[^:/]$", "an absolute path without ':', as in /data", 1024)] = "/data"
    """Absolute path at which pods mount the volume of the data, read-only. With /data, both `graph.npz` and
    `file:///data/graph.npz` are the file `graph.npz` of the volume."""


class GraphSpec(ApiModel):
    source: Annotated[GraphSource, Audience.REVISION | Audience.RETURN | Audience.EMBEDDINGS]
    """Source of the graph: exactly one of builtin, npz, ogb, pyg, parquet, csv and typed."""
    volume: Annotated[GraphVolume | None, Audience.OPERATOR] = None
    """Volume with the files that the manifest names, weights too. In a cluster only; `gnnserve run` reads the files of
    its own machine. Absent: none is mounted."""
    normalization: Annotated[Normalization, Audience.REVISION] = Normalization.AUTO
    """Scaling of features before training and serving."""

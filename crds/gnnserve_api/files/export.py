"""Description that `gnnserve export` writes beside a program: `export.json`, for programs that run it elsewhere."""

from __future__ import annotations

from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from gnnserve_api.families import Family
from gnnserve_api.files.graph_schema import Classes
from gnnserve_api.files.profile import Compute
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import SourceColumn, TableKind
from gnnserve_api.variants import Storage

EXPORT_SCHEMA_VERSION = 1


class ExportFormat(StrEnum):
    """A form of programs."""

    TORCH = "torch"
    """An archive of torch.export."""
    ONNX = "onnx"


class ExportedArray(msgspec.Struct, frozen=True, rename="camel"):
    """An input or an output of the program."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    """Names stand for sizes that may differ from call to call; equal names for equal sizes."""
    meaning: str


class ExportedRows(msgspec.Struct, frozen=True, rename="camel"):
    """Kinds of the rows of the inputs."""

    table: str
    """The revision's table that has them."""
    kind: TableKind
    storage: Storage
    """What its numbers are kept in; rows of the program are float32 whatever it is."""
    values: str
    """The table's rows, a .npy file in the folder of the revision."""
    scales: str | None
    """What each row is multiplied by, a .npy file; None: nothing."""
    own_values: str | None
    """The rows that are read of a node itself; None: the same."""
    own_scales: str | None
    stored_layer: int | None
    """The layer, the first being 1, whose output the rows were made of, over all neighbours. None: they were made of
    features."""
    normalization: str | None
    """How features are scaled before a row is made of them. None: the revision does not keep it, or rows of this kind
    cannot be made of a node's features alone."""
    columns: tuple[int, ...]
    """The source's feature columns that a row is made of, in their order; empty where `normalization` is None."""
    source_columns: tuple[SourceColumn, ...]
    """Names and widths of the source's columns, in the order of the features; empty if the source does not name
    them."""


class ExportCheck(msgspec.Struct, frozen=True, rename="camel"):
    """A comparison of the program with gnnserve's own scores."""

    format: ExportFormat
    batches: int
    """Batches that were compared, of different sizes where there are several."""
    nodes: int
    """Nodes that the largest batch asked about."""
    rows: int
    """Rows that the largest batch had, padding included."""
    padding: int
    """By how many rows, edges and targets each input was longer than needed."""
    largest_difference: float
    """Largest difference of a score, relative to the largest score, or to 1 where all are smaller."""


class ExportedDecoder(msgspec.Struct, frozen=True, rename="camel"):
    """Decoder that scores pairs of nodes by rows that the program gives."""

    kind: str
    """`Dot`, `DistMult` or `MLP`, as `spec.task.links.decoder` names it."""
    file: str | None
    """File of its weights beside the program, as `spec.model.program.decoder` takes it; None: it has none."""


class ExportManifest(msgspec.Struct, frozen=True, rename="camel"):
    schema_version: int
    written_by: str
    service: str
    revision: str
    recipe: str
    graph: str
    """Digest of the graph that the example was drawn from."""
    variant: str
    family: Family
    architecture: str
    programs: dict[ExportFormat, str]
    """File of each program."""
    inputs: tuple[ExportedArray, ...]
    outputs: tuple[ExportedArray, ...]
    rows: ExportedRows | None
    """None: inputs are features, as the graph's source has them."""
    fanouts: tuple[int, ...]
    """Neighbours that gnnserve draws of a node, hop by hop from the seeds on; -1: all."""
    classes: Classes
    """The graph's own label of each score column."""
    multi_label: bool
    thresholds: tuple[float, ...] | None
    """What is taken from the score of each class before labels are decided; None: nothing."""
    compute: Compute
    """What the program computes in."""
    served_compute: Compute
    """What gnnserve multiplies matrices in where the processor is fast at it: answers of such a server differ from the
    program's by that rounding."""
    tolerance: float
    """Most that `largest_difference` may be."""
    checks: tuple[ExportCheck, ...]
    contract: ProgramManifest | UnsetType = UNSET
    """Contract by which gnnserve serves the program again, where its network is over several types. Absent: `inputs`
    tell it."""
    decoder: ExportedDecoder | UnsetType = UNSET
    """Decoder that scores pairs by the program's scores, which are rows of nodes then. Absent: they are of classes."""
    expected: str | UnsetType = UNSET
    """File of scores by which gnnserve serves the program again. Absent: it does not, or the revision keeps the rows in
    fewer bits than features have, so that the program's scores over these are not known."""

    @property
    def takes_features(self) -> bool:
        """Whether rows of the inputs are features."""
        return self.rows is None or (self.rows.kind == "features" and self.rows.stored_layer is None)

    @property
    def can_be_served(self) -> bool:
        """Whether gnnserve serves the program again."""
        return self.takes_features and ExportFormat.ONNX in self.programs

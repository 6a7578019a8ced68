"""Networks of variants, opened by their kind: layers are built from their weights, programs get a process to run in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.repository import NetworkKind, VariantManifest
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.opening.loaded import NetworkBuilder
from gnnserve_worker.repository.revision_files import RevisionFiles, read_tensors
from gnnserve_worker.tables.table import Table

if TYPE_CHECKING:  # only a server that has a program imports what runs one
    from gnnserve_worker.programs.runner import ProgramRunner


@dataclass(frozen=True, slots=True)
class VariantNetworks:
    """Opens the networks of a revision's variants. Variants of one program share its process."""

    revision: RevisionFiles
    schema: GraphSchema
    """Schema of the graph as predictions read it."""
    build: NetworkBuilder
    """Makes networks of layers."""
    runners: dict[Path, ProgramRunner] = field(default_factory=dict)
    """All programs that were opened, by their files."""

    def open(self, variant: VariantManifest, table: Table) -> VariantNetwork:
        """DamagedError; or ValueError and KeyError where weights do not fit."""
        return _OPENERS[variant.network.kind](self, variant, table)

    def tensors(self, variant: VariantManifest) -> dict[str, np.ndarray]:
        return read_tensors(self.revision, self.revision.folder / variant.weights)


def _open_layers(networks: VariantNetworks, variant: VariantManifest, table: Table) -> VariantNetwork:
    tensors = networks.tensors(variant)
    return networks.build(variant.network, tensors, variant.columns, table.projected, variant.compute)


def _open_program(networks: VariantNetworks, variant: VariantManifest, table: Table) -> VariantNetwork:
    # Only a server that has a program imports what runs one.
    from gnnserve_worker.opening.programs import open_program  # noqa: PLC0415

    return open_program(networks.revision, networks.schema, networks.runners, variant, table)


_OPENERS: Mapping[NetworkKind, Callable[[VariantNetworks, VariantManifest, Table], VariantNetwork]] = {
    NetworkKind.LAYERS: _open_layers,
    NetworkKind.PROGRAM: _open_program,
}

"""Networks of variants, opened by their kind: layers are built from their weights, programs get a process to run in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from gnnserve_api.errors import DamagedError
from gnnserve_api.graph_schema import GraphSchema
from gnnserve_api.programs import ProgramLimits, contract_problems
from gnnserve_api.repository import NetworkKind, VariantManifest
from gnnserve_worker.models.network import VariantNetwork
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import NetworkBuilder
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, read_tensors
from gnnserve_worker.tables.table import Table


@dataclass(frozen=True, slots=True)
class VariantNetworks:
    """Opens the networks of a revision's variants. Variants of one program share its process."""

    revision: RevisionFiles
    schema: GraphSchema
    """Schema of the graph as predictions read it."""
    build: NetworkBuilder
    """Makes networks of layers."""
    _runners: dict[tuple[Path, ProgramLimits], ProgramRunner] = field(default_factory=dict)

    def open(self, variant: VariantManifest, table: Table) -> VariantNetwork:
        """DamagedError; or ValueError and KeyError where weights do not fit."""
        return _OPENERS[variant.network.kind](self, variant, table)

    def tensors(self, variant: VariantManifest) -> dict[str, np.ndarray]:
        return read_tensors(self.revision, self.revision.folder / variant.weights)

    @property
    def runners(self) -> tuple[ProgramRunner, ...]:
        """All programs that were opened."""
        return tuple(self._runners.values())

    def runner(self, file: Path, limits: ProgramLimits) -> ProgramRunner:
        return self._runners.setdefault((file, limits), ProgramRunner(file, thread_count(), limits))


def _open_layers(networks: VariantNetworks, variant: VariantManifest, table: Table) -> VariantNetwork:
    tensors = networks.tensors(variant)
    return networks.build(variant.network, tensors, variant.columns, table.projected, variant.compute)


def _open_program(networks: VariantNetworks, variant: VariantManifest, table: Table) -> VariantNetwork:
    program, revision, schema = variant.network.program, networks.revision, networks.schema
    assert program  # noqa: S101 - its kind says so
    problems = contract_problems(program, schema)
    if len(variant.fanouts) != max(1, program.sampled_hops):
        problems.append(f"{len(variant.fanouts)} fan-outs, expected one for each of {program.sampled_hops} hops")
    if table.projected:
        problems.append(f"the table {variant.table} of products, expected one of features")
    if problems:
        problem = f"has for the program of {variant.name}: {'; '.join(problems)}"
        raise DamagedError(revision.folder / paths.REVISION_COMMIT, problem, revision.remedy)
    # A table has the columns of the widest type, of which a narrower one has its own first.
    columns = tuple(min(kind.features or 0, variant.columns) for kind in schema.types)
    runner = networks.runner(revision.folder / variant.weights, program.limits)
    return ProgramNetwork(program, schema, runner, columns)


_OPENERS: Mapping[NetworkKind, Callable[[VariantNetworks, VariantManifest, Table], VariantNetwork]] = {
    NetworkKind.LAYERS: _open_layers,
    NetworkKind.PROGRAM: _open_program,
}

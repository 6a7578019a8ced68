"""The network of a variant that is a program. Only a server that has one imports this (`networks.py`)."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.graph_schema import GraphSchema
from gnnserve_api.files.programs import ProgramManifest, contract_problems
from gnnserve_api.files.repository import VariantManifest
from gnnserve_worker.models.program import ProgramNetwork
from gnnserve_worker.opening.loaded import CORRECTION
from gnnserve_worker.parallel import thread_count
from gnnserve_worker.programs.answers import Runner
from gnnserve_worker.programs.runner import ProgramRunner
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import RevisionFiles, read_tensors
from gnnserve_worker.tables.table import Table

Runners = dict[Path, Runner]
"""Programs of a revision that were opened, by their files."""


def open_program(
    revision: RevisionFiles, schema: GraphSchema, runners: Runners, variant: VariantManifest, table: Table
) -> ProgramNetwork:
    """DamagedError: the revision does not have what its program wants."""
    program = variant.network.program
    assert program  # noqa: S101 - its kind says so
    problems = contract_problems(program, schema)
    if len(variant.fanouts) != max(1, program.sampled_hops):
        problems.append(f"{len(variant.fanouts)} fan-outs, expected one for each of {program.sampled_hops} hops")
    if table.projected != (variant.stored is not None):
        read = "stored layers" if variant.stored is not None else "features"
        problems.append(f"the table {variant.table} of kind {table.kind}, expected one of {read}")
    if problems:
        problem = f"has for the program of {variant.name}: {'; '.join(problems)}"
        raise DamagedError(revision.folder / paths.REVISION_COMMIT, problem, revision.remedy)
    # A table has the columns of the widest type, of which a narrower one has its own first.
    columns = tuple(min(own, variant.columns) for own in program.row_columns(schema))
    file = revision.folder / variant.weights
    if file not in runners:
        runners[file] = _runner_of(revision, schema, program, file)
    return ProgramNetwork(program, schema, runners[file], columns)


def _runner_of(revision: RevisionFiles, schema: GraphSchema, program: ProgramManifest, file: Path) -> Runner:
    if program.layers is UNSET:
        return ProgramRunner(file, thread_count(), program.limits)
    # Imported here: few programs are layers.
    from gnnserve_worker.layers.runner import LayersRunner  # noqa: PLC0415

    # Behind stored layers the file has what these are made by, too.
    tensors = {key: one for key, one in read_tensors(revision, file).items() if not key.startswith(CORRECTION)}
    return LayersRunner(tensors, program, schema)


def processes_of(runners: Runners) -> tuple[ProgramRunner, ...]:
    """Those of programs that have a process."""
    return tuple(one for one in runners.values() if isinstance(one, ProgramRunner))

"""What was planned becomes files of a staged revision."""

from __future__ import annotations

from collections.abc import Sequence

from gnnserve_api.errors import InputError
from gnnserve_api.families import point_of
from gnnserve_worker.generation.families.family import DerivedTable, FamilyPlan, PlannedTable, PlannedVariant
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.staged import StagedRevision

_STAGE = "write tables"


def write_plans(
    plans: Sequence[FamilyPlan], staged: StagedRevision, progress: ProgressListener, *, are_asked_for: bool = True
) -> list[GeneratedVariant]:
    """Tables and weights, plan after plan; the variants in the order of the profile.

    A table whose numbers its storage cannot hold is left out, and the variants over it, where they were added unasked.
    Raises InputError where they were asked for. `are_asked_for`: whether a manifest lists the variants that one can
    list; a search tries what there is. Tables that are there are not written again.
    """
    generated: list[GeneratedVariant] = []
    done, total = 0, len({table.name for plan in plans for table in plan.tables})
    written = set(staged.tables)
    left_out: set[str] = set()
    for plan in plans:
        listed = [v.manifest for v in plan.variants if are_asked_for and point_of(v.manifest).is_asked_for]
        asked_for = {table for manifest in listed for table in manifest.tables}
        for table in plan.tables:
            if table.name in written:
                continue
            written.add(table.name)
            progress(Progress(_STAGE, done, total, table.name))
            try:
                _write(table, staged)
            except ValueError as error:
                if table.name in asked_for:
                    remedy = "use float32 or bfloat16, or scale the features (spec.graph.normalization)"
                    raise InputError("spec.variants.storage", f"table {table.name}: {error}", remedy) from error
                progress(Progress(_STAGE, done, total, f"{table.name} is left out: {error}"))
                left_out.add(table.name)
            done += 1
        for variant in plan.variants:
            if variant.manifest.table not in left_out:
                _write_network(variant, staged)
                size_bytes = sum(staged.written(name).bytes for name in variant.manifest.network_files)
                generated.append(GeneratedVariant(variant.manifest, variant.factor, size_bytes))
    progress(Progress(_STAGE, total, total))
    if not generated:
        raise InputError(
            "spec.variants.storage",
            "holds no projected table, and without variants.pruning.wideTables: Keep there is no other",
            "add float32 or bfloat16, or set wideTables to Keep",
        )
    return generated


def _write_network(variant: PlannedVariant, staged: StagedRevision) -> None:
    """Write what its network is opened from, unless it shares another variant's."""
    if variant.tensors is not None:
        staged.write_variant(variant.manifest.name, variant.tensors)
    if (program := variant.program) is not None:
        kept = staged.write_program(variant.manifest.name, program.folder, program.given)
        if kept != program.kept:
            raise InputError(
                "spec.model.program.uri", f"{program.given.file} changed while it was read", "generate again"
            )


def _write(table: PlannedTable | DerivedTable, staged: StagedRevision) -> None:
    if isinstance(table, DerivedTable):
        rows, own = table.rows(staged.open_table), None if table.own is None else table.own(staged.open_table)
        staged.write_table(table.name, table.kind, table.storage, table.columns, rows, own)
        return
    staged.write_table(
        table.name, table.kind, table.storage, table.columns, table.rows(), None if table.own is None else table.own(),
        source_columns=table.source_columns, made_by="" if table.made_by is None else table.made_by.prefix,
        by_relation=table.by_relation,
    )  # fmt: skip
    if table.made_by is not None:
        staged.keep_maker(table.made_by.prefix, table.made_by.tensors)

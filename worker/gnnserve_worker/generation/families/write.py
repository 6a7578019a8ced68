"""Writes planned variants as files of a staged revision, with what is kept of how rows are made, for nodes that the
graph does not have.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from gnnserve_api.errors import InputError
from gnnserve_api.families import point_of
from gnnserve_api.files.graph_schema import TypeRows
from gnnserve_api.files.repository import RowSource, SourceColumn, StoredManifest, VariantManifest
from gnnserve_api.spec.graph import Normalization
from gnnserve_worker.generation.families.family import DerivedTable, FamilyPlan, PlannedTable, PlannedVariant
from gnnserve_worker.generation.families.relation_tables import States
from gnnserve_worker.generation.profile import GeneratedVariant
from gnnserve_worker.generation.training_set import NormalizedFeatures, TrainingSet
from gnnserve_worker.graph.store import Graph, GraphData, NodeType
from gnnserve_worker.models.architecture import default_key, moment_key
from gnnserve_worker.models.registry import Tensors
from gnnserve_worker.progress import Progress, ProgressListener
from gnnserve_worker.repository.revision_files import StagedRevision
from gnnserve_worker.tables.table import Table

# --- tables and networks


_STAGE = "write tables"


_JUDGED = "judged-"
"""What names of tables begin with that variants are judged by alone."""


def write_plans(
    plans: Sequence[FamilyPlan], staged: StagedRevision, progress: ProgressListener, *, are_asked_for: bool = True,
    judged: Graph | None = None,
) -> list[GeneratedVariant]:  # fmt: skip
    """Tables and weights, plan after plan; the variants in the order of the profile.

    A table whose numbers its storage cannot hold is left out, and the variants over it, where they were added unasked.
    Raises InputError where they were asked for. `are_asked_for`: whether a manifest lists the variants that one can
    list; a search tries what there is. Tables that are there are not written again. `judged`: lists that variants are
    judged over; None: those of the graph.
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
    return generated if judged is None else _with_judged(plans, generated, judged, staged)


def _with_judged(
    plans: Sequence[FamilyPlan], generated: Sequence[GeneratedVariant], lists: Graph, staged: StagedRevision
) -> list[GeneratedVariant]:
    """The variants, those whose rows hold what neighbours have with a copy of their table over other lists."""
    for plan in (plan.over(lists) for plan in plans if plan.over is not None):
        for table in plan.tables:
            if f"{_JUDGED}{table.name}" not in staged.tables:
                _write(table, staged, _JUDGED)

    def copy_of(variant: VariantManifest) -> VariantManifest | None:
        table = f"{_JUDGED}{variant.table}"
        if variant.stored is None or table not in staged.tables:
            return None
        # What corrects rows is of the table that is served, and nothing is corrected while variants are judged.
        return msgspec.structs.replace(variant, table=table, stored=StoredManifest(layer=variant.stored.layer))

    return [replace(made, judged=copy_of(made.variant)) for made in generated]


def _write_network(variant: PlannedVariant, staged: StagedRevision) -> None:
    """Write what its network is opened from, unless it shares another variant's."""
    if variant.tensors is not None:
        staged.write_variant(variant.manifest.name, variant.tensors)
    if (program := variant.program) is not None:
        kept = staged.write_program(variant.manifest.name, program.folder, program.given)
        if kept != program.network.program:
            raise InputError(
                f"{program.field}.uri", f"{program.given.file} changed while it was read", "generate again"
            )


def _write(table: PlannedTable | DerivedTable, staged: StagedRevision, prefix: str = "") -> None:
    """`prefix`: what its name begins with, and the names of tables that it is made of."""
    name = f"{prefix}{table.name}"
    if isinstance(table, DerivedTable):

        def written(of: str) -> Table:
            return staged.open_table(f"{prefix}{of}")

        rows, own = table.rows(written), None if table.own is None else table.own(written)
        staged.write_table(name, table.kind, table.storage, table.columns, rows, own, types=table.types)
        return
    staged.write_table(
        name, table.kind, table.storage, table.columns, table.rows(), None if table.own is None else table.own(),
        source_columns=table.source_columns, made_by="" if table.made_by is None else table.made_by.prefix,
        by_relation=table.by_relation, types=table.types,
    )  # fmt: skip
    if table.made_by is not None:
        staged.keep_maker(table.made_by.prefix, table.made_by.tensors)


# --- what rows of later nodes are made by


def moments(normalized: NormalizedFeatures) -> Tensors:
    if normalized.mean is None or normalized.deviation is None:
        return {}
    return {"mean": normalized.mean, "deviation": normalized.deviation}


def write_row_source(
    graph: GraphData,
    normalized: NormalizedFeatures,
    plans: Sequence[FamilyPlan],
    variants: Sequence[VariantManifest],
    staged: StagedRevision,
) -> RowSource:
    """Write what is needed to make rows of the kept tables from features of later nodes."""
    tensors = moments(normalized) | _products_of(plans, variants)
    return RowSource(
        columns=tuple(_source_columns(graph.types)),
        normalization=normalized.method,
        tensors=staged.write_row_source(tensors),
    )


def _products_of(plans: Sequence[FamilyPlan], variants: Sequence[VariantManifest]) -> Tensors:
    """What the kept tables of products were made by."""
    tensors: dict[str, np.ndarray] = {}
    kept = {table for variant in variants for table in variant.tables}
    for table in (table for plan in plans for table in plan.tables if table.name in kept):
        if isinstance(table, PlannedTable) and table.made_by is not None:
            tensors |= {table.made_by.prefix + key: tensor for key, tensor in table.made_by.tensors.items()}
    return tensors


def write_type_row_source(
    graph: GraphData,
    scaled: Sequence[NormalizedFeatures | None],
    plans: Sequence[FamilyPlan],
    variants: Sequence[VariantManifest],
    staged: StagedRevision,
) -> RowSource:
    """Write what features of each type were scaled by, of tables that have these features, and what products of them
    were made by. `scaled`: by type; None: it has none."""
    tensors = _products_of(plans, variants)
    for place, one in enumerate(scaled):
        if one is not None:
            tensors |= {moment_key(place, name): moment for name, moment in moments(one).items()}
    return RowSource(
        tuple(_source_columns(graph.types)),
        Normalization.DISABLED,
        staged.write_row_source(tensors),
        tuple(
            TypeRows(0, None) if one is None else TypeRows(len(kind.feature_columns), one.method)
            for one, kind in zip(scaled, graph.types, strict=True)
        ),
    )


def _source_columns(types: Sequence[NodeType]) -> Iterator[SourceColumn]:
    """Columns of the source that features of these types are made of, type after type."""
    for kind in types:
        for column in kind.feature_columns:
            yield SourceColumn(column.name, column.width, column.fill)


def write_relation_row_source(
    subject: TrainingSet,
    states: States,
    plans: Sequence[FamilyPlan],
    variants: Sequence[VariantManifest],
    staged: StagedRevision,
) -> RowSource:
    """Write what is needed to make rows of new nodes of each type: how features were scaled, the mean of the embeddings
    of types that have none, and the first layer of each network that kept tables have products of."""
    tensors = _products_of(plans, variants)
    kinds = []
    for place, (scaled, kind) in enumerate(zip(subject.features, subject.data.types, strict=True)):
        if scaled is None:
            tensors[default_key(place)] = states[place].mean(axis=0, dtype=np.float64).astype(np.float32)
            kinds.append(TypeRows(0, None))
            continue
        tensors |= {moment_key(place, name): moment for name, moment in moments(scaled).items()}
        kinds.append(TypeRows(len(kind.feature_columns), scaled.method))
    columns = tuple(_source_columns(subject.data.types))
    return RowSource(columns, Normalization.DISABLED, staged.write_row_source(tensors), tuple(kinds))

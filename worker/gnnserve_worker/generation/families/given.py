"""Variants of what the user has trained elsewhere: networks, each on feature columns of its own choice, or programs.

A variant of a network reads a prefix of a table's rows. Hence variants share a table where the columns of one include
those of the next: the columns of the smallest come first. A variant whose columns are the first in rank order reads the
table of the pruned variants. The first layer's weights are brought into the table's order, so the order of the user's
list costs no storage.

Programs are over all feature columns, or those that they were exported with or that are left of each type, from each
storage. Of several types one table has the features of all nodes, as wide as the widest type; a narrower one has its
columns first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import msgspec
import numpy as np

from gnnserve_api.families import GIVEN, LISTED, PROGRAM, PRUNED, PRUNED_LISTED, ChannelAxis, VariantPoint, point_of
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import Storage, stored_name
from gnnserve_worker.columns.rows import columns_key
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    MadeBy,
    Outline,
    PlacedProgram,
    PlannedTable,
    PlannedVariant,
    plan_variant,
    storages_of,
)
from gnnserve_worker.generation.given_variants import GivenVariant
from gnnserve_worker.generation.ranking import columns_by_type
from gnnserve_worker.graph.store import Features
from gnnserve_worker.models.registry import keep_columns_of
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.revision_files import stored_bytes
from gnnserve_worker.tables.table import feature_blocks

# --- networks over columns of their own choice


class GivenPlanner:
    """One variant for each of `spec.variants.given`, from each storage."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return sum(
            stored_bytes(outline.nodes, len(table.columns), storage)
            for table in share_tables(outline.given)
            for storage in outline.spec.variants.storage
        )

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        ranked = _ranked_tables(made_from, earlier)
        in_rank_order = [given for given in made_from.given if _is_prefix(given.columns, ranked.columns)]
        of_their_own = share_tables([given for given in made_from.given if given not in in_rank_order])
        tables = dict.fromkeys(in_rank_order, ranked)
        tables |= {given: table for table in of_their_own for given in table.readers}
        storages = storages_of(made_from.spec)
        return FamilyPlan(
            tables=[_plan_table(made_from.features, table, storage) for table in of_their_own for storage in storages],
            variants=[
                _plan_given(made_from, given, tables[given], storage)
                for given in sorted(made_from.given, key=lambda given: -len(given.columns))
                for storage in storages
            ],
        )


@dataclass(frozen=True, slots=True, eq=False)
class SharedTable:
    label: str
    columns: np.ndarray
    """int64: ids of the features in the order of the table; the first n are those of its reader of n columns."""
    readers: tuple[GivenVariant, ...] = ()
    """The widest first."""

    def name(self, storage: Storage) -> str:
        return f"{self.label}-{storage}"


def _plan_given(made_from: Ingredients, given: GivenVariant, table: SharedTable, storage: Storage) -> PlannedVariant:
    read = table.columns[: len(given.columns)]
    order = np.argsort(given.columns)[np.searchsorted(np.sort(given.columns), read)]
    return plan_variant(
        GIVEN, stored_name(given.name, storage), table.name(storage), len(read),
        given.network(made_from.network), storage, keep_columns_of(given.tensors, order),
        factor=made_from.features.shape[1] // len(read),
    )  # fmt: skip


def share_tables(variants: Sequence[GivenVariant]) -> list[SharedTable]:
    """Tables for all of them. The widest come first, and each joins the table whose narrowest reader so far is the
    least wide of those that include its columns; where none does, it gets a table of its own."""
    chains: list[list[GivenVariant]] = []
    for variant in sorted(variants, key=lambda variant: -len(variant.columns)):
        wanted = set(variant.columns.tolist())
        including = [chain for chain in chains if wanted.issubset(chain[-1].columns.tolist())]
        if including:
            min(including, key=lambda chain: len(chain[-1].columns)).append(variant)
        else:
            chains.append([variant])
    return [SharedTable(f"features-{chain[0].name}", _joined_columns(chain), tuple(chain)) for chain in chains]


def _joined_columns(chain: Sequence[GivenVariant]) -> np.ndarray:
    """The columns of the narrowest, then what each wider one adds."""
    ordered = dict.fromkeys(column for variant in reversed(chain) for column in variant.columns.tolist())
    return np.array([*ordered], dtype=np.int64)


def _ranked_tables(made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> SharedTable:
    """The table of the pruned variants; without columns where there are none."""
    pruned = [planned.manifest for planned in earlier if point_of(planned.manifest) == PRUNED]
    width = max((manifest.columns for manifest in pruned), default=0)
    return SharedTable("features", made_from.ranking.columns[:width])


def _is_prefix(columns: np.ndarray, ranked: np.ndarray) -> bool:
    return len(columns) <= len(ranked) and set(columns.tolist()) == set(ranked[: len(columns)].tolist())


def _plan_table(features: Features, table: SharedTable, storage: Storage) -> PlannedTable:
    columns = table.columns.tolist()
    return PlannedTable(
        table.name(storage),
        "features",
        storage,
        len(columns),
        rows=partial(feature_blocks, features, columns),
        source_columns=tuple(columns),
    )


# --- programs


class ProgramPlanner:
    """One variant of each program, that of `spec.model` first, from each storage. Those of a program run one file, and
    programs that read the same columns share a table."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        return sum(
            stored_bytes(outline.nodes, outline.features if columns is None else len(columns), storage)
            for columns in dict.fromkeys(outline.columns_of_programs)
            for storage in outline.spec.variants.storage
        )

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        if 1 not in made_from.spec.variants.pruning.factors:
            return FamilyPlan()
        storages, tables = storages_of(made_from.spec), program_tables(made_from.programs)
        return FamilyPlan(
            tables=[
                _plan_program_table(made_from.programs[0].features, columns, label, storage)
                for columns, label in tables.items()
                for storage in storages
            ],
            variants=[
                plan_program(one, tables, storage, is_first=storage is storages[0])
                for one in made_from.programs
                for storage in storages
            ],
        )


def program_tables(programs: Sequence[PlacedProgram]) -> dict[tuple[int, ...], str]:
    """Labels of tables by the columns that they have, after the first program that reads these."""
    labels: dict[tuple[int, ...], str] = {}
    for one in programs:
        labels.setdefault(_columns_of(one), f"features-{one.name}" if labels else "features")
    return labels


def _columns_of(program: PlacedProgram) -> tuple[int, ...]:
    """Columns of features that it reads, as of `PlacedProgram`."""
    count = sum(one.shape[1] for one in program.features)
    return tuple(range(count)) if program.columns is None else program.columns


def _columns_by_type(features: Sequence[Features], columns: tuple[int, ...]) -> list[np.ndarray]:
    return columns_by_type(np.array(columns, np.int64), [one.shape[1] for one in features])


def _plan_program_table(
    features: Sequence[Features], columns: tuple[int, ...], label: str, storage: Storage
) -> PlannedTable:
    """`features`: of each type."""
    kept = _columns_by_type(features, columns)
    is_of_one_type, has_all = len(kept) == 1, len(columns) == sum(one.shape[1] for one in features)
    made_by = MadeBy(f"{label}.", {columns_key(kind): own for kind, own in enumerate(kept)})
    return PlannedTable(
        f"{label}-{storage}", "features", storage, max(map(len, kept)), partial(_row_blocks, features, kept),
        source_columns=columns if is_of_one_type else None, made_by=None if is_of_one_type or has_all else made_by,
    )  # fmt: skip


def plan_program(
    program: PlacedProgram, tables: Mapping[tuple[int, ...], str], storage: Storage, *, is_first: bool
) -> PlannedVariant:
    """The program over its features, in a storage. `tables`: as of `program_tables`; `is_first`: whether it brings the
    file that all variants of the program run."""
    contract = program.network.program
    assert contract  # noqa: S101 - its kind says so
    manifest = VariantManifest(
        name=stored_name(program.name, storage),
        family=_point_of(program).family,
        table=f"{tables[_columns_of(program)]}-{storage}",
        columns=max(map(len, _columns_by_type(program.features, _columns_of(program)))),
        fanouts=program.network.fanouts,
        network=program.network,
        compute="float32",
        weights=contract.file,
    )
    has_file = is_first and program.layers is None
    tensors = program.layers.tensors if is_first and program.layers is not None else None
    return PlannedVariant(manifest, program.factor, tensors=tensors, program=program if has_file else None)


def _point_of(program: PlacedProgram) -> VariantPoint:
    if program.layers is None:
        return PROGRAM
    point = LISTED if program.factor == 1 else PRUNED_LISTED
    return replace(point, channels=ChannelAxis.FEWER) if program.has_fewer_channels else point


def _row_blocks(features: Sequence[Features], kept: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Rows of all nodes, type after type, some megabytes at a time: float32 [nodes, columns]. `kept`: columns of each
    type; a narrower one has its own first."""
    columns = max(map(len, kept))
    for one, own in zip(features, kept, strict=True):
        for block in feature_blocks(one, own.tolist()):
            yield block if len(own) == columns else np.pad(block, ((0, 0), (0, columns - len(own))))


def kept_as(given: ProgramManifest, program: str, spec: GNNServiceSpec) -> ProgramManifest:
    """The contract with the paths that its files have in a revision of the spec: those of the first of the variants
    that are called like `program`."""
    variant = stored_name(program, storages_of(spec)[0])
    return msgspec.structs.replace(
        given,
        file=paths.program_file_of(variant, given.file),
        data_files=tuple(paths.program_file_of(variant, name) for name in given.data_files),
    )

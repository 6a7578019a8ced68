"""The program that a user brings as the model: over all feature columns, from each storage. Nothing is trained.

Of several types one table has the features of all nodes, as wide as the widest type; a narrower one has its columns
first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import numpy as np

from gnnserve_api.families import PROGRAM
from gnnserve_api.programs import ProgramManifest
from gnnserve_api.repository import VariantManifest
from gnnserve_api.spec.service import GNNServiceSpec
from gnnserve_api.variants import stored_name, variant_name
from gnnserve_worker.generation.families.family import (
    FamilyPlan,
    Ingredients,
    Outline,
    PlannedTable,
    PlannedVariant,
    storages_of,
)
from gnnserve_worker.graph.store import Features
from gnnserve_worker.repository import paths
from gnnserve_worker.repository.staged import stored_bytes
from gnnserve_worker.tables.table import feature_blocks

_NAME = variant_name(1)


class ProgramPlanner:
    """One variant of `spec.model.program`, from each storage. All run one file."""

    def needs_master(self, spec: GNNServiceSpec) -> bool:
        return False

    def tables_bytes(self, outline: Outline) -> int:
        if outline.spec.model.program is None:
            return 0
        storages = outline.spec.variants.storage
        return sum(stored_bytes(outline.nodes, outline.features, storage) for storage in storages)

    def plan(self, made_from: Ingredients, earlier: Sequence[PlannedVariant]) -> FamilyPlan:
        program = made_from.program
        if program is None:
            return FamilyPlan()
        widest = max(one.shape[1] for one in program.features)
        columns = list(range(widest)) if program.columns is None else list(program.columns)
        # Of several types a column of the table is of another column of each.
        source_columns = tuple(columns) if len(program.features) == 1 else None
        storages = storages_of(made_from.spec)
        file = stored_name(_NAME, storages[0])
        return FamilyPlan(
            tables=[
                PlannedTable(
                    f"features-{storage}", "features", storage, len(columns),
                    partial(_row_blocks, program.features, columns), source_columns=source_columns,
                )
                for storage in storages
            ],
            variants=[
                PlannedVariant(
                    VariantManifest(
                        name=stored_name(_NAME, storage),
                        family=PROGRAM.family,
                        table=f"features-{storage}",
                        columns=len(columns),
                        fanouts=made_from.network.fanouts,
                        network=made_from.network,
                        compute="float32",
                        weights=program.kept.file,
                    ),
                    factor=1,
                    tensors=None,
                    program=program if stored_name(_NAME, storage) == file else None,
                )
                for storage in storages
            ],
        )  # fmt: skip


def _row_blocks(features: Sequence[Features], columns: Sequence[int]) -> Iterator[np.ndarray]:
    """Rows of all nodes, type after type, some megabytes at a time: float32 [nodes, columns]."""
    for one in features:
        own = [column for column in columns if column < one.shape[1]]
        for block in feature_blocks(one, own):
            yield block if len(own) == len(columns) else np.pad(block, ((0, 0), (0, len(columns) - len(own))))


def kept_as(given: ProgramManifest, spec: GNNServiceSpec) -> ProgramManifest:
    """The contract with the paths that its files have in a revision of the spec: those of the first variant."""
    variant = stored_name(_NAME, storages_of(spec)[0])
    return msgspec.structs.replace(
        given,
        file=paths.program_file_of(variant, given.file),
        data_files=tuple(paths.program_file_of(variant, name) for name in given.data_files),
    )

"""A variant over one list of neighbours as a program: rows of a table go in, and edges of each layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from msgspec import UNSET, UnsetType
from torch import nn

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportCheck, ExportedArray, ExportedRows, ExportFormat
from gnnserve_api.files.repository import RevisionManifest, VariantManifest
from gnnserve_worker.export.check import check_program, spread_nodes
from gnnserve_worker.export.contract import inputs_of, outputs_of
from gnnserve_worker.export.inputs import draw_inputs
from gnnserve_worker.export.modules import VariantModule
from gnnserve_worker.export.programs import Program
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.network import in_layers
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.tasks.serving import published_task

_EXAMPLE_NODES, _KEY = 8, 0


def check_layered(manifest: RevisionManifest, variant: VariantManifest) -> None:
    """InputError: the variant's rows are of several types, each with a recipe of its own."""
    if published_task(manifest).ranges():
        others = [one.name for one in manifest.variants if manifest.tables[one.table].by_relation and not one.stored]
        raise InputError(
            "VARIANT",
            f"{variant.name} reads a row of each node and no neighbours, and its rows are of several types: nothing of "
            "a network is in it that rows of other nodes could be made by",
            f"export {' or '.join(others)}" if others else "export its embeddings (gnnserve embeddings export)",
        )


@dataclass(frozen=True, slots=True)
class LayeredExport:
    """A `VariantExport` (`write.py`)."""

    revision: LoadedRevision
    described: VariantManifest
    gives_embeddings: bool
    contract: UnsetType = UNSET
    sums_by_segments: bool = True

    @property
    def manifest(self) -> RevisionManifest:
        assert self.revision.manifest is not None  # noqa: S101 - only what is published is exported
        return self.revision.manifest

    @property
    def variant(self) -> LoadedVariant:
        return self.revision.variants[self.described.name]

    @property
    def inputs(self) -> tuple[ExportedArray, ...]:
        return inputs_of(self.variant)

    def outputs(self, scores: str) -> tuple[ExportedArray, ...]:
        return outputs_of(self.variant, scores, gives_embeddings=self.gives_embeddings)

    def module(self) -> nn.Module:
        return VariantModule(in_layers(self.variant.network), gives_embeddings=self.gives_embeddings)

    def checks(self, chosen: ExportFormat, program: Program) -> list[ExportCheck]:
        return check_program(self.revision, self.variant, chosen, program)

    def example(self) -> dict[str, np.ndarray]:
        nodes = spread_nodes(self.revision.answered_nodes, _EXAMPLE_NODES)
        answer = infer_batch(self.revision, self.variant.name, nodes, _KEY)
        example = draw_inputs(self.revision, self.variant, nodes, _KEY) | {"nodes": nodes, "scores": answer.scores}
        if self.gives_embeddings and answer.embeddings is not None:
            example["embeddings"] = answer.embeddings
        return example

    def rows(self) -> ExportedRows:
        table, source, made = self.manifest.tables[self.described.table], self.manifest.row_source, self._made_of()
        stored, read = self.described.stored, () if made is None else made.columns_of(self.described.columns)
        return ExportedRows(
            table=self.described.table,
            kind=table.kind,
            storage=table.storage,
            values=table.rows.values,
            scales=table.rows.scales,
            own_values=None if table.own is None else table.own.values,
            own_scales=None if table.own is None else table.own.scales,
            stored_layer=None if stored is None else stored.layer,
            normalization=None if made is None else str(made.scaling.method),
            columns=tuple(int(column) for column in read),
            source_columns=() if source is None else source.columns,
        )

    def row_recipe(self) -> dict[str, np.ndarray]:
        made = self._made_of()
        if made is None:
            return {}
        recipe = {"columns": made.columns_of(self.described.columns)}
        if made.scaling.mean is not None and made.scaling.deviation is not None:
            recipe |= {"mean": np.array(made.scaling.mean), "deviation": np.array(made.scaling.deviation)}
        names = ("product", "own_product")[: len(made.products)]
        return recipe | {name: product.dense for name, product in zip(names, made.products, strict=True)}

    def _made_of(self) -> RowsOfFeatures | None:
        """What makes rows of features; None: they are made of more."""
        rows = self.variant.rows
        return next(iter(() if rows is None else rows.made_of), None)

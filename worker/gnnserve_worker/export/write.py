"""Writes a variant as programs that others can run, with an example and all that is needed to use them.

What is written is read back and run, and compared with gnnserve's own scores, before the folder gets its name.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import safetensors.numpy

from gnnserve_api.errors import InputError
from gnnserve_api.export import (
    EXPORT_SCHEMA_VERSION,
    ExportCheck,
    ExportedRows,
    ExportFormat,
    ExportManifest,
)
from gnnserve_api.families import point_of
from gnnserve_api.profile import Compute
from gnnserve_api.repository import NetworkKind, NetworkManifest, RevisionManifest, VariantManifest
from gnnserve_worker.export.check import TOLERANCE, check_program, spread_nodes
from gnnserve_worker.export.contract import inputs_of, outputs_of
from gnnserve_worker.export.inputs import draw_inputs
from gnnserve_worker.export.modules import VariantModule
from gnnserve_worker.export.programs import FORMATS, trace
from gnnserve_worker.export.readme import readme
from gnnserve_worker.inference.batch import infer_batch
from gnnserve_worker.models.build import build_network
from gnnserve_worker.models.feature_products import RowsOfFeatures
from gnnserve_worker.models.network import Layer, Network, in_layers
from gnnserve_worker.opening.loaded import LoadedRevision, LoadedVariant
from gnnserve_worker.tasks.serving import published_task

MANIFEST, EXAMPLE, ROW_RECIPE, README = "export.json", "example.safetensors", "rows.safetensors", "README.md"
_EXAMPLE_NODES, _KEY = 8, 0


def build_exact(
    manifest: NetworkManifest, tensors: Mapping[str, np.ndarray], columns: int, projected: bool, compute: Compute
) -> Network[Layer]:
    """`build_network` of `Repository` for revisions that are exported: in float32, as programs compute."""
    return build_network(manifest, tensors, columns, projected, "float32")


def check_variant(manifest: RevisionManifest, name: str) -> None:
    """Raises InputError where the revision has no such variant, or one that cannot be written."""
    published_task(manifest).exported_scores(_variant_of(manifest, name))


def _variant_of(manifest: RevisionManifest, name: str) -> VariantManifest:
    """Raises InputError where the revision has no such variant, or one that is no single network."""
    manifest.require_node_rows("programs are made of networks over")
    exportable = ", ".join(variant.name for variant in manifest.variants)
    for cascade in manifest.cascades:
        if cascade.name == name:
            raise InputError(
                "VARIANT",
                f"{name} is a cascade, which asks one network and then, about some nodes, another one",
                f"export {cascade.first} and {cascade.then}, each for itself; what can be exported is {exportable}",
            )
    found = next((variant for variant in manifest.variants if variant.name == name), None)
    if found is None:
        raise InputError("VARIANT", f"revision {manifest.revision} has no {name!r}", f"name one of {exportable}")
    if found.network.kind is NetworkKind.PROGRAM:
        raise InputError(
            "VARIANT",
            f"{name} is a program, which came as the file that an export would be",
            f"copy {found.weights} out of the revision's folder",
        )
    return found


def export_variant(
    revision: LoadedRevision, service: str, name: str, formats: Sequence[ExportFormat], folder: Path, written_by: str
) -> ExportManifest:
    """Write a variant of a revision that was loaded with `build_exact` into a new folder. `service`: namespace and
    name."""
    if revision.manifest is None:
        raise ValueError("a staged revision has no manifest: commit it, then load it")
    check_variant(revision.manifest, name)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        written = _write(revision, revision.manifest, service, name, formats, unfinished, written_by)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return written


def _write(
    revision: LoadedRevision, manifest: RevisionManifest, service: str, name: str, formats: Sequence[ExportFormat],
    folder: Path, written_by: str,
) -> ExportManifest:  # fmt: skip
    variant = revision.variants[name]
    described = _variant_of(manifest, name)
    told = published_task(manifest).exported_scores(described)
    gives_embeddings = variant.network.hidden > 0 and point_of(described).capabilities.embeddings
    inputs, outputs = inputs_of(variant), outputs_of(variant, told.meaning, gives_embeddings=gives_embeddings)
    program = trace(VariantModule(in_layers(variant.network), gives_embeddings=gives_embeddings), inputs)
    checks: list[ExportCheck] = []
    for chosen in formats:
        path = folder / FORMATS[chosen].file
        FORMATS[chosen].write(program, inputs, outputs, path)
        checks += check_program(revision, variant, chosen, FORMATS[chosen].load(path))
    _write_example(revision, variant, folder / EXAMPLE, gives_embeddings=gives_embeddings)
    rows = next(iter(() if variant.rows is None else variant.rows.made_of), None)
    if rows is not None:
        _save(_row_recipe(rows, variant.columns), folder / ROW_RECIPE)
    written = ExportManifest(
        schema_version=EXPORT_SCHEMA_VERSION,
        written_by=written_by,
        service=service,
        revision=manifest.revision,
        recipe=manifest.recipe,
        graph=manifest.graph,
        variant=name,
        family=described.family,
        architecture=described.network.architecture,
        programs={chosen: FORMATS[chosen].file for chosen in formats},
        inputs=inputs,
        outputs=outputs,
        rows=_describe_rows(manifest, described, rows),
        fanouts=variant.fanouts,
        classes=revision.classes,
        multi_label=revision.multi_label,
        thresholds=described.thresholds,
        compute="float32",
        served_compute=described.compute,
        tolerance=TOLERANCE,
        checks=tuple(checks),
    )
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=2))
    (folder / README).write_text(readme(written, told.advice), encoding="utf-8")
    return written


def _write_example(revision: LoadedRevision, variant: LoadedVariant, path: Path, *, gives_embeddings: bool) -> None:
    """Inputs, and what gnnserve answers."""
    nodes = spread_nodes(revision, _EXAMPLE_NODES)
    answer = infer_batch(revision, variant.name, nodes, _KEY)
    example = draw_inputs(revision, variant, nodes, _KEY) | {"nodes": nodes, "scores": answer.scores}
    if gives_embeddings and answer.embeddings is not None:
        example["embeddings"] = answer.embeddings
    _save(example, path)


def _save(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    # Safetensors writes an array's memory as it is, whatever its order.
    content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    # Not by its `save_file`, whose files other users of the machine could not read.
    path.write_bytes(content)


def _row_recipe(rows: RowsOfFeatures, columns: int) -> dict[str, np.ndarray]:
    """What turns features into rows, beside the normalisation's name."""
    recipe = {"columns": rows.columns_of(columns)}
    if rows.scaling.mean is not None and rows.scaling.deviation is not None:
        recipe |= {"mean": np.array(rows.scaling.mean), "deviation": np.array(rows.scaling.deviation)}
    names = ("product", "own_product")[: len(rows.products)]
    return recipe | {name: product.dense for name, product in zip(names, rows.products, strict=True)}


def _describe_rows(manifest: RevisionManifest, variant: VariantManifest, rows: RowsOfFeatures | None) -> ExportedRows:
    table, source = manifest.tables[variant.table], manifest.row_source
    read = () if rows is None else rows.columns_of(variant.columns)
    return ExportedRows(
        table=variant.table,
        kind=table.kind,
        storage=table.storage,
        values=table.rows.values,
        scales=table.rows.scales,
        own_values=None if table.own is None else table.own.values,
        own_scales=None if table.own is None else table.own.scales,
        stored_layer=None if variant.stored is None else variant.stored.layer,
        normalization=None if rows is None else str(rows.scaling.method),
        columns=tuple(int(column) for column in read),
        source_columns=() if source is None else source.columns,
    )

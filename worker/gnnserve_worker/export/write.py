"""Writes a variant as programs that others can run, with an example and all that is needed to use them.

What is written is read back and run, and compared with gnnserve's own scores, before the folder gets its name.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import safetensors.numpy
from msgspec import UNSET, UnsetType
from torch import nn

from gnnserve_api.errors import InputError
from gnnserve_api.families import point_of
from gnnserve_api.files.export import (
    EXPORT_SCHEMA_VERSION,
    ExportCheck,
    ExportedArray,
    ExportedDecoder,
    ExportedRows,
    ExportFormat,
    ExportManifest,
)
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_api.files.repository import NetworkKind, RevisionManifest, VariantManifest
from gnnserve_api.spec.model import FULL_NEIGHBOURHOOD
from gnnserve_worker.export.check import TOLERANCE
from gnnserve_worker.export.expected import NodeRows, exact_twin, expected_scores, pair_scores
from gnnserve_worker.export.listed import check_listed, listed_export
from gnnserve_worker.export.one_type import LayeredExport, check_layered
from gnnserve_worker.export.programs import FORMATS, Program, trace
from gnnserve_worker.export.readme import readme
from gnnserve_worker.export.several_types import check_exportable, relational_export
from gnnserve_worker.opening.loaded import LoadedRevision
from gnnserve_worker.programs.layered import SCORES
from gnnserve_worker.tasks.published import PairScoring
from gnnserve_worker.tasks.serving import published_task

MANIFEST, README = "export.json", "README.md"
EXAMPLE, ROW_RECIPE, DECODER, EXPECTED = (
    "example.safetensors", "rows.safetensors", "decoder.safetensors", "expected.npz",
)  # fmt: skip


class VariantExport(Protocol):
    """A variant as a program, by what its inputs are."""

    @property
    def inputs(self) -> tuple[ExportedArray, ...]: ...

    def outputs(self, scores: str) -> tuple[ExportedArray, ...]:
        """`scores`: a sentence about the scores."""

    @property
    def contract(self) -> ProgramManifest | UnsetType:
        """What it is as a program that gnnserve serves; unset: inputs tell it."""

    def module(self) -> nn.Module: ...

    @property
    def sums_by_segments(self) -> bool:
        """Whether its sums and maxima over edges are those of `modules.py`, which `segments.py` translates."""

    def checks(self, chosen: ExportFormat, program: Program) -> list[ExportCheck]:
        """Compare a program that was written. Raises RuntimeError where scores differ by more than the tolerance."""

    def example(self) -> dict[str, np.ndarray]:
        """Inputs of a few nodes, and what gnnserve answers to them."""

    def rows(self) -> ExportedRows | None:
        """What rows of the inputs are; None: they are features, as the source has them."""

    def row_recipe(self) -> dict[str, np.ndarray]:
        """What turns features into rows, beside the normalisation's name; empty: nothing does."""


@dataclass(frozen=True, slots=True)
class ExportKind:
    check: Callable[[RevisionManifest, VariantManifest], None]
    """InputError: the variant cannot be written."""
    export: Callable[[LoadedRevision, VariantManifest, bool, Sequence[str]], VariantExport]
    """The last two: whether it gives embeddings, and `ExportedScores.types`. InputError: the variant cannot be written,
    as its files show."""


_LISTED = ExportKind(check_listed, listed_export)
_KINDS = {
    False: ExportKind(check_layered, lambda revision, variant, gives, _types: LayeredExport(revision, variant, gives)),
    True: ExportKind(check_exportable, relational_export),
}
"""Those of networks of architectures, by whether tables have a row for each relation that reads a node."""


def _kind_of(manifest: RevisionManifest, variant: VariantManifest) -> ExportKind:
    if variant.network.kind is NetworkKind.LISTED:
        return _LISTED
    table = manifest.tables[variant.table]
    return _KINDS[bool(table.by_relation) or table.has_columns_of_types]


def check_variant(manifest: RevisionManifest, name: str) -> None:
    """Raises InputError where the revision has no such variant, or one that cannot be written."""
    published_task(manifest).exported_scores(_variant_of(manifest, name))


def _variant_of(manifest: RevisionManifest, name: str) -> VariantManifest:
    """Raises InputError where the revision has no such variant, or one that is no single network."""
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
    _kind_of(manifest, found).check(manifest, found)
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
    variant, described = revision.variants[name], _variant_of(manifest, name)
    told = published_task(manifest).exported_scores(described)
    pairs = None if told.open_pairs is None else told.open_pairs(_folder_of(revision))
    # Rows that pairs are scored by are the embeddings.
    gives_embeddings = pairs is None and variant.network.hidden > 0 and point_of(described).capabilities.embeddings
    exported = _kind_of(manifest, described).export(revision, described, gives_embeddings, told.types)
    inputs, outputs = exported.inputs, exported.outputs(told.meaning)
    program = trace(exported.module(), inputs)
    checks: list[ExportCheck] = []
    for chosen in formats:
        path = folder / FORMATS[chosen].file
        FORMATS[chosen].write(program, inputs, outputs, path, sums_by_segments=exported.sums_by_segments)
        checks += exported.checks(chosen, FORMATS[chosen].load(path))
    example = exported.example()
    answers = [NodeRows(example["nodes"], example[SCORES])]
    if told.types:
        answers = [NodeRows(np.arange(len(example[each.name])), example[each.name]) for each in outputs]
    _save(example | pair_scores(pairs, answers), folder / EXAMPLE)
    if recipe := exported.row_recipe():
        _save(recipe, folder / ROW_RECIPE)
    written = ExportManifest(
        schema_version=EXPORT_SCHEMA_VERSION,
        written_by=written_by,
        service=service,
        revision=manifest.revision,
        recipe=manifest.recipe,
        graph=manifest.graph,
        variant=name,
        family=described.family,
        architecture=_architecture_of(described),
        programs={chosen: FORMATS[chosen].file for chosen in formats},
        inputs=inputs,
        outputs=outputs,
        rows=exported.rows(),
        fanouts=_fanouts_of(exported.contract, variant.fanouts),
        classes=revision.labels.classes,
        multi_label=revision.labels.multi_label,
        thresholds=described.thresholds,
        compute="float32",
        served_compute=described.compute,
        tolerance=TOLERANCE,
        checks=tuple(checks),
        contract=exported.contract,
        decoder=UNSET if pairs is None else _write_decoder(pairs, folder),
    )
    twin = exact_twin(manifest, described, _folder_of(revision)) if written.can_be_served else None
    if twin is not None:
        np.savez(folder / EXPECTED, allow_pickle=False, **expected_scores(revision, twin, pairs))
        written = msgspec.structs.replace(written, expected=EXPECTED)
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=2))
    (folder / README).write_text(readme(written, told.advice), encoding="utf-8")
    return written


def _architecture_of(variant: VariantManifest) -> str:
    """Name of the architecture; of listed layers, their convolutions."""
    program = variant.network.program
    if program is UNSET or program.layers is UNSET:
        return variant.network.architecture
    kinds = dict.fromkeys(conv.conv.value for layer in program.layers.layers for conv in layer.convs)
    return "-".join(kinds) or "perceptron"


def _fanouts_of(contract: ProgramManifest | UnsetType, drawn: tuple[int, ...]) -> tuple[int, ...]:
    """What is to be drawn for the program: `drawn`, unless it counts edges."""
    if contract is UNSET or not contract.reads_degrees:
        return drawn
    return (FULL_NEIGHBOURHOOD,) * contract.sampled_hops


def _folder_of(revision: LoadedRevision) -> Path:
    assert revision.origin.folder is not None  # noqa: S101 - only what is published is exported
    return revision.origin.folder


def _write_decoder(pairs: PairScoring, folder: Path) -> ExportedDecoder:
    if not pairs.weights:
        return ExportedDecoder(pairs.kind, None)
    _save(pairs.weights, folder / DECODER)
    return ExportedDecoder(pairs.kind, DECODER)


def _save(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    # Safetensors writes an array's memory as it is, whatever its order.
    content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    # Not by its `save_file`, whose files other users of the machine could not read.
    path.write_bytes(content)

"""Contract of a program that `gnnserve export` wrote, read from its `export.json`."""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from gnnserve_api.errors import InputError
from gnnserve_api.files.export import ExportedArray, ExportFormat, ExportManifest
from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, ProgramOutput
from gnnserve_api.spec.model import Architecture
from gnnserve_worker.programs.layered import (
    EDGE_WEIGHTS,
    EDGES,
    EMBEDDINGS,
    OWN_ROWS,
    OWN_WEIGHTS,
    ROWS,
    SCORES,
    TARGETS,
)

_OF_LAYERS = {
    EDGES: InputRole.LAYER_EDGES,
    TARGETS: InputRole.LAYER_TARGETS,
    EDGE_WEIGHTS: InputRole.NORMALISED_WEIGHTS,
    OWN_WEIGHTS: InputRole.NORMALISED_WEIGHTS,
}
_ADDS_ITSELF = frozenset({Architecture.GCN, Architecture.GAT})
"""Their layers add the node itself, so that edges from it to itself are left out."""


def contract_of_export(made: ExportManifest, sha256: str) -> ProgramManifest:
    """InputError: it was not written as ONNX, or by a newer version that knows other inputs."""
    if ExportFormat.ONNX not in made.programs:
        raise InputError(
            "export.json", f"{made.variant} was written as {', '.join(made.programs)}", "export it with --format onnx"
        )
    if made.contract is not UNSET:
        return msgspec.structs.replace(made.contract, sha256=sha256)
    adds_itself = made.architecture in _ADDS_ITSELF
    outputs = {each.name: ProgramOutput(each.name, int(each.shape[1])) for each in made.outputs}
    return ProgramManifest(
        made.programs[ExportFormat.ONNX],
        sha256,
        sum(fanout != 0 for fanout in made.fanouts),
        tuple(input_of(each, adds_itself=adds_itself) for each in made.inputs),
        outputs[SCORES],
        outputs.get(EMBEDDINGS),
    )


def input_of(each: ExportedArray, *, adds_itself: bool) -> ProgramInput:
    alone = {ROWS: InputRole.ROWS, OWN_ROWS: InputRole.OWN_ROWS}.get(each.name)
    if alone is not None:
        return ProgramInput(each.name, alone)
    kind, _, number = each.name.rpartition("_")
    if kind not in _OF_LAYERS or not number.isdecimal():
        raise InputError(
            "export.json", f"this version does not know the input {each.name!r}", "export it by this version again"
        )
    of_targets = kind == OWN_WEIGHTS
    is_of_edges = kind in (EDGES, EDGE_WEIGHTS)
    return ProgramInput(
        each.name,
        _OF_LAYERS[kind],
        layer=int(number),
        of_targets=of_targets,
        without_self=adds_itself and is_of_edges,
    )

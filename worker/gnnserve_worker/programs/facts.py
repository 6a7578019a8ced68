"""Facts that the file of a program states of itself, and whether the contract says the same. Pure; needs no onnx."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from gnnserve_api.errors import InputError
from gnnserve_api.files.programs import ProgramInput, ProgramManifest, ProgramOutput

FIELD = "spec.model.program"
DYNAMO = "torch.onnx.export(model, args, dynamo=True, dynamic_shapes=…)"
_KINDS = {"float32": "float", "int64": "int64"}
"""Names that ONNX has for the types of inputs."""


class StatedTensor(msgspec.Struct, frozen=True):
    """An input or output."""

    name: str
    kind: str
    """Type of its numbers, as ONNX calls it; of what is no tensor, what it is in words."""
    sizes: tuple[int | None, ...]
    """By axis; None where it differs from call to call."""


class ProgramFacts(msgspec.Struct, frozen=True):
    inputs: tuple[StatedTensor, ...]
    """Tensors that are given in each call."""
    outputs: tuple[StatedTensor, ...]
    data_files: tuple[str, ...]
    """Names of the files beside it that have weights of it."""

    @property
    def columns_of_inputs(self) -> dict[str, int]:
        """Columns of each input that is a matrix, by name; without those whose number differs from call to call."""
        return {each.name: each.sizes[1] for each in self.inputs if len(each.sizes) == 2 and each.sizes[1] is not None}


def check_contract(facts: ProgramFacts, program: ProgramManifest) -> None:
    """InputError: the program is another one than the contract describes."""
    found = {each.name: each for each in facts.inputs}
    described = {each.name: each for each in program.inputs}
    if found.keys() != described.keys():
        raise InputError(
            f"{FIELD}.inputs",
            f"the program takes {_listed(found)}, and the contract describes {_listed(described)}",
            "describe each input once; an input that the model does not use is not in an export",
        )
    for name, each in described.items():
        _check_input(each, found[name])
    given = {each.name: each for each in facts.outputs}
    for output in program.outputs:
        if output.name not in given:
            raise InputError(
                f"{FIELD}.outputs", f"the program gives {_listed(given)}, and no {output.name!r}", "name one of these"
            )
        _check_output(output, given[output.name])


def _check_input(each: ProgramInput, stated: StatedTensor) -> None:
    field, sizes = f"{FIELD}.inputs.{each.name}", stated.sizes
    if stated.kind != _KINDS[each.dtype]:
        raise InputError(
            field, f"the program takes {stated.kind}, and {each.role} are {each.dtype}", f"export it with {each.dtype}"
        )
    if len(sizes) != each.rank:
        raise InputError(
            field, f"the program takes {len(sizes)} axes, and {each.role} have {each.rank}",
            "correct the role, or the example that it was exported with",
        )  # fmt: skip
    if each.free_axis is not None and sizes[each.free_axis] is not None:
        raise InputError(
            field, f"axis {each.free_axis} has the fixed size {sizes[each.free_axis]} of the example, and differs from "
            "call to call", f"export it by {DYNAMO} with a torch.export.Dim for that axis",
        )  # fmt: skip


def _check_output(each: ProgramOutput, stated: StatedTensor) -> None:
    field, sizes = f"{FIELD}.outputs.{each.name}", stated.sizes
    if stated.kind != _KINDS["float32"] or len(sizes) != 2:
        raise InputError(
            field, f"the program gives {stated.kind} of {len(sizes)} axes; expected float32 [nodes, columns]",
            "return a matrix with a row for each node",
        )  # fmt: skip
    rows, columns = sizes
    if rows is not None:
        raise InputError(
            field, f"it has always {rows} rows; expected one for each node or seed",
            f"export it by {DYNAMO} with a torch.export.Dim for the number of nodes",
        )  # fmt: skip
    if columns not in {None, each.columns}:
        raise InputError(field, f"it has {columns} columns, and the contract says {each.columns}", f"say {columns}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"

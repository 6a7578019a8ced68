"""Refusals of networks that torch cannot trace, or translate to ONNX: the layer that it is, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from torch import nn
from torch.export import ExportedProgram

from gnnserve_api.errors import InputError

_PART = re.compile(r"(?:^|\.)((?:before|layers|head|heads|jumping)\..*|jumping|head)$")
"""Name of a part of a network, behind what it is a part of."""
_OPERATION = re.compile(r"translating node .*?target=torch\.ops\.(\w+\.\w+)")
"""Operation of a program in torch's message."""
_COLOUR = re.compile(r"\x1b\[\d*m")


@dataclass(slots=True)
class RunningModules:
    """Modules that a call has entered and not left, the outermost first."""

    entered: list[tuple[str, nn.Module]] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The innermost one that is a part of a network: `layers[1].convs[0] (PNAConv)`. Empty: none is."""
        named = [(part, module) for name, module in self.entered if (part := part_of(name))]
        return f"{named[-1][0]} ({type(named[-1][1]).__name__})" if named else ""


@contextmanager
def running_modules(module: nn.Module) -> Iterator[RunningModules]:
    """Follow calls of a module and of those in it."""
    running, hooks = RunningModules(), []
    for name, one in module.named_modules():
        hooks.append(one.register_forward_pre_hook(partial(_enter, running, name)))
        hooks.append(one.register_forward_hook(partial(_leave, running)))
    try:
        yield running
    finally:
        for hook in hooks:
            hook.remove()


def _enter(running: RunningModules, name: str, module: nn.Module, _inputs: object) -> None:
    running.entered.append((name, module))


def _leave(running: RunningModules, _module: nn.Module, _inputs: object, _outputs: object) -> None:
    running.entered.pop()


def part_of(name: str) -> str:
    """A part of a network in the words of a manifest, as `layers[1].convs[0]`, by the name of its module. Empty: it is
    none."""
    found = _PART.search(name)
    return "" if found is None else re.sub(r"\.(\w+)", lambda each: _placed(each[1]), found[1])


def _placed(name: str) -> str:
    return f"[{name}]" if name.isdecimal() else f".{name}"


def refuse_untraced(where: str, error: Exception) -> InputError:
    """`where`: as of `RunningModules.words`."""
    return InputError(
        "VARIANT", f"torch cannot trace {where or 'its network'}: {_first_line(error)}",
        "export another variant, or have gnnserve-describe write the module that the weights came from",
    )  # fmt: skip


def refuse_untranslated(program: ExportedProgram, error: Exception) -> InputError:
    found = _OPERATION.search(_COLOUR.sub("", str(error)))
    where = "" if found is None else _part_with(program, found[1])
    why = _first_line(error) if found is None else f"it has no operation for {found[1]}"
    return InputError(
        "--format onnx", f"ONNX cannot have {where or 'the network'}: {why}", "export it with --format torch"
    )


def _part_with(program: ExportedProgram, operation: str) -> str:
    """The first part of a network that has an operation. Empty: it is a piece of operations that are taken apart for
    ONNX."""
    name = operation.split(".")[1]
    for node in program.graph.nodes:
        if name in str(node.target):
            parts = (part_of(module) for module, _ in node.meta.get("nn_module_stack", {}).values())
            return next((part for part in reversed([*parts]) if part), "")
    return ""


def _first_line(error: Exception) -> str:
    lines = _COLOUR.sub("", str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].strip()}" if lines else type(error).__name__

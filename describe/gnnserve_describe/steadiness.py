"""Whether a module gives the same scores each time: in evaluation mode, not random, and without changing itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import UninitializedParameter
from torch.overrides import TorchFunctionMode

from gnnserve_api.errors import InputError
from gnnserve_describe.blame import Blame, blame_of_caller
from gnnserve_describe.calling import ModuleCall
from gnnserve_describe.findings import Findings
from gnnserve_describe.graph import GraphTensors
from gnnserve_describe.scoring import tensors_of

_DRAWS = frozenset(
    """
    rand rand_like randn randn_like randint randint_like randperm normal normal_ uniform_ bernoulli bernoulli_
    multinomial exponential_ log_normal_ random_ cauchy_ geometric_ rrelu gumbel_softmax
    """.split()  # noqa: SIM905 - one a line would take a page
)
_DROPS = frozenset({"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"})


def in_evaluation(module: torch.nn.Module, findings: Findings) -> torch.nn.Module:
    """A copy of the module on the processor, in evaluation mode; what convolutions have kept of other graphs is left
    behind."""
    module = _described_part(module, findings)
    if any(each.training for each in module.modules()):
        findings.tell("the module was in training mode: it is described in evaluation mode (model.eval())")
    unknown = [name for name, each in module.named_parameters() if isinstance(each, UninitializedParameter)]
    if unknown:
        raise InputError(
            "module", f"{unknown[0]} has no width yet, since the module was not called before",
            "call it once over the graph before its weights are loaded",
        )  # fmt: skip
    _check_weights(module)
    try:
        made = copy.deepcopy(module, _kept_of_training(module))
    except Exception as error:
        raise InputError(
            "module", f"it cannot be copied ({error})",
            "keep no tensors that were computed with gradients, loaders or open files as attributes of it",
        ) from error  # fmt: skip
    made = made.cpu().eval()
    others = {str(each.dtype) for each in made.parameters() if each.is_floating_point()} - {"torch.float32"}
    if others:
        made = made.float()
        findings.tell(f"weights are {', '.join(sorted(others))}: it is described in torch.float32")
    for each in made.modules():
        if getattr(each, "cached", False) is True:
            each.cached = False  # type: ignore[assignment]
            # Normalised edges of the graph that it was called with last, which it would take for those of any other.
            for name in [name for name in vars(each) if name.startswith("_cached")]:
                setattr(each, name, None)
            findings.tell(
                f"{type(each).__name__}(cached=True) keeps what it made of one graph: it is described with cached=False"
            )
    for each in made.modules():
        # Of DGL's convolutions, which otherwise refuse nodes that read none, as a sample has.
        allow = getattr(each, "set_allow_zero_in_degree", None)
        if callable(allow):
            allow(True)
    for parameter in made.parameters():
        parameter.requires_grad_(False)
    return made


def _check_weights(module: torch.nn.Module) -> None:
    """InputError: there are none, or they are integers that ONNX does not have."""
    empty = [name for name, each in _state(module) if each.is_meta]
    if empty:
        raise InputError(
            "module", f"{empty[0]} has no numbers (it is on the device 'meta')",
            "load its weights: module.to_empty(device='cpu'), then load_state_dict",
        )  # fmt: skip
    quantised = [
        type(each).__name__ for each in module.modules() if re.match(r"torch\..*\bquantized\b", type(each).__module__)
    ]
    if quantised:
        raise InputError(
            "module", f"it was quantised ({quantised[0]}), and programs compute in float32",
            "describe the module as it was before; variants.storage serves its rows as int8",
        )  # fmt: skip


_WRAPPERS = frozenset({"DataParallel", "DistributedDataParallel"})


def _described_part(module: torch.nn.Module, findings: Findings) -> torch.nn.Module:
    """The module inside of what trains it on several devices. InputError: there is no Python code in it to export."""
    name = type(module).__name__
    if name in _WRAPPERS and isinstance(module.module, torch.nn.Module):
        findings.tell(f"the module inside of {name} is described")
        return module.module
    if isinstance(module, torch.jit.ScriptModule) or name == "OptimizedModule":
        made_by = "torch.compile" if name == "OptimizedModule" else "torch.jit"
        raise InputError(
            "module", f"it was made by {made_by}, and is described by its Python code",
            f"name the torch.nn.Module that {made_by} was given, with its weights loaded",
        )  # fmt: skip
    return module


def _kept_of_training(module: torch.nn.Module) -> dict[int, Any]:
    """Copies by `id` of tensors that layers kept of a step of training (SuperGATConv does), without their history, with
    which none can be copied."""
    kept = [tensor for each in module.modules() for _, tensor in tensors_of(vars(each))]
    return {id(tensor): tensor.detach().clone() for tensor in kept if not tensor.is_leaf}


def check_steady(module: torch.nn.Module, call: ModuleCall, graph: GraphTensors) -> None:
    """InputError: two runs differ, or the module is another one behind a run."""
    before = {name: tensor.clone() for name, tensor in _state(module)}
    seen = _SeenDraws()
    with torch.no_grad(), seen:
        first = [tensor for _, tensor in tensors_of(call(module, graph))]
    changed = [
        name
        for name, tensor in _state(module)
        if name not in before or before[name].shape != tensor.shape or not _equal(before[name], tensor)
    ]
    if changed:
        raise InputError(
            "module", f"it changes {', '.join(changed[:3])} while it is called in evaluation mode: it still trains",
            "make this depend on self.training, or leave it out of forward",
        )  # fmt: skip
    if any(each.training for each in module.modules()):
        raise InputError(
            "module", "forward turns training mode on", "take .train() out of forward; it is called in evaluation mode"
        )
    with torch.no_grad():
        second = [tensor for _, tensor in tensors_of(call(module, graph))]
    if len(first) == len(second) and all(_equal(one, two) for one, two in zip(first, second, strict=True)):
        return
    where = f", drawn at {seen.draws[0]}" if seen.draws else ""
    raise InputError(
        "module", f"two runs over the same graph differ in evaluation mode: it uses random numbers{where}",
        "draw them in training alone: F.dropout(x, p, training=self.training), and no sampling in forward otherwise",
    )  # fmt: skip


def _state(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Without what layers keep beside their tensors (`get_extra_state`)."""
    return ((name, each) for name, each in module.state_dict().items() if torch.is_tensor(each))


def _equal(one: torch.Tensor, two: torch.Tensor) -> bool:
    if one.shape != two.shape:
        return False
    if not one.is_floating_point():
        return torch.equal(one, two)
    # Sums in another order may differ in the last places.
    scale = float(one.abs().nan_to_num().max()) if one.numel() else 0.0
    return bool(torch.allclose(one, two, rtol=0, atol=1e-5 * scale, equal_nan=True))


class _SeenDraws(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.draws: list[Blame] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        is_drop = name in _DROPS and kwargs.get("p", 1) != 0 and kwargs.get("training", len(args) < 3 or args[2])
        if name in _DRAWS or is_drop:
            self.draws.append(blame_of_caller())
        return func(*args, **kwargs)

"""Attributes in which a module keeps what it made of a graph (normalised edges, mostly): each call begins without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gnnserve_describe.findings import Findings

_OF_TORCH = frozenset({"training"})
"""Attributes whose change is the module's own doing, and told (`steadiness.py`)."""


@contextmanager
def restored_attributes(module: torch.nn.Module) -> Iterator[None]:
    """Within it a module may set attributes; behind it they are as they were."""
    before = [(each, dict(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, attributes in before:
            now = vars(each)
            for name in now.keys() - attributes.keys():
                del now[name]
            for name, value in attributes.items():
                if name not in _OF_TORCH and now.get(name) is not value:
                    now[name] = value


def forget_kept_tensors(module: torch.nn.Module, outputs: Callable[[], list[torch.Tensor]], findings: Findings) -> None:
    """Set attributes to None that hold tensors and are made anew where there are none: `outputs` over the graph that
    they were made of stay the same."""
    kept = [
        (f"{path}.{name}" if path else name, each, name)
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if not name.startswith("_") and _holds_tensors(value)
    ]
    try:
        wanted = outputs() if kept else []
    except Exception:  # noqa: BLE001 - that it cannot be called is told where it is called over other graphs
        return
    for path, each, name in kept:
        value = vars(each)[name]
        vars(each)[name] = None
        if _are_equal(outputs, wanted):
            findings.tell(f"{path} keeps what was made of one graph: it is made anew in each call")
        else:
            vars(each)[name] = value


def _holds_tensors(value: Any) -> bool:
    return torch.is_tensor(value) or (isinstance(value, tuple | list) and any(map(torch.is_tensor, value)))


def _are_equal(outputs: Callable[[], list[torch.Tensor]], wanted: list[torch.Tensor]) -> bool:
    try:
        found = outputs()
    except Exception:  # noqa: BLE001 - whatever the module raises where it lacks something
        return False
    return len(found) == len(wanted) and all(
        one.shape == two.shape and torch.allclose(one, two, equal_nan=True)
        for one, two in zip(found, wanted, strict=True)
    )

"""Given weights of a network over several types, held against the manifest and the graph."""

from __future__ import annotations

from pathlib import Path

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Model
from gnnserve_worker.generation.checkpoint import FIELD
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.graph.sources.files import file_path
from gnnserve_worker.models.typed.architecture import TypedArchitectureSpec, TypedShape

_SHOWN_KEYS = 12


def check_typed(tensors: Tensors, architecture: TypedArchitectureSpec, shape: TypedShape, model: Model) -> Tensors:
    """The tensors that the architecture has. InputError names the first one that is missing, misshapen or unknown."""
    expected = architecture.shapes(shape)
    path = Path() if model.checkpoint is None else file_path(model.checkpoint.uri)
    for key, sizes in expected.items():
        if key not in tensors:
            there = ", ".join(sorted(tensors)[:_SHOWN_KEYS])
            raise InputError(
                f"{FIELD}.uri", f"{path}: has no {key}, expected it {list(sizes)}; it has {there}"
                f"{' …' if len(tensors) > _SHOWN_KEYS else ''}",
                f"save the state dict of a model of {architecture.module} whose layers are a ModuleList `convs`, with "
                "the relations that `gnnserve graph inspect` lists",
            )  # fmt: skip
        if tensors[key].shape != sizes:
            raise InputError(
                f"{FIELD}.uri", f"{path}: {key} is {list(tensors[key].shape)}, expected {list(sizes)}",
                "give the graph that the model was trained on, and spec.model.hidden as it had",
            )  # fmt: skip
    for key in tensors:
        if key not in expected:
            raise InputError(
                f"{FIELD}.uri", f"{path}: has {key}, which a model of {architecture.module} of {shape.layers} layers "
                "over these relations does not have",
                "leave the tensor out, or give as many fan-outs as the model has layers",
            )  # fmt: skip
    return tensors

"""Reading weights that the user gives, and checking them against the manifest and the graph.

This needs no torch, so that a service with given weights is ready within seconds. Every message names the file, the
key, what was found, what was expected and what to change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import safetensors

from gnnserve_api.errors import InputError
from gnnserve_api.spec.model import Checkpoint, Model
from gnnserve_worker.generation.checkpoint_layout import Layout, LayoutError, layout_of
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.graph.sources.files import file_path, pinned_digest
from gnnserve_worker.models.architecture import Axis
from gnnserve_worker.models.build import head_sizes
from gnnserve_worker.models.registry import ARCHITECTURES

FIELD = "spec.model.checkpoint"
_HOW_TO_WRITE = "write it with `safetensors.torch.save_file(model.state_dict(), PATH)`"
_PICKLES = (b"PK\x03\x04", b"\x80")
"""First bytes of files that torch.save writes, in its new and its old format."""
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def checkpoint_digest(model: Model) -> str | None:
    """SHA-256 of the given weights; None: the model is trained. InputError: the file is missing, or another one."""
    given = model.checkpoint
    return None if given is None else pinned_digest(FIELD, given.uri, given.sha256)


def load_checkpoint(
    given: Checkpoint, digest: str, model: Model, columns: int, classes: int, columns_remedy: str | None = None
) -> Tensors:
    """Load the weights as float32 under torch_geometric's keys. InputError: they do not fit the manifest or the graph.

    `columns_remedy`: what to change if the first layer reads another number of columns, which replaces `{}`.
    """
    path, tensors = file_path(given.uri), read_checkpoint(given, digest)
    try:
        layout = layout_of(tensors, model.architecture)
    except LayoutError as error:
        raise _error(path, error.problem, error.remedy) from None
    renamed = {key: tensors[found] for key, found in layout.keys.items()}
    read = _Axis(
        columns,
        columns_remedy or f"the graph has {columns} feature columns: give the graph that the model was trained on",
    )
    _check(path, renamed, layout, model, read, classes)
    return renamed


def read_checkpoint(given: Checkpoint, digest: str) -> Tensors:
    """The tensors of the file, as float32 under its own keys. InputError: it is not a file of finite numbers."""
    path = file_path(given.uri)
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{FIELD}.uri", f"{path} changed while it was read", "start again when it is written")
    return _parse(path, data)


def _error(path: Path, problem: str, remedy: str) -> InputError:
    return InputError(f"{FIELD}.uri", f"{path}: {problem}", remedy)


def _module_of(model: Model) -> str:
    return ARCHITECTURES[model.architecture].module


def _parse(path: Path, data: bytes) -> Tensors:
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        problem = f"is not a safetensors file: {error}"
        if data.startswith(_PICKLES):  # checked last, since the length of a safetensors header may look like a pickle
            problem = "is a pickle, as torch.save writes it, which may run code when it is read"
        raise _error(path, problem, _HOW_TO_WRITE) from error
    tensors = {}
    # Counters of normalization layers are skipped: models with such layers are refused by the names of their weights.
    for key, entry in sorted(one for one in entries if not one[0].endswith(".num_batches_tracked")):
        values = _to_float32(entry["dtype"], entry["data"])
        if values is None:
            raise _error(path, f"{key} is {entry['dtype']}, expected floats", "convert the tensor")
        if not np.isfinite(values).all():
            raise _error(path, f"{key} has values that are not finite", "train the model again")
        tensors[key] = values.reshape(entry["shape"])
    return tensors


def _to_float32(dtype: str, data: bytes) -> np.ndarray | None:
    if dtype == "BF16":
        return (np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16).view(np.float32)
    if dtype not in _FLOATS:
        return None
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        return np.frombuffer(data, dtype=_FLOATS[dtype]).astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Axis:
    """One dimension of a weight: its size, and what to change where a file has another one."""

    size: int
    remedy: str
    """What to change; the found size times `factor` replaces `{}`."""
    factor: int = 1


def _check(
    path: Path, tensors: Mapping[str, np.ndarray], layout: Layout, model: Model, read: _Axis, classes: int
) -> None:
    """Check names and shapes. Messages use the names in the file."""
    _check_layers(path, len(layout.layers), len(model.fanouts))
    expected = _expected(model, read, classes)
    for key, axes in expected.items():
        if key not in tensors:
            raise _error(
                path, f"has no {layout.shown(key)}, expected it {[axis.size for axis in axes]}; it has "
                f"{', '.join(sorted(layout.keys.values()))}",
                f"save the whole state dict of a torch_geometric.nn.{_module_of(model)}",
            )  # fmt: skip
        found, shape = list(tensors[key].shape), [axis.size for axis in axes]
        if found == shape:
            continue
        remedy = f"save the weights of a torch_geometric.nn.{_module_of(model)}"
        if len(found) == len(shape):
            size, axis = next((size, axis) for size, axis in zip(found, axes, strict=True) if size != axis.size)
            remedy = axis.remedy.format(size * axis.factor)
        raise _error(path, f"{layout.shown(key)} is {found}, expected {shape}", remedy)
    for key in tensors:
        if key not in expected:
            raise _error(
                path, f"has {layout.keys[key]}, which a torch_geometric.nn.{_module_of(model)} of "
                f"{len(model.fanouts)} layers does not have",
                "use a model without norm, jk, project and normalize, and without layers beside its convolutions, none "
                "of which are served",
            )  # fmt: skip


def _check_layers(path: Path, found: int, layers: int) -> None:
    if found != layers:
        raise _error(
            path,
            f"has {found} layers, and spec.model.fanouts has {layers} entries",
            f"give {found} fan-outs, one per layer",
        )


def _expected(model: Model, read: _Axis, classes: int) -> dict[str, tuple[_Axis, ...]]:
    hidden = _Axis(model.hidden, "set spec.model.hidden to {}")
    given = _Axis(
        classes,
        f"the labels of the graph have {classes} classes, and the model gives {{}}: label a node of each class",
    )
    one = _Axis(1, f"save the weights of a torch_geometric.nn.{_module_of(model)}")
    as_it_is = (
        "" if model.mlp_hidden is None else f", or leave it out for a torch_geometric.nn.{_module_of(model)} as it is"
    )
    network = model.network(classes)
    axes = [read, *[hidden] * (len(model.fanouts) - 1), given]
    shapes: dict[str, tuple[_Axis, ...]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(axes)):
        inner = _Axis(model.mlp_hidden or outputs.size, f"set spec.model.mlpHidden to {{}}{as_it_is}")
        of_heads = head_sizes(network, layer, outputs.size)
        heads, each = of_heads[Axis.HEADS], of_heads[Axis.HEAD_OUTPUTS]
        is_last = layer == len(axes) - 2
        sizes = {
            Axis.INPUTS: inputs,
            Axis.INNER: inner,
            Axis.OUTPUTS: outputs,
            Axis.HEADS: _Axis(heads, f"set spec.model.{'outputHeads' if is_last else 'heads'} to {{}}"),
            Axis.HEAD_OUTPUTS: _Axis(each, outputs.remedy, factor=1 if is_last else heads),
            Axis.ALL_OUTPUTS: _Axis(of_heads[Axis.ALL_OUTPUTS], one.remedy),
            Axis.ONE: one,
        }
        shapes |= ARCHITECTURES[model.architecture].shapes_of(layer, sizes)
    return shapes

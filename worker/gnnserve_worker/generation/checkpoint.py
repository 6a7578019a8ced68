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
from gnnserve_api.spec.model import Architecture, Checkpoint, Model, column_blocks
from gnnserve_worker.generation.checkpoint_description import (
    Refusal,
    architecture_of,
    describe,
    looks,
    refusal_of,
)
from gnnserve_worker.generation.checkpoint_layout import Layout, LayoutError, layout_of
from gnnserve_worker.generation.checkpoint_settings import needed_settings, sizes_of, tells_hops
from gnnserve_worker.generation.tensors import Tensors
from gnnserve_worker.graph.sources.files import pinned_digest
from gnnserve_worker.models.architecture import Axis
from gnnserve_worker.models.build import head_sizes
from gnnserve_worker.models.layer_kind import Shapes
from gnnserve_worker.models.registry import spec_of

FIELD = "spec.model.checkpoint"
_HOW_TO_WRITE = "write it with `safetensors.torch.save_file(model.state_dict(), PATH)`"
_PICKLES = (b"PK\x03\x04", b"\x80")
"""First bytes of files that torch.save writes, in its new and its old format."""
_COUNTERS = ("num_batches_tracked", "n_averaged")
"""Integers that count, in norms and in averages of weights (torch.optim.swa_utils): no scores depend on them."""
_FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def checkpoint_digest(model: Model) -> str | None:
    """SHA-256 of the given weights; None: the model is trained. InputError: the file is missing, or another one."""
    given = model.checkpoint
    return None if given is None else pinned_digest(FIELD, given.uri.path, given.sha256)


def load_checkpoint(
    given: Checkpoint, digest: str, model: Model, columns: int, classes: int, columns_remedy: str | None = None
) -> Tensors:
    """Load the weights as float32 under torch_geometric's keys. InputError: they do not fit the manifest or the graph.

    `columns_remedy`: what to change if the first layer reads another number of columns, which replaces `{}`.
    """
    path, tensors = given.uri.path, read_checkpoint(given, digest)
    architecture = _fitting_architecture(path, tensors, model, _GraphSizes(columns, classes, columns_remedy))
    try:
        layout = layout_of(tensors, architecture)
    except LayoutError as error:
        raise _error(path, error.problem, error.remedy) from None
    renamed = {key: tensors[found] for key, found in layout.keys.items()}
    graph = _GraphSizes(columns, classes, columns_remedy)
    needed = _needed(path, {key: tensor.shape for key, tensor in renamed.items()}, architecture, model, graph)
    if architecture is not model.architecture:
        says = looks(describe({key: tensor.shape for key, tensor in tensors.items()}))
        problem = f"{says}, so it holds a {architecture}, and spec.model.architecture is {model.architecture}"
        raise _error(path, problem, needed)
    _check(path, renamed, layout, model, graph, needed)
    return renamed


@dataclass(frozen=True, slots=True)
class _GraphSizes:
    """What a network has to read and to give."""

    columns: int
    """What its first layer reads of a node."""
    classes: int
    columns_remedy: str | None
    """What to change where it reads other columns, which replaces `{}`; None: the graph is another one."""


def _fitting_architecture(path: Path, tensors: Tensors, model: Model, graph: _GraphSizes) -> Architecture:
    """The architecture that all layers of the file are of. InputError: there is none, and what would help."""
    description = describe({key: tensor.shape for key, tensor in tensors.items()})
    if (refusal := refusal_of(description)) is None:
        return _known(architecture_of(description))
    if refusal.shapes is None:
        raise _error(path, refusal.problem, refusal.remedy)
    # Once its tensors have other names, nothing else may be in the way.
    architecture = _known(architecture_of(describe(refusal.shapes)))
    try:
        layout = layout_of(refusal.shapes, architecture)
    except LayoutError as error:
        raise _error(path, f"{refusal.problem}, and {error.problem}", f"{refusal.remedy}; {error.remedy}") from None
    renamed = {key: refusal.shapes[found] for key, found in layout.keys.items()}
    needed = _needed(path, renamed, architecture, model, graph)
    raise _error(path, refusal.problem, f"{refusal.remedy}, and {needed}" if needed else refusal.remedy)


def _known(architecture: Architecture | None) -> Architecture:
    if architecture is None:
        raise ValueError("layers that are not refused are of one architecture")
    return architecture


def _needed(path: Path, shapes: Shapes, architecture: Architecture, model: Model, graph: _GraphSizes) -> str:
    """All that has to change, in one sentence; empty: nothing. `shapes`: under torch_geometric's keys. InputError:
    nothing that a manifest can say fits."""
    layers = 1 + max(int(key.split(".")[1]) for key in shapes)
    sizes = sizes_of(shapes, architecture, layers)
    features = graph.columns // column_blocks(model.architecture, model.network(1).hops)
    needed = needed_settings(sizes, architecture, model, features)
    if isinstance(needed, Refusal):
        raise _error(path, needed.problem, needed.remedy)
    inputs, outputs = sizes.of(Axis.INPUTS), sizes.of(Axis.OUTPUTS)
    fits = tells_hops(architecture) and any("spec.model.hops" in one for one in needed)
    expected = features if architecture is not model.architecture else graph.columns
    if inputs and inputs[0] != expected and not fits:
        of_graph = f"the graph has {expected} feature columns: give the graph that the model was trained on"
        needed.append(of_graph if graph.columns_remedy is None else graph.columns_remedy.format(inputs[0]))
    if outputs and outputs[-1] != graph.classes:
        needed.append(_other_classes(outputs[-1], graph.classes))
    return ", and ".join(needed)


def _other_classes(found: int, classes: int) -> str:
    has = f"the labels of the graph have {classes} classes, and the model gives {found}"
    if found == 1:
        return f"{has}, as a regression does, or one logit for two classes: neither is served yet"
    more = found > classes
    return f"{has}: {'label a node of each class' if more else 'give the labels that the model was trained on'}"


def read_checkpoint(given: Checkpoint, digest: str) -> Tensors:
    """The tensors of the file, as float32 under its own keys. InputError: it is not a file of finite numbers."""
    path = given.uri.path
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise InputError(f"{FIELD}.uri", f"{path} changed while it was read", "start again when it is written")
    return _parse(path, data)


def _error(path: Path, problem: str, remedy: str) -> InputError:
    return InputError(f"{FIELD}.uri", f"{path}: {problem}", remedy)


def _module_of(model: Model) -> str:
    return spec_of(model.architecture).module


def _parse(path: Path, data: bytes) -> Tensors:
    try:
        entries = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        problem = f"is not a safetensors file: {error}"
        if data.startswith(_PICKLES):  # checked last, since the length of a safetensors header may look like a pickle
            problem = "is a pickle, as torch.save writes it, which may run code when it is read"
        raise _error(path, problem, _HOW_TO_WRITE) from error
    tensors = {}
    for key, entry in sorted(one for one in entries if one[0].rpartition(".")[2] not in _COUNTERS):
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


def _check(
    path: Path, tensors: Mapping[str, np.ndarray], layout: Layout, model: Model, graph: _GraphSizes, needed: str
) -> None:
    """Check names and shapes. Messages use the names in the file. `needed`: all that has to change, which each of them
    advises together."""
    layers, stated = len(layout.layers), len(model.fanouts)
    if layers != stated:
        raise _error(path, f"has {layers} layers, and spec.model.fanouts has {stated} entries", needed)
    for key, shape in _expected(model, graph).items():
        whole = f"the whole state dict of a torch_geometric.nn.{_module_of(model)}"
        if key not in tensors:
            there = ", ".join(sorted(layout.keys.values()))
            problem = f"has no {layout.shown(key)}, expected it {list(shape)}; it has {there}"
            raise _error(path, problem, f"save {whole}{f', and {needed}' if needed else ''}")
        if tensors[key].shape != shape:
            problem = f"{layout.shown(key)} is {list(tensors[key].shape)}, expected {list(shape)}"
            raise _error(path, problem, needed or f"save {whole}")
    if beyond := sorted(layout.keys[key] for key in tensors.keys() - _expected(model, graph).keys()):
        problem = f"has {', '.join(beyond)}, which a torch_geometric.nn.{_module_of(model)} does not have"
        raise _error(path, problem, needed or f"save {whole}")


def _expected(model: Model, graph: _GraphSizes) -> dict[str, tuple[int, ...]]:
    network = model.network(graph.classes)
    widths = [graph.columns, *[model.hidden] * (len(model.fanouts) - 1), graph.classes]
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (inputs, outputs) in enumerate(pairwise(widths)):
        sizes = {
            **head_sizes(network, layer, outputs), Axis.INPUTS: inputs, Axis.INNER: model.mlp_hidden or outputs,
            Axis.OUTPUTS: outputs, Axis.ONE: 1,
        }  # fmt: skip
        shapes |= spec_of(model.architecture).shapes_of(layer, sizes)
    return shapes

"""Programs as people bring them: exported by torch, or put together operator by operator."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch.export import Dim

from gnnserve_api.files.programs import InputRole, ProgramInput, ProgramManifest, ProgramOutput
from gnnserve_worker.programs.allowed import facts_of
from gnnserve_worker.programs.facts import check_contract

GRAPH_INPUTS = (ProgramInput("x", InputRole.FEATURES), ProgramInput("edge_index", InputRole.EDGES))


def manifest_of(
    inputs: Sequence[ProgramInput] = GRAPH_INPUTS,
    *,
    hops: int = 2,
    columns: int = 3,
    scores: str = "scores",
    embeddings: ProgramOutput | None = None,
    reads_degrees: bool = False,
) -> ProgramManifest:
    return ProgramManifest(
        "model.onnx", "", hops, tuple(inputs), ProgramOutput(scores, columns), embeddings, reads_degrees
    )


def check_program_file(file: Path, program: ProgramManifest) -> None:
    """What generation checks of a file, in this process. InputError."""
    check_contract(facts_of(file), program)


KEPT = Path.home() / ".cache" / "gnnserve" / "test-exports"
"""Programs that tests of this machine have exported: an export takes seconds, and computes the same each time."""
_MOST_KEPT = 400


def export(
    module: torch.nn.Module, example: Mapping[str, np.ndarray], free: Mapping[str, Mapping[int, str]], path: Path,
    outputs: Sequence[str] = ("scores",),
) -> Path:  # fmt: skip
    """`free`: names of the sizes of each input's axes that differ from call to call."""
    digest = _digest(module, example, free, outputs)
    if digest is None:
        return _export(module, example, free, path, outputs)
    kept = KEPT / f"{digest}.onnx"
    if not kept.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        _export(module, example, free, part, outputs)
        part.rename(kept)
        for old in sorted(KEPT.glob("*.onnx"), key=lambda each: each.stat().st_mtime)[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    kept.touch()
    shutil.copy(kept, path)
    return path


def _digest(module: torch.nn.Module, *given: Any) -> str | None:
    """Digest of all that an export depends on: sources and attributes of the modules, weights, the call, the exporter.
    None: something of it, as a function that is an attribute, has no words of its own."""
    words = [repr([version(name) for name in _EXPORTERS]), repr(given)]
    digest = hashlib.sha256()
    for name, part in module.eval().named_modules():
        file = inspect.getsourcefile(type(part))
        assert file is not None
        digest.update(Path(file).read_bytes())
        plain = {key: value for key, value in vars(part).items() if not key.startswith("_")}
        closure = getattr(type(part).forward, "__closure__", None) or ()
        words += [name, type(part).__qualname__, repr(plain), repr([cell.cell_contents for cell in closure])]
    for name, tensor in module.state_dict().items():
        words.append(repr((name, tensor.dtype, tensor.shape)))
        digest.update(tensor.numpy().tobytes())
    if any(" at 0x" in each for each in words):
        return None
    digest.update("\0".join(words).encode())
    return digest.hexdigest()[:32]


_EXPORTERS = ("torch", "torch-geometric", "onnx", "onnxscript")


def _export(
    module: torch.nn.Module, example: Mapping[str, np.ndarray], free: Mapping[str, Mapping[int, str]], path: Path,
    outputs: Sequence[str],
) -> Path:  # fmt: skip
    dims = {name: Dim(name) for axes in free.values() for name in axes.values()}
    with _quietly():
        made = torch.onnx.export(
            module.eval(),
            (),
            kwargs={name: torch.tensor(array) for name, array in example.items()},
            dynamo=True,
            dynamic_shapes={name: {axis: dims[size] for axis, size in free.get(name, {}).items()} for name in example},
            output_names=list(outputs),
            verbose=False,
        )
    assert made is not None
    made.save(path, external_data=False)
    return path


def made_once(name: str, make: Callable[[Path], object], factory: pytest.TempPathFactory) -> Path:
    """A file that the first of all processes of this run of tests makes which wants it: an export takes seconds."""
    folder = factory.getbasetemp()
    path = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / name
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path.with_suffix(".part"))
            path.with_suffix(".part").rename(path)
    return path


def export_over_graph(module: torch.nn.Module, columns: int, path: Path, outputs: Sequence[str] = ("scores",)) -> Path:
    """A module of x and edge_index."""
    random = np.random.default_rng(0)
    example = {
        "x": random.normal(size=(7, columns)).astype(np.float32),
        "edge_index": random.integers(0, 7, (2, 11)).astype(np.int64),
    }
    return export(module, example, {"x": {0: "nodes"}, "edge_index": {1: "edges"}}, path, outputs)


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def write_mischief(path: Path) -> Path:
    """A program of `x` alone, float32 [nodes, 2], whose scores are `x`. By its first node it counts as far as the first
    column says, and fills as many numbers as the second one says."""
    number = TensorProto.INT64
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["goes_on"], ["goes_on_still"]),
            helper.make_node("Add", ["counted", "one"], ["counted_more"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("step", number, []),
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("counted", TensorProto.FLOAT, []),
        ],
        [
            helper.make_tensor_value_info("goes_on_still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("counted_more", TensorProto.FLOAT, []),
        ],
    )
    nodes = [
        helper.make_node("Gather", ["x", "first"], ["own"], axis=0),
        helper.make_node("Cast", ["own"], ["sizes"], to=number),
        helper.make_node("Gather", ["sizes", "first"], ["steps"], axis=0),
        helper.make_node("Gather", ["sizes", "second"], ["wanted"], axis=0),
        helper.make_node("Loop", ["steps", "", "zero"], ["counted_all"], body=body),
        helper.make_node("ConstantOfShape", ["wanted"], ["filled"]),
        helper.make_node("ReduceSum", ["filled"], ["sum"], keepdims=0),
        helper.make_node("Mul", ["counted_all", "zero"], ["nothing"]),
        helper.make_node("Add", ["sum", "nothing"], ["less"]),
        helper.make_node("Add", ["x", "less"], ["scores"]),
    ]
    weights = [
        helper.make_tensor("first", number, [], [0]),
        helper.make_tensor("second", number, [1], [1]),
        helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0]),
        helper.make_tensor("one", TensorProto.FLOAT, [], [1.0]),
    ]
    graph = helper.make_graph(
        nodes,
        "mischief",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["nodes", 2])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["nodes", 2])],
        weights,
    )
    save(graph, path)
    return path


def save(graph: onnx.GraphProto, path: Path, *, opset: int = 18, domains: Sequence[str] = ()) -> Path:
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def write_linear(path: Path, weights: np.ndarray) -> Path:
    """A program of `x` alone, whose scores are `x` times the weights, float32 [columns, classes]."""
    columns, classes = weights.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["scores"])],
        "linear",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["nodes", columns])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["nodes", classes])],
        [numpy_helper.from_array(weights, "weights")],
    )
    return save(graph, path)

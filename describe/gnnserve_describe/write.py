"""The folder: everything is written beside it under another name, and then given its own."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from gnnserve_api.errors import InputError, StorageError
from gnnserve_api.files.layer_fields import layer_fields
from gnnserve_api.files.layers import LayersManifest
from gnnserve_api.files.programs import ProgramManifest
from gnnserve_describe.expected import ExpectedNodeScores
from gnnserve_describe.layers.module import GraphPlaces
from gnnserve_describe.scored import DescribedItems, DescribedTask

PROGRAM, EXPECTED, WEIGHTS, MANIFEST = "model.onnx", "expected.npz", "model.safetensors", "manifest.yaml"
DECODER = "decoder.safetensors"
LAYERS, LAYERS_MANIFEST = "layers.safetensors", "manifest-layers.yaml"
"""Weights of a network that was read into layers, and the manifest that serves these in place of the program."""
_EXPECTED_BLOCK = {"uri": EXPECTED, "scores": "Logits", "tolerancePermille": 0.01}
FULL_NEIGHBOURHOOD = -1
"""Fan-out of a layer that reads all neighbours."""


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `folder` at the end, or is removed."""
    check_new(folder)
    parent = folder.absolute().parent
    try:
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=parent))
    except OSError as error:
        raise _cannot_write(folder, error) from error
    try:
        yield made
        # Modes of mkdtemp and of safetensors' save_file let no other user read what they make.
        mask = _umask()
        made.chmod(0o777 & ~mask)
        for file in made.iterdir():
            file.chmod(0o666 & ~mask)
        os.rename(made, folder)  # noqa: PTH104 - fails where the folder has come into being meanwhile
    except OSError as error:
        raise _cannot_write(folder, error) from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def check_new(folder: Path) -> None:
    if folder.exists():
        raise InputError("--out", f"{str(folder)!r} exists", "name a new folder, or remove it")
    if not folder.absolute().parent.is_dir():
        raise InputError("--out", f"{str(folder.parent)!r} is no folder", "make it, or name a folder in another one")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _cannot_write(folder: Path, error: OSError) -> StorageError:
    return StorageError(
        folder, f"cannot be written: {error.strerror or error}", "make room, or name another folder by --out",
        on_command_line="run it where you may write", in_cluster="mount a volume that may be written",
    )  # fmt: skip


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ids_of(given: Any, nodes: int) -> np.ndarray:
    """Ids of all nodes, int64 or texts, each once."""
    try:
        found = given.detach().cpu().numpy() if torch.is_tensor(given) else np.asarray(given)
    except ValueError:  # rows of different lengths
        found = np.asarray(list(given), object)
        found = found.reshape(-1, 1)
    if found.dtype.kind == "O":
        found = np.array([str(each) for each in found])
    if found.shape != (nodes,) or found.dtype.kind not in "iuU":
        raise InputError(
            "--ids", f"they are {found.dtype} {list(found.shape)}, and {nodes:,} nodes are scored",
            "give an integer or a text for each node, in the order of the rows of its features",
        )  # fmt: skip
    if len(np.unique(found)) < nodes:
        raise InputError("--ids", "some are there more than once", "give each node an id of its own")
    return found if found.dtype.kind == "U" else found.astype(np.int64)


def write_expected(
    expected: Sequence[ExpectedNodeScores],
    ids: np.ndarray | None,
    pairs: Mapping[str, np.ndarray],
    scored: DescribedItems,
    path: Path,
) -> None:
    """`expected`: of the nodes that are scored; of links the first and the second nodes, which are called by their
    types where they have any. `pairs`: as `DescribedTask` has them."""

    def names_of(nodes: np.ndarray, kind: str) -> np.ndarray:
        if told := scored.type_told(kind):
            return np.array([f"{told}/{node}" for node in nodes])
        return nodes if ids is None else ids[nodes]

    arrays = {
        "nodes": np.concatenate([names_of(each.nodes, each.type) for each in expected]),
        "scores": np.concatenate([each.scores for each in expected]),
        **pairs,
    }
    if "pairs" in pairs:
        ends = zip(pairs["pairs"].T, (expected[0], expected[-1]), strict=True)
        arrays["pairs"] = np.stack([names_of(nodes, end.type) for nodes, end in ends], axis=1)
    np.savez(path, allow_pickle=False, **arrays)


def write_weights(module: torch.nn.Module, path: Path) -> None:
    """All tensors of the module's state; those that share memory each by themselves."""
    write_tensors({name: each for name, each in module.state_dict().items() if torch.is_tensor(each)}, path)


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    save_file({name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}, path)


def program_model(program: ProgramManifest, judged: DescribedTask) -> dict[str, Any]:
    """`spec.model` of a manifest that serves the program; its relative paths begin in its folder."""
    told = msgspec.to_builtins(program)
    file = told.pop("file")
    told["inputs"] = [
        {name: value for name, value in each.items() if name != "relation" or value["name"]} for each in told["inputs"]
    ]
    return {"program": {"uri": file, **told, **_decoder_of(judged)}, "expected": _EXPECTED_BLOCK}


def layers_model(layers: LayersManifest, places: GraphPlaces, judged: DescribedTask) -> dict[str, Any]:
    """`spec.model` of a manifest that serves layers."""
    fanouts = [FULL_NEIGHBOURHOOD] * layers.hops or [0]
    return {
        "checkpoint": {"uri": LAYERS, **_decoder_of(judged)},
        **layer_fields(layers, places.types, places.relations),
        "fanouts": fanouts,
        "expected": _EXPECTED_BLOCK,
    }


def _decoder_of(judged: DescribedTask) -> dict[str, Any]:
    return {"decoder": {"uri": DECODER}} if judged.weights else {}


def name_of_service(name: str) -> str:
    """A name that Kubernetes takes: lower case, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:50].rstrip("-") or "model"


def write_manifest(
    model: Mapping[str, Any],
    judged: DescribedTask,
    name: str,
    source: Mapping[str, Any] | None,
    told: Sequence[str],
    path: Path,
) -> None:
    """`model`: what `program_model` or `layers_model` gives."""
    spec: dict[str, Any] = {} if source is None else {"graph": {"source": source}}
    if judged.task:
        spec["task"] = judged.task
    document = {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": name_of_service(name)},
        "spec": spec | {"model": model},
    }
    lines = ["Written by gnnserve-describe."]
    if source is None:
        lines.append("Add spec.graph.source, the graph that the expected scores are of (docs/data.md).")
    # Names of the user's tensors may have any character, and a comment ends with its line.
    header = "".join(f"# {' '.join(line.split())}\n" for line in [*lines, *told])
    path.write_text(header + _yaml_of(document))


def _yaml_of(document: Mapping[str, Any]) -> str:
    """Parts that are there twice are written twice, and not as an anchor."""
    plain = msgspec.json.decode(msgspec.json.encode(document))
    return yaml.safe_dump(plain, sort_keys=False, default_flow_style=None, width=110)

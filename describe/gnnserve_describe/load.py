"""Objects that a command line names: `file.py:object`, `package.module:object`, or a graph's file."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gnnserve_api.errors import InputError
from gnnserve_describe.blame import blame_of

_HOW = "write it as file.py:object or package.module:object, as in train.py:model"


def load_model(named: str) -> tuple[torch.nn.Module, Any]:
    """The module, and its example inputs where a function gives them too."""
    found = load_object("MODULE", named)
    module, example = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            "MODULE", f"{named} is a {type(module).__name__}, no torch.nn.Module",
            "name a module, or a function without arguments that builds it, loads its weights and returns it, or "
            "(module, example inputs)",
        )  # fmt: skip
    return module, example


def load_decoder(named: str) -> torch.nn.Module:
    found = load_object("--decoder", named)
    if not isinstance(found, torch.nn.Module):
        raise InputError(
            "--decoder", f"{named} is a {type(found).__name__}, no torch.nn.Module",
            "name a module, or a function without arguments that makes it; for a dot product give --links alone",
        )  # fmt: skip
    return found


def load_object(where: str, named: str) -> Any:
    """An object, or what a function without arguments returns."""
    return _called(where, named, _object(where, named))


def load_graph(named: str, *, is_trusted: bool = False) -> Any:
    suffix = Path(named).suffix
    if suffix in _READERS:
        path = Path(named).expanduser()
        if not path.is_file():
            raise InputError("--graph", f"{named} is no file", "correct the path")
        return _READERS[suffix](path, is_trusted)
    return load_object("--graph", named)


def _object(where: str, named: str) -> Any:
    place, colon, name = named.rpartition(":")
    if not colon or not place or not name:
        raise InputError(where, f"{named!r} names no object", _HOW)
    module = _of_file(where, Path(place)) if place.endswith(".py") else _of_package(where, place)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(where, f"{place} has no {name!r}", f"name one of: {', '.join(_own(module)) or 'nothing'}")
        found = getattr(found, part)
    return found


def _own(module: Any) -> list[str]:
    """Names of what a module makes itself, without what it imports."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and not inspect.ismodule(value)
        and (not (inspect.isclass(value) or inspect.isroutine(value)) or value.__module__ == module.__name__)
    ]


def _of_file(where: str, path: Path) -> Any:
    """Import it by its name, as a file beside it would."""
    if not path.is_file():
        raise InputError(where, f"{path} is no file", "correct the path")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _run(where, str(path), lambda: importlib.import_module(path.stem))
    if Path(getattr(module, "__file__", None) or "").resolve() != path.resolve():
        raise InputError(
            where, f"{path} has the name of another module, {getattr(module, '__file__', None) or path.stem}",
            "give the file another name",
        )  # fmt: skip
    return module


def _of_package(where: str, name: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return _run(where, name, lambda: importlib.import_module(name))


def _called(where: str, named: str, found: Any) -> Any:
    """What a function without arguments, or a class, makes; other objects as they are."""
    is_class = inspect.isclass(found)
    if not (is_class or inspect.isroutine(found)):
        return found
    required = [
        each.name
        for each in inspect.signature(found).parameters.values()
        if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    ]
    if required:
        what = "class" if is_class else "function"
        raise InputError(
            where, f"{named} is a {what} that needs arguments: {', '.join(required)}",
            "write a function without arguments that makes it, loads its weights (load_state_dict) and returns it, and "
            "name that",
        )  # fmt: skip
    return _run(where, named, found)


def _run(where: str, named: str, call: Any) -> Any:
    try:
        with _without_arguments(named), warnings.catch_warnings():
            # torch_geometric 2.8 calls torch.jit.script while it is imported, which torch 2.15 deprecates.
            warnings.filterwarnings("ignore", message="`torch.jit.script` is deprecated", category=FutureWarning)
            return call()
    except InputError:
        raise
    except SystemExit as error:
        raise InputError(
            where, f"{named} ends the program (sys.exit, with {error.code!r}) when it is imported or called",
            'put what reads the command line, and what trains, under if __name__ == "__main__":',
        ) from error  # fmt: skip
    except Exception as error:
        line = blame_of(error)
        raise InputError(
            where, f"{named} fails with {type(error).__name__}: {error}" + (f" (at {line})" if str(line) else ""),
            "mend it; it must run by itself in this environment",
        ) from error  # fmt: skip


@contextmanager
def _without_arguments(named: str) -> Iterator[None]:
    """Within it a script that reads the command line takes its defaults, and not the arguments of this program."""
    before = sys.argv
    sys.argv = [named]
    try:
        yield
    finally:
        sys.argv = before


# Files of graphs


def _read_saved(path: Path, is_trusted: bool) -> Any:
    try:
        with torch.serialization.safe_globals(_graph_classes()):
            found = torch.load(path, weights_only=not is_trusted)
    except Exception as error:
        if is_trusted:
            raise InputError(
                "--graph", f"{path} cannot be read: {error}", "save it by torch.save(data, path)"
            ) from error
        raise InputError(
            "--graph", f"{path} holds Python objects, which may run code when they are read",
            "if you trust the file, add --trust; or name a function that makes the graph, file.py:function",
        ) from error  # fmt: skip
    # Data sets of torch_geometric are (data, slices) in files.
    return found[0] if isinstance(found, tuple) else found


def _graph_classes() -> list[Any]:
    """Classes that torch_geometric's graphs are made of, where it is there; they run no code of a file's."""
    found: list[Any] = []
    for name in ("data", "hetero_data", "storage", "graph_store", "feature_store"):
        with suppress(ImportError):
            module = importlib.import_module(f"torch_geometric.data.{name}")
            found += [each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__]
    return [each for each in found if inspect.isclass(each)]


def _read_npz(path: Path, is_trusted: bool) -> Any:
    """gnnserve's own file of one type (docs/data.md), as `data.x`, `data.edge_index`, …"""
    del is_trusted
    with np.load(path, allow_pickle=False) as arrays:
        missing = [name for name in ("indptr", "indices", "features") if name not in arrays]
        if missing:
            raise InputError("--graph", f"{path} has no array {missing[0]}", "write it as docs/data.md says")
        indptr, indices = arrays["indptr"].astype(np.int64), arrays["indices"].astype(np.int64)
        targets = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        found = {
            "x": torch.from_numpy(arrays["features"].astype(np.float32)),
            "edge_index": torch.from_numpy(np.stack([indices, targets])),
        }
        for name, told in (("labels", "y"), ("edge_attr", "edge_attr"), ("edge_time", "edge_time")):
            if name in arrays:
                found[told] = torch.from_numpy(arrays[name])
    return found


_READERS = {".pt": _read_saved, ".pth": _read_saved, ".npz": _read_npz}

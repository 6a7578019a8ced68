"""The peers' environments: what they need contradicts each other and gnnserve, so each has its own under
`~/.cache/gnnserve/peers`, built once by uv.

An environment is complete when `complete.json` in it says what was asked for; anything else is (re)built, which costs a
second where all packages are there already.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path.home() / ".cache/gnnserve/peers"
UV = Path.home() / ".cache/gnnserve/uv/bin/uv"
_MARKER = "complete.json"
_COMPILED = ("torch-sparse==0.6.18", "torch-scatter==2.1.2")
"""torch_geometric's sampler. PyPI has no wheel for a current torch: 15 to 25 minutes of compiling, once."""


@dataclass(frozen=True, slots=True)
class Environment:
    name: str
    packages: tuple[str, ...]
    python: str = "3.11"
    samples_with_pyg: bool = False

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    def executable(self, name: str) -> str:
        return str(self.folder / "bin" / name)


_TORCH = ("torch==2.13.0", "torch_geometric==2.8.1", "orjson", "scipy", "setuptools", "wheel")
_UVICORN = ("fastapi", "uvicorn", "uvloop", "httptools")

PYG = Environment("pyg", (*_TORCH, "numpy", *_UVICORN), samples_with_pyg=True)
TRITON = Environment(
    "triton",
    (*_TORCH, "numpy==1.26.4", "nvidia-pytriton==0.7.0"),
    # pytriton's stub embeds an older libpython: with the standard library of 3.11.7 it dies, with Debian's 3.11.2 not.
    python="/usr/bin/python3.11",
    samples_with_pyg=True,
)
GRAPHBOLT = Environment(
    "graphbolt",
    ("torch==2.1.2", "torchdata==0.7.1", "numpy<2", "dgl==2.1.0", "pyyaml", "pydantic", "pandas", "orjson", "psutil",
     "scipy", "setuptools<70", *_UVICORN),
)  # fmt: skip
LITSERVE = Environment("litserve", (*_TORCH, "litserve==0.2.19"), samples_with_pyg=True)
RAY = Environment("ray", (*_TORCH, "ray[serve]==2.60.0"), samples_with_pyg=True)
MLSERVER = Environment("mlserver", (*_TORCH, "mlserver==1.7.1"), samples_with_pyg=True)
BENTOML = Environment("bentoml", (*_TORCH, "bentoml==1.4.39"), samples_with_pyg=True)


def build(environment: Environment) -> None:
    """RuntimeError with uv's last words where it cannot be built. PYG first: others copy what was compiled for it."""
    wanted = [environment.python, *environment.packages, *(_COMPILED if environment.samples_with_pyg else ())]
    marker = environment.folder / _MARKER
    if marker.is_file() and json.loads(marker.read_text()) == wanted:
        return
    print(f"building the environment of {environment.name} in {environment.folder}", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    if not environment.folder.is_dir():
        _uv("venv", "--quiet", "--python", environment.python, str(environment.folder))
    python = environment.executable("python")
    _uv("pip", "install", "--quiet", "--python", python, *environment.packages)
    if environment.samples_with_pyg:
        _compile(python) if environment is PYG else _copy_compiled(environment)
    marker.write_text(json.dumps(wanted))


def _compile(python: str) -> None:
    print("compiling torch-sparse and torch-scatter: 15 to 25 minutes, once", flush=True)
    # -g0: what is compiled here is not debugged.
    from_source = [argument for package in _COMPILED for argument in ("--no-binary", package.partition("=")[0])]
    _uv(
        "pip", "install", "--python", python, "--no-build-isolation", *from_source, *_COMPILED,
        FORCE_ONLY_CPU="1", CFLAGS="-g0", MAX_JOBS=str(len(os.sched_getaffinity(0))),
        PATH=f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip


def _copy_compiled(environment: Environment) -> None:
    """The same interpreter and torch: uv would compile them again for every environment."""
    packages = Path("lib/python3.11/site-packages")
    for pattern in ("torch_sparse*", "torch_scatter*"):
        for source in (PYG.folder / packages).glob(pattern):
            shutil.copytree(source, environment.folder / packages / source.name, dirs_exist_ok=True)


def _uv(*arguments: str, **variables: str) -> None:
    done = subprocess.run(
        [str(UV), *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"uv {' '.join(arguments[:2])} ended with {done.returncode}: {done.stderr[-800:].strip()}")


def versions(environment: Environment) -> dict[str, str]:
    """Versions of the packages that are requested by name."""
    listed = subprocess.run(
        [str(UV), "pip", "list", "--format=json", "--python", environment.executable("python")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    installed = {package["name"]: package["version"] for package in json.loads(listed.stdout)}
    asked = [_name(package) for package in (*environment.packages, *_COMPILED)]
    return {name: installed[name] for name in asked if name in installed}


def _name(requirement: str) -> str:
    for mark in "=<>[":
        requirement = requirement.partition(mark)[0]
    return requirement.replace("_", "-")

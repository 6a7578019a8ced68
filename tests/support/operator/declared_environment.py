"""An environment that holds what an extra of `pyproject.toml` requires, and nothing else of what is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[3]
_OWN_FOLDERS = ("crds", "operator", "worker", "client", "describe", "cli")


def declared_requirements(extra: str, root: Path = ROOT) -> list[Requirement]:
    """Requirements of the package itself, of an extra and of those that it includes, as `pyproject.toml` declares
    them."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found: list[Requirement] = []
    for line in (*project["dependencies"], *project["optional-dependencies"][extra]):
        wanted = Requirement(line)
        included = sorted(wanted.extras) if wanted.name == project["name"] else ()
        found += [one for name in included for one in declared_requirements(name, root)] if included else [wanted]
    return found


def required_distributions(extra: str, root: Path = ROOT) -> dict[str, metadata.Distribution]:
    """Distributions that are installed with the extra, by name: what it requires, and what these require in turn."""
    found: dict[str, metadata.Distribution] = {}
    waiting = declared_requirements(extra, root)
    while waiting:
        wanted = waiting.pop()
        name = wanted.name.lower().replace("_", "-")
        if name in found:
            continue
        found[name] = distribution = metadata.distribution(name)
        waiting += _needed_by(distribution, wanted.extras)
    return found


def _needed_by(distribution: metadata.Distribution, extras: set[str]) -> Iterator[Requirement]:
    for line in distribution.requires or ():
        needed = Requirement(line)
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            yield needed


@cache
def link_declared(extra: str, folder: Path, root: Path = ROOT) -> None:
    """Link in `folder` the packages that the extra requires, in the checkout at `root`."""
    for distribution in required_distributions(extra, root).values():
        tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in {"..", "__pycache__"}}
        for top in tops:
            target = Path(str(distribution.locate_file(top)))
            if not (folder / top).exists():
                (folder / top).symlink_to(target)


def run_declared(
    extra: str, folder: Path, program: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Python program where only the extra is installed; `folder` is empty, or such a program's."""
    link_declared(extra, folder)
    own = (str(ROOT / name) for name in _OWN_FOLDERS)
    variables = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join((str(folder), *own))}
    # -S: without the packages of this interpreter's own environment.
    command = [sys.executable, "-S", "-c", program]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)

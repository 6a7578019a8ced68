"""Writes a result with what is needed to judge it: machine, versions, commit, date.

Nothing is imported that is measured: versions come from package metadata.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"
_PACKAGES = (
    "numpy",
    "numba",
    "torch",
    "torch-geometric",
    "triton",
    "uvicorn",
    "granian",
    "httptools",
    "uvloop",
    "msgspec",
)


def write_result(name: str, quick: bool, body: Mapping[str, Any], folder: Path = FOLDER) -> Path:
    """A quick run proves that the benchmark works; its file says so, and is not for committing."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.json"
    result = {
        "benchmark": name,
        **({"quick": True} if quick else {}),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), **_versions()},
        **body,
    }
    file.write_text(json.dumps(result, indent=2) + "\n")
    print(f"wrote {os.path.relpath(file)}")
    return file


def describe_machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cpu": model, "cores": len(os.sched_getaffinity(0)), "memoryGiB": round(memory_bytes / 2**30, 1)}


def _versions() -> dict[str, str]:
    installed = {distribution.name.lower() for distribution in importlib.metadata.distributions()}
    return {package: importlib.metadata.version(package) for package in _PACKAGES if package in installed}


def commit() -> dict[str, Any]:
    """`dirty`: the figures belong to the commit with changes on top."""
    try:
        commit = _git("rev-parse", "HEAD")
        # Results are not measured: one that is written in parts makes nothing dirty.
        changed = _git("status", "--porcelain", "--", ":(top)", ":(top,exclude)benchmarks/results")
        return {"id": commit, "dirty": bool(changed)}
    except (OSError, subprocess.CalledProcessError):
        return {"id": None, "dirty": True}


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    return done.stdout.strip()

"""Kernels for the tests, compiled once for each version of their sources: `python -m tools.kernels`.

Compiling them takes minutes, and three would do it: the worker's image, the test of what compiles for it, and every
process of the unit tier, one kernel after another. Tests and their images stay on this machine, so that they need the
level of its processor alone; what users get is compiled for all. What is compiled is kept under
`~/.cache/gnnserve/kernels`, where the next clone finds it, and lies beside the sources, where tests find it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

from gnnserve_worker import compile_kernels
from gnnserve_worker.kernel_cache import PACKAGE, level, source_stamp

KEPT = Path.home() / ".cache" / "gnnserve" / "kernels"
_VERSIONS = 4
"""Versions of the sources whose compiled kernels are kept, 20 MB each."""


def kept_here() -> Path:
    """The folder of the kernels of these very sources, laid out as the worker's package; it may not exist."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("numba", "llvmlite", "numpy")]
    key = "\0".join((source_stamp().hex(), *versions, sysconfig.get_platform(), sys.version, str(level())))
    return KEPT / hashlib.sha256(key.encode()).hexdigest()[:16]


def copy_kernels(source: Path, target: Path) -> int:
    """Copy compiled kernels from one layout of the package to another; how many files."""
    found = [path for path in sorted(source.rglob("*.nb[cim]")) if path.parent.name == "__pycache__"]
    for path in found:
        copied = target / path.relative_to(source)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    return len(found)


def keep(source: Path, folder: Path) -> None:
    """Keep the package's kernels as `folder`, all or none, and forget the oldest beyond `_VERSIONS`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unfinished-") as made:
        copy_kernels(source, Path(made) / "package")
        shutil.rmtree(folder, ignore_errors=True)
        (Path(made) / "package").rename(folder)
    versions = sorted(
        (path for path in folder.parent.iterdir() if path.is_dir()), key=lambda path: path.stat().st_mtime
    )
    for old in versions[:-_VERSIONS]:
        shutil.rmtree(old, ignore_errors=True)


def main() -> int:
    argparse.ArgumentParser(prog="python -m tools.kernels", description=__doc__).parse_args()
    folder = kept_here()
    if copy_kernels(folder, PACKAGE):
        print(f"{PACKAGE} has the kernels that {folder} keeps")
        return 0
    print("compiling kernels ahead: minutes, once for each version of their sources", flush=True)
    # Of sources that were there before; numba would write new files beside them.
    for path in PACKAGE.rglob("*.nb[cim]"):
        path.unlink()
    if code := compile_kernels.main(["--own-level"]):
        return code
    keep(PACKAGE, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

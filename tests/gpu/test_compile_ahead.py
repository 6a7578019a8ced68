"""Kernels that an image brings compiled, for cards that are not there: a process that has them compiles none."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gnnserve_worker.gpu.kernels.bounds import ARCHITECTURES
from gnnserve_worker.gpu.shipped_kernels import SHIPPED, folder_of, link_shipped

ROOT = Path(__file__).resolve().parents[2]


def _run(*arguments: str) -> str:
    """What a Python program prints that compiles kernels, and does not interpret them."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _compile(folder: Path) -> str:
    """The smallest network there is, on one architecture, as an image is built."""
    return _run(
        "-m", "gnnserve_worker.gpu.compile_ahead", str(folder), "--architectures", "90", "--networks", "GIN",
        "--hidden", "8", "--fanouts", "2", "--storages", "float32",
    )  # fmt: skip


_AGAIN = """
import sys
from pathlib import Path

from gnnserve_api.spec.model import Architecture
from gnnserve_api.variants import Storage
from gnnserve_worker.gpu.compile_ahead import KernelTargets, compile_for

compile_for(90, Path(sys.argv[1]), KernelTargets((Architecture.GIN,), 8, (2,), (Storage.FLOAT32,), None))
"""
"""The network of `_compile`, in the process itself."""


def test_what_was_compiled_ahead_is_found_by_a_process_whose_own_folder_is_empty(tmp_path: Path) -> None:
    image, pod = tmp_path / "image", tmp_path / "pod"
    said = _compile(image)
    shipped = sorted(entry.name for entry in folder_of(90, image).iterdir())
    assert said.startswith(f"sm_90: {len(shipped)} kernels of ")
    kernels = {path.stem for path in image.rglob("*.cubin")}
    assert {"_sample_hop", "_gather"} <= kernels

    assert link_shipped(90, folder_of(90, pod), image) == len(shipped)
    _run("-c", _AGAIN, str(pod))

    entries = list(folder_of(90, pod).iterdir())
    assert sorted(entry.name for entry in entries) == shipped, "nothing was compiled beside"
    assert all(entry.is_symlink() for entry in entries)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    for architecture in (80, 90):
        entry = folder_of(architecture, tmp_path / "image") / f"KEY{architecture}"
        entry.mkdir(parents=True)
        (entry / "kernel.cubin").write_text("code")
    return tmp_path / "image"


def test_only_kernels_of_the_cards_own_architecture_are_linked_and_once(image: Path, tmp_path: Path) -> None:
    assert link_shipped(90, tmp_path / "cache", image) == 1
    assert link_shipped(90, tmp_path / "cache", image) == 0

    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == ["KEY90"]
    assert (tmp_path / "cache" / "KEY90" / "kernel.cubin").read_text() == "code"


def test_a_card_of_another_architecture_has_nothing_linked(image: Path, tmp_path: Path) -> None:
    assert link_shipped(89, tmp_path / "cache", image) == 0
    assert not (tmp_path / "cache").exists()


def test_what_a_worker_has_compiled_itself_stays(image: Path, tmp_path: Path) -> None:
    (tmp_path / "cache" / "KEY90").mkdir(parents=True)

    assert link_shipped(90, tmp_path / "cache", image) == 0
    assert not (tmp_path / "cache" / "KEY90").is_symlink()


def test_where_nothing_can_be_linked_kernels_are_compiled_as_without(
    image: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").write_text("no folder")

    assert link_shipped(90, tmp_path / "cache", image) == 0
    assert "are compiled again, since" in caplog.text


def test_the_image_puts_kernels_where_a_worker_looks_for_them() -> None:
    (target,) = re.findall(r"gnnserve_worker\.gpu\.compile_ahead (\S+)", (ROOT / "Dockerfile").read_text())

    assert target == str(Path("/app") / SHIPPED.relative_to(ROOT / "worker"))
    assert ARCHITECTURES == (80, 90, 100)

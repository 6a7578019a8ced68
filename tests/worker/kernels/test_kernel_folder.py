"""Folders of compiled kernels: what others could have written is not read, since reading it runs code."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.gpu.kernel_source import ONES, Source, kernel_root, source
from tests.support.lacks import needs_root

from gnnserve_worker import kernel_folder
from gnnserve_worker.kernel_folder import can_be_written, folder_for, folder_name, make, why_distrusted

__all__ = ["kernel_root", "source"]

STRANGER = 12345
AS_ROOT = needs_root("only root can give files away")


class Harmful:
    """A pickle that runs code as it is read: it makes a folder."""

    def __init__(self, told: Path) -> None:
        self.told = told

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.told),)


@pytest.mark.parametrize(
    ("give_away", "reason"),
    [
        pytest.param(lambda index: index.chmod(0o666), "can be written by everyone", id="a file of everyone's"),
        pytest.param(lambda index: index.chmod(0o664), "can be written by group", id="a file of a group's"),
        pytest.param(lambda index: index.parent.chmod(0o777), "can be written by everyone", id="a folder"),
        pytest.param(lambda index: index.parent.parent.chmod(0o777), "can be written by everyone", id="above"),
        pytest.param(lambda index: os.chown(index, STRANGER, 0), "belongs to user", id="a stranger's", marks=AS_ROOT),
        pytest.param(
            lambda index: os.chown(index.parent, STRANGER, 0), "belongs to user", id="in a stranger's", marks=AS_ROOT
        ),
    ],
)
def test_what_others_could_have_written_is_not_read_but_compiled_elsewhere(
    give_away: Callable[[Path], None],
    reason: str,
    source: Source,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    source.compiles(ONES)
    (index,) = source.kept()[0].parent.glob("*.nbi")
    index.write_bytes(pickle.dumps(Harmful(tmp_path / "run")))
    give_away(index)

    assert source.compiles(ONES)
    assert not source.compiles(ONES)

    assert not (tmp_path / "run").exists()
    assert reason in caplog.text
    assert source.kept()[0].is_relative_to(tmp_path / "home")


def test_reading_kernels_runs_code(source: Source, tmp_path: Path) -> None:
    """That is why they are not read from everywhere; should this fail, numba's files are pickles no longer."""
    source.compiles(ONES)
    (index,) = source.kept()[0].parent.glob("*.nbi")
    index.write_bytes(pickle.dumps(Harmful(tmp_path / "run")))
    assert source.compiles(ONES)
    assert (tmp_path / "run").exists()


def test_what_is_made_under_a_lax_umask_can_be_written_by_this_user_alone(source: Source) -> None:
    before = os.umask(0)
    try:
        source.compiles(ONES)
    finally:
        os.umask(before)
    folder = source.kept()[0].parent
    assert why_distrusted(folder) is None
    assert [oct(path.stat().st_mode & 0o022) for path in (folder.parent, folder, *folder.iterdir())] == ["0o0"] * 4
    assert not source.compiles(ONES)


def test_folder_below_one_of_everyone_is_trusted_where_others_cannot_replace_it(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    make(tmp_path / "shared/own")
    assert why_distrusted(tmp_path / "shared/own") is None
    (tmp_path / "shared").chmod(0o777)
    assert why_distrusted(tmp_path / "shared/own") == f"{tmp_path}/shared can be written by everyone"


@AS_ROOT
def test_kernels_of_an_image_are_roots_and_every_user_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    name = folder_name("of an image")
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are closed to others
        image = Path(folder)
        image.chmod(0o755)
        make(image / name)
        monkeypatch.setattr(kernel_folder, "SHIPPED", image)
        os.setresuid(STRANGER, STRANGER, 0)
        try:
            assert folder_for("of an image") == image / name
            assert not can_be_written(image / name)
        finally:
            os.setresuid(0, 0, 0)


@AS_ROOT
def test_user_without_a_home_that_it_may_enter_has_no_folder(
    kernel_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR")
    kernel_root.parent.chmod(0o700)
    os.setresuid(STRANGER, STRANGER, 0)
    try:
        assert folder_for("of another user") is None
    finally:
        os.setresuid(0, 0, 0)


def test_link_in_the_folder_is_not_followed(tmp_path: Path) -> None:
    make(tmp_path / "own")
    (tmp_path / "own/index.nbi").symlink_to(tmp_path / "elsewhere")
    assert why_distrusted(tmp_path / "own") == f"{tmp_path}/own/index.nbi is a link"


def test_folder_that_is_not_there_yet_is_made_by_this_user(tmp_path: Path) -> None:
    assert why_distrusted(tmp_path / "new/own") is None
    make(tmp_path / "new/own")
    assert (tmp_path / "new/own").is_dir()

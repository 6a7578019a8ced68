"""Messages that depend on where a program runs, and as whom."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from gnnserve_api.errors import ResourceError, StorageError, remedy_of, words_in_cluster, words_on_command_line

FULL = StorageError("/r", "is full", "free some space", on_command_line="use --repository", in_cluster="let it grow")


def test_an_option_is_advised_where_there_is_a_command_line_and_a_field_in_a_cluster() -> None:
    assert words_on_command_line(FULL) == "/r: is full; free some space, or use --repository"
    assert words_in_cluster(FULL) == "/r: is full; free some space, or let it grow"
    assert words_in_cluster(ResourceError("x")) == words_on_command_line(ResourceError("x")) == "x"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_who_is_denied_is_told_as_whom_the_program_runs(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 65_532)
    monkeypatch.setattr(os, "getegid", lambda: 65_532)
    monkeypatch.setattr(os, "getgroups", lambda: [65_532])
    told = remedy_of(OSError(number, "Permission denied"), "check the path")
    assert told.startswith("this program runs as user 65532 and group 65532: give one of them the right")
    assert "fsGroup" in told
    assert remedy_of(OSError(errno.ENOENT, "No such file"), "check the path") == "check the path"


def test_who_is_denied_is_told_whose_the_path_is_and_in_which_further_groups_the_program_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1_000_680_000)
    monkeypatch.setattr(os, "getegid", lambda: 0)
    monkeypatch.setattr(os, "getgroups", lambda: [0, 1_000_680_000])
    tmp_path.chmod(0o750)
    owner = tmp_path.stat()
    # The folder is missing: the one above it is the one to change.
    told = remedy_of(PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "missing")), "check the path")
    assert told.startswith(
        f"this program runs as user 1000680000 and group 0 (and 1000680000), and {tmp_path} belongs to user "
        f"{owner.st_uid} and group {owner.st_gid} with mode 750: give one of them the right to it"
    )

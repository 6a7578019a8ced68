"""Messages that depend on where a program runs, and as whom."""

from __future__ import annotations

import errno
import os

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
    told = remedy_of(OSError(number, "Permission denied"), "check the path")
    assert told.startswith("this program runs as user 65532 and group 65532: give one of them the right")
    assert "fsGroup" in told
    assert remedy_of(OSError(errno.ENOENT, "No such file"), "check the path") == "check the path"

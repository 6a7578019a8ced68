"""Logs of both kinds, and the server of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.changes.logs import LogPlace, clear, postgres_place, sqlite_place
from tests.support.changes.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[LogPlace]:
    place = sqlite_place(tmp_path)
    yield place
    place.close()


@pytest.fixture
def postgres(server: PostgresServer, tmp_path: Path) -> Iterator[LogPlace]:
    place = postgres_place(server, tmp_path)
    yield place
    place.close()
    clear(server)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> LogPlace:
    """A log of each kind in turn."""
    found: LogPlace = request.getfixturevalue(request.param)
    return found

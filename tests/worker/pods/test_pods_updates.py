"""A worker pod's log of changes: where its environment says that it is, and what is told of its address."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnnserve_api.errors import InputError
from gnnserve_api.pods.routing import CredentialState
from gnnserve_worker.changes.address import read_address
from gnnserve_worker.changes.options import PostgresAddress, SqliteFile, UpdatesOptions
from gnnserve_worker.pods.log_environment import read_updates
from gnnserve_worker.serving.metrics.metrics import ServingMetrics
from gnnserve_worker.serving.security.credentials import Credentials, CredentialsInUse

COMMON = {"GNNSERVE_SERVICE_UID": "an-id", "GNNSERVE_MAX_DELTA": "1048576"}
SQLITE = {**COMMON, "GNNSERVE_SQLITE_LOG": "/var/lib/gnnserve/updates/log.sqlite"}
POSTGRES = {**COMMON, "GNNSERVE_POSTGRES_LOG": "/etc/gnnserve/log/uri"}
PASSWORD = "p%40ssword"  # noqa: S105
ADDRESS = f"postgresql://writer:{PASSWORD}@postgres.data:5432/gnnserve?sslmode=verify-full"


def test_without_words_about_it_there_is_none() -> None:
    assert read_updates({}) is None


def test_the_log_is_that_of_the_environment() -> None:
    sqlite, postgres = read_updates(SQLITE), read_updates(POSTGRES)
    assert sqlite == UpdatesOptions(SqliteFile(Path("/var/lib/gnnserve/updates/log.sqlite")), "an-id", 2**20)
    assert postgres == UpdatesOptions(PostgresAddress(Path("/etc/gnnserve/log/uri")), "an-id", 2**20)


REFUSED = [
    pytest.param({**SQLITE, **POSTGRES}, "are both set, and a service has one log", id="two logs"),
    pytest.param({**SQLITE, "GNNSERVE_SERVICE_UID": ""}, "GNNSERVE_SERVICE_UID: is not set", id="no uid"),
    pytest.param({**SQLITE, "GNNSERVE_SQLITE_LOG": ""}, "GNNSERVE_SQLITE_LOG: is not set", id="an empty path"),
    pytest.param({**SQLITE, "GNNSERVE_MAX_DELTA": "0"}, "GNNSERVE_MAX_DELTA: '0' is not a number", id="no room"),
    pytest.param({**SQLITE, "GNNSERVE_MAX_DELTA": "2Gi"}, "'2Gi' is not a number of bytes", id="a quantity"),
    pytest.param({"GNNSERVE_SQLITE_LOG": "/a"}, "GNNSERVE_SERVICE_UID: is not set", id="a log of no service"),
]


@pytest.mark.parametrize(("environ", "said"), REFUSED)
def test_what_no_operator_writes_is_refused(environ: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_updates(environ)


def test_an_address_is_read_without_the_line_break_behind_it(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    file.write_text(f"{ADDRESS}\n")
    assert read_address(file) == ADDRESS


BAD = [
    pytest.param(None, "cannot be read", id="missing"),
    pytest.param(b"", "is empty", id="empty"),
    pytest.param(b"\n", "is empty", id="a line break"),
    pytest.param(
        f"mysql://writer:{PASSWORD}@x/y".encode(), "is not the address of a PostgreSQL", id="another database"
    ),
    pytest.param(f"host=x password={PASSWORD}".encode(), "is not the address of a PostgreSQL", id="words for libpq"),
    pytest.param(f"{ADDRESS}\n{ADDRESS}".encode(), "has a blank or a line break", id="two lines"),
    pytest.param(f"{ADDRESS}\xe4".encode("latin-1"), "is not UTF-8 text", id="another encoding"),
    pytest.param(ADDRESS.encode() + b"x" * 5000, "has more than 4,096 bytes", id="too long"),
]


@pytest.mark.parametrize(("content", "said"), BAD)
def test_what_is_no_address_is_refused_and_not_shown(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "uri"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError) as refusal:
        read_address(file)
    assert str(refusal.value).startswith(f"{file}: {said}")
    assert PASSWORD not in str(refusal.value)


def test_a_pod_serves_without_the_address_tells_so_and_sees_it_come_and_go(tmp_path: Path) -> None:
    file = tmp_path / "uri"
    in_use = CredentialsInUse(Credentials(log_uri=file, waits=True), ServingMetrics("digits"))
    assert in_use.complete.is_set(), "requests are answered without it"
    (missing,) = in_use.states()
    assert (missing.kind, missing.is_usable) == ("log", True)
    assert missing.problem.startswith(f"{file}: cannot be read")
    file.write_text(ADDRESS)
    in_use.look(lambda act: act())
    assert in_use.states() == (CredentialState("log", is_usable=True),)
    file.unlink()
    in_use.look(lambda act: act())
    assert in_use.states() == (missing,), "what was read before is read anew for each connection"


def test_a_command_does_not_start_without_it(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        CredentialsInUse(Credentials(log_uri=tmp_path / "uri"), ServingMetrics("digits"))

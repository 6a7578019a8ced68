"""Several services by one command where the files of one are damaged, before the start or while it answers."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.support.machine import fork_server
from tests.support.machine.waiting import WAIT_S, until
from tests.support.pods.pods import answers_of, publish_answering

from gnnserve_api.manifest import load_manifest
from gnnserve_cli.exits import ExitCode

LABEL = 3
POLL_S = 0.02
MANIFEST = """\
apiVersion: gnnserve.dev/v1alpha1
kind: GNNService
metadata: {{name: {name}}}
spec: {{graph: {{source: {{builtin: Digits}}}}}}
"""


@dataclass(frozen=True, slots=True)
class Services:
    root: Path
    tables: dict[str, Path]
    manifests: list[Path]


@pytest.fixture
def services(tmp_path: Path) -> Services:
    manifests, tables = [], {}
    for name in ("first", "second"):
        manifests.append(tmp_path / f"{name}.yaml")
        manifests[-1].write_text(MANIFEST.format(name=name))
        recipe = load_manifest(manifests[-1]).spec.recipe()
        published = publish_answering(tmp_path / "repository", recipe, LABEL, name)
        folder = tmp_path / "repository/default" / name / "revisions" / published.revision
        tables[name] = folder / "tables/features-float32.npy"
        tables[name].chmod(0o644)
    return Services(tmp_path / "repository", tables, manifests)


def write_last_byte(path: Path, byte: bytes) -> bytes:
    """Returns the one before."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        before = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(byte)
    return before


@dataclass(frozen=True, slots=True)
class Server:
    process: fork_server.Process
    urls: dict[str, str]
    errors: list[str]

    def ready(self, name: str) -> tuple[int, str]:
        answer = httpx.get(f"{self.urls[name]}/readyz", timeout=WAIT_S)
        return answer.status_code, answer.text

    def wait_until_ready(self, name: str, status: int = 200) -> str:
        until_s = time.monotonic() + WAIT_S
        while (found := self.ready(name))[0] != status:
            assert time.monotonic() < until_s, found
            time.sleep(POLL_S)
        return found[1]

    def answers(self, name: str) -> bool:
        answer = httpx.post(f"{self.urls[name]}/v1/predict", json={"nodes": [0, 5]}, timeout=WAIT_S)
        return answer.status_code == 200 and answer.json()["labels"] == answers_of(LABEL, [0, 5])

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT_S)


@contextmanager
def serving(services: Services) -> Iterator[Server]:
    arguments = [*map(str, services.manifests), "--repository", str(services.root), "--port", "0"]
    with fork_server.started("gnnserve_cli", "serve", *arguments, stdout=True, stderr=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        reader = threading.Thread(target=errors.extend, args=(process.stderr,))
        reader.start()
        urls: dict[str, str] = {}
        try:
            for line in process.stdout:
                if found := re.search(r"erving (\w+) (?:yet: |on )(http://[0-9.:]+)", line):
                    urls[found[1]] = found[2]
                if line.startswith("Ctrl-C"):
                    break
            yield Server(process, urls, errors)
        finally:
            process.terminate()
            reader.join(WAIT_S)


def test_a_service_whose_files_are_damaged_keeps_no_other_from_being_served(services: Services) -> None:
    write_last_byte(services.tables["first"], b"\1")
    with serving(services) as server:
        assert set(server.urls) == {"first", "second"}
        assert server.answers("second")
        assert server.ready("second") == (200, "ok\n")
        why = server.wait_until_ready("first", 503)
        assert f"{services.tables['first']}: was altered" in why
        assert httpx.get(server.urls["first"], timeout=WAIT_S).status_code == 200, "its page shows what is wrong"
        assert server.end() == ExitCode.REPOSITORY
    assert any(line.startswith(f"error: first: {services.tables['first']}: was altered") for line in server.errors)


def test_it_answers_once_its_files_are_whole_and_is_withdrawn_when_they_are_written_over(services: Services) -> None:
    wrong = services.tables["first"]
    right = write_last_byte(wrong, b"\1")
    with serving(services) as server:
        server.wait_until_ready("first", 503)
        write_last_byte(wrong, right)
        server.wait_until_ready("first")
        assert server.answers("first")
        write_last_byte(wrong, b"\1")
        assert str(wrong) in server.wait_until_ready("first", 503)
        assert server.answers("second")
        write_last_byte(wrong, right)
        server.wait_until_ready("first")
        assert server.answers("first")
        assert server.end() == ExitCode.OK


def test_a_service_without_a_revision_keeps_no_other_from_being_served(services: Services) -> None:
    services.manifests[0].write_text(services.manifests[0].read_text().replace("name: first", "name: third"))
    with serving(services) as server:
        assert server.answers("second")
        assert "holds no published revision of default/third" in server.wait_until_ready("third", 503)
        assert server.end() == ExitCode.REPOSITORY


def test_where_none_can_be_served_the_command_ends(services: Services) -> None:
    for table in services.tables.values():
        write_last_byte(table, b"\1")
    arguments = [*map(str, services.manifests), "--repository", str(services.root), "--port", "0"]
    ended = fork_server.completed("gnnserve_cli", "serve", *arguments)
    assert ended.returncode == ExitCode.REPOSITORY
    for table in services.tables.values():
        assert str(table) in ended.stderr


def test_files_that_were_replaced_are_mapped_no_more_once_they_are_loaded_again(services: Services) -> None:
    with serving(services) as server:
        assert all(server.answers(name) for name in services.tables)
        before = {name: mappings(server, table) for name, table in services.tables.items()}
        for table in services.tables.values():
            copy = table.with_name("copy.npy")
            copy.write_bytes(table.read_bytes())
            copy.replace(table)
        for name, table in services.tables.items():
            until(lambda table=table: is_mapped(server, table), f"the table of {name} is loaded again")  # type: ignore[misc]
            until(
                lambda name=name, table=table: mappings(server, table) == before[name],  # type: ignore[misc]
                f"nothing keeps the first revision of {name}",
            )
        assert all(server.answers(name) for name in services.tables)


def mappings(server: Server, table: Path) -> int:
    """How often the folder of a table is mapped by the server, files that are gone from it included."""
    return Path(f"/proc/{server.process.pid}/maps").read_text().count(f" {table.parent}/")


def is_mapped(server: Server, table: Path) -> bool:
    """Whether it is mapped, and not one that was there before."""
    lines = Path(f"/proc/{server.process.pid}/maps").read_text().splitlines()
    return any(line.endswith(f" {table}") for line in lines)

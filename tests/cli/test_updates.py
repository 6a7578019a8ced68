"""`spec.updates` without a cluster: where the log of `gnnserve run` lies, whose it is, and what is said about it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.support.gpu.kernel_source import kernel_root, see_other_sources
from tests.support.profiles import revision_manifest

from gnnserve_api.device import CachePolicy, Device
from gnnserve_api.errors import InputError, RepositoryError
from gnnserve_api.files.graph_schema import NAMES_OF_TYPES, WITHOUT_NAMES, SchemaNames
from gnnserve_api.files.repository import PROGRAM
from gnnserve_api.spec.model import Architecture
from gnnserve_api.spec.service import GNNService
from gnnserve_cli import compiling
from gnnserve_cli.local_log import log_uid, own_uid, updates_of
from gnnserve_cli.server_options import choose_credentials, choose_device
from gnnserve_worker import compile_kernels
from gnnserve_worker.changes.options import PostgresAddress, SqliteFile
from gnnserve_worker.graph import living_lists
from gnnserve_worker.inference import rehearsal
from gnnserve_worker.kernel_cache import EVERYTHING, is_compiled, note_compiled
from gnnserve_worker.models import living_sums
from gnnserve_worker.models.registry import RELATIONAL
from gnnserve_worker.repository.repository import Repository

__all__ = ["kernel_root"]

SQLITE: dict[str, Any] = {"log": {"sqlite": {}}, "maxDelta": "3Mi"}
POSTGRES: dict[str, Any] = {"log": {"postgres": {"secretName": "digits-log"}}}


def service_of(updates: dict[str, Any] | None, **spec: Any) -> GNNService:
    graph = {"source": {"builtin": "Digits"}}
    return GNNService.model_validate(
        {
            "apiVersion": "gnnserve.dev/v1alpha1",
            "kind": "GNNService",
            "metadata": {"name": "digits", "namespace": "shop"},
            "spec": {"graph": graph, **({} if updates is None else {"updates": updates}), **spec},
        }
    )


def test_without_updates_there_is_no_log_and_nothing_is_written(tmp_path: Path) -> None:
    assert updates_of(service_of(None), Repository(tmp_path, "shop", "digits"), None) is None
    assert list(tmp_path.iterdir()) == []


def test_the_log_lies_in_the_repository_under_the_uid_that_the_first_start_made(tmp_path: Path) -> None:
    stored = Repository(tmp_path, "shop", "digits")
    options, again = (updates_of(service_of(SQLITE), stored, None) for _ in range(2))
    assert options is not None
    assert options == again
    assert options.log == SqliteFile(tmp_path / "shop" / "digits" / "updates" / options.uid / "log.sqlite")
    assert options.max_delta_bytes == 3 * 2**20
    other = updates_of(service_of(SQLITE), Repository(tmp_path / "other", "shop", "digits"), None)
    assert other is not None
    assert other.uid != options.uid


def test_two_servers_that_start_at_once_have_one_uid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second finds none, and the first has written its own by the time that it writes."""
    first = own_uid(tmp_path)
    monkeypatch.setattr(Path, "exists", lambda self, **_: False)
    assert own_uid(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["uid"]


def test_a_uid_that_was_overwritten_is_told(tmp_path: Path) -> None:
    own_uid(tmp_path)
    (tmp_path / "uid").chmod(0o644)
    (tmp_path / "uid").write_text("mine")
    with pytest.raises(RepositoryError, match="is not the uid that was written there; put back what was there"):
        own_uid(tmp_path)


def test_a_database_takes_the_place_of_the_file(tmp_path: Path) -> None:
    stored, uri = Repository(tmp_path, "shop", "digits"), tmp_path / "uri"
    for updates in (SQLITE, POSTGRES):
        options = updates_of(service_of(updates), stored, uri)
        assert options is not None
        assert options.log == PostgresAddress(uri)
        UUID(options.uid)


def notes_of(service: GNNService, capsys: pytest.CaptureFixture[str], **options: Path) -> list[str]:
    given = {"certificate": None, "key": None, "tokens": None, "write_tokens": None, "log_uri": None} | options
    choose_credentials(service, *given.values())
    return capsys.readouterr().err.splitlines()


def test_the_log_of_another_uid_may_be_adopted(tmp_path: Path) -> None:
    stored, earlier = Repository(tmp_path, "shop", "digits"), "f7b4c2a0-0000-4000-8000-000000000001"
    service = service_of({**SQLITE, "adopt": earlier})
    options = updates_of(service, stored, None)
    assert options is not None and options.uid == log_uid(service, stored) == earlier
    assert options.log == SqliteFile(tmp_path / f"shop/digits/updates/{earlier}/log.sqlite")
    assert not (tmp_path / "shop").exists(), "no uid is made that nothing is named by"


def test_what_a_laptop_has_in_place_of_a_secret_is_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    uri = tmp_path / "uri"
    uri.write_text("postgresql://a@b/c")
    service = service_of(POSTGRES)
    assert notes_of(service, capsys, write_tokens=tmp_path) == [
        "note: spec.updates.log.postgres names a Secret of a cluster: this server keeps changes in SQLite, in its "
        "repository; --postgres-uri-file would change that"
    ]
    assert notes_of(service, capsys, write_tokens=tmp_path, log_uri=uri) == []
    assert notes_of(service_of(SQLITE), capsys, write_tokens=tmp_path) == []
    assert notes_of(service_of(SQLITE), capsys) == [
        "note: this server takes no changes of the graph, since no token may write; --write-token-file names some"
    ]
    writers = service_of(SQLITE, endpoint={"writeTokens": {"secretName": "writing"}})
    (note,) = notes_of(writers, capsys)
    assert "this server takes no labels and no changes" in note


def test_an_address_that_cannot_be_used_is_told_before_anything_is_trained(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--postgres-uri-file: is given, and the manifest has no spec\.updates"):
        choose_credentials(service_of(None), None, None, None, None, tmp_path / "uri")
    with pytest.raises(InputError, match="cannot be read"):
        choose_credentials(service_of(SQLITE), None, None, None, None, tmp_path / "uri")


@pytest.mark.parametrize("updates", [None, SQLITE], ids=["a graph that stays", "one that changes"])
def test_servers_that_follow_changes_compute_on_the_device_that_others_do(updates: dict[str, Any] | None) -> None:
    assert choose_device(service_of(updates), None, None, None).device is Device.AUTO
    assert choose_device(service_of(updates), Device.GPU, CachePolicy.FIFO, None).device is Device.GPU


# What the first change needs


@dataclass
class Processes:
    """What a server starts beside itself to compile, and how each of them ends."""

    statuses: list[int]
    commands: SimpleQueue[list[str]] = field(default_factory=SimpleQueue)
    said: SimpleQueue[str] = field(default_factory=SimpleQueue)

    def run(self, command: list[str], **_: object) -> SimpleNamespace:
        self.commands.put(command)
        return SimpleNamespace(returncode=self.statuses.pop(0))

    def start_server(self, architecture: str = "GraphSAGE", names: SchemaNames = WITHOUT_NAMES) -> None:
        manifest = revision_manifest()
        network = msgspec.structs.replace(manifest.variants[0].network, architecture=architecture)
        variants = tuple(msgspec.structs.replace(one, network=network) for one in manifest.variants)
        loaded: Any = SimpleNamespace(
            manifest=msgspec.structs.replace(manifest, variants=variants),
            graph=SimpleNamespace(schema=SimpleNamespace(names=names)),
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(compiling.subprocess, "run", self.run)
            compiling.compile_for_changes(loaded, self.said.put)
            for thread in [one for one in threading.enumerate() if one.name == "compile"]:
                thread.join()


CHANGES = ["gnnserve_worker.compile_kernels", "--graph", "one-type", "--changes", "GraphSAGE", "features-float32"]


OF_CHANGES = compile_kernels.of_changes("one-type", "GraphSAGE", ["features-float32"])


@pytest.mark.parametrize("what", [None, EVERYTHING, OF_CHANGES])
@pytest.mark.usefixtures("kernel_root")
def test_what_changes_need_is_compiled_beside_the_server_where_it_is_not(what: str | None) -> None:
    processes = Processes([0])
    if what is not None:
        note_compiled(what)
    processes.start_server()
    assert processes.commands.qsize() == processes.said.qsize() == (what is None)
    if what is None:
        command = processes.commands.get()
        assert command[1:3] == ["-P", "-m"], "modules of the working folder are none of its own"
        assert command[3:] == CHANGES


@pytest.mark.usefixtures("kernel_root")
def test_a_compile_that_was_killed_is_begun_again_and_then_by_the_next_start() -> None:
    processes = Processes([-9, 0, -9, -9])
    processes.start_server()
    assert (processes.commands.qsize(), processes.said.qsize()) == (2, 1)
    processes.start_server()
    assert processes.commands.qsize() == 4
    *_, last = [processes.said.get() for _ in range(3)]
    assert "was ended 2 times before it was done (exit status -9)" in last


@pytest.mark.usefixtures("kernel_root")
def test_a_compile_that_ends_before_its_end_is_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "nice", lambda _: None)

    def die(*_: object, **__: object) -> None:
        raise SystemExit(137)

    monkeypatch.setattr(rehearsal, "rehearse_changes", die)
    with pytest.raises(SystemExit):
        compile_kernels.main(CHANGES[1:])
    assert not is_compiled(OF_CHANGES)
    monkeypatch.setattr(rehearsal, "rehearse_changes", lambda *_, **__: None)
    assert compile_kernels.main(CHANGES[1:]) == 0
    assert is_compiled(OF_CHANGES)
    see_other_sources(monkeypatch)
    assert not is_compiled(OF_CHANGES)


def test_the_process_beside_a_server_compiles_what_changes_need(monkeypatch: pytest.MonkeyPatch) -> None:
    niceness: list[int] = []
    monkeypatch.setattr(os, "nice", niceness.append)
    ran = (living_lists._change, living_sums._change)

    assert compile_kernels.main(["--changes", "GraphSAGE", "stored-float32"]) == 0
    assert niceness == [10]
    assert all(kernel.signatures for kernel in ran)  # type: ignore[attr-defined]
    assert is_compiled(compile_kernels.of_changes("one-type", "GraphSAGE", ["stored-float32"]))


@pytest.mark.parametrize("architecture", RELATIONAL)
def test_it_compiles_what_changes_of_several_types_need(
    architecture: str, kernel_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "nice", lambda _: None)
    processes = Processes([0])
    processes.start_server(architecture, NAMES_OF_TYPES)
    rehearsed: list[tuple[Any, ...]] = []
    monkeypatch.setattr(rehearsal, "rehearse_changes", lambda *of: rehearsed.append(of))
    assert compile_kernels.main(processes.commands.get()[4:]) == 0
    assert rehearsed == [("by-type", architecture, ["features-float32"])]
    processes.start_server(architecture, NAMES_OF_TYPES)
    assert processes.commands.empty(), "it is done"


@pytest.mark.parametrize("architecture", RELATIONAL)
def test_changes_of_several_types_are_rehearsed(architecture: Architecture) -> None:
    rehearsal.rehearse_changes("by-type", architecture, ["projected-float32"])


@pytest.mark.usefixtures("kernel_root")
@pytest.mark.parametrize("names", [WITHOUT_NAMES, NAMES_OF_TYPES], ids=["one type", "several types"])
def test_nothing_is_compiled_beside_a_program(names: SchemaNames) -> None:
    processes = Processes([])
    processes.start_server(PROGRAM, names)
    assert processes.commands.empty()
    assert processes.said.empty()

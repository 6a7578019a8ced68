"""What a look at a revision's files finds, what the loader makes of it, and last words."""

from __future__ import annotations

import ctypes
import errno
import gc
import hashlib
import mmap
import os
import queue
import signal
import threading
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.generation.repository import load_fake, publish, repository_in
from tests.support.graphs.graphs import service_of
from tests.support.machine.interruption import in_child
from tests.support.serving.loading import DEADLINE_S, FakeServer, Loading, loading_into
from tests.support.serving.serving import FakeWorker, with_compute

from gnnserve_api.errors import RepositoryError
from gnnserve_api.files.repository import FileEntry
from gnnserve_api.objective import Objective
from gnnserve_api.pods.routing import RoutingMode, RoutingTable
from gnnserve_cli import serving
from gnnserve_worker.following import repository_watch
from gnnserve_worker.following.repository_watch import RepositoryWatch
from gnnserve_worker.generation import pipeline
from gnnserve_worker.inference.device_stats import ON_CPU, DeviceStats
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.pods import generate
from gnnserve_worker.repository import files, repository, watched
from gnnserve_worker.repository.memory_fault import describe, exit_on_memory_fault
from gnnserve_worker.repository.watched import FileChange, FileFinding, Stamp, WatchedFiles, compare
from gnnserve_worker.serving.security.credentials import NO_CREDENTIALS

PATH = Path("/repository/table.npy")
GOOD = Stamp(device=1, inode=2, size_bytes=100, modified_ns=1_000, changed_ns=2_000)
OTHER = Stamp(device=1, inode=3, size_bytes=100, modified_ns=1_000, changed_ns=2_000)
GONE = FileNotFoundError(errno.ENOENT, "No such file or directory")
FORBIDDEN = PermissionError(errno.EACCES, "Permission denied")
STALE = OSError(errno.ESTALE, "Stale file handle")
FAILED = OSError(errno.EIO, "Input/output error")
FAR_NS = 2**62


@pytest.mark.parametrize(
    ("mapped", "found", "changes", "words"),
    [
        pytest.param(GOOD, GOOD, [], "", id="nothing changed"),
        pytest.param(replace(GOOD, size_bytes=99), replace(GOOD, size_bytes=99), [FileChange.WRITTEN],
                     "has 99 bytes, and had 100", id="cut short"),
        pytest.param(replace(GOOD, modified_ns=3_000_000), replace(GOOD, modified_ns=3_000_000), [FileChange.REDATED],
                     "was written to at 1970-01-01T00:00:00.003+00:00", id="written in place"),
        pytest.param(replace(GOOD, modified_ns=1000 * FAR_NS), GOOD, [FileChange.REDATED],
                     "s since 1970", id="far future"),
        pytest.param(FAILED, GOOD, [FileChange.UNSEEN],
                     "cannot be looked at any more: Input/output", id="a failing disk"),
        pytest.param(replace(GOOD, changed_ns=3_000), replace(GOOD, changed_ns=3_000), [FileChange.TOUCHED],
                     "had its owner, permissions, links or times set", id="permissions set"),
        pytest.param(GOOD, GONE, [FileChange.MOVED], "is gone", id="its folder was renamed"),
        pytest.param(replace(GOOD, changed_ns=3_000), GONE, [FileChange.TOUCHED, FileChange.MOVED], "", id="deleted"),
        pytest.param(GOOD, FORBIDDEN, [FileChange.MOVED], "cannot be read any more: Permission denied", id="forbidden"),
        pytest.param(GOOD, OTHER, [FileChange.MOVED], "was replaced by another file", id="replaced"),
        pytest.param(replace(GOOD, size_bytes=0), OTHER, [FileChange.WRITTEN, FileChange.MOVED],
                     "", id="cut and replaced"),
        pytest.param(STALE, STALE, [FileChange.WRITTEN, FileChange.MOVED], "", id="lost on a network file system"),
        pytest.param(GOOD, None, [], "", id="no descriptor left to ask with"),
        pytest.param(None, GOOD, [], "", id="read once: nothing changed"),
        pytest.param(None, replace(GOOD, changed_ns=3_000), [], "", id="read once: permissions set"),
        pytest.param(None, replace(GOOD, modified_ns=3_000), [FileChange.MOVED],
                     "was written to", id="read once: written"),
    ],
)  # fmt: skip
def test_look_tells_what_may_be_wrong_from_what_is_only_missing(
    mapped: Stamp | OSError | None, found: Stamp | OSError | None, changes: list[FileChange], words: str
) -> None:
    findings = compare(PATH, GOOD, mapped, found)
    assert [finding.change for finding in findings] == changes
    assert words in "".join(map(str, findings))


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_files_are_open_for_as_long_as_their_revision_is_held(tmp_path: Path) -> None:
    root = repository_in(tmp_path)
    manifest, _ = publish(root, "recipe")
    before = open_descriptors()
    loaded = load_fake(root, manifest.revision)
    assert loaded.origin.files is not None
    assert loaded.origin.files.look() == []
    assert open_descriptors() > before
    del loaded
    assert open_descriptors() == before


def test_revision_that_changes_while_it_is_loaded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository_in(tmp_path)
    manifest, _ = publish(root, "recipe")
    path = root.folder / "revisions" / manifest.revision / "tables/features-float32.npy"
    verify = repository.checks.verify_files

    def verify_and_write(*arguments: object) -> object:
        verified = verify(*arguments)  # type: ignore[arg-type]
        path.chmod(0o644)
        with path.open("ab") as file:
            file.write(b"\0")
        return verified

    monkeypatch.setattr(repository.checks, "verify_files", verify_and_write)
    with pytest.raises(RepositoryError, match=r"features-float32.npy: has .* bytes, and had .*, while it was being"):
        load_fake(root, manifest.revision)


def test_network_is_made_of_the_bytes_that_were_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = repository_in(tmp_path)
    manifest, _ = publish(root, "recipe")
    good = load_fake(root, manifest.revision).variants["x1"].network
    path = root.folder / "revisions" / manifest.revision / "variants/x1/weights.safetensors"
    verify = repository.checks.verify_files

    def verify_and_swap(*arguments: object) -> object:
        verified = verify(*arguments)  # type: ignore[arg-type]
        before = path.stat()
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\1")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return verified

    monkeypatch.setattr(repository.checks, "verify_files", verify_and_swap)
    loaded = load_fake(root, manifest.revision).variants["x1"].network
    assert loaded.tensors["weight"].tobytes() == good.tensors["weight"].tobytes()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["revision", "graph"])
def test_commit_that_changes_before_it_is_read_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    root = repository_in(tmp_path)
    manifest, _ = publish(root, "recipe")
    read = getattr(repository.checks, f"read_{kind}_manifest")

    def write_and_read(folder: Path) -> object:
        os.utime(folder / f"{kind}.json", (0, 0))
        return read(folder)

    monkeypatch.setattr(repository.checks, f"read_{kind}_manifest", write_and_read)
    with pytest.raises(RepositoryError, match=rf"{kind}.json: was written to .*, while it was being loaded"):
        load_fake(root, manifest.revision)


def test_foreign_things_beside_what_was_set_aside_disturb_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = repository_in(tmp_path)
    damaged = root.folder / "damaged"
    (damaged / "0 mine").mkdir(parents=True)
    (damaged / "00000000T000000.000000Z").write_text("a file")
    monkeypatch.setattr(files, "remove_tree", _refuse)
    for _ in range(4):
        publish(root, "recipe")
        root.set_aside("recipe", "aaaa")
    assert len(list(damaged.iterdir())) == 6
    assert caplog.text.count("cannot be removed, and is left") == 1
    assert {"0 mine", "00000000T000000.000000Z"} <= {path.name for path in damaged.iterdir()}


def _refuse(path: Path) -> None:
    raise PermissionError(errno.EACCES, "Permission denied", str(path))


def test_touched_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    entry = files.write_file(path, b"content")
    watch = WatchedFiles({path: entry}, {})
    path.chmod(0o400)
    assert [finding.change for finding in watch.look()] == [FileChange.TOUCHED]
    assert watch.verify(path) is None
    assert watch.look() == []
    os.utime(path, (0, 0))
    assert [finding.change for finding in watch.look()] == [FileChange.REDATED], "its time of writing is another"
    assert watch.verify_all() is None
    assert (watch.look(), watch.times_verified) == ([], 2)
    lying = WatchedFiles({path: FileEntry(entry.bytes, "another")}, {})
    assert "was altered" in str(lying.verify(path))
    path.chmod(0o644)
    path.write_bytes(b"another")
    assert "was altered" in str(watch.verify_all())


def test_file_that_is_written_to_while_another_is_verified_ends_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, other = tmp_path / "large.npy", tmp_path / "other.npy"
    watch = WatchedFiles({path: files.write_file(path, bytes(100)) for path in (large, other)}, {})
    reads = 0
    pread = os.pread

    def read(descriptor: int, count: int, offset: int) -> bytes:
        nonlocal reads
        reads += 1
        other.chmod(0o644)
        other.write_bytes(b"short")
        return pread(descriptor, count, offset)

    monkeypatch.setattr(watched, "_READ_BYTES", 10)
    monkeypatch.setattr(watched.os, "pread", read)
    large.chmod(0o400)
    assert str(watch.verify(large)).startswith(f"{other}: has 5 bytes")
    assert reads == 1


def test_exhausted_descriptors_say_nothing_about_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.npy"
    watch = WatchedFiles({path: files.write_file(path, b"content")}, {})

    def exhausted(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(watched.os, "open", exhausted)
        assert watch.look() == []
    assert watch.look() == []


# The watch


@dataclass(slots=True)
class FakeFiles:
    findings: list[FileFinding] = field(default_factory=list)
    is_whole: bool = True
    verified: list[Path] = field(default_factory=list)
    times_verified: int = 0
    error: Exception | None = None

    def look(self) -> list[FileFinding]:
        if self.error is not None:
            raise self.error
        return list(self.findings)

    def verify(self, touched: Path) -> FileFinding | None:
        self.verified.append(touched)
        self.times_verified += self.is_whole
        return None if self.is_whole else WRITTEN

    def verify_all(self) -> FileFinding | None:
        return self.verify(PATH)

    def verify_contents(self) -> FileFinding | None:
        return self.verify(PATH)


@dataclass(slots=True)
class FakeOwner:
    served: ServedRevision | None
    withdrawn: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    enlarged: list[str] = field(default_factory=list)
    failures: int = 0
    """How often a withdrawal is to fail."""
    told: queue.Queue[str] = field(default_factory=queue.Queue)

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        assert revision is self.served
        if self.failures:
            self.failures -= 1
            raise RuntimeError("nobody takes it")
        self.told.put(problem)
        self.withdrawn.append(problem)

    def renew(self, revision: ServedRevision, problem: str) -> None:
        assert revision is self.served
        self.renewed.append(problem)

    def enlarge(self, revision: ServedRevision) -> None:
        assert revision is self.served
        self.enlarged.append(revision.manifest.revision)


def revision_of(fake: FakeFiles) -> ServedRevision:
    return with_compute(FakeWorker().revision(), files=fake)


WRITTEN, MOVED = FileFinding(PATH, FileChange.WRITTEN, "was written to"), FileFinding(PATH, FileChange.MOVED, "is gone")
TOUCHED = FileFinding(PATH, FileChange.TOUCHED, "had its owner set")
UNSEEN = FileFinding(PATH, FileChange.UNSEEN, "cannot be looked at any more")
REDATED = FileFinding(PATH, FileChange.REDATED, "was written to at noon")


def test_each_trouble_of_a_revision_is_told_once_and_the_worse_one_still() -> None:
    fake = FakeFiles()
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner)
    watch._look()
    assert (owner.renewed, owner.withdrawn) == ([], [])
    for fake.findings in ([MOVED], [MOVED], [MOVED, WRITTEN], [MOVED, WRITTEN], [MOVED]):
        watch._look()
    assert owner.renewed == ["/repository/table.npy: is gone"]
    assert owner.withdrawn == ["/repository/table.npy: was written to"]
    owner.served = revision_of(FakeFiles([MOVED]))
    watch._look()
    assert len(owner.renewed) == 2, "another revision's files are other files"
    owner.served = None
    watch._look()


@pytest.mark.parametrize("is_whole", [True, False])
def test_what_was_touched_is_verified_before_it_is_told(is_whole: bool) -> None:
    fake = FakeFiles([TOUCHED, MOVED], is_whole)
    owner = FakeOwner(revision_of(fake))
    RepositoryWatch(owner)._look()
    assert fake.verified == [PATH]
    assert (len(owner.withdrawn), len(owner.renewed)) == ((0, 1) if is_whole else (1, 0))


def test_what_was_told_of_a_path_is_not_told_again_because_the_file_was_touched() -> None:
    fake = FakeFiles([MOVED])
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner)
    for fake.findings in ([MOVED], [TOUCHED, MOVED], [MOVED]):
        watch._look()
    assert (fake.verified, len(owner.renewed)) == ([PATH], 1)


def test_files_that_were_verified_since_are_told_of_anew() -> None:
    fake = FakeFiles([REDATED, MOVED])
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner)
    watch._look()
    watch._look()
    assert (len(owner.withdrawn), len(owner.renewed)) == (1, 0)
    fake.verify_all()
    watch._look()
    assert (len(owner.withdrawn), len(owner.renewed)) == (2, 0)
    fake.findings = [MOVED]
    fake.verify_all()
    watch._look()
    assert (len(owner.withdrawn), len(owner.renewed)) == (2, 1)


def test_who_could_have_more_of_a_gpus_memory_is_told_of_whether_there_are_files_to_look_at_or_not() -> None:
    revision = FakeWorker(name="a").revision()
    owner = FakeOwner(revision)
    RepositoryWatch(owner)._look()
    assert owner.enlarged == []
    for fake in (None, FakeFiles()):
        owner.served = with_compute(revision, files=fake, would_gain=lambda: True)
        RepositoryWatch(owner)._look()
    assert owner.enlarged == ["a", "a"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_files_of_a_revision_whose_answers_fail_are_verified_once_though_their_times_say_nothing(
    is_whole: bool, caplog: pytest.LogCaptureFixture
) -> None:
    fake, failing = FakeFiles(is_whole=is_whole), ["9 of 10 answers failed"]
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner, lambda _revision: failing[0])
    for _ in range(2):
        watch._look()
    assert fake.verified == [PATH]
    assert failing[0] in caplog.text
    assert owner.withdrawn == ([] if is_whole else [str(WRITTEN)])
    if is_whole:
        failing[0] = ""
        watch._look()
        failing[0] = "again"
        watch._look()
        assert fake.verified == [PATH, PATH]


def test_what_was_told_of_a_path_is_not_told_again_because_answers_fail() -> None:
    fake, failing = FakeFiles([MOVED]), [""]
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner, lambda _revision: failing[0])
    for failing[0] in ("", "9 of 10 answers failed", "9 of 10 answers failed"):
        watch._look()
    assert (fake.verified, len(owner.renewed)) == ([PATH], 1)


def test_bytes_that_change_without_times_are_found_where_contents_are_verified(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    path.write_bytes(b"as it was")
    entry = FileEntry(path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    files = WatchedFiles({path: entry}, {})
    path.write_bytes(b"as it is ")
    (file,) = files._files
    file.stamp = watched.stamp_at(path)  # as where a disk alters them
    assert files.look() == []
    assert files.verify_all() is None
    altered = files.verify_contents()
    assert altered is not None
    assert "was altered" in altered.words
    assert files.verify_all() is not None, "what was found altered is not forgotten"
    path.write_bytes(b"as it was")
    assert files.verify_all() is None


def test_one_failed_look_says_nothing_and_two_do() -> None:
    fake = FakeFiles()
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner)
    for fake.findings in ([UNSEEN], [], [UNSEEN]):
        watch._look()
    assert owner.withdrawn == []
    watch._look()
    assert owner.withdrawn == [str(UNSEEN)]


def test_look_that_raises_over_and_over_is_as_bad() -> None:
    fake = FakeFiles(error=ValueError("a bug"))
    owner = FakeOwner(revision_of(fake))
    watch = RepositoryWatch(owner)
    watch._look()
    assert owner.withdrawn == []
    for _ in range(2):
        watch._look()
    assert owner.withdrawn == ["the repository cannot be looked at: ValueError('a bug')"]


def test_withdrawal_that_fails_is_asked_for_again_by_a_watch_that_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository_watch, "INTERVAL_S", 0.001)
    owner = FakeOwner(revision_of(FakeFiles([WRITTEN])), failures=2)
    watch = RepositoryWatch(owner)
    watch.start()
    try:
        assert owner.told.get(timeout=DEADLINE_S) == str(WRITTEN)
        assert owner.failures == 0
    finally:
        watch.stop()


# The loader


A, B = (RoutingTable(revision, f"recipe-{revision}") for revision in "ab")


@pytest.fixture
def loading() -> Iterator[Loading]:
    with loading_into(FakeServer()) as made:
        yield made


def serve(loading: Loading) -> ServedRevision:
    loading.loader.declare(A)
    assert loading.server.next_switch()[0] == "a"
    loading.server.wait_for_problem(None)
    assert loading.repository.next_load() == "a"
    served = loading.loader.served
    assert served is not None
    return served


def test_withdrawn_revision_is_loaded_again_until_it_is_whole(loading: Loading) -> None:
    served = serve(loading)
    loading.repository.broken["a"] = RepositoryError("/x", "was altered", "generate again")
    loading.loader.withdraw(served, "x was written to")
    assert loading.server.withdrawn.get(timeout=DEADLINE_S) == "a"
    loading.server.wait_for_problem("revision a is not answered from: x was written to")
    loading.server.wait_for_problem("revision a cannot be loaded: /x: was altered")
    assert loading.server.switches.empty()
    del loading.repository.broken["a"]
    assert loading.server.next_switch()[0] == "a"
    loading.server.wait_for_problem(None)
    assert loading.loader.served is not served


def test_adopted_revision_is_withdrawn_and_loaded_again_like_one_that_was_loaded() -> None:
    with loading_into(FakeServer()) as loading:
        adopted = FakeWorker(name="a").revision()
        loading.loader.adopt(adopted, A)
        assert (loading.loader.served, loading.loader.is_settled) == (adopted, True)
        loading.loader.withdraw(adopted, "x was written to")
        assert loading.server.withdrawn.get(timeout=DEADLINE_S) == "a"
        assert loading.server.next_switch()[0] == "a"
        loading.server.wait_for_problem(None)
        assert loading.loader.served is not adopted


def test_moved_revision_is_loaded_again_beside_itself(loading: Loading) -> None:
    served = serve(loading)
    loading.repository.broken["a"] = RepositoryError("/x", "is gone", "generate again")
    loading.loader.renew(served, "x is gone")
    loading.server.wait_for_problem("answers from files that are no longer in the repository: x is gone")
    loading.server.wait_for_problem("revision a cannot be loaded: /x: is gone")
    assert loading.loader.served is served
    del loading.repository.broken["a"]
    assert loading.server.next_switch()[0] == "a"
    assert loading.server.withdrawn.empty()
    assert loading.loader.served is not served


def test_doubts_about_a_revision_that_was_replaced_meanwhile_load_nothing(loading: Loading) -> None:
    old = serve(loading)
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    assert loading.repository.next_load() == "b"
    loading.loader.renew(old, "gone")
    loading.loader.declare(A)
    assert loading.server.next_switch()[0] == "a"
    assert loading.repository.next_load() == "a"
    assert loading.repository.loads.empty()


def test_revision_withdrawn_while_the_next_one_loads_does_not_come_back(loading: Loading) -> None:
    served = serve(loading)
    loading.repository.gates["b"] = threading.Event()
    loading.loader.declare(B)
    assert loading.repository.next_load() == "b"
    loading.loader.withdraw(served, "was written to")
    loading.repository.gates["b"].set()
    assert loading.server.next_switch()[0] == "b"
    assert loading.server.switches.empty()


def test_switch_that_was_on_its_way_does_not_bring_back_what_was_withdrawn() -> None:
    withdrawing, arrived = threading.Event(), threading.Event()

    class SlowServer(FakeServer):
        def withdraw(self, revision: ServedRevision, problem: str) -> None:
            withdrawing.set()
            assert arrived.wait(DEADLINE_S)
            FakeServer.withdraw(self, revision, problem)

        def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
            FakeServer.switch(self, revision, table, load_s)
            if withdrawing.is_set():
                arrived.set()

    class Lock:
        def __init__(self) -> None:
            self.lock = threading.Lock()

        def __enter__(self) -> None:
            if withdrawing.is_set():
                arrived.set()
            self.lock.acquire()

        def __exit__(self, *_: object) -> None:
            self.lock.release()

    objective = Objective(latency_ms=5)
    with loading_into(SlowServer()) as loading:
        loading.loader._answering = Lock()  # type: ignore[assignment]
        served = serve(loading)
        thread = threading.Thread(target=loading.loader.withdraw, args=(served, "was written to"))
        thread.start()
        assert withdrawing.wait(DEADLINE_S)
        # Another objective needs no loading: it is told by a switch, at once.
        loading.loader.declare(RoutingTable("a", "recipe-a", objective))
        thread.join()
        assert loading.server.withdrawn.get_nowait() == "a"
        # Where loading began before the table came, there is one switch more.
        while loading.server.next_switch()[:2] != ("a", objective):
            pass
        assert loading.repository.next_load() == "a"
        assert loading.loader.served is not served
        assert loading.server.switches.empty()
        assert loading.repository.loads.empty()


def test_moved_revision_is_routed_as_tables_say_and_loaded_no_sooner_for_it() -> None:
    with loading_into(FakeServer(), retry_s=(3600, 3600)) as loading:
        served = serve(loading)
        loading.repository.broken["a"] = RepositoryError("/x", "is gone", "generate again")
        loading.loader.renew(served, "x is gone")
        loading.server.wait_for_problem("revision a cannot be loaded: /x: is gone")
        assert loading.repository.next_load() == "a"
        for latency_ms in (5, 6):
            objective = Objective(latency_ms=latency_ms)
            loading.loader.declare(RoutingTable("a", "recipe-a", objective))
            assert loading.server.next_switch()[1] == objective
        assert loading.loader.stop(DEADLINE_S)
        assert loading.repository.loads.empty()
        assert loading.server.problems.empty(), "it is still gone"


def test_renewed_revision_is_not_loaded_again_for_its_next_table(loading: Loading) -> None:
    served = serve(loading)
    loading.loader.renew(served, "x is gone")
    loading.server.next_switch()
    loading.server.wait_for_problem(None)
    assert loading.repository.next_load() == "a"
    loading.loader.declare(RoutingTable("a", "recipe-a", Objective(latency_ms=5)))
    loading.server.next_switch()
    loading.server.wait_for_problem(None)
    assert loading.repository.loads.empty()


def serve_with_files(loading: Loading, fake: FakeFiles) -> ServedRevision:
    loading.repository.files["a"] = fake
    return serve(loading)


def test_withdrawn_revision_whose_files_are_as_they_were_answers_again_without_loading(loading: Loading) -> None:
    served = serve_with_files(loading, FakeFiles())
    loading.loader.withdraw(served, str(REDATED))
    assert loading.server.next_switch()[0] == "a"
    loading.server.wait_for_problem(None)
    assert loading.loader.served is served
    assert loading.repository.loads.empty()


def test_copies_are_forgotten_once_the_files_are_verified_and_before_they_are_answered_from() -> None:
    """What a cache took of a row while it was altered would be answered from for good."""
    steps: list[str] = []

    class Verified(FakeFiles):
        def verify_all(self) -> FileFinding | None:
            steps.append("verified")
            return super().verify_all()

    class Server(FakeServer):
        def switch(self, revision: ServedRevision, table: RoutingTable, load_s: float) -> None:
            steps.append("answers")
            FakeServer.switch(self, revision, table, load_s)

    with loading_into(Server()) as loading:
        loading.repository.forget_copies = lambda: steps.append("forgotten")
        served = serve_with_files(loading, Verified())
        steps.clear()
        loading.loader.withdraw(served, str(REDATED))
        assert loading.server.next_switch()[0] == "a"
    assert steps == ["verified", "forgotten", "answers"]


def test_copies_of_files_that_were_touched_are_forgotten_once_these_are_verified() -> None:
    """They may have been something else between two looks."""
    steps: list[str] = []
    fake = FakeFiles([TOUCHED])
    served = with_compute(
        revision_of(fake), forget_copies=lambda: steps.append(f"forgotten after {len(fake.verified)}")
    )
    RepositoryWatch(FakeOwner(served))._look()
    assert steps == ["forgotten after 1"]
    fake.findings = [MOVED]
    RepositoryWatch(FakeOwner(served))._look()
    fake.findings, fake.is_whole = [TOUCHED], False
    RepositoryWatch(FakeOwner(served))._look()
    assert len(steps) == 1, "of what was only moved they are right, and what was altered is withdrawn"


def test_withdrawn_revision_whose_files_are_not_as_they_were_is_loaded(loading: Loading) -> None:
    served = serve_with_files(loading, FakeFiles(is_whole=False))
    loading.loader.withdraw(served, str(REDATED))
    assert loading.server.next_switch()[0] == "a"
    assert loading.repository.next_load() == "a"
    assert loading.loader.served is not served


def test_withdrawn_revision_comes_back_under_its_last_good_table(loading: Loading) -> None:
    served = serve(loading)
    bad = RoutingTable("a", "recipe-a", mode=RoutingMode.STATIC, base_variant="x9")
    loading.loader.declare(bad)
    loading.server.wait_for_problem("has no variant x9")
    loading.loader.withdraw(served, "was written to")
    loading.server.wait_for_problem("is not answered from")
    assert loading.server.next_switch()[0] == "a"
    loading.server.wait_for_problem("has no variant x9")
    assert [loading.server.tables.get(), loading.server.tables.get()] == [A, A]
    # And so it does where the bad table is another revision's.
    again = loading.loader.served
    assert again is not None
    loading.loader.declare(RoutingTable("b", "recipe-b", mode=RoutingMode.STATIC, base_variant="x9"))
    loading.server.wait_for_problem("revision b has no variant x9")
    loading.loader.withdraw(again, "was written to")
    assert loading.server.next_switch()[0] == "a"
    loading.server.wait_for_problem("revision b has no variant x9")


def test_withdrawn_revision_is_let_go_once_it_cannot_come_back(loading: Loading) -> None:
    served = serve(loading)
    gone = weakref.finalize(served.compute.infer.__self__, lambda: None)  # type: ignore[attr-defined]
    loading.repository.gates["b"] = threading.Event()
    loading.loader.declare(B)
    assert loading.repository.next_load() == "b"
    loading.loader.withdraw(served, "was written to")
    loading.repository.gates["b"].set()
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    del served
    assert loading.loader.stop(DEADLINE_S)
    gc.collect()
    assert not gone.alive


def test_what_answers_no_more_is_neither_withdrawn_nor_renewed(loading: Loading) -> None:
    old = serve(loading)
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    loading.loader.withdraw(old, "was written to")
    loading.loader.renew(old, "is gone")
    assert loading.loader.stop(DEADLINE_S)
    assert loading.server.withdrawn.empty()
    while not loading.server.problems.empty():
        assert loading.server.problems.get() is None


LITTLE, MUCH = (DeviceStats("a GPU", memory_bytes={"cache": size}, variants=3) for size in (1, 2))


def serve_cramped(loading: Loading, *then: DeviceStats) -> ServedRevision:
    """`then`: what it has where it is loaded again."""
    loading.repository.stats["a"] = [LITTLE, *then]
    return serve(loading)


def test_revision_that_could_have_more_memory_is_loaded_once_more_and_keeps_its_table(loading: Loading) -> None:
    served = serve_cramped(loading, MUCH, DeviceStats("a GPU", memory_bytes={"cache": 3}, variants=3))
    bad = RoutingTable("a", "recipe-a", mode=RoutingMode.STATIC, base_variant="x9")
    loading.loader.declare(bad)
    loading.server.wait_for_problem("has no variant x9")
    loading.loader.enlarge(served)
    assert loading.server.next_switch()[0] == "a"
    assert [loading.server.tables.get(), loading.server.tables.get()] == [A, A]
    loading.server.wait_for_problem("has no variant x9")
    larger = loading.loader.served
    assert larger is not None
    assert larger.compute.device_stats() is MUCH
    assert loading.repository.next_load() == "a"
    loading.loader.enlarge(larger)
    assert loading.loader.stop(DEADLINE_S)
    assert loading.repository.loads.empty(), "once"


def test_next_revision_may_have_more_memory_again(loading: Loading) -> None:
    loading.repository.stats["b"] = [LITTLE, MUCH]
    loading.loader.enlarge(serve_cramped(loading, MUCH))
    assert loading.server.next_switch()[0] == "a"
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    cramped = loading.loader.served
    assert cramped is not None
    loading.loader.enlarge(cramped)
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    assert loading.loader.served is not cramped


@pytest.mark.parametrize(
    "then", [LITTLE, DeviceStats("a GPU", memory_bytes={"cache": 9}, variants=2), ON_CPU],
    ids=["no more memory", "a variant less on the GPU", "not on the GPU"],
)  # fmt: skip
def test_revision_that_is_no_better_for_being_loaded_again_answers_on(
    loading: Loading, then: DeviceStats, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve_cramped(loading, then)
    loading.loader.enlarge(served)
    assert loading.repository.next_load() == "a"
    assert loading.loader.stop(DEADLINE_S)
    assert loading.loader.served is served
    assert loading.server.switches.empty()
    assert "loaded again, it has no more memory" in caplog.text


@pytest.mark.parametrize("error", [RepositoryError("/x", "is gone", "generate"), MemoryError("8 GiB")], ids=repr)
def test_revision_that_cannot_be_loaded_again_answers_on_without_a_problem(
    loading: Loading, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    served = serve_cramped(loading, MUCH)
    loading.repository.broken["a"] = error
    loading.loader.enlarge(served)
    assert loading.repository.next_load() == "a"
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    assert str(error) in caplog.text
    assert [loading.repository.next_load()] == ["b"], "and a was not tried again"
    while not loading.server.problems.empty():
        assert loading.server.problems.get() is None


def test_revision_that_is_withdrawn_while_it_is_loaded_again_is_loaded_from_the_beginning(loading: Loading) -> None:
    served = serve_cramped(loading, MUCH, MUCH)
    loading.repository.gates["a"] = threading.Event()
    loading.loader.enlarge(served)
    assert loading.repository.next_load() == "a"
    loading.loader.withdraw(served, "was written to")
    loading.repository.gates["a"].set()
    assert loading.repository.next_load() == "a"
    assert loading.server.next_switch()[0] == "a"
    loading.server.wait_for_problem(None)
    assert loading.server.switches.empty()


def test_another_revision_that_is_declared_meanwhile_goes_before_more_memory(loading: Loading) -> None:
    served = serve_cramped(loading, MUCH)
    loading.repository.gates["a"] = threading.Event()
    loading.loader.enlarge(served)
    assert loading.repository.next_load() == "a"
    loading.loader.declare(B)
    loading.repository.gates["a"].set()
    assert loading.server.next_switch()[0] == "b"


def test_what_answers_no_more_is_not_loaded_again_for_memory(loading: Loading) -> None:
    old = serve_cramped(loading, MUCH)
    loading.loader.declare(B)
    assert loading.server.next_switch()[0] == "b"
    loading.server.wait_for_problem(None)
    assert loading.repository.next_load() == "b"
    loading.loader.enlarge(old)
    assert loading.loader.stop(DEADLINE_S)
    assert loading.repository.loads.empty()


def test_withdrawal_that_fails_still_has_it_loaded_again() -> None:
    class Deaf(FakeServer):
        def withdraw(self, revision: ServedRevision, problem: str) -> None:
            raise RuntimeError(f"nobody takes {problem} of {revision.manifest.revision}")

    with loading_into(Deaf()) as loading:
        served = serve(loading)
        with pytest.raises(RuntimeError):
            loading.loader.withdraw(served, "was written to")
        assert loading.server.next_switch()[0] == "a"
        assert loading.loader.served is not served


# Last words


def test_address_is_told_by_the_file_that_is_mapped_there(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00000000-7f00001000 r--s 00000000 00:2a 12345                      /repo/a file.npy (deleted)\n"
        "7f00001000-7f00002000 rw-p 00000000 00:00 0 \n"
        "7f00002000-7f00003000 rw-p 00000000 00:00 0                          [heap]\n"
    )
    cut_short = describe(signal.SIGBUS, 0x7F00000FFF, maps)
    assert cut_short.words.startswith("/repo/a file.npy: was cut short")
    assert cut_short.is_of_files
    for address in (0x7F00001000, 0x7F00002000, 0x1000):
        fault = describe(signal.SIGBUS, address, maps)
        assert ("a fault of the machine" in fault.words, fault.is_of_files) == (True, False)


def test_bus_error_ends_the_process_with_a_sentence_and_a_code(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    path.write_bytes(bytes(mmap.PAGESIZE))
    words = tmp_path / "words"

    def touch_what_was_cut_off() -> None:
        exit_on_memory_fault(lambda sentence: words.write_text(sentence) and None, 3)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            file.truncate(0)
            told: queue.Queue[int] = queue.Queue()
            thread = threading.Thread(target=lambda: told.put(mapped[0]))
            thread.start()
            thread.join()

    assert in_child(touch_what_was_cut_off) == 3
    assert words.read_text().startswith(f"{path}: was cut short")


def test_last_words_that_fail_end_the_process_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    path.write_bytes(bytes(mmap.PAGESIZE))

    def fail(_words: str) -> None:
        raise OSError("the log is gone too")

    def touch_what_was_cut_off() -> None:
        exit_on_memory_fault(fail, 3)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            file.truncate(0)
            mapped[0]

    assert in_child(touch_what_was_cut_off) == 3


def read_anywhere() -> None:
    """As a kernel does that was given a wrong position: in a thread of its own, without the GIL."""
    thread = threading.Thread(target=lambda: ctypes.CDLL(None).strlen(ctypes.c_void_p(8)))
    thread.start()
    thread.join()


def test_memory_fault_names_the_file_that_was_overwritten(tmp_path: Path) -> None:
    path, other = tmp_path / "indices.npy", tmp_path / "table.npy"
    entries = {named: files.write_file(named, bytes(100)) for named in (path, other)}
    words = tmp_path / "words"

    def read_where_an_overwritten_index_says() -> None:
        watch = WatchedFiles(entries, {})
        exit_on_memory_fault(lambda sentence: words.write_text(sentence) and None, 3)
        os.utime(path, ns=(0, 1))
        read_anywhere()
        del watch

    assert in_child(read_where_an_overwritten_index_says) == 3
    assert words.read_text().startswith(f"{path}: was written to at 1970-01-01T00:00:00.000+00:00, while it was mapped")
    assert str(other) not in words.read_text()


def test_memory_fault_that_no_file_explains_ends_the_process_by_its_signal(tmp_path: Path) -> None:
    words = tmp_path / "words"
    entry = files.write_file(tmp_path / "table.npy", bytes(100))

    def read_somewhere() -> None:
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)  # pytest has one of its own
        watch = WatchedFiles({tmp_path / "table.npy": entry}, {})
        exit_on_memory_fault(lambda sentence: words.write_text(sentence) and None, 3)
        read_anywhere()
        del watch

    assert in_child(read_somewhere) == -signal.SIGSEGV
    assert "no file of a revision was written to" in words.read_text()


def touch_what_is_cut_off(path: Path) -> None:
    path.write_bytes(bytes(mmap.PAGESIZE))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        file.truncate(0)
        mapped[0]


def test_generation_leaves_last_words_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    message = tmp_path / "message"
    service = service_of((tmp_path / "graph.npz").as_uri())
    environ = {
        "GNNSERVE_MANIFEST": service.model_dump_json(by_alias=True, exclude_none=True),
        "GNNSERVE_REPOSITORY": str(tmp_path / "repository"),
        "GNNSERVE_TERMINATION_MESSAGE": str(message),
    }
    monkeypatch.setattr(pipeline, "generate", lambda *_, **__: touch_what_is_cut_off(tmp_path / "table.npy"))
    assert in_child(lambda: os._exit(generate.main(environ))) == 3
    assert message.read_text().startswith(f"{tmp_path / 'table.npy'}: was cut short")


def test_server_of_the_command_line_leaves_last_words_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "slow_loop", lambda *_: nullcontext())
    monkeypatch.setattr(
        serving.device, "open_served", lambda *_: SimpleNamespace(compute=SimpleNamespace(device_stats=lambda: ON_CPU))
    )
    monkeypatch.setattr(serving.server, "serve_revisions", lambda *_: touch_what_is_cut_off(tmp_path / "table.npy"))
    nothing: Any = None

    worker = SimpleNamespace(gpu=None)

    def serve_it() -> None:
        options = serving.ServerOptions(nothing, NO_CREDENTIALS, nothing)
        service: Any = SimpleNamespace(metadata=SimpleNamespace(name="digits"), spec=SimpleNamespace(worker=worker))
        serving.serve_routed([serving.OfferedService(service, lambda _: nothing, serving.Sockets(nothing), options)])

    assert in_child(serve_it) == 3
    assert f"error: {tmp_path / 'table.npy'}: was cut short" in capfd.readouterr().err

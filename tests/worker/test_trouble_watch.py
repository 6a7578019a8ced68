"""What a look at a revision's files finds, what the loader makes of it, and last words."""

from __future__ import annotations

import errno
import mmap
import os
import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from tests.support.interruption import in_child
from tests.support.loading import DEADLINE_S, FakeServer, Loading, loading_into
from tests.support.repository import publish, repository_in
from tests.support.serving import FakeWorker

from gnnserve_api.errors import RepositoryError
from gnnserve_api.objective import Objective
from gnnserve_api.repository import FileEntry
from gnnserve_api.routing import RoutingTable
from gnnserve_worker.pods.repository_watch import RepositoryWatch
from gnnserve_worker.repository import files, repository, watched
from gnnserve_worker.repository.bus_error import describe, exit_on_bus_error
from gnnserve_worker.repository.watched import Change, Finding, Stamp, WatchedFiles, compare
from gnnserve_worker.serving.served import ServedRevision

PATH = Path("/repository/table.npy")
GOOD = Stamp(device=1, inode=2, size_bytes=100, modified_ns=1_000, changed_ns=2_000)
OTHER = Stamp(device=1, inode=3, size_bytes=100, modified_ns=1_000, changed_ns=2_000)
GONE = FileNotFoundError(errno.ENOENT, "No such file or directory")
FORBIDDEN = PermissionError(errno.EACCES, "Permission denied")
STALE = OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize(
    ("mapped", "found", "changes", "words"),
    [
        pytest.param(GOOD, GOOD, [], "", id="nothing changed"),
        pytest.param(replace(GOOD, size_bytes=99), replace(GOOD, size_bytes=99), [Change.WRITTEN], "has 99 bytes, and "
                     "had 100", id="cut short"),
        pytest.param(replace(GOOD, modified_ns=3_000_000), replace(GOOD, modified_ns=3_000_000), [Change.WRITTEN],
                     "was written to at 1970-01-01T00:00:00.003+00:00", id="written in place"),
        pytest.param(replace(GOOD, changed_ns=3_000), replace(GOOD, changed_ns=3_000), [Change.TOUCHED],
                     "had its owner, permissions, links or times set", id="permissions set"),
        pytest.param(GOOD, GONE, [Change.MOVED], "is gone", id="its folder was renamed"),
        pytest.param(replace(GOOD, changed_ns=3_000), GONE, [Change.TOUCHED, Change.MOVED], "", id="deleted"),
        pytest.param(GOOD, FORBIDDEN, [Change.MOVED], "cannot be read any more: Permission denied", id="forbidden"),
        pytest.param(GOOD, OTHER, [Change.MOVED], "was replaced by another file", id="replaced"),
        pytest.param(replace(GOOD, size_bytes=0), OTHER, [Change.WRITTEN, Change.MOVED], "", id="cut and replaced"),
        pytest.param(STALE, STALE, [Change.WRITTEN, Change.MOVED], "", id="lost on a network file system"),
        pytest.param(GOOD, None, [], "", id="no descriptor left to ask with"),
        pytest.param(None, GOOD, [], "", id="read once: nothing changed"),
        pytest.param(None, replace(GOOD, changed_ns=3_000), [], "", id="read once: permissions set"),
        pytest.param(None, replace(GOOD, modified_ns=3_000), [Change.MOVED], "was written to", id="read once: written"),
    ],
)  # fmt: skip
def test_look_tells_what_may_be_wrong_from_what_is_only_missing(
    mapped: Stamp | OSError | None, found: Stamp | OSError | None, changes: list[Change], words: str
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
    loaded = root.load(manifest.revision)
    assert loaded.files is not None
    assert loaded.files.look() == []
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
        root.load(manifest.revision)


def test_touched_file_is_known_by_its_content(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    entry = files.write_file(path, b"content")
    watch = WatchedFiles({path: entry}, ())
    path.chmod(0o400)
    assert [finding.change for finding in watch.look()] == [Change.TOUCHED]
    assert watch.verify(path)
    assert watch.look() == []
    os.utime(path, (0, 0))
    assert [finding.change for finding in watch.look()] == [Change.WRITTEN], "its time of writing is another"
    lying = WatchedFiles({path: FileEntry(entry.bytes, "another")}, ())
    assert not lying.verify(path)


def test_exhausted_descriptors_say_nothing_about_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.npy"
    watch = WatchedFiles({path: files.write_file(path, b"content")}, ())

    def exhausted(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(watched.os, "open", exhausted)
        assert watch.look() == []
    assert watch.look() == []


# The watch


@dataclass(slots=True)
class FakeFiles:
    findings: list[Finding] = field(default_factory=list)
    is_whole: bool = True
    verified: list[Path] = field(default_factory=list)

    def look(self) -> list[Finding]:
        return list(self.findings)

    def verify(self, touched: Path) -> bool:
        self.verified.append(touched)
        return self.is_whole


@dataclass(slots=True)
class FakeOwner:
    served: ServedRevision | None
    withdrawn: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)

    def withdraw(self, revision: ServedRevision, problem: str) -> None:
        assert revision is self.served
        self.withdrawn.append(problem)

    def renew(self, revision: ServedRevision, problem: str) -> None:
        assert revision is self.served
        self.renewed.append(problem)


def revision_of(fake: FakeFiles) -> ServedRevision:
    return replace(FakeWorker().revision(), files=fake)  # type: ignore[arg-type]


WRITTEN, MOVED = Finding(PATH, Change.WRITTEN, "was written to"), Finding(PATH, Change.MOVED, "is gone")
TOUCHED = Finding(PATH, Change.TOUCHED, "had its owner set")


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
    loading.server.wait_for_problem("gone")
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
    withdrawing, go_on = threading.Event(), threading.Event()

    class SlowServer(FakeServer):
        def withdraw(self, revision: ServedRevision, problem: str) -> None:
            withdrawing.set()
            assert go_on.wait(DEADLINE_S)
            FakeServer.withdraw(self, revision, problem)

    with loading_into(SlowServer()) as loading:
        served = serve(loading)
        loading.repository.broken["b"] = RepositoryError("/x", "is not there", "generate it")
        thread = threading.Thread(target=loading.loader.withdraw, args=(served, "was written to"))
        thread.start()
        assert withdrawing.wait(DEADLINE_S)
        # Before b is loaded, what is wanted of the service would be told to a, by a switch.
        loading.loader.declare(RoutingTable("b", "r", Objective(latency_ms=5)))
        go_on.set()
        thread.join()
        loading.server.wait_for_problem("revision b cannot be loaded")
        assert loading.server.switches.empty()


# Last words


def test_address_is_told_by_the_file_that_is_mapped_there(tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00000000-7f00001000 r--s 00000000 00:2a 12345                      /repo/a file.npy (deleted)\n"
        "7f00001000-7f00002000 rw-p 00000000 00:00 0 \n"
        "7f00002000-7f00003000 rw-p 00000000 00:00 0                          [heap]\n"
    )
    assert describe(0x7F00000FFF, maps).startswith("/repo/a file.npy: was cut short")
    for address in (0x7F00001000, 0x7F00002000, 0x1000):
        assert "a fault of the machine" in describe(address, maps)


def test_bus_error_ends_the_process_with_a_sentence_and_a_code(tmp_path: Path) -> None:
    path = tmp_path / "table.npy"
    path.write_bytes(bytes(mmap.PAGESIZE))
    words = tmp_path / "words"

    def touch_what_was_cut_off() -> None:
        exit_on_bus_error(lambda sentence: words.write_text(sentence) and None, 3)
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
        exit_on_bus_error(fail, 3)
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
            file.truncate(0)
            mapped[0]

    assert in_child(touch_what_was_cut_off) == 3

"""Publishing is all or nothing, wherever it stops."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support import campaigns
from tests.support.generation.repository import (
    commit,
    load_fake,
    publish,
    repository_in,
    tiny_graph,
    weights,
    write_features,
)
from tests.support.machine.interruption import Interruption, in_child

from gnnserve_api.errors import ResourceError
from gnnserve_worker.repository import files, paths
from gnnserve_worker.repository.repository import Repository

OLD, NEW = "old recipe", "new recipe"
OLD_GRAPH, NEW_GRAPH = tiny_graph("aaaa"), tiny_graph("bbbb")
OLD_REVISION = paths.revision_id(OLD, "aaaa")
NEW_REVISION = paths.revision_id(NEW, "bbbb")
KILLED = 9


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory, where the system has one: these tests make and remove thousands of files."""
    shared_memory = Path("/dev/shm")  # noqa: S108 - the folder inside of it has a name of its own
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def before(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A published revision, and what two processes that died long ago left behind."""
    # Ending a process loses nothing that was written, so syncing for real would only slow these tests down.
    monkeypatch.setattr(files, "sync", lambda _: None)
    root = memory_path / "before"
    repository = repository_in(root)
    publish(repository, OLD, OLD_GRAPH, "2026-01-01T00:00:00Z")
    for unfinished in ("graphs/cccc", f"revisions/{NEW_REVISION}"):
        (repository.folder / unfinished).mkdir()
        (repository.folder / unfinished / "indptr.npy").write_bytes(b"half")
    return root


def copies_of(before: Path) -> Iterator[tuple[int, Path]]:
    """One fresh repository per moment of a publication."""
    for number in itertools.count(*campaigns.stride()):
        root = before.with_name(f"moment-{number}")
        shutil.copytree(before, root)
        yield number, root
        shutil.rmtree(root)


def publish_new(root: Path) -> tuple[object, bool]:
    return publish(repository_in(root), NEW, NEW_GRAPH, "2026-02-01T00:00:00Z")


def assert_old_or_both(repository: Repository) -> None:
    shown = [manifest.revision for manifest in repository.revisions()]
    assert shown in ([OLD_REVISION], [NEW_REVISION, OLD_REVISION])
    for revision in shown:
        load_fake(repository, revision)


def assert_publishing_works(root: Path) -> None:
    publish_new(root)
    repository = repository_in(root)
    assert [manifest.revision for manifest in repository.revisions()] == [NEW_REVISION, OLD_REVISION]
    load_fake(repository, NEW_REVISION)
    assert unfinished_folders(repository) == []


def unfinished_folders(repository: Repository) -> list[Path]:
    return [
        folder
        for parent, commit_name in (("graphs", paths.GRAPH_COMMIT), ("revisions", paths.REVISION_COMMIT))
        for folder in (repository.folder / parent).iterdir()
        if not (folder / commit_name).exists()
    ]


@pytest.mark.campaign
def test_killed_at_any_moment_it_leaves_the_old_revision_or_both(before: Path) -> None:
    def killed_at(number: int, root: Path) -> Callable[[], None]:
        def body() -> None:
            with pytest.MonkeyPatch.context() as patch:
                Interruption(number, {"within", "after"}, lambda: os._exit(KILLED)).install(patch)
                publish_new(root)

        return body

    outcomes = []
    for number, root in copies_of(before):
        status = in_child(killed_at(number, root))
        repository = repository_in(root)
        assert_old_or_both(repository)
        outcomes.append(len(repository.revisions()))
        assert_publishing_works(root)
        if status == 0:
            break
        assert status == KILLED
    assert outcomes == sorted(outcomes), "once published, always published"
    assert outcomes.count(1) > campaigns.whole_or(100, 20)
    assert outcomes.count(2) >= campaigns.whole_or(2, 1)


@pytest.mark.campaign
def test_a_disk_full_at_any_write_leaves_the_old_revision_or_both(before: Path) -> None:
    def disk_full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for number, root in copies_of(before):
        interruption = Interruption(number, {"before", "within"}, disk_full)
        with pytest.MonkeyPatch.context() as patch:
            interruption.install(patch)
            try:
                publish_new(root)
            except ResourceError as error:
                assert str(root) in str(error)
                assert "the disk or its quota is full" in str(error)
                assert "the published revisions are untouched" in str(error)
        assert_old_or_both(repository_in(root))
        assert_publishing_works(root)
        if not interruption.happened:
            break
    assert number > 100


def test_a_full_disk_leaves_no_unfinished_folder(before: Path) -> None:
    repository = repository_in(before)
    repository.put_graph(NEW_GRAPH)

    def quota_exceeded(*_: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "write", quota_exceeded)
        with pytest.raises(ResourceError), repository.stage(NEW, "bbbb") as staged:
            staged.write_variant("x1", weights(4))
    assert unfinished_folders(repository) == []
    load_fake(repository, OLD_REVISION)


def test_everything_is_on_the_disk_before_the_commit_appears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut keeps only what was synced: each file after its last byte, each folder after its last name."""
    unsynced: set[Path] = set()
    committed: list[str] = []
    opened: dict[int, Path] = {}
    create, write, sync = files.create, files.write, files.sync
    make_directory, rename = files.make_directory, files.rename

    def recorded_create(path: Path) -> int:
        descriptor = create(path)
        opened[descriptor] = path
        unsynced.update({path, path.parent})
        return descriptor

    def recorded_write(descriptor: int, data: memoryview) -> int:
        unsynced.add(opened[descriptor])
        return write(descriptor, data)

    def recorded_sync(path: Path) -> None:
        sync(path)
        unsynced.discard(path)

    def recorded_make_directory(path: Path) -> None:
        make_directory(path)
        unsynced.add(path.parent)

    def recorded_rename(source: Path, target: Path) -> None:
        assert unsynced == set(), f"{target.name} would be committed before these are safe"
        rename(source, target)
        committed.append(target.name)
        unsynced.add(target.parent)

    for recorded in (recorded_create, recorded_write, recorded_sync, recorded_make_directory, recorded_rename):
        monkeypatch.setattr(files, recorded.__name__.removeprefix("recorded_"), recorded)
    publish(repository_in(tmp_path / "root"), NEW, NEW_GRAPH)
    assert committed == [paths.GRAPH_COMMIT, paths.REVISION_COMMIT]
    assert unsynced == set()


def test_of_two_publishers_the_second_waits_and_finds_the_firsts_revision(before: Path) -> None:
    started_read, started_write = os.pipe()
    waiting_read, waiting_write = os.pipe()

    def first() -> None:
        repository = repository_in(before)
        repository.put_graph(NEW_GRAPH)
        with repository.locked(), repository.stage(NEW, "bbbb") as staged:
            os.write(started_write, b"1")
            assert os.read(waiting_read, 1) == b"2"
            write_features(staged, NEW_GRAPH.features, range(4))
            staged.write_variant("x1", weights(4))
            staged.write_variant("x2", weights(2))
            commit(staged, "2026-02-01T00:00:00Z")

    child = os.fork()
    if child == 0:
        status = 1
        try:
            first()
            status = 0
        finally:
            os._exit(status)
    assert os.read(started_read, 1) == b"1"
    manifest, published_here = publish(
        repository_in(before), NEW, NEW_GRAPH, on_wait=lambda: os.write(waiting_write, b"2") and None
    )
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not published_here
    assert (manifest.revision, manifest.created_at) == (NEW_REVISION, "2026-02-01T00:00:00Z")
    for descriptor in (started_read, started_write, waiting_read, waiting_write):
        os.close(descriptor)


def test_a_publisher_that_dies_frees_the_lock(before: Path) -> None:
    def die_inside() -> None:
        with repository_in(before).locked():
            os._exit(KILLED)

    assert in_child(die_inside) == KILLED
    assert publish_new(before)[1]


def test_nobody_waits_for_a_lock_that_is_free(before: Path) -> None:
    def never() -> None:
        raise AssertionError("the lock was free")

    publish(repository_in(before), NEW, NEW_GRAPH, on_wait=never)

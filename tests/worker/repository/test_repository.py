from __future__ import annotations

import hashlib
import io
import json
import mmap
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.generation.repository import (
    CLASSES,
    COLUMNS,
    FEATURES,
    NETWORK,
    NODES,
    RANKED,
    TABLE,
    build_fake,
    commit,
    load_fake,
    publish,
    repository_in,
    tiny_graph,
    tiny_profile,
    tiny_variants,
    weights,
    write_features,
)

from gnnserve_api.errors import (
    DamagedError,
    OutdatedError,
    RepositoryError,
    ResourceError,
    StorageError,
    words_in_cluster,
)
from gnnserve_api.files.links import EndManifest, LinksManifest
from gnnserve_api.files.profile import Profile
from gnnserve_api.files.provenance import provenance_of
from gnnserve_api.files.repository import (
    LATEST_SCHEMA_VERSION,
    GraphManifest,
    NodeIdKind,
    RevisionManifest,
    model_digest,
    sealed,
)
from gnnserve_api.files.repository_schema3 import RevisionManifest3
from gnnserve_api.variants import Storage
from gnnserve_worker.graph.ids import integer_ids, lay_out, string_ids
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.opening.revision import open_revision
from gnnserve_worker.repository import files, paths
from gnnserve_worker.repository.positions import Positions, PositionSurvey
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.repository.revision_files import StagedRevision
from gnnserve_worker.tables.formats import FORMATS

RECIPE = "0123456789abcdef"
REVISION = paths.revision_id(RECIPE, "aaaa")
SCHEMA3 = Path(__file__).with_name("revision_schema3.json")
ROWS = paths.rows_of(TABLE)
GRAPH = "graphs/aaaa"
PUBLISHED = f"revisions/{REVISION}"


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    repository = repository_in(tmp_path / "root")
    publish(repository, RECIPE)
    return repository


# --- publishing and loading


def test_a_loaded_revision_holds_what_was_published(repository: Repository) -> None:
    data = tiny_graph()
    loaded = load_fake(repository, REVISION)
    assert loaded.manifest == repository.find(RECIPE)
    assert (loaded.labels.classes, loaded.labels.multi_label) == (CLASSES, False)
    assert {variant.fanouts for variant in loaded.variants.values()} == {NETWORK.fanouts}
    np.testing.assert_array_equal(loaded.graph.indptr, data.graph.indptr)
    np.testing.assert_array_equal(loaded.graph.indices, data.graph.indices)
    np.testing.assert_array_equal(loaded.labels.values, data.labels)
    np.testing.assert_array_equal(loaded.labels.splits.train, data.splits.train)
    assert len(loaded.labels.splits.test) == 0
    table = loaded.variants["x1"].table
    assert (table.kind, table.storage, table.columns, table.own is table.rows) == ("features", "float32", 4, True)
    np.testing.assert_array_equal(table.rows.values, np.asarray(data.features)[:, RANKED])
    assert loaded.variants["x2"].table is table
    assert {name: variant.columns for name, variant in loaded.variants.items()} == COLUMNS
    np.testing.assert_array_equal(loaded.variants["x2"].network.tensors["weight"], weights(2)["weight"])


def test_loaded_arrays_are_mapped_and_read_only(repository: Repository) -> None:
    loaded = load_fake(repository, REVISION)
    rows = loaded.variants["x1"].table.rows.values
    for array in (loaded.graph.indptr, loaded.graph.indices, loaded.labels.values, loaded.labels.splits.train, rows):
        assert type(array) is np.ndarray
        assert isinstance(_root_of(array), mmap.mmap)
        assert not array.flags.writeable


def _root_of(array: np.ndarray) -> object:
    """What holds its bytes in the end."""
    found: Any = array
    while isinstance(found, np.ndarray | memoryview):
        found = found.base if isinstance(found, np.ndarray) else found.obj
    return found


def test_labels_of_several_classes_per_node_are_kept(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph(multi_label=True)
    loaded = load_fake(repository, publish(repository, RECIPE, data)[0].revision)
    assert loaded.labels.multi_label
    assert loaded.labels.values.dtype == np.uint8
    np.testing.assert_array_equal(loaded.labels.values, data.labels)


def test_sparse_features_become_a_table(tmp_path: Path) -> None:
    data = tiny_graph()
    repository = repository_in(tmp_path)
    repository.put_graph(data)
    with repository.stage(RECIPE, data.digest) as staged:
        write_features(staged, sp.csr_array(data.features), RANKED)
        staged.write_variant("x1", weights(4))
        loaded = open_revision(staged.files_of(tiny_variants(tiny_profile({"x1": 4}))), build_fake)
    rows = loaded.variants["x1"].table.rows
    np.testing.assert_array_equal(rows.values, np.asarray(data.features)[:, RANKED])


def test_a_staged_revision_opens_before_it_is_published(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    with repository.stage(RECIPE, data.digest) as staged:
        assert staged.revision == REVISION
        write_features(staged, data.features, RANKED)
        for name, columns in COLUMNS.items():
            staged.write_variant(name, weights(columns))
        assert open_revision(staged.files_of(tiny_variants(tiny_profile())), build_fake).manifest is None
        assert repository.revisions() == []
        commit(staged, "2026-01-01T00:00:00Z")
    assert [found.revision for found in repository.revisions()] == [REVISION]


def test_the_revision_lists_every_file_with_its_digest(repository: Repository) -> None:
    folder = repository.folder / PUBLISHED
    on_disk = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    manifest = repository.find(RECIPE)
    assert manifest is not None
    assert set(manifest.files) == on_disk - {paths.REVISION_COMMIT}
    assert all(files.entry_of(folder / name) == entry for name, entry in manifest.files.items())


def test_a_graph_is_put_once(repository: Repository) -> None:
    commit_file = repository.folder / GRAPH / paths.GRAPH_COMMIT
    before = commit_file.stat()
    manifest = repository.put_graph(tiny_graph())
    assert commit_file.stat().st_mtime_ns == before.st_mtime_ns
    assert commit_file.stat().st_ino == before.st_ino
    assert (manifest.nodes, manifest.edges, manifest.features) == (NODES, 7, FEATURES)
    assert (manifest.train_nodes, manifest.validation_nodes, manifest.test_nodes) == (3, 1, 0)


def test_arrays_are_plain_npy_files(tmp_path: Path) -> None:
    for number, array in enumerate([np.arange(5), np.zeros((0,), np.int64), np.ones((3, 2), np.uint8).T]):
        path = tmp_path / f"{number}.npy"
        entry = files.write_array(path, array)
        np.testing.assert_array_equal(np.load(path, allow_pickle=False), array)
        assert entry == files.entry_of(path)


def test_large_arrays_are_written_in_pieces_that_end_at_multiples_of_their_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that every huge page of the file is written at once, and the page cache makes it one."""
    written: list[int] = []

    def recorded(descriptor: int, data: memoryview) -> int:
        written.append(len(data))
        return write(descriptor, data)

    write = files.write
    monkeypatch.setattr(files, "write", recorded)
    monkeypatch.setattr(files, "_CHUNK_BYTES", 256)
    array = np.arange(150, dtype=np.int32)

    entry = files.write_array(tmp_path / "a.npy", array)

    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
    assert entry == files.entry_of(tmp_path / "a.npy")
    assert written == [256, 256, 128 + 600 - 512]


# --- the ids of the source

NAMES = ("user-17", "", "Zoë", "𝄞", "a,b", "x" * 5000)
IDS = {
    "texts": string_ids(*lay_out(NAMES)),
    "integers": integer_ids(np.array([10**12, -5, 0, 7, 2**63 - 1, -(2**63)])),
}
ID_FILES = {"texts": ["ids.npy", "id_offsets.npy", "id_slots.npy"], "integers": ["ids.npy", "id_slots.npy"]}


def named_graph(kind: str) -> GraphData:
    return replace(tiny_graph().with_ids(IDS[kind]), classes=("cat", "dog"))


@pytest.fixture(params=IDS)
def named(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Repository, str]:
    repository = repository_in(tmp_path / "root")
    publish(repository, RECIPE, named_graph(request.param))
    return repository, request.param


def test_ids_are_kept_mapped_and_find_their_nodes(named: tuple[Repository, str]) -> None:
    repository, kind = named
    expected, loaded = IDS[kind], load_fake(repository, REVISION)
    ids = loaded.ids.asked
    assert ids is not None
    assert (ids.kind, len(ids), loaded.labels.classes) == (expected.kind, NODES, ("cat", "dog"))
    assert ids.shown(0, NODES) == expected.shown(0, NODES)
    for array in (ids.values, ids.slots, *([ids.offsets] if kind == "texts" else [])):
        assert isinstance(_root_of(array), mmap.mmap)
        assert not array.flags.writeable
    if kind == "texts":
        assert ids.find_texts([NAMES[3], "nobody", NAMES[1]]).tolist() == [3, -1, 1]
    else:
        assert ids.find_integers(np.array([7, 8, -5])).tolist() == [3, -1, 1]


def test_a_graph_with_ids_lists_their_files(named: tuple[Repository, str]) -> None:
    repository, kind = named
    folder = repository.folder / GRAPH
    manifest = msgspec.json.decode((folder / paths.GRAPH_COMMIT).read_bytes(), type=GraphManifest)
    assert (manifest.schema_version, manifest.node_ids) == (3, IDS[kind].kind)
    assert set(manifest.files) == {*paths.GRAPH_FILES, *ID_FILES[kind]}
    assert {path.name for path in folder.iterdir()} == {paths.GRAPH_COMMIT, *manifest.files}


def test_ids_that_were_altered_or_are_gone_are_refused_by_name(named: tuple[Repository, str]) -> None:
    repository, kind = named
    graph = repository.folder / GRAPH
    kept = {name: (graph / name).read_bytes() for name in (*ID_FILES[kind], paths.GRAPH_COMMIT)}
    for name in ID_FILES[kind]:
        flip_last_byte(graph / name)
        with pytest.raises(DamagedError, match=rf"{name}: was altered: its SHA-256 is"):
            load_fake(repository, REVISION)
        (graph / name).unlink()
        with pytest.raises(DamagedError, match=rf"{name}: is missing"):
            load_fake(repository, REVISION)
        (graph / name).write_bytes(kept[name])
        resealed(lambda content, name=name: content["files"].pop(name))(graph / paths.GRAPH_COMMIT)
        with pytest.raises(DamagedError, match=f"does not list {name}, expected it with its size and digest"):
            load_fake(repository, REVISION)
        overwrite(graph / paths.GRAPH_COMMIT, kept[paths.GRAPH_COMMIT])
    assert load_fake(repository, REVISION)


def replace_sealed(graph: Path, name: str, array: np.ndarray) -> None:
    """By a generator that wrote it wrong and sealed it."""
    (graph / name).unlink()
    listed = {name: msgspec.to_builtins(files.write_array(graph / name, array))}
    resealed(lambda content: content["files"].update(listed))(graph / paths.GRAPH_COMMIT)


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("indices.npy", {2: NODES}, "indices.npy: holds 6 at position 2, expected 0 to 5"),
        ("indices.npy", {6: 2**31 - 1}, "indices.npy: holds 2,147,483,647 at position 6, expected 0 to 5"),
        ("indices.npy", {0: -1}, "indices.npy: holds -1 at position 0, expected 0 to 5"),
        ("indptr.npy", {3: 9}, "indptr.npy: holds 9 at position 3, expected 0 to 7"),
        ("indptr.npy", {2: 1}, "indptr.npy: holds a value that is less than the one before it"),
        ("indptr.npy", {0: 1}, "indptr.npy: begins with 1, expected 0"),
        ("indptr.npy", {6: 6}, "indptr.npy: ends with 6, expected 7"),
        ("train.npy", {0: 6}, "train.npy: holds 6 at position 0, expected 0 to 5"),
        ("validation.npy", {0: -1}, "validation.npy: holds -1 at position 0, expected 0 to 5"),
    ],
)
def test_positions_out_of_range_are_refused_though_they_are_sealed(
    repository: Repository, name: str, change: dict[int, int], problem: str
) -> None:
    graph = repository.folder / GRAPH
    array = np.load(graph / name)
    for position, value in change.items():
        array[position] = value
    replace_sealed(graph, name, array)
    with pytest.raises(DamagedError, match=r"so it was written wrong; delete") as refused:
        load_fake(repository, REVISION)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        (0, "id_slots.npy: holds no -1, expected at least one: where a search ends"),
        (NODES, "id_slots.npy: holds 6 at position 0, expected -1 to 5"),
        (-2, "id_slots.npy: holds -2 at position 0, expected -1 to 5"),
    ],
)
def test_slots_in_which_a_search_would_not_end_are_refused(
    named: tuple[Repository, str], values: int, problem: str
) -> None:
    repository, _ = named
    graph = repository.folder / GRAPH
    replace_sealed(graph, paths.ID_SLOTS, np.full_like(np.load(graph / paths.ID_SLOTS), values))
    with pytest.raises(DamagedError) as refused:
        load_fake(repository, REVISION)
    assert problem in str(refused.value)


def test_survey_in_parts_finds_what_lies_between_them() -> None:
    rising = Positions(np.dtype(np.int64), 0, 9, is_rising=True, last=9)
    for parts, problem in [
        ([[0, 3], [3, 9]], None),
        ([[0, 3], [2, 9]], "holds a value that is less than the one before it, expected rising ones"),
        ([[0, 3], [8, 10]], "holds 10 at position 3, expected 0 to 9"),
        ([[0, 3], [8, 8]], "ends with 8, expected 9"),
    ]:
        survey = PositionSurvey(rising)
        for part in parts:
            survey.add(np.array(part))
        assert survey.problem() == problem


def test_ids_of_another_length_than_the_graph_are_refused(named: tuple[Repository, str]) -> None:
    """By whoever sealed such a thing."""
    repository, kind = named
    graph = repository.folder / GRAPH
    for name in ID_FILES[kind]:
        before = {path: (graph / path).read_bytes() for path in (name, paths.GRAPH_COMMIT)}
        (graph / name).unlink()
        entry = files.write_array(graph / name, np.load(io.BytesIO(before[name]))[:-1])
        listed = {name: msgspec.to_builtins(entry)}
        resealed(lambda content, listed=listed: content["files"].update(listed))(graph / paths.GRAPH_COMMIT)
        with pytest.raises(DamagedError, match=r"holds .* expected"):
            load_fake(repository, REVISION)
        for path, content in before.items():
            overwrite(graph / path, content)
    assert load_fake(repository, REVISION)


# --- finding


def test_an_absent_repository_is_empty_and_stays_absent(tmp_path: Path) -> None:
    repository = repository_in(tmp_path / "root")
    assert repository.revisions() == []
    assert repository.find(RECIPE) is None
    assert repository.find(RECIPE, "aaaa") is None
    assert not (tmp_path / "root").exists()


def test_the_newest_revision_of_a_recipe_is_found(tmp_path: Path) -> None:
    repository = repository_in(tmp_path)
    newer, _ = publish(repository, RECIPE, tiny_graph("bbbb"), "2026-03-01T00:00:00Z")
    older, _ = publish(repository, RECIPE, tiny_graph("aaaa"), "2026-02-01T00:00:00Z")
    other, _ = publish(repository, "another", tiny_graph("aaaa"), "2026-04-01T00:00:00Z")
    assert repository.revisions() == [other, newer, older]
    assert repository.find(RECIPE) == newer
    assert repository.find(RECIPE, "aaaa") == older
    assert repository.find(RECIPE, "cccc") is None
    assert repository.find("unknown") is None


def test_services_do_not_see_each_other(repository: Repository, tmp_path: Path) -> None:
    assert Repository(tmp_path / "root", "default", "other").revisions() == []
    assert Repository(tmp_path / "root", "other", "digits").revisions() == []


def test_a_broken_revision_hides_no_good_one(repository: Repository) -> None:
    broken, _ = publish(repository, "another")
    commit_file = repository.folder / "revisions" / broken.revision / paths.REVISION_COMMIT
    overwrite(commit_file, b"{")
    assert repository.find(RECIPE) is not None
    assert repository.find(RECIPE, "aaaa") is not None
    for search in (
        repository.revisions,
        lambda: repository.find("another"),
        lambda: repository.find("another", "aaaa"),
    ):
        with pytest.raises(RepositoryError) as refused:
            search()
        assert refused.value.path == str(commit_file)


@pytest.mark.parametrize("name", ["..", "a/b", "", ".hidden"])
def test_names_cannot_leave_the_repository(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="safe"):
        Repository(tmp_path, "default", name)
    with pytest.raises(RepositoryError, match="no such revision"):
        load_fake(repository_in(tmp_path), name)


# --- misuse


def test_staging_what_is_published_is_a_programming_error(repository: Repository) -> None:
    with pytest.raises(RuntimeError, match="already published"), repository.stage(RECIPE, "aaaa"):
        pass
    assert load_fake(repository, REVISION)


def test_staging_without_its_graph_is_a_programming_error(repository: Repository) -> None:
    with pytest.raises(RuntimeError, match="call put_graph"), repository.stage(RECIPE, "bbbb"):
        pass


def test_a_profile_of_other_variants_is_not_published(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    with pytest.raises(RuntimeError, match=r"x2/weights\.safetensors"), repository.stage(RECIPE, "aaaa") as staged:
        write_features(staged, data.features, RANKED)
        staged.write_variant("x1", weights(4))
        commit(staged, "2026-01-01T00:00:00Z")
    assert repository.revisions() == []


@pytest.mark.parametrize("ends", ["with an error", "without commit"])
def test_unfinished_work_is_removed_when_its_block_ends(repository: Repository, ends: str) -> None:
    def stop() -> None:
        if ends == "with an error":
            raise KeyboardInterrupt

    def work() -> None:
        with repository.stage("another", "aaaa") as staged:
            staged.write_variant("x1", weights(4))
            stop()

    if ends == "with an error":
        with pytest.raises(KeyboardInterrupt):
            work()
    else:
        work()
    assert [folder.name for folder in (repository.folder / "revisions").iterdir()] == [REVISION]


# --- altered files

LISTED = [
    *(f"{GRAPH}/{name}" for name in paths.GRAPH_FILES),
    f"{PUBLISHED}/{ROWS}",
    f"{PUBLISHED}/variants/x1/weights.safetensors",
    f"{PUBLISHED}/variants/x2/weights.safetensors",
]


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)  # published files are read-only
    path.write_bytes(data)


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    overwrite(path, bytes(data))


def truncate(path: Path) -> None:
    overwrite(path, path.read_bytes()[:-1])


ALTERATIONS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (Path.unlink, "is missing, expected"),
    "truncated": (truncate, "bytes, expected"),
    "extended": (lambda path: overwrite(path, path.read_bytes() + b"\0"), "bytes, expected"),
    "empty": (lambda path: overwrite(path, b""), "has 0 bytes, expected"),
    "altered in one bit": (flip_last_byte, "was altered: its SHA-256 is"),
}


@pytest.mark.parametrize("name", LISTED)
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_an_altered_file_is_refused_by_name(repository: Repository, name: str, alteration: str) -> None:
    alter, problem = ALTERATIONS[alteration]
    path = repository.folder / name
    alter(path)
    with pytest.raises(RepositoryError) as refused:
        load_fake(repository, REVISION)
    text = str(refused.value)
    assert text.startswith(f"{path}: ")
    assert problem in text
    assert f"the folder {repository.folder / PUBLISHED}, and generate again" in text
    assert (str(repository.folder / GRAPH) in text.partition("delete")[2]) == name.startswith("graphs")


@pytest.mark.parametrize("name", LISTED)
def test_following_the_remedy_repairs_the_repository(repository: Repository, name: str) -> None:
    flip_last_byte(repository.folder / name)
    with pytest.raises(RepositoryError) as refused:
        load_fake(repository, REVISION)
    for folder in (GRAPH, PUBLISHED):
        if f"the folder {repository.folder / folder}" in str(refused.value):
            shutil.rmtree(repository.folder / folder)
    _, published_again = publish(repository, RECIPE)
    assert published_again
    assert load_fake(repository, REVISION)


def edited(change: Callable[[dict], object]) -> Callable[[Path], object]:
    def edit(path: Path) -> None:
        content = json.loads(path.read_text())
        change(content)
        overwrite(path, json.dumps(content).encode())

    return edit


def resealed(change: Callable[[dict], object]) -> Callable[[Path], object]:
    """As somebody would who wrote the checksum anew: what else protects then?"""

    def edit(path: Path) -> None:
        edited(change)(path)
        kind = GraphManifest if path.name == paths.GRAPH_COMMIT else RevisionManifest
        overwrite(path, msgspec.json.encode(sealed(msgspec.json.decode(path.read_bytes(), type=kind))))

    return edit


def rename_entry(new: str) -> Callable[[dict], object]:
    return lambda content: content["files"].update({new: content["files"].pop(next(iter(content["files"])))})


BROKEN_COMMITS = [
    pytest.param(
        PUBLISHED, lambda path: overwrite(path, b"{"), "is not valid JSON, 1 bytes", id="a truncated revision.json"
    ),
    pytest.param(PUBLISHED, lambda path: overwrite(path, b""), "is not valid JSON, 0 bytes", id="an empty one"),
    pytest.param(PUBLISHED, lambda path: overwrite(path, b"\xff\xfe{}"), "is not valid JSON", id="no text at all"),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c["variants"][0]["network"].update(hidden="8")),
        "does not fit schemaVersion 4: Expected `int`, got `str` - at `$.variants[0].network.hidden`",
        id="a field of another type",
    ),
    pytest.param(
        PUBLISHED, edited(lambda c: c.pop("tables")), "missing required field `tables`", id="a field that is missing"
    ),
    pytest.param(PUBLISHED, edited(lambda c: c.update(extra=1)), "unknown field `extra`", id="a field nobody knows"),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c.update(schemaVersion=LATEST_SCHEMA_VERSION + 1, layout="new")),
        f"reads up to {LATEST_SCHEMA_VERSION}: it was written by a newer gnnserve; upgrade gnnserve",
        id="a revision of a newer gnnserve",
    ),
    pytest.param(
        GRAPH,
        edited(lambda c: c.update(schemaVersion=7, layout="new")),
        "written by a newer gnnserve; upgrade gnnserve",
        id="a graph of a newer gnnserve",
    ),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c.update(revision="ffff")),
        f"describes revision 'ffff', expected '{REVISION}' as its folder is named",
        id="a copy under another name",
    ),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c["files"].pop("variants/x2/weights.safetensors")),
        "does not list variants/x2/weights.safetensors",
        id="weights that are not listed",
    ),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c["tables"][TABLE]["rows"].update(values="tables/other.npy")),
        "does not list tables/other.npy",
        id="a table that is not listed",
    ),
    pytest.param(
        PUBLISHED, edited(lambda c: c["profile"].update(variants=[])), "lists no variant", id="a profile of nothing"
    ),
    pytest.param(
        PUBLISHED,
        edited(rename_entry("../../graphs/aaaa/labels.npy")),
        "lists '../../graphs/aaaa/labels.npy', expected files inside its own folder",
        id="a file outside of the folder",
    ),
    pytest.param(PUBLISHED, edited(rename_entry("/etc/passwd")), "lists '/etc/passwd'", id="an absolute path"),
    pytest.param(GRAPH, edited(rename_entry("a/../b")), "lists 'a/../b'", id="a detour"),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c.update(graph="../revisions")),
        "graph '../revisions' is not the name of a folder",
        id="a graph outside of the folder",
    ),
    pytest.param(
        GRAPH, edited(lambda c: c.update(classes=[3, 9])), "was altered: its checksum is", id="another class in place"
    ),
    pytest.param(
        PUBLISHED,
        edited(lambda c: c["variants"][0].update(fanouts=[0, 0])),
        "was altered: its checksum",
        id="senseless fanouts",
    ),
    pytest.param(PUBLISHED, edited(lambda c: c.pop("checksum")), "its checksum is ''", id="a checksum taken out"),
    pytest.param(
        GRAPH, edited(lambda c: c["files"].pop("test.npy")), "does not list test.npy", id="a split that is not listed"
    ),
]


@pytest.mark.parametrize(("folder", "alter", "problem"), BROKEN_COMMITS)
def test_a_broken_commit_file_is_refused_by_name(
    repository: Repository, folder: str, alter: Callable[[Path], object], problem: str
) -> None:
    path = repository.folder / folder / (paths.GRAPH_COMMIT if folder == GRAPH else paths.REVISION_COMMIT)
    alter(path)
    with pytest.raises(RepositoryError) as refused:
        load_fake(repository, REVISION)
    assert str(refused.value).startswith(f"{path}: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("folder", "name", "change", "problem"),
    [
        pytest.param(GRAPH, "labels.npy", {"nodes": 7}, "expected int64 [8]", id="more nodes than the arrays have"),
        pytest.param(GRAPH, "indptr.npy", {"edges": 6}, "holds 7 at position 6, expected 0 to 6", id="fewer edges"),
        pytest.param(GRAPH, "labels.npy", {"multiLabel": True}, "expected uint8 [6, 2]", id="labels of another kind"),
    ],
)
def test_arrays_that_contradict_their_manifest_are_refused(
    repository: Repository, folder: str, name: str, change: dict, problem: str
) -> None:
    resealed(lambda content: content.update(change))(repository.folder / folder / paths.GRAPH_COMMIT)
    with pytest.raises(RepositoryError, match=r"\.npy: ") as refused:
        load_fake(repository, REVISION)
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        pytest.param(5, "features-float32.npy: holds 4 columns, and x1 is to read 5 of them", id="a table too narrow"),
        pytest.param(
            3, "x1/weights.safetensors: does not hold the weights of x1: tensor", id="weights of another width"
        ),
    ],
)
def test_variants_that_contradict_their_files_are_refused(repository: Repository, columns: int, problem: str) -> None:
    path = repository.folder / PUBLISHED / paths.REVISION_COMMIT
    resealed(lambda content: content["variants"][0].update(columns=columns))(path)
    with pytest.raises(RepositoryError) as refused:
        load_fake(repository, REVISION)
    assert problem in str(refused.value)


def test_a_revision_without_its_graph_says_so(repository: Repository) -> None:
    (repository.folder / GRAPH).rename(repository.folder / "elsewhere")
    with pytest.raises(RepositoryError, match=r"graphs/aaaa: the graph of this revision is missing"):
        load_fake(repository, REVISION)


def test_an_unknown_revision_lists_the_published_ones(repository: Repository) -> None:
    with pytest.raises(RepositoryError, match=f"no such revision, published are: {REVISION}"):
        load_fake(repository, "ffff")


# --- space


def test_a_lack_of_space_is_known_before_anything_is_written(tmp_path: Path) -> None:
    repository = repository_in(tmp_path / "root")
    repository.require_free(1)
    with pytest.raises(ResourceError, match=r"root/default/digits: the disk or its quota is full"):
        repository.require_free(1 << 60)
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("closed", ["root", "root/default", "root/default/digits", "root/default/digits/revisions"])
def test_a_folder_that_may_not_be_written_is_known_before_long_work(
    closed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a pod whose user a platform chose, on a volume of another user's."""
    repository = repository_in(tmp_path / "root")
    (tmp_path / closed).mkdir(parents=True)
    repository.require_writable()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path / closed and may(path, mode))
    with pytest.raises(StorageError) as refused:
        repository.require_writable()
    told = words_in_cluster(refused.value)
    assert told.startswith(f"{repository.folder}: cannot be written: Permission denied; the published revisions are")
    assert f"runs as user {os.geteuid()} and group {os.getegid()}" in told
    assert f"{tmp_path / closed} belongs to user {os.geteuid()}" in told
    assert "by chmod or chown (in a cluster, fsGroup does so" in told


def test_a_table_that_does_not_fit_is_refused_before_it_is_written(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted_bytes = NODES * FEATURES * 4
    monkeypatch.setattr(files, "free_bytes", lambda _: wanted_bytes - 1)
    with pytest.raises(ResourceError) as refused, repository.stage("another", "aaaa") as staged:
        write_features(staged, tiny_graph().features, RANKED)
    assert str(refused.value).startswith(
        f"{repository.folder / 'revisions' / paths.revision_id('another', 'aaaa') / ROWS}: the disk or its "
        f"quota is full: {wanted_bytes} bytes wanted, {wanted_bytes - 1} bytes free; the published revisions are "
        "untouched"
    )


def test_a_graph_that_does_not_fit_is_refused_before_it_is_written(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "free_bytes", lambda _: 10)
    with pytest.raises(ResourceError, match="bytes wanted, 10 bytes free"):
        repository.put_graph(tiny_graph("bbbb"))
    assert not (repository.folder / "graphs" / "bbbb").exists()


def test_a_folder_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("")
    with pytest.raises(ResourceError, match="root: cannot be written: it is a file, expected a folder"):
        publish(repository_in(tmp_path / "root"), RECIPE)


def test_published_files_are_read_only(repository: Repository) -> None:
    published = [path for path in repository.folder.rglob("*") if path.is_file() and path.name != ".lock"]
    assert len(published) > len(LISTED)
    assert {path.stat().st_mode & 0o222 for path in published} == {0}


# --- tables


def _stage_tables(staged: StagedRevision, storage: Storage) -> tuple[np.ndarray, np.ndarray]:
    """One table of features and one that is projected, and what is in the latter."""
    rows, own = np.linspace(-3, 3, NODES * 5).reshape(NODES, 5), np.linspace(7, -7, NODES * 5).reshape(NODES, 5)
    write_features(staged, tiny_graph().features, RANKED, storage)
    staged.write_table("projected", "projected", storage, 5, [rows[:2], rows[2:]], [own[:5], own[5:]])
    return rows, own


def _profile(storage: Storage, *names: str) -> Profile:
    """Of `x1`, over a table of features, and `projected`; of those that are named, where any are."""
    (like,) = tiny_profile({"x1": 4}).variants
    x1 = msgspec.structs.replace(like, table=f"features-{storage}", storage=storage)
    projected = msgspec.structs.replace(
        like, name="projected", table="projected", columns=5, storage=storage, compute="bfloat16", projected=True
    )
    wanted = tuple(variant for variant in (x1, projected) if not names or variant.name in names)
    return msgspec.structs.replace(tiny_profile(), variants=wanted)


@pytest.mark.parametrize("storage", list(Storage))
def test_tables_of_every_storage_come_back_as_they_were_encoded(tmp_path: Path, storage: Storage) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    with repository.stage(RECIPE, data.digest) as staged:
        rows, own = _stage_tables(staged, storage)
        profile = _profile(storage)
        for variant in profile.variants:
            staged.write_variant(variant.name, weights(variant.columns))
        commit(staged, "2026-01-01T00:00:00Z", profile)
    loaded = load_fake(repository, REVISION).variants
    assert [(v.table.kind, v.table.storage, v.table.columns) for v in loaded.values()] == [
        ("features", storage, 4),
        ("projected", storage, 5),
    ]
    assert [(v.network.projected, v.network.compute) for v in loaded.values()] == [
        (False, "float32"),
        (True, "bfloat16"),
    ]
    stored = [
        (loaded["x1"].table.rows, np.asarray(data.features)[:, RANKED]),
        (loaded["projected"].table.rows, rows),
        (loaded["projected"].table.own, own),
    ]
    for found, wanted in stored:
        values, scales = FORMATS[storage].encode(wanted.astype(np.float32))
        np.testing.assert_array_equal(found.values[:, : wanted.shape[1]], values)
        assert found.values.shape == (NODES, FORMATS[storage].padded_columns(wanted.shape[1]))
        np.testing.assert_array_equal(found.scales, [] if scales is None else scales)


def test_of_a_table_that_is_not_worth_its_place_nothing_stays(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    with repository.stage(RECIPE, data.digest) as staged:
        rows, _ = _stage_tables(staged, Storage.INT8)
        profile = _profile(Storage.INT8)
        for variant in profile.variants:
            staged.write_variant(variant.name, weights(variant.columns))
        opened = open_revision(staged.files_of(tiny_variants(profile)), build_fake)
        staged.discard_weights(paths.weights_of("projected"))
        staged.discard_table("projected")
        manifest = commit(staged, "2026-01-01T00:00:00Z", _profile(Storage.INT8, "x1"))
    assert list(manifest.tables) == ["features-int8"]
    folder = repository.folder / PUBLISHED
    on_disk = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert on_disk == {*manifest.files, paths.REVISION_COMMIT}
    assert not (folder / "variants" / "projected").exists()
    # What has it mapped goes on reading it.
    table = opened.variants["projected"].table
    np.testing.assert_allclose(
        FORMATS[Storage.INT8].decode(table.rows.values, table.rows.scales)[:, :5], rows, atol=0.03
    )


def test_a_table_that_nobody_reads_is_not_published(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    with pytest.raises(RuntimeError, match=r"tables/projected\.npy"), repository.stage(RECIPE, "aaaa") as staged:
        _stage_tables(staged, Storage.FLOAT32)
        staged.write_variant("x1", weights(4))
        commit(staged, "2026-01-01T00:00:00Z", _profile(Storage.FLOAT32, "x1"))


def test_a_number_that_the_storage_cannot_hold_leaves_no_file(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    large = np.full((NODES, 4), 70_000.0, dtype=np.float32)
    with repository.stage(RECIPE, data.digest) as staged:
        with pytest.raises(ValueError, match="70,000 does not fit float16"):
            staged.write_table("t", "projected", Storage.FLOAT16, 4, [data.features], [large])
        folder = repository.folder / PUBLISHED
        assert [path for path in folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param({"columns": 6}, "holds float32 [6, 4], expected float32 [6, 8]", id="other columns"),
        pytest.param({"storage": "int8"}, "holds float32 [6, 4], expected int8 [6, 4]", id="another storage"),
        pytest.param({"kind": "projected"}, "holds 4 columns, and x2 is to read 2 of them", id="another kind"),
        pytest.param(
            {"own": {"values": "variants/x1/weights.safetensors", "scales": None}}, "cannot be opened", id="no array"
        ),
    ],
)
def test_tables_that_contradict_their_manifest_are_refused(repository: Repository, change: dict, problem: str) -> None:
    resealed(lambda content: content["tables"][TABLE].update(change))(
        repository.folder / PUBLISHED / paths.REVISION_COMMIT
    )
    with pytest.raises(DamagedError) as refused:
        load_fake(repository, REVISION)
    assert problem in str(refused.value)
    assert "generate again" in str(refused.value)


def test_a_variant_of_a_table_that_is_not_there_is_refused(repository: Repository) -> None:
    path = repository.folder / PUBLISHED / paths.REVISION_COMMIT
    resealed(lambda content: content["variants"][0].update(table="features-int8"))(path)
    with pytest.raises(DamagedError, match="has no table 'features-int8', expected it for variant x1"):
        load_fake(repository, REVISION)


# --- older schemas, given weights


@pytest.fixture
def old_revision(repository: Repository) -> str:
    """As version 1 left it, with a graph of version 1 beside it."""
    folder = repository.folder / "revisions" / "1db9abf53c03"
    folder.mkdir()
    (folder / paths.REVISION_COMMIT).write_text(
        json.dumps({"schemaVersion": 1, "revision": folder.name, "recipe": RECIPE, "table": "tables/features.npy"})
    )
    graph_file = repository.folder / GRAPH / paths.GRAPH_COMMIT
    resealed(lambda content: content.update(schemaVersion=1))(graph_file)
    return folder.name


def test_a_revision_of_an_older_gnnserve_is_left_alone_and_not_found(repository: Repository, old_revision: str) -> None:
    assert [found.revision for found in repository.revisions()] == [REVISION]
    found = repository.find(RECIPE, "aaaa")
    assert found is not None
    assert found.revision == REVISION
    shutil.rmtree(repository.folder / PUBLISHED)
    assert repository.find(RECIPE) is None
    assert repository.find(RECIPE, "aaaa") is None
    manifest, published_here = publish(repository, RECIPE)
    assert (manifest.revision, published_here) == (REVISION, True)
    assert (repository.folder / "revisions" / old_revision / paths.REVISION_COMMIT).is_file()
    assert load_fake(repository, REVISION).manifest == manifest


@pytest.mark.parametrize("version", [1, 2])
def test_a_graph_of_an_older_gnnserve_is_read_and_its_nodes_are_positions(repository: Repository, version: int) -> None:
    """As it was written then, without what came later: its files are the same, and large."""
    path = repository.folder / GRAPH / paths.GRAPH_COMMIT
    content = json.loads(path.read_text())
    del content["nodeIds"]
    content |= {"schemaVersion": version, "checksum": ""}
    content["checksum"] = hashlib.sha256(msgspec.json.encode(content)).hexdigest()
    overwrite(path, json.dumps(content, indent=2).encode())

    assert repository.put_graph(tiny_graph()).node_ids is NodeIdKind.POSITIONS
    loaded = load_fake(repository, REVISION)
    assert loaded.ids.asked is None
    assert loaded.labels.classes == CLASSES

    edited(lambda content: content.update(nodes=5))(path)
    with pytest.raises(DamagedError, match="was altered: its checksum is"):
        load_fake(repository, REVISION)


@pytest.mark.parametrize("embeddings_of", [None, "GraphSAGE"])
def test_links_are_read_with_a_field_that_is_not_written_any_more(
    repository: Repository, embeddings_of: str | None
) -> None:
    path = repository.folder / PUBLISHED / paths.REVISION_COMMIT
    content = json.loads(path.read_text())
    end = {"type": "", "start": 0, "end": NODES}
    content["links"] = {
        "decoder": "Dot", "dimensions": 2, "relation": "", "first": end, "second": end, "validationLinks": 1,
        "testLinks": 0, "weights": None, "embeddingsOf": embeddings_of,
    }  # fmt: skip
    content["checksum"] = ""
    content["checksum"] = hashlib.sha256(msgspec.json.encode(content)).hexdigest()
    overwrite(path, json.dumps(content, indent=2).encode())

    found = repository.find(RECIPE, "aaaa")
    assert found is not None
    assert repository.revisions() == [found]
    assert found.links is not None
    assert found.links.embeddings_of == embeddings_of


def test_links_are_written_as_earlier_releases_read_them() -> None:
    end = EndManifest("", 0, NODES)
    written = msgspec.to_builtins(LinksManifest("Dot", 2, "", end, end, 1, 0))
    assert set(written) == {
        "decoder", "dimensions", "relation", "first", "second", "validationLinks", "testLinks", "weights",
    }  # fmt: skip


def test_who_names_an_older_revision_is_told_what_to_do(repository: Repository, old_revision: str) -> None:
    with pytest.raises(
        OutdatedError,
        match=f"has schemaVersion 1, and this gnnserve reads 3 to {LATEST_SCHEMA_VERSION}: it was written by an older "
        "gnnserve; generate",
    ):
        load_fake(repository, old_revision)


@pytest.fixture
def schema3(repository: Repository) -> Path:
    """The repository's revision as the last gnnserve before schema version 4 described it."""
    path = repository.folder / PUBLISHED / paths.REVISION_COMMIT
    overwrite(path, SCHEMA3.read_bytes())
    return path


def test_a_revision_of_schema_3_is_found_and_served_as_it_was(repository: Repository, schema3: Path) -> None:
    before = msgspec.json.decode(schema3.read_bytes())["profile"]["variants"]
    found = repository.find(RECIPE, "aaaa")
    assert found is not None
    assert repository.revisions() == [found]
    assert found.schema_version == 3
    assert found.recipe == RECIPE
    assert found.row_source is None
    assert found.model == model_digest(found.variants, found.files) != ""
    assert [(made.name, made.family, made.table, made.columns, made.weights) for made in found.variants] == [
        (name, "pruned", TABLE, columns, f"variants/{name}/weights.safetensors") for name, columns in COLUMNS.items()
    ]
    assert {(made.fanouts, made.network, made.compute) for made in found.variants} == {((2, 2), NETWORK, "float32")}
    # What people and programs read of the profile is as it was.
    profile = msgspec.json.decode(msgspec.json.encode(found.profile))
    for measured, was in zip(profile["variants"], before, strict=True):
        assert measured | was == measured
    loaded = load_fake(repository, REVISION)
    assert [(v.columns, v.fanouts, v.network.columns) for v in loaded.variants.values()] == [
        (4, (2, 2), 4),
        (2, (2, 2), 2),
    ]
    assert provenance_of(found, "a test", 7, 3).network == NETWORK


def test_projected_variants_of_schema_3_are_of_their_family(schema3: Path) -> None:
    content = msgspec.json.decode(schema3.read_bytes())
    content["profile"]["variants"][1] |= {"name": "projected", "projected": True, "factor": 1}
    upgraded = msgspec.convert(content, RevisionManifest3).upgraded()
    assert [made.family for made in upgraded.variants] == ["pruned", "projected"]
    assert [measured.family for measured in upgraded.profile.variants] == ["pruned", "projected"]


def test_schema_3_without_an_entry_for_its_weights_is_refused(repository: Repository, schema3: Path) -> None:
    edited(lambda content: content["files"].pop("variants/x2/weights.safetensors"))(schema3)
    with pytest.raises(DamagedError, match=r"does not list variants/x2/weights\.safetensors"):
        load_fake(repository, REVISION)


def test_the_checksum_of_schema_3_is_of_what_stands_in_the_file(repository: Repository, schema3: Path) -> None:
    edited(lambda content: content["network"].update(hidden=9))(schema3)
    with pytest.raises(DamagedError, match="was altered: its checksum is"):
        load_fake(repository, REVISION)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            lambda content: content["variants"].reverse(),
            "has a profile of x1, x2, expected one of x2, x1",
            id="a profile of other variants",
        ),
        pytest.param(
            lambda content: content["variants"][0].update(fanouts=[3]),
            "has 1 fan-outs for variant x1, expected one for each of its 2 layers",
            id="fan-outs of another network",
        ),
        pytest.param(
            lambda content: content["variants"][0].update(thresholds=[0.5]),
            "has 1 thresholds for variant x1, expected one for each of its 2 classes",
            id="thresholds of other classes",
        ),
    ],
)
def test_variants_that_do_not_fit_are_refused(
    repository: Repository, change: Callable[[dict], object], message: str
) -> None:
    resealed(change)(repository.folder / PUBLISHED / paths.REVISION_COMMIT)
    with pytest.raises(DamagedError, match=message):
        load_fake(repository, REVISION)


def test_other_weights_for_the_same_recipe_and_graph_are_another_revision(tmp_path: Path) -> None:
    repository, data = repository_in(tmp_path), tiny_graph()
    repository.put_graph(data)
    made = {}
    for checkpoint in ("1" * 64, "2" * 64, None):
        with repository.stage(RECIPE, data.digest, checkpoint) as staged:
            write_features(staged, data.features, RANKED)
            for name, columns in COLUMNS.items():
                staged.write_variant(name, weights(columns))
            made[checkpoint] = commit(staged, "2026-01-01T00:00:00Z")
    assert len({manifest.revision for manifest in made.values()}) == 3
    for checkpoint, manifest in made.items():
        assert manifest.checkpoint == checkpoint
        assert repository.find(RECIPE, data.digest, checkpoint) == manifest
    assert repository.find(RECIPE, data.digest, "3" * 64) is None

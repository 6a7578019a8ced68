"""Public data sets: read from their published formats as torch_geometric reads them, and refused by file and value."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from tests.support.graphs.graphs import neighbours_of
from tests.support.graphs.published import (
    Files,
    Sample,
    benchmark_arrays,
    benchmark_files,
    citations,
    ogb_files,
    ogb_members,
    pickled_array,
    pickled_csr,
    planetoid_files,
    saint_files,
    sample,
    zipped,
)
from tests.support.machine.file_server import FileServer, file_server

from gnnserve_api.errors import InputError, ResourceError
from gnnserve_api.files.edges import Direction
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.published import OgbName, OgbSource, PygName, PygSource
from gnnserve_api.spec.service import GNNService
from gnnserve_worker.generation.pipeline import generate
from gnnserve_worker.graph.sources import ogb, raw
from gnnserve_worker.graph.sources.catalogue import CATALOGUE, GraphSaint, Planetoid
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.progress import Progress
from gnnserve_worker.repository.repository import Repository

with warnings.catch_warnings():  # torch warns of what torch_geometric does
    warnings.simplefilter("ignore")
    import torch_geometric.datasets as pyg

NOWHERE = Path("/nonexistent/downloads")
SAMPLE = sample()
SEVERAL = sample(several=True)
CITED = citations()


def _ogb(mirror: str | None, name: str = "ogbn-arxiv", **fields: Any) -> GraphSource:
    return GraphSource(ogb=OgbSource(name=OgbName(name), mirror=mirror, **fields))


def _pyg(mirror: str | None, name: str, **fields: Any) -> GraphSource:
    return GraphSource(pyg=PygSource(name=PygName(name), mirror=mirror, **fields))


def _put(folder: Path, files: Files) -> str:
    """The folder as a mirror."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder.as_uri()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with file_server() as running:
        yield running


# --- what is read

FORMATS = {
    "ogbn-arxiv": (_ogb, ogb_files(SAMPLE)),
    "ogbn-products": (_ogb, ogb_files(SAMPLE, "products", "sales_ranking")),
    "Flickr": (_pyg, saint_files(SAMPLE)),
    "Reddit2": (_pyg, saint_files(SAMPLE)),
    "Photo": (_pyg, benchmark_files(SAMPLE)),
    "CoauthorPhysics": (_pyg, benchmark_files(SAMPLE, "ms_academic_phy")),
}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_gives_the_graph_that_was_written(name: str, server: FileServer, tmp_path: Path) -> None:
    source, files = FORMATS[name]

    data = load_source(source(server.serve("mirror", files), name, direction="Directed"), tmp_path)

    loops_go = name in {"Photo", "CoauthorPhysics"}
    assert _edges(data) == {(i, j) for i, j in SAMPLE.edges.tolist() if i != j or not loops_go}
    np.testing.assert_array_equal(_dense(data), SAMPLE.features if not loops_go else SAMPLE.features > 0)
    np.testing.assert_array_equal(data.labels, SAMPLE.labels)
    assert data.classes == (0, 1, 2)
    assert data.ids is None
    assert data.graph.indptr.dtype == np.int64
    assert data.graph.indices.dtype == np.int32
    assert data.features.dtype == np.float32
    assert data.source == f"{'ogb' if source is _ogb else 'pyg'} {name} from {server.url}/mirror"
    splits = [ids.tolist() for ids in (data.splits.train, data.splits.validation, data.splits.test)]
    if loops_go:
        assert [len(ids) for ids in splits] == [7, 2, 3]  # 60/20/20 of 12
    else:
        assert splits == [sorted(ids.tolist()) for ids in (SAMPLE.train, SAMPLE.validation, SAMPLE.test)]


def _edges(data: GraphData) -> set[tuple[int, int]]:
    """From the node whose message it is to the node that reads it; each is there once."""
    edges = [(source, node) for node in range(data.graph.nodes) for source in neighbours_of(data.graph, node)]
    assert len(set(edges)) == len(edges)
    return set(edges)


def _dense(data: GraphData) -> np.ndarray:
    return data.features if isinstance(data.features, np.ndarray) else data.features.toarray()


@pytest.mark.parametrize("name", ["ogbn-arxiv", "Flickr", "Photo"])
def test_the_direction_says_which_end_reads(name: str, tmp_path: Path) -> None:
    source, files = FORMATS[name]
    mirror = _put(tmp_path, files)

    directed, reversed_, both = (
        _edges(load_source(source(mirror, name, direction=direction), NOWHERE))
        for direction in (Direction.DIRECTED, Direction.REVERSED, Direction.UNDIRECTED)
    )

    assert reversed_ == {(j, i) for i, j in directed}
    assert both == directed | reversed_
    assert directed != reversed_


def test_planetoid_puts_test_nodes_where_they_belong(tmp_path: Path) -> None:
    made = citations(isolated=(525, 531))

    data = load_source(_pyg(_put(tmp_path, planetoid_files(made, "citeseer")), "CiteSeer"), NOWHERE)

    expected = made.data.labels.copy()
    expected[[525, 531]] = -1
    np.testing.assert_array_equal(data.labels, expected)
    np.testing.assert_array_equal(_dense(data), made.data.features)
    assert data.splits.train.tolist() == list(range(9))
    assert data.splits.validation.tolist() == list(range(9, 509))
    assert data.splits.test.tolist() == sorted(made.listed.tolist())
    told = {finding.what: (finding.count, finding.example) for finding in data.findings}
    assert told["nodes without features and class"] == (2, "525")
    assert "self-loops removed" in told


@pytest.mark.parametrize("name", ["Yelp", "AmazonProducts"])
def test_several_classes_per_node(name: str, tmp_path: Path) -> None:
    data = load_source(_pyg(_put(tmp_path, saint_files(SEVERAL)), name), NOWHERE)

    assert data.multi_label
    assert data.labels.dtype == np.uint8
    np.testing.assert_array_equal(data.labels, SEVERAL.labels)
    assert data.classes == (0, 1, 2)


@pytest.mark.parametrize("made", [SAMPLE, SEVERAL], ids=["one class", "several classes"])
def test_classes_may_be_listed_in_any_order(made: Sample, tmp_path: Path) -> None:
    written = {str(node): made.labels[node].tolist() for node in reversed(range(made.nodes))}
    files = saint_files(made) | {"class_map.json": json.dumps(written).encode()}

    data = load_source(_pyg(_put(tmp_path, files), "Flickr"), NOWHERE)

    np.testing.assert_array_equal(data.labels, made.labels)


def test_classes_may_be_written_as_floats(tmp_path: Path) -> None:
    written = {str(node): row for node, row in enumerate(SEVERAL.labels.astype(float).tolist())}
    files = saint_files(SEVERAL) | {"class_map.json": json.dumps(written).encode()}

    data = load_source(_pyg(_put(tmp_path, files), "Yelp"), NOWHERE)

    np.testing.assert_array_equal(data.labels, SEVERAL.labels)


def test_nodes_without_a_class_are_in_no_split(tmp_path: Path) -> None:
    files = saint_files(SAMPLE)
    classes = json.loads(files["class_map.json"])
    left_out = int(SAMPLE.train[0])
    del classes[str(left_out)]
    saint = load_source(
        _pyg(_put(tmp_path / "saint", files | {"class_map.json": json.dumps(classes).encode()}), "Flickr"), NOWHERE
    )
    lines = ["nan" if node == left_out else str(label) for node, label in enumerate(SAMPLE.labels)]
    ogb = load_source(_ogb(_put(tmp_path / "ogb", ogb_files(SAMPLE, node_label="\n".join(lines) + "\n"))), NOWHERE)

    for data in (saint, ogb):
        assert data.labels[left_out] == -1
        assert data.splits.train.tolist() == sorted(set(SAMPLE.train.tolist()) - {left_out})
        assert ("nodes without a class", 1, str(left_out)) in {(f.what, f.count, f.example) for f in data.findings}


def test_what_happened_to_the_edges_is_told(tmp_path: Path) -> None:
    twice = replace(SAMPLE, edges=np.concatenate([SAMPLE.edges, SAMPLE.edges[:3]]))
    distinct = {tuple(edge) for edge in SAMPLE.edges.tolist()}

    data = load_source(_ogb(_put(tmp_path, ogb_files(twice))), NOWHERE)

    told = {finding.what: finding.count for finding in data.findings}
    assert told["duplicate edges merged"] == len(twice.edges) - len(distinct)
    assert told["edges added in the other direction"] == data.graph.edges - len(distinct)


def test_progress_counts_what_is_read(tmp_path: Path) -> None:
    told: list[Progress] = []

    load_source(_ogb(_put(tmp_path, ogb_files(SAMPLE))), NOWHERE, told.append)

    ends = {progress.stage: (progress.done, progress.total) for progress in told}
    assert ends == {"read raw/edge.csv.gz": (48, 48), "read raw/node-feat.csv.gz": (12, 12)}


# --- as torch_geometric reads them


def test_addresses_and_file_ids_are_those_of_torch_geometric(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each of its classes asks for is what is asked for here; when it moves, this notices."""
    makers: dict[PygName, Callable[[str], object]] = {
        PygName.FLICKR: pyg.Flickr, PygName.REDDIT2: pyg.Reddit2, PygName.YELP: pyg.Yelp,
        PygName.AMAZON_PRODUCTS: pyg.AmazonProducts,
        PygName.CORA: lambda root: pyg.Planetoid(root, "Cora"),
        PygName.CITESEER: lambda root: pyg.Planetoid(root, "CiteSeer"),
        PygName.PUBMED: lambda root: pyg.Planetoid(root, "PubMed"),
        PygName.COMPUTERS: lambda root: pyg.Amazon(root, "Computers"),
        PygName.PHOTO: lambda root: pyg.Amazon(root, "Photo"),
        PygName.COAUTHOR_CS: lambda root: pyg.Coauthor(root, "CS"),
        PygName.COAUTHOR_PHYSICS: lambda root: pyg.Coauthor(root, "Physics"),
    }  # fmt: skip
    assert set(makers) == set(PygName)
    asked: dict[str, str] = {}

    def note(url: str, folder: str, log: bool = True, filename: str | None = None) -> None:
        asked[filename or url.rpartition("/")[2]] = url

    class Stop(Exception):  # noqa: N818
        pass

    def stop(_: object) -> None:
        raise Stop

    monkeypatch.setattr("torch_geometric.data.download.download_url", note)
    monkeypatch.setattr("torch_geometric.datasets.amazon.download_url", note)
    monkeypatch.setattr("torch_geometric.datasets.coauthor.download_url", note)
    monkeypatch.setattr("torch_geometric.io.fs.cp", note)
    for read_by in (pyg.Flickr, pyg.Reddit2, pyg.Yelp, pyg.AmazonProducts, pyg.Planetoid, pyg.Amazon, pyg.Coauthor):
        monkeypatch.setattr(read_by, "process", stop)
    for name, make in makers.items():
        asked.clear()
        with pytest.raises(Stop):
            make(str(tmp_path / name))
        ours = {file.name: file.url for file in CATALOGUE[name].files}
        if isinstance(CATALOGUE[name], Planetoid):
            asked = {file: url for file, url in asked.items() if not file.endswith(".x")}  # all of it is in allx
        assert ours == asked, name


@pytest.mark.parametrize("name", ["Flickr", "Yelp", "Cora", "CiteSeer", "Photo", "CoauthorCS"])
def test_torch_geometric_reads_the_same_graph_from_the_same_files(name: str, tmp_path: Path) -> None:
    made = citations(isolated=(525,) if name == "CiteSeer" else ())
    files, raw, load = {
        "Flickr": (saint_files(SAMPLE), "raw", pyg.Flickr),
        "Yelp": (saint_files(SEVERAL), "raw", pyg.Yelp),
        "Cora": (planetoid_files(made, "cora"), "Cora/raw", lambda root: pyg.Planetoid(root, "Cora")),
        "CiteSeer": (planetoid_files(made, "citeseer"), "CiteSeer/raw", lambda root: pyg.Planetoid(root, "CiteSeer")),
        "Photo": (benchmark_files(SAMPLE), "Photo/raw", lambda root: pyg.Amazon(root, "Photo")),
        "CoauthorCS": (benchmark_files(SAMPLE, "ms_academic_cs"), "CS/raw", lambda root: pyg.Coauthor(root, "CS")),
    }[name]
    if name in {"Photo", "CoauthorCS"}:  # it reads no archive that has texts among the arrays as objects
        (file,) = files
        arrays = {key: value for key, value in benchmark_arrays(SAMPLE).items() if key != "node_names"}
        content = io.BytesIO()
        np.savez(content, **arrays)
        files = {file: content.getvalue()}
    mirror = _put(tmp_path / raw, files)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy's old names, which Planetoid's files have
        theirs = load(str(tmp_path))[0]

    # It makes the gnn-benchmark ones undirected itself, the others it leaves as they are.
    direction = "Undirected" if name in {"Photo", "CoauthorCS"} else "Directed"
    ours = load_source(_pyg(mirror, name, direction=direction), NOWHERE)

    assert _edges(ours) == set(map(tuple, theirs.edge_index.T.tolist()))
    np.testing.assert_array_equal(_dense(ours), theirs.x.numpy())
    known = ours.labels >= 0
    np.testing.assert_array_equal(ours.labels[known], theirs.y.numpy()[known])
    if hasattr(theirs, "train_mask"):
        for mask, ids in (
            (theirs.train_mask, ours.splits.train),
            (theirs.val_mask, ours.splits.validation),
            (theirs.test_mask, ours.splits.test),
        ):
            np.testing.assert_array_equal(np.flatnonzero(mask.numpy()), ids)


@pytest.mark.parametrize("name", ["Flickr", "Cora", "Photo"])
def test_an_undirected_published_graph_stays_as_it_is(name: str, tmp_path: Path) -> None:
    data = CITED.data if name == "Cora" else SAMPLE
    edges = data.edges[data.edges[:, 0] != data.edges[:, 1]]
    symmetric = replace(data, edges=np.concatenate([edges, edges[:, ::-1]]))
    write = {
        "Flickr": saint_files,
        "Cora": lambda data: planetoid_files(replace(CITED, data=data)),
        "Photo": benchmark_files,
    }[name]
    mirror = _put(tmp_path, write(symmetric))

    undirected, directed = (
        load_source(_pyg(mirror, name, direction=direction), NOWHERE) for direction in ("Undirected", "Directed")
    )

    np.testing.assert_array_equal(undirected.graph.indptr, directed.graph.indptr)
    np.testing.assert_array_equal(undirected.graph.indices, directed.graph.indices)


# --- where files come from


@pytest.mark.parametrize("inside", ["", "arxiv"])
def test_an_extracted_zip_is_as_good_as_the_zip(inside: str, tmp_path: Path) -> None:
    _put(tmp_path / "extracted", ogb_members(SAMPLE, "arxiv", "time"))
    zip_file = load_source(_ogb(_put(tmp_path / "zip", ogb_files(SAMPLE))), NOWHERE)

    data = load_source(_ogb((tmp_path / "extracted" / inside).as_uri()), NOWHERE)

    np.testing.assert_array_equal(data.graph.indices, zip_file.graph.indices)
    np.testing.assert_array_equal(data.features, zip_file.features)


def test_fetched_files_are_kept_and_used_without_a_network(tmp_path: Path) -> None:
    with file_server() as server:
        source = _pyg(server.serve("flickr", saint_files(SAMPLE)), "Flickr")
        first = load_source(source, tmp_path)

    again = load_source(source, tmp_path)

    np.testing.assert_array_equal(again.graph.indices, first.graph.indices)
    names = sorted(path.name for path in (tmp_path / "Flickr").iterdir() if not path.name.endswith(".fetched.json"))
    assert names == [".lock", "adj_full.npz", "class_map.json", "feats.npy", "role.json"]


@pytest.mark.parametrize("is_pinned", [True, False])
def test_files_that_another_service_replaces_while_they_are_read_are_not_used(
    is_pinned: bool, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, others = ogb_files(SAMPLE), ogb_files(sample(14))
    pins = [{"arxiv.zip": hashlib.sha256(each["arxiv.zip"]).hexdigest()} for each in (files, others)]
    mirror, other_mirror = server.serve("a", files), server.serve("b", others)
    read = ogb.read

    def slow_read(*args: Any) -> Any:
        monkeypatch.setattr(ogb, "read", read)
        load_source(_ogb(other_mirror, sha256=pins[1]), tmp_path)
        return read(*args)

    monkeypatch.setattr(ogb, "read", slow_read)

    with pytest.raises(ResourceError, match=r"arxiv\.zip: another process put another file in its place while it was"):
        load_source(_ogb(mirror, sha256=pins[0] if is_pinned else {}), tmp_path)


@pytest.mark.parametrize("kind", ["address", "folder"])
def test_the_mirror_of_the_environment_is_that_of_manifests_without_one(
    kind: str, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ogb_files(SAMPLE)
    own = server.serve("own", files)
    of_all = server.serve("all/ogbn-arxiv", files).removesuffix("/ogbn-arxiv")
    if kind == "folder":
        _put(tmp_path / "all/ogbn-arxiv", files)
        of_all = str(tmp_path / "all")
    monkeypatch.setenv("GNNSERVE_MIRROR", of_all)

    data = load_source(_ogb(None), tmp_path / "downloads")

    assert data.source == f"ogb ogbn-arxiv from {of_all}/ogbn-arxiv"
    assert load_source(_ogb(own), tmp_path / "downloads").source == f"ogb ogbn-arxiv from {own}"
    identity = source_digest(_ogb(None))
    assert (identity == source_digest(_ogb(own))) == (kind == "address"), "files of a folder are part of it"


def test_a_folder_of_the_environment_that_lacks_a_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GNNSERVE_MIRROR", str(tmp_path))
    with pytest.raises(InputError, match=rf"variable GNNSERVE_MIRROR: {tmp_path}/Flickr has no adj_full\.npz"):
        source_digest(_pyg(None, "Flickr"))


def test_a_name_with_a_slash_at_the_end_of_the_mirror_is_the_same(server: FileServer, tmp_path: Path) -> None:
    mirror = server.serve("deep/down", ogb_files(SAMPLE))

    load_source(_ogb(f"{mirror}/"), tmp_path)

    assert [fetched.path for fetched in server.fetched] == ["/deep/down/arxiv.zip"]


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path) -> None:
    with file_server() as gone:
        mirror = gone.url

    with pytest.raises(ResourceError, match=r"arxiv\.zip: cannot connect.*set spec\.graph\.source\.ogb\.mirror to"):
        load_source(_ogb(mirror), tmp_path)


def test_a_folder_that_lacks_a_file_is_refused_by_what_it_needs(tmp_path: Path) -> None:
    mirror = _put(tmp_path, {"adj_full.npz": b""})

    with pytest.raises(
        InputError, match=r"pyg\.mirror: .* has no feats\.npy; the folder needs adj_full\.npz, feats\.npy"
    ):
        source_digest(_pyg(mirror, "Flickr"))
    with pytest.raises(
        InputError, match=r"ogb\.mirror: .* has no arxiv\.zip, nor raw/edge\.csv\.gz, extracted from it"
    ):
        source_digest(_ogb(mirror))


# --- identity


def test_the_identity_needs_no_network_and_says_nothing_of_the_address() -> None:
    digests = {
        source_digest(_pyg(mirror, "Flickr")) for mirror in (None, "http://127.0.0.1:1/a", "https://mirror.invalid/b")
    }

    assert len(digests) == 1


def test_each_of_these_is_another_graph(tmp_path: Path) -> None:
    files = ogb_files(SAMPLE)
    other = ogb_files(SAMPLE, node_label="1\n" * 12)
    sources = [
        _ogb(None), _ogb(None, "ogbn-products"), _pyg(None, "Flickr"), _pyg(None, "Yelp"),
        _ogb(None, direction="Directed"), _ogb(None, direction="Reversed"),
        _ogb(None, sha256={"arxiv.zip": "0" * 64}), _ogb(None, sha256={"arxiv.zip": "1" * 64}),
        _ogb(_put(tmp_path / "a", files)), _ogb(_put(tmp_path / "b", other)),
    ]  # fmt: skip

    assert len({source_digest(source) for source in sources}) == len(sources)
    assert source_digest(_ogb(_put(tmp_path / "c", files))) == source_digest(_ogb((tmp_path / "a").as_uri()))


@pytest.mark.parametrize("member", ["raw/num-edge-list", "raw/node-feat", "split/time/test"])
def test_every_extracted_file_is_part_of_the_identity(member: str, tmp_path: Path) -> None:
    mirror = _put(tmp_path, ogb_members(SAMPLE, "arxiv", "time"))
    before = source_digest(_ogb(mirror))

    (tmp_path / f"arxiv/{member}.csv.gz").write_bytes(gzip.compress(b"3\n"))

    assert source_digest(_ogb(mirror)) != before


def test_pinned_files_of_a_folder_must_be_the_ones(tmp_path: Path) -> None:
    mirror = _put(tmp_path, saint_files(SAMPLE))

    with pytest.raises(InputError, match=r"pyg\.sha256\[feats\.npy\]: .* has SHA-256 [0-9a-f]{64}, expected 0000"):
        source_digest(_pyg(mirror, "Flickr", sha256={"feats.npy": "0" * 64}))


@pytest.mark.parametrize("mirror", ["folder", None])
def test_a_pin_of_no_file_is_refused(mirror: str | None, tmp_path: Path) -> None:
    given = None if mirror is None else _put(tmp_path, ogb_files(SAMPLE))

    with pytest.raises(InputError, match=r"ogb\.sha256: has arxiv\.tgz, which is not read; the files are arxiv\.zip"):
        source_digest(_ogb(given, sha256={"arxiv.tgz": "0" * 64}))


# --- what is refused


def _ogb_with(**replaced: str) -> Files:
    return ogb_files(SAMPLE, **replaced)


def _without(member: str) -> Files:
    members = ogb_members(SAMPLE, "arxiv", "time")
    del members[f"arxiv/{member}.csv.gz"]
    return {"arxiv.zip": zipped(members)}


def _cut_gzip() -> Files:
    members = ogb_members(SAMPLE, "arxiv", "time")
    members["arxiv/raw/edge.csv.gz"] = members["arxiv/raw/edge.csv.gz"][:-12]
    return {"arxiv.zip": zipped(members)}


@pytest.mark.parametrize(("files", "message"), [
    pytest.param({"arxiv.zip": b"PK\x03\x04 and no more"}, "cannot be read: File is not a zip file", id="no zip"),
    pytest.param({"arxiv.zip": ogb_files(SAMPLE)["arxiv.zip"][:-40]}, "cannot be read", id="a zip cut off"),
    pytest.param(_without("raw/edge"), "is not in the zip as arxiv/raw/edge.csv.gz", id="a member missing"),
    pytest.param(_cut_gzip(), "edge.csv.gz: cannot be read: Compressed file ended", id="gzip cut off"),
    pytest.param(_ogb_with(num_node_list="3\n4\n"), r"has \[3, 4\], expected the size of one graph", id="two graphs"),
    pytest.param(_ogb_with(num_edge_list="47\n"), "has 48 lines, expected 47, as raw/num-edge-list", id="an edge more"),
    pytest.param(_ogb_with(num_edge_list="49\n"), "has 48 lines, expected 49", id="an edge less"),
    pytest.param(_ogb_with(num_node_list="13\n"), r"node-label.csv.gz: has 12 lines, expected 13", id="a node less"),
    pytest.param(_ogb_with(num_node_list="900000000000\n"), "has 900,000,000,000 nodes; the limit is 2,147,483,647",
                 id="more nodes than there can be"),
    pytest.param(_ogb_with(num_node_list="2147483647\n"), "node-label.csv.gz: has 12 lines, expected 2,147,483,647",
                 id="more nodes than memory has room for"),
    pytest.param(_ogb_with(node_feat="1" * (64 << 20)), "node-feat.csv.gz: cannot be read: its first line is longer",
                 id="a file that is one line"),
    pytest.param(_ogb_with(node_feat="1,2\n" * 11), "node-feat.csv.gz: has 11 lines, expected 12",
                 id="a row of features less"),
    pytest.param(_ogb_with(edge="0,1\n5,12\n"), r"edge.csv.gz: line 2 is 5,12, expected nodes from 0", id="no node"),
    pytest.param(_ogb_with(edge="0,-1\n"), r"line 1 is 0,-1", id="a node below 0"),
    pytest.param(_ogb_with(edge="0,1,2\n"), "Expected 2 columns, got 3", id="three ends"),
    pytest.param(_ogb_with(edge="0,\n"), "invalid value ''", id="one end"),
    pytest.param(_ogb_with(edge="0,x\n"), "invalid value 'x'", id="a name for an end"),
    pytest.param(_ogb_with(edge="0,1.5\n"), "invalid value '1.5'", id="half a node"),
    pytest.param(_ogb_with(node_feat="1,2\n" * 11 + "1,nan\n"),
                 r"line 12 has nan in column 2, expected a finite float32", id="not a number"),
    pytest.param(_ogb_with(node_feat="1,2\n" * 11 + "1,1e39\n"), "line 12 has inf in column 2", id="too large"),
    pytest.param(_ogb_with(node_feat="1,2\n" * 11 + "1\n"), "Expected 2 columns, got 1", id="a feature missing"),
    pytest.param(_ogb_with(node_feat="1,2\n" * 13), "has more than 12 lines", id="features of no node"),
    pytest.param(_ogb_with(node_label="1\n" * 11), "has 11 lines, expected 12", id="a label less"),
    pytest.param(_ogb_with(node_label="1\n" * 11 + "1.5\n"), "line 12 is 1.5, expected a class", id="half a class"),
    pytest.param(_ogb_with(node_label="1\n" * 11 + "-1\n"), "line 12 is -1, expected a class", id="a class below 0"),
    pytest.param(_ogb_with(node_label="1\n" * 12), "distinct classes, found 1", id="one class"),
    pytest.param(_ogb_with(train="12\n"), "training nodes: have 12, expected 0 to 11", id="a split of no node"),
    pytest.param(_ogb_with(train="0\n1\n", valid="1\n", test="3\n"), "share 1 nodes, the first is 1", id="shared"),
    pytest.param(_ogb_with(train=""), "Empty CSV file", id="an empty split"),
])  # fmt: skip
def test_an_ogb_file_that_is_wrong_is_refused(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_source(_ogb(_put(tmp_path, files)), NOWHERE)


def _npz(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def _adjacency(change: Callable[[sp.csr_matrix], Any]) -> Files:
    matrix = SAMPLE.adjacency()
    change(matrix)
    parts = {part: getattr(matrix, part) for part in ("data", "indices", "indptr")}
    return {"adj_full.npz": _npz(**parts, shape=np.array(matrix.shape))}


def _npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def _json(**values: Any) -> dict[str, bytes]:
    return {"class_map.json": json.dumps({str(node): 1 for node in range(12)} | values).encode()}


FEATURES_WITH_NAN = SAMPLE.features.copy()
FEATURES_WITH_NAN[7, 2] = np.nan


@pytest.mark.parametrize(("replaced", "message"), [
    pytest.param(_adjacency(lambda m: m.indices.__setitem__(5, 12)), r"indices\[5\]: is 12, expected a node, 0 to 11",
                 id="an edge to no node"),
    pytest.param(_adjacency(lambda m: m.indptr.__setitem__(3, 99)), "indptr: must rise from 0 to", id="rows that fall"),
    pytest.param(_adjacency(lambda m: m.resize(12, 15)), "shape: is 12 × 15", id="not square"),
    pytest.param({"adj_full.npz": _npz(data=np.ones(1))}, "it has no indptr, only data", id="a member missing"),
    pytest.param({"adj_full.npz": b"PK\x03\x04"}, r"adj_full.npz: is not a readable \.npz", id="no archive"),
    pytest.param({"adj_full.npz": _npz(indptr=np.array(["a"], dtype=object))}, "indptr holds Python objects",
                 id="objects"),
    pytest.param({"feats.npy": _npy(np.array([None]))}, r"feats.npy: is not a readable \.npy", id="feature objects"),
    pytest.param({"feats.npy": _npy(SAMPLE.features)[:-8]}, r"feats.npy: is not a readable \.npy", id="cut off"),
    pytest.param({"feats.npy": _npy(SAMPLE.features[:-1])}, "expected a row for each of 12 nodes", id="a row missing"),
    pytest.param({"feats.npy": _npy(FEATURES_WITH_NAN)}, r"\[7, 2\]: is nan, expected a finite float32", id="nan"),
    pytest.param({"feats.npy": _npy(SAMPLE.features * np.float64(1e39))}, "expected a finite", id="too large"),
    pytest.param({"class_map.json": b"[1, 2]"}, "is not the JSON of this data set", id="no map of classes"),
    pytest.param({"class_map.json": b'{"1": 2'}, "is not the JSON of this data set", id="classes cut off"),
    pytest.param(_json(twelve=1), "a key: expected ids of nodes, integers", id="a name for a node"),
    pytest.param(_json(**{"12": 1}), "has the node 12, expected 0 to 11", id="a class of no node"),
    pytest.param(_json(**{"3": "x"}), "expected a class as an integer", id="a name for a class"),
    pytest.param(_json(**{"3": -1}), "3: is -1, expected a class from 0", id="a class below 0"),
    pytest.param(_json(**{"3": [1, 0]}), "expected a class as an integer", id="one list among numbers"),
    pytest.param(_json(**{"03": 2}), "has the node 3 2 times, expected it once", id="a class twice"),
    pytest.param({"class_map.json": json.dumps({f"{n}": [0, 1] for n in range(12)} | {"03": [1, 0]}).encode()},
                 "has the node 3 2 times", id="a list of classes twice"),
    pytest.param({"class_map.json": b'{"0": [0, 1]}'}, "has classes of 1 nodes, expected all 12", id="lists missing"),
    pytest.param({"class_map.json": json.dumps({str(n): [0, 1] if n else [1, 10] for n in range(12)}).encode()},
                 r"0: is \[1, 10\], expected a list of 2 numbers that are 0 or 1", id="ten of a class"),
    pytest.param({"class_map.json": json.dumps({str(n): [0, 1] if n < 11 else [0, 1, 1] for n in range(12)}).encode()},
                 r"11: is \[0, 1, 1\], expected a list of 2", id="a class more"),
    pytest.param({"class_map.json": json.dumps({str(n): [0, "x"] for n in range(12)}).encode()},
                 r'0: is \[0, "x"\], expected a list of 2', id="a name in a list"),
    pytest.param({"role.json": b'{"tr": [1], "va": [2]}'}, "missing required field", id="no test nodes"),
    pytest.param({"role.json": b'{"tr": [1], "va": [2], "te": ["x"]}'}, "Expected `int`", id="a name in a split"),
    pytest.param({"role.json": b'{"tr": [1], "va": [1], "te": []}'}, "share 1 nodes, the first is 1", id="shared"),
    pytest.param({"role.json": b'{"tr": [1], "va": [], "te": []}'}, "validation nodes: none has a class", id="none"),
    pytest.param({"role.json": b'{"tr": [1], "va": [-1], "te": []}'}, "validation nodes: have -1", id="below 0"),
])  # fmt: skip
def test_a_graphsaint_file_that_is_wrong_is_refused(replaced: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_source(_pyg(_put(tmp_path, saint_files(SAMPLE) | replaced), "Flickr"), NOWHERE)


def test_a_value_of_a_large_file_is_named_by_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "_BLOCK_VALUES", 8)  # two rows at a time
    monkeypatch.setattr(raw, "_BLOCK_EDGES", 5)
    mirror = _put(tmp_path, saint_files(SAMPLE))
    expected = load_source(_pyg(mirror, "Flickr", direction="Directed"), NOWHERE)
    assert _edges(expected) == set(map(tuple, SAMPLE.edges.tolist()))
    np.testing.assert_array_equal(expected.features, SAMPLE.features)

    _put(tmp_path, {"feats.npy": _npy(FEATURES_WITH_NAN)})
    with pytest.raises(InputError, match=r"\[7, 2\]: is nan"):
        load_source(_pyg(mirror, "Flickr"), NOWHERE)
    _put(tmp_path, _adjacency(lambda m: m.indices.__setitem__(30, 12)))
    with pytest.raises(InputError, match=r"indices\[30\]: is 12"):
        load_source(_pyg(mirror, "Flickr"), NOWHERE)


def _benchmark(**replaced: np.ndarray) -> Files:
    return {"amazon_electronics_photo.npz": _npz(**(benchmark_arrays(SAMPLE) | replaced))}


@pytest.mark.parametrize(("files", "message"), [
    pytest.param(_benchmark(attr_indices=np.full(33, 0.5)), "attr_indices: is float64", id="half a column"),
    pytest.param(_benchmark(attr_indices=benchmark_arrays(SAMPLE)["attr_indices"] + 4), r"attr_indices\[\d+\]: is 4",
                 id="a column beyond the last"),
    pytest.param(_benchmark(attr_data=np.ones(2)), r"attr_data: has the shape \[2\], expected", id="values missing"),
    pytest.param(_benchmark(labels=np.zeros(11, dtype=int)), "labels: has 11 rows, but the graph has 12 nodes",
                 id="a label missing"),
    pytest.param(_benchmark(adj_shape=np.array([12])), r"adj_shape: is \[12\]", id="a shape of one number"),
    pytest.param(_benchmark(adj_shape=np.array([-1, -1]), adj_indptr=np.array([], dtype=int)),
                 r"adj_shape: is \[-1, -1\], expected rows and columns", id="a shape below 0"),
    pytest.param(_benchmark(attr_data=np.array(1.0)), r"attr_data: has the shape \[\], expected \[33\]", id="a number"),
    pytest.param(_benchmark(attr_shape=np.array([12, 1 << 40])),
                 "attr_shape: says that there are 1,099,511,627,776 columns, expected 1 to 10,000,000", id="columns"),
    pytest.param(_benchmark(labels=np.array([0.0, 1.0, np.inf] * 4)), r"labels\[2\]: is inf, expected an integer",
                 id="an infinite class"),
    pytest.param(_benchmark(labels=np.array([0, 1, 2**63] * 4, dtype=np.uint64)),
                 r"labels\[2\]: is 9223372036854775808, expected an integer", id="a class beyond 64 bits"),
    pytest.param(_benchmark(labels=np.array(["a"] * 12)), "labels has no numbers", id="names of classes"),
])  # fmt: skip
def test_a_gnn_benchmark_file_that_is_wrong_is_refused(files: Files, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        load_source(_pyg(_put(tmp_path, files), "Photo"), NOWHERE)


@pytest.mark.parametrize(("part", "content", "message"), [
    pytest.param("graph", pickled_array(np.ones((2, 2))), "is refused: it holds array", id="another object"),
    pytest.param("allx", b"\x80\x02cos\nsystem\n(U\x04truetR.", "it names os.system", id="a pickle that runs"),
    pytest.param("allx", pickled_array(np.ones((2, 2))), "has a dense matrix", id="dense features"),
    pytest.param("allx", pickled_csr(sp.csr_matrix((520, 1 << 30), dtype=np.float32)),
                 "says that there are 1,073,741,824 columns", id="columns"),
    pytest.param("ally", pickled_array(np.eye(3)), r"ally: has 3 rows, expected 520", id="classes missing"),
    pytest.param("ty", pickled_array(np.eye(3)), r"ty: has the shape \[3, 3\], expected \[20, 3\]", id="test classes"),
    pytest.param("ty", pickled_array(np.full((20, 3), 1)), "at most one 1 per row", id="two classes of one node"),
    pytest.param("y", pickled_array(np.eye(3)[np.zeros(30, dtype=int)]), "for validation that is more", id="y"),
    pytest.param("test.index", b"520\n520\n", "each once; it has 2", id="a node twice"),
    pytest.param("test.index", b"519\n521\n", "expected nodes from 520", id="a node of allx"),
    pytest.param("test.index", b"520\nx\n", "expected one node per line", id="a name"),
    pytest.param("test.index", b"", "it has 0", id="none"),
    pytest.param("test.index", b"520\n999999999\n", "lists node 999999999", id="far away"),
    pytest.param("test.index", b"520\n", r"tx: has the shape \[20, 6\], expected \[1, 6\]", id="fewer than rows"),
])  # fmt: skip
def test_a_planetoid_file_that_is_wrong_is_refused(part: str, content: bytes, message: str, tmp_path: Path) -> None:
    files = planetoid_files(CITED) | {f"ind.cora.{part}": content}

    with pytest.raises(InputError, match=message):
        load_source(_pyg(_put(tmp_path, files), "Cora"), NOWHERE)


# --- to the end


def test_a_public_graph_is_generated_from_a_mirror_with_progress(server: FileServer, tmp_path: Path) -> None:
    told: list[Progress] = []
    service = GNNService.model_validate({
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": "flickr"},
        "spec": {
            "graph": {"source": {"pyg": {"name": "Flickr", "mirror": server.serve("f", saint_files(SAMPLE))}}},
            "model": {"hidden": 4, "training": {"epochs": 1}},
            "variants": {"pruning": {"factors": [1]}, "projection": "Disabled"},
        },
    })  # fmt: skip
    repository = Repository(tmp_path, "default", "flickr")

    published = generate(service, repository, told.append)

    assert (tmp_path / ".downloads" / "Flickr" / "adj_full.npz").is_file()
    stages = list(dict.fromkeys(progress.stage for progress in told))
    assert stages[:3] == ["import graph", "download adj_full.npz", "download feats.npy"]
    asked = len(server.fetched)
    elsewhere = service.model_copy(deep=True, update={"spec": _moved(service, "https://mirror.invalid/f")})
    assert generate(elsewhere, repository).revision == published.revision
    assert len(server.fetched) == asked


def _moved(service: GNNService, mirror: str) -> Any:
    source = GraphSource(pyg=PygSource(name=PygName.FLICKR, mirror=mirror))
    return service.spec.model_copy(update={"graph": service.spec.graph.model_copy(update={"source": source})})


def test_every_kind_of_dataset_is_tested_here() -> None:
    kinds = {type(dataset) for dataset in CATALOGUE.values()}
    assert {type(CATALOGUE[OgbName.ARXIV]), GraphSaint, Planetoid, type(CATALOGUE[PygName.PHOTO])} == kinds
    assert set(CATALOGUE) == {*OgbName, *PygName}


def test_a_pipe_in_a_mirrors_folder_is_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "amazon_electronics_photo.npz")

    with pytest.raises(
        InputError, match=r"source\.pyg\.mirror: \S*photo\.npz is a named pipe \(FIFO\), expected a regular file"
    ):
        source_digest(_pyg(tmp_path.as_uri(), "Photo"))

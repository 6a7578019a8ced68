"""A repository keeps features and times of edges beside the lists, and files of graphs without any are as before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.support.graphs.toy_payload import KEPT, MERGED, Toy, one_type, several_types

from gnnserve_api.errors import DamagedError
from gnnserve_api.files.edges import EdgeRules
from gnnserve_api.files.graph_schema import AS_LISTED
from gnnserve_api.files.repository import PAYLOAD_SCHEMA_VERSION, GraphManifest
from gnnserve_worker.graph.payload import EdgePayload
from gnnserve_worker.graph.store import Graph, GraphData
from gnnserve_worker.repository import checks, paths
from gnnserve_worker.repository.graph_files import Mapped, open_graph, open_payloads, write_graph
from gnnserve_worker.repository.positions import positions_of

GRAPHS = pytest.mark.parametrize("made", [one_type, several_types])


def written(folder: Path, data: GraphData) -> GraphManifest:
    folder.mkdir()
    return write_graph(folder, data)


def mapped_in(folder: Path) -> Mapped:
    return lambda name, dtype, *shape: checks.open_array(folder / name, np.dtype(dtype), shape, "generate again")


def opened(
    folder: Path, manifest: GraphManifest, rules: EdgeRules = AS_LISTED
) -> tuple[Graph, tuple[EdgePayload | None, ...]]:
    graph = open_graph(manifest, mapped_in(folder), folder / paths.INDICES, "generate again", rules)
    return graph, open_payloads(graph, mapped_in(folder), folder, "generate again")


@GRAPHS
@pytest.mark.parametrize("rules", [KEPT, MERGED])
def test_a_graph_that_is_opened_has_the_payload_that_was_written(
    tmp_path: Path, made: Callable[[EdgeRules], Toy], rules: EdgeRules
) -> None:
    toy = made(rules)
    manifest = written(tmp_path / "graph", toy.data)
    graph, payloads = opened(tmp_path / "graph", manifest, rules)

    assert manifest.schema_version == PAYLOAD_SCHEMA_VERSION
    assert graph.schema.relations == toy.data.schema.relations
    np.testing.assert_array_equal(graph.payload_rows, toy.graph.payload_rows)
    for found, one in zip(payloads, toy.data.relations, strict=True):
        assert found is not None
        assert one.payload is not None
        np.testing.assert_array_equal(found.features, one.payload.features)
        np.testing.assert_array_equal(found.times, one.payload.times)
        assert (found.columns, found.time_column) == (("amount",), "at")
    assert len({id(payload) for payload in payloads}) == 1
    checks.verify_files(
        [checks.ListedFiles(tmp_path / "graph", manifest.files, "")], positions_of(tmp_path / "graph", manifest)
    )


@GRAPHS
def test_a_graph_without_payload_has_no_files_of_it(tmp_path: Path, made: Callable[[EdgeRules], Toy]) -> None:
    data = made(MERGED).data
    bare = replace(data, relations=tuple(
        replace(one, payload=None, lists=Graph(one.lists.indptr, one.lists.indices)) for one in data.relations
    ))  # fmt: skip
    manifest = written(tmp_path / "graph", bare)

    assert manifest.schema_version < PAYLOAD_SCHEMA_VERSION
    assert not [name for name in manifest.files if "payload" in name]
    graph, payloads = opened(tmp_path / "graph", manifest)
    assert not len(graph.payload_rows)
    assert set(payloads) == {None}


@GRAPHS
@pytest.mark.parametrize(
    ("file", "place", "value", "says"),
    [
        (paths.PAYLOAD_ROWS, 1, 99, "holds row 99 at position 1, which its relation does not have"),
        (paths.PAYLOAD_ROWS, 0, -1, "holds row -1 at position 0, which its relation does not have"),
        (paths.payload_features(0), 2, np.nan, "holds no number in row 2"),
    ],
)
def test_payload_that_was_written_wrong_is_refused(
    tmp_path: Path, made: Callable[[EdgeRules], Toy], file: str, place: int, value: float, says: str
) -> None:
    folder = tmp_path / "graph"
    manifest = written(folder, made(KEPT).data)
    if file not in manifest.files:
        file = next(name for name in manifest.files if name.endswith("/features.npy"))
    array = np.load(folder / file)
    array[place] = value
    np.save(folder / file, array)

    with pytest.raises(DamagedError, match=says):
        opened(folder, manifest, KEPT)

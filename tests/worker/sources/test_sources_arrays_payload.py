"""Features and times of edges in arrays: `.npz` files, folders of them and HeteroData, where the source reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.support.graphs.graphs import write_npz
from tests.support.graphs.told_payload import told, told_names

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import GraphSource
from gnnserve_worker.graph.sources.load import load_source, source_digest
from gnnserve_worker.graph.store import GraphData

NODES = {
    "features": np.ones((3, 2), np.float32),
    "labels": np.array([0, 1, 0]),
    "train_mask": np.array([True, False, False]),
    "val_mask": np.array([False, True, False]),
    "test_mask": np.array([False, False, True]),
}
LISTS = {"indptr": np.array([0, 2, 3, 3]), "indices": np.array([2, 1, 0])}
"""Node 0 reads 2, then 1; node 1 reads 0."""
COLUMNS = {"edge_attr": np.array([[1.5, 7], [2.5, 8], [3.5, 9]]), "edge_time": np.array([30, 20, 10], np.int32)}


def loaded(source: dict[str, Any]) -> GraphData:
    return load_source(GraphSource.model_validate(source), Path("unused"))


def of_file(folder: Path, *, reads: bool = True, **arrays: Any) -> dict[str, Any]:
    write_npz(folder / "graph.npz", {**NODES, **LISTS, **COLUMNS, **arrays})
    given = {"uri": (folder / "graph.npz").as_uri(), "direction": "Directed"}
    return {"npz": given | ({"edgeColumns": "Read"} if reads else {})}


def of_folder(folder: Path, *, reads: bool = True, **arrays: Any) -> dict[str, Any]:
    write_npz(folder / "nodes_user.npz", {"num_nodes": np.array(3), **NODES})
    np.savez(folder / "nodes_item.npz", num_nodes=np.array(2))
    ends = {"src": np.array([2, 1, 0]), "dst": np.array([0, 0, 1])}
    write_npz(folder / "edges_user__buys__item.npz", {**ends, **COLUMNS, **arrays})
    given = {"uri": folder.as_uri()} | ({"edgeColumns": "Read"} if reads else {})
    return {"typed": {"npz": given, "reverse": "Disabled"}}


def of_hetero_data(folder: Path, *, reads: bool = True, **arrays: Any) -> dict[str, Any]:
    names = {"features": "x", "labels": "y"}
    tensors = {f"user/{names.get(name, name)}": array for name, array in NODES.items()}
    edges = {"edge_index": np.array([[2, 1, 0], [0, 0, 1]]), **COLUMNS, **arrays}
    tensors |= {f"user/buys/item/{name}": np.ascontiguousarray(array) for name, array in edges.items()}
    save_file(tensors, folder / "graph.safetensors")
    (folder / "graph.json").write_text(json.dumps({"nodes": {"user": 3, "item": 2}}))
    given = {"uri": (folder / "graph.safetensors").as_uri()} | ({"edgeColumns": "Read"} if reads else {})
    return {"typed": {"heteroData": given, "reverse": "Disabled"}}


SOURCES = pytest.mark.parametrize("made", [of_file, of_folder, of_hetero_data])


@SOURCES
def test_features_and_times_of_edges_are_read_where_the_source_says_so(tmp_path: Path, made: Any) -> None:
    data = loaded(made(tmp_path))

    assert told(data) == [(0, 1, [2.5, 8], 20), (0, 2, [1.5, 7], 30), (1, 0, [3.5, 9], 10)]
    payload = data.relations[0].payload
    assert payload is not None
    assert (payload.columns, payload.time_column) == (("0", "1"), "edge_time")
    assert told_names(data) == []


@SOURCES
def test_they_are_told_and_not_read_by_default(tmp_path: Path, made: Any) -> None:
    data, reading = made(tmp_path, reads=False), made(tmp_path)

    assert loaded(data).relations[0].payload is None
    assert sorted(told_names(loaded(data))[0].split(", ")) == ["edge_attr", "edge_time"]
    assert source_digest(GraphSource.model_validate(data)) != source_digest(GraphSource.model_validate(reading))


@SOURCES
@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"edge_attr": np.ones(2)}, "edge_attr: has 2 entries, and there are 3 edges; write one for each edge"),
        ({"edge_attr": np.array([1.0, np.nan, 2.0])}, r"edge_attr\[1\]: is nan, expected a finite float32"),
        ({"edge_attr": np.ones((3, 1, 1))}, r"edge_attr: has shape \[3, 1, 1\], expected \[edges\]"),
        ({"edge_attr": np.ones(3, bool)}, "edge_attr: is bool with shape"),
        ({"edge_time": np.array([0.5, 1, 2])}, "edge_time: is float64 with shape"),
        ({"edge_time": np.array([1, 2, 2**63], np.uint64)}, r"edge_time\[2\]: is 9223372036854775808, beyond 64 bits"),
        ({"edge_time": np.array([1, 2, 3, 4])}, "edge_time: has 4 entries, and there are 3 edges"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, made: Any, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        loaded(made(tmp_path, **arrays))


@pytest.mark.parametrize("made", [of_file, of_folder])
@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"edge_attr": np.array(["a", "b", "c"])}, r"edge_attr: is <U1 with shape \[3\], expected floats or integers"),
        ({"edge_time": np.array(["now", "then", "later"])}, "edge_time: is <U5 with shape .*, expected integers"),
        (
            {"edge_time": np.array([1, 2, "NaT"], "datetime64[us]")},
            r"edge_time: is datetime64\[us\].*expected integers",
        ),
    ],
)
def test_arrays_of_texts_and_dates_are_refused(tmp_path: Path, made: Any, arrays: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        loaded(made(tmp_path, **arrays))


def test_edges_that_importing_would_add_without_features_are_refused(tmp_path: Path) -> None:
    source = of_file(tmp_path)
    source["npz"]["direction"] = "Undirected"
    with pytest.raises(InputError, match=r"npz.direction: is Undirected, and 1 edges are listed one way"):
        loaded(source)

"""Features and times of edges in users' own tables: what is read from CSV and Parquet, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.support.graphs.tables import edges_of, import_tables, nodes_of, write_table
from tests.support.graphs.told_payload import told, told_names

from gnnserve_api.errors import InputError
from gnnserve_api.spec.graph import GraphSource
from gnnserve_api.spec.heterogeneous import HeterogeneousSource
from gnnserve_worker.graph.inspection import inspect, inspect_by_type
from gnnserve_worker.graph.sources.load import load_source
from gnnserve_worker.graph.store import GraphData

FORMATS = pytest.mark.parametrize("suffix", [".parquet", ".csv"])
READ = {"direction": "Directed", "features": ["weight"], "time": "at"}
PAIRS = [(0, 1), (2, 1), (0, 1), (3, 4)]
PAYLOAD = {"weight": [0.5, 1.5, 2.5, -1.0], "at": [30, 20, 10, 2**40]}


def imported(folder: Path, suffix: str, columns: dict[str, Any], **options: Any) -> GraphData:
    edges = {**edges_of(PAIRS), **columns}
    return import_tables(folder, suffix, nodes_of(range(5)), edges, edge_options={**READ, **options})


@FORMATS
def test_of_equal_edges_that_are_merged_the_last_counts(tmp_path: Path, suffix: str) -> None:
    data = imported(tmp_path, suffix, PAYLOAD)

    assert told(data) == [(1, 0, [2.5], 10), (1, 2, [1.5], 20), (4, 3, [-1.0], 2**40)]
    assert data.schema.relations[0].payload == data.relations[0].payload.manifest  # type: ignore[union-attr]
    found = inspect(data)
    assert (found.edge_features, found.edge_time) == (("weight",), "at")


@FORMATS
@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, [1.5, 2.5, -1.0, 9.0]),
        ({"duplicates": "Keep"}, [0.5, 1.5, 2.5, -1.0, 9.0]),
        ({"duplicates": "Keep", "selfLoops": "Remove"}, [0.5, 1.5, 2.5, -1.0]),
    ],
    ids=["merged", "kept", "without self-loops"],
)
def test_edges_that_are_merged_or_left_out_leave_no_row_of_payload(
    tmp_path: Path, suffix: str, options: dict[str, str], weights: list[float]
) -> None:
    edges = {**edges_of([*PAIRS, (3, 3)]), "weight": [*PAYLOAD["weight"], 9.0], "at": [*PAYLOAD["at"], 1]}
    data = import_tables(tmp_path, suffix, nodes_of(range(5)), edges, edge_options={**READ, **options})

    payload = data.relations[0].payload
    assert payload is not None
    assert payload.features[:, 0].tolist() == weights
    assert len(payload.times) == len(weights)
    assert sorted(data.relations[0].lists.payload_rows.tolist()) == [*range(len(weights))]


@FORMATS
def test_parallel_edges_stand_in_the_order_of_time(tmp_path: Path, suffix: str) -> None:
    data = imported(tmp_path, suffix, PAYLOAD, duplicates="Keep")

    assert told(data)[:2] == [(1, 0, [2.5], 10), (1, 0, [0.5], 30)]


@FORMATS
def test_columns_that_no_option_names_are_told_and_not_read(tmp_path: Path, suffix: str) -> None:
    edges = {**edges_of(PAIRS), **PAYLOAD}
    data = import_tables(
        tmp_path, suffix, nodes_of(range(5)), edges, edge_options={"direction": "Directed", "features": ["weight"]}
    )

    assert told_names(data) == ["at"]
    assert data.relations[0].payload is not None
    assert data.relations[0].payload.time_column == ""
    assert not len(data.relations[0].payload.times)


@FORMATS
def test_an_edge_that_is_dropped_takes_its_payload_along(tmp_path: Path, suffix: str) -> None:
    edges = {**edges_of([(0, 1), (9, 1), (2, 1)]), "weight": [1.0, 2.0, 3.0], "at": [1, 2, 3]}
    data = import_tables(tmp_path, suffix, nodes_of(range(5)), edges, edge_options={**READ, "dangling": "Drop"})

    assert told(data) == [(1, 0, [1.0], 1), (1, 2, [3.0], 3)]


def test_timestamps_are_microseconds_since_1970(tmp_path: Path) -> None:
    stamps = [datetime(1970, 1, 1, 0, 0, second, 5, tzinfo=UTC) for second in range(4)]
    for unit in ("us", "ns"):
        data = imported(tmp_path, ".parquet", {**PAYLOAD, "at": pa.array(stamps, pa.timestamp(unit, "UTC"))})
        assert [at for _, _, _, at in told(data)] == [2_000_005, 1_000_005, 3_000_005]


@FORMATS
def test_a_reverse_relation_of_several_types_shares_the_payload(tmp_path: Path, suffix: str) -> None:
    users = write_table(tmp_path / f"users{suffix}", {**nodes_of([7, 8, 9]), "kind": ["a", "b", "a"]})
    items = write_table(tmp_path / f"items{suffix}", {"id": [1, 2]})
    buys = write_table(
        tmp_path / f"buys{suffix}",
        {"source": [7, 9, 8], "target": [2, 2, 1], "amount": [1.5, 2.5, 3.5], "at": [5, 4, 3], "note": ["x", "y", "z"]},
    )
    tables = {
        "nodes": [
            {"uri": users.as_uri(), "type": "user", "label": "kind", "features": ["age"]},
            {"uri": items.as_uri(), "type": "item"},
        ],
        "edges": [
            {"uri": buys.as_uri(), "sourceType": "user", "relation": "buys", "targetType": "item",
             "features": ["amount"], "time": "at"}
        ],
    }  # fmt: skip
    source = GraphSource(typed=HeterogeneousSource.model_validate({suffix[1:]: tables}))
    data = load_source(source, Path("unused"))

    by_name = {one.name: place for place, one in enumerate(data.relations)}
    assert told(data, by_name["buys"]) == [(0, 1, [3.5], 3), (1, 0, [1.5], 5), (1, 2, [2.5], 4)]
    assert told(data, by_name["rev_buys"]) == [(0, 1, [1.5], 5), (1, 0, [3.5], 3), (2, 1, [2.5], 4)]
    assert told_names(data) == ["note"]
    facts = inspect_by_type(data).relations[by_name["buys"]]
    assert (facts.edge_features, facts.edge_time) == (("amount",), "at")


@pytest.mark.parametrize(
    ("suffix", "columns", "options", "says"),
    [
        (".csv", {"weight": [1, None, 2, 3]}, {}, r"line 3, column 'weight': is missing, expected a number"),
        (".parquet", {"weight": [1.0, float("nan"), 2.0, 3.0]}, {}, r"row 1, column 'weight': is missing"),
        (".parquet", {"weight": [1.0, 1e300, 2.0, 3.0]}, {}, r"row 1, column 'weight': is 1e\+300, expected a number"),
        (".csv", {"weight": [1, "heavy", 2, 3]}, {}, r"column 'weight': is 'heavy', expected a number; correct it"),
        (".parquet", {"weight": ["a", "b", "c", "d"]}, {}, r"column 'weight': is string, expected numbers"),
        (".csv", {"at": [1, 2.5, 2, 3]}, {}, r"line 3, column 'at': is '2.5', expected an integer of 64 bits"),
        (".csv", {"at": [1, "2026-01-01", 2, 3]}, {}, r"'2026-01-01', expected an integer.*seconds since 1970"),
        (".csv", {"at": [1, "NaN", 2, 3]}, {}, r"line 3, column 'at': is 'NaN', expected an integer of 64 bits"),
        (".csv", {"at": [1, 2**63, 2, 3]}, {}, r"'at': is '9223372036854775808', beyond an integer.*smaller times"),
        (".csv", {"at": [1, "9" * 50, 2, 3]}, {}, r"line 3, column 'at': is '9999.*beyond an integer of 64 bits"),
        (".parquet", {"at": ["now"] * 4}, {}, r"column 'at': is string, expected integers or timestamps"),
        (
            ".parquet",
            {"at": pa.array([1, 2, 10**15, 3], pa.timestamp("s"))},
            {},
            r"row 2, column 'at': is 1000000000000000000 ms since 1970, which microseconds in 64 bits do not reach",
        ),
        (".parquet", {"at": pa.array([1, -(2**62), 2, 3], pa.timestamp("ms"))}, {}, r"row 1, .*up to the year 294247"),
        (".parquet", {"at": pa.array([1, 2, 3, None], pa.timestamp("us"))}, {}, r"row 3, column 'at': is missing"),
        (".csv", {"at": [1, 2, None, 3]}, {}, r"line 4, column 'at': is missing, expected an integer"),
        (".parquet", {"at": [1.0, 2.0, 3.0, 4.0]}, {}, r"column 'at': is double, expected integers or timestamps"),
        (".parquet", {"at": [1, 2, None, 4]}, {}, r"row 2, column 'at': is missing"),
        (".parquet", {"at": np.array([1, 2, 3, 2**63], np.uint64)}, {}, r"row 3, column 'at': is 9223372036854775808"),
        (".csv", {}, {"features": ["wieght"]}, r"edges.features\[0\]: names a column 'wieght'.*did you mean 'weight'"),
        (".csv", {}, {"time": "when"}, r"edges.time: names a column 'when'"),
        (".csv", {}, {"features": ["weight", "weight"]}, r"edges.features\[1\]: names the column 'weight', which"),
        (".parquet", {}, {"features": ["at"]}, r"edges.time: names the column 'at', which"),
        (".parquet", {}, {"features": ["target"]}, r"edges.features\[0\]: names the column 'target', which"),
    ],
)
def test_payload_that_cannot_be_read_is_refused_by_its_place(
    tmp_path: Path, suffix: str, columns: dict[str, Any], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        imported(tmp_path, suffix, {**PAYLOAD, **columns}, **options)

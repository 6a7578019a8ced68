"""`gnnserve changes`: files of changes in batches that keep their order, sent until they are answered, and the log."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import Result
from pyarrow import parquet
from tests.support.machine.fake_server import Asked, FakeServer, Told, fake_server, refusal
from typer.testing import CliRunner

from gnnserve_api.errors import InputError
from gnnserve_cli.changes.batches import batches_of, may_be_integers, request_of
from gnnserve_cli.changes.files import digest_of, read_changes
from gnnserve_cli.changes.rows import ChangeKind, ChangeRow
from gnnserve_cli.client import TIMEOUT_S
from gnnserve_cli.commands import changes
from gnnserve_cli.main import app
from gnnserve_client import exchange

HEADER = "change,id,source,target,label,amount,hour\n"
ROWS = """add-node,order-9,,,fraud,12.5,23
add-edge,,user-17,order-9,,,
set-features,user-17,,,,0,
set-label,user-18,,,,,
remove-edge,,user-17,order-2,,,
remove-node,order-2,,,,,
"""


def answering(offset: int = 0) -> Callable[[Asked], Told]:
    """A server that takes every batch; what it had before is repeated."""
    seen: dict[tuple[str, str], int] = {}

    def answer(asked: Asked) -> Told:
        key = (asked.headers["gnnserve-client"], asked.headers["gnnserve-sequence"])
        is_repeated = key in seen
        found = seen.setdefault(key, offset + len(seen) + 1)
        changes = sum(len(part) for part in asked.body.values())
        return Told(body={"offset": found, "changes": changes, "unchanged": 1, "repeated": is_repeated})

    return answer


def test_a_log_is_not_removed_without_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert not changes._confirmed("Remove it?")
    with pytest.raises(InputError, match="--yes: is not given, and standard input has no answer; give it, or answer y"):
        changes._confirmed("Remove it?")


def run_apply(server: FakeServer, file: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["changes", "apply", str(file), server.url, *options])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    path.write_text(HEADER + ROWS, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Pauses that would have been made."""
    pauses: list[float] = []
    monkeypatch.setattr(exchange.time, "sleep", pauses.append)
    return pauses


# Files and batches


def test_a_csv_file_becomes_one_batch_in_the_servers_form(file: Path) -> None:
    with fake_server(answering()) as server:
        result = run_apply(server, file)
    assert result.exit_code == 0, result.stderr
    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", "/v1/changes")
    assert asked.body == {
        "nodes": [{"id": "order-9", "features": {"amount": 12.5, "hour": 23}, "label": "fraud"}],
        "overrides": [{"id": "user-17", "features": {"amount": 0}}],
        "labels": [{"id": "user-18", "label": None}],
        "edges": [["user-17", "order-9"]],
        "removedEdges": [["user-17", "order-2"]],
        "removedNodes": ["order-2"],
    }
    digest, lines = digest_of(file)
    assert lines == 7
    assert asked.headers["gnnserve-client"] == f"file-{digest[:16]}-1000"
    assert asked.headers["gnnserve-sequence"] == "1"
    assert "6 changes in 1 batch; 1 edge changed nothing" in result.stdout
    assert "offset   1" in result.stdout


def test_batches_that_the_log_has_passed_were_there(file: Path) -> None:
    taken = answering(7)

    def answer(asked: Asked) -> Told:
        if int(asked.headers["gnnserve-sequence"]) <= 2:
            return refusal(409, "SequencePassed", "log: its batches up to 2 are compacted away", "log")
        return taken(asked)

    with fake_server(answer) as server:
        result = run_apply(server, file, "--batch", "2", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert (told["changes"], told["repeated"], told["lastOffset"]) == (6, 2, 7 + told["batches"] - 2)


def test_a_parquet_file_says_what_is_an_integer(tmp_path: Path) -> None:
    path = tmp_path / "new.parquet"
    table = pa.table(
        {
            "change": ["add-node", "add-edge", "set-label"],
            "id": pa.array([5, None, 7], pa.int64()),
            "source": pa.array([None, 5, None], pa.int64()),
            "target": pa.array([None, 2, None], pa.int64()),
            "features": pa.array([[1.0, 2.0], None, None], pa.list_(pa.float64())),
            "label": pa.array([["a"], None, ["b", "c"]], pa.list_(pa.string())),
        }
    )
    parquet.write_table(table, path)
    with fake_server(answering()) as server:
        result = run_apply(server, path, "--json", "--client", "loader")
    assert result.exit_code == 0, result.stderr
    assert server.asked[0].body == {
        "nodes": [{"id": 5, "features": [1, 2], "label": ["a"]}],
        "labels": [{"id": 7, "label": ["b", "c"]}],
        "edges": [[5, 2]],
    }
    told = json.loads(result.stdout)
    assert told == {
        "client": f"loader-{digest_of(path)[0][:16]}-1000", "batches": 1, "changes": 3, "unchanged": 1, "repeated": 0,
        "bothWays": 0, "lastOffset": 1,
    }  # fmt: skip


TYPED = {
    "nodes": [{"id": "user/81", "features": {"f0": 0.5, "f1": 1}, "label": 1},
              {"id": "tag/sale", "features": {}, "label": None}],
    "labels": [{"id": "user/4", "label": 0}],
    "edges": [["user/81", "buys", "item/3"], ["item/3", "has", "tag/sale"]],
    "removedEdges": [["user/4", "knows", "user/9"]],
    "removedNodes": ["item/12"],
}  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            "change,id,source,relation,target,label,f0,f1\nadd-node,user/81,,,,1,0.5,1\nadd-node,tag/sale,,,,,,\n"
            "set-label,user/4,,,,0,,\nadd-edge,,user/81,buys,item/3,,,\nadd-edge,,item/3,has,tag/sale,,,\n"
            "remove-edge,,user/4,knows,user/9,,,\nremove-node,item/12,,,,,,\n",
            id="before their ids",
        ),
        pytest.param(
            "change,type,id,sourceType,source,relation,targetType,target,label,f0,f1\n"
            "add-node,user,81,,,,,,1,0.5,1\nadd-node,tag,sale,,,,,,,,\nset-label,user,4,,,,,,0,,\n"
            "add-edge,,,user,81,buys,item,3,,,\nadd-edge,,,item,3,has,tag,sale,,,\n"
            "remove-edge,,,user,4,knows,user,9,,,\nremove-node,item,12,,,,,,,,\n",
            id="in columns of their own",
        ),
    ],
)
def test_a_file_with_a_column_of_relations_names_types(tmp_path: Path, text: str) -> None:
    path = tmp_path / "new.csv"
    path.write_text(text, encoding="utf-8")
    with fake_server(answering()) as server:
        result = run_apply(server, path)
        again = run_apply(server, path)
    assert result.exit_code == 0, result.stderr
    assert server.asked[0].body == TYPED
    assert "1 of them from an earlier run" in again.stdout


def test_a_parquet_file_has_types_beside_integers(tmp_path: Path) -> None:
    path = tmp_path / "new.parquet"
    table = pa.table(
        {
            "change": ["add-edge", "remove-node"],
            "type": [None, "item"],
            "id": pa.array([None, 12], pa.int64()),
            "sourceType": ["user", None],
            "source": pa.array([81, None], pa.int64()),
            "relation": ["buys", None],
            "targetType": ["item", None],
            "target": pa.array([3, None], pa.int64()),
        }
    )
    parquet.write_table(table, path)
    with fake_server(answering()) as server:
        result = run_apply(server, path)
    assert result.exit_code == 0, result.stderr
    assert server.asked[0].body == {"edges": [["user/81", "buys", "item/3"]], "removedNodes": ["item/12"]}


def test_without_a_column_of_relations_a_type_is_a_feature(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("change,id,type\nadd-node,7,3\n", encoding="utf-8")
    with fake_server(answering()) as server:
        assert run_apply(server, path).exit_code == 0
    assert server.asked[0].body == {"nodes": [{"id": 7, "features": {"type": 3}, "label": None}]}


PAID = {
    "edges": [["user/81", "buys", "item/3"], ["item/3", "has", "tag/sale"], ["user/4", "buys", "item/3"]],
    "edgeFeatures": [[12.5], None, [-1]],
    "edgeTimes": [1795000000000000, None, -7],
}
"""A batch whose edges have payload, but for those of one relation."""


def test_rows_of_a_csv_file_give_features_and_times_of_edges(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text(
        "change,source,relation,target,edgeFeatures,edgeTime\nadd-edge,user/81,buys,item/3,[12.5],1795000000000000\n"
        "add-edge,item/3,has,tag/sale,,\nadd-edge,user/4,buys,item/3,-1,-7\nremove-edge,user/4,knows,user/9,,\n",
        encoding="utf-8",
    )
    with fake_server(answering()) as server:
        result = run_apply(server, path)
    assert result.exit_code == 0, result.stderr
    assert server.asked[0].body == {**PAID, "removedEdges": [["user/4", "knows", "user/9"]]}


@pytest.mark.parametrize("unit", ["ns", "us", None])
def test_rows_of_a_parquet_file_give_features_and_times_of_edges(tmp_path: Path, unit: str | None) -> None:
    path = tmp_path / "new.parquet"
    times = pa.array([1795000000000000, None, -7], pa.int64())
    if unit is not None:
        times = times.cast(pa.timestamp("us")).cast(pa.timestamp(unit, "UTC"))
    features = pa.array([12.5, None, -1.0]) if unit is None else pa.array([[12.5], None, [-1.0]])
    table = {"change": ["add-edge"] * 3, "edgeFeatures": features, "edgeTime": times}
    for place, name in enumerate(("source", "relation", "target")):
        table[name] = [edge[place] for edge in PAID["edges"]]
    parquet.write_table(pa.table(table), path)
    with fake_server(answering()) as server:
        result = run_apply(server, path)
    assert result.exit_code == 0, result.stderr
    assert server.asked[0].body == PAID


@pytest.mark.parametrize("field", ["edgeFeatures[1]", "edgeTimes[1]"])
def test_a_refused_payload_of_an_edge_names_its_row(tmp_path: Path, field: str) -> None:
    path = tmp_path / "new.csv"
    path.write_text("change,id,source,target,edgeTime\nadd-edge,,1,2,3\nremove-node,7,,,\nadd-edge,,2,3,4\n")
    problem = "it is missing; edges have a time, at: give an integer for each edge"
    with fake_server(lambda _: refusal(400, "MissingField", f"{field}: {problem}", field)) as server:
        result = run_apply(server, path)
    assert result.exit_code == 2
    assert f"row 4, in batch 1: the server answered 400 MissingField: {field}: {problem}" in result.stderr


def rows(*changes: tuple[str, str]) -> list[ChangeRow]:
    """Each a kind and its node, or its edge as `a-b`."""
    made = []
    for number, (kind, what) in enumerate(changes, 1):
        if kind.endswith("-edge"):
            source, target = what.split("-")
            made.append(ChangeRow(number, ChangeKind(kind), source=source, target=target))
        else:
            made.append(ChangeRow(number, ChangeKind(kind), what))
    return made


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        pytest.param([("add-edge", "a-b")] * 5, [2, 2, 1], id="by size"),
        pytest.param([("add-node", "c"), ("add-edge", "a-c")], [2], id="an edge of a new node"),
        pytest.param([("add-edge", "a-b"), ("remove-edge", "a-b")], [2], id="an edge that goes again"),
        pytest.param([("remove-edge", "a-b"), ("add-edge", "b-a")], [1, 1], id="an edge that comes again"),
        pytest.param([("remove-edge", "a-b"), ("add-edge", "a-c")], [2], id="another edge of the node"),
        pytest.param([("remove-node", "a"), ("add-node", "a")], [1, 1], id="a node that comes again"),
        pytest.param([("remove-node", "a"), ("add-edge", "b-a")], [1, 1], id="an edge of a node that is gone"),
        pytest.param([("add-edge", "a-b"), ("remove-node", "a")], [2], id="a node that goes after its edge"),
        pytest.param([("set-features", "a"), ("set-features", "a")], [1, 1], id="features twice"),
        pytest.param([("set-features", "a"), ("set-label", "a")], [2], id="features and label"),
        pytest.param([("set-label", "a"), ("set-label", "a")], [1, 1], id="a label twice"),
        pytest.param([("add-node", "a"), ("set-features", "a")], [1, 1], id="features of a new node"),
        pytest.param([("add-node", "a"), ("remove-node", "a")], [1, 1], id="a new node that goes again"),
    ],
)
def test_a_batch_ends_where_the_server_would_change_the_order(
    changes: Sequence[tuple[str, str]], sizes: list[int]
) -> None:
    made = rows(*changes)
    batches = list(batches_of(made, 2))
    assert [len(batch.changes) for batch in batches] == sizes
    assert [change for batch in batches for change in batch.changes] == made


def test_places_of_the_servers_form_lead_back_to_rows() -> None:
    (batch,) = batches_of(rows(("add-edge", "a-b"), ("remove-node", "c"), ("add-edge", "a-d")), 10)
    found = {place: batch.at(place) for place in ("edges[1][0]", "removedNodes[0]", "edges[7]", "body", None)}
    assert [change and change.number for change in found.values()] == [3, 2, None, None, None]
    assert request_of(batch, may_be_integers(batch)).edges == (("a", "b"), ("a", "d"))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("id\n1\n", "it has no column `change`, but 'id'; begin it with", id="no change"),
        pytest.param("", "it has no column `change`, but no columns at all", id="an empty file"),
        pytest.param("change, id\nremove-node,1\n", "its column ' id' has blanks around its name", id="a blank"),
        pytest.param("change,id,a\nset-features,1,1_0\n", "'1_0' in column 'a' cannot be read", id="an underscore"),
        pytest.param("change,id,id\n", "two columns 'id'", id="a column twice"),
        pytest.param(
            "change,id\nadd,1\n", "new.csv:2: 'add' is no change; give one of add-node", id="an unknown change"
        ),
        pytest.param("change,id\n,1\n", "new.csv:2: it has no `change`", id="an empty one"),
        pytest.param("change,id\nremove-node\n", "1 cells, where the header has 2", id="a short row"),
        pytest.param("change,id\nremove-node,\n", "remove-node needs `id`, which is empty", id="no id"),
        pytest.param("change,source,target\nadd-edge,1,\n", "needs `target`", id="half an edge"),
        pytest.param("change,id,a\nremove-node,1,2\n", "remove-node has no `a`; leave the cell empty", id="too much"),
        pytest.param("change,id,label\nset-features,1,2\n", "set-features has no `label`", id="a label too much"),
        pytest.param("change,id,a\nset-features,1,\n", "set-features has no features", id="no features"),
        pytest.param("change,id,a\nset-features,1,x\n", "'x' in column 'a' cannot be read", id="no number"),
        pytest.param("change,id,a\nset-features,1,inf\n", "'inf' in column 'a' is not finite", id="infinite"),
        pytest.param(
            'change,id,a,features\nadd-node,1,2,"[1]"\n', "`features` and also `a`", id="features in two ways"
        ),
        pytest.param("change,id,features\nadd-node,1,[1\n", "'[1' in column 'features'", id="half a list"),
        pytest.param("change,id,label\nset-label,1,[1\n", "'[1' in column 'label'", id="half a list of labels"),
        pytest.param('change,id\nremove-node,"1\n', "is not CSV in UTF-8", id="half a quote"),
        pytest.param(
            "change,source,relation,target\nadd-edge,a/1,,b/2\n", "needs `relation`, which is empty", id="no relation"
        ),
        pytest.param(
            "change,id,relation\nremove-node,a/1,buys\n", "remove-node has no `relation`", id="a relation too much"
        ),
        pytest.param(
            "change,id,a,relation\nset-features,1,2,3\n",
            "leave the cell empty; if 'relation' is a feature, give all features as a list in a column `features`",
            id="a feature called relation",
        ),
        pytest.param(
            "change,source,target,edgeTime\nadd-edge,1,2,2026-11-29\n",
            "'2026-11-29' in column 'edgeTime' is no integer of 64 bits; write times as integers",
            id="a date as a time",
        ),
        pytest.param(
            f"change,source,target,edgeTime\nadd-edge,1,2,{2**63}\n", "is no integer of 64 bits", id="a time too late"
        ),
        pytest.param(
            "change,source,target,edgeFeatures\nadd-edge,1,2,nan\n",
            "'nan' in column 'edgeFeatures' is not finite",
            id="no number of an edge",
        ),
        pytest.param(
            "change,source,target,edgeFeatures\nadd-edge,1,2,heavy\n",
            "'heavy' in column 'edgeFeatures' cannot be read",
            id="a text of an edge",
        ),
        pytest.param(
            "change,source,target,edgeTime\nremove-edge,1,2,3\n", "remove-edge has no `edgeTime`", id="a time too much"
        ),
        pytest.param(
            "change,id,edgeTime\nadd-node,1,3\n",
            "if 'edgeTime' is a feature, give all features as a list in",
            id="a feature called edgeTime",
        ),
        pytest.param(
            "change,source,target,amount\nadd-edge,1,2,3\n",
            "add-edge has no `amount`; leave the cell empty; if it is a feature of the edge, give all of its features",
            id="a feature of an edge by its name",
        ),
        pytest.param(
            "change,id,type,source,relation,target\nadd-edge,,a,a/1,buys,b/2\n",
            "add-edge has no `type`",
            id="a type too much",
        ),
    ],
)
def test_a_file_is_refused_by_line_and_column(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "new.csv"
    path.write_text(text, encoding="utf-8")
    with fake_server(answering()) as server:
        result = run_apply(server, path)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert server.asked == []


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        pytest.param({"id": pa.array([1.5])}, "1.5 in column 'id' is not possible", id="a fraction"),
        pytest.param({"id": pa.array([[1]])}, "[1]' in column 'id' is not possible", id="a list"),
        pytest.param({"id": pa.array([1]), "a": pa.array(["x"])}, "'x' in column 'a'", id="a text as a feature"),
        pytest.param({"id": pa.array([1]), "features": pa.array([1.5])}, "give a list of numbers", id="no list"),
        pytest.param({"edgeTime": pa.array([1.5])}, "give an integer of 64 bits, or a timestamp", id="half a time"),
        pytest.param({"edgeTime": pa.array([2**63], pa.uint64())}, "give an integer of 64 bits", id="a time too late"),
        pytest.param({"edgeFeatures": pa.array([[1.0, None]])}, "'[1.0, None]' in column 'edgeFeatures'", id="a hole"),
    ],
)
def test_a_parquet_file_is_refused_by_row_and_column(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    path = tmp_path / "new.parquet"
    parquet.write_table(pa.table({"change": ["set-features"], **columns}), path)
    with fake_server(answering()) as server:
        result = run_apply(server, path)
    assert result.exit_code == 2
    assert "row 1" in result.stderr
    assert problem.replace("1.5 in", "'1.5' in") in result.stderr


def test_what_is_no_such_file_is_said(tmp_path: Path) -> None:
    with fake_server(answering()) as server:
        for name, content, problem in (
            ("new.txt", b"", "neither .csv nor .parquet"),
            ("new.parquet", b"nothing", "is not Parquet"),
            ("none.csv", None, "cannot be read: No such file"),
            ("new.csv", b"change,id\nremove-node,\xff\n", "is not CSV in UTF-8"),
        ):
            path = tmp_path / name
            if content is not None:
                path.write_bytes(content)
            result = run_apply(server, path)
            assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_rows_are_read_as_they_are_taken(file: Path) -> None:
    changes, known = read_changes(file)
    assert known is None
    assert [change.number for change in changes] == [2, 3, 4, 5, 6, 7]


# Sending


def test_a_second_run_sends_the_same_batches_and_the_server_knows_them(file: Path) -> None:
    with fake_server(answering()) as server:
        first = run_apply(server, file, "--batch", "2")
        second = run_apply(server, file, "--batch", "2")
    assert [asked.headers["gnnserve-sequence"] for asked in server.asked] == ["1", "2", "3"] * 2
    assert len({asked.headers["gnnserve-client"] for asked in server.asked}) == 1
    assert [asked.body for asked in server.asked[:3]] == [asked.body for asked in server.asked[3:]]
    assert "6 changes in 3 batches; 3 edges" in first.stdout
    assert "3 of them from an earlier run" in second.stdout


def test_another_size_of_batches_and_another_name_are_other_clients(file: Path) -> None:
    with fake_server(answering()) as server:
        for options in ([], ["--batch", "7"], ["--client", "again"]):
            run_apply(server, file, *options)
    assert len({asked.headers["gnnserve-client"] for asked in server.asked}) == 3


def test_a_server_that_asks_for_later_gets_the_same_batch_again(file: Path, impatient: list[float]) -> None:
    told = answering()
    refusals = [
        refusal(503, "LogUnavailable", "log: away", retry_after="3"),
        Told(hang_up=True),
        refusal(429, "QueueFull", "x"),
    ]

    def answer(asked: Asked) -> Told:
        if asked.headers["gnnserve-sequence"] == "2" and refusals:
            return refusals.pop(0)
        return told(asked)

    with fake_server(answer) as server:
        result = run_apply(server, file, "--batch", "3")
    assert result.exit_code == 0, result.stderr
    assert [asked.headers["gnnserve-sequence"] for asked in server.asked] == ["1", "2", "2", "2", "2"]
    assert result.stderr.count(f"note: {server.url} does not take the batch now: trying again for up to a minute") == 1
    assert 3.0 <= impatient[0] <= 3.75
    assert len(impatient) == 3


def test_a_server_that_asks_for_later_for_too_long_ends_the_run(
    file: Path, impatient: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange.time, "monotonic", lambda: sum(impatient))
    told = answering()

    def answer(asked: Asked) -> Told:
        if asked.headers["gnnserve-sequence"] == "2":
            return refusal(503, "LogUnavailable", "log: the database is away")
        return told(asked)

    with fake_server(answer) as server:
        result = run_apply(server, file, "--batch", "3")
    assert result.exit_code == 6
    assert "note: 3 changes are applied; the same command goes on behind them" in result.stderr
    assert "the database is away" in result.stderr
    assert 50 < sum(impatient) <= TIMEOUT_S


def test_a_server_that_is_not_there_is_said_at_once(file: Path, impatient: list[float]) -> None:
    with fake_server(answering()) as server:
        server.stop()
        result = run_apply(server, file)
    assert (result.exit_code, impatient) == (4, [])
    assert "no answer" in result.stderr


def test_a_refused_batch_names_the_row(file: Path) -> None:
    refused = refusal(400, "UnknownNode", "edges[0][1]: node order-9 is not in the graph", "edges[0][1]")
    with fake_server(lambda _: refused) as server:
        result = run_apply(server, file)
    assert result.exit_code == 2
    assert "row 3, in batch 1: the server answered 400 UnknownNode: edges[0][1]: node order-9" in result.stderr
    assert "note:" not in result.stderr


def test_a_token_is_shown_and_its_lack_is_said(file: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("writing-0123456789ab\n")
    with fake_server(answering()) as server:
        run_apply(server, file, "--token-file", str(token))
    assert server.asked[0].headers["authorization"] == "Bearer writing-0123456789ab"
    with fake_server(lambda _: refusal(401, "Unauthorized", "Authorization: this needs a token")) as server:
        result = run_apply(server, file)
    assert (result.exit_code, "give one with --token-file" in result.stderr) == (2, True)


@pytest.mark.parametrize("name", ["", "a b", "a" * 65, "é"])
def test_a_name_that_no_header_may_have_is_refused(file: Path, name: str) -> None:
    with fake_server(answering()) as server:
        result = run_apply(server, file, "--client", name)
    assert (result.exit_code, "--client" in result.stderr, server.asked) == (2, True, [])


# Texts of digits


def numbered(tmp_path: Path) -> Path:
    path = tmp_path / "digits.csv"
    path.write_text("change,id,source,target,label\nadd-edge,,1,-2,\nset-label,3,,,1\nremove-node,x,,,\n")
    return path


def with_texts(asked: Asked, *, ids: bool, labels: bool) -> Told | None:
    """The refusal of a server whose ids, or labels, are texts."""
    for edge in asked.body.get("edges", []):
        if ids is not isinstance(edge[0], str):
            return refusal(400, "InvalidType", "edges[0][0]: expected …", "edges[0][0]")
    for node in asked.body.get("labels", []):
        if labels is not isinstance(node["label"], str):
            return refusal(400, "UnknownLabel", "labels[0].label: …", "labels[0].label")
    return None


@pytest.mark.parametrize("ids", [False, True])
@pytest.mark.parametrize("labels", [False, True])
def test_digits_are_integers_unless_the_server_says_otherwise(tmp_path: Path, ids: bool, labels: bool) -> None:
    told = answering()
    with fake_server(lambda asked: with_texts(asked, ids=ids, labels=labels) or told(asked)) as server:
        result = run_apply(server, numbered(tmp_path), "--batch", "2")
    if ids:
        assert result.exit_code == 0, result.stderr
        assert server.asked[-1].body == {"removedNodes": ["x"]}
    else:
        assert (result.exit_code, "row 4: 'x' is no integer, as the graph's node ids are" in result.stderr) == (2, True)
    first = [asked for asked in server.asked if asked.headers["gnnserve-sequence"] == "1"][-1]
    assert first.body == {
        "edges": [["1", "-2"] if ids else [1, -2]],
        "labels": [{"id": "3" if ids else 3, "label": "1" if labels else 1}],
    }


# The log


def test_of_ids_of_both_kinds_the_one_that_is_no_integer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text("change,source,target\nadd-edge,1,2\nadd-edge,1,ann")
    told = answering()
    with fake_server(lambda asked: with_texts(asked, ids=False, labels=False) or told(asked)) as server:
        result = run_apply(server, path)
    assert (result.exit_code, "error: row 3: 'ann' is no integer" in result.stderr) == (2, True)
    assert "apply new.csv: 0/2\n" in result.stderr


def record(offset: int, **fields: Any) -> dict[str, Any]:
    return {
        "offset": offset, "client": "a", "sequence": offset, "timeMs": 1_795_000_000_000 + offset, "changes": offset,
        **fields,
    }  # fmt: skip


def test_tail_prints_the_last_batches_of_the_log() -> None:
    def answer(asked: Asked) -> Told:
        if "limit=1&" in asked.path:
            return Told(body={"records": [record(1)], "first": 1, "last": 14, "applied": 14})
        assert asked.path == "/v1/changes?limit=100&content=false&wait=0&after=4"
        records = [record(5), record(14, refused="node 3 is\nnot there")]
        return Told(body={"records": records, "first": 1, "last": 14, "applied": 14})

    with fake_server(answer) as server:
        result = CliRunner().invoke(app, ["changes", "tail", server.url, "--once"])
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "       5  2026-11-18T11:06:40.005Z      5 changes  a 5",
        "      14  2026-11-18T11:06:40.014Z     14 changes  a 14  refused: node 3 is?not there",
    ]


def test_tail_goes_on_behind_what_it_printed_and_prints_json() -> None:
    pages = [[record(3, content={"edges": [[1, 2]]})], [record(4)]]

    def answer(asked: Asked) -> Told:
        assert "content=true" in asked.path and "wait=30" in asked.path
        if not pages:
            return refusal(503, "Draining", "the worker is stopping")
        return Told(body={"records": pages.pop(0), "first": 1, "last": 4, "applied": 4})

    with fake_server(answer) as server:
        result = CliRunner().invoke(app, ["changes", "tail", server.url, "--after", "2", "--json"])
    assert result.exit_code == 6
    assert [asked.path.partition("after=")[2] for asked in server.asked] == ["2", "3", "4"]
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["offset"] for line in lines] == [3, 4]
    assert lines[0]["content"] == {"edges": [[1, 2]]}

"""Batches of changes as clients write them: what is understood, what is refused, and content as the log tells it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.changes.changes_reader import NODES, arrays, revision

from gnnserve_api.http.changes import CHANGES_TYPE, ChangesRequest
from gnnserve_worker.asking.changed_features import UnknownFeatures
from gnnserve_worker.asking.question import ErrorCode, RequestError
from gnnserve_worker.graph.change_batch import (
    ChangeBatch,
    ChangeCounts,
    ChangeProblem,
    ChangeRefusal,
    decode_batch,
    encode_batch,
)
from gnnserve_worker.graph.change_ids import TextIds
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.inference.served_changes import ServedChanges
from gnnserve_worker.serving.http.changes import checks, reading
from gnnserve_worker.serving.http.changes.content import content_of
from gnnserve_worker.serving.http.changes.mistakes import place_of_id, place_of_label
from gnnserve_worker.serving.http.changes.reading import read_changes, refusal_error

TEXTS = [f"user-{i}" for i in range(NODES)]
BINARY = CHANGES_TYPE.encode()
NAN = float("nan")


POSITIONS = revision()
NAMED = revision(ids=string_ids(*lay_out(TEXTS)))
SEVERAL = revision(multi_label=True)
UNNAMED = revision(columns=())


def read(body: dict[str, Any] | str, of: ServedRevision = POSITIONS) -> ChangeBatch:
    text = body if isinstance(body, str) else json.dumps(body)
    payload, batch = read_changes(text.encode(), b"application/json", of)
    assert encode_batch(decode_batch(payload)) == payload == encode_batch(batch)
    return batch


def refused(body: dict[str, Any] | str | bytes, of: ServedRevision = POSITIONS) -> tuple[str, str, str]:
    """Code, field, and the rest of the message."""
    with pytest.raises(RequestError) as error:
        if isinstance(body, bytes):
            read_changes(body, BINARY, of)
        else:
            read(body, of)
    return error.value.code, error.value.where, str(error.value).removeprefix(f"{error.value.where}: ")


EVERYTHING: dict[str, Any] = {
    "nodes": [{"id": 90, "features": [1, 2, 3, 4, 5], "label": 20}, {"id": 91, "features": {"amount": 7}}],
    "overrides": [{"id": 3, "features": {"hour": 4}}, {"id": 4, "features": {"embedding": [1, 2, 3]}}],
    "labels": [{"id": 5, "label": 40}, {"id": 6, "label": None}],
    "edges": [[90, 91], [91, 2]],
    "removedEdges": [[0, 1]],
    "removedNodes": [7],
}


def test_json_becomes_a_batch_in_the_order_of_its_binary_form() -> None:
    batch = read(EVERYTHING)
    assert batch.counts == ChangeCounts(2, 2, 2, 2, 1, 1)
    assert batch.ids.integers is not None
    assert batch.ids.integers.tolist() == [90, 91, 3, 4, 5, 6, 90, 91, 91, 2, 0, 1, 7]
    np.testing.assert_array_equal(
        batch.features,
        np.array([[1, 2, 3, 4, 5], [7, 0.5, 0.25, 0, 12], [NAN, NAN, NAN, NAN, 4], [NAN, 1, 2, 3, NAN]], np.float32),
    )
    assert json.loads(batch.labels) == [20, None, 40, None]


def test_ids_of_texts_are_laid_out_and_labels_are_left_out_where_there_are_none() -> None:
    batch = read({"edges": [["user-1", "Zoë"]], "nodes": [{"id": "Zoë", "features": [1, 2, 3, 4, 5]}]}, NAMED)
    assert batch.ids.texts is not None and batch.ids.offsets is not None
    assert batch.ids.texts.tobytes().decode() == "Zoëuser-1Zoë"
    assert batch.ids.offsets.tolist() == [0, 4, 10, 14]
    assert batch.labels == b""


def test_the_binary_form_is_kept_as_it_is() -> None:
    body = arrays(ChangeCounts(1, 1, 1, 1), [90, 3, 5, 90, 0], [[1, 2, 3, 4, 5], [NAN, 1, 2, 3, NAN]], b"[null,40]")
    payload, batch = read_changes(body, BINARY, POSITIONS)
    assert payload is body
    assert (batch.counts, batch.labels) == (ChangeCounts(1, 1, 1, 1), b"[null,40]")
    texts = arrays(ChangeCounts(edges=1), ["user-1", "Zoë"])
    assert read_changes(texts, BINARY, NAMED)[0] is texts


def test_lists_of_labels_are_those_of_graphs_whose_nodes_have_several() -> None:
    assert json.loads(read({"labels": [{"id": 1, "label": [10, 20]}]}, SEVERAL).labels) == [[10, 20]]
    assert refused({"labels": [{"id": 1, "label": 10}]}, SEVERAL) == (
        "UnknownLabel",
        "labels[0].label",
        "10 is no list, and nodes of this graph have lists of labels; GET /v1/variants lists the classes; null says "
        "that a node has no label",
    )


ROW = [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("body", "code", "field", "part"),
    [
        pytest.param("", "InvalidJson", "body", "it is empty; send an object such as", id="no body"),
        pytest.param("{", "InvalidJson", "body", "truncated", id="half an object"),
        pytest.param("[1]", "InvalidType", "body", "expected an object, got [1]", id="a list"),
        pytest.param({}, "EmptyChanges", "body", "it has no changes", id="nothing"),
        pytest.param({"edges": []}, "EmptyChanges", "body", "such as a new edge", id="an empty list"),
        pytest.param({"edge": []}, "UnknownField", "edge", "known are nodes, overrides", id="an unknown field"),
        pytest.param({"edges": 3}, "InvalidType", "edges", "expected a list, got 3", id="no list"),
        pytest.param({"edges": [[1, 2, 3]]}, "InvalidType", "edges[0]", "expected a pair, got [1,2,3]", id="a triple"),
        pytest.param(
            {"edges": [[1, "2"]]}, "InvalidType", "edges[0][1]", 'an integer, got "2"; node ids of this graph are int',
            id="a text",
        ),
        pytest.param(
            {"removedEdges": [[1, 2], [2.5, 1]]}, "InvalidType", "removedEdges[1][0]", "got 2.5", id="a fraction"
        ),
        pytest.param({"removedNodes": [True]}, "InvalidType", "removedNodes[0]", "got true", id="a boolean"),
        pytest.param(
            {"removedNodes": [1, 2**63]}, "InvalidValue", "removedNodes[1]", "beyond 64 bits", id="a 64-bit id"
        ),
        pytest.param({"nodes": [{"id": 1}]}, "MissingField", "nodes[0].features", "it is missing", id="no features"),
        pytest.param(
            {"nodes": [{"id": 1, "features": ROW, "y": 1}]}, "UnknownField", "nodes[0].y",
            "known are id, features, label", id="a field of a node",
        ),
        pytest.param(
            {"nodes": [{"id": 1, "features": [1, 2]}]}, "WrongFeatures", "nodes[0].features", "2 numbers, where",
            id="too few features",
        ),
        pytest.param(
            {"nodes": [{"id": 1, "features": {"hour": 3}}]}, "MissingColumn", "nodes[0].features.amount",
            "missing values are refused", id="a column that cannot be filled in",
        ),
        pytest.param(
            {"overrides": [{"id": 1, "features": {"hours": 3}}]}, "UnknownColumn", "overrides[0].features.hours",
            "no such column", id="an unknown column",
        ),
        pytest.param(
            {"overrides": [{"id": 1, "features": {"hour": "3"}}]}, "InvalidType", "overrides[0].features.hour",
            'a number, got "3"', id="a text as a feature",
        ),
        pytest.param(
            {"overrides": [{"id": 1, "features": {"hour": 1e39}}]}, "InvalidValue", "overrides[0].features.hour",
            "beyond the range of float32", id="a number that is too large",
        ),
        pytest.param({"labels": [{"id": 1}]}, "MissingField", "labels[0].label", "it is missing", id="no label"),
        pytest.param(
            {"labels": [{"id": 1, "label": 1.5}]}, "InvalidType", "labels[0].label", "an integer, a text or a list",
            id="a fraction as a label",
        ),
        pytest.param(
            {"labels": [{"id": 1, "label": 10}, {"id": 2, "label": 11}]}, "UnknownLabel", "labels[1].label",
            "11 is none of the graph's classes", id="an unknown label",
        ),
        pytest.param(
            {"nodes": [{"id": 90, "features": ROW, "label": [10]}]}, "UnknownLabel", "nodes[0].label",
            "[10] is a list, and nodes of this graph have one label each", id="several labels",
        ),
    ],
)  # fmt: skip
def test_json_is_refused_by_place_value_and_remedy(
    body: dict[str, Any] | str, code: str, field: str, part: str
) -> None:
    found_code, found_field, message = refused(body)
    assert (found_code, found_field) == (code, field)
    assert part in message
    assert "; " in message, "a remedy"


def test_ids_of_new_nodes_are_not_endless() -> None:
    long = "é" * 513
    nodes = [{"id": id_, "features": ROW} for id_ in ("new", long)]
    code, place, message = refused({"nodes": nodes}, NAMED)
    assert (code, place) == ("InvalidValue", "nodes[1].id")
    assert "1,026 bytes, more than the 1,024" in message
    assert "1,026 bytes" in refused(arrays(ChangeCounts(new_nodes=1), [long]), NAMED)[2]
    # Stored ones may be as long as they are.
    read_changes(arrays(ChangeCounts(removed_nodes=1), [long]), BINARY, NAMED)


def test_texts_that_are_no_ids_are_refused() -> None:
    assert refused({"removedNodes": ["a", ""]}, NAMED)[:2] == ("InvalidValue", "removedNodes[1]")
    assert refused({"removedNodes": [3]}, NAMED)[:2] == ("InvalidType", "removedNodes[0]")


@pytest.mark.parametrize(
    ("body", "code", "field", "part"),
    [
        pytest.param(b"", "InvalidBinary", "body", "less than the 80 of its counts", id="nothing"),
        pytest.param(arrays(ChangeCounts(edges=1), [0, 1])[:-1], "InvalidBinary", "body", "95 bytes", id="cut"),
        pytest.param(arrays(ChangeCounts(), []), "EmptyChanges", "body", "no changes", id="no changes"),
        pytest.param(
            arrays(ChangeCounts(edges=1), ["a", "b"]), "InvalidBinary", "body", "integers; send form 1", id="texts"
        ),
        pytest.param(
            arrays(ChangeCounts(1), [90], [[1, 2]]), "WrongFeatures", "nodes[0].features", "2 numbers", id="narrow rows"
        ),
        pytest.param(
            arrays(ChangeCounts(1), [90], [[1, 2, NAN, 4, 5]]), "InvalidValue", "nodes[0].features[2]", "nan is not",
            id="a new node that lacks a number",
        ),
        pytest.param(
            arrays(ChangeCounts(0, 2), [1, 2], [ROW, [1, 2, float("inf"), 3, 4]]), "InvalidValue",
            "overrides[1].features[2]", "inf is not", id="an infinite number",
        ),
        pytest.param(
            arrays(ChangeCounts(0, 1), [1], [[1, NAN, 2, 3, 4]]), "InvalidValue", "overrides[0].features[1]",
            "NaN for all numbers of a column", id="a part of a list",
        ),
        pytest.param(
            arrays(ChangeCounts(labelled=1), [1], None, b"[10"), "InvalidBinary", "body", "no list of labels",
            id="half a list of labels",
        ),
        pytest.param(
            arrays(ChangeCounts(labelled=2), [1, 2], None, b"[10]"), "InvalidBinary", "body",
            "1 label, where 2 nodes", id="too few labels",
        ),
        pytest.param(
            arrays(ChangeCounts(labelled=1), [1]), "InvalidBinary", "body", "no list of labels", id="no labels"
        ),
        pytest.param(
            arrays(ChangeCounts(labelled=2), [1, 2], None, b"[10,11]"), "UnknownLabel", "labels[1].label", "11 is none",
            id="an unknown label",
        ),
    ],
)  # fmt: skip
def test_the_binary_form_is_refused_by_the_place_in_json(body: bytes, code: str, field: str, part: str) -> None:
    found_code, found_field, message = refused(body)
    assert (found_code, found_field) == (code, field)
    assert part in message
    assert "; " in message, "a remedy"


def test_texts_of_the_binary_form_are_checked_one_by_one() -> None:
    assert refused(arrays(ChangeCounts(edges=1), [0, 1]), NAMED)[2].startswith("node ids of this graph are texts")
    body = arrays(ChangeCounts(edges=1), ["a", "Zoë"])
    assert refused(body.replace("ë".encode(), b"\xff\xfe"), NAMED)[:2] == ("InvalidBinary", "edges[0][1]")
    # As a whole it is UTF-8, and the second id begins within a character.
    within = TextIds(np.frombuffer("aë".encode(), np.uint8), np.array([0, 2, 3]))
    split = encode_batch(ChangeBatch(ChangeCounts(edges=1), within, np.zeros((0, 5), np.float32)))
    assert refused(split, NAMED)[:2] == ("InvalidBinary", "edges[0][1]")
    assert refused(arrays(ChangeCounts(removed_nodes=2), ["a", ""]), NAMED)[:2] == ("InvalidValue", "removedNodes[1]")


def test_large_batches_in_json_are_refused_before_they_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_JSON_VALUES", 30_000)
    assert refused({"edges": [[0, 1]] * 20_000})[:2] == ("TooManyChanges", "body")
    assert read({"edges": [[0, 1]] * 9_000}).counts.edges == 9_000
    many = {"removedNodes": [0], "nodes": [{"id": 1, "features": [0.0] * 5, "label": None}], "overrides": []}
    assert read(json.dumps(many) + " " * 40_000).counts.items == 2
    monkeypatch.setattr(checks, "MOST_FEATURE_BYTES", 59)
    nodes = [{"id": 90 + i, "features": ROW} for i in range(3)]
    assert refused({"nodes": nodes})[:2] == ("TooManyChanges", "nodes")
    monkeypatch.setattr(checks, "MOST_ITEMS", 3)
    assert refused({"removedNodes": [1, 2, 3, 4]})[:2] == ("TooManyChanges", "body")


def test_a_revision_that_keeps_nothing_of_how_rows_are_made_takes_no_changes() -> None:
    old = replace(POSITIONS, changes=ServedChanges(features=UnknownFeatures("an earlier gnnserve made it")))
    code, _, message = refused({"removedNodes": [1]}, old)
    assert (code, "an earlier gnnserve made it" in message) == ("NoUpdates", True)


def test_content_of_a_batch_is_what_makes_it() -> None:
    columns = POSITIONS.changes.features.columns_of(0)
    content = content_of(read(EVERYTHING), lambda _: columns)
    assert msgspec.json.decode(msgspec.json.encode(content)) == {
        **EVERYTHING,
        "nodes": [
            {"id": 90, "features": ROW, "label": 20},
            {"id": 91, "features": [7, 0.5, 0.25, 0, 12], "label": None},
        ],
    }
    again = read(msgspec.json.encode(content).decode())
    assert encode_batch(again) == encode_batch(read(EVERYTHING))


def test_content_has_texts_and_numbers_of_columns_without_names() -> None:
    body = {"nodes": [{"id": "new", "features": ROW}], "edges": [["new", "Zoë"]]}
    content = content_of(read(body, NAMED), NAMED.changes.features.columns_of)
    assert (content.nodes[0].id, content.edges) == ("new", (("new", "Zoë"),))
    few = read({"overrides": [{"id": 1, "features": {"2": 9}}, {"id": 2, "features": ROW}]}, UNNAMED)
    told = content_of(few, UNNAMED.changes.features.columns_of)
    assert [node.features for node in told.overrides] == [{"2": 9.0}, ROW]


def test_places_follow_the_order_of_the_binary_form() -> None:
    counts = ChangeCounts(1, 1, 2, 1, 1, 2)
    assert [place_of_id(i, counts) for i in range(counts.count_ids(2))] == [
        "nodes[0].id", "overrides[0].id", "labels[0].id", "labels[1].id", "edges[0][0]", "edges[0][1]",
        "removedEdges[0][0]", "removedEdges[0][1]", "removedNodes[0]", "removedNodes[1]",
    ]  # fmt: skip
    assert [place_of_label(i, counts) for i in range(3)] == ["nodes[0].label", "labels[0].label", "labels[1].label"]


def test_every_refusal_of_a_replica_has_a_code() -> None:
    for problem in ChangeProblem:
        error = refusal_error(ChangeRefusal(problem, "edges[0][0]", "it is wrong", "mend it"))
        assert (error.where, str(error)) == ("edges[0][0]", "edges[0][0]: it is wrong; mend it")
        assert isinstance(error.code, ErrorCode)
    told = str(refusal_error(ChangeRefusal(ChangeProblem.UNKNOWN_NODE, "edges[0][0]", "gone", "mend it"), 17))
    assert told == "edges[0][0]: gone (record 17 of the log, which stays without effect); mend it"


def test_a_request_decodes_what_a_page_encodes() -> None:
    content = msgspec.json.encode(content_of(read(EVERYTHING), POSITIONS.changes.features.columns_of))
    assert msgspec.json.decode(msgspec.json.encode(msgspec.json.decode(content, type=ChangesRequest[int]))) == (
        msgspec.json.decode(content)
    )

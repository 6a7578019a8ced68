"""Requests that bring new nodes, edges and features: how they are read in both forms, and what they are refused for."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.campaigns import examples
from tests.support.overlays.overlay_bodies import (
    ARRAYS,
    COLUMNS,
    JSON,
    NAMED,
    NODES,
    POSITIONS,
    TEXTS,
    arrange,
    arrays,
    ask,
    brought,
    revision,
)
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker, running, service, with_overlays

from gnnserve_api.files.repository import SourceColumn
from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_api.spec.endpoint import EndpointSpec
from gnnserve_worker.asking import naming
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.asking.question import RequestError, wishes_of_head
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import integer_ids
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.openapi import complete
from gnnserve_worker.serving.requests import Question

FEW_IDS = naming.FEW_IDS
NEW = {"id": 99, "features": [1, 2, 3, 4, 5]}
OTHER = {"id": 98, "features": {"amount": 7}}


UNNAMED = revision(columns=())


def noting(note: Callable[[bytes], None]) -> ServedRevision:
    """A revision that notes each body before it is decoded."""
    task = POSITIONS.task

    class Decoder:
        def decode(self, body: bytes) -> Any:
            note(body)
            return task.decoder.decode(body)

    return replace(POSITIONS, task=replace(task, decoder=Decoder()))


def refused(body: dict[str, Any] | str, of: ServedRevision = POSITIONS, **limits: int) -> tuple[str, str, str]:
    """Code, field, and the rest of the message."""
    with pytest.raises(RequestError) as error:
        ask(body, of, OverlayLimits(**limits))
    return error.value.code, error.value.where, str(error.value).removeprefix(f"{error.value.where}: ")


def ask_arrays(body: bytes, of: ServedRevision = POSITIONS, **limits: int) -> Question:
    return question_of(ARRAYS, body, of, limits=OverlayLimits(**limits))


def test_new_nodes_edges_and_overrides_become_arrays() -> None:
    question = ask(
        {
            "nodes": ["order-9", "user-2"],
            "seed": 7,
            "overlay": {
                "nodes": [
                    {"id": "order-9", "features": {"hour": 23, "amount": 12.5}},
                    {"id": "device-3", "features": [0.5, 2, 3, 4, 5]},
                ],
                "edges": [["user-2", "order-9"], ["device-3", "order-9"], ["user-1", "user-2"]],
                "overrides": [{"id": "user-2", "features": {"amount": 0, "embedding": [1, 2, 3]}}],
            },
        },
        NAMED,
    )
    assert brought(question) == (
        [[12.5, 0.5, 0.25, 0, 23], [0.5, 2, 3, 4, 5], [0, 1, 2, 3, 24]],
        [2],
        [[2, NODES], [NODES + 1, NODES], [1, 2]],
        [NODES, 2],
    )
    assert question.wishes.seed == 7


def test_request_that_brings_nothing_is_an_ordinary_one() -> None:
    for overlay in (None, {}, {"nodes": [], "edges": []}):
        assert ask({"nodes": [3], "overlay": overlay}).overlay is None
    assert ask({"nodes": [3]}).wishes.seed is None


def test_sparse_features_go_by_number_where_the_source_names_no_columns() -> None:
    question = ask({"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": {"4": 2, "0": -1}}]}}, UNNAMED)
    assert brought(question)[0] == [[-1, 0, 0, 0, 2]]


def test_override_keeps_the_columns_that_it_does_not_name() -> None:
    overrides = [
        {"id": 3, "features": {"hour": 5}},
        {"id": 1, "features": [1, 2, 3, 4, 5]},
        {"id": 2, "features": {}},
        {"id": 4, "features": {"embedding": [7, 8, 9]}},
    ]
    question = ask({"nodes": [0], "overlay": {"overrides": overrides}})
    assert brought(question)[0] == [[30, 31, 32, 33, 5], [1, 2, 3, 4, 5], [20, 21, 22, 23, 24], [40, 7, 8, 9, 44]]
    sparse = ask({"nodes": [0], "overlay": {"overrides": [{"id": 6, "features": {"2": -1}}]}}, UNNAMED)
    assert brought(sparse)[0] == [[60, 61, -1, 63, 64]]


@pytest.mark.parametrize(("columns", "given", "missing"), [(COLUMNS, "amount", "embedding"), ((), "0", "1")])
def test_override_names_every_column_where_the_revision_keeps_no_features(
    columns: tuple[SourceColumn, ...], given: str, missing: str
) -> None:
    forgetful = revision(columns, keeps_features=False)
    overrides = [{"id": 2, "features": [1, 2, 3, 4, 5]}, {"id": 3, "features": {given: 5}}]
    with pytest.raises(RequestError) as refused:
        ask({"nodes": [0], "overlay": {"overrides": overrides}}, forgetful)
    assert (refused.value.code, refused.value.where) == ("MissingColumn", f"overlay.overrides[1].features.{missing}")
    assert "does not keep what node 3 has" in str(refused.value)
    every = {"amount": 1, "embedding": [2, 3, 4], "hour": 5} if columns else {str(i): i + 1 for i in range(5)}
    question = ask({"nodes": [0], "overlay": {"overrides": [{"id": 3, "features": every}]}}, forgetful)
    assert brought(question)[0] == [[1, 2, 3, 4, 5]]


def test_columns_of_very_wide_graphs_go_by_number_too() -> None:
    columns = FeatureColumns(70_000, ())
    wide = with_overlays(POSITIONS, OverlaySupport(columns, arrange))
    question = ask({"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": {"69999": 2, "3": -1}}]}}, wide)
    features = brought(question)[0][0]
    assert {place: value for place, value in enumerate(features) if value} == {3: -1, 69_999: 2}
    assert (
        refused({"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": {"70000": 2}}]}}, wide)[0] == "UnknownColumn"
    )


def test_column_that_is_no_list_may_be_a_list_of_one_number() -> None:
    features = {"hour": [3], "amount": 1}
    assert brought(ask({"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": features}]}}))[0] == [
        [1, 0.5, 0.25, 0, 3]
    ]


def test_edges_alone_and_overrides_alone_are_overlays() -> None:
    assert brought(ask({"nodes": [0], "overlay": {"edges": [[1, 1], [1, 1]]}})) == ([], [], [[1, 1], [1, 1]], [0])
    alone = {"overrides": [{"id": 3, "features": [1, 2, 3, 4, 5]}]}
    assert brought(ask({"nodes": [3, 3], "overlay": alone})) == ([[1, 2, 3, 4, 5]], [3], [], [3, 3])


@pytest.mark.parametrize(
    ("overlay", "code", "field", "message"),
    [
        ({"edges": [[0, 1], [99, 7]]}, "UnknownNode", "edges[1][0]", "node 99 is not in the graph; node ids are 0"),
        ({"nodes": [NEW], "edges": [[99, 8]]}, "UnknownNode", "edges[0][1]", "node 8 is not"),
        ({"edges": [[0, -1]]}, "UnknownNode", "edges[0][1]", "node -1 is not"),
        ({"edges": [[0, 2**70]]}, "UnknownNode", "edges[0][1]", f"node {2**70} is not"),
        ({"edges": [[0, 1], [2]]}, "InvalidType", "edges[1]", "expected a pair, got [2]; give a pair of"),
        ({"edges": [[0, 1, 2]]}, "InvalidType", "edges[0]", "expected a pair, got [0,1,2]; give"),
        ({"edges": [[0, "1"]]}, "InvalidType", "edges[0][1]", 'expected an integer, got "1"; node ids of this'),
        ({"edges": [3]}, "InvalidType", "edges[0]", "expected a list, got 3; give a pair of node"),
        ({"edges": 3}, "InvalidType", "edges", "expected a list, got 3; give a list of pairs"),
        ({"nodes": [{"id": 7, "features": []}]}, "StoredNode", "nodes[0].id", "7 is a node of the graph; give a new"),
        ({"nodes": [NEW, OTHER, NEW]}, "RepeatedNode", "nodes[2].id", "99 is also the id of overlay.nodes[0]; give"),
        (
            {"overrides": [{"id": 3, "features": NEW["features"]}] * 2},
            "RepeatedNode", "overrides[1].id", "3 is also the id of overlay.overrides[0]; give each node once",
        ),
        (
            {"nodes": [NEW], "overrides": [NEW]},
            "InvalidValue", "overrides[0].id", "99 is a new node of the request; give its features in overlay.nodes",
        ),
        ({"overrides": [NEW]}, "UnknownNode", "overrides[0].id", "node 99 is not in the graph"),
        ({"nodes": [{"id": 99}]}, "MissingField", "nodes[0].features", "it is missing; give a list of numbers, or"),
        ({"nodes": [{"features": []}]}, "MissingField", "nodes[0].id", "it is missing; node ids of this graph are int"),
        ({"nodes": [NEW | {"x": 1}]}, "UnknownField", "nodes[0].x", "there is no such field; known are id, features"),
        ({"edge": []}, "UnknownField", "edge", "there is no such field; known are nodes, edges, overrides"),
        ({"nodes": [{"id": "a", "features": []}]}, "InvalidType", "nodes[0].id", 'expected an integer, got "a"; node'),
    ],
)  # fmt: skip
def test_ids_that_are_wrong_are_refused_by_place_value_and_remedy(
    overlay: dict[str, Any], code: str, field: str, message: str
) -> None:
    found = refused({"nodes": [0], "overlay": overlay})
    assert found[:2] == (code, f"overlay.{field}")
    assert found[2].startswith(message)


@pytest.mark.parametrize(
    ("features", "code", "place", "message"),
    [
        ("[1]", "WrongFeatures", "", "1 number, where the graph has 5 features; give 5 numbers, or an object with"),
        ("[1, 2]", "WrongFeatures", "", "2 numbers, where the graph has 5 features; give 5 numbers, or an object with"),
        ("3", "InvalidType", "", "expected a list or an object, got 3; give a list of numbers, or an object with"),
        ('[1, 2, "x", 4, 5]', "InvalidType", "[2]", 'expected a number, got "x"'),
        ("[1, 2, null, 4, 5]", "InvalidType", "[2]", "expected a number, got null"),
        ("[1, 2, 1e999, 4, 5]", "InvalidValue", "[2]", "the number is out of range; give a number from -3.402823e"),
        ("[1, 2, 1e39, 4, 5]", "InvalidValue", "[2]", "1e39 is beyond the range of float32; give a number from -3.4"),
        ('{"amont": 3}', "UnknownColumn", ".amont", "the graph's source has no such column; its columns are amount, e"),
        ('{"amount": "3"}', "InvalidType", ".amount", 'expected a number, got "3"; give a number, or a list'),
        ('{"hour": 1, "amount": null}', "InvalidType", ".amount", "expected a number, got null"),
        ('{"amount": [1, 2]}', "WrongFeatures", ".amount", "expected a number, got 2 numbers; give a number"),
        ('{"amount": 1, "embedding": 3}', "WrongFeatures", ".embedding", "expected a list of 3 numbers, got 3.0; give"),
        ('{"amount": 1, "embedding": [3]}', "WrongFeatures", ".embedding", "expected a list of 3 numbers, got 1"),
        ('{"amount": 1, "embedding": [1, true, 3]}', "InvalidType", ".embedding[1]", "expected a number, got true"),
        ('{"amount": 1, "embedding": [1, 2, -4e38]}', "InvalidValue", ".embedding[2]", "-4e38 is beyond the range of"),
        ('{"amount": %s}' % (10**400), "InvalidValue", ".amount", "the number is out of range"),
        ('{"amount": 1e999}', "InvalidValue", ".amount", "the number is out of range"),
        ('{"amount": 1, "hour": 1e39}', "InvalidValue", ".hour", "1e39 is beyond the range of"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["nodes", "overrides"])
def test_features_that_are_wrong_are_refused_by_place_value_and_remedy(
    kind: str, features: str, code: str, place: str, message: str
) -> None:
    id_ = 99 if kind == "nodes" else 3
    found = refused(f'{{"overlay": {{"{kind}": [{{"id": {id_}, "features": {features}}}]}}, "nodes": [0]}}')
    assert found[:2] == (code, f"overlay.{kind}[0].features{place}")
    assert found[2].startswith(message)


def test_a_new_node_without_a_column_that_the_source_requires_is_refused() -> None:
    found = refused({"overlay": {"nodes": [{"id": 99, "features": {"hour": 3}}]}, "nodes": [0]})
    assert found[:2] == ("MissingColumn", "overlay.nodes[0].features.amount")
    assert found[2].startswith("it is missing, and missing values are refused, as in the graph's")


@pytest.mark.parametrize("name", ["5", "-1", "04", "x", "", "٣", "1.0", "9" * 400])
def test_columns_without_names_are_called_by_their_number(name: str) -> None:
    code, field, message = refused({"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": {name: 1}}]}}, UNNAMED)
    assert (code, field[:27]) == ("UnknownColumn", "overlay.nodes[0].features." + name[:1])
    assert message.endswith("it does not name them, so they are called by their numbers, 0 to 4")


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        ('{"nodes": {"a": "\\ud800"}}', "InvalidType", "nodes"),
        ('{"nodes": ["a", "b"], "nodes": []}', "InvalidType", "nodes[0]"),
        ('{"nodes": [0], "overlay": {"edges": [[0, "\\ud800"]]}}', "InvalidJson", "body"),
    ],
)
def test_what_cannot_be_shown_is_refused_all_the_same(body: str, code: str, field: str) -> None:
    assert refused(body)[:2] == (code, field)


def test_named_numbers_are_refused_too() -> None:
    columns = tuple(SourceColumn(name, 1, (0.0,)) for name in "abcde")
    body = {"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": dict.fromkeys("abcde", 1.0) | {"c": 1e39}}]}}
    assert refused(body, revision(columns))[:2] == ("InvalidValue", "overlay.nodes[0].features.c")
    body["overlay"]["nodes"][0]["features"] = dict.fromkeys("abcdx", 1.0)  # type: ignore[index]
    assert refused(body, revision(columns))[:2] == ("UnknownColumn", "overlay.nodes[0].features.x")


@pytest.mark.parametrize(
    ("limits", "code", "field", "message"),
    [
        ({"max_nodes": 1}, "TooManyOverlayNodes", "overlay.nodes", "1 new node and 1 override, more than the 1 that"),
        ({"max_edges": 1}, "TooManyOverlayEdges", "overlay.edges", "2 edges, more than the 1 that one"),
        ({"max_nodes": 0}, "NoOverlays", "overlay", "the service takes none; leave it out, or set spec.endpoint.overl"),
    ],
)  # fmt: skip
def test_limits_hold_in_both_forms(limits: dict[str, int], code: str, field: str, message: str) -> None:
    override = {"id": 3, "features": [0, 0, 0, 0, 0]}
    overlay = {"nodes": [NEW], "overrides": [override], "edges": [[0, 99], [1, 2]]}
    found = refused({"nodes": [0], "overlay": overlay}, **limits)
    assert (*found[:2], found[2][: len(message)]) == (code, field, message)
    body = arrays([0], [NEW], [[0, -1], [1, 2]], [3], [[0] * 5] * 2)
    with pytest.raises(RequestError) as error:
        ask_arrays(body, **limits)
    assert (error.value.code, error.value.where) == (code, field)


def test_edges_of_a_service_that_takes_none_are_to_be_left_out() -> None:
    found = refused({"nodes": [0], "overlay": {"edges": [[0, 1]]}}, max_edges=0)
    assert found == (
        "TooManyOverlayEdges", "overlay.edges", "1 edge, more than the 0 that one request may have; leave them out, "
        "or raise spec.endpoint.overlay.maxEdges",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("brought", "code"),
    [
        pytest.param({"edges": [[1, 2]] * 140_000}, "OverlayTooLarge", id="edges"),
        pytest.param({"edges": [*[[1, 2]] * 140_000, ["a"]]}, "OverlayTooLarge", id="a wrong edge"),
        pytest.param({"edges": [[[]] * 70_000]}, "OverlayTooLarge", id="lists in an edge"),
        pytest.param({"nodes": [{}] * 70_000}, "OverlayTooLarge", id="empty nodes"),
        pytest.param({"nodes": [[]] * 70_000}, "OverlayTooLarge", id="lists for nodes"),
        pytest.param({"nodes": [{"features": [1] * 300_000}]}, "OverlayTooLarge", id="features of a node"),
        pytest.param({"edges": [[1, 2]] * 20_000}, "TooManyOverlayEdges", id="few too many edges"),
    ],
)
def test_more_values_than_any_request_has_are_refused_before_they_are_decoded(
    brought: dict[str, Any], code: str
) -> None:
    decoded: list[bytes] = []
    found = refused({"nodes": [0], "overlay": brought}, noting(decoded.append))
    assert found[0] == code
    assert bool(decoded) == (code != "OverlayTooLarge")
    if not decoded:
        assert found[1] == "overlay"
        assert found[2].endswith(
            " values, more than any request within the limits: 1,024 new nodes and overrides of 5 features each, and "
            "16,384 edges; split the request"
        )


@pytest.mark.parametrize("plain", [{"nodes": [0] * 300_000}, {"nodes": [0], "return": ["labels"] * 300_000}])
def test_more_values_than_nodes_may_be_asked_for_are_refused_without_overlays_too(plain: dict[str, Any]) -> None:
    code, field, message = refused(plain)
    assert (code, field) == ("TooManyNodes", "nodes")
    assert message.startswith("the body has 300,0")
    assert ", more than the 500 nodes that one request may have; split the list over several" in message


@pytest.mark.parametrize("ending", ["", "a" * 100_000, ".a", "[0][1][2][3][4][5][6][7][8]"])
def test_name_of_a_field_passes_for_no_place(ending: str) -> None:
    name = f" - at `$.nodes{ending}"
    code, field, message = refused({name: 1, "nodes": [0]})
    assert code == "UnknownField"
    assert len(message) < 200
    assert field in {f"{name[1:61]}…", name[1:], "nodes.- at `$.nodes", "nodes."} or field.startswith("- at `$.nodes")


def test_service_without_overlays_says_so_however_large_they_are() -> None:
    assert refused({"nodes": [0], "overlay": {"edges": [[1, 2]] * 140_000}}, max_nodes=0)[0] == "NoOverlays"


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    odd = r'"\",[{"' * 60_000  # more than a body may have of them outside of texts
    body = '{"nodes": ["user-1"], "overlay": {"nodes": [{"id": %s, "features": {"amount": 1}}]}}'
    question = ask(body % json.dumps(odd), NAMED)
    assert brought(question)[0] == [[1, 0.5, 0.25, 0, 12]]


def test_no_garbage_is_collected_while_a_large_body_is_decoded() -> None:
    collects: list[bool] = []
    of = noting(lambda _body: collects.append(gc.isenabled()))
    nodes = [{"id": 100 + i, "features": [1, 2, 3, 4, 5]} for i in range(1000)]
    body: dict[str, Any] = {"nodes": [100], "overlay": {"nodes": nodes}}
    assert gc.isenabled()
    ask(body, of)
    assert gc.isenabled()
    refused(body | {"strict": 3}, of)
    assert gc.isenabled()
    ask({"nodes": [0]}, of)
    assert collects == [False, False, True]


def test_in_bodies_of_a_million_characters_the_wrong_value_is_not_looked_for() -> None:
    for blanks, found in ((0, '{"b":1}'), (2**20, "an object")):
        body = '{"nodes": [0], "overlay": {"nodes": [{"id": 9, "features": {"amount": {"b": 1}}}]%s}}' % (" " * blanks)
        code, field, message = refused(body)
        column = ".amount" if not blanks else ""
        assert (code, field) == ("InvalidType", f"overlay.nodes[0].features{column}")
        assert message == f"expected a number, got {found}; give a number, or a list of numbers if the source's " + (
            "column has lists"
        )
        code, field, message = refused(body.replace('{"amount": {"b": 1}}', "[1]").replace("[0]", '["a"]'))
        assert (code, field) == ("InvalidType", "nodes[0]")
        assert message.startswith(f"expected an integer, got {'text' if blanks else chr(34) + 'a' + chr(34)}; give")
        code, field, message = refused('{"nodes": [0], "overlay": {"edges": [[0, 1], [2]]%s}}' % (" " * blanks))
        assert message == f"expected a pair, got {'another list' if blanks else '[2]'}; give a pair of node ids: " + (
            "[source, target]"
        )


@pytest.mark.parametrize(
    ("overlay", "place", "message"),
    [
        (
            {"nodes": {"id": 9}},
            "nodes",
            'expected a list, got {"id":9}; give a list of objects, each with a node\'s id',
        ),
        ({"overrides": {}}, "overrides", "expected a list, got {}; give a list of objects, each with a node's id and"),
        ({"nodes": [[9, []]]}, "nodes[0]", "expected an object, got [9,[]]; give an object with a node's id and"),
        ({"edges": {"0": 1}}, "edges", 'expected a list, got {"0":1}; give a list of pairs of node ids: [[source, ta'),
        ({"edges": [{"a": 0}]}, "edges[0]", 'expected a list, got {"a":0}; give a pair of node ids: [source, target]'),
        ({"edges": [["a", 0]]}, "edges[0][0]", 'expected an integer, got "a"; node ids of this graph are integers'),
        (
            {"nodes": [{"id": 9, "features": [[1]]}]},
            "nodes[0].features[0]",
            "expected a number, got [1]; give a number",
        ),
    ],
)
def test_remedy_of_a_wrong_type_is_that_of_its_place(overlay: dict[str, Any], place: str, message: str) -> None:
    code, field, found = refused({"nodes": [0], "overlay": overlay})
    assert (code, field, found[: len(message)]) == ("InvalidType", f"overlay.{place}", message)


def test_id_that_the_graph_lacks_may_be_meant_to_be_a_new_node() -> None:
    known = "node ids are 0 to 7; "
    brings = known + "a new node goes into overlay.nodes, with its features"
    assert refused({"nodes": [9]})[2] == f"node 9 is not in the graph; {brings}"
    assert refused({"nodes": [2**70]})[2].endswith(brings)
    assert refused({"nodes": ["x"]}, NAMED)[2].endswith(
        "its node ids; a new node goes into overlay.nodes, with its features"
    )
    assert refused({"nodes": [9], "overlay": {"nodes": [OTHER]}})[2].endswith(brings)
    assert refused({"nodes": [9]}, max_nodes=0)[2] == "node 9 is not in the graph; node ids are 0 to 7"
    for new, brings in (([], "none is new"), ([NEW], "-1 is the new node"), ([NEW] * 2, "-1 to -2 are the new nodes")):
        with pytest.raises(RequestError) as error:
            ask_arrays(arrays([-3], new, [[0, 1]], [], [[0] * 5] * len(new)))
        assert str(error.value) == f"nodes[0]: node -3 is not in the graph; {known}of this request {brings}"


def test_empty_text_is_no_id() -> None:
    nodes = [{"id": "a", "features": {"amount": 1}}, {"id": "", "features": {"amount": 1}}]
    assert refused({"nodes": ["user-1"], "overlay": {"nodes": nodes}}, NAMED) == (
        "InvalidValue", "overlay.nodes[1].id", "it is empty, and no id is the empty text; give the node an id of one "
        "character or more",
    )  # fmt: skip


@pytest.mark.parametrize("id_", [2**63, -(2**63) - 1, 10**400])
@pytest.mark.parametrize("of", [POSITIONS, revision(ids=integer_ids(np.arange(NODES) * 10))])
def test_ids_have_64_bits(id_: int, of: ServedRevision) -> None:
    code, field, message = refused({"nodes": [0], "overlay": {"nodes": [NEW, OTHER | {"id": id_}]}}, of)
    assert (code, field) == ("InvalidValue", "overlay.nodes[1].id")
    assert message.endswith(
        " is beyond 64 bits with a sign, as no id is; give an integer from -9223372036854775808 to 9223372036854775807"
    )
    assert len(message) < 250
    for most in (2**63 - 1, -(2**63)):
        question = ask({"nodes": [most], "overlay": {"nodes": [OTHER | {"id": most}]}}, of)
        assert question.nodes.tolist() == [NODES]


def test_arrays_that_bring_nothing_are_an_ordinary_request() -> None:
    for limits in ({}, {"max_nodes": 0}):
        question = ask_arrays(arrays([3, 5], [], [], [], []), **limits)
        assert (question.overlay, question.nodes.tolist(), question.outputs) == (None, [3, 5], ("scores",))
    cannot = with_overlays(POSITIONS, None, "of a GPU")
    assert ask_arrays(arrays([3, 5], [], [], [], []), cannot).nodes.tolist() == [3, 5]
    with pytest.raises(RequestError, match="node 8 is not in the graph"):
        ask_arrays(arrays([8], [], [], [], []))
    with pytest.raises(RequestError, match="the list is empty"):
        ask_arrays(arrays([], [], [], [], []))


def test_seed_in_the_query_is_told_to_be_a_header() -> None:
    with pytest.raises(
        RequestError, match=r"seed: there is no such field; known is return; headers have .* gnnserve-seed"
    ):
        question_of(ARRAYS, arrays([0], [], [], [], []), POSITIONS, query=b"seed=7")


def test_features_of_a_request_may_take_16_mib() -> None:
    wide = revision(columns=(SourceColumn("a", 20_000, None),))
    nodes = [{"id": 100 + i, "features": {}} for i in range(900)]
    code, _, message = refused({"nodes": [0], "overlay": {"nodes": nodes}}, wide)
    assert code == "OverlayTooLarge"
    assert message.startswith("900 nodes with 20,000 features each take 72,000,000 bytes, more than the 16,777,216")


def test_revision_that_cannot_says_why() -> None:
    cannot = with_overlays(POSITIONS, None, "an earlier gnnserve made its revision")
    assert refused({"nodes": [0], "overlay": {"edges": [[0, 1]]}}, cannot) == (
        "NoOverlays", "overlay", "the service takes none: an earlier gnnserve made its revision; leave it out",
    )  # fmt: skip


@pytest.mark.parametrize("seed", [-1, 2**63, 10**300])
def test_seeds_are_63_bits(seed: int) -> None:
    code, field, message = refused({"nodes": [0], "seed": seed})
    assert (code, field) == ("InvalidValue", "seed")
    assert message.endswith("is out of range; give an integer from 0 to 9223372036854775807, or leave it out")
    with pytest.raises(RequestError, match="gnnserve-seed"):
        wishes_of_head({b"gnnserve-seed": str(seed).encode()})


def test_seed_of_the_body_goes_before_that_of_the_head() -> None:
    wishes = wishes_of_head({b"gnnserve-seed": b" 5 "})
    for body, seed in ((b'{"nodes": [0]}', 5), (b'{"nodes": [0], "seed": 0}', 0)):
        assert question_of(JSON, body, POSITIONS, wishes=wishes).wishes.seed == seed
    body = arrays([0], [], [[0, 1]], [], [])
    assert question_of(ARRAYS, body, POSITIONS, wishes=wishes).wishes.seed == 5


@pytest.mark.parametrize(
    ("body", "code", "field", "message"),
    [
        (b"", "InvalidBinary", "body", "0 bytes are less than the 32 of its counts; begin with the numbers of nodes"),
        (struct.pack("<4q", 1, -1, 0, 0), "InvalidBinary", "body", "the counts 1, -1, 0, 0 are not all from 0"),
        (struct.pack("<4q", 0, 1, 0, 0), "EmptyNodes", "nodes", "the list is empty"),
        (struct.pack("<4q", 2**62, 1, 0, 0), "InvalidBinary", "body", "32 bytes, where its counts make 36,893,488"),
        (struct.pack("<4q", 1, 1, 2**62, 0), "InvalidBinary", "body", "32 bytes, where its counts make 73,786,976"),
        (b'{"nodes": [3], "overlay": {"nodes": []}}', "InvalidBinary", "body", "40 bytes, where its counts make"),
        (
            arrays([0], [NEW], [], [], [[1, 2, 3, 4]]),
            "InvalidBinary", "body", "56 bytes, where its counts make 60: 32 of counts, 8 of each of 1 ids, 4 of each "
            "of 5 features of nodes; send int64 and float32, little-endian",
        ),
        (arrays([0, 8], [NEW], [], [], [[0] * 5]), "UnknownNode", "nodes[1]", "node 8 is not in the graph"),
        (arrays([0], [NEW], [[0, -1], [-2, 0]], [], [[0] * 5]), "UnknownNode", "overlay.edges[1][0]", "node -2 is not"),
        (arrays([0], [], [], [-1], [[0] * 5]), "UnknownNode", "overlay.overrides[0].id", "node -1 is not in the graph"),
        (arrays([0], [NEW], [], [-1], [[0] * 5] * 2), "InvalidValue", "overlay.overrides[0].id", "-1 is a new node"),
        (arrays([0], [], [], [2, 3, 2], [[0] * 5] * 3), "RepeatedNode", "overlay.overrides[2].id", "2 is also the id"),
        (
            arrays([0], [NEW], [], [2], [[0] * 5, [0, 0, math.nan, 0, 0]]),
            "InvalidValue", "overlay.overrides[0].features[2]", "nan is not finite; give a number",
        ),
        (
            arrays([0], [NEW], [], [], [[0, 0, 0, 0, -math.inf]]),
            "InvalidValue", "overlay.nodes[0].features[4]", "-inf is not finite",
        ),
    ],
)  # fmt: skip
def test_arrays_that_are_wrong_are_refused(body: bytes, code: str, field: str, message: str) -> None:
    with pytest.raises(RequestError) as error:
        ask_arrays(body)
    assert (error.value.code, error.value.where) == (code, field)
    assert str(error.value).startswith(f"{field}: {message}")


def test_graph_of_texts_has_no_binary_form() -> None:
    with pytest.raises(RequestError, match="send JSON"):
        ask_arrays(arrays([0], [], [[0, 1]], [], []), NAMED)


def test_negative_id_of_the_graph_cannot_stand_for_a_new_node() -> None:
    negative = revision(ids=integer_ids(np.arange(-3, NODES - 3)))
    assert brought(ask_arrays(arrays([-3], [], [[-2, -1]], [], []), negative))[2:] == ([[1, 2]], [0])
    with pytest.raises(RequestError, match=r"overlay.nodes\[0\]: -1 is a node of the graph, and stands for a new one"):
        ask_arrays(arrays([-1], [NEW], [], [], [[0] * 5]), negative)


@st.composite
def overlays(draw: st.DrawFn) -> tuple[list[int], list[list[float]], list[list[int]], list[int]]:
    """Nodes asked for, features, edges, overridden; -1 - k is the k-th new node."""
    new = draw(st.integers(0, 3))
    end = st.integers(-new, NODES - 1)
    overridden = draw(st.lists(st.integers(0, NODES - 1), unique=True, max_size=3))
    number = st.floats(width=32, allow_nan=False, allow_infinity=False)
    rows = len(overridden) + new
    features = draw(st.lists(st.lists(number, min_size=5, max_size=5), min_size=rows, max_size=rows))
    edges = draw(st.lists(st.lists(end, min_size=2, max_size=2), min_size=1, max_size=6))
    return draw(st.lists(end, min_size=1, max_size=4)), features, edges, overridden


@settings(max_examples=examples(60), deadline=None)
@given(
    overlays(),
    st.sampled_from(["positions", "integers", "texts"]),
    st.sampled_from([0, FEW_IDS]),
    st.randoms(use_true_random=False),
)
def test_both_forms_of_one_overlay_are_read_alike(
    made: tuple[list[int], list[list[float]], list[list[int]], list[int]], kind: str, few: int, order: Any
) -> None:
    nodes, features, edges, overridden = made
    new = len(features) - len(overridden)
    integers = integer_ids(np.arange(NODES) * 10)
    of = {"positions": POSITIONS, "integers": revision(ids=integers), "texts": NAMED}[kind]

    def id_of(node: int) -> int | str:
        if kind == "texts":
            return TEXTS[node] if node >= 0 else f"new {node}"
        return node * (10 if kind == "integers" else 1) if node >= 0 else 1000 + node

    def row(values: list[float]) -> Any:
        named = [("amount", values[0]), ("embedding", values[1:4]), ("hour", values[4])]
        order.shuffle(named)
        return order.choice([values, dict(named)])

    rows = [row(values) for values in features]
    body = {
        "nodes": [id_of(node) for node in nodes],
        "overlay": {
            "nodes": [{"id": id_of(-1 - k), "features": rows[k]} for k in range(new)],
            "edges": [[id_of(end) for end in edge] for edge in edges],
            "overrides": [
                {"id": id_of(node), "features": values} for node, values in zip(overridden, rows[new:], strict=True)
            ],
        },
    }

    def position(node: int) -> int:
        return node if node >= 0 else NODES - 1 - node

    expected = (
        np.array(features, np.float32).reshape(-1, 5).tolist(),
        overridden,
        [[position(end) for end in edge] for edge in edges],
        [position(node) for node in nodes],
    )
    with mock.patch.object(naming, "FEW_IDS", few):  # many ids are found in another way
        assert brought(ask(body, of)) == expected
    if kind != "texts":
        scale = 10 if kind == "integers" else 1

        def number(node: int) -> int:
            return node * scale if node >= 0 else node

        as_arrays = arrays(
            [number(node) for node in nodes], [None] * new, [[number(end) for end in edge] for edge in edges],
            [number(node) for node in overridden], features,
        )  # fmt: skip
        assert brought(ask_arrays(as_arrays, of)) == expected


def test_limits_get_413_with_the_field_and_nothing_is_computed() -> None:
    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            client.switch(with_overlays(worker.revision(), POSITIONS.compute.overlays.support))
            too_many = [[0, 1]] * (DEFAULT_OVERLAY_LIMITS.max_edges + 1)
            response = await client.predict([0], overlay={"edges": too_many})
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["field"]) == (
                413, "TooManyOverlayEdges", "overlay.edges",
            )  # fmt: skip
            response = await client.predict([0], overlay={"edges": [[0, 1000]]})
            assert (response.status_code, response.json()["error"]["field"]) == (400, "overlay.edges[0][1]")
        assert worker.batches == []

    asyncio.run(scenario())


def test_openapi_describes_overlays_in_both_forms() -> None:
    for of, kind in ((POSITIONS, "integer"), (NAMED, "string")):
        document = complete("digits", {"paths": {}}, of)
        schemas = document["components"]["schemas"]
        assert {"PredictRequest", "RequestOverlay", "NodeFeatures"} <= set(schemas)
        overlay = schemas["RequestOverlay"]["properties"]
        assert overlay["edges"]["items"] == {
            "type": "array", "minItems": 2, "maxItems": 2, "items": {"type": kind},
        }  # fmt: skip
        assert overlay["nodes"]["items"] == {"$ref": "#/components/schemas/NodeFeatures"}
        assert schemas["NodeFeatures"]["properties"]["id"]["type"] == kind
        predict = document["paths"]["/v1/predict"]["post"]
        assert (ARRAYS.content_type in predict["requestBody"]["content"]) == (of is POSITIONS)
        assert "`overlay` brings" in predict["description"]


@pytest.mark.parametrize("limits", [{}, {"maxNodes": 0}], ids=["that cannot", "where they are turned off"])
def test_service_without_overlays_offers_none(limits: dict[str, int]) -> None:
    of = service()
    of = of.model_copy(
        update={"spec": of.spec.model_copy(update={"endpoint": EndpointSpec.model_validate({"overlay": limits})})}
    )

    async def scenario() -> None:
        worker = FakeWorker()
        async with running(worker) as client:
            for can, offered in ((False, False), (True, not limits)):
                client.switch(
                    with_overlays(worker.revision(), POSITIONS.compute.overlays.support if can else None),
                    of,
                )
                document = (await client.http.get("/openapi.json")).json()
                assert ("overlay" in json.dumps(document["paths"]["/v1/predict"]["post"]["requestBody"])) == offered
                assert ("`overlay`" in document["paths"]["/v1/predict"]["post"]["description"]) == offered
                schemas = document["components"]["schemas"]
                assert ("RequestOverlay" in schemas) == offered
                assert ("overlay" in schemas["PredictRequest"]["properties"]) == offered
                route = (await client.http.get("/v1/route")).json()
                assert route.get("overlay") == ({"maxNodes": 1024, "maxEdges": 16_384} | limits if can else None)

    asyncio.run(scenario())


def test_seeds_are_estimated_without_those_of_the_overlay() -> None:
    first = b'{"overlay": {"nodes": [{"id": 9, "features": [1, 2, 3]}]}, "nodes": [1, 2]}'
    assert JSON.estimate_seeds(first, POSITIONS) == 1
    last = b'{"nodes": [1, 2], "overlay": {"nodes": [{"id": 9, "features": [1, 2, 3]}]}}'
    assert JSON.estimate_seeds(last, POSITIONS) == 2
    assert ARRAYS.estimate_seeds(arrays([1, 2], [], [[0, 1]], [], []), POSITIONS) == 2
    assert ARRAYS.estimate_seeds(struct.pack("<4q", 2**62, 0, 0, 0), POSITIONS) == 4
    assert ARRAYS.estimate_seeds(b"", POSITIONS) == 1

"""Features and times of edges that requests bring: alike in every form, and each mistake told by its place."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.support.serving.questions import question_of
from tests.support.serving.serving import FakeWorker, running, with_overlays

from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    NAMES_OF_TYPES,
    WITHOUT_NAMES,
    PayloadManifest,
    RelationManifest,
    relation_manifest,
)
from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_worker.asking.edge_payload import BARE_EDGES, EdgePayloads, PayloadFields
from gnnserve_worker.asking.overlay import OverlaySupport
from gnnserve_worker.asking.overlay_checks import MOST_FEATURE_BYTES
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.overlay import EdgeRows, Overlay
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.http.codecs.binary_overlay import BinaryOverlayCodec
from gnnserve_worker.serving.http.codecs.json import JsonCodec

NODES = 8
FIELDS = PayloadFields("edgeFeatures", "edgeTimes")
EDGES = [[3, 4], [4, 3], [5, 5]]
FEATURES = [[1.5, -2], [0, 3], [4, 5]]
TIMES = [7, -1, 2**40]
NONE = np.zeros(0, np.int64)


def relation(name: str, columns: tuple[str, ...] = (), time: str = "") -> RelationManifest:
    made = relation_manifest(name and "user", name, name and "item", 9, None, AS_LISTED)
    if not columns and not time:
        return made
    return RelationManifest(
        made.source, made.name, made.target, made.edges, None, made.merges, made.both_ways,
        payload=PayloadManifest(columns, time, 9),
    )  # fmt: skip


OF_ONE = EdgePayloads([relation("", ("weight", "amount"), "at")], WITHOUT_NAMES)
OF_SEVERAL = EdgePayloads(
    [
        relation("buys", ("price",), "at"),
        relation("sees"),
        relation("rates", ("stars", "trust")),
        relation("likes", (), "t"),
    ],
    NAMES_OF_TYPES,
)


def revision(payloads: EdgePayloads = OF_ONE) -> tuple[ServedRevision, list[EdgeRows | None]]:
    """A revision whose edges have that, and the payload of each request to it."""
    told = list[EdgeRows | None]()
    support = OverlaySupport(FeatureColumns(2, ()), noting(told), None, payloads)
    return with_overlays(FakeWorker(nodes=NODES).revision(), support), told


def noting(told: list[EdgeRows | None]) -> Callable[..., tuple[Overlay, np.ndarray]]:
    def arrange(_: np.ndarray, __: np.ndarray, edges: np.ndarray, seeds: np.ndarray, *others: Any) -> Any:
        told.append(others[-1])
        return Overlay(0, np.zeros((0, 2), np.float32), np.zeros(6, np.int64), 0, len(edges)), seeds

    return arrange


def ask(body: dict[str, Any], of: ServedRevision, limits: OverlayLimits = DEFAULT_OVERLAY_LIMITS) -> None:
    question_of(JsonCodec(), json.dumps(body).encode(), of, limits=limits)


def ask_arrays(of: ServedRevision, times: list[int], features: list[list[float]]) -> None:
    body = struct.pack("<4q", 1, 0, len(EDGES), 0) + np.array([3, *np.ravel(EDGES), *times], "<i8").tobytes()
    body += np.array(features, "<f4").tobytes()
    question_of(BinaryOverlayCodec(), body, of)


def ask_tensors(payloads: EdgePayloads, *tensors: dict[str, Any]) -> tuple[list[EdgeRows | None], dict[str, Any]]:
    """What a request of the Open Inference Protocol brings, and its answer."""
    told = list[EdgeRows | None]()
    worker = FakeWorker(nodes=NODES, overlays=OverlaySupport(FeatureColumns(2, ()), noting(told), None, payloads))
    nodes = {"name": "nodes", "datatype": "INT64", "shape": [1], "data": [3]}
    edges = {"name": "overlay.edges", "datatype": "INT64", "shape": [3, 2], "data": EDGES}

    async def scenario() -> dict[str, Any]:
        async with running(worker) as client:
            path = f"/v2/models/{client.model.service}/infer"
            return dict((await client.http.post(path, json={"inputs": [nodes, edges, *tensors]})).json())

    return told, asyncio.run(scenario())


def tensor(name: str, datatype: str, data: list[Any], shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def test_features_and_times_of_edges_arrive_alike_in_every_form() -> None:
    of, told = revision()
    ask({"nodes": [3], "overlay": {"edges": EDGES, "edgeFeatures": FEATURES, "edgeTimes": TIMES}}, of)
    ask_arrays(of, TIMES, FEATURES)
    by_tensors, answer = ask_tensors(
        OF_ONE,
        tensor("overlay.edges.features", "FP32", FEATURES, [3, 2]),
        tensor("overlay.edges.times", "INT64", TIMES, [3]),
    )
    assert "error" not in answer
    assert len(told + by_tensors) == 3
    for payload in told + by_tensors:
        assert payload is not None
        assert payload.features.dtype == np.float32
        assert payload.times.dtype == np.int64
        assert payload.features.tolist() == FEATURES
        assert payload.times.tolist() == TIMES


def test_edges_of_a_graph_without_payload_bring_none() -> None:
    of, told = revision(BARE_EDGES)
    ask({"nodes": [3], "overlay": {"edges": EDGES}}, of)
    ask_arrays(of, [], [])
    by_tensors, _ = ask_tensors(BARE_EDGES)
    assert told + by_tensors == [None] * 3


def test_a_relation_without_payload_has_rows_of_no_meaning_beside_those_with() -> None:
    given = [[2.5], None, [4, 5], []]
    read = OF_SEVERAL.read_lists(given, [7, None, None, 9], np.array([0, 1, 2, 3]), 4, FIELDS)
    assert read.features.tolist() == [[2.5, 0], [0, 0], [4, 5], [0, 0]]
    assert read.times.tolist() == [7, 0, 0, 9]
    alone = OF_SEVERAL.read_lists((), (), np.array([1, 1]), 2, FIELDS)
    assert (alone.features.shape, alone.times.tolist()) == ((2, 2), [0, 0])


LONG = [float(k) for k in range(3)]


@pytest.mark.parametrize(
    ("features", "times", "problem"),
    [
        pytest.param(
            (),
            TIMES,
            "edgeFeatures[0]: it is missing; edges have 2 features, weight, amount: give a list of them for each edge",
            id="no features",
        ),
        pytest.param(
            FEATURES,
            (),
            "edgeTimes[0]: it is missing; edges have a time, at: give an integer for each edge",
            id="no times",
        ),
        pytest.param(
            FEATURES[:2],
            TIMES,
            "edgeFeatures: 2 rows, where there are 3 edges; give one for each edge, in the order of the edges",
            id="too few rows",
        ),
        pytest.param(
            FEATURES,
            [*TIMES, 3],
            "edgeTimes: 4 rows, where there are 3 edges; give one for each edge, in the order of the edges",
            id="too many times",
        ),
        pytest.param(
            [*FEATURES[:2], LONG],
            TIMES,
            "edgeFeatures[2]: 3 numbers, where edges have 2 features, weight, amount; give 2 numbers for the edge",
            id="a long row",
        ),
        pytest.param(
            [*FEATURES[:2], None],
            TIMES,
            "edgeFeatures[2]: 0 numbers, where edges have 2 features, weight, amount; give 2 numbers for the edge",
            id="a row that is null",
        ),
        pytest.param(
            [[1, 2], [3, 1e39], [5, 6]],
            TIMES,
            "edgeFeatures[1][1]: 1e+39 is no number that float32 has; give a number from -3.402823e+38 to 3.402823e+38",
            id="beyond float32",
        ),
        pytest.param(
            FEATURES,
            [1, None, 3],
            "edgeTimes[1]: it is missing; edges have a time, at: give an integer for each edge",
            id="a time that is null",
        ),
        pytest.param(
            FEATURES,
            [1, 2, 2**63],
            "edgeTimes[2]: 9223372036854775808 is beyond 64 bits with a sign; give an integer of 64 bits",
            id="a long time",
        ),
    ],
)
def test_what_is_wrong_with_an_edge_is_told_by_its_place(features: Any, times: Any, problem: str) -> None:
    with pytest.raises(RequestError) as error:
        OF_ONE.read_lists(features, times, NONE, 3, FIELDS)
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("features", "times", "problem"),
    [
        pytest.param(
            [[1], [2]],
            [1, None],
            "edgeFeatures[1]: 1 number, where edges of user sees item have no features; give null or an empty list",
            id="features of a relation without",
        ),
        pytest.param(
            [[1], None],
            [1, 2],
            "edgeTimes[1]: 2, where edges of user sees item have no time; give null",
            id="a time of a relation without",
        ),
        pytest.param(
            (),
            [1, None],
            "edgeFeatures[0]: it is missing; edges of user buys item have 1 feature, price: give a "
            "list of them for each edge",
            id="no features of a relation with",
        ),
    ],
)
def test_a_mistake_over_several_types_names_the_relation(features: Any, times: Any, problem: str) -> None:
    with pytest.raises(RequestError) as error:
        OF_SEVERAL.read_lists(features, times, np.array([0, 1]), 2, FIELDS)
    assert str(error.value) == problem


@pytest.mark.parametrize(
    ("overlay", "problem"),
    [
        pytest.param(
            {"edges": EDGES, "edgeFeatures": [[1], [2], [3]]},
            "overlay.edgeFeatures[0]: 1 number, where edges have no features; give null or an empty list",
            id="a graph whose edges have none",
        ),
        pytest.param(
            {"edgeTimes": [3]},
            "overlay.edgeTimes: 1 row, where there are 0 edges; give one for each edge, in the order of the edges",
            id="times without edges",
        ),
        pytest.param(
            {"edges": EDGES, "edgeFeatures": [["a"]]},
            'overlay.edgeFeatures[0][0]: expected a number, got "a"; give a number',
            id="a text",
        ),
        pytest.param(
            {"edges": EDGES, "edgeTimes": [1.5]},
            "overlay.edgeTimes[0]: expected an integer, got 1.5; give an integer, or null where the edge has no time",
            id="a fraction",
        ),
        pytest.param(
            {"edges": EDGES, "edgeFeatures": [7]},
            "overlay.edgeFeatures[0]: expected a list, got 7; give the "
            "features of an edge as a list of numbers, or null where it has none",
            id="no list",
        ),
    ],
)
def test_wrong_payload_in_json_is_refused_with_its_place(overlay: dict[str, Any], problem: str) -> None:
    of, told = revision(BARE_EDGES)
    with pytest.raises(RequestError) as error:
        ask({"nodes": [3], "overlay": overlay}, of)
    assert str(error.value) == problem
    assert not told


def test_arrays_of_wrong_length_and_numbers_that_are_not_finite_are_refused() -> None:
    of, told = revision()
    with pytest.raises(RequestError, match="8 of the time of each of 3 edges, 4 of each of 6 features of edges"):
        ask_arrays(of, [], FEATURES)
    with pytest.raises(RequestError, match=r"overlay.edgeFeatures\[1\]\[0\]: nan is no number that float32 has"):
        ask_arrays(of, TIMES, [[1, 2], [float("nan"), 3], [4, 5]])
    assert not told


def test_tensors_of_edges_are_refused_by_their_names() -> None:
    features = tensor("overlay.edges.features", "FP32", FEATURES[:2], [2, 2])
    times = tensor("overlay.edges.times", "INT64", TIMES, [3])
    for payloads, tensors, problem in (
        (OF_ONE, (times,), "overlay.edges.features: it is missing; edges have 2 features"),
        (OF_ONE, (features, times), "overlay.edges.features: 2 rows, where there are 3 edges"),
        (BARE_EDGES, (times,), 'there is no input "overlay.edges.times"'),
    ):
        told, answer = ask_tensors(payloads, *tensors)
        assert problem in answer["error"]
        assert not told


def test_edges_with_more_numbers_than_a_request_may_have_are_refused_before_they_are_read() -> None:
    columns = tuple(map(str, range(1024)))
    of, told = revision(EdgePayloads([relation("", columns)], WITHOUT_NAMES))
    edges = [[0, 1]] * (MOST_FEATURE_BYTES // 4096 + 1)
    with pytest.raises(RequestError, match=r"edges with 1,024 features each take .* bytes, more than the 16,777,216"):
        ask({"nodes": [3], "overlay": {"edges": edges}}, of, OverlayLimits(max_edges=10_000))
    assert not told

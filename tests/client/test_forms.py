"""What a client sends of arrays: as the binary form where it can, as JSON otherwise, and what it refuses to send."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from gnnserve_api.http.changes import CHANGES_TYPE, ChangesRequest
from gnnserve_api.http.pairs import PairsRequest, TypedPairsRequest
from gnnserve_api.http.protocol import PredictRequest
from gnnserve_client import Changes, InputError, Overlay
from gnnserve_client.arrays import read_edges, read_ids
from gnnserve_client.predicting import BINARY_TYPE, OVERLAY_TYPE, PredictionRequest, ask
from gnnserve_worker.asking.question import ENVOY_TIMEOUT_HEADER, TIMEOUT_HEADER, TIMING_HEADER, WISH_HEADERS
from gnnserve_worker.graph.change_batch import ChangeCounts, decode_batch
from gnnserve_worker.serving.http.codecs.registry import CODECS

JSON = "application/json"
NAN = float("nan")
ROWS = np.array([[1, 2], [3, 4]], np.float32)


def question(
    nodes: Any = (3, 7), outputs: Any = "labels", overlay: Overlay | None = None, **wishes: Any
) -> PredictionRequest:
    stated = {
        "latency_ms": None, "tolerance_permille": None, "strict": False, "variant": None, "seed": None,
        "min_offset": None, "priority": None,
    } | wishes  # fmt: skip
    return ask(nodes, outputs, overlay, **stated)


def form_of(asked: PredictionRequest, refused: frozenset[str] = frozenset()) -> str:
    return asked.call(is_binary=asked.is_binary(set(refused))).headers["Content-Type"]


@pytest.mark.parametrize(
    ("asked", "form"),
    [
        pytest.param(question(np.array([3, 7])), BINARY_TYPE, id="an array of integers"),
        pytest.param(question([3, 7], "scores"), BINARY_TYPE, id="a list of integers"),
        pytest.param(question(np.array([3, 7], np.uint8)), BINARY_TYPE, id="integers of another width"),
        pytest.param(question(range(3), ["embeddings"]), BINARY_TYPE, id="a range"),
        pytest.param(question(["ann", "bob"]), JSON, id="texts"),
        pytest.param(question(np.array(["ann", "bob"], object)), JSON, id="a column of texts"),
        pytest.param(question(np.array([3, 7], object)), BINARY_TYPE, id="a column of integers as objects"),
        pytest.param(question([3], ("labels", "scores")), JSON, id="two outputs"),
        pytest.param(question([-1], overlay=Overlay(features=ROWS)), OVERLAY_TYPE, id="new nodes without ids"),
        pytest.param(
            question([3], overlay=Overlay(edges=[(3, 7)], overrides=[5], override_features=ROWS[:1])),
            OVERLAY_TYPE,
            id="edges and new features of stored nodes",
        ),
        pytest.param(
            question([9], overlay=Overlay(nodes=[9], features=ROWS[:1])),
            JSON,
            id="new nodes with ids: are they stored?",
        ),
        pytest.param(question([-1], overlay=Overlay(features=[{"a": 1}])), JSON, id="features by name"),
        pytest.param(question([3], overlay=Overlay(overrides={5: {"a": 1}})), JSON, id="overrides by name"),
        pytest.param(question([3], ("labels", "scores"), Overlay(features=ROWS)), JSON, id="an overlay, two outputs"),
    ],
)
def test_integers_go_as_arrays_and_everything_else_as_json(asked: PredictionRequest, form: str) -> None:
    assert form_of(asked) == form


def test_what_the_server_refused_as_arrays_goes_as_json() -> None:
    assert form_of(question(), frozenset({"NoBinaryLabels"})) == JSON
    assert form_of(question(outputs="scores"), frozenset({"NoBinaryLabels"})) == BINARY_TYPE
    assert form_of(question(outputs="scores"), frozenset({"NoBinaryNodes"})) == JSON


def test_the_forms_and_headers_are_those_of_the_server() -> None:
    assert {BINARY_TYPE, OVERLAY_TYPE, JSON} == {codec.content_type for codec in CODECS if codec.path == "/v1/predict"}
    asked = question(latency_ms=5, tolerance_permille=10, strict=True, seed=7, variant="x4", min_offset=3, priority=1)
    # A client that gives up closes its connection, which drops its request.
    others = {TIMING_HEADER, TIMEOUT_HEADER, ENVOY_TIMEOUT_HEADER}
    assert set(asked.headers()) == {name.decode() for name in WISH_HEADERS - others}


def test_wishes_stand_in_the_body_of_json_and_in_the_head_of_arrays() -> None:
    wishes: dict[str, Any] = {
        "latency_ms": 5, "tolerance_permille": 2.5, "strict": True, "seed": 7, "variant": "x4", "min_offset": 3,
        "priority": 1,
    }  # fmt: skip
    call = question(["ann"], "scores", **wishes).call(is_binary=False)
    assert call.body is not None
    asked = msgspec.json.decode(call.body, type=PredictRequest[str])
    assert (asked.objective, asked.strict, asked.seed, asked.variant, asked.min_offset) == (
        msgspec.convert({"latencyMs": 5, "accuracyTolerancePermille": 2.5}, type(asked.objective)), True, 7, "x4", 3
    )  # fmt: skip
    call = question(**wishes).call(is_binary=True)
    assert call.path == "/v1/predict?return=labels"
    assert call.body == np.array([3, 7], "<i8").tobytes()
    assert call.headers == {
        "Content-Type": BINARY_TYPE, "gnnserve-latency-ms": "5.0", "gnnserve-accuracy-tolerance-permille": "2.5",
        "gnnserve-strict": "true", "gnnserve-variant": "x4", "gnnserve-seed": "7", "gnnserve-min-offset": "3",
        "gnnserve-priority": "1",
    }  # fmt: skip
    assert question(["ann"]).to_json() == b'{"nodes":["ann"],"return":["labels"]}'


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        pytest.param(lambda: question([]), "nodes: the list is empty", id="no nodes"),
        pytest.param(lambda: question([3], []), "outputs: the list is empty", id="no outputs"),
        pytest.param(lambda: question([3], "logits"), "'logits' is unknown; choose from labels", id="another output"),
        pytest.param(lambda: question(3), r"nodes: an array of shape \(\)", id="one id"),
        pytest.param(lambda: question([[3]]), r"nodes: an array of shape \(1, 1\)", id="a matrix"),
        pytest.param(lambda: question([1.5]), "nodes: float64 are no node ids", id="floats"),
        pytest.param(lambda: question([True]), "nodes: bool are no node ids", id="truth values"),
        pytest.param(lambda: question([1, "ann"]), "not of one kind", id="integers and texts"),
        pytest.param(lambda: question([2**63]), "more than 64 bits", id="a long integer"),
        pytest.param(lambda: question([[1], [2, 3]]), "nodes: they are no array", id="lists of several lengths"),
        pytest.param(lambda: question(latency_ms=NAN), "latency_ms: nan is no number", id="a latency"),
        pytest.param(lambda: question(seed=1.5), "seed: 1.5 is no integer", id="a seed"),
        pytest.param(lambda: question(variant="x4\r\n"), r"variant: 'x4\\r\\n' is no name", id="a variant"),
        pytest.param(lambda: Overlay(features=ROWS[0]), "overlay.features: an array of 1 axis", id="one row"),
        pytest.param(lambda: Overlay(nodes=[8], features=ROWS), "2 rows for 1 node", id="too many rows"),
        pytest.param(lambda: Overlay(nodes=[8]), "overlay.features: they are missing", id="no features"),
        pytest.param(lambda: Overlay(features=[[1], [1, 2]]), "they are no matrix", id="rows of several lengths"),
        pytest.param(lambda: Overlay(features=[{"a": "high"}]), r"features\[0\]: these are no", id="no number"),
        pytest.param(lambda: Overlay(edges=[1, 2]), "give a list of pairs", id="no pairs"),
        pytest.param(
            lambda: Overlay(edges=[(1, 2)], edge_features=ROWS), "edge_features: 2 rows for 1 edge", id="rows of edges"
        ),
        pytest.param(lambda: Overlay(edges=[(1, 2)], edge_features=[1]), "an array of 1 axis", id="one row of an edge"),
        pytest.param(lambda: Overlay(edges=[(1, 2)], edge_features=[["a"]]), "no matrix", id="texts of edges"),
        pytest.param(lambda: Overlay(edges=[(1, 2)], edge_features=[[NAN]]), "not finite", id="a NaN of an edge"),
        pytest.param(lambda: Overlay(edges=[(1, 2)], edge_times=[0.5]), "edge_times: float64 are no", id="half a time"),
        pytest.param(lambda: Overlay(edges=[(1, 2)], edge_times=[1, 2]), "for 1 edge", id="two times of an edge"),
        pytest.param(
            lambda: Overlay(edges=[(1, 2)], edge_times=np.array([2**62], "datetime64[s]")), "beyond what microseconds",
            id="a time too late",
        ),
        pytest.param(
            lambda: Overlay(edges=[(1, 2)], edge_times=np.array(["NaT"], "datetime64[s]")), "missing", id="no time"
        ),
        pytest.param(
            lambda: Overlay(overrides={3: {"a": 1}}, override_features=ROWS), "has them already", id="twice"
        ),
        pytest.param(
            lambda: question([3], overlay=Overlay(edges=[("a", "b")])).to_json(), "and others are texts", id="two kinds"
        ),
        pytest.param(
            lambda: question(["b"], overlay=Overlay(nodes=["a"], features=[[NAN]])).to_json(), "not finite", id="a NaN"
        ),
        pytest.param(
            lambda: question([-1], overlay=Overlay(features=ROWS, overrides=[3], override_features=[[1]])).call(
                is_binary=True
            ),
            r"rows of \[1, 2\] features",
            id="rows of two widths",
        ),
        pytest.param(lambda: Changes(nodes=[1], features=ROWS[:1], node_labels=[1, 2]), "2 labels for", id="labels"),
        pytest.param(lambda: Changes(labels={3: 1.5}), r"labels\[0\]: 1.5 is no label", id="a label"),
        pytest.param(lambda: Changes(removed_nodes=[1], edges=[["a", "b"]]), "others are texts", id="ids of two kinds"),
        pytest.param(lambda: list(Changes(removed_nodes=[1]).split(0)), "batch: 0 changes", id="batches of nothing"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_with_its_place(made: Callable[[], object], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        made()


def test_ids_keep_what_they_are() -> None:
    assert read_ids(np.array([1, 2], np.uint32), "x").dtype == np.int64
    assert read_ids(["1", "Zoë"], "x").tolist() == ["1", "Zoë"]
    assert read_edges(np.zeros((0, 2)), "x").shape == (0, 2)
    assert read_edges([("a", "b")], "x").tolist() == [["a", "b"]]
    typed = {"type": "user", "id": 17}
    assert read_ids([typed, "paper/1"], "x").tolist() == ["user/17", "paper/1"]
    assert read_edges([(typed, "item/3"), ("user/1", {"type": "item", "id": "a/b"})], "x").tolist() == [
        ["user/17", "item/3"],
        ["user/1", "item/a/b"],
    ]
    with pytest.raises(InputError, match="are no node ids, or not of one kind"):
        read_ids([{"type": "user"}], "x")


# Changes


def changes(**other: Any) -> Changes:
    return Changes(
        **{
            "nodes": [50, 51], "features": ROWS, "node_labels": [2, None], "overrides": [3],
            "override_features": [[NAN, 9]], "labels": {4: 1, 5: None}, "edges": [[3, 50], [51, 3]],
            "removed_edges": [[1, 2]], "removed_nodes": [7, 8], **other,
        }
    )  # fmt: skip


def test_changes_of_integers_are_the_binary_form_that_the_server_reads() -> None:
    made = changes()
    batch = made.to_batch()
    assert (batch.content_type, batch.changes, len(made)) == (CHANGES_TYPE, 10, 10)
    read = decode_batch(batch.body)
    assert read.counts == ChangeCounts(2, 1, 2, 2, 1, 2)
    assert read.ids.integers is not None
    assert read.ids.integers.tolist() == [50, 51, 3, 4, 5, 3, 50, 51, 3, 1, 2, 7, 8]
    assert np.array_equal(read.features, [[1, 2], [3, 4], [NAN, 9]], equal_nan=True)
    assert read.labels == b"[2,null,1,null]"
    assert decode_batch(Changes(edges=[[1, 2]]).to_batch().body).labels == b""


def test_changes_of_texts_are_the_binary_form_too() -> None:
    made = Changes(nodes=["Zoë"], features=[[1.5]], edges=[("ann", "Zoë")])
    read = decode_batch(made.to_batch().body)
    assert read.ids.texts is not None and read.ids.offsets is not None
    texts, offsets = read.ids.texts.tobytes(), read.ids.offsets.tolist()
    assert [texts[a:b].decode() for a, b in pairwise(offsets)] == ["Zoë", "ann", "Zoë"]
    assert read.features.tolist() == [[1.5]]


def test_changes_by_the_names_of_columns_are_json() -> None:
    made = changes(
        features=[{"a": 1}, {"a": np.float32(2), "list": np.ones(2)}], overrides={3: {"a": 9}}, override_features=None
    )
    batch = made.to_batch()
    assert batch.content_type == JSON
    assert msgspec.json.decode(batch.body, type=ChangesRequest[int]).nodes[1].label is None
    assert msgspec.json.decode(batch.body) == {
        "nodes": [
            {"id": 50, "features": {"a": 1.0}, "label": 2},
            {"id": 51, "features": {"a": 2.0, "list": [1.0, 1.0]}},
        ],
        "overrides": [{"id": 3, "features": {"a": 9.0}}],
        "labels": [{"id": 4, "label": 1}, {"id": 5, "label": None}],
        "edges": [[3, 50], [51, 3]],
        "removedEdges": [[1, 2]],
        "removedNodes": [7, 8],
    }


@pytest.mark.parametrize("most", [1, 2, 3, 4, 9, 10, 100])
def test_parts_of_changes_have_every_item_once_and_in_order(most: int) -> None:
    made = changes()
    parts = list(made.split(most))
    assert [len(part) for part in parts[:-1]] == [most] * (len(parts) - 1)
    assert 0 < len(parts[-1]) <= most
    read = [decode_batch(part.to_batch().body) for part in parts]
    # New nodes come before all that names them, and what is removed comes last, as within a batch.
    kinds = [np.repeat(np.arange(6), msgspec.structs.astuple(one.counts)).tolist() for one in read]
    assert list(chain.from_iterable(kinds)) == [0, 0, 1, 2, 2, 3, 3, 4, 5, 5]
    assert np.concatenate([part.edges for part in parts]).tolist() == made.edges.tolist()
    assert list(chain.from_iterable(part.node_labels for part in parts)) == made.node_labels
    assert np.concatenate([part.labelled for part in parts]).tolist() == [4, 5]
    rows = [one.features for one in read if len(one.features)]
    assert np.array_equal(np.concatenate(rows), decode_batch(made.to_batch().body).features, equal_nan=True)


def pairs(given: Any, outputs: Any = ("scores", "probabilities")) -> PredictionRequest:
    return ask(given, outputs, None, None, None, False, None, None, None, None, are_pairs=True)


def test_pairs_of_integers_go_as_arrays_where_one_output_is_asked_for() -> None:
    call = pairs([(3, 7), (3, 8)], "probabilities").call(is_binary=True)
    assert call.path == "/v1/predict?return=probabilities"
    assert np.frombuffer(call.body or b"", "<i8").tolist() == [3, 7, 3, 8]
    both = pairs([("user/1", "item/2")])
    assert not both.is_binary(set())
    asked = msgspec.json.decode(both.to_json(), type=PairsRequest[str])
    assert (asked.pairs, asked.outputs) == ((("user/1", "item/2"),), ("scores", "probabilities"))


def test_what_a_graph_of_several_types_is_brought_is_sent_as_it_is() -> None:
    overlay = {"nodes": [{"id": "user/9"}], "edges": [["user/9", "buys", "item/2"]]}
    given = [({"type": "user", "id": 9}, "item/2")]
    made = ask(given, "scores", overlay, None, None, False, None, None, None, None, are_pairs=True)
    assert not made.is_binary(set())
    asked = msgspec.json.decode(made.to_json(), type=TypedPairsRequest)
    assert asked.pairs == (("user/9", "item/2"),)
    assert asked.overlay is not None and asked.overlay.edges == (("user/9", "buys", "item/2"),)


def test_a_mapping_may_have_arrays_where_json_has_lists() -> None:
    brought = {
        "nodes": [
            {"id": {"type": "user", "id": np.int64(9)}, "features": np.array([0.5, 2], np.float32)},
            {"id": "user/10", "features": [np.float64(1), 2, None]},
        ],
        "edges": np.array([["user/9", "buys", "item/2"]]),
    }
    sent = msgspec.json.decode(question(["user/9"], overlay=brought).to_json())["overlay"]
    assert sent == {
        "nodes": [
            {"id": {"type": "user", "id": 9}, "features": [0.5, 2.0]},
            {"id": "user/10", "features": [1.0, 2, None]},
        ],
        "edges": [["user/9", "buys", "item/2"]],
    }


@pytest.mark.parametrize(
    ("overlay", "problem"),
    [
        ([{"id": "user/9"}], "overlay: list is none; give an `Overlay`, a `TypedOverlay`, or a mapping"),
        ({"nodes": {"user/9"}}, "overlay.nodes: set has no form in JSON"),
        ({"nodes": [{"id": "user/9", "features": b"1"}]}, r"overlay.nodes\[0\].features: bytes has no form"),
        ({"nodes": [{9: "user/9"}]}, r"overlay.nodes\[0\]: dict has no form in JSON; give mappings by texts"),
    ],
)
def test_what_json_does_not_have_is_refused_by_its_place(overlay: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        question(["user/9"], overlay=overlay).to_json()


@pytest.mark.parametrize("entry", [{"type": "user", "id": True}, {"type": None, "id": 1}, {"type": "user", "id": 1.5}])
def test_an_id_with_its_type_is_an_integer_or_a_text(entry: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"nodes: type .* are no id with its type; give a text as type"):
        question([entry])
    assert question([{"type": "user", "id": np.int64(7)}]).nodes.tolist() == ["user/7"]


@pytest.mark.parametrize(
    ("given", "outputs", "problem"),
    [
        ([], "scores", "pairs: the list is empty"),
        ([(1, 2, 3)], "scores", "pairs: "),
        ([(1, 2)], "labels", "outputs: 'labels' is unknown; choose from scores, probabilities"),
    ],
)
def test_pairs_that_cannot_be_sent_are_refused(given: Any, outputs: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        pairs(given, outputs)

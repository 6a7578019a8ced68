"""Overlays of several types as arrays: tensors over HTTP and gRPC, the binary form, the Python client. All bring what
JSON brings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import httpx
import numpy as np
import pytest
from tests.support.overlays.typed_overlays import Given, drawn_overlay
from tests.support.overlays.typed_overlays import made as made_revision
from tests.support.serving.questions import question_of
from tests.support.serving.secured_worker import started
from tests.support.serving.serving import FakeWorker, OpenedWorker, with_compute

from gnnserve_api.errors import InputError
from gnnserve_api.files.graph_schema import (
    AS_LISTED,
    NAMES_OF_TYPES,
    GraphSchema,
    PayloadManifest,
    TypeManifest,
    relation_manifest,
)
from gnnserve_api.http.protocol import TypedNodeFeatures
from gnnserve_api.http.protocol import TypedOverlay as JsonOverlay
from gnnserve_api.limits import DEFAULT_OVERLAY_LIMITS, OverlayLimits
from gnnserve_client import Client, TypedOverlay
from gnnserve_worker.asking.edge_payload import EdgePayloads
from gnnserve_worker.asking.features import GivenFeatures
from gnnserve_worker.asking.overlay import GraphOverlays, OverlaySupport, StandIn
from gnnserve_worker.asking.overlay_ids import IdsWithTypes
from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.asking.type_ids import TargetIds
from gnnserve_worker.graph.feature_columns import FeatureColumns
from gnnserve_worker.graph.ids import lay_out, string_ids
from gnnserve_worker.graph.overlay import Overlay
from gnnserve_worker.graph.store import GraphData
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.grpc.codec import InferCodec
from gnnserve_worker.serving.grpc.messages import ModelInferRequest
from gnnserve_worker.serving.http.codecs.binary_overlay import BinaryOverlayCodec
from gnnserve_worker.serving.http.codecs.json import JsonCodec
from gnnserve_worker.serving.http.codecs.open_inference import OpenInferenceCodec
from gnnserve_worker.serving.requests import Question
from gnnserve_worker.serving.security.credentials import Credentials

Tensors = dict[str, tuple[str, list[Any], list[int]]]
"""Datatype, elements and shape by name."""
Body = dict[str, Any]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """The graph and its revision with given weights over the whole neighbourhood; users have 4 columns, items 3, tags
    none."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("GNNSERVE_PROFILE_SECONDS", "0")
        yield made_revision(tmp_path_factory.mktemp("arrays"), "GraphSAGE")


@pytest.fixture(scope="module")
def of(given: Given) -> ServedRevision:
    return served_revision(given[1])


def type_of(id_: str) -> str:
    return id_.partition("/")[0]


def parts_of(edge: list[Any]) -> tuple[str, str, str]:
    """Relation of an edge in JSON, with the types that it joins."""
    return type_of(edge[0]), edge[1], edge[2]["type"]


def in_parts(body: Body) -> Body:
    """The same with all of one type and one relation together, as the binary form has it."""
    overlay = body["overlay"]
    return {
        **body,
        "overlay": {
            # Types without features come last, as the client has them.
            "nodes": sorted(overlay["nodes"], key=lambda one: ("features" not in one, type_of(one["id"]))),
            "edges": sorted(overlay["edges"], key=parts_of),
            "overrides": sorted(overlay["overrides"], key=lambda one: type_of(one["id"])),
        },
    }


def as_tensors(body: Body) -> Tensors:
    overlay = body["overlay"]
    ends = [[source, f"{target['type']}/{target['id']}"] for source, _, target in overlay["edges"]]
    found: Tensors = {
        "nodes": ("BYTES", body["nodes"], [len(body["nodes"])]),
        "overlay.edges": ("BYTES", ends, [len(ends), 2]),
        "overlay.edges.relations": ("BYTES", [name for _, name, _ in overlay["edges"]], [len(ends)]),
    }
    for field in ("nodes", "overrides"):
        listed = overlay[field]
        found[f"overlay.{field}"] = "BYTES", [one["id"] for one in listed], [len(listed)]
        for name, columns in (("user", 4), ("item", 3)):
            rows = [one["features"] for one in listed if type_of(one["id"]) == name]
            if rows:
                found[f"overlay.{field}.features.{name}"] = "FP32", rows, [len(rows), columns]
    return found


def over_http(tensors: Tensors, of: ServedRevision) -> Question:
    inputs = [
        {"name": name, "datatype": kind, "shape": shape, "data": data} for name, (kind, data, shape) in tensors.items()
    ]
    return question_of(OpenInferenceCodec("service"), json.dumps({"inputs": inputs}).encode(), of)


def over_grpc(tensors: Tensors, of: ServedRevision) -> Question:
    message = ModelInferRequest(model_name="service")
    for name, (kind, data, shape) in tensors.items():
        tensor = message.inputs.add(name=name, datatype=kind, shape=shape)
        flat = np.array(data).ravel().tolist()
        if kind == "BYTES":
            tensor.contents.bytes_contents.extend(text.encode() for text in flat)
        else:
            tensor.contents.fp32_contents.extend(flat)
    raw = message.SerializeToString()
    return question_of(InferCodec(raw), raw, of)


def by_client(body: Body, data: GraphData) -> tuple[np.ndarray, TypedOverlay]:
    """The same as users of the client have it: the nodes asked for, and what is brought."""
    stored, overlay = {kind.name: kind.nodes for kind in data.types}, body["overlay"]

    def number(id_: Any) -> int:
        name, _, node = id_.partition("/") if isinstance(id_, str) else (id_["type"], "", id_["id"])
        beyond = int(node) - stored[name]
        return int(node) if beyond < 0 else -1 - beyond

    new: dict[str, list[Any]] = {}
    for one in overlay["nodes"]:
        new.setdefault(type_of(one["id"]), []).append(one.get("features"))
    edges: dict[tuple[str, str, str], list[Any]] = {}
    for edge in overlay["edges"]:
        edges.setdefault(parts_of(edge), []).append((number(edge[0]), number(edge[2])))
    overrides: dict[str, list[Any]] = {}
    for one in overlay["overrides"]:
        overrides.setdefault(type_of(one["id"]), []).append((number(one["id"]), one["features"]))
    return np.array([number(one) for one in body["nodes"]]), TypedOverlay(
        features={name: rows for name, rows in new.items() if name != "tag"},
        nodes={"tag": -1 - np.arange(len(new["tag"]))} if "tag" in new else None,
        edges=edges,
        overrides={name: [node for node, _ in listed] for name, listed in overrides.items()},
        override_features={name: [row for _, row in listed] for name, listed in overrides.items()},
    )


def assert_alike(found: Question, expected: Question) -> None:
    np.testing.assert_array_equal(found.nodes, expected.nodes)
    assert (found.overlay is None) == (expected.overlay is None)
    if found.overlay is not None and expected.overlay is not None:
        np.testing.assert_array_equal(found.overlay.packed, expected.overlay.packed)
        np.testing.assert_array_equal(found.overlay.features, expected.overlay.features)


def test_random_overlays_are_read_alike_in_every_form(given: Given, of: ServedRevision) -> None:
    draw, data = np.random.default_rng(5), given[0]
    for _ in range(200):
        body = drawn_overlay(data, draw)
        expected = question_of(JsonCodec(), json.dumps(body).encode(), of)
        for form in (over_http, over_grpc):
            assert_alike(form(as_tensors(body), of), expected)
        body = in_parts(body)
        asked, overlay = by_client(body, data)
        assert overlay.is_binary(asked)
        expected = question_of(JsonCodec(), json.dumps(body).encode(), of)
        assert_alike(question_of(BinaryOverlayCodec(), overlay.to_bytes(asked), of), expected)


BUYS, TAG = ("user", "buys", "item"), {"tag": [-1]}
ROW = [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"overlay.edges.relations": None}, "overlay.edges.relations: 0 names, where overlay.edges has 1 edge"),
        ({"overlay.edges.relations": ("BYTES", ["sells"], [1])},
         "overlay.edges.relations[0]: no relation is user sells item; relations are user knows user, user buys item"),
        ({"overlay.edges": ("BYTES", [["user/90", "item/99"]], [1, 2])},
         'overlay.edges[0][1]: node "item/99" is not in the graph'),
        ({"overlay.edges": ("INT64", [[90, 9]], [1, 2])}, "overlay.edges: datatype INT64, where BYTES is expected"),
        ({"overlay.nodes.features.user": None},
         "overlay.nodes.features.user: 0 rows, where overlay.nodes has 1 node of type user; give a row"),
        ({"overlay.nodes.features.item": ("FP32", [[1, 2, 3]], [1, 3])},
         "overlay.nodes.features.item: 1 row, where overlay.nodes has 0 nodes of type item"),
        ({"overlay.nodes.features.user": ("FP32", [ROW[:3]], [1, 3])},
         "overlay.nodes.features.user: shape [1,3], where [-1,4] is expected"),
        ({"overlay.nodes.features.tag": ("FP32", [[1]], [1, 1])}, 'there is no input "overlay.nodes.features.tag"'),
        ({"overlay.nodes.features": ("FP32", [ROW], [1, 4])}, 'there is no input "overlay.nodes.features"; known are'),
        ({"overlay.nodes": ("BYTES", ["user/3"], [1])}, 'overlay.nodes[0].id: "user/3" is a node of the graph'),
        ({"overlay.nodes": ("BYTES", ["90"], [1])}, 'ids of type user are integers, got "90"'),
        ({"overlay.overrides": ("BYTES", ["tag/1"], [1])},
         "overlay.overrides[0]: nodes of type tag have no features; leave the override out"),
        ({"overlay.overrides": ("BYTES", ["item/1"], [1])},
         "overlay.overrides.features.item: 0 rows, where overlay.overrides has 1 node of type item"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_tensors_is_told(of: ServedRevision, changed: Mapping[str, Any], said: str) -> None:
    tensors: dict[str, Any] = {
        "nodes": ("BYTES", ["user/90"], [1]),
        "overlay.nodes": ("BYTES", ["user/90"], [1]),
        "overlay.nodes.features.user": ("FP32", [ROW], [1, 4]),
        "overlay.edges": ("BYTES", [["user/90", "item/9"]], [1, 2]),
        "overlay.edges.relations": ("BYTES", ["buys"], [1]),
        **changed,
    }
    with pytest.raises(RequestError) as raised:
        over_http({name: tensor for name, tensor in tensors.items() if tensor is not None}, of)
    assert said in str(raised.value)


def numbers(*given: int) -> bytes:
    return np.array(given, "<i8").tobytes()


def body_of(parts: Any, counts: tuple[int, int, int, int] = (1, 1, 0, 0), ids: tuple[int, ...] = (-1,)) -> bytes:
    text = parts if isinstance(parts, bytes) else json.dumps(parts).encode()
    text += b" " * (-len(text) % 8)
    return numbers(*counts, len(text)) + text + numbers(*ids) + np.array(ROW, "<f4").tobytes()


OF_USER = {"nodes": [["user", 1]]}
WITH_EDGE = (1, 1, 1, 0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (numbers(1, 1, 0, 0, -1), "body: the graph has several types, and behind its counts is no JSON that names"),
        (numbers(1, 1, 0, 0, 7) + b"{} -1234", "7 is no length of it, a multiple of 8 up to 65,536; put such as"),
        (numbers(1, 1, 0, 0), "behind its counts is no JSON that names those of its arrays: 0 is no length"),
        (body_of(b"{users: 1}"), "is no JSON that names those of its arrays: JSON is malformed"),
        (body_of({"nodes": [["user", "one"]]}), "Expected `int`, got `str`"),
        (body_of({"types": []}), "Object contains unknown field `types`"),
        (body_of({"nodes": [["shop", 1]]}), 'parts.nodes[0]: "shop" is no type of nodes; types are user, item, tag'),
        (body_of({"nodes": [["user", 2]]}), "parts.nodes: 2 together, where the counts say 1"),
        (body_of({"nodes": [["user", 0]]}), "parts.nodes[0]: 0 is out of range; leave out what there is none of"),
        (body_of({"nodes": [["user", 1], ["user", 1]]}, (1, 2, 0, 0)), "parts.nodes[1]: it is there twice; give"),
        (body_of({**OF_USER, "edges": [["item", "rev_buys", "user", 1]]}, WITH_EDGE, (-1, 1, 1)),
         "parts.edges[0]: item rev_buys user is the reverse of a relation"),
        (body_of({**OF_USER, "edges": [[*BUYS, 1]]}, WITH_EDGE, (-1, -1, 99)),
         'overlay.edges[0][1]: node "item/99" is not in the graph; ids of type item are 0 to 19; of this '
         "request none is new"),
        (body_of({**OF_USER, "edges": [[*BUYS, 1]]}, WITH_EDGE, (-1, -2, 9)),
         'overlay.edges[0][0]: node "user/-2" is not in the graph; ids of type user are 0 to 29; of this '
         'request -1 is the'),
        (body_of({"nodes": [["item", 1]]}, (1, 1, 0, 0), (-1,)),
         "bytes, where its counts make"),
        (body_of({**OF_USER, "overrides": [["tag", 1]]}, (1, 1, 0, 1), (-1, 1)),
         "overlay.overrides[0]: nodes of type tag have no features; leave the override out"),
        (body_of({"overrides": [["user", 1]]}, (1, 0, 0, 1), (3, -1)), 'node "user/-1" is not in the graph'),
        (body_of(OF_USER)[:-4] + np.array([np.nan], "<f4").tobytes(),
         "overlay.nodes[0].features[3]: nan is not finite; give a number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_bytes_is_told(of: ServedRevision, body: bytes, said: str) -> None:
    with pytest.raises(RequestError) as raised:
        question_of(BinaryOverlayCodec(), body, of)
    assert said in str(raised.value)


def test_limits_hold_for_arrays_of_several_types(of: ServedRevision) -> None:
    body = TypedOverlay(nodes={"tag": -1 - np.arange(3)}).to_bytes(np.array([3]))
    with pytest.raises(RequestError, match=r"overlay\.nodes: 3 new nodes and 0 overrides, more than the 2"):
        question_of(BinaryOverlayCodec(), body, of, limits=OverlayLimits(max_nodes=2))
    plain = question_of(BinaryOverlayCodec(), TypedOverlay().to_bytes(np.array([3])), of)
    assert (plain.overlay, plain.nodes.tolist()) == (None, [3])


def test_the_client_is_answered_alike_by_arrays_and_json(given: Given, of: ServedRevision) -> None:
    typed = TypedOverlay(
        features={"user": [ROW]}, nodes=TAG, edges={BUYS: [(-1, 3), (2, 4)], ("item", "has", "tag"): [(3, -1)]}
    )
    own = TypedOverlay(features={"user": [ROW]}, nodes={"user": [900], "tag": [77]},
                       edges={BUYS: [(900, 3), (2, 4)], ("item", "has", "tag"): [(3, 77)]})  # fmt: skip
    as_json = {
        "nodes": [{"id": "user/900", "features": ROW}, {"id": "tag/77"}],
        "edges": [["user/900", "buys", "item/3"], ["user/2", "buys", "item/4"], ["item/3", "has", "tag/77"]],
    }
    assert not own.is_binary(np.array([900]))
    with (
        started(Credentials(), of=OpenedWorker(served=of)) as worker,
        Client(f"http://127.0.0.1:{worker.port}") as client,
    ):
        expected = client.predict([900, 2], outputs="scores", overlay=as_json, seed=3).scores
        for nodes, overlay in (([-1, 2], typed), ([900, 2], own)):
            answer = client.predict(nodes, outputs="scores", overlay=overlay, seed=3)
            np.testing.assert_allclose(answer.scores, expected, rtol=1e-6)
        described = httpx.get(f"http://127.0.0.1:{worker.port}/v2/models/digits").json()["inputs"]
    shapes = {one["name"]: (one["datatype"], one["shape"]) for one in described}
    assert shapes["overlay.edges.relations"] == ("BYTES", [-1])
    assert shapes["overlay.nodes.features.item"] == ("FP32", [-1, 3])
    assert "overlay.nodes.features.tag" not in shapes


# Features and times of edges, and types whose ids are texts


BOTH, TIME = PayloadManifest(("price", "stars"), "at", 9), PayloadManifest((), "t", 9)
SCHEMA = GraphSchema(
    (TypeManifest("user", 6, 2, "Positions"), TypeManifest("item", 5, 2, "Strings")),
    (
        relation_manifest("user", "pays", "user", 9, None, AS_LISTED, BOTH),
        relation_manifest("user", "sees", "user", 9, None, AS_LISTED),
        relation_manifest("user", "likes", "item", 9, None, AS_LISTED, TIME),
    ),
)
PAYS, SEES, LIKES = ((one.source, one.name, one.target) for one in SCHEMA.relations)
ITEMS = string_ids(*lay_out([f"i{place}" for place in range(5)]))


@pytest.fixture
def told() -> list[tuple[Any, ...]]:
    """What each request brings to be arranged."""
    return []


@pytest.fixture
def overlays(told: list[tuple[Any, ...]]) -> GraphOverlays:
    """Of a graph of that schema."""

    def arrange(*brought: Any) -> Any:
        told.append(brought)
        return Overlay(0, brought[0], np.zeros(6, np.int64), 0, len(brought[2])), brought[3]

    def nothing_stands_in(node: int) -> StandIn:
        raise AssertionError(f"nothing stands for node {node} here")

    ids = IdsWithTypes(TargetIds(SCHEMA, SCHEMA, {"user": None, "item": ITEMS}))
    columns = FeatureColumns(2, ())
    support = OverlaySupport(columns, arrange, None, EdgePayloads(SCHEMA.relations, NAMES_OF_TYPES))
    return GraphOverlays(ids, [GivenFeatures(columns)] * 2, support, nothing_stands_in)


def plain_form(brought: tuple[Any, ...]) -> list[Any]:
    *arrays, payload = brought
    return [one.tolist() for one in (*arrays, payload.features, payload.times)]


def test_features_and_times_of_edges_are_of_their_relation(
    overlays: GraphOverlays, told: list[tuple[Any, ...]]
) -> None:
    of = with_compute(FakeWorker(nodes=6).revision(), overlays=overlays)
    overlay = JsonOverlay(
        nodes=(TypedNodeFeatures("user/9", [1, 2]), TypedNodeFeatures("item/i9", [3, 4])),
        edges=(
            ("user/0", "pays", "user/9"), ("user/2", "pays", "user/3"), ("user/2", "sees", "user/3"),
            ("user/9", "likes", "item/i9"),
        ),
        edge_features=([5, 6], [7, 8], None, None),
        edge_times=(10, 11, None, 12),
    )  # fmt: skip
    overlays.arrange(["user/9"], overlay, DEFAULT_OVERLAY_LIMITS)
    tensors: Tensors = {
        "nodes": ("INT64", [9], [1]),
        "overlay.nodes": ("BYTES", ["user/9", "item/i9"], [2]),
        "overlay.nodes.features.user": ("FP32", [[1, 2]], [1, 2]),
        "overlay.nodes.features.item": ("FP32", [[3, 4]], [1, 2]),
        "overlay.edges": ("BYTES", [[one[0], one[2]] for one in overlay.edges], [4, 2]),
        "overlay.edges.relations": ("BYTES", [one[1] for one in overlay.edges], [4]),
        "overlay.edges.features.user.pays.user": ("FP32", [[5, 6], [7, 8]], [2, 2]),
        "overlay.edges.times.user.pays.user": ("INT64", [10, 11], [2]),
        "overlay.edges.times.user.likes.item": ("INT64", [12], [1]),
    }
    over_http(tensors, of)
    typed = TypedOverlay(
        features={"user": [[1, 2]], "item": [[3, 4]]},
        edges={PAYS: [(0, -1), (2, 3)], SEES: [(2, 3)], LIKES: [(-1, -1)]},
        edge_features={PAYS: [[5, 6], [7, 8]]},
        edge_times={PAYS: [10, 11], LIKES: [12]},
    )
    question_of(BinaryOverlayCodec(), typed.to_bytes(np.array([-1])), of)
    expected = plain_form(told[0])
    assert expected[-2:] == [[[5, 6], [7, 8], [0, 0], [0, 0]], [10, 11, 0, 12]]
    assert [plain_form(one) for one in told[1:]] == [expected, expected]
    for left_out, said in (
        (
            "overlay.edges.features.user.pays.user",
            "it is missing; edges of user pays user have 2 features, price, stars",
        ),
        ("overlay.edges.times.user.likes.item", "it is missing; edges of user likes item have a time, t: give"),
    ):
        with pytest.raises(RequestError) as raised:
            over_http({name: one for name, one in tensors.items() if name != left_out}, of)
        assert str(raised.value).startswith(f"{left_out}: {said}")


def test_stored_nodes_whose_ids_are_texts_have_no_integers(overlays: GraphOverlays) -> None:
    of = with_compute(FakeWorker(nodes=6).revision(), overlays=overlays)
    body = TypedOverlay(edges={LIKES: [(1, 3)]}, edge_times={LIKES: [12]}).to_bytes(np.array([1]))
    with pytest.raises(RequestError, match=r"overlay.edges\[0\]\[1\]: ids of type item are texts, got 3; send JSON"):
        question_of(BinaryOverlayCodec(), body, of)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: TypedOverlay(edges={"buys": [(1, 2)]}), "overlay.edges: 'buys' is no relation; name it as"),  # type: ignore[dict-item]
        (lambda: TypedOverlay(nodes={"user": [-1, -2]}, features={"user": [ROW]}),
         "overlay.features['user']: 1 row for 2 nodes; give one for each"),
        (lambda: TypedOverlay(edge_features={BUYS: [[1]]}), "overlay.edge_features: there is nothing of ('user'"),
        (lambda: TypedOverlay(overrides={"user": [3]}), "override_features: they are missing, and there are 1 node"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_by_the_client(made: Callable[[], TypedOverlay], said: str) -> None:
    with pytest.raises(InputError) as raised:
        made()
    assert said in str(raised.value)

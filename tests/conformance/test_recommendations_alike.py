"""Recommendations in every form: JSON, and the Open Inference Protocol over HTTP and gRPC, find the same and refuse the
same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tests.conformance.forms import LENGTH, STATUSES
from tests.support.generation.recommended_links import of_users, published
from tests.support.serving.grpc_worker import GrpcClient, listening
from tests.support.serving.recommending import FEATURES, NODES, asking_for, loaded, publish
from tests.support.serving.serving import Client, FakeWorker, running

from gnnserve_api.spec.embeddings import EmbeddingsSpec
from gnnserve_worker.inference.served import ServedRevision

Body = dict[str, Any]
Said = tuple[Any, ...]
"""Items, variant, revision, and what is told of the index; or status, code and sentence."""
MODEL = "digits.recommend"
_ROWS = "overlay.nodes.features"
_MEMBERS = {"nodes": "id", "cosines": "cosine", "scores": "score", "probabilities": "probability"}
_PARAMETERS = {"count": "count", "type": "type", "exclude": "exclude", "seed": "seed", "strict": "strict",
               "minOffset": "min_offset"}  # fmt: skip


def tensors_of(body: Body) -> tuple[list[tuple[str, str, list[int], list[Any]]], Body]:
    """Inputs of a body (name, datatype, shape, elements), and its parameters."""
    overlay, filter_ = body.get("overlay", {}), body.get("filter", {})
    new, edges = overlay.get("nodes", []), overlay.get("edges", [])
    lists = {
        "node": [body["node"]], "filter.nodes": filter_.get("nodes"), "filter.labels": filter_.get("labels"),
        "overlay.nodes": [one["id"] for one in new] or None,
        "overlay.edges": [end for edge in edges for end in (edge[0], edge[-1])] or None,
        "overlay.edges.relations": [name for edge in edges for name in edge[1:-1]] or None,
    }  # fmt: skip
    widths = {"overlay.edges": 2}
    for one in new:
        if "features" in one:  # with several types each has a tensor of its own
            name = ".".join([_ROWS, *([one["id"].partition("/")[0]] if isinstance(one["id"], str) else [])])
            lists[name] = [*lists.get(name, ()), *one["features"]]
            widths[name] = len(one["features"])
    inputs = []
    for name, elements in lists.items():
        if elements is not None:
            kind = "FP32" if name.startswith(_ROWS) else "INT64"
            kind = "BYTES" if any(isinstance(one, str) for one in elements) else kind
            width = widths.get(name)
            inputs.append((name, kind, [len(elements)] if width is None else [len(elements) // width, width], elements))
    parameters = {_PARAMETERS[name]: value for name, value in body.items() if name in _PARAMETERS}
    if columns := {name: value for name, value in filter_.items() if isinstance(value, dict)}:
        parameters["filter"] = json.dumps(columns)
    if "objective" in body:
        parameters["latency_ms"] = body["objective"]["latencyMs"]
    return inputs, parameters


def as_bytes(kind: str, elements: Sequence[Any]) -> bytes:
    if kind != "BYTES":
        return np.array(elements, "<i8" if kind == "INT64" else "<f4").tobytes()
    return b"".join(len(text.encode()).to_bytes(4, "little") + text.encode() for text in elements)


def texts_in(data: bytes) -> list[str]:
    texts = []
    while data:
        end = 4 + int.from_bytes(data[:4], "little")
        texts.append(data[4:end].decode())
        data = data[end:]
    return texts


def said(columns: Mapping[str, Sequence[Any]], variant: str, parameters: Mapping[str, Any]) -> Said:
    items = [
        dict(zip(map(_MEMBERS.__getitem__, columns), row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    index = {name: value for name, value in parameters.items() if name.startswith("index_")}
    return as_float32(items), variant, parameters["revision"], parameters["objective_met"], index


def as_float32(items: list[Body]) -> list[Body]:
    return [{name: x if name == "id" else float(np.float32(x)) for name, x in item.items()} for item in items]


def snake(name: str) -> str:
    return "index_" + "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)


async def in_json(client: Client, _: GrpcClient, body: Body) -> Said:
    response = await client.http.post("/v1/recommend", json=body)
    told = response.json()
    if response.status_code != 200:
        return response.status_code, told["error"]["code"], told["error"]["message"]
    index = {snake(name): value for name, value in told["index"].items()}
    return as_float32(told["items"]), told["variant"], told["revision"], told["objectiveMet"], index


def in_protocol(*, is_binary: bool) -> Callable[..., Any]:
    async def ask(client: Client, _: GrpcClient, body: Body) -> Said:
        inputs, parameters = tensors_of(body)
        tensors, behind = [], b""
        for name, kind, shape, elements in inputs:
            data = as_bytes(kind, elements)
            own: Body = {"parameters": {"binary_data_size": len(data)}} if is_binary else {"data": elements}
            tensors.append({"name": name, "datatype": kind, "shape": shape, **own})
            behind += data if is_binary else b""
        asked = json.dumps({"inputs": tensors, "parameters": parameters | {"binary_data_output": is_binary}}).encode()
        headers = {LENGTH: str(len(asked))} if is_binary else {}
        response = await client.http.post(f"/v2/models/{MODEL}/infer", content=asked + behind, headers=headers)
        if response.status_code != 200:
            return response.status_code, response.headers["gnnserve-error"], plain(response.json()["error"])
        end = int(response.headers.get(LENGTH, len(response.content)))
        told, rest, columns = json.loads(response.content[:end]), response.content[end:], {}
        assert told["model_name"] == MODEL
        for one in told["outputs"]:
            data = one.get("data")
            if is_binary:
                size = one["parameters"]["binary_data_size"]
                data, rest = elements_in(one["datatype"], rest[:size]), rest[size:]
            assert one["shape"] == [len(data)]
            columns[one["name"]] = data
        return said(columns, told["model_version"], told["parameters"])

    return ask


def elements_in(kind: str, data: bytes) -> list[Any]:
    return texts_in(data) if kind == "BYTES" else np.frombuffer(data, "<i8" if kind == "INT64" else "<f4").tolist()


def over_grpc(*, is_raw: bool) -> Callable[..., Any]:
    fields = {"INT64": "int64_contents", "FP32": "fp32_contents", "BYTES": "bytes_contents"}
    kinds = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}

    async def ask(_: Client, channel: GrpcClient, body: Body) -> Said:
        inputs, parameters = tensors_of(body)
        message: Body = {"model_name": MODEL, "inputs": []}
        message["parameters"] = {name: {kinds[type(value)]: value} for name, value in parameters.items()}
        for name, kind, shape, elements in inputs:
            tensor: Body = {"name": name, "datatype": kind, "shape": shape}
            if not is_raw:
                flat = [one.encode() for one in elements] if kind == "BYTES" else elements
                tensor["contents"] = {fields[kind]: flat}
            message["inputs"].append(tensor)
        if is_raw:
            message["raw_input_contents"] = [as_bytes(kind, elements) for _, kind, _, elements in inputs]
        ended = await channel.call("ModelInfer", **message)
        if ended.answer is None:
            return STATUSES[ended.status], ended.metadata["gnnserve-error"], plain(ended.sentence)
        answer, columns = ended.answer, {}
        for place, one in enumerate(answer.outputs):
            if is_raw:
                columns[one.name] = elements_in(one.datatype, answer.raw_output_contents[place])
            else:
                found = getattr(one.contents, fields[one.datatype])
                columns[one.name] = [x.decode() if isinstance(x, bytes) else x for x in found]
        told = {name: getattr(one, one.WhichOneof("parameter_choice")) for name, one in answer.parameters.items()}
        return said(columns, answer.model_version, told)

    return ask


def plain(sentence: str) -> str:
    """The sentence as JSON has it: with the fields of its own."""
    for ours, theirs in _PARAMETERS.items():
        sentence = sentence.replace(f"parameters.{theirs}: ", f"{ours}: ")
    sentence = sentence.replace("parameters.filter.", "filter.")
    return sentence.replace("node[0]: ", "node: ").replace("parameters.latency_ms: ", "objective.latencyMs: ")


FORMS = (
    in_json,
    in_protocol(is_binary=False),
    in_protocol(is_binary=True),
    over_grpc(is_raw=False),
    over_grpc(is_raw=True),
)


def in_all_forms(revision: ServedRevision, bodies: Mapping[str, Body], of: Any = None) -> dict[str, list[Said]]:
    async def scenario() -> dict[str, list[Said]]:
        async with running(FakeWorker(loaded=False)) as client, listening(client) as channel:
            client.switch(revision, of)
            return {name: [await form(client, channel, body) for form in FORMS] for name, body in bodies.items()}

    return asyncio.run(scenario())


NEW = {"nodes": [{"id": 5000, "features": [0.5] * FEATURES}], "edges": [[5, 5000], [6, 5000]]}
FOUND = {
    "a node": {"node": 17},
    "a count": {"node": 17, "count": 3, "exclude": "nothing"},
    "nodes that may be recommended": {"node": 3, "filter": {"nodes": [9, 11]}},
    "labels": {"node": 3, "count": 1000, "exclude": "nothing", "filter": {"labels": [1]}},
    "columns": {"node": 3, "count": 1000, "filter": {"2": {"above": 0.25}, "0": {"between": [-1, 1]}}},
    "columns and nodes": {"node": 3, "filter": {"2": {"above": -0.5}, "nodes": [9, 11, 13, 15]}},
    "no node may be": {"node": 3, "filter": {"nodes": []}},
    "a new node": {"node": 5000, "overlay": NEW},
    "a seed and a latency": {"node": 17, "seed": 7, "objective": {"latencyMs": 60000.0}, "strict": True},
}
REFUSED = {
    "an unknown node": ({"node": NODES}, "UnknownNode"),
    "a count out of range": ({"node": 17, "count": 1001}, "InvalidValue"),
    "no way to exclude": ({"node": 17, "exclude": "all"}, "InvalidValue"),
    "a type where there are none": ({"node": 17, "type": "paper"}, "InvalidValue"),
    "an unknown node in the filter": ({"node": 17, "filter": {"nodes": [3, NODES]}}, "UnknownNode"),
    "an unknown label": ({"node": 17, "filter": {"labels": [99]}}, "UnknownLabel"),
    "an unknown column": ({"node": 17, "filter": {"price": {"below": 3}}}, "UnknownColumn"),
    "an unknown operator": ({"node": 17, "filter": {"0": {"under": 3}}}, "UnknownField"),
    "a range with nothing in it": ({"node": 17, "filter": {"0": {"above": 3, "below": 1}}}, "InvalidValue"),
    "a latency out of range": ({"node": 17, "objective": {"latencyMs": -1.0}}, "InvalidValue"),
    "an offset of a graph that is fixed": ({"node": 17, "minOffset": 1}, "NoUpdates"),
}


@pytest.fixture(scope="module")
def classified(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Said]]:
    revision = loaded(publish(tmp_path_factory.mktemp("recommended")))
    return in_all_forms(revision, FOUND | {name: body for name, (body, _) in REFUSED.items()})


@pytest.mark.parametrize("name", FOUND)
def test_the_same_nodes_are_recommended_in_every_form(classified: dict[str, list[Said]], name: str) -> None:
    first, *others = classified[name]
    assert isinstance(first[0], list), first
    assert others == [first] * len(others)
    assert bool(first[0]) == (name != "no node may be")


@pytest.mark.parametrize("name", REFUSED)
def test_bad_requests_are_refused_by_the_same_sentence_in_every_form(
    classified: dict[str, list[Said]], name: str
) -> None:
    (status, *sentence), *others = classified[name]
    assert sentence[0] == REFUSED[name][1]
    assert [[*one[1:]] for one in others] == [sentence] * len(others)
    assert [one[0] for one in others[:2]] == [status, status]


def test_ids_that_are_texts_and_pairs_that_are_scored(tmp_path: Path) -> None:
    texts = in_all_forms(loaded(publish(tmp_path / "texts", texts=True)), {"a text": {"node": "päper 3", "count": 4}})
    (tmp_path / "links").mkdir()
    links = published(tmp_path / "links", of_users(tmp_path / "links")).served()
    pairs = in_all_forms(
        links, {"a user": {"node": "user/3", "count": 3}, "of a type that is none": {"node": "user/3", "type": "x"}}
    )
    for first, *others in (*texts.values(), *pairs.values()):
        assert others == [first] * len(others)
    assert {*pairs["a user"][0][0][0]} == {"id", "score", "probability"}
    assert pairs["of a type that is none"][0][1] == "InvalidValue"


def test_new_nodes_of_several_types_are_recommended_alike(tmp_path: Path) -> None:
    model = {"architecture": "GraphSAGE", "fanouts": [-1, -1], "training": {"epochs": 2}}
    bought = [["user/900", "buys", "item/2"], ["user/900", "buys", "item/5"]]
    new = {"nodes": [{"id": "user/900", "features": [0.5, 1.0, 0.0, 2.0]}], "edges": bought}
    both = {"nodes": [*new["nodes"], {"id": "item/901", "features": [1.0, 2.0, 3.0]}],
            "edges": [*bought, ["user/3", "buys", "item/901"]]}  # fmt: skip
    bodies = {
        "a user": {"node": "user/900", "count": 5, "overlay": new},
        "a user beside an item": {"node": "user/900", "count": 5, "exclude": "nothing", "overlay": both},
        "an item": {"node": "item/901", "count": 5, "overlay": both},
    }
    served = published(tmp_path, of_users(tmp_path) | {"model": model}).served()
    for first, *others in in_all_forms(served, bodies).values():
        assert len(first[0]) == 5, first
        assert others == [first] * len(others)


def test_what_is_told_of_the_model(tmp_path: Path) -> None:
    revision, bare = loaded(publish(tmp_path / "made")), loaded(publish(tmp_path / "bare", index=False))

    async def scenario() -> list[httpx.Response]:
        async with running(FakeWorker(loaded=False)) as client:
            client.switch(revision)
            paths = ("", "/versions/x1", "/versions/x2", "/ready", "/config")
            first = [await client.http.get(f"/v2/models/{MODEL}{path}") for path in paths]
            asked = {"inputs": [{"name": "node", "datatype": "INT64", "shape": [1], "data": [17]}]}
            first += [await client.http.post(f"/v2/models/{MODEL}/versions/x2/infer", json=asked)]
            first += [await client.http.post("/v2/repository/index")]
            client.switch(bare, asking_for(EmbeddingsSpec()))
            return [*first, await client.http.get(f"/v2/models/{MODEL}/ready"),
                    await client.http.post("/v2/repository/index"),
                    await client.http.post(f"/v2/models/{MODEL}/infer", json=asked)]  # fmt: skip

    about, one, other, ready, config, by_other, listed, waits, waiting, early = asyncio.run(scenario())
    told = about.json()
    assert (told["name"], told["versions"]) == (MODEL, ["x1"])
    assert told["inputs"][0] == {"name": "node", "datatype": "INT64", "shape": [1]}
    assert [tensor["name"] for tensor in told["outputs"]] == ["nodes", "cosines"]
    assert (one.status_code, other.status_code, ready.json()["ready"]) == (200, 400, True)
    assert {tensor["name"] for tensor in config.json()["input"] if tensor["optional"]} >= {"filter.nodes"}
    assert by_other.json()["error"] == other.json()["error"]
    assert by_other.json()["error"].endswith(
        "variant x1, which those of variant x2 cannot be compared with; choose from x1, or leave it out"
    )
    assert [model["name"] for model in listed.json()] == ["digits", "digits", MODEL]
    assert (waits.status_code, waiting.json()[-1]["state"]) == (503, "UNAVAILABLE")
    assert "no index of embeddings yet" in waits.json()["error"]
    assert (early.status_code, early.headers["gnnserve-error"]) == (503, "NoIndex")

"""Every call of the Open Inference Protocol over HTTP, and every way to get one wrong, as data.

What the protocol asks for is apart from what this server says: the same calls can be sent to another server that has a
model of the same name and tensors. Nodes 0 to 999 are the model's, its versions are x1, x4 and x8, and node n has the
label 10, 20, 30 or 40 by n modulo 4.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "digits"
INFER = f"/v2/models/{MODEL}/infer"
LENGTH = "Inference-Header-Content-Length"
REVISION = "f0eae20c16c00ac0-1"


@dataclass(frozen=True, slots=True)
class Call:
    """A request, and what has to come back."""

    name: str
    path: str
    body: bytes | None = None
    """None: a GET."""
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = ""
    """Empty: GET, or POST where there is a body."""
    status: int = 200
    has: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the JSON of the answer has, with these values; lists of objects by their fields."""
    error: str = ""
    """Our sentence, where the call is wrong; the protocol wants one, whichever it is."""
    code: str = ""
    """Our code of the error."""


def asking(*inputs: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps({"inputs": list(inputs), **fields}).encode()


def nodes(*ids: Any, **fields: Any) -> dict[str, Any]:
    return {"name": "nodes", "datatype": "INT64", "shape": [len(ids)], "data": list(ids), **fields}


def behind(json_body: bytes, *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    """A body with bytes behind its JSON, and the header that says where they begin."""
    return b"".join((json_body, *tensors)), {LENGTH: str(len(json_body))}


def binary(name: str, size: int, datatype: str = "INT64", shape: tuple[int, ...] = (2,)) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def infer(name: str, body: bytes, **expected: Any) -> Call:
    return Call(name, INFER, body, **expected)


def wrong(name: str, body: bytes, error: str, code: str = "InvalidValue", **more: Any) -> Call:
    return Call(name, INFER, body, status=more.pop("status", 400), error=error, code=code, **more)


_LABELS = {"name": "labels", "datatype": "INT64", "shape": [2], "data": [40, 10]}
_TWO = struct.pack("<2q", 3, 4)
_BINARY, _BINARY_HEAD = behind(asking(binary("nodes", 16)), _TWO)
_SHORT, _SHORT_HEAD = behind(asking(binary("nodes", 16)), _TWO[:8])
_LONG, _LONG_HEAD = behind(asking(binary("nodes", 16)), _TWO, b"more")
_ODD, _ODD_HEAD = behind(asking(binary("nodes", 15)), _TWO[:15])
_NEGATIVE, _NEGATIVE_HEAD = behind(asking(binary("nodes", -8)), b"")
_BOTH, _BOTH_HEAD = behind(asking(binary("nodes", 16) | {"data": [3, 4]}), _TWO)

TOLD = (
    Call("the server's metadata", "/v2", has={"name": "gnnserve"}),
    Call("the server lives", "/v2/health/live", has={"live": True}),
    Call("the server is ready", "/v2/health/ready", has={"ready": True}),
    Call("the model is ready", f"/v2/models/{MODEL}/ready", has={"name": MODEL, "ready": True}),
    Call("a version is ready", f"/v2/models/{MODEL}/versions/x4/ready", has={"name": MODEL, "ready": True}),
    Call(
        "the model's metadata", f"/v2/models/{MODEL}",
        has={
            "name": MODEL, "versions": ["x1", "x4", "x8"], "platform": "gnnserve",
            "inputs": [{"name": "nodes", "datatype": "INT64", "shape": [-1]}],
            "outputs": [
                {"name": "labels", "datatype": "INT64", "shape": [-1]},
                {"name": "scores", "datatype": "FP32", "shape": [-1, 4]},
                {"name": "embeddings", "datatype": "FP32"},
            ],
        },
    ),
    Call("a version's metadata", f"/v2/models/{MODEL}/versions/x4", has={"name": MODEL}),
    Call(
        "the model's configuration", f"/v2/models/{MODEL}/config",
        has={
            "name": MODEL, "max_batch_size": 0,
            "input": [{"name": "nodes", "data_type": "TYPE_INT64", "dims": [-1], "optional": False}],
        },
    ),
    Call("a version's configuration", f"/v2/models/{MODEL}/versions/x8/config", has={"name": MODEL}),
    Call("a version's statistics", f"/v2/models/{MODEL}/versions/x8/stats",
         has={"model_stats": [{"name": MODEL, "version": "x8"}]}),
    Call("the model's statistics", f"/v2/models/{MODEL}/stats",
         has={"model_stats": [{"version": "x1"}, {"version": "x4"}, {"version": "x8"}]}),
    Call("all statistics", "/v2/models/stats", has={"model_stats": [{"version": "x1"}, {}, {}]}),
    Call("the index", "/v2/repository/index", b""),
    Call("the index of what is ready", "/v2/repository/index", b'{"ready": true}'),
    Call("loading what is loaded", f"/v2/repository/models/{MODEL}/load", b"{}"),
    Call("loading without a body", f"/v2/repository/models/{MODEL}/load", b""),
)  # fmt: skip

ANSWERED = (
    infer("labels and scores are the default", asking(nodes(3, 4)), has={
        "model_name": MODEL, "model_version": "x1", "parameters": {"revision": REVISION, "objective_met": True},
        "outputs": [_LABELS, {"name": "scores", "datatype": "FP32", "shape": [2, 4],
                              "data": [-1, -1, -1, 1, 1, -1, -1, -1]}],
    }),
    infer("an identifier comes back", asking(nodes(3, 4), id="q 1 \u00eb"), has={"id": "q 1 \u00eb"}),
    infer("outputs come in the order asked", asking(nodes(3, 4), outputs=[{"name": "scores"}, {"name": "labels"}]),
          has={"outputs": [{"name": "scores"}, _LABELS]}),
    infer("embeddings come when asked for", asking(nodes(3), outputs=[{"name": "embeddings"}]),
          has={"outputs": [{"name": "embeddings", "shape": [1, 3], "data": [3, 3, 3]}]}),
    infer("a column of ids", asking(nodes(3, 4, shape=[2, 1])), has={"outputs": [_LABELS, {}]}),
    infer("a nested column of ids", asking(nodes([3], [4], shape=[2, 1])), has={"outputs": [_LABELS, {}]}),
    infer("what is null is as absent", asking(nodes(3, 4), id=None, parameters=None, outputs=None),
          has={"outputs": [_LABELS, {}]}),
    infer("an empty list of outputs is as none", asking(nodes(3, 4), outputs=[]), has={"outputs": [_LABELS, {}]}),
    infer("a client may repeat the model's name", asking(nodes(3, 4), model_name=MODEL), has={"model_name": MODEL}),
    infer("all parameters", asking(nodes(3, 4), parameters={
        "latency_ms": 60000, "accuracy_tolerance_permille": 12.5, "strict": True, "seed": 7,
        "binary_data_output": False,
    }), has={"model_version": "x1"}),
    infer("a tolerance gets the fastest within it", asking(nodes(3), parameters={"accuracy_tolerance_permille": 12}),
          has={"model_version": "x4"}),
    infer("headers say the same", asking(nodes(3)), headers={"gnnserve-accuracy-tolerance-permille": "12"},
          has={"model_version": "x4"}),
    infer("parameters go before headers", asking(nodes(3), parameters={"accuracy_tolerance_permille": 30}),
          headers={"gnnserve-accuracy-tolerance-permille": "12"}, has={"model_version": "x8"}),
    infer("a header names the version", asking(nodes(3)), headers={"gnnserve-variant": "x8"},
          has={"model_version": "x8"}),
    Call("the path names the version", f"/v2/models/{MODEL}/versions/x4/infer", asking(nodes(3, 4)),
         has={"model_version": "x4", "outputs": [_LABELS, {}]}),
    Call("the path goes before a header", f"/v2/models/{MODEL}/versions/x4/infer", asking(nodes(3, 4)),
         headers={"gnnserve-variant": "x8"}, has={"model_version": "x4"}),
    Call("ids as bytes, an answer in JSON", INFER, _BINARY, _BINARY_HEAD, has={"outputs": [_LABELS, {}]}),
    Call("ids in JSON, and a length of all of it", INFER, asking(nodes(3, 4)),
         {LENGTH: str(len(asking(nodes(3, 4))))}, has={"outputs": [_LABELS, {}]}),
)  # fmt: skip

WRONG = (
    Call("no such model", "/v2/models/nope/infer", asking(nodes(3)), status=404, code="UnknownModel",
         error='model: there is no model "nope"; this worker serves digits'),
    Call("no such version", f"/v2/models/{MODEL}/versions/9/infer", asking(nodes(3)), status=400,
         code="UnknownVariant",
         error=f'version: revision {REVISION} has no variant "9"; choose from x1, x4, x8, or leave it out'),
    Call("metadata of no model", "/v2/models/nope", status=404, code="UnknownModel",
         error='model: there is no model "nope"; this worker serves digits'),
    Call("metadata of no version", f"/v2/models/{MODEL}/versions/9", status=400, code="UnknownVariant",
         error=f'version: revision {REVISION} has no variant "9"; choose from x1, x4, x8, or leave it out'),
    Call("no such path", "/v2/nope", status=404, code="NotFound",
         error="path: GET /v2/nope: no such path; docs/open-inference.md lists what there is"),
    Call("loading what there is not", "/v2/repository/models/nope/load", b"{}", status=404, code="UnknownModel",
         error='model: there is no model "nope"; this worker serves digits'),
    Call("loading otherwise", f"/v2/repository/models/{MODEL}/load", b'{"parameters": {"config": "{}"}}', status=400,
         code="UnknownField", error="parameters.config: a model is not configured by clients; "
                                    "change the service's manifest: the worker follows it"),
    Call("a load request that is none", f"/v2/repository/models/{MODEL}/load", b"[1]", status=400, code="InvalidJson",
         error="body: it is no such request: Expected `object`, got `array`; send {}"),
    Call("unloading", f"/v2/repository/models/{MODEL}/unload", b"{}", status=405, code="MethodNotAllowed",
         error="unload: models are not unloaded by clients; change the service's manifest: the worker follows it"),
    Call("a call of the repository that there is not", f"/v2/repository/models/{MODEL}/purge", b"", status=404,
         code="NotFound", error=f"path: POST /v2/repository/models/{MODEL}/purge: no such path; "
                                "docs/open-inference.md lists what there is"),
    Call("a prediction by GET", INFER, status=405, code="MethodNotAllowed",
         error=f"{INFER}: GET is not possible; use POST"),
    Call("metadata by POST", "/v2", b"", status=405, code="MethodNotAllowed",
         error="/v2: POST is not possible; use GET"),
    Call("a parameter behind the path", f"{INFER}?strict=true", asking(nodes(3)), status=400, code="UnknownField",
         error="strict: there is no such parameter; give parameters in the body, not behind ?"),
    wrong("an empty body", b"", 'body: it is empty; send an object such as {"inputs":', "InvalidJson"),
    wrong("no JSON", b"nodes", "body: not JSON: JSON is malformed", "InvalidJson"),
    wrong("a list", b"[1]", "body: expected an object, got [1]; send an object such as", "InvalidType"),
    wrong("no inputs", b"{}", "inputs: it is missing; give a list of tensors", "MissingField"),
    wrong("a misspelt field", b'{"inputs": [], "output": []}', "output: there is no such field; known are inputs, "
          "outputs, id, parameters, model_name, model_version", "UnknownField"),
    wrong("no nodes", asking(), "nodes: the input is missing; name the nodes to classify in it", "MissingField"),
    wrong("an unknown input", asking(nodes(3), nodes(4) | {"name": "edges"}),
          'inputs[1].name: there is no input "edges"; known are nodes', "UnknownField"),
    wrong("overlays that the service does not take", asking(nodes(3), nodes(4) | {"name": "overlay.nodes"}),
          "overlay: the service takes none", "NoOverlays"),
    wrong("an input twice", asking(nodes(3), nodes(4)), "inputs[1].name: nodes is there twice; give each input once"),
    wrong("a wrong datatype", asking(nodes(3, datatype="FP32")),
          "nodes: datatype FP32, where INT64 is expected; send it as INT64", "InvalidType"),
    wrong("an unknown datatype", asking(nodes(3, datatype="int64")),
          "nodes: datatype int64, where INT64 is expected; send it as INT64", "InvalidType"),
    wrong("too many dimensions", asking(nodes(3, 4, shape=[1, 2])),
          "nodes: shape [1,2], where [-1] is expected; -1 is any length"),
    wrong("a negative length", asking(nodes(3, 4, shape=[-2])),
          "nodes: shape [-2], where [-1] is expected; -1 is any length"),
    wrong("a shape of texts", asking(nodes(3, shape=["1"])),
          'inputs[0].shape[0]: expected an integer, got "1"; give an integer', "InvalidType"),
    wrong("more elements than the shape", asking(nodes(3, 4, shape=[1])),
          "nodes: 2 elements, where its shape [1] has 1; send as many elements as the shape says"),
    wrong("fewer elements than the shape", asking(nodes(3, shape=[3])),
          "nodes: 1 element, where its shape [3] has 3; send as many elements as the shape says"),
    wrong("a huge shape", asking(nodes(3, shape=[2**70])),
          "nodes: 1,180,591,620,717,411,303,424 nodes, more than the 500 that one request may have", "TooManyNodes"),
    wrong("an identifier that is no text", asking(nodes(3), id=7),
          "id: expected text, got 7; give a text, or leave it out", "InvalidType"),
    wrong("half a character", asking(nodes(3)).replace(b'"nodes"', b'"\\ud800"'), "body: not JSON", "InvalidJson"),
    wrong("an element of another type", asking(nodes(3, 4.5)),
          "nodes[1]: expected an integer, got a number; send INT64", "InvalidType"),
    wrong("rows of another length", asking(nodes([3], [4, 5], shape=[2, 1])),
          "nodes[1]: 2 elements, where its shape [2,1] has 1; send as many elements as the shape says"),
    wrong("no data", asking({"name": "nodes", "datatype": "INT64", "shape": [1]}),
          "nodes.data: it is missing; give data, or bytes behind the JSON and their number in binary_data_size",
          "MissingField"),
    wrong("no elements", asking(nodes()), "nodes: the list is empty; name at least one node id", "EmptyNodes"),
    wrong("an unknown node", asking(nodes(3, 1000)),
          "nodes[1]: node 1000 is not in the graph; node ids are 0 to 999", "UnknownNode"),
    wrong("a node beyond 64 bits", asking(nodes(3, 2**70)),
          "nodes[1]: node 1180591620717411303424 is not in the graph; node ids are 0 to 999", "UnknownNode"),
    wrong("more nodes than a request may have", asking(nodes(*range(501))),
          "nodes: 501 nodes, more than the 500 that one request may have", "TooManyNodes"),
    wrong("an unknown output", asking(nodes(3), outputs=[{"name": "logits"}]),
          'outputs[0].name: there is no output "logits"; choose from labels, scores, embeddings'),
    wrong("an output twice", asking(nodes(3), outputs=[{"name": "labels"}, {"name": "labels"}]),
          "outputs[1].name: labels is asked for twice; ask for each output once"),
    wrong("an unknown parameter", asking(nodes(3), parameters={"patience": 5}),
          "parameters.patience: there is no such parameter; known are latency_ms, accuracy_tolerance_permille, strict, "
          "seed, min_offset, timeout, priority, binary_data_output", "UnknownField"),
    wrong("an unknown parameter of an input", asking(nodes(3, parameters={"shared_memory_region": "r"})),
          "nodes.parameters.shared_memory_region: there is no such parameter; known are binary_data_size",
          "UnknownField"),
    wrong("an unknown parameter of an output",
          asking(nodes(3), outputs=[{"name": "labels", "parameters": {"classification": 2}}]),
          "outputs[0].parameters.classification: there is no such parameter; known are binary_data", "UnknownField"),
    wrong("a latency of another type", asking(nodes(3), parameters={"latency_ms": True}),
          "parameters.latency_ms: expected a number, got true; give a number", "InvalidType"),
    wrong("a latency out of range", asking(nodes(3), parameters={"latency_ms": -1}),
          "parameters.latency_ms: -1 is out of range; give milliseconds above 0 and at most 3,600,000"),
    wrong("a latency larger than any float", asking(nodes(3), parameters={"latency_ms": 10**400}),
          "is out of range; give a number of at most 64 bits"),
    wrong("a timeout larger than any float", asking(nodes(3), parameters={"timeout": 10**400}),
          "is out of range; give an integer of at most 64 bits"),
    wrong("a seed out of range", asking(nodes(3), parameters={"seed": -1}), "parameters.seed: -1 is out of range"),
    wrong("a header out of range", asking(nodes(3)), "gnnserve-latency-ms: 'soon' is not a number",
          headers={"gnnserve-latency-ms": "soon"}),
    wrong("an offset of a graph that does not change", asking(nodes(3), parameters={"min_offset": 1}),
          "parameters.min_offset: the graph of this service does not change", "NoUpdates", status=409),
    wrong("a strict request that cannot be met", asking(nodes(3), parameters={"latency_ms": 0.001, "strict": True}),
          "no variant answers 1 node within 0.001 ms; the fastest, x8, needs", "ObjectiveInfeasible", status=422),
    wrong("another model than the path's", asking(nodes(3), model_name="other"),
          'model_name: "other", where the path has "digits"; leave it out: the path says it'),
    wrong("fewer bytes than the tensor has", _SHORT,
          "nodes.parameters.binary_data_size: 16, where 8 bytes are left", "InvalidBinary", headers=_SHORT_HEAD),
    wrong("more bytes than the tensors have", _LONG, "body: 20 bytes behind the JSON, of which its tensors have 16",
          "InvalidBinary", headers=_LONG_HEAD),
    wrong("a size that is no tensor's", _ODD, "nodes: 15 bytes, where its shape [2] has 8 for each of 2 elements",
          "InvalidBinary", headers=_ODD_HEAD),
    wrong("a negative size", _NEGATIVE, "nodes.parameters.binary_data_size: -8, where 0 bytes are left",
          "InvalidBinary", headers=_NEGATIVE_HEAD),
    wrong("elements in JSON and as bytes", _BOTH, "nodes.data: it is there, and binary_data_size as well",
          headers=_BOTH_HEAD),
    wrong("bytes without a length of the JSON", asking(binary("nodes", 16)),
          "nodes.parameters.binary_data_size: the request has no bytes behind its JSON", "InvalidBinary"),
    wrong("a length beyond the body", asking(nodes(3)), "bytes, fewer than the 10,000 of JSON that the head says",
          "InvalidBinary", headers={LENGTH: "10000"}),
    wrong("a length that is no number", asking(nodes(3)), "'-1' is no whole number", headers={LENGTH: "-1"}),
    wrong("bytes alone that are no ids", _TWO[:9], "body: 9 bytes without JSON are no tensor of INT64",
          "InvalidBinary", headers={LENGTH: "0"}),
    Call("an index request that is none", "/v2/repository/index", b"[1]", status=400, code="InvalidJson",
         error="body: it is no index request: Expected `object`, got `array`"),
    Call("a misspelt field of the index", "/v2/repository/index", b'{"redy": true}', status=400, code="InvalidJson",
         error="body: it is no index request: Object contains unknown field `redy`"),
)  # fmt: skip

PROTOCOL = frozenset({
    "the server's metadata", "the server lives", "the server is ready", "the model is ready", "the model's metadata",
    "the model's configuration", "the model's statistics", "the index", "labels and scores are the default",
    "an identifier comes back", "outputs come in the order asked", "an empty list of outputs is as none",
    "ids as bytes, an answer in JSON", "no such model", "metadata of no model", "no such version",
    "metadata of no version", "no such path", "a prediction by GET", "metadata by POST", "an empty body", "no JSON",
    "a list", "no inputs", "no nodes", "an unknown input", "an input twice", "a wrong datatype",
    "an unknown datatype", "too many dimensions", "a negative length", "a shape of texts",
    "more elements than the shape", "fewer elements than the shape", "a huge shape", "an identifier that is no text",
    "half a character", "an element of another type", "no data", "an unknown output",
    "fewer bytes than the tensor has", "more bytes than the tensors have", "a size that is no tensor's",
    "a negative size", "elements in JSON and as bytes", "bytes without a length of the JSON",
    "a length beyond the body", "a length that is no number", "an index request that is none",
})  # fmt: skip
"""Names of the calls that any server with such a model should answer alike: none needs what only this one has, its
parameters, headers, variants, embeddings and bounds."""

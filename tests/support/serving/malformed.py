"""Requests that are wrong in some way, made from a seed, and a client that sends them and notes what came back.

Kinds, and what each may count on:
- json, binary: a valid head with the length of its body, whose bytes were mutated: exactly one answer;
- overlay: the same with what the graph does not have, wrong in ways of its own, in either form: exactly one answer;
- tensors: the same in the Open Inference Protocol, with tensors in JSON or behind it: exactly one answer;
- compressed: bodies that say so, damaged, of unknown codings, or far larger than they look: exactly one answer;
- head: a valid request with a mutated head; raw: bytes at random; chunked: a mutated chunked body; pipelined: several
  of all these at once. After those the client ends its side, and the worker must end its own: some answers, or none;
- abandoned: cut off in the middle, by an end, a reset or nothing at all;
- valid: as it should be; its answer must be right.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import socket
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httptools
from tests.support.serving.kept_connection import PATIENCE_S, Answers, KeptConnection

KINDS = (
    "json",
    "binary",
    "overlay",
    "tensors",
    "compressed",
    "head",
    "raw",
    "chunked",
    "pipelined",
    "abandoned",
    "valid",
)
_WEIGHTS = (20, 10, 20, 10, 5, 10, 5, 5, 5, 5, 10)
ANSWERED = frozenset(("json", "binary", "overlay", "tensors", "compressed", "valid"))
"""Kinds whose every request gets one answer."""
FEATURES = 4
"""Of the graph, whose source names no columns."""
_COLUMNS = ("0", "3", "4", "-1", "03", "amount", "", "\ud800", "9" * 5000)
FIELDS: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308, "", "0",
    "nodes", "\0", "\ud800", "ä" * 50, [], [[]], [None], {}, {"nodes": [0]}, [0] * 2000, "x" * 5000,
)  # fmt: skip
LITERALS = (
    b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e-999", b"0x1", b"01", b"1.", b".5", b"+1", b"nul", b"'0'",
    b"\xff", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xef\xbb\xbf", b"\0", b"\\u0000", b"\\ud800", b"\\x", b"[" * 2000,
    b"{" * 500, b'{"nodes":' * 200, b",", b":", b"//", b"\r\n\r\n", b"9" * 5000, b'"nodes"', b'"objective"',
)  # fmt: skip
_HEAD_PARTS = (
    b"content-length: -1", b"content-length: 99999999999999999999", b"content-length: 0x10", b"content-length: 5, 5",
    b"content-length: 3\r\ncontent-length: 4", b"transfer-encoding: chunked", b"transfer-encoding: gzip, chunked",
    b"transfer-encoding: identity", b"transfer-encoding : chunked", b"expect: 100-continue", b"expect: tea",
    b"connection: upgrade\r\nupgrade: h2c", b"upgrade: websocket", b"connection: close", b"connection: \xff",
    b"gnnserve-latency-ms: nan", b"gnnserve-latency-ms: 1e400", b"gnnserve-latency-ms:", b"gnnserve-strict: perhaps",
    b"gnnserve-timing: perhaps", b"gnnserve-accuracy-tolerance-permille: -1",
    b"gnnserve-accuracy-tolerance-permille: " + b"9" * 400,
    b"content-type: application/octet-stream", b"content-type: \0", b"authorization: Bearer \xff", b"host:", b": x",
    b" folded", b"x: a\r\n folded", b"x: a\ny: b", b"x: a\ry: b", b"host: two", b"host: a b", b"x : y",
    b"transfer-encoding: chunked, gzip", b"transfer-encoding: chunked\r\ncontent-length: 3",
    b"transfer-encoding: gzip\r\ntransfer-encoding: chunked", b"transfer-encoding: \x0bchunked",
    b"x" * 9000 + b": y", b"x: " + b"y" * 70_000, b"\xc3\xa4: x", b"range: bytes=0-", b"origin: null",
)  # fmt: skip
_METHODS = (b"GET", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"CONNECT", b"HEAD", b"PRI", b"post", b"P\0ST")
_PATHS = (
    b"/", b"*", b"/v1/predict/", b"/v1//predict", b"/v1/../v1/predict", b"/v1/predict?return=scores&return=labels",
    b"/v1/predict?%", b"/v1/nodes?start=-1", b"/v1/nodes?count=9999999999999999999", b"/v1/nodes?start=%00", b"/%ff",
    b"/metrics?a=" + b"b" * 3000, b"/docs-assets/../../etc/passwd", b"/docs-assets/%2e%2e/%2e%2e/etc/passwd", b"/\xff",
    b"/" + b"a" * 66_000, b"/v1/predict?x=1", b"/v2", b"/v2/models/digits/versions/9/stats", b"/v2/models/%ff/infer",
    b"http://elsewhere/v1/predict", b"/v1/predict#x", b"/v1/pre dict", b"/openapi.json", b"/v1/variants", b"/v1/route",
)  # fmt: skip
_ACCEPTED = (b"gzip", b"deflate, gzip;q=0", b"*", b"gzip;q=2", b",;q=", b"\xff", b"br;q=1, gzip;q=0.001", b"g" * 9000)
_VERSIONS = (b"HTTP/1.0", b"HTTP/0.9", b"HTTP/2.0", b"HTTP/1.1 ", b"HTTP/11", b"http/1.1", b"", b"HTTP/1.1\r")


@dataclass(frozen=True, slots=True)
class Bad:
    kind: str
    data: bytes
    how: str = "end"
    """How abandoned requests end: end, reset or silence."""


def make(number: int, nodes: int) -> Bad:
    """The same one for the same number, over a graph with that many nodes."""
    draw = random.Random(number)  # noqa: S311 - no secret
    kind = draw.choices(KINDS, _WEIGHTS)[0]
    if kind == "abandoned":
        whole = _any(draw, nodes)
        return Bad(kind, whole[: draw.randrange(len(whole))], draw.choice(("end", "reset", "silence")))
    made = {
        "json": lambda: _post(_mutated_json(draw, nodes), *_optional_part(draw)),
        "binary": lambda: _binary(draw, nodes),
        "overlay": lambda: _overlay(draw, nodes),
        "tensors": lambda: _tensors(draw, nodes),
        "compressed": lambda: _compressed(draw, nodes),
        "head": lambda: _mutated_head(draw, nodes),
        "raw": lambda: _raw(draw),
        "chunked": lambda: _chunked(draw, nodes),
        "pipelined": lambda: b"".join(_any(draw, nodes) for _ in range(draw.randint(2, 6))),
        "valid": lambda: _post(_json(_valid(draw, nodes))),
    }
    return Bad(kind, made[kind]())


def expected_nodes(valid: Bad) -> list[int]:
    """Nodes of a valid request."""
    body = valid.data.partition(b"\r\n\r\n")[2]
    return list(json.loads(body)["nodes"])


def _any(draw: random.Random, nodes: int) -> bytes:
    makers: tuple[Callable[[], bytes], ...] = (
        lambda: _post(_mutated_json(draw, nodes)),
        lambda: _binary(draw, nodes),
        lambda: _overlay(draw, nodes),
        lambda: _tensors(draw, nodes),
        lambda: _compressed(draw, nodes),
        lambda: _mutated_head(draw, nodes),
        lambda: _chunked(draw, nodes),
        lambda: _post(_json(_valid(draw, nodes))),
    )
    return draw.choice(makers)()


def _valid(draw: random.Random, nodes: int) -> dict[str, Any]:
    asked: dict[str, Any] = {"nodes": [draw.randrange(nodes) for _ in range(draw.choice((1, 1, 2, 7, 40)))]}
    if draw.random() < 0.3:
        asked["return"] = ["labels", "scores"][: draw.randint(1, 2)]
    if draw.random() < 0.2:
        asked["objective"] = {"latencyMs": draw.choice((100, 1000, 3_600_000))}
    if draw.random() < 0.3:
        asked["overlay"] = _valid_overlay(draw, nodes)
    return asked


def _valid_overlay(draw: random.Random, nodes: int) -> dict[str, Any]:
    """Without overrides, so that stored nodes keep their answers where these depend on no neighbours."""
    new = draw.randrange(4)
    ends = [*range(nodes), *range(nodes, nodes + new)]
    rows = [[draw.random() for _ in range(FEATURES)] for _ in range(new)]
    return {
        "nodes": [
            {"id": nodes + k, "features": draw.choice((row, {str(draw.randrange(FEATURES)): 1.5}))}
            for k, row in enumerate(rows)
        ],
        "edges": [draw.choices(ends, k=2) for _ in range(draw.choice((0, 1, 3, 50)))],
    }


def _json(value: Any) -> bytes:
    # NaN and infinity are written as Python has them; a lone surrogate as its escape.
    return json.dumps(value, separators=(",", ":")).encode()


def _post(body: bytes, *lines: bytes) -> bytes:
    head = (b"POST /v1/predict HTTP/1.1", b"host: worker", b"content-length: %d" % len(body), *lines)
    return b"\r\n".join((*head, b"", body))


def _optional_part(draw: random.Random) -> tuple[bytes, ...]:
    """A line of a head after which the message is still framed the same."""
    harmless = [part for part in _HEAD_PARTS if part.startswith((b"gnnserve-", b"range", b"origin"))]
    return (draw.choice(harmless),) if draw.random() < 0.2 else ()


def _mutated_json(draw: random.Random, nodes: int) -> bytes:
    asked = _valid(draw, nodes)
    way = draw.randrange(4)
    if way == 0:
        target = draw.choice(("nodes", "return", "objective", "strict", "unknown", "objective.latencyMs", "node"))
        value = draw.choice(FIELDS)
        if target == "objective.latencyMs":
            asked["objective"] = {draw.choice(("latencyMs", "accuracyTolerancePermille", "x")): value}
        elif target == "node":
            asked["nodes"].insert(draw.randint(0, len(asked["nodes"])), value)
        else:
            asked[target] = value
        return _json(asked)
    body = _json(asked)
    if way == 1:
        return splice(draw, body, draw.choice(LITERALS))
    if way == 2:
        return body[: draw.randrange(len(body) + 1)]
    return flip(draw, body)


def splice(draw: random.Random, data: bytes, piece: bytes) -> bytes:
    start = draw.randint(0, len(data))
    return data[:start] + piece + data[min(len(data), start + draw.choice((0, 0, 1, 4))) :]


def flip(draw: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.randint(1, 8)):
        if not changed:
            break
        at = draw.randrange(len(changed))
        match draw.randrange(3):
            case 0:
                changed[at] = draw.randrange(256)
            case 1:
                del changed[at : at + draw.randint(1, 5)]
            case _:
                changed[at:at] = changed[at : at + draw.randint(1, 20)]
    return bytes(changed)


def _binary(draw: random.Random, nodes: int) -> bytes:
    count = draw.choice((0, 1, 2, 30))
    ids = [draw.choice((draw.randrange(nodes), draw.randrange(-(2**63), 2**63), nodes, -1)) for _ in range(count)]
    body = struct.pack(f"<{count}q", *ids)
    if draw.random() < 0.3:
        body = body[: draw.randint(0, len(body))]
    body += bytes(draw.randrange(256) for _ in range(draw.choice((0, 0, 1, 7))))
    made = _post(body, b"content-type: application/octet-stream")
    query = draw.choice(
        (b"", b"return=scores", b"return=embeddings", b"return=", b"return=x", b"x=1", b"return=a&return=b")
    )
    return made.replace(b"/v1/predict", b"/v1/predict?" + query, 1)


def _overlay(draw: random.Random, nodes: int) -> bytes:
    """A hostile overlay: one thing in it is wrong, or much too much, or it is arrays at random."""
    if draw.random() < 0.3:
        return _overlay_as_arrays(draw, nodes)
    asked: dict[str, Any] = {"nodes": [draw.randrange(nodes)], "overlay": _valid_overlay(draw, nodes)}
    overlay = asked["overlay"]
    node, hub = {"id": nodes + 9, "features": [1.0] * FEATURES}, draw.randrange(nodes)
    wrongs: tuple[Callable[[], Any], ...] = (
        lambda: overlay["edges"].append(draw.choice(([0], [0, 1, 2], [], 3, [0, 10**6], [-1, 0], ["0", 1], [0, None]))),
        lambda: overlay["edges"].extend([[hub, hub]] * draw.choice((16_384, 17_000))),
        lambda: overlay["nodes"].extend([node, node]),
        lambda: overlay["nodes"].extend({**node, "id": nodes + 9 + k} for k in range(draw.choice((1020, 1100)))),
        lambda: overlay["nodes"].append({**node, "id": draw.randrange(nodes)}),
        lambda: overlay["nodes"].append({**node, "features": [1.0] * draw.choice((0, 1, FEATURES + 1, 5000))}),
        lambda: overlay["nodes"].append({**node, "features": draw.choice(FIELDS)}),
        lambda: overlay["nodes"].append({**node, "features": {draw.choice(_COLUMNS): draw.choice(FIELDS)}}),
        lambda: overlay["nodes"].append({**node, "features": {draw.choice(_COLUMNS): 1.0}}),
        lambda: overlay["nodes"].append({**node, "features": [draw.choice((1e39, -1e300, math.nan, math.inf))] * 4}),
        lambda: overlay.update(overrides=[{**node, "id": draw.choice((hub, hub, nodes + 9, -1))}] * draw.randint(1, 2)),
        lambda: overlay.update({draw.choice(("nodes", "edges", "overrides", "x")): draw.choice(FIELDS)}),
        lambda: asked.update(overlay=draw.choice(FIELDS)),
        lambda: asked.update(seed=draw.choice(FIELDS)),
        lambda: asked["nodes"].append(draw.choice((nodes + 9, -1, 2**63))),
    )
    draw.choice(wrongs)()
    body = _json(asked)
    if draw.random() < 0.2:
        body = draw.choice((flip(draw, body), splice(draw, body, draw.choice(LITERALS))))
    return _post(body)


def _overlay_as_arrays(draw: random.Random, nodes: int) -> bytes:
    asked, new, edges, overrides = (draw.choice((0, 1, 1, 2)) for _ in range(4))
    numbers = [draw.randrange(-new - 1, nodes + 1) for _ in range(asked + 2 * edges + overrides)]
    features = [draw.choice((0.5, 0.5, 0.5, 0.5, math.nan, math.inf)) for _ in range((new + overrides) * FEATURES)]
    counts = [asked, new, edges, overrides]
    if draw.random() < 0.3:
        counts[draw.randrange(4)] = draw.choice((-1, 3, 2**20, 2**62, 2**63 - 1, -(2**63)))
    body = struct.pack(f"<4q{len(numbers)}q{len(features)}f", *counts, *numbers, *features)
    if draw.random() < 0.3:
        body = draw.choice((body[: draw.randint(0, len(body))], body + b"\0", flip(draw, body)))
    return _post(body, b"content-type: application/vnd.gnnserve.overlay")


def _tensors(draw: random.Random, nodes: int) -> bytes:
    ids = [draw.choice((draw.randrange(nodes), nodes, -1)) for _ in range(draw.choice((1, 1, 3)))]
    given = [("nodes", "INT64", [len(ids)], ids)]
    if draw.random() < 0.5:
        given += [
            ("overlay.nodes", "INT64", [1], [-1]),
            ("overlay.nodes.features", "FP32", [1, FEATURES], [1] * FEATURES),
        ]
    is_binary, behind, inputs = draw.random() < 0.5, b"", []
    for name, datatype, shape, data in given:
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        raw = struct.pack(f"<{len(data)}{'q' if datatype == 'INT64' else 'f'}", *data)
        inputs.append(tensor | ({"parameters": {"binary_data_size": len(raw)}} if is_binary else {"data": data}))
        behind += raw if is_binary else b""
    asked: dict[str, Any] = {"inputs": inputs, "parameters": {}}
    where = draw.choice((asked, asked["parameters"], inputs[-1], inputs[-1].get("parameters", asked)))
    if draw.random() < 0.7:
        where[draw.choice([*where, "outputs", "id", "seed", "latency_ms", "binary_data_output"])] = draw.choice(FIELDS)
    body = _json(asked)
    if draw.random() < 0.3:
        body = draw.choice((flip(draw, body), splice(draw, body, draw.choice(LITERALS))))
    lines = (b"inference-header-content-length: %d" % draw.choice((len(body), len(body), len(body), 0, 7)),)
    place = draw.choice((b"digits", b"digits", b"digits/versions/x1", b"digits/versions/9", b"%00", b"other"))
    made = _post(body + behind, *(lines if is_binary else ()))
    return made.replace(b"/v1/predict", b"/v2/models/%b/infer" % place, 1)


def _compressed(draw: random.Random, nodes: int) -> bytes:
    """A compressed body that is damaged, cut, doubled or not what it says, or one in ten that becomes 64 MiB."""
    wbits, name = draw.choice(((31, b"gzip"), (15, b"deflate"), (31, b"x-gzip")))
    if draw.random() < 0.1:
        body = _bomb(wbits)
    else:
        packer = zlib.compressobj(1, zlib.DEFLATED, wbits)
        plain = draw.choice((_json(_valid(draw, nodes)), _mutated_json(draw, nodes)))
        body = packer.compress(plain) + packer.flush()
        body = draw.choice(
            (body, body[: draw.randint(0, len(body))], body + body, body + b"\0", flip(draw, body), plain)
        )
    said = draw.choice((name, name, name, name, b"br", b"gzip, gzip", b"identity", b"\xff", b"", b"deflate", b"gzip"))
    return _post(body, b"content-encoding: " + said, b"accept-encoding: " + draw.choice(_ACCEPTED))


@cache
def _bomb(wbits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    return packer.compress(b'{"nodes":[' + b" " * (64 * 1024 * 1024)) + packer.flush()


def _mutated_head(draw: random.Random, nodes: int) -> bytes:
    body = _json(_valid(draw, nodes))
    lines = [b"POST /v1/predict HTTP/1.1", b"host: worker", b"content-length: %d" % len(body)]
    match draw.randrange(5):
        case 0:
            lines.insert(draw.randint(1, len(lines)), draw.choice(_HEAD_PARTS))
        case 1:
            lines[0] = draw.choice(_METHODS) + b" /v1/predict HTTP/1.1"
        case 2:
            lines[0] = b"GET " + draw.choice(_PATHS) + b" HTTP/1.1"
        case 3:
            lines[0] = b"POST /v1/predict " + draw.choice(_VERSIONS)
        case _:
            head = flip(draw, b"\r\n".join((*lines, b"", b"")))
            return head + body
    return b"\r\n".join((*lines, b"", body))


def _raw(draw: random.Random) -> bytes:
    starts = (b"", b"", b"\x16\x03\x01\x02\x00\x01", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n\r\n", b"GET ")
    return draw.choice(starts) + draw.randbytes(draw.choice((0, 1, 17, 300, 5000)))


def _chunked(draw: random.Random, nodes: int) -> bytes:
    body = _json(_valid(draw, nodes))
    cut = draw.randint(0, len(body))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:cut], body[cut:]) if part) + b"0\r\n\r\n"
    sizes = (b"-1\r\n", b"FFFFFFFFFFFFFFFFF\r\n", b"5;x=y\r\n", b"g\r\n", b"\r\n", b"5\r", b"0\r\nx: y\r\n")
    way = draw.randrange(4)
    if way == 0:
        chunks = flip(draw, chunks)
    elif way == 1:
        chunks = splice(draw, chunks, draw.choice(sizes))
    elif way == 2:
        chunks = chunks[: draw.randrange(len(chunks))]
    return b"POST /v1/predict HTTP/1.1\r\nhost: worker\r\ntransfer-encoding: chunked\r\n\r\n" + chunks


# Sending


@dataclass(slots=True)
class Noted:
    requests: Counter[str] = field(default_factory=Counter)
    """Requests by kind."""
    statuses: Counter[str] = field(default_factory=Counter)
    """Answers by status; "none" where the connection ended without an answer, which only some kinds may."""
    unanswered: list[int] = field(default_factory=list)
    """Numbers of requests that had a right to an answer."""
    wrong: list[int] = field(default_factory=list)
    """Numbers of valid requests whose answer was not right, and of others that got what no client should: 500."""

    def add(self, other: Noted) -> None:
        self.requests += other.requests
        self.statuses += other.statuses
        self.unanswered += other.unanswered
        self.wrong += other.wrong


IsRight = Callable[[list[int], bytes], bool]
"""Whether a body is the right answer for these nodes."""


def send_all(port: int, numbers: range, nodes: int, is_right: IsRight, connections: int = 16) -> Noted:
    """Each of `connections` clients sends one after another, and some leave theirs open until the end."""
    return asyncio.run(_send_all(port, numbers, nodes, is_right, connections))


async def _send_all(port: int, numbers: range, nodes: int, is_right: IsRight, connections: int) -> Noted:
    noted, silent = Noted(), list[asyncio.StreamWriter]()
    queue = iter(numbers)
    try:
        clients = (
            _Client(port, nodes, is_right, noted, silent, KeptConnection(port)).run(queue) for _ in range(connections)
        )
        await asyncio.gather(*clients)
    finally:
        for writer in silent:
            writer.transport.abort()
    return noted


@dataclass(slots=True)
class _Client:
    port: int
    nodes: int
    is_right: IsRight
    noted: Noted
    silent: list[asyncio.StreamWriter]
    kept: KeptConnection
    """A connection that goes on: requests of kinds that are answered share it."""

    async def run(self, numbers: Iterator[int]) -> None:
        for number in numbers:
            bad = make(number, self.nodes)
            self.noted.requests[bad.kind] += 1
            answers = await (self.kept.ask(bad.data) if bad.kind in ANSWERED else self.throw(bad))
            self.note(number, bad, answers)
        self.kept.close()

    def note(self, number: int, bad: Bad, answers: Answers) -> None:
        for status in answers.statuses:
            self.noted.statuses[str(status)] += 1
        if not answers.statuses:
            self.noted.statuses["none"] += 1
        if bad.kind in ANSWERED and answers.complete != 1:
            self.noted.unanswered.append(number)
        elif 500 in answers.statuses or (bad.kind == "valid" and not self.is_good(bad, answers)):
            self.noted.wrong.append(number)

    def is_good(self, valid: Bad, answers: Answers) -> bool:
        """A busy machine may make a latency of 100 ms impossible: then it is refused."""
        if answers.statuses == [429] and b'"objective"' in valid.data:
            return True
        return answers.statuses == [200] and self.is_right(expected_nodes(valid), answers.body)

    async def throw(self, bad: Bad) -> Answers:
        """Whatever comes back, until the worker ends the connection as the client did."""
        answers = Answers()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(bad.data)
            match bad.how:
                case "reset":
                    sock: socket.socket = writer.get_extra_info("socket")
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                case "silence":
                    self.silent.append(writer)
                    if len(self.silent) > 200:
                        self.silent.pop(0).transport.abort()
                    return answers
                case _:
                    writer.write_eof()
                    async with asyncio.timeout(PATIENCE_S):
                        while data := await reader.read(65_536):
                            answers.feed(data)
            writer.close()
        except (ConnectionError, httptools.HttpParserError):
            writer.transport.abort()
        return answers

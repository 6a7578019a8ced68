"""Clients that send hostile overlays over HTTP and gRPC, and others that meanwhile ask for what is right."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tests.support.overlays.hostile_overlays import Answer, Hostile, Wanted, drafted, make, why_wrong, write_json
from tests.support.overlays.overlay_oracle import CLASSES, NODES, SERVICE, Oracle
from tests.support.overlays.overlay_readers import Draft, Form
from tests.support.serving.kept_connection import KeptConnection
from tests.support.serving.malformed_messages import METHOD

from gnnserve_worker.serving.grpc.messages import ModelInferResponse

_BYSTANDERS = 2
_ATTEMPTS = 100
_WAIT_S = 0.05
"""Wait between attempts of a request that the worker has no room for now."""
_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 422,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
}
"""Status of HTTP for each of gRPC that a client may be at fault for; any other is the server's fault: 500."""


@dataclass(slots=True)
class NotedOverlays:
    kinds: Counter[str] = field(default_factory=Counter)
    """Requests by form and kind."""
    statuses: Counter[int] = field(default_factory=Counter)
    postponed: int = 0
    """Attempts that were refused for want of room, and made again."""
    wrong: list[tuple[int, str]] = field(default_factory=list)
    """Numbers of requests that got a wrong answer, and why it is wrong."""
    bystanders: int = 0
    """Requests of others meanwhile."""
    wrong_bystanders: list[str] = field(default_factory=list)

    def add(self, other: NotedOverlays) -> None:
        self.kinds += other.kinds
        self.statuses += other.statuses
        self.postponed += other.postponed
        self.wrong += other.wrong
        self.bystanders += other.bystanders
        self.wrong_bystanders += other.wrong_bystanders


def send_overlays(port: int, grpc_port: int, numbers: range, oracle: Oracle, connections: int = 16) -> NotedOverlays:
    """Send the requests of these numbers, so many at once, while others ask too."""
    return asyncio.run(_send_overlays(port, grpc_port, numbers, oracle, connections))


async def _send_overlays(port: int, grpc_port: int, numbers: range, oracle: Oracle, connections: int) -> NotedOverlays:
    noted, waiting = NotedOverlays(), iter(numbers)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel, asyncio.TaskGroup() as beside:
        draws = [random.Random(f"{numbers} {k}") for k in range(_BYSTANDERS)]  # noqa: S311 - no secret
        bystanders = [beside.create_task(_stand_by(port, draw, oracle, noted)) for draw in draws]
        await asyncio.gather(*(_send_some(port, channel, waiting, oracle, noted) for _ in range(connections)))
        for bystander in bystanders:
            bystander.cancel()
    return noted


async def _send_some(port: int, channel: Any, numbers: Iterator[int], oracle: Oracle, noted: NotedOverlays) -> None:
    connection = KeptConnection(port)
    for number in numbers:
        hostile = make(number, oracle.features)
        noted.kinds[f"{hostile.form}: {hostile.kind}"] += 1
        answer = await _answer_to(hostile, connection, channel, noted)
        noted.statuses[answer.status] += 1
        if why := why_wrong(hostile, answer, oracle.is_right):
            noted.wrong.append((number, f"{hostile.form}, {hostile.kind}: {why[:300]}"))
    connection.close()


async def _answer_to(hostile: Hostile, connection: KeptConnection, channel: Any, noted: NotedOverlays) -> Answer:
    for _ in range(_ATTEMPTS):
        if hostile.form is Form.GRPC:
            answer = await _call(channel, hostile.body)
        else:
            answer = await _post(connection, hostile)
        if answer.status != 429:
            break
        noted.postponed += 1
        await asyncio.sleep(_WAIT_S)
    return answer


async def _stand_by(port: int, draw: random.Random, oracle: Oracle, noted: NotedOverlays) -> None:
    """Ask about stored nodes, and about new ones of one's own, until cancelled."""
    connection = KeptConnection(port)
    try:
        while True:
            draft = drafted(draw, Form.JSON)
            if draw.random() < 0.7:  # stored nodes alone
                draft = Draft(Form.JSON, draft.variant, draw.choices(range(NODES), k=3), [], [], [], [], [])
            body = json.dumps(write_json(draft)).encode()
            asked = Hostile(Form.JSON, "of another", draft.variant, body, None, Wanted(draft.meaning(), ()))
            answer = await _answer_to(asked, connection, None, noted)
            noted.bystanders += 1
            if why := why_wrong(asked, answer, oracle.is_right):
                noted.wrong_bystanders.append(why[:300])
    finally:
        connection.close()


async def _post(connection: KeptConnection, hostile: Hostile) -> Answer:
    path, lines = b"/v1/predict", [b"content-type: application/json"]
    if hostile.form is Form.ARRAYS:
        path += b"?return=scores"
        lines = [b"content-type: application/vnd.gnnserve.overlay", b"gnnserve-variant: " + hostile.variant.encode()]
    elif hostile.form is not Form.JSON:
        path = f"/v2/models/{SERVICE}/versions/{hostile.variant}/infer".encode()
    if hostile.json_bytes is not None:
        lines.append(b"inference-header-content-length: %d" % hostile.json_bytes)
    lines = [b"POST %b HTTP/1.1" % path, b"host: worker", b"content-length: %d" % len(hostile.body), *lines, b"", b""]
    answers = await connection.ask(b"\r\n".join(lines) + hostile.body)
    if answers.complete != 1:
        return Answer(0, "the connection ended without an answer", None)
    return read_answer(hostile.form, answers.statuses[-1], answers.body)


def read_answer(form: Form, status: int, body: bytes) -> Answer:
    """Read the body of an answer over HTTP."""
    if status == 200 and form is Form.ARRAYS:
        return Answer(status, "", np.frombuffer(body, "<f4").reshape(-1, CLASSES))
    told = json.loads(body)
    if status != 200:
        error = told["error"]
        return Answer(status, error if isinstance(error, str) else error["message"], None)
    if form is Form.JSON:
        return Answer(status, "", np.array(told["scores"]).reshape(-1, CLASSES))
    (scores,) = (output["data"] for output in told["outputs"] if output["name"] == "scores")
    return Answer(status, "", np.array(scores).reshape(-1, CLASSES))


async def _call(channel: Any, message: bytes) -> Answer:
    try:
        raw = await channel.unary_unary(METHOD)(message, timeout=30.0)
    except grpc.aio.AioRpcError as error:
        return Answer(_STATUS.get(error.code(), 500), error.details() or "", None)
    answer = ModelInferResponse.FromString(raw)
    for place, output in enumerate(answer.outputs):
        if output.name == "scores":
            raw_scores = answer.raw_output_contents
            flat = np.frombuffer(raw_scores[place], "<f4") if raw_scores else np.array(output.contents.fp32_contents)
            return Answer(200, "", flat.reshape(-1, CLASSES))
    return Answer(200, "", None)

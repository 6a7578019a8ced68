"""Operations beside predictions: what is served, whether it is ready, node ids, labels that come later, the log."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from gnnserve_api.errors import InputError
from gnnserve_api.http.changes import ChangesPage
from gnnserve_api.http.live_accuracy import MOST_LABELS, MOST_TOLD, AccuracyAnswer, LabelsAnswer, RefusedLabel
from gnnserve_api.http.protocol import NodesAnswer, VariantsAnswer
from gnnserve_api.pods.routing import Route
from gnnserve_client.arrays import Ids, are_pairs, read_edges, read_flags, read_ids, read_labels
from gnnserve_client.asking import ClientState
from gnnserve_client.errors import NoAnswerError, TimedOutError
from gnnserve_client.exchange import Call, Send, Steps

_PAGE_NODES = 10_000
_LOOK_S = 0.2
"""Time between two looks whether the server is ready."""


def fetch_variants(asking: ClientState, timeout_s: float | None) -> Steps[VariantsAnswer]:
    reply = yield from asking.answered(Call("GET", "/v1/variants"), timeout_s)
    return asking.decode(reply.body, VariantsAnswer)


def fetch_route(asking: ClientState, timeout_s: float | None) -> Steps[Route]:
    reply = yield from asking.answered(Call("GET", "/v1/route"), timeout_s)
    return asking.decode(reply.body, Route)


def fetch_accuracy(asking: ClientState, timeout_s: float | None) -> Steps[AccuracyAnswer]:
    reply = yield from asking.answered(Call("GET", "/v1/accuracy"), timeout_s)
    return asking.decode(reply.body, AccuracyAnswer)


def fetch_nodes(asking: ClientState, start: int, count: int | None, timeout_s: float | None) -> Steps[Ids]:
    """`count`: None takes all behind `start`."""
    found: list[Any] = []
    while count is None or len(found) < count:
        page_size = _PAGE_NODES if count is None else min(count - len(found), _PAGE_NODES)
        call = Call("GET", f"/v1/nodes?start={start}&count={page_size}")
        page = asking.decode((yield from asking.answered(call, timeout_s)).body, NodesAnswer)
        found += page.nodes
        # A server of an earlier release tells where to go on of searches alone.
        behind = start + len(page.nodes) if page.next is msgspec.UNSET else page.next
        if page.next is msgspec.UNSET and (not page.nodes or behind >= page.total):
            break
        start = behind
    return np.array(found) if found else np.zeros(0, np.int64)


def fetch_log(
    asking: ClientState, after: int | None, limit: int, with_content: bool, wait_s: int, timeout_s: float | None
) -> Steps[ChangesPage]:
    query = f"limit={limit}&content={'true' if with_content else 'false'}&wait={wait_s}"
    if after is not None:
        query += f"&after={after}"
    call = Call("GET", f"/v1/changes?{query}")
    reply = yield from asking.answered(call, (asking.timeout_s if timeout_s is None else timeout_s) + wait_s)
    return asking.decode(reply.body, ChangesPage)


def look(asking: ClientState, path: str, timeout_s: float | None) -> Steps[tuple[bool, str]]:
    """Whether a path of probes answers 200, and its words. Not sent again: the answer of this moment is wanted."""
    reply = yield Send(Call("GET", path), None, asking.timeout_s if timeout_s is None else timeout_s)
    return reply.status == 200, reply.body.decode(errors="replace").strip()


def wait_until_ready(asking: ClientState, timeout_s: float) -> Steps[None]:
    """Raises TimedOutError with what the server said last."""
    end_s, said, pause_s = asking.now_s() + timeout_s, "", 0.0
    while (left_s := end_s - asking.now_s()) > pause_s:
        try:
            reply = yield Send(Call("GET", "/readyz"), None, left_s - pause_s, pause_s)
        except NoAnswerError as error:
            said = str(error)
        else:
            if reply.status == 200:
                return
            said = reply.body.decode(errors="replace").strip()
        pause_s = _LOOK_S
    raise TimedOutError(f"{asking.endpoint.url} is not ready after {timeout_s:g} s: {said}")


def send_labels(
    asking: ClientState,
    nodes: ArrayLike,
    labels: ArrayLike | Sequence[Any],
    times: ArrayLike | Sequence[datetime | str] | None,
    timeout_s: float | None,
) -> Steps[LabelsAnswer]:
    """Send as many requests as it takes. `nodes`: or pairs of them, whose labels are bools. With times they are sent
    again when an answer is lost; without, they may count twice then, and are not."""
    if are_pairs(nodes):
        items, ids = "pairs", read_edges(nodes, "nodes")
        given: list[Any] = read_flags(labels, len(ids), "labels")
    else:
        items, ids = "nodes", read_ids(nodes, "nodes")
        given = read_labels(labels, len(ids), "labels")
    stated = None if times is None else _read_times(times, len(ids))
    accepted, refused, revision = 0, 0, ""
    problems: list[RefusedLabel] = []
    for first in range(0, len(ids), MOST_LABELS):
        part = slice(first, first + MOST_LABELS)
        request: dict[str, Any] = {items: ids[part].tolist(), "labels": given[part]}
        if stated is not None:
            request["times"] = stated[part]
        headers = {"Content-Type": "application/json"}
        call = Call("POST", "/v1/labels", headers, msgspec.json.encode(request), stated is not None, is_writing=True)
        answer = asking.decode((yield from asking.answered(call, timeout_s)).body, LabelsAnswer)
        accepted, refused, revision = accepted + answer.accepted, refused + answer.refused, answer.revision
        problems += [msgspec.structs.replace(one, index=one.index + first) for one in answer.problems]
    return LabelsAnswer(accepted, refused, tuple(problems[:MOST_TOLD]), revision)


def _read_times(given: ArrayLike | Sequence[datetime | str], count: int) -> list[str]:
    """RFC 3339. numpy's times have no zone, and are taken as UTC."""
    if isinstance(given, np.ndarray) and given.dtype.kind == "M":
        times: list[str] = np.datetime_as_string(given, unit="us", timezone="UTC").tolist()
    else:
        times = [_read_time(one, f"times[{i}]") for i, one in enumerate(np.asarray(given, object).tolist())]
    if len(times) != count:
        raise InputError("times", f"{len(times):,} times for {count:,} nodes", "give one for each")
    return times


def _read_time(given: Any, where: str) -> str:
    if isinstance(given, str):
        return given
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise InputError(where, f"{given!r} is no time with a zone", "give datetime.now(UTC), or texts of RFC 3339")
    return given.isoformat()

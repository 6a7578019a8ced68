"""`POST /v1/changes` and `GET /v1/changes`: batches that last go into the log of the service, and out of it.

A batch is answered when it is durable and this worker has applied it. One that is sent again, under the same client and
sequence, is applied once.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import uuid
from collections.abc import Mapping, Sequence
from functools import partial
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET

from gnnserve_api.http.changes import (
    CHANGES_TYPE,
    CLIENT_HEADER,
    MOST_CLIENT_CHARACTERS,
    MOST_PAGE_RECORDS,
    MOST_WAIT_S,
    SEQUENCE_HEADER,
    ChangeRecord,
    ChangesAnswer,
    ChangesPage,
)
from gnnserve_api.http.protocol import MAX_OFFSET
from gnnserve_worker.asking.question import ErrorCode, RequestError, cut, read_whole
from gnnserve_worker.changes.log import LogConflictError, LogError, LogFullError, Record, SequencePassedError
from gnnserve_worker.changes.worker_log import ChangesRefusedError, NotAppliedError, Outcome, Updates
from gnnserve_worker.graph.change_batch import ChangeBatch, ChangeRefusal, decode_batch
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.serving.engine.model import ModelState, ServedModel, monotonic_ms
from gnnserve_worker.serving.http.asgi_predict import ClientGoneError, Receive, Scope, Send, read_body, send_response
from gnnserve_worker.serving.http.changes.both_ways import count_both_ways, relations_of_both_ways
from gnnserve_worker.serving.http.changes.content import ContentOf, content_of, payload_of
from gnnserve_worker.serving.http.changes.reading import read_changes, refusal_error
from gnnserve_worker.serving.http.codecs.json import JSON_HEAD
from gnnserve_worker.serving.http.predict import Predict, no_updates
from gnnserve_worker.serving.http.replies import error_reply, refusal_reply
from gnnserve_worker.serving.metrics.change_metrics import BatchOutcome, ChangeCounters
from gnnserve_worker.serving.requests import Reply

CHANGES_PATH = "/v1/changes"
PAGE_RECORDS = 100
"""Records of a page, where the request does not say how many."""
_MOST_PAGE_BYTES = 1024 * 1024
"""Binary form of the records of one page; a single one may be larger."""
_QUICK_BYTES, _QUICK_BINARY_BYTES = 1 << 16, 1 << 20
"""Largest bodies, in JSON and in the binary form, that are read on the event loop. Others are read in a thread, so that
other clients are heard meanwhile, but while the JSON itself is decoded."""
_CLIENT = re.compile(rf"[!-~]{{1,{MOST_CLIENT_CHARACTERS}}}".encode())
_CLIENT_BYTES, _SEQUENCE_BYTES = CLIENT_HEADER.encode(), SEQUENCE_HEADER.encode()
_NAMES = frozenset({_CLIENT_BYTES, _SEQUENCE_BYTES})
_LOG_CODES: tuple[tuple[type[LogError], ErrorCode], ...] = (
    (NotAppliedError, ErrorCode.NOT_APPLIED),
    (LogFullError, ErrorCode.LOG_FULL),
    (SequencePassedError, ErrorCode.SEQUENCE_PASSED),
    (LogConflictError, ErrorCode.LOG_CONFLICT),
    (LogError, ErrorCode.LOG_UNAVAILABLE),
)
"""The first that an error is counts."""
_PARAMETERS = ("after", "limit", "content", "wait")
_encoder = msgspec.json.Encoder()


class PageQuery(msgspec.Struct, frozen=True):
    """The query of `GET /v1/changes`."""

    after: int | None = None
    """None: from the first record that the log still has."""
    limit: int = PAGE_RECORDS
    with_content: bool = False
    wait_s: int = 0


class ChangesEndpoint:
    """Belongs to the event loop."""

    def __init__(self, model: ServedModel, predict: Predict, counters: ChangeCounters, updates: Updates | None) -> None:
        """`updates`: None where the graph does not change."""
        self._model = model
        self._predict = predict
        self._counters = counters
        self._updates = updates
        # Batches without a client of their own are this worker's.
        self._own_client = f"worker-{uuid.uuid4().hex}"
        self._own_sequences = itertools.count(1)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a POST."""
        try:
            reply = await self._take(scope, receive)
        except RequestError as error:
            reply = self._predict.refuse_request(error)
        except ClientGoneError:
            self._predict.count_gone()
            return
        except Exception as error:  # noqa: BLE001  (whatever it is, this client gets an answer and the others theirs)
            reply = self._predict.fail(error)
        await send_response(send, reply)

    async def _take(self, scope: Scope, receive: Receive) -> Reply:
        updates = self._require_updates()
        for name, _ in parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True):
            remedy = f"client and sequence stand in the headers {CLIENT_HEADER} and {SEQUENCE_HEADER}"
            raise RequestError(ErrorCode.UNKNOWN_FIELD, cut(name), "there is no such parameter", remedy)
        client = read_client(scope["headers"])
        media_type = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
        body = await read_body(scope, receive, "split the batch")
        arrived_ms, lane = monotonic_ms(), self._model.lane  # of now: the body may have taken long
        if lane is None or self._model.state is not ModelState.READY:
            return self._predict.refuse(self._model.refuse())
        media_type = media_type.partition(b";")[0].strip().lower()
        read = partial(_read, body, media_type, lane.revision)
        is_quick = len(body) <= (_QUICK_BINARY_BYTES if media_type == CHANGES_TYPE.encode() else _QUICK_BYTES)
        payload, batch, both_ways = read() if is_quick else await asyncio.to_thread(read)
        outcome = await self._submit(updates, payload, batch, client)
        if outcome.refusal is not None:
            self._counters.count(BatchOutcome.REFUSED, batch.counts.items)
            raise refusal_error(outcome.refusal, outcome.offset)
        self._counters.count(BatchOutcome.REPEATED if outcome.is_repeated else BatchOutcome.APPLIED, batch.counts.items)
        self._counters.durable.observe((monotonic_ms() - arrived_ms) / 1000)
        answer = ChangesAnswer(
            outcome.offset, batch.counts.items, outcome.unchanged, outcome.is_repeated, both_ways or UNSET
        )
        return Reply(200, JSON_HEAD, _encoder.encode(answer) + b"\n")

    async def _submit(
        self, updates: Updates, payload: bytes, batch: ChangeBatch, client: tuple[str, int] | None
    ) -> Outcome:
        name, sequence = (self._own_client, next(self._own_sequences)) if client is None else client
        try:
            return await updates.submit(payload, batch, name, sequence)
        except ChangesRefusedError as error:
            self._counters.count(BatchOutcome.REFUSED, batch.counts.items)
            raise refusal_error(error.refusal) from None
        except LogError as error:
            self._counters.count(BatchOutcome.FAILED, batch.counts.items)
            raise log_error(error, is_named=client is not None) from None

    async def list_records(self, query: bytes) -> Reply:
        """Answer a GET: a page of the log."""
        try:
            return await self._list(query)
        except RequestError as error:
            return error_reply(error)

    async def _list(self, query: bytes) -> Reply:
        updates, asked, lane = self._require_updates(), read_page_query(query), self._model.lane
        if lane is None:
            return refusal_reply(self._model.refuse())
        content: ContentOf | None = None
        if asked.with_content:
            features = lane.revision.changes.features
            features.width()  # refused before the log is read
            content = partial(
                content_of, columns_of=features.columns_of, payload_of=partial(payload_of, lane.revision.graph.types)
            )
        after = updates.first - 1 if asked.after is None else asked.after
        if asked.wait_s and updates.reported <= after:
            await updates.wait_applied(after + 1, asked.wait_s)
        try:
            records = [] if after >= updates.last else await updates.read(after, _MOST_PAGE_BYTES)
        except LogError as error:
            raise log_error(error, is_named=True) from None
        del records[asked.limit :]
        refused = {
            record.offset: updates.refused[record.offset] for record in records if record.offset in updates.refused
        }
        last = max([updates.last, *(record.offset for record in records)])
        page = ChangesPage([], updates.first, last, updates.reported)
        if content is None:
            body = _encode_page(page, records, refused, None)
        else:  # features become lists of numbers, which takes long where there are many
            body = await asyncio.to_thread(_encode_page, page, records, refused, content)
        return Reply(200, JSON_HEAD, body)

    def _require_updates(self) -> Updates:
        if self._updates is None:
            raise no_updates(CHANGES_PATH)
        return self._updates


def _read(body: bytes, media_type: bytes, revision: ServedRevision) -> tuple[bytes, ChangeBatch, int]:
    """As `read_changes`, and `count_both_ways`."""
    payload, batch = read_changes(body, media_type, revision)
    return payload, batch, count_both_ways(batch, relations_of_both_ways(revision))


def read_client(headers: Sequence[tuple[bytes, bytes]]) -> tuple[str, int] | None:
    """Client and sequence of a batch; None: the request names neither. `headers`: names in lower case."""
    given = [(name, value.strip(b" \t")) for name, value in headers if name in _NAMES]
    if not given:
        return None
    found = dict(given)
    for name in (_CLIENT_BYTES, _SEQUENCE_BYTES):
        if name not in found:
            raise RequestError(
                ErrorCode.MISSING_FIELD, name.decode(), "the header is missing", "send both, or none of the two"
            )
    if len(given) > len(found):
        raise RequestError(
            ErrorCode.INVALID_VALUE, given[0][0].decode(), "a header stands twice in the request", "send each once"
        )
    if not _CLIENT.fullmatch(found[_CLIENT_BYTES]):
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            CLIENT_HEADER,
            f"{cut(found[_CLIENT_BYTES].decode('ascii', 'replace'))!r} is no name of a client",
            f"give 1 to {MOST_CLIENT_CHARACTERS} printable ASCII characters without blanks",
        )
    remedy = f"give the number of the batch, an integer from 0 to {MAX_OFFSET}, ascending"
    sequence = read_whole(found[_SEQUENCE_BYTES], _SEQUENCE_BYTES, remedy)
    if sequence > MAX_OFFSET:
        raise RequestError(ErrorCode.INVALID_VALUE, SEQUENCE_HEADER, f"{sequence} is out of range", remedy)
    return found[_CLIENT_BYTES].decode(), sequence


def read_page_query(query: bytes) -> PageQuery:
    given: dict[str, str] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in _PARAMETERS:
            known = ", ".join(_PARAMETERS)
            raise RequestError(ErrorCode.UNKNOWN_FIELD, cut(name), "there is no such parameter", f"known are {known}")
        given[name] = value
    content = given.get("content", "false")
    if content not in {"true", "false"}:
        raise RequestError(
            ErrorCode.INVALID_VALUE, "content", f"{cut(content)!r} is not possible here", "give true or false"
        )
    return PageQuery(
        None if "after" not in given else _read_number("after", given["after"], 0, MAX_OFFSET),
        _read_number("limit", given.get("limit", str(PAGE_RECORDS)), 1, MOST_PAGE_RECORDS),
        content == "true",
        _read_number("wait", given.get("wait", "0"), 0, MOST_WAIT_S),
    )


def log_error(error: LogError, *, is_named: bool) -> RequestError:
    """What is wrong with the log, which says itself what helps. `is_named`: the request has a client and a sequence, so
    that it can be sent again without being applied twice."""
    code = next(code for type_, code in _LOG_CODES if isinstance(error, type_))
    is_open = code is ErrorCode.LOG_UNAVAILABLE and not is_named
    remedy = f"with {CLIENT_HEADER} and {SEQUENCE_HEADER} a batch that is sent again counts once" if is_open else ""
    return RequestError(code, "log", str(error), remedy)


def _encode_page(
    page: ChangesPage,
    records: Sequence[Record],
    refused: Mapping[int, ChangeRefusal],
    content: ContentOf | None,
) -> bytes:
    """`content`: None leaves the changes themselves out."""
    told = [
        ChangeRecord(
            record.offset,
            record.client,
            record.sequence,
            record.time_ms,
            record.changes,
            UNSET if content is None else content(decode_batch(record.body)),
            refused[record.offset].message if record.offset in refused else UNSET,
        )
        for record in records
    ]
    return _encoder.encode(msgspec.structs.replace(page, records=told)) + b"\n"


def _read_number(name: str, value: str, least: int, most: int) -> int:
    # 19 digits are as many as the largest has, and Python refuses to read thousands of them.
    number = int(value) if re.fullmatch("[0-9]{1,19}", value) else -1
    if not least <= number <= most:
        raise RequestError(
            ErrorCode.INVALID_VALUE,
            name,
            f"{cut(value)!r} is not possible here",
            f"give a whole number from {least} to {most:,}",
        )
    return number

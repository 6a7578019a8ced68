"""One client's connection: uvicorn's HTTP, with a fast path for predictions and time limits.

A `POST /v1/predict` whose body is announced and of ordinary size goes from the parser to the engine and back as plain
calls, its answer in one write: no task, no futures, no dictionaries. A head that was parsed before, byte for byte, is
not parsed again: clients repeat themselves. Whatever else arrives is replayed to uvicorn, as if it had been parsed
there, and reaches the ASGI application: other paths and methods, chunked bodies, `Expect`, upgrades, huge bodies,
requests that were sent before the last one was answered (pipelining), and clients that do not read what they are sent.

This builds on uvicorn's internals, not on an interface: the parser's callbacks, what `cycle` is asked for, `pipeline`
and `flow`. pyproject.toml holds uvicorn to versions that were looked at, and a test notices when these parts change.
`limit_concurrency`, `limit_max_requests` and access logs are not looked at on the fast path: the worker sets none.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import re
from collections.abc import Iterator, Set
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import msgspec
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from gnnserve_worker.serving.http.app import (
    MOST_CONNECTIONS,
    RESERVED_CONNECTIONS,
    ServingApp,
)
from gnnserve_worker.serving.http.heads import MOST_HEAD_BYTES, MOST_HEADERS, check_head, large_head, not_http
from gnnserve_worker.serving.http.predict import READ_HEADERS, Asked, Head, Predict, Reply, read_head
from gnnserve_worker.serving.http.question import RequestError
from gnnserve_worker.serving.requests import Pending

_HEAD_END = b"\r\n\r\n"
_MOST_BODY_BYTES = 1024 * 1024
"""Longest body of the fast path; longer ones are read by uvicorn, which applies backpressure."""
_ONE_WRITE_BYTES = 32 * 1024
"""Up to here copying the body behind its head is cheaper than another write."""
_RARE = frozenset((b"transfer-encoding", b"expect", b"upgrade"))
_NOTED = READ_HEADERS | _RARE | {b"content-length", b"connection"}
_UPGRADE = re.compile(rb"^upgrade(?=[ \t]*:)", re.IGNORECASE | re.MULTILINE)
_KNOWN_HEADS = 1024
_KNOWN_HEAD_BYTES = 1024
_MOST_PARTS = 256
"""Parts of a body before they are joined: a body that arrives byte by byte would take forty times its size."""
MOST_PIPELINED = 16
"""Requests that wait behind the one that is being answered. No more are read from their connection."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits of a client. They are checked now and then, so a client may exceed them by one interval."""

    request_s: float = 60.0
    """From the connection or a request's first byte until the request is complete."""
    idle_s: float = 75.0
    """Time from an answer to the next request."""
    linger_s: float = 30.0
    """From an answer to the end of its request, where the answer came first: a client that is still sending must not
    lose it to a reset connection."""
    unread_s: float = 60.0
    """Time for which a client may read nothing of what it is sent."""
    look_every_s: float = 5.0


DEFAULT_PATIENCE = Patience()


@dataclass(frozen=True, slots=True)
class Room:
    """Limits of the number of connections."""

    connections: int = MOST_CONNECTIONS
    reserved: int = RESERVED_CONNECTIONS
    """Beyond those: for probes, scrapes and the operator, each for one answer. When these are taken too, a new
    connection takes the place of the one among them that has been silent for longest."""


DEFAULT_ROOM = Room()
_SURPLUS_PATIENCE_S = 5.0
_LONG_IDLE_LOOKS = 2
"""A connection that was idle at this many looks in a row may lose its place to a new one."""
_SEARCH_EVERY_S = 0.5
"""A search for idle connections looks at all of them."""
_FOUND_AT_ONCE = 64


class _KnownHead(msgspec.Struct, frozen=True):
    """A request's head on the fast path. Nothing else in it matters to the answer."""

    head: Head
    body_bytes: int
    keep_alive: bool


class _Places:
    """Which connections are within the limit, which are surplus, and which idle one is closed for a new one."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self._surplus: dict[Connection, None] = {}
        """Open connections beyond the limit, the oldest first."""
        self._unheard: dict[Connection, None] = {}
        """Those among them whose request's head is not complete."""
        self._dismissed: set[Connection] = set()
        """Aborted idle connections that uvicorn still counts."""
        self._idle: list[Connection] = []
        """Found at the last search, the longest idle one last."""
        self._next_search_s = -math.inf

    def has_place(self, connections: Set[Any], now_s: float) -> bool:
        """Whether one more connection, already among `connections`, is within the limit. The connection that has been
        idle for longest is closed for it where that is needed."""
        if len(connections) - len(self._surplus) - len(self._dismissed) <= self._room.connections:
            return True
        idle = self._longest_idle(connections, now_s)
        if idle is None:
            return False
        self._dismissed.add(idle)
        idle.transport.abort()  # nothing is due to it, and with TLS a goodbye may take half a minute
        return True

    def take_surplus(self, connection: Connection) -> Connection | None:
        """The connection that has to be refused; None: there is room."""
        refused: Connection | None = None
        if len(self._surplus) >= self._room.reserved:
            refused = next(iter(self._unheard), connection)
            self.forget(refused)
        if refused is not connection:
            self._surplus[connection] = self._unheard[connection] = None
        return refused

    def note_heard(self, connection: Connection) -> None:
        self._unheard.pop(connection, None)

    def forget(self, connection: Connection) -> None:
        self._surplus.pop(connection, None)
        self._unheard.pop(connection, None)
        self._dismissed.discard(connection)

    def _longest_idle(self, connections: Set[Any], now_s: float) -> Connection | None:
        while True:
            while self._idle:
                connection = self._idle.pop()
                if connection.idle_looks() >= _LONG_IDLE_LOOKS:
                    return connection
            if now_s < self._next_search_s:
                return None
            self._next_search_s = now_s + _SEARCH_EVERY_S
            idle = [(looks, c) for c in connections if (looks := c.idle_looks()) >= _LONG_IDLE_LOOKS]
            found = heapq.nlargest(_FOUND_AT_ONCE, idle, key=itemgetter(0))
            self._idle = [connection for _, connection in reversed(found)]


class _Shared:
    """Between all connections of a server."""

    def __init__(self, app: ServingApp, patience: Patience, room: Room) -> None:
        self.app = app
        self.patience = patience
        self.room = room
        self.known: dict[bytes, _KnownHead] = {}
        """By their bytes. Only of requests after which the parser is as it was before, and whose token is accepted.
        Bytes are compared only where all bits of their keyed hash agree, so that time tells nothing of a token."""
        app.access.when_changed(self.known.clear)
        self.places = _Places(room)
        self._headers: list[tuple[bytes, bytes]] | None = None
        self._lines = b""
        self._ok = b""

    def remember(self, data: bytes, known: _KnownHead) -> None:
        if len(data) <= _KNOWN_HEAD_BYTES and known.keep_alive:
            if len(self.known) >= _KNOWN_HEADS:
                self.known.clear()
            self.known[data] = known

    def start_reply(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Status line and uvicorn's own headers, which it makes anew every second."""
        if headers is not self._headers:
            self._headers = headers
            self._lines = b"".join(b"%b: %b\r\n" % header for header in headers)
            self._ok = STATUS_LINE[200] + self._lines
        return self._ok if status == 200 else STATUS_LINE[status] + self._lines


def _without_upgrade(data: bytes, end: int) -> bytes:
    """The head, up to `end`, without an offer to speak another protocol, which a server may ignore (RFC 9110, 7.8).

    The parser would stop there and never read the body. Some clients offer HTTP/2 by themselves, as Java's does.
    """
    if end < len(_HEAD_END) or _UPGRADE.search(data, 0, end) is None:
        return data
    return _UPGRADE.sub(b"ignored", data[:end]) + data[end:]


class _Exchange:
    """A request on the fast path, in the place of uvicorn's `RequestResponseCycle`; one per connection, used again."""

    __slots__ = ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete")

    def __init__(self) -> None:
        self.message_event = asyncio.Event()
        self.disconnected = False
        self.response_complete = True
        self.keep_alive = True
        self.more_body = False
        self.body = bytearray()


def connection_class(
    app: ServingApp, patience: Patience = DEFAULT_PATIENCE, room: Room = DEFAULT_ROOM
) -> type[Connection]:
    """uvicorn makes the connections, and knows nothing of the application behind its ASGI face."""

    app.most_connections = room.connections

    class Bound(Connection):
        _shared = _Shared(app, patience, room)
        _predict = app.predict

    return Bound


class Connection(HttpToolsProtocol):
    _shared: _Shared
    _predict: Predict

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._exchange = _Exchange()
        self._known: _KnownHead | None = None
        """The exchange's head."""
        self._parts: list[bytes] = []
        """The exchange's body, until it is complete."""
        self._pending: Pending | None = None
        """The exchange's request, once the engine has it."""
        self._between_messages = True
        """The parser has seen whole messages only."""
        self._messages = 0
        """Begun since the last time between messages."""
        self._head_is_open = False
        self._quiet_bytes = 0
        """Read since the request's beginning, or since something of use came of it: the head so far, or what only
        frames a body. Roughly: whole packets are counted."""
        self._has_come_on = False
        """The packet that is being read brought a request's beginning, the end of its head, or some of its body."""
        self._fed_bytes = 0
        """Bytes of the packet that is being read."""
        self._is_surplus = False
        self._is_deaf = False
        """What else comes is not looked at: the connection is closed after the answers that are due."""
        self._unsent_bytes = 0
        """Bytes that the client had not read at the last check."""
        self._unread_s = 0.0
        """Time for which the client has read nothing."""
        self._patience_s = math.inf
        """Time limit of the client's next action; infinite while the client waits for an answer."""
        self._waited_s = 0.0
        self._look: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        """uvicorn's request that is being answered. uvicorn itself knows only the one that was read last, which may
        wait behind this one."""

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._patience_s = self._shared.patience.request_s
        if not self._shared.places.has_place(self.connections, self.loop.time()):
            self._take_as_surplus()
        self._look = self.loop.call_later(self._shared.patience.look_every_s, self._close_when_overdue)

    def _take_as_surplus(self) -> None:
        # Its first request is read as one in parts, which no known head shortens; there is no second one.
        self._between_messages = False
        self._is_surplus = True
        self._patience_s = min(self._patience_s, _SURPLUS_PATIENCE_S)
        self.app = self._shared.app.answer_surplus
        refused = self._shared.places.take_surplus(self)
        if refused is not None:
            refused._refuse_unheard(self._shared.app.refuse_connection())

    def idle_looks(self) -> int:
        """Consecutive checks at which the connection was idle: no request, no answer due, nothing left to send."""
        is_idle = (
            self._between_messages
            and (self.cycle is None or self.cycle.response_complete)
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
        )
        return round(self._waited_s / self._shared.patience.look_every_s) if is_idle else 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.places.forget(self)
        if self._look is not None:
            self._look.cancel()
        if self._pending is not None:
            self._predict.cancel(self._pending)
            self._predict.count_gone()
            self._predict.in_flight -= 1
            self._pending = None
        self._silence()
        super().connection_lost(exc)

    def _silence(self) -> None:
        """Suppress the answer to uvicorn's request, which no client reads any more."""
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def send_400_response(self, msg: str) -> None:
        """The parser found that this is not HTTP, and says no more of it."""
        if not self.transport.is_closing():
            self._refuse_unheard(self._shared.app.predict.refuse_request(not_http()))

    def _close_when_overdue(self) -> None:
        patience = self._shared.patience
        self._waited_s += patience.look_every_s
        if self._takes_nothing():
            self._unread_s += patience.look_every_s
        else:
            self._unread_s = 0.0
        if self._unread_s > patience.unread_s:
            # A close would wait until all of it is taken.
            self.transport.abort()
            self._silence()
            return
        if self._waited_s > self._patience_s and not self.transport.is_closing():
            self.transport.close()
            self._silence()
        self._look = self.loop.call_later(patience.look_every_s, self._close_when_overdue)

    def _takes_nothing(self) -> bool:
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        # What is closing, though nothing is left to send, waits for the other side's goodbye.
        return self._unsent_bytes >= before if self._unsent_bytes else self.transport.is_closing()

    def resume_writing(self) -> None:
        # More may have been written since, so that there is not less to send than at the last look.
        self._unread_s = 0.0
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if not self._between_messages:
            self._feed(data)
            return
        end = data.find(_HEAD_END) + len(_HEAD_END)
        known = self._shared.known.get(data[:end])
        if known is not None and len(data) == end + known.body_bytes and self._is_free():
            self._begin(known)
            self._answer_request(known, data[end:])
            return
        self._known = None
        self._messages = 0
        self._feed(_without_upgrade(data, end))
        known = self._known
        # One request on the fast path and nothing else, so what is behind the head is the body.
        if self._messages == 1 and self._between_messages and known and len(data) == end + known.body_bytes:
            self._shared.remember(data[:end], known)

    def _feed(self, data: bytes) -> None:
        if self._is_deaf:
            return
        was_between_messages = self._between_messages
        self._fed_bytes = len(data)
        self._has_come_on = False
        super().data_received(data)
        if self._between_messages or self.transport.is_closing():
            return
        if not self._has_come_on:
            self._quiet_bytes += len(data)
        elif self._head_is_open:
            # Where it began inside the packet, what stands before it is another request's.
            began_first = was_between_messages and self._messages == 1
            self._quiet_bytes = len(data) if began_first else self._count_head()
        if self._quiet_bytes > MOST_HEAD_BYTES:
            if self._head_is_open:
                self._refuse_unheard(self._shared.app.predict.refuse_request(large_head()))
            else:
                # Trailers, or what may follow a chunk's length. The parser joins them as they come, so that an endless
                # one would take ever longer.
                self.transport.close()
                self._silence()

    def _refuse_unheard(self, reply: Reply) -> None:
        """Before there is a request that uvicorn could answer."""
        start = self._shared.start_reply(reply.status, self.server_state.default_headers)
        framing = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(reply.body)
        self.transport.write(b"".join((start, reply.head, framing, reply.body)))
        self.transport.close()
        self._silence()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        self._head_is_open = True
        self._quiet_bytes = 0
        self._has_come_on = True
        # No more than the fast path needs: uvicorn's dictionaries are made where it takes over.
        self.url = b""
        self.headers = []
        self._messages += 1
        self._between_messages = False
        if not self._is_surplus:  # its time runs from the connection on
            self._patience_s = self._shared.patience.request_s
            self._waited_s = 0.0

    def on_header(self, name: bytes, value: bytes) -> None:
        # What comes behind a body is no header: who is answered was decided by what stood before it.
        if self._head_is_open and len(self.headers) <= MOST_HEADERS:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._head_is_open = False
        self._has_come_on = True
        if self._is_surplus:
            self._shared.places.note_heard(self)
        if self._is_deaf:
            return
        # Not counted where what came so far, bodies included, is less.
        is_long = self._quiet_bytes + self._fed_bytes > MOST_HEAD_BYTES and self._count_head() > MOST_HEAD_BYTES
        self._quiet_bytes = 0
        if is_long or len(self.headers) > MOST_HEADERS:
            self._refuse(large_head())
        elif (wrong := check_head(self.parser.get_http_version(), self.headers)) is not None:
            self._refuse(wrong)
        if len(self.pipeline) >= MOST_PIPELINED:
            self._is_deaf = True
            self.cycle.keep_alive = False  # the last one that is answered
            return
        known = self._recognize()
        if known is not None and self._is_free():
            self._parts.clear()
            self._begin(known)
        else:
            self._hand_to_uvicorn()

    def _refuse(self, error: RequestError) -> None:
        """The request whose head is complete, with the connection."""
        self.app = self._shared.app.refusing(error)
        self.url = b"/"  # uvicorn would refuse a long one in its own way

    def _count_head(self) -> int:
        return len(self.url) + sum(len(name) + len(value) for name, value in self.headers)

    def _recognize(self) -> _KnownHead | None:
        """The known head of the request; None: it does not take the fast path."""
        if self.app is not self.config.loaded_app:
            return None  # a connection that gets one answer, and that is a refusal
        if self.parser.get_method() != b"POST":
            return None
        path, _, query = self.url.partition(b"?")
        noted = {name: value for name, value in self.headers if name in _NOTED}
        # The parser has refused a length that is no number.
        body_bytes = int(noted.get(b"content-length", b"0"))
        if body_bytes > _MOST_BODY_BYTES or not _RARE.isdisjoint(noted):
            return None
        try:
            head = read_head(path.decode("latin-1"), noted, query)
        except RequestError:
            return None
        if head is None or not self._shared.app.access.accepts(self.headers):
            return None
        # As uvicorn has it, HTTP/1.0 is never kept alive.
        old = self.parser.get_http_version() == "1.0"
        return _KnownHead(head, body_bytes, self.parser.should_keep_alive() and not old)

    def _is_free(self) -> bool:
        """An answer could be sent now: none is outstanding, and the client reads what it is sent."""
        return (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused

    def _is_on_fast_path(self) -> bool:
        """The request that is being parsed."""
        current: object = self.cycle
        return current is self._exchange

    def _begin(self, known: _KnownHead) -> None:
        exchange = self._exchange
        exchange.response_complete = False
        exchange.keep_alive = known.keep_alive
        self._known = known
        self.cycle = exchange  # type: ignore[assignment]

    def _hand_to_uvicorn(self) -> None:
        """Its own callbacks, once more, for the request whose head is complete."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        for name, value in headers:
            super().on_header(name, value)
        self.url = url
        super().on_headers_complete()
        if self.parser.should_upgrade():
            # Here the parser stops. What follows is this request's body, and must not pass for another request.
            self.cycle.keep_alive = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        if self._is_deaf:
            return
        self._has_come_on = True
        self._quiet_bytes = 0
        if self._is_on_fast_path():
            self._parts.append(body)
            if len(self._parts) > _MOST_PARTS:
                self._parts[:] = [b"".join(self._parts)]
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._is_deaf:
            return
        self._between_messages = True
        if self._is_on_fast_path() and self._known is not None:
            self._answer_request(self._known, b"".join(self._parts))
        else:
            # Where the answer came first, the client does not wait for one.
            self._patience_s = self._shared.patience.idle_s if self.cycle.response_complete else math.inf
            self._waited_s = 0.0
            super().on_message_complete()

    # The fast path

    def _answer_request(self, known: _KnownHead, body: bytes) -> None:
        self._patience_s = math.inf
        asked = self._predict.read(known.head, body)
        reply = self._predict.ask(asked, self._answer) if isinstance(asked, Asked) else asked
        if isinstance(reply, Reply):
            self._send(reply)
        else:
            self._pending = reply
            self._predict.in_flight += 1

    def _answer(self, reply: Reply) -> None:
        self._pending = None
        if reply.pieces is None:
            self._predict.in_flight -= 1
            self._send(reply)
        else:
            task = self.loop.create_task(self._send_pieces(reply, reply.pieces))
            # uvicorn waits for these when it stops.
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def _send(self, reply: Reply) -> None:
        if self.transport.is_closing():
            self._exchange.response_complete = True
            return
        head = self._start(reply, b"content-length: %d\r\n" % len(reply.body))
        if len(reply.body) <= _ONE_WRITE_BYTES:
            self.transport.write(head + reply.body)
        else:
            self.transport.write(head)
            self.transport.write(reply.body)
        self._complete()

    async def _send_pieces(self, reply: Reply, pieces: Iterator[bytes]) -> None:
        try:
            self.transport.write(self._start(reply, b"transfer-encoding: chunked\r\n"))
            for piece in pieces:
                await self.flow.drain()
                if self.transport.is_closing():
                    return
                self.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                await asyncio.sleep(0)  # another client's turn
            self.transport.write(b"0\r\n\r\n")
            self._complete()
        except Exception:
            self.transport.close()  # half an answer must not pass for a whole one
            raise
        finally:
            self._predict.in_flight -= 1

    def _start(self, reply: Reply, framing: bytes) -> bytes:
        exchange = self._exchange
        if self._shared.app.leaving:
            exchange.keep_alive = False
        start = self._shared.start_reply(reply.status, self.server_state.default_headers)
        if exchange.keep_alive:
            return b"%b%b%b\r\n" % (start, reply.head, framing)
        return b"%b%b%bconnection: close\r\n\r\n" % (start, reply.head, framing)

    def _complete(self) -> None:
        exchange = self._exchange
        exchange.response_complete = True
        if not exchange.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def on_response_complete(self) -> None:
        """uvicorn's callback, without a timer for each answer."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._between_messages:
            self._patience_s = self._shared.patience.idle_s
            self._waited_s = 0.0
        elif not self._head_is_open:  # where it is, the next request's time runs already
            self._patience_s = self._shared.patience.linger_s
            self._waited_s = 0.0

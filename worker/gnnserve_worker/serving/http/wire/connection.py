"""One client's connection: a fast path for predictions beside an ASGI application, and time limits.

A `POST /v1/predict` whose body is announced and of ordinary size goes from the parser to the engine and back as plain
calls, its answer in one write: no task, no futures, no dictionaries. A head that was parsed before, byte for byte, is
not parsed again. Whatever else arrives becomes an exchange with the ASGI application (`asgi.py`): other paths and
methods, chunked bodies, `Expect`, upgrades, huge bodies, requests that were sent before the last one was answered
(pipelining), and clients that do not read what they are sent.

A request may be answered before all of it has come: a body that is too large, a path that there is not. Most clients
read nothing before they have sent everything, and a connection that is closed with unread bytes is reset, which they
see in place of the answer. So a connection lingers: what still comes is read and discarded, within limits.

Where other services share the event loop, what arrives waits for the service's turn: `QueuedInput` stands between
transport and connection then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, assert_never

from gnnserve_worker.asking.question import RequestError
from gnnserve_worker.serving.engine.inlet import Inlet
from gnnserve_worker.serving.engine.model import monotonic_ms
from gnnserve_worker.serving.http.app import ServingApp
from gnnserve_worker.serving.http.asgi_predict import AsgiApp
from gnnserve_worker.serving.http.codecs.registry import error_form_of
from gnnserve_worker.serving.http.waiting_request import WaitingRequest
from gnnserve_worker.serving.http.wire.asgi import AsgiExchange, build_scope
from gnnserve_worker.serving.http.wire.http1 import (
    HEAD_END,
    HEAD_END_BYTES,
    LAST_CHUNK,
    Flow,
    KnownHead,
    KnownHeads,
    Reader,
    ResponseStart,
    Trouble,
    encode_chunk,
    large_head,
    not_http,
    without_upgrade,
    wrong_version,
)
from gnnserve_worker.serving.http.wire.limits import MOST_LINGERED_BYTES, MOST_PIPELINED, Patience, Places, Room
from gnnserve_worker.serving.requests import ErrorForm, PendingRequest, Reply

CLIENT_LOG = logging.getLogger(__name__)
"""Records that clients cause at will; the process limits them."""
_ONE_WRITE_BYTES = 32 * 1024
"""Up to here copying the body behind its head is cheaper than another write."""
_MOST_PARTS = 256
"""Parts of a body before they are joined: a body that arrives byte by byte would take forty times its size."""


class Exchange:
    """A request on the fast path and whether it is answered: one per connection, used again."""

    __slots__ = ("is_answered", "keep_alive")

    def __init__(self) -> None:
        self.is_answered = True
        self.keep_alive = True


class ConnectionContext:
    """State that all connections of a server share."""

    def __init__(self, app: ServingApp, patience: Patience, room: Room, start: ResponseStart) -> None:
        app.most_connections = room.connections
        self.app = app
        self.application: AsgiApp = app
        """Answers what the fast path does not."""
        self.patience = patience
        self.start = start
        self.known = KnownHeads(app.access)
        self.connections: set[HttpConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        """Tasks that run exchanges, and those that send answers in pieces."""
        self.inlet: Inlet | None = None
        """Where input waits for the service's turns, beside other services; None: it is read as it comes."""
        self.places: Places[HttpConnection] = Places(room)

    def connect(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        connection, inlet = HttpConnection(self, asyncio.get_running_loop()), self.inlet
        return connection if inlet is None else QueuedInput(connection, inlet)


class HttpConnection(asyncio.Protocol):
    transport: asyncio.Transport
    _flow: Flow

    def __init__(self, shared: ConnectionContext, loop: asyncio.AbstractEventLoop) -> None:
        self._shared = shared
        self._predict = shared.app.predict
        self._loop = loop
        self._reader = Reader(self)
        self._application = shared.application
        """Another one than the server's: it refuses, and the connection is closed after its answer."""
        self._exchange = Exchange()
        self._current: Exchange | AsgiExchange = self._exchange
        """The exchange of the request that was read last."""
        self._running: AsgiExchange | None = None
        """The application's, of the request that is being answered."""
        self.pipelined: deque[tuple[AsgiExchange, AsgiApp]] = deque()
        """Exchanges that wait until the one before is answered."""
        self._known: KnownHead | None = None
        """The head of the fast path's request."""
        self._parts: list[bytes] = []
        """Its body, until it is complete."""
        self._pending: PendingRequest | WaitingRequest | None = None
        """The request, once the engine has it, or while it waits for an offset."""
        self._is_surplus = False
        self._is_deaf = False
        """What else comes is not looked at: the connection is closed after the answers that are due."""
        self._lingers = False
        """The request that is being read was answered: what comes of it is discarded."""
        self._is_ending = False
        """Whether the connection lingers behind its last answer, and is closed then."""
        self._discardable_bytes = 0
        """Bytes that may still come while it lingers."""
        self._linger_end_s = 0.0
        """Latest end of that, by the loop's clock."""
        self._unsent_bytes = 0
        """Bytes that the client had not read at the last check."""
        self._unread_s = 0.0
        """Time for which the client has read nothing."""
        self._arrived_ms: float | None = None
        """When the data that are being read arrived; None: they are read as they arrive."""
        self.has_waiting_input = False
        """What the client sent waits for the service's turn (`QueuedInput`): it is neither idle nor late."""
        self._patience_s = math.inf
        """Time limit of the client's next action; infinite while the client waits for an answer."""
        self._waited_s = 0.0
        self._look: asyncio.TimerHandle | None = None

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        shared = self._shared
        self.transport = transport
        self._flow = Flow(transport)
        shared.connections.add(self)
        self._patience_s = shared.patience.request_s
        is_beyond = len(shared.connections) > shared.places.room.connections
        if is_beyond and not shared.places.has_place(shared.connections, self._loop.time()):
            self._take_as_surplus()
        self._look = self._loop.call_later(shared.patience.look_every_s, self._close_when_overdue)

    def _take_as_surplus(self) -> None:
        # Its first request is read as one in parts, which no known head shortens; there is no second one.
        self._reader.between_messages = False
        self._is_surplus = True
        self._patience_s = min(self._patience_s, self._shared.patience.surplus_s)
        self._application = self._shared.app.answer_surplus
        refused = self._shared.places.take_surplus(self)
        if refused is not None:
            # At once: to linger, it would need the place that it is refused.
            refused._refuse_unheard(self._shared.app.refuse_connection())
            refused.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._shared.connections.discard(self)
        self._shared.places.forget(self)
        if self._look is not None:
            self._look.cancel()
        if self._pending is not None:
            self._predict.cancel(self._pending)
            self._predict.count_gone()
            self._predict.in_flight -= 1
            self._pending = None
        self._silence()
        self.pipelined.clear()
        self._flow.resume_writing()  # nothing waits for a client that is gone
        self._reader.close()

    def pause_writing(self) -> None:
        self._flow.pause_writing()

    def resume_writing(self) -> None:
        # More may have been written since, so that there is not less to send than at the last look.
        self._unread_s = 0.0
        self._flow.resume_writing()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if not reader.between_messages:
            self._feed(data)
            return
        end = data.find(HEAD_END) + HEAD_END_BYTES
        known = self._shared.known.by_bytes.get(data[:end])
        if known is not None and len(data) == end + known.body_bytes and self._begin(known):
            self._answer_request(known, data[end:])
            return
        self._known = None
        reader.begun = 0
        self._feed(without_upgrade(data, end))
        known = self._known
        # One request on the fast path and nothing else, so what is behind the head is the body.
        if reader.begun == 1 and reader.between_messages and known and len(data) == end + known.body_bytes:
            self._shared.known.remember(data[:end], known)

    def read(self, data: bytes, arrived_ms: float) -> None:
        """Read what has waited since it arrived."""
        self.has_waiting_input = False
        self._arrived_ms = arrived_ms
        self.data_received(data)

    def _feed(self, data: bytes) -> None:
        if self._lingers:
            self._discard(len(data))
        if self._is_deaf:
            return
        trouble = self._reader.feed(data)
        if trouble is None or self.transport.is_closing():
            return
        if self._is_ending:
            self._is_deaf = True
            return
        match trouble:
            case Trouble.NOT_HTTP:
                CLIENT_LOG.warning("Invalid HTTP request received.")
                self._refuse_unreadable(self._predict.refuse_request(not_http()))
            case Trouble.WRONG_VERSION:
                self._refuse_unreadable(
                    self._predict.refuse_request(wrong_version(self._reader.version), self._error_form())
                )
            case Trouble.LONG_HEAD:
                self._refuse_unreadable(self._predict.refuse_request(large_head(), self._error_form()))
            case Trouble.LONG_FRAME:
                self.transport.close()
                self._silence()
            case _:
                assert_never(trouble)

    def _error_form(self) -> ErrorForm:
        """The form of errors at the address of the request that is being read, as far as that was read."""
        return error_form_of(self._reader.url.decode("latin-1"))

    def _refuse_unreadable(self, reply: Reply) -> None:
        """Refuse a request of which no more can be read."""
        self._refuse_unheard(reply)
        self._is_deaf = True
        self._end()

    def _refuse_unheard(self, reply: Reply) -> None:
        """Answer before there is a request that the application could answer."""
        framing = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(reply.body)
        self.transport.write(b"".join((self._shared.start.encode(reply.status), reply.head, framing, reply.body)))
        self._silence()

    # Behind an answer

    def _end(self) -> None:
        """Close the connection behind its last answer: at once, or where more may be on its way, when the client has
        ended."""
        reader = self._reader
        has_others = reader.between_messages or reader.is_head_open or bool(self.pipelined)
        if reader.between_messages and not (self.pipelined or self._is_deaf or reader.offers_upgrade):
            self.transport.close()
            return
        # Of the answered request the end is seen; others are not looked at.
        self._is_deaf = self._is_deaf or has_others
        self._is_ending = True
        reader.between_messages = False  # no known head is looked for
        self.pipelined.clear()
        if self.transport.can_write_eof():  # not with TLS, where the length of the answer has to do
            self.transport.write_eof()
        self._flow.resume_reading()
        self._shared.places.note_lingering(self)
        self._linger()

    def _linger(self) -> None:
        """Discard what the client still sends of a request that was answered."""
        self._lingers = True
        self._discardable_bytes = MOST_LINGERED_BYTES
        self._patience_s = self._shared.patience.linger_silent_s
        self._start_lingering()

    def _start_lingering(self) -> None:
        self._linger_end_s = self._loop.time() + self._shared.patience.linger_s
        self._waited_s = 0.0

    def _discard(self, size_bytes: int) -> None:
        self._waited_s = 0.0
        self._discardable_bytes -= size_bytes
        if self._discardable_bytes < 0:
            self.transport.abort()

    # The server's

    def shut_down(self) -> None:
        """Close, after the answer that is due if there is one, and where a client is still sending what was answered,
        when it has ended."""
        if not self._current.is_answered:
            self._current.keep_alive = False
        elif not self._lingers:
            self.transport.close()
        elif not self._is_ending and not self.transport.is_closing():
            self._end()

    def abort(self) -> None:
        self.transport.abort()

    def hold_reading(self) -> None:
        self._flow.hold_reading()

    def read_on(self) -> None:
        self._flow.release_reading()

    def idle_looks(self) -> int:
        """Consecutive checks at which the connection was idle: no request, no answer due, nothing left to send."""
        is_idle = (
            self._reader.between_messages
            and not self.has_waiting_input
            and self._current.is_answered
            and not self.transport.is_closing()
            and self.transport.get_write_buffer_size() == 0
        )
        return round(self._waited_s / self._shared.patience.look_every_s) if is_idle else 0

    def _close_when_overdue(self) -> None:
        patience = self._shared.patience
        self._waited_s += patience.look_every_s
        if self._takes_nothing():
            self._unread_s += patience.look_every_s
        else:
            self._unread_s = 0.0
        if self._lingers and self._unsent_bytes:
            self._start_lingering()  # a client that still takes its answer has `unread_s`
        lingers_too_long = self._lingers and self._loop.time() > self._linger_end_s
        if self._unread_s > patience.unread_s or lingers_too_long:
            # A close would wait until all of it is taken, or until the client has said goodbye.
            self.transport.abort()
            self._silence()
            return
        is_late = self._waited_s > self._patience_s and not self.has_waiting_input
        if is_late and not self.transport.is_closing():
            self.transport.close()
            self._silence()
        self._look = self._loop.call_later(patience.look_every_s, self._close_when_overdue)

    def _takes_nothing(self) -> bool:
        before, self._unsent_bytes = self._unsent_bytes, self.transport.get_write_buffer_size()
        # What is closing, though nothing is left to send, waits for the other side's goodbye.
        return self._unsent_bytes >= before if self._unsent_bytes else self.transport.is_closing()

    def _silence(self) -> None:
        if self._running is not None:
            self._running.forget_client()

    # The reader's events

    def begin_request(self) -> None:
        if not self._is_surplus:  # its time runs from the connection on
            self._patience_s = self._shared.patience.request_s
            self._waited_s = 0.0

    def take_head(self, wrong: RequestError | None) -> None:
        if self._is_surplus:
            self._shared.places.note_heard(self)
        if self._is_deaf:
            return
        if wrong is not None:
            self._application = self._shared.app.refusing(wrong, self._error_form())
            self._reader.url = b"/"  # what it is refused for may be that it cannot be parsed
        if len(self.pipelined) >= MOST_PIPELINED:
            self._is_deaf = True
            self._current.keep_alive = False  # the last one that is answered
            return
        is_ordinary = self._application is self._shared.application
        known = self._shared.known.recognize(self._reader) if is_ordinary else None
        if known is not None and self._begin(known):
            self._parts.clear()
        else:
            self._hand_to_application()

    def take_body(self, body: bytes) -> None:
        if self._is_deaf:
            return
        if isinstance(self._current, AsgiExchange):
            self._current.take_body(body)
            return
        self._parts.append(body)
        if len(self._parts) > _MOST_PARTS:
            self._parts[:] = [b"".join(self._parts)]

    def end_request(self) -> None:
        if self._is_deaf:
            return
        if self._is_ending:
            # Others may be behind it. Where the sending half is closed, the client sees the end.
            self._is_deaf = True
            self._reader.between_messages = False  # as in `_end`
            if not self.transport.can_write_eof():
                self.transport.close()
            return
        self._lingers = False
        if isinstance(self._current, AsgiExchange):
            # Where the answer came first, the client does not wait for one.
            self._patience_s = self._shared.patience.idle_s if self._current.is_answered else math.inf
            self._waited_s = 0.0
            self._current.end_body()
        elif self._known is not None:
            self._answer_request(self._known, b"".join(self._parts))

    # The application's exchanges

    def _hand_to_application(self) -> None:
        reader, before = self._reader, self._current
        # Behind an offer of another protocol the parser stops. What follows is this request's body, and must not pass
        # for another request.
        keep_alive = reader.keeps_alive and not reader.offers_upgrade
        scope = build_scope(reader, self.transport)
        exchange = AsgiExchange(
            scope, self.transport, self._flow, self._shared.start, keep_alive, self._note_answered
        )  # fmt: skip
        self._current = exchange
        if before.is_answered:
            self._run(exchange, self._application)
        else:
            self._flow.pause_reading()
            self.pipelined.append((exchange, self._application))

    def _run(self, exchange: AsgiExchange, application: AsgiApp) -> None:
        self._running = exchange
        self._keep_until_done(exchange.run(application))

    def _keep_until_done(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run it as a task that the server waits for when it stops."""
        inlet = self._shared.inlet
        task = self._loop.create_task(coroutine if inlet is None else inlet.metered(coroutine))
        self._shared.tasks.add(task)
        task.add_done_callback(self._shared.tasks.discard)

    # The fast path

    def _begin(self, known: KnownHead) -> bool:
        """Begin a request. False: an answer could not be sent now, since one is outstanding or the client does not read
        what it is sent."""
        if not self._current.is_answered or self._flow.write_paused:
            return False
        exchange = self._current = self._exchange
        exchange.is_answered = False
        exchange.keep_alive = known.keep_alive
        self._known = known
        return True

    def _answer_request(self, known: KnownHead, body: bytes) -> None:
        self._patience_s = math.inf
        reply = self._predict.start(known.head, body, self._answer, self._arrived_ms)
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
            self._keep_until_done(self._send_pieces(reply, reply.pieces))

    def _send(self, reply: Reply) -> None:
        if self._is_ending or self.transport.is_closing():
            self._exchange.is_answered = True
            return
        body_bytes = len(reply.body)
        head = self._encode_head(reply, b"content-length: %d\r\n" % body_bytes)
        if body_bytes <= _ONE_WRITE_BYTES:
            self.transport.write(head + reply.body)
        else:
            self.transport.write(head)
            self.transport.write(reply.body)
        self._exchange.is_answered = True
        self._note_answered(self._exchange.keep_alive)

    async def _send_pieces(self, reply: Reply, pieces: Iterator[bytes]) -> None:
        try:
            if self._is_ending:
                return
            self.transport.write(self._encode_head(reply, b"transfer-encoding: chunked\r\n"))
            for piece in pieces:
                await self._flow.drain()
                if self._is_ending or self.transport.is_closing():
                    return
                self.transport.write(encode_chunk(piece))
                await asyncio.sleep(0)  # another client's turn
            self.transport.write(LAST_CHUNK)
            self._exchange.is_answered = True
            self._note_answered(self._exchange.keep_alive)
        except Exception:
            self.transport.close()  # half an answer must not pass for a whole one
            raise
        finally:
            self._predict.in_flight -= 1

    def _encode_head(self, reply: Reply, framing: bytes) -> bytes:
        exchange, start = self._exchange, self._shared.start
        if self._shared.app.leaving:
            exchange.keep_alive = False
        first = start.ok if reply.status == 200 else start.encode(reply.status)
        if exchange.keep_alive:
            return b"%b%b%b\r\n" % (first, reply.head, framing)
        return b"%b%b%bconnection: close\r\n\r\n" % (first, reply.head, framing)

    def _note_answered(self, keep_alive: bool) -> None:
        """Go on with the request behind the one that was answered, or wait for one; or end the connection."""
        if self._is_ending or self.transport.is_closing():
            return
        if not keep_alive:
            self._end()
            return
        if self._flow.read_paused:
            self._flow.resume_reading()
        if self.pipelined:
            exchange, application = self.pipelined.popleft()
            self._run(exchange, application)
        elif self._reader.between_messages:
            self._patience_s = self._shared.patience.idle_s
            self._waited_s = 0.0
        elif not self._reader.is_head_open:  # where it is, the next request's time runs already
            self._linger()


class QueuedInput(asyncio.Protocol):
    def __init__(self, connection: HttpConnection, inlet: Inlet, clock_ms: Callable[[], float] = monotonic_ms) -> None:
        self._connection = connection
        self._inlet = inlet
        self._clock_ms = clock_ms
        self._unread = b""
        """Arrived, and not read yet."""
        self._arrived_ms = 0.0
        """When its beginning arrived."""
        self.pause_writing = connection.pause_writing  # type: ignore[method-assign]
        self.resume_writing = connection.resume_writing  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread = b""
        self._connection.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._inlet.count(len(data))
        if self._unread:
            self._unread += data
            self._connection.hold_reading()
            return
        self._unread, self._arrived_ms = data, self._clock_ms()
        self._connection.has_waiting_input = True
        self._inlet.put(self)

    def eof_received(self) -> None:
        # The transport closes next, and what the client sent before its end is answered where that takes no batch.
        self.take_in()

    def take_in(self) -> None:
        unread, self._unread = self._unread, b""
        connection = self._connection
        if not unread or connection.transport.is_closing():
            return
        connection.read_on()
        try:
            connection.read(unread, self._arrived_ms)
        except Exception as error:  # noqa: BLE001  (as the event loop does where data are read as they come)
            asyncio.get_running_loop().call_exception_handler({
                "message": "input of a connection could not be read", "exception": error,
                "transport": connection.transport, "protocol": connection,
            })  # fmt: skip
            connection.abort()

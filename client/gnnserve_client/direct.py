"""Connections of threads, by the standard library's HTTP, which takes less than half of httpx's processor time.

Connections are kept and reused. Proxies of the environment are not used and redirections not followed: the server that
a user names is the one that is asked.
"""

from __future__ import annotations

import http.client
import select
import ssl
import threading
import time

from gnnserve_client.address import Endpoint
from gnnserve_client.exchange import LONGEST_CONNECTING_S, Connection, Send, ServerReply, no_answer, too_slow
from gnnserve_client.timing import ClientTimes

_MOST_IDLE = 100
_PIECE_BYTES = 1 << 16


class DirectConnection(Connection):
    """A connection for each exchange that is under way; those that are idle are used again, the latest first."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.idle: list[http.client.HTTPConnection] = []
        """Open connections without an exchange, the latest last."""
        self._lock = threading.Lock()

    def exchange(self, send: Send) -> ServerReply:
        started_s = time.perf_counter()
        end_s = started_s + send.timeout_s
        connection = self._take_idle()
        if connection is None:
            connection = self._connect(send)
        is_reusable = False
        try:
            _allow(connection, end_s)
            connected_s = time.perf_counter()
            connection.request(send.call.method, send.call.path, send.call.body, send.headers)
            sent_s = time.perf_counter()
            _await_answer(connection, end_s)
            answered_s = time.perf_counter()
            response = connection.getresponse()
            pieces = []
            while piece := response.read(_PIECE_BYTES):
                pieces.append(piece)
                _allow(connection, end_s)
            if response.length:
                raise http.client.IncompleteRead(b"", response.length)
            is_reusable = not response.will_close
        except TimeoutError as error:
            raise too_slow(self._endpoint.url, send) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise no_answer(self._endpoint.url, error, was_sent=True) from error
        finally:
            self._give_back(connection, is_reusable)
        ended_s = time.perf_counter()
        headers = {name.lower(): value for name, value in response.getheaders()}
        connect_ms, total_ms = (connected_s - started_s) * 1000, (ended_s - connected_s) * 1000
        times = ClientTimes(total_ms, (sent_s - connected_s) * 1000, (ended_s - answered_s) * 1000, connect_ms)
        return ServerReply(response.status, headers, b"".join(pieces), connect_ms + total_ms, times)

    def close(self) -> None:
        with self._lock:
            idle, self.idle = self.idle, []
        for connection in idle:
            connection.close()

    def _take_idle(self) -> http.client.HTTPConnection | None:
        """An idle connection that the server has not closed, if there is one."""
        while True:
            with self._lock:
                if not self.idle:
                    return None
                connection = self.idle.pop()
            if not has_ended(connection):
                return connection
            connection.close()

    def _connect(self, send: Send) -> http.client.HTTPConnection:
        at = self._endpoint
        timeout_s = min(send.timeout_s, LONGEST_CONNECTING_S)
        connection = (
            http.client.HTTPConnection(at.host, at.port, timeout=timeout_s)
            if at.tls is None
            else http.client.HTTPSConnection(at.host, at.port, timeout=timeout_s, context=at.tls)
        )
        try:
            connection.connect()
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            raise no_answer(at.url, error, was_sent=False) from error
        return connection

    def _give_back(self, connection: http.client.HTTPConnection, is_reusable: bool) -> None:
        with self._lock:
            is_reusable = is_reusable and len(self.idle) < _MOST_IDLE
            if is_reusable:
                self.idle.append(connection)
        if not is_reusable:
            connection.close()


def _allow(connection: http.client.HTTPConnection, end_s: float) -> None:
    """Let the connection wait until `end_s`, by `perf_counter`. Raises TimeoutError when that is past."""
    left_s = end_s - time.perf_counter()
    if left_s <= 0:
        raise TimeoutError
    if connection.sock is not None:  # None: the answer said that it is closed, and may still be read
        connection.sock.settimeout(left_s)


def _await_answer(connection: http.client.HTTPConnection, end_s: float) -> None:
    """Wait until there is something to read, so that reading it can be told from waiting for it. TLS has more to read
    than answers: with it nothing is waited for, and reading counts as waiting."""
    if isinstance(connection.sock, ssl.SSLSocket) or not hasattr(select, "poll"):
        return
    looking = select.poll()
    looking.register(connection.sock, select.POLLIN)
    if not looking.poll(max(0.0, (end_s - time.perf_counter()) * 1000)):
        raise TimeoutError


def has_ended(connection: http.client.HTTPConnection) -> bool:
    """Whether the server has closed an idle connection, or sent what it was not asked for."""
    if connection.sock is None:
        return True
    if not hasattr(select, "poll"):
        return bool(select.select([connection.sock], [], [], 0)[0])
    looking = select.poll()
    looking.register(connection.sock, select.POLLIN)
    return bool(looking.poll(0))

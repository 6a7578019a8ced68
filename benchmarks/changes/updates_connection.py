"""A connection that sends whole requests, one at a time: what a client of the change log needs, and little more."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_TIMEOUT_S = 60.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes


class Connection:
    """Kept alive. OSError where the server closes it; answers must state their length."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> Reply:
        self._socket.sendall(request)
        read = b""
        while (head := read.find(b"\r\n\r\n")) < 0:
            read += self._read()
        found = _LENGTH.search(read, 0, head + 2)
        if found is None:
            raise ConnectionError(f"an answer without a length: {read[:80]!r}")
        end = head + 4 + int(found[1])
        while len(read) < end:
            read += self._read()
        return Reply(int(read[9:12]), read[head + 4 : end])

    def get(self, path: str) -> Reply:
        return self.send(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> bytes:
        read = self._socket.recv(_READ_BYTES)
        if not read:
            raise ConnectionError("the server closed the connection")
        return read

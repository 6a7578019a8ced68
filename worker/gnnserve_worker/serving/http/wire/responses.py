"""What every response begins with: its status line and the date, which changes once per second."""

from __future__ import annotations

import http

LAST_CHUNK = b"0\r\n\r\n"


def _encode_status_line(status: int) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase.encode()
    except ValueError:
        phrase = b""
    return b"HTTP/1.1 %d %b\r\n" % (status, phrase)


_STATUS_LINES = {status: _encode_status_line(status) for status in range(100, 600)}


class ResponseStart:
    """The beginning of responses, shared by all connections of a server."""

    __slots__ = ("_date_line", "ok")

    def __init__(self, date: bytes) -> None:
        """`date`: as RFC 9110 has it (section 5.6.7)."""
        self.set_date(date)

    def set_date(self, date: bytes) -> None:
        self._date_line = b"date: %b\r\n" % date
        self.ok = _STATUS_LINES[200] + self._date_line
        """`encode(200)`, ready made."""

    def encode(self, status: int) -> bytes:
        return _STATUS_LINES[status] + self._date_line


def encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)

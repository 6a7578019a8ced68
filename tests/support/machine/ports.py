"""A port that nothing listens on, and that no other process of the tests can be given meanwhile."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


def reserve(address: str = "127.0.0.1") -> socket.socket:
    """A socket that is bound and does not listen: connections to its port are refused. A server that allows addresses
    to be used again, as most do, may still listen on the port."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((address, 0))
    return reserved


@contextmanager
def reserved_port() -> Iterator[int]:
    with reserve() as reserved:
        yield reserved.getsockname()[1]

"""A connection to PostgreSQL that is lost at the worst moment: around what commits."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

_BYTES = 1 << 16


class Severed(StrEnum):
    NEVER = "never"
    BEFORE_COMMIT = "before the server has the commit"
    AFTER_COMMIT = "before the client has the answer to the commit"


class SeveringProxy:
    """Stands before the server's socket. `when` holds for the next commit, and for none after it."""

    def __init__(self, folder: Path, server: Path, commit: bytes) -> None:
        """`commit` is part of what is sent to commit."""
        self._commit = commit
        self.when = Severed.NEVER
        self.severed = 0
        """How often a connection was lost."""
        self._server = server
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / server.name))
        self._listener.listen()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(str(self._server))
                lost = threading.Event()
                threading.Thread(target=self._send, args=(client, server, lost), daemon=True).start()
                threading.Thread(target=self._answer, args=(client, server, lost), daemon=True).start()

    def _send(self, client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while sent := client.recv(_BYTES):
                when = self.when
                if self._commit in sent and when is not Severed.NEVER:
                    self.when = Severed.NEVER
                    self.severed += 1
                    lost.set()
                    if when is Severed.BEFORE_COMMIT:
                        break
                server.sendall(sent)
        _end(client, server)

    @staticmethod
    def _answer(client: socket.socket, server: socket.socket, lost: threading.Event) -> None:
        with suppress(OSError):
            while (answer := server.recv(_BYTES)) and not lost.is_set():
                client.sendall(answer)
        _end(client, server)


def _end(*sockets: socket.socket) -> None:
    for one in sockets:
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)

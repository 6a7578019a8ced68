"""What stands between a worker and its PostgreSQL, and may lose connections, or let nothing through for a while."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

_BYTES = 1 << 16


class Partition:
    """Listens in a folder of its own, as the server does in its one."""

    def __init__(self, folder: Path, server: Path) -> None:
        self._server = server
        self._open: set[socket.socket] = set()
        self._changed = threading.Lock()
        """Held while either of the two is changed."""
        self._is_cut = False
        self._passes = threading.Event()
        """While it is clear, what is sent waits here."""
        self._passes.set()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / server.name))
        self._listener.listen(64)
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Lose every connection, and each new one at once."""
        with self._changed:
            self._is_cut = True
            for each in self._open:
                _end(each)

    def silence(self) -> None:
        """Let nothing through; what is sent meanwhile arrives afterwards."""
        self._passes.clear()

    def heal(self) -> None:
        with self._changed:
            self._is_cut = False
        self._passes.set()

    def close(self) -> None:
        _end(self._listener)
        self._listener.close()
        self._thread.join()
        self.cut()
        self._passes.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            with self._changed:
                is_cut = self._is_cut
                self._open |= {client, server}
            try:
                if is_cut:
                    raise ConnectionRefusedError
                server.connect(str(self._server))
            except OSError:
                self._close(client, server)
                continue
            threading.Thread(target=self._join, args=(client, server), daemon=True).start()

    def _join(self, client: socket.socket, server: socket.socket) -> None:
        """Pass on what either side sends, until one of them ends."""
        back = threading.Thread(target=self._pass_on, args=(server, client), daemon=True)
        back.start()
        self._pass_on(client, server)
        back.join()
        self._close(client, server)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                self._passes.wait()
                target.sendall(data)
        _end(source)
        _end(target)

    def _close(self, *sockets: socket.socket) -> None:
        with self._changed:
            self._open.difference_update(sockets)
        for each in sockets:
            each.close()


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)

"""The process that starts those of programs, by forking: `python -m gnnserve_worker.programs.fork_server CONNECTION`.

It has ONNX Runtime imported, which takes most of a start, and no program; each fork reads one, to run it (`process.py`)
or to tell what it is (`inspection.py`). There is one for each worker, which ends when the worker does. `forking.py` is
the worker's side.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from gnnserve_api import decoding
from gnnserve_worker.programs import allowed, inspection, process
from gnnserve_worker.programs.messages import STATUS, ProcessPurpose, Start
from gnnserve_worker.programs.priority import yield_to_others

_MOST_BYTES = 1 << 16
_MOST_DESCRIPTORS = 253
"""Most that Linux passes in one message."""


@dataclass(frozen=True, slots=True)
class _Role:
    imports: Callable[[], object]
    """Imports what takes longest; before the first fork for it."""
    main: Callable[[Start, list[int]], None]
    """The fork's."""


_ROLES: Mapping[ProcessPurpose, _Role] = {
    ProcessPurpose.RUN: _Role(process.import_runtime, process.main),
    ProcessPurpose.INSPECT: _Role(allowed.import_onnx, inspection.main),
}


class ForkServerLoop:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._awaited = select.poll()
        self._awaited.register(connection, select.POLLIN)
        self._forks: dict[int, tuple[int, int]] = {}
        """Number of each process, and where its status is wanted, by its descriptor."""
        self._imported = set[ProcessPurpose]()

    def import_for(self, purpose: ProcessPurpose) -> None:
        if purpose in self._imported:
            return
        self._imported.add(purpose)
        importing = threading.Thread(target=_import, args=(_ROLES[purpose].imports,))
        importing.start()
        importing.join()

    def serve(self) -> None:
        """Fork as asked, and tell how the forks end, until the worker is gone."""
        while True:
            for ready, _ in self._awaited.poll():
                if ready != self._connection.fileno():
                    self._tell_end(ready)
                elif not self._fork():
                    return

    def _fork(self) -> bool:
        """False: the worker is gone."""
        body, descriptors, _, _ = socket.recv_fds(self._connection, _MOST_BYTES, _MOST_DESCRIPTORS)
        if not body:
            return False
        start = decoding.decode(body, Start)
        while len(descriptors) < start.descriptors:
            more, further, _, _ = socket.recv_fds(self._connection, 1, _MOST_DESCRIPTORS)
            if not more:
                return False
            descriptors += further
        status, *own = descriptors
        self.import_for(start.purpose)
        pid = os.fork()
        if pid == 0:
            self._become(start, status, own)
        for descriptor in own:
            os.close(descriptor)
        awaited = os.pidfd_open(pid)
        self._forks[awaited] = pid, status
        self._awaited.register(awaited, select.POLLIN)
        # The worker may be gone, which the next message tells.
        with suppress(OSError):
            socket.send_fds(self._connection, [STATUS.pack(pid)], [awaited])
        return True

    def _become(self, start: Start, status: int, own: list[int]) -> None:
        """Be the process of a program, in a fork."""
        code = 1
        try:
            self._connection.close()
            os.close(status)
            for awaited, (_, of_another) in self._forks.items():
                os.close(awaited)
                os.close(of_another)
            _ROLES[start.purpose].main(start, own)
            code = 0
        except BaseException:  # noqa: BLE001 - the worker tells that it ended, and the log why
            traceback.print_exc()
        finally:
            os._exit(code)

    def _tell_end(self, awaited: int) -> None:
        pid, status = self._forks.pop(awaited)
        self._awaited.unregister(awaited)
        os.close(awaited)
        _, ended = os.waitpid(pid, 0)
        with suppress(OSError):
            os.write(status, STATUS.pack(os.waitstatus_to_exitcode(ended)))
        os.close(status)


def _import(imports: Callable[[], object]) -> None:
    yield_to_others(threading.get_native_id())
    # Where it is missing, or fails, the process of a program tells.
    with suppress(Exception):
        imports()


def main(connection: int) -> None:
    # Ctrl-C in a terminal reaches all of its processes; the worker ends this one, once requests are answered.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    server = ForkServerLoop(socket.socket(fileno=connection))
    server.import_for(ProcessPurpose.RUN)
    server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]))

"""Lists the modules that a reader opens to follow one reconcile, and one request: those whose code runs in it.

    python -m tools.followed [reconcile] [request]

Counted are modules of this project with a function that is called, and those of compiled kernels that such a function
names; not what only declares types. A reconcile is the first one of a new service, against an API server in memory; its
count leaves out the contract (`gnnserve_api`), whose types a reader knows. A request is the first one of a connection:
JSON, one node.
"""

from __future__ import annotations

import asyncio
import http.client
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_OURS = ("gnnserve_api", "gnnserve_operator", "gnnserve_routing", "gnnserve_worker")
_CONTRACT = "gnnserve_api."


@dataclass(slots=True)
class Trace:
    """The modules whose functions this thread calls, while it is on."""

    called: dict[CodeType, Mapping[str, Any]] = field(default_factory=dict)
    """Code that was called, with the globals of its module."""

    def modules(self) -> set[str]:
        found: set[str] = set()
        left, seen = list(self.called.items()), set(self.called)
        while left:
            code, names = left.pop()
            found.add(str(names["__name__"]))
            for kernel in _kernels_named(code, names):
                if kernel.__code__ not in seen:
                    seen.add(kernel.__code__)
                    left.append((kernel.__code__, kernel.__globals__))
        return found

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        code, name = frame.f_code, str(frame.f_globals.get("__name__", ""))
        # Of a dataclass, methods that it generates are in no file.
        is_written = code.co_name != "<module>" and not code.co_filename.startswith("<")
        if event == "call" and is_written and name.partition(".")[0] in _OURS:
            self.called[code] = frame.f_globals


def _kernels_named(code: CodeType, names: Mapping[str, Any]) -> Iterator[FunctionType]:
    """The functions behind compiled kernels that `code` names, also as attributes of modules of ours."""
    modules = (names[name] for name in code.co_names if isinstance(names.get(name), ModuleType))
    scopes = (names, *(vars(module) for module in modules if module.__name__.partition(".")[0] in _OURS))
    for name in code.co_names:
        for scope in scopes:
            kernel = getattr(scope.get(name), "py_func", None)
            if isinstance(kernel, FunctionType):
                yield kernel


def follow_reconcile() -> list[str]:
    from tests.control.campaign.play import SETTINGS  # noqa: PLC0415 - a request needs none of it
    from tests.control.campaign.trouble import Trouble  # noqa: PLC0415
    from tests.control.campaign.world import KEY, World  # noqa: PLC0415

    trace = Trace()

    async def run() -> None:
        world = World(SETTINGS, Trouble())
        world.start_operator()
        world.create()
        (operator,) = world.operators
        operator.view.fetch(world.clock.now())
        operator.view.receive(world.clock.now() + 1)
        with trace.on():
            await operator.reconciler.reconcile(KEY)
        await operator.end()

    asyncio.run(run())
    return sorted(name for name in trace.modules() if not name.startswith(_CONTRACT))


def follow_request() -> list[str]:
    """The modules of one request. Call it only in the main thread, where a worker runs."""
    from tests.support.serving import service  # noqa: PLC0415 - a reconcile needs none of it

    from gnnserve_api.repository import NetworkManifest  # noqa: PLC0415
    from gnnserve_api.spec.model import Architecture  # noqa: PLC0415
    from gnnserve_api.variants import Storage  # noqa: PLC0415
    from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up  # noqa: PLC0415
    from gnnserve_worker.inference.opening import served_revision  # noqa: PLC0415
    from gnnserve_worker.opening.revision import load_revision  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415
    from gnnserve_worker.serving.listening_socket import bind  # noqa: PLC0415
    from gnnserve_worker.serving.server import Serving, serve_revision  # noqa: PLC0415

    trace = Trace()
    sock = bind("127.0.0.1", 0)

    def ask() -> None:
        connection = http.client.HTTPConnection(*sock.getsockname())
        connection.request("POST", "/v1/predict", b'{"nodes": [1]}', {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the worker answers {response.status}: {response.read().decode()}")
        response.read()
        found.extend(sorted(trace.modules()))
        os.kill(os.getpid(), signal.SIGINT)

    def begin(_: Serving) -> None:
        trace.called.clear()  # what the start called
        sys.setprofile(trace._note)
        threading.Thread(target=ask, daemon=True).start()

    found: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder), "default", "followed")
        network = NetworkManifest(architecture=Architecture.GRAPHSAGE, hidden=16, fanouts=(3, 2), classes=3)
        variants = [MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32")]
        published = publish_made_up(repository, made_up_graph(100, 5, 24, 3), network, variants)
        threading.setprofile(trace._note)  # of the engine's thread, which is yet to begin
        try:
            serve_revision(served_revision(load_revision(repository, published.revision)), service(), sock, begin)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return found


def main(names: list[str]) -> int:
    scenes = {"reconcile": follow_reconcile, "request": follow_request}
    for name in names or scenes:
        modules = scenes[name]()
        print(f"one {name}: {len(modules)} modules", *modules, sep="\n    ")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

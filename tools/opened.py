"""Lists the modules that a reader opens to follow one reconcile, one request and one generation.

    python -m tools.opened [--json] [reconcile] [request] [generation]

Opened is a module of this project that holds a function which is executed, a compiled kernel that such a function
names, or the type of an object which such a function holds: as an argument, in a variable, or as what it returns. What
importing a module executes does not count, nor the contract (`gnnserve_api`), whose types a reader knows. A reconcile
is the first one of a new service, against an API server in memory. A request is the first one of a connection: JSON,
one node. A generation is of the graph of digits, with one pruned variant.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

_OURS = ("gnnserve_api", "gnnserve_operator", "gnnserve_routing", "gnnserve_worker")
_CONTRACT = "gnnserve_api."


@dataclass(frozen=True, slots=True)
class Opened:
    executed: list[str]
    """Modules with a function that is executed, or with a kernel that one names."""
    held: list[str]
    """Other modules, of which types alone are met."""

    @property
    def modules(self) -> int:
        return len(self.executed) + len(self.held)


@dataclass(slots=True)
class Trace:
    """The modules that threads open, while it is on."""

    called: dict[CodeType, Mapping[str, Any]] = field(default_factory=dict)
    """Code that was called, with the globals of its module."""
    held: set[type] = field(default_factory=set)
    """Types of what functions of ours held."""
    _importing: dict[int, int] = field(default_factory=dict)
    """Modules that each thread is importing, one from within the other, by its id."""

    def opened(self) -> Opened:
        executed = {name for name in self._executed() if not name.startswith(_CONTRACT)}
        held = {kind.__module__ for kind in self.held if _is_ours(kind.__module__)} - executed
        return Opened(sorted(executed), sorted(name for name in held if not name.startswith(_CONTRACT)))

    def _executed(self) -> set[str]:
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
        sys.setprofile(self.note)
        try:
            yield
        finally:
            sys.setprofile(None)

    def begin(self) -> None:
        """Forget what the start opened, and go on in this thread."""
        self.called.clear()
        self.held.clear()
        sys.setprofile(self.note)

    def note(self, frame: FrameType, event: str, returned: object) -> None:
        """A profile function."""
        if event not in ("call", "return"):
            return
        code, thread = frame.f_code, threading.get_ident()
        importing = self._importing.get(thread, 0)
        if code.co_name == "<module>":
            self._importing[thread] = max(0, importing + (1 if event == "call" else -1))
            return
        # Of a dataclass, methods that it generates are in no file.
        is_written = not code.co_filename.startswith("<")
        if importing or not is_written or not _is_ours(str(frame.f_globals.get("__name__", ""))):
            return
        if event == "call":
            self.called[code] = frame.f_globals
        elif code in self.called:  # what returns into the scene from the start is none of it
            self.held.update(map(type, frame.f_locals.values()))
            self.held.add(type(returned))


def _is_ours(module: object) -> bool:
    return str(module).partition(".")[0] in _OURS


def _kernels_named(code: CodeType, names: Mapping[str, Any]) -> Iterator[FunctionType]:
    """The functions behind compiled kernels that `code` names, also as attributes of modules of ours."""
    modules = (names[name] for name in code.co_names if isinstance(names.get(name), ModuleType))
    scopes = (names, *(vars(module) for module in modules if _is_ours(module.__name__)))
    for name in code.co_names:
        for scope in scopes:
            kernel = getattr(scope.get(name), "py_func", None)
            if isinstance(kernel, FunctionType):
                yield kernel


def follow_reconcile() -> Opened:
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
    return trace.opened()


def follow_request() -> Opened:
    """Call it only in the main thread, where a worker runs."""
    from tests.support.serving.serving import service  # noqa: PLC0415 - a reconcile needs none of it

    from gnnserve_api.files.repository import NetworkManifest  # noqa: PLC0415
    from gnnserve_api.spec.model import Architecture  # noqa: PLC0415
    from gnnserve_api.variants import Storage  # noqa: PLC0415
    from gnnserve_worker.inference.made_up import MadeUpVariant, made_up_graph, publish_made_up  # noqa: PLC0415
    from gnnserve_worker.inference.opening import served_revision  # noqa: PLC0415
    from gnnserve_worker.opening.revision import load_revision  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415
    from gnnserve_worker.serving.listening_socket import bind  # noqa: PLC0415
    from gnnserve_worker.serving.process.server import StartedService, serve_revision  # noqa: PLC0415

    trace = Trace()
    sock = bind("127.0.0.1", 0)

    def ask() -> None:
        connection = http.client.HTTPConnection(*sock.getsockname())
        connection.request("POST", "/v1/predict", b'{"nodes": [1]}', {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"the worker answers {response.status}: {response.read().decode()}")
        response.read()
        found.append(trace.opened())
        os.kill(os.getpid(), signal.SIGINT)

    def begin(_: StartedService) -> None:
        trace.begin()
        threading.Thread(target=ask, daemon=True).start()

    found: list[Opened] = []
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder), "default", "followed")
        network = NetworkManifest(architecture=Architecture.GRAPHSAGE, hidden=16, fanouts=(3, 2), classes=3)
        variants = [MadeUpVariant("x1", 1, "features", Storage.FLOAT32, "float32")]
        published = publish_made_up(repository, made_up_graph(100, 5, 24, 3), network, variants)
        threading.setprofile(trace.note)  # of the engine's thread, which is yet to begin
        try:
            serve_revision(served_revision(load_revision(repository, published.revision)), service(), sock, begin)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return found[0]


def follow_generation() -> Opened:
    from gnnserve_api.spec.service import GNNService  # noqa: PLC0415 - a reconcile needs none of it
    from gnnserve_worker.generation.pipeline import generate  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415

    model = {"architecture": "GraphSAGE", "hidden": 16, "fanouts": [5, 5], "training": {"epochs": 1, "batchSize": 512}}
    spec = {"graph": {"source": {"builtin": "Digits"}}, "model": model, "variants": {"pruning": {"factors": [1, 4]}}}
    head = {"apiVersion": "gnnserve.dev/v1alpha1", "kind": "GNNService", "metadata": {"name": "opened"}}
    service, trace = GNNService.model_validate({**head, "spec": spec}), Trace()
    with tempfile.TemporaryDirectory() as folder:
        repository = Repository(Path(folder), "default", "opened")
        threading.setprofile(trace.note)
        try:
            with trace.on():
                generate(service, repository)
        finally:
            threading.setprofile(None)
    return trace.opened()


SCENES: Mapping[str, Callable[[], Opened]] = {
    "reconcile": follow_reconcile,
    "request": follow_request,
    "generation": follow_generation,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.opened", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; default: all")
    parser.add_argument("--json", action="store_true", help="the modules of each scene")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.scenes if name not in SCENES]:
        parser.error(f"{', '.join(unknown)}: no such scene; there are {', '.join(SCENES)}")
    opened = {name: SCENES[name]() for name in options.scenes or SCENES}
    if options.json:
        print(json.dumps({name: asdict(found) for name, found in opened.items()}))
        return 0
    for name, found in opened.items():
        print(f"one {name}: {found.modules} modules, {len(found.held)} of them for their types alone")
        print(*found.executed, *(f"{module} (types)" for module in found.held), sep="\n    ")
    return 0


if __name__ == "__main__":
    sys.exit(main())

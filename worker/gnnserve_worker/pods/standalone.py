"""A worker without an operator: it answers from a folder of published revisions, for platforms that run servers
themselves, such as KServe.

The folder is a service's own of a repository (`<repository>/<namespace>/<service>`), or a copy of it; it is read and
never written. Options take the place of the operator's routing table. Each batch is routed as ever; no load is measured
from outside. A revision that is published later answers after a restart, which is how such platforms change models.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from gnnserve_api.errors import GnnserveError, RepositoryError
from gnnserve_api.objective import Objective
from gnnserve_api.pods.interface import HTTP_PORT, PodExit
from gnnserve_api.pods.routing import RoutingTable
from gnnserve_worker.pods.device import DeviceSettings, open_served
from gnnserve_worker.pods.environment import exit_of
from gnnserve_worker.pods.logs import log_as_json

if TYPE_CHECKING:
    from gnnserve_api.files.repository import RevisionManifest
    from gnnserve_worker.repository.repository import Repository

_log = logging.getLogger(__name__)
_MOST_PORT = 65_535
_MOST_PERMILLE = 1000


def main(arguments: Sequence[str] | None = None) -> int:
    # As in `serve.py`: the first process of a container has no default handler for it.
    signal.signal(signal.SIGTERM, _leave)
    options = parse_arguments(arguments)
    log_as_json(options.model_name, "")
    try:
        return _serve(options)
    except GnnserveError as error:
        _log.critical("%s", error)
        return exit_of(error)
    except Exception as error:  # noqa: BLE001  (its last words belong in the log, as one line)
        _log.critical("the worker ended", exc_info=error)
        return exit_of(error)


def _serve(options: argparse.Namespace) -> int:
    # Imported here: they take a second, and a signal must find its handler before.
    from gnnserve_worker.opening.revision import load_revision  # noqa: PLC0415
    from gnnserve_worker.repository.memory_fault import exit_on_memory_fault  # noqa: PLC0415
    from gnnserve_worker.repository.repository import Repository  # noqa: PLC0415
    from gnnserve_worker.serving.listening_socket import GRPC_PORT_OPTION, bind  # noqa: PLC0415
    from gnnserve_worker.serving.process.served_service import ServiceSettings  # noqa: PLC0415
    from gnnserve_worker.serving.process.server import WorkerServer  # noqa: PLC0415
    from gnnserve_worker.serving.security.credentials import Credentials  # noqa: PLC0415
    from gnnserve_worker.serving.tracing.options import read_tracing  # noqa: PLC0415

    exit_on_memory_fault(lambda words: _log.critical("%s", words), PodExit.REPOSITORY)
    repository = Repository.of_folder(options.model_dir)
    published = find_published(repository, options.model_dir, options.revision)
    objective = Objective(options.latency_ms, options.accuracy_tolerance_permille)
    table = RoutingTable(published.revision, published.recipe, objective)
    host = options.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - a pod's own addresses
    with ExitStack() as opened:
        sock, grpc = opened.enter_context(bind(host, options.http_port)), None
        if options.grpc_port is not None:
            grpc = opened.enter_context(bind(host, options.grpc_port, GRPC_PORT_OPTION))
        settings = ServiceSettings(
            options.model_name, sock, Credentials(tokens=options.tokens), grpc=grpc, tracing=read_tracing(os.environ)
        )
        worker = WorkerServer([settings], options.lame_duck_seconds)
        served = worker.services[options.model_name]

        def load() -> None:
            try:
                started_s = time.perf_counter()
                revision = open_served(load_revision(repository, published.revision), DeviceSettings.read(os.environ))
                revision.check(table)
                revision.compute.warm_up()
                served.switch(revision, table, time.perf_counter() - started_s)
                _log.info("answering from %s", published.revision, extra={"revision": published.revision})
            except BaseException as error:  # noqa: BLE001  (without its only revision, the process has no purpose)
                worker.end(error)

        def start() -> None:
            over_grpc = "" if grpc is None else f", for gRPC on port {grpc.getsockname()[1]}"
            _log.info("listening on port %d%s", sock.getsockname()[1], over_grpc)
            threading.Thread(target=load, name="load", daemon=True).start()

        worker.run(start)
    _log.info("stopped")
    return PodExit.OK


def find_published(repository: Repository, folder: Path, revision: str | None) -> RevisionManifest:
    """The published revision of this name; None: the newest. Raises RepositoryError where there is none."""
    found = repository.revisions()
    named = [manifest for manifest in found if revision in (None, manifest.revision)]
    if named:
        return named[0]
    if found:
        names = ", ".join(manifest.revision for manifest in found)
        raise RepositoryError(folder, f"holds no published revision {revision}", f"name one of {names}")
    remedy = "give the folder of a service in a repository: <repository>/<namespace>/<service>"
    raise RepositoryError(folder, "holds no published revision", remedy)


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """`arguments`: None: those of the process."""
    return _parser().parse_args(arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gnnserve_worker.pods.standalone", description=__doc__)
    parser.add_argument("--model-name", required=True, help="what requests of the Open Inference Protocol call it")
    parser.add_argument("--model-dir", required=True, type=Path, help="a service's folder of a repository")
    parser.add_argument("--revision", help="the revision that answers; unset: the newest")
    parser.add_argument("--host", default="", help="address to listen on; unset: all")
    parser.add_argument("--http-port", type=_port, default=HTTP_PORT, help="default: %(default)s; 0 takes a free one")
    parser.add_argument("--grpc-port", type=_port, help="answer over gRPC too, at this port; unset: do not")
    parser.add_argument("--latency-ms", type=_positive, help="objective of requests that state none; unset: none")
    parser.add_argument("--accuracy-tolerance-permille", type=_permille, help="the same, in permille; unset: none")
    parser.add_argument(
        "--tokens", type=Path, help="a token per line, or a folder of such files; unset: none is needed"
    )
    parser.add_argument("--lame-duck-seconds", type=_seconds, default=0.0, help="answer on before leaving; default: 0")
    return parser


def _number(text: str, low: float, high: float, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return number


def _port(text: str) -> int:
    number = _number(text, 0, _MOST_PORT, f"a port from 0 to {_MOST_PORT}")
    if number != int(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 0 to {_MOST_PORT}")
    return int(number)


def _positive(text: str) -> float:
    return _number(text, 0.001, 3_600_000, "a number of milliseconds from 0.001 to 3600000")


def _permille(text: str) -> float:
    return _number(text, 0, _MOST_PERMILLE, f"a number from 0 to {_MOST_PERMILLE}")


def _seconds(text: str) -> float:
    return _number(text, 0, 3600, "a number of seconds from 0 to 3600")


def _leave(_number: int, _frame: FrameType | None) -> None:
    sys.exit(PodExit.OK)


if __name__ == "__main__":
    sys.exit(main())

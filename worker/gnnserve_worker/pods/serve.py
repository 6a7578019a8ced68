"""A worker pod's program: answers from the revision that the service's routing table declares, and follows it.

HTTP is up before anything else, so that probes can tell waiting from failing. What follows the routing table is
`followed_service.py`; when the API server does not answer at the start, the copy that the kubelet mounted is used.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gnnserve_api.errors import GnnserveError, InputError
from gnnserve_api.pods.interface import (
    GRPC_VARIABLE,
    HTTP_PORT,
    LAME_DUCK_VARIABLE,
    NAMESPACE_VARIABLE,
    REPOSITORY_VARIABLE,
    ROUTING_PATH,
    ROUTING_VARIABLE,
    SERVICE_VARIABLE,
    TLS_VARIABLE,
    TOKENS_VARIABLE,
    WRITE_TOKENS_VARIABLE,
    PodExit,
)
from gnnserve_api.pods.routing import ROUTING_KEY
from gnnserve_worker.changes.options import UpdatesOptions
from gnnserve_worker.following.routing_watch import ApiServer
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.pods.environment import exit_of, required
from gnnserve_worker.pods.log_environment import read_updates
from gnnserve_worker.pods.logs import log_as_json
from gnnserve_worker.serving.tracing.options import TracingOptions, read_tracing

_log = logging.getLogger(__name__)

STOP_PATIENCE_S = 2.0
_MOST_LAME_DUCK_S = 3600
_MOST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    service: str
    namespace: str
    routing: str
    """Name of the ConfigMap with the routing table."""
    repository: Path
    api: ApiServer
    lame_duck_s: float = 0.0
    tls: Path | None = None
    """Folder with certificate and key; None: plain HTTP."""
    tokens: Path | None = None
    """Folder with a token in each file; None: no token is needed."""
    write_tokens: Path | None = None
    """Folder with a token that may write in each file; None: no request may write."""
    host: str = ""
    """Address to listen on; empty: every address of the pod."""
    port: int = HTTP_PORT
    grpc_port: int | None = None
    """Port to answer at over gRPC; None: there is none."""
    tracing: TracingOptions | None = None
    """Where traces go; None: nothing is traced."""
    mounted_routing: Path = Path(ROUTING_PATH) / ROUTING_KEY
    device: DeviceSettings = field(default_factory=DeviceSettings)
    updates: UpdatesOptions | None = None
    """The log of changes; None: the graph stays as it was generated."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> WorkerSettings:
        return WorkerSettings(
            service=required(environ, SERVICE_VARIABLE),
            namespace=required(environ, NAMESPACE_VARIABLE),
            routing=required(environ, ROUTING_VARIABLE),
            repository=Path(required(environ, REPOSITORY_VARIABLE)),
            api=ApiServer.in_cluster(environ),
            lame_duck_s=seconds_in(environ, LAME_DUCK_VARIABLE),
            tls=_folder(environ, TLS_VARIABLE),
            tokens=_folder(environ, TOKENS_VARIABLE),
            write_tokens=_folder(environ, WRITE_TOKENS_VARIABLE),
            grpc_port=_port(environ, GRPC_VARIABLE),
            tracing=read_tracing(environ, environ.get(NAMESPACE_VARIABLE, "")),
            device=DeviceSettings.read(environ),
            updates=read_updates(environ),
        )


def main(environ: Mapping[str, str] = os.environ) -> int:
    # The first process of a container has no default handler for it; until something is served there is nothing to
    # finish.
    signal.signal(signal.SIGTERM, leave)
    log_as_json(environ.get(SERVICE_VARIABLE, ""), environ.get(NAMESPACE_VARIABLE, ""))
    return run(lambda: WorkerSettings.read(environ))


def run(read_settings: Callable[[], WorkerSettings]) -> int:
    return run_to_exit(lambda: _serve(read_settings()))


def run_to_exit(program: Callable[[], int]) -> int:
    """Run a pod's program. Returns its exit code, also where it raises; then its last words are in the log."""
    try:
        return program()
    except GnnserveError as error:
        _log.critical("%s", error)
        return exit_of(error)
    except Exception as error:  # noqa: BLE001  (its last words belong in the log, as one line)
        _log.critical("the worker ended", exc_info=error)
        return exit_of(error)


def _serve(settings: WorkerSettings) -> int:
    # Imported here: they take a second, and a signal must find its handler before.
    from gnnserve_worker.pods.followed_service import (  # noqa: PLC0415
        FollowedService,
        FollowedSettings,
        ServiceFolders,
    )
    from gnnserve_worker.repository.memory_fault import exit_on_memory_fault  # noqa: PLC0415
    from gnnserve_worker.serving.listening_socket import bind  # noqa: PLC0415
    from gnnserve_worker.serving.process.served_service import ServiceSettings  # noqa: PLC0415
    from gnnserve_worker.serving.process.server import WorkerServer  # noqa: PLC0415

    exit_on_memory_fault(lambda words: _log.critical("%s", words), PodExit.REPOSITORY)
    log = None
    if settings.updates is not None:
        from gnnserve_worker.pods.followed_log import FollowedLog  # noqa: PLC0415

        log = FollowedLog(settings.updates)
    folders, host = ServiceFolders(settings.tls, settings.tokens, settings.write_tokens), listening_host(settings.host)
    with ExitStack() as opened:
        sock, grpc = opened.enter_context(bind(host, settings.port)), None
        if settings.grpc_port is not None:
            grpc = opened.enter_context(bind(host, settings.grpc_port, GRPC_VARIABLE))
        offered = ServiceSettings(
            settings.service,
            sock,
            folders.credentials(settings.updates),
            None if log is None else log.updates,
            grpc=grpc,
            tracing=settings.tracing,
        )
        worker = WorkerServer([offered], settings.lame_duck_s)
        followed = FollowedService(
            FollowedSettings(
                settings.service,
                settings.namespace,
                settings.routing,
                settings.repository,
                settings.api,
                settings.device,
                settings.mounted_routing,
            ),
            worker.services[settings.service],
            log,
            worker.end,
        )

        def start() -> None:
            over_grpc = "" if grpc is None else f", for gRPC on port {grpc.getsockname()[1]}"
            _log.info("answering on port %d%s", sock.getsockname()[1], over_grpc)
            # In a thread and not on the event loop, because it blocks.
            threading.Thread(target=followed.begin, name="begin", daemon=True).start()

        worker.run(start)
        if not followed.stop(STOP_PATIENCE_S):
            # The thread is hashing or compiling, which cannot be interrupted and is no longer needed.
            logging.shutdown()
            os._exit(PodExit.OK)
    _log.info("stopped")
    return PodExit.OK


def listening_host(host: str) -> str:
    """The address to listen on; for an empty one, every address of the pod."""
    return host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - a pod's own addresses


def _folder(environ: Mapping[str, str], variable: str) -> Path | None:
    text = environ.get(variable)
    if text == "":
        # Treating it as unset would serve without tokens, and in plain HTTP.
        raise InputError(f"environment variable {variable}", "is set, and empty", "name a folder, or leave it out")
    return None if text is None else Path(text)


def _port(environ: Mapping[str, str], variable: str) -> int | None:
    text = environ.get(variable)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and int(text[:6]) <= _MOST_PORT):
        raise InputError(
            f"environment variable {variable}",
            f"{text!r} is not a port",
            f"set it to 0 to {_MOST_PORT}, or leave it out",
        )
    return int(text)


def seconds_in(environ: Mapping[str, str], variable: str) -> float:
    """Seconds that a variable says, 0 where it is not set. Raises InputError where it says something else."""
    text = environ.get(variable, "") or "0"
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds <= _MOST_LAME_DUCK_S:
        raise InputError(
            f"environment variable {variable}",
            f"{text!r} is not a number of seconds",
            f"set it to 0 to {_MOST_LAME_DUCK_S}",
        )
    return seconds


def leave(_number: int, _frame: FrameType | None) -> None:
    """End at once, as the handler of a signal that comes before anything is served."""
    sys.exit(PodExit.OK)


if __name__ == "__main__":
    sys.exit(main())

"""The program of a GNNWorkerPool's pods: answers for several services, each at a port of its own.

Which services these are is in a ConfigMap that the operator keeps; they come and go while the others answer. Each
follows its own routing table as in a pod of its own (`followed_service.py`). Probes and Prometheus have a port that
belongs to no service (`serving/process/pool_endpoint.py`).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gnnserve_api.device import Device
from gnnserve_api.pods.interface import (
    HTTP_PORT,
    LAME_DUCK_VARIABLE,
    NAMESPACE_VARIABLE,
    POOL_VARIABLE,
    REPOSITORY_VARIABLE,
    SERVICE_SECRETS_PATH,
    SERVICES_PATH,
    SERVICES_VARIABLE,
    PodExit,
)
from gnnserve_api.pods.pool import SERVICES_KEY
from gnnserve_worker.following.pool_services import MountedServices
from gnnserve_worker.following.routing_watch import ApiServer, ServicesWatch
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.pods.environment import required
from gnnserve_worker.pods.logs import log_as_json
from gnnserve_worker.pods.serve import leave, listening_host, run_to_exit, seconds_in

_log = logging.getLogger(__name__)

_API_PATIENCE_S = 2.0


@dataclass(frozen=True, slots=True)
class PoolWorkerSettings:
    pool: str
    namespace: str
    services: str
    """Name of the ConfigMap with the services."""
    repository: Path
    api: ApiServer
    lame_duck_s: float = 0.0
    host: str = ""
    """Address to listen on; empty: every address of the pod."""
    port: int = HTTP_PORT
    """For probes and metrics."""
    mounted_services: Path = Path(SERVICES_PATH) / SERVICES_KEY
    secrets: Path = Path(SERVICE_SECRETS_PATH)
    device: DeviceSettings = field(default_factory=lambda: DeviceSettings(Device.CPU))
    """Services do not share the memory of a GPU."""

    @staticmethod
    def read(environ: Mapping[str, str]) -> PoolWorkerSettings:
        return PoolWorkerSettings(
            pool=required(environ, POOL_VARIABLE),
            namespace=required(environ, NAMESPACE_VARIABLE),
            services=required(environ, SERVICES_VARIABLE),
            repository=Path(required(environ, REPOSITORY_VARIABLE)),
            api=ApiServer.in_cluster(environ),
            lame_duck_s=seconds_in(environ, LAME_DUCK_VARIABLE),
        )


def main(environ: Mapping[str, str] = os.environ) -> int:
    # As in `serve.py`: the first process of a container has no default handler for it.
    signal.signal(signal.SIGTERM, leave)
    log_as_json("", environ.get(NAMESPACE_VARIABLE, ""))
    return run(lambda: PoolWorkerSettings.read(environ))


def run(read_settings: Callable[[], PoolWorkerSettings]) -> int:
    return run_to_exit(lambda: _serve(read_settings()))


def _serve(settings: PoolWorkerSettings) -> int:
    # Imported here: they take a second, and a signal must find its handler before.
    from gnnserve_worker.pods.pool_services import PoolMembers, PoolSettings  # noqa: PLC0415
    from gnnserve_worker.repository.memory_fault import exit_on_memory_fault  # noqa: PLC0415
    from gnnserve_worker.serving.listening_socket import bind  # noqa: PLC0415
    from gnnserve_worker.serving.process.pool_endpoint import PoolEndpoint  # noqa: PLC0415
    from gnnserve_worker.serving.process.server import WorkerServer  # noqa: PLC0415

    exit_on_memory_fault(lambda words: _log.critical("%s", words), PodExit.REPOSITORY)
    host = listening_host(settings.host)
    worker = WorkerServer([], settings.lame_duck_s)
    members = PoolMembers(
        PoolSettings(
            settings.namespace, settings.repository, settings.api, settings.device, host, settings.secrets
        ),
        worker,
    )  # fmt: skip
    watch = ServicesWatch(settings.api, settings.namespace, settings.services, members.declare)
    with bind(host, settings.port) as sock:
        endpoint = PoolEndpoint(sock, worker, members.why_not_ready)

        def begin() -> None:
            members.start()
            watch.start()
            mounted = MountedServices(settings.mounted_services)
            while not watch.answered.wait(_API_PATIENCE_S) and not worker.is_leaving:
                if (found := mounted.read()) is not None and not watch.answered.is_set():
                    _log.warning("the API server does not answer: using %s", settings.mounted_services)
                    members.declare(found)

        def start() -> None:
            endpoint.start()
            _log.info("pool %s: answering on port %d, for probes and metrics", settings.pool, sock.getsockname()[1])
            # In a thread and not on the event loop, because it blocks.
            threading.Thread(target=begin, name="begin", daemon=True).start()

        worker.run(start)
        watch.stop()
        endpoint.close()
        if not members.stop():
            # A thread is hashing or compiling, which cannot be interrupted and is no longer needed.
            logging.shutdown()
            os._exit(PodExit.OK)
    _log.info("stopped")
    return PodExit.OK


if __name__ == "__main__":
    sys.exit(main())

"""The operator's process, as in its pod, but for where it finds workers: behind one address, each by its own path."""

from __future__ import annotations

import asyncio
import sys

from prometheus_client import disable_created_metrics

from gnnserve_operator.desired.metadata import worker_name
from gnnserve_operator.kinds import ServiceKey
from gnnserve_operator.logs import configure_logging
from gnnserve_operator.main import run
from gnnserve_operator.observed import ObservedPod
from gnnserve_operator.probe import Addresses, Prober
from gnnserve_operator.settings import load_settings


class StandInAddresses(Addresses):
    """The services of a fleet have names of their own, whatever their namespace."""

    def __init__(self, url: str) -> None:
        super().__init__("cluster.local")
        self._url = url

    def of_pod(self, pod: ObservedPod) -> str:
        service, _, _ = pod.name.rpartition(worker_name(""))
        return f"{self._url}/{service}"

    def of_service(self, key: ServiceKey) -> str:
        return f"{self._url}/{key.name}"


def main(workers_url: str) -> None:
    settings = load_settings()
    configure_logging(settings.log_format, settings.log_level)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    asyncio.run(run(settings, prober=Prober(StandInAddresses(workers_url))))


if __name__ == "__main__":
    main(sys.argv[1])

"""A worker without kernels in a process of its own, routed as `gnnserve serve` routes: its batches take the time that
its profile says. Prints its port when ready, and whatever the slow loop says."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
from tests.support.serving.serving import TRADE_OFF, FakeWorker, service

from gnnserve_api.spec.routing import RoutingSpec
from gnnserve_api.spec.service import GNNService
from gnnserve_cli.local_service import LocalService
from gnnserve_cli.server_options import source_of_load
from gnnserve_cli.slow_loop import slow_loop
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.server import StartedService, serve_revision

LATENCY_MS = 100


def routed_service(routing: dict[str, object]) -> GNNService:
    of = service({"latencyMs": LATENCY_MS})
    return of.model_copy(update={"spec": of.spec.model_copy(update={"routing": RoutingSpec.model_validate(routing)})})


def take_time(variant: str, seeds: np.ndarray) -> None:
    time.sleep(TRADE_OFF.latency_curve(variant).at(len(seeds)) / 1000)


def main(routing: str, prometheus: str = "") -> None:
    of = routed_service(json.loads(routing))
    sock = bind("127.0.0.1", 0)
    revision = FakeWorker(fail=take_time).revision()
    with slow_loop(of.spec, source_of_load(prometheus or None, of)) as begin_routing:

        def begin(serving: StartedService) -> None:
            print(sock.getsockname()[1], flush=True)
            local = LocalService(serving.served, lambda _name: revision, "")
            local.begin(serving.revision, of.spec.routing_table(revision.manifest.revision))
            begin_routing(local)

        serve_revision(revision, of, sock, begin)


if __name__ == "__main__":
    main(*sys.argv[1:])

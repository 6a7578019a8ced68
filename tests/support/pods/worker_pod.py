"""A worker pod's program without its pod: everything that a pod provides is an argument.

`python -m tests.support.pods.worker_pod URL FOLDER LAME_DUCK_S`: the folder holds `token` and `repository/`, and may
hold `routing.json` as the kubelet would mount it. TESTS_LOOK_EVERY_S in the environment: how often the repository is
looked at, where tests want it sooner or never; TESTS_DEVICE_LOST: why the GPU fails whatever is loaded. Variables of
pods say where the log of changes is, and who may write.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

from tests.support.kubernetes.configmap_server import NAME, NAMESPACE

from gnnserve_api.errors import DeviceLostError
from gnnserve_api.pods.interface import GRPC_VARIABLE, WRITE_TOKENS_VARIABLE
from gnnserve_worker.following import loader, repository_watch
from gnnserve_worker.following.routing_watch import ApiServer
from gnnserve_worker.inference.served import ServedRevision
from gnnserve_worker.pods import followed_service, serve
from gnnserve_worker.pods.device import DeviceSettings
from gnnserve_worker.pods.log_environment import read_updates
from gnnserve_worker.pods.logs import log_as_json
from gnnserve_worker.pods.serve import WorkerSettings


def main() -> int:
    url, folder, lame_duck_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGTERM, serve.leave)
    log_as_json("digits", NAMESPACE)
    loader.RETRY_S = (0.05, 1.0)
    repository_watch.INTERVAL_S = float(os.environ.get("TESTS_LOOK_EVERY_S", "0.05"))
    settings = WorkerSettings(
        service="digits",
        namespace=NAMESPACE,
        routing=NAME,
        repository=folder / "repository",
        api=ApiServer(url, folder / "token"),
        lame_duck_s=lame_duck_s,
        host="127.0.0.1",
        port=0,
        mounted_routing=folder / "routing.json",
        device=DeviceSettings.read(os.environ),
        grpc_port=serve._port(os.environ, GRPC_VARIABLE),
        write_tokens=serve._folder(os.environ, WRITE_TOKENS_VARIABLE),
        updates=read_updates(os.environ),
    )
    if (why := os.environ.get("TESTS_DEVICE_LOST")) is not None:
        followed_service.open_served = partial(_lose, why)
    return serve.run(lambda: settings)


def _lose(why: str, *_: object) -> ServedRevision:
    raise DeviceLostError(why, "start the worker anew")


if __name__ == "__main__":
    sys.exit(main())

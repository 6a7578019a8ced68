"""A pool's worker program without its pod: everything that a pod provides is an argument.

`python -m tests.support.pods.pool_pod URL FOLDER LAME_DUCK_S`: the folder holds `token`, `repository/` and `secrets/`,
and may hold `services.json` as the kubelet would mount it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from tests.support.kubernetes.configmap_server import NAMESPACE

from gnnserve_worker.following import loader, repository_watch
from gnnserve_worker.following.routing_watch import ApiServer
from gnnserve_worker.pods import pool_services, serve, serve_pool
from gnnserve_worker.pods.logs import log_as_json

SERVICES = "shared-services"
"""Name of the ConfigMap with the services."""


def main() -> int:
    url, folder, lame_duck_s = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
    signal.signal(signal.SIGTERM, serve.leave)
    log_as_json("", NAMESPACE)
    loader.RETRY_S = (0.05, 1.0)
    repository_watch.INTERVAL_S = 0.05
    pool_services.RETRY_S = 0.1
    settings = serve_pool.PoolWorkerSettings(
        pool="shared",
        namespace=NAMESPACE,
        services=SERVICES,
        repository=folder / "repository",
        api=ApiServer(url, folder / "token"),
        lame_duck_s=lame_duck_s,
        host="127.0.0.1",
        port=0,
        mounted_services=folder / "services.json",
        secrets=folder / "secrets",
    )
    return serve_pool.run(lambda: settings)


if __name__ == "__main__":
    sys.exit(main())

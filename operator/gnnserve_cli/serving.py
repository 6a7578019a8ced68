"""The server that `run` and `serve` start, its slow loop, and what they say about it."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Sequence

from gnnserve_api.gnnservice import GNNService
from gnnserve_api.repository import RevisionManifest
from gnnserve_cli.prometheus import Prometheus
from gnnserve_cli.render import output, profile_tables, put
from gnnserve_cli.slow_loop import OwnRegistry, Source, slow_loop
from gnnserve_worker.repository.loaded import LoadedRevision
from gnnserve_worker.serving import server

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def print_profile(published: RevisionManifest) -> None:
    console = output()
    put(console, *profile_tables(published.profile, console))


def source_of_load(prometheus: str | None, service: GNNService) -> Source:
    if prometheus is None:
        return OwnRegistry()
    interval_s = service.spec.routing.interval_seconds
    return Prometheus.of_service(prometheus, service.metadata.name, interval_s)


def serve_routed(revision: LoadedRevision, service: GNNService, sock: socket.socket, source: Source) -> None:
    """Until SIGINT or SIGTERM."""
    with slow_loop(service.spec, source) as begin_routing:

        def begin(serving: server.Serving) -> None:
            announce(sock, range(revision.graph.nodes) if revision.ids is None else revision.ids.shown(0, 3))
            begin_routing(serving)

        server.serve(revision, service, sock, begin)


def announce(sock: socket.socket, nodes: Sequence[int | str]) -> None:
    """The address, and a request that works: with ids that the graph has."""
    host, port = sock.getsockname()[:2]
    host = _EVERYWHERE.get(host, host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    body = shlex.quote(json.dumps({"nodes": list(nodes[:3])}))
    # Not through rich: a wrapped line could not be pasted.
    print(f"Serving on {url}", flush=True)
    print(f"  curl -s {url}/v1/predict -H 'content-type: application/json' -d {body}", flush=True)
    print("  Ctrl-C stops it.", flush=True)


def farewell() -> None:
    print("Stopped.", file=sys.stderr)

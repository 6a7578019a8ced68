"""What `run` and `serve` say about the server that they start."""

from __future__ import annotations

import json
import socket
import sys

from gnnserve_api.repository import RevisionManifest
from gnnserve_cli.render import output, profile_tables, put

_EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - read, not bound


def print_profile(published: RevisionManifest) -> None:
    console = output()
    put(console, *profile_tables(published.profile, console))


def announce(sock: socket.socket, nodes: int) -> None:
    """The address, and a request that works: with ids that the graph has."""
    host, port = sock.getsockname()[:2]
    host = _EVERYWHERE.get(host, host)
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    body = json.dumps({"nodes": list(range(min(3, nodes)))})
    # Not through rich: a wrapped line could not be pasted.
    print(f"Serving on {url}", flush=True)
    print(f"  curl -s {url}/v1/predict -H 'content-type: application/json' -d '{body}'", flush=True)
    print("  Ctrl-C stops it.", flush=True)


def farewell() -> None:
    print("Stopped.", file=sys.stderr)

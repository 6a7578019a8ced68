"""The worker of `make bench-recommend`: answers from the one revision in a repository, and prints its port."""

from __future__ import annotations

import sys
from pathlib import Path

from gnnserve_api.spec.service import GNNService
from gnnserve_worker.inference.opening import served_revision
from gnnserve_worker.opening.revision import load_revision
from gnnserve_worker.repository.repository import Repository
from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.server import serve_revision

SERVICE = GNNService.model_validate(
    {
        "apiVersion": "gnnserve.dev/v1alpha1",
        "kind": "GNNService",
        "metadata": {"name": "items"},
        "spec": {"graph": {"source": {"builtin": "Digits"}}, "embeddings": {}},
    }
)


def main(root: str) -> None:
    repository = Repository(Path(root), "default", "items")
    (revision,) = repository.revisions()
    sock = bind("127.0.0.1", 0)
    served = served_revision(load_revision(repository, revision.revision))
    serve_revision(served, SERVICE, sock, lambda _: print(sock.getsockname()[1], flush=True))


if __name__ == "__main__":
    main(sys.argv[1])

"""The worker that `conformance.py` asks: the model of tests/conformance, on a port for HTTP and one for gRPC."""

from __future__ import annotations

import sys

from tests.support.serving.serving import FakeWorker, service

from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.process.served_service import ServiceSettings
from gnnserve_worker.serving.process.server import Offer, serve_revisions

if __name__ == "__main__":
    http, grpc = (bind("127.0.0.1", int(port)) for port in sys.argv[1:3])
    of = service()
    settings = ServiceSettings(of.metadata.name, http, grpc=grpc)
    serve_revisions([Offer(of, FakeWorker().revision(), settings)], lambda _: None)

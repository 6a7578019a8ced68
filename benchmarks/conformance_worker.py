"""The worker that `conformance.py` asks: the model of tests/conformance, on the port that is given."""

from __future__ import annotations

import sys

from tests.support.serving import FakeWorker, service

from gnnserve_worker.serving.listening_socket import bind
from gnnserve_worker.serving.server import serve_revision

if __name__ == "__main__":
    serve_revision(FakeWorker().revision(), service(), bind("127.0.0.1", int(sys.argv[1])), lambda _: None)

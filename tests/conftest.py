"""Settings of the process that runs the tests; they must be there before torch is loaded."""

from __future__ import annotations

import gnnserve_worker.generation  # noqa: F401 - sets how torch's threads wait

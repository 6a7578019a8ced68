"""Measurements, each beside a baseline of the same run; `make bench-<name>` runs them."""

import gnnserve_worker.generation  # noqa: F401 - sets how torch's threads wait, before anything here loads torch

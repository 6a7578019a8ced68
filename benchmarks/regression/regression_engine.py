"""The engine of one commit, in process: prints its costs of one run, as JSON.

Started by `regression.py` with the packages of the commit that is measured; what it imports is that commit's. It loads
the repository that the servers serve, as they do, so that both commits read the very same files.

    regression_engine.py SHAPE REPOSITORY SECONDS
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.shapes import PROBES
from gnnserve_worker.repository.repository import Repository

try:
    from benchmarks.engine.engine import draw_batches, measure, warm_up
except ModuleNotFoundError:  # of an older commit, where it lies elsewhere
    from benchmarks.engine import draw_batches, measure, warm_up

_SEEDS = 1024


def _load(repository: Repository, revision: str) -> Any:
    if (load := getattr(repository, "load", None)) is not None:
        return load(revision)
    # Only now: an older commit has no such module, and would find this checkout's behind its own.
    from gnnserve_worker.opening.revision import load_revision

    return load_revision(repository, revision)


def main(shape: str, root: str, seconds: str) -> None:
    repository = Repository(Path(root), "default", shape)
    revision = _load(repository, repository.revisions()[0].revision)
    warm_up(revision)
    found = measure(revision, draw_batches(revision.graph.nodes - PROBES, _SEEDS, 16), float(seconds), least_runs=5)
    costs = {f"{_SEEDS} seeds in the engine, {name}, p50 ms": timing.p50_ms for name, timing in found.items()}
    print(json.dumps(costs))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Generation pods that die: `python -m tests.support.pods.killed_generation STEP`, with a generation pod's environment.

One after another, each by SIGKILL in the middle of its work: the first at its first durable step, the next STEP later,
until one lives. Each is a process of its own, forked before anything was computed. Prints a line of JSON for each, with
what it left.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import sys
from functools import partial
from pathlib import Path

import pytest
from tests.support.machine.interruption import Interruption, in_child

from gnnserve_worker.generation import one_relation, pipeline, steps
from gnnserve_worker.pods import generate
from gnnserve_worker.repository import paths


def main(step: int) -> None:
    assert None not in (pipeline, one_relation, steps)  # imported for all children at once
    root = Path(os.environ["GNNSERVE_REPOSITORY"])
    number = 0
    while True:
        status = in_child(partial(run_until, number))
        print(json.dumps({"moment": number, "status": status, **left(root)}), flush=True)
        if status >= 0:
            break
        number += step


def run_until(number: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Interruption(number, {"within", "after"}, lambda: os.kill(os.getpid(), signal.SIGKILL)).install(patch)
        code = generate.main()
    sys.stderr.flush()
    os._exit(code)


def left(root: Path) -> dict[str, object]:
    commits = (paths.GRAPH_COMMIT, paths.REVISION_COMMIT)
    folders = [folder for kind in ("graphs", "revisions") for folder in root.glob(f"*/*/{kind}/*")]
    is_free = True
    for lock in root.glob("*/*/.lock"):
        with lock.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                is_free = False
    return {
        "folders": len(folders),
        "unfinished": sum(not any((folder / commit).exists() for commit in commits) for folder in folders),
        "bytes": sum(path.stat().st_size for path in root.rglob("*") if path.is_file()),
        "others": sorted(path.name for path in root.rglob("*.tmp")),
        "lockIsFree": is_free,
    }


if __name__ == "__main__":
    main(int(sys.argv[1]))

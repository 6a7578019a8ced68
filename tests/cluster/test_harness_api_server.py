"""An API server without a node: it serves, several stand side by side, and it goes with whoever started it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from tests.cluster.harness.client import wait_for
from tests.cluster.harness.processes import identity, still_runs

STARTS_AND_WAITS = """
import json
import signal
from pathlib import Path
from tests.cluster.harness.session import running_api_server

with running_api_server(controllers=False) as first, running_api_server(controllers=False) as second:
    first.kubectl("create", "configmap", "only-here")
    found = [cluster.kubectl("get", "configmaps", "--output=name").split() for cluster in (first, second)]
    pids = [
        int(record.read_text().split()[0])
        for cluster in (first, second)
        for record in (Path(cluster.kubeconfig).parents[1] / "run").glob("*.pid")
    ]
    print(json.dumps({"found": found, "pids": pids}), flush=True)
    signal.pause()
"""


def test_two_api_servers_stand_side_by_side_and_end_with_a_process_that_is_killed() -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, "-c", STARTS_AND_WAITS], cwd=root, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        told = json.loads(owner.stdout.readline())
        identities = [identity(pid) for pid in told["pids"]]
        assert [still_runs(known) for known in identities] == [True] * 4
        owner.send_signal(signal.SIGKILL)

    assert told["found"] == [["configmap/only-here"], []]
    wait_for("the kernel to end them", lambda: not any(map(still_runs, identities)))

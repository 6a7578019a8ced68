"""What an operator imports, of which it holds all for as long as it lives."""

from __future__ import annotations

import json
import subprocess
import sys

START = """
import json, sys
from gnnserve_operator.one_client import import_one_client
import_one_client()
import gnnserve_operator.main
names = sorted(sys.modules)
# Ways to log in by a kubeconfig, which are imported where it names them.
import kubernetes.aio.config.exec_provider, kubernetes.aio.config.openid
print(json.dumps(names))
"""
OTHERS = {"requests", "oauthlib", "websocket", "numpy", "torch"}
MOST_MODULES, MOST_OWN = 820, 185
"""There are 807, and 173 of ours. More are to be looked at, before they are allowed: 72 of ours took 5 MB."""


def test_an_operator_imports_one_client_and_little_else() -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)

    modules = json.loads(done.stdout)
    assert {name.partition(".")[0] for name in modules}.isdisjoint(OTHERS)
    assert len(modules) <= MOST_MODULES
    assert len([name for name in modules if name.startswith("gnnserve_")]) <= MOST_OWN

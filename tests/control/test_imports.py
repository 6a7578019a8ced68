"""What an operator imports, of which it holds all for as long as it lives."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.operator.declared_environment import run_declared

START = """
import json, sys
import gnnserve_operator.main
print(json.dumps(sorted(sys.modules)))
"""
OTHERS = {"kubernetes", "kubernetes_asyncio", "pykube", "requests", "oauthlib", "websocket", "numpy", "torch"}
MOST_MODULES, MOST_OWN = 740, 185
"""There are 723, and 177 of ours. More are to be looked at, before they are allowed: 72 of ours took 5 MB."""


def test_an_operator_runs_on_what_it_declares_and_imports_one_client_and_little_else(tmp_path: Path) -> None:
    done = run_declared("operator", tmp_path, START)

    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout)
    assert {name.partition(".")[0] for name in modules}.isdisjoint(OTHERS)
    assert len(modules) <= MOST_MODULES
    assert len([name for name in modules if name.startswith("gnnserve_")]) <= MOST_OWN

"""Our programs use of other libraries what these publish, so that no minor release of another library breaks them."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.foreign_insides import OF_AN_UNKNOWN_OBJECT, Finding, find_insides

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "cli", "client", "crds", "describe", "examples", "operator", "tools", "worker")

EXCEPTIONS: dict[tuple[str, str], str] = {}
"""Reasons, by file and finding, why there is no public way."""
_PATCHED = "the interpreter patches its language at every launch, which is half of the time of these tests"
EXCEPTIONS_OF_TESTS = {
    ("tests/support/machine/fork_server.py", "sys.modules.pop"): "a fork runs the module again, as a new process would",
    (
        "tests/support/gpu/gpu_compilation.py",
        "triton.runtime.jit.JITFunction.run",
    ): "kernels are compiled and not launched",
    ("tests/support/gpu/interpreter.py", "triton.runtime.interpreter._patch_lang"): _PATCHED,
    ("tests/support/gpu/interpreter.py", "triton.language.tensor.__index__"): "Triton 3.6's is refused by numpy 2.4",
}
"""Reasons, by file and finding, why tests do so, which no user runs."""


def findings_of(*folders: str) -> dict[tuple[str, str], Finding]:
    """Findings by file and code."""
    return {
        (str(path.relative_to(ROOT)), finding.what): finding
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*.py"))
        for finding in find_insides(path.read_text())
    }


def test_no_program_of_ours_reaches_into_another_library() -> None:
    found = findings_of(*FOLDERS)
    assert {key: finding for key, finding in found.items() if key not in EXCEPTIONS} == {}
    assert EXCEPTIONS.keys() <= found.keys(), "an exception without a cause is to be taken off the list"


def test_tests_reach_into_other_libraries_for_a_reason_only() -> None:
    # Which of our objects a test looks into is its own matter.
    found = {key: of for key, of in findings_of("tests").items() if of.problem != OF_AN_UNKNOWN_OBJECT}
    assert {key: finding for key, finding in found.items() if key not in EXCEPTIONS_OF_TESTS} == {}
    assert EXCEPTIONS_OF_TESTS.keys() <= found.keys(), "an exception without a cause is to be taken off the list"


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("import torch._dynamo", "torch._dynamo"),
        ("from torch._dynamo import disable", "torch._dynamo.disable"),
        ("from kopf import _core", "kopf._core"),
        ("import torch\ntorch._dynamo.reset()", "torch._dynamo"),
        ("import torch as t\nt.optim._functional", "torch.optim._functional"),
        ("from numba import njit\nmade = njit(print)\nmade._cache.flush()", "made._cache"),
        ("import asyncio\nasyncio.get_running_loop()._ready", "asyncio.get_running_loop()._ready"),
        ("def of(session):\n    return session._connector", "session._connector"),
        ("def of(session):\n    return getattr(session, '_connector')", "getattr(session, '_connector')"),
        ("import sys\nsys.modules['torch._dynamo'] = None", "sys.modules['torch._dynamo']"),
        ("import sys\ndel sys.modules['torch']", "sys.modules['torch']"),
        ("from sys import modules\nmodules.setdefault('a', 1)", "modules.setdefault"),
        ("import sys\nsys.meta_path.insert(0, 1)", "sys.meta_path"),
        ("import kopf\nkopf.login_via_client = print", "kopf.login_via_client"),
        ("from httpx import Client\nClient.send = print", "httpx.Client.send"),
        ("import torch\nsetattr(torch, 'compile', print)", "setattr(torch)"),
        ("monkeypatch.setattr('httpx._client.sleep', print)", "httpx._client.sleep"),
    ],
)
def test_a_use_of_insides_is_found(source: str, what: str) -> None:
    assert what in [finding.what for finding in find_insides(source)]


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.__version__",
        "import os\nos._exit(1)",
        "import sys\n'torch' in sys.modules and sys.modules['torch'].cat",
        "from __future__ import annotations",
        "from gnnserve_worker.models import blas\nblas._pack()",
        "class Costs:\n    def __init__(self, before):\n        self._machine = before._machine",
        "class Folder(Base):\n    def name(self):\n        return self._name",
        "from typing import NamedTuple\ndef of(row):\n    return row._replace(a=1)",
        "import numpy as np\nrow = np.zeros(1)\nrow.flags.writeable = False",
    ],
)
def test_a_published_name_or_one_of_ours_is_none(source: str) -> None:
    assert find_insides(source) == []

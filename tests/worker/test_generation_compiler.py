"""torch's compiler is not loaded by who trains, and is all there for who asks for it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gnnserve_worker.generation.compiler import StandIn, stand_in_for

PROGRAM = """
import sys
import torch
from gnnserve_worker.generation import networks
from gnnserve_worker.generation.compiler import NAME, postpone_compiler

def is_loaded():
    return "torch._inductor" in sys.modules

weight = torch.nn.Parameter(torch.ones(1))
optimizer = torch.optim.Adam([weight])
weight.sum().backward()
optimizer.step()
optimizer.zero_grad()
assert weight < 1
assert torch.compiler.disable()(is_loaded) is is_loaded
assert torch._dynamo.disable(recursive=False)(is_loaded) is is_loaded
assert not hasattr(sys.modules[NAME], "__file__")
assert not is_loaded()

compiled = torch.compile(torch.nn.Linear(1, 1))
assert is_loaded()
assert isinstance(compiled, torch._dynamo.OptimizedModule)
assert networks.pyg.GraphSAGE(1, 1, 1)
loaded = sys.modules[NAME]
assert loaded is torch._dynamo
postpone_compiler()
assert sys.modules[NAME] is loaded
"""


def test_it_is_loaded_by_its_first_use_and_by_no_training() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PARTS = {
    "slow/__init__.py": "",
    "slow/compiler/__init__.py": "from . import config\nruns = config.runs\n",
    "slow/compiler/config.py": "import builtins\nbuiltins.slow_runs += 1\nruns = builtins.slow_runs\nchosen = 1\n",
    "slow/compiler/other.py": "",
}


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """What stands in for a package whose parts count how often they are run."""
    for name, text in PARTS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("builtins.slow_runs", 0, raising=False)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    importlib.import_module("slow")
    stand_in = StandIn("slow.compiler")
    stand_in_for(stand_in)
    yield stand_in
    for name in [name for name in sys.modules if name.partition(".")[0] == "slow"]:
        del sys.modules[name]


def test_a_part_that_is_imported_first_is_run_once_and_is_the_packages_own(slow: StandIn) -> None:
    part = importlib.import_module("slow.compiler.config")
    package = importlib.import_module("slow.compiler")
    assert package is not slow
    assert part is package.config
    assert (part.runs, package.runs) == (1, 1)
    assert part.__spec__ is not None and part.__spec__.origin == part.__file__
    assert importlib.import_module("slow.compiler.other").__name__ == "slow.compiler.other"
    assert importlib.reload(part).runs == 2


def test_threads_that_ask_together_get_one_package(slow: StandIn) -> None:
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: slow.config, range(64)))
    assert {id(one) for one in found} == {id(sys.modules["slow.compiler.config"])}
    assert found[0].runs == 1

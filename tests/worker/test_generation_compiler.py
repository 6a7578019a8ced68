"""torch's compiler is not loaded by who trains, and is all there for who asks for it."""

from __future__ import annotations

import subprocess
import sys

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

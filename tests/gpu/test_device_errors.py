"""What each error of a GPU leaves of the process, as torch, Triton and the driver word it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.support.lacks import needs_gpu

from gnnserve_worker.gpu.device_errors import KNOWN_ERRORS, Consequence, advice_on, consequence_of

ROOT = Path(__file__).resolve().parents[2]


def _accelerator_error(message: str, code: int | None = None) -> torch.AcceleratorError:
    error = torch.AcceleratorError(message)
    if code is not None:
        error.error_code = code  # type: ignore[attr-defined]
    return error


@pytest.mark.parametrize(
    ("error", "consequence"),
    [
        pytest.param(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), Consequence.MEMORY, id="torch's"),
        pytest.param(RuntimeError("Triton Error [CUDA]: out of memory"), Consequence.MEMORY, id="memory, of Triton"),
        pytest.param(
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            Consequence.MEMORY, id="memory, of a library",
        ),
        pytest.param(
            RuntimeError("Triton Error [CUDA]: too many resources requested for launch"),
            Consequence.REFUSED, id="a launch that did not occur",
        ),
        pytest.param(
            RuntimeError("CUDA error: operation not permitted when stream is capturing"),
            Consequence.REFUSED, id="a broken capture",
        ),
        pytest.param(
            RuntimeError("Failed to find C compiler. Please specify via CC"), Consequence.UNPREPARED, id="no compiler"
        ),
        pytest.param(KeyError("x1"), Consequence.UNPREPARED, id="an error of ours"),
        pytest.param(
            RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
            Consequence.LOST, id="an illegal address",
        ),
        pytest.param(
            _accelerator_error("CUDA error: the launch timed out and was terminated"), Consequence.LOST, id="a timeout"
        ),
        pytest.param(
            _accelerator_error("CUDA error: uncorrectable ECC error encountered"), Consequence.BROKEN, id="ECC"
        ),
        pytest.param(
            RuntimeError("CUDA error: no CUDA-capable device is detected"), Consequence.BROKEN, id="off the bus"
        ),
        pytest.param(_accelerator_error("CUDA error: something new"), Consequence.LOST, id="one that is not known"),
    ],
)  # fmt: skip
def test_words_say_what_an_error_means(error: BaseException, consequence: Consequence) -> None:
    assert consequence_of(error) is consequence


@pytest.mark.parametrize(("code", "consequence"), [(c, k.consequence) for k in KNOWN_ERRORS for c in k.codes])
def test_a_number_decides_whatever_the_words_are(code: int, consequence: Consequence) -> None:
    assert consequence_of(_accelerator_error("CUDA error: worded otherwise", code)) is consequence


def test_no_number_stands_for_two_errors() -> None:
    codes = [code for known in KNOWN_ERRORS for code in known.codes]

    assert len(codes) == len(set(codes))


def test_words_of_one_row_say_the_same_as_its_numbers() -> None:
    for known in KNOWN_ERRORS:
        for words in known.words:
            assert consequence_of(_accelerator_error(f"CUDA error: {words}")) is known.consequence, words


def test_only_of_a_broken_card_more_is_advised_than_a_new_process() -> None:
    assert "Xid" in advice_on(Consequence.BROKEN)
    assert {advice_on(each) for each in Consequence if each is not Consequence.BROKEN} == {""}


def test_the_documentation_lists_every_number() -> None:
    page = (ROOT / "docs" / "gpu.md").read_text()
    table = page.split("### Errors of the GPU")[1].split("\n## ")[0]
    listed = {int(number) for number in re.findall(r"(?<![\w.])\d{1,3}(?![\w.])", table.replace("–", " "))}

    assert {code for known in KNOWN_ERRORS for code in known.codes} <= listed


_PROVOKED = """
import sys, torch, triton, triton.language as tl
from gnnserve_worker.gpu.device_errors import consequence_of

@triton.jit
def write_astray(place):
    tl.store(place + (1 << 44), 1)

def lack_memory():
    torch.empty(1 << 50, dtype=torch.uint8, device="cuda")

def reach_astray():
    write_astray[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
    torch.cuda.synchronize()

for provoke in (lack_memory, reach_astray):
    try:
        provoke()
    except Exception as error:
        print(consequence_of(error).value, type(error).__name__, getattr(error, "error_code", None))
    try:
        torch.zeros(1, device="cuda").item()
        print("lives")
    except Exception:
        print("does not live")
"""


@pytest.mark.gpu
@needs_gpu()
def test_a_gpus_own_errors_are_told_apart(tmp_path: Path) -> None:
    """In a process of its own, whose context does not live on."""
    program = tmp_path / "provoked.py"  # Triton reads a kernel's source from its file
    program.write_text(_PROVOKED)
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    said = [
        line.split()[0] if " " in line and not line.startswith("does") else line for line in done.stdout.splitlines()
    ]

    assert said == ["memory", "lives", "lost", "does not live"], done.stdout + done.stderr

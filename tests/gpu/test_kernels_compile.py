"""Kernels are interpreted where there is no GPU; this compiles them for GPUs all the same, and looks at the outcome."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import triton
from tests.support.gpu.gpu_compilation import Compiled, compile_all

from gnnserve_worker.gpu.kernels.bounds import ARCHITECTURES, MOST_REGISTERS, exceeded, most_spilled_bytes

_KEPT = Path.home() / ".cache" / "gnnserve" / "gpu-kernels"
"""Kept from one clone to the next, as the other kernels are (`tools/kernels.py`): compiling takes more than a minute,
and looking at what is compiled already half of one. Both are known by all that they depend on."""


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    _KEPT.mkdir(parents=True, exist_ok=True)
    return compile_all(_KEPT)


def test_every_kernel_compiles_for_every_architecture(compiled: list[Compiled]) -> None:
    kernels = {(each.architecture, each.kernel, each.case) for each in compiled}

    assert kernels == {(a, k, case) for k, cases in MOST_REGISTERS.items() for case in cases for a in ARCHITECTURES}


def test_no_kernel_takes_more_registers_than_its_bound_or_spills_any(compiled: list[Compiled]) -> None:
    above = {
        exceeded(each.kernel, each.case, each.architecture, each.registers, each.spilled_bytes, triton.__version__)
        for each in compiled
    }

    assert above - {None} == set()


@pytest.mark.parametrize(
    ("registers", "spilled_bytes", "version", "is_above"),
    [(56, 0, "3.9.0", False), (57, 0, "3.9.0", True), (56, 8, "3.9.0", True), (56, 8, "3.6.1", False),
     (56, 40, "3.6.0", True)],
)  # fmt: skip
def test_a_kernel_above_its_bound_is_named_with_its_numbers(
    registers: int, spilled_bytes: int, version: str, is_above: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MOST_REGISTERS, "_gather", {"of a test": (56, 56, 56)})  # type: ignore[arg-type]

    said = exceeded("_gather", "of a test", 90, registers, spilled_bytes, version)

    assert (said is not None) == is_above
    if said is not None:
        assert said.startswith(
            f"_gather (of a test) for sm_90, by Triton {version}: {registers} registers and {spilled_bytes} spilled "
            f"bytes a lane, where 56 and {most_spilled_bytes(version)} are the bound"
        )


def test_a_kernel_without_a_bound_is_named_too() -> None:
    assert "it has no bound; it takes 9 registers" in (exceeded("_new", "case", 80, 9, 0, "3.9.0") or "")


def test_lanes_read_16_bytes_of_a_row_and_ask_for_16_rows_at_once(compiled: list[Compiled]) -> None:
    for kernel in compiled:
        if kernel.case.startswith("gather torch"):
            wide = re.findall(r"ld\.global(?:\.cg)?\.v4\.b32", kernel.ptx)

            assert len(wide) >= 16, kernel.case


def test_what_the_cache_may_hold_is_read_past_the_first_level_cache(compiled: list[Compiled]) -> None:
    """The directory, and rows from wherever it says; without a cache nothing needs to be."""
    for kernel in compiled:
        if kernel.case.startswith("gather torch"):
            cached = "devices=0" not in kernel.case

            assert ("ld.global.v4" in kernel.ptx) is not cached, kernel.case
            assert (len(re.findall(r"ld\.global\.cg\.b32", kernel.ptx)) >= 2) is cached, kernel.case


def test_counters_are_added_to_without_waiting_for_their_values(compiled: list[Compiled]) -> None:
    counting = [kernel for kernel in compiled if "devices=1" in kernel.case or "devices=2" in kernel.case]

    assert counting
    for kernel in counting:
        assert all(name.startswith("RED") for name in kernel.atomics), kernel.case
        assert len([name for name in kernel.atomics if ".64" in name]) == 2, kernel.case

"""Kernels are interpreted where there is no GPU; this compiles them for GPUs all the same, and looks at the outcome."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.support.gpu_compilation import ARCHITECTURES, Compiled, compile_all

_KERNELS = ("_sample_hop", "_score", "_share_out", "_gather", "_aggregate")


_KEPT = Path.home() / ".cache" / "gnnserve" / "gpu-kernels"
"""Kept from one clone to the next, as the other kernels are (`tools/kernels.py`): compiling takes more than a minute,
and looking at what is compiled already half of one. Both are known by all that they depend on."""


@pytest.fixture(scope="module")
def compiled() -> list[Compiled]:
    _KEPT.mkdir(parents=True, exist_ok=True)
    return compile_all(_KEPT)


def test_every_kernel_compiles_for_every_architecture(compiled: list[Compiled]) -> None:
    kernels = {(kernel.architecture, kernel.kernel) for kernel in compiled}

    assert kernels == {(a, k) for a in ARCHITECTURES for k in _KERNELS}


def test_no_kernel_spills_registers(compiled: list[Compiled]) -> None:
    assert {(kernel.case, kernel.stack_bytes) for kernel in compiled if kernel.stack_bytes} == set()


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

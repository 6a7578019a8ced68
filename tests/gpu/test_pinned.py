"""Host memory that the GPU reads in place: in blocks, as a copy, or not at all; and never more than there is."""

from __future__ import annotations

import errno
import mmap
import os
from pathlib import Path

import numpy as np
import pytest
from tests.support.gpu.gpu_twin import Twin

import gnnserve_worker.gpu.pinned as pinned_module
from gnnserve_worker.gpu.memory import RESERVE_BYTES, HostMemory, Ledger
from gnnserve_worker.gpu.pinned import UnpinnableError, pin
from gnnserve_worker.tables.table import map_array

PAGE = mmap.PAGESIZE
HOST = HostMemory()


@pytest.fixture
def mapped(tmp_path: Path) -> np.ndarray:
    """Read-only, as a repository's: 10 pages and a header."""
    np.save(tmp_path / "x.npy", np.arange(10 * PAGE // 4, dtype=np.float32).reshape(-1, 16))
    return map_array(tmp_path / "x.npy")


def _host(tmp_path: Path, *, available: int, limit: str | None = None, used: int = 0, files: int = 0) -> HostMemory:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    proc.mkdir()
    cgroups.mkdir()
    (proc / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available // 1024} kB\n")
    if limit is not None:
        (cgroups / "memory.max").write_text(f"{limit}\n")
        (cgroups / "memory.current").write_text(f"{used}\n")
        (cgroups / "memory.stat").write_text(f"anon 1\nfile {files}\n")
    return HostMemory(proc, cgroups)


def test_a_mapping_is_pinned_where_it_is_by_whole_pages(mapped: np.ndarray) -> None:
    twin = Twin()

    pinned = pin("x", mapped, twin, HOST)

    assert pinned.array is mapped
    assert pinned.message is None
    address = mapped.ctypes.data
    assert twin.registered == {address - address % PAGE: 11 * PAGE}
    pinned.release()
    assert twin.registered == {}


def test_large_ones_are_pinned_in_blocks_that_neither_overlap_nor_leave_a_gap(
    mapped: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pinned_module, "BLOCK_BYTES", 4 * PAGE)
    twin = Twin()

    pin("x", mapped, twin, HOST)

    begin = mapped.ctypes.data // PAGE * PAGE
    assert twin.registered == {begin: 4 * PAGE, begin + 4 * PAGE: 4 * PAGE, begin + 8 * PAGE: 3 * PAGE}


def test_a_mapping_that_is_refused_is_copied_and_the_copy_pinned(mapped: np.ndarray) -> None:
    twin = Twin(refuse=lambda _size, read_only: "CUDA_ERROR_NOT_SUPPORTED" if read_only else None)

    pinned = pin("the table", mapped, twin, HOST)

    np.testing.assert_array_equal(pinned.array, mapped)
    assert not np.shares_memory(pinned.array, mapped)
    assert pinned.message is not None
    assert "the table" in pinned.message
    assert "CUDA_ERROR_NOT_SUPPORTED" in pinned.message
    assert f"{mapped.nbytes:,} bytes of the host's memory" in pinned.message
    pinned.release()
    assert twin.registered == {}


def test_without_memory_for_a_copy_it_stays_unpinned(mapped: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_array: np.ndarray) -> np.ndarray:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(pinned_module, "_anonymous_copy", full)
    twin = Twin(refuse=lambda _size, read_only: "CUDA_ERROR_NOT_SUPPORTED" if read_only else None)

    with pytest.raises(UnpinnableError, match=r"NOT_SUPPORTED.*no memory for a copy \(Cannot allocate memory\)"):
        pin("x", mapped, twin, HOST)


def test_a_refusal_half_way_leaves_nothing_pinned(mapped: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned_module, "BLOCK_BYTES", 4 * PAGE)
    twin = Twin(refuse=lambda size, _: "CUDA_ERROR_OUT_OF_MEMORY" if size < 4 * PAGE else None)

    with pytest.raises(UnpinnableError, match=r"after 32,768 of 45,056 bytes.*neither can a copy"):
        pin("x", mapped, twin, HOST)

    assert twin.registered == {}


def test_more_than_the_container_may_take_is_not_pinned(mapped: np.ndarray, tmp_path: Path) -> None:
    twin = Twin()
    host = _host(tmp_path, available=2**30, limit=str(100_000), used=90_000, files=20_000)

    with pytest.raises(UnpinnableError, match=r"takes 40,960 bytes of memory, of which 24,000 are to be had"):
        pin("x", mapped, twin, host)

    assert twin.registered == {}


def test_what_is_pinned_is_no_longer_to_be_had(mapped: np.ndarray, tmp_path: Path) -> None:
    host = _host(tmp_path, available=100_000)
    before = host.spare_bytes()

    pinned = pin("x", mapped, Twin(), host)
    assert host.spare_bytes() == before - mapped.nbytes

    pinned.release()
    assert host.spare_bytes() == before


def test_a_container_without_a_limit_has_what_the_machine_has(tmp_path: Path) -> None:
    assert _host(tmp_path, available=1024_000, limit="max").spare_bytes() == 0.8 * 1024_000


def test_revisions_together_stay_within_the_limit() -> None:
    ledger, free = Ledger(), 80 * 2**30
    assert ledger.available_bytes(free, 10 * 2**30) == 10 * 2**30

    claim = ledger.claim(7 * 2**30)
    assert ledger.available_bytes(free, 10 * 2**30) == 3 * 2**30

    claim.release()
    assert ledger.available_bytes(free, 10 * 2**30) == 10 * 2**30


def test_without_a_limit_there_is_what_is_free_but_for_a_reserve() -> None:
    free = 80 * 2**30

    assert Ledger().available_bytes(free, None) == int(0.95 * free) - RESERVE_BYTES
    assert Ledger().available_bytes(RESERVE_BYTES, None) == 0


def test_each_lenders_memory_is_counted_for_itself() -> None:
    ledger, free = Ledger(), 80 * 2**30
    ledger.claim(2**30)
    ledger.of_lender(0).claim(2**29)

    assert ledger.of_lender(0).available_bytes(free, 2**30) == 2**29
    assert ledger.of_lender(1).available_bytes(free, 2**30) == 2**30

"""Matrix products by whichever library there is, against numpy in float64."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.graphs.graphs import dense_features

from gnnserve_api.files.profile import Compute
from gnnserve_api.variants import Storage
from gnnserve_worker.models import blas
from gnnserve_worker.models.blas import preferred_compute
from gnnserve_worker.models.network import Linear
from gnnserve_worker.tables.formats import FORMATS

CANARY = np.float32(-77)


def _compute_of(library: str) -> Compute:
    return "bfloat16" if library.endswith("bfloat16") else "float32"


@pytest.fixture(params=["MKL in float32", "MKL in bfloat16", "scipy's BLAS"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Which one multiplies in this test."""
    if request.param == "scipy's BLAS":
        monkeypatch.setattr(blas, "mkl", lambda: None)
    elif blas.mkl() is None:
        pytest.fail("MKL is not installed: it comes with the extra `serve` on x86-64")
    else:
        # Where the processor has no AMX, MKL does the same slowly.
        monkeypatch.setattr(blas, "has_fast_bfloat16", lambda: True)
    yield request.param


def _rows(library: str, count: int, inputs: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """As the product reads them, and what they are worth."""
    rows = dense_features(count, inputs, seed)
    if _compute_of(library) == "float32":
        return rows.reshape(-1), rows
    bits, _ = FORMATS[Storage.BFLOAT16].encode(rows)
    return bits.reshape(-1), FORMATS[Storage.BFLOAT16].decode(bits, None)


def _assert_product(library: str, count: int, inputs: int, outputs: int, *, relu: bool, seed: int = 0) -> None:
    weight, bias = dense_features(inputs, outputs, seed + 1), dense_features(1, outputs, seed + 2)[0]
    linear = Linear.build(weight, bias, relu=relu, compute=_compute_of(library))
    stored, rows = _rows(library, count, inputs, seed)
    assert linear.compute == _compute_of(library)
    assert stored.dtype == linear.input_dtype
    room = np.full(count * outputs + 40, CANARY, dtype=np.float32)

    linear.apply(stored, count, room)

    if linear.compute == "bfloat16":
        weight = FORMATS[Storage.BFLOAT16].decode(FORMATS[Storage.BFLOAT16].encode(weight)[0], None)
    exact, size = rows.astype(np.float64) @ weight, np.abs(rows).astype(np.float64) @ np.abs(weight)
    expected = np.maximum(exact + bias, 0) if relu else exact + bias
    error = np.abs(room[: count * outputs].reshape(count, outputs) - expected)
    assert (error <= (size + np.abs(bias)) * 2e-6).all(), error.max()
    assert (room[count * outputs :] == CANARY).all()


@pytest.mark.parametrize("count", [1, 2, 3, 15, 16, 17, 33])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1, 1), (1, 5), (5, 1), (2, 2), (3, 7), (16, 16), (31, 33), (64, 41), (129, 65), (602, 256)]
)
def test_products_of_any_size_with_bias(library: str, count: int, inputs: int, outputs: int) -> None:
    for relu in (False, True):
        _assert_product(library, count, inputs, outputs, relu=relu)


@pytest.mark.parametrize("count", [1023, 1024, 1025, 3000])
def test_any_number_of_rows_whatever_the_weights_were_packed_for(library: str, count: int) -> None:
    _assert_product(library, count, 50, 19, relu=True)


def test_many_products_beside_each_other(library: str) -> None:
    """Packed weights stay where they are, and the library keeps no state between them."""
    linears = [
        (Linear.build(dense_features(7, n, n), np.zeros(n, np.float32), relu=False, compute=_compute_of(library)), n)
        for n in range(1, 20)
    ]
    stored, _ = _rows(library, 4, 7, 0)
    first, second = ([_applied(linear, stored, 4 * n) for linear, n in linears] for _ in range(2))

    for one, other in zip(first, second, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("inputs", "outputs"), [(8, 2), (64, 64), (256, 256)])
def test_a_product_takes_memory_for_its_weights_and_a_few_pages(library: str, inputs: int, outputs: int) -> None:
    """A service over several types has hundreds: one for each relation, type, layer and storage."""
    weight, bias = dense_features(inputs, outputs, 0), np.zeros(outputs, np.float32)
    most_bytes = 4 * weight.nbytes + 64 * mmap.PAGESIZE
    before = _resident_bytes()

    linears = [Linear.build(weight, bias, relu=False, compute=_compute_of(library)) for _ in range(50)]

    assert _resident_bytes() - before < most_bytes * len(linears)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def _applied(linear: Linear, stored: np.ndarray, size: int) -> np.ndarray:
    out = np.empty(size, dtype=np.float32)
    linear.apply(stored, 4, out)
    return out


def test_weights_may_be_read_only_transposed_and_of_another_precision(library: str) -> None:
    weight, bias = np.asfortranarray(dense_features(6, 4, 1).astype(np.float64)), np.array([1.0, 2, 3, 4])
    weight.setflags(write=False)
    bias.setflags(write=False)
    linear = Linear.build(weight, bias, relu=False, compute=_compute_of(library))
    stored, rows = _rows(library, 4, 6, 0)

    found = _applied(linear, stored, 16).reshape(4, 4)

    np.testing.assert_allclose(found, rows @ weight + bias, atol=1e-5 if linear.compute == "float32" else 0.05)


def test_only_as_many_rows_as_asked_for_are_multiplied(library: str) -> None:
    linear = Linear.build(dense_features(3, 2, 0), np.zeros(2, np.float32), relu=False, compute=_compute_of(library))
    stored, _ = _rows(library, 4, 3, 0)
    out = np.full(8, CANARY)

    linear.apply(stored, 2, out)

    assert (out[:4] != CANARY).all()
    assert (out[4:] == CANARY).all()


def _lacking(monkeypatch: pytest.MonkeyPatch, *, mkl: bool, fast: bool) -> None:
    if not mkl:
        monkeypatch.setattr(blas, "mkl", lambda: None)
    monkeypatch.setattr(blas, "has_fast_bfloat16", lambda: fast)


@pytest.mark.parametrize("storage", list(Storage), ids=str)
@pytest.mark.parametrize("fast", [True, False])
def test_bfloat16_is_preferred_where_storage_has_rounded_and_the_processor_is_fast_at_it(
    monkeypatch: pytest.MonkeyPatch, storage: Storage, fast: bool
) -> None:
    monkeypatch.setattr(blas, "has_fast_bfloat16", lambda: fast)

    assert preferred_compute(storage) == ("bfloat16" if fast and storage is not Storage.FLOAT32 else "float32")


@pytest.mark.parametrize(("mkl", "fast"), [(False, True), (True, False)], ids=["no MKL", "no AMX"])
def test_where_bfloat16_cannot_be_had_products_are_made_in_float32(
    monkeypatch: pytest.MonkeyPatch, mkl: bool, fast: bool
) -> None:
    _lacking(monkeypatch, mkl=mkl, fast=fast)

    linear = Linear.build(dense_features(3, 2, 0), np.zeros(2, np.float32), relu=False, compute="bfloat16")

    assert linear.compute == "float32"
    assert linear.input_dtype is np.float32
    np.testing.assert_allclose(
        _applied(linear, np.ones(12, dtype=np.float32), 8).reshape(4, 2)[0], dense_features(3, 2, 0).sum(0), atol=1e-6
    )


def _not_found(_name: str) -> list[object]:
    raise blas.importlib.metadata.PackageNotFoundError("mkl")


@pytest.mark.parametrize(
    ("machine", "files"),
    [
        pytest.param("aarch64", lambda _: [], id="another processor"),
        pytest.param("x86_64", _not_found, id="not installed"),
        pytest.param("x86_64", lambda _: None, id="installed without a list of files"),
        pytest.param(
            "x86_64",
            lambda _: [SimpleNamespace(name="libmkl_rt.so.3", locate=lambda: "/nowhere/libmkl_rt.so.3")],
            id="its library is gone",
        ),
    ],
)
def test_a_machine_without_mkl_is_no_error(
    monkeypatch: pytest.MonkeyPatch, machine: str, files: Callable[[str], object]
) -> None:
    monkeypatch.setattr(blas.platform, "machine", lambda: machine)
    monkeypatch.setattr(blas.importlib.metadata, "files", files)

    assert blas.mkl.__wrapped__() is None


def test_a_missing_mkl_is_said_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(blas, "mkl", lambda: None)
    monkeypatch.setattr(blas.platform, "machine", lambda: "x86_64")
    blas._scipy_sgemm.cache_clear()

    for _ in range(2):
        Linear.build(dense_features(3, 2, 0), np.zeros(2, np.float32), relu=False, compute="float32")

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "`pip install mkl`" in caplog.text


def test_machines_that_mkl_is_not_made_for_lack_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(blas.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(blas, "mkl", blas.mkl.__wrapped__)
    blas._scipy_sgemm.cache_clear()

    Linear.build(dense_features(3, 2, 0), np.zeros(2, np.float32), relu=False, compute="float32")

    assert caplog.records == []

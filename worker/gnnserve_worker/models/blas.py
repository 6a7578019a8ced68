"""The library that multiplies matrices: which one, how weights are packed for it, and how kernels call it.

On x86-64 that is Intel's MKL, whose packed products take half the time of the OpenBLAS in numpy and scipy at the sizes
of a batch, and a tenth with bfloat16 on processors with AMX; elsewhere it is scipy's BLAS, and so it is where MKL is
not installed, which is said once. torch has the same kernels, but importing it takes 290 MB of anonymous memory.
Kernels call the library through a pointer: no Python in between, and nothing of it in the compiled code, so that it can
be cached. One thread: chunks of a batch already use every core.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import logging
import platform
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from gnnserve_api.files.profile import Compute
from gnnserve_api.variants import Storage
from gnnserve_worker.tables.formats import BFLOAT16
from gnnserve_worker.tables.growing import empty_growing

_log = logging.getLogger(__name__)

_ROW_MAJOR, _NO_TRANSPOSE, _PACKED, _SECOND_MATRIX = 101, 111, 151, 162
_SEQUENTIAL = 1
_WITH_MKL = "x86_64"
"""The machine that there are wheels of MKL for."""
_PACKED_FOR_ROWS = 1024
"""Number of rows that packing is tuned for. Packed weights may be multiplied with any number."""
_IN_HUGE_PAGES_BYTES = 512 * 1024
"""Size of weights from which they are packed into huge pages. A single row is multiplied 7 to 9 % faster then; of
smaller ones it is no faster, and each would take megabytes: a service over several types has hundreds."""


class PackedWeights(NamedTuple):
    """Weights as a function of the library reads them."""

    weight: np.ndarray
    """In bytes, as MKL packs them; or float32 [inputs, outputs] for scipy's BLAS."""
    compute: Compute
    address: int
    """Address of the function."""


def pack_weights(weight: np.ndarray, compute: Compute) -> PackedWeights:
    """Pack float32 [inputs, outputs], in C order, for the fastest function of that precision. Where there is none of
    bfloat16, it is one of float32."""
    library = mkl()
    if library is None:
        return PackedWeights(weight, "float32", _scipy_sgemm())
    if compute == "bfloat16" and has_fast_bfloat16():
        bits, _ = BFLOAT16.encode(weight)
        packed = _pack(library, "gemm_bf16bf16f32", bits, with_alpha=False)
        return PackedWeights(packed, "bfloat16", _address(library.cblas_gemm_bf16bf16f32_compute))
    return PackedWeights(
        _pack(library, "sgemm", weight, with_alpha=True), "float32", _address(library.cblas_sgemm_compute)
    )


def preferred_compute(storage: Storage) -> Compute:
    """The fastest precision on this machine whose rounding is small beside that of the storage.

    What is stored exactly is computed exactly. Where storage has rounded already, bfloat16 is worth its speed wherever
    the processor multiplies it at several times the rate of float32: that is AMX.
    """
    return "bfloat16" if storage is not Storage.FLOAT32 and has_fast_bfloat16() else "float32"


@cache
def has_fast_bfloat16() -> bool:
    """Whether Linux reports the processor's matrix unit for bfloat16; without it MKL emulates bfloat16, slowly."""
    if mkl() is None:
        return False
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return "amx_bf16" in flags.split()


@cache
def mkl() -> Any:
    """The library, or None where it is not installed: there are wheels for x86-64 alone."""
    if platform.machine() != _WITH_MKL:
        return None
    try:
        installed = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    path = next((file.locate() for file in installed if file.name.startswith("libmkl_rt.so")), None)
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    library.MKL_Set_Threading_Layer(_SEQUENTIAL)
    return library


def _pack(library: Any, name: str, weight: np.ndarray, *, with_alpha: bool) -> np.ndarray:
    inputs, outputs = weight.shape
    size = getattr(library, f"cblas_{name}_pack_get_size")
    size.restype = ctypes.c_size_t
    needed = size(_SECOND_MATRIX, _PACKED_FOR_ROWS, outputs, inputs)
    # MKL asks for 8 MB or more, whatever the matrix, and writes to pages that are far from each other.
    packed = empty_growing((needed,), np.uint8, in_huge_pages=weight.nbytes >= _IN_HUGE_PAGES_BYTES)
    alpha = [ctypes.c_float(1.0)] if with_alpha else []
    getattr(library, f"cblas_{name}_pack")(
        _ROW_MAJOR, _SECOND_MATRIX, _NO_TRANSPOSE, _PACKED_FOR_ROWS, outputs, inputs, *alpha,
        ctypes.c_void_p(weight.ctypes.data), outputs, ctypes.c_void_p(packed.ctypes.data),
    )  # fmt: skip
    return packed


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    if address is None:
        raise RuntimeError("a function of MKL has no address")
    return address


@cache
def _scipy_sgemm() -> int:
    """Address of the function that stands in for those of MKL. Cached, so that what is missing is said once."""
    import scipy.linalg.cython_blas  # noqa: F401, PLC0415  (only where MKL is not: it loads a BLAS of its own)

    if platform.machine() == _WITH_MKL:
        _log.warning(
            "the package mkl is not installed, or cannot be loaded: scipy's BLAS computes matrix products, "
            "which take about twice as long; `pip install mkl` brings it"
        )
    return int(get_cython_function_address("scipy.linalg.cython_blas", "sgemm"))


def _multiply(
    _typing: Any, address: Any, rows: Any, count: Any, inputs: Any, weight: Any, outputs: Any, out: Any,
    row_stride: Any, out_stride: Any,
) -> Any:  # fmt: skip
    """out = rows · weight. Which of the three functions it is follows from the types: packed weights are bytes."""
    integer = types.int64

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        int32, pointer, real = ir.IntType(32), cgutils.voidptr_t, ir.FloatType()

        def data_of(position: int) -> Any:
            return builder.bitcast(
                context.make_array(signature.args[position])(context, builder, args[position]).data, pointer
            )

        def number(value: int) -> Any:
            return ir.Constant(int32, value)

        def call(*arguments: Any) -> None:
            kind = ir.FunctionType(ir.VoidType(), [argument.type for argument in arguments])
            builder.call(builder.inttoptr(args[0], kind.as_pointer()), arguments)

        count, inputs, outputs, row_stride, out_stride = (builder.trunc(args[i], int32) for i in (2, 3, 5, 7, 8))
        x, w, y = data_of(1), data_of(4), data_of(6)
        one, zero = ir.Constant(real, 1.0), ir.Constant(real, 0.0)
        if signature.args[4].dtype == types.uint8:
            order = [number(_ROW_MAJOR), number(_NO_TRANSPOSE), number(_PACKED), count, outputs, inputs]
            alpha = [one] if signature.args[1].dtype == types.uint16 else []
            call(*order, *alpha, x, row_stride, w, outputs, zero, y, out_stride)
        else:

            def by_reference(value: Any) -> Any:
                return builder.bitcast(cgutils.alloca_once_value(builder, value), pointer)

            # Fortran reads rows as columns: outᵀ = weightᵀ · rowsᵀ.
            n = by_reference(ir.Constant(ir.IntType(8), ord("N")))
            m, k, wide = by_reference(count), by_reference(inputs), by_reference(outputs)
            ldx, ldy = by_reference(row_stride), by_reference(out_stride)
            call(n, n, wide, m, k, by_reference(one), w, wide, x, ldx, by_reference(zero), y, ldy)
        return context.get_dummy_value()

    return types.void(integer, rows, integer, integer, weight, integer, out, integer, integer), generate


call_library: Any = intrinsic(_multiply)

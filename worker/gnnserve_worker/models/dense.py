"""Matrix products: x · W + b, with or without ReLU, by the fastest library there is.

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
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import get_cython_function_address, intrinsic

from gnnserve_api.profile import Compute
from gnnserve_api.variants import Storage
from gnnserve_worker.kernel_cache import kernel
from gnnserve_worker.tables.formats import BFLOAT16

_log = logging.getLogger(__name__)

_ROW_MAJOR, _NO_TRANSPOSE, _PACKED, _SECOND_MATRIX = 101, 111, 151, 162
_SEQUENTIAL = 1
_WITH_MKL = "x86_64"
"""The machine that there are wheels of MKL for."""
_PACKED_FOR_ROWS = 1024
"""Number of rows that packing is tuned for. Packed weights may be multiplied with any number."""
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Linear:
    """x · W + b, with or without ReLU, its weights packed for the library. `apply` reads rows of `input_dtype`."""

    inputs: int
    outputs: int
    weight: np.ndarray
    """The weights as MKL packs them, in bytes; or float32 [inputs, outputs] for scipy's BLAS."""
    dense: np.ndarray
    """The weights unpacked, float32 [inputs, outputs], for GPUs (`gpu/network.py`)."""
    bias: np.ndarray
    relu: bool
    compute: Compute
    address: int
    """Address of the library's function."""
    apply: Callable[[np.ndarray, int, np.ndarray], None] = field(init=False, repr=False, compare=False)
    """Compute `count` rows: `apply(rows, count, out)`. `rows` is flat, [count · inputs] of `input_dtype`; `out` is flat
    float32, at least [count · outputs]. A field, since a method would be one more call for every batch."""

    def __post_init__(self) -> None:
        known = (self.address, self.inputs, self.weight, self.outputs, self.bias, self.relu)
        object.__setattr__(self, "apply", partial(_linear, *known))

    @staticmethod
    def build(weight: np.ndarray, bias: np.ndarray, *, relu: bool, compute: Compute) -> Linear:
        """Pack the weights. `weight` is float32 [inputs, outputs]: rows multiply from the left. `bias` is float32
        [outputs]."""
        inputs, outputs = weight.shape
        weight = np.ascontiguousarray(weight, dtype=np.float32)
        bias = np.ascontiguousarray(bias, dtype=np.float32)
        library = _mkl()
        if library is None:
            return Linear(inputs, outputs, weight, weight, bias, relu, "float32", _scipy_sgemm())
        if compute == "bfloat16" and _has_fast_bfloat16():
            bits, _ = BFLOAT16.encode(weight)
            packed = _pack(library, "gemm_bf16bf16f32", bits, with_alpha=False)
            address = _address(library.cblas_gemm_bf16bf16f32_compute)
            return Linear(inputs, outputs, packed, weight, bias, relu, "bfloat16", address)
        packed = _pack(library, "sgemm", weight, with_alpha=True)
        return Linear(inputs, outputs, packed, weight, bias, relu, "float32", _address(library.cblas_sgemm_compute))

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The products of single matrices that this one consists of."""
        return (self,)

    @property
    def input_dtype(self) -> type[np.generic]:
        """Type of the rows that `apply` reads; uint16 stands for the bits of bfloat16."""
        return np.uint16 if self.compute == "bfloat16" else np.float32


@dataclass(frozen=True, slots=True)
class PerHead:
    """A product for each head, which reads its part of a row and writes its part of the output row."""

    heads: tuple[Linear, ...]
    """One product per head, all of the same size and precision."""

    @property
    def linears(self) -> tuple[Linear, ...]:
        return self.heads

    @property
    def inputs(self) -> int:
        return sum(head.inputs for head in self.heads)

    @property
    def outputs(self) -> int:
        return sum(head.outputs for head in self.heads)

    @property
    def input_dtype(self) -> type[np.generic]:
        return self.heads[0].input_dtype

    def apply(self, rows: np.ndarray, count: int, out: np.ndarray) -> None:
        """Compute `count` rows, with arguments as for `Linear.apply`."""
        read, written = self.inputs, self.outputs
        for number, head in enumerate(self.heads):
            _linear_of_head(
                head.address, rows[number * head.inputs :], count, head.inputs, head.weight, head.outputs, head.bias,
                head.relu, out[number * head.outputs :], read, written,
            )  # fmt: skip


Product = Linear | PerHead


def preferred_compute(storage: Storage) -> Compute:
    """The fastest precision on this machine whose rounding is small beside that of the storage.

    What is stored exactly is computed exactly. Where storage has rounded already, bfloat16 is worth its speed wherever
    the processor multiplies it at several times the rate of float32: that is AMX.
    """
    return "bfloat16" if storage is not Storage.FLOAT32 and _has_fast_bfloat16() else "float32"


@cache
def _has_fast_bfloat16() -> bool:
    """Whether Linux reports the processor's matrix unit for bfloat16; without it MKL emulates bfloat16, slowly."""
    if _mkl() is None:
        return False
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    return "amx_bf16" in flags.split()


@cache
def _mkl() -> Any:
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
    room = np.zeros(needed + _ALIGNMENT, dtype=np.uint8)
    start = -room.ctypes.data % _ALIGNMENT
    packed = room[start : start + needed]
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


_call_library: Any = intrinsic(_multiply)


@kernel
def _linear(
    address: int, inputs: int, weight: np.ndarray, outputs: int, bias: np.ndarray, relu: bool,
    rows: np.ndarray, count: int, out: np.ndarray,
) -> None:  # fmt: skip
    _call_library(address, rows, count, inputs, weight, outputs, out, inputs, outputs)
    for row in range(count):
        line = out[row * outputs : (row + 1) * outputs]
        for column in range(outputs):
            value = line[column] + bias[column]
            line[column] = max(value, np.float32(0.0)) if relu else value


@kernel
def _linear_of_head(
    address: int, rows: np.ndarray, count: int, inputs: int, weight: np.ndarray, outputs: int,
    bias: np.ndarray, relu: bool, out: np.ndarray, row_stride: int, out_stride: int,
) -> None:  # fmt: skip
    _call_library(address, rows, count, inputs, weight, outputs, out, row_stride, out_stride)
    for row in range(count):
        line = out[row * out_stride : row * out_stride + outputs]
        for column in range(outputs):
            value = line[column] + bias[column]
            line[column] = max(value, np.float32(0.0)) if relu else value

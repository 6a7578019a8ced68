"""Primitives that kernels are written with: prefetching, bounds of neighbour lists, random numbers at a nanosecond
each, slots of a hash table, distinct positions in a list, and scratch memory.

A graph that stays as it is has its lists one behind the other: `indptr` is int64 [lists + 1]. One that changes has them
anywhere in `indices`: `indptr` is then int64 [lists, 2], begin and end of each. Kernels are compiled for either, and
what stands here under the other is left out of the code.

Random numbers are counter-based (SplitMix64): a draw depends on the key, the depth and the node, never on which thread
drew it. `kernel_cache.py` compiles kernels and keeps them on disk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gnnserve_worker.kernel_cache import inlined

# Prefetching emits its code itself. As a function inlined into the loop of a kernel it made gathering take twice as
# long: numba counts references to the arrays that an inlined function is given as well, atomically, for every row.
_INT64 = ir.IntType(64)
_LINE_BYTES = 64
_LONG_ROW, _REPEATS = 8, 10
"""Lines of a row from which on its last one is prefetched again, and how often. It is nothing but a pause: without it
a Zen 5 gathers rows of 512 bytes 15 % slower where no cache holds them; 16 cost more than they save where one does. On
a Sapphire Rapids it takes 6 % of gathering such rows for batches of 32 seeds; 2 and 4 take as much."""


def _prefetch(_typing: Any, array: Any, index: Any) -> Any:
    """Prefetch the cache line of `array.ravel()[index]` (C order) without waiting for it. Any index is safe."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        _emit_prefetch(builder, builder.gep(data, [args[1]]))
        return context.get_dummy_value()

    return types.void(array, types.int64), generate


def _prefetch_row(_typing: Any, array: Any, row: Any, first: Any, last: Any) -> Any:
    """Prefetch the columns [first, last) of `array[row]` (C order), as `prefetch` does."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _emit_prefetch_row(context, builder, signature.args[0], args[0], *args[1:])
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, types.int64), generate


def _prefetch_rows(_typing: Any, values: Any, scales: Any, rows: Any, start: Any, stop: Any, columns: Any) -> Any:
    """Prefetch the first `columns` columns of values[rows[start : stop]], as `prefetch` does, and the scales of those
    rows, which those of int8 have. `rows` is int32 or int64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ids = context.make_array(signature.args[2])(context, builder, args[2]).data
        start, stop, columns = args[3:]
        with cgutils.for_range_slice(builder, start, stop, _constant(1), intp=_INT64) as (place, _):
            row = builder.sext(builder.load(builder.gep(ids, [place])), _INT64)
            _emit_prefetch_row(context, builder, signature.args[0], args[0], row, _constant(0), columns)
            if signature.args[0].dtype == types.int8:
                data = context.make_array(signature.args[1])(context, builder, args[1]).data
                _emit_prefetch(builder, builder.gep(data, [row]))
        return context.get_dummy_value()

    return types.void(values, scales, rows, types.int64, types.int64, types.int64), generate


def _emit_prefetch_row(context: Any, builder: Any, kind: Any, array: Any, row: Any, first: Any, last: Any) -> None:
    rows = context.make_array(kind)(context, builder, array)
    width = cgutils.unpack_tuple(builder, rows.shape)[1]
    begin = builder.gep(rows.data, [builder.add(builder.mul(row, width), first)])
    line = _LINE_BYTES // (kind.dtype.bitwidth // 8)
    columns = builder.sub(last, first)
    lines = builder.sdiv(builder.add(columns, _constant(line - 1)), _constant(line))
    with builder.if_then(builder.icmp_signed(">", lines, _constant(0))):
        before = builder.block
        loop, end = (builder.append_basic_block(f"lines.{name}") for name in ("loop", "end"))
        builder.branch(loop)
        builder.position_at_end(loop)
        number = builder.phi(_INT64)
        _emit_prefetch(builder, builder.gep(begin, [builder.mul(number, _constant(line))]))
        # Cannot overflow, without which LLVM would not unroll the loop.
        following = builder.add(number, _constant(1), flags=("nsw", "nuw"))
        number.add_incoming(_constant(0), before)
        number.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, lines), loop, end)
        builder.position_at_end(end)
        with builder.if_then(builder.icmp_signed(">=", lines, _constant(_LONG_ROW))):
            for _ in range(_REPEATS):
                _emit_prefetch(builder, builder.gep(begin, [builder.sub(columns, _constant(1))]))


def _emit_prefetch(builder: Any, pointer: Any) -> None:
    numbers = [ir.IntType(32)] * 3
    function = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *numbers]), "llvm.prefetch.p0i8"
    )
    # The arguments mean: for reading, into all levels of the cache, a data line.
    constants = (ir.Constant(ir.IntType(32), value) for value in (0, 3, 1))
    builder.call(function, [builder.bitcast(pointer, cgutils.voidptr_t), *constants])


def _constant(number: int) -> Any:
    return ir.Constant(_INT64, number)


prefetch: Any = intrinsic(_prefetch)
prefetch_row: Any = intrinsic(_prefetch_row)
prefetch_rows: Any = intrinsic(_prefetch_rows)


@inlined
def list_count(indptr: np.ndarray) -> int:
    """How many lists there are; in a graph that changes, room for new nodes included."""
    if indptr.ndim == 1:
        return len(indptr) - 1
    return len(indptr)


@inlined
def list_begin(indptr: np.ndarray, node: int) -> int:
    if indptr.ndim == 1:
        return int(indptr[node])
    return int(indptr[node, 0])


@inlined
def list_end(indptr: np.ndarray, node: int) -> int:
    if indptr.ndim == 1:
        return int(indptr[node + 1])
    return int(indptr[node, 1])


@inlined
def prefetch_bounds(indptr: np.ndarray, node: int) -> None:
    """Prefetch where the node's list begins and ends. Any node is safe."""
    if indptr.ndim == 1:
        prefetch(indptr, node)
    else:
        prefetch(indptr, 2 * node)


GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@inlined
def mix(z: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: every input bit reaches every output bit."""
    z = (z ^ (z >> _30)) * _M1
    z = (z ^ (z >> _27)) * _M2
    return z ^ (z >> _31)


@inlined
def slot_of(key: int, keys: np.ndarray) -> int:
    """The slot of a key in an open-addressed hash table, or the empty one (-1) that would be its own. `keys`: int64, a
    power of two of them, never all taken; no key is negative."""
    mask = len(keys) - 1
    slot = np.int64(mix(np.uint64(key))) & mask
    while keys[slot] != -1 and keys[slot] != key:
        slot = (slot + 1) & mask
    return int(slot)


@inlined
def stream(key: int, depth: int, node: int) -> np.uint64:
    """Start of an independent stream of draws for one node at one depth."""
    return mix(mix(np.uint64(key) + np.uint64(depth + 1) * GOLDEN) ^ np.uint64(node))


@inlined
def below(bound: int, state: np.uint64) -> Any:
    """A number in [0, bound) by multiply and shift; the bias is under bound / 2^32."""
    return np.int64(((mix(state) >> _32) * np.uint64(bound)) >> _32)


_BITMAP_WORDS = 16
_FEWEST_BITS = 6
"""Scratch memory has room for 64 items at least."""


@inlined
def choose_positions(
    degree: int, count: int, state: np.uint64, out: np.ndarray, first: int, bitmap: np.ndarray, table: np.ndarray
) -> None:
    """`count` distinct positions out of [0, degree) into out[first : first + count], every subset equally likely.

    The cost is O(count) whatever the degree. A few out of many are the first distinct ones of a stream of draws; a
    bitmap of residues nearly always shows at once that a draw is new. Otherwise Floyd's algorithm (Bentley and Floyd,
    CACM 30(9), 1987) is used, which never draws more than `count` times; it finds duplicates by looking back for a few
    positions, by an open-addressed table for many. `bitmap` is uint64 [16], `table` int64 of a power of two of at least
    2·count entries that are -1 between calls.
    """
    if count <= 64 and degree >= 2 * count:
        for word in range(_BITMAP_WORDS):
            bitmap[word] = 0
        kept = first
        end = first + count
        while kept < end:
            state += GOLDEN
            pick = below(degree, state)
            word = (pick >> 6) & (_BITMAP_WORDS - 1)
            bit = _ONE << np.uint64(pick & 63)
            met = bitmap[word]
            if met & bit:
                seen = False
                for i in range(first, kept):
                    seen |= out[i] == pick
                if seen:
                    continue
            bitmap[word] = met | bit
            out[kept] = pick
            kept += 1
        return
    if count <= 32:
        for i in range(count):
            top = degree - count + i
            state += GOLDEN
            pick = below(top + 1, state)
            seen = False
            for j in range(first, first + i):
                seen |= out[j] == pick
            out[first + i] = top if seen else pick
        return
    mask = len(table) - 1
    for i in range(count):
        top = degree - count + i
        state += GOLDEN
        pick = below(top + 1, state)
        if not _insert(table, mask, pick):
            pick = top
            _insert(table, mask, pick)
        out[first + i] = pick
    for i in range(count):
        slot = np.int64(mix(np.uint64(out[first + i]))) & mask
        # Entries of one run are removed together below, so walking until a hole would stop too early: clear the run.
        while table[slot] != -1:
            table[slot] = -1
            slot = (slot + 1) & mask


@inlined
def _insert(table: np.ndarray, mask: int, value: int) -> bool:
    """Insert the value; False when the table holds it already."""
    slot = np.int64(mix(np.uint64(value))) & mask
    while table[slot] != -1:
        if table[slot] == value:
            return False
        slot = (slot + 1) & mask
    table[slot] = value
    return True


# Scratch memory


def room_for(count: int) -> int:
    """The next power of two, so that what is as long is rarely allocated again."""
    return 1 << max(_FEWEST_BITS, (count - 1).bit_length())


def scratch_for(array: np.ndarray, count: int) -> np.ndarray:
    """The array, or where it has no room for `count` items another one that has, without its content."""
    return array if len(array) >= count else np.empty((room_for(count), *array.shape[1:]), array.dtype)


def scratch_table(fanout: int) -> np.ndarray:
    """The `table` of `choose_positions`: int64, all -1."""
    size = 1 << max(1, 2 * max(1, fanout) - 1).bit_length()
    return np.full(size, -1, dtype=np.int64)


def scratch_bitmap() -> np.ndarray:
    """The `bitmap` of `choose_positions`: uint64."""
    return np.zeros(_BITMAP_WORDS, dtype=np.uint64)


BLOCK = 32
"""Nodes whose positions are drawn before the first of their neighbours is read."""


@inlined
def scratch_needed(count: int, fanouts: np.ndarray, depth: int, rows: int) -> int:
    """Scratch for the whole sample where fan-outs bound it, so that it grows once and not hop by hop."""
    total = 0
    width = rows
    for d in range(depth, len(fanouts)):
        if fanouts[d] < 0:
            return 2 * count
        width *= fanouts[d]
        total += width
    # Fan-outs may be far above the degrees: do not trust the bound alone.
    return max(count, min(rows + total, 64 * count))

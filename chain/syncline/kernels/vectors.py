"""What numba has no words for: sums of table look-ups sixteen bytes at a time, a mask of what differs, counting bits.

Each is a few instructions in a row without a loop. It reads and writes exactly what its docstring says, checks nothing, and gives on
every processor the same integers.
"""

# pyright: basic, reportAttributeAccessIssue=false
# llvmlite and numba give their objects no types

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic
from numpy.typing import NDArray

PLANES = 3
"""A width has 18 bits and one to spare: three bytes."""
STEP = {8: 64, 16: 64, 32: 32}
"""Units whose look-ups `piece_sums` sums in one go, by their bits."""

SQUARE = 16
"""Rows and columns that `columns_before` takes at once."""

_BYTES = ir.VectorType(ir.IntType(8), 64)
_LONGS = ir.VectorType(ir.IntType(64), 8)


def planes(widths: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """256 widths as three tables of bytes, lowest first: what `piece_sums` looks up."""
    return np.ascontiguousarray(widths.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :PLANES].T).reshape(-1)


def has_byte_permutes() -> bool:
    """Whether numba compiles for a processor that looks up bytes in a register table (x86, AVX-512 VBMI)."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return False  # told to compile for less than this processor has
    return bool(llvm.get_host_cpu_features().get("avx512vbmi"))


@intrinsic
def piece_sums(typing, units, at, tables, low, sums, to, shift, mask):
    """sums[to..] = summed widths of the pieces in STEP units from `at`; the context is unit >> shift & mask.

    `tables` are `planes`. An integer `low` says that contexts up to it have one width, and those from low + 63 on; None, that they have
    not. Only where the processor `has_byte_permutes`.
    """
    bits = units.dtype.bitwidth
    count, per_piece = STEP[bits], 128 // bits

    def codegen(context, builder, signature, arguments):
        unit_array, first, table_array, window, sum_array, place, shifted, masked = arguments
        whole = _load(context, builder, signature.args[0], unit_array, first, ir.VectorType(ir.IntType(bits), count))
        kind = whole.type
        whole = builder.and_(
            builder.lshr(whole, _everywhere(builder, kind, shifted)), _everywhere(builder, kind, masked)
        )
        contexts = whole if bits == 8 else builder.trunc(whole, ir.VectorType(ir.IntType(8), count))
        if bits == 32:  # four units, then four bytes of nothing: a sum is over eight bytes
            spread = [i // 8 * 4 + i % 8 if i % 8 < 4 else 0 for i in range(64)]
            contexts = builder.shuffle_vector(
                contexts, contexts, ir.Constant(ir.VectorType(ir.IntType(32), 64), spread)
            )
        total = ir.Constant(_LONGS, [0] * 8)
        for plane, found in enumerate(_looked_up(context, builder, signature, table_array, window, contexts)):
            if bits == 32:
                found = builder.and_(found, ir.Constant(_BYTES, [-(i % 8 < 4) for i in range(64)]))
            summed = builder.call(_absolute_differences(builder), [found, ir.Constant(_BYTES, [0] * 64)])
            total = builder.add(total, builder.shl(summed, ir.Constant(_LONGS, [8 * plane] * 8)))
        out = builder.trunc(total, ir.VectorType(ir.IntType(32), 8))
        if per_piece == 16:
            four = ir.VectorType(ir.IntType(32), 4)
            even, odd = (ir.Constant(four, [k, k + 2, k + 4, k + 6]) for k in (0, 1))
            out = builder.add(builder.shuffle_vector(out, out, even), builder.shuffle_vector(out, out, odd))
        pointer = builder.gep(_data(context, builder, signature.args[4], sum_array), [place])
        builder.store(out, builder.bitcast(pointer, out.type.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(units, types.int64, tables, low, sums, types.int64, types.int64, types.int64), codegen


@intrinsic
def running_sums(typing, units, at, tables, low, sums, limit, shift, mask):
    """sums[1..] = widths of the units of the piece at `at`, summed up to each. Returns how many of these do not exceed `limit`.

    `tables` and `low` as above, likewise.
    """
    bits = units.dtype.bitwidth
    count = 128 // bits
    kind, wide = ir.VectorType(ir.IntType(bits), count), ir.VectorType(ir.IntType(32), count)

    def codegen(context, builder, signature, arguments):
        unit_array, first, table_array, window, sum_array, most, shifted, masked = arguments
        whole = _load(context, builder, signature.args[0], unit_array, first, kind)
        whole = builder.and_(
            builder.lshr(whole, _everywhere(builder, kind, shifted)), _everywhere(builder, kind, masked)
        )
        contexts = whole if bits == 8 else builder.trunc(whole, ir.VectorType(ir.IntType(8), count))
        contexts = _picked(builder, contexts, [min(i, count) for i in range(64)])
        total = ir.Constant(wide, [0] * count)
        for plane, found in enumerate(_looked_up(context, builder, signature, table_array, window, contexts)):
            found = builder.zext(_picked(builder, found, list(range(count))), wide)
            total = builder.or_(total, builder.shl(found, ir.Constant(wide, [8 * plane] * count)))
        step = 1
        while step < count:
            before = [count + i - step if i >= step else 0 for i in range(count)]
            nothing = ir.Constant(wide, [0] * count)
            places = ir.Constant(ir.VectorType(ir.IntType(32), count), before)
            total = builder.add(total, builder.shuffle_vector(nothing, total, places))
            step *= 2
        pointer = builder.gep(_data(context, builder, signature.args[4], sum_array), [_at(1)])
        builder.store(total, builder.bitcast(pointer, wide.as_pointer()), align=1)
        within = builder.icmp_signed("<=", total, _everywhere(builder, wide, most))
        within = builder.zext(builder.bitcast(within, ir.IntType(count)), ir.IntType(64))
        return builder.ctpop(within)

    return types.int64(units, types.int64, tables, low, sums, types.int32, types.int64, types.int64), codegen


@intrinsic
def columns_before(typing, rows, at, stride, carried, lane, columns, to, apart):
    """Of 16 rows of 16 numbers, `stride` apart from `at` on: columns[to + k * apart..] = column k, each number replaced by the sum of
    carried[lane + k] and of those before it; then `carried` is what they all sum to.
    """
    kind = ir.VectorType(ir.IntType(32), SQUARE)

    def codegen(context, builder, signature, arguments):
        source, first, step, carry, start, target, place, spread = arguments
        before = _load(context, builder, signature.args[3], carry, start, kind)
        square = []
        for row in range(SQUARE):
            square.append(before)
            place_of = builder.add(first, builder.mul(step, _at(row)))
            before = builder.add(before, _load(context, builder, signature.args[0], source, place_of, kind))
        _store(context, builder, signature.args[3], carry, start, before)
        for half in (8, 4, 2, 1):  # swap the off-diagonal quarters of squares of 16, 8, 4, 2
            keep = [i if not i & half else SQUARE + (i ^ half) for i in range(SQUARE)]
            swap = [i ^ half if not i & half else SQUARE + i for i in range(SQUARE)]
            for row in range(SQUARE):
                if not row & half:
                    one, other = square[row], square[row | half]
                    square[row], square[row | half] = (
                        builder.shuffle_vector(one, other, ir.Constant(kind, places)) for places in (keep, swap)
                    )
        for column, values in enumerate(square):
            at = builder.add(place, builder.mul(spread, _at(column)))
            _store(context, builder, signature.args[5], target, at, values)
        return context.get_dummy_value()

    number = types.int64
    return types.void(rows, number, number, carried, number, columns, number, number), codegen


@intrinsic
def differing(typing, old, new, at):
    """Mask of those of 64 units from `at` on that differ, the first one lowest."""

    def codegen(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(signature.args[0].dtype.bitwidth), 64)
        one, other = (_load(context, builder, signature.args[k], arguments[k], arguments[2], kind) for k in (0, 1))
        return builder.bitcast(builder.icmp_unsigned("!=", one, other), ir.IntType(64))

    return types.uint64(old, new, types.int64), codegen


@intrinsic
def beyond(typing, values, at, limit):
    """Mask of those of 32 values from `at` on that are greater than `limit`, the first one lowest."""

    def codegen(context, builder, signature, arguments):
        kind = ir.VectorType(ir.IntType(32), 32)
        found = _load(context, builder, signature.args[0], arguments[0], arguments[1], kind)
        greater = builder.icmp_signed(">", found, _everywhere(builder, kind, arguments[2]))
        greater = builder.bitcast(greater, ir.IntType(32))
        return builder.zext(greater, ir.IntType(64))

    return types.uint64(values, types.int64, types.int32), codegen


@intrinsic
def prefetch(typing, array, at):
    """Ask for the cache line of a unit. It need not exist: nothing is read."""

    def codegen(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        line = builder.gep(_data(context, builder, signature.args[0], arguments[0]), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, near, data = (ir.Constant(number, flag) for flag in (0, 3, 1))
        builder.call(function, [builder.bitcast(line, byte), to_read, near, data])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen


@intrinsic
def ones(typing, word):
    """How many bits are set."""
    return types.int64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def lowest(typing, word):
    """Place of the lowest set bit; 64 when there is none."""
    return (
        types.int64(types.uint64),
        lambda context, builder, signature, arguments: builder.cttz(arguments[0], cgutils.false_bit),
    )


def _at(index):
    return ir.Constant(ir.IntType(64), index)


def _data(context, builder, kind, array):
    return context.make_array(kind)(context, builder, array).data


def _load(context, builder, kind, array, index, vector, *, constant=False):
    pointer = builder.gep(_data(context, builder, kind, array), [index])
    loaded = builder.load(builder.bitcast(pointer, vector.as_pointer()), align=1)
    if constant:  # so that a loop loads it once
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    return loaded


def _store(context, builder, kind, array, index, value):
    pointer = builder.gep(_data(context, builder, kind, array), [index])
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=1)


def _everywhere(builder, kind, value):
    """The value, cut to the vector's elements, in each of them."""
    value = value if value.type.width == kind.element.width else builder.trunc(value, kind.element)
    first = builder.insert_element(ir.Constant(kind, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(
        first, first, ir.Constant(ir.VectorType(ir.IntType(32), kind.count), [0] * kind.count)
    )


def _picked(builder, vector, places):
    """Elements of a vector; anything for a place behind its end."""
    nothing = ir.Constant(vector.type, ir.Undefined)
    return builder.shuffle_vector(vector, nothing, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), places))


def _looked_up(context, builder, signature, tables, low, contexts):
    """Widths of 64 contexts, a plane at a time."""
    kind, windowed = signature.args[2], signature.args[3] != types.none
    if windowed:
        first = _everywhere(builder, _BYTES, low)
        above = builder.sub(_larger(builder, contexts, first), first)
        contexts = _smaller(builder, above, ir.Constant(_BYTES, [63] * 64))
    else:
        upper = builder.icmp_signed("<", contexts, ir.Constant(_BYTES, [0] * 64))
    for plane in range(PLANES):
        at = 256 * plane
        if windowed:
            table = _load(context, builder, kind, tables, builder.add(low, _at(at)), _BYTES, constant=True)
            yield _permuted_one(builder, table, contexts)
            continue
        quarters = [_load(context, builder, kind, tables, _at(at + 64 * q), _BYTES, constant=True) for q in range(4)]
        yield builder.select(
            upper, _permuted(builder, quarters[2:], contexts), _permuted(builder, quarters[:2], contexts)
        )


def _larger(builder, one, other):
    return builder.select(builder.icmp_unsigned(">", one, other), one, other)


def _smaller(builder, one, other):
    return builder.select(builder.icmp_unsigned("<", one, other), one, other)


def _permuted_one(builder, table, index):
    kind = ir.FunctionType(_BYTES, [_BYTES] * 2)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.permvar.qi.512")
    return builder.call(function, [table, index])


def _permuted(builder, halves, index):
    kind = ir.FunctionType(_BYTES, [_BYTES] * 3)
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.vpermi2var.qi.512")
    return builder.call(function, [halves[0], index, halves[1]])


def _absolute_differences(builder):
    kind = ir.FunctionType(_LONGS, [_BYTES] * 2)
    return cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.psad.bw.512")

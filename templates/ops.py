"""The few machine operations that the pipelines need, over FlyDSL's MLIR dialects.

Everything here is straight-line: one call, one operation. Scheduling and waiting are the
pipelines' business.
"""

from __future__ import annotations

from typing import Any

import flydsl.expr as fx
from flydsl._mlir import ir
from flydsl._mlir.dialects import llvm
from flydsl._mlir.dialects import rocdl as dialect
from flydsl.expr import arith, rocdl
from flydsl.expr.typing import as_ir_value

# Word 3 of a raw buffer descriptor on gfx9: DATA_FORMAT 32, NUM_FORMAT uint, stride 0
# (CDNA4 ISA guide, buffer resource descriptor).
RAW_BUFFER_FLAGS = (7 << 12) | (4 << 15)
# An offset that no descriptor of this package covers: loads give 0, stores vanish.
OUT_OF_RANGE = -(2**31)
# VALU and SALU in the mask of amdgcn.sched.barrier (LLVM AMDGPU usage, llvm.amdgcn.sched.barrier).
_ARITHMETIC = 0x2 | 0x4


def lds_pointer(address: fx.Int32) -> ir.Value:
    """An LLVM pointer into LDS from a byte address."""
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr<3>"), as_ir_value(address))


def buffer(address: fx.Int64, num_bytes: fx.Int32) -> ir.Value:
    """A raw buffer descriptor over ``num_bytes`` from a global byte address."""
    return dialect.make_buffer_rsrc(
        ir.Type.parse("!llvm.ptr<8>"),
        _global_pointer(address),
        fx.Int16(0).ir_value(),
        as_ir_value(fx.Int64(num_bytes)),
        fx.Int32(RAW_BUFFER_FLAGS).ir_value(),
    )


def load_to_lds(
    rsrc: ir.Value, lds: fx.Int32, offset: fx.Int32, size: int, skipped: fx.Int32 | None = None
) -> None:
    """Start a DMA of ``size`` bytes a lane into LDS, lane after lane from ``lds``.

    Counted by vmcnt; nothing else waits for it.

    Args:
        rsrc: descriptor of the memory.
        lds: LDS address, the same in all lanes.
        offset: of a lane; size: its bytes.
        skipped: bytes from the descriptor's start to where all lanes count from, not negative; it
            narrows the range that is checked (CDNA4 ISA guide, 9.1.5.4, raw buffers).
    """
    zero = fx.Int32(0).ir_value()
    shared = zero if skipped is None else as_ir_value(skipped)
    dialect.raw_ptr_buffer_load_async_lds(
        rsrc,
        lds_pointer(lds),
        fx.Int32(size).ir_value(),
        as_ir_value(offset),
        shared,
        zero,
        aux=ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 0),
    )


def buffer_load(rsrc: ir.Value, offset: fx.Int32, dtype: Any) -> Any:
    """Load one element of ``dtype`` a lane into a register."""
    value = rocdl.raw_ptr_buffer_load(
        dtype.ir_type, rsrc, as_ir_value(offset), fx.Int32(0).ir_value(), aux=0
    )
    return dtype(value)


def buffer_load_elements(
    rsrc: ir.Value, offset: fx.Int32, count: int, dtype: Any, skipped: fx.Int32 | None = None
) -> fx.Vector:
    """Load ``count`` neighbours of ``dtype`` a lane, at an offset that their size divides.

    Args:
        rsrc, offset, count, dtype: what to load; an offset of a lane.
        skipped: as in `load_to_lds`, and within the descriptor's range.
    """
    words = count * dtype.width // 32
    kind = fx.Vector.make_type(words, fx.Int32)
    shared = fx.Int32(0).ir_value() if skipped is None else as_ir_value(skipped)
    value = rocdl.raw_ptr_buffer_load(kind, rsrc, as_ir_value(offset), shared, aux=0)
    return fx.Vector(value).bitcast(dtype)


def _global_pointer(address: fx.Int64) -> ir.Value:
    return llvm.inttoptr(ir.Type.parse("!llvm.ptr<1>"), as_ir_value(address))


def atomic_add(address: fx.Int64, value: int) -> fx.Int32:
    """Add to a word that all compute units share; returns what it held before."""
    done = llvm.AtomicRMWOp(
        llvm.AtomicBinOp.add,
        _global_pointer(address),
        fx.Int32(value).ir_value(),
        llvm.AtomicOrdering.monotonic,
        syncscope="agent",
        alignment=4,
    )
    return fx.Int32(done.result)


def store_word(address: fx.Int64, value: int) -> None:
    """Store a word that all compute units share."""
    llvm.StoreOp(
        fx.Int32(value).ir_value(),
        _global_pointer(address),
        alignment=4,
        ordering=llvm.AtomicOrdering.monotonic,
        syncscope="agent",
    )


def fence(ordering: str) -> None:
    """Order this wave's memory accesses for all compute units: ``acquire`` or ``release``."""
    llvm.FenceOp(getattr(llvm.AtomicOrdering, ordering), syncscope="agent")


def divide(x: fx.Int32, y: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
    """Quotient and remainder of values that are not negative; less work than of signed ones."""
    quotient = fx.Int32(arith.divui(as_ir_value(x), as_ir_value(y)))
    return quotient, x - quotient * y


def divide_by(x: fx.Int32, divisor: Any) -> tuple[fx.Int32, fx.Int32]:
    """As `divide`, by a scalar whose `division.divider` the launch brings.

    Args:
        x: scalar.
        divisor: (it, its multiplier, its shift).
    """
    value, multiplier, shift = divisor
    wide = fx.Int64(arith.extui(fx.Int64.ir_type, as_ir_value(multiplier)))
    product = fx.Int64(arith.extui(fx.Int64.ir_type, as_ir_value(x + x))) * wide
    high = arith.shrui(as_ir_value(product), as_ir_value(fx.Int64(32)))
    quotient = fx.Int32(arith.trunci(fx.Int32.ir_type, high)) >> shift
    return quotient, x - quotient * value


def quotient(x: fx.Int32, power_of_two: int) -> fx.Int32:
    """x // power_of_two of a value that is not negative."""
    return x >> (power_of_two.bit_length() - 1)


def modulo(x: fx.Int32, power_of_two: int) -> fx.Int32:
    """x % power_of_two of a value that is not negative."""
    return x & (power_of_two - 1)


def remainder(x: fx.Int32, divisor: int) -> fx.Int32:
    """x % divisor of a value that is not negative."""
    if divisor & (divisor - 1) == 0:
        return modulo(x, divisor)
    return fx.Int32(arith.remui(as_ir_value(x), as_ir_value(fx.Int32(divisor))))


def uniform(value: fx.Int32) -> fx.Int32:
    """A value that is the same in all lanes, as a scalar."""
    return fx.Int32(rocdl.readfirstlane(fx.Int32.ir_type, value))


def from_here(value: Any, *, scalar: bool = True) -> Any:
    """The same value, of which the compiler computes nothing before what is above this.

    Args:
        value: an Int32 or Int64.
        scalar: it is the same in all lanes.
    """
    kind = "s" if scalar else "v"
    given = as_ir_value(value)
    # Side effects keep their order; what depends on one comes after it.
    held = llvm.inline_asm(given.type, [given], "", f"={kind},0", has_side_effects=True)
    return type(value)(held)


def kernel_arguments() -> fx.Int64:
    """Byte address of the kernel's arguments, in their order and each aligned to its size."""
    kind = ir.Type.parse("!llvm.ptr<4>")
    pointer = llvm.call_intrinsic(kind, "llvm.amdgcn.kernarg.segment.ptr", [], [], [])
    return fx.Int64(llvm.ptrtoint(fx.Int64.ir_type, pointer))


def load_constant(address: fx.Int64, kind: Any = fx.Int32) -> Any:
    """Load an integer that nothing writes while the kernel runs, at an address all lanes share."""
    pointer = llvm.inttoptr(ir.Type.parse("!llvm.ptr<4>"), as_ir_value(address))
    return kind(llvm.LoadOp(kind.ir_type, pointer, alignment=kind.width // 8).result)


def lane_of(value: fx.Int32, lane: Any) -> fx.Int32:
    """What one lane holds, as a scalar; ``lane`` is the same in all lanes."""
    return fx.Int32(dialect.readlane(fx.Int32.ir_type, as_ir_value(value), as_ir_value(lane)))


def from_lane(value: fx.Int32, lane: Any) -> fx.Int32:
    """What another lane of the wave holds; lanes count modulo 64."""
    index, source = as_ir_value(fx.Int32(lane) * 4), as_ir_value(value)
    return fx.Int32(dialect.ds_bpermute(fx.Int32.ir_type, index, source))


def count_lanes(condition: Any) -> fx.Int32:
    """In how many lanes a condition holds, as a scalar."""
    mask = dialect.ballot(fx.Int64.ir_type, as_ir_value(condition))
    return fx.Int32(fx.Int64(llvm.intr_ctpop(mask)))


def swap_odd_rows(x: fx.Int32, y: fx.Int32) -> tuple[fx.Int32, fx.Int32]:
    """Exchange the odd 16-lane rows of ``x`` with the even rows of ``y`` (v_permlane16_swap)."""
    word = fx.Int32.ir_type
    pair = ir.Type.parse("!llvm.struct<(i32, i32)>")
    both = dialect.permlane16_swap(pair, as_ir_value(x), as_ir_value(y), False, False)
    return fx.Int32(llvm.extractvalue(word, both, [0])), fx.Int32(
        llvm.extractvalue(word, both, [1])
    )


def buffer_store(
    value: Any, rsrc: ir.Value, offset: fx.Int32, skipped: fx.Int32 | None = None
) -> None:
    """Store a register value of 2 to 16 bytes a lane.

    Args:
        value, rsrc, offset: what goes where; an offset of a lane.
        skipped: as in `load_to_lds`, and within the descriptor's range.
    """
    shared = fx.Int32(0).ir_value() if skipped is None else as_ir_value(skipped)
    aux = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 0)
    dialect.raw_ptr_buffer_store(as_ir_value(value), rsrc, as_ir_value(offset), shared, aux=aux)


def lds_load(address: fx.Int32, lanes: int, dtype: Any) -> fx.Vector:
    """Read ``lanes`` elements from an address that is aligned to their size together."""
    kind = fx.Vector.make_type(lanes, dtype)
    size = lanes * dtype.width // 8
    value = llvm.LoadOp(kind, lds_pointer(address), alignment=size).result
    return fx.Vector(value)


def lds_load_word(address: fx.Int32, size: int) -> fx.Int32:
    """Read 1, 2 or 4 bytes from an address that is aligned to them, the rest zeros."""
    if size == 4:
        return lds_load(address, 1, fx.Int32)[0]
    kind = ir.IntegerType.get_signless(8 * size)
    value = llvm.LoadOp(kind, lds_pointer(address), alignment=size).result
    return fx.Int32(llvm.zext(fx.Int32.ir_type, value))


def lds_load_transposed(address: fx.Int32, dtype: Any) -> fx.Vector:
    """Read 4 16-bit elements a lane, transposed within each 16 lanes (ds_read_b64_tr_b16)."""
    kind = fx.Vector.make_type(4, dtype)
    return fx.Vector(dialect.ds_read_tr16_b64(kind, lds_pointer(address)).result)


def lds_load_transposed_bytes(address: fx.Int32) -> fx.Vector:
    """Read 8 bytes a lane as 2 Int32, transposed within each 16 lanes (ds_read_b64_tr_b8).

    Two lanes bring 16 bytes of a line, 16 lanes 8 lines; lane i gets byte i of each.
    """
    kind = fx.Vector.make_type(2, fx.Int32)
    return fx.Vector(dialect.ds_read_tr8_b64(kind, lds_pointer(address)).result)


def lds_store(value: Any, address: fx.Int32, size: int) -> None:
    """Write a value of ``size`` bytes to an aligned LDS address."""
    llvm.StoreOp(as_ir_value(value), lds_pointer(address), alignment=size)


def mfma(a: Any, b: Any, c: Any) -> fx.Vector:
    """One 16x16x32 product of 8-element fragments: c + a·b in fp32."""
    op = rocdl.mfma_f32_16x16x32_f16 if a.dtype is fx.Float16 else rocdl.mfma_f32_16x16x32_bf16
    kind = fx.Vector.make_type(4, fx.Float32)
    return fx.Vector(op(kind, [as_ir_value(a), as_ir_value(b), as_ir_value(c), 0, 0, 0]))


def mfma_f8f6f4(
    values: tuple[Any, Any],
    c: Any,
    formats: tuple[int, int],
    scales: tuple[Any, Any] | None,
    byte: int,
) -> fx.Vector:
    """One 16x16x128 product of 8- or 4-bit fragments: c + a·b in fp32.

    Args:
        values: a and b, 8 dwords a lane of FP8, 4 of FP4.
        c: 4 fp32 a lane.
        formats: CBSZ and BLGP.
        scales: E8M0 codes of a and of b, 4 a dword, each for the 32 elements of the lane's block;
            None is 1 everywhere.
        byte: which of the 4 to take.
    """
    one = fx.Int32(0)
    # With constant zeros LLVM emits the unscaled instruction.
    left, right = scales or (one, one)
    byte = byte if scales else 0
    kind = fx.Vector.make_type(4, fx.Float32)
    a, b = (as_ir_value(v) for v in values)
    arguments = (as_ir_value(c), *formats, byte, as_ir_value(left), byte, as_ir_value(right))
    return fx.Vector(rocdl.mfma_scale_f32_16x16x128_f8f6f4(kind, [a, b, *arguments]))


def mfma_f8f6f4_agprs(
    values: tuple[Any, Any], c: Any, formats: tuple[int, int], scales: tuple[Any, Any], byte: int
) -> fx.Vector:
    """`mfma_f8f6f4` whose accumulator is in AGPRs, wherever LLVM would put it.

    LLVM prefers VGPRs, of which a lane has 256, and copies what is beyond that to and fro. It
    knows nothing of the instruction: `settle` before the result is used by anything else.
    """
    select = f"op_sel:[{byte & 1},{byte & 1},0] op_sel_hi:[{byte >> 1},{byte >> 1},0]"
    text = f"v_mfma_scale_f32_16x16x128_f8f6f4 $0, $1, $2, $0, $3, $4 {select}"
    text += f" cbsz:{formats[0]} blgp:{formats[1]}"
    given = [as_ir_value(x) for x in (*values, *scales, c)]
    kind = fx.Vector.make_type(4, fx.Float32)
    return fx.Vector(llvm.inline_asm(kind, given, text, "=a,v,v,v,v,0"))


def settle() -> None:
    """Let the results of matrix instructions of up to 16 passes be there (20 wait states)."""
    rocdl.sched_barrier(0)
    for states in (16, 4):
        llvm.inline_asm(None, [], f"s_nop {states - 1}", "", has_side_effects=True)
    rocdl.sched_barrier(0)


def filled(value: Any) -> fx.Vector:
    """An accumulator that starts with a value: 4 fp32 a lane."""
    return fx.Vector.filled(4, value, fx.Float32)


def set_priority(level: int) -> None:
    """The wave's priority at instruction issue, 0 to 3."""
    rocdl.sched_barrier(0)
    rocdl.s_setprio(level)
    rocdl.sched_barrier(0)


def keep_order() -> None:
    """The compiler moves nothing across."""
    rocdl.sched_barrier(0)


def keep_slots() -> None:
    """The compiler moves nothing but scalar and vector arithmetic across."""
    rocdl.sched_barrier(_ARITHMETIC)


def wait(*, vmcnt: int | None = None, lgkmcnt: int | None = None) -> None:
    """Wait until at most this many operations are in flight; the compiler moves nothing across."""
    rocdl.sched_barrier(0)
    rocdl.s_waitcnt(vmcnt=vmcnt, lgkmcnt=lgkmcnt)
    rocdl.sched_barrier(0)


def barrier() -> None:
    """Meet every wave of the workgroup. Waits for no memory by itself."""
    rocdl.sched_barrier(0)
    rocdl.s_barrier()
    rocdl.sched_barrier(0)

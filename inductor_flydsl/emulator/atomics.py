"""Atomic read-modify-write operations, on host memory and LDS alike.

Owns what each atomic computes and the order of clashing lanes: lane by lane, wave by wave. Knows
nothing of instructions' operands or of memory regions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

U32, U64 = np.uint32, np.uint64


@dataclass(frozen=True)
class Atomic:
    """new = fn(old, data) on arrays of `dtype`; `sources` data operands (2 for compare-swap)."""

    dtype: Any
    fn: Callable[..., np.ndarray]
    sources: int = 1


def _bf16_to_f32(half: np.ndarray) -> np.ndarray:
    return (half.astype(U32) << U32(16)).view(np.float32)


def _f32_to_bf16(value: np.ndarray) -> np.ndarray:
    bits = np.ascontiguousarray(value, np.float32).view(U32)
    rounded = bits + U32(0x7FFF) + ((bits >> U32(16)) & U32(1))
    out = np.where(np.isnan(value), bits | U32(0x400000), rounded) >> U32(16)
    return out.astype(np.uint16)


def _pk_bf16(old: np.ndarray, data: np.ndarray) -> np.ndarray:
    a, b = (np.ascontiguousarray(x).view(np.uint16) for x in (old, data))
    return _f32_to_bf16(_bf16_to_f32(a) + _bf16_to_f32(b)).view(U32)


def _pk_f16(old: np.ndarray, data: np.ndarray) -> np.ndarray:
    a, b = (np.ascontiguousarray(x).view(np.float16) for x in (old, data))
    return (a + b).view(U32)


def _inc(old: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where(old >= limit, old.dtype.type(0), old + old.dtype.type(1))


def _dec(old: np.ndarray, limit: np.ndarray) -> np.ndarray:
    return np.where((old == 0) | (old > limit), limit, old - old.dtype.type(1))


def _compare_swap(old: np.ndarray, new: np.ndarray, compare: np.ndarray) -> np.ndarray:
    return np.where(old == compare, new, old)


def _integer_ops(unsigned: Any, signed: Any) -> dict[str, Atomic]:
    return {
        "add": Atomic(unsigned, np.add),
        "sub": Atomic(unsigned, np.subtract),
        "rsub": Atomic(unsigned, lambda old, x: x - old),
        "smin": Atomic(signed, np.minimum),
        "smax": Atomic(signed, np.maximum),
        "umin": Atomic(unsigned, np.minimum),
        "umax": Atomic(unsigned, np.maximum),
        "and": Atomic(unsigned, np.bitwise_and),
        "or": Atomic(unsigned, np.bitwise_or),
        "xor": Atomic(unsigned, np.bitwise_xor),
        "inc": Atomic(unsigned, _inc),
        "dec": Atomic(unsigned, _dec),
        "swap": Atomic(unsigned, lambda old, x: x),
        "cmpswap": Atomic(unsigned, _compare_swap, 2),
    }


# Names as in global_atomic_NAME and buffer_atomic_NAME.
GLOBAL_ATOMICS: dict[str, Atomic] = {
    **_integer_ops(U32, np.int32),
    **{f"{name}_x2": op for name, op in _integer_ops(U64, np.int64).items()},
    "add_f32": Atomic(np.float32, np.add),
    "pk_add_f16": Atomic(U32, _pk_f16),
    "pk_add_bf16": Atomic(U32, _pk_bf16),
    "add_f64": Atomic(np.float64, np.add),
    "min_f64": Atomic(np.float64, np.fmin),
    "max_f64": Atomic(np.float64, np.fmax),
}


def _lds_table() -> dict[str, Atomic]:
    table: dict[str, Atomic] = {}
    for suffix, ops in (("32", _integer_ops(U32, np.int32)), ("64", _integer_ops(U64, np.int64))):
        for name in ("add", "sub", "rsub", "inc", "dec"):
            table[f"{name}_u{suffix}"] = ops[name]
        for name in ("and", "or", "xor"):
            table[f"{name}_b{suffix}"] = ops[name]
        for name in ("min", "max"):
            table[f"{name}_i{suffix}"] = ops[f"s{name}"]
            table[f"{name}_u{suffix}"] = ops[f"u{name}"]
        table[f"wrxchg_b{suffix}"] = ops["swap"]
        # DS compare-store lists the comparand first.
        table[f"cmpst_b{suffix}"] = Atomic(
            ops["swap"].dtype, lambda old, cmp, new: _compare_swap(old, new, cmp), 2
        )
    for name, fn in (("add", np.add), ("min", np.fmin), ("max", np.fmax)):
        table[f"{name}_f32"] = Atomic(np.float32, fn)
        table[f"{name}_f64"] = Atomic(np.float64, fn)
    table["pk_add_f16"] = Atomic(U32, _pk_f16)
    table["pk_add_bf16"] = Atomic(U32, _pk_bf16)
    return table


# Names as in ds_NAME and, with "_rtn" taken out, ds_NAME_rtn_TYPE.
LDS_ATOMICS: dict[str, Atomic] = _lds_table()


def apply_atomic(op: Atomic, memory: np.ndarray, index: np.ndarray,
                 data: tuple[np.ndarray, ...]) -> np.ndarray:  # fmt: skip
    """Applies `op` at memory[index] for each element in turn; returns the old values.

    memory: flat array of op.dtype's size; index, data: one-dimensional, same length.
    """
    typed = memory.view(op.dtype)
    values = [np.ascontiguousarray(x).view(op.dtype) for x in data]
    old = np.empty(len(index), op.dtype)
    order = np.argsort(index, kind="stable")
    ranked = index[order]
    first = np.r_[True, ranked[1:] != ranked[:-1]]
    start = np.maximum.accumulate(np.where(first, np.arange(len(index)), 0))
    rank = np.arange(len(index)) - start
    for turn in range(int(rank.max()) + 1):
        rows = order[rank == turn]
        at = index[rows]
        old[rows] = typed[at]
        typed[at] = op.fn(typed[at], *[x[rows] for x in values])
    return old

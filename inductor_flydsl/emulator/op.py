"""The record that describes one scalar or vector opcode to the engine.

Owns the operand-type vocabulary and the error for an opcode without a model. Knows nothing of
registers, EXEC, parsing or waves: an ``Op`` is a pure function on numpy arrays plus its types.

Types: ``u32 i32 f32 u64 i64 f64 f16 u16 i16`` are the numpy dtypes of the same name; ``bf16`` is
uint16 bits, ``b16 b32 b64`` are unsigned bits, ``mask`` is one bool per lane, ``imm16`` is the
immediate of a SOPK instruction (only its low 16 bits are read). A wider type ``bN`` (b96, b128,
b192, b512, b1024) is a uint32 array with a leading axis of N/32 registers, low register first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

DTYPES: dict[str, np.dtype] = {
    name: np.dtype(dtype)
    for name, dtype in {
        "u16": np.uint16, "i16": np.int16, "f16": np.float16, "bf16": np.uint16, "b16": np.uint16,
        "u32": np.uint32, "i32": np.int32, "f32": np.float32, "b32": np.uint32,
        "u64": np.uint64, "i64": np.int64, "f64": np.float64, "b64": np.uint64,
        "mask": np.bool_, "imm16": np.int32,
    }.items()
}  # fmt: skip
"""Operand type → numpy dtype of one element (wide ``bN`` types are stacks of uint32)."""


class NotSupported(NotImplementedError):
    """An instruction or modifier exists on gfx950 but has no model here."""


@dataclass(frozen=True)
class Op:
    """One opcode: its operand types in assembly order and its function.

    ``fn(*src, *implicit_src, **mods)`` returns one array, or a tuple of one array per ``dst``
    followed by one per ``implicit_dst``. Vector operands are (W, 64) or broadcast (W, 1); scalar
    opcodes work on (W,). ``scc`` is bool (W,). ``exec`` and ``vcc`` are uint64 (W,) for "salu",
    one bool per lane otherwise. ``dst`` as an implicit source is the old destination value.
    ``mods`` names the keyword ints ``fn`` takes; list modifiers (op_sel, op_sel_hi) come as a bit
    mask whose bit i is list element i.

    ``exact`` is ``fn`` on int64 arrays without wrapping, for the clamp of an integer result; an
    opcode that has none takes no clamp.

    For kind "vop3p" the engine splits packed sources by op_sel/op_sel_hi and calls ``fn`` once
    per half. The engine applies neg/abs, clamp, omod, EXEC and SDWA/DPP around ``fn``.
    """

    dst: tuple[str, ...]
    src: tuple[str, ...]
    fn: Callable[..., Any]
    mods: tuple[str, ...] = ()
    implicit_src: tuple[str, ...] = ()
    implicit_dst: tuple[str, ...] = ()
    kind: str = "valu"
    exact: Callable[..., Any] | None = None


class OpTable(dict[str, Op]):
    """A dict of opcodes with a one-line way to add one; types are space-separated words."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind

    def add(self, name: str, dst: str, src: str, fn: Callable[..., Any], *,
            exact: Callable[..., Any] | None = None, **extra: str) -> None:  # fmt: skip
        """Add mnemonic ``name``; ``extra`` are Op fields, tuples given as space-separated words.

        Raises ValueError if ``name`` is already there: two models of one opcode is a mistake.
        """
        if name in self:
            raise ValueError(f"opcode {name!r} is defined twice; keep one definition")
        kind = extra.pop("kind", self._kind)
        words = {field: tuple(text.split()) for field, text in extra.items()}
        self[name] = Op(
            tuple(dst.split()), tuple(src.split()), fn, kind=kind,
            mods=words.pop("mods", ()),
            implicit_src=words.pop("implicit_src", ()),
            implicit_dst=words.pop("implicit_dst", ()),
            exact=exact,
        )  # fmt: skip
        if words:
            raise TypeError(f"opcode {name!r}: Op has no field {sorted(words)}")

"""One line of AMDGPU assembly → an `Instruction` with typed operands.

Owns the operand and modifier grammar (LLVM "Syntax of AMDGPU Instruction Operands/Modifiers").
Knows nothing of what an instruction does, of kernels, or of registers' contents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from .errors import ProgramError

# Scalar operand encodings of CDNA3/4 (ISA guide, "Scalar ALU operands"); (index, registers).
SPECIAL_SGPRS: dict[str, tuple[int, int]] = {
    "flat_scratch": (102, 2), "flat_scratch_lo": (102, 1), "flat_scratch_hi": (103, 1),
    "xnack_mask": (104, 2), "xnack_mask_lo": (104, 1), "xnack_mask_hi": (105, 1),
    "vcc": (106, 2), "vcc_lo": (106, 1), "vcc_hi": (107, 1),
    "m0": (124, 1),
    "exec": (126, 2), "exec_lo": (126, 1), "exec_hi": (127, 1),
}  # fmt: skip
TTMP_BASE = 108
VCC, M0, EXEC = 106, 124, 126

FLAGS = frozenset({
    "offen", "idxen", "lds", "gds", "sc0", "sc1", "nt", "glc", "slc", "dlc", "tfe", "addr64",
    "clamp", "high", "row_mirror", "row_half_mirror", "bound_ctrl",
})  # fmt: skip
_ENCODINGS = ("_e32", "_e64_dpp", "_e64", "_sdwa", "_dpp")
_REG = re.compile(r"^(v|a|s|ttmp)(?:(\d+)|\[(\w+)(?::(\w+))?\])$")
_SYMBOLIC = re.compile(r"^[A-Za-z_.$][\w.$@]*$")


@dataclass(frozen=True)
class Operand:
    """An operand as written.

    kind: "v" | "a" | "s" (index, count registers) | "int" | "float" | "symbol" (an expression of
    labels) | "off" | "null" | "special" (src_*, hwreg(...), sendmsg(...): see `text`).
    """

    kind: str
    text: str
    index: int = 0
    count: int = 1
    value: int | float = 0
    neg: bool = False
    abs: bool = False
    sext: bool = False


@dataclass(frozen=True)
class Instruction:
    """One decoded line.

    base: the mnemonic without its encoding suffix; encoding: that suffix. mods: modifiers by name
    (1 for a flag). extra: the counters of an s_waitcnt. source: file:line of a .loc directive.
    pc: index in its program.
    """

    mnemonic: str
    base: str
    encoding: str
    operands: tuple[Operand, ...]
    mods: Mapping[str, object]
    line: int
    text: str
    source: str = ""
    pc: int = 0
    extra: Mapping[str, int] = field(default_factory=dict)


def split_top(text: str, separators: str) -> list[str]:
    """Splits at `separators` outside of brackets and quotes; drops empty parts."""
    parts, depth, start, quote = [], 0, 0, False
    for i, ch in enumerate(text):
        if ch == '"':
            quote = not quote
        elif quote:
            continue
        elif ch in "([":
            depth += 1
        elif ch in ")]":
            depth -= 1
        elif depth == 0 and ch in separators:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def parse_int(text: str) -> int:
    """An integer literal in any base of the assembler; raises ValueError."""
    text = text.strip()
    if re.fullmatch(r"-?0\d+", text):  # a leading 0 is octal to the assembler
        return int(text, 8)
    return int(text, 0)


def _register(text: str) -> Operand | None:
    match = _REG.match(text)
    if match:
        bank, single, first, last = match.groups()
        lo = parse_int(single if single is not None else first)
        count = parse_int(last) - lo + 1 if last else 1
        if bank == "ttmp":
            return Operand("s", text, TTMP_BASE + lo, count)
        return Operand(bank, text, lo, count)
    if text in SPECIAL_SGPRS:
        index, count = SPECIAL_SGPRS[text]
        return Operand("s", text, index, count)
    if text.startswith("["):  # a register list such as [s4, s5]; contiguous by the assembler's rule
        regs = [_register(part) for part in split_top(text[1:-1], ",")]
        if regs and regs[0] is not None:
            return Operand(regs[0].kind, text, regs[0].index, len(regs))
    return None


def _number(text: str) -> Operand | None:
    try:
        return Operand("int", text, value=parse_int(text))
    except ValueError:
        pass
    try:
        return Operand("float", text, value=float(text))
    except ValueError:
        return None


def _modified(text: str) -> Operand | None:
    """Sign, magnitude and sign-extension wrappers: -v1, |v1|, -|v1|, neg(v1), abs(v1), sext(v1)."""
    for opening, closing, name in (
        ("|", "|", "abs"), ("abs(", ")", "abs"), ("neg(", ")", "neg"), ("sext(", ")", "sext"),
    ):  # fmt: skip
        if text.startswith(opening) and text.endswith(closing) and len(text) > len(opening):
            inner = _operand(text[len(opening) : -len(closing)])
            return inner and Operand(**{**inner.__dict__, name: True, "text": text})
    if text.startswith("-"):
        inner = _operand(text[1:])
        return inner and Operand(**{**inner.__dict__, "neg": True, "text": text})
    return None


@lru_cache(maxsize=4096)
def _operand(text: str) -> Operand | None:
    """The operand that `text` writes, None if it is none; kernels repeat few operands often."""
    if text in ("off", "null"):
        return Operand(text, text)
    found = _register(text) or _number(text) or _modified(text)
    if found is not None:
        return found
    if text.startswith(("src_", "hwreg(", "sendmsg(", "vccz", "execz", "scc", "lds_direct")):
        return Operand("special", text)
    if text.startswith("lit("):
        return _operand(text[4:-1])
    if _SYMBOLIC.match(text) or any(ch in text for ch in "+-()&"):
        return Operand("symbol", text)
    return None


def parse_operand(text: str, line: int = 0) -> Operand:
    """Parses one operand; raises ProgramError naming the line."""
    found = _operand(text.strip())
    if found is None:
        raise ProgramError(f"operand {text!r} not understood", line)
    return found


def _modifier_value(text: str) -> object:
    if text.startswith("["):
        return tuple(_modifier_value(part) for part in split_top(text[1:-1], ","))
    try:
        return parse_int(text)
    except ValueError:
        return text


def is_modifier(token: str) -> bool:
    """Whether a token is a modifier rather than an operand."""
    if token in FLAGS:
        return True
    name, colon, _ = token.partition(":")
    return bool(colon) and bool(re.fullmatch(r"[a-z_][a-z_0-9]*", name))


def _add_modifier(token: str, mods: dict[str, object]) -> None:
    name, colon, value = token.partition(":")
    mods[name] = _modifier_value(value) if colon else 1


def split_encoding(mnemonic: str) -> tuple[str, str]:
    """'v_add_f32_e64' → ('v_add_f32', 'e64')."""
    for suffix in _ENCODINGS:
        if mnemonic.endswith(suffix):
            return mnemonic[: -len(suffix)], suffix[1:]
    return mnemonic, ""


def wait_counts(text: str, line: int) -> dict[str, int]:
    """Counters of an s_waitcnt; a bare integer is the gfx9 encoding (LLVM `s_waitcnt` syntax)."""
    try:
        value = parse_int(text)
    except ValueError:
        found = dict(re.findall(r"(vmcnt|lgkmcnt|expcnt)(?:_sat)?\(([^)]*)\)", text))
        if not found:
            raise ProgramError(f"s_waitcnt counters {text!r} not understood", line) from None
        return {name: parse_int(count) for name, count in found.items()}
    counts = {"vmcnt": (value & 15) | (value >> 10 & 0x30), "lgkmcnt": value >> 8 & 15}
    full = {"vmcnt": 63, "lgkmcnt": 15}
    return {name: count for name, count in counts.items() if count != full[name]}


def parse_instruction(text: str, line: int, source: str = "", pc: int = 0) -> Instruction:
    """Parses one instruction (comments already gone); raises ProgramError naming the line."""
    mnemonic, _, rest = text.replace("\t", " ").strip().partition(" ")
    rest = rest.strip()
    base, encoding = split_encoding(mnemonic)
    operands: list[Operand] = []
    mods: dict[str, object] = {}
    extra: dict[str, int] = {}
    if base == "s_waitcnt":
        extra = wait_counts(rest, line)
    else:
        for piece in split_top(rest, ","):
            for token in split_top(piece, " "):
                if is_modifier(token):
                    _add_modifier(token, mods)
                else:
                    operands.append(parse_operand(token, line))
    return Instruction(
        mnemonic, base, encoding, tuple(operands), mods, line, text.strip(), source, pc, extra
    )

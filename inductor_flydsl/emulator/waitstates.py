"""Software wait states: instructions too close behind the matrix instruction they depend on.

Owns a static walk over a kernel's code; hardware doesn't interlock these cases, compilers put
s_nop there, inline assembly must. Knows nothing of a run. Rules: AMD "CDNA3 ISA" guide, "Manually
Inserted Wait States", and rocRoller's XDLWrite94x, which covers CDNA4; LLVM asks one state more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .asm import Instruction, Operand
from .mfma_ops import MFMA, MfmaOp
from .program import Kernel, Program

# Passes of the matrix instruction → wait states before its result may be touched; f32 products,
# which don't use the XDL unit, need one less, and f64 products, with rules of their own, aren't
# judged.
_STATES = {2: 5, 4: 7, 8: 11, 16: 19}
_SAME_ACCUMULATOR = {2: 2}
_STOPS = ("s_endpgm", "s_setpc_b64", "s_swappc_b64")
_VECTOR = ("v_", "ds_", "buffer_", "global_", "flat_", "scratch_")


@dataclass(frozen=True)
class TooClose:
    """`user` follows `producer` by `states` wait states and needs `needed`."""

    producer: Instruction
    user: Instruction
    states: int
    needed: int


def _passes(inst: Instruction, op: MfmaOp) -> int:
    formats = [int(str(inst.mods.get(name, 0))) for name in ("cbsz", "blgp")]
    return op.passes_for(*formats)


def _overlap(a: Operand, b: Operand) -> bool:
    if a.kind != b.kind or a.kind not in ("v", "a"):
        return False
    return a.index < b.index + b.count and b.index < a.index + a.count


def _full(op: MfmaOp, passes: int) -> int:
    if op.cd == "f64":
        return 0
    return _STATES[passes] - int(op.a == "f32")


def needed_states(producer: Instruction, user: Instruction) -> int:
    """Wait states that `user` needs behind a matrix instruction; 0 where they share no register."""
    op = MFMA[producer.base]
    result = producer.operands[0]
    passes = _passes(producer, op)
    full = _full(op, passes)
    if user.base not in MFMA:
        vector = user.base.startswith(_VECTOR)
        return full if vector and any(_overlap(result, o) for o in user.operands) else 0
    target, a, b, accumulator = user.operands[:4]
    if any(_overlap(result, o) for o in (a, b, *user.operands[4:])):
        return full
    for operand in (accumulator, target):
        if _overlap(result, operand):
            same = (operand.index, operand.count) == (result.index, result.count)
            return _SAME_ACCUMULATOR.get(passes, 0) if same else passes
    return 0


def _successors(program: Program, pc: int) -> Iterator[int]:
    inst = program.instructions[pc]
    branch = inst.base.startswith(("s_branch", "s_cbranch_")) and inst.operands
    if branch and inst.operands[0].text in program.labels:
        yield program.labels[inst.operands[0].text]
    falls = inst.base not in _STOPS and inst.base != "s_branch"
    if falls and pc + 1 < len(program.instructions):
        yield pc + 1


def _reachable(program: Program, entry: int) -> list[int]:
    seen, todo = {entry}, [entry]
    while todo:
        for following in _successors(program, todo.pop()):
            if following < len(program.instructions) and following not in seen:
                seen.add(following)
                todo.append(following)
    return sorted(seen)


def _states_of(inst: Instruction) -> int:
    return int(inst.operands[0].value) + 1 if inst.base == "s_nop" else 1


def _behind(program: Program, pc: int, op: MfmaOp) -> Iterator[TooClose]:
    producer = program.instructions[pc]
    most = _full(op, _passes(producer, op))
    best: dict[int, int] = {}
    todo = [(following, 0) for following in _successors(program, pc)]
    while todo:
        at, states = todo.pop()
        if states >= most or at >= len(program.instructions) or best.get(at, most) <= states:
            continue
        best[at] = states
        user = program.instructions[at]
        needed = needed_states(producer, user)
        if needed > states:
            yield TooClose(producer, user, states, needed)
        todo += [(following, states + _states_of(user)) for following in _successors(program, at)]


def too_close(kernel: Kernel) -> tuple[TooClose, ...]:
    """Every dependent pair of `kernel` with too few wait states between; kept with the program."""
    program = kernel.program
    key = ("wait states", kernel.name)
    known = program.decoded.get(key)
    if isinstance(known, tuple):
        return known
    found = tuple(
        pair
        for pc in _reachable(program, kernel.entry)
        if (op := MFMA.get(program.instructions[pc].base)) is not None
        for pair in _behind(program, pc, op)
    )
    program.decoded[key] = found
    return found

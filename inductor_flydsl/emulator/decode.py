"""Instruction → closure: asks each instruction family in turn.

Owns the dispatch and the hazard wrapper. Decoding is lazy: code[pc] starts as a stub that puts
the real closure in its place, so instructions that never run need no semantics.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .alu import OPS
from .asm import Instruction
from .control import compile_flow, compile_salu
from .defined import Uses
from .errors import UnknownInstruction
from .hazards import checked
from .lanes import compile_lanes
from .lds import compile_ds
from .matrix import compile_matrix
from .op import NotSupported
from .operands import Decoder
from .program import Program
from .smem import compile_smem
from .state import Cohort
from .vector import compile_vector
from .vmem import compile_vmem

Run = Callable[[Cohort], Any]


def decode_one(program: Program, pc: int, findings: bool) -> Run:
    """The closure of one instruction. Raises UnknownInstruction naming it and its line."""
    inst = program.instructions[pc]
    d = Decoder(program, inst)
    try:
        run = _dispatch(d)
    except (IndexError, KeyError, ValueError, OverflowError, NotSupported) as error:
        reason = f"this form isn't understood ({error})"
        raise UnknownInstruction(inst.mnemonic, inst.text, inst.line, reason) from error
    if run is None:
        raise UnknownInstruction(inst.mnemonic, inst.text, inst.line)
    if findings:
        return checked(run, inst, Uses(frozenset(d.reads), frozenset(d.writes), d.bits, d.sets))
    return run


def registers_of(program: Program, inst: Instruction) -> tuple[frozenset[int], frozenset[int]]:
    """Registers that an instruction reads and writes: rows of V, scalar ones from SGPR_KEY up."""
    d = Decoder(program, inst)
    _dispatch(d)
    return frozenset(d.reads), frozenset(d.writes)


def _dispatch(d: Decoder) -> Run | None:
    inst = d.inst
    for family in (compile_flow, compile_lanes, compile_matrix, compile_ds, compile_smem):
        run = family(d, inst)
        if run is not None:
            return run
    op = OPS.get(inst.base) or OPS.get(inst.mnemonic)
    if op is not None:
        if op.kind == "salu":
            return compile_salu(d, inst, op)
        return compile_vector(d, inst, op)
    return compile_vmem(d, inst)


def code_of(program: Program, findings: bool) -> list[Run]:
    """The program's closures, decoded as they are first run; kept with the program."""
    key = ("code", findings)
    known = program.decoded.get(key)
    if isinstance(known, list):
        return known
    code: list[Run] = []
    for pc in range(len(program.instructions)):
        code.append(_stub(program, pc, findings, code))
    program.decoded[key] = code
    return code


def _stub(program: Program, pc: int, findings: bool, code: list[Run]) -> Run:
    def first(c: Cohort) -> Any:
        run = decode_one(program, pc, findings)
        try:
            jump = run(c)
        except NotSupported as error:
            inst = program.instructions[pc]
            raise UnknownInstruction(inst.mnemonic, inst.text, inst.line, str(error)) from error
        code[pc] = run
        return jump

    return first

"""ISA text → `Program`: instructions, labels, and each kernel's ABI and resources.

Owns sections, directives, symbols, debug lines and the kernel descriptor. Knows nothing of what
instructions do. Directives: LLVM "User Guide for AMDGPU Backend", "HSA Assembler Directives" and
"Code Object Metadata".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from .asm import Instruction, Operand, parse_instruction, parse_int
from .errors import ProgramError, TruncatedProgram, WrongArch
from .metadata import Value, parse_metadata

ARCH = "gfx950"
CODE_BASE = 0x7E0000000000
"""Emulated address of the first instruction; each takes CODE_STEP bytes."""
CODE_STEP = 8

_REGISTERS = {"v": 256, "a": 256, "s": 102}
_LABEL = re.compile(r"^([A-Za-z_.$][\w.$@]*):\s*(.*)$")


@dataclass(frozen=True)
class KernelArg:
    """One kernel argument: byte offset and size in the kernarg segment, and LLVM's value_kind."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True)
class Resources:
    """What a kernel takes, from its metadata: registers a lane, bytes, spilled registers.

    vgpr and agpr share one file of 512 a SIMD and lane; neither counts the other's.
    """

    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int


@dataclass(frozen=True)
class Kernel:
    """An entry point: `entry` indexes its program's instructions; `hsa` holds .amdhsa_ values."""

    name: str
    entry: int
    args: tuple[KernelArg, ...]
    kernarg_size: int
    resources: Resources
    hsa: Mapping[str, int]
    reqd_workgroup_size: tuple[int, int, int] | None
    max_workgroup_size: int
    program: Program = field(repr=False)


@dataclass
class Program:
    """A parsed module. `kernels` by name; `labels` map to instruction indices.

    vgprs, agprs, sgprs: one more than the largest register index the text names.
    """

    instructions: tuple[Instruction, ...]
    labels: dict[str, int]
    symbols: dict[str, int]
    kernels: dict[str, Kernel] = field(default_factory=dict)
    vgprs: int = 1
    agprs: int = 0
    sgprs: int = 0
    decoded: dict[object, object] = field(default_factory=dict, repr=False)

    def kernel(self, name: str = "") -> Kernel:
        """The kernel called `name`, or the only one. Raises ProgramError listing the names."""
        if not name and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name not in self.kernels:
            raise ProgramError(f"no kernel {name!r}; there are {sorted(self.kernels)}")
        return self.kernels[name]

    def evaluate(self, operand: Operand, line: int = 0) -> int:
        """Value of a label expression such as `.LBB0_5-.Lpost+4`; raises ProgramError."""
        text = re.sub(r"@(?:rel32|abs32|gotpcrel32)?@?(?:lo|hi)?", "", operand.text)
        total, sign = 0, 1
        for token in re.findall(r"[-+&()]|[\w.$]+", text):
            if token in "+-":
                sign = -1 if token == "-" else 1
            elif token == "&":  # LLVM masks halves of a label difference: (a-b)&4294967295
                break
            elif token not in "()":
                total += sign * self._symbol(token, line)
                sign = 1
        return total

    def _symbol(self, name: str, line: int) -> int:
        if name in self.labels:
            return CODE_BASE + CODE_STEP * self.labels[name]
        if name in self.symbols:
            return self.symbols[name]
        try:
            return parse_int(name)
        except ValueError:
            raise ProgramError(f"symbol {name!r} is not defined in the text", line) from None


class _Parser:
    """Walks the text once; `finish` builds the Program."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.instructions: list[Instruction] = []
        self.labels: dict[str, int] = {}
        self.symbols: dict[str, int] = {}
        self.hsa: dict[str, dict[str, int]] = {}
        self.files: dict[str, str] = {}
        self.metadata: dict[str, Value] | None = None
        self.source = ""
        self.in_text = False
        self.open_kernel = ""
        self.seen_target = False
        self.lds_top = 0

    def parse(self) -> Program:
        at = 0
        while at < len(self.lines):
            line = self.lines[at].split(";", 1)[0].split("//", 1)[0].strip()
            at += 1
            label = _LABEL.match(line)
            while label:
                self.labels[label.group(1)] = len(self.instructions)
                line = label.group(2)
                label = _LABEL.match(line)
            if line == ".amdgpu_metadata":
                at = self.read_metadata(at)
                continue
            try:
                self.one(line, at)
            except (ValueError, IndexError, KeyError) as error:
                raise ProgramError(f"{line!r} is not understood ({error})", at) from error
        return self.finish()

    def one(self, line: str, at: int) -> None:
        if line.startswith("."):
            self.directive(line, at)
        elif line and self.in_text:
            pc = len(self.instructions)
            self.instructions.append(parse_instruction(line, at, self.source, pc))

    def read_metadata(self, at: int) -> int:
        for end in range(at, len(self.lines)):
            if self.lines[end].strip() == ".end_amdgpu_metadata":
                self.metadata = parse_metadata(self.lines[at:end], at + 1)
                return end + 1
        raise TruncatedProgram(".amdgpu_metadata is not closed; the text was cut off", at)

    def directive(self, line: str, at: int) -> None:
        name, _, rest = line.replace("\t", " ").partition(" ")
        rest = rest.strip()
        if name == ".amdgcn_target":
            self.check_target(rest, at)
        elif name == ".text":
            self.in_text = True
        elif name == ".section":
            self.in_text = rest.startswith(".text")
        elif name == ".amdhsa_kernel":
            self.open_kernel = rest
            self.hsa[rest] = {}
        elif name == ".end_amdhsa_kernel":
            self.open_kernel = ""
        elif name.startswith(".amdhsa_") and self.open_kernel:
            self.hsa_value(name, rest, at)
        elif name == ".file":
            found = re.match(r'(\d+)\s+(?:"([^"]*)"\s+)?"([^"]*)"', rest)
            if found:
                self.files[found.group(1)] = found.group(3)
        elif name == ".loc":
            parts = rest.split()
            self.source = f"{self.files.get(parts[0], parts[0])}:{parts[1]}"
        elif name == ".set":
            self.set_symbol(rest)
        elif name == ".amdgpu_lds":
            self.lds_symbol(rest)

    def check_target(self, rest: str, at: int) -> None:
        target = rest.strip('"')
        arch = target.split("--")[-1].split("-")[-1].split(":")[0]
        if arch != ARCH:
            raise WrongArch(f"target {target!r} is not {ARCH}; compile the kernel for {ARCH}", at)
        self.seen_target = True

    def hsa_value(self, name: str, rest: str, at: int) -> None:
        try:
            self.hsa[self.open_kernel][name[len(".amdhsa_") :]] = parse_int(rest)
        except ValueError:
            if rest in self.symbols:
                self.hsa[self.open_kernel][name[len(".amdhsa_") :]] = self.symbols[rest]
            elif "next_free" not in name and "size" not in name:
                raise ProgramError(f"{name} {rest!r} is not a number", at) from None

    def set_symbol(self, rest: str) -> None:
        name, _, value = (part.strip() for part in rest.partition(","))
        try:
            self.symbols[name] = parse_int(value)
        except ValueError:
            if value in self.symbols:
                self.symbols[name] = self.symbols[value]

    def lds_symbol(self, rest: str) -> None:
        name, size, *align = (part.strip() for part in rest.split(","))
        step = parse_int(align[0]) if align else 4
        self.lds_top = -(-self.lds_top // step) * step
        self.symbols[name] = self.lds_top
        self.lds_top += parse_int(size)

    def finish(self) -> Program:
        if not self.seen_target:
            raise WrongArch(f"no .amdgcn_target directive; the text must say {ARCH}")
        if self.open_kernel:
            open_kernel = f".amdhsa_kernel {self.open_kernel}"
            raise TruncatedProgram(f"{open_kernel} is not closed", len(self.lines))
        if self.metadata is None:
            raise TruncatedProgram("no .amdgpu_metadata: the text was cut off", len(self.lines))
        program = Program(tuple(self.instructions), self.labels, self.symbols)
        _count_registers(program)
        records = self.metadata.get("amdhsa.kernels")
        if not isinstance(records, list) or not records:
            raise ProgramError("metadata has no amdhsa.kernels list")
        for record in records:
            kernel = _kernel(record, self.hsa, program)
            program.kernels[kernel.name] = kernel
        _check_labels(program)
        return program


def _count_registers(program: Program) -> None:
    tops = {"v": 1, "a": 0, "s": 0}
    for instruction in program.instructions:
        for operand in instruction.operands:
            if operand.kind in tops and not (operand.kind == "s" and operand.index > 101):
                top = operand.index + operand.count
                if top > _REGISTERS[operand.kind] or operand.count < 1:
                    raise ProgramError(f"there is no register {operand.text}", instruction.line)
                tops[operand.kind] = max(tops[operand.kind], top)
    program.vgprs, program.agprs, program.sgprs = tops["v"], tops["a"], tops["s"]


def _check_labels(program: Program) -> None:
    for instruction in program.instructions:
        if instruction.base.startswith(("s_branch", "s_cbranch")):
            if not instruction.operands:
                raise ProgramError(f"{instruction.text!r} has no target", instruction.line)
            target = instruction.operands[-1]
            if target.kind == "symbol" and target.text not in program.labels:
                raise ProgramError(f"label {target.text!r} is not defined", instruction.line)


def _integer(record: dict[str, Value], key: str, default: int | None = None) -> int:
    value = record.get(key, default)
    if not isinstance(value, int):
        name = record.get(".name")
        raise ProgramError(f"metadata key {key} of {name} is {value!r}, not a number")
    return value


def _kernel(record: Value, hsa: dict[str, dict[str, int]], program: Program) -> Kernel:
    if not isinstance(record, dict) or not isinstance(record.get(".name"), str):
        raise ProgramError("metadata: a kernel without .name")
    name = str(record[".name"])
    if name not in program.labels or name not in hsa:
        missing = "label" if name not in program.labels else ".amdhsa_kernel"
        raise ProgramError(f"kernel {name} has metadata but no {missing}")
    if program.labels[name] >= len(program.instructions):
        raise TruncatedProgram(f"kernel {name} has no instructions")
    raw_args = record.get(".args") or []
    assert isinstance(raw_args, list)
    args = tuple(
        KernelArg(_integer(a, ".offset"), _integer(a, ".size"), str(a.get(".value_kind", "")))
        for a in raw_args
        if isinstance(a, dict)
    )
    required = record.get(".reqd_workgroup_size")
    sizes = [int(str(size)) for size in required] if isinstance(required, list) else []
    agpr = _integer(record, ".agpr_count", 0)
    resources = Resources(
        # The count of vector registers has the accumulation registers in it (LLVM AMDGPU usage,
        # code object metadata, gfx90a and later).
        vgpr=max(0, _integer(record, ".vgpr_count", 0) - agpr),
        agpr=agpr,
        sgpr=_integer(record, ".sgpr_count", 0),
        lds=_integer(record, ".group_segment_fixed_size", 0),
        scratch=_integer(record, ".private_segment_fixed_size", 0),
        vgpr_spills=_integer(record, ".vgpr_spill_count", 0),
        sgpr_spills=_integer(record, ".sgpr_spill_count", 0),
    )
    return Kernel(
        name=name,
        entry=program.labels[name],
        args=args,
        kernarg_size=_integer(record, ".kernarg_segment_size", 0),
        resources=resources,
        hsa=hsa[name],
        reqd_workgroup_size=(sizes[0], sizes[1], sizes[2]) if len(sizes) == 3 else None,
        max_workgroup_size=_integer(record, ".max_flat_workgroup_size", 1024),
        program=program,
    )


def load_program(text: str) -> Program:
    """Parses gfx950 assembly text, as LLVM emits it, with its metadata.

    Raises WrongArch, TruncatedProgram or ProgramError, each naming the line to blame.
    """
    if not isinstance(text, str) or not text.strip():
        raise ProgramError("the assembly text is empty")
    return _Parser(text).parse()

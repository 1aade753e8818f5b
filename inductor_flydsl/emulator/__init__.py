"""A gfx950 (AMD CDNA4) that runs on a CPU: executes compiled kernels from their assembly text.

Models registers, LDS, barriers and asynchronous memory, so that a missing wait shows; reports
hazards as findings. Needs numpy alone.
"""

from .api import Options, RunResult, run
from .arguments import pack_arguments
from .conflicts import BankConflict
from .errors import (
    Deadlock,
    EmulatorError,
    ExecutionError,
    LaunchError,
    MemoryFault,
    ProgramError,
    Trap,
    TruncatedProgram,
    UnknownInstruction,
    WrongArch,
)
from .hazards import Finding
from .memory import Memory, Region
from .program import Kernel, Program, Resources, load_program

__all__ = [
    "BankConflict",
    "Deadlock",
    "EmulatorError",
    "ExecutionError",
    "Finding",
    "Kernel",
    "LaunchError",
    "Memory",
    "MemoryFault",
    "Options",
    "Program",
    "ProgramError",
    "Region",
    "Resources",
    "RunResult",
    "Trap",
    "TruncatedProgram",
    "UnknownInstruction",
    "WrongArch",
    "load_program",
    "pack_arguments",
    "run",
]

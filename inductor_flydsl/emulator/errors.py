"""Typed errors of the gfx950 emulator.

Owns every exception the emulator raises on purpose; knows nothing of how kernels are parsed or run.
"""

from __future__ import annotations


class EmulatorError(Exception):
    """Base of every error the emulator raises on purpose."""


class ProgramError(EmulatorError):
    """The assembly text can't be made into a program; `line` is 1-based, 0 for no line."""

    def __init__(self, message: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {message}" if line else message)
        self.line = line


class WrongArch(ProgramError):
    """The text is for another GPU than gfx950."""


class TruncatedProgram(ProgramError):
    """The text ends before what it opened is closed."""


class UnknownInstruction(EmulatorError):
    """No semantics for an instruction: names the mnemonic, its operands and its line."""

    def __init__(self, mnemonic: str, text: str, line: int, reason: str = "") -> None:
        why = f": {reason}" if reason else ""
        super().__init__(
            f"instruction '{mnemonic}' is not emulated{why}\n  line {line}: {text}\n"
            "  add it to the opcode tables, or avoid it in the kernel"
        )
        self.mnemonic, self.text, self.line = mnemonic, text, line


class LaunchError(EmulatorError, ValueError):
    """A launch argument is out of its range or doesn't fit the kernel."""


class ExecutionError(EmulatorError):
    """A kernel did something at run time that ends it; names kernel, line and instruction."""

    def __init__(self, message: str, kernel: str = "", line: int = 0, text: str = "") -> None:
        where = f"\n  kernel {kernel}, line {line}: {text}" if line else ""
        super().__init__(message + where)
        self.kernel, self.line, self.text = kernel, line, text


class MemoryFault(ExecutionError):
    """An access to host memory outside every registered region."""


class Trap(ExecutionError):
    """The kernel executed s_trap or asked the host for something through s_sendmsg."""


class Deadlock(ExecutionError):
    """Waves wait for each other and none can go on, or the instruction limit was reached."""

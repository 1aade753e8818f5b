"""Typed errors of the package. Every message names the argument, its value and the way out."""

from __future__ import annotations


class InductorFlyDSLError(Exception):
    """Base class of every error that this package raises on purpose."""


class BadArgument(InductorFlyDSLError, ValueError):
    """An argument that cannot be used.

    Args:
        argument: the name of the argument as the caller wrote it.
        value: what was passed.
        problem: what is wrong with it, as the end of a sentence.
        way_out: what to pass instead.
    """

    def __init__(self, argument: str, value: object, problem: str, way_out: str) -> None:
        super().__init__(f"{argument}={value!r} {problem}; {way_out}")
        self.argument = argument
        self.value = value

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions of more than one argument do not survive pickling through a worker pool.
        return _restore, (type(self), self.args[0], self.argument, self.value)


def _restore(cls: type[BadArgument], text: str, argument: str, value: object) -> BadArgument:
    error = cls.__new__(cls)
    error.args = (text,)
    error.argument, error.value = argument, value
    return error


class ProblemError(BadArgument):
    """A GEMM problem that does not describe a product of two matrices."""


class ConfigError(BadArgument):
    """A kernel configuration that is not legal for its problem or architecture."""


class SettingError(BadArgument):
    """An INDUCTOR_FLYDSL_* variable or a scoped setting with an unusable value."""


class MissingDependency(InductorFlyDSLError, ImportError):
    """A package that the requested feature needs is not installed or has the wrong version."""


class CompileFailed(InductorFlyDSLError, RuntimeError):
    """FlyDSL could not compile a kernel; the message holds its reason."""


class DeviceUnavailable(InductorFlyDSLError, RuntimeError):
    """The requested device is not present or cannot run this kernel."""


class LaunchFailed(InductorFlyDSLError, RuntimeError):
    """A kernel could not be launched, or stopped with an error."""


class NothingRunsIt(InductorFlyDSLError, RuntimeError):
    """A product that no kernel of ours takes, on a device for which PyTorch has none of its own."""


class WrongNumbers(InductorFlyDSLError, RuntimeError):
    """A kernel ran and its result is not the product that was asked for."""


class RecordMissing(InductorFlyDSLError, RuntimeError):
    """`INDUCTOR_FLYDSL_CACHE=require` and the tuning store has no record for the problem."""


class RecordCorrupt(InductorFlyDSLError, RuntimeError):
    """A tuning record that cannot be read; the file is kept aside, never deleted."""


class StoreUnwritable(InductorFlyDSLError, OSError):
    """The directory of the tuning store cannot be written."""

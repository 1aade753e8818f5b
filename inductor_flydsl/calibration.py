"""How far the times of a clock are from published ones of MI355X kernels, in words.

Owns what is known of a clock's error and how it is said beside its times. A clock that measures
has none to tell. Knows nothing of how a time is made.
"""

from __future__ import annotations

from . import model
from .devices.base import Clock
from .problem import GemmProblem

# Actual/predicted against AITER's best of each shape: the widest p10 and p90 over M bands, rows
# that were fitted and rows that were not (`python -m bench.calibrate --check` guards it).
MODELLED: dict[str, tuple[float, float]] = {"bf16": (0.83, 1.16), "mxfp4": (0.89, 1.28)}
# Published over emulated times of PyTorch's in-tree FlyDSL kernels and of Triton's, p10 and p90,
# by what operands hold (`python -m bench.kernels --check` holds its own figures against them).
EMULATED: dict[str, tuple[float, float]] = {
    "bf16": (0.95, 1.17),
    "mxfp8": (1.09, 1.86),
    "mxfp4": (1.27, 1.77),
    "grouped bf16": (0.81, 1.48),
}
# Published over predicted for the types of which no constant of the model was fitted, the kernel
# unknown: p10 and p90 of the nine MXFP8 times of PyTorch's (`python -m bench.calibrate --check`).
UNFITTED: dict[str, tuple[float, float]] = {"mxfp8": (1.03, 1.33)}
_KINDS = {16: "bf16", 8: "mxfp8", 4: "mxfp4"}
GROUPED = "grouped "


def error(clock: str, kind: str) -> tuple[float, float] | None:
    """p10 and p90 of published over predicted (``model``) or emulated times, None if unknown.

    Args:
        clock: ``model``, or the value of a `Clock`.
        kind: ``bf16`` (fp16 too), ``mxfp8`` or ``mxfp4``, after GROUPED where there are groups.
    """
    tables = {model.CLOCK: MODELLED | UNFITTED, Clock.EMULATED.value: EMULATED}
    return tables.get(clock, {}).get(kind)


def note(clock: str, problem: GemmProblem) -> str:
    """What to say beside a time of `clock` for a problem; empty for a clock that measures."""
    if clock not in (model.CLOCK, Clock.EMULATED.value):
        return ""
    kind = _KINDS[max(problem.dtype.bits, problem.b_type.bits)]
    kind = GROUPED + kind if problem.grouping else kind
    found = error(clock, kind)
    if found is None:
        return f"clock {clock}: its error for {kind} is not known, nothing published was compared"
    low, high = found
    return (
        f"clock {clock}: published MI355X times are {low:.2f} to {high:.2f} of it "
        f"({kind}, p10 to p90)"
    )

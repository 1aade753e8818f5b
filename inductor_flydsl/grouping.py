"""How one extent of a GEMM is cut into groups, each with an operand or a result of its own.

Owns the forms of a grouped GEMM, the words in which one is named, and the splits that a kernel is
tuned on. Knows nothing of kernels, devices or tensors: where the groups end is only known on the
device, when a kernel runs.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import ProblemError


class Axis(enum.Enum):
    """The extent that is cut (ragged), in the letters of C[M, N] = A[M, K] @ B[K, N].

    M: groups of rows of A and C, a B each (2D x 3D). N: groups of columns of B and C, an A each
    (3D x 2D). K: groups of the sum, a C each (2D x 2D, the gradient of the weights). As in
    `torch.nn.functional.grouped_mm`.
    """

    M = "m"
    N = "n"
    K = "k"


class Split(enum.Enum):
    """How a ragged extent is divided among its groups."""

    BALANCED = "balanced"
    SKEWED = "skewed"
    SPARSE = "sparse"


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Which extent is ragged, and among how many groups.

    The offsets of a grouped GEMM are ``groups`` 32-bit integers: group g holds what lies between
    offset g - 1 (0 for the first) and offset g. They do not fall; a group may be empty, and what
    lies past the last offset belongs to none.
    """

    axis: Axis
    groups: int

    def __post_init__(self) -> None:
        count = self.groups
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ProblemError("groups", count, "is not a positive integer", "give the number")

    @classmethod
    def parse(cls, text: str) -> Grouping:
        """Read ``m8``: the extent, then the number of groups.

        Raises:
            ProblemError: the text has another form.
        """
        match = re.fullmatch(r"([mnk])(\d+)", text.strip().lower())
        if match is None:
            raise ProblemError("groups", text, "is no extent and a number", "try m8, n8 or k8")
        return cls(axis=Axis(match[1]), groups=int(match[2]))

    def __str__(self) -> str:
        return f"{self.axis.value}{self.groups}"

    def to_json(self) -> dict[str, Any]:
        return {"axis": self.axis.value, "groups": self.groups}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Grouping:
        """Inverse of `to_json`.

        Raises:
            ProblemError: a field is missing or unusable.
        """
        try:
            return cls(axis=Axis(data["axis"]), groups=data["groups"])
        except (KeyError, TypeError, ValueError) as error:
            way = "give axis (m, n or k) and groups"
            raise ProblemError("grouping", data, f"is not one ({error})", way) from error


def sizes(total: int, groups: int, split: Split) -> list[int]:
    """Extents of the groups, which add up to ``total``.

    BALANCED: as equal as whole numbers are. SKEWED: in proportion to 1, 1/2, 1/3, …, as loads of
    experts are often found to be. SPARSE: every second group is empty, the others are skewed.
    The larger groups are spread over the list, so that no order of groups is favoured.
    """
    if split is Split.BALANCED:
        weights = [1.0] * groups
    else:
        live = groups if split is Split.SKEWED else -(-groups // 2)
        weights = [1 / (1 + rank) for rank in range(live)] + [0.0] * (groups - live)
    # A step that shares no factor with the number of groups visits each once.
    step = next(s for s in range(groups // 2 + 1, groups + 2) if _coprime(s, groups))
    spread = [0.0] * groups
    for rank, weight in enumerate(weights):
        spread[rank * step % groups] = weight
    whole, done, result, seen = sum(spread), 0, [], 0.0
    for weight in spread:
        seen += weight
        end = round(total * seen / whole) if weight else done
        result.append(end - done)
        done = end
    return result


@functools.lru_cache(maxsize=1024)
def pieces(total: int, groups: int, split: Split, tile: int) -> tuple[int, int]:
    """(groups that hold anything, pieces of at most ``tile`` that all groups are cut into)."""
    live = [size for size in sizes(total, groups, split) if size]
    return len(live), sum(-(-size // tile) for size in live)


def _coprime(a: int, b: int) -> bool:
    while b:
        a, b = b, a % b
    return a == 1


def offsets(total: int, groups: int, split: Split) -> list[int]:
    """Where each group of `sizes` ends."""
    ends, end = [], 0
    for size in sizes(total, groups, split):
        end += size
        ends.append(end)
    return ends

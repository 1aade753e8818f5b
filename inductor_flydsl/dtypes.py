"""Element types. Knows nothing else."""

from __future__ import annotations

import enum

from .errors import ProblemError

# bits of an element
_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}
_BITS |= {"float8_e4m3fn": 8, "float8_e5m2": 8, "float4_e2m1fn_x2": 4, "bool": 8}
_SHORT = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16"}
_SHORT |= {"fp32": "float32", "f32": "float32", "float": "float32"}
# The spellings that messages name; those with mx are `GemmProblem.dense`'s.
NAMES = "bf16, fp16, fp32, fp8, bf8, mxfp8, mxbf8, mxfp4"
_SHORT |= {"fp8": "float8_e4m3fn", "bf8": "float8_e5m2", "fp4": "float4_e2m1fn_x2"}


class DType(enum.Enum):
    """Element types, named as torch names them.

    Attributes:
        bits: of an element.
        packed: elements that share a stored byte or word: 2 of FP4, else 1.
        bytes: of what is stored, one element or a packed pair. Strides count these.
    """

    BF16 = "bfloat16"
    FP16 = "float16"
    FP32 = "float32"
    FP8_E4M3 = "float8_e4m3fn"
    FP8_E5M2 = "float8_e5m2"
    FP4 = "float4_e2m1fn_x2"
    BOOL = "bool"

    def __init__(self, name: str) -> None:
        # Attributes, not properties: a cost model reads them some twenty times a prediction.
        self.bits = _BITS[name]
        self.packed = 2 if self.bits == 4 else 1
        self.bytes = self.bits * self.packed // 8

    @property
    def scaled(self) -> bool:
        """An operand type of the f8f6f4 matrix instructions."""
        return self.bits <= 8 and self is not DType.BOOL

    @classmethod
    def parse(cls, text: str) -> DType:
        """Read a dtype from torch's name or its usual short form.

        Raises:
            ProblemError: the name is not one of ours.
        """
        name = text.lower().removeprefix("torch.")
        try:
            return cls(_SHORT.get(name, name))
        except ValueError:
            raise ProblemError("dtype", text, "is not known", f"use one of {NAMES}") from None

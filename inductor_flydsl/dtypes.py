"""Element types. Knows nothing else."""

from __future__ import annotations

import enum

from .errors import ProblemError


class DType(enum.Enum):
    """Element types, named as torch names them, with their size in ``bits`` and ``bytes``."""

    BF16 = "bfloat16"
    FP16 = "float16"
    FP32 = "float32"

    def __init__(self, name: str) -> None:
        # Attributes, not properties: a cost model reads them some twenty times a prediction.
        self.bits = {"bfloat16": 16, "float16": 16, "float32": 32}[name]
        self.bytes = self.bits // 8

    @classmethod
    def parse(cls, text: str) -> DType:
        """Read a dtype from torch's name or its usual short form.

        Raises:
            ProblemError: the name is not one of ours.
        """
        short = {"bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16"}
        short |= {"fp32": "float32", "f32": "float32", "float": "float32"}
        name = text.lower().removeprefix("torch.")
        try:
            return cls(short.get(name, name))
        except ValueError:
            known = ", ".join(d.value for d in cls)
            raise ProblemError("dtype", text, "is not known", f"use one of {known}") from None

"""What is asked: one GEMM as the user wrote it. Knows nothing of kernels, devices or torch."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, fields
from typing import Any

from .dtypes import DType
from .errors import ProblemError
from .fusion import Fusion


class Layout(enum.Enum):
    """Storage order of A then B: N is row-major, T column-major (BLAS letters).

    NT is what ``torch.nn.Linear`` makes: A[M, K] row-major, B = W.t() with W[N, K] row-major.
    """

    NN = "NN"
    NT = "NT"
    TN = "TN"
    TT = "TT"

    @property
    def a_k_contiguous(self) -> bool:
        """Neighbours along K are neighbours in memory in A."""
        return self.value[0] == "N"

    @property
    def b_k_contiguous(self) -> bool:
        """Neighbours along K are neighbours in memory in B."""
        return self.value[1] == "T"


def alignment(*byte_counts: int) -> int:
    """Largest power of two, at most 16, that divides every byte count (0 divides by all)."""
    align = 16
    for count in byte_counts:
        while count % align:
            align //= 2
    return align


BATCH_STRIDES = ("a_batch", "b_batch", "c_batch")


@dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """C[M, N] = A[M, K] @ B[K, N], fp32 accumulate, every extent at least 1.

    With ``batch`` above 1 there is one such product a batch, and with ``fusion`` C holds what that
    program makes of the product.

    Attributes:
        op: the ATen op that asked.
        m, n, k: extents in elements.
        dtype: type of A and B; ``out_dtype`` of C.
        layout: which index of A and of B walks memory.
        lda, ldb, ldc: stride in elements of the other index; C is row-major.
        a_inner, b_inner: stride in elements of the index that walks memory, 1 unless a view
            skips or repeats elements.
        a_align, b_align, c_align: bytes (a power of two up to 16) that divide the address of
            every row start of the operand.
        batch: products; ``a_batch``, ``b_batch``, ``c_batch``: stride in elements from one to the
            next, 0 for an operand that all share.
        fusion: the pointwise program of the epilogue.
        tensors: (batch, row, column) strides in elements of each tensor that it reads.
    """

    m: int
    n: int
    k: int
    dtype: DType
    out_dtype: DType
    layout: Layout
    lda: int
    ldb: int
    ldc: int
    a_inner: int = 1
    b_inner: int = 1
    a_align: int = 16
    b_align: int = 16
    c_align: int = 16
    op: str = "mm"
    batch: int = 1
    a_batch: int = 0
    b_batch: int = 0
    c_batch: int = 0
    fusion: Fusion | None = None
    tensors: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ProblemError(name, value, "is not a positive integer", "drop empty operands")
        for name in ("lda", "ldb", "ldc", "a_inner", "b_inner", *BATCH_STRIDES):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ProblemError(name, value, "is not a stride", "pass elements, at least 0")
        for name in ("a_align", "b_align", "c_align"):
            value = getattr(self, name)
            if value not in (2, 4, 8, 16):
                raise ProblemError(name, value, "is not an alignment", "pass 2, 4, 8 or 16 bytes")
        if self.m > 1 and self.ldc < self.n:
            raise ProblemError("ldc", self.ldc, "makes rows of C overlap", f"pass {self.n} or more")
        read = len(self.fusion.tensors) if self.fusion else 0
        if len(self.tensors) != read:
            way = f"pass the strides of the {read} tensors that the fusion reads"
            raise ProblemError("tensors", self.tensors, "do not fit the fusion", way)

    @classmethod
    def dense(cls, m: int, n: int, k: int, **options: Any) -> GemmProblem:
        """A problem on contiguous operands.

        Args:
            m, n, k: extents in elements.
            options: ``dtype`` and ``out_dtype`` (a DType or its name; bf16, and the same as
                ``dtype``), ``layout`` (a Layout or its letters; NT), ``op``.

        Raises:
            ProblemError: an extent, dtype or layout that is not usable.
        """
        dtype = _as_dtype(options.pop("dtype", DType.BF16))
        out_dtype = _as_dtype(options.pop("out_dtype", dtype))
        layout = _as_layout(options.pop("layout", Layout.NT))
        op = options.pop("op", "mm")
        if options:
            name, value = next(iter(options.items()))
            raise ProblemError(name, value, "is not an option", "see GemmProblem.dense")
        lda = k if layout.a_k_contiguous else m
        ldb = k if layout.b_k_contiguous else n
        return cls(
            m=m,
            n=n,
            k=k,
            dtype=dtype,
            out_dtype=out_dtype,
            layout=layout,
            lda=lda,
            ldb=ldb,
            ldc=n,
            a_align=alignment(lda * dtype.bytes),
            b_align=alignment(ldb * dtype.bytes),
            c_align=alignment(n * out_dtype.bytes),
            op=op,
        )

    @classmethod
    def parse(cls, text: str) -> GemmProblem:
        """Read ``M,N,K[,dtype[,layout]]``, the form of the command line.

        Raises:
            ProblemError: the text has another form.
        """
        parts = [p.strip() for p in text.split(",")]
        if not 3 <= len(parts) <= 5 or not all(re.fullmatch(r"\d+", p) for p in parts[:3]):
            raise ProblemError("problem", text, "is not M,N,K[,dtype[,layout]]", "try 4096,4096,64")
        m, n, k = (int(p) for p in parts[:3])
        options = dict(zip(("dtype", "layout"), parts[3:], strict=False))
        return cls.dense(m, n, k, **options)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products, 2·M·N·K a batch."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> int:
        """Bytes of A, B and C when each is touched once."""
        ab = (self.m * self.k + self.k * self.n) * self.dtype.bytes
        return (ab + self.m * self.n * self.out_dtype.bytes) * self.batch

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        shape = f"{batch}{self.m}x{self.n}x{self.k}"
        text = f"{self.op} {shape} {self.dtype.value} {self.layout.value}"
        return text if self.out_dtype is self.dtype else f"{text} -> {self.out_dtype.value}"

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("dtype", "out_dtype", "layout"):
            data[name] = data[name].value
        data["fusion"] = self.fusion and self.fusion.to_json()
        data["tensors"] = [list(strides) for strides in self.tensors]
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GemmProblem:
        """Inverse of `to_json`.

        Raises:
            ProblemError: a field is missing, unknown or unusable.
        """
        known = {f.name for f in fields(cls)}
        for name in data:
            if name not in known:
                raise ProblemError(name, data[name], "is not a field", f"use {sorted(known)}")
        values = dict(data)
        try:
            values["dtype"] = _as_dtype(values["dtype"])
            values["out_dtype"] = _as_dtype(values["out_dtype"])
            values["layout"] = _as_layout(values["layout"])
            values["fusion"] = values.get("fusion") and Fusion.from_json(values["fusion"])
            values["tensors"] = tuple(tuple(strides) for strides in values.get("tensors", ()))
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ProblemError("problem", data, f"lacks a field ({error})", "pass all") from None


def _as_dtype(value: DType | str) -> DType:
    return value if isinstance(value, DType) else DType.parse(value)


def _as_layout(value: Layout | str) -> Layout:
    if isinstance(value, Layout):
        return value
    try:
        return Layout(str(value).upper())
    except ValueError:
        raise ProblemError("layout", value, "is not known", "use NN, NT, TN or TT") from None

"""What is asked: one GEMM as the user wrote it. Knows nothing of kernels, devices or torch."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from .dtypes import DType
from .errors import ProblemError
from .fusion import Fusion
from .grouping import Axis, Grouping
from .scaling import BLOCK, TILE_ROWS, ScaleLayout, Scales


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
TENSOR_STRIDES = ("batch", "row", "column")
PROBLEM_FORM = "[BATCHx]M,N,K[,dtype[,layout]][,groups]"


@dataclass(frozen=True, kw_only=True)
class GemmProblem:
    """C[M, N] = A[M, K] @ B[K, N], fp32 accumulate, every extent at least 1.

    With ``batch`` above 1 there is one such product a batch, with ``grouping`` one a group, and
    with ``fusion`` C holds what that program makes of the product.

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
        tensors: (batch, row, column) strides in elements of each tensor that it reads, then of each
            that it stores beside C.
        heads: batches that follow one another before the outer index of batches moves, where C or a
            tensor has a stride of its own for each of the two; 0 where batches have one index.
        outer: with heads, strides from one outer index to the next: of C, then of each of
            ``tensors``. The batch strides of those lead from one head to the next.
        grouping: which of the extents is the sum of its groups'. The batch stride of what each
            group has for itself leads from one group's to the next; ``batch`` is 1.
        b_dtype: type of B where it is not A's; only the f8f6f4 types mix.
        a_scales, b_scales: MX block scales; both or none. K is then a multiple of 32.

    Extents count elements, strides what is stored: a packed pair of FP4 is one.
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
    heads: int = 0
    outer: tuple[int, ...] = ()
    grouping: Grouping | None = None
    b_dtype: DType | None = None
    a_scales: Scales | None = None
    b_scales: Scales | None = None

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
            if value not in (1, 2, 4, 8, 16):
                raise ProblemError(name, value, "is not an alignment", "pass 1, 2, 4, 8 or 16")
        if self.m > 1 and self.ldc < self.n:
            raise ProblemError("ldc", self.ldc, "makes rows of C overlap", f"pass {self.n} or more")
        if self.grouping is not None and self.batch != 1:
            raise ProblemError("batch", self.batch, "is not 1", "give groups or batches, not both")
        taken = len(self.fusion.tensors) + len(self.fusion.stores) if self.fusion else 0
        if len(self.tensors) != taken:
            way = f"pass the strides of the {taken} tensors that the fusion reads and stores"
            raise ProblemError("tensors", self.tensors, "do not fit the fusion", way)
        self._check_heads()
        self._check_scaled()

    def _check_heads(self) -> None:
        if self.heads < 0 or (self.heads and self.batch % self.heads):
            way = f"pass a divisor of {self.batch}, or 0"
            raise ProblemError("heads", self.heads, "do not divide the batches", way)
        if len(self.outer) != (1 + len(self.tensors) if self.heads else 0):
            way = "with heads, pass a stride of C and of each tensor; without, none"
            raise ProblemError("outer", self.outer, "does not fit", way)

    def _check_scaled(self) -> None:
        if self.b_dtype is self.dtype:
            raise ProblemError("b_dtype", self.dtype.value, "is A's type", "leave it out")
        if (self.a_scales is None) != (self.b_scales is None):
            raise ProblemError("b_scales", self.b_scales, "stands alone", "scale both A and B")
        if self.a_scales is not None and self.k % BLOCK:
            raise ProblemError("k", self.k, "is no multiple of 32", "pad K: scales are of 32 each")
        if DType.FP4 in (self.dtype, self.b_dtype) and self.k % 2:
            raise ProblemError("k", self.k, "is odd", "FP4 comes in pairs along K")

    @property
    def b_type(self) -> DType:
        """Type of B."""
        return self.b_dtype or self.dtype

    @property
    def block_scaled(self) -> bool:
        """A and B have MX block scales."""
        return self.a_scales is not None

    @classmethod
    def dense(cls, m: int, n: int, k: int, **options: Any) -> GemmProblem:
        """A problem on contiguous operands.

        Args:
            m, n, k: extents in elements.
            options: ``dtype``, ``b_dtype`` and ``out_dtype`` (a DType or its name; bf16, the
                same as ``dtype``, and the same or bf16 where that has 8 bits or fewer),
                ``layout`` (a Layout or its letters; NT), ``batch`` (1), ``groups`` (a Grouping or
                ``m8``; none), ``op``, and ``scales`` (a ScaleLayout or its name: A and B have MX
                block scales). ``mxfp8`` and ``mxfp4`` as ``dtype`` are FP8 E4M3 and FP4 with plain
                scales.

        Raises:
            ProblemError: an extent, dtype or layout that is not usable.
        """
        dtype, scales = _dtype_and_scales(options)
        b_type = _b_dtype(options.pop("b_dtype", dtype), scales is not None)
        same = DType.BF16 if dtype.scaled else dtype
        out_dtype = _as_dtype(options.pop("out_dtype", same))
        layout = _as_layout(options.pop("layout", Layout.NT))
        grouping, batch = _as_grouping(options.pop("groups", None)), options.pop("batch", 1)
        op = options.pop("op", _op(dtype, grouping, batch))
        if options:
            name, value = next(iter(options.items()))
            raise ProblemError(name, value, "is not an option", "see GemmProblem.dense")
        a_k, b_k = k // dtype.packed, k // b_type.packed
        lda = a_k if layout.a_k_contiguous else m
        ldb = b_k if layout.b_k_contiguous else n
        own = "abc" if batch != 1 else ""
        if grouping is not None:
            own = {Axis.M: "b", Axis.N: "a", Axis.K: "c"}[grouping.axis]
        a_scales, b_scales = (
            scales if scales is None else _contiguous_scales(scales, k, rows if x in own else 0)
            for x, rows in (("a", m), ("b", n))
        )
        steps = {"a": m * a_k, "b": n * b_k, "c": m * n}
        steps = {name: step if name in own else 0 for name, step in steps.items()}
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
            b_align=alignment(ldb * b_type.bytes),
            c_align=alignment(n * out_dtype.bytes),
            op=op,
            batch=batch,
            a_batch=steps["a"],
            b_batch=steps["b"],
            c_batch=steps["c"],
            grouping=grouping,
            b_dtype=None if b_type is dtype else b_type,
            a_scales=a_scales,
            b_scales=b_scales,
        )

    @classmethod
    def parse(cls, text: str) -> GemmProblem:
        """Read ``[BATCHx]M,N,K[,dtype[,layout]][,groups]``, the form of the command line.

        The dtype may name that of C too, as in ``bf16->fp32``, and that of B, as in ``fp8:bf8`` or
        ``mxfp8:mxfp4``. Groups are named as ``m8``: M is
        the sum of eight groups' rows.

        Raises:
            ProblemError: the text has another form.
        """
        parts = [p.strip() for p in text.split(",")]
        options: dict[str, Any] = {}
        if len(parts) > 3 and re.fullmatch(r"[a-eg-z]-?\d+", parts[-1].lower()):
            options["groups"] = parts.pop()
        batch, separator, first = parts[0].lower().rpartition("x")
        extents = [batch if separator else "1", first.strip(), *parts[1:3]]
        if not 3 <= len(parts) <= 5 or not all(re.fullmatch(r"\d+", p.strip()) for p in extents):
            form = f"is not {PROBLEM_FORM}"
            way = "try 4096,4096,64 or 8x128,128,64 or, of groups, 4096,4096,64,bf16,m8"
            raise ProblemError("problem", text, form, way)
        options |= dict(zip(("dtype", "layout"), parts[3:], strict=False))
        dtype, arrow, out_dtype = options.get("dtype", "").partition("->")
        if arrow:
            options |= {"dtype": dtype.strip(), "out_dtype": out_dtype.strip()}
        a_type, colon, b_type = options.get("dtype", "").partition(":")
        if colon:
            options |= {"dtype": a_type.strip(), "b_dtype": b_type.strip()}
        batches, m, n, k = (int(p) for p in extents)
        return cls.dense(m, n, k, batch=batches, **options)

    def at(self, sizes: Mapping[str, int]) -> GemmProblem:
        """This problem with other integers.

        Args:
            sizes: by names of fields, or of the strides of a tensor of the fusion, in elements:
                ``t0_batch``, ``t0_row``, ``t0_column``, and so on, ``c_outer`` and ``t0_outer`` of
                `outer`; ``a_scale_row`` and ``b_scale_row`` in bytes.

        Raises:
            ProblemError: an integer that is not usable.
        """
        values: dict[str, Any] = dict(sizes)
        tensors = []
        for index, strides in enumerate(self.tensors):
            named = zip(TENSOR_STRIDES, strides, strict=True)
            batch, row, column = (values.pop(f"t{index}_{axis}", s) for axis, s in named)
            tensors.append((batch, row, column))
        if self.heads:
            named = zip(("c", *(f"t{i}" for i in range(len(tensors)))), self.outer, strict=True)
            values["outer"] = tuple(values.pop(f"{name}_outer", step) for name, step in named)
        for name in ("a_scales", "b_scales"):
            row = values.pop(f"{name[:-1]}_row", None)
            if row is not None:
                values[name] = replace(getattr(self, name), row=row)
        return replace(self, **values, tensors=tuple(tensors))

    @property
    def copies(self) -> tuple[int, int, int]:
        """How many matrices C, A and B are: one each, one a batch, or one a group."""
        if self.grouping is None:
            return self.batch, self.batch, self.batch
        axis, groups = self.grouping.axis, self.grouping.groups
        c, a, b = (groups if axis is own else 1 for own in (Axis.K, Axis.N, Axis.M))
        return c, a, b

    def scale_bytes(self, operand: str) -> int:
        """Bytes that the block scales of ``a`` or ``b`` take, wherever its groups end; 0 without.

        Of a matrix that groups share, swizzled scales of each group are padded to whole tiles.
        """
        scales: Scales | None = getattr(self, f"{operand}_scales")
        if scales is None:
            return 0
        _, a, b = self.copies
        rows, k = (self.m if operand == "a" else self.n), self.k
        axis = self.grouping.axis if self.grouping else None
        if self.grouping is None or scales.layout is ScaleLayout.PLAIN:
            return (max(a if operand == "a" else b, 1) - 1) * scales.batch + scales.bytes(rows, k)
        more = TILE_ROWS * self.grouping.groups
        if axis is Axis.K:
            # Its stride is each group's own, so the whole is as long as one matrix of all.
            return Scales.contiguous(k + more, scales.layout).bytes(rows, k + more)
        shared = (axis is Axis.M) == (operand == "a")
        if shared:
            return scales.bytes(rows + more, k)
        return (self.grouping.groups - 1) * scales.batch + scales.bytes(rows, k)

    @property
    def flops(self) -> int:
        """Multiplications and additions of the products, 2·M·N·K a batch."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def bytes(self) -> int:
        """Bytes of A, B and C when each is touched once."""
        c, a, b = self.copies
        bits = self.m * self.k * self.dtype.bits * a + self.k * self.n * self.b_type.bits * b
        if self.block_scaled:
            bits += (self.m * a + self.n * b) * (self.k // BLOCK) * 8
        return bits // 8 + self.m * self.n * self.out_dtype.bytes * c

    def __str__(self) -> str:
        batch = f"{self.batch}x" if self.batch > 1 else ""
        shape = f"{batch}{self.m}x{self.n}x{self.k}"
        types = self.dtype.value + (f" x {self.b_dtype.value}" if self.b_dtype else "")
        text = f"{self.op} {shape} {types} {self.layout.value}"
        if self.a_scales is not None:
            layouts = [x.layout.value for x in (self.a_scales, self.b_scales) if x is not None]
            text += f" mx {' x '.join(dict.fromkeys(layouts))}"
        text += f" {self.grouping}" if self.grouping else ""
        return text if self.out_dtype is self.dtype else f"{text} -> {self.out_dtype.value}"

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("dtype", "out_dtype", "layout"):
            data[name] = data[name].value
        data["fusion"] = self.fusion and self.fusion.to_json()
        data["tensors"] = [list(strides) for strides in self.tensors]
        # Left out where there is none, so that the keys of earlier records still match.
        grouping = data.pop("grouping")
        if grouping is not None:
            data["grouping"] = grouping.to_json()
        data["outer"] = list(self.outer)
        if not self.heads:
            del data["heads"], data["outer"]
        # Absent where absent, so that records of unscaled products keep their keys.
        for name in ("b_dtype", "a_scales", "b_scales"):
            value = data.pop(name)
            if value is not None:
                data[name] = value.value if name == "b_dtype" else value.to_json()
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
            values["outer"] = tuple(values.get("outer", ()))
            if values.get("grouping") is not None:
                values["grouping"] = Grouping.from_json(values["grouping"])
            for name in ("a_scales", "b_scales"):
                values[name] = values.get(name) and Scales.from_json(values[name])
            values["b_dtype"] = values.get("b_dtype") and _as_dtype(values["b_dtype"])
            return cls(**values)
        except (KeyError, TypeError) as error:
            raise ProblemError("problem", data, f"lacks a field ({error})", "pass all") from None


def _op(dtype: DType, grouping: Grouping | None, batch: int) -> str:
    if grouping is not None:
        return "scaled_grouped_mm" if dtype.scaled else "grouped_mm"
    return "scaled_mm" if dtype.scaled else "mm" if batch == 1 else "bmm"


def _as_dtype(value: DType | str) -> DType:
    return value if isinstance(value, DType) else DType.parse(value)


# What `GemmProblem.dense` and the command line call a type with block scales.
_MX = {"mxfp8": DType.FP8_E4M3, "mxbf8": DType.FP8_E5M2, "mxfp4": DType.FP4}


def _dtype_and_scales(options: dict[str, Any]) -> tuple[DType, ScaleLayout | str | None]:
    """Take ``dtype`` and ``scales`` from options; the name of an MX type says both."""
    asked, scales = options.pop("dtype", DType.BF16), options.pop("scales", None)
    if isinstance(asked, str) and asked.lower() in _MX:
        return _MX[asked.lower()], scales or ScaleLayout.PLAIN
    return _as_dtype(asked), scales


def _b_dtype(asked: DType | str, block_scaled: bool) -> DType:
    """Type of B; the name of an MX type is one where A has block scales too."""
    if isinstance(asked, str) and asked.lower() in _MX:
        if not block_scaled:
            way = "name an MX type for A too"
            raise ProblemError("b_dtype", asked, "has block scales, and A none", way)
        return _MX[asked.lower()]
    return _as_dtype(asked)


def _contiguous_scales(layout: ScaleLayout | str, k: int, rows: int) -> Scales:
    """Scales that fill their tensor; of ``rows`` where there is a matrix a batch or group, or 0."""
    scales = Scales.contiguous(k, _as_scale_layout(layout))
    return replace(scales, batch=scales.bytes(rows, k)) if rows else scales


def _as_scale_layout(value: ScaleLayout | str) -> ScaleLayout:
    try:
        return ScaleLayout(value)
    except ValueError:
        raise ProblemError("scales", value, "is not a layout", "use plain or swizzled") from None


def _as_layout(value: Layout | str) -> Layout:
    if isinstance(value, Layout):
        return value
    try:
        return Layout(str(value).upper())
    except ValueError:
        raise ProblemError("layout", value, "is not known", "use NN, NT, TN or TT") from None


def _as_grouping(value: Grouping | str | None) -> Grouping | None:
    return Grouping.parse(value) if isinstance(value, str) else value

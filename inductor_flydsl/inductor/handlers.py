"""Inductor's operations → nodes of a `Fusion`, by running a pointwise node's function.

Owns what each operation becomes and which have no kernel. Whole numbers, such as those of
``arange``, are computed in fp32, so only as far as that holds them exactly. Where the loops of a
node lead is `axes`' business, what a chain of nodes is `epilogue`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import sympy

from ..dtypes import DType
from ..fusion import BINARY, COMPARE, CONDITIONS, INDEX_EXTENT, INDICES, LOGIC, UNARY, Node
from .axes import Axes, Steps, Unfusable
from .extents import is_static

# Inductor's name of an operation → ours, where they differ.
RENAMED = {"truediv": "div", "logical_and": "and", "logical_or": "or", "logical_not": "not"}
# Of conditions; of whole numbers there is no kernel.
BITWISE = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_not": "not", "bitwise_xor": "ne"}
TAKEN = {*UNARY, *BINARY, *COMPARE, *LOGIC}
FLOATS = ("torch.bfloat16", "torch.float16", "torch.float32")
# What is stored, and read by nobody in the kernel.
EIGHT_BIT_FLOATS = ("torch.float8_e4m3fn", "torch.float8_e5m2")
INTEGERS = ("torch.int8", "torch.uint8", "torch.int16", "torch.int32", "torch.int64")
BOOL = "torch.bool"
# fp32 holds every whole number up to this.
WHOLE = 2**24


@dataclass(frozen=True)
class Read:
    """A tensor that the epilogue reads.

    Attributes:
        name: of Inductor's buffer.
        offset: first element, from the start of the buffer.
        steps: strides.
        dtype: of its elements.
    """

    name: str
    offset: Any
    steps: Steps
    dtype: DType


class Chain(Protocol):
    """The program that a handler adds to."""

    extents: tuple[Any, Any, Any]
    nodes: list[Node]
    reads: list[Read]
    made: dict[str, Any]

    def emit(self, op: str, *args: int, **fields: Any) -> int: ...


@dataclass(frozen=True)
class Value:
    """A node of the program, told apart from the literal numbers that operations may be given.

    Attributes:
        index: of the node.
        bounds: of a whole number.
        narrow: type of 8 bits that it is to be rounded to, which it is where it is stored.
    """

    index: int
    bounds: tuple[int, int] | None = None
    narrow: str = ""


def unwrap(value: Any) -> Any:
    """What is inside Inductor's wrapper of operands."""
    return getattr(value, "value", value)


class Scan:
    """Looks only at the loads of a function: ``seen(name, index)``; name is None for an index
    that is computed with."""

    def __init__(self, seen: Callable[[str | None, Any], None]) -> None:
        self._seen = seen

    def load(self, name: str, index: Any) -> Value:
        self._seen(name, index)
        return Value(0)

    def index_expr(self, index: Any, dtype: Any) -> Value:
        self._seen(None, index)
        return Value(0)

    def indirect_indexing(self, *args: Any, **kwargs: Any) -> Any:
        raise Unfusable("it gathers: a tensor says which elements it reads")

    def masked(self, *args: Any, **kwargs: Any) -> Any:
        raise Unfusable("it reads under a mask, as an update of a slice, padding or torch.cat does")

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: Value(0)


class Handler:
    """Inductor's operations, each leaving a node.

    Args:
        owner: gets the nodes.
        axes: the loops of the node that is read, matched to the product.
    """

    def __init__(self, owner: Chain, axes: Axes) -> None:
        self._owner = owner
        self._axes = axes

    def load(self, name: str, index: Any) -> Value:
        owner, axes = self._owner, self._axes
        if name in owner.made:
            return Value(owner.made[name].value)
        strides, offset = axes.coefficients(index)
        read = Read(name, offset, axes.strides(strides), _dtype_of(name))
        if read not in owner.reads:
            owner.reads.append(read)
        value = Value(owner.emit("tensor", value=owner.reads.index(read)))
        return self._condition(value) if read.dtype is DType.BOOL else value

    def constant(self, value: Any, dtype: Any) -> Value:
        made = self._literal(value)
        if str(dtype) == BOOL:
            return self._condition(made)
        return _small(made) if str(dtype) in INTEGERS else Value(made.index)

    def index_expr(self, index: Any, dtype: Any) -> Value:
        """A sum of the batch, the row and the column, each times a number."""
        strides, offset = self._axes.coefficients(index)
        steps = self._axes.steps(strides)
        if steps == (0, 0, 0) and not is_static(offset):
            raise Unfusable(f"{index}, a dynamic size, is used as a number")
        if not all(is_static(number) for number in (offset, *steps)):
            raise Unfusable(f"index {index} is dynamic")
        total = self._literal(int(offset))
        for name, step, extent in zip(INDICES, steps, self._owner.extents, strict=True):
            if step == 0:
                continue
            top = int(extent) - 1 if is_static(extent) else INDEX_EXTENT - 1
            place = Value(self._owner.emit(name), (0, top))
            total = self.add(total, self.mul(place, self._literal(int(step))))
        return total

    def to_dtype(self, x: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        # Inductor computes 16-bit floats in fp32 and rounds where it stores, and so do we.
        value = self._value(x)
        if str(dtype) == BOOL:
            return self._condition(value)
        value = self._number(value)
        if str(dtype) in FLOATS:
            return Value(value.index)
        if str(dtype) in EIGHT_BIT_FLOATS:
            return Value(value.index, narrow=str(dtype))
        if str(dtype) in INTEGERS and value.bounds is not None:
            return value
        raise Unfusable(f"conversion to {dtype}")

    def where(self, condition: Any, x: Any, y: Any) -> Value:
        test, *values = (self._value(v) for v in (condition, x, y))
        test, left, right = self._condition(test), *(self._number(v) for v in values)
        bounds = None
        if left.bounds and right.bounds:
            bounds = min(left.bounds[0], right.bounds[0]), max(left.bounds[1], right.bounds[1])
        return Value(self._owner.emit("where", test.index, left.index, right.index), bounds)

    def square(self, x: Any) -> Value:
        return self.mul(x, x)

    def log1p(self, x: Any) -> Value:
        """log(u)·x / (u - 1) with u = 1 + x rounded, which takes back what rounding lost (Kahan;
        Goldberg, What Every Computer Scientist Should Know, theorem 4)."""
        u = self.add(x, 1.0)
        rest = self.sub(u, 1.0)
        right = self.mul(self.log(u), self.div(x, rest))
        # Where nothing of the 1 is left; infinity too.
        right = self.where(self.eq(u, x), self.log(u), right)
        return self.where(self.eq(rest, 0.0), x, right)

    def expm1(self, x: Any) -> Value:
        """(u - 1)·x / log(u) with u = exp(x) rounded; as `log1p`."""
        u = self.exp(x)
        rest = self.sub(u, 1.0)
        right = self.mul(rest, self.div(x, self.log(u)))
        right = self.where(self.logical_or(self.eq(rest, u), self.eq(rest, -1.0)), rest, right)
        return self.where(self.eq(rest, 0.0), x, right)

    def __getattr__(self, name: str) -> Callable[..., Value]:
        if name.startswith("__"):
            raise AttributeError(name)
        op = RENAMED.get(name) or BITWISE.get(name, name)
        if op not in TAKEN:
            raise Unfusable(f"operation {name} has no kernel")

        def operation(*args: Any) -> Value:
            if name in BITWISE and not all(self._is_condition(self._value(a)) for a in args):
                raise Unfusable(f"operation {name} of numbers has no kernel")
            to = self._condition if op in (*LOGIC, "not") else self._number
            values = [to(self._value(a)) for a in args]
            bounds = _bounds(op, [v.bounds for v in values])
            return Value(self._owner.emit(op, *(v.index for v in values)), bounds)

        return operation

    def _value(self, x: Any) -> Value:
        x = unwrap(x)
        if isinstance(x, Value) and x.narrow:
            raise Unfusable(f"it computes with {x.narrow}, which kernels store as a last step")
        return x if isinstance(x, Value) else self._literal(x)

    def _literal(self, value: Any) -> Value:
        if not isinstance(value, (bool, int, float, sympy.Number)):
            raise Unfusable(f"{value!r} is no number")
        whole = isinstance(value, (int, sympy.Integer))
        bounds = (int(value), int(value)) if whole else None
        return Value(self._owner.emit("const", value=float(value)), bounds)

    def _is_condition(self, value: Value) -> bool:
        return self._owner.nodes[value.index].op in CONDITIONS

    def _condition(self, value: Value) -> Value:
        if self._is_condition(value):
            return value
        zero = self._owner.emit("const", value=0.0)
        return Value(self._owner.emit("ne", value.index, zero))

    def _number(self, value: Value) -> Value:
        if not self._is_condition(value):
            return value
        one, zero = (self._owner.emit("const", value=v) for v in (1.0, 0.0))
        return Value(self._owner.emit("where", value.index, one, zero), (0, 1))


def _bounds(op: str, bounds: list[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Bounds of a whole number that an operation makes of whole numbers, else None.

    Raises:
        Unfusable: fp32 may not hold it.
    """
    known = [b for b in bounds if b is not None]
    if len(known) != len(bounds):
        return None
    low, high = known[0]
    if op == "neg":
        return -high, -low
    if op == "abs":
        return 0, max(abs(low), abs(high))
    if op not in ("add", "sub", "mul", "maximum", "minimum"):
        return None
    other, top = known[1]
    if op == "add":
        found = low + other, high + top
    elif op == "sub":
        found = low - top, high - other
    elif op == "mul":
        products = [x * y for x in (low, high) for y in (other, top)]
        found = min(products), max(products)
    else:
        pick = max if op == "maximum" else min
        found = pick(low, other), pick(high, top)
    return _small(Value(0, found)).bounds


def _small(value: Value) -> Value:
    if value.bounds is not None and max(abs(b) for b in value.bounds) > WHOLE:
        raise Unfusable(f"whole numbers over {WHOLE} are not exact in float32")
    return value


def _dtype_of(name: str) -> DType:
    from torch._inductor.virtualized import V

    dtype = str(V.graph.get_dtype(name))
    if dtype not in (*FLOATS, BOOL):
        raise Unfusable(f"{name} is {dtype}; epilogues read {', '.join((*FLOATS, BOOL))}")
    return DType.parse(dtype)

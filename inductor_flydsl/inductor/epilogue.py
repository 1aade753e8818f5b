"""Inductor's pointwise IR → `Fusion`: what may be computed between the accumulators and C.

Owns the reading of index expressions and of the operations inside a pointwise node. Knows nothing
of scheduling: whether an intermediate may disappear is `scheduling`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from ..dtypes import DType
from ..errors import BadArgument
from ..fusion import ARITY, MAX_TENSORS, Fusion, Node, Tensor
from ..problem import GemmProblem, alignment
from .operands import BASE_BYTES, quads_aligned
from .runtime import Launch

# Inductor's name of an operation → ours, where they differ.
RENAMED = {"truediv": "div", "logical_and": "and", "logical_or": "or", "logical_not": "not"}
FLOATS = ("torch.bfloat16", "torch.float16", "torch.float32")


class Unfusable(Exception):
    """A node that cannot join the epilogue; the message says why."""


@dataclass(frozen=True)
class Read:
    """A tensor that the epilogue reads.

    Attributes:
        name: of Inductor's buffer.
        offset: first element, from the start of the buffer.
        row, column: strides in elements along M and N.
        dtype: of its elements.
    """

    name: str
    offset: int
    row: int
    column: int
    dtype: DType


@dataclass(frozen=True)
class Place:
    """How the elements of a matrix of M x N lie in a buffer: ``row``·m + n."""

    row: int


@dataclass
class Program:
    """A chain of pointwise nodes on a product, as it is read.

    Attributes:
        m, n: extents of the product.
        made: name of a buffer → (value, place): the product, then each node's result.
    """

    m: int
    n: int
    nodes: list[Node] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    made: dict[str, tuple[int, Place]] = field(default_factory=dict)

    def emit(self, op: str, *args: int, **fields: Any) -> int:
        self.nodes.append(Node(op=op, args=args, **fields))
        return len(self.nodes) - 1

    def add(self, name: str, pointwise: Any, layout: Any) -> None:
        """Append the node that computes buffer ``name``.

        Raises:
            Unfusable: it is no pointwise function of the product that a kernel can compute.
        """
        from torch._inductor import ir
        from torch._inductor.virtualized import V

        if not isinstance(pointwise, ir.Pointwise):
            raise Unfusable(f"{name} is a {type(pointwise).__name__}, not a pointwise function")
        if str(layout.dtype) not in FLOATS:
            raise Unfusable(f"{name} is {layout.dtype}")
        ranges = _ints(pointwise.ranges, f"sizes of {name}")
        symbols = [
            sympy.Symbol(f"i{d}", integer=True, nonnegative=True) for d in range(len(ranges))
        ]
        axes = _Axes(self, symbols, ranges)
        # The axes come from the loads of the product, wherever they stand in the function.
        scan: Any = _Scan(self, axes)
        with V.set_ops_handler(scan):
            pointwise.inner_fn(symbols)
        if axes.m_dims is None:
            raise Unfusable(f"{name} does not read the product")
        handler: Any = _Handler(self, axes)
        with V.set_ops_handler(handler):
            result = _unwrap(pointwise.inner_fn(symbols))
        if not isinstance(result, _Value):
            raise Unfusable(f"{name} has no single value")
        value = result.index
        strides = _ints(layout.stride, f"strides of {name}")
        row, column = axes.strides(dict(zip(symbols, strides, strict=True)))
        if (self.n > 1 and column != 1) or (self.m > 1 and row < self.n):
            raise Unfusable(f"{name} is not stored row by row")
        self.made[name] = (value, Place(row if self.m > 1 else self.n))

    def fusion(self, aligned: Callable[[Read], bool]) -> Fusion:
        """The program read so far.

        Args:
            aligned: whether quads of a tensor along N are aligned to their size.

        Raises:
            Unfusable: it reads too many tensors.
        """
        if len(self.reads) > MAX_TENSORS:
            raise Unfusable(f"{len(self.reads)} tensors are read, {MAX_TENSORS} at most")
        tensors = tuple(
            Tensor(
                dtype=r.dtype,
                along_m=r.row != 0,
                along_n=r.column != 0,
                quads=r.column == 1 and self.n % 4 == 0 and aligned(r),
            )
            for r in self.reads
        )
        try:
            return Fusion(nodes=tuple(self.nodes), tensors=tensors)
        except BadArgument as error:
            raise Unfusable(str(error)) from error


def program(name: str, problem: GemmProblem, reads: list[Read]) -> Program:
    """A program that so far is what ``problem`` puts into buffer ``name``.

    Args:
        name: of the product's buffer.
        problem: the product, maybe with a fusion of its own already (a bias).
        reads: what that fusion reads.
    """
    started = Program(problem.m, problem.n)
    nodes = problem.fusion.nodes if problem.fusion else (Node(op="acc"),)
    started.nodes = list(nodes)
    started.reads = list(reads)
    row = problem.ldc if problem.m > 1 else problem.n
    started.made[name] = (len(nodes) - 1, Place(row))
    return started


@dataclass(frozen=True)
class Plan:
    """A kernel with an epilogue.

    Attributes:
        launch: the choice, its problem grown by the epilogue.
        reads: what to pass after A and B.
        dead: buffers that no longer exist: the product and all but the last result.
        output: the buffer that the kernel writes.
    """

    launch: Launch
    reads: tuple[Read, ...]
    dead: tuple[str, ...]
    output: str


def plan(product: Any, launch: Launch, reads: list[Read], nodes: list[Any]) -> Plan:
    """One kernel for a product and the pointwise nodes that follow it.

    Args:
        product: the buffer of the product.
        launch: the choice that computes it.
        reads: what its fusion reads already.
        nodes: ComputedBuffers in order; each may read the product and what is before it.

    Raises:
        Unfusable: a node, or the whole, is none that a kernel can compute.
    """
    problem = launch.problem
    chain = program(product.get_name(), problem, reads)
    for node in nodes:
        chain.add(node.get_name(), node.data, node.get_layout())
    last = nodes[-1]
    value, place = chain.made[last.get_name()]
    if value != len(chain.nodes) - 1:
        raise Unfusable(f"{last.get_name()} is not the last value computed")
    fusion = chain.fusion(_quads_aligned)
    kind = DType.parse(str(last.get_dtype()))
    grown = replace(
        problem,
        out_dtype=kind,
        ldc=place.row,
        c_align=max(alignment(16, place.row * kind.bytes), kind.bytes),
        fusion=fusion,
        tensors=tuple((0, r.row, r.column) for r in chain.reads),
    )
    dead = (product.get_name(), *(n.get_name() for n in nodes[:-1]))
    return Plan(replace(launch, problem=grown), tuple(chain.reads), dead, last.get_name())


def _quads_aligned(read: Read) -> bool:
    """Four elements along N are aligned to their size; Inductor aligns what it allocates."""
    from torch._inductor.virtualized import V

    if read.name in V.graph.unaligned_buffers:
        return False
    return quads_aligned(BASE_BYTES, read.dtype.bytes, read.offset, read.row)


class _Axes:
    """Which loop indices of a node walk M and which walk N, read off its load of the product."""

    def __init__(self, owner: Program, symbols: list[Any], ranges: tuple[int, ...]) -> None:
        self.owner = owner
        self.ranges = dict(zip(symbols, ranges, strict=True))
        self.m_dims: dict[Any, int] | None = None
        self.n_dims: dict[Any, int] = {}

    def coefficients(self, index: Any) -> tuple[dict[Any, int], int]:
        """Strides of a linear index by loop index, and its constant.

        Raises:
            Unfusable: it is not linear with integers.
        """
        index = sympy.expand(index)
        strides = {}
        for symbol, extent in self.ranges.items():
            strides[symbol] = index.coeff(symbol, 1) if extent > 1 else sympy.Integer(0)
        rest = sympy.expand(index - sum(s * symbol for symbol, s in strides.items()))
        rest = rest.subs({symbol: 0 for symbol, extent in self.ranges.items() if extent == 1})
        values = [*strides.values(), rest]
        if not all(v.is_Integer for v in values):
            raise Unfusable(f"index {index} is not linear")
        return {symbol: int(s) for symbol, s in strides.items()}, int(rest)

    def match(self, index: Any, place: Place) -> None:
        """Take the axes from a load of the product, or check that they are the same.

        Raises:
            Unfusable: the load is not element by element.
        """
        strides, offset = self.coefficients(index)
        m_dims, n_dims = {}, {}
        for symbol, stride in strides.items():
            if self.ranges[symbol] == 1:
                continue
            if self.owner.m > 1 and stride and stride % place.row == 0:
                m_dims[symbol] = stride // place.row
            else:
                n_dims[symbol] = stride
        same = self.m_dims in (None, m_dims) and (self.m_dims is None or self.n_dims == n_dims)
        whole = self._covers(m_dims, self.owner.m) and self._covers(n_dims, self.owner.n)
        if offset or not same or not whole:
            raise Unfusable(f"the product is read at {index}, not element by element")
        self.m_dims, self.n_dims = m_dims, n_dims

    def _covers(self, dims: dict[Any, int], extent: int) -> bool:
        """The indices count 0 to ``extent`` - 1, each place once."""
        expected = 1
        for symbol, step in sorted(dims.items(), key=lambda item: item[1]):
            if step != expected:
                return False
            expected *= self.ranges[symbol]
        return expected == extent

    def strides(self, by_symbol: dict[Any, int]) -> tuple[int, int]:
        """(row, column) strides of a tensor with these strides by loop index.

        Raises:
            Unfusable: indices of one axis move it by different amounts.
        """
        found = []
        for dims in (self.m_dims or {}, self.n_dims):
            ratios = {(by_symbol[symbol], step) for symbol, step in dims.items()}
            steps = {stride / step for stride, step in ratios}
            if len(steps) > 1 or any(stride % step for stride, step in ratios):
                raise Unfusable("a tensor's strides do not follow the product's rows and columns")
            found.append(int(steps.pop()) if steps else 0)
        if min(found) < 0:
            raise Unfusable("a tensor has a negative stride")
        return found[0], found[1]


@dataclass(frozen=True)
class _Value:
    """A node of the program, told apart from the literal numbers that operations may be given."""

    index: int


def _unwrap(value: Any) -> Any:
    """What is inside Inductor's wrapper of operands."""
    return getattr(value, "value", value)


class _Scan:
    """Looks only at the loads of the product and of what was made from it."""

    def __init__(self, owner: Program, axes: _Axes) -> None:
        self._owner = owner
        self._axes = axes

    def load(self, name: str, index: Any) -> _Value:
        if name in self._owner.made:
            self._axes.match(index, self._owner.made[name][1])
        return _Value(0)

    def __getattr__(self, name: str) -> Callable[..., _Value]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: _Value(0)


class _Handler:
    """Inductor's operations, each leaving a node."""

    def __init__(self, owner: Program, axes: _Axes) -> None:
        self._owner = owner
        self._axes = axes

    def load(self, name: str, index: Any) -> _Value:
        owner, axes = self._owner, self._axes
        if name in owner.made:
            return _Value(owner.made[name][0])
        strides, offset = axes.coefficients(index)
        row, column = axes.strides(strides)
        read = Read(name, offset, row, column, _dtype_of(name))
        if read not in owner.reads:
            owner.reads.append(read)
        return _Value(owner.emit("tensor", value=owner.reads.index(read)))

    def constant(self, value: Any, dtype: Any) -> _Value:
        return self._number(value)

    def to_dtype(self, x: Any, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        # Inductor computes 16-bit floats in fp32 and rounds where it stores, and so do we.
        if str(dtype) not in FLOATS:
            raise Unfusable(f"conversion to {dtype}")
        return x

    def square(self, x: Any) -> _Value:
        return self.mul(x, x)

    def __getattr__(self, name: str) -> Callable[..., _Value]:
        if name.startswith("__"):
            raise AttributeError(name)
        op = RENAMED.get(name, name)
        if op not in ARITY:
            raise Unfusable(f"operation {name} has no kernel")

        def operation(*args: Any) -> _Value:
            values = [_unwrap(a) for a in args]
            values = [v if isinstance(v, _Value) else self._number(v) for v in values]
            return _Value(self._owner.emit(op, *(v.index for v in values)))

        return operation

    def _number(self, value: Any) -> _Value:
        if isinstance(value, bool) or not isinstance(value, (int, float, sympy.Number)):
            raise Unfusable(f"{value!r} is no number")
        return _Value(self._owner.emit("const", value=float(value)))


def _dtype_of(name: str) -> DType:
    from torch._inductor.virtualized import V

    dtype = str(V.graph.get_dtype(name))
    if dtype not in FLOATS:
        raise Unfusable(f"{name} is {dtype}")
    return DType.parse(dtype)


def _ints(values: Any, what: str) -> tuple[int, ...]:
    try:
        return tuple(int(v) for v in values)
    except (TypeError, ValueError):
        raise Unfusable(f"{what} are symbolic") from None

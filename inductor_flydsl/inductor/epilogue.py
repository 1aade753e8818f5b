"""Inductor's pointwise IR → `Fusion`: what may be computed between the accumulators and C.

Owns the chain of pointwise nodes on a product, and the kernel that a product and its chain are.
Knows nothing of scheduling: whether an intermediate may disappear is `scheduling`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import sympy

from ..dtypes import DType
from ..errors import BadArgument
from ..fusion import MAX_TENSORS, Fusion, Node, Store, Tensor
from ..problem import TENSOR_STRIDES
from .axes import Axes, Place, Unfusable
from .extents import align, hint, is_multiple, is_static
from .handlers import FLOATS, Handler, Read, Scan, Value, unwrap
from .operands import BASE_BYTES, quads_aligned
from .runtime import Launch

__all__ = ["Plan", "Product", "Program", "Read", "Unfusable", "plan", "program"]


@dataclass
class Program:
    """A chain of pointwise nodes on a product, as it is read.

    Attributes:
        extents: (batch, M, N) of the product, maybe symbolic.
        made: name of a buffer → (value, place): the product, then each node's result.
        kinds: types of those buffers.
    """

    extents: tuple[Any, Any, Any]
    nodes: list[Node] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    made: dict[str, tuple[int, Place]] = field(default_factory=dict)
    kinds: dict[str, DType] = field(default_factory=dict)

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
            raise Unfusable(f"{name} is {layout.dtype}; kernels store {', '.join(FLOATS)}")
        axes = Axes(self.extents, list(pointwise.ranges))
        borders: Any = Scan(lambda name, index: axes.note(index))
        with V.set_ops_handler(borders):
            pointwise.inner_fn(axes.index)
        axes.cut()
        # The axes come from the loads of the product, wherever they stand in the function.
        scan: Any = Scan(lambda name, index: self._match(axes, name, index))
        with V.set_ops_handler(scan):
            pointwise.inner_fn(axes.index)
        if axes.dims is None:
            raise Unfusable(f"{name}, which runs with it, does not read the product")
        handler: Any = Handler(self, axes)
        with V.set_ops_handler(handler):
            result = unwrap(pointwise.inner_fn(axes.index))
        if not isinstance(result, Value):
            raise Unfusable(f"{name} has no single value")
        self.made[name] = (result.index, self._output(name, axes, layout))
        self.kinds[name] = DType.parse(str(layout.dtype))

    def _match(self, axes: Axes, name: str | None, index: Any) -> None:
        if name in self.made:
            axes.match(index, self.made[name][1])

    def _output(self, name: str, axes: Axes, layout: Any) -> Place:
        at = sum(s * i for s, i in zip(layout.stride, axes.index, strict=True))
        batch, row, column = axes.strides(axes.coefficients(sympy.sympify(at))[0])
        _, m, n = self.extents
        by_rows = (n == 1 or column == 1) and (m == 1 or hint(row) >= hint(n))
        if layout.offset != 0 or not by_rows:
            raise Unfusable(f"{name} is not stored row by row")
        return Place(batch, row if m != 1 else n)

    def fusion(self, aligned: Callable[[Read], bool], stores: tuple[Store, ...]) -> Fusion:
        """The program read so far.

        Args:
            aligned: whether quads of a tensor along N are aligned to their size.
            stores: values that are stored beside the last one.

        Raises:
            Unfusable: it reads and stores too many tensors.
        """
        if len(self.reads) + len(stores) > MAX_TENSORS:
            also = f" and {len(stores)} stored beside the result" if stores else ""
            raise Unfusable(f"{len(self.reads)} tensors are read{also}, {MAX_TENSORS} at most")
        tensors = tuple(
            Tensor(
                dtype=r.dtype,
                along_m=r.steps[1] != 0,
                along_n=r.steps[2] != 0,
                quads=r.steps[2] == 1 and is_multiple(self.extents[2], 4) and aligned(r),
            )
            for r in self.reads
        )
        try:
            return Fusion(nodes=tuple(self.nodes), tensors=tensors, stores=stores)
        except BadArgument as error:
            raise Unfusable(str(error)) from error


def program(name: str, product: Product, reads: list[Read]) -> Program:
    """A program that so far is what a product puts into buffer ``name``.

    Args:
        name: of the product's buffer.
        product: maybe with a fusion of its own already (a bias).
        reads: what that fusion reads.
    """
    batch, m, n, ldc, c_batch = (
        product.number(name) for name in ("batch", "m", "n", "ldc", "c_batch")
    )
    started = Program((batch, m, n))
    fusion = product.launch.problem.fusion
    started.nodes = list(fusion.nodes if fusion else (Node(op="acc"),))
    started.reads = list(reads)
    started.made[name] = (len(started.nodes) - 1, Place(c_batch, ldc if m != 1 else n))
    started.kinds[name] = product.launch.problem.out_dtype
    return started


@dataclass(frozen=True)
class Product:
    """A kernel that a pointwise chain may join.

    Attributes:
        launch: the choice that computes it.
        sizes: those integers of its problem that are dynamic, as expressions.
    """

    launch: Launch
    sizes: dict[str, Any]

    def number(self, name: str) -> Any:
        """A field of the problem, symbolic where it is dynamic."""
        return self.sizes.get(name, getattr(self.launch.problem, name))


@dataclass(frozen=True)
class Plan:
    """A kernel with an epilogue.

    Attributes:
        product: the choice, its problem grown by the epilogue.
        reads: what to pass after A and B.
        stores: buffers to pass after those: what the kernel stores beside its last value.
        dead: buffers that no longer exist.
        output: the buffer of the last value.
    """

    product: Product
    reads: tuple[Read, ...]
    stores: tuple[str, ...]
    dead: tuple[str, ...]
    output: str


def plan(
    name: str,
    product: Product,
    reads: list[Read],
    nodes: list[Any],
    live: Callable[[str], bool],
) -> Plan:
    """One kernel for a product and the pointwise nodes that follow it.

    Args:
        name: of the product's buffer.
        product: the kernel so far.
        reads: what its fusion reads already.
        nodes: ComputedBuffers in order; each may read the product and what is before it.
        live: whether a buffer, the product's or a node's, is used by others too.

    Raises:
        Unfusable: a node, or the whole, is none that a kernel can compute.
    """
    chain = program(name, product, reads)
    for node in nodes:
        chain.add(node.get_name(), node.data, node.get_layout())
    names = [name, *(n.get_name() for n in nodes)]
    kept = [made for made in names if live(made)] or names[-1:]
    # C gets what is computed last; of buffers with one value, the last.
    output = max(reversed(kept), key=lambda made: chain.made[made][0])
    del chain.nodes[chain.made[output][0] + 1 :]
    stores = tuple(made for made in kept if made != output)
    grown = _grown(product, chain, output, stores)
    dead = tuple(made for made in names if made not in kept)
    return Plan(grown, tuple(chain.reads), stores, dead, output)


def _grown(product: Product, chain: Program, output: str, stores: tuple[str, ...]) -> Product:
    """A product's kernel with a chain in it and these results."""
    kind, place, n = chain.kinds[output], chain.made[output][1], chain.extents[2]
    numbers = {"ldc": place.row, "c_batch": place.batch}
    places = [chain.made[name][1] for name in stores]
    steps = [read.steps for read in chain.reads]
    for index, strides in enumerate([*steps, *((p.batch, p.row, 1) for p in places)]):
        for axis, step in zip(TENSOR_STRIDES, strides, strict=True):
            numbers[f"t{index}_{axis}"] = step
    stored = tuple(
        Store(node=chain.made[name][0], dtype=chain.kinds[name], width=_width(chain, name))
        for name in stores
    )
    grown = replace(
        product.launch.problem,
        out_dtype=kind,
        # A store of several neighbours ends where a row does, for all N.
        c_align=_aligned(chain, output, *(() if is_static(n) else (n,))),
        fusion=chain.fusion(_quads_aligned, stored),
        tensors=((0, 0, 0),) * (len(steps) + len(stores)),
    ).at({name: hint(number) for name, number in numbers.items()})
    sizes = {name: e for name, e in product.sizes.items() if name not in numbers}
    sizes |= {name: number for name, number in numbers.items() if not is_static(number)}
    launch = replace(product.launch, problem=grown, dynamic=tuple(sizes))
    return Product(launch, sizes)


def _aligned(chain: Program, name: str, *more: Any) -> int:
    """Bytes that divide the address of every row of a result, and these counts of elements."""
    size, place = chain.kinds[name].bytes, chain.made[name][1]
    counts = (place.row, place.batch, *more)
    return max(align(BASE_BYTES, *(count * size for count in counts)), size)


def _width(chain: Program, name: str) -> int:
    """Bytes of one store of a result beside C: whole stores make up a row."""
    return _aligned(chain, name, chain.extents[2])


def _quads_aligned(read: Read) -> bool:
    """Four elements along N are aligned to their size; Inductor aligns what it allocates."""
    from torch._inductor.virtualized import V

    if read.name in V.graph.unaligned_buffers:
        return False
    batch, row, _ = read.steps
    return quads_aligned(BASE_BYTES, read.dtype.bytes, read.offset, batch, row)

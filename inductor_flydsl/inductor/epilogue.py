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
from ..signature import TENSORS
from . import compat
from .axes import Axes, Steps, Unfusable
from .extents import align, hint, is_static
from .handlers import EIGHT_BIT_FLOATS, FLOATS, Handler, Read, Scan, Value, unwrap
from .operands import BASE_BYTES, base_alignment, tensor_of
from .runtime import Launch

__all__ = ["Plan", "Product", "Program", "Read", "Steps", "Unfusable", "plan", "program"]


@dataclass(frozen=True)
class Result:
    """What a kernel may store.

    Attributes:
        value: index of the program's node.
        place: where its elements lie.
        dtype: of the buffer.
        base: bytes that divide the buffer's address.
        updates: name of the buffer that it takes the place of, where it has none of its own.
    """

    value: int
    place: Steps
    dtype: DType
    base: int = BASE_BYTES
    updates: str | None = None


@dataclass
class Program:
    """A chain of pointwise nodes on a product, as it is read.

    Attributes:
        extents: (batch, M, N) of the product, maybe symbolic.
        made: by names of buffers: the product, then each node's result.
    """

    extents: tuple[Any, Any, Any]
    nodes: list[Node] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    made: dict[str, Result] = field(default_factory=dict)

    def emit(self, op: str, *args: int, **fields: Any) -> int:
        self.nodes.append(Node(op=op, args=args, **fields))
        return len(self.nodes) - 1

    def add(self, node: Any) -> None:
        """Append a ComputedBuffer.

        Raises:
            Unfusable: it is no pointwise function of the product that a kernel can compute.
        """
        from torch._inductor import ir
        from torch._inductor.virtualized import V

        name, pointwise = node.get_name(), node.data
        layout, target = compat.stored_in(node)
        if not isinstance(pointwise, ir.Pointwise):
            raise Unfusable(f"{name} is a {type(pointwise).__name__}, not a pointwise function")
        stored = (*FLOATS, *EIGHT_BIT_FLOATS)
        if str(layout.dtype) not in stored:
            raise Unfusable(f"{name} is {layout.dtype}; kernels store {', '.join(stored)}")
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
            raise Unfusable(f"{name}, which Inductor fused with it, does not read the product")
        handler: Any = Handler(self, axes)
        with V.set_ops_handler(handler):
            result = unwrap(pointwise.inner_fn(axes.index))
        if not isinstance(result, Value):
            raise Unfusable(f"{name} has no single value")
        if result.narrow not in ("", str(layout.dtype)):
            raise Unfusable(f"{name} is {layout.dtype}, made of {result.narrow}")
        dtype, base = DType.parse(str(layout.dtype)), BASE_BYTES
        if target is not None:
            found, unsure = base_alignment(target, dtype.bytes)
            base = dtype.bytes if unsure else found
        updates = None if target is None else target.get_name()
        place = self._output(name, axes, layout)
        self.made[name] = Result(result.index, place, dtype, base, updates)

    def _match(self, axes: Axes, name: str | None, index: Any) -> None:
        if name in self.made:
            place = self.made[name].place
            if self.made[name].dtype.scaled:
                raise Unfusable(f"{name} is {self.made[name].dtype.value}, and is read again")
            if place.heads:
                raise Unfusable(f"{name} has its heads side by side, and is read again")
            axes.match(index, place)

    def _output(self, name: str, axes: Axes, layout: Any) -> Steps:
        at = sum(s * i for s, i in zip(layout.stride, axes.index, strict=True))
        steps = axes.strides(axes.coefficients(sympy.sympify(at))[0])
        _, m, n = self.extents
        by_rows = (n == 1 or steps.column == 1) and (m == 1 or hint(steps.row) >= hint(n))
        if layout.offset != 0 or not by_rows:
            raise Unfusable(f"{name} is not stored row by row")
        return replace(steps, row=steps.row if m != 1 else n, column=1)

    def fusion(self, stores: tuple[Store, ...]) -> Fusion:
        """The program read so far.

        Args:
            stores: values that are stored beside the last one.

        Raises:
            Unfusable: it reads and stores too many tensors.
        """
        if len(self.reads) + len(stores) > MAX_TENSORS:
            also = f" and {len(stores)} stored beside the result" if stores else ""
            raise Unfusable(f"{len(self.reads)} tensors are read{also}, {MAX_TENSORS} at most")
        tensors = tuple(_tensor(read, self.extents[2]) for read in self.reads)
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
    place = Steps(c_batch, ldc if m != 1 else n, 1)
    started.made[name] = Result(len(started.nodes) - 1, place, product.launch.problem.out_dtype)
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
        updates: of output and stores, those that are other buffers', by the names of these.
    """

    product: Product
    reads: tuple[Read, ...]
    stores: tuple[str, ...]
    dead: tuple[str, ...]
    output: str
    updates: dict[str, str]


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
        chain.add(node)
    made = chain.made
    kept = [name for name in made if made[name].updates or live(name)] or list(made)[-1:]
    _check_updates(chain, [made[name] for name in kept])
    # C gets what is computed last; of buffers with one value, the last.
    output = max(reversed(kept), key=lambda name: made[name].value)
    del chain.nodes[made[output].value + 1 :]
    stores = tuple(name for name in kept if name != output)
    grown = _grown(product, chain, output, stores)
    dead = tuple(name for name in made if name not in kept)
    updates = {name: str(made[name].updates) for name in kept if made[name].updates}
    return Plan(grown, tuple(chain.reads), stores, dead, output, updates)


def _check_updates(chain: Program, results: list[Result]) -> None:
    """A buffer that is updated in place is read at the very elements that are stored alone."""
    for result in results:
        own = [r for r in chain.reads if r.name == result.updates]
        if any(r.offset != 0 or not r.steps.same(result.place, chain.extents) for r in own):
            raise Unfusable(f"{result.updates} is updated in place and read at other elements too")


def _grown(product: Product, chain: Program, output: str, stores: tuple[str, ...]) -> Product:
    """A product's kernel with a chain in it and these results."""
    place, n = chain.made[output].place, chain.extents[2]
    places = [*(read.steps for read in chain.reads), *(chain.made[name].place for name in stores)]
    numbers = {"ldc": place.row, "c_batch": place.batch}
    for index, steps in enumerate(places):
        numbers |= {f"t{index}_{axis}": getattr(steps, axis) for axis in TENSOR_STRIDES}
    heads = _heads([place, *places])
    if heads:
        named = zip(("c", *TENSORS), (place, *places), strict=False)
        numbers |= {f"{name}_outer": steps.outer_of(heads) for name, steps in named}
    stored = tuple(
        Store(node=result.value, dtype=result.dtype, width=_width(chain, result))
        for result in map(chain.made.__getitem__, stores)
    )
    grown = replace(
        product.launch.problem,
        out_dtype=chain.made[output].dtype,
        # A store of several neighbours ends where a row does, for all N.
        c_align=_aligned(chain.made[output], *(() if is_static(n) else (n,))),
        fusion=chain.fusion(stored),
        tensors=((0, 0, 0),) * len(places),
        heads=heads,
        outer=(0,) * (1 + len(places)) if heads else (),
    ).at({name: hint(number) for name, number in numbers.items()})
    sizes = {name: e for name, e in product.sizes.items() if name not in numbers}
    sizes |= {name: number for name, number in numbers.items() if not is_static(number)}
    launch = replace(product.launch, problem=grown, dynamic=tuple(sizes))
    return Product(launch, sizes)


def _heads(places: list[Steps]) -> int:
    """Heads of the batches of what a kernel reads and stores; 0 where none tells them apart.

    Raises:
        Unfusable: some tell others apart than others.
    """
    found = sorted({steps.heads for steps in places} - {0})
    if len(found) > 1:
        raise Unfusable(f"tensors count the batch by {' and by '.join(map(str, found))}")
    return found[0] if found else 0


def _aligned(result: Result, *more: Any) -> int:
    """Bytes that divide the address of every row of a result, and these counts of elements."""
    size, counts = result.dtype.bytes, (*result.place.lines, *more)
    return max(align(result.base, *(count * size for count in counts)), size)


def _width(chain: Program, result: Result) -> int:
    """Bytes of one store of a result beside C: whole stores make up a row."""
    return _aligned(result, chain.extents[2])


def _tensor(read: Read, n: Any) -> Tensor:
    """How a tensor is read; Inductor aligns what it allocates."""
    from torch._inductor.virtualized import V

    base = read.dtype.bytes if read.name in V.graph.unaligned_buffers else BASE_BYTES
    return tensor_of(read.dtype, read.steps, n, base, read.offset)

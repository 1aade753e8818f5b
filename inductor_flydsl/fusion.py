"""What is computed between the accumulators and C: a small pointwise program.

Its last value goes to C; others on the way may be stored too.

Owns its form, its legality and its meaning in plain Python; `templates.pointwise` emits it and
`inductor.epilogue` reads it off Inductor's IR. Values are fp32 unless they are conditions.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .dtypes import DType
from .errors import BadArgument

UNARY: tuple[str, ...] = (
    "neg",
    "abs",
    "exp",
    "exp2",
    "log",
    "log2",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "relu",
)
UNARY += ("sigmoid", "tanh", "erf", "floor", "ceil", "trunc", "isnan", "not")
UNARY += ("gelu", "gelu_tanh")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")
COMPARE = ("lt", "le", "gt", "ge", "eq", "ne")
LOGIC = ("and", "or")
# Operations that give a condition, not a number.
CONDITIONS = (*COMPARE, *LOGIC, "not", "isnan")
# Where the element lies in its product, as a number.
INDICES = ("batch", "row", "column")
ARITY = {"acc": 0, "const": 0, "tensor": 0, "round": 1, "where": 3}
ARITY |= {name: 0 for name in INDICES}
ARITY |= {name: 1 for name in UNARY} | {name: 2 for name in (*BINARY, *COMPARE, *LOGIC)}
# Tensors beside A, B and C that a kernel takes: what it reads, and what else it stores.
MAX_TENSORS = 4
# Extents of a product whose program reads an index: sums of a few stay whole numbers in fp32.
INDEX_EXTENT = 2**22


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A tensor that the program reads beside the accumulators.

    Attributes:
        dtype: bf16, fp16, fp32, or bool, which is read as 0 and 1.
        along_m, along_n: the index that moves it; neither for a single element.
        quads: four neighbours along N are neighbours in memory, at a multiple of their size.
        eights: so are eight, of 16 bits each.
    """

    dtype: DType
    along_m: bool
    along_n: bool
    quads: bool = False
    eights: bool = False


@dataclass(frozen=True, kw_only=True)
class Node:
    """One operation; arguments are indices of earlier nodes.

    Attributes:
        op: a key of ARITY.
        args: indices of earlier nodes.
        value: of ``const``; index into the tensors of ``tensor``.
        dtype: of ``round``: the value is rounded to it and widened again.
    """

    op: str
    args: tuple[int, ...] = ()
    value: float | None = None
    dtype: DType | None = None


@dataclass(frozen=True, kw_only=True)
class Store:
    """A value of the program that is stored beside C, row by row as C is.

    Attributes:
        node: its index.
        dtype: it is rounded to.
        width: bytes of one store: of neighbours along N, at a multiple of their size, that are all
            there or none.
    """

    node: int
    dtype: DType
    width: int


@dataclass(frozen=True, kw_only=True)
class Fusion:
    """A pointwise program; its last node is what C holds.

    Attributes:
        nodes: its operations, in order.
        tensors: what it reads.
        stores: what else it stores.

    Raises:
        BadArgument: an unknown operation, a wrong number of arguments, a forward reference, a
            condition where a number is needed, or more tensors than a kernel takes.
    """

    nodes: tuple[Node, ...]
    tensors: tuple[Tensor, ...] = ()
    stores: tuple[Store, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise BadArgument("nodes", self.nodes, "is empty", "start with Node(op='acc')")
        taken = len(self.tensors) + len(self.stores)
        if taken > MAX_TENSORS:
            way = f"read and store at most {MAX_TENSORS} beside A, B and C"
            raise BadArgument("tensors", taken, "tensors are too many", way)
        for index, node in enumerate(self.nodes):
            self._check(index, node)
        if self.nodes[-1].op in CONDITIONS:
            raise BadArgument("nodes", self.nodes[-1].op, "is no number", "end with where or round")
        for store in self.stores:
            if not 0 <= store.node < len(self.nodes) or self.nodes[store.node].op in CONDITIONS:
                raise BadArgument("node", store.node, "is no number", "store an earlier one")
            if store.width < store.dtype.bytes:
                way = f"pass {store.dtype.bytes} or more"
                raise BadArgument("width", store.width, "is less than an element", way)

    def _check(self, index: int, node: Node) -> None:
        if node.op not in ARITY:
            raise BadArgument("op", node.op, "is not known", f"use one of {sorted(ARITY)}")
        if len(node.args) != ARITY[node.op]:
            raise BadArgument("args", node.args, f"do not fit {node.op}", f"pass {ARITY[node.op]}")
        if any(not 0 <= a < index for a in node.args):
            raise BadArgument("args", node.args, "refer forward", "order the nodes")
        if node.op == "tensor" and not 0 <= int(node.value or 0) < len(self.tensors):
            raise BadArgument("value", node.value, "names no tensor", "give its index")
        if node.op == "round" and node.dtype is None:
            raise BadArgument("dtype", node.dtype, "is missing", "say what round rounds to")

    @property
    def alone(self) -> tuple[Fusion, ...]:
        """The program of each result by itself: of C's, then of each store's."""
        ends = (len(self.nodes) - 1, *(store.node for store in self.stores))
        return tuple(replace(self, nodes=self.nodes[: end + 1], stores=()) for end in ends)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {
            "nodes": [
                [n.op, list(n.args), n.value, n.dtype.value if n.dtype else None]
                for n in self.nodes
            ],
            "tensors": [
                [t.dtype.value, t.along_m, t.along_n, t.quads, *([True] if t.eights else [])]
                for t in self.tensors
            ],
        }
        if self.stores:
            data["stores"] = [[s.node, s.dtype.value, s.width] for s in self.stores]
        return data

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the JSON form."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Fusion:
        """Inverse of `to_json`."""
        nodes = tuple(
            Node(op=op, args=tuple(args), value=value, dtype=DType(dtype) if dtype else None)
            for op, args, value, dtype in data["nodes"]
        )
        tensors = tuple(
            Tensor(dtype=DType(dtype), along_m=m, along_n=n, quads=quads, eights=bool(eights))
            for dtype, m, n, quads, *eights in data["tensors"]
        )
        stores = tuple(
            Store(node=at, dtype=DType(dtype), width=width)
            for at, dtype, width in data.get("stores", ())
        )
        return cls(nodes=nodes, tensors=tensors, stores=stores)

    @property
    def indexed(self) -> bool:
        """The program asks where an element lies."""
        return any(node.op in INDICES for node in self.nodes)

    def evaluate(self, ops: Any, acc: Any, tensors: Sequence[Any]) -> Any:
        """What C holds, of `results`."""
        return self.results(ops, acc, tensors)[0]

    def results(self, ops: Any, acc: Any, tensors: Sequence[Any]) -> list[Any]:
        """Run the program with another arithmetic.

        Args:
            ops: has a method for every name of UNARY, BINARY, COMPARE and LOGIC, ``where`` and
                ``round(x, dtype)``, ``const(value)``, and ``index(name, acc)`` for INDICES.
            acc: the accumulators; tensors: the operands, widened to fp32.

        Returns:
            What C holds, then the value of each store.
        """
        return self.finished(self.advanced([], ops, acc, tensors))

    def advanced(self, values: list[Any], ops: Any, acc: Any, tensors: Sequence[Any]) -> list[Any]:
        """Values of all nodes that can be computed by now, None for the others.

        Args:
            values: of an earlier call, when fewer tensors were known; empty at first.
            ops, acc, tensors: as in `results`; None for a tensor that is not known yet.
        """
        done: list[Any] = []
        for index, node in enumerate(self.nodes):
            args = [done[a] for a in node.args]
            if values and values[index] is not None:
                done.append(values[index])
            elif node.op == "tensor":
                done.append(tensors[int(node.value or 0)])
            else:
                done.append(
                    None if any(a is None for a in args) else self._value(node, args, ops, acc)
                )
        return done

    def finished(self, values: list[Any]) -> list[Any]:
        """`results` from the values of all nodes."""
        return [values[-1], *(values[store.node] for store in self.stores)]

    @staticmethod
    def _value(node: Node, args: list[Any], ops: Any, acc: Any) -> Any:
        if node.op == "acc":
            return acc
        if node.op == "const":
            return ops.const(node.value)
        if node.op in INDICES:
            return ops.index(node.op, acc)
        if node.op == "round":
            return ops.round(args[0], node.dtype)
        name = {"not": "not_", "and": "and_", "or": "or_"}.get(node.op, node.op)
        return getattr(ops, name)(*args)


class TorchOps:
    """The program's meaning in torch: what a kernel's result is compared with."""

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def const(self, value: float) -> Any:
        return value

    def index(self, name: str, acc: Any) -> Any:
        """Of C[batch, M, N] or C[M, N], along one axis."""
        axis = acc.dim() - 3 + INDICES.index(name)
        if axis < 0:
            return self.torch.zeros((), dtype=acc.dtype, device=acc.device)
        count = self.torch.arange(acc.shape[axis], dtype=acc.dtype, device=acc.device)
        return count.reshape([-1 if i == axis else 1 for i in range(acc.dim())])

    def round(self, x: Any, dtype: DType) -> Any:
        return x.to(getattr(self.torch, dtype.value)).to(x.dtype)

    def where(self, condition: Any, x: Any, y: Any) -> Any:
        return self.torch.where(condition, x, y)

    def gelu(self, x: Any) -> Any:
        return 0.5 * x * self.torch.special.erfc(-math.sqrt(0.5) * x)

    def gelu_tanh(self, x: Any) -> Any:
        # x·(1 + tanh z) / 2, without the sum that cancels.
        return x * self.torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        names = {"div": "true_divide", "not_": "logical_not", "and_": "logical_and"}
        names |= {"or_": "logical_or", "rsqrt": "rsqrt", "relu": "relu"}
        function = getattr(self.torch, names.get(name, name))
        return lambda *args: function(*self._tensors(args))

    def _tensors(self, args: tuple[Any, ...]) -> list[Any]:
        kind = next((a.dtype for a in args if hasattr(a, "dtype")), self.torch.float32)
        return [a if hasattr(a, "dtype") else self.torch.tensor(a, dtype=kind) for a in args]


# Coefficients of erfc(x) = t·exp(-x² + P(t)), t = 1 / (1 + x/2), relative error under 1.2e-7
# (Press et al., Numerical Recipes, §6.2, a Chebyshev fit).
ERFC: tuple[float, ...] = (-1.26551223, 1.00002368, 0.37409196, 0.09678418, -0.18628806)
ERFC += (0.27886807, -1.13520398, 1.48851587, -0.82215223, 0.17087277)
# Odd series at 0 of erf, times √π/2, and of tanh, in powers of x².
ERF_SERIES = (1.0, -1 / 3, 1 / 10, -1 / 42, 1 / 216, -1 / 1320, 1 / 9360)
TANH_SERIES = (1.0, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925)
LOG2_E = math.log2(math.e)

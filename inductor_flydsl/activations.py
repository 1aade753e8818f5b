"""Activations that a Fusion spells out in small operations, found again as one of their own.

Owns what a GELU looks like once it is decomposed, and the polynomials that give it in one
exponential. `templates.pointwise` emits it. Where the erf or tanh is near minus one, its sum with
one has few good digits; the operation that replaces them keeps all, in fewer instructions.
"""

from __future__ import annotations

import math
from dataclasses import replace

from .dtypes import DType
from .fusion import Fusion, Node

# erf takes x / √2 in GELU, or tanh √(2/π)·(x + 0.044715·x³) (arXiv 1606.08415).
ERF_SCALE = math.sqrt(0.5)
TANH_SCALE, TANH_CUBE = math.sqrt(2 / math.pi), 0.044715
# log2 of the normal distribution's lower tail at -a, 0 ≤ a ≤ end, in powers of a, by the type of
# the result: minimax fits (Lawson's iteration) to values of 15 digits, for Horner's scheme in fp32.
# For bf16 the tail is off by under 2**-11.4 for a < 6; beyond, where GELU is under 6e-9 (and 0 if
# 1 + erf is rounded to fp32), it falls faster than it should. For fp16 it is off by under 2**-17,
# and ends where GELU rounds to 0. Half of a unit in the last place is 2**-9 of bf16's smallest
# mantissa, 2**-12 of fp16's.
LOG2_TAIL = {
    DType.BF16: (-1.0005318, -1.14439974, -0.472785646, -0.0428327476, 0.00446760837,
                 -2.01684542e-4),
    DType.FP16: (-0.999995294, -1.15125105, -0.458464393, -0.0539600694, 0.00850789093,
                 -9.30524827e-4, 6.15982891e-5, -1.83481112e-6),
}  # fmt: skip
TAIL_END = {DType.BF16: 13.5, DType.FP16: 6.0, DType.FP32: 13.5}

# How far constants may be from those above: a graph may hold them in fp32.
CLOSE = 1e-6
# A value of more terms is taken as it is, unexpanded.
TERMS = 40

# Products of nodes, which are no sums themselves, by their sorted indices → coefficient.
_Sum = dict[tuple[int, ...], float]


def recognised(fusion: Fusion) -> Fusion:
    """The same program with each GELU that it spells out as one node."""
    program = _Program()
    moved: list[int] = []
    for node in fusion.nodes:
        at = program.add(replace(node, args=tuple(moved[a] for a in node.args)))
        moved.append(program.gelu(at))
    nodes, places = program.needed(moved[-1], [moved[store.node] for store in fusion.stores])
    stores = zip(fusion.stores, places, strict=True)
    return replace(fusion, nodes=nodes, stores=tuple(replace(s, node=at) for s, at in stores))


class _Program:
    """Nodes, each value once, with their expansions into sums of products."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.sums: list[_Sum] = []
        self.known: dict[Node, int] = {}

    def add(self, node: Node) -> int:
        """Index of a node with this value."""
        if node not in self.known:
            self.known[node] = len(self.nodes)
            self.nodes.append(node)
            self.sums.append(self._expanded(node, len(self.sums)))
        return self.known[node]

    def _expanded(self, node: Node, index: int) -> _Sum:
        args = [self.sums[a] for a in node.args]
        if node.op == "const":
            return {(): float(node.value or 0.0)}
        if node.op == "neg":
            return _times(args[0], {(): -1.0})
        if node.op == "mul":
            found = _times(*args)
        elif node.op in ("add", "sub"):
            found = _plus(args[0], args[1], 1.0 if node.op == "add" else -1.0)
        else:
            found = {}
        return found if 0 < len(found) <= TERMS else {(index,): 1.0}

    def gelu(self, index: int) -> int:
        """The same value as GELU where it is one times a number, else ``index`` itself."""
        total = self.sums[index]
        curves = {i for product in total for i in product if self.nodes[i].op in ("erf", "tanh")}
        for curve in curves:
            plain = {p: c for p, c in total.items() if curve not in p}
            # x·curve without the curve: what is left where it was there once.
            bent = {_without(p, curve): c for p, c in total.items() if curve in p}
            if not plain or len(bent) + len(plain) != len(total) or _ratio(plain, bent) != 1.0:
                continue
            at = self._scale(curve, plain)
            if at is not None:
                return self._made(self.nodes[curve].op, plain, at)
        return index

    def _scale(self, curve: int, plain: _Sum) -> float | None:
        """k, where the curve's argument is that of GELU(k·plain)."""
        node = self.nodes[curve]
        inside = self.sums[node.args[0]]
        if node.op == "erf":
            k = _ratio(inside, plain)
            return k and k / ERF_SCALE
        straight = {p: c for p, c in inside.items() if p in plain}
        k = _ratio(straight, plain)
        if not k:
            return None
        k /= TANH_SCALE
        x = _times(plain, {(): k})
        cube = _times(_times(x, x), x)
        whole = _times(_plus(x, cube, TANH_CUBE), {(): TANH_SCALE})
        return k if _ratio(inside, whole) == 1.0 else None

    def _made(self, curve: str, plain: _Sum, scale: float) -> int:
        """plain·(1 + curve) as 2/scale · GELU(scale·plain)."""
        near = [(i, r) for i, s in enumerate(self.sums) if (r := _ratio(plain, s))]
        # The value itself rather than a multiple of it.
        x, ratio = min(near, key=lambda pair: (pair[1] * scale != 1.0, pair[0]))
        x = self._scaled(x, ratio * scale)
        made = self.add(Node(op="gelu" if curve == "erf" else "gelu_tanh", args=(x,)))
        return self._scaled(made, 2 / scale)

    def _scaled(self, index: int, factor: float) -> int:
        if _same(factor, 1.0):
            return index
        return self.add(Node(op="mul", args=(index, self.add(Node(op="const", value=factor)))))

    def needed(self, last: int, others: list[int]) -> tuple[tuple[Node, ...], list[int]]:
        """The nodes that some are computed from, that of ``last`` at the end; and where the
        others are among them."""
        wanted = {last, *others}
        for index in range(max(wanted), -1, -1):
            if index in wanted:
                wanted.update(self.nodes[index].args)
        kept = sorted(wanted)
        place = {old: new for new, old in enumerate(kept)}
        nodes = [
            replace(n, args=tuple(place[a] for a in n.args))
            for n in map(self.nodes.__getitem__, kept)
        ]
        if kept[-1] != last:
            nodes.append(Node(op="round", args=(place[last],), dtype=DType.FP32))
        return tuple(nodes), [place[index] for index in others]


def _same(x: float, y: float) -> bool:
    return math.isclose(x, y, rel_tol=CLOSE)


def _without(product: tuple[int, ...], index: int) -> tuple[int, ...]:
    at = product.index(index)
    return product[:at] + product[at + 1 :]


def _times(x: _Sum, y: _Sum) -> _Sum:
    found: _Sum = {}
    for p, c in x.items():
        for q, d in y.items():
            both = tuple(sorted(p + q))
            found[both] = found.get(both, 0.0) + c * d
    return found


def _plus(x: _Sum, y: _Sum, factor: float) -> _Sum:
    """x + factor·y."""
    found = dict(x)
    for product, coefficient in y.items():
        found[product] = found.get(product, 0.0) + factor * coefficient
    return found


def _ratio(x: _Sum, y: _Sum) -> float | None:
    """x / y where that is a number other than 0, exactly 1 where it is close to it; else None."""
    if not x or x.keys() != y.keys():
        return None
    ratios = [x[p] / y[p] if y[p] else 0.0 for p in x]
    if not ratios[0] or not all(_same(r, ratios[0]) for r in ratios):
        return None
    return 1.0 if _same(ratios[0], 1.0) else ratios[0]

"""GELU found in programs that spell it out, and nothing else taken for it."""

import math
import operator

import pytest

from inductor_flydsl.activations import recognised
from inductor_flydsl.dtypes import DType
from inductor_flydsl.fusion import Fusion, Node, Tensor

BIAS = (Tensor(dtype=DType.BF16, along_m=False, along_n=True),)


class Writer:
    """Nodes one after another; numbers become constants."""

    def __init__(self):
        self.nodes = []

    def __call__(self, op, *args, value=None):
        args = tuple(self("const", value=a) if isinstance(a, float) else a for a in args)
        self.nodes.append(Node(op=op, args=args, value=value))
        return len(self.nodes) - 1

    def fusion(self, tensors=()):
        return Fusion(nodes=tuple(self.nodes), tensors=tensors)


def by_erf(w, x, half=0.5, root=0.5**0.5, one=1.0):
    return w("mul", w("mul", x, half), w("add", w("erf", w("mul", x, root)), one))


def by_tanh(w, x, cube=0.044715):
    inner = w("add", x, w("mul", w("mul", w("mul", x, x), x), cube))
    curve = w("tanh", w("mul", inner, 0.7978845608028654))
    return w("mul", w("mul", x, 0.5), w("add", curve, 1.0))


def spread(w, x):
    """x/2 + x/2·erf(x / √2), which has no factor in common."""
    return w("add", w("mul", x, 0.5), w("mul", w("mul", 0.5, w("erf", w("mul", x, 0.5**0.5))), x))


def names(fusion):
    return [node.op for node in recognised(fusion).nodes]


class Numbers:
    """The operations on Python's floats."""

    const, abs, erf, tanh = float, abs, math.erf, math.tanh
    add, sub, mul, neg = operator.add, operator.sub, operator.mul, operator.neg

    @staticmethod
    def gelu(x):
        return x * math.erfc(-x / math.sqrt(2)) / 2

    @staticmethod
    def gelu_tanh(x):
        return x / (1 + math.exp(-math.sqrt(8 / math.pi) * (x + 0.044715 * x**3)))


def same_values(fusion, tensors=()):
    for step in range(-50, 51):
        before = fusion.evaluate(Numbers, step / 10, tensors)
        after = recognised(fusion).evaluate(Numbers, step / 10, tensors)
        assert math.isclose(after, before, rel_tol=1e-6, abs_tol=1e-12)


@pytest.mark.parametrize("spelled", [by_erf, spread])
def test_erf(spelled):
    w = Writer()
    spelled(w, w("acc"))
    assert names(w.fusion()) == ["acc", "gelu"]
    same_values(w.fusion())


def test_tanh():
    w = Writer()
    by_tanh(w, w("acc"))
    assert names(w.fusion()) == ["acc", "gelu_tanh"]
    same_values(w.fusion())


@pytest.mark.parametrize("spelled", [by_erf, by_tanh])
def test_of_a_sum_that_is_used_again(spelled):
    w = Writer()
    x = w("add", w("acc"), w("tensor", value=0))
    w("mul", spelled(w, x), x)
    found = names(w.fusion(BIAS))
    assert found[:3] == ["acc", "tensor", "add"] and found[-1] == "mul" and len(found) == 5
    same_values(w.fusion(BIAS), tensors=[0.7])


@pytest.mark.parametrize("spelled", [by_erf, by_tanh])
def test_of_a_multiple(spelled):
    w = Writer()
    w("mul", spelled(w, w("mul", w("acc"), -0.3)), 3.0)
    assert not {"erf", "tanh"} & set(names(w.fusion()))
    same_values(w.fusion())


def test_two_loads_of_one_value_are_one():
    w = Writer()
    half = w("mul", w("tensor", value=0), 0.5)
    inner = w("mul", w("tensor", value=0), 0.5**0.5)
    w("add", w("mul", half, w("add", w("erf", inner), 1.0)), w("acc"))
    assert "gelu" in names(w.fusion(BIAS))


def test_erf_that_is_needed_besides_is_kept():
    w = Writer()
    x = w("acc")
    gelu = by_erf(w, x)
    w("add", gelu, w("erf", w("mul", x, 0.5**0.5)))
    assert {"gelu", "erf"} <= set(names(w.fusion()))
    same_values(w.fusion())


@pytest.mark.parametrize(
    "spelled",
    [
        lambda w, x: by_erf(w, x, one=1.01),
        lambda w, x: by_erf(w, x, one=-1.0),
        lambda w, x: by_tanh(w, x, cube=0.05),
        lambda w, x: w("mul", w("mul", x, x), w("add", w("erf", w("mul", x, 0.5**0.5)), 1.0)),
        lambda w, x: w("mul", x, w("add", w("erf", w("mul", w("abs", x), 0.5**0.5)), 1.0)),
        lambda w, x: w("mul", w("erf", x), w("erf", x)),
    ],
)
def test_what_is_no_gelu_stays(spelled):
    w = Writer()
    spelled(w, w("acc"))
    assert not any(name.startswith("gelu") for name in names(w.fusion()))
    same_values(w.fusion())


def test_long_sums_end():
    w = Writer()
    x = w("add", w("acc"), w("tensor", value=0))
    for _ in range(12):
        x = w("mul", w("add", x, 1.0), x)
    w("mul", x, w("add", w("tanh", x), 1.0))
    assert names(w.fusion(BIAS))[-1] == "mul"


def test_the_last_node_is_the_result():
    w = Writer()
    w("acc")
    w("neg", w("neg", 0))
    w("neg", 0)
    fusion = w.fusion()
    assert recognised(fusion).nodes == (Node(op="acc"), Node(op="neg", args=(0,)))

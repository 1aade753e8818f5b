"""A mixture of experts, forward and backward: each grouped product a FlyDSL kernel, emulated.

Result and gradients are compared with a float64 loop over tokens that has no groups.
"""

import re

import pytest
import torch
import torch._inductor.config as inductor_config
import torch.nn.functional as F

from inductor_flydsl.inductor import choices

pytest.importorskip("flydsl", reason="the emulator runs what FlyDSL compiles")
pytestmark = pytest.mark.skipif(
    not hasattr(F, "grouped_mm"), reason="this PyTorch has no torch.nn.functional.grouped_mm"
)

TOKENS, WIDTH, INNER, EXPERTS, TOP = 37, 48, 40, 8, 2


class Experts(torch.nn.Module):
    """SwiGLU experts behind a top-2 router; weights as [expert, out, in], as checkpoints have."""

    def __init__(self):
        super().__init__()
        shapes = {"router": (EXPERTS, WIDTH), "gate": (EXPERTS, INNER, WIDTH)}
        shapes |= {"up": (EXPERTS, INNER, WIDTH), "down": (EXPERTS, WIDTH, INNER)}
        for name, shape in shapes.items():
            made = torch.randn(shape, dtype=torch.bfloat16) * shape[-1] ** -0.5
            setattr(self, name, torch.nn.Parameter(made))

    def routes(self, x):
        """(weights, experts) of the two experts of each token; the last two get none."""
        scores = (x @ self.router.t()).float()
        scores = scores.masked_fill(torch.arange(EXPERTS) >= EXPERTS - 2, -torch.inf)
        weights, experts = scores.softmax(-1).topk(TOP)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts

    def forward(self, x, weights, experts):
        flat = experts.flatten()
        order = flat.argsort(stable=True)
        counts = (flat[:, None] == torch.arange(EXPERTS)).sum(0)
        ends = counts.cumsum(0).to(torch.int32)
        rows = x[order // TOP]
        gate, up = (F.grouped_mm(rows, w.transpose(1, 2), offs=ends) for w in (self.gate, self.up))
        out = F.grouped_mm(F.silu(gate) * up, self.down.transpose(1, 2), offs=ends)
        out = out * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add(0, order // TOP, out)


def one_by_one(x, weights, experts, gate, up, down):
    """The same in a loop over tokens and their experts."""
    out = []
    for token, its_weights, its_experts in zip(x, weights, experts.tolist(), strict=True):
        total = torch.zeros_like(token)
        for weight, e in zip(its_weights, its_experts, strict=True):
            total = total + weight * (down[e] @ (F.silu(gate[e] @ token) * (up[e] @ token)))
        out.append(total)
    return torch.stack(out)


def test_a_layer_trains_on_flydsl(plugin, monkeypatch):
    from torch._inductor.utils import run_and_get_code

    monkeypatch.setenv("INDUCTOR_FLYDSL_DEVICE", "emulator")
    model = Experts()
    x = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    with torch.no_grad():
        weights, experts = model.routes(x)
    assert set(experts.flatten().tolist()) <= set(range(EXPERTS - 2))
    goal = torch.randn(TOKENS, WIDTH)

    def train(x):
        out = compiled(x, weights, experts)
        (out.float() * goal).sum().backward()
        return out.detach()

    with inductor_config.patch(flydsl_enable_autotuning=False):
        compiled = torch.compile(model, mode="max-autotune", dynamic=False)
        before = len(choices.decisions())
        out, code = run_and_get_code(train, x)
    decided = choices.decisions()[before:]
    assert {d.chosen for d in decided} == {"FLYDSL"}
    assert {d.problem.grouping.axis.value for d in decided} == {"m", "k"}
    # Three products forward, and for each the gradients of its rows and of its weights.
    assert [text.count("    flydsl_kernel_") for text in code] == [3, 6]
    assert not re.search(r"_grouped_mm(\.default)?\(", "".join(code))

    wide = [model.gate, model.up, model.down]
    wide = [w.detach().double().requires_grad_() for w in wide]
    wide_x = x.detach().double().requires_grad_()
    exact = one_by_one(wide_x, weights.double(), experts, *wide)
    (exact * goal.double()).sum().backward()
    assert_near(out, exact.detach())
    assert_near(x.grad, wide_x.grad)
    for got, expected in zip((model.gate, model.up, model.down), wide, strict=True):
        assert_near(got.grad, expected.grad)
        # Experts that no token went to.
        assert (got.grad[EXPERTS - 2 :] == 0).all()


def assert_near(got, exact):
    """Within a few roundings of bfloat16, relative to the whole."""
    assert got.isfinite().all()
    assert (got.double() - exact).norm() <= 0.01 * exact.norm()

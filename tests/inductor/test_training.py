"""Forward and backward of a transformer block: every product a FlyDSL kernel on the emulator.

Gradients are compared with those of the same block in float64, and may be no further from them
than twice what eager bf16 is.
"""

import copy
import re

import pytest
import torch

TOKENS, WIDTH, HEADS = (3, 11), 40, 2


class Block(torch.nn.Module):
    """Attention and a feed-forward part, each behind a residual."""

    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.out = torch.nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = torch.nn.Linear(WIDTH, 72)
        self.down = torch.nn.Linear(72, WIDTH)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        hidden = torch.nn.functional.gelu(self.up(x), approximate="tanh")
        return x + self.down(hidden)


def gradients(block, x, function):
    """The output and the gradients of input and parameters, by name, in float64."""
    block.zero_grad()
    x = x.detach().clone().requires_grad_()
    y = function(x)
    (y.float() ** 2).sum().backward()
    found = {"output": y.detach(), "input": x.grad}
    found |= {name: p.grad for name, p in block.named_parameters()}
    return {name: value.double() for name, value in found.items()}


@pytest.mark.usefixtures("real_kernels")
def test_a_block_trains_on_flydsl_alone():
    from torch._inductor.utils import run_and_get_code

    block = Block().bfloat16()
    x = torch.randn(*TOKENS, WIDTH).bfloat16()
    exact_block = copy.deepcopy(block).double()
    exact = gradients(exact_block, x.double(), exact_block)
    eager = gradients(block, x, block)
    compiled = torch.compile(block, mode="max-autotune")
    ours, code = run_and_get_code(gradients, block, x, compiled)
    forward, backward = code
    assert not re.search(r"extern_kernels\.\w*mm", forward + backward)
    # Four products forward; of each, a gradient of its input and one of its weight.
    assert forward.count("    flydsl_kernel_") == 4
    assert backward.count("    flydsl_kernel_") == 8
    for name, value in exact.items():
        scale = value.norm()
        error, allowed = (ours[name] - value).norm(), (eager[name] - value).norm()
        assert error <= 2 * allowed + 1e-3 * scale, name
        assert error <= 0.02 * scale, name

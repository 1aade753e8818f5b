"""Triton as a contestant: Inductor's configurations for ROCm, compiled for gfx950 on any machine.

Owns which configurations the installed torch lists for a problem, and their compilation and
launch. The kernel itself is ours, see `triton_kernels`: Inductor's template can't be instantiated
without a GPU.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .contest import Candidate
from .launches import Recipe, RecipeCache, time_recipe
from .problems import Missing, Operands
from .suites import Shape

HEURISTICS = ("torch._inductor.heuristics.template.triton",
              "torch._inductor.template_heuristics.triton")  # fmt: skip
ARCH, WAVE = "gfx950", 64
OPTIONS = ("matrix_instr_nonkdim", "waves_per_eu", "kpack")
TWO_GB = 2**31


@functools.cache
def target() -> Any:
    """Triton's target, made the active one for who asks Triton for it, as Inductor does.

    Raises:
        Missing: triton is not installed, or its AMD backend is not.
    """
    if importlib.util.find_spec("triton") is None:
        raise Missing("triton is not installed")
    # Its default, which it warns of where nobody says it.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    import triton
    from triton.backends import backends
    from triton.backends.compiler import GPUTarget

    if "amd" not in backends:
        raise Missing(f"triton {triton.__version__} has no AMD backend")
    found = GPUTarget("hip", ARCH, WAVE)
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: found))
    return found


@functools.cache
def heuristics() -> Any:
    """torch's ROCm configuration lists.

    Raises:
        Missing: the installed torch has none where this looks.
    """
    import torch

    target()
    for name in HEURISTICS:
        try:
            return importlib.import_module(name).ROCmConfigHeuristic()
        except ModuleNotFoundError:
            continue
    raise Missing(f"torch {torch.__version__} keeps its Triton configurations elsewhere")


def configurations(shape: Shape) -> list[Any]:
    """torch's `TritonConfig`s of a shape, in its order, cut to the shape as it does."""
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    chosen = heuristics().get_mm_configs()
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        return list(chosen(shape.m, shape.n, shape.k, dtype_size=2, op_name="mm"))


def name_of(config: Any) -> str:
    """Tile, stages, warps, and the rest where it is not the default."""
    c = config.kwargs
    text = f"{c['BLOCK_M']}x{c['BLOCK_N']}x{c['BLOCK_K']}_s{config.num_stages}"
    text += f"_w{config.num_warps}_g{c['GROUP_M']}"
    return text + (f"_eu{c['waves_per_eu']}" if c.get("waves_per_eu") else "")


def predicted_us(shape: Shape, config: Any) -> float:
    """By the analytic model, to leave out what is far behind."""
    from inductor_flydsl import model
    from inductor_flydsl.arch import GFX950

    from .published import workload

    c, warps = config.kwargs, config.num_warps
    waves_m = 2 if warps >= 4 else 1
    tile = model.Tile(
        c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"], max(2, config.num_stages), waves_m,
        max(1, warps // waves_m), group_m=c["GROUP_M"], xcd_remap=False, interleaved=True,
    )  # fmt: skip
    return model.estimate(workload(shape.kind, shape.m, shape.n, shape.k), tile, GFX950).us


@dataclass(frozen=True)
class Triton:
    """Attributes: cache: where compiled launches are kept."""

    cache: RecipeCache
    name: str = "triton"

    def candidates(self, shape: Shape) -> list[Candidate]:
        """Every default configuration."""
        target()
        if shape.op != "mm":
            raise Missing(f"{shape.op} is not compared yet")
        return [
            Candidate(
                name_of(config),
                predicted_us(shape, config),
                lambda operands, c=config: time_recipe(self.recipe(c, operands), operands.tensors),
            )
            for config in configurations(shape)
        ]

    def recipe(self, config: Any, operands: Operands) -> Recipe:
        """The launch of a configuration, from disk or compiled now."""
        source = Path(__file__).with_name("triton_kernels.py").read_text()
        key = {"peer": self.name, "config": repr(config), "shape": repr(operands.shape)}
        key |= {"triton": importlib.metadata.version("triton"), "source": source}
        found = self.cache.get(key)
        if found is None:
            found = record(config, operands)
            self.cache.put(key, found)
        return found


def record(config: Any, operands: Operands) -> Recipe:
    """Compile a configuration and say how it is launched."""
    from inductor_flydsl import emulator

    compiled = compile_kernel(config, operands)
    kernel = emulator.load_program(compiled.asm["amdgcn"]).kernel()
    visible = [arg for arg in kernel.args if not arg.kind.startswith("hidden_")]
    size = max(arg.offset + arg.size for arg in visible)
    names = ("a", "b", "c")
    # Those that follow are Triton's scratch memory, which these kernels ask nothing of: null.
    pointers = {arg.offset: name for arg, name in zip(visible, names, strict=False)}
    shape, c = operands.shape, config.kwargs
    tiles = -(-shape.m // c["BLOCK_M"]) * -(-shape.n // c["BLOCK_N"])
    return Recipe(
        compiled.asm["amdgcn"], kernel.name, (tiles, 1, 1), (WAVE * config.num_warps, 1, 1),
        compiled.metadata.shared, bytes(size), pointers,
    )  # fmt: skip


def compile_kernel(config: Any, operands: Operands) -> Any:
    """Triton's compiled kernel, specialised as Inductor does: constant sizes, aligned pointers."""
    import triton
    from triton.compiler import ASTSource

    from . import triton_kernels

    shape, tensors = operands.shape, operands.tensors
    constants = {k: v for k, v in config.kwargs.items() if k not in (*OPTIONS, "hint_override")}
    constants |= {"M": shape.m, "N": shape.n, "K": shape.k}
    constants["A_ROW"], constants["A_COL"] = tensors["a"].stride()
    constants["B_ROW"], constants["B_COL"] = tensors["b"].stride()
    signature = {"a": "*bf16", "b": "*bf16", "c": "*bf16"}
    attributes = {(i,): _hints(tensors[name]) for i, name in enumerate(signature)}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(triton_kernels.matmul, signature, constants, attributes)
    options = {name: config.kwargs[name] for name in OPTIONS}
    options |= {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return triton.compile(source, target=target(), options=options)


def _hints(tensor: Any) -> list[list[Any]]:
    """What Inductor tells Triton of a pointer on ROCm."""
    size = tensor.numel() * tensor.element_size()
    small = [["tt.pointer_range", 32]] if size < TWO_GB else []
    return [["tt.divisibility", 16], *small]

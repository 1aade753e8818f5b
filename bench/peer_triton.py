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

from .contest import Candidate, recorded
from .launches import Recipe, RecipeCache
from .problems import Missing, Operands, work_of
from .suites import Shape

HEURISTICS = ("torch._inductor.heuristics.template.triton",
              "torch._inductor.template_heuristics.triton")  # fmt: skip
ARCH, WAVE = "gfx950", 64
OPTIONS = ("matrix_instr_nonkdim", "waves_per_eu", "kpack")
TWO_GB = 2**31
SOURCES = {"mm": "triton_kernels.py", "grouped": "triton_grouped.py"}
LDS_BYTES = 160 * 1024
# Persistent programs of a grouped launch: torch's `get_num_sms` on an MI355X.
PROGRAMS = 256


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
    utils = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": LDS_BYTES})
    triton.runtime.driver.set_active(SimpleNamespace(get_current_target=lambda: found, utils=utils))
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
    """torch's configurations of a shape, in its order, cut to the shape as it does.

    Raises:
        Missing: Inductor has no Triton kernel for the op.
    """
    if shape.op == "scaled":
        raise Missing("Inductor has no Triton template for MX block scales")
    if shape.op == "grouped":
        return _grouped_configurations(shape)
    from torch._inductor.sizevars import SizeVarAllocator
    from torch._inductor.virtualized import V

    chosen = heuristics().get_mm_configs()
    with V.set_graph_handler(SimpleNamespace(sizevars=SizeVarAllocator())):
        return list(chosen(shape.m, shape.n, shape.k, dtype_size=2, op_name="mm"))


def _grouped_configurations(shape: Shape) -> list[Any]:
    target()
    listed = importlib.import_module("torch._inductor.kernel.mm_grouped")
    form = {"A_IS_2D": True, "B_IS_2D": False}
    every = listed.grouped_mm_configs()
    found: list[Any] = listed.early_config_prune(len(shape.rows), shape.m, 2, every, form)
    return found


def name_of(config: Any) -> str:
    """Tile, stages, warps, and the rest where it is not the default."""
    c = config.kwargs
    text = f"{c['BLOCK_M']}x{c['BLOCK_N']}x{c['BLOCK_K']}_s{config.num_stages}_w{config.num_warps}"
    text += f"_g{c['GROUP_M']}" if "GROUP_M" in c else ""
    return text + (f"_eu{c['waves_per_eu']}" if c.get("waves_per_eu") else "")


def predicted_us(shape: Shape, config: Any) -> float:
    """By the analytic model, to leave out what is far behind."""
    from inductor_flydsl import model
    from inductor_flydsl.arch import GFX950

    c, warps = config.kwargs, config.num_warps
    waves_m = 2 if warps >= 4 else 1
    tile = model.Tile(
        c["BLOCK_M"], c["BLOCK_N"], c["BLOCK_K"], max(2, config.num_stages), waves_m,
        max(1, warps // waves_m), group_m=c.get("GROUP_M", 0), xcd_remap=False, interleaved=True,
    )  # fmt: skip
    return model.estimate(work_of(shape), tile, GFX950).us


@dataclass(frozen=True)
class Triton:
    """Attributes: cache: where compiled launches are kept."""

    cache: RecipeCache
    name: str = "triton"

    def candidates(self, shape: Shape) -> list[Candidate]:
        """Every default configuration."""
        target()
        predicted = functools.partial(predicted_us, shape)
        return recorded(configurations(shape), name_of, predicted, self.recipe)

    def recipe(self, config: Any, operands: Operands) -> Recipe:
        """The launch of a configuration, from disk or compiled now."""
        source = Path(__file__).with_name(SOURCES[operands.shape.op]).read_text()
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

    kernel, names, constants = call_of(config, operands)
    compiled = compile_kernel(kernel, names, constants, config, operands)
    program = emulator.load_program(compiled.asm["amdgcn"]).kernel()
    visible = [arg for arg in program.args if not arg.kind.startswith("hidden_")]
    size = max(arg.offset + arg.size for arg in visible)
    # Those that follow are Triton's scratch memory, which these kernels ask nothing of: null.
    pointers = {arg.offset: name for arg, name in zip(visible, names, strict=False)}
    shape, c = operands.shape, config.kwargs
    tiles = -(-shape.m // c["BLOCK_M"]) * -(-shape.n // c["BLOCK_N"])
    grid = PROGRAMS if shape.op == "grouped" else tiles
    return Recipe(
        compiled.asm["amdgcn"], program.name, (grid, 1, 1), (WAVE * config.num_warps, 1, 1),
        compiled.metadata.shared, bytes(size), pointers,
    )  # fmt: skip


def call_of(config: Any, operands: Operands) -> tuple[Any, tuple[str, ...], dict[str, int]]:
    """(kernel, names of its tensors in order, its constants)."""
    shape, tensors = operands.shape, operands.tensors
    skipped = (*OPTIONS, "hint_override")
    constants = {name: x for name, x in config.kwargs.items() if name not in skipped}
    constants |= {"M": shape.m, "N": shape.n, "K": shape.k}
    if shape.op == "grouped":
        from .triton_grouped import grouped

        constants |= {"G": len(shape.rows), "PROGRAMS": PROGRAMS}
        return grouped, ("a", "b", "offs", "c"), constants
    from .triton_kernels import matmul

    constants["A_ROW"], constants["A_COL"] = tensors["a"].stride()
    constants["B_ROW"], constants["B_COL"] = tensors["b"].stride()
    return matmul, ("a", "b", "c"), constants


def compile_kernel(
    kernel: Any, names: tuple[str, ...], constants: dict[str, int], config: Any, operands: Operands
) -> Any:
    """Triton's compiled kernel, specialised as Inductor does: constant sizes, aligned pointers."""
    import triton
    from triton.compiler import ASTSource

    parameters = kernel.arg_names[: len(names)]
    types = ["*i32" if name == "offs" else "*bf16" for name in names]
    signature = dict(zip(parameters, types, strict=True))
    attributes = {(i,): _hints(operands.tensors[name]) for i, name in enumerate(names)}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(kernel, signature, constants, attributes)
    options = {name: config.kwargs[name] for name in OPTIONS if name in config.kwargs}
    options |= {"num_warps": config.num_warps, "num_stages": config.num_stages}
    return triton.compile(source, target=target(), options=options)


def _hints(tensor: Any) -> list[list[Any]]:
    """What Inductor tells Triton of a pointer on ROCm."""
    size = tensor.numel() * tensor.element_size()
    small = [["tt.pointer_range", 32]] if size < TWO_GB else []
    return [["tt.divisibility", 16], *small]

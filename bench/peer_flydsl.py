"""PyTorch's in-tree FLYDSL kernels as a contestant, from the installed torch.

Owns how torch 2.15's own heuristics list the configurations of a problem and how its generated
wrapper launches one. Autotuning is on and the search space is the default one: the stock setting
(`flydsl_enable_autotuning` off) tries a single configuration.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from .contest import Candidate
from .launches import Recipe, RecipeCache, recipe_of, time_recipe
from .problems import Missing, Operands
from .suites import Shape

KERNELS = "torch._inductor.kernel.vendored_templates.flydsl.kernels"
HEURISTICS = "torch._inductor.heuristics.template.flydsl"
DEFAULT_SEARCH = {"flydsl_enable_autotuning": True, "max_autotune_gemm_search_space": "DEFAULT"}


@functools.cache
def vendored() -> SimpleNamespace:
    """torch's modules, with FlyDSL set up to compile for the emulator.

    Raises:
        Missing: torch has none, or flydsl can't be imported.
    """
    import torch

    try:
        found = importlib.util.find_spec(KERNELS)
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise Missing(f"torch {torch.__version__} has no FLYDSL backend; 2.15 and later do")
    if importlib.util.find_spec("flydsl") is None:
        raise Missing("flydsl is not installed")
    from inductor_flydsl.compiler import flydsl_bridge
    from inductor_flydsl.devices.emulator import shim_library

    flydsl_bridge.prepare("emulator", "gfx950")
    flydsl_bridge.use_runtime(shim_library())
    names = {"kernels": KERNELS, "gemm": f"{KERNELS}.gemm_gfx950", "heuristics": HEURISTICS}
    names["config"] = "torch._inductor.config"
    return SimpleNamespace(**{n: importlib.import_module(path) for n, path in names.items()})


def configurations(torch_modules: Any, shape: Shape) -> list[dict[str, Any]]:
    """What torch's heuristics list for a shape, in their order, illegal ones left out.

    Args:
        torch_modules: as `vendored` gives them.
        shape: of op mm.
    """
    with torch_modules.config.patch(DEFAULT_SEARCH):
        listed = torch_modules.heuristics.get_gemm_configs(shape.m, shape.n, shape.k)
    return [
        one
        for one in listed
        if torch_modules.heuristics.is_gemm_config_valid_for_shape(
            shape.m, shape.n, shape.k, torch_modules.gemm.GEMM_DTYPE_BF16, one,
            a_is_transposed=False, b_is_transposed=shape.layout == "NT",
        )
    ]  # fmt: skip


def name_of(config: dict[str, Any]) -> str:
    """Like our own configurations' names."""
    c = config
    pipeline = "hti" if c["USE_HALF_TILE_INTERLEAVED"] else "staged"
    text = f"{pipeline}_{c['TILE_M']}x{c['TILE_N']}x{c['TILE_K']}_s{c['STAGES']}"
    text += f"_w{c['M_WAVES']}x{c['N_WAVES']}"
    return text + (f"_g{c['GROUP_M']}" if c["GROUP_M"] else "")


def predicted_us(shape: Shape, config: dict[str, Any]) -> float:
    """By the analytic model, to leave out what is far behind."""
    from inductor_flydsl import model
    from inductor_flydsl.arch import GFX950

    from .published import workload

    c = config
    tile = model.Tile(
        c["TILE_M"], c["TILE_N"], c["TILE_K"], c["STAGES"], c["M_WAVES"], c["N_WAVES"],
        group_m=c["GROUP_M"], interleaved=c["USE_HALF_TILE_INTERLEAVED"],
    )  # fmt: skip
    return model.estimate(workload(shape.kind, shape.m, shape.n, shape.k), tile, GFX950).us


@dataclass(frozen=True)
class VendoredFlyDSL:
    """Attributes: cache: where recorded launches are kept."""

    cache: RecipeCache
    name: str = "vendored"

    def candidates(self, shape: Shape) -> list[Candidate]:
        """Every default configuration."""
        modules = vendored()
        if shape.op != "mm":
            raise Missing(f"{shape.op} is not compared yet")
        return [
            Candidate(
                name_of(config),
                predicted_us(shape, config),
                lambda operands, c=config: time_recipe(self.recipe(c, operands), operands.tensors),
            )
            for config in configurations(modules, shape)
        ]

    def recipe(self, config: dict[str, Any], operands: Operands) -> Recipe:
        """The launch of a configuration, from disk or recorded now."""
        key = {"peer": self.name, "config": config, "shape": repr(operands.shape)}
        key |= {n: importlib.metadata.version(n) for n in ("torch", "flydsl")}
        found = self.cache.get(key)
        if found is None:
            found = record(config, operands)
            self.cache.put(key, found)
        return found


def record(config: dict[str, Any], operands: Operands) -> Recipe:
    """Compile a configuration and note how torch's wrapper launches it."""
    from inductor_flydsl.devices.emulator import capture

    modules, shape = vendored(), operands.shape
    param = gemm_param(modules, shape, config)
    tensors = tuple(operands.tensors[name] for name in ("c", "a", "b"))
    compiled = compile_for(modules.gemm.gemm_gfx950, tensors, param)
    return recipe_of(capture(lambda: compiled(*tensors, param, 0)), operands.tensors)


def gemm_param(modules: Any, shape: Shape, config: dict[str, Any]) -> Any:
    """What the wrapper specialises the kernel on.

    Raises:
        Missing: torch refuses the configuration for this shape.
    """
    hti = config["USE_HALF_TILE_INTERLEAVED"]
    tail = modules.kernels.infer_has_k_tail(shape.k, config["TILE_K"], config["STAGES"], hti)
    choices = {
        name: config[name.upper()]
        for name in ("tile_m", "tile_n", "tile_k", "stages", "m_waves", "n_waves", "group_m")
    }
    param = modules.kernels.make_gemm_param_and_validate(
        shape.m, shape.n, shape.k,
        choices | {
            "dtype_id": modules.gemm.GEMM_DTYPE_BF16, "use_half_tile_interleaved": hti,
            "a_is_transposed": False, "b_is_transposed": shape.layout == "NT",
            "has_bias": False, "has_k_tail": tail,
        },
    )  # fmt: skip
    if param is None:
        raise Missing("torch refuses this configuration for this shape")
    return param


_compiled: dict[tuple[str, Any], Any] = {}


def compile_for(kernel: Any, tensors: tuple[Any, ...], param: Any) -> Any:
    """FlyDSL's dispatcher of a kernel, compiled once for what `param` says; shapes are dynamic."""
    import flydsl.compiler as flyc

    key = (getattr(kernel, "__name__", str(kernel)), param.__cache_signature__())
    if key not in _compiled:
        described = [flyc.from_torch_tensor(t).mark_layout_dynamic() for t in tensors]
        _compiled[key] = flyc.compile(kernel, *described, param, 0)
    return _compiled[key]

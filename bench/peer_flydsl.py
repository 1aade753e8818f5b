"""PyTorch's in-tree FLYDSL kernels as a contestant, from the installed torch.

Owns how torch 2.15's own heuristics list the configurations of a problem and how its generated
wrapper launches one. Autotuning is on and the search space is the default one: the stock setting
(`flydsl_enable_autotuning` off) tries a single configuration.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from .contest import Candidate, recorded
from .launches import Recipe, RecipeCache, recipe_of
from .problems import Missing, Operands, work_of
from .suites import Shape

KERNELS = "torch._inductor.kernel.vendored_templates.flydsl.kernels"
HEURISTICS = "torch._inductor.heuristics.template.flydsl"
ROCM = Path("/opt/rocm")
# What torch reports of an MI355X.
MI355X = SimpleNamespace(
    multi_processor_count=256,
    shared_memory_per_multiprocessor=160 * 1024,
    max_threads_per_multi_processor=2048,
)
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

    _lend_device_libraries()
    flydsl_bridge.prepare("emulator", "gfx950")
    flydsl_bridge.use_runtime(shim_library())
    names = {"kernels": KERNELS, "gemm": f"{KERNELS}.gemm_gfx950", "heuristics": HEURISTICS}
    names["config"] = "torch._inductor.config"
    return SimpleNamespace(**{n: importlib.import_module(path) for n, path in names.items()})


def _lend_device_libraries() -> None:
    """Where there is no ROCm, AMD's device libraries from Triton's wheel: grouped kernels ask for
    the size of their grid through them. Without Triton those fail to compile, and say so."""
    found = importlib.util.find_spec("triton")
    if found is None or found.origin is None or ROCM.exists() or "ROCM_PATH" in os.environ:
        return
    lent = Path(found.origin).parent / "backends" / "amd" / "lib"
    folder = Path(tempfile.mkdtemp(prefix="device_libraries_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "amdgcn").mkdir()
    (folder / "amdgcn" / "bitcode").symlink_to(lent)
    os.environ["ROCM_PATH"] = str(folder)


def configurations(torch_modules: Any, shape: Shape) -> list[dict[str, Any]]:
    """What torch's heuristics list for a shape, in their order, illegal ones left out.

    Args:
        torch_modules: as `vendored` gives them.
        shape: what is computed; operands contiguous and aligned.
    """
    heuristics, m, n, k = torch_modules.heuristics, shape.m, shape.n, shape.k
    dtype = dtype_id(torch_modules, shape)
    with torch_modules.config.patch(DEFAULT_SEARCH):
        if shape.op == "grouped":
            valid = heuristics.is_grouped_gemm_config_valid_for_shape
            return [c for c in heuristics.get_grouped_gemm_configs() if valid(m, n, k, dtype, c)]
        scaled = shape.op == "scaled"
        listed = heuristics.get_gemm_configs(m, n, k, *([shape.kind] if scaled else []))
    more = {"out_dtype_id": torch_modules.gemm.GEMM_DTYPE_BF16} if scaled else {}
    more |= {"a_is_transposed": False, "b_is_transposed": shape.layout == "NT"}
    valid = heuristics.is_gemm_config_valid_for_shape
    return [c for c in listed if valid(m, n, k, dtype, c, **more)]


def dtype_id(torch_modules: Any, shape: Shape) -> int:
    """The number that torch's kernels know an operand type by."""
    return getattr(torch_modules.gemm, f"GEMM_DTYPE_{shape.kind.upper()}")


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

    c = config
    tile = model.Tile(
        c["TILE_M"], c["TILE_N"], c["TILE_K"], c["STAGES"], c["M_WAVES"], c["N_WAVES"],
        group_m=c["GROUP_M"], interleaved=c["USE_HALF_TILE_INTERLEAVED"],
    )  # fmt: skip
    return model.estimate(work_of(shape), tile, GFX950).us


@dataclass(frozen=True)
class VendoredFlyDSL:
    """Attributes: cache: where recorded launches are kept."""

    cache: RecipeCache
    name: str = "vendored"

    def candidates(self, shape: Shape) -> list[Candidate]:
        """Every default configuration."""
        modules = vendored()
        predicted = functools.partial(predicted_us, shape)
        return recorded(configurations(modules, shape), name_of, predicted, self.recipe)

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
    kernel, tensors, numbers = call_of(modules, param, operands)
    compiled = compile_for(kernel, tensors, numbers, param)
    launch = capture(lambda: compiled(*tensors, *numbers, param, 0))
    return recipe_of(launch, operands.tensors)


def call_of(modules: Any, param: Any, operands: Operands) -> tuple[Any, tuple[Any, ...], Any]:
    """(torch's launcher, its tensors, the integers after them), as its wrapper calls it."""
    shape, t = operands.shape, operands.tensors
    if shape.op == "mm":
        return modules.gemm.gemm_gfx950, (t["c"], t["a"], t["b"]), ()
    if shape.op == "scaled":
        # Where there is no bias its place is C's.
        tensors = tuple(t[name] for name in ("c", "a", "b", "scale_a", "scale_b", "c"))
        return modules.gemm.gemm_mxfp_gfx950, tensors, ()
    import flydsl.expr as fx

    groups = len(shape.rows)
    grid = modules.kernels.get_grouped_gemm_persistent_grid_size(
        param, shape.m, shape.n, groups, MI355X
    )
    numbers = (*(fx.Int32(x) for x in (groups, shape.n, shape.k)), grid)
    launcher = modules.kernels.launch_gemm_gfx950_grouped
    return launcher, (t["c"], t["a"], t["b"], t["offs"]), numbers


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
    choices |= {"out_dtype_id": modules.gemm.GEMM_DTYPE_BF16} if shape.op == "scaled" else {}
    param = modules.kernels.make_gemm_param_and_validate(
        shape.m, shape.n, shape.k,
        choices | {
            "dtype_id": dtype_id(modules, shape), "use_half_tile_interleaved": hti,
            "a_is_transposed": False, "b_is_transposed": shape.layout == "NT",
            "has_bias": False, "has_k_tail": tail,
        },
    )  # fmt: skip
    if param is None:
        raise Missing("torch refuses this configuration for this shape")
    return param


_compiled: dict[tuple[str, Any], Any] = {}


def compile_for(kernel: Any, tensors: tuple[Any, ...], numbers: Any, param: Any) -> Any:
    """FlyDSL's dispatcher of a kernel, compiled once for what `param` says; shapes are dynamic."""
    key = (str(kernel), param.__cache_signature__())
    if key not in _compiled:
        _compiled[key] = compile_now(kernel, tensors, numbers, param)
    return _compiled[key]


def compile_now(kernel: Any, tensors: tuple[Any, ...], numbers: Any, param: Any) -> Any:
    """The same, compiled whatever was before."""
    import flydsl.compiler as flyc

    described = [flyc.from_torch_tensor(t).mark_layout_dynamic() for t in tensors]
    return flyc.compile(kernel, *described, *numbers, param, 0)

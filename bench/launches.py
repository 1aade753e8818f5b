"""Timed launches of anyone's kernels on the emulator, and whether they compute the product.

Owns a recorded launch that can be kept on disk and run on other tensors, the timing of it on a
sample of its workgroups, and the comparison of what those wrote with float64. Knows nothing of who
made a kernel.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import os
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKED = 64
"""Elements of C that are compared, of those that the sampled workgroups wrote."""
LEAST_WRITTEN = 0.25
"""Of the share of C that the sampled workgroups stand for; the last tiles may be partial, and those
that workgroups share are fewer than these."""
FEW_A_CU = 4
"""Workgroups a CU, of a grouped product, up to which those of whole CUs are sampled."""


class WrongLaunch(Exception):
    """The numbers of a launch are wrong: its time is worth nothing."""


@dataclass(frozen=True)
class Recipe:
    """A launch without its tensors.

    Attributes:
        text: gfx950 assembly.
        kernel: which of its kernels.
        grid, block: workgroups, and work-items of one.
        dynamic_lds: bytes beyond the kernel's own.
        kernarg: the explicit arguments, zeros where an address goes.
        pointers: offset in `kernarg` → name of the tensor whose address goes there.
    """

    text: str
    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    dynamic_lds: int
    kernarg: bytes
    pointers: Mapping[int, str]

    @property
    def groups(self) -> int:
        return math.prod(self.grid)


def recipe_of(launch: Any, tensors: Mapping[str, Any]) -> Recipe:
    """A `devices.emulator.HostLaunch` on `tensors`, their addresses taken out."""
    from inductor_flydsl import emulator

    names = {tensor.data_ptr(): name for name, tensor in tensors.items()}
    kernel = emulator.load_program(launch.text).kernel(launch.kernel)
    kernarg, pointers = bytearray(launch.kernarg), {}
    for arg in kernel.args:
        value = int.from_bytes(launch.kernarg[arg.offset : arg.offset + 8], "little")
        if arg.size == 8 and value in names and not arg.kind.startswith("hidden_"):
            pointers[arg.offset] = names[value]
            kernarg[arg.offset : arg.offset + 8] = bytes(8)
    return Recipe(
        launch.text, launch.kernel, launch.grid, launch.block, launch.dynamic_lds,
        bytes(kernarg), pointers,
    )  # fmt: skip


def time_recipe(recipe: Recipe, tensors: Mapping[str, Any]) -> Any:
    """The emulator's RunResult of a timed launch; "c" is written, all else is read.

    Raises:
        EmulatorError: the kernel did what no kernel may.
    """
    from inductor_flydsl import emulator
    from inductor_flydsl.devices.emulator import timing_options

    memory = emulator.Memory()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        # Kernels read whole dwords; an allocation never ends inside one.
        size = (storage.nbytes() + 3) // 4 * 4
        memory.add(storage.data_ptr(), size, name, writable=name == "c")
    kernarg = bytearray(recipe.kernarg)
    for offset, name in recipe.pointers.items():
        kernarg[offset : offset + 8] = tensors[name].data_ptr().to_bytes(8, "little")
    kernel = emulator.load_program(recipe.text).kernel(recipe.kernel)
    return emulator.run(
        kernel, recipe.grid, recipe.block, bytes(kernarg), memory,
        timing_options(_sample(recipe.groups, "offs" in tensors)), dynamic_lds=recipe.dynamic_lds,
    )  # fmt: skip


def _sample(workgroups: int, grouped: bool) -> tuple[int, ...]:
    """As of our own kernels; of a few a CU all of a CU, where some may find nothing to do."""
    from inductor_flydsl.arch import GFX950
    from inductor_flydsl.devices.emulator import sampled_compute_units, sampled_workgroups

    if grouped and GFX950.compute_units < workgroups <= FEW_A_CU * GFX950.compute_units:
        return sampled_compute_units(workgroups, GFX950.compute_units)
    return sampled_workgroups(workgroups)


def check_numbers(operands: Any, share: float) -> None:
    """Compare some of what a launch wrote with float64.

    Args:
        operands: a `problems.Operands` whose C was NaN before the launch.
        share: of the grid's workgroups that ran.

    Raises:
        WrongLaunch: too little of C was written, or an element is not the product.
    """
    import torch

    c = operands.tensors["c"]
    written = (~c.isnan()).nonzero()
    if len(written) < LEAST_WRITTEN * share * c.numel():
        expected = share * c.numel()
        raise WrongLaunch(f"wrong numbers: {len(written)} elements written of {expected:.0f}")
    generator = torch.Generator().manual_seed(0)
    at = written[torch.randperm(len(written), generator=generator)[:CHECKED]]
    rows, columns = at[:, 0], at[:, 1]
    exact, spread = operands.exact(rows, columns)
    # fp32 sums in any order, see `numerics.compare`, and the rounding of C.
    allowed = 8 * math.sqrt(operands.shape.k) * 2.0**-23 * spread + 2.0**-8 * exact.abs()
    error = (c[rows, columns].double() - exact).abs()
    wrong = int((error > allowed).sum())
    if wrong:
        raise WrongLaunch(f"wrong numbers: {wrong} of {len(at)} elements looked at")


class RecipeCache:
    """Recipes on disk: a file a launch, and a file a distinct assembly text.

    Args:
        folder: made when something is first kept.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: Mapping[str, Any]) -> Recipe | None:
        """What was kept under `key`, or None; a file that can't be read is none."""
        try:
            data = json.loads(self._path(key).read_text())
            text = gzip.decompress((self.folder / data["text"]).read_bytes()).decode()
            return Recipe(
                text, data["kernel"], tuple(data["grid"]), tuple(data["block"]),
                data["dynamic_lds"], bytes.fromhex(data["kernarg"]),
                {int(offset): name for offset, name in data["pointers"].items()},
            )  # fmt: skip
        except (OSError, ValueError, KeyError, EOFError, zlib.error):
            return None

    def put(self, key: Mapping[str, Any], recipe: Recipe) -> None:
        """Keep a recipe; a folder that can't be written keeps nothing."""
        text = recipe.text.encode()
        name = f"{hashlib.sha256(text).hexdigest()[:32]}.s.gz"
        data = {
            "text": name, "kernel": recipe.kernel, "grid": recipe.grid, "block": recipe.block,
            "dynamic_lds": recipe.dynamic_lds, "kernarg": recipe.kernarg.hex(),
            "pointers": recipe.pointers, "key": key,
        }  # fmt: skip
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / name).exists():
                _replace(self.folder / name, gzip.compress(text, 6))
            _replace(self._path(key), json.dumps(data, indent=1).encode())
        except OSError:
            return

    def _path(self, key: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        return self.folder / f"{digest[:32]}.json"


def _replace(path: Path, data: bytes) -> None:
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    os.replace(file.name, path)

"""The gfx950 emulator as a device: CPU tensors in, FlyDSL's own host launcher all the way.

The launcher is the one that drives a GPU; only the runtime library underneath differs: a small
shim that hands each launch to this module, which runs it on `inductor_flydsl.emulator`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import emulator, settings
from ..arch import get_arch
from ..arguments import extra_pointers, launch_arguments
from ..config import GemmConfig, KernelSpec
from ..errors import DeviceUnavailable, LaunchFailed
from ..problem import GemmProblem
from .base import Clock, Kernel, Timing
from .extras import Workspace

if TYPE_CHECKING:
    from ..compiler import Artifact

# Workgroups that are run to time a launch; the clock extends their cycles to the whole grid.
SAMPLED_WORKGROUPS = 4

_LAUNCH = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_char_p,
    ctypes.POINTER(ctypes.c_int64),
    ctypes.c_uint32,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
)


@functools.cache
def shim_library() -> Path:
    """The runtime library under FlyDSL's launcher, built once a machine with the C compiler.

    Raises:
        DeviceUnavailable: there is no C compiler, or it failed.
    """
    from ..compiler import artifact_directory

    source = Path(__file__).with_name("launch_shim.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    library = artifact_directory() / f"launch_shim_{digest}.so"
    if library.exists():
        return library
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise DeviceUnavailable(
            "device=emulator needs a C compiler for its launch shim; install gcc or set CC"
        )
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / "shim.so"
        command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DeviceUnavailable(f"{' '.join(command)} failed: {done.stderr.strip()}")
        os.replace(built, library)
    return library


@dataclass(frozen=True)
class HostLaunch:
    """A launch as FlyDSL's host launcher hands it to the runtime library.

    Attributes:
        text: assembly of the module, of which `kernel` is the kernel.
        grid, block: workgroups, and work-items of one, in x, y, z.
        dynamic_lds: bytes beyond the kernel's own.
        kernarg: the explicit arguments as the kernel reads them, addresses in them.
    """

    text: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    dynamic_lds: int
    kernarg: bytes


@dataclass
class _Request:
    """One launch under way: what it may touch, how it runs, and how it went.

    memory: None where the launch is to be noted and not run.
    """

    memory: emulator.Memory | None = None
    options: emulator.Options = emulator.Options()
    launch: HostLaunch | None = None
    result: emulator.RunResult | None = None
    error: BaseException | None = None


class _Bridge:
    """The callback under the shim. One launch at a time in the whole process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.request: _Request | None = None
        self._callback = _LAUNCH(self._on_launch)
        self._programs: dict[bytes, emulator.Program] = {}
        library = ctypes.CDLL(str(shim_library()))
        library.flydsl_emulator_on_launch(self._callback)

    def program(self, text: bytes) -> emulator.Program:
        if text not in self._programs:
            self._programs[text] = emulator.load_program(text.decode())
        return self._programs[text]

    def _on_launch(
        self, text: bytes, name: bytes, shape: Any, lds: int, params: Any, count: int
    ) -> None:
        request = self.request
        if request is None:
            return
        try:
            kernel = self.program(text).kernels[name.decode()]
            visible = [a for a in kernel.args if not a.kind.startswith("hidden_")]
            if len(visible) != count:
                raise LaunchFailed(f"{kernel.name} takes {len(visible)} arguments, got {count}")
            kernarg = bytearray(kernel.kernarg_size)
            for arg, pointer in zip(visible, params[:count], strict=True):
                kernarg[arg.offset : arg.offset + arg.size] = ctypes.string_at(pointer, arg.size)
            request.launch = HostLaunch(
                text.decode(), kernel.name, tuple(shape[0:3]), tuple(shape[3:6]), lds,
                bytes(kernarg),
            )  # fmt: skip
            if request.memory is not None:
                request.result = emulator.run(
                    kernel,
                    request.launch.grid,
                    request.launch.block,
                    request.launch.kernarg,
                    request.memory,
                    request.options,
                    dynamic_lds=lds,
                )
        except BaseException as error:  # ctypes would print and drop it; `launch` raises it.
            request.error = error


@functools.cache
def _bridge() -> _Bridge:
    return _Bridge()


def capture(call: Callable[[], Any]) -> HostLaunch:
    """What `call` launches through FlyDSL's host launcher on `shim_library`; nothing is run.

    Raises:
        LaunchFailed: it launched nothing, or its arguments are not the kernel's.
    """
    bridge = _bridge()
    with bridge.lock:
        request = _Request()
        bridge.request = request
        try:
            call()
        finally:
            bridge.request = None
    if request.error is not None:
        raise LaunchFailed(f"{type(request.error).__name__}: {request.error}")
    if request.launch is None:
        raise LaunchFailed("FlyDSL's launcher returned without a launch")
    return request.launch


def sampled_workgroups(groups: int, splits: int = 1, xcds: int = 1) -> tuple[int, ...]:
    """Workgroup ids over a grid of `groups` that time it, the first and the last tile among them.

    All `splits` of a tile are taken or none, so that the one that comes last does its reduction.
    A kernel that gives each of `xcds` XCDs a contiguous run of shares has them at other ids.
    """
    tiles = groups // splits
    wanted = max(2, SAMPLED_WORKGROUPS // splits)
    chosen = {i * (tiles - 1) // (wanted - 1) for i in range(wanted)}
    shares = (t + s * tiles for t in chosen for s in range(splits))
    return tuple(sorted(_workgroup_of(share, groups, xcds) for share in shares))


def sampled_parts(whole: int, groups: int, members: int, xcds: int = 1) -> tuple[int, ...]:
    """Workgroup ids over a grid whose first ``whole`` have a tile each, and the others shares.

    Two whole tiles, and all `members` of one chain of those that are shared, so that whoever comes
    last sums its tile.
    """
    chosen = set(range(min(2, whole)))
    shared = groups - whole
    if shared:
        chains = shared // members
        chosen |= {
            whole + _workgroup_of(chains // 2 + i * chains, shared, xcds) for i in range(members)
        }
    return tuple(sorted(chosen))


def sampled_compute_units(groups: int, compute_units: int) -> tuple[int, ...]:
    """Ids of all workgroups of the CUs that get the first and the last of a grid.

    For workgroups that look for their work: those that start together on a CU may find some, or
    none, and the time of a CU is not that of its busiest workgroup as often as it has any.
    """
    first = {0, (groups - 1) % compute_units}
    return tuple(sorted(i for c in first for i in range(c, groups, compute_units)))


def _workgroup_of(share: int, groups: int, xcds: int) -> int:
    """The workgroup that takes a share: `templates.tiles.remap_xcd` the other way round."""
    each, extra = divmod(groups, xcds)
    xcd = min(share // (each + 1), extra)
    if xcd == extra and each:
        xcd += (share - extra * (each + 1)) // each
    return (share - xcd * each - min(xcd, extra)) * xcds + xcd


def timing_options(sample: tuple[int, ...], parts: tuple[int, ...] = (0,)) -> emulator.Options:
    """How a launch is run for its time: landing at issue, no findings, `sample` alone."""
    return emulator.Options(
        landing="eager", order="lockstep", findings=False, sample_workgroups=sample, parts=parts
    )


class EmulatorDevice:
    """Implements `devices.base.Device` on CPU tensors.

    Args:
        arch: LLVM name of the emulated architecture.

    Raises:
        BadArgument: the architecture has no kernels here.
        DeviceUnavailable: the launch shim cannot be built.
    """

    clock = Clock.EMULATED
    backend = "emulator"
    torch_device = "cpu"

    def __init__(self, arch: str = "gfx950") -> None:
        self.arch = get_arch(arch)
        self.name = f"emulator:{self.arch.name}"
        self.last_run: emulator.RunResult | None = None
        self._timing = False

    def environment(self) -> dict[str, str]:
        """Compute units, and the clock's fingerprint: a changed clock makes other times."""
        return {
            "compute_units": str(self.arch.compute_units),
            "clock": emulator.timing.fingerprint(),
        }

    def load(
        self,
        artifact: Artifact,
        problem: GemmProblem,
        config: GemmConfig,
        scratch: Workspace | None = None,
    ) -> Kernel:
        """``kernel(c, a, b, *tensors)`` on CPU tensors; returns when the launch has been emulated.

        Raises:
            LaunchFailed: at load or at the call; emulator faults name the instruction.
        """
        from ..compiler import load

        _bridge()
        units = self.arch.compute_units
        integers = launch_arguments(problem, config, units)
        bound = load(artifact, shim_library()).bind(integers)
        timed = self._timing_options(config, integers)
        names = extra_pointers(problem)
        outputs = {output.pointer for output in KernelSpec.of(problem, config).outputs}
        pieces, need = scratch or Workspace(), config.workspace(problem, units)

        def kernel(c: Any, a: Any, b: Any, *tensors: Any) -> None:
            own = pieces.on(0, "cpu", need)
            others = {**dict(zip(names, tensors, strict=False)), **own}
            with self._launch({"c": c, "a": a, "b": b, **others}, outputs | own.keys(), timed):
                addresses = {name: t.data_ptr() for name, t in others.items()}
                bound(c.data_ptr(), a.data_ptr(), b.data_ptr(), None, addresses)
            if self._timing and own:
                # Where workgroups were left out, nobody came last.
                own["counters"].zero_()

        return kernel

    def _timing_options(self, config: GemmConfig, integers: dict[str, int]) -> emulator.Options:
        """How a launch with these arguments is run for its time."""
        xcds = self.arch.xcds if config.xcd_remap else 1
        grid, whole = integers["grid"], integers["whole"]
        if config.stream_k:
            sample = sampled_parts(whole, grid, config.split_k, xcds)
            return timing_options(sample, tuple({0, whole} - {grid}))
        if config.persistent and grid > self.arch.compute_units:
            return timing_options(sampled_compute_units(grid, self.arch.compute_units))
        return timing_options(sampled_workgroups(grid, config.split_k, xcds))

    def _options(self) -> emulator.Options:
        """How a launch is run for its numbers."""
        chosen = settings.current()
        return emulator.Options(
            landing=chosen.emulator_landing,
            order=chosen.emulator_order,
            seed=chosen.emulator_seed,
            timed=False,
        )

    @contextlib.contextmanager
    def _launch(
        self, tensors: dict[str, Any], written: set[str], timed: emulator.Options
    ) -> Iterator[None]:
        memory = emulator.Memory()
        storages: dict[int, tuple[int, str]] = {}
        for name, tensor in tensors.items():
            storage = tensor.untyped_storage()
            # Kernels read whole dwords; an allocation never ends inside one.
            storages.setdefault(storage.data_ptr(), ((storage.nbytes() + 3) // 4 * 4, name))
        for address, (size, name) in storages.items():
            memory.add(address, size, name, writable=name in written)
        bridge = _bridge()
        with bridge.lock:
            request = _Request(memory, timed if self._timing else self._options())
            bridge.request = request
            try:
                yield
            finally:
                bridge.request = None
            if isinstance(request.error, (KeyboardInterrupt, SystemExit)):
                raise request.error
            if request.error is not None:
                raise LaunchFailed(f"{type(request.error).__name__}: {request.error}")
            if request.result is None:
                raise LaunchFailed("FlyDSL's launcher returned without a launch")
            self.last_run = request.result

    def time(self, call: Callable[[], None]) -> Timing:
        """Emulated time of one launch, from a sample of its workgroups.

        The sampled workgroups are executed; the rest of C is left as it was.
        """
        self._timing = True
        try:
            call()
        finally:
            self._timing = False
        assert self.last_run is not None
        return Timing(us=self.last_run.time_us, spread_us=0.0, rounds=1)

    def synchronize(self) -> None:
        """Launches are finished when they return."""

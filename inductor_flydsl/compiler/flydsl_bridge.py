"""All that touches flydsl outside the templates: its backends, a compile, an executable function.

FlyDSL chooses its compile backend and runtime for the whole process, from the environment. A
process that runs kernels on the emulator therefore sets both once, before the first compile.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..errors import CompileFailed, MissingDependency

EMULATOR_BACKEND = "gfx950_emulator"
_lock = threading.RLock()
_state: dict[str, Any] = {"backend": None, "runtime_library": None}


def prepare(backend: str, arch: str) -> None:
    """Select FlyDSL's backend for this process.

    Raises:
        MissingDependency: flydsl cannot be imported.
        CompileFailed: the process already uses another backend.
    """
    with _lock:
        if _state["backend"] == (backend, arch):
            return
        if _state["backend"] is not None:
            raise CompileFailed(
                f"this process compiles for {_state['backend']}; FlyDSL cannot also compile for "
                f"{(backend, arch)}: use a process of its own"
            )
        if backend == "emulator":
            os.environ["FLYDSL_COMPILE_BACKEND"] = EMULATOR_BACKEND
            os.environ["FLYDSL_RUNTIME_KIND"] = EMULATOR_BACKEND
        else:
            # A parent that runs kernels on the emulator hands its choice down.
            for name in ("FLYDSL_COMPILE_BACKEND", "FLYDSL_RUNTIME_KIND"):
                if os.environ.get(name) == EMULATOR_BACKEND:
                    del os.environ[name]
        # FlyDSL asks both: ARCH for the target, FLYDSL_GPU_ARCH for arch-dependent lowering.
        os.environ["FLYDSL_GPU_ARCH"] = os.environ["ARCH"] = arch
        try:
            if backend == "emulator":
                _register_emulator(arch)
            import flydsl.compiler  # noqa: F401
        except ImportError as error:
            raise MissingDependency(f"flydsl cannot be imported ({error})") from error
        _state["backend"] = (backend, arch)


def _register_emulator(arch: str) -> None:
    from flydsl.compiler.backends import register_backend
    from flydsl.compiler.backends.base import GPUTarget
    from flydsl.compiler.backends.rocm import RocmBackend
    from flydsl.runtime.device_runtime import (
        register_compile_runtime_mapping,
        register_device_runtime,
    )
    from flydsl.runtime.device_runtime.base import DeviceRuntime

    class EmulatorBackend(RocmBackend):
        """ROCm's pipeline up to assembly text; no assembler, no linker, no ROCm."""

        @staticmethod
        def supports_target(target: GPUTarget) -> bool:
            return target.backend == EMULATOR_BACKEND

        @staticmethod
        def detect_target() -> GPUTarget:
            return GPUTarget(backend=EMULATOR_BACKEND, arch=arch, warp_size=64)

        @classmethod
        def make_target(cls, arch: str) -> GPUTarget:
            return GPUTarget(backend=EMULATOR_BACKEND, arch=arch, warp_size=64)

        def pipeline_fragments(self, *, compile_hints: dict) -> list[str]:
            fragments = super().pipeline_fragments(compile_hints=compile_hints)
            return [f.replace("format=fatbin", "format=isa") for f in fragments]

        def toolkit_fingerprint(self) -> str:
            return ""

        def jit_runtime_lib_basenames(self) -> list[str]:
            return [str(_state["runtime_library"])]

    class EmulatorRuntime(DeviceRuntime):
        kind = EMULATOR_BACKEND

        def device_count(self) -> int:
            return 1

        def current_device_id(self) -> int:
            return 0

    register_backend(EMULATOR_BACKEND, EmulatorBackend)
    register_device_runtime(EmulatorRuntime, kind=EMULATOR_BACKEND)
    register_compile_runtime_mapping(EMULATOR_BACKEND, EMULATOR_BACKEND)


def use_runtime(library: Path) -> None:
    """Have FlyDSL's launchers call this library; `executable` does so for what it loads."""
    with _lock:
        _state["runtime_library"] = library


@contextlib.contextmanager
def _compile_only(lines: bool) -> Iterator[None]:
    # FlyDSL before 0.4 launches what it compiles unless the environment says otherwise, and then
    # keeps no hold of what it found in its own disk cache, which ours makes superfluous.
    wanted = {"COMPILE_ONLY": "1", "FLYDSL_RUNTIME_ENABLE_CACHE": "0"}
    wanted["FLYDSL_DEBUG_ENABLE_DEBUG_INFO"] = "1" if lines else "0"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def compile_to_bytes(
    spec: Any, arch: str, backend: str, *, lines: bool = False
) -> tuple[bytes, str | None]:
    """Compile one kernel.

    Args:
        spec, arch, backend: as in `compile_spec`.
        lines: note in the assembly text which source line each instruction comes from; the
            instructions are the same.

    Returns:
        (pickled FlyDSL artifact, assembly text where the backend emits it).

    Raises:
        MissingDependency: flydsl cannot be imported.
        CompileFailed: FlyDSL raised; its message is kept.
    """
    prepare(backend, arch)
    with _lock:
        try:
            from ..templates import gemm

            launcher = gemm.build(spec)
            with _compile_only(lines):
                launcher(*gemm.placeholders())
            _, compiled = launcher._last_compiled
            return pickle.dumps(compiled), assembly(compiled.ir)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise CompileFailed(f"{spec.name}: {type(error).__name__}: {error}") from error


def compile_text(launcher: Any, *arguments: Any) -> str:
    """Assembly text, with debug lines, of anyone's ``flyc.jit`` function; no GPU, no ROCm.

    Args:
        launcher: the function; it is compiled, not launched.
        arguments: what to specialise on, as for a call.

    Raises:
        MissingDependency: flydsl cannot be imported.
        CompileFailed: FlyDSL raised; its message is kept.
    """
    prepare("emulator", "gfx950")
    with _lock:
        try:
            with _compile_only(lines=True):
                launcher(*arguments)
            _, compiled = launcher._last_compiled
            text = assembly(compiled.ir)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            raise CompileFailed(f"{launcher}: {type(error).__name__}: {error}") from error
    if text is None:
        raise CompileFailed(f"{launcher}: FlyDSL left no assembly text")
    return text


def assembly(module_text: str) -> str | None:
    """The assembly text inside a compiled MLIR module, or None where it holds a binary."""
    match = re.search(r'assembly = "((?:[^"\\]|\\.)*)"', module_text)
    if match is None:
        return None
    return re.sub(
        r"\\([0-9A-Fa-f]{2})|\\(.)",
        lambda m: chr(int(m.group(1), 16)) if m.group(1) else m.group(2),
        match.group(1),
    )


def executable(
    payload: bytes, arch: str, backend: str, runtime_library: Path | None
) -> tuple[Any, Callable[[Any], None]]:
    """Load a compiled kernel into this process.

    Args:
        payload: from `compile_to_bytes`.
        arch, backend: as it was compiled for.
        runtime_library: the shared library that receives module loads and launches, where the
            backend does not bring its own.

    Returns:
        (what must stay alive, host function of one pointer to packed argument pointers).
    """
    prepare(backend, arch)
    with _lock:
        if runtime_library is not None:
            _state["runtime_library"] = runtime_library
        compiled = pickle.loads(payload)
        return compiled, compiled._get_func_exe()

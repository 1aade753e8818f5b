"""Configuration of torch: versions, flags, the list of backends, and the choices factory."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

FLAG = "flydsl_enable_autotuning"
FLAG_VARIABLE = "FLYDSL_ENABLE_AUTOTUNING"
BACKEND = "FLYDSL"


def torch_version() -> tuple[int, int]:
    """Major and minor version of torch; works for nightly and vendor builds."""
    import torch

    match = re.match(r"(\d+)\.(\d+)", torch.__version__)
    assert match, torch.__version__
    return int(match[1]), int(match[2])


def add_flag() -> None:
    """Make ``torch._inductor.config.flydsl_enable_autotuning`` settable where torch lacks it.

    ConfigModule rejects unknown names. Through its own entry type the name takes part in
    ``patch``, ``save_config`` and the FX graph cache key as any other. It is never taken away
    again: a thread's cached view of the configuration may hold it, and a program that sets it
    must not fail for the plugin being off.
    """
    import torch._inductor.config as config
    from torch.utils._config_module import _Config, _ConfigEntry  # type: ignore[attr-defined]

    entries = config._config  # type: ignore[attr-defined]
    if FLAG in entries:
        return
    declared: Any = _Config(default=False, env_name_default=[FLAG_VARIABLE], value_type=bool)
    try:
        entries[FLAG] = _ConfigEntry(declared, FLAG)
    except TypeError:  # 2.11: an override is a plain attribute and needs no name.
        entries[FLAG] = _ConfigEntry(declared)  # type: ignore[call-arg]


def autotuning_enabled() -> bool:
    import torch._inductor.config as config

    return bool(getattr(config, FLAG, False))


def autotunes_flydsl() -> bool:
    """Max-autotune is on for GEMMs, and FLYDSL is one of its backends."""
    import torch._inductor.config as config

    return bool(config.max_autotune or config.max_autotune_gemm) and BACKEND in gemm_backends()


def lists_flydsl() -> bool:
    """FLYDSL is one of the backends of this compile, as can be told while Dynamo traces it.

    What ``torch.compile(options=…)`` asks for becomes configuration only after that.
    """
    options = _compile_options()
    return BACKEND in gemm_backends(options.get("max_autotune_gemm_backends"))


def gemm_backends(listed: str | None = None) -> list[str]:
    """The entries of ``max_autotune_gemm_backends`` in upper case; Inductor validates none.

    Args:
        listed: its value, where it is not the current one.
    """
    import torch._inductor.config as config

    listed = listed or config.max_autotune_gemm_backends
    return [name.strip() for name in listed.upper().split(",")]


def _compile_options() -> dict[str, Any]:
    """Inductor's options of the ``torch.compile`` whose function Dynamo is tracing, if any."""
    symbolic: Any = sys.modules.get("torch._dynamo.symbolic_convert")
    tracer = getattr(getattr(symbolic, "tls", None), "current_tx", None)
    compiler: Any = getattr(getattr(tracer, "output", None), "compiler_fn", None)
    while hasattr(compiler, "_torchdynamo_orig_backend"):
        compiler = compiler._torchdynamo_orig_backend
    options = getattr(compiler, "config", None)
    return dict(options) if isinstance(options, dict) else {}


def prints_tables() -> bool:
    """Whether Inductor prints its autotune tables now."""
    import torch._inductor.config as config
    from torch._inductor import select_algorithm

    return select_algorithm.PRINT_AUTOTUNE and config.autotune_num_choices_displayed != 0


def install_factory(factory: Any, chained: Callable[[Any], Any]) -> None:
    """Put `factory` under ``config.inductor_choices_class``.

    As the default of the entry it is seen by every thread (2.12 and later keep what is assigned
    to a config in a context variable, which a new thread does not see). Where this context has a
    factory of its own, ``chained(previous)`` takes its place here.
    """
    import torch._inductor.config as config

    previous = config.inductor_choices_class
    _factory_entry().default = factory
    new = factory if previous is None or previous is factory else chained(previous)
    # Assigning also drops this context's cached views of the configuration.
    config.inductor_choices_class = new
    forget_handler()


def remove_factory(is_ours: Callable[[Any], bool], previous: Callable[[Any], Any]) -> None:
    """Undo `install_factory`: ``previous(ours)`` is what a factory of ours had chained, or None."""
    import torch._inductor.config as config

    entry = _factory_entry()
    current = config.inductor_choices_class
    if is_ours(entry.default):
        entry.default = None
    if is_ours(current):
        restored = previous(current)
        config.inductor_choices_class = restored
        if restored is None:
            _clear_override(entry)
    forget_handler()


def _factory_entry() -> Any:
    import torch._inductor.config as config

    return config._config["inductor_choices_class"]  # type: ignore[attr-defined]


def _clear_override(entry: Any) -> None:
    from torch.utils import _config_module

    unset = _config_module._UNSET_SENTINEL  # type: ignore[attr-defined]
    if hasattr(entry.user_override, "set"):
        entry.user_override.set(unset)
    else:
        entry.user_override = unset


def forget_handler() -> None:
    """Let this thread ask the factory again; after a compile it keeps the first answer."""
    virtualized: Any = sys.modules.get("torch._inductor.virtualized")
    if virtualized is None:  # Nothing has asked yet; importing it would import all of Inductor.
        return
    key = virtualized._choices._key
    if hasattr(virtualized.threadlocal, key):
        delattr(virtualized.threadlocal, key)

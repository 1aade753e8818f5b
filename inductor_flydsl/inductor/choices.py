"""Where Inductor asks for the choices of a GEMM: adds ours, or records why not.

Owns the handler that Inductor's choices factory makes, and the order of the steps from an op to
one finished candidate. Legality is `space`'s, speed is `tuner`'s, code is `caller`'s.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Sequence
from typing import Any

from .. import settings, shapes, space
from ..config import GemmConfig, KernelSpec
from ..devices import Clock, Device, get_device
from ..errors import (
    DeviceUnavailable,
    InductorFlyDSLError,
    NothingRunsIt,
    RecordMissing,
    SettingError,
)
from ..problem import GemmProblem
from . import cachekey, compat, contest, operands, pending, ranges, runtime
from .activate import is_active
from .decisions import Decision, Time, clear, decisions, record
from .extents import guard_multiple
from .grouped import SCALED_OP
from .operands import Declined
from .ops import OPS, Inputs
from .scaled import MX_OP

__all__ = ["Decision", "Time", "clear", "decisions", "handler_of", "is_active", "offer"]

log = logging.getLogger("inductor_flydsl")
# Operands of `mm`, as torch writes their types.
WIDE = ("torch.bfloat16", "torch.float16")


class FlyDSLChoicesMixin:
    """In front of whichever choices class is in use; passes everything else on."""

    def get_template_configs(
        self, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        """What the other backends offer, and our candidate where there is one."""
        parent: Any = super()
        others = parent.get_template_configs(kernel_inputs, templates, op_name, *args, **kwargs)
        if not is_active() or not compat.autotunes_flydsl():
            return others
        if _offered_before(op_name):
            return others
        ours = _offer(op_name, kernel_inputs, others)
        if ours is None and not others and set(compat.gemm_backends()) == {compat.BACKEND}:
            # FLYDSL alone in the list, and not able: the compile must not fail for it.
            aten, overrides = compat.aten_templates(op_name, kernel_inputs)
            return parent.get_template_configs(kernel_inputs, aten, op_name, overrides)
        return others if ours is None else [*others, ours]

    def uuid(self) -> Any:
        """Our part of the FX graph cache key, with that of the handler we stand in front of."""
        inner = getattr(super(), "uuid", None)
        return ("inductor_flydsl", cachekey.graph_key(is_active()), inner() if inner else None)


@functools.cache
def _mixed(base: type) -> type:
    return type(f"FlyDSL{base.__name__}", (FlyDSLChoicesMixin, base), {})


def handler_of(handler: Any) -> Any:
    """`handler` with our mixin in front; the handler itself is left as it is."""
    if isinstance(handler, FlyDSLChoicesMixin):
        return handler
    ours = copy.copy(handler)
    ours.__class__ = _mixed(type(handler))  # type: ignore[arg-type]
    return ours


def may_serve(nodes: Sequence[Any]) -> bool:
    """Whether products of these operands are likely to have a choice of ours."""
    if not is_active() or not compat.autotunes_flydsl():
        return False
    if not all(str(node.get_dtype()) in WIDE for node in nodes):
        return False
    try:
        _check_graph()
        _device(nodes[0].get_device())
    except (Declined, InductorFlyDSLError):
        return False
    return True


def _offer(op: str, kernel_inputs: Any, others: list[Any]) -> Any:
    """`offer` for what Inductor hands to its choices handler."""
    if op not in OPS:
        reason = f"op {op} has no kernel yet; supported: {', '.join(OPS)}"
        words = operands.describe(kernel_inputs.nodes())
        record(Decision(op=op, shapes=words, chosen=_left(others), reason=reason))
        return None
    inputs = Inputs(
        op=op,
        nodes=kernel_inputs.nodes(),
        layout=kernel_inputs.output_layout(flexible=False),
        scalar=kernel_inputs.get_scalar,
    )
    return offer(inputs, others)


def offer(inputs: Inputs, others: Sequence[Any], *, needed: bool = False) -> Any:
    """Our choice for an op, or None with the reason recorded.

    Args:
        inputs: an op of `OPS`.
        others: the choices that Inductor has so far.
        needed: refuse where no kernel of PyTorch's could run the op either.

    Raises:
        RecordMissing: as INDUCTOR_FLYDSL_CACHE=require asks.
        NothingRunsIt: ``needed``, and nothing could run the op. Nothing else ever escapes.
    """
    problem = None
    settings.check_names()
    try:
        _check_graph()
        asked = OPS[inputs.op].ask(inputs)
        problem = asked.problem
        recording, _ = settings.resolve("record")
        if recording is not None:
            # What a compile looks up is the product, whatever follows it in the same kernel.
            shapes.record(recording, [operands.plain(problem)])
        device = _device(inputs.layout.device)
        limit = space.problem_limit(problem, device.arch)
        # What the op itself gives, whatever an epilogue may.
        limit = limit or space.problem_limit(operands.plain(problem), device.arch)
        if limit:
            raise Declined(limit)
        return _choice(asked, device, inputs)
    except RecordMissing:
        raise
    except (Declined, InductorFlyDSLError) as error:
        reason = str(error)
        news = _is_news_to_user(error) or _aten_refuses(inputs)
        level = logging.WARNING if news else logging.INFO
    except Exception as error:
        log.debug("declined by an error", exc_info=True)
        reason, level = f"{type(error).__name__}: {error}", logging.WARNING
    words, chosen = operands.describe(inputs.nodes), _left(others)
    decision = Decision(op=inputs.op, shapes=words, problem=problem, chosen=chosen, reason=reason)
    record(decision, level=level)
    if needed and _aten_refuses(inputs):
        raise NothingRunsIt(
            f"{inputs.op} {words} has no kernel: {reason}. PyTorch has none for CPU tensors that "
            "could take it instead; change what is named, or leave the op out of the compiled graph"
        )
    return None


_told: set[str] = set()


def _is_news_to_user(error: Exception) -> bool:
    """Whether it is a setting of the user's that keeps FLYDSL out, and this was not said before."""
    asked = settings.origin("device") != "default"
    own = isinstance(error, SettingError) or (isinstance(error, DeviceUnavailable) and asked)
    if not own or str(error) in _told:
        return False
    _told.add(str(error))
    return True


def _aten_refuses(inputs: Inputs) -> bool:
    """Whether what ATen will say of the op hides the reason: PyTorch has no MX product on a CPU,
    and no grouped product with scales."""
    if inputs.layout.device.type != "cpu":
        return False
    return inputs.op == MX_OP or inputs.op == SCALED_OP and not compat.has_cpu_grouped()


def _offered_before(op: str) -> bool:
    """Whether this very op was seen before: Inductor asks for addmm up to three times."""
    from torch._inductor.virtualized import V

    if op not in OPS or not OPS[op].repeated:
        return False
    seen = V.graph.__dict__.setdefault("_flydsl_offered", set())
    node = id(V.graph.current_node)
    return node in seen or seen.add(node) is not None


def _left(others: Sequence[Any]) -> str:
    names = {compat.backend_name(choice) for choice in others} or {"ATEN"}
    return names.pop() if len(names) == 1 else "OTHERS"


def _check_graph() -> None:
    from torch._inductor.virtualized import V

    limit = compat.graph_limit(V.graph)
    if limit:
        raise Declined(limit)


def _device(torch_device: Any) -> Device:
    """The device for tensors on `torch_device`: the very GPU they are on.

    Raises:
        DeviceUnavailable, SettingError: the settings ask for one that is not here.
        Declined: it takes no such tensors.
    """
    import torch

    wanted, _ = settings.resolve("device")
    kind = torch_device.type
    if kind not in ("cpu", "cuda"):
        raise Declined(f"tensors on {torch_device} have no kernels; supported: cpu, cuda")
    if kind == "cuda" and (wanted == "auto" and torch.version.hip or wanted == "hip"):
        wanted = f"hip:{torch_device.index or 0}"
    device = get_device(wanted, torch_type=kind if kind == "cpu" else str(torch_device))
    takes = torch.device(device.torch_device)
    if takes.type != kind or (takes.index is not None and takes.index != torch_device.index):
        raise DeviceUnavailable(f"device={device.name} takes no tensors on {torch_device}")
    return device


def _choice(asked: operands.Asked, device: Device, inputs: Inputs) -> Any:
    """Our candidate as an Inductor choice.

    Raises:
        Declined: no configuration works; the message has the first one's reason.
    """
    from torch._dynamo.utils import preserve_rng_state

    from .caller import FlyDSLCaller
    from .epilogue import Product

    # What measuring draws and how it leaves the random state is no business of the user's.
    with preserve_rng_state():
        # A product is tuned as it is; what follows it in the same kernel changes little.
        config, times, measured = _best(operands.plain(asked.problem), device)
    limit = space.why_not(asked.problem, config, device.arch)
    if limit:
        raise Declined(limit)
    launch = runtime.Launch(
        problem=asked.problem,
        config=config,
        device=device.name,
        torch_device=str(inputs.layout.device),
        arch=device.arch.name,
        check=asked.check,
        dynamic=tuple(asked.sizes),
    )
    _guard_k(asked, config)
    ranges.guard(launch, asked.sizes)
    choice = FlyDSLCaller(
        Product(launch, asked.sizes),
        inputs.nodes,
        inputs.layout,
        order=asked.order,
        identity=cachekey.identity(device),
        clock=device.clock.value,
        ranked=device.clock is not Clock.EMULATED,
    )
    choice.annotations["flydsl_times"] = (times, measured)
    compat.add_selection_hooks(contest.prune, contest.observe)
    return choice


def _guard_k(asked: operands.Asked, config: GemmConfig) -> None:
    """See that a kernel without a partial last K step gets no K that has one.

    Raises:
        Declined: that cannot be guarded.
    """
    k, problem = asked.sizes.get("k"), asked.problem
    if k is None or problem.grouping is not None or problem.k % config.tile_k:
        return
    if not guard_multiple(k, config.tile_k):
        raise Declined(f"K ({k}) cannot be guarded to be a multiple of {config.tile_k}")


def _best(problem: GemmProblem, device: Device) -> tuple[GemmConfig, tuple[Time, ...], int]:
    """Configuration, the times of all that were tried, and how many were measured just now.

    With ``config.flydsl_enable_autotuning`` off: a stored record's, else the model's first one,
    whose numbers are checked and nothing stored.
    """
    from .. import tuner

    before = tuner.stats().measured
    if compat.autotuning_enabled():
        pending.compile_all(device)
        found = tuner.tune(problem, device)
    else:
        stored = tuner.lookup(problem, device)
        if stored is None:
            return _model_choice(problem, device)
        found = stored
    times = tuple(
        Time(m.config.name, m.us, m.clock.value, m.failure or "") for m in found.measurements
    )
    if found.best is None:
        reason = next((m.failure for m in found.measurements if m.failure), None)
        if reason is None:
            raise Declined(space.usual_limit(problem, device.arch))
        raise Declined(f"every candidate was rejected, the first for: {reason}")
    return found.best, times, tuner.stats().measured - before


def _model_choice(problem: GemmProblem, device: Device) -> tuple[GemmConfig, tuple[Time, ...], int]:
    from .. import compiler, ranking
    from ..measure import measure

    ranked = ranking.rank(problem, space.candidates(problem, device.arch), device.arch, 1)
    if not ranked:
        raise Declined(space.usual_limit(problem, device.arch))
    config = ranked[0][0]
    spec = KernelSpec.of(problem, config)
    artifact = compiler.compile_spec(spec, device.arch.name, device.backend)
    result = measure(device, artifact, problem, config)
    if not result.ok:
        log.warning("%s for %s rejected: %s", config.name, problem, result.failure)
        raise Declined(f"the only candidate was rejected: {result.failure}")
    return config, (Time(config.name, result.us, result.clock.value),), 1

"""What generated code calls: a kernel that loads itself on its first launch.

Owns the text form in which a choice travels into generated code, the load once per process, and
the check of addresses that nothing else checks. Imports no ``torch._inductor``: a second process
that hits the FX graph cache comes here first, and tunes nothing.
"""

from __future__ import annotations

import functools
import json
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..config import GemmConfig, KernelSpec
from ..errors import BadArgument, ProblemError
from ..problem import GemmProblem

if TYPE_CHECKING:
    from ..devices.extras import Workspace

# Launches of one kernel with different sizes that are kept ready.
KEPT_SIZES = 4096
# Elements of a line along K that a kernel may load of a K step, at the most.
LINE = 512


@dataclass(frozen=True)
class Launch:
    """A choice as generated code names it.

    Attributes:
        problem, config: what to run.
        device: name of the device (``hip:0``, ``emulator:gfx950``, ``reference``).
        torch_device: of the tensors, for example ``cuda:0``.
        arch: LLVM name of the architecture that it was chosen for.
        check: letters of operands whose alignment is checked at every launch: ``a``, ``b``, and
            ``x``, ``y`` of their block scales.
        dynamic: integers of the problem that a launch is given, by their names in
            `GemmProblem.at`; the problem has their hints.
    """

    problem: GemmProblem
    config: GemmConfig
    device: str
    torch_device: str
    arch: str
    check: str = ""
    dynamic: tuple[str, ...] = ()

    def to_text(self) -> str:
        """JSON in one line; `from_text` reads it."""
        data = {
            "problem": self.problem.to_json(),
            "config": self.config.to_json(),
            "device": self.device,
            "torch_device": self.torch_device,
            "arch": self.arch,
            "check": self.check,
            "dynamic": list(self.dynamic),
        }
        return json.dumps(data, sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> Launch:
        """Inverse of `to_text`.

        Raises:
            BadArgument: the text is not one that `to_text` made.
        """
        try:
            data = json.loads(text)
            return cls(
                problem=GemmProblem.from_json(data["problem"]),
                config=GemmConfig.from_json(data["config"]),
                device=data["device"],
                torch_device=data["torch_device"],
                arch=data["arch"],
                check=data["check"],
                dynamic=tuple(data["dynamic"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            way = f"clear Inductor's cache ({type(error).__name__}: {error})"
            raise BadArgument("text", text, "is not a kernel of this version", way) from error


class Kernel:
    """``kernel(c, a, b, *tensors)`` writes C[M, N], what the problem's fusion makes of A[M, K] @
    B[K, N] and of the tensors that it reads, all with a batch index in front if the problem has
    one; loads on the first call. Where sizes are dynamic they are those of the problem, and
    ``kernel.at(*sizes)`` is the same with others.

    Raises, on the first call:
        DeviceUnavailable, MissingDependency, CompileFailed, LaunchFailed: as `Device.load` and
            `compiler.compile_spec` say.
    """

    __slots__ = ("_lock", "_sized", "launch", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.launch = self._first
        self._sized: Sized | None = None
        self._lock = threading.Lock()

    def __call__(self, c: Any, a: Any, b: Any, *tensors: Any) -> None:
        self.launch(c, a, b, *tensors)

    def _first(self, c: Any, a: Any, b: Any, *tensors: Any) -> None:
        with self._lock:
            if self.launch == self._first:
                self.launch = load(Launch.from_text(self.text))
        self.launch(c, a, b, *tensors)

    def at(self, *sizes: int) -> Any:
        """The kernel for these values of `Launch.dynamic`: ``call(c, a, b, *tensors)``.

        Raises:
            ProblemError: sizes that no launch can have, such as an operand over 2 GiB.
        """
        if self._sized is None:
            with self._lock:
                if self._sized is None:
                    self._sized = Sized(Launch.from_text(self.text))
        return self._sized.at(sizes)


class Sized:
    """The launches of one kernel by the sizes that they are given.

    Args:
        launch: with `Launch.dynamic` sizes.
    """

    def __init__(self, launch: Launch) -> None:
        from ..devices.extras import Workspace

        self._launch = launch
        self._scratch = Workspace()
        self._known: dict[tuple[int, ...], Any] = {}

    def at(self, sizes: tuple[int, ...]) -> Any:
        """See `Kernel.at`."""
        try:
            return self._known[sizes]
        except KeyError:
            pass
        found = self._new(dict(zip(self._launch.dynamic, sizes, strict=True)))
        if len(self._known) >= KEPT_SIZES:
            self._known.clear()
        self._known[sizes] = found
        return found

    def _new(self, sizes: dict[str, int]) -> Any:
        if 0 in (sizes.get("m"), sizes.get("n"), sizes.get("batch")):
            return _nothing
        if sizes.get("k") == 0:
            return self._sums_of_nothing(sizes)
        from .. import space
        from ..arch import get_arch

        launch = replace(self._launch, problem=self._launch.problem.at(sizes))
        limit = space.size_limit(launch.problem, launch.config, get_arch(launch.arch))
        if limit:
            way = "compile with smaller sizes, or leave FLYDSL out of max_autotune_gemm_backends"
            raise ProblemError("sizes", sizes, f"have no launch: {limit}", way)
        return load(launch, self._launch.problem, self._scratch)

    def _sums_of_nothing(self, sizes: dict[str, int]) -> Any:
        """Products without K: what the epilogue makes of zeros."""
        import torch

        problem = self._launch.problem
        if problem.grouping is not None:
            return _zeros
        strides = dict.fromkeys(("lda", "ldb", "a_batch", "b_batch"), 0)
        one = self._new({**sizes, **strides, "k": 1})
        narrow = getattr(torch, problem.dtype.value)
        longest = max(sizes.get("m", problem.m), sizes.get("n", problem.n))

        def call(c: Any, a: Any, b: Any, *tensors: Any) -> None:
            zeros = torch.zeros(longest + LINE, dtype=narrow, device=c.device)
            column = zeros.as_strided((*a.shape[:-1], 1), (0,) * a.dim())
            row = zeros.as_strided((*b.shape[:-2], 1, b.shape[-1]), (0,) * b.dim())
            one(c, column, row, *tensors)

        return call


def _nothing(c: Any, a: Any, b: Any, *tensors: Any) -> None:
    """A product without elements."""


def _zeros(c: Any, a: Any, b: Any, *tensors: Any) -> None:
    """The products of groups none of which has a share of K."""
    c.zero_()


@functools.cache
def kernel(text: str) -> Kernel:
    """The kernel that `text` (from `Launch.to_text`) names; the same object for the same text."""
    return Kernel(text)


def load(launch: Launch, tuned: GemmProblem | None = None, scratch: Workspace | None = None) -> Any:
    """A callable ``(c, a, b, *tensors)`` for a choice: device, artifact and launch bound.

    Args:
        launch: the choice.
        tuned: the problem that the kernel was chosen for, if not the launch's own.
        scratch: memory that launches of the same kernel share.

    Raises:
        DeviceUnavailable, MissingDependency, CompileFailed, LaunchFailed: what is missing here.
    """
    from .. import compiler
    from ..devices import get_device

    device = get_device(launch.device, torch_type=launch.torch_device)
    spec = KernelSpec.of(tuned or launch.problem, launch.config)
    artifact = compiler.compile_spec(spec, device.arch.name, device.backend)
    loaded = device.load(artifact, launch.problem, launch.config, scratch)
    if not launch.check:
        return loaded
    return _checked(loaded, launch)


def _checked(loaded: Any, launch: Launch) -> Any:
    """`loaded`, with operands copied whose addresses are less aligned than the kernel assumes."""
    p = launch.problem
    needed = {"a": p.a_align, "b": p.b_align}
    if p.grouping is not None:
        needed["offsets"] = 1
    if p.a_scales is not None and p.b_scales is not None:
        # Scales are loaded by dwords at most.
        needed |= {"x": min(p.a_scales.align, 4), "y": min(p.b_scales.align, 4)}
    masks = [align - 1 if letter in launch.check else 0 for letter, align in needed.items()]

    def call(c: Any, *tensors: Any) -> None:
        checked = [
            _aligned(t) if t.data_ptr() & mask else t
            for t, mask in zip(tensors, masks, strict=False)
        ]
        loaded(c, *checked, *tensors[len(checked) :])

    return call


def _aligned(tensor: Any) -> Any:
    """A copy with the same sizes and strides at the start of an allocation."""
    import torch

    strides = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((size - 1) * stride for size, stride in strides)
    storage = torch.as_strided(tensor, (span + 1,), (1,)).clone()
    return torch.as_strided(storage, tensor.shape, tensor.stride())

"""Our kernels as a contestant: what the tuner would try, ranked by the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .contest import Candidate
from .problems import Missing, Operands, problem_of
from .suites import Shape


@dataclass(frozen=True)
class Ours:
    """Candidates in the order of the model.

    Attributes:
        keep: how many are compiled and timed for a shape.
    """

    keep: int
    name: str = "ours"

    def candidates(self, shape: Shape) -> list[Candidate]:
        """The model's first `keep` of the legal configurations."""
        from inductor_flydsl import ranking, space
        from inductor_flydsl.devices import get_device

        problem, arch = problem_of(shape), get_device("emulator").arch
        if why := space.problem_limit(problem, arch):
            raise Missing(f"no kernel of ours yet: {why}")
        legal = space.candidates(problem, arch)
        ranked = ranking.rank(problem, legal, arch, self.keep)
        return [
            Candidate(config.name, p.us, lambda operands, c=config: launch(problem, c, operands))
            for config, p in ranked
        ]


def launch(problem: Any, config: Any, operands: Operands) -> Any:
    """Compile and time one configuration, as the tuner does."""
    from inductor_flydsl.compiler import compile_spec
    from inductor_flydsl.config import KernelSpec
    from inductor_flydsl.devices import get_device

    device = get_device("emulator")
    artifact = compile_spec(KernelSpec.of(problem, config), "gfx950", "emulator")
    kernel = device.load(artifact, problem, config)
    tensors = operands.tensors.values()
    device.time(lambda: kernel(*tensors))
    return device.last_run

"""Tuning over the nodes of a Ray cluster: one actor a GPU, records back to the driver's store.

The package must be installed on every node, in the same version. Nodes share no file system with
the driver, so each actor has a store of its own that lasts as long as it does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import settings
from .errors import DeviceUnavailable, MissingDependency
from .fleet import Job, Outcome, _outcome, tune_here
from .problem import GemmProblem
from .records import Store
from .tuner import default_tuner


class Worker:
    """What an actor does; plain Python, so that it runs without Ray too.

    Args:
        device: name of the device; ``hip`` takes the GPU that Ray has given the actor.
        job: how problems are tuned.
        scope: settings, as text by name.
    """

    def __init__(self, device: str, job: Job, scope: dict[str, str]) -> None:
        self._device = device
        self._job = job
        self._scope = scope
        self._folder = tempfile.TemporaryDirectory(prefix="inductor_flydsl-")

    def tune(self, problem: dict[str, Any]) -> dict[str, Any]:
        """One problem; as `fleet.tune_here`."""
        with settings.scope(**self._scope, cache_dir=Path(self._folder.name)):
            asked = GemmProblem.from_json(problem)
            return tune_here(self._device, asked, self._job, must_store=True)


def tune_on_ray(
    address: str,
    device: str,
    problems: Sequence[GemmProblem],
    job: Job,
    done: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Tune problems on a Ray cluster and merge the records into the store of the settings.

    Args:
        address: of the cluster; ``auto`` takes the running one, else starts one on this machine;
            ``local`` always starts one.
        device: ``hip``: an actor a GPU; ``emulator`` or ``reference``: an actor a CPU.
        problems: served by kernels, each once.
        job: how.
        done: told of each problem.

    Returns:
        An outcome a problem, in their order.

    Raises:
        MissingDependency: ray is not installed.
        DeviceUnavailable: the cluster is not reached, or has no GPU.
        StoreUnwritable: the records could not be stored.
    """
    try:
        import ray
    except ImportError as error:
        way = "pip install inductor-flydsl[ray]"
        raise MissingDependency(f"--ray needs ray, which is not installed; {way}") from error
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        return _run(ray, device, problems, job, done)
    finally:
        if started:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:
    options: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False}
    if address == "local":
        ray.init(address="local", **options)
        return
    try:
        ray.init(address=address, log_to_driver=False)
    except ConnectionError as error:
        if address != "auto":
            raise DeviceUnavailable(f"--ray {address}: no cluster answers ({error})") from error
        ray.init(address="local", **options)


def _run(
    ray: Any,
    device: str,
    problems: Sequence[GemmProblem],
    job: Job,
    done: Callable[[Outcome], None],
) -> list[Outcome]:
    chosen = settings.current()
    names = ("cache", "jobs", "compile_timeout", "measure_timeout", "budget")
    scope = {name: settings.as_text(getattr(chosen, name)) for name in names}
    on_gpus = device.partition(":")[0] == "hip"
    resources: dict[str, Any] = {"num_gpus": 1} if on_gpus else {"num_cpus": 1}
    have = ray.cluster_resources().get("GPU" if on_gpus else "CPU", 0)
    count = min(int(have), len(problems))
    if count < 1 <= len(problems):
        raise DeviceUnavailable(f"the Ray cluster has no {'GPU' if on_gpus else 'CPU'} to offer")
    actor = ray.remote(**resources)(Worker)
    idle = [actor.remote(device, job, scope) for _ in range(count)]
    store = default_tuner(must_store=True).store
    left = list(reversed(problems))
    running: dict[Any, tuple[Any, GemmProblem]] = {}
    outcomes: dict[GemmProblem, Outcome] = {}
    while left or running:
        while left and idle:
            problem, worker = left.pop(), idle.pop()
            running[worker.tune.remote(problem.to_json())] = (worker, problem)
        (ready, *_), _ = ray.wait(list(running))
        worker, problem = running.pop(ready)
        outcomes[problem] = outcome = _collect(ray, ready, device, problem, store)
        # An actor that died is replaced by a new one.
        died = outcome.error.startswith("the Ray actor")
        idle.append(actor.remote(device, job, scope) if died else worker)
        done(outcome)
    return [outcomes[problem] for problem in problems]


def _collect(ray: Any, ready: Any, device: str, problem: GemmProblem, store: Store) -> Outcome:
    try:
        outcome = _outcome(problem, device, ray.get(ready))
    except ray.exceptions.RayError as error:
        text = f"the Ray actor failed: {str(error).strip().splitlines()[0]}"
        return Outcome(problem=problem, device=device, error=text)
    if outcome.record is None:
        return outcome
    stored = store.put(outcome.record)
    return Outcome(problem=problem, device=device, record=stored, measured=outcome.measured)

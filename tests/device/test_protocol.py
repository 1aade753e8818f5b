"""The device protocol, the same tests on every device that runs here."""

import math

import pytest

torch = pytest.importorskip("torch")

from inductor_flydsl import GemmProblem, space  # noqa: E402
from inductor_flydsl.compiler import compile_spec  # noqa: E402
from inductor_flydsl.config import KernelSpec  # noqa: E402
from inductor_flydsl.devices import Clock, get_device  # noqa: E402
from inductor_flydsl.errors import DeviceUnavailable, InductorFlyDSLError  # noqa: E402
from inductor_flydsl.samples import operands  # noqa: E402


def available():
    names = ["reference", "emulator:gfx950"]
    return names + (["hip"] if torch.version.hip and torch.cuda.is_available() else [])


@pytest.fixture(params=available())
def device(request):
    try:
        return get_device(request.param)
    except InductorFlyDSLError as error:
        pytest.skip(str(error))


def loaded(device, problem):
    config = space.candidates(problem, device.arch)[0]
    spec = KernelSpec.of(problem, config)
    artifact = compile_spec(spec, device.arch.name, device.backend)
    return device.load(artifact, problem, config)


PROBLEMS = [
    GemmProblem.dense(16, 16, 32, layout="NN"),
    GemmProblem.dense(33, 24, 65, layout="NT"),
    GemmProblem.dense(48, 40, 33, layout="TN", dtype="fp16"),
    GemmProblem.dense(17, 56, 64, layout="TT", out_dtype="fp32"),
]


def test_it_describes_itself(device):
    assert device.name.partition(":")[0] in ("reference", "emulator", "hip")
    assert isinstance(device.clock, Clock)
    assert device.backend in ("reference", "emulator", "rocm")
    assert all(isinstance(x, str) for pair in device.environment().items() for x in pair)
    torch.empty(1, device=device.torch_device)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_numbers(device, problem):
    c, a, b = operands(problem, device.torch_device, seed=3)
    loaded(device, problem)(c, a, b)
    device.synchronize()
    exact, size = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    # One rounding to the output type, and fp32 sums in an order of the device's own.
    tolerance = exact.abs() * torch.finfo(c.dtype).eps + size * problem.k * 2**-24
    assert ((c.double() - exact).abs() <= tolerance).all()


def test_a_time_is_positive_and_of_one_launch(device):
    problem = PROBLEMS[0]
    c, a, b = operands(problem, device.torch_device, seed=3)
    kernel = loaded(device, problem)
    timing = device.time(lambda: kernel(c, a, b))
    assert 0 < timing.us < 1e6 and math.isfinite(timing.spread_us) and timing.rounds >= 1


def test_the_reference_takes_only_what_torch_has():
    with pytest.raises(DeviceUnavailable, match="torch_device='meta'"):
        get_device("reference", torch_type="meta")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceUnavailable, match="finds no GPU"):
            get_device("reference", torch_type="cuda")


def test_an_error_in_a_launch_is_typed():
    device = get_device("reference")

    def broken():
        raise RuntimeError("injected")

    with pytest.raises(InductorFlyDSLError, match="injected"):
        device.time(broken)

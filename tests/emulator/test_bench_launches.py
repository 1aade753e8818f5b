"""The comparison of kernels on tiny shapes: ours, and peers where they are installed."""

from __future__ import annotations

import importlib.util
import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("flydsl")

from bench import contest, kernels, launches, ours, peer_flydsl, peer_triton, problems, suites  # noqa: E402  # noqa: E402
from bench.launches import RecipeCache, WrongLaunch  # noqa: E402
from bench.problems import Missing  # noqa: E402

TINY = suites.Shape("mm", "bf16", 40, 64, 128)
OTHERS = [
    suites.Shape("scaled", "mxfp8", 40, 64, 256),
    suites.Shape("scaled", "mxfp4", 40, 64, 512),
    suites.Shape("grouped", "bf16", 45, 128, 128, "NN", (17, 0, 28)),
]
VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
HAS_TRITON = importlib.util.find_spec("triton") is not None


@pytest.fixture(scope="module")
def operands() -> problems.Operands:
    return problems.operands_of(TINY)


def test_ours_alone_end_to_end(tmp_path, capsys) -> None:
    file = tmp_path / "out.json"
    given = ["--shapes", "40,64,128", "--candidates", "2", "--json", str(file), "--peers"]
    assert kernels.main(given) == 0
    text = capsys.readouterr().out
    assert text.startswith("clock: emulated") and "40x64x128 bf16 NT" in text
    data = json.loads(file.read_text())
    entry = data["standings"][0]["entries"]["ours"]
    assert len(entry["timed"]) == 2 and not entry["failed"] and data["clock"] == "emulated"
    assert 2.0 < entry["best"]["us"] < 50.0 and entry["best"]["bound"]
    assert entry["best"]["us"] == min(one["us"] for one in entry["timed"])


def product(operands: problems.Operands):
    return (operands.tensors["a"].double() @ operands.tensors["b"].double()).bfloat16()


@pytest.mark.parametrize("shape", OTHERS, ids=lambda shape: shape.kind + shape.op)
def test_exact_elements_are_the_product(shape: suites.Shape) -> None:
    operands = problems.operands_of(shape)
    a, b = operands.tensors["a"], operands.tensors["b"]
    if shape.op == "grouped":
        whole = torch.cat([a[:17].double() @ b[0].double(), a[17:].double() @ b[2].double()])
    else:
        scales = [operands.tensors[name].view(torch.float8_e8m0fnu) for name in SCALES]
        wide = [scale.double().repeat_interleave(32, 1) for scale in scales]
        whole = (values_of(a, shape) * wide[0]) @ (values_of(b.t(), shape) * wide[1]).t()
    rows = torch.arange(shape.m).repeat_interleave(shape.n)
    columns = torch.arange(shape.n).repeat(shape.m)
    found, spread = operands.exact(rows, columns)
    assert torch.allclose(found.view(shape.m, shape.n), whole, rtol=1e-12, atol=1e-9)
    assert (spread > 0).all() and found.abs().max() > 1


SCALES = ("scale_a", "scale_b")


def values_of(stored, shape: suites.Shape):
    """Elements of MX operands by torch's own types, FP4 by arithmetic on its bits."""
    if shape.kind == "mxfp8":
        return stored.contiguous().view(torch.float8_e4m3fn).double()
    codes = torch.stack([stored & 15, stored >> 4], -1).flatten(1).double()
    size = codes % 8
    exponent, fraction = size // 2, size % 2
    value = torch.where(exponent == 0, fraction / 2, (1 + fraction / 2) * 2 ** (exponent - 1))
    return torch.where(codes >= 8, -value, value)


def test_numbers_are_looked_at(operands) -> None:
    c = operands.tensors["c"]
    operands.reset()
    with pytest.raises(WrongLaunch, match="0 elements written of 2560"):
        launches.check_numbers(operands, 1.0)
    c[:10] = product(operands)[:10]
    launches.check_numbers(operands, 0.25)
    launches.check_numbers(operands, 1.0)
    c[9:10] = float("nan")
    with pytest.raises(WrongLaunch, match="576 elements written of 2560"):
        launches.check_numbers(operands, 1.0)
    c.copy_(product(operands))
    c[:, 3] = c[:, 4].clone()
    with pytest.raises(WrongLaunch, match="of 64 elements looked at"):
        launches.check_numbers(operands, 1.0)


def test_a_kernel_that_writes_zeros_does_not_win(operands) -> None:
    def zeros(operands: problems.Operands):
        operands.tensors["c"].zero_()
        stats = {"workgroups": 1.0, "workgroups_run": 1.0}
        return SimpleNamespace(stats=stats, time_us=0.1)

    from bench.contest import Candidate, enter

    class Cheat:
        name = "cheat"

        def candidates(self, shape: suites.Shape) -> list[Candidate]:
            return [Candidate("zeros", 1.0, zeros)]

    entry = enter(Cheat(), operands)
    assert entry.best is None and "wrong numbers" in entry.failed["zeros"]


def test_the_vendored_kernel_takes_part_or_says_why(operands, tmp_path) -> None:
    peer = peer_flydsl.VendoredFlyDSL(RecipeCache(tmp_path))
    if VERSION < (2, 15):
        with pytest.raises(Missing, match=rf"torch {torch.__version__.split('+')[0]}.* has no"):
            peer.candidates(TINY)
        return
    modules = peer_flydsl.vendored()
    counts = {
        m: len(peer_flydsl.configurations(modules, suites.Shape("mm", "bf16", m, 4096, 4096)))
        for m in (16, 4096)
    }
    assert counts[4096] == 2 and counts[16] > 20
    one = peer.candidates(TINY)[0]
    operands.reset()
    first = one.launch(operands)
    launches.check_numbers(operands, 1.0)
    # From disk: other operands, the same time.
    again = problems.operands_of(TINY, seed=1)
    result = one.launch(again)
    launches.check_numbers(again, 1.0)
    assert result.time_us == pytest.approx(first.time_us) and first.time_us > 2.0
    assert len(list(tmp_path.glob("*.json"))) == 1


@pytest.mark.skipif(VERSION < (2, 15), reason="torch has no vendored FlyDSL GEMM before 2.15")
@pytest.mark.parametrize("shape", OTHERS, ids=lambda shape: shape.kind + shape.op)
def test_the_other_vendored_kernels_compute_the_product(shape: suites.Shape, tmp_path) -> None:
    found = peer_flydsl.VendoredFlyDSL(RecipeCache(tmp_path)).candidates(shape)
    assert len(found) >= 10
    operands = problems.operands_of(shape)
    operands.reset()
    try:
        result = found[0].launch(operands)
    except Exception as error:
        # Grouped kernels need AMD's device libraries, which Triton's wheel has.
        assert not HAS_TRITON and shape.op == "grouped" and "bitcode" in str(error)
        return
    launches.check_numbers(operands, contest.share_run(result.stats))


def test_triton_takes_part_or_says_why(operands, tmp_path) -> None:
    peer = peer_triton.Triton(RecipeCache(tmp_path))
    if not HAS_TRITON:
        with pytest.raises(Missing, match="triton is not installed"):
            peer.candidates(TINY)
        return
    found = peer.candidates(TINY)
    assert len(found) > 10
    operands.reset()
    result = found[-1].launch(operands)
    launches.check_numbers(operands, 1.0)
    assert result.time_us > 2.0 and result.stats["mfma_instructions"] > 0
    grouped = problems.operands_of(OTHERS[2])
    grouped.reset()
    result = peer.candidates(OTHERS[2])[0].launch(grouped)
    # Of 256 persistent programs three have a tile, and the first of those alone is in the sample.
    launches.check_numbers(grouped, 1 / 6)
    assert result.stats["workgroups"] == peer_triton.PROGRAMS
    with pytest.raises(Missing, match="no Triton template for MX"):
        peer.candidates(OTHERS[0])


@pytest.mark.parametrize("shape", OTHERS, ids=lambda shape: shape.kind + shape.op)
def test_ours_takes_the_other_ops(shape: suites.Shape) -> None:
    operands = problems.operands_of(shape)
    entry = contest.enter(ours.Ours(1), operands)
    assert entry.best is not None and not entry.failed, entry
    assert 2.0 < entry.best.us < 50.0


def test_what_has_no_kernel_is_said(monkeypatch) -> None:
    from inductor_flydsl import space

    monkeypatch.setattr(space, "problem_limit", lambda problem, arch: "op mm has no kernel")
    with pytest.raises(Missing, match="no kernel of ours yet: op mm has no kernel"):
        ours.Ours(1).candidates(TINY)

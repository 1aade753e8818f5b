"""The comparison of kernels: shapes, configurations, ratios and means, reasons, the disk cache."""

from __future__ import annotations

import contextlib
import json
import math
from types import SimpleNamespace

import pytest

from bench import contest, kernels, peer_flydsl, published, standings, suites
from bench.contest import Candidate, Entry, Timed
from bench.launches import Recipe, RecipeCache
from bench.problems import Missing
from bench.suites import BadShapes, Shape, chosen
from inductor_flydsl import calibration


def timed(us: float, config: str = "one") -> Timed:
    return Timed(config, us, 0.5, 0.6, "mfma", 2.0, 128, 0, 1.0)


def entry(us: float | None) -> Entry:
    return Entry(None, reason="triton is not installed") if us is None else Entry(timed(us))


def standing(shape: Shape, ours: float | None, vendored: float | None, **figures: float):
    entries = {"ours": entry(ours), "vendored": entry(vendored)}
    return standings.Standing(shape, entries, figures)


SMALL, LARGE = Shape("mm", "bf16", 16, 64, 128), Shape("mm", "bf16", 512, 512, 512)


# --- shapes -----------------------------------------------------------------------------------


def test_suites_have_the_published_cases() -> None:
    assert [len(suites.suite(op)) for op in suites.OPS] == [15, 34, 24]
    assert {s.kind for s in suites.suite("scaled")} == {"mxfp8", "mxfp4"}
    grouped = suites.suite("grouped")
    assert all(sum(s.rows) == s.m and s.layout == "NN" for s in grouped)
    assert grouped[20].rows == (0, 1024, 0, 512, 2048, 128, 0, 896)
    assert Shape("mm", "bf16", 8192, 8192, 8192) in suites.suite("mm")


def test_shapes_are_lists_or_parts_of_the_suite() -> None:
    whole = suites.suite("mm")
    assert chosen("mm", None, False) == whole
    assert chosen("mm", "2:5", False) == whole[2:5] and chosen("mm", "-1", False) == whole[-1:]
    assert chosen("mm", " 8, 16,32;4,5,6 ", False) == [
        Shape("mm", "bf16", 8, 16, 32), Shape("mm", "bf16", 4, 5, 6),
    ]  # fmt: skip
    assert [s.kind for s in chosen("scaled", "8,16,32", False)] == ["mxfp8", "mxfp4"]
    assert [s.kind for s in chosen("scaled", "8,16,32,mxfp4", False)] == ["mxfp4"]
    assert chosen("grouped", "3,10,16,32", False)[0].rows == (3, 3, 4)
    assert set(chosen("scaled", None, True)) < set(suites.suite("scaled"))


@pytest.mark.parametrize("text", ["", "8,16", "8,16,0", "a,b,c", "99", "20:", "8,16,32,mxfp8"])
def test_bad_shapes_say_what_is_wrong(text: str) -> None:
    with pytest.raises(BadShapes, match=f"--shapes {text!r}"):
        chosen("mm", text, False)


def test_the_command_line_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    for given, message in (
        (["--shapes", "1,2"], "is not M,N,K"),
        (["--jobs", "0"], "--jobs 0: at least 1"),
        (["--candidates", "0"], "--candidates 0: at least 1"),
        (["--op", "scaled", "--shapes", "16,16,33"], "multiple of 32"),
        (["--markdown", "missing/table.md"], "does not exist"),
        (["--op", "conv"], "invalid choice"),
        (["--peers", "cublas"], "invalid choice"),
    ):
        with pytest.raises(SystemExit):
            kernels.arguments_of(given)
        assert message in capsys.readouterr().err


def test_published_figures_are_of_the_shape() -> None:
    shape = Shape("mm", "bf16", 8192, 8192, 8192)
    assert published.figures(shape)["flydsl"] == pytest.approx(713.5, abs=0.1)
    fp8, fp4 = (Shape("scaled", kind, 8192, 8192, 8192) for kind in ("mxfp8", "mxfp4"))
    assert published.figures(fp8)["flydsl"] == pytest.approx(392.1, abs=0.1)
    assert published.figures(fp8)["ck"] == pytest.approx(568.8, abs=0.1)
    assert published.figures(fp4)["flydsl"] < published.figures(fp8)["flydsl"]
    ragged = suites.suite("grouped")[20]
    assert set(published.figures(ragged)) == {"aten", "triton", "flydsl"}
    assert published.figures(SMALL) == {}


# --- peers ------------------------------------------------------------------------------------


def fake_torch(seen: dict[str, object]) -> SimpleNamespace:
    config = dict.fromkeys(("TILE_M", "TILE_N", "TILE_K"), 64)
    config |= {"STAGES": 2, "M_WAVES": 2, "N_WAVES": 2, "GROUP_M": 4}
    layout = {"a_is_transposed": False, "b_is_transposed": True}
    config["USE_HALF_TILE_INTERLEAVED"] = False

    def get_gemm_configs(m: int, n: int, k: int, *kind: str) -> list[dict[str, object]]:
        assert seen["flydsl_enable_autotuning"] is True
        seen["kind"] = kind
        return [config, config | {"TILE_M": 256}, config | {"USE_HALF_TILE_INTERLEAVED": True}]

    def valid(m: int, n: int, k: int, dtype: int, one: dict[str, object], **more: object) -> bool:
        assert more == (layout if dtype == 2 else layout | {"out_dtype_id": 2})
        return one["TILE_M"] == 64

    @contextlib.contextmanager
    def patch(changes: dict[str, object]):
        seen.update(changes)
        yield
        seen["left"] = True

    heuristics = SimpleNamespace(
        get_gemm_configs=get_gemm_configs, is_gemm_config_valid_for_shape=valid
    )
    return SimpleNamespace(
        heuristics=heuristics,
        gemm=SimpleNamespace(GEMM_DTYPE_BF16=2, GEMM_DTYPE_MXFP4=5),
        config=SimpleNamespace(patch=patch),
    )


def test_a_peers_list_is_what_torch_lists_and_does_not_refuse() -> None:
    seen: dict[str, object] = {}
    found = peer_flydsl.configurations(fake_torch(seen), LARGE)
    assert [peer_flydsl.name_of(c) for c in found] == [
        "staged_64x64x64_s2_w2x2_g4", "hti_64x64x64_s2_w2x2_g4",
    ]  # fmt: skip
    assert seen["left"] and seen["max_autotune_gemm_search_space"] == "DEFAULT"
    scaled = Shape("scaled", "mxfp4", 512, 512, 512)
    assert seen["kind"] == ()
    assert peer_flydsl.configurations(fake_torch(seen), scaled) == found
    assert seen["kind"] == ("mxfp4",)
    huge = Shape("mm", "bf16", 4096, 4096, 4096)
    small, large = (peer_flydsl.predicted_us(huge, found[0] | {"TILE_N": n}) for n in (16, 64))
    assert small > large > 2


class Peer:
    name = "vendored"

    def __init__(self, *made: Candidate | str) -> None:
        self.made = made

    def candidates(self, shape: Shape) -> list[Candidate]:
        if self.made and isinstance(self.made[0], str):
            raise Missing(self.made[0])
        return [c for c in self.made if isinstance(c, Candidate)]


OPERANDS = SimpleNamespace(shape=LARGE, reset=lambda: None)


def test_what_breaks_is_a_reason() -> None:
    missing = contest.enter(Peer("torch 2.13 has no FLYDSL backend"), OPERANDS)
    assert missing.best is None and missing.reason == "torch 2.13 has no FLYDSL backend"

    def broken(operands: object) -> object:
        raise RuntimeError("out of LDS\nat length")

    found = contest.enter(Peer(Candidate("a", 1.0, broken), Candidate("b", 9.0, broken)), OPERANDS)
    assert found.failed == dict.fromkeys("ab", "RuntimeError: out of LDS")
    assert found.reason == "none of 2 works: RuntimeError: out of LDS"
    assert "none: none of 2 works" in standings.line(
        standings.Standing(LARGE, {"vendored": found}, {}), "vendored"
    )
    assert contest.enter(Peer(), OPERANDS).reason == "it has no configuration for this shape"


def test_far_slower_candidates_are_left_out_and_counted() -> None:
    def unreached(operands: object) -> object:
        raise AssertionError("run")

    offered = [Candidate(name, us, unreached) for name, us in (("a", 4.0), ("b", 9.0), ("c", 12.1))]
    assert [c.name for c in contest.worth_running(offered, 3.0)] == ["a", "b"]
    assert contest.worth_running(offered, 0) == offered and contest.worth_running([], 3.0) == []
    found = contest.enter(Peer(*offered), OPERANDS, 2.0)
    assert found.left_out == 2 and found.offered == 3 and list(found.failed) == ["a"]


# --- arithmetic -------------------------------------------------------------------------------


def test_ratios_and_means() -> None:
    rows = [standing(SMALL, 10.0, 20.0), standing(LARGE, 8.0, 4.0), standing(LARGE, 8.0, None)]
    assert [s.speed("vendored") for s in rows] == [2.0, 0.5, None]
    assert standings.geomean([2.0, 0.5, 8.0]) == pytest.approx(2.0)
    assert standings.geomean([]) is None
    mean = standings.means(rows)["vendored, bf16"]
    assert mean["geomean"] == pytest.approx(1.0) and (mean["shapes"], mean["of"]) == (2, 3)
    assert mean["worst"] == 0.5 and mean["worst_shape"] == LARGE.name
    assert standings.means([standing(SMALL, None, 3.0)]) == {}


def test_the_clocks_error_is_of_the_peers_own_kernels() -> None:
    rows = [
        standing(SMALL, 10.0, 20.0, flydsl=22.0, aten=99.0),
        standing(LARGE, 8.0, 4.0, flydsl=3.6),
        standing(LARGE, 8.0, None, flydsl=3.6),
    ]
    assert [s.clock_ratios() for s in rows] == [{"vendored": 1.1}, {"vendored": 0.9}, {}]
    error = standings.clock_errors(rows)["bf16"]
    assert error["count"] == 2 and error["p50"] == pytest.approx(1.0)
    assert error["p10"] == pytest.approx(0.92) and error["p90"] == pytest.approx(1.08)
    assert standings.clock_errors(rows[:1]) == {}
    text = standings.block(rows[0])
    assert "22.0 µs 1.10" in text and "published aten 99.0 µs" in " ".join(text.split())
    assert "published/emulated" in standings.summary(rows)


def test_targets_are_means_and_single_shapes() -> None:
    good = [standing(SMALL, 10.0, 15.1), standing(LARGE, 10.0, 10.0)]
    assert kernels.unmet("mm", good) == []
    few = kernels.unmet("mm", [standing(SMALL, 10.0, 14.0), standing(LARGE, 10.0, 9.6)])
    assert few == [
        "16x64x128 bf16: 1.40x over vendored, at least 1.5x",
        "512x512x512 bf16: 0.96x over vendored, at least 0.97x",
    ]
    slow = kernels.unmet("mm", [standing(LARGE, 10.0, 11.0)])
    assert slow == ["ours over vendored, bf16: 1.100x, at least 1.15x"]
    none = kernels.unmet("mm", [standing(LARGE, None, 11.0)])
    assert none == ["512x512x512 bf16: triton is not installed"]


def test_the_declared_error_of_the_clock_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [standing(SMALL, 10.0, 20.0, flydsl=22.0), standing(LARGE, 8.0, 4.0, flydsl=3.6)]
    monkeypatch.setattr(calibration, "EMULATED", {"bf16": (0.92, 1.08)})
    assert kernels.clock_beyond(rows) == [] == kernels.clock_beyond(rows[:1])
    monkeypatch.setattr(calibration, "EMULATED", {"bf16": (0.92, 1.06)})
    (beyond,) = kernels.clock_beyond(rows)
    assert beyond.startswith("bf16: published/emulated p10 0.92, p90 1.08 exceed")
    monkeypatch.setattr(calibration, "EMULATED", {})
    assert kernels.clock_beyond(rows) == kernels.unmet("mm", rows)[-1:] != []


def test_what_an_interrupted_run_found_is_kept(tmp_path, monkeypatch, capsys) -> None:
    def compared(shapes: object, options: object):
        yield standing(LARGE, 10.0, 12.0)
        raise KeyboardInterrupt

    monkeypatch.setattr(kernels, "compared", compared)
    file = tmp_path / "out.json"
    given = ["--shapes", "8,64,64;512,512,512", "--json", str(file)]
    assert kernels.main(given) == 0 and kernels.main([*given, "--check"]) == 1
    assert "interrupted after 1 of 2 shapes" in capsys.readouterr().err
    data = json.loads(file.read_text())
    assert len(data["standings"]) == 1 and data["means"]["vendored, bf16"]["geomean"] == 1.2


def test_a_table_for_a_page() -> None:
    rows = [standing(SMALL, 10.0, 20.0, flydsl=22.0), standing(LARGE, 8.0, None)]
    assert standings.markdown(rows).splitlines() == [
        "| shape | ours | vendored | vendored / ours | published / emulated |",
        "| --- | --- | --- | --- | --- |",
        "| 16x64x128 bf16 | 10.0 | 20.0 | 2.00 | vendored 1.10 |",
        "| 512x512x512 bf16 | 8.0 | - | - |  |",
    ]


def test_standings_are_json() -> None:
    data = json.loads(json.dumps(standing(SMALL, 10.0, None, flydsl=3.0).to_json()))
    assert data["speed"] == {"vendored": None} and data["published_us"] == {"flydsl": 3.0}
    assert data["entries"]["ours"]["best"]["us"] == 10.0


# --- the disk cache ---------------------------------------------------------------------------


def test_recipes_are_kept_by_key(tmp_path) -> None:
    cache = RecipeCache(tmp_path / "peers")
    key = {"peer": "triton", "triton": "3.9.0", "shape": repr(SMALL)}
    recipe = Recipe("s_endpgm\n" * 99, "k", (3, 1, 1), (64, 1, 1), 5, b"\1\0\2", {8: "a", 0: "c"})
    assert cache.get(key) is None
    cache.put(key, recipe)
    cache.put(key | {"triton": "3.10.0"}, recipe)
    assert cache.get(key) == recipe and recipe.groups == math.prod((3, 1, 1))
    assert cache.get(key | {"triton": "3.11.0"}) is None
    assert len(list(tmp_path.rglob("*.s.gz"))) == 1
    next(tmp_path.rglob("*.s.gz")).write_bytes(b"cut")
    assert cache.get(key) is None


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    cache = RecipeCache(tmp_path / "file")
    cache.put({}, Recipe("", "k", (1,), (64,), 0, b"", {}))
    assert cache.get({}) is None

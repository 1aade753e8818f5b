"""What a kernel occupies, and which limit keeps another workgroup out."""

from __future__ import annotations

import json

import pytest

from inductor_flydsl import compiler, occupancy
from inductor_flydsl.arch import GFX950
from inductor_flydsl.cli import main
from inductor_flydsl.compiler import Artifact, Resources
from inductor_flydsl.config import GemmConfig, KernelSpec
from inductor_flydsl.problem import GemmProblem


def resources(vgprs: int, lds: int, agprs: int = 0) -> Resources:
    return Resources(vgprs=vgprs, agprs=agprs, sgprs=40, lds_bytes=lds, scratch_bytes=0, spills=0)


@pytest.mark.parametrize(
    ("vgprs", "lds", "waves", "held", "bound"),
    [
        # 512 registers a lane: 512 // 128 = 4 waves a SIMD.
        (128, 1024, 4, 4, "registers"),
        # One register more takes a whole block of 8.
        (129, 1024, 4, 3, "registers"),
        (512, 1024, 4, 1, "registers"),
        # 160 KiB of LDS: two workgroups of 64 KiB, each a wave a SIMD.
        (64, 64 << 10, 4, 2, "LDS"),
        # 54613 bytes are 43 granules of 1280: two workgroups, not three.
        (64, 54613, 4, 2, "LDS"),
        (16, 0, 4, 8, "waves"),
        # A workgroup of one wave, of which LDS holds two: half a wave a SIMD.
        (64, 80 << 10, 1, 0.5, "LDS"),
    ],
)
def test_waves_of_a_simd(vgprs: int, lds: int, waves: int, held: float, bound: str) -> None:
    found = occupancy.occupancy(resources(vgprs, lds), waves, GFX950)
    assert (found.waves_per_simd, found.bound) == (held, bound)


def test_accumulation_registers_are_counted_once() -> None:
    """LLVM counts them in ``.vgpr_count``: 256 of the one kind and 126 of the other make 382."""
    found = occupancy.occupancy(resources(382, 1024, agprs=126), 4, GFX950)
    assert found.waves_per_simd == 1
    assert (found.to_json()["vgprs"], found.to_json()["agprs"]) == (256, 126)
    assert len(occupancy.cells(found)) == len(occupancy.COLUMNS)


def test_explain_shows_what_compiled_kernels_occupy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def find(spec: KernelSpec, arch: str, backend: str) -> Artifact | None:
        seen.append((spec.config, backend))
        if backend != "emulator" or spec.config != seen[0][0]:
            return None
        found = resources(300, 65536, agprs=44)
        return Artifact(spec=spec, arch=arch, backend=backend, key="0", resources=found)

    monkeypatch.setattr(compiler, "find", find)
    assert main(["explain", "17,24,72"]) == 0
    out = capsys.readouterr().out
    row = next(line.split() for line in out.splitlines() if " 256 " in line and " 44 " in line)
    assert row[0] == seen[0][0].name and row[1:3] == ["256", "44"] and "65536" in row
    assert main(["explain", "17,24,72", "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert (kernel["vgprs"], kernel["agprs"], kernel["lds_bytes"]) == (256, 44, 65536)


def test_a_kernel_that_was_never_compiled_has_no_figures(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    config = GemmConfig(tile_m=16, tile_n=16, tile_k=32, stages=2, waves_m=1, waves_n=1)
    assert occupancy.compiled(GemmProblem.dense(17, 19, 23), config, GFX950) is None

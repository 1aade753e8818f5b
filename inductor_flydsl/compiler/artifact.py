"""What a compile leaves behind."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..config import KernelSpec

BACKENDS = ("rocm", "emulator", "reference")


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What a kernel occupies, from the code object's metadata.

    Attributes:
        vgprs, agprs: vector registers a lane, sgprs: scalar registers a wave.
        lds_bytes: static LDS of a workgroup; scratch_bytes: private memory of a lane.
        spills: registers spilled, vector ones to scratch and scalar ones to lanes of vector ones.
    """

    vgprs: int
    agprs: int
    sgprs: int
    lds_bytes: int
    scratch_bytes: int
    spills: int

    @classmethod
    def from_isa(cls, text: str) -> Resources:
        """Read the ``.amdgpu_metadata`` of assembly text.

        Raises:
            ValueError: a field is missing.
        """

        def field(name: str) -> int:
            match = re.search(rf"^\s*(?:- )?\.{name}:\s+(\d+)\s*$", text, re.MULTILINE)
            if match is None:
                raise ValueError(f"the assembly has no metadata field .{name}")
            return int(match.group(1))

        return cls(
            vgprs=field("vgpr_count"),
            agprs=field("agpr_count"),
            sgprs=field("sgpr_count"),
            lds_bytes=field("group_segment_fixed_size"),
            scratch_bytes=field("private_segment_fixed_size"),
            spills=field("vgpr_spill_count") + field("sgpr_spill_count"),
        )


@dataclass(frozen=True, kw_only=True)
class Artifact:
    """One compiled kernel.

    Attributes:
        spec: what it is specialised on.
        arch: LLVM name of the target.
        backend: one of BACKENDS; ``reference`` holds no code.
        key: hex digest of everything the code depends on.
        resources: registers and LDS, where the backend says.
        path: the file that holds it.
    """

    spec: KernelSpec
    arch: str
    backend: str
    key: str
    resources: Resources | None = None
    path: Path | None = None

"""What is chosen (GemmConfig) and what a compiled kernel is specialised on (KernelSpec).

Derived values are properties; legality is `space.why_not`'s business, not this module's.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

from . import stream
from .arch import GFX950
from .errors import ConfigError
from .fusion import Fusion
from .grouping import Axis
from .problem import DType, GemmProblem, Layout
from .scale_ring import ScaleRing
from .scaling import BLOCK, TILE_BLOCKS
from .signature import SCALES, TENSORS

PIPELINES = ("staged", "hti", "rolled", "direct")
MFMA_M = MFMA_N = 16
# K extent of v_mfma_f32_16x16x32 and of v_mfma_f32_16x16x128_f8f6f4 [ISA].
MFMA_K, MFMA_K_F8F6F4 = 32, 128
WAVE_SIZE = 64
# Loads that a wave can count in flight.
VMCNT_MAX = 63


@dataclass(frozen=True, kw_only=True)
class GemmConfig:
    """One point of the search space.

    Attributes:
        pipeline: the kernel structure, a file of ``templates``.
        tile_m, tile_n, tile_k: the workgroup's share of C, and the K step, in elements.
        stages: K steps held in LDS at once, 2 or more.
        waves_m, waves_n: the workgroup's waves along M and N.
        waves_k: waves that share a K step and add up what they have in LDS (pipeline ``direct``).
        group_m: tiles of M that run before N advances, for L2 reuse; 0 means row by row.
        xcd_remap: give each XCD (L2 slice) a contiguous run of tiles.
        split_k: workgroups that share a tile of C, each with a slice of K.
        stream_k: tiles of the last, partial round of workgroups that `split_k` of them share, one
            behind the other along K, while whole rounds are not split (stream-K); 0 is split-K.
        persistent: workgroups a compute unit that take the tiles of a grouped problem in turn; 0
            gives each tile a workgroup of its own.
    """

    pipeline: str = "staged"
    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    waves_m: int
    waves_n: int
    group_m: int = 0
    xcd_remap: bool = False
    split_k: int = 1
    stream_k: int = 0
    persistent: int = 0
    waves_k: int = 1

    def __post_init__(self) -> None:
        if self.pipeline not in PIPELINES:
            raise ConfigError("pipeline", self.pipeline, "is not known", f"use one of {PIPELINES}")
        for name in (
            "tile_m",
            "tile_n",
            "tile_k",
            "stages",
            "waves_m",
            "waves_n",
            "waves_k",
            "split_k",
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(name, value, "is not a positive integer", "see GemmConfig")
        if not isinstance(self.group_m, int) or self.group_m < 0:
            raise ConfigError("group_m", self.group_m, "is negative", "use 0 for row by row")
        for name, way in (
            ("persistent", "use 0 for a workgroup a tile"),
            ("stream_k", "use 0 to split all tiles or none"),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 0:
                raise ConfigError(name, value, "is negative", way)

    @property
    def waves(self) -> int:
        return self.waves_m * self.waves_n * self.waves_k

    @property
    def direct(self) -> bool:
        """Fragments come from memory straight to registers; LDS holds no K steps."""
        return self.pipeline == "direct"

    @property
    def blocks(self) -> int:
        """16x16 blocks of C in a tile."""
        return self.tile_m * self.tile_n // (MFMA_M * MFMA_N)

    @property
    def slices(self) -> int:
        """Of a K step, what a wave of the direct pipeline multiplies: instructions along K."""
        return self.tile_k // (self.waves_k * MFMA_K)

    @property
    def finishers(self) -> int:
        """Waves that hold a share of the tile of C at the end of K."""
        return min(self.waves, self.blocks)

    @property
    def threads(self) -> int:
        return self.waves * WAVE_SIZE

    @property
    def parts(self) -> int:
        """Pieces that the tile is cut into along M and along N."""
        return 2 if self.pipeline == "hti" else 1

    @property
    def loads_ahead(self) -> float:
        """Stages of the ring whose loads may be in flight where the pipeline waits."""
        return 1 if self.pipeline == "hti" else self.stages - 2

    @property
    def accumulators(self) -> int:
        """fp32 accumulator registers a lane holds."""
        return self.tile_m * self.tile_n * self.waves_k // self.threads

    @property
    def fragments_n(self) -> int:
        """16-column blocks of C that lie side by side in a wave at the end of K."""
        if self.direct:
            return min(self.blocks // self.finishers, self.tile_n // MFMA_N)
        return self.tile_n // (MFMA_N * self.waves_n * self.parts)

    def c_tile_bytes(self, element_bytes: int) -> int:
        """LDS bytes of the tile of C, where it goes to memory through LDS."""
        return self.tile_m * (self.tile_n * element_bytes + c_pad_bytes(element_bytes))

    def split_extent(self, problem: GemmProblem) -> int:
        """K elements of one split: whole K steps, the last split may have fewer or none."""
        steps = -(-problem.k // self.tile_k)
        return -(-steps // self.split_k) * self.tile_k

    @property
    def shares(self) -> int:
        """Workgroups that have a share of each split tile; 0 where that is not one number."""
        return stream.shares(self.split_k, self.stream_k) if self.stream_k else self.split_k

    def whole(self, problem: GemmProblem, compute_units: int = GFX950.compute_units) -> int:
        """Tiles that are not split though others are, over all batches.

        Args:
            problem: what is launched.
            compute_units: of the device, each of which has a workgroup in a full round.
        """
        tiles_m, tiles_n = self.tiles(problem)
        tiles = tiles_m * tiles_n * problem.batch
        return stream.whole_tiles(tiles, compute_units) if self.stream_k else 0

    def workspace(
        self, problem: GemmProblem, compute_units: int = GFX950.compute_units
    ) -> tuple[int, int]:
        """(bytes of fp32 partial tiles, number of 32-bit counters) that a launch needs."""
        if self.split_k == 1:
            return 0, 0
        tiles_m, tiles_n = self.tiles(problem)
        tiles = tiles_m * tiles_n * problem.batch - self.whole(problem, compute_units)
        bytes_ = tiles * self.shares * self.tile_m * self.tile_n * 4
        return bytes_, tiles * self.waves

    def tiles(self, problem: GemmProblem) -> tuple[int, int]:
        """Tiles along M and N, the last of each possibly partial; groups are not told apart."""
        return -(-problem.m // self.tile_m), -(-problem.n // self.tile_n)

    @property
    def name(self) -> str:
        """Short and unique: it appears in autotune tables and kernel names."""
        text = f"{self.pipeline}_{self.tile_m}x{self.tile_n}x{self.tile_k}_s{self.stages}"
        text += f"_w{self.waves_m}x{self.waves_n}"
        text += f"x{self.waves_k}" if self.waves_k > 1 else ""
        text += f"_g{self.group_m}" if self.group_m else ""
        text += "_xcd" if self.xcd_remap else ""
        text += f"_k{self.split_k}" if self.split_k > 1 else ""
        text += f"_sk{self.stream_k}" if self.stream_k else ""
        return text + (f"_p{self.persistent}" if self.persistent else "")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> GemmConfig:
        """Inverse of `to_json`.

        Raises:
            ConfigError: a field is missing, unknown or unusable.
        """
        known = {f.name for f in fields(cls)}
        for name in data:
            if name not in known:
                raise ConfigError(name, data[name], "is not a field", f"use {sorted(known)}")
        try:
            return cls(**data)
        except TypeError as error:
            raise ConfigError("config", data, f"lacks a field ({error})", "pass all") from None


# Bytes a thread brings to LDS at once. A gather collects them element by element.
LOAD_BYTES = {"dma16": 16, "dma4": 4, "gather": 16}


def c_pad_bytes(element_bytes: int) -> int:
    """What a row of the tile of C in LDS is longer than its data.

    A phase of the writes is 16 rows of 8 bytes a lane (2-byte elements) or 8 rows of 16 bytes, on
    32 banks: padded by that much they meet no bank twice.
    """
    return 4 * element_bytes


def through_lds(store_bytes: int, element_bytes: int) -> bool:
    """Whether the tile of C goes to memory through LDS: where a lane's four neighbours of a row
    are more than one store."""
    return store_bytes < 4 * element_bytes


def load_kind(align: int, inner: int) -> str:
    """How an operand reaches LDS: by 16- or 4-byte DMA, or element by element."""
    if inner != 1 or align < 4:
        return "gather"
    return "dma16" if align >= 16 else "dma4"


def operand_load(problem: GemmProblem, operand: str) -> str:
    """How A or B, ``a`` or ``b``, reaches LDS."""
    align, inner = (getattr(problem, f"{operand}_{of}") for of in ("align", "inner"))
    return load_kind(align, inner)


class Output(NamedTuple):
    """What a kernel stores.

    Attributes:
        pointer: of `signature.POINTERS`.
        dtype: of its elements.
        width: bytes of one store.
    """

    pointer: str
    dtype: DType
    width: int


@dataclass(frozen=True, kw_only=True)
class KernelSpec:
    """Everything a compiled kernel is specialised on; shapes with the same spec share it.

    Attributes:
        dtype, out_dtype, layout: as in GemmProblem.
        a_load, b_load: a key of LOAD_BYTES.
        store_bytes: width of one store of C, 2 to 16.
        k_tail: the last K step is partial, so fragments are masked there.
        batched: there is a batch index.
        heads: it counts heads of an outer one.
        fusion: what is computed between the accumulators and C.
        ragged: the extent whose groups' ends are read from the offsets.
        group_waves: waves that hold an offset a lane.
        b_dtype: of B where it is not A's.
        a_scales, b_scales: how block scales are loaded, `Scales.load`; empty without any.
        config: the chosen tile and pipeline.
    """

    dtype: DType
    out_dtype: DType
    layout: Layout
    a_load: str
    b_load: str
    store_bytes: int
    k_tail: bool
    config: GemmConfig
    batched: bool = False
    heads: bool = False
    fusion: Fusion | None = None
    ragged: Axis | None = None
    group_waves: int = 0
    b_dtype: DType | None = None
    a_scales: str = ""
    b_scales: str = ""

    @classmethod
    def of(cls, problem: GemmProblem, config: GemmConfig) -> KernelSpec:
        """The kernel that computes `problem` with `config`."""
        grouping = problem.grouping
        ragged = grouping.axis if grouping else None
        return cls(
            dtype=problem.dtype,
            out_dtype=problem.out_dtype,
            layout=problem.layout,
            a_load=operand_load(problem, "a"),
            b_load=operand_load(problem, "b"),
            store_bytes=store_width(problem),
            k_tail=ragged is Axis.K or problem.k % config.tile_k != 0,
            config=config,
            batched=problem.batch > 1,
            heads=problem.heads > 0,
            fusion=problem.fusion,
            ragged=ragged,
            group_waves=-(-grouping.groups // WAVE_SIZE) if grouping else 0,
            b_dtype=problem.b_dtype,
            a_scales=problem.a_scales.load if problem.a_scales else "",
            b_scales=problem.b_scales.load if problem.b_scales else "",
        )

    @property
    def b_type(self) -> DType:
        """Type of B."""
        return self.b_dtype or self.dtype

    def k_contiguous(self, operand: str) -> bool:
        """Whether A or B, ``a`` or ``b``, lies along K in LDS, as gathered bytes do."""
        dtype = self.dtype if operand == "a" else self.b_type
        gathered = dtype.scaled and getattr(self, f"{operand}_load") == "gather"
        return gathered or getattr(self.layout, f"{operand}_k_contiguous")

    def to_registers(self, operand: str) -> bool:
        """Whether the direct pipeline brings A or B, ``a`` or ``b``, straight to registers."""
        return getattr(self, f"{operand}_load") == "dma16" and self.k_contiguous(operand)

    def private_bytes(self, operand: str) -> int:
        """LDS bytes of the direct pipeline's rings of A or B, all waves together."""
        if self.to_registers(operand):
            return 0
        rows = self.config.tile_m if operand == "a" else self.config.tile_n
        return self.config.stages * rows * self.config.tile_k * self.dtype.bytes

    @property
    def pointers(self) -> tuple[str, ...]:
        """Names, of `signature.POINTERS`, of what the kernel reads and writes."""
        f = self.fusion
        tensors = TENSORS[: len(f.tensors) + len(f.stores)] if f else ()
        scales = SCALES if self.block_scaled else ()
        split = ("workspace", "counters") if self.config.split_k > 1 else ()
        return ("c", "a", "b", *tensors, *scales, *split, *(("offsets",) if self.ragged else ()))

    @property
    def outputs(self) -> tuple[Output, ...]:
        """C, then what else the fusion stores."""
        c = Output("c", self.out_dtype, self.store_bytes)
        if self.fusion is None or not self.fusion.stores:
            return (c,)
        names = TENSORS[len(self.fusion.tensors) :]
        stores = zip(names, self.fusion.stores, strict=False)
        return (c, *(Output(name, store.dtype, store.width) for name, store in stores))

    @property
    def mfma_k(self) -> int:
        """K extent of one matrix instruction."""
        return MFMA_K_F8F6F4 if self.dtype.scaled else MFMA_K

    @property
    def block_scaled(self) -> bool:
        """A and B have MX block scales."""
        return bool(self.a_scales)

    @property
    def pads(self) -> bool:
        """Where a group's block scales begin depends on how those before it are padded."""
        cut = {Axis.M: (self.a_scales,), Axis.N: (self.b_scales,)}
        of_cut = cut.get(self.ragged, (self.a_scales, self.b_scales)) if self.ragged else ()
        return "swizzled" in of_cut

    @property
    def scale_ring(self) -> ScaleRing:
        """The ring of block scales in LDS."""
        return ScaleRing.of(self.config, self.ring_bytes)

    @property
    def ring_bytes(self) -> int:
        """LDS bytes of the rings of A and B tiles."""
        c = self.config
        if c.direct:
            return self.private_bytes("a") + self.private_bytes("b")
        bits = c.tile_m * self.dtype.bits + c.tile_n * self.b_type.bits
        return c.stages * c.tile_k * bits // 8

    @property
    def lds_bytes(self) -> int:
        """LDS bytes of the kernel: its rings, or the tile of an output that reuses their space."""
        rings = self.ring_bytes + (self.scale_ring.bytes if self.block_scaled else 0)
        if self.config.direct:
            rings = max(rings, self.config.waves_k * self.config.tile_m * self.config.tile_n * 4)
        tiles = (
            self.config.c_tile_bytes(output.dtype.bytes)
            for output in self.outputs
            if self.through_lds(output)
        )
        return max(rings, *tiles, 0)

    def through_lds(self, output: Output) -> bool:
        """See `through_lds`. Waves of split-K kernels store on their own, and where some have
        ended, of kernels whose epilogue has narrower results than the product that was tuned;
        where N is ragged, the tiles that a group ends in go through LDS."""
        c = self.config
        if c.split_k > 1 or (self.fusion is not None and c.direct and c.finishers < c.waves):
            return False
        return through_lds(output.width, output.dtype.bytes) or self.ragged is Axis.N

    @property
    def name(self) -> str:
        """A legal symbol: the kernel's name in profilers, autotune tables and the ISA."""
        tail = "_kt" if self.k_tail else ""
        tail += "_bh" if self.heads else "_b" if self.batched else ""
        tail += f"_r{self.ragged.value}{self.group_waves}" if self.ragged else ""
        tail += f"_f{self.fusion.digest[:8]}" if self.fusion else ""
        types = self.dtype.name + (f"_{self.b_dtype.name}" if self.b_dtype else "")
        tail += f"_mx{self.a_scales[0]}{self.b_scales[0]}" if self.block_scaled else ""
        io = f"{types}_{self.out_dtype.name}_{self.layout.value}".lower()
        return (
            f"gemm_{io}_{self.config.name}_a{self.a_load}_b{self.b_load}_c{self.store_bytes}{tail}"
        )

    def to_json(self) -> dict[str, Any]:
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("dtype", "out_dtype", "layout"):
            data[name] = data[name].value
        data["b_dtype"] = self.b_dtype and self.b_dtype.value
        data["fusion"] = self.fusion and self.fusion.to_json()
        data["ragged"] = self.ragged and self.ragged.value
        return data | {"config": self.config.to_json()}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> KernelSpec:
        return cls(
            **(
                data
                | {
                    "dtype": DType(data["dtype"]),
                    "out_dtype": DType(data["out_dtype"]),
                    "layout": Layout(data["layout"]),
                    "config": GemmConfig.from_json(data["config"]),
                    "fusion": data["fusion"] and Fusion.from_json(data["fusion"]),
                    "ragged": data.get("ragged") and Axis(data["ragged"]),
                    "b_dtype": data.get("b_dtype") and DType(data["b_dtype"]),
                }
            )
        )

    @property
    def digest(self) -> str:
        """Hex SHA-256 of the JSON form, for file names and cache keys."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def store_width(problem: GemmProblem) -> int:
    """Bytes of one store of C: the widest that never crosses N and is always aligned.

    Where N is ragged, tiles that a group ends or begins in are stored element by element.
    """
    size = problem.out_dtype.bytes
    width = problem.c_align
    ragged = problem.grouping is not None and problem.grouping.axis is Axis.N
    while not ragged and problem.n * size % width:
        width //= 2
    return max(width, size)


# Bytes of an operand's line at whose multiples tiles begin where DMA needs aligned starts.
START_BYTES = 16


def start(spec: KernelSpec) -> int:
    """Elements at whose multiples a group's tiles or K steps begin, a little before the group.

    So they do where neighbours along the ragged extent are neighbours in memory, of C too, and
    come or go several at a time; plain block scales along K come four at a time. 1 where they
    begin with the group.
    """
    a_runs, b_runs = spec.layout.a_k_contiguous, spec.layout.b_k_contiguous
    a_moved, b_moved = spec.a_load != "gather", spec.b_load != "gather"
    if spec.ragged is Axis.K and spec.block_scaled:
        return TILE_BLOCKS * BLOCK if spec.a_scales == spec.b_scales == "dma" else 1
    early = {
        Axis.M: not a_runs and a_moved,
        Axis.N: (not b_runs and b_moved) or any(o.width > o.dtype.bytes for o in spec.outputs),
        Axis.K: (a_runs and a_moved) or (b_runs and b_moved),
        None: False,
    }
    if not early[spec.ragged]:
        return 1
    # Pairs of FP4 lie along K.
    return START_BYTES // spec.dtype.bytes * (spec.dtype.packed if spec.ragged is Axis.K else 1)

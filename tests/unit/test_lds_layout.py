"""LDS layouts: reads meet no bank conflict, and the XOR stays inside a line.

The phases and banks are the published ones of CDNA4's LDS (64 banks of 4 bytes for reads).
"""

import importlib.util
import itertools
from pathlib import Path

import pytest

_PATH = Path(__file__).parents[2] / "templates" / "swizzle.py"
_SPEC = importlib.util.spec_from_file_location("swizzle", _PATH)
swizzle = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(swizzle)

B128_PHASES = [
    [*range(4), *range(12, 16), *range(20, 28)],
    [*range(4, 12), *range(16, 20), *range(28, 32)],
]
B128_PHASES += [[lane + 32 for lane in phase] for phase in B128_PHASES]


def ways(addresses, width):
    """Most distinct dwords that fall on one of the 64 banks."""
    banks = {}
    for address in addresses:
        for byte in range(0, width, 4):
            banks.setdefault((address + byte) // 4 % 64, set()).add((address + byte) // 4)
    return max(len(dwords) for dwords in banks.values())


@pytest.mark.parametrize("tile_k", [32, 64, 128])
@pytest.mark.parametrize("kk", [0, 1, 3])
def test_rows_are_read_without_conflict(tile_k, kk):
    chunks = tile_k // 8
    if kk * 32 >= tile_k:
        kk = 0

    def address(lane):
        row, group = lane % 16, lane // 16
        chunk = (group + kk * 4) ^ swizzle.chunk_xor(row, chunks, True)
        return row * tile_k * 2 + chunk * 16

    for phase in B128_PHASES:
        assert ways([address(lane) for lane in phase], 16) == 1


@pytest.mark.parametrize("rows, most", [(16, 2), (32, 1), (64, 1), (128, 1), (256, 1)])
@pytest.mark.parametrize("half", [0, 1])
def test_transposed_lines_are_read_without_conflict(rows, most, half):
    chunks = rows // 8
    for piece in range(rows // 16):

        def address(lane, piece=piece):
            k = lane // 16 * 8 + lane % 16 // 4
            chunk = (piece * 2) ^ swizzle.chunk_xor(k, chunks, False)
            return (k + 4 * half) * rows * 2 + chunk * 16 + lane % 4 * 8

        for phase in (range(32), range(32, 64)):
            assert ways([address(lane) for lane in phase], 8) <= most


@pytest.mark.parametrize("rows, most", [(16, 2), (32, 1), (64, 1), (128, 1), (256, 1)])
@pytest.mark.parametrize("packed, k_chunks", [(1, 8), (1, 16), (1, 32), (2, 4), (2, 8), (2, 16)])
def test_lines_of_bytes_are_read_without_conflict(rows, most, packed, k_chunks):
    chunks, apart = rows // 16, swizzle.groups_apart(k_chunks, packed)
    for place, fragment, half in itertools.product(range(0, k_chunks, 4), range(chunks), (0, 8)):

        def address(lane, place=place, fragment=fragment, half=half):
            chunk = swizzle.chunk_order(place + lane // 16, k_chunks, packed)
            k = chunk * 16 + lane % 16 // 2 + half
            xor = swizzle.chunk_xor(k, chunks, False, apart)
            assert 0 <= xor < chunks
            return k * rows + (fragment ^ xor) * 16 + lane % 2 * 8

        for phase in (range(32), range(32, 64)):
            assert ways([address(lane) for lane in phase], 8) <= most


@pytest.mark.parametrize("packed, k_chunks", [(1, 8), (1, 16), (1, 32), (2, 4), (2, 8), (2, 16)])
def test_a_lane_finds_every_slice_from_one_address(packed, k_chunks):
    apart = swizzle.groups_apart(k_chunks, packed)
    first = [swizzle.chunk_order(group, k_chunks, packed) for group in range(4)]
    for place in range(0, k_chunks, 4):
        chunks = [swizzle.chunk_order(place + group, k_chunks, packed) for group in range(4)]
        assert len({a - b for a, b in zip(chunks, first, strict=True)}) == 1
        for a, b in zip(chunks, first, strict=True):
            for line in range(8):
                xors = [swizzle.chunk_xor(c * 16 + line + half, 16, False, apart)
                        for c in (a, b) for half in (0, 8)]  # fmt: skip
                assert len(set(xors)) == 1


@pytest.mark.parametrize("k_contiguous", [True, False])
@pytest.mark.parametrize("chunks", [2, 4, 8, 16, 32])
def test_xor_is_a_permutation_of_the_line(chunks, k_contiguous):
    for line in range(256):
        xor = swizzle.chunk_xor(line, chunks, k_contiguous)
        assert 0 <= xor < chunks
        assert k_contiguous or xor % 2 == 0, "a 32-byte piece of a transposed read stays whole"


@pytest.mark.parametrize("chunks", [2, 4, 8, 16, 32])
def test_transposed_xor_is_the_same_for_both_halves(chunks):
    # The second half of a fragment is read 4 lines further from the same address.
    for k in range(0, 128, 8):
        for i in range(4):
            low = swizzle.chunk_xor(k + i, chunks, False)
            assert low == swizzle.chunk_xor(k + i + 4, chunks, False)

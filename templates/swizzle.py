"""How operand tiles lie in LDS so that reads meet no bank conflict.

A tile is `lines` of `chunks` 16-byte pieces. The piece that holds chunk ``c`` of line ``l`` sits
at position ``c ^ chunk_xor(l)``; writers and readers both ask this file. The functions use only
integer operators, so they take Python ints and FlyDSL values alike.
"""

from __future__ import annotations

from typing import Any

CHUNK_BYTES = 16


def chunk_xor(line: Any, chunks: int, k_contiguous: bool, apart: int = 0) -> Any:
    """What the chunk index of a line is XORed with.

    Args:
        line: index of the line: M or N where K is contiguous, else K.
        chunks: 16-byte pieces a line, a power of two.
        k_contiguous: lines run along K and are read by ds_read_b128; otherwise they run along M
            or N and are read by ds_read_b64_tr_b16, or of bytes by ds_read_b64_tr_b8.
        apart: of bytes, K lines from what the first group of 16 lanes reads to the second's.
    """
    if k_contiguous:
        return _row_xor(line, chunks)
    return _byte_xor(line, chunks, apart) if apart else _transposed_xor(line, chunks)


def _row_xor(row: Any, chunks: int) -> Any:
    # A ds_read_b128 is served in four phases of 16 lanes, e.g. lanes 0-3, 12-15 of one K group
    # and lanes 4-11 of the next; each phase must touch all 16 slots of the 256-byte bank row.
    if chunks == 2:
        return 0
    if chunks == 4:
        return (0 - (row >> 2)) & 3
    if chunks == 8:
        return (row >> 1) & 7
    return row & 15


def _transposed_xor(k: Any, chunks: int) -> Any:
    # A ds_read_b64_tr_b16 is served in two phases of 32 lanes: K lines 0-3 and 8-11 (mod 16) of
    # a 32-byte piece. Lines that share the 256-byte bank row need different pieces.
    pieces = min(chunks // 2, 8)
    if pieces < 2:
        return 0
    phase = (k & 3) | ((k >> 1) & 4)
    shift = {2: 2, 4: 1, 8: 0}[pieces]
    return ((phase >> shift) & (pieces - 1)) << 1


def _byte_xor(k: Any, chunks: int, apart: int) -> Any:
    # A ds_read_b64_tr_b8 is served in two phases of 32 lanes: a 16-byte piece of 8 K lines, and of
    # the 8 lines that the next group of lanes reads.
    pieces = min(chunks, 16)
    phase = (k & 7) | (k >> (apart.bit_length() - 4) & 8)
    return phase >> (5 - pieces.bit_length()) & (pieces - 1)


def groups_apart(chunks: int, packed: int) -> int:
    """Stored elements along K from the chunk of `chunk_order` of lane group 0 to that of 1.

    Args:
        chunks, packed: as for `chunk_order`.
    """
    return CHUNK_BYTES * (chunk_order(1, chunks, packed) - chunk_order(0, chunks, packed))


def chunk_order(place: Any, chunks: int, packed: int) -> Any:
    """Which chunk of a line of 8- or 4-bit elements along K belongs at a place of it.

    The f8f6f4 instructions take 128 elements along K, in blocks of 32 that have a scale each: a
    lane of group g holds the scale of block g. In FP4 it holds block g itself; in FP8 its first
    half of registers holds half ``g % 2`` of block ``g // 2``, and its second that of block
    ``g // 2 + 2`` (CDNA4 ISA guide, 7.1.5). Of n instructions a K step, instruction i gets as its
    block b the step's block ``n·b + i``. So the scales that a lane needs in a step are neighbours
    in memory, and the instruction picks its own by its byte select.

    Args:
        place: position in the line: 4 a slice of 64 bytes, in the order that lane groups read.
        chunks: in the line.
        packed: 1 for FP8, 2 for FP4.
    """
    if packed == 2:
        return place % 4 * (chunks // 4) + place // 4
    instructions = chunks // 8
    group, half, instruction = place % 4, place // 4 % 2, place // 8
    return ((group // 2 + 2 * half) * instructions + instruction) * 2 + group % 2


def place_of(chunk: Any, chunks: int, packed: int) -> Any:
    """Inverse of `chunk_order`: where in a line a chunk is.

    Args:
        chunk: index of 16 bytes along K.
        chunks: in the line.
        packed: 1 for FP8, 2 for FP4.
    """
    if packed == 2:
        return chunk % (chunks // 4) * 4 + chunk // (chunks // 4)
    instructions = chunks // 8
    pair, odd = chunk // 2, chunk % 2
    instruction, block = pair % instructions, pair // instructions
    return block % 2 * 2 + odd + block // 2 * 4 + instruction * 8

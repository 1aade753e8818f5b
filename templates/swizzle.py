"""How operand tiles lie in LDS so that reads meet no bank conflict.

A tile is `lines` of `chunks` 16-byte pieces. The piece that holds chunk ``c`` of line ``l`` sits
at position ``c ^ chunk_xor(l)``; writers and readers both ask this file. The functions use only
integer operators, so they take Python ints and FlyDSL values alike.
"""

from __future__ import annotations

from typing import Any

CHUNK_BYTES = 16


def chunk_xor(line: Any, chunks: int, k_contiguous: bool) -> Any:
    """What the chunk index of a line is XORed with.

    Args:
        line: index of the line: M or N where K is contiguous, else K.
        chunks: 16-byte pieces a line, a power of two.
        k_contiguous: lines run along K and are read by ds_read_b128; otherwise they run along M
            or N and are read by ds_read_b64_tr_b16.
    """
    if k_contiguous:
        return _row_xor(line, chunks)
    return _transposed_xor(line, chunks)


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

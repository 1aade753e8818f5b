"""The arguments of every kernel, in order. Needs no flydsl."""

from __future__ import annotations

# Byte addresses, then 32-bit integers, then the stream.
POINTERS = ("c", "a", "b")
INTEGERS = ("m", "n", "k", "lda", "ldb", "ldc", "a_inner", "b_inner", "grid")

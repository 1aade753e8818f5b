"""Every scalar and vector opcode of gfx950 in one table, keyed by base mnemonic.

Owns only the merge: the opcodes live in salu, valu_int, valu_float, division, convert,
convert_scale, vop3p and vopc. Matrix opcodes are in mfma. Callers run opcodes under
``np.errstate(all="ignore")``: overflow, invalid and divide-by-zero are ordinary results here.
"""

from __future__ import annotations

from . import convert, convert_scale, division, salu, valu_float, valu_int, vop3p, vopc
from .op import DTYPES, NotSupported, Op

OPS: dict[str, Op] = {}
for _module in (salu, valu_int, valu_float, division, convert, convert_scale, vop3p, vopc):
    for _name, _op in _module.OPS.items():
        if _name in OPS:
            raise ValueError(f"opcode {_name!r} is defined twice; keep one definition")
        OPS[_name] = _op

__all__ = ["DTYPES", "NotSupported", "OPS", "Op"]

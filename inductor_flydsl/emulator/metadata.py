"""The `.amdgpu_metadata` note → plain Python values.

Owns the small YAML subset that LLVM writes there: nested maps and lists, one scalar a line.
Knows nothing of kernels or what the keys mean.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import ProgramError

Value = dict[str, "Value"] | list["Value"] | str | int | bool | None


def _scalar(text: str) -> Value:
    text = text.strip()
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if text in ("[]", "{}"):
        return [] if text == "[]" else {}
    if len(text) > 1 and text[0] in "'\"" and text[-1] == text[0]:
        return text[1:-1]
    try:
        return int(text, 0)
    except ValueError:
        return text


class _Reader:
    """Recursive descent over (indent, text) lines; `first_line` numbers them for errors."""

    def __init__(self, lines: Sequence[str], first_line: int) -> None:
        self.rows = [
            (len(raw) - len(raw.lstrip(" ")), raw.strip(), first_line + i)
            for i, raw in enumerate(lines)
            if raw.strip() and raw.strip() not in ("---", "...")
        ]
        self.at = 0

    def block(self, indent: int) -> Value:
        if self.at >= len(self.rows) or self.rows[self.at][0] < indent:
            return None
        own = self.rows[self.at][0]
        if self.rows[self.at][1].startswith("- "):
            return self.sequence(own)
        return self.mapping(own)

    def sequence(self, indent: int) -> list[Value]:
        items: list[Value] = []
        while self.at < len(self.rows):
            level, text, line = self.rows[self.at]
            if level != indent or not text.startswith("- "):
                break
            rest = text[2:].lstrip()
            if ":" in rest and not rest.startswith(("'", '"')):
                inner = indent + len(text) - len(rest)
                self.rows[self.at] = (inner, rest, line)
                items.append(self.mapping(inner))
            else:
                items.append(_scalar(rest))
                self.at += 1
        return items

    def mapping(self, indent: int) -> dict[str, Value]:
        found: dict[str, Value] = {}
        while self.at < len(self.rows):
            level, text, line = self.rows[self.at]
            if level != indent or text.startswith("- "):
                break
            key, colon, rest = text.partition(":")
            if not colon:
                raise ProgramError(f"metadata line {text!r} is no 'key: value'", line)
            self.at += 1
            # A list may stand at its key's own indent.
            deeper = indent if self._list_follows(indent) else indent + 1
            found[key.strip("'\"")] = _scalar(rest) if rest.strip() else self.block(deeper)
        return found

    def _list_follows(self, indent: int) -> bool:
        if self.at >= len(self.rows):
            return False
        level, text, _ = self.rows[self.at]
        return level == indent and text.startswith("- ")


def parse_metadata(lines: Sequence[str], first_line: int = 1) -> dict[str, Value]:
    """Parses the note's lines. Raises ProgramError naming the line that isn't of the subset."""
    reader = _Reader(lines, first_line)
    value = reader.block(0)
    if reader.at < len(reader.rows) or not isinstance(value, dict):
        line = reader.rows[min(reader.at, len(reader.rows) - 1)][2] if reader.rows else first_line
        raise ProgramError("metadata is not a map of keys", line)
    return value

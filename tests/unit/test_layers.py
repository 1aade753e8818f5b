"""Imports point down only. Imports that only type checkers see, or that `__init__` defers, don't
count; those in functions do."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import inductor_flydsl
from inductor_flydsl.compiler import fingerprint

ROOT = Path(inductor_flydsl.__file__).parent
RANK = {"_version": 0, "errors": 0, "arch": 1, "dtypes": 1, "fusion": 1.3, "scaling": 1.4}
RANK |= {"activations": 1.35, "division": 0, "stream": 0, "direct": 2.5}
RANK |= {"grouping": 1, "problem": 1.6, "scale_ring": 1.7, "microscaling": 2}
RANK |= {"settings": 1, "config": 2, "arguments": 2.5, "signature": 1.8}
RANK |= {
    "space": 3,
    "variants": 2.9,
    "model": 3,
    "constants": 2.9,
    "ranking": 3.5,
    "devices": 3,
    "records": 4,
    "templates": 4,
    "compiler": 5,
}
RANK |= {
    "locks": 1,
    "processes": 1,
    "numerics": 4,
    "samples": 3,
    "timing": 5,
    "ledger": 5,
    "background": 6,
    "targets": 6,
    "calibration": 4,
}
RANK |= {
    "copies": 3.5,
    "ranking": 3.5,
    "measure": 6,
    "isolation": 7,
    "backing": 7.5,
    "tuner": 8,
    "explanation": 9,
    "fleet": 9,
}
RANK |= {
    "shapes": 2,
    "occupancy": 6,
    "fleet_ray": 10,
    "report": 9,
    "logs": 9,
    "packing": 9,
    "inductor": 10,
    "cli": 11,
}
RANK |= {"emulator": 0, "__main__": 12}
TEMPLATES = ROOT.parent / "templates"
OUTSIDE = {"flydsl": {"compiler", "templates"}, "torch._inductor": {"inductor"}}
# A device adapter is chosen at run time by `devices.get_device`, and needs a compiled kernel.
ADAPTERS = {"devices/emulator.py": {"emulator", "compiler"}, "devices/hip.py": {"compiler"}}


def _room(name: str) -> str:
    # The entry point is apart from the folder it belongs to only so that it imports nothing else.
    return "inductor" if name.startswith("_autoload") else name.removesuffix(".py")


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from _imports(child)


def _targets(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, ours as ``inductor_flydsl.…``."""
    parts = ["inductor_flydsl", *path.relative_to(ROOT).with_suffix("").parts]
    for node in _imports(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = ".".join(parts[: -node.level]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_imports_point_down() -> None:
    wrong = []
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        room = _room(name.split("/")[0])
        if name == "__init__.py":
            continue
        for target in _targets(path):
            for outsider, allowed in OUTSIDE.items():
                if f"{target}.".startswith(f"{outsider}.") and room not in allowed:
                    wrong.append(f"{name} imports {target}")
            if not target.startswith("inductor_flydsl."):
                continue
            other = _room(target.split(".")[1])
            if other == room or other in ADAPTERS.get(name, ()) or other not in RANK:
                continue
            upward = RANK[other] >= RANK[room]
            if upward or room == "emulator" or other == "emulator":
                wrong.append(f"{name} imports {target}")
    assert wrong == []


def test_every_room_has_a_rank() -> None:
    rooms = {_room(p.relative_to(ROOT).parts[0]) for p in ROOT.rglob("*.py")}
    assert rooms - {"__init__"} <= set(RANK)


def test_what_kernels_import_is_part_of_their_key():
    """A kernel that was compiled from other constants must not be found again."""
    imported = {
        f"{child.module}.py"
        for path in TEMPLATES.glob("*.py")
        for child in ast.walk(ast.parse(path.read_text()))
        if isinstance(child, ast.ImportFrom) and child.level == 2
    }
    assert "activations.py" in imported and imported <= set(fingerprint.AROUND)

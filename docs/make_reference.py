"""Writes docs/reference.md from the code: `python docs/make_reference.py [--check]`."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import inductor_flydsl
from inductor_flydsl import settings
from inductor_flydsl.cli.parser import parser

TARGET = Path(__file__).with_name("reference.md")
HEAD = """# Reference

Made from the code by `python docs/make_reference.py`; a test fails where it is out of date.
"""


def reference() -> str:
    """The whole document."""
    parts = [
        HEAD,
        "## Settings\n",
        _settings(),
        "## Commands\n",
        _commands(),
        "## Python\n",
        _api(),
    ]
    return "\n".join(parts)


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in cells) + " |"


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rule = "|" + "---|" * len(header)
    return "\n".join([_row(*header), rule, *(_row(*row) for row in rows)]) + "\n"


def _settings() -> str:
    text = "An argument beats `with inductor_flydsl.settings.scope(name=value)` beats the variable"
    rows = [
        (f"`{k.variable}`", f"`{k.name}`", f"`{settings.as_text(k.default) or '-'}`", k.help)
        for k in settings.KNOBS.values()
    ]
    return f"{text}\nbeats the default.\n\n" + _table(("Variable", "Name", "Default", ""), rows)


def _commands() -> str:
    text = "Data goes to stdout, messages to stderr. Exit status: 0 done, 1 failed, 2 wrong usage, "
    text += "and 141 where the reader of stdout has left."
    rows = []
    for name, help_text, verb in _verbs(parser()):
        usage = " ".join(verb.format_usage().removeprefix("usage:").split())
        rows.append(
            (f"`{name}`", f"`{usage.removeprefix(f'inductor-flydsl {name}').strip()}`", help_text)
        )
    return f"{text}\n\n" + _table(("`inductor-flydsl`", "Arguments", ""), rows)


def _verbs(
    of: argparse.ArgumentParser, prefix: str = ""
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """(name, help, parser) of every verb that does something."""
    for action in of._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, verb in action.choices.items():
            nested = list(_verbs(verb, f"{prefix}{name} "))
            yield from nested or [(prefix + name, helps[name], verb)]


def _api() -> str:
    rows = []
    for name in sorted(inductor_flydsl.__all__):
        value = getattr(inductor_flydsl, name)
        if inspect.isroutine(value) or inspect.isclass(value):
            doc = (inspect.getdoc(value) or "").split("\n\n")[0]
            signature = "" if inspect.isclass(value) else _signature(value)
            rows.append((f"`{name}{signature}`", doc))
        elif inspect.ismodule(value):
            rows.append((f"`{name}`", (inspect.getdoc(value) or "").split("\n\n")[0]))
        else:
            rows.append((f"`{name}`", "The version of this package."))
    return _table(("`inductor_flydsl.`", ""), rows)


def _signature(function: object) -> str:
    found = inspect.signature(function)  # type: ignore[arg-type]
    return str(found).replace("'", "")


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    text = reference()
    if options.parse_args().check:
        stale = not TARGET.exists() or TARGET.read_text() != text
        print("stale" if stale else "up to date", file=sys.stderr)
        return int(stale)
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

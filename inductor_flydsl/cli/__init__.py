"""The command `inductor-flydsl`.

Data goes to stdout, messages to stderr. Exit status: 0 done, 1 failed, 2 wrong usage. The verbs
are in this package's modules, each imported when it is asked for.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Sequence

from .._version import __version__
from ..errors import (
    BadArgument,
    InductorFlyDSLError,
    ProblemError,
    SettingError,
)
from .output import say

OK, FAILED, USAGE = 0, 1, 2
PROBLEM_HELP = "M,N,K[,dtype[,layout]], for example 4096,4096,4096,bf16,NT"


class UsageError(BadArgument):
    """An argument of the command line that cannot be used."""


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = argparse.ArgumentParser(
        prog="inductor-flydsl",
        description="FlyDSL GEMM kernels for AMD gfx950 in TorchInductor's autotuning.",
        epilog="Settings are INDUCTOR_FLYDSL_* variables; `inductor-flydsl env` lists them.",
    )
    top.add_argument("--version", action="version", version=f"inductor-flydsl {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    _demo(_verb(verbs, "demo", "compile, tune and run a model on the emulated gfx950"))
    _tune(_verb(verbs, "tune", "measure problems into the store"))
    _explain(_verb(verbs, "explain", "why a problem gets the kernel it gets"))
    _check(_verb(verbs, "check", "run kernels on the emulator and compare their numbers"))
    _cache(verbs.add_parser("cache", help="the tuning store"))
    _verb(verbs, "env", "versions, devices and settings")
    return top


def _verb(verbs: argparse._SubParsersAction, name: str, text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    verb.add_argument("--json", action="store_true", help="print JSON")
    return verb


def _demo(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--m", type=int, default=128, help="rows of the input (128)")
    verb.add_argument("--n", type=int, default=256, help="output features (256)")
    verb.add_argument("--k", type=int, default=512, help="input features (512)")


def _tune(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("problems", nargs="+", metavar="PROBLEM", help=PROBLEM_HELP)
    verb.add_argument("--device", help="auto, hip[:N], emulator or reference")
    verb.add_argument("--effort", choices=("default", "exhaustive"), help="how many candidates")
    verb.add_argument("--force", action="store_true", help="measure even what is stored")
    verb.add_argument("--dry-run", action="store_true", help="list candidates, measure nothing")


def _explain(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("problem", metavar="PROBLEM", help=PROBLEM_HELP)
    verb.add_argument("--arch", default="gfx950", help="the architecture (gfx950)")
    verb.add_argument("--top", type=int, default=10, metavar="N", help="candidates to show (10)")


def _check(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("problem", metavar="PROBLEM", help=PROBLEM_HELP)
    verb.add_argument(
        "--config", action="append", metavar="NAME", help="a configuration; default: the likeliest"
    )
    verb.add_argument("--seed", type=int, default=0, help="of the operands (0)")


def _cache(group: argparse.ArgumentParser) -> None:
    verbs = group.add_subparsers(dest="cache_verb", metavar="VERB", required=True)
    _verb(verbs, "dir", "print where the store is")
    _verb(verbs, "list", "list the records")
    show = _verb(verbs, "show", "print a record")
    show.add_argument("key", metavar="KEY", help="a record's key, or a prefix that only it has")
    clear = _verb(verbs, "clear", "delete every record")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    clear.add_argument("--dry-run", action="store_true", help="say what would be deleted")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status; argparse exits with 2 by itself."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    try:
        module = importlib.import_module(f".{arguments.verb}", __name__)
        status: int = module.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has gone; Python's own flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        say("interrupted")
        return FAILED
    except (UsageError, ProblemError, SettingError) as error:
        say(f"inductor-flydsl {arguments.verb}: {error}")
        return USAGE
    except InductorFlyDSLError as error:
        say(f"inductor-flydsl {arguments.verb}: {error}")
        return FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("inductor_flydsl"):
            raise
        say(f"inductor-flydsl {arguments.verb}: {error.name} is not installed; pip install it")
        return FAILED

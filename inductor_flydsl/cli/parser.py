"""The grammar of the command line: verbs, their arguments, their help. Runs nothing."""

from __future__ import annotations

import argparse
import re
from typing import Any

from .._version import __version__
from ..arch import get_arch
from ..errors import BadArgument
from ..problem import PROBLEM_FORM

PROBLEM_HELP = f"{PROBLEM_FORM}, for example 4096,4096,4096,bf16,NT or 8x128,128,64,bf16->fp32"
PROBLEM_HELP += " or 256,4096,4096,mxfp4; fp8:bf8 names the types of A and of B"
GLOB_HELP = "only records whose key, problem, device or choice matches, for example '*4096*'"


class Parser(argparse.ArgumentParser):
    """A parser that takes ``-1,2,3`` for a problem, so that it is refused as one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # What argparse takes for a negative number, and not for an option.
        self._negative_number_matcher = re.compile(r"-\d")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    top = Parser(
        prog="inductor-flydsl",
        description="FlyDSL GEMM kernels for AMD gfx950 in TorchInductor's autotuning.",
        epilog="Settings are INDUCTOR_FLYDSL_* variables; `inductor-flydsl env` lists them.",
    )
    top.add_argument("--version", action="version", version=f"inductor-flydsl {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", required=True)
    _demo(_verb(verbs, "demo", "compile, tune and run a model on the emulated gfx950"))
    _tune(_verb(verbs, "tune", "measure problems into the store"))
    _explain(_verb(verbs, "explain", "why a problem gets the kernel it gets"))
    _check(_verb(verbs, "check", "run kernels on the emulator: numbers, hazards, bank conflicts"))
    _cache(verbs.add_parser("cache", help="the tuning store"))
    _pack(_verb(verbs, "pack", "compile what a store has chosen, for a machine elsewhere"))
    _verb(verbs, "env", "versions, devices and settings")
    return top


def _verb(verbs: argparse._SubParsersAction, name: str, text: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=text, description=text)
    verb.add_argument("--json", action="store_true", help="print JSON")
    return verb


def _arch(text: str) -> str:
    try:
        get_arch(text)
    except BadArgument as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _dry_run(verb: argparse.ArgumentParser, text: str) -> None:
    verb.add_argument("--dry-run", action="store_true", help=text)


def _demo(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--m", type=int, default=128, help="rows of the input (128)")
    verb.add_argument("--n", type=int, default=256, help="output features (256)")
    verb.add_argument("--k", type=int, default=512, help="input features (512)")


def _tune(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("problems", nargs="*", metavar="PROBLEM", help=PROBLEM_HELP)
    verb.add_argument(
        "--shapes",
        action="append",
        default=[],
        metavar="FILE",
        help="problems from a CSV file (columns m,n,k and others of a problem) or a JSONL file, "
        "such as INDUCTOR_FLYDSL_RECORD writes",
    )
    verb.add_argument(
        "--device",
        action="append",
        metavar="DEVICE",
        help="auto, hip[:N], emulator or reference; several, or hip:all, are used at once, one "
        "process each",
    )
    verb.add_argument(
        "--ray",
        nargs="?",
        const="auto",
        metavar="ADDRESS",
        help="measure on the GPUs of a Ray cluster; no ADDRESS: the running one, or a local one",
    )
    verb.add_argument("--effort", choices=("default", "exhaustive"), help="how many candidates")
    verb.add_argument("--budget", type=float, metavar="S", help="seconds that it may take")
    verb.add_argument("--jobs", type=int, metavar="N", help="compile workers")
    verb.add_argument("--force", action="store_true", help="measure even what is stored")
    _dry_run(verb, "list candidates, measure nothing")


def _explain(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("problem", metavar="PROBLEM", nargs="?", help=PROBLEM_HELP)
    verb.add_argument(
        "--log",
        metavar="FILE",
        help="explain a compiled model from what it logged under "
        "TORCH_LOGS=+inductor_flydsl (- reads stdin)",
    )
    verb.add_argument("--arch", type=_arch, default="gfx950", help="the architecture (gfx950)")
    verb.add_argument("--top", type=int, default=10, metavar="N", help="candidates to show (10)")


def _check(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("problem", metavar="PROBLEM", help=PROBLEM_HELP)
    verb.add_argument(
        "--config", action="append", metavar="NAME", help="a configuration; default: the likeliest"
    )
    verb.add_argument(
        "--landing",
        choices=("lazy", "eager", "random"),
        default="lazy",
        help="when asynchronous memory lands: as late as waits allow (lazy), at once, at random",
    )
    verb.add_argument(
        "--seed", type=int, default=0, help="of the operands, the order of waves and landing (0)"
    )


def _cache(group: argparse.ArgumentParser) -> None:
    verbs = group.add_subparsers(dest="cache_verb", metavar="VERB", required=True)
    _verb(verbs, "dir", "print where the store is")
    listing = _verb(verbs, "list", "list the records")
    listing.add_argument("glob", nargs="?", metavar="GLOB", help=GLOB_HELP)
    listing.add_argument("--sort", metavar="COLUMN", help="by this column")
    listing.add_argument("--reverse", action="store_true", help="the largest first")
    listing.add_argument("--columns", metavar="A,B", help="which columns, in this order")
    show = _verb(verbs, "show", "print a record")
    show.add_argument("key", metavar="KEY", help="a record's key, or a prefix that only it has")
    stats = _verb(verbs, "stats", "counts over the records")
    stats.add_argument("glob", nargs="?", metavar="GLOB", help=GLOB_HELP)
    diff = _verb(verbs, "diff", "what differs between two records, or two stores or exports")
    diff.add_argument("left", metavar="A", help="a record's key, a store's directory or an export")
    diff.add_argument("right", metavar="B", help="the same kind as A")
    export = _verb(verbs, "export", "write records to one file")
    export.add_argument("file", metavar="FILE", help="the file; - is stdout")
    export.add_argument("glob", nargs="?", metavar="GLOB", help=GLOB_HELP)
    imports = _verb(verbs, "import", "merge records of exports or stores; the newer wins")
    imports.add_argument("files", nargs="+", metavar="FILE", help="an export or a directory")
    _dry_run(imports, "say what would change")
    _cache_delete(verbs)
    report = _verb(verbs, "report", "write a page with tables and plots")
    report.add_argument("file", metavar="FILE.html", help="the page")
    report.add_argument("glob", nargs="?", metavar="GLOB", help=GLOB_HELP)


def _cache_delete(verbs: argparse._SubParsersAction) -> None:
    prune = _verb(verbs, "prune", "delete records that no longer serve")
    prune.add_argument("--stale", action="store_true", help="made by other versions than these")
    prune.add_argument("--older-than", metavar="AGE", help="for example 30d, 12h or 4w")
    prune.add_argument(
        "--keep", type=int, metavar="N", help="keep the latest N of each problem and device"
    )
    _dry_run(prune, "say what would be deleted")
    clear = _verb(verbs, "clear", "delete every record")
    clear.add_argument("--yes", action="store_true", help="do not ask")
    _dry_run(clear, "say what would be deleted")


def _pack(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--store", metavar="DIR", help="a store's directory or an export; default: the user's"
    )
    verb.add_argument("--arch", type=_arch, default="gfx950", help="what to compile for (gfx950)")
    verb.add_argument(
        "--backend",
        choices=("auto", "rocm", "emulator"),
        default="auto",
        help="kernels for a GPU or for the emulator; auto: whichever the records are of",
    )
    verb.add_argument("--out", required=True, metavar="DIR", help="the directory to make")
    verb.add_argument("--jobs", type=int, metavar="N", help="compile workers")
    _dry_run(verb, "say what would be compiled")

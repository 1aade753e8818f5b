"""The command `inductor-flydsl`.

Data goes to stdout, messages to stderr. Exit status: 0 done, 1 failed, 2 wrong usage, and as
a shell has it for a reader that left (141). The verbs
are in this package's modules, each imported when it is asked for.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
from collections.abc import Sequence

from .. import settings
from ..errors import (
    BadArgument,
    InductorFlyDSLError,
    ProblemError,
    SettingError,
)
from .output import say
from .parser import parser

OK, FAILED, USAGE = 0, 1, 2


class UsageError(BadArgument):
    """An argument of the command line that cannot be used."""


class MissingArgument(UsageError):
    """An argument without which there is nothing to do."""

    def __init__(self, argument: str, way_out: str) -> None:
        super().__init__(argument, None, "is missing", way_out)
        self.args = (f"{argument} is missing; {way_out}",)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status; argparse exits with 2 by itself."""
    arguments = parser().parse_args(argv)
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    settings.check_names()
    try:
        module = importlib.import_module(f".{arguments.verb}", __name__)
        status: int = module.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has gone; Python's own flush at exit must not complain about it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        say("interrupted")
        return FAILED
    except (UsageError, ProblemError, SettingError) as error:
        say(f"inductor-flydsl {arguments.verb}: {error}")
        return USAGE
    except InductorFlyDSLError as error:
        say(f"inductor-flydsl {arguments.verb}: {error}")
        return FAILED
    except OSError as error:
        # A full disk under stdout, most likely: what is left of it cannot be written either.
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        say(f"inductor-flydsl {arguments.verb}: {error}")
        return FAILED
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("inductor_flydsl"):
            raise
        say(f"inductor-flydsl {arguments.verb}: {error.name} is not installed; pip install it")
        return FAILED

"""``python -m inductor_flydsl.cli``: the command `inductor-flydsl`."""

import sys

from . import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m marl_sb3.benchmark`: run the command of `marl_sb3.commands.benchmark`."""

import sys

from marl_sb3.commands.benchmark import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

"""`python -m marl_sb3.tune`: run the command of `marl_sb3.commands.tune`."""

import sys

from marl_sb3.commands.tune import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

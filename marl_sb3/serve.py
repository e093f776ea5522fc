"""`python -m marl_sb3.serve`: run the command of `marl_sb3.commands.serve`."""

import sys

from marl_sb3.commands.serve import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

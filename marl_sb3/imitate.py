"""`python -m marl_sb3.imitate`: run the command of `marl_sb3.commands.imitate`."""

import sys

from marl_sb3.commands.imitate import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

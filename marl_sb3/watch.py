"""`python -m marl_sb3.watch`: run the command of `marl_sb3.commands.watch`."""

import sys

from marl_sb3.commands.watch import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

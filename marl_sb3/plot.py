"""`python -m marl_sb3.plot`: run the command of `marl_sb3.commands.plot`."""

import sys

from marl_sb3.commands.plot import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

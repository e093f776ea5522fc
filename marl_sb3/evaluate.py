"""`python -m marl_sb3.evaluate`: run the command of `marl_sb3.commands.evaluate`."""

import sys

from marl_sb3.commands.evaluate import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

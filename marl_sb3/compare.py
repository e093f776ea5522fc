"""`python -m marl_sb3.compare`: run the command of `marl_sb3.commands.compare`."""

import sys

from marl_sb3.commands.compare import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

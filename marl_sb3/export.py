"""`python -m marl_sb3.export`: run the command of `marl_sb3.commands.export`."""

import sys

from marl_sb3.commands.export import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

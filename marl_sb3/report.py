"""`python -m marl_sb3.report`: run the command of `marl_sb3.commands.report`."""

import sys

from marl_sb3.commands.report import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

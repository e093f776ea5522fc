"""`python -m marl_sb3.train`: run the command of `marl_sb3.commands.train`."""

import sys

from marl_sb3.commands.train import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

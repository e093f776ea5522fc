"""`python -m marl_sb3.match`: run the command of `marl_sb3.commands.match`."""

import sys

from marl_sb3.commands.match import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

"""`python -m marl_sb3.doctor`: run the command of `marl_sb3.commands.doctor`."""

import sys

from marl_sb3.commands.doctor import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

"""`python -m marl_sb3.completions`: run the command of `marl_sb3.commands.completions`."""

import sys

from marl_sb3.commands.completions import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

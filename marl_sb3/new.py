"""`python -m marl_sb3.new`: run the command of `marl_sb3.commands.new`."""

import sys

from marl_sb3.commands.new import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())

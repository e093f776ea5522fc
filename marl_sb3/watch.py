"""`python -m marl_sb3.watch`: the command of `marl_sb3.commands.watch`."""

from marl_sb3.commands.watch import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

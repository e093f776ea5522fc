"""`python -m marl_sb3.match`: the command of `marl_sb3.commands.match`."""

from marl_sb3.commands.match import main

__all__ = ["main"]

if __name__ == "__main__":
    raise SystemExit(main())

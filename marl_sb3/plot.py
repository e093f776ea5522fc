"""`python -m marl_sb3.plot`: the command of `marl_sb3.commands.plot`."""

from marl_sb3.commands.plot import main as main

if __name__ == "__main__":
    raise SystemExit(main())

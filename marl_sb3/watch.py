"""`python -m marl_sb3.watch`: the command of `marl_sb3.commands.watch`."""

from marl_sb3.commands.watch import main as main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m marl_sb3.tune`: the command of `marl_sb3.commands.tune`."""

from marl_sb3.commands.tune import main as main

if __name__ == "__main__":
    raise SystemExit(main())

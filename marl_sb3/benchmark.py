"""`python -m marl_sb3.benchmark`: the command of `marl_sb3.commands.benchmark`."""

from marl_sb3.commands.benchmark import main as main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m marl_sb3.serve`: the command of `marl_sb3.commands.serve`."""

from marl_sb3.commands.serve import main as main

if __name__ == "__main__":
    raise SystemExit(main())

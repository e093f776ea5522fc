"""`python -m marl_sb3.match`: the command of `marl_sb3.commands.match`."""

from marl_sb3.commands.match import main as main

if __name__ == "__main__":
    raise SystemExit(main())

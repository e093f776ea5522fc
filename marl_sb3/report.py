"""`python -m marl_sb3.report`: the command of `marl_sb3.commands.report`."""

from marl_sb3.commands.report import main as main

if __name__ == "__main__":
    raise SystemExit(main())

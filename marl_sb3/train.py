"""`python -m marl_sb3.train`: the command of `marl_sb3.commands.train`."""

from marl_sb3.commands.train import main as main

if __name__ == "__main__":
    raise SystemExit(main())

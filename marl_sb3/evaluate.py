"""`python -m marl_sb3.evaluate`: the command of `marl_sb3.commands.evaluate`."""

from marl_sb3.commands.evaluate import main as main

if __name__ == "__main__":
    raise SystemExit(main())

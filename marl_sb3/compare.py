"""`python -m marl_sb3.compare`: the command of `marl_sb3.commands.compare`."""

from marl_sb3.commands.compare import main as main

if __name__ == "__main__":
    raise SystemExit(main())

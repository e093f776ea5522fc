"""`python -m marl_sb3.export`: the command of `marl_sb3.commands.export`."""

from marl_sb3.commands.export import main as main

if __name__ == "__main__":
    raise SystemExit(main())

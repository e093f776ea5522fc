"""`python -m marl_sb3.imitate`: the command of `marl_sb3.commands.imitate`."""

from marl_sb3.commands.imitate import main as main

if __name__ == "__main__":
    raise SystemExit(main())

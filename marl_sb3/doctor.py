"""`python -m marl_sb3.doctor`: the command of `marl_sb3.commands.doctor`."""

from marl_sb3.commands.doctor import main as main

if __name__ == "__main__":
    raise SystemExit(main())

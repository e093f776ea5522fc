"""`python -m marl_sb3.completions`: the command of `marl_sb3.commands.completions`."""

from marl_sb3.commands.completions import main as main

if __name__ == "__main__":
    raise SystemExit(main())

"""`python -m marl_sb3.new`: the command of `marl_sb3.commands.new`."""

from marl_sb3.commands.new import main as main

if __name__ == "__main__":
    raise SystemExit(main())

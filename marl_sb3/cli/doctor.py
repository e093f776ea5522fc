"""The command line of `python -m marl_sb3.doctor`."""

from __future__ import annotations

import argparse
from typing import Any

from marl_sb3.cli.parser import CommandParser, add_env_option, add_verbosity, assignments, integer
from marl_sb3.errors import ConfigError

_EPILOG = """\
A fault breaks a training, or spoils what it learns or repeats. A warning may be
one. Advice does not count. docs/reference/checks.md lists them all.

The env is played in processes of their own, which survive its hangs and
crashes. The last line of the output is the verdict.

examples
  python -m marl_sb3.doctor arena
  python -m marl_sb3.doctor my_module:MyEnv --set env.size=8 --steps 10000
  python -m marl_sb3.doctor sisl/pursuit-v5 --json

exit codes: 0 no faults, 1 faults were found, 2 wrong command line, 130
interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line of `doctor`."""
    parser = CommandParser(
        prog="python -m marl_sb3.doctor",
        description="Play an env, and say what would go wrong in a training.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add("env", metavar="ENV", nargs="?", help="the env, as for train")
    add_env_option(parser, also_positional=True)
    add("--episodes", metavar="N", type=integer, help="episodes to record; default: 10, in 3 seconds at most")
    add("--steps", metavar="N", type=integer, help="env steps to record; default: 2000, in 3 seconds at most")
    add("--seed", metavar="S", type=integer, default=0, help="seed of all episodes and actions; default: 0")
    add("--timeout", metavar="S", type=integer, default=30, help="seconds that a call may take; default: 30")
    add("--set", metavar="env.KEY=VALUE", dest="settings", action="append", default=[],
        help="an argument of the env; may be repeated; default: none")  # fmt: skip
    add("--json", action="store_true", help="print one JSON object alone; default: text")
    add_verbosity(parser)
    return parser


def env_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments of the env that `--set` gives.

    Raises:
        ConfigError: one of them is not `env.KEY=VALUE`.
    """
    found = assignments("--set", arguments.settings, "env.KEY=VALUE")
    for name in found:
        if not name.startswith("env."):
            raise ConfigError(f"--set is {name!r}; accepted: env.KEY=VALUE, an argument of the env", key=name)
    return {name.removeprefix("env."): value for name, value in found.items()}


def require_env(env: str | None) -> str:
    """The env, which has no default.

    Raises:
        ConfigError: the command line names none.
    """
    if env is None:
        raise ConfigError("ENV is missing; accepted: an env id, such as arena or my_module:MyEnv", key="env")
    return env

"""The command line of `python -m marl_sb3.doctor`."""

from __future__ import annotations

import argparse
from typing import Any

from marl_sb3.cli.parser import CommandParser, add_env_option, add_verbosity, assignments, integer
from marl_sb3.errors import ConfigError

_EPILOG = """\
With a fault, training fails, learns from wrong data, or cannot be repeated. A
warning is a possible fault. Advice is optional. Only faults change the exit
code. docs/reference/checks.md lists all checks.

The env is played in separate processes, so that a hang or a crash of the env is
reported too. The last line of the output is the verdict.

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
        "python -m marl_sb3.doctor",
        "[ENV] [options]",
        description="Play an env, and report what would go wrong in training.",
        epilog=_EPILOG,
    )
    parser.add_argument("env", metavar="ENV", nargs="?", help="the env to check, as for train")
    add_env_option(parser, also_positional=True)
    parser.option("--episodes N", "episodes to record; default: 10, in 3 seconds at most", type=integer)
    parser.option("--steps N", "env steps to record; default: 2000, in 3 seconds at most", type=integer)
    parser.option("--seed S", "seed of all episodes and actions; default: 0", type=integer, default=0)
    parser.option("--timeout S", "seconds that a call of the env may take; default: 30", type=integer, default=30)
    parser.repeated(
        "--set env.KEY=VALUE", "set an argument of the env; may be repeated; default: none", dest="settings"
    )
    parser.option("--json", "print one JSON object alone; default: text")
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

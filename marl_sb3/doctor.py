"""`python -m marl_sb3.doctor`: play an env, and say what would go wrong in training.

The function `marl_sb3.examine(...)` of the library does the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_sb3.cli import (
    EXIT_DONE,
    EXIT_FAILED,
    CommandParser,
    add_env_option,
    add_verbosity,
    assignments,
    integer,
    named_env,
)
from marl_sb3.errors import ConfigError

if TYPE_CHECKING:
    from marl_sb3.tools.checkup import Report


# --- The command line ------------------------------------------------------------------------------------------------


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


def build_parser() -> CommandParser:
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


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_doctor, argv)


def _doctor(arguments: argparse.Namespace) -> int:
    report = _examine(arguments)
    if arguments.json:
        print(json.dumps(report.to_plain(), allow_nan=False), flush=True)
    else:
        from marl_sb3.extensions.display import standard_console
        from marl_sb3.tools.checkup import print_report

        print_report(standard_console(), report, env_settings(arguments), verbose=bool(arguments.verbosity))
    return EXIT_DONE if report.is_healthy else EXIT_FAILED


def _examine(arguments: argparse.Namespace) -> Report:
    env, settings = named_env(arguments), env_settings(arguments)
    if env is None:
        raise ConfigError("ENV is missing; accepted: an env id, such as arena or my_module:MyEnv", key="env")
    from rich.console import Console

    from marl_sb3.tools.checkup import examine  # after what can be refused without it

    with Console(stderr=True, highlight=False).status("playing") as status:  # shows nothing but in a terminal
        return examine(
            env,
            settings,
            episodes=arguments.episodes,
            steps=arguments.steps,
            seed=arguments.seed,
            timeout_s=arguments.timeout,
            on_call=lambda call: status.update(f"playing: {call}"),
        )


if __name__ == "__main__":
    sys.exit(main())

"""`python -m marl_sb3.doctor`: play an env, and say what would go wrong in training.

The function `marl_sb3.examine(...)` of the library does the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_sb3.cli.command import EXIT_DONE, EXIT_FAILED, run_command, setup_logging
from marl_sb3.cli.doctor import build_parser, env_settings, require_env
from marl_sb3.cli.parser import import_users_modules, named_env

if TYPE_CHECKING:
    from marl_sb3.checkup.finding import Report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _doctor(arguments), arguments.verbosity)


def _doctor(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    import_users_modules(arguments)
    report = _examine(arguments)
    if arguments.json:
        print(json.dumps(report.to_plain(), allow_nan=False), flush=True)
    else:
        from marl_sb3.checkup.show import print_report
        from marl_sb3.display.screen import standard_console

        print_report(standard_console(), report, env_settings(arguments), verbose=bool(arguments.verbosity))
    return EXIT_DONE if report.is_healthy else EXIT_FAILED


def _examine(arguments: argparse.Namespace) -> Report:
    env, settings = require_env(named_env(arguments)), env_settings(arguments)
    from rich.console import Console

    from marl_sb3.checkup.api import examine  # after what can be refused without it

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

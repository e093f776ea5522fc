"""`python -m marl_sb3.tune`: search for better settings, and print the results.

The function `marl_sb3.tune(...)` is in `marl_sb3.tuning.api`; the command is `marl_sb3.tune.main`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_sb3.cli.command import EXIT_DONE, run_command, setup_logging
from marl_sb3.cli.parser import import_users_modules, named_env
from marl_sb3.cli.ray import ray_settings
from marl_sb3.cli.tune import build_parser, command_to_continue, study_options
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from rich.console import Console

    from marl_sb3.tuning.study import TuneStudy


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _tune(arguments), arguments.verbosity)


def _tune(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    import_users_modules(arguments)
    from marl_sb3.display.screen import standard_console
    from marl_sb3.display.text import short_path

    console = standard_console()
    with without_collections():
        from marl_sb3.tuning.api import require_counts, run_study, trainer_on
    from marl_sb3.tuning.checks import require_trainable_preset
    from marl_sb3.tuning.jobs.trials import require_any_complete

    counts = (arguments.workers, arguments.confirm_seeds, arguments.confirm_best)
    require_counts(*counts)
    with trainer_on(ray_settings(arguments), arguments.workers) as trainer:
        study = _study(arguments)
        if arguments.confirm_seeds:
            require_trainable_preset(study)
        if not arguments.quiet:
            _print_line(console, f"{_started(study)}: {short_path(study.folder)}")
        try:
            run_study(study, *counts, console=None if arguments.quiet else console, trainer=trainer)
        except BaseException:
            _report_unfinished(study, arguments, console)
            raise
    _report(study, arguments, console)
    require_any_complete(study)
    print(short_path(study.folder), flush=True)
    return EXIT_DONE


def _study(arguments: argparse.Namespace) -> TuneStudy:
    from marl_sb3.tuning.api import prepare_study

    return prepare_study(named_env(arguments), **study_options(arguments))


def _started(study: TuneStudy) -> str:
    if not study.continued:
        return f"new study {study.search.name}"
    return f"continuing study {study.search.name}, {study.n_done()} of {study.search.trials} trials done"


def _report(study: TuneStudy, arguments: argparse.Namespace, console: Console) -> None:
    """Write the files of the study, and print the results."""
    from marl_sb3.tuning.report import write_files
    from marl_sb3.tuning.view import print_outcome

    files = write_files(study)
    if not arguments.quiet:
        print_outcome(console, study, files)


def _report_unfinished(study: TuneStudy, arguments: argparse.Namespace, console: Console) -> None:
    """Report after an interruption or an error, which remains the reason why the command ends."""
    try:
        _report(study, arguments, console)
    except Exception as error:  # a full disk, for example
        _print_line(console, f"the report cannot be written: {error}")
    if not arguments.quiet:
        storage = study.search.to_plain()["storage"]  # without its password
        command = command_to_continue(study.search.env, study.search.name, storage, arguments)
        _print_line(console, f"continue with: {command}")


def _print_line(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)


if __name__ == "__main__":
    sys.exit(main())

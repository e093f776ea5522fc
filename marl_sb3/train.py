"""`python -m marl_sb3.train`: parse the command line, call `runs`, print.

The function `marl_sb3.train(...)` of the library is `marl_sb3.runs.train.train`;
`from marl_sb3.train import main` gets the command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_sb3.cli.command import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, run_command, setup_logging
from marl_sb3.cli.parser import assignments, found_run, import_users_modules, named_env
from marl_sb3.cli.ray import runner_settings
from marl_sb3.cli.train import (
    RESUME_SETTINGS,
    SETTINGS,
    build_parser,
    chosen_seeds,
    require_resumable,
    stop_conditions,
)
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.config import TrainConfig
    from marl_sb3.config.ray import AnyRunners
    from marl_sb3.runs.run import Run


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _train(arguments), arguments.verbosity)


def _train(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    import_users_modules(arguments)
    if arguments.seeds is not None:
        return _train_seeds(arguments)
    with without_collections():
        if arguments.print_config:
            return _print_config(arguments)
        run = _prepare(arguments)
    if arguments.quiet:
        from marl_sb3.runs.execute import execute

        execute(run)
    else:
        from marl_sb3.runs.view import execute_and_show

        execute_and_show(run, most_agents=arguments.agents)
    print(run.files.shown, flush=True)
    return EXIT_INTERRUPTED if run.interrupted else EXIT_DONE


def _prepare(arguments: argparse.Namespace) -> Run:
    if arguments.resume is not None:
        return _resume(arguments, stop_conditions(arguments), runner_settings(arguments))
    config, runners = _config(arguments), runner_settings(arguments)
    from marl_sb3.runs.start import prepare  # takes seconds: wrong options are refused before

    return prepare(config, arguments.run_dir, trust_pickle=arguments.trust_pickle, runners=runners)


def _train_seeds(arguments: argparse.Namespace) -> int:
    """Train with several seeds; returns the exit code: 1 if one of them failed."""
    seeds, config = chosen_seeds(arguments), _config(arguments)
    from marl_sb3.runs.seeds import SeedRuns  # takes seconds, as above

    with without_collections():
        runs = SeedRuns(config, seeds, arguments.run_dir, trust_pickle=arguments.trust_pickle)
    if arguments.quiet:
        runs.execute()
    else:
        from marl_sb3.runs.view import execute_and_show_seeds

        execute_and_show_seeds(runs, arguments.agents)
    print(runs.shown, flush=True)
    return EXIT_DONE if all(run.is_done for run in runs.runs) else EXIT_FAILED


def _print_config(arguments: argparse.Namespace) -> int:
    """Print the configuration that the run would have; returns the exit code."""
    if arguments.resume is not None:
        require_resumable(arguments)
    config, runners = _config(arguments), runner_settings(arguments)
    from marl_sb3.config import to_yaml
    from marl_sb3.runs.start import resolve  # takes seconds, as above

    print(to_yaml(resolve(config, trust_pickle=arguments.trust_pickle, runners=runners)), end="", flush=True)
    return EXIT_DONE


def _config(arguments: argparse.Namespace) -> TrainConfig:
    from marl_sb3.config import load_config

    return load_config(
        named_env(arguments),
        arguments.algo,
        arguments.hparams,
        assignments("--set", arguments.settings),
        n_timesteps=arguments.timesteps,
        stop=stop_conditions(arguments),
        **{name: getattr(arguments, name) for name in SETTINGS},
    )


def _resume(arguments: argparse.Namespace, stop: dict[str, Any] | None, runners: AnyRunners | None) -> Run:
    require_resumable(arguments)
    folder = found_run(arguments.resume)
    from marl_sb3.runs.start import resume_run  # takes seconds: wrong options are refused before

    changes = {name: getattr(arguments, name) for name in RESUME_SETTINGS}
    settings = assignments("--set", arguments.settings)
    return resume_run(
        folder, arguments.timesteps, named_env(arguments), runners=runners, settings=settings, stop=stop, **changes
    )


if __name__ == "__main__":
    sys.exit(main())

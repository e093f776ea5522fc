"""`python -m marl_sb3.tune`: search for better settings, and print the results.

The function `marl_sb3.tune(...)` is in `marl_sb3.tools.tuning.api`; the command is `marl_sb3.tune.main`.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_sb3.cli import (
    EXIT_DONE,
    CommandParser,
    add_device_options,
    add_env_option,
    add_ray_options,
    add_setup_options,
    add_verbosity,
    assignments,
    integer,
    named_env,
    ray_settings,
    stop_conditions,
)
from marl_sb3.startup import without_collections
from marl_sb3.tools.tuning import SearchOptions, words_of

if TYPE_CHECKING:
    from rich.console import Console

    from marl_sb3.tools.tuning import Search, TuneStudy


# --- The command line ------------------------------------------------------------------------------------------------


_EPILOG = """\
A space file has a range for each parameter:
  batch_size: {choices: [64, 128, 256]}
  learning_rate: {log_uniform: [1e-4, 3e-3], linear: true}   # lin_X
  gamma: {uniform: [0.9, 0.999]}
  n_epochs: {int: [3, 15]}
  pol1.learning_rate: {choices: [1e-4, 3e-4]}                 # of one policy
  ent_coef: 0.01                                              # a constant
RLlib's names (minibatch_size, lr, num_epochs, lambda, ...) are accepted.

examples
  python -m marl_sb3.tune --trials 50
  python -m marl_sb3.tune arena --trials 100 --workers 2 --confirm-seeds 20
  python -m marl_sb3.tune CartPole-v1 --grid minibatch_size=128,200,256
  python -m marl_sb3.tune --study NAME      continue a study

exit codes: 0 done, 1 failed, 2 wrong command line or settings, 130 interrupted
"""

# Options that a study does not keep.
OF_EACH_CALL = ("workers", "confirm_seeds", "confirm_best", "no_confirm", "ray", "runner_cpus", "ray_runtime_env")


def build_parser() -> CommandParser:
    """Make the parser of `tune`."""
    parser = CommandParser(
        "python -m marl_sb3.tune",
        "[ENV] [options]",
        description="Search for better hyperparameters and settings.",
        epilog=_EPILOG,
    )
    parser.add_argument("env", metavar="ENV", nargs="?", help="the env to train in; default: arena, or the study's")
    _add_what_is_searched(parser)
    parser.section("how it is searched")
    _add(parser, "--trials N", "--seed S", "--sampler NAME", "--pruner NAME", "--objective WHAT", "--mode M")
    _add(parser, "--over WHICH", "--evaluations N", "--evaluation-episodes N")
    words = "train the best trials and the preset again with up to K fresh seeds each, for whole trainings; default: 10"
    parser.option("--confirm-seeds K", words, type=integer, default=10)
    words = "number of trials that --confirm-seeds trains again; default: 3"
    parser.option("--confirm-best B", words, type=integer, default=3)
    words = "train none again: best.yml has the best trial, which may be a lucky one; default: off"
    parser.option("--no-confirm", words)
    parser.section("study")
    _add(parser, "--study NAME", "--new-study", "--storage URL")
    parser.section("how it runs")
    parser.option("--workers N", "processes that run trials; default: 1", type=integer, default=1)
    add_ray_options(parser, "train the trials on Ray, --workers N at a time", "trial")
    add_device_options(parser)
    parser.section("output")
    parser.option("--quiet", "print the study's folder alone; default: off")
    add_verbosity(parser)
    return parser


def _add_what_is_searched(parser: CommandParser) -> None:
    parser.section("what is searched")
    add_env_option(parser, also_positional=True)
    add_setup_options(parser)
    _add(parser, "--timesteps N")
    parser.repeated("--set KEY=VALUE", "fix a setting in every trial; may be repeated; default: none", dest="settings")
    words = "end a trial when a metric is at least VALUE; may be repeated; default: train it for all env steps"
    parser.repeated("--stop METRIC=VALUE", words)
    _add(parser, "--hparams FILE", "--space FILE")
    words = "try exactly these values, of several --grid all combinations; may be repeated; default: none"
    parser.repeated("--grid KEY=A,B,C", words)


def _add(parser: CommandParser, *options: str) -> None:
    """Add options of a search, each with the words of its declaration; those called N or S take integers."""
    for option in options:
        name, _, metavar = option.partition(" ")
        numbers = {"type": integer} if metavar in ("N", "S") else {}
        parser.option(option, words_of(name.removeprefix("--").replace("-", "_")), **numbers)


def study_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `prepare_study`.

    Raises:
        ConfigError: two envs are named, a `--set` is not `KEY=VALUE`, or a `--stop` not `METRIC=NUMBER`.
    """
    options = {name: value for name, value in vars(arguments).items() if name in SearchOptions.__annotations__}
    settings = assignments("--set", arguments.settings)
    return {**options, "env": named_env(arguments), "settings": settings, "stop": stop_conditions(arguments)}


def command_to_continue(search: Search, arguments: argparse.Namespace) -> str:
    """Return the command that continues a search, without the password of its database.

    Args:
        arguments: arguments of the present call; those that a study does not keep are repeated.
    """
    default = build_parser().parse_args([])
    given = [option for option in OF_EACH_CALL if getattr(arguments, option) != getattr(default, option)]
    options: list[tuple[str, object]] = [("study", shlex.quote(search.name))]
    options += [("storage", shlex.quote(url))] if (url := search.to_plain()["storage"]) else []
    options += [("import", module) for module in arguments.imports]
    options += [(option.replace("_", "-"), getattr(arguments, option)) for option in given]
    words = "".join(f" --{option}" if value is True else f" --{option} {value}" for option, value in options)
    return f"python -m marl_sb3.tune {shlex.quote(search.env)}{words}"


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_tune, argv)


def _tune(arguments: argparse.Namespace) -> int:
    from marl_sb3.extensions.display import short_path, standard_console

    with without_collections():
        from marl_sb3.tools.tuning import prepared
    from marl_sb3.tools.tuning import cost_words, require_any_complete

    console = standard_console()
    seeds, best = 0 if arguments.no_confirm else arguments.confirm_seeds, arguments.confirm_best
    with prepared(study_options(arguments), arguments.workers, seeds, best, ray_settings(arguments)) as (study, run):
        if not arguments.quiet:
            done = f", {study.n_done()} of {study.search.trials} trials done" if study.continued else ""
            start = f"{'continuing' if study.continued else 'new'} study {study.search.name}{done}"
            console.print(f"{start}: {short_path(study.folder)}", soft_wrap=True)
            console.print(cost_words(study, best, seeds), soft_wrap=True)
        try:
            run(console=None if arguments.quiet else console)
        except BaseException as error:
            _report_unfinished(study, arguments, console, error)
            raise
    _report(study, arguments, console)
    require_any_complete(study)
    print(short_path(study.folder), flush=True)
    return EXIT_DONE


def _report(study: TuneStudy, arguments: argparse.Namespace, console: Console) -> None:
    """Write the files of the study, and print the results."""
    from marl_sb3.tools.tuning import print_outcome, write_files

    files = write_files(study)
    if not arguments.quiet:
        print_outcome(console, study, files)


def _report_unfinished(
    study: TuneStudy, arguments: argparse.Namespace, console: Console, reason: BaseException
) -> None:
    """Report after an interruption or an error, which remains the reason why the command ends."""
    try:
        _report(study, arguments, console)
    except Exception as error:  # a full disk, for example
        console.print(f"the report cannot be written: {error}", soft_wrap=True)
    if not arguments.quiet and getattr(reason, "key", None) != "objective":  # which a study keeps
        console.print(f"continue with: {command_to_continue(study.search, arguments)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())

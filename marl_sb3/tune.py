"""`python -m marl_sb3.tune`: parse the command line, run a search, print what came out.

The function `marl_sb3.tune(...)` of the library is `marl_sb3.tuning.api.tune`;
`from marl_sb3.tune import main` gets the command.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_sb3.cli import (
    EXIT_DONE,
    CommandParser,
    add_env_option,
    add_verbosity,
    algorithm_name,
    assignments,
    integer,
    named_env,
    run_command,
    setup_logging,
)
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from rich.console import Console

    from marl_sb3.tuning.study import TuneStudy

_EPILOG = """\
A space file has a range for each parameter:
  batch_size: {choices: [64, 128, 256]}
  learning_rate: {log_uniform: [1e-4, 3e-3], linear: true}   # lin_X
  gamma: {uniform: [0.9, 0.999]}
  n_epochs: {int: [3, 15]}
  pol1.learning_rate: {choices: [1e-4, 3e-4]}                 # of one policy
  ent_coef: 0.01                                              # a constant
RLlib's names (minibatch_size, lr, num_epochs, lambda, ...) are understood.

examples
  python -m marl_sb3.tune --trials 50
  python -m marl_sb3.tune arena --trials 100 --workers 2 --confirm-seeds 10
  python -m marl_sb3.tune CartPole-v1 --grid minibatch_size=128,200,256
  python -m marl_sb3.tune --study NAME      continue a study

exit codes: 0 done, 1 failed, 2 wrong command line or settings, 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(prog="python -m marl_sb3.tune", description="Search for better settings.", epilog=_EPILOG)
    add = parser.add_argument
    add("env", metavar="ENV", nargs="?", help="the env to train in; default: arena, or the study's")
    add_env_option(parser, also_positional=True)
    add("--trials", metavar="N", type=integer, help="how many settings are tried; default: 50, or the whole grid")
    add("--timesteps", metavar="N", type=integer, help="env steps of a trial; default: as in the preset")
    add("--n-envs", metavar="E", type=integer, help="envs that step together; default: as in the preset, else 8")
    add(
        "--study",
        metavar="NAME",
        help="name of the study; an existing one is continued; default: time and 4 hex digits",
    )
    add("--new-study", action="store_true",
        help="begin a new study even if another one has a similar name; default: refuse it, as a typo")  # fmt: skip
    add(
        "--storage",
        metavar="URL",
        help="a database such as sqlite:///study.db; default: a journal in the study's folder",
    )
    add("--workers", metavar="N", type=integer, default=1, help="processes that run trials; default: 1")
    add("--sampler", metavar="NAME", help="tpe, random, grid or gp; default: tpe, or grid with --grid")
    add("--pruner", metavar="NAME", help="median, asha or none; default: median, or none with --grid")
    add(
        "--hparams",
        metavar="FILE",
        help="settings by env id: where the search starts, and what it is compared with; default: the shipped preset",
    )
    add("--space", metavar="FILE", help="the ranges to search, see below; default: those shipped for the algorithm")
    add(
        "--grid",
        metavar="KEY=A,B,C",
        action="append",
        default=[],
        help="try exactly these values; several --grid: all combinations; default: none",
    )
    add("--objective", metavar="WHAT",
        help="sum or min of all agents' returns, an agent, a custom metric or any metric; default: sum")  # fmt: skip
    add("--mode", metavar="M", help="max or min; default: max")
    add("--over", metavar="WHICH",
        help="which evaluations of a trial count: last, best or mean_of_last_K; default: last")  # fmt: skip
    add(
        "--evaluations",
        metavar="N",
        type=integer,
        help="evaluations of a trial, equally spaced; default: 10, or fewer in a short trial",
    )
    add("--evaluation-episodes", metavar="N", type=integer, help="episodes of an evaluation; default: 10")
    add("--confirm-seeds", metavar="K", type=integer, default=0,
        help="train the best trials and the preset again with K fresh seeds each; default: 0, none")  # fmt: skip
    add(
        "--confirm-best",
        metavar="B",
        type=integer,
        default=1,
        help="how many trials --confirm-seeds trains again; default: 1",
    )
    add(
        "--policies",
        choices=["shared", "per_agent"],
        help="one policy for all agents, or one for each; default: as in the preset, else shared",
    )
    add("--algo", metavar="NAME", type=algorithm_name, help="algorithm: ppo or a2c; default: ppo")
    add("--vectorizer", metavar="NAME", help="auto, batched, sync or supersuit; default: auto")
    add("--device", metavar="NAME", help="auto, cpu or cuda; default: auto")
    add("--seed", metavar="S", type=integer, help="seed of the search; default: 0")
    add("--set", metavar="KEY=VALUE", dest="settings", action="append", default=[],
        help="fix a setting in every trial; may be repeated; default: none")  # fmt: skip
    add("--quiet", action="store_true", help="print the study's folder alone; default: off")
    add_verbosity(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _tune(arguments), arguments.verbosity)


def _tune(arguments: argparse.Namespace) -> int:
    setup_logging(arguments.verbosity)
    from marl_sb3.display.screen import standard_console

    console = standard_console()
    with without_collections():
        from marl_sb3.tuning.run_search import require_trainable_preset
    from marl_sb3.tuning.search import require_integer

    for name, minimum in (("workers", 1), ("confirm_seeds", 0), ("confirm_best", 1)):
        require_integer(name, getattr(arguments, name), minimum)
    study = _study(arguments)
    if arguments.confirm_seeds:
        require_trainable_preset(study)
    if not arguments.quiet:
        console.print(f"{_begun(study)}: {study.folder}", soft_wrap=True, markup=False)
    try:
        _run(study, arguments, console)
    except BaseException:
        _print_what_there_is(study, arguments, console)
        raise
    _finish(study, arguments, console)
    if not study.completed():
        raise _nothing_trained(study)
    print(study.folder, flush=True)
    return EXIT_DONE


def _begun(study: TuneStudy) -> str:
    """Whether a study is new, in words."""
    if not study.continued:
        return f"new study {study.search.name}"
    return f"continuing study {study.search.name}, {study.n_done()} of {study.search.trials} trials done"


def _study(arguments: argparse.Namespace) -> TuneStudy:
    from marl_sb3.tuning.api import prepare_study

    settings = assignments("--set", arguments.settings)
    own = ("env", "env_option", "workers", "confirm_seeds", "confirm_best", "verbosity", "quiet", "settings")
    options = {name: value for name, value in vars(arguments).items() if name not in own}
    return prepare_study(named_env(arguments), **options, settings=settings)


def _run(study: TuneStudy, arguments: argparse.Namespace, console: Console) -> None:
    from marl_sb3.tuning.api import run_study

    shown = None if arguments.quiet else console
    run_study(study, arguments.workers, arguments.confirm_seeds, arguments.confirm_best, console=shown)


def _finish(study: TuneStudy, arguments: argparse.Namespace, console: Console) -> None:
    """Write the files of the study, and show what came out."""
    from marl_sb3.tuning.report import write_files
    from marl_sb3.tuning.view import print_outcome

    if arguments.quiet:
        write_files(study)
    else:
        print_outcome(console, study)


def _print_what_there_is(study: TuneStudy, arguments: argparse.Namespace, console: Console) -> None:
    """After an interruption or an error, which is told last, and ends the command whatever happens here."""
    try:
        _finish(study, arguments, console)
    except Exception as error:  # of a full disk, say
        console.print(f"what there is so far cannot be written: {error}", soft_wrap=True, markup=False)
    if arguments.quiet:
        return
    env, name = (shlex.quote(text) for text in (study.search.env, study.search.name))
    storage = study.search.to_plain()["storage"]
    named = f" --storage {shlex.quote(storage)}" if storage else ""
    again = ("workers", "confirm_seeds", "confirm_best")
    default = build_parser().parse_args([])
    said = [name for name in again if getattr(arguments, name) != getattr(default, name)]
    options = "".join(f" --{name.replace('_', '-')} {getattr(arguments, name)}" for name in said)
    words = f"continue with: python -m marl_sb3.tune {env} --study {name}{named}{options}"
    console.print(words, soft_wrap=True, markup=False)


def _nothing_trained(study: TuneStudy) -> Exception:
    from marl_sb3.tuning.trial_rows import error_text, see_traceback, states
    from marl_sb3.tuning.workers import SearchError

    trials = study.trials
    last = next((trial for trial in reversed(trials) if error_text(trial)), None)
    words = "no error" if last is None else f"{error_text(last)}{see_traceback(last)}"
    return SearchError(f"no trial was trained to its end: {states(trials)}; the last error: {words}")


if __name__ == "__main__":
    sys.exit(main())

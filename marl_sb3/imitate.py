"""`python -m marl_sb3.imitate`: train the policies of a new run to act as recorded episodes do.

The function `marl_sb3.imitate(...)` of the library is `marl_sb3.runs.imitate.imitate`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_sb3.cli import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    CommandParser,
    add_env_option,
    add_hparams,
    add_setting,
    add_setup_options,
    add_verbosity,
    assignments,
    integer,
    named_env,
)
from marl_sb3.errors import ConfigError
from marl_sb3.runs import TRACKERS
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.runs import Run

_EPILOG = """\
DATA is what train --record or evaluate --record wrote: each policy learns the
actions of its agents, whichever policy they had. Or it is the folder of a
Minari dataset of a Gymnasium env.

examples
  python -m marl_sb3.imitate recorded --env arena
  python -m marl_sb3.imitate recorded --env arena --policies per_agent --seed 1
  python -m marl_sb3.imitate recorded/agent/data --env Pendulum-v1 --algo sac
  python -m marl_sb3.train arena --init-from RUN      (goes on from the clone)

exit codes: 0 done, 1 failed, 2 wrong command line, settings or data, 130
interrupted
"""

_OPTIONS = ("epochs", "batch_size", "learning_rate", "validation", "patience", "entropy_coefficient")
_OF_RUN = ("algo", "hparams", "trust_file", "settings", "policies", "n_envs", "seed", "device", "run_dir")
_NOT_WITH_RESUME = (*_OF_RUN, *_OPTIONS)


def build_parser() -> CommandParser:
    """Make the parser of `imitate`."""
    parser = CommandParser(
        "python -m marl_sb3.imitate",
        "DATA --env ENV [options] | --resume RUN",
        description="Train policies to act as recorded episodes do: behaviour cloning.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "data",
        metavar="DATA",
        type=Path,
        nargs="?",
        help="a folder of recorded episodes, or a Minari dataset; with --resume, by default that of the run",
    )
    parser.section("what is trained")
    add_env_option(parser, also_positional=False, words="the env that the data are of; default: the one in --hparams")
    add_setup_options(parser)
    add_setting(parser, "--seed S", "seed", "random, written to config.yaml", type=integer)
    parser.repeated("--set KEY=VALUE", "change a setting, as in train; may be repeated; default: none", dest="settings")
    add_hparams(parser)
    parser.section("how it is trained")
    parser.option("--epochs N", "most passes over the data; default: 100", type=integer)
    parser.option("--batch-size N", "transitions in a minibatch; default: 256", type=integer)
    parser.option("--learning-rate X", "of Adam; default: 0.001", type=float)
    parser.option(
        "--validation X",
        "share of the episodes that are kept apart, and decide when to stop; default: 0.1",
        type=float,
    )
    parser.option(
        "--patience N", "passes without a lower loss of these after which a policy is done; default: 10", type=integer
    )
    parser.option(
        "--entropy-coefficient X",
        "how much of the policy's entropy is taken off its loss; default: 0",
        type=float,
    )
    add_setting(parser, "--device NAME", "device")
    parser.section("run folder and output")
    parser.option("--run-dir DIR", "folder of the run, new or empty; default: runs/ENV/TIME-XXXX")
    parser.option("--resume RUN", "go on with this cloning, from its newest checkpoint; default: a new run")
    add_setting(parser, "--checkpoint-every K", "checkpoints.every", type=integer)
    parser.option(
        "--track TRACKER",
        f"send metrics, settings and checkpoints to {', '.join(TRACKERS[:-1])} or {TRACKERS[-1]}; may be repeated; "
        "default: none",
        action="append",
        choices=TRACKERS,
    )
    parser.option("--quiet", "print the run folder alone; default: off")
    add_verbosity(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_imitate, argv)


def _imitate(arguments: argparse.Namespace) -> int:
    from marl_sb3.runs import load_config

    if arguments.resume is not None:
        return _resume(arguments)
    if arguments.data is None:
        raise ConfigError("DATA is missing; accepted: a folder of recorded episodes, or --resume RUN", key="data")
    names = ("policies", "n_envs", "seed", "device", "checkpoint_every", "track")
    config = load_config(
        named_env(arguments),
        arguments.algo,
        arguments.hparams,
        assignments("--set", arguments.settings),
        trust_file=arguments.trust_file,
        **{name: getattr(arguments, name) for name in names},
    )
    with without_collections():  # takes seconds: wrong options are refused before
        from marl_sb3.extensions.data import CloningOptions
        from marl_sb3.runs import clone

    given = {name: getattr(arguments, name) for name in _OPTIONS}
    options = CloningOptions(**{name: value for name, value in given.items() if value is not None})
    return _ended(clone(config, arguments.data, options, arguments.run_dir, quiet=arguments.quiet))


def _resume(arguments: argparse.Namespace) -> int:
    changed = [name for name in _NOT_WITH_RESUME if getattr(arguments, name) not in (None, False, [])]
    if changed:
        words = f"--{changed[0].replace('_', '-')} cannot change a cloning that goes on"
        accepted = "DATA, --env, --import, --checkpoint-every, --track, --quiet, -v"
        raise ConfigError(f"{words}; accepted with --resume: {accepted}", key=changed[0])
    with without_collections():
        from marl_sb3.runs import resume_clone

    names = ("checkpoint_every", "track")
    changes = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    return _ended(
        resume_clone(arguments.resume, arguments.data, named_env(arguments), quiet=arguments.quiet, **changes)
    )


def _ended(run: Run) -> int:
    print(run.files.shown, flush=True)
    return EXIT_INTERRUPTED if run.interrupted else EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

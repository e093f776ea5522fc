"""`python -m marl_sb3.watch`: see the policies of a run play, in a window or a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_sb3.cli import EXIT_DONE, CommandParser, add_checkpoint, add_env_option, add_verbosity, integer, named_env
from marl_sb3.errors import ConfigError
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.tools.looking import WatchPlan

_VIEWS = ("window", "terminal")

_EPILOG = """\
RUN is a run folder, or a folder of runs, for the newest run in it. ENV is the
name of an env: its newest run in runs/ is watched, or with --random the env
itself, which needs no run.

A window needs a display and an env with render mode rgb_array or human. In a
terminal, the arena and Waterworld are drawn with characters, and other envs as
coarse pictures or as the text that they render.

keys
  space  pause, and go on        n  one step
  +, -   faster, slower          q  quit
They work in the window and in the terminal; an env that has only render mode
human takes them from the terminal.

examples
  python -m marl_sb3.watch arena
  python -m marl_sb3.watch runs/arena/20260101-120000-abcd --checkpoint 12
  python -m marl_sb3.watch CartPole-v1 --random --fps 30

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


def build_parser() -> CommandParser:
    """Make the parser of `watch`."""
    parser = CommandParser(
        "python -m marl_sb3.watch",
        "RUN|ENV [options]",
        description="See the policies of a run play, in a window or a terminal.",
        epilog=_EPILOG,
    )
    parser.add_argument("run", metavar="RUN|ENV", help="a run folder, a folder of runs, or the name of an env")
    add_checkpoint(parser)
    parser.option("--episodes N", "number of episodes; default: 5", type=integer, default=5)
    parser.option("--fps X", "env steps per second; default: as the env says, else 10", type=float)
    parser.option("--random", "take random actions; default: those of the policies")
    parser.option(
        "--view PLACE",
        "window or terminal; default: a window if one can be opened, else the terminal",
        choices=_VIEWS,
        metavar="PLACE",
    )
    parser.option("--stochastic", "sample the actions, as in training; default: the run's setting")
    parser.option(
        "--seed S", "seed of the episodes and of sampled actions; default: derived from the run's seed", type=integer
    )
    add_env_option(parser, also_positional=False)
    add_verbosity(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_watch, argv)


def require_accepted(arguments: argparse.Namespace) -> None:
    """Refuse numbers that are not accepted, and options that do not go together."""
    from marl_sb3.core.config import at_least, require

    require("--episodes", arguments.episodes, at_least(1))
    if arguments.seed is not None:
        require("--seed", arguments.seed, at_least(0))
    if arguments.fps is not None and not 0.1 <= arguments.fps <= 1000:
        raise ConfigError(f"--fps is {arguments.fps:g}; accepted: 0.1 to 1000", key="--fps")
    if arguments.random:
        for name in ("checkpoint", "stochastic"):
            if getattr(arguments, name):
                raise ConfigError(f"--random takes no actions of policies; --{name} does not go with it", key=name)


def _watch(arguments: argparse.Namespace) -> int:
    require_accepted(arguments)
    with without_collections():
        from marl_sb3.tools.looking.watch import watch
    plan, title = _plan(arguments)
    watch(plan, title).print(title)
    return EXIT_DONE


def _plan(arguments: argparse.Namespace) -> tuple[WatchPlan, str]:
    """Return what to watch, and what it is called."""
    from marl_sb3.extensions.store import runs_of
    from marl_sb3.runs import find_run_or_env

    folder = find_run_or_env(arguments.run)
    if folder is not None:
        if folder.as_posix() != arguments.run.rstrip("/"):
            print(f"newest run of {arguments.run}: {folder}", file=sys.stderr)
        return _plan_of_run(arguments, str(folder))
    if not arguments.random:
        words = f"{arguments.run!r} is no run folder, and {runs_of(arguments.run)} has no run of an env of this name"
        raise ConfigError(f"{words}; accepted: a run, or an env with --random", key="run")
    from marl_sb3.tools.looking import WatchPlan

    env = named_env(arguments) or arguments.run
    shown = {"fps": arguments.fps, "place": arguments.view}
    return WatchPlan(env, {}, None, arguments.episodes, seed=arguments.seed, **shown), env


def _plan_of_run(arguments: argparse.Namespace, folder: str) -> tuple[WatchPlan, str]:
    from marl_sb3.evaluation import EvaluationPlan
    from marl_sb3.runs import SavedRun, env_of, env_settings
    from marl_sb3.tools.looking import WatchPlan

    run = SavedRun.open(folder, named_env(arguments))
    asked = False if arguments.stochastic else None
    plan = EvaluationPlan.of_run(run.config, arguments.episodes, asked, arguments.seed, n_envs=1)
    found = WatchPlan(
        env_of(run.config),
        env_settings(run.config),
        None if arguments.random else lambda env: run.policies(arguments.checkpoint, env),
        plan.n_episodes,
        plan.deterministic,
        plan.seed,
        fps=arguments.fps,
        place=arguments.view,
    )
    return found, f"{run.config.env}, {run.files.shown}"


if __name__ == "__main__":
    sys.exit(main())

"""The command line of `python -m marl_sb3.evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from marl_sb3.cli.parser import CommandParser, add_env_option, add_run, add_verbosity, integer
from marl_sb3.errors import ConfigError

_EPILOG = """\
Without --stochastic, --deterministic or --stochastic-policies, the run's
setting evaluation.deterministic decides; the first line of the output says
which.

The episodes are not those of the training run. The same command plays the same
episodes again; another --seed plays others. The number of episodes of each env
is fixed beforehand, so that short episodes are not favoured.

examples
  python -m marl_sb3.evaluate runs/arena/20260101-120000-abcd
  python -m marl_sb3.evaluate RUN --episodes 100 --stochastic --seed 7
  python -m marl_sb3.evaluate RUN --checkpoint 12 --video games.gif

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


_ACTIONS = ("--stochastic", "--deterministic", "--stochastic-policies")


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of `evaluate`."""
    parser = CommandParser(
        "python -m marl_sb3.evaluate",
        "RUN [options]",
        description="Let the policies of a run play episodes, and print their returns.",
        epilog=_EPILOG,
    )
    add_run(parser)
    parser.option("--episodes N", "number of complete episodes; default: 20", type=integer, default=20)
    parser.option("--stochastic", "sample the actions, as in training; default: the run's setting")
    parser.option("--deterministic", "take the most likely actions; default: the run's setting")
    parser.option(
        "--stochastic-policies A,B",
        "sample the actions of these policies, and take the most likely ones of all others; default: the run's setting",
        type=lambda text: text.split(","),
    )
    parser.option(
        "--video FILE", "write a video of the first episode of env 0, as .gif or .mp4; default: none", type=Path
    )
    parser.option("--video-episodes N", "number of episodes of env 0 in the video; default: 1", type=integer)
    parser.option(
        "--seed S", "seed of the episodes and of sampled actions; default: derived from the run's seed", type=integer
    )
    parser.option(
        "--n-envs E", "envs that step together; default: as in the run, but no more than episodes", type=integer
    )
    add_env_option(parser, also_positional=False)
    parser.option("--json", "print one JSON object alone; default: a table")
    add_verbosity(parser)
    return parser


def require_accepted(arguments: argparse.Namespace) -> None:
    """Refuse numbers that no run accepts."""
    from marl_sb3.config.values import at_least, require

    minima = {"episodes": 1, "n_envs": 1, "video_episodes": 1, "seed": 0}
    for name, minimum in minima.items():
        value = getattr(arguments, name)
        if value is not None:
            require(f"--{name.replace('_', '-')}", value, at_least(minimum))
    given = [option for option in _ACTIONS if getattr(arguments, option.strip("-").replace("-", "_"))]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are given; accepted: one of them", key=given[1])
    if arguments.video is None and arguments.video_episodes is not None:
        raise ConfigError("--video-episodes needs --video FILE", key="--video-episodes")
    if film_episodes(arguments) > arguments.episodes:
        words = f"--video-episodes is {arguments.video_episodes}; accepted: 1 to --episodes, {arguments.episodes}"
        raise ConfigError(words, key="--video-episodes")


def film_episodes(arguments: argparse.Namespace) -> int:
    """Return the number of episodes of env 0 to film."""
    return 0 if arguments.video is None else arguments.video_episodes or 1

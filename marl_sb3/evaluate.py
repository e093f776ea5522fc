"""`python -m marl_sb3.evaluate`: let the policies of a run play, print how well they do, record them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from marl_sb3.cli import EXIT_DONE, CommandParser, add_env_option, add_run, add_verbosity, found_run, integer, named_env
from marl_sb3.errors import ConfigError
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from marl_sb3.core.mapping import Deterministic
    from marl_sb3.evaluation import EvaluationPlan
    from marl_sb3.runs import EvaluatedRun


# --- The command line ------------------------------------------------------------------------------------------------


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
  python -m marl_sb3.evaluate RUN --against random --episodes 200

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


_ACTIONS = ("--stochastic", "--deterministic", "--stochastic-policies")


def build_parser() -> CommandParser:
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
        "--against WHO",
        "random, or MODULE:CLASS of a player of yours: plays all agents but one, which its policy plays; each agent in "
        "turn; default: all agents are played by their policies",
    )
    parser.repeated(
        "--agents A,B",
        "with --against: the agents that are played by their policies, together; may be repeated; default: each alone",
        type=lambda text: text.split(","),
    )
    parser.option(
        "--video FILE", "write a video of the first episode of env 0, as .gif or .mp4; default: none", type=Path
    )
    parser.option(
        "--record DIR",
        "record the episodes, as one Minari dataset for each policy, in a new or empty folder; default: nothing is "
        "recorded",
    )
    parser.option("--video-episodes N", "number of episodes of env 0 in the video; default: 1", type=integer)
    parser.option(
        "--seed S", "seed of the episodes and of sampled actions; default: derived from the run's seed", type=integer
    )
    parser.option(
        "--n-envs E", "envs that step together; default: as in the run, but no more than episodes", type=integer
    )
    parser.option(
        "--on DATA",
        "play nothing: estimate the policies, which sample their actions, from the recorded episodes of others; "
        "default: none",
    )
    parser.option("--gamma G", "discount factor of the estimates; default: 1", type=float)
    add_env_option(parser, also_positional=False)
    parser.option("--json", "print one JSON object alone; default: a table")
    add_verbosity(parser)
    return parser


def require_accepted(arguments: argparse.Namespace) -> None:
    """Refuse numbers that no run accepts."""
    from marl_sb3.core.config import at_least, require

    minima = {"episodes": 1, "n_envs": 1, "video_episodes": 1, "seed": 0}
    for name, minimum in minima.items():
        value = getattr(arguments, name)
        if value is not None:
            require(f"--{name.replace('_', '-')}", value, at_least(minimum))
    given = [option for option in _ACTIONS if getattr(arguments, option.strip("-").replace("-", "_"))]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} are given; accepted: one of them", key=given[1])
    if arguments.on is None and arguments.gamma is not None:
        raise ConfigError("--gamma needs --on DATA: returns of played episodes are not discounted", key="--gamma")
    if arguments.video is None and arguments.video_episodes is not None:
        raise ConfigError("--video-episodes needs --video FILE", key="--video-episodes")
    if arguments.against is None and arguments.agents:
        raise ConfigError("--agents needs --against WHO", key="--agents")
    if arguments.against is not None and arguments.record is not None:
        words = "--record does not go with --against: the actions of opponents are those of no policy"
        raise ConfigError(f"{words}; accepted: one of them", key="--record")
    if (arguments.video_episodes or 0) > arguments.episodes:
        words = f"--video-episodes is {arguments.video_episodes}; accepted: 1 to --episodes, {arguments.episodes}"
        raise ConfigError(words, key="--video-episodes")


# --- The command -----------------------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_evaluate, argv)


def _evaluate(arguments: argparse.Namespace) -> int:
    require_accepted(arguments)
    if arguments.on is not None:
        return _estimate(arguments)
    evaluated = _play(arguments)
    actions = _actions(arguments, evaluated.plan)
    if arguments.json:
        print(json.dumps(evaluated.to_plain(actions), allow_nan=False), flush=True)
    else:
        evaluated.print(actions)
    return EXIT_DONE


_NOT_WITH_ON = ("deterministic", "stochastic_policies", "against", "video", "record", "seed", "n_envs")


def _estimate(arguments: argparse.Namespace) -> int:
    for name in _NOT_WITH_ON:
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"--on plays no episode: {option} does not go with it; accepted: --gamma", key=option)
    folder = found_run(arguments.run)
    with without_collections():
        from marl_sb3.runs import SavedRun, estimate_run

        run = SavedRun.open(folder, named_env(arguments))
    found = estimate_run(run, arguments.on, arguments.checkpoint, 1.0 if arguments.gamma is None else arguments.gamma)
    if arguments.json:
        print(json.dumps(found.to_plain(), allow_nan=False), flush=True)
    else:
        found.print()
    return EXIT_DONE


def _play(arguments: argparse.Namespace) -> EvaluatedRun:
    with ExitStack() as cleanup:
        if arguments.json:  # what envs print must not be mixed with the JSON object
            cleanup.enter_context(redirect_stdout(sys.stderr))
        video = None
        if arguments.video is not None:
            from marl_sb3.extensions.display import VideoFile

            video = cleanup.enter_context(VideoFile(arguments.video))
        folder = found_run(arguments.run)
        with without_collections():  # the imports take seconds: wrong options are refused before
            from marl_sb3.evaluation import EvaluationPlan
            from marl_sb3.runs import SavedRun, evaluate_run

            run = SavedRun.open(folder, named_env(arguments))
        filmed = 0 if video is None else arguments.video_episodes or 1
        plan = EvaluationPlan.of_run(
            run.config, arguments.episodes, _asked(arguments), arguments.seed, arguments.n_envs, film_episodes=filmed
        )
        plan = replace(plan, against=arguments.against, seats=arguments.agents or None)
        return evaluate_run(run, plan, arguments.checkpoint, video, arguments.record)


def _asked(arguments: argparse.Namespace) -> Deterministic | None:
    """Return the actions that the options ask for; None if there is no such option."""
    if arguments.stochastic_policies is not None:
        return dict.fromkeys(arguments.stochastic_policies, False)
    return arguments.deterministic or (False if arguments.stochastic else None)


def _actions(arguments: argparse.Namespace, plan: EvaluationPlan) -> str:
    """Describe which actions the policies took, and which option or setting decided it."""
    if isinstance(plan.deterministic, bool):
        which = "the most likely actions" if plan.deterministic else "sampled actions"
    else:
        sampling = ", ".join(policy_id for policy_id, likeliest in plan.deterministic.items() if not likeliest)
        which = f"sampled actions of {sampling or 'no policy'}, the most likely ones of all others"
    for option in ("stochastic", "deterministic", "stochastic_policies"):
        if getattr(arguments, option):
            return f"{which} (--{option.replace('_', '-')})"
    return f"{which} (the run has evaluation.deterministic: {json.dumps(plan.deterministic)})"


if __name__ == "__main__":
    sys.exit(main())

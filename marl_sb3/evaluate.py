"""`python -m marl_sb3.evaluate`: let the policies of a run play, print how well they do, film them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_sb3.cli import (
    EXIT_DONE,
    CommandParser,
    add_env_option,
    add_verbosity,
    integer,
    named_env,
    run_command,
    setup_logging,
    tell_run,
)
from marl_sb3.config.values import counted
from marl_sb3.errors import ConfigError
from marl_sb3.startup import without_collections

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from marl_sb3.config import TrainConfig
    from marl_sb3.display.video import VideoFile
    from marl_sb3.evaluation import Evaluation
    from marl_sb3.runs.run import Run
    from marl_sb3.vec_env import MultiAgentVecEnv

_EPILOG = """\
Without --stochastic or --deterministic, the run's setting
evaluation.deterministic decides; the first line of the output says which.

The episodes are not those of the training. The same command plays the same
episodes; another --seed plays others. How many episodes each env plays is fixed
beforehand, so that short episodes are not favoured.

examples
  python -m marl_sb3.evaluate runs/arena/20260101-120000-abcd
  python -m marl_sb3.evaluate RUN --episodes 100 --stochastic --seed 7
  python -m marl_sb3.evaluate RUN --checkpoint 12 --video film.gif

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = CommandParser(
        prog="python -m marl_sb3.evaluate",
        description="Let the policies of a run play episodes, and print their returns.",
        epilog=_EPILOG,
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run folder, or a folder of runs: the newest")
    parser.add_argument("--episodes", metavar="N", type=integer, default=20, help="complete episodes; default: 20")
    actions = parser.add_mutually_exclusive_group()
    actions.add_argument(
        "--stochastic", action="store_true", help="sample the actions, as in training; default: as the run says"
    )
    actions.add_argument(
        "--deterministic", action="store_true", help="take the most likely actions; default: as the run says"
    )
    parser.add_argument(
        "--checkpoint", metavar="WHICH", default="best", help="best, latest or an iteration; default: best"
    )
    parser.add_argument(
        "--video", metavar="FILE", type=Path, help="film the first episode of env 0, as .gif or .mp4; default: no film"
    )
    parser.add_argument(
        "--video-episodes", metavar="N", type=integer, help="how many episodes of env 0 are filmed; default: 1"
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=integer,
        help="seed of the episodes and of sampled actions; default: derived from the run's seed",
    )
    parser.add_argument(
        "--n-envs",
        metavar="E",
        type=integer,
        help="envs that step together; default: as in the run, but no more than episodes",
    )
    add_env_option(parser, also_positional=False)
    parser.add_argument("--json", action="store_true", help="print one JSON object alone; default: a table")
    add_verbosity(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = build_parser().parse_args(argv)
    return run_command(lambda: _evaluate(arguments), arguments.verbosity)


@dataclass(frozen=True)
class _Plan:
    """What is to be done, with every default filled in.

    Attributes:
        run: the run, with the weights of the checkpoint.
        episodes: complete episodes.
        deterministic: whether actions are the most likely ones.
        actions: the same in words, and what said so.
        seed: of the episodes and the actions.
        n_envs: E.
        film_episodes: how many episodes of env 0 are filmed.
    """

    run: Run
    episodes: int
    deterministic: bool
    actions: str
    seed: int
    n_envs: int
    film_episodes: int


def _evaluate(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    errors = Console(stderr=True, highlight=False)
    setup_logging(arguments.verbosity)
    _check(arguments)
    with ExitStack() as cleanup:
        if arguments.json:  # whatever envs and what they draw with print
            cleanup.enter_context(redirect_stdout(sys.stderr))
        video = None if arguments.video is None else cleanup.enter_context(_video_file(arguments.video))
        with without_collections():
            plan = _plan(arguments)
        cleanup.callback(plan.run.algorithm.env.close)
        env = cleanup.enter_context(closing(_make_env(plan, video)))
        evaluation = _play(plan, env, video, errors)
    if arguments.json:
        print(json.dumps(_as_json(plan, evaluation, video), allow_nan=False), flush=True)
    else:
        _print(Console(highlight=False), plan, evaluation, video)
    return EXIT_DONE


def _check(arguments: argparse.Namespace) -> None:
    """What can be refused without anything else."""
    from marl_sb3.config.values import integer

    for option, value in (
        ("--episodes", arguments.episodes),
        ("--n-envs", arguments.n_envs),
        ("--video-episodes", arguments.video_episodes),
    ):
        if value is not None:
            integer(1).require(option, value)
    if arguments.seed is not None:
        integer(0).require("--seed", arguments.seed)
    if arguments.video is None and arguments.video_episodes is not None:
        raise ConfigError("--video-episodes needs --video FILE", key="--video-episodes")


def _video_file(path: Path) -> VideoFile:
    from marl_sb3.display.video import VideoFile

    return VideoFile(path)


def _plan(arguments: argparse.Namespace) -> _Plan:
    from marl_sb3.runs.folder import find_run

    filmed = 0 if arguments.video is None else arguments.video_episodes or 1
    if filmed > arguments.episodes:
        raise ConfigError(f"--video-episodes is {filmed}; accepted: 1 to --episodes, {arguments.episodes}")
    folder = find_run(arguments.run)
    tell_run(arguments.run, folder)
    from marl_sb3.evaluation import evaluation_seed
    from marl_sb3.runs.restore import restore  # takes seconds: after what can be refused without it

    run = restore(folder, arguments.checkpoint, named_env(arguments))
    assert run.config.seed is not None, "a run has drawn its seed when it begins"
    # Each env plays the same number, give or take one: few enough envs for env 0 to play those that are filmed.
    most = arguments.episodes // filmed if filmed else arguments.episodes
    n_envs = arguments.n_envs or min(run.config.n_envs, most)
    if n_envs > most and filmed:
        raise ConfigError(
            f"--video-episodes is {filmed}, but in {n_envs} envs env 0 plays {arguments.episodes // n_envs} of the "
            f"{arguments.episodes} episodes; accepted: --n-envs up to {most}",
            key="--n-envs",
        )
    seed = evaluation_seed(run.config.seed) if arguments.seed is None else arguments.seed
    deterministic, actions = _chosen_actions(arguments, run.config)
    return _Plan(run, arguments.episodes, deterministic, actions, seed, n_envs, filmed)


def _chosen_actions(arguments: argparse.Namespace, config: TrainConfig) -> tuple[bool, str]:
    """Whether actions are the most likely ones; and the same in words, with what says so."""
    if arguments.stochastic:
        return False, "sampled actions (--stochastic)"
    if arguments.deterministic:
        return True, "the most likely actions (--deterministic)"
    which = "the most likely actions" if config.evaluation.deterministic else "sampled actions"
    setting = str(config.evaluation.deterministic).lower()
    return config.evaluation.deterministic, f"{which} (the run has evaluation.deterministic: {setting})"


def _make_env(plan: _Plan, video: VideoFile | None) -> MultiAgentVecEnv:
    from marl_sb3.vec_env import make_vec_env

    config = plan.run.config
    if video is None:
        return plan.run.make_env(plan.n_envs, plan.seed)
    from marl_sb3.wrappers.filmed_env import filming_factory

    factory = filming_factory(config.env, video.add, plan.film_episodes)
    env = make_vec_env(factory, plan.n_envs, plan.seed, **config.env_kwargs)
    video.fps = env.metadata.get("render_fps") or video.fps
    return env


def _play(plan: _Plan, env: MultiAgentVecEnv, video: VideoFile | None, errors: Console) -> Evaluation:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from marl_sb3.evaluation import play_episodes

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as progress:
        playing = progress.add_task("episodes", total=plan.episodes)
        evaluation = play_episodes(
            plan.run.algorithm,
            env,
            plan.episodes,
            plan.deterministic,
            plan.seed,
            on_episode=lambda _: progress.advance(playing),
        )
        if video is not None:
            writing = progress.add_task("video frames", total=None)  # imageio does not say how far it is
            video.finish()
            progress.update(writing, total=video.num_frames, completed=video.num_frames)
    return evaluation


# --- What is shown ---------------------------------------------------------------------------------------------------


def _as_json(plan: _Plan, evaluation: Evaluation, video: VideoFile | None) -> dict[str, Any]:
    from marl_sb3.metrics.sample_stats import sample_stats

    agents = evaluation.metrics["agent_episode_returns_mean"]
    shown = {
        "run": str(plan.run.folder),
        "checkpoint": plan.run.checkpoint,
        "n_episodes": plan.episodes,
        "n_envs": plan.n_envs,
        "deterministic": plan.deterministic,
        "actions": plan.actions,
        "seed": plan.seed,
        "env_runners": evaluation.metrics,
        "episode_return": asdict(sample_stats(evaluation.returns())),
        "agent_episode_returns": {agent: asdict(sample_stats(evaluation.agent_returns(agent))) for agent in agents},
    }
    if video is not None:
        shown["video"] = {"file": str(video.path), "episodes": plan.film_episodes, "frames": video.num_frames}
    return shown


def _print(console: Console, plan: _Plan, evaluation: Evaluation, video: VideoFile | None) -> None:
    of_what = f"{plan.run.folder}, {plan.run.checkpoint}"
    how = f"{counted(plan.episodes, 'episode')} in {counted(plan.n_envs, 'env')}, {plan.actions}, seed {plan.seed}"
    console.print(f"{of_what}: {how}", soft_wrap=True, markup=False)
    console.print(_table(evaluation, console.width))
    if video is not None:
        what = f"{plan.film_episodes} of the episodes of env 0" if plan.film_episodes > 1 else "an episode of env 0"
        console.print(
            f"video: {video.path}, {what}, {counted(video.num_frames, 'frame')}", soft_wrap=True, markup=False
        )


_FIGURES = ("mean", "SD", "min", "max", "95 % CI of the mean")
_ENOUGH = 24  # characters of a label: figures that leave less are left out, the last of them first
_GAP = 2


def _table(evaluation: Evaluation, width: int) -> Table:
    """A row per agent, their sum, and below it what else is known of the episodes.

    Args:
        evaluation: what is shown.
        width: of the whole table, in characters. Where it is too small, figures are left out, and labels are cut;
            no number is.
    """
    from rich.table import Table
    from rich.text import Text

    rows = [(name, _figures(values)) for name, values in _samples(evaluation)]
    widths = [max(map(len, column)) for column in zip(_FIGURES, *(figures for _, figures in rows), strict=True)]
    longest = max(len(name) for name, _ in rows)
    while len(widths) > 1 and sum(widths) + _GAP * len(widths) + min(longest, _ENOUGH) > width:
        widths.pop()
    room = width - sum(widths) - _GAP * len(widths)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, _GAP // 2))
    table.add_column("per episode", no_wrap=True, overflow="ellipsis", width=max(1, min(longest, room)))
    for name, column_width in zip(_FIGURES, widths, strict=False):
        table.add_column(name, justify="right", no_wrap=True, min_width=column_width)
    for name, figures in rows:
        table.add_row(Text(name), *figures[: len(widths)], style="bold" if name == _SUM else None)
    return table


_SUM = "sum of returns"


def _samples(evaluation: Evaluation) -> list[tuple[str, Sequence[float]]]:
    """The labels of the rows, and of each the values of all episodes."""
    agents = evaluation.metrics["agent_episode_returns_mean"]
    custom = [name.removesuffix("_mean") for name in evaluation.metrics["custom_metrics"] if name.endswith("_mean")]
    return [
        *((f"return of {agent}", evaluation.agent_returns(agent)) for agent in agents),
        (_SUM, evaluation.returns()),
        ("episode length", evaluation.lengths()),
        *((name, evaluation.custom(name)) for name in custom),
    ]


def _figures(values: Sequence[float]) -> list[str]:
    """Mean, standard deviation, extremes and confidence interval, as they are shown."""
    from marl_sb3.display.text import number
    from marl_sb3.metrics.sample_stats import sample_stats

    figures = sample_stats(values)
    interval = "-" if figures.ci95 is None else " to ".join(map(number, figures.ci95))
    return [*map(number, (figures.mean, figures.sd, figures.min, figures.max)), interval]


if __name__ == "__main__":
    sys.exit(main())

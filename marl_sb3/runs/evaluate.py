"""Evaluate the policies of a run by a plan, and film them: the work of `python -m marl_sb3.evaluate`."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.core.acting.actor import Acted, ActingWatcher
from marl_sb3.core.config.values import EXTERNAL, counted
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats, share_stats
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.game import GamePlan
from marl_sb3.evaluation.playing import (
    Evaluation,
    EvaluationPlan,
    SeatEvaluations,
    episodes_of_env,
    play_episodes,
    play_seats,
    seat_name,
    seats_of,
)
from marl_sb3.extensions.data.recorder import recorder_of
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import SUM_ROW, Samples, progress_bars, samples_table
from marl_sb3.extensions.display.text import one_line
from marl_sb3.files.paths import as_path
from marl_sb3.runs.building import env_of, make_envs
from marl_sb3.runs.rivals import short_name
from marl_sb3.runs.run import SavedRun
from marl_sb3.types import AgentID, Array, PolicyID

if TYPE_CHECKING:
    from marl_sb3.extensions.display.video import VideoFile
SUM = SUM_ROW.label


@dataclass(frozen=True)
class EvaluatedRun:
    """A run and the result of its evaluation."""

    folder: Path
    checkpoint: str | None
    checkpoint_why: str
    plan: EvaluationPlan
    evaluation: Evaluation | SeatEvaluations
    video: VideoFile | None
    hints: Sequence[str] = ()  # lines about episodes that were all the same

    def to_plain(self, actions: str) -> dict[str, Any]:
        """Return everything as plain data for JSON; `actions` describes the actions that were taken."""
        plan, played, video = self.plan, self.evaluation, {}
        if self.video is not None:
            film = {"file": str(self.video.path), "episodes": plan.film_episodes, "frames": self.video.num_frames}
            video = {"video": film}
        return {
            "run": str(self.folder),
            "checkpoint": self.checkpoint,
            "checkpoint_why": self.checkpoint_why,
            "n_episodes": plan.n_episodes,
            "n_envs": plan.n_envs,
            "deterministic": plan.deterministic,
            "actions": actions,
            "seed": plan.seed,
            **(_figures(played) if isinstance(played, Evaluation) else _figures_of_seats(played)),
            **video,
            **({"hints": list(self.hints)} if self.hints else {}),
        }

    def print(self, actions: str) -> None:
        """Print the evaluation in a line, a table of the values of all episodes, hints, and the path of the video."""
        plan, played, console = self.plan, self.evaluation, standard_console()
        how = f"{counted(plan.n_episodes, 'episode')} in {counted(plan.n_envs, 'env')}, {actions}, seed {plan.seed}"
        if isinstance(played, SeatEvaluations):
            how = f"against {one_line(played.opponent)}, each seat {how}"
        for line in filter(None, (f"{self.folder}, {self.checkpoint}: {how}", self.checkpoint_why)):
            console.print(line, soft_wrap=True)
        if isinstance(played, Evaluation):
            agents, names = played.metrics["agent_episode_returns_mean"], played.metrics["custom_metrics"]
            custom = [name.removesuffix("_mean") for name in names if name.endswith("_mean")]
            samples = samples_of(played, list(agents), custom)
        else:
            samples = samples_of_seats(played)
        console.print(samples_table(samples, console.width, bold=SUM))
        for hint in self.hints:
            console.print(hint, soft_wrap=True)
        if self.video is not None:
            several = f"{plan.film_episodes} of the episodes of env 0"
            what = several if plan.film_episodes > 1 else "an episode of env 0"
            frames = counted(self.video.num_frames, "frame")
            console.print(f"video: {self.video.path}, {what}, {frames}", soft_wrap=True)


class EpisodeDigests:
    """An `ActingWatcher` that finds out whether episodes are one and the same: what agents see, do and are paid."""

    def __init__(self) -> None:
        self.finished: list[set[int]] = []  # of each evaluation, the digests of its episodes

    def begin_episodes(self, step: VecStep) -> None:
        """See `ActingWatcher.begin_episodes`."""
        self._running = [0] * len(step.to_act)
        self.finished.append(set())

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """See `ActingWatcher.before_step`."""
        self._add(*step.observations, *actions)

    def _add(self, *groups: Any) -> None:
        """Add arrays, or dictionaries of them, whose first dimension is the envs, to the digests of their episodes."""
        if len(self.finished[-1]) > 1:  # two that differ are enough
            return
        for group in groups:
            for array in group.values() if isinstance(group, dict) else (group,):
                for env_index, digest in enumerate(self._running):
                    self._running[env_index] = zlib.crc32(array[env_index].tobytes(), digest)

    def after_step(self, step: VecStep) -> None:
        """See `ActingWatcher.after_step`."""
        self._add(step.rewards, step.terminated, step.truncated)
        for (env_index, _), seen in sorted(step.final_observations.items(), key=itemgetter(0)):
            for array in seen.values() if isinstance(seen, dict) else (seen,):
                self._running[env_index] = zlib.crc32(np.asarray(array).tobytes(), self._running[env_index])
        for env_index in np.flatnonzero(step.episode_done).tolist():
            self.finished[-1].add(self._running[env_index])
            self._running[env_index] = 0

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `ActingWatcher.restart_envs`; evaluations restore no episodes."""


def _hints(digests: EpisodeDigests, played: Evaluation | SeatEvaluations, plan: EvaluationPlan) -> list[str]:
    """Name the evaluations that played the same episode again and again."""
    evaluations = {"": played}
    if isinstance(played, SeatEvaluations):
        evaluations = {f"{seat_name(seat)}: ": each for seat, each in played.by_seat.items()}
    remedy = "" if plan.deterministic is False else "; --stochastic samples the actions"
    return [
        f"{seat}all {len(each.episodes)} episodes are one and the same: nothing in them was drawn at random{remedy}"
        for (seat, each), found in zip(evaluations.items(), digests.finished, strict=True)
        if isinstance(each, Evaluation)
        and len(each.episodes) > 1
        and len(found) == 1
        and all(episode.custom == each.episodes[0].custom for episode in each.episodes)
    ]


def evaluate_run(
    run: SavedRun,
    plan: EvaluationPlan,
    checkpoint: str | None = None,
    video: VideoFile | None = None,
    record: str | Path | None = None,
) -> EvaluatedRun:
    """Evaluate a run, and write the video; a progress bar is shown on standard error if that is a terminal.

    Args:
        checkpoint: see `CheckpointFolder.load`.
        video: of the first episodes of env 0; None: no video.
        record: new or empty folder in which the episodes are recorded, as one Minari dataset per policy. Of sampled
            actions there are log-probabilities and values, where a policy has them. None: nothing is recorded.

    Raises:
        ConfigError: the env cannot be filmed, or is not that of the training.
        EnvError: the env broke the `ParallelEnv` contract.
    """
    with closing(_make_env(run, plan, video)) as env, progress_bars() as bars, ExitStack() as cleanup:
        policies = run.policies(checkpoint, env)
        playing = bars.add_task("episodes", total=plan.n_episodes)
        digests = EpisodeDigests()
        watchers: list[ActingWatcher] = [digests]
        if record is not None:
            quotas = [episodes_of_env(index, env.num_envs, plan.n_episodes) for index in range(env.num_envs)]
            recorder, store = recorder_of(
                env, policies.policy_of, as_path("record", record), run.config.env, quotas=quotas
            )
            cleanup.callback(store.flush)
            watchers.append(recorder)
        options: dict[str, Any] = {
            "n_episodes": plan.n_episodes,
            "deterministic": plan.deterministic,
            "seed": plan.seed,
            "on_episode": lambda _: bars.advance(playing),
            "watchers": watchers,
            "with_log_probs": record is not None,
        }
        evaluation: Evaluation | SeatEvaluations
        if plan.against is None:
            evaluation = play_episodes(policies, env, **options)
        else:
            seats = seats_of(env.agents, plan.seats)
            bars.update(playing, total=plan.n_episodes * len(seats))
            evaluation = play_seats(policies, env, plan.against, seats, **options)
        if video is not None:
            writing = bars.add_task("video frames", total=None)  # imageio reports no progress
            video.finish()
            bars.update(writing, total=video.num_frames, completed=video.num_frames)
    why, hints = policies.checkpoint_why, _hints(digests, evaluation, plan)
    return EvaluatedRun(run.files.shown, policies.checkpoint, why, plan, evaluation, video, hints)


def _make_env(run: SavedRun, plan: EvaluationPlan, video: VideoFile | None) -> MultiAgentVecEnv:
    if video is None:
        return make_envs(run.config, n_envs=plan.n_envs, seed=plan.seed)
    from marl_sb3.extensions.display.filmed_env import filming_factory

    made_of, settings = env_of(run.config)
    factory = filming_factory(made_of, video.add, plan.film_episodes)
    env = make_vec_env(factory, plan.n_envs, plan.seed, **{**settings, "n_workers": 0})  # this process gets the frames
    video.fps = env.metadata.get("render_fps") or video.fps
    return env


def game_plan(run: SavedRun, deterministic: bool | None = None, seed: int | None = None) -> GamePlan:
    """Return how the env and the policies of a run are played live; the arguments are `EvaluationPlan.of_run`'s.

    Raises:
        ConfigError: clients step the env of the run.
    """
    if run.config.env == EXTERNAL:
        words = "clients step the env of this run, so that no episode can be played in it"
        raise ConfigError(f"{words}; accepted: another env with the same agents and spaces, as --env (env=)")
    plan = EvaluationPlan.of_run(run.config, 1, deterministic, seed)
    opposed = run.files.checkpoints.opposed() is not None
    (made_of, settings), name = env_of(run.config), short_name(run.at or run.files.shown)
    return GamePlan(made_of, settings, run.policies, plan.deterministic, plan.seed, name, opposed)


def _figures(evaluation: Evaluation) -> dict[str, Any]:
    agents = evaluation.metrics["agent_episode_returns_mean"]
    return {
        "env_runners": evaluation.metrics,
        "episode_return": asdict(sample_stats(evaluation.returns())),
        "agent_episode_returns": {agent: asdict(sample_stats(evaluation.agent_returns(agent))) for agent in agents},
    }


def _figures_of_seats(played: SeatEvaluations) -> dict[str, Any]:
    outcomes = played.outcomes()
    seats = {
        seat_name(seat): {
            "agents": list(seat),
            **{outcome: asdict(share_stats(values)) for outcome, values in outcomes.get(seat, {}).items()},
            **_figures(evaluation),
        }
        for seat, evaluation in played.by_seat.items()
    }
    return {"against": played.opponent, "seats": seats}


def samples_of_seats(played: SeatEvaluations) -> Samples:
    """Return the rows of a table: for each seat the shares of outcomes, its agents' returns and the lengths."""
    outcomes, rows = played.outcomes(), list[tuple[str, Sequence[float] | SampleStats]]()
    for seat, evaluation in played.by_seat.items():
        name = seat_name(seat)
        rows += [(f"{name}: {outcome}", share_stats(values)) for outcome, values in outcomes.get(seat, {}).items()]
        rows += [(f"{name}: return of {agent}", evaluation.agent_returns(agent)) for agent in seat]
        rows.append((f"{name}: episode length", evaluation.lengths()))
    return rows


def samples_of(evaluation: Evaluation, agents: Sequence[AgentID], custom: Sequence[str]) -> Samples:
    """Return the rows of a table of episodes: the returns, the lengths, and these custom metrics."""
    return [
        *((f"return of {agent}", evaluation.agent_returns(agent)) for agent in agents),
        (SUM, evaluation.returns()),
        ("episode length", evaluation.lengths()),
        *((name, evaluation.custom(name)) for name in custom),
    ]

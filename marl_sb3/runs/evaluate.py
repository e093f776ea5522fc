"""Evaluate the policies of a run by a plan, and film them: the work of `python -m marl_sb3.evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_sb3.core.acting.actor import ActingWatcher
from marl_sb3.core.config.values import counted
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats, share_stats
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.evaluation.game import GamePlan
from marl_sb3.evaluation.opponents import opponent_name
from marl_sb3.evaluation.played import Played, Seat, outcomes, seat_name
from marl_sb3.evaluation.playing import EvaluationPlan, episodes_of_env, play_seats, seats_of
from marl_sb3.extensions.data.recorder import recorder_of
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import SUM_ROW, progress_bars, samples_table
from marl_sb3.extensions.display.text import one_line
from marl_sb3.files.paths import as_path
from marl_sb3.runs.building import env_of, make_envs
from marl_sb3.runs.rivals import require_playable, short_name
from marl_sb3.runs.run import SavedRun

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
    played: Mapping[Seat, Played]  # see `play_seats`
    video: VideoFile | None

    @property
    def hints(self) -> list[str]:
        """Lines about the evaluations that played the same episode again and again."""
        remedy = "" if self.plan.deterministic is False else "; --stochastic samples the actions"
        words = f"episodes are one and the same: nothing in them was drawn at random{remedy}"
        alike = {f"{seat_name(seat)}: " if seat else "": each for seat, each in self.played.items() if each.alike}
        return [f"{seat}all {len(each.episodes)} {words}" for seat, each in alike.items()]

    def to_plain(self, actions: str) -> dict[str, Any]:
        """Return everything as plain data for JSON; `actions` describes the actions that were taken."""
        plan, video = self.plan, {}
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
            **({} if plan.against is None else {"against": opponent_name(plan.against)}),
            **_figures(self.played),
            **video,
            **({"hints": self.hints} if self.hints else {}),
        }

    def print(self, actions: str) -> None:
        """Print the evaluation in a line, a table of the values of all episodes, hints, and the path of the video."""
        plan, console, how = self.plan, standard_console(), self.plan.in_words(actions)
        if plan.against is not None:
            how = f"against {one_line(opponent_name(plan.against))}, each seat {how}"
        for line in filter(None, (f"{self.folder}, {self.checkpoint}: {how}", self.checkpoint_why)):
            console.print(line, soft_wrap=True)
        names = next(iter(self.played.values())).metrics["custom_metrics"]
        custom = [name.removesuffix("_mean") for name in names if name.endswith("_mean")]
        console.print(samples_table(samples_of(self.played, custom), console.width, bold=SUM))
        for hint in self.hints:
            console.print(hint, soft_wrap=True)
        if self.video is not None:
            several = f"{plan.film_episodes} of the episodes of env 0"
            what = several if plan.film_episodes > 1 else "an episode of env 0"
            frames = counted(self.video.num_frames, "frame")
            console.print(f"video: {self.video.path}, {what}, {frames}", soft_wrap=True)


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
        watchers: list[ActingWatcher] = []
        if record is not None:
            quotas = [episodes_of_env(index, env.num_envs, plan.n_episodes) for index in range(env.num_envs)]
            recorder, store = recorder_of(
                env, policies.policy_of, as_path("record", record), run.config.env, quotas=quotas
            )
            cleanup.callback(store.flush)
            watchers.append(recorder)
        if plan.against is not None:
            bars.update(playing, total=plan.n_episodes * len(seats_of(env.agents, plan.seats)))
        played = play_seats(
            policies,
            env,
            plan.against,
            plan.seats,
            n_episodes=plan.n_episodes,
            deterministic=plan.deterministic,
            seed=plan.seed,
            on_episode=lambda _: bars.advance(playing),
            watchers=watchers,
            with_log_probs=record is not None,
            compares=True,
        )
        if video is not None:
            writing = bars.add_task("video frames", total=None)  # imageio reports no progress
            video.finish()
            bars.update(writing, total=video.num_frames, completed=video.num_frames)
    return EvaluatedRun(run.files.shown, policies.checkpoint, policies.checkpoint_why, plan, played, video)


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
    require_playable(run.config)
    plan = EvaluationPlan.of_run(run.config, 1, deterministic, seed)
    opposed = run.files.checkpoints.opposed() is not None
    (made_of, settings), name = env_of(run.config), short_name(run.at or run.files.shown)
    return GamePlan(made_of, settings, run.policies, plan.deterministic, plan.seed, name, opposed)


def _figures(played: Mapping[Seat, Played]) -> dict[str, Any]:
    """Return the metrics and the statistics of the episodes, with an opponent by seat."""
    found = outcomes(played)
    of_seats = {
        seat_name(seat): {
            **({"agents": list(seat)} if seat else {}),
            **{outcome: asdict(share_stats(values)) for outcome, values in found.get(seat, {}).items()},
            "env_runners": each.metrics,
            "episode_return": asdict(sample_stats(each.returns())),
            "agent_episode_returns": {agent: asdict(sample_stats(each.agent_returns(agent))) for agent in each.agents},
        }
        for seat, each in played.items()
    }
    return of_seats[""] if () in played else {"seats": of_seats}


def samples_of(
    played: Mapping[Seat, Played], custom: Sequence[str] = (), most_agents: int | None = None
) -> list[tuple[str, SampleStats]]:
    """Return the rows of a table of episodes: returns and lengths, and with an opponent the shares of outcomes.

    Args:
        custom: the custom metrics that have a row, where there is no opponent.
        most_agents: how many of the agents have one; None: all.
    """
    found, rows = outcomes(played), list[tuple[str, SampleStats]]()
    for seat, each in played.items():
        of = f"{seat_name(seat)}: " if seat else ""
        rows += [(f"{of}{outcome}", share_stats(values)) for outcome, values in found.get(seat, {}).items()]
        values = {f"{of}return of {agent}": each.agent_returns(agent) for agent in (seat or each.agents)[:most_agents]}
        values |= {} if seat else {SUM: each.returns()}
        values[f"{of}episode length"] = [float(length) for length in each.lengths()]
        values |= {} if seat else {name: each.custom(name) for name in custom}
        rows += [(name, sample_stats(of_episodes)) for name, of_episodes in values.items()]
    return rows

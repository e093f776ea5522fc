"""Evaluate the policies of a run by a plan, and film them: the work of `python -m marl_sb3.evaluate`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_sb3.config.values import counted
from marl_sb3.data.recorder import EpisodeRecorder, recorder_of
from marl_sb3.display.screen import standard_console
from marl_sb3.display.tables import Samples, progress_bars, samples_table
from marl_sb3.errors import as_path
from marl_sb3.evaluation import Evaluation, EvaluationPlan, episodes_of_env, play_episodes
from marl_sb3.metrics.statistics import sample_stats
from marl_sb3.runs.build import env_of, env_settings, make_envs
from marl_sb3.runs.run import SavedRun
from marl_sb3.types import AgentID
from marl_sb3.vec_env import MultiAgentVecEnv, make_vec_env

if TYPE_CHECKING:
    from marl_sb3.display.video import VideoFile

SUM = "sum of returns"


@dataclass(frozen=True)
class EvaluatedRun:
    """A run and the result of its evaluation."""

    folder: Path
    checkpoint: str | None
    checkpoint_why: str
    plan: EvaluationPlan
    evaluation: Evaluation
    video: VideoFile | None

    def to_plain(self, actions: str) -> dict[str, Any]:
        """Return everything as plain data for JSON; `actions` describes the actions that were taken."""
        plan, evaluation, video = self.plan, self.evaluation, {}
        agents = evaluation.metrics["agent_episode_returns_mean"]
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
            "env_runners": evaluation.metrics,
            "episode_return": asdict(sample_stats(evaluation.returns())),
            "agent_episode_returns": {agent: asdict(sample_stats(evaluation.agent_returns(agent))) for agent in agents},
            **video,
        }

    def print(self, actions: str) -> None:
        """Print the evaluation in a line, a table of the values of all episodes, and the path of the video."""
        plan, console = self.plan, standard_console()
        how = f"{counted(plan.n_episodes, 'episode')} in {counted(plan.n_envs, 'env')}, {actions}, seed {plan.seed}"
        for line in filter(None, (f"{self.folder}, {self.checkpoint}: {how}", self.checkpoint_why)):
            console.print(line, soft_wrap=True)
        console.print(samples_table(_samples(self.evaluation), console.width, bold=SUM))
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
        recorders: list[EpisodeRecorder] = []
        if record is not None:
            quotas = [episodes_of_env(index, env.num_envs, plan.n_episodes) for index in range(env.num_envs)]
            recorder, store = recorder_of(
                env, policies.policy_of, as_path("record", record), run.config.env, quotas=quotas
            )
            cleanup.callback(store.flush)
            recorders.append(recorder)
        evaluation = play_episodes(
            policies,
            env,
            plan.n_episodes,
            plan.deterministic,
            plan.seed,
            on_episode=lambda _: bars.advance(playing),
            watchers=recorders,
            tells=bool(recorders),
        )
        if video is not None:
            writing = bars.add_task("video frames", total=None)  # imageio reports no progress
            video.finish()
            bars.update(writing, total=video.num_frames, completed=video.num_frames)
    return EvaluatedRun(run.files.shown, policies.checkpoint, policies.checkpoint_why, plan, evaluation, video)


def _make_env(run: SavedRun, plan: EvaluationPlan, video: VideoFile | None) -> MultiAgentVecEnv:
    if video is None:
        return make_envs(run.config, n_envs=plan.n_envs, seed=plan.seed)
    from marl_sb3.wrappers.filmed_env import filming_factory

    factory = filming_factory(env_of(run.config), video.add, plan.film_episodes)
    settings = {**env_settings(run.config), "n_workers": 0}  # this process gets the frames
    env = make_vec_env(factory, plan.n_envs, plan.seed, **settings)
    video.fps = env.metadata.get("render_fps") or video.fps
    return env


def _samples(evaluation: Evaluation) -> Samples:
    agents = evaluation.metrics["agent_episode_returns_mean"]
    custom = [name.removesuffix("_mean") for name in evaluation.metrics["custom_metrics"] if name.endswith("_mean")]
    return samples_of(evaluation, list(agents), custom)


def samples_of(evaluation: Evaluation, agents: Sequence[AgentID], custom: Sequence[str]) -> Samples:
    """Return the rows of a table of episodes: the returns, the lengths, and these custom metrics."""
    return [
        *((f"return of {agent}", evaluation.agent_returns(agent)) for agent in agents),
        (SUM, evaluation.returns()),
        ("episode length", evaluation.lengths()),
        *((name, evaluation.custom(name)) for name in custom),
    ]

"""`Run`: a training in Python, with its policies, its metrics and its files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.config import TrainConfig
from marl_sb3.config.changes import Change
from marl_sb3.envs.registry import EnvFactory
from marl_sb3.evaluation import EvaluationPlan, evaluate_policies
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.metrics import Result, flatten
from marl_sb3.metrics.table import table
from marl_sb3.policies.determinism import Deterministic
from marl_sb3.runs.envs import make_envs
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.reader import read_results
from marl_sb3.training.algorithm import MultiAgentAlgorithm
from marl_sb3.types import PolicyID
from marl_sb3.vec_env import MultiAgentVecEnv


@dataclass(repr=False)
class Run:
    """A training and its folder.

    Attributes:
        files: the run folder.
        config: the resolved configuration, as in `config.yaml`.
        algorithm: the `MultiAgentAlgorithm`, with the policies.
        result: the metrics of the last iteration; None if none was finished.
        latest_evaluation: the metrics of the last iteration that was evaluated; None if none was.
        policy_files: the SB3 zip of each policy.
        stopped_by: description of the stop condition or signal that ended the run early; None if there was none.
        interrupted: whether a signal ended the run.
        checkpoint: name of the latest checkpoint that was loaded or written.
        checkpoint_why: one sentence that says why `load_run` took that checkpoint, or of which checkpoint
            `policy_files` are, and why; empty if the latest was asked for, or a number.
        started_from: a line about each source of `init_from`: which checkpoint was taken, and why.
        factory: makes the env, if the id in the configuration cannot be imported.
        changes: the settings that this resume has changed, by name.
    """

    files: RunFolder
    config: TrainConfig
    algorithm: MultiAgentAlgorithm
    result: Result | None = None
    latest_evaluation: Result | None = None
    policy_files: Mapping[PolicyID, Path] = field(default_factory=dict)
    stopped_by: str | None = None
    interrupted: bool = False
    checkpoint: str | None = None
    checkpoint_why: str = ""
    started_from: Sequence[str] = ()
    factory: EnvFactory | None = None
    changes: Mapping[str, Change] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.files.path

    @property
    def policies(self) -> Mapping[PolicyID, BaseAlgorithm]:
        """The SB3 algorithm of each policy."""
        return self.algorithm.policies

    @property
    def is_changed(self) -> bool:
        """Whether this resume has changed what is learned: the run does not go on as it would have."""
        return any(change.learns_otherwise for change in self.changes.values())

    def keep_result(self, result: Result) -> None:
        """Keep the metrics of the iteration that was finished last."""
        self.result = result
        if "evaluation" in result:
            self.latest_evaluation = result

    def bundle(self) -> PolicyBundle:
        """Return the policies as a bundle, which acts without an env."""
        return replace(self.algorithm.bundle(), checkpoint=self.checkpoint)

    @property
    def best_checkpoint(self) -> Path | None:
        """The folder of the best checkpoint by `checkpoints.metric`; None if no checkpoint has a value of it."""
        name = self.files.checkpoints.best()
        return None if name is None else self.files.checkpoints.path / name

    @property
    def results(self) -> list[Result]:
        """The metrics of all iterations so far, from `result.jsonl`: nested, as `result` is.

        Raises:
            ConfigError: the file is damaged.
        """
        return read_results(self.folder)

    @property
    def history(self) -> Any:
        """The metrics of all iterations so far: a row per iteration, a column per metric with its flat name.

        It is a `pandas.DataFrame` if pandas is installed: `run.history["env_runners/episode_return_mean"]`; otherwise a
        list of dictionaries with the same names.
        """
        return table([flatten(result) for result in self.results])

    def make_env(self, n_envs: int | None = None, seed: int | None = None) -> MultiAgentVecEnv:
        """Make envs like those of the training; the caller closes them.

        Args:
            n_envs: number of envs; None: as in the training.
            seed: run seed of the envs; None draws one.
        """
        return make_envs(self.config, self.factory, n_envs, seed)

    def evaluate(
        self,
        n_episodes: int = 20,
        deterministic: Deterministic | None = None,
        seed: int | None = None,
        n_envs: int | None = None,
    ) -> Result:
        """Let the present policies of `algorithm` play complete episodes in separate envs.

        For the policies of the same checkpoint, `python -m marl_sb3.evaluate` gives the same results.

        Args:
            n_episodes: complete episodes over all envs together.
            deterministic: the most likely actions (True) or sampled ones (False), or a mapping from policy ids to
                these; None: the run's `evaluation.deterministic`.
            seed: seed of the episodes and the actions; None: derived from the run's seed, so that all calls play the
                same episodes.
            n_envs: number of envs that step together; None: as in the training, but no more than there are episodes.

        Returns:
            A nested dictionary with the names below `env_runners`: `["episode_return_mean"]`, ...

        Raises:
            ConfigError: a number is not accepted.
            EnvError: the env broke the `ParallelEnv` contract.
        """
        plan = EvaluationPlan.of_run(self.config, n_episodes, deterministic, seed, n_envs)
        with closing(self.make_env(plan.n_envs)) as env:
            return evaluate_policies(self.algorithm, env, plan.n_episodes, plan.deterministic, plan.seed)

    def close(self) -> None:
        """Close the envs of `algorithm` and unlock the run folder. The end of a training does this, too."""
        self.algorithm.env.close()
        self.files.unlock()

    def __repr__(self) -> str:
        config = self.config
        policies = config.policies if isinstance(config.policies, str) else ", ".join(config.policies)
        done, value = self.algorithm.num_timesteps, None
        if self.result is not None:
            done = self.result["num_env_steps_sampled_lifetime"]
            value = self.result["env_runners"]["episode_return_mean"]
        parts = [
            f"{config.env}, {config.algo}, policies {policies}",
            f"{done:,} of {config.n_timesteps:,} env steps",
            *([] if value is None else [f"return {value:,.2f}"]),
            *([] if self.checkpoint is None else [self.checkpoint]),
        ]
        return f"<Run {self.files.shown}: {', '.join(parts)}>"

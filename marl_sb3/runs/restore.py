"""Load the policies of a run from one of its checkpoints."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from marl_sb3.config import TrainConfig
from marl_sb3.config.ids import file_names
from marl_sb3.envs.registry import EnvFactory, named_factory
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.learners.load import read_bundle
from marl_sb3.metrics.infos import info_metrics
from marl_sb3.runs.build import build, check_device, policy_spec, set_up_process, source_named
from marl_sb3.runs.envs import make_envs
from marl_sb3.runs.folder import RunFolder
from marl_sb3.runs.reader import read_results
from marl_sb3.runs.run import Run
from marl_sb3.storage.checkpoint_folder import with_checkpoint
from marl_sb3.storage.checkpoint_format import Checkpoint
from marl_sb3.storage.regular import is_regular
from marl_sb3.storage.state import StateReader
from marl_sb3.training.algorithm import MultiAgentAlgorithm
from marl_sb3.vec_env import MultiAgentVecEnv


def load_run(
    folder: str | Path, checkpoint: str | None = None, *, env: str | EnvFactory | None = None, device: str = "cpu"
) -> Run:
    """Load a run that was trained before, with the policies of one of its checkpoints.

    `run.history` has its metrics, `run.evaluate()` evaluates its policies, `run.policies` are the SB3 algorithms. To
    continue the training, use `marl_sb3.train(resume=folder)`.

    Args:
        folder: the run folder, or a folder of runs, such as `runs/arena`, for its newest run.
        checkpoint: the checkpoint to load: `best`, `latest` or the number of an iteration. None: the best; or the
            latest, where the sum of returns would decide and the agents' returns oppose each other.
            `run.checkpoint_why` says in a sentence which one was taken, and why.
        env: the run's env id, or a factory of the env; required if the env is your own code.
        device: device of the policies; it may differ from that of the training.

    Raises:
        ConfigError: it is not a run folder, `env` is required, or there is no such device.
        CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
    """
    name, factory = named_factory(env)
    saved = SavedRun.open(folder, name, device)
    files, config = saved.files, saved.config
    results = read_results(files.path)
    run = Run(files, config, build(config, factory), factory=factory)
    with ExitStack() as on_error:
        on_error.callback(run.close)
        # The checkpoint is read last: a training in progress may delete older ones while the policies are built.
        run.checkpoint, run.checkpoint_why = with_checkpoint(
            lambda: files.checkpoints.load(checkpoint), lambda found: _weights_of(found, run.algorithm)
        )
        on_error.pop_all()
    run.result = results[-1] if results else None
    run.latest_evaluation = next((result for result in reversed(results) if "evaluation" in result), None)
    zips = {policy_id: files.policies / zip_ for policy_id, zip_ in file_names(list(run.policies), ".zip").items()}
    run.policy_files = {policy_id: path for policy_id, path in zips.items() if is_regular(path)}
    return run


def _weights_of(found: Checkpoint, algorithm: MultiAgentAlgorithm) -> tuple[str, str]:
    """Give the policies the weights of a checkpoint; returns its name, and why it was taken."""
    algorithm.set_weights(found)
    return found.name, found.why


@dataclass(frozen=True)
class SavedRun:
    """The policies of a run that was trained before. No env is made, and nothing that is needed for training only."""

    files: RunFolder
    config: TrainConfig

    @classmethod
    def open(
        cls, run_folder: str | Path, env: str | None = None, device: str = "cpu", *, makes_env: bool = True
    ) -> SavedRun:
        """Read the configuration, and set up the process for its policies.

        Args:
            env: the run's env id; needed where it is code of your own and will be made.
            device: device of the policies; it may differ from that of the training.

        Raises:
            ConfigError: it is not a run folder, is of another env, or there is no such device.
        """
        files = RunFolder.existing(run_folder)
        config = files.read_config(env, makes_env=makes_env).changed({"device": device}, source="load_run")
        check_device(config)
        set_up_process(config)
        return cls(files, config)

    def policies(self, checkpoint: str | None = None, env: MultiAgentVecEnv | None = None) -> PolicyBundle:
        """The policies as they were at a checkpoint.

        Args:
            checkpoint: see `CheckpointFolder.load`.
            env: envs of the run; needed if a checkpoint cannot hold one of the spaces.

        Raises:
            CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
        """
        bundle = with_checkpoint(lambda: self.files.checkpoints.load(checkpoint), lambda found: self._read(found, env))
        return replace(bundle, custom_metrics=info_metrics(self.config.custom_metrics, "custom_metrics"))

    def _read(self, found: Checkpoint, env: MultiAgentVecEnv | None) -> PolicyBundle:
        policy_ids = StateReader(found.state).fields("specs").names()
        with source_named(self.config):
            specs = {policy_id: policy_spec(self.config, policy_id) for policy_id in policy_ids}
        return read_bundle(found, specs, self.config.device, env)

    def make_env(self, n_envs: int, seed: int) -> MultiAgentVecEnv:
        """Make envs like those of the training; the caller closes them."""
        return make_envs(self.config, n_envs=n_envs, seed=seed)

"""`Run`: a training run in Python, with its policies, its metrics and its files; loading a saved run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import finalize

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.callbacks import RecordEpisodes
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.mapping import Deterministic
from marl_sb3.core.metrics.episodes import info_metrics
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.core.metrics.statistics import table
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.doors import counterpart
from marl_sb3.envs.finding import named_factory
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.evaluation.playing import EvaluationPlan, evaluate_policies
from marl_sb3.extensions.remote.ray import AnyRunners
from marl_sb3.extensions.store.checkpoint_folder import find_checkpoint, with_checkpoint
from marl_sb3.extensions.store.load import read_bundle
from marl_sb3.files.paths import file_names
from marl_sb3.files.regular import is_regular
from marl_sb3.results.result_log import read_results
from marl_sb3.runs.building import build, make_envs, policy_spec, set_up_process, source_named
from marl_sb3.runs.folder import RunFolder, find_run, run_around, undone_on_error, verified_path
from marl_sb3.runs.resume import Change
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.types import PolicyID


@dataclass(repr=False)
class Run:
    """A training run and its folder."""

    files: RunFolder  # the run folder
    config: TrainConfig  # the resolved configuration, as in `config.yaml`
    algorithm: MultiAgentAlgorithm  # the `MultiAgentAlgorithm`, with the policies
    result: Result | None = None  # the metrics of the last iteration; None if none was finished
    latest_evaluation: Result | None = None  # the metrics of the last iteration that was evaluated; None if none was
    policy_files: Mapping[PolicyID, Path] = field(default_factory=dict)  # the SB3 zip of each policy
    # description of the stop condition or signal that ended the run early; None if there was none
    stopped_by: str | None = None
    # whether a signal ended the run: of `marl_sb3.train`, one that a handler of the caller's took
    interrupted: bool = False
    checkpoint: str | None = None  # name of the latest checkpoint that was loaded or written
    # one sentence that says why `load_run` took that checkpoint, or of which checkpoint `policy_files` are, and why;
    # empty if the latest was asked for, or a number
    checkpoint_why: str = ""
    started_from: Sequence[str] = ()  # a line about each source of `init_from`: which checkpoint was taken, and why
    factory: EnvFactory | None = None  # makes the env, if the id in the configuration cannot be imported
    changes: Mapping[str, Change] = field(default_factory=dict)  # the settings that this resume has changed, by name
    callbacks: Sequence[BaseCallback] = ()  # those that the user has named
    recorder: RecordEpisodes | None = None  # records the episodes; None: they are not recorded
    runners: AnyRunners | None = None  # which processes roll out the shards; None: this one
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the present phase, where `config` has others

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise an error; its message refers to the algorithm, or to what that has in place of RLlib's names."""
            has_it = not name.startswith("_") and hasattr(self.__dict__.get("algorithm"), name)
            said = counterpart(name, "algorithm", ": of run.algorithm, ", self)
            instead = f": its algorithm has it, run.algorithm.{name}" if has_it else said
            raise AttributeError(f"Run has no {name!r}{instead}", name=name, obj=self)

    @property
    def folder(self) -> Path:
        """The run folder."""
        return self.files.path

    @property
    def policies(self) -> Mapping[PolicyID, BaseAlgorithm]:
        """The SB3 algorithm of each policy."""
        return self.algorithm.policies

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

    def plot(
        self, metrics: Sequence[str] = (), axis: str = "steps", smooth: int = 1, out: str | Path | None = None
    ) -> Any:
        """Plot learning curves of this run, as `python -m marl_sb3.plot` does; notebooks show the figure.

        Args:
            metrics: flat names, a panel each; none: the sum of returns, and the return of each agent.
            axis: `steps`, `agent_steps` or `seconds`.
            smooth: iterations of a moving average; 1: none.
            out: also a file to write it to: .png, .svg, .pdf or .html.

        Returns:
            A `matplotlib.figure.Figure`.

        Raises:
            ConfigError: there is no such metric, nothing has been logged, or matplotlib is not installed.
        """
        from marl_sb3.results.drawing import plot_paths

        return plot_paths([self.folder], metrics, axis=axis, smooth=smooth, out=out)

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
        """Close the envs of `algorithm` and unlock the run folder. The end of a training run does this, too."""
        self.algorithm.env.close()
        self.files.unlock()

    def __repr__(self) -> str:
        config = self.config
        unknown: Result = {"num_env_steps_sampled_lifetime": self.algorithm.num_timesteps, "env_runners": {}}
        result = self.result or unknown
        done, value = result["num_env_steps_sampled_lifetime"], result["env_runners"].get("episode_return_mean")
        steps = f"{done:,} of {config.n_timesteps:,} env steps"
        parts = [f"{config.env}, {config.algo}, policies {config.named_policies}", steps]
        parts += [] if value is None else [f"return {value:,.2f}"]
        parts += [] if self.checkpoint is None else [self.checkpoint]
        return f"<Run {self.files.shown}: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        """Return the run as notebooks show it: with the means over the latest episodes."""
        from marl_sb3.extensions.display.page import note, table
        from marl_sb3.extensions.display.tables import MOST_AGENTS, evaluated, metric_rows

        if self.result is None:
            return note(repr(self))
        columns = {"training": self.result["env_runners"], "evaluation": evaluated(self.latest_evaluation or {})}
        shown = {name: metrics for name, metrics in columns.items() if metrics}
        rows = [(row.label, *map(row.value, shown.values())) for row in metric_rows(columns["training"], MOST_AGENTS)]
        return note(repr(self)) + table(rows, ("means over the latest episodes", *shown))


def load_run(
    folder: str | Path,
    checkpoint: str | None = None,
    *,
    env: str | EnvFactory | None = None,
    device: str = "cpu",
    verify: str | Path | None = None,
) -> Run:
    """Load a run that was trained before, with the policies of one of its checkpoints.

    `run.history` has its metrics, `run.evaluate()` evaluates its policies, `run.policies` are the SB3 algorithms. To
    continue the training, use `marl_sb3.train(resume=folder)`.

    Args:
        folder: the run folder; a folder of runs, such as `runs/arena`, for its newest run; or a run on the Hugging Face
            Hub, `hf:OWNER/NAME[@REVISION]`, which is downloaded.
        checkpoint: the checkpoint to load: `best`, `latest` or the number of an iteration. None: the best; or the
            latest, where the sum of returns would decide and the agents' returns oppose each other.
            `run.checkpoint_why` says in a sentence which one was taken, and why.
        env: the run's env id, or a factory of the env; required if the env is your own code.
        device: device of the policies; it may differ from that of the training.
        verify: file of a public key: the run folder must be signed by it, see `sign_folder`. It is verified before
            anything in it is read. The run that is returned is a copy, which lasts as long as the object. None: it need
            not be signed.

    Raises:
        ConfigError: it is not a run folder, `env` is required, or there is no such device.
        CheckpointError: there is no such checkpoint, it is damaged, does not fit the run's configuration, or the
            signature is missing or not of this folder.
    """
    if verify is not None:
        with ExitStack() as cleanup:
            copy = cleanup.enter_context(verified_path(folder, verify))
            run = load_run(copy, checkpoint, env=env, device=device)
            finalize(run, cleanup.pop_all().close)
        return run
    name, factory = named_factory(env)
    saved = SavedRun.open(folder, name, device)
    files = saved.files
    results = read_results(files.path)
    config = saved.config
    if config.league.is_on:  # without its opponents, some of which may be code that a run folder cannot import
        settings = {"league.opponents": None, "league.snapshot_every": config.league.snapshot_every or 1}
        config = config.changed(settings)
    if "mapping" in config.code():  # which a run folder cannot import; checkpoints tell who may play whom
        bundle = saved.policies(checkpoint)
        config = replace(config, mapping=bundle.candidates or bundle.policy_of)
    config, algorithm = build(config, factory)
    run = Run(files, replace(config, mapping=saved.config.mapping), algorithm, factory=factory)
    with undone_on_error(run.close):
        # The checkpoint is read last: a training run in progress may delete older ones while the policies are built.
        run.checkpoint, run.checkpoint_why = with_checkpoint(
            lambda: saved.find(checkpoint), lambda found: _weights_of(found, run.algorithm)
        )
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
    at: Path | None = None  # the checkpoint, or member of its league, that was named; None: the run was

    @classmethod
    def open(
        cls, run_folder: str | Path, env: str | None = None, device: str = "cpu", *, makes_env: bool = True
    ) -> SavedRun:
        """Read the configuration, and set up the process for its policies.

        Args:
            run_folder: or a checkpoint in one, or a member of its league.
            env: the run's env id; needed where it is code of your own and will be made.
            device: device of the policies; it may differ from that of the training.

        Raises:
            ConfigError: it is none of these, is of another env, or there is no such device.
        """
        around = run_around(run_folder)
        files = RunFolder(around or find_run(run_folder))
        config = files.read_config(env, makes_env=makes_env).changed({"device": device}, source="load_run")
        with source_named(config.where):
            set_up_process(config.device, config.n_threads)
        return cls(files, config, None if around is None else Path(run_folder))

    def find(self, checkpoint: str | None = None) -> Checkpoint:
        """Read a checkpoint: the one that was named as the run, or see `CheckpointFolder.load`.

        Raises:
            ConfigError: one was named in both ways.
            CheckpointError: there is none, or it is damaged.
        """
        if self.at is None:
            return self.files.checkpoints.load(checkpoint)
        if checkpoint is not None:
            words = f"{self.at} is a checkpoint itself, and checkpoint is {checkpoint}; accepted: one of them"
            raise ConfigError(words, key="checkpoint")
        return find_checkpoint(self.at)

    def policies(self, checkpoint: str | None = None, env: MultiAgentVecEnv | None = None) -> PolicyBundle:
        """Load the policies as they were at a checkpoint.

        Args:
            checkpoint: see `CheckpointFolder.load`.
            env: envs of the run; needed if a checkpoint cannot hold one of the spaces.

        Raises:
            CheckpointError: there is no such checkpoint, or it is damaged, or does not fit the run's configuration.
        """
        bundle = with_checkpoint(lambda: self.find(checkpoint), lambda found: self.read(found, env))
        return replace(bundle, custom_metrics=info_metrics(self.config.custom_metrics, "custom_metrics"))

    def read(self, found: Checkpoint, env: MultiAgentVecEnv | None = None) -> PolicyBundle:
        """Load the policies in a checkpoint of the run; see `policies`. Errors name the checkpoint."""
        policy_ids = StateReader(found.state).fields("specs").names()
        with source_named(self.config.where):
            specs = {policy_id: policy_spec(self.config, policy_id, policy_ids) for policy_id in policy_ids}
        try:
            return read_bundle(found, specs, self.config.device, env)
        except CheckpointError as error:
            where = "" if str(found.folder) in str(error) else f"{found.folder}: "
            raise CheckpointError(f"{where}{error}") from error

"""Several SB3 algorithms that act and learn in the same episodes."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import MaybeCallback

from marl_sb3.core.acting.actor import ActingWatcher
from marl_sb3.core.acting.by_agent import PolicyBundle, PolicyByAgent
from marl_sb3.core.config.algorithms import parameters_of
from marl_sb3.core.config.values import PositiveInt, Seed, require
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.learners.learner import limited_threads, parallel_updates
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import Deterministic
from marl_sb3.core.metrics.episodes import EpisodeTracker, InfoMetric
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.core.sb3.tensors import read_weights
from marl_sb3.core.state.checkpoint import Arrays, Checkpoint, store_of, versions
from marl_sb3.core.state.fields import in_order
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.training.accepted import accepted_callbacks
from marl_sb3.core.training.callback import TrainingCallback, call_hook, with_hook
from marl_sb3.core.training.loop import Counters, IterationReport, TrainingLoop
from marl_sb3.core.training.results import Reporter, ShowProgress, iteration_result, machine_load
from marl_sb3.core.training.setup import TrainingParts, constructor_arguments, set_up
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import as_vec_env
from marl_sb3.doors import VIEWS, Assignment, imported
from marl_sb3.errors import CheckpointError, ConfigError, RunnersLostError
from marl_sb3.types import AgentID, PolicyID, PolicyMappingFn

_log = logging.getLogger(__name__)

_Timesteps = Annotated[float, Meta(ge=1, le=sys.float_info.max)]
_SHOWN = 4  # policies in a `repr`


class MultiAgentAlgorithm(PolicyByAgent):
    """Train the policies of all agents of a `MultiAgentVecEnv` at the same time.

    Args:
        env: the envs from `make_vec_env`; for a single env, also an env id or a factory.
        policies: `shared` (one policy for all agents), `per_agent` (one for each agent, named like it), or a mapping
            from policy ids to specs.
        policy_mapping_fn: agent id -> policy id, as a function or a dictionary. Not needed for `shared`, `per_agent`,
            or policies named as the agents. A function of agent and episode, or an `Assignment`, chooses anew in each.
        policies_to_train: ids, or a function of the id; the other policies act and keep their weights. None: all.
        n_steps: env steps of each env in an iteration, and in a rollout of each PPO policy without its own `n_steps`.
            None: what the specs of the policies say, or SB3's default.
        seed: seed of weights, actions, minibatches and envs; None: not seeded.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: CUDA, if there is any, for convolutions and wide layers (512).
        stats_window_size: number of finished episodes that the metrics of episodes run over.
        custom_metrics: metrics from the env's infos, in addition to those that the env announces.
        update_path: how marl_sb3's own algorithms update: `auto`, `fused` or `torch`; see `marl_sb3.PPO`.
        n_threads: threads of one operation of PyTorch or BLAS in `learn` and `train_iteration`, which give PyTorch its
            own number back at their end. Small networks are slower with more than one.
        n_parallel_updates: threads of updates, of several policies at a time or of one, where that is possible; None:
            as many as there are cores for. It changes no result.
        evaluation_deterministic: the default of evaluations: the most likely actions (True), or sampled ones as in the
            training (False); or a mapping from policy ids to these, in which policies that are left out are True.
        verbose: 1 prints the metrics after each iteration.
        tensorboard_log: folder for TensorBoard's events, which has one for each training, or None.
        hyperparameters: hyperparameters of every policy that does not set its own; by SB3's names.

    Attributes:
        policies: policy id -> SB3 algorithm.
        specs: policy id -> its spec, with the policy that was chosen for `auto`.
        policy_of: agent -> policy id; with an `Assignment`, the policy that plays it in evaluations.
        candidates: agent -> all policies that may play it, where an `Assignment` varies that; else empty.
        assignment: the `Assignment` that does; None without one.
        spaces: policy id -> observation and action space of the env.
        processing: policy id -> processing of observations, rewards and actions.
        num_timesteps: env steps taken.
        iteration: iterations done.
        between_iterations: whether no iteration is under way; exact resume is only possible between iterations.
        tracker: the finished episodes that the metrics run over.
        parts: the parts of a checkpoint: the learner of each policy, the runner, the counters, ...

    Raises:
        ConfigError: an argument is wrong; the message says what is accepted.
    """

    def __init__(
        self,
        env: MultiAgentVecEnv | str | EnvFactory,
        policies: str | Mapping[PolicyID, PolicySpec] = "shared",
        policy_mapping_fn: Assignment | PolicyMappingFn | Mapping[AgentID, PolicyID] | None = None,
        policies_to_train: Sequence[PolicyID] | Callable[[PolicyID], bool] | None = None,
        n_steps: int | None = None,
        seed: int | None = None,
        device: str = "auto",
        stats_window_size: int = 100,
        custom_metrics: Mapping[str, InfoMetric] | None = None,
        update_path: str = "auto",
        n_threads: int = 1,
        n_parallel_updates: int | None = None,
        evaluation_deterministic: Deterministic = True,
        verbose: int = 0,
        tensorboard_log: str | None = None,
        **hyperparameters: Any,
    ) -> None:
        n_steps = require("n_steps", n_steps, PositiveInt | None)
        seed = require("seed", seed, Seed | None)
        stats_window_size = require("stats_window_size", stats_window_size, PositiveInt)
        self.n_threads = require("n_threads", n_threads, PositiveInt)
        at_once = require("n_parallel_updates", n_parallel_updates, PositiveInt | None)
        self.n_parallel_updates = at_once or parallel_updates(self.n_threads)
        self.env = env = as_vec_env(env)
        self.verbose = verbose
        self.seed = seed
        self._counters = Counters(len(env.agents))
        execution = imported(env.execution)
        self._setup = set_up(
            env,
            policies,
            policy_mapping_fn,
            policies_to_train,
            hyperparameters,
            n_steps=n_steps,
            seed=seed,
            device=device,
            update_path=update_path,
            n_threads=self.n_threads,
            evaluation_deterministic=evaluation_deterministic,
            progress_remaining=self._counters.progress_remaining,
            experience=execution.experience,
        )
        bundle, self.specs = self._setup.bundle, self._setup.specs
        self.policies, self.policy_of = bundle.policies, bundle.policy_of
        self.spaces, self.processing, self.candidates = bundle.spaces, bundle.processing, bundle.candidates
        self.n_steps, self.assignment = self._setup.n_steps, self._setup.mapping.assignment
        self.evaluation_deterministic = evaluation_deterministic
        if seed is not None:
            env.seed(seed)
        learners = self._setup.learners
        self.tracker = EpisodeTracker(env, self.policy_of, stats_window_size, custom_metrics, self.candidates)
        self._runner = execution.make_runner(self._setup, self.tracker, self._counters.progress_remaining)
        self._loop = TrainingLoop(self, self._runner, learners, self._counters, self.n_steps, self.n_parallel_updates)
        self.parts = TrainingParts(learners, self._runner, self.tracker, self._counters)
        named = {name: vars(metric) for name, metric in (custom_metrics or {}).items() if is_plain(vars(metric))}
        own = {"n_steps": n_steps, "seed": seed, "update_path": update_path, "n_threads": self.n_threads}
        self._arguments: State = {**own, "stats_window_size": stats_window_size, "custom_metrics": named}  # saved
        self._reporter = Reporter(verbose, tensorboard_log)
        self.between_iterations = True
        machine_load(0)  # CPU use is measured since the previous call; this is the first one

    def __repr__(self) -> str:
        env = self.env.metadata.get("name", type(self.env).__name__)
        names = [f"{policy_id} ({type(policy).__name__})" for policy_id, policy in self.policies.items()]
        policies = f"policies {', '.join(names)}" if len(names) <= _SHOWN else f"{len(names)} policies"
        trained = f"{self.num_timesteps} env steps trained"
        return f"MultiAgentAlgorithm({env} x {self.env.num_envs}, {len(self.env.agents)} agents, {policies}, {trained})"

    # --- SB3's interface -------------------------------------------------------------------------------------------

    @property
    def logger(self) -> Logger:
        """SB3's logger: values that callbacks record are written with the metrics of the iteration."""
        return self._reporter.logger

    def set_logger(self, logger: Logger) -> None:
        """Replace the logger; it gets the metrics after each iteration, with env steps as the step.

        A `ResultLogger` gets the nested result; any other logger gets flat metrics.
        """
        self._reporter.logger = logger

    def get_env(self) -> MultiAgentVecEnv:
        """The envs."""
        return self.env

    def learn(
        self,
        total_timesteps: int,
        callback: MaybeCallback = None,
        log_interval: int | None = 1,
        tb_log_name: str = "run",
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> MultiAgentAlgorithm:
        """Train for at least `total_timesteps` env steps, and end with the first update after these, as in SB3.

        Args:
            total_timesteps: env steps; if `reset_num_timesteps` is False, in addition to those already taken.
            callback: SB3 callbacks, one or a list, or a function; a `MultiAgentCallback` has more methods.
            log_interval: iterations between writes of the logger; values that callbacks have recorded, or added to
                results, are kept for the next write. None: it is never written.
            tb_log_name: each training has its folder for TensorBoard, `NAME_1`, `NAME_2`, ..., in `tensorboard_log`.
            reset_num_timesteps: start counters, schedules and episodes anew; False continues.
            progress_bar: show the progress: a live view on terminals and in notebooks, plain lines elsewhere.

        Raises:
            ConfigError: a number is not accepted, or a callback cannot work here.
            EnvError: an env broke the `ParallelEnv` contract.
        """
        progress = [ShowProgress(make()) for make in VIEWS] if progress_bar else []
        joined = CallbackList([*accepted_callbacks(callback), *progress])
        total_timesteps = require("total_timesteps", total_timesteps, _Timesteps, "n_timesteps")
        log_interval = require("log_interval", log_interval, PositiveInt | None)
        if reset_num_timesteps:
            self._counters.restart()
            self.between_iterations = True
            self.tracker.episodes.clear()
            self.forget_episodes()
        self._reporter.begin(tb_log_name, anew=reset_num_timesteps)
        self._counters.planned_env_steps = math.ceil(self.num_timesteps + total_timesteps)
        try:
            with limited_threads(self.n_threads):
                self._learn(joined, self._counters.planned_env_steps, log_interval, tb_log_name)
        finally:
            for each in progress:
                each.close()
        return self

    def _learn(self, joined: BaseCallback, total_timesteps: int, log_interval: int | None, tb_log_name: str) -> None:
        joined.init_callback(self)  # type: ignore[arg-type]
        joined.on_training_start({"self": self, "total_timesteps": total_timesteps, "tb_log_name": tb_log_name}, {})
        self._loop.begin(joined)
        self.parts.callbacks.begin(joined, self._loop.watchers)
        while self.num_timesteps < total_timesteps:
            result = self._iterate(joined, total_timesteps)
            if result is None:
                break
            write = log_interval is not None and self.iteration % log_interval == 0
            if not self._reporter.report(result, joined, self.num_timesteps, write=write):
                break
        joined.on_training_end()

    def train_iteration(self) -> Result:
        """Run one iteration: rollouts and updates of every policy that is trained.

        Schedules do not advance, because the total number of iterations is unknown: they keep the value that the last
        `learn` left, or that of their start.

        Returns:
            The metrics of the iteration, nested; see docs/reference/metrics.md.
        """
        silent = CallbackList([])
        silent.init_callback(self)  # type: ignore[arg-type]
        self._loop.begin(silent)
        with limited_threads(self.n_threads):
            result = self._iterate(silent)
        assert result is not None, "no callback, nobody to stop the rollout"
        self._reporter.write(result, self.num_timesteps)
        return result

    def bundle(self) -> PolicyBundle:
        """Return the policies as a bundle, which acts without an env."""
        return replace(
            self._setup.bundle,
            evaluation_deterministic=self.evaluation_deterministic,
            custom_metrics=self.tracker.custom_metrics,
        )

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> tuple[State, Mapping[str, Arrays]]:
        """Return the full state of the training, including the random generators.

        Returns:
            A tree of plain data and arrays; and file name -> tensors, of the policies and of their optimizers.
        """
        setup = self._setup.to_plain(self.evaluation_deterministic)
        return {**setup, "arguments": self._arguments, **self.parts.get_state()}, self.parts.get_tensors()

    def set_state(self, checkpoint: Checkpoint) -> dict[int, str]:
        """Restore the state of a checkpoint; `learn(..., reset_num_timesteps=False)` then continues from there.

        Returns:
            Env index -> reason, for every env that could not be restored exactly; it has begun its next episode.

        Raises:
            CheckpointError: the checkpoint has other policies, envs or shapes.
        """
        self._setup.require_same(StateReader(checkpoint.state))
        lost = self.parts.restore(checkpoint, self.seed)
        self.between_iterations = True
        return lost

    def set_weights(self, checkpoint: Checkpoint) -> None:
        """Restore only the weights of a checkpoint, and the statistics by which observations are normalised for them.

        Raises:
            CheckpointError: the policies or their layers differ; nothing is changed.
        """
        files, saved = self.parts.files_of(checkpoint), StateReader(checkpoint.state).fields("policies")
        setters: list[Callable[[], object]] = []
        for policy_id, learner in self.parts.learners.items():
            setters.append(read_weights(learner.algorithm, files[policy_id]["policy"]))
            setters.append(learner.processing.read_state(saved.fields(policy_id).fields("processing")))
        in_order(setters)()

    def about(self) -> State:
        """Return the description of a checkpoint of the present state, for its manifest."""
        return {"iteration": self.iteration, "num_env_steps": self.num_timesteps, "versions": versions()}

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint: a folder that `load` reads without running code from it.

        Args:
            path: the folder. An empty folder or a checkpoint is replaced. A suffix `.zip` is removed, because a
                checkpoint is no zip; `save_policies` writes SB3 zips.

        Returns:
            The folder.

        Raises:
            ConfigError: the path exists, and is neither an empty folder nor a checkpoint.
            NumericError: a weight is not finite.
        """
        store = store_of(path)
        folder = store.place(path)
        if not self.between_iterations:
            _log.warning("inexact: %s is saved in the middle of an iteration, whose steps are not in it", folder)
        store.write(folder, *self.get_state(), self.about())
        return folder

    @classmethod
    def load(
        cls,
        path: str | Path,
        env: MultiAgentVecEnv | str | EnvFactory,
        policies: Mapping[PolicyID, PolicySpec] | None = None,
        checkpoint: str = "latest",
        **settings: Any,
    ) -> MultiAgentAlgorithm:
        """Load an algorithm that was saved, to continue its training.

        With another number of envs it does not continue exactly: weights, optimizers and counters are restored, but new
        episodes begin.

        Args:
            path: the folder that `save` wrote, a run folder, a checkpoint of a run, or a folder of runs for its newest.
            env: envs like those of the training, as many for an exact continuation; or an id or factory of one env.
            policies: policy id -> spec; needed if a spec has classes or functions, which a checkpoint cannot hold.
            checkpoint: which one of a run folder: `latest`, `best` or the number of an iteration.
            settings: further arguments of the constructor, in place of those in the checkpoint: hyperparameters, for
                all policies, or `update_path`. A checkpoint does not hold `device`, `n_parallel_updates`, `verbose` and
                `tensorboard_log`, nor a `policy_mapping_fn` that was an `Assignment`.

        Raises:
            CheckpointError: the checkpoint is missing, damaged, or does not fit `env`, `policies` or the settings.
            ConfigError: the checkpoint does not hold the spec of a policy, or an `Assignment`; or a setting is wrong.
        """

        def use(found: Checkpoint) -> MultiAgentAlgorithm:
            vec_env, of_run = as_vec_env(env), parameters_of(cls)  # type: ignore[arg-type]
            given = {name: value for name, value in settings.items() if name in of_run}
            hyperparameters = {name: value for name, value in settings.items() if name not in of_run}
            arguments = constructor_arguments(found, policies, given, hyperparameters, vec_env.num_envs)
            try:
                algorithm = cls(vec_env, **arguments)
                lost = algorithm.set_state(found)
            except (ConfigError, TypeError, ValueError, OverflowError, MemoryError, RuntimeError) as error:
                raise CheckpointError(f"{path} does not fit {' or '.join(['the env', *settings])}: {error}") from error
            for why in dict.fromkeys(lost.values()):
                those = [str(index) for index, reason in lost.items() if reason == why]
                named = f"env{'s' if those[1:] else ''} {', '.join(those)}"
                which = named if len(those) < vec_env.num_envs else "all envs"
                _log.warning("inexact: new episodes begin in %s: %s", which, why)
            return algorithm

        return store_of(path).read(path, checkpoint, use)

    def tell(self, hook: str, *arguments: Any) -> None:
        """Call a hook of the callbacks of the present training, in their order."""
        for each in with_hook(self.parts.callbacks.callback, hook):
            call_hook(each, hook, *arguments)

    def start_runners(self) -> None:
        """Start the processes that step the envs, if there are any; without a call, the first rollout starts them.

        Raises:
            ConfigError: they cannot be started; none is left behind.
        """
        self._runner.start()

    def read_data(self) -> None:
        """Read the recorded episodes that policies learn from; without a call, the first iteration reads them.

        Raises:
            ConfigError: they cannot be read, or are not of such policies.
        """
        for learner in self.parts.learners.values():
            for part in learner.parts:
                part.read()

    def require_watchable(self) -> None:
        """Refuse watchers where the envs are not stepped together.

        Raises:
            ConfigError: the envs are rolled out in shards.
        """
        if self._runner.watchers is None:
            words = "the envs are rolled out in shards, where no process has the steps of all envs"
            raise ConfigError(f"{words}; accepted: n_shards=0, without runners and Ray", key="n_shards")

    def add_watcher(self, watcher: ActingWatcher) -> None:
        """Let a watcher see what all policies do in all envs, from the next step on.

        Raises:
            ConfigError: see `require_watchable`.
        """
        self.require_watchable()
        assert self._runner.watchers is not None
        self._runner.watchers.append(watcher)

    def remove_watcher(self, watcher: ActingWatcher) -> None:
        """Let a watcher see nothing any more; nothing happens if it saw nothing."""
        if watcher in (watchers := self._runner.watchers or []):
            watchers.remove(watcher)

    def forget_episodes(self) -> None:
        """Make the next rollout begin new episodes, because the envs were stepped by other code."""
        self._runner.forget_episodes()

    # --- One iteration ---------------------------------------------------------------------------------------------

    def metric_names(self) -> list[str]:
        """Return the flat names of all metrics of a result, also before the first iteration."""
        return list(flatten(iteration_result(IterationReport(), self.parts, self.env.agents)))

    @property
    def episodes_left_out(self) -> bool:
        """Whether running episodes were left out of a checkpoint; a warning was logged then."""
        return self._runner.episodes_left_out

    @property
    def num_timesteps(self) -> int:
        """Env steps taken, over all envs."""
        return self._counters.env_steps

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return self._counters.iteration

    def _iterate(self, callback: BaseCallback, budget: float = math.inf) -> Result | None:
        """Run one iteration, see `TrainingLoop.iterate`; returns None if a callback stopped it."""
        self.read_data()
        self.between_iterations = False
        try:
            report = self._loop.iterate(callback, budget)
        except RunnersLostError:  # a round that was lost has changed nothing
            self.between_iterations = not self._counters.of_iteration()[0]
            raise
        if report is None:
            self.between_iterations = not self._counters.of_iteration()[0]
            return None
        self.between_iterations = True
        result = iteration_result(report, self.parts, self.env.agents)
        for watcher in self._loop.watchers.values():
            watcher.complete_result(result)
            watcher.log(self.logger, self.iteration)
        return result


class MultiAgentCallback(TrainingCallback):
    """An SB3 callback that is also called at the end of episodes and iterations.

    `self.model` is the `MultiAgentAlgorithm`, `self.num_timesteps` counts env steps. In `_on_step`,
    `self.locals["step"]` is the `VecStep` just taken; `dones` ((E,) bool: env episodes that ended), `rewards`
    ((E, A)) and `infos` are provided for callbacks written for SB3. The arrays are read-only: rewards are changed by a
    wrapper of the env.
    """

    @property
    def algorithm(self) -> MultiAgentAlgorithm:
        """`self.model` with its type."""
        if isinstance(model := self.model, BaseAlgorithm):
            words = f"{type(self).__name__} is for a MultiAgentAlgorithm, and {type(model).__name__} is SB3's kind"
            raise ConfigError(f"{words} of algorithm; accepted: a callback of SB3", key="callback")
        return model

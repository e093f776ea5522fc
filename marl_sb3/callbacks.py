"""Callbacks: the only hooks into a training run. Each is an SB3 `BaseCallback`."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta
from stable_baselines3.common.callbacks import BaseCallback

from marl_sb3.config.values import Count, FiniteFloat, PositiveInt, require
from marl_sb3.errors import ConfigError, as_path
from marl_sb3.evaluation import (
    evaluate_policies,
    evaluation_seed,
    metric_names,
    preserve_training_state,
    require_same_agents,
)
from marl_sb3.metrics import Episode, EpisodeTracker, InfoMetric, Result, finite_or_none, flatten, require_metric
from marl_sb3.metrics.opposition import Opposition
from marl_sb3.policies.mapping import Deterministic
from marl_sb3.signals import ENDING, HANGUP, handled
from marl_sb3.storage.checkpoint_folder import CheckpointFolder
from marl_sb3.storage.state import State, StateReader
from marl_sb3.training.algorithm import MultiAgentAlgorithm, MultiAgentCallback
from marl_sb3.types import Array, PolicyID
from marl_sb3.vec_env.interface import MultiAgentVecEnv, fresh_seed
from marl_sb3.vec_env.sb3_vec_env import FlatVecEnv

_log = logging.getLogger(__name__)


# --- Checkpoints ------------------------------------------------------------------------------------------------------


_SUMS = re.compile(r"(evaluation/)?env_runners/episode_return_(mean|min|max)")  # metrics of the sum of all returns


class CheckpointCallback(MultiAgentCallback):
    """Writes checkpoints, and keeps the newest ones and the best. It should be the last callback: it saves the others.

    Where the metric is a sum of the agents' returns, each checkpoint says whether these have opposed each other so far;
    see `CheckpointFolder.load`.

    Args:
        folder: the folder of the checkpoints.
        every: iterations between checkpoints; 0: only one at the end.
        keep: how many of the newest checkpoints are kept.
        metric: the metric that decides which checkpoint is the best.
        higher_is_better: whether the best has the highest (True) or the lowest (False) value of the metric.
        at_start: save the untrained policies too.
        on_saved: called with the name of each new checkpoint.

    Raises:
        ConfigError: an argument is not accepted.

    Attributes:
        latest: name of the newest checkpoint; None before the first.
    """

    def __init__(
        self,
        folder: str | Path,
        every: int = 10,
        keep: int = 3,
        metric: str = "env_runners/episode_return_mean",
        higher_is_better: bool = True,
        at_start: bool = False,
        on_saved: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__()
        self._folder = CheckpointFolder(as_path("folder", folder))
        self._every, self._keep = require("every", every, Count), require("keep", keep, PositiveInt)
        self._at_start = at_start
        self._metric, self._higher_is_better = metric, higher_is_better
        self._value: float | None = None  # value of the metric in the latest iteration
        self._saved_at: int | None = None
        self._logged_at: int | None = None
        self._on_saved = on_saved
        self._opposition: Opposition | None = None
        self.latest: str | None = None

    def _init_callback(self) -> None:
        if self._opposition is None and _SUMS.fullmatch(self._metric):
            self._opposition = Opposition(self.algorithm.env.agents)

    def _on_training_start(self) -> None:
        self._saved_at = self.algorithm.iteration  # the checkpoint that the run is resumed from exists already
        if self._at_start and self.algorithm.iteration == 0:
            self._save()

    def on_iteration_logged(self, result: Result) -> None:
        """Write a checkpoint if one is due."""
        self._logged_at = self.algorithm.iteration
        self._value = flatten(result).get(self._metric)
        if self._opposition is not None and result["env_runners"]["num_episodes"]:
            self._opposition.add(result["env_runners"]["agent_episode_returns_mean"])
        if self._every and self.algorithm.iteration % self._every == 0:
            try:
                self._save()
            except OSError as error:  # the next one may succeed; earlier checkpoints are unchanged
                _log.warning("no checkpoint of iteration %d: %s", self.algorithm.iteration, error)

    def _on_training_end(self) -> None:
        if self.algorithm.between_iterations and self.algorithm.iteration != self._saved_at:
            self._save()

    def rescue(self, *, within_iteration: bool = False) -> None:
        """After a failed training run, save the last iteration if it was finished and logged; an error is only logged.

        Args:
            within_iteration: save it also if steps of the next one have been taken; a resume is then not exact.
        """
        if self._logged_at in (None, self._saved_at) or self._logged_at != self.algorithm.iteration:
            return
        if not self.algorithm.between_iterations:
            if not within_iteration:
                return
            _log.warning("inexact: the checkpoint is written within an iteration, which a resume does not continue")
        try:
            self._save()
        except Exception as error:  # the error that ended the training is more important
            _log.warning("no checkpoint of iteration %d: %s", self.algorithm.iteration, error)

    def get_state(self) -> State:
        """Return how the agents' returns are related so far."""
        return {} if self._opposition is None else {"opposition": self._opposition.get_state()}

    def set_state(self, state: StateReader) -> None:
        """Set what `get_state` has returned."""
        if self._opposition is not None and "opposition" in state:
            self._opposition.read_state(state.fields("opposition"))()

    def _save(self) -> None:
        algorithm = self.algorithm
        score = {
            "metric": self._metric,
            "value": self._value,
            "higher_is_better": self._higher_is_better,
            "opposed": None if self._opposition is None else self._opposition.words(),
        }
        about = {**algorithm.about(), "score": score}
        state, tensors = algorithm.get_state()
        self.latest = self._folder.save(algorithm.iteration, state, tensors, about, self._keep)
        self._saved_at = algorithm.iteration
        _log.debug("saved %s", self.latest)
        if self._on_saved is not None:
            self._on_saved(self.latest)


# --- Evaluations ------------------------------------------------------------------------------------------------------


EvaluationFunction = Callable[[MultiAgentAlgorithm, MultiAgentVecEnv], Mapping[str, Any]]

_PREFIX = "evaluation/env_runners/"
_IntervalUnit = Literal["iterations", "timesteps"]
_DurationUnit = Literal["episodes", "timesteps"]
_ARGUMENT_OF_UNIT = {"episodes": "n_episodes", "timesteps": "n_env_steps"}


class EvaluationCallback(MultiAgentCallback):
    """Evaluates at intervals, and adds `evaluation/env_runners/...` to the result and the logs of the iteration.

    It does not change the training: that is the same without it, bit for bit. Every evaluation plays the same episodes,
    so that their metrics are comparable. All other callbacks see the metrics in the result, in any order of callbacks.

    Args:
        env: the envs, or a function that makes them. Envs made by the function are closed when the training ends.
        interval: iterations, or env steps, between evaluations.
        duration: length of an evaluation.
        duration_unit: unit of the duration: `episodes`, or `timesteps` (env steps, which favours short episodes; see
            `play_episodes`).
        deterministic: the most likely actions (True) or sampled ones (False), or a mapping from policy ids to these;
            None: the algorithm's `evaluation_deterministic` decides.
        seed: seed of the episodes and the actions. None: it follows from the seed of the training.
        interval_unit: unit of the interval: `iterations`, or `timesteps`: an evaluation follows the iteration that
            completes that many env steps, or a multiple of them.
        evaluation_function: called with the policies and the seeded envs instead of the built-in evaluation. It
            returns the metrics, nested or flat, for `evaluation/env_runners`, and may ignore `duration` and
            `deterministic`.

    Raises:
        ConfigError: a number or a unit is not accepted; or, when the training starts, the envs are those of the
            training, or have other agents or spaces.
    """

    def __init__(
        self,
        env: MultiAgentVecEnv | Callable[[], MultiAgentVecEnv],
        interval: int = 10,
        duration: int = 10,
        duration_unit: str = "episodes",
        deterministic: Deterministic | None = None,
        seed: int | None = None,
        evaluation_function: EvaluationFunction | None = None,
        interval_unit: str = "iterations",
    ) -> None:
        super().__init__()
        if not isinstance(env, MultiAgentVecEnv) and not callable(env):
            words = f"evaluation: env is {env!r:.200}; accepted: envs from make_vec_env, or a function that makes them"
            raise ConfigError(words, key="env")
        self.interval = require("evaluation: interval", interval, PositiveInt, "interval")
        duration = require("evaluation: duration", duration, PositiveInt, "duration")
        seed = require("evaluation: seed", seed, Count | None, "seed")
        duration_unit = require("evaluation: duration_unit", duration_unit, _DurationUnit, "duration_unit")
        self.interval_unit = require("evaluation: interval_unit", interval_unit, _IntervalUnit, "interval_unit")
        self._make_env = None if isinstance(env, MultiAgentVecEnv) else env
        self._env = env if isinstance(env, MultiAgentVecEnv) else None
        self._options: dict[str, Any] = {_ARGUMENT_OF_UNIT[duration_unit]: duration, "deterministic": deterministic}
        self._seed = seed
        self._evaluation_function = evaluation_function

    def metric_names(self, algorithm: MultiAgentAlgorithm) -> list[str]:
        """Return the flat names that it adds to a result; none with an `evaluation_function`: they are not known."""
        if self._evaluation_function is not None:
            return []
        return [f"{_PREFIX}{name}" for name in metric_names(algorithm, self._open(algorithm))]

    def _init_callback(self) -> None:
        self._open(self.algorithm)
        if self._seed is None:
            run_seed = self.algorithm.seed
            self._seed = evaluation_seed(fresh_seed() if run_seed is None else run_seed)

    def _open(self, algorithm: MultiAgentAlgorithm) -> MultiAgentVecEnv:
        if self._env is None:
            assert self._make_env is not None
            self._env = self._make_env()
        if self._env is algorithm.env:
            raise ConfigError("the envs of the evaluation are those of the training; it needs its own", key="env")
        require_same_agents(algorithm, self._env)
        return self._env

    def complete_result(self, result: Result) -> None:
        """Evaluate if an evaluation is due."""
        if self._is_due(result):
            result["evaluation"] = {"env_runners": finite_or_none(self._evaluate())}

    def _is_due(self, result: Result) -> bool:
        now, latest = (
            (result["iteration"], 1)
            if self.interval_unit == "iterations"
            else (result["num_env_steps_sampled_lifetime"], result["env_runners"]["num_env_steps_sampled"])
        )
        return bool(now // self.interval > (now - latest) // self.interval)

    def _evaluate(self) -> Mapping[str, Any]:
        env = self._open(self.algorithm)
        if self._evaluation_function is None:
            return evaluate_policies(self.algorithm, env, seed=self._seed, **self._options)
        assert self._seed is not None
        with preserve_training_state(self.algorithm, self._seed):
            env.seed(self._seed)
            return self._evaluation_function(self.algorithm, env)

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the envs that the callback made."""
        if self._make_env is not None and self._env is not None:
            self._env.close()
            self._env = None


# --- Metrics ----------------------------------------------------------------------------------------------------------


_POLICY: PolicyID = "shared"


class AgentMetricsCallback(BaseCallback):
    """Logs the metrics below `env_runners/` while a stock algorithm trains on `env.as_sb3_vec_env()`.

    `MultiAgentAlgorithm` does not need it: it has these metrics by itself.

    Args:
        window: number of finished episodes that the metrics run over.
        custom_metrics: metrics from the infos, in addition to those that the env announces.

    Attributes:
        tracker: the finished episodes; set when the training starts.
    """

    tracker: EpisodeTracker

    def __init__(self, window: int = 100, custom_metrics: Mapping[str, InfoMetric] | None = None) -> None:
        super().__init__()
        self._window = window
        self._custom_metrics = custom_metrics

    def _on_training_start(self) -> None:
        env = self.training_env.unwrapped
        if not isinstance(env, FlatVecEnv):
            raise ConfigError(f"the training env is {type(env).__name__}; accepted: that of as_sb3_vec_env()")
        self._rows = env
        policy_of = dict.fromkeys(env.env.agents, _POLICY)
        self.tracker = EpisodeTracker(env.env, policy_of, self._window, self._custom_metrics)

    def _on_step(self) -> bool:
        assert self._rows.last_step is not None
        self.tracker.record(self._rows.last_step)
        return True

    def _on_rollout_end(self) -> None:
        for name, value in flatten(self.tracker.summary(), "env_runners/").items():
            if value is not None:
                self.logger.record(name, value)


class RewardHistogramCallback(MultiAgentCallback):
    """Logs `env_runners/episode_rewards/{agent}` of the latest finished episode of env 0, once per iteration.

    Args:
        most_agents: of more agents there is one histogram, `env_runners/episode_rewards`; None: one of each agent.
    """

    def __init__(self, most_agents: int | None = None) -> None:
        super().__init__()
        self._most_agents = most_agents
        self._steps: list[tuple[Array, Array]] = []  # rewards and acted, (A,) each, of the running episode
        self._finished: list[tuple[Array, Array]] = []
        self._length = 0  # env steps of the latest episode of env 0

    def _on_training_start(self) -> None:
        self._steps, self._finished = [], []

    def on_episode_end(self, episode: Episode) -> None:
        """Keep the length of the episode."""
        if episode.env_index == 0:
            self._length = episode.length

    def _on_step(self) -> bool:
        step = self.locals["step"]
        self._steps.append((step.rewards[0].copy(), step.acted[0].copy()))
        if step.episode_done[0]:
            # Skip an episode that began before this training: its first rewards are unknown.
            if len(self._steps) == self._length:
                self._finished = self._steps
            self._steps = []
        return True

    def get_state(self) -> State:
        """Return the steps of the running episode of env 0."""
        columns = map(np.stack, zip(*self._steps, strict=True)) if self._steps else (None, None)
        return dict(zip(("rewards", "acted"), columns, strict=True))

    def set_state(self, state: StateReader) -> None:
        """Check and set what `get_state` has returned."""
        if state.value("rewards") is not None:
            shape = (None, len(self.algorithm.env.agents))
            rewards = state.array("rewards", np.float32, shape)
            acted = state.array("acted", np.bool_, rewards.shape)
            self._steps = list(zip(rewards, acted, strict=True))

    def on_iteration_end(self, result: Result) -> bool:
        """Record the histograms if an episode has finished since the last iteration."""
        if self._finished:
            rewards, acted = (np.stack(arrays) for arrays in zip(*self._finished, strict=True))
            agents = self.algorithm.env.agents
            if self._most_agents is not None and len(agents) > self._most_agents:
                self._record("env_runners/episode_rewards", rewards[acted])
            else:
                for column, agent in enumerate(agents):
                    self._record(f"env_runners/episode_rewards/{agent}", rewards[acted[:, column], column])
            self._finished = []
        return True

    def _record(self, name: str, rewards: Array) -> None:
        if rewards.size:
            self.logger.record(name, rewards, exclude=("json", "csv", "stdout"))


# --- Ends -------------------------------------------------------------------------------------------------------------


_Thresholds = Annotated[Mapping[str, FiniteFloat], Meta(description="a mapping of metric names to numbers")]


class StopAfterSteps(MultiAgentCallback):
    """Stops after the first iteration that completes `env_steps` env steps."""

    def __init__(self, env_steps: int) -> None:
        super().__init__()
        self.env_steps = env_steps

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once the env steps are taken."""
        return self.num_timesteps < self.env_steps


class StopOnMetric(MultiAgentCallback):
    """Stops after the first iteration in which one of the metrics is at least its value.

    Args:
        thresholds: metric name -> value, such as `{"env_runners/episode_return_mean": 15}`.
        more_metrics: names of metrics that other callbacks add to the result; see `EvaluationCallback.metric_names`.

    Attributes:
        reached: a sentence about the condition that was met; None before.

    Raises:
        ConfigError: the thresholds are no such mapping; or, when the training starts, a metric is unknown.
    """

    def __init__(self, thresholds: Mapping[str, float], more_metrics: Sequence[str] = ()) -> None:
        super().__init__()
        self.thresholds = require("thresholds", thresholds, _Thresholds)
        self._more_metrics = list(more_metrics)
        self.reached: str | None = None

    def _init_callback(self) -> None:
        """Refuse metrics that no result will have."""
        known = [*self.algorithm.metric_names(), *self._more_metrics]
        for name in self.thresholds:
            require_metric(name, known)

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once a threshold is reached."""
        flat = flatten(result)
        for name, threshold in self.thresholds.items():
            value = flat.get(name)
            if value is not None and value >= threshold:
                self.reached = f"{name} is {value:.4g}, at least {threshold:g}"
                return False
        return True


class StopOnSignal(MultiAgentCallback):
    """Ends the training after the running iteration when the process receives SIGINT, SIGTERM or SIGHUP.

    Exact resume is only possible between iterations. A second SIGINT or SIGTERM interrupts at once. A second SIGHUP
    does not: when a terminal is closed, both the kernel and the shell send SIGHUP.

    As a context manager, it restores the former handlers on exit. See `marl_sb3.signals.handled` for when it does
    nothing.

    Attributes:
        received: name of the received signal; None if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.received: str | None = None
        self._asked_to_end = False
        self._mentioned = False
        self._handlers = ExitStack()

    def __enter__(self) -> StopOnSignal:
        self._handlers.enter_context(handled(ENDING, self._on_signal))
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.close()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        if number != HANGUP:
            if self._asked_to_end:
                raise KeyboardInterrupt
            self._asked_to_end = True

    def _on_step(self) -> bool:
        if self.received is not None and not self._mentioned:
            self._mentioned = True  # not in the handler, which may have interrupted another message
            _log.warning("%s: finishing the iteration and saving; once more stops at once", self.received)
        return True

    def on_iteration_end(self, result: Result) -> bool:
        """Return False once a signal was received."""
        return self.received is None

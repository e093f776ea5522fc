"""Evaluate the policies every few iterations, in separate envs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from marl_sb3.core.config.values import Count, PositiveInt, require
from marl_sb3.core.mapping import Deterministic
from marl_sb3.core.metrics.names import Result, finite_or_none, flatten
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm, MultiAgentCallback
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.seeding import fresh_seed
from marl_sb3.errors import ConfigError, HookError, described, shown
from marl_sb3.evaluation.playing import (
    evaluate_against_random,
    evaluate_policies,
    evaluation_seed,
    metric_names,
    preserve_training_state,
    random_returns,
    require_same_agents,
)
from marl_sb3.types import AgentID

EvaluationFunction = Callable[[MultiAgentAlgorithm, MultiAgentVecEnv], Mapping[str, Any]]

_PREFIX = "evaluation/env_runners/"
_AGAINST_RANDOM = "evaluation/against_random/"
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
            `play`).
        deterministic: the most likely actions (True) or sampled ones (False), or a mapping from policy ids to these;
            None: the algorithm's `evaluation_deterministic` decides.
        seed: seed of the episodes and the actions. None: it follows from the seed of the training.
        interval_unit: unit of the interval: `iterations`, or `timesteps`: an evaluation follows the iteration that
            completes that many env steps, or a multiple of them.
        against_random: also measure what each policy gains over a random one, among random ones, as
            `evaluation/against_random/...`: see `evaluate_against_random`. It plays the `duration` for each agent.
        evaluation_function: called with the algorithm and the seeded envs instead of the built-in evaluation. It
            returns a mapping of numbers, nested or flat, which are logged below `evaluation/`, and may ignore
            `duration` and `deterministic`.

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
        against_random: bool = False,
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
        self._against_random = require("evaluation: against_random", against_random, bool, "against_random")
        self._random_returns: Mapping[AgentID, float | None] | None = None  # the same each time

    def metric_names(self, algorithm: MultiAgentAlgorithm) -> list[str]:
        """Return the flat names that it adds to a result; those of an `evaluation_function` are `evaluation/*`."""
        names = ["evaluation/*"]
        if self._evaluation_function is None:
            names = [f"{_PREFIX}{name}" for name in metric_names(algorithm, self._open(algorithm))]
        if self._against_random:
            gains = [f"agent_gains_mean/{agent}" for agent in self._open(algorithm).agents]
            gains += [f"module_gains_mean/{policy_id}" for policy_id in algorithm.policies]
            names += [f"{_AGAINST_RANDOM}{name}" for name in ("gain_mean", *gains)]
        return names

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
            self.algorithm.tell("on_evaluation_start")
            result["evaluation"] = self._evaluate(result["iteration"])
            if self._against_random:
                env, options = self._open(self.algorithm), {**self._options, "seed": self._seed}
                if self._random_returns is None:
                    alone = {name: value for name, value in options.items() if name != "deterministic"}
                    self._random_returns = random_returns(self.algorithm, env, **alone)
                gains = evaluate_against_random(self.algorithm, env, **options, baseline=self._random_returns)
                result["evaluation"]["against_random"] = finite_or_none(gains)
            self.algorithm.tell("on_evaluation_end", result["evaluation"])

    def _is_due(self, result: Result) -> bool:
        now, latest = (
            (result["iteration"], 1)
            if self.interval_unit == "iterations"
            else (result["num_env_steps_sampled_lifetime"], result["env_runners"]["num_env_steps_sampled"])
        )
        return bool(now // self.interval > (now - latest) // self.interval)

    def _evaluate(self, iteration: int) -> Result:
        env = self._open(self.algorithm)
        if self._evaluation_function is None:
            metrics = evaluate_policies(self.algorithm, env, seed=self._seed, **self._options)
            return {"env_runners": finite_or_none(metrics)}
        assert self._seed is not None
        name = getattr(self._evaluation_function, "__qualname__", repr(self._evaluation_function))
        with preserve_training_state(self.algorithm, self._seed):
            env.seed(self._seed)
            try:
                return _numbers(self._evaluation_function(self.algorithm, env))
            except Exception as error:  # code of the user's
                why = error if isinstance(error, HookError) else described(error)
                raise HookError(f"evaluation function {name}, after iteration {iteration}: {why}") from error

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the envs that the callback made."""
        if self._make_env is not None and self._env is not None:
            self._env.close()
            self._env = None


def _numbers(returned: Any) -> Result:
    """Check what a function of the user's has returned."""
    if not isinstance(returned, Mapping):
        raise HookError(f"it returned {shown(returned)}; accepted: a mapping of names to numbers")
    for name, value in flatten(returned).items():
        if not (value is None or isinstance(value, (int, float, np.number, np.bool_))):
            raise HookError(f"{name} is {shown(value)}; accepted: a number")
    return finite_or_none(returned)

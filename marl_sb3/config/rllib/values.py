"""Values of RLlib's settings as settings here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from marl_sb3.config.values import FiniteFloat, Fraction, PositiveInt, accepts, require, shown
from marl_sb3.errors import ConfigError


class Context(NamedTuple):
    """What a value may depend on; None: not known.

    Attributes:
        n_envs: number of envs of the run.
        n_timesteps: env steps of the run.
    """

    n_envs: int | None = None
    n_timesteps: int | None = None


def one_setting(setting: str) -> Callable[[Any, Context], dict[str, Any]]:
    """Return a conversion to one setting with the same value."""
    return lambda value, context: {setting: value}


def batch_per_env(value: Any, context: Context) -> dict[str, Any]:
    """The steps of each env that make a batch."""
    require("train_batch_size", value, PositiveInt)
    if context.n_envs is None:
        raise ConfigError("RLlib's train_batch_size needs the number of envs, which is not known here; set n_steps")
    return {"n_steps": math.ceil(value / context.n_envs)}


def fragment(setting: str) -> Callable[[Any, Context], dict[str, Any]]:
    """Return a conversion to one setting, or to none where RLlib chooses the value."""
    return lambda value, context: {} if value == "auto" else {setting: value}


def updates_of_sac(value: Any, context: Context) -> dict[str, Any]:
    """RLlib counts env steps, SB3's SAC gradient steps: only "always" is the same."""
    if value in (0, 1) and not isinstance(value, bool):
        return {"target_update_interval": 1}
    raise ConfigError(
        f"RLlib's target_network_update_freq is {shown(value)}; accepted with SAC: 0; SB3's target_update_interval "
        "counts gradient steps instead of env steps"
    )


def epsilon_schedule(value: Any, context: Context) -> dict[str, Any]:
    """A constant, or a line from the first of two points to the second."""
    if accepts(Fraction, value):
        return {"exploration_initial_eps": value, "exploration_final_eps": value}
    if not _is_line(value):
        raise ConfigError(
            f"RLlib's epsilon is {shown(value)}; accepted: a number from 0 to 1, or [[0, FIRST], [ENV_STEPS, LAST]]"
        )
    (_, first), (env_steps, last) = value
    if context.n_timesteps is None:
        raise ConfigError("RLlib's epsilon needs the length of the run, which is not known here; set exploration_*")
    fraction = min(1.0, env_steps / context.n_timesteps)
    return {"exploration_initial_eps": first, "exploration_final_eps": last, "exploration_fraction": fraction}


def epsilon_greedy(value: Any, context: Context) -> dict[str, Any]:
    """RLlib's class `EpsilonGreedy` of older versions: a line from the first epsilon to the last."""
    defaults = {"initial_epsilon": 1.0, "final_epsilon": 0.05, "epsilon_timesteps": 100_000, "warmup_timesteps": 0}
    given = dict(value) if isinstance(value, Mapping) else {}
    is_meant = str(given.pop("type", None)).rpartition(".")[2] == "EpsilonGreedy"
    if not is_meant or not given.keys() <= defaults.keys() or given.get("warmup_timesteps"):
        accepted = "{type: EpsilonGreedy, initial_epsilon: X, final_epsilon: Y, epsilon_timesteps: ENV_STEPS}"
        raise ConfigError(f"RLlib's exploration_config is {shown(value)}; accepted: {accepted}")
    first, last, env_steps, _ = {**defaults, **given}.values()
    return epsilon_schedule([[0, first], [env_steps, last]], context)


def _is_line(value: Any) -> bool:
    points = value if isinstance(value, (list, tuple)) and len(value) == 2 else ()
    pairs = [point for point in points if isinstance(point, (list, tuple)) and len(point) == 2]
    numbers = [number for pair in pairs for number in pair if accepts(FiniteFloat, number)]
    return len(numbers) == 4 and pairs[0][0] == 0 and pairs[1][0] > 0


def by_name(names: Mapping[Any, Any]) -> Callable[[Any], Any]:
    """Return a conversion of some values; all others are returned unchanged and checked later."""

    def converted(value: Any) -> Any:
        return next((ours for theirs, ours in names.items() if type(value) is type(theirs) and value == theirs), value)

    return converted


def is_normalized(value: Any) -> Any:
    """Whether an observation filter normalises."""
    known = {"MeanStdFilter": True, "ConcurrentMeanStdFilter": True, "NoFilter": False}
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"RLlib's observation_filter is {shown(value)}; accepted: {', '.join(known)}")
    return known[value]


def deterministic(value: Any) -> bool:
    """Whether evaluations with this configuration are deterministic."""
    if not isinstance(value, Mapping) or [*value] != ["explore"] or not isinstance(value["explore"], bool):
        raise ConfigError(f"RLlib's evaluation_config is {shown(value)}; accepted: {{explore: true or false}}")
    return not value["explore"]

"""Settings of off-policy algorithms: what they need besides their hyperparameters, and whether these fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import psutil
from gymnasium import spaces

from marl_sb3.config.values import counted
from marl_sb3.errors import ConfigError
from marl_sb3.learners.action_noise import make_action_noise
from marl_sb3.learners.buffers.replay import replay_bytes
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.policies.hyperparameters import hyperparameter_defaults
from marl_sb3.policies.placement import PolicyRows

_FOR_DISCRETE = ("DQN", "QRDQN")


def replay_settings(rows: PolicyRows, spec: PolicySpec) -> dict[str, Any]:
    """Return the arguments of SB3's algorithm that depend on the rows, or that SB3 takes in another form."""
    settings: dict[str, Any] = {}
    given = spec.hyperparameters
    if given.get("action_noise") is not None:
        settings["action_noise"] = make_action_noise(given["action_noise"], rows.zero_based_actions.space)
    if isinstance(given.get("train_freq"), list):
        settings["train_freq"] = tuple(given["train_freq"])
    return settings


def check_replay(rows: PolicyRows, spec: PolicySpec) -> None:
    """Refuse what the algorithm cannot learn from, or what is not supported for rows that act in turns.

    Raises:
        ConfigError: names the policy and the setting.
    """
    check_action_space(rows, spec)
    values = {**hyperparameter_defaults(spec.algorithm), **spec.hyperparameters}
    where = f"policy {rows.policy_id!r}"
    if spec.processing.normalize_observations or spec.processing.normalize_rewards:
        raise ConfigError(
            f"{where}: normalize is on, but the replay buffer of {spec.algorithm.__name__} would mix numbers that were "
            "normalised by earlier and later statistics; accepted: false",
            key="normalize",
        )
    if values["optimize_memory_usage"]:
        raise ConfigError(
            f"{where}: optimize_memory_usage is true, but the next observation of an agent need not be the next "
            "transition in the replay buffer; accepted: false",
            key="optimize_memory_usage",
        )
    if values["n_steps"] != 1:
        raise ConfigError(
            f"{where}: n_steps is {values['n_steps']}: n-step returns are not supported for agents that act in turns; "
            "accepted: 1",
            key="n_steps",
        )
    if _in_episodes(values["train_freq"]) and rows.num_rows > 1:
        shape = f"{counted(rows.num_envs, 'env')} x {counted(len(rows.agents), 'agent')}"
        raise ConfigError(
            f"{where}: train_freq is in episodes, which end at different times in {shape}; accepted: steps, or one env "
            "and a policy for each agent",
            key="train_freq",
        )


def check_action_space(rows: PolicyRows, spec: PolicySpec) -> None:
    """Refuse actions that the algorithm does not choose.

    Raises:
        ConfigError: names the policy, the space, and what is accepted.
    """
    bases = [cls.__name__ for cls in spec.algorithm.__mro__]
    discrete = any(name in bases for name in _FOR_DISCRETE)
    action_space = rows.group.action_space
    if not isinstance(action_space, spaces.Discrete if discrete else spaces.Box):
        agents = ", ".join(map(str, rows.agents))
        raise ConfigError(
            f"policy {rows.policy_id!r}, agents {agents}: the action space is {action_space}; "
            f"accepted by {spec.algorithm.__name__}: {'Discrete' if discrete else 'Box'}",
            key="algo",
        )


def _in_episodes(train_freq: Any) -> bool:
    return isinstance(train_freq, (list, tuple)) and train_freq[1] == "episode"


def require_memory(policies: Iterable[tuple[PolicyRows, PolicySpec]]) -> None:
    """Refuse replay buffers that need more memory than is available.

    Raises:
        ConfigError: with the size of each.
    """
    sizes = {rows.policy_id: _bytes(rows, spec) for rows, spec in policies}
    available = psutil.virtual_memory().available
    if sum(sizes.values()) <= available:
        return
    each = ", ".join(f"{policy_id!r} {size / 2**30:,.1f} GiB" for policy_id, size in sizes.items())
    raise ConfigError(
        f"the replay buffers need more memory than is available ({available / 2**30:,.1f} GiB): policy {each}; "
        "accepted: a smaller buffer_size",
        key="buffer_size",
    )


def _bytes(rows: PolicyRows, spec: PolicySpec) -> int:
    values: Mapping[str, Any] = {**hyperparameter_defaults(spec.algorithm), **spec.hyperparameters}
    group = rows.group
    return replay_bytes(values["buffer_size"], rows.num_rows, group.observation_space, group.action_space)

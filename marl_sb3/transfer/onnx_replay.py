"""What an ONNX graph of an off-policy policy computes: Q values of discrete actions, or the actions of an actor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch as th

Values = tuple[th.Tensor, ...]


def replay_head(policy: Any) -> tuple[Callable[[Any, Any], Values], tuple[str, ...]] | None:
    """Return what computes the outputs of an off-policy policy, and their names; None for any other policy.

    The function takes a policy and its observations. An actor's actions are from -1 to 1.
    """
    if hasattr(policy, "q_net") or hasattr(policy, "quantile_net"):
        return _best_action, ("actions", "q_values")
    if isinstance(getattr(policy, "actor", None), th.nn.Module):
        return _action_of_actor, ("actions",)
    return None


def q_values(policy: Any, observations: Any) -> th.Tensor:
    """Return the (batch, choices) Q values of DQN, or the means of QRDQN's quantiles."""
    if hasattr(policy, "quantile_net"):
        means: th.Tensor = policy.quantile_net(observations).mean(dim=1)
        return means
    values: th.Tensor = policy.q_net(observations)
    return values


def _best_action(policy: Any, observations: Any) -> Values:
    values = q_values(policy, observations)
    return th.argmax(values, dim=1), values


def _action_of_actor(policy: Any, observations: Any) -> Values:
    """The mode of SAC's, TQC's and CrossQ's distribution; TD3's and DDPG's actors give the action itself."""
    if hasattr(policy.actor, "get_action_dist_params"):
        mean, *_ = policy.actor.get_action_dist_params(observations)
        return (th.tanh(mean),)
    return (policy.actor(observations),)

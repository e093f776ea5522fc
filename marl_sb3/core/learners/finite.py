"""Refuse updates with results that are not finite, and say where that began."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3.core.mapping import PolicyRows
from marl_sb3.errors import NumericError
from marl_sb3.types import PolicyID

_RECORDED = {
    "train/policy_gradient_loss": "policy loss",
    "train/policy_objective": "policy loss",
    "train/kl_divergence_loss": "KL divergence",
    "train/value_loss": "value loss",
    "train/entropy_loss": "entropy",
    "train/loss": "loss",
    "train/critic_loss": "critic loss",
    "train/actor_loss": "actor loss",
    "train/ent_coef_loss": "loss of the entropy coefficient",
    "train/ent_coef": "entropy coefficient",
}
_IN_UPDATE = "it began in the update, possibly by too high a learning rate or by large rewards"
# From cause to consequence.
_ROLLOUT = ("rewards", "values", "log_probs", "advantages", "returns")


@th.no_grad()
def check_update(
    rows: PolicyRows, algorithm: OnPolicyAlgorithm, recorded: Mapping[str, Any], grad_norm: float | None
) -> None:
    """Refuse an update with results that are not finite.

    Args:
        algorithm: it has the new weights, and the rollout buffer.
        recorded: what it recorded in its logger.
        grad_norm: norm of the gradients; None if it is not known.

    Raises:
        NumericError: a result is not finite; the message names the policy, the quantity, and its origin: agent, env and
            step; or the parameter.
    """
    fault = _first_fault(recorded)
    if fault is None and grad_norm is not None and not math.isfinite(grad_norm):
        fault = "gradient"
    if fault is not None:
        raise NumericError(
            f"policy {rows.policy_id!r}: the {fault} is not finite; {_origin(rows, algorithm.rollout_buffer)}"
        )
    parameters = dict(algorithm.policy.named_parameters())
    if math.isfinite(float(th.stack(th._foreach_norm([*parameters.values()])).sum())):  # one transfer from a GPU
        return
    bad = next((name for name, parameter in parameters.items() if not bool(th.isfinite(parameter).all())), None)
    if bad is not None:  # the norm of large weights may be out of range
        raise NumericError(f"policy {rows.policy_id!r}: the weights {bad} are not finite after the update")


def _first_fault(recorded: Mapping[str, Any]) -> str | None:
    return next((words for name, words in _RECORDED.items() if not math.isfinite(recorded.get(name, 0.0))), None)


def check_replay_update(policy_id: PolicyID, recorded: Mapping[str, Any], buffer: Any) -> None:
    """Refuse the results of an update from a replay buffer that are not finite.

    Args:
        recorded: what the algorithm recorded in its logger.
        buffer: the replay buffer of the policy.

    Raises:
        NumericError: names the policy, the quantity, and where it began.
    """
    fault = _first_fault(recorded)
    if fault is None:
        return
    bad = next((name for name, array in buffer.tensors().items() if not np.isfinite(array).all()), None)
    origin = f"it began in the {bad} of the replay buffer" if bad else f"the replay buffer is finite: {_IN_UPDATE}"
    raise NumericError(f"policy {policy_id!r}: the {fault} is not finite; {origin}")


def _origin(rows: PolicyRows, rollout: Any) -> str:
    for name in _ROLLOUT:
        bad = np.argwhere(~np.isfinite(getattr(rollout, name)))
        if len(bad):
            words = f"it began in the {name.replace('_', '-')} of the rollout"
            if rollout.generator_ready:  # the buffer is flattened: agent, env and step are not known
                return words
            step, row = bad[0][:2]
            env_index, position = divmod(int(row), len(rows.agents))
            return f"{words}, at agent {rows.agents[position]!r}, env {env_index}, step {step} of the rollout"
    return f"the rollout is finite: {_IN_UPDATE}"

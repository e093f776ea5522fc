"""The action masks of a policy that needs them."""

from __future__ import annotations

from marl_sb3.errors import ConfigError
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.types import BoolArray
from marl_sb3.vec_env.step import VecStep

_ACCEPTED = (
    "masks in infos[agent]['action_mask'], in observations {observation, action_mask}, or from action_masks() of a "
    "Gymnasium env"
)


def required_masks(rows: PolicyRows, step: VecStep, algorithm: str) -> BoolArray | None:
    """Return the (rows, n) masks of a step; None if the env gives none and no agent of the policy acts next.

    Args:
        algorithm: the name of the algorithm that needs them.

    Raises:
        ConfigError: an agent acts next, and the env gives no masks.
    """
    masks = rows.masks(step.action_masks)
    if masks is None and rows.of_agents(step.to_act).any():
        agents = ", ".join(rows.agents)
        words = f"action masks missing for {algorithm}: the env gives none for {agents}; accepted: {_ACCEPTED}"
        raise ConfigError(f"policy {rows.policy_id!r}: {words}", key="algo")
    return masks

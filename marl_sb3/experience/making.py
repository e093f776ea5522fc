"""Make the replay buffer that the settings of a policy describe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gymnasium import spaces

from marl_sb3.experience.hindsight import GoalEnv, HindsightBuffer
from marl_sb3.experience.replay import TransitionDictReplayBuffer, TransitionReplayBuffer
from marl_sb3.experience.row_rings import CompactBuffer, NStepBuffer, NStepDictBuffer, RowRings

RowReplayBuffer = TransitionReplayBuffer | TransitionDictReplayBuffer | RowRings

HER = "HerReplayBuffer"


def make_replay_buffer(
    algorithm: Any, observation_space: spaces.Space[Any], settings: Mapping[str, Any], goals: GoalEnv | None
) -> RowReplayBuffer:
    """Make a replay buffer.

    Args:
        algorithm: the SB3 algorithm that learns from it.
        observation_space: of the observations as they are stored.
        settings: `buffer_size`, `n_steps`, `optimize_memory_usage` and `replay_buffer_kwargs`.
        goals: gives the rewards of new goals; None: no hindsight experience replay.
    """
    is_dict = isinstance(observation_space, spaces.Dict)
    more: dict[str, Any] = {}
    made: Callable[..., RowReplayBuffer] = TransitionDictReplayBuffer if is_dict else TransitionReplayBuffer
    if goals is not None:
        made, more = HindsightBuffer, {"goals": goals}
    elif settings["n_steps"] > 1:
        made = NStepDictBuffer if is_dict else NStepBuffer
        more = {"n_steps": settings["n_steps"], "gamma": algorithm.gamma}
    elif settings["optimize_memory_usage"]:
        made, more = CompactBuffer, {"optimize_memory_usage": True}
    return made(
        settings["buffer_size"],
        observation_space,
        algorithm.action_space,
        device=algorithm.device,
        n_envs=algorithm.n_envs,
        **more,
        **(settings["replay_buffer_kwargs"] or {}),
    )

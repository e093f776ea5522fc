"""A trajectory: what an agent has experienced, which a hook may change before learners use it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.errors import HookError
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID


@dataclass
class Trajectory:
    """T transitions of one agent in one episode, in order, as the learner of its policy gets them.

    A hook may change `observations`, `rewards`, `keep` and, of policies with rollouts, `values`: their lengths stay.
    Actions stay as they were: a learner needs those that were played.
    """

    policy_id: PolicyID  # the policy
    agent: AgentID  # the agent
    env_index: int  # index of the env
    steps: Array  # (T,) the env step in which each transition began, counted for its env from the start of the training
    # the env step after the last one of the last transition: transition `i` lasts from `steps[i]` to before `steps[i +
    # 1]`, the last one to before `end`
    end: int
    observations: Observations  # (T, ...) what the policy saw
    actions: Array  # (T, ...) what it chose, before it was fitted to the env's action space
    # (T,) float32; the agent's rewards until its next turn or its end, after the policy's processing. The value with
    # which a truncated return bootstraps is added afterwards.
    rewards: Array
    # (T,) bool; the learner does not get transitions that are set to False. The transition before them bootstraps
    # from the value of the next observation: it was not the end of the episode, and no return includes what is
    # missing.
    keep: BoolArray
    values: Array | None  # (T,) the values that the policy estimated; None for policies with a replay buffer
    log_probs: Array | None  # (T,) log-probabilities of the actions; None for policies with a replay buffer
    infos: Sequence[Mapping[str, Any]]  # T infos of the agent, from the last env step of each transition
    has_ended: bool  # whether the agent's episode ended with the last transition
    truncated: bool  # whether it was truncated there
    # agent -> what each other agent did in these env steps, until `end`. Its rewards are those of the env, and changes
    # to it have no effect.
    others: Mapping[AgentID, Trajectory] = field(default_factory=dict, repr=False)
    estimate: Callable[[Observations], Array] | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.steps)

    def values_of(self, observations: Observations) -> Array:
        """Return the (n,) values that the policy estimates now for (n, ...) observations, such as changed ones.

        Raises:
            HookError: the policy has a replay buffer or a recurrent state, or is that of another agent.
        """
        if self.estimate is None:
            raise HookError(f"policy {self.policy_id!r} estimates no values here")
        return self.estimate(observations)

    def as_it_was(self) -> dict[str, Any]:
        """Return what a hook may not change: the shape of observations, and what was played."""
        return {**copy.deepcopy({name: getattr(self, name) for name in _PLAYED}), "shape": _shape(self.observations)}

    def require_fitting(self, before: Mapping[str, Any]) -> None:
        """Refuse what no learner can use.

        That is: arrays of another length, observations of another shape, rewards and values that are not finite, and
        other actions than those that were played.

        Args:
            before: `as_it_was` before the hook.

        Raises:
            HookError: the message says which.
        """
        length = len(before["actions"])
        arrays: dict[str, Any] = {"rewards": self.rewards, "keep": self.keep, "values": self.values}
        if before["log_probs"] is None and arrays.pop("values") is not None:
            raise HookError("values are there after the hook; accepted: None, as a replay buffer keeps none")
        for name, array in arrays.items():
            found = np.asarray(array)
            if found.shape != (length,):
                raise HookError(f"{name} has shape {found.shape} after the hook; accepted: ({length},)")
            if found.dtype.kind not in "biuf":
                raise HookError(f"{name} is of {found.dtype} after the hook; accepted: numbers")
            if not np.isfinite(found).all():
                raise HookError(f"{name} is not finite after the hook")
        shape = _shape(self.observations)
        if shape != before["shape"]:
            raise HookError(f"observations has shape {shape} after the hook; accepted: {before['shape']}")
        for name in _PLAYED:
            played = before[name]
            if played is not None and not np.array_equal(getattr(self, name), played, equal_nan=name == "log_probs"):
                words = "accepted: those that were played: change observations, rewards, values or keep"
                raise HookError(f"{name} are others after the hook; {words}")


_PLAYED = ("actions", "log_probs")


def _shape(observations: Any) -> Any:
    """Return the shape of observations, or those of their parts."""
    return map_arrays(np.shape, observations)  # type: ignore[arg-type]

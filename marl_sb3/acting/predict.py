"""One call of `predict` for all agents of a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from marl_sb3.acting.agent_policy import AgentPolicy, Prepared
from marl_sb3.sb3.inference import States, predict
from marl_sb3.types import AgentID, Array, BoolArray, Observations, PolicyID


class Asked(NamedTuple):
    """An agent whose action is wanted, with its checked inputs."""

    agent: AgentPolicy
    inputs: Prepared

    @classmethod
    def of(cls, agent: AgentPolicy, observation: Any, **inputs: Any) -> Asked:
        """Check the inputs; see `AgentPolicy.prepared`."""
        return cls(agent, agent.prepared(observation, **inputs, acts=True))

    @property
    def rows(self) -> int:
        """The number of its observations."""
        return len(self.inputs.starts)


def predict_by_policy(asked: Mapping[AgentID, Asked], deterministic: bool) -> dict[AgentID, tuple[Any, States]]:
    """Choose the actions of agents; see `predict_together`, which is called for each policy."""
    of_policies: dict[PolicyID, list[AgentID]] = {}
    for name, each in asked.items():
        of_policies.setdefault(each.agent.policy_id, []).append(name)
    found: dict[AgentID, tuple[Any, States]] = {}
    for names in of_policies.values():
        found.update(zip(names, predict_together([asked[name] for name in names], deterministic), strict=True))
    return {name: found[name] for name in asked}


def predict_together(asked: Sequence[Asked], deterministic: bool) -> list[tuple[Any, States]]:
    """Choose the actions of agents of one policy: by one call if their observations can be joined to a batch.

    Args:
        asked: the agents.
        deterministic: the most likely actions instead of sampled ones.

    Returns:
        For each agent, its action or actions as the env takes them, and its new state.

    Raises:
        ConfigError: an observation does not fit the policy; the message names the agent.
    """
    batches = [_as_batch(each) for each in asked] if len(asked) > 1 else [None]
    if not any(batch is None for batch in batches):
        try:
            return _predict_joined(asked, batches, deterministic)
        except (ValueError, RuntimeError, TypeError):
            pass  # again, one after the other: the error then names its agent
    return [_predict_one(each, deterministic) for each in asked]


def _predict_joined(asked: Sequence[Asked], batches: Sequence[Any], deterministic: bool) -> list[tuple[Any, States]]:
    inputs = [each.inputs for each in asked]
    actions, states = predict(
        asked[0].agent.algorithm,
        _joined(batches),
        tuple(np.concatenate(parts, axis=1) for parts in zip(*(its.states for its in inputs), strict=True)),
        np.concatenate([its.starts for its in inputs]),
        _joined_masks([its.masks for its in inputs if its.masks is not None]),
        deterministic,
    )
    ends = np.cumsum([0, *(each.rows for each in asked)]).tolist()
    return [
        each.agent.acted(each.inputs, actions[first:last], tuple(state[:, first:last] for state in states))
        for each, (first, last) in zip(asked, pairwise(ends), strict=True)
    ]


def _predict_one(asked: Asked, deterministic: bool) -> tuple[Any, States]:
    agent, its = asked
    with agent.misfit_refused():
        actions, after = predict(agent.algorithm, its.observation, its.states, its.starts, its.masks, deterministic)
    return agent.acted(its, np.asarray(actions) if its.shape else np.asarray(actions)[None], after)


def _as_batch(asked: Asked) -> Observations | None:
    """Return the observations of an agent as a batch; None if their shape is not that of their space.

    SB3 takes images with the channels first or last, and refuses all other shapes.
    """
    space, seen, rows = asked.agent.processing.observation_space, asked.inputs.observation, asked.rows
    if not isinstance(space, spaces.Dict):
        return _part_as_batch(space, seen, asked.inputs.shape, rows)
    if not isinstance(seen, Mapping) or set(seen) != set(space.spaces):
        return None
    parts = {key: _part_as_batch(part, seen[key], asked.inputs.shape, rows) for key, part in space.spaces.items()}
    return None if any(part is None for part in parts.values()) else parts  # type: ignore[return-value]


def _part_as_batch(space: spaces.Space[Any], seen: Any, shape: tuple[int, ...], rows: int) -> Array | None:
    array, own = np.asarray(seen), space.shape or ()
    return array.reshape(rows, *own) if array.shape == (*shape, *own) else None


def _joined(batches: Sequence[Any]) -> Observations:
    if isinstance(batches[0], dict):
        return {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    return np.concatenate(batches)


def _joined_masks(masks: Sequence[BoolArray]) -> BoolArray | None:
    """Join the masks of agents of one policy: all of them have one, or none has."""
    return np.concatenate(masks) if masks else None

"""Act for agents by their policies, and look inside these: the methods that bundles and algorithms have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.distributions import Distribution

from marl_sb3.acting.agent_policy import AgentInputs, AgentPolicy, Prepared, require_known
from marl_sb3.acting.policy import PolicyInputs, PredictingPolicy
from marl_sb3.sb3.inference import States
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray, Observations, PolicyID

ByAgent = Mapping[AgentID, Any]


class PolicyByAgent(ABC):
    """Policies that are asked by agent.

    All arguments and results of its methods are mappings by agent. Observations are those of the env: they are
    processed as in the training. An agent has a single observation or a batch of n.

    Attributes:
        policy_of: agent -> policy id.
    """

    policy_of: Mapping[AgentID, PolicyID]

    @abstractmethod
    def agent_policies(self, agents: Iterable[AgentID]) -> dict[AgentID, AgentPolicy]:
        """Return the policies of some agents."""

    def predict(
        self, observations: ByAgent, deterministic: bool = False, action_masks: ByAgent | None = None
    ) -> dict[AgentID, Any]:
        """Return the action of each agent: `predict_with_state` at the start of an episode.

        Args:
            observations: by agent; any subset of the agents. A leading batch axis is kept.
            deterministic: the most likely action instead of a sampled one.
            action_masks: see `predict_with_state`.

        Raises:
            ConfigError: see `predict_with_state`.
        """
        return self.predict_with_state(observations, action_masks=action_masks, deterministic=deterministic)[0]

    def predict_with_state(
        self,
        observations: ByAgent,
        state: ByAgent | None = None,
        episode_starts: ByAgent | None = None,
        action_masks: ByAgent | None = None,
        deterministic: bool = False,
        rewards: ByAgent | None = None,
    ) -> tuple[dict[AgentID, Any], dict[AgentID, States]]:
        """Return the action of each agent and the state of policies with memory.

        Agents that share a policy are predicted by one call of its network. All mappings are by agent; an agent that
        is not in a mapping has no such input.

        Args:
            observations: any subset of the agents: a single observation each, or a batch of n.
            state: what the previous call returned; None at the start of an episode.
            episode_starts: a boolean, or n of them: True where an episode of the agent starts: its state is not used
                there. Policies without memory ignore it.
            action_masks: k booleans for an agent, or (n, k) for a batch: True where an action is allowed. k is the
                number of actions of a Discrete space, and the sum over the choices of a MultiDiscrete or MultiBinary
                one. A mask is refused for a policy that takes none: it could choose a forbidden action. A policy of
                MaskablePPO needs one: here, or in an observation `{"observation": ..., "action_mask": ...}` as
                PettingZoo's games give them.
            deterministic: the most likely action instead of a sampled one.
            rewards: what each agent has been paid since its previous action, one number, or n; needed for policies
                with `previous_reward`, but for the start of an episode. Others take no notice.

        Returns:
            The actions, and the state for the next call, which has the agents whose policies have memory: recurrent
            ones, and those whose processing keeps something, such as stacked frames. The state of an agent without an
            observation stays as it was.

        Raises:
            ConfigError: an agent that no policy acts for; an observation, a state or a mask that does not fit its
                policy.
        """
        asked = self._asked(
            observations, state=state, episode_start=episode_starts, action_mask=action_masks, reward=rewards
        )
        prepared = {
            agent: (its_policy, its_policy.prepared(given, acts=True)) for agent, (its_policy, given) in asked.items()
        }
        found = predict_by_policy(prepared, deterministic)
        memories = {agent: memory for agent, (_, memory) in found.items() if memory}
        return {agent: action for agent, (action, _) in found.items()}, {**(state or {}), **memories}

    # --- Looking inside ----------------------------------------------------------------------------------------------

    def value(
        self,
        observations: ByAgent,
        state: ByAgent | None = None,
        episode_starts: ByAgent | None = None,
        rewards: ByAgent | None = None,
    ) -> dict[AgentID, Any]:
        """Return the value that each agent's critic estimates: `value_with_state` without the critic's own state.

        The arguments are those of `predict_with_state`: `state` is what it returned before these observations.

        Returns:
            A number for each agent, or (n,) for a batch; in the scale of the rewards that the policy learns from,
            which `normalize_rewards` changes.

        Raises:
            ConfigError: a policy has no such values, or has a critic with an LSTM of its own and a state is given; or
                as in `predict_with_state`.
        """
        asked = self._asked(observations, state=state, episode_start=episode_starts, reward=rewards)
        return {agent: policy.value(given) for agent, (policy, given) in asked.items()}

    def value_with_state(
        self,
        observations: ByAgent,
        state: ByAgent | None = None,
        critic_state: ByAgent | None = None,
        episode_starts: ByAgent | None = None,
        rewards: ByAgent | None = None,
    ) -> tuple[dict[AgentID, Any], dict[AgentID, States]]:
        """Return the value that each agent's critic estimates, and the state of critics with an LSTM of their own.

        Args:
            observations: see `predict_with_state`.
            state: what `predict_with_state` returned before these observations; None at the start of an episode.
            critic_state: what the previous call of this method returned; None at the start of an episode.
            episode_starts: see `predict_with_state`.
            rewards: see `predict_with_state`.

        Returns:
            The values as `value` returns them, and the critics' state for the next call.

        Raises:
            ConfigError: a policy has no such values, or as in `predict_with_state`.
        """
        asked = self._asked(
            observations, state=state, critic_state=critic_state, episode_start=episode_starts, reward=rewards
        )
        found = {agent: policy.value_with_state(given) for agent, (policy, given) in asked.items()}
        memories = {agent: memory for agent, (_, memory) in found.items() if memory}
        return {agent: value for agent, (value, _) in found.items()}, {**(critic_state or {}), **memories}

    def distribution(
        self,
        observations: ByAgent,
        state: ByAgent | None = None,
        episode_starts: ByAgent | None = None,
        action_masks: ByAgent | None = None,
        rewards: ByAgent | None = None,
    ) -> dict[AgentID, Distribution]:
        """Return SB3's distribution of each agent's actions; the arguments are those of `predict_with_state`.

        Returns:
            Distributions with a batch axis, of length 1 for a single observation: `.mode()`, `.sample()`, `.entropy()`
            and `.log_prob(actions)` are tensors; `.distribution` is that of PyTorch, with `.probs` where actions are
            Discrete. They are of the policy's actions: before squashing, rescaling and clipping.

        Raises:
            ConfigError: a policy chooses its actions without a distribution, or as in `predict_with_state`.
        """
        asked = self._asked(
            observations, state=state, episode_start=episode_starts, action_mask=action_masks, reward=rewards
        )
        return {agent: policy.distribution(given) for agent, (policy, given) in asked.items()}

    def log_prob(
        self,
        observations: ByAgent,
        actions: ByAgent,
        state: ByAgent | None = None,
        episode_starts: ByAgent | None = None,
        action_masks: ByAgent | None = None,
        rewards: ByAgent | None = None,
    ) -> dict[AgentID, Any]:
        """Return the log-probability with which each agent's policy takes its action.

        Args:
            observations: see `predict_with_state`, as for the other arguments.
            actions: as the env takes them; an action or n of them for each agent with an observation. For a Box, this
                is the log of a density of the policy's own actions, and of the bound where an action was clipped.

        Returns:
            A number for each agent, or (n,) for a batch.

        Raises:
            ConfigError: a policy has no distribution, an action does not fit the space, or as in
                `predict_with_state`.
        """
        asked = self._asked(
            observations,
            action=actions,
            state=state,
            episode_start=episode_starts,
            action_mask=action_masks,
            reward=rewards,
        )
        return {agent: policy.log_prob(given) for agent, (policy, given) in asked.items()}

    def q_values(
        self,
        observations: ByAgent,
        actions: ByAgent | None = None,
        state: ByAgent | None = None,
        episode_starts: ByAgent | None = None,
        rewards: ByAgent | None = None,
    ) -> dict[AgentID, FloatArray]:
        """Return the Q values of each agent's policy.

        Args:
            observations: see `predict_with_state`, as for the other arguments.
            actions: as the env takes them, for algorithms with actions in a Box; None, or an agent that is left out:
                the most likely action.

        Returns:
            (k,) or (n, k). DQN and QRDQN: one for each of the k actions; others: one of each of the k critics. QRDQN
            and TQC: the means over the quantiles.

        Raises:
            ConfigError: a policy has no Q values, an action does not fit the space, or as in `predict_with_state`.
        """
        asked = self._asked(observations, action=actions, state=state, episode_start=episode_starts, reward=rewards)
        return {agent: policy.q_values(given) for agent, (policy, given) in asked.items()}

    def _asked(self, observations: ByAgent, **given: ByAgent | None) -> dict[AgentID, tuple[AgentPolicy, AgentInputs]]:
        """Return the policy and the inputs of each agent with an observation; the names are those of `AgentInputs`."""
        plural = {name if name.endswith("state") else f"{name}s": own for name, own in given.items()}
        require_known(self.policy_of, {"observations": observations, **plural})
        policies = self.agent_policies(observations)
        return {
            agent: (
                policies[agent],
                AgentInputs(observation, **{name: own.get(agent) for name, own in given.items() if own is not None}),
            )
            for agent, observation in observations.items()
        }


# --- One call of `predict` for all agents of a policy ----------------------------------------------------------------

Asked = tuple[AgentPolicy, Prepared]  # an agent whose action is wanted, with its checked inputs


def predict_by_policy(asked: Mapping[AgentID, Asked], deterministic: bool) -> dict[AgentID, tuple[Any, States]]:
    """Choose the actions of agents; see `predict_together`, which is called for each policy."""
    of_policies: dict[PolicyID, list[AgentID]] = {}
    for name, each in asked.items():
        of_policies.setdefault(each[0].policy_id, []).append(name)
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
    inputs = [each.inputs for _, each in asked]
    joined = PolicyInputs(
        _joined(batches),
        np.concatenate([each.starts for each in inputs]),
        _joined_masks([each.masks for each in inputs if each.masks is not None]),
        tuple(np.concatenate(parts, axis=1) for parts in zip(*(each.states for each in inputs), strict=True)),
    )
    actions, states, *_ = PredictingPolicy(asked[0][0].algorithm, deterministic).act(joined)
    ends = np.cumsum([0, *(each.rows for _, each in asked)]).tolist()
    return [
        agent.acted(each, actions[first:last], tuple(state[:, first:last] for state in states))
        for (agent, each), (first, last) in zip(asked, pairwise(ends), strict=True)
    ]


def _predict_one(asked: Asked, deterministic: bool) -> tuple[Any, States]:
    agent, prepared = asked
    with agent.misfit_refused():
        actions, after, *_ = PredictingPolicy(agent.algorithm, deterministic).act(prepared.inputs)
    return agent.acted(prepared, np.asarray(actions) if prepared.shape else np.asarray(actions)[None], after)


def _as_batch(asked: Asked) -> Observations | None:
    """Return the observations of an agent as a batch; None if their shape is not that of their space.

    SB3 takes images with the channels first or last, and refuses all other shapes.
    """
    agent, prepared = asked
    space, seen, rows = agent.processing.observation_space, prepared.inputs.observations, prepared.rows
    if not isinstance(space, spaces.Dict):
        return _part_as_batch(space, seen, prepared.shape, rows)
    if not isinstance(seen, Mapping) or set(seen) != set(space.spaces):
        return None
    parts = {key: _part_as_batch(part, seen[key], prepared.shape, rows) for key, part in space.spaces.items()}
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

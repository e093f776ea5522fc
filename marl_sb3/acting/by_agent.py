"""Act for agents by their policies, and look inside these: the methods that bundles and algorithms have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from stable_baselines3.common.distributions import Distribution

from marl_sb3.acting import inspection as look
from marl_sb3.acting.agent_policy import AgentPolicy, require_known
from marl_sb3.acting.predict import Asked, predict_by_policy
from marl_sb3.sb3.inference import States
from marl_sb3.types import AgentID, FloatArray, PolicyID

ByAgent = Mapping[AgentID, Any]
T = TypeVar("T")


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
        inputs = {"state": state, "episode_start": episode_starts, "action_mask": action_masks, "reward": rewards}
        found = predict_by_policy(self._of_each(Asked.of, observations, inputs), deterministic)
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
        inputs = {"state": state, "episode_start": episode_starts, "reward": rewards}
        return self._of_each(look.value, observations, inputs)

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
        inputs = {
            "state": state,
            "critic_state": critic_state,
            "episode_start": episode_starts,
            "reward": rewards,
        }
        found = self._of_each(look.value_with_state, observations, inputs)
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
        inputs = {"state": state, "episode_start": episode_starts, "action_mask": action_masks, "reward": rewards}
        return self._of_each(look.distribution, observations, inputs)

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
        inputs = {
            "action": actions,
            "state": state,
            "episode_start": episode_starts,
            "action_mask": action_masks,
            "reward": rewards,
        }
        return self._of_each(look.log_prob, observations, inputs)

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
        inputs = {"action": actions, "state": state, "episode_start": episode_starts, "reward": rewards}
        return self._of_each(look.q_values, observations, inputs)

    def _of_each(
        self, of_agent: Callable[..., T], observations: ByAgent, inputs: Mapping[str, ByAgent | None]
    ) -> dict[AgentID, T]:
        """Call a function for each agent with an observation, with its inputs by name; None where there is none."""
        plural = {name: name if name.endswith("state") else f"{name}s" for name in inputs}
        require_known(
            self.policy_of, {"observations": observations, **{plural[name]: own for name, own in inputs.items()}}
        )
        policies, found = self.agent_policies(observations), {}
        for agent, observation in observations.items():
            its = {name: own.get(agent) for name, own in inputs.items() if own is not None}
            found[agent] = of_agent(policies[agent], observation, **{**dict.fromkeys(inputs), **its})
        return found

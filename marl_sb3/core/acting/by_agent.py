"""Several policies that are asked by agent, and a bundle of them, which is usable without an env."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import Distribution

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.acting.asked_agent import (
    AgentInputs,
    AskedAgent,
    ByAgent,
    Given,
    PolicyAnswer,
    RequestedOutputs,
    act_together,
)
from marl_sb3.core.acting.policy import PredictingPolicy
from marl_sb3.core.config.algorithms import policy_files
from marl_sb3.core.mapping import Deterministic, PolicyRows
from marl_sb3.core.metrics.episodes import InfoMetric
from marl_sb3.core.policies import activation_name
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.rows import process_rows
from marl_sb3.core.sb3.inference import States
from marl_sb3.core.sb3.tensors import reset_optimizers
from marl_sb3.core.state.state import StateReader
from marl_sb3.doors import counterpart
from marl_sb3.errors import CheckpointError, ConfigError, require_known
from marl_sb3.types import AgentID, FloatArray, PolicyID

P = ParamSpec("P")
T = TypeVar("T")


class PolicySpaces(NamedTuple):
    """The observation and action space of a policy's agents."""

    observation: spaces.Space[Any]
    action: spaces.Space[Any]


class PolicyByAgent:
    """Policies that are asked by agent.

    Arguments and results of the methods that ask them are mappings by agent. Observations are those of the env: they
    are processed as in the training. An agent has a single observation or a batch of n.
    """

    policies: Mapping[PolicyID, BaseAlgorithm]  # policy id -> SB3 algorithm
    policy_of: Mapping[AgentID, PolicyID]  # agent -> policy id
    # agent -> all policies that may play it, where an `Assignment` has varied that; else empty
    candidates: Mapping[AgentID, Sequence[PolicyID]]
    spaces: Mapping[PolicyID, PolicySpaces]  # policy id -> observation and action space of the env
    processing: Mapping[PolicyID, Processing]  # policy id -> processing of observations, rewards and actions

    def __getattr__(self, name: str) -> Any:
        """Raise an error; its message refers to what does the same here, or to the policies if they have it."""
        instead = counterpart(name, "algorithm" if hasattr(type(self), "learn") else "bundle", owner=self)
        for policy_id, policy in self.__dict__.get("policies", {}).items() if not (instead or name[:1] == "_") else ():
            if hasattr(policy, name):
                instead = f": each policy has its own, algo.policies[{policy_id!r}].{name}"
        raise AttributeError(f"{type(self).__name__} has no {'' if instead else 'attribute '}{name!r}{instead}")

    def agents_of(self, policy_id: PolicyID) -> list[AgentID]:
        """Return the agents that a policy may act for, in the env's order."""
        return [agent for agent, own in self.policy_of.items() if policy_id in self.candidates.get(agent, (own,))]

    # --- Acting ------------------------------------------------------------------------------------------------------

    def predict(
        self, observations: ByAgent, deterministic: bool = False, action_masks: Given = None, **of_sb3: Any
    ) -> dict[AgentID, Any]:
        """Return the action of each agent: `predict_with_state` at the start of an episode.

        Args:
            observations: one for each of any agents. A leading batch axis is kept.
            deterministic: the most likely action instead of a sampled one.
            action_masks: see `predict_with_state`.
            of_sb3: not accepted; the error tells users of SB3's functions for one policy, such as `evaluate_policy`,
                what to use.

        Raises:
            ConfigError: `observations` is no mapping by agent, or as in `predict_with_state`.
        """
        if of_sb3 or not isinstance(observations, Mapping):
            raise ConfigError(
                f"{type(self).__name__}.predict takes {{agent: observation}} and deterministic; SB3's functions for "
                f"one policy, such as evaluate_policy, take algo.policies[{next(iter(self.policies))!r}] and "
                "env.as_sb3_vec_env(); marl_sb3.evaluate_policies evaluates all policies together",
                key="observations",
            )
        return self.predict_with_state(observations, action_masks=action_masks, deterministic=deterministic)[0]

    def predict_with_state(
        self,
        observations: ByAgent,
        state: Given = None,
        episode_starts: Given = None,
        action_masks: Given = None,
        deterministic: bool = False,
        rewards: Given = None,
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
            rewards: the reward of each agent since its previous action, one number, or n; needed for policies with
                `previous_reward`, except at the start of an episode. Other policies ignore it.

        Returns:
            The actions, and the state for the next call, which has the agents whose policies have memory: recurrent
            ones, and those whose processing keeps something, such as stacked frames. The state of an agent without an
            observation stays as it was.

        Raises:
            ConfigError: an agent that no policy acts for; an observation, a state or a mask that does not fit its
                policy.
        """
        inputs = AgentInputs(observations, state, episode_starts, action_masks, rewards)
        answer = self.ask(inputs, RequestedOutputs(actions=True, deterministic=deterministic))
        return answer.actions, answer.state

    # --- Looking inside ----------------------------------------------------------------------------------------------

    def value(
        self, observations: ByAgent, state: Given = None, episode_starts: Given = None, rewards: Given = None
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
        return self.ask(
            AgentInputs(observations, state, episode_starts, rewards=rewards), RequestedOutputs(values=True)
        ).values

    def value_with_state(
        self,
        observations: ByAgent,
        state: Given = None,
        critic_state: Given = None,
        episode_starts: Given = None,
        rewards: Given = None,
    ) -> tuple[dict[AgentID, Any], dict[AgentID, States]]:
        """Return the value that each agent's critic estimates, and the state of critics with an LSTM of their own.

        Args:
            observations: see `predict_with_state`, as for the other arguments.
            state: what `predict_with_state` returned before these observations; None at the start of an episode.
            critic_state: what the previous call of this method returned; None at the start of an episode.

        Returns:
            The values as `value` returns them, and the critics' state for the next call.

        Raises:
            ConfigError: a policy has no such values, or as in `predict_with_state`.
        """
        inputs = AgentInputs(observations, state, episode_starts, rewards=rewards, critic_state=critic_state)
        answer = self.ask(inputs, RequestedOutputs(values=True, critic_state=True))
        return answer.values, answer.critic_state

    def distribution(
        self,
        observations: ByAgent,
        state: Given = None,
        episode_starts: Given = None,
        action_masks: Given = None,
        rewards: Given = None,
    ) -> dict[AgentID, Distribution]:
        """Return SB3's distribution of each agent's actions; the arguments are those of `predict_with_state`.

        Returns:
            Distributions with a batch axis, of length 1 for a single observation: `.mode()`, `.sample()`, `.entropy()`
            and `.log_prob(actions)` are tensors; `.distribution` is that of PyTorch, with `.probs` where actions are
            Discrete. They are of the policy's actions: before squashing, rescaling and clipping.

        Raises:
            ConfigError: a policy chooses its actions without a distribution, or as in `predict_with_state`.
        """
        inputs = AgentInputs(observations, state, episode_starts, action_masks, rewards)
        return self.ask(inputs, RequestedOutputs(distributions=True)).distributions

    def log_prob(
        self,
        observations: ByAgent,
        actions: ByAgent,
        state: Given = None,
        episode_starts: Given = None,
        action_masks: Given = None,
        rewards: Given = None,
    ) -> dict[AgentID, Any]:
        """Return the log-probability with which each agent's policy takes its action.

        Args:
            observations: see `predict_with_state`, as for the other arguments.
            actions: what the env takes: an action or n of them for each agent with an observation. For a Box, this
                is the log of a density of the policy's own actions, and of the bound where an action was clipped.

        Returns:
            A number for each agent, or (n,) for a batch.

        Raises:
            ConfigError: a policy has no distribution, an action does not fit the space, or as in
                `predict_with_state`.
        """
        inputs = AgentInputs(observations, state, episode_starts, action_masks, rewards, actions)
        return self.ask(inputs, RequestedOutputs(log_probs=True)).log_probs

    def q_values(
        self,
        observations: ByAgent,
        actions: Given = None,
        state: Given = None,
        episode_starts: Given = None,
        rewards: Given = None,
    ) -> dict[AgentID, FloatArray]:
        """Return the Q values of each agent's policy.

        Args:
            observations: see `predict_with_state`, as for the other arguments.
            actions: what the env takes, for algorithms with actions in a Box; None, or an agent that is left out:
                the most likely action.

        Returns:
            (k,) or (n, k). DQN and QRDQN: one for each of the k actions; others: one of each of the k critics. QRDQN
            and TQC: the means over the quantiles.

        Raises:
            ConfigError: a policy has no Q values, an action does not fit the space, or as in `predict_with_state`.
        """
        inputs = AgentInputs(observations, state, episode_starts, rewards=rewards, actions=actions)
        return self.ask(inputs, RequestedOutputs(q_values=True)).q_values

    # --- Asking ------------------------------------------------------------------------------------------------------

    def ask(self, inputs: AgentInputs, want: RequestedOutputs) -> PolicyAnswer:
        """Answer what the other methods do, any of it in one call.

        Raises:
            ConfigError: an input does not fit its policy, or a policy does not have what is wanted.
        """
        (answer,) = self.ask_together([(inputs, want)])
        if isinstance(answer, ConfigError):
            raise answer
        return answer

    def ask_together(
        self, questions: Iterable[tuple[AgentInputs, RequestedOutputs]]
    ) -> list[PolicyAnswer | ConfigError]:
        """Answer independent questions, such as those of the clients of a server.

        Agents that share a policy, in whichever questions, get their actions by one call of its network.

        Returns:
            For each question, what `ask` returns, or the error that it raises.
        """
        all_asked = [(inputs, _or_error(self._asked, inputs, want)) for inputs, want in questions]
        choosing: dict[tuple[PolicyID, bool], list[AskedAgent]] = {}
        for _, asked in all_asked:
            for one in () if isinstance(asked, ConfigError) else asked:
                if one.chooses:
                    choosing.setdefault((one.policy_id, one.want.deterministic), []).append(one)
        for of_policy in choosing.values():
            act_together(of_policy)
        return [
            asked if isinstance(asked, ConfigError) else _or_error(_answered, inputs, asked)
            for inputs, asked in all_asked
        ]

    def _asked(self, inputs: AgentInputs, want: RequestedOutputs) -> list[AskedAgent]:
        """Return the agents of a question; the inputs of those that choose an action are checked."""
        given = {name: by_agent for name, by_agent in inputs._asdict().items() if by_agent is not None}
        for argument, by_agent in given.items():
            if not isinstance(by_agent, Mapping):
                raise ConfigError(f"{argument} is {by_agent!r:.200}; accepted: a mapping by agent", key=argument)
            for agent in by_agent:
                if agent not in self.policy_of:
                    words = f"{argument}: unknown agent {agent!r}; the env has {', '.join(self.policy_of)}"
                    raise ConfigError(words, key=argument)
        asked = []
        for agent in inputs.observations:
            policy_id = self.policy_of[agent]
            asked.append(
                AskedAgent(
                    agent,
                    self.agents_of(policy_id).index(agent),
                    policy_id,
                    self.policies[policy_id],
                    self.processing[policy_id],
                    *self.spaces[policy_id],
                    {name: by_agent.get(agent) for name, by_agent in given.items()},
                    want,
                )
            )
        for one in asked:
            if one.chooses:
                one.require_mask()
        return asked

    # --- Weights -----------------------------------------------------------------------------------------------------

    def get_parameters(self) -> dict[PolicyID, dict[str, Any]]:
        """Return weights and optimizer state of each policy; see SB3's `get_parameters`."""
        return {policy_id: algorithm.get_parameters() for policy_id, algorithm in self.policies.items()}

    def set_parameters(self, parameters: Mapping[PolicyID, Mapping[str, Any]], exact_match: bool = True) -> None:
        """Set weights and optimizer state of some or all policies; see SB3's `set_parameters`.

        Raises:
            ConfigError: an unknown policy id.
        """
        self._require_policies(parameters)
        for policy_id, values in parameters.items():
            self.policies[policy_id].set_parameters(dict(values), exact_match=exact_match)

    def copy_policy(self, source: PolicyID, target: PolicyID) -> None:
        """Give the policy `target` the weights and running statistics of `source`; its optimizers start anew.

        Self-play needs it: a callback copies the policy that learns into one that is not trained, its opponent.

        Raises:
            ConfigError: there is no such policy, or the two have other networks or processing. Nothing is changed.
        """
        self._require_policies((source, target), "copy_policy: ")
        of_target, of_source = (_network(self.policies[policy_id]) for policy_id in (target, source))
        for name in {**of_target, **of_source}:
            given, taken = of_source.get(name, "missing"), of_target.get(name, "missing")
            if given != taken:
                words = f"{name} is {given} in {source!r} and {taken} in {target!r}"
                raise ConfigError(f"copy_policy: {words}; accepted: two policies with the same network", key="policies")
        try:
            statistics = StateReader(self.processing[source].get_state(), f"{source!r}")
            put_statistics = self.processing[target].read_state(statistics)
        except CheckpointError as error:
            words = f"{source!r} and {target!r} have other normalisation ({error})"
            raise ConfigError(f"copy_policy: {words}; accepted: two policies with the same", key="policies") from error
        put_statistics()
        with th.no_grad():
            received = self.policies[source].policy.state_dict()
            for name, tensor in self.policies[target].policy.state_dict().items():
                tensor.copy_(received[name])
        reset_optimizers(self.policies[target])

    def unpickle_vec_normalize(self, policy_id: PolicyID, path: str | Path) -> None:
        """Give a policy the running statistics of a `VecNormalize` of SB3, such as `vecnormalize.pkl`.

        WARNING: this unpickles the file, and a pickle may run any code. Call it only for files whose maker you trust.
        Nothing else in marl_sb3 reads such a file. The policy's settings `normalize_observations` and
        `normalize_rewards` say which statistics it has.

        Raises:
            ConfigError: there is no such policy; it normalises nothing; the file cannot be read, or does not fit.
        """
        self._require_policies([policy_id])
        if not self.processing[policy_id].statistics:
            words = "accepted: a policy with normalize_observations or normalize_rewards"
            raise ConfigError(f"policy {policy_id!r} normalises nothing; {words}", key="policies")
        policy_files()[0].unpickle_statistics(self.processing[policy_id], Path(path))

    def _require_policies(self, policy_ids: Iterable[PolicyID], where: str = "") -> None:
        for policy_id in policy_ids:
            require_known(policy_id, self.policies, f"{where}unknown policy {policy_id!r}", "policies")

    def is_finite(self) -> bool:
        """Whether all weights of all policies are finite."""
        return all(
            bool(th.isfinite(parameter).all())
            for algorithm in self.policies.values()
            for parameter in algorithm.policy.parameters()
        )

    def save_policies(self, folder: str | Path) -> dict[PolicyID, Path]:
        """Save each policy as `folder/<policy id>.zip`, which stock SB3's `load` opens; see `files.file_names`.

        A policy with processing gets `<policy id>.processing.json` beside it; one with normalisation
        `<policy id>.vecnormalize.pkl`, which SB3's `VecNormalize.load` opens. An algorithm that is no subclass of SB3's
        gets no file.

        Returns:
            policy id -> file.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        return policy_files()[0].write(self, folder)  # type: ignore[no-any-return]


def _network(algorithm: BaseAlgorithm) -> dict[str, str | None]:
    """Return the shape of each tensor of a policy, and its activation function."""
    shapes = {name: f"of shape {tuple(tensor.shape)}" for name, tensor in algorithm.policy.state_dict().items()}
    return {**shapes, "policy_kwargs.activation_fn": activation_name(algorithm.policy_class, algorithm.policy_kwargs)}


def _answered(inputs: AgentInputs, asked: Iterable[AskedAgent]) -> PolicyAnswer:
    answer = PolicyAnswer(state=dict(inputs.state or {}), critic_state=dict(inputs.critic_state or {}))
    for one in asked:
        one.add_to(answer)
    return answer


def _or_error(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | ConfigError:
    try:
        return call(*arguments, **named)
    except ConfigError as error:
        return error


@dataclass(frozen=True)
class PolicyBundle(PolicyByAgent):
    """The policies of a training, ready to act. No env is needed."""

    policies: Mapping[PolicyID, BaseAlgorithm]  # policy id -> SB3 algorithm
    policy_of: Mapping[AgentID, PolicyID]  # agent -> policy id
    spaces: Mapping[PolicyID, PolicySpaces]  # policy id -> observation and action space of the env
    processing: Mapping[PolicyID, Processing]  # policy id -> processing; its running statistics do not change
    checkpoint: str | None = None  # name of the checkpoint that the policies were loaded from; None if they were not
    evaluation_deterministic: Deterministic = True  # the default of evaluations; see `MultiAgentAlgorithm`
    # metrics of evaluations, in addition to those that the env announces. Not saved in checkpoints.
    custom_metrics: Mapping[str, InfoMetric] = field(default_factory=dict)
    # a sentence that says why that one was taken; empty if the latest was asked for, or a number
    checkpoint_why: str = ""
    candidates: Mapping[AgentID, Sequence[PolicyID]] = field(default_factory=dict)  # see `PolicyByAgent`

    def make_actor(self, rows: PolicyRows, deterministic: bool, with_log_probs: bool = False) -> Actor:
        """Make an actor of a policy, with its own recurrent state and noise, for envs whose episodes have just begun.

        Args:
            rows: the rows of the policy in these envs.
            deterministic: the most likely actions instead of sampled ones.
            with_log_probs: see `PredictingPolicy`.
        """
        algorithm: Any = self.policies[rows.policy_id]
        processed = process_rows(self.processing[rows.policy_id], rows, algorithm.gamma, learns=False)
        actor = Actor(rows, PredictingPolicy(algorithm, deterministic, with_log_probs), processed)
        actor.begin_rollout()
        return actor

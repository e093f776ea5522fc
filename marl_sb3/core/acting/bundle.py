"""A policy bundle: the policies of a training, with spaces, agents and weights, usable without an env."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.acting.by_agent import PolicyByAgent, PolicySpaces
from marl_sb3.core.acting.policy import PredictingPolicy
from marl_sb3.core.mapping import Deterministic, PolicyRows, by_policy
from marl_sb3.core.metrics import InfoMetric
from marl_sb3.core.processing import Processing, process_rows
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, PolicyID


@dataclass(frozen=True)
class PolicyBundle(PolicyByAgent):
    """The policies of a training, ready to act. No env is needed.

    Attributes:
        policies: policy id -> SB3 algorithm.
        policy_of: agent -> policy id.
        spaces: policy id -> observation and action space of the env.
        processing: policy id -> processing; its running statistics do not change.
        checkpoint: name of the checkpoint that the policies were loaded from; None if they were not.
        checkpoint_why: a sentence that says why that one was taken; empty if the latest was asked for, or a number.
        evaluation_deterministic: the default of evaluations; see `MultiAgentAlgorithm`.
        custom_metrics: metrics of evaluations, in addition to those that the env announces. Not saved in checkpoints.
    """

    policies: Mapping[PolicyID, BaseAlgorithm]
    policy_of: Mapping[AgentID, PolicyID]
    spaces: Mapping[PolicyID, PolicySpaces]
    processing: Mapping[PolicyID, Processing]
    checkpoint: str | None = None
    evaluation_deterministic: Deterministic = True
    custom_metrics: Mapping[str, InfoMetric] = field(default_factory=dict)
    checkpoint_why: str = ""

    def make_actor(self, rows: PolicyRows, deterministic: bool, tells: bool = False) -> Actor:
        """Make an actor of a policy, with its own recurrent state and noise, for envs whose episodes have just begun.

        Args:
            rows: the rows of the policy in these envs.
            deterministic: the most likely actions instead of sampled ones.
            tells: see `PredictingPolicy`.
        """
        algorithm: Any = self.policies[rows.policy_id]
        processed = process_rows(self.processing[rows.policy_id], rows, algorithm.gamma, learns=False)
        actor = Actor(rows, PredictingPolicy(algorithm, deterministic, tells), processed)
        actor.begin_rollout()
        return actor


# A bundle whose policy of the same agent acts; or a bundle and the id of one of its policies.
Source: TypeAlias = PolicyBundle | tuple[PolicyBundle, PolicyID]

_ACCEPTED = "policies from load_policies, or a pair of these and a policy id"


def combine_policies(sources: Mapping[AgentID, Source]) -> PolicyBundle:
    """Combine policies of several runs into one bundle, such as for a match between two of them.

    A policy of the result is called like the first of its agents. Custom metrics and `evaluation_deterministic` are
    those of the sources.

    Args:
        sources: for each agent of the env, the policies of a run, of which the one for the same agent is taken; or a
            pair of these and the id of the policy to take: `{"player_1": load_policies(new), "player_2":
            (load_policies(old), "shared")}`.

    Raises:
        ConfigError: a source has no such policy; or its policy tells its agents apart (`agent_indicator`), and they are
            not all of the agents that it was trained for.
    """
    if not sources:
        raise ConfigError(f"combine_policies: there are no agents; accepted: {{agent: {_ACCEPTED}}}", key="policies")
    chosen = {agent: _chosen(agent, source) for agent, source in sources.items()}
    names: dict[tuple[int, PolicyID], AgentID] = {}  # of a policy of a bundle: its first agent
    policy_of = {
        agent: names.setdefault((id(bundle), policy_id), agent) for agent, (bundle, policy_id) in chosen.items()
    }
    origins = {name: chosen[name] for name in names.values()}
    for name, (bundle, policy_id) in origins.items():
        agents, trained = [agent for agent in sources if policy_of[agent] == name], bundle.agents_of(policy_id)
        if bundle.processing[policy_id].settings.agent_indicator and agents != trained:
            words = f"policy {policy_id!r} observes which agent it acts for (agent_indicator)"
            words += f": it acts for {', '.join(agents)}; accepted: {', '.join(trained)}, in this order"
            raise ConfigError(f"combine_policies: {words}", key="policies")
    return PolicyBundle(
        policies={name: bundle.policies[own] for name, (bundle, own) in origins.items()},
        policy_of=policy_of,
        spaces={name: bundle.spaces[own] for name, (bundle, own) in origins.items()},
        processing={name: bundle.processing[own] for name, (bundle, own) in origins.items()},
        evaluation_deterministic={
            name: by_policy(bundle.evaluation_deterministic, bundle.policies)[own]
            for name, (bundle, own) in origins.items()
        },
        custom_metrics={
            name: metric for bundle, _ in origins.values() for name, metric in bundle.custom_metrics.items()
        },
    )


def _chosen(agent: AgentID, source: Source) -> tuple[PolicyBundle, PolicyID]:
    bundle, policy_id = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not isinstance(bundle, PolicyBundle):
        raise ConfigError(
            f"combine_policies: agent {agent!r} has {source!r:.200}; accepted: {_ACCEPTED}", key="policies"
        )
    found = bundle.policy_of.get(agent) if policy_id is None else policy_id
    if found is None or found not in bundle.policies:
        asked = f"no agent {agent!r}" if found is None else f"no policy {found!r}"
        there = ", ".join(repr(each) for each in bundle.policies)
        words = f"the policies for agent {agent!r} have {asked}; accepted: a pair of them and one of {there}"
        raise ConfigError(f"combine_policies: {words}", key="policies")
    return bundle, found

"""Let policies of several trainings act together: to compare them, or as each other's opponents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from marl_sb3.errors import ConfigError
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.policies.determinism import by_policy
from marl_sb3.types import AgentID, PolicyID

# A bundle whose policy of the same agent acts; or a bundle and the id of one of its policies.
Source: TypeAlias = PolicyBundle | tuple[PolicyBundle, PolicyID]

_ACCEPTED = "policies from load_policies, or a pair of these and a policy id"


class _Choice(NamedTuple):
    """A policy and the agents that it acts for."""

    bundle: PolicyBundle
    policy_id: PolicyID
    agents: list[AgentID]


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
    choices: dict[tuple[int, PolicyID], _Choice] = {}
    for agent, source in sources.items():
        bundle, policy_id = _chosen(agent, source)
        choices.setdefault((id(bundle), policy_id), _Choice(bundle, policy_id, [])).agents.append(agent)
    if not choices:
        raise ConfigError(f"combine_policies: there are no agents; accepted: {{agent: {_ACCEPTED}}}", key="policies")
    for choice in choices.values():
        _require_told_apart(choice)
    named = {choice.agents[0]: choice for choice in choices.values()}
    policy_of = {agent: name for name, choice in named.items() for agent in choice.agents}
    return PolicyBundle(
        policies={name: choice.bundle.policies[choice.policy_id] for name, choice in named.items()},
        policy_of={agent: policy_of[agent] for agent in sources},
        spaces={name: choice.bundle.spaces[choice.policy_id] for name, choice in named.items()},
        processing={name: choice.bundle.processing[choice.policy_id] for name, choice in named.items()},
        evaluation_deterministic={name: _is_deterministic(choice) for name, choice in named.items()},
        custom_metrics={
            metric: its for choice in named.values() for metric, its in choice.bundle.custom_metrics.items()
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


def _require_told_apart(choice: _Choice) -> None:
    """Refuse other agents than those of the training for a policy that observes which of its agents it acts for."""
    trained = choice.bundle.agents_of(choice.policy_id)
    if choice.bundle.processing[choice.policy_id].settings.agent_indicator and choice.agents != trained:
        words = f"policy {choice.policy_id!r} observes which agent it acts for (agent_indicator)"
        agents = f"it acts for {', '.join(choice.agents)}; accepted: {', '.join(trained)}, in this order"
        raise ConfigError(f"combine_policies: {words}: {agents}", key="policies")


def _is_deterministic(choice: _Choice) -> bool:
    return by_policy(choice.bundle.evaluation_deterministic, choice.bundle.policies)[choice.policy_id]

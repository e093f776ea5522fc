"""Estimate the policies of a run from recorded episodes of others: the work of `python -m marl_sb3.evaluate --on`."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import Fraction, counted, require
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats
from marl_sb3.core.sb3.inference import initial_states, takes_masks
from marl_sb3.core.vec_env.observations import AgentGroup, taken
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.playing import preserve_training_state
from marl_sb3.extensions.data.dataset import RECORDING, PolicyData, RecordedEpisode, joint_episodes_of, read_data
from marl_sb3.extensions.data.demonstrations import demonstrations, require_episodes
from marl_sb3.extensions.data.estimators import Decisions, Estimate, effective_sample_size, estimate, joint_weights
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import Table
from marl_sb3.extensions.display.text import between, number
from marl_sb3.runs.evaluate import SUM
from marl_sb3.types import AgentID, Array, PolicyID

_log = logging.getLogger(__name__)

_BATCH = 4096  # transitions that a policy sees together
_LEAST_SIZE, _LEAST_SHARE = 10.0, 0.05  # effective episodes below which estimates mean nothing

Joint = Mapping[AgentID, RecordedEpisode]


@dataclass(frozen=True)
class OffPolicyEvaluation:
    """Estimates of the mean returns of policies, from episodes that others have played."""

    num_episodes: int  # joint episodes
    effective_episodes: float  # effective sample size of the weights of whole episodes
    gamma: float  # discount factor
    recorded: Mapping[str, SampleStats]  # agent, or `sum of returns` -> the returns of the recorded episodes
    estimates: Mapping[str, Mapping[str, Estimate]]  # the same -> estimator -> estimate; see `data.estimators`
    warnings: Sequence[str]  # reasons to doubt the estimates

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        return asdict(self)

    def print(self) -> None:
        """Print a table with a row for each estimate, and the warnings."""
        console = standard_console()
        rows = []
        for name, of_name in self.estimates.items():
            stats = self.recorded[name]
            recorded = {"recorded": Estimate(stats.mean or 0.0, stats.ci95)}
            for place, (each, found) in enumerate({**recorded, **of_name}.items()):
                rows.append(["" if place else name, each, number(found.mean), between(found.ci95)])
        Table(("mean return of", "by", "estimate", "95 % CI"), rows).print(console)
        episodes = counted(self.num_episodes, "episode")
        console.print(f"{episodes}, which weigh like {number(self.effective_episodes, 1)}; gamma {self.gamma:g}")
        for line in self.warnings:
            console.print(f"warning: {line}", soft_wrap=True)


def estimate_policies(
    policies: PolicyBundle, data: str | Path, gamma: float = 1.0, replaced: Collection[PolicyID] | None = None
) -> OffPolicyEvaluation:
    """Estimate the mean returns of policies, which sample their actions, from recorded episodes of others.

    Args:
        policies: those to estimate; on-policy algorithms without memory.
        data: a recording, for all agents; or a dataset of one policy.
        gamma: discounts an agent's own decisions; 1: returns as metrics have them.
        replaced: ids of the policies that are replaced; the others are taken to act as those that were recorded. None:
            all.

    Raises:
        ConfigError: the data are of other agents or spaces, damaged or empty, or have no log-probabilities; or a policy
            has none.
    """
    gamma = require("gamma", gamma, Fraction)
    unknown = sorted(set(replaced or ()) - set(policies.policies))
    if unknown:
        known = ", ".join(policies.policies)
        raise ConfigError(f"replaced: there is no policy {unknown[0]!r}; accepted: {known}", key="replaced")
    recorded_sets = read_data(data, "on")
    is_recording = os.path.lexists(Path(data) / RECORDING)
    alone: Iterator[Joint] = ({episode.agent: episode} for episode in recorded_sets[0].episodes)
    joints = list(joint_episodes_of(recorded_sets) if is_recording else alone)
    if not joints:
        raise ConfigError(f"{data} has no complete episode; accepted: data with episodes", key="on")
    with preserve_training_state(policies):
        ratios_of = _ratios_by_episode(
            policies, joints, recorded_sets, data, policies.policies if replaced is None else replaced
        )
    agents = [agent for agent in policies.policy_of if any(agent in joint for joint in joints)]
    weighed: list[dict[AgentID, Decisions]] = []
    for joint in joints:
        ratios = {agent: ratios_of.get(id(episode)) for agent, episode in joint.items()}
        steps = {agent: np.arange(len(own)) if own.steps is None else own.steps for agent, own in joint.items()}
        weights = joint_weights(ratios, steps)
        weighed.append({agent: Decisions(own.rewards, *weights[agent]) for agent, own in joint.items()})
    estimates = {agent: estimate([[each[agent]] for each in weighed if agent in each], gamma) for agent in agents}
    if len(agents) > 1:
        estimates[SUM] = estimate(
            [[of_joint.get(agent) or _nothing(of_joint) for agent in agents] for of_joint in weighed], gamma
        )
    discounted = [
        {agent: float(sum(own.rewards * gamma ** np.arange(len(own)))) for agent, own in joint.items()}
        for joint in joints
    ]
    recorded = {agent: sample_stats([each[agent] for each in discounted if agent in each]) for agent in agents}
    recorded[SUM] = sample_stats([sum(each.values()) for each in discounted])
    size = effective_sample_size([next(iter(of_joint.values())).log_weight for of_joint in weighed])
    warnings = []
    if size < max(_LEAST_SIZE, _LEAST_SHARE * len(joints)):
        warnings.append(
            f"the weights have collapsed: {len(joints)} episodes weigh like {size:.1f}, so that few of them decide, "
            "and estimates and intervals mean little; more episodes, or policies that are more alike, would help"
        )
    return OffPolicyEvaluation(len(joints), size, gamma, recorded, estimates, warnings)


# --- What the policies say of the episodes ----------------------------------------------------------------------------


def _ratios_by_episode(
    bundle: PolicyBundle,
    joints: Sequence[Joint],
    sets: Sequence[PolicyData],
    data: Any,
    replaced: Collection[str],
) -> dict[int, Array]:
    """Return log p(a)/b(a) of the replaced policies' actions, by the `id` of the episode."""
    everybody = list(bundle.policy_of)
    if strange := sorted({agent for joint in joints for agent in joint}.difference(everybody)):
        words = f"{data} has episodes of agent {strange[0]!r}; the policies act for {', '.join(everybody)}"
        raise ConfigError(words, key="on")
    present = {bundle.policy_of[agent] for joint in joints for agent in joint}
    found: dict[int, Array] = {}
    for policy_id in (each for each in bundle.policies if each in present and each in replaced):
        agents = tuple(bundle.agents_of(policy_id))
        columns = tuple(everybody.index(agent) for agent in agents)
        group = AgentGroup(agents, columns, *bundle.spaces[policy_id])
        rows = PolicyRows(policy_id, 1, len(everybody), 0, group, agents, columns, tuple(range(len(agents))))
        for episode, ratios in _ratios_of(bundle, rows, require_episodes(sets, rows, data), data):
            found[id(episode)] = ratios
    return found


def _ratios_of(
    bundle: PolicyBundle, rows: PolicyRows, episodes: list[RecordedEpisode], data: Any
) -> Iterator[tuple[RecordedEpisode, Array]]:
    algorithm: Any = bundle.policies[rows.policy_id]
    if not isinstance(algorithm, OnPolicyAlgorithm) or initial_states(algorithm, 1):
        words = f"{type(algorithm).__name__} has no log-probabilities of recorded actions"
        accepted = "accepted: on-policy algorithms without memory, such as PPO"
        raise ConfigError(f"policy {rows.policy_id!r}: {words}; {accepted}", key="on")
    for episode in episodes:
        if episode.log_probs is None or not np.isfinite(episode.log_probs).all():
            words = f"{data}, episode {episode.episode_id} of {episode.agent}: no log-probabilities"
            accepted = "recordings of trainings by on-policy algorithms, or of evaluations with --stochastic"
            raise ConfigError(f"{words} of the actions; accepted: {accepted}", key="on")
    algorithm.policy.set_training_mode(False)
    found = demonstrations(episodes, rows, bundle.processing[rows.policy_id], algorithm)
    sampled = [
        found.actions[found.begins[n] : found.begins[n + 1]] if each.sampled_actions is None else each.sampled_actions
        for n, each in enumerate(episodes)
    ]
    masks = found.masks if takes_masks(algorithm) else None
    if takes_masks(algorithm, needed=True) and masks is None:
        words = f"policy {rows.policy_id!r}: {data} has no action masks"
        raise ConfigError(f"{words}; accepted: recordings of the same env", key="on")
    actions = np.concatenate(sampled)
    log_probs = np.concatenate(
        [
            _log_probs(
                algorithm, taken(found.seen, found.places[part]), actions[part], masks if masks is None else masks[part]
            )
            for part in np.split(np.arange(len(actions)), range(_BATCH, len(actions), _BATCH))
        ]
    )
    for n, episode in enumerate(episodes):
        own = slice(found.begins[n], found.begins[n + 1])
        yield episode, log_probs[own].astype(np.float64) - np.asarray(episode.log_probs, np.float64)


def _log_probs(algorithm: Any, seen: Any, actions: Array, masks: Array | None) -> Array:
    """Return log-probabilities, (n,)."""
    policy, masked = algorithm.policy, {} if masks is None else {"action_masks": masks}
    with th.no_grad():
        done = th.as_tensor(actions, device=policy.device)
        done = done if isinstance(algorithm.action_space, spaces.Discrete) else done.float()  # as in SB3's buffers
        told: Array = policy.evaluate_actions(policy.obs_to_tensor(seen)[0], done, **masked)[1].cpu().numpy()
        return told


def _nothing(weighed: Mapping[AgentID, Decisions]) -> Decisions:
    """The decisions of an agent that took no part: its return is 0."""
    weight = next(iter(weighed.values())).log_weight
    return Decisions(np.zeros(1), np.full(1, weight), weight)

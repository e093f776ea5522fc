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
from rich.table import Table
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.preprocessing import preprocess_obs

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import Fraction, counted, require
from marl_sb3.core.learners.learner import blas_threads
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.statistics import SampleStats, sample_stats
from marl_sb3.core.sb3.inference import initial_states, takes_masks
from marl_sb3.core.vec_env.observations import AgentGroup, taken
from marl_sb3.errors import ConfigError
from marl_sb3.evaluation.playing import preserve_training_state
from marl_sb3.extensions.data.dataset import RECORDING, PolicyData, RecordedEpisode, joint_episodes_of, read_data
from marl_sb3.extensions.data.demonstrations import demonstrations, require_episodes
from marl_sb3.extensions.data.estimators import (
    Decisions,
    Estimate,
    Fitting,
    effective_sample_size,
    estimate,
    joint_weights,
    made,
    resamples,
    robust_values,
)
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.text import number
from marl_sb3.runs.evaluate import SUM
from marl_sb3.types import AgentID, Array, PolicyID

_log = logging.getLogger(__name__)

_BATCH = 4096  # transitions that a policy sees together
_MOST_FEATURES = 1500  # features times actions of a fitted Q
_TIME = 100.0  # decisions that count like one feature
_PER_NUMBER = 10  # decisions for each number of a fitted Q, below which it tells little
_LEAST_SIZE, _LEAST_SHARE = 10.0, 0.05  # effective episodes below which estimates mean nothing

Joint = Mapping[AgentID, RecordedEpisode]
_Fitted = tuple[list[int], Fitting]  # the episodes that an agent takes part in, and what its Q is fitted on


@dataclass(frozen=True)
class _Outputs:
    """What a policy says of one recorded episode: log p(a)/b(a), and for DR features and probabilities of actions."""

    log_ratios: Array | None
    actions: Array | None = None
    features: Array | None = None
    probabilities: Array | None = None


@dataclass(frozen=True)
class OffPolicyEvaluation:
    """Estimates of the mean returns of policies, from episodes that others have played."""

    recorded: Mapping[str, SampleStats]  # agent, or `sum of returns` -> the returns of the recorded episodes
    estimates: Mapping[str, Mapping[str, Estimate]]  # the same -> estimator -> estimate; see `data.estimators`
    effective_episodes: float  # effective sample size of the weights of whole episodes
    num_episodes: int  # joint episodes
    gamma: float  # discount factor
    warnings: Sequence[str]  # reasons to doubt the estimates

    def to_plain(self) -> dict[str, Any]:
        """Return everything as plain data for JSON."""
        in_order = ("num_episodes", "effective_episodes", "gamma", "recorded", "estimates", "warnings")
        plain = asdict(self)
        return {name: plain[name] for name in in_order}

    def print(self) -> None:
        """Print a table with a row for each estimate, and the warnings."""
        console = standard_console()
        table = Table("mean return of", "by", "estimate", "95 % CI", box=None, pad_edge=False)
        for name, of_name in self.estimates.items():
            stats = self.recorded[name]
            recorded = {"recorded": Estimate(stats.mean or 0.0, stats.ci95)}
            for place, (each, found) in enumerate({**recorded, **of_name}.items()):
                interval = "-" if found.ci95 is None else " to ".join(map(number, found.ci95))
                table.add_row("" if place else name, each, number(found.mean), interval)
        console.print(table)
        episodes = counted(self.num_episodes, "episode")
        console.print(f"{episodes}, which weigh like {number(self.effective_episodes, 1)}; gamma {self.gamma:g}")
        for line in self.warnings:
            console.print(f"warning: {line}", soft_wrap=True)


def estimate_policies(
    policies: PolicyBundle, data: str | Path, gamma: float = 1.0, replaced: Collection[PolicyID] | None = None
) -> OffPolicyEvaluation:
    """Estimate the mean returns of policies, which sample their actions, from recorded episodes of others.

    A doubly robust estimate needs `Discrete` actions. Its Q is linear in the one-hot or flat observations and the time,
    with weights for each action; it is fitted by LSTD-Q on one half of the episodes for the other half, so that it
    adds no bias, and is weighted as far as it lowers the variance. The intervals redraw it with the episodes.

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
        outputs = _outputs_by_episode(
            policies, joints, recorded_sets, data, policies.policies if replaced is None else replaced
        )
    agents = [agent for agent in policies.policy_of if any(agent in joint for joint in joints)]
    weighed: list[dict[AgentID, Decisions]] = []
    for joint in joints:
        said = {agent: outputs.get(id(episode)) for agent, episode in joint.items()}
        ratios = {agent: None if of_agent is None else of_agent.log_ratios for agent, of_agent in said.items()}
        steps = {agent: np.arange(len(own)) if own.steps is None else own.steps for agent, own in joint.items()}
        weights = joint_weights(ratios, steps)
        weighed.append({agent: Decisions(own.rewards, *weights[agent]) for agent, own in joint.items()})
    estimates = {agent: estimate([[each[agent]] for each in weighed if agent in each], gamma) for agent in agents}
    if len(agents) > 1:
        estimates[SUM] = estimate(
            [[of_joint.get(agent) or _nothing(of_joint) for agent in agents] for of_joint in weighed], gamma
        )
    fittings = {agent: _fitting(agent, joints, weighed, outputs) for agent in agents}
    for name, robust in _robust(fittings, len(joints), gamma).items():
        if name in estimates:
            estimates[name]["DR"] = robust
    discounted = [
        {agent: float(sum(own.rewards * gamma ** np.arange(len(own)))) for agent, own in joint.items()}
        for joint in joints
    ]
    recorded = {agent: sample_stats([each[agent] for each in discounted if agent in each]) for agent in agents}
    recorded[SUM] = sample_stats([sum(each.values()) for each in discounted])
    size = effective_sample_size([next(iter(of_joint.values())).log_weight for of_joint in weighed])
    warnings = list(_warnings(size, len(joints), fittings))
    return OffPolicyEvaluation(recorded, estimates, size, len(joints), gamma, warnings)


def _warnings(size: float, n: int, fittings: Mapping[AgentID, _Fitted | None]) -> Iterator[str]:
    if size < max(_LEAST_SIZE, _LEAST_SHARE * n):
        yield (
            f"the weights have collapsed: {n} episodes weigh like {size:.1f}, so that few of them decide, and "
            "estimates and intervals mean little; more episodes, or policies that are more alike, would help"
        )
    few = [
        f"{agent}: {len(fitted[1].actions) // 2} decisions for {fitted[1].size} numbers"
        for agent, fitted in fittings.items()
        if fitted is not None and len(fitted[1].actions) // 2 < _PER_NUMBER * fitted[1].size
    ]
    if few:
        yield (
            f"few episodes for the Q of DR ({'; '.join(few)}): its fit is poor, and DR is about PDIS; at least "
            f"{_PER_NUMBER} decisions for each number would help"
        )


# --- What the policies say of the episodes ----------------------------------------------------------------------------


def _outputs_by_episode(
    bundle: PolicyBundle,
    joints: Sequence[Joint],
    sets: Sequence[PolicyData],
    data: Any,
    replaced: Collection[str],
) -> dict[int, _Outputs]:
    """Return what the replaced policies say of the episodes, by the `id` of the episode."""
    everybody = list(bundle.policy_of)
    if strange := sorted({agent for joint in joints for agent in joint}.difference(everybody)):
        words = f"{data} has episodes of agent {strange[0]!r}; the policies act for {', '.join(everybody)}"
        raise ConfigError(words, key="on")
    present = {bundle.policy_of[agent] for joint in joints for agent in joint}
    found: dict[int, _Outputs] = {}
    for policy_id in (each for each in bundle.policies if each in present and each in replaced):
        agents = tuple(bundle.agents_of(policy_id))
        columns = tuple(everybody.index(agent) for agent in agents)
        group = AgentGroup(agents, columns, *bundle.spaces[policy_id])
        rows = PolicyRows(policy_id, 1, len(everybody), 0, group, agents, columns, tuple(range(len(agents))))
        for episode, outputs in _outputs_of(bundle, rows, require_episodes(sets, rows, data), data):
            found[id(episode)] = outputs
    return found


def _outputs_of(
    bundle: PolicyBundle, rows: PolicyRows, episodes: list[RecordedEpisode], data: Any
) -> Iterator[tuple[RecordedEpisode, _Outputs]]:
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
    batches = [
        _computed(
            algorithm, taken(found.seen, found.places[part]), actions[part], None if masks is None else masks[part]
        )
        for part in np.split(np.arange(len(actions)), range(_BATCH, len(actions), _BATCH))
    ]
    log_probs, features, probabilities = (
        None if parts[0] is None else np.concatenate(parts) for parts in zip(*batches, strict=True)
    )
    assert log_probs is not None
    for n, episode in enumerate(episodes):
        own = slice(found.begins[n], found.begins[n + 1])
        ratios = log_probs[own].astype(np.float64) - np.asarray(episode.log_probs, np.float64)
        outputs = _Outputs(ratios)
        if features is not None and probabilities is not None:
            time = np.arange(len(episode))[:, None] / _TIME  # what is left to be paid may depend on it
            with_time = np.concatenate([features[own], time], axis=1)
            outputs = _Outputs(ratios, actions[own].reshape(-1).astype(np.int64), with_time, probabilities[own])
        yield episode, outputs


def _computed(
    algorithm: Any, seen: Any, actions: Array, masks: Array | None
) -> tuple[Array, Array | None, Array | None]:
    """Return log-probabilities, (n,); for fitted Q features, (n, d), and probabilities, (n, actions), or None."""
    policy, masked = algorithm.policy, {} if masks is None else {"action_masks": masks}
    with th.no_grad():
        observed = policy.obs_to_tensor(seen)[0]
        done = th.as_tensor(actions, device=policy.device)
        done = done if isinstance(algorithm.action_space, spaces.Discrete) else done.float()  # as in SB3's buffers
        _, log_probs, _ = policy.evaluate_actions(observed, done, **masked)
        told = log_probs.cpu().numpy()
        if not isinstance(algorithm.action_space, spaces.Discrete):
            return told, None, None
        prepared = preprocess_obs(observed, policy.observation_space, normalize_images=policy.normalize_images)
        parts = prepared.values() if isinstance(prepared, dict) else [prepared]
        flat = np.concatenate([np.ones((len(actions), 1)), *(p.flatten(1).cpu().numpy() for p in parts)], axis=1)
        if flat.shape[1] * int(algorithm.action_space.n) > _MOST_FEATURES:
            return told, None, None
        return told, flat, policy.get_distribution(observed, **masked).distribution.probs.cpu().numpy()


# --- Weights, and fitted Q --------------------------------------------------------------------------------------------


def _nothing(weighed: Mapping[AgentID, Decisions]) -> Decisions:
    """The decisions of an agent that took no part: its return is 0."""
    weight = next(iter(weighed.values())).log_weight
    return Decisions(np.zeros(1), np.full(1, weight), np.full(1, weight), weight)


def _fitting(
    agent: AgentID,
    joints: Sequence[Joint],
    weighed: Sequence[Mapping[AgentID, Decisions]],
    outputs: Mapping[int, _Outputs],
) -> _Fitted | None:
    """Return the episodes that an agent takes part in, and what Q is fitted on; None if it cannot be fitted."""
    there = [n for n, joint in enumerate(joints) if agent in joint]
    said: list[Any] = [outputs.get(id(joints[n][agent])) for n in there]
    if len(there) < 2 or any(each is None or each.features is None for each in said):
        return None
    features, actions, probabilities = (
        np.concatenate([getattr(each, name) for each in said]) for name in ("features", "actions", "probabilities")
    )
    seen = features[:, (features != 0).any(axis=0)]  # what is never seen has no weight
    return there, Fitting([weighed[n][agent] for n in there], seen, actions, probabilities)


def _robust(fittings: Mapping[AgentID, _Fitted | None], n: int, gamma: float) -> dict[str, Estimate]:
    """Return the doubly robust estimates of the agents for whom there is one, and of their sum if all have one."""
    counts, found = resamples(n), {}
    totals: list[Array] = []
    for agent, of_agent in fittings.items():
        if of_agent is None:
            continue
        there, fitting = of_agent
        drawn = counts[: 1 + fitting.redraws, there]
        with blas_threads(1):  # many small products
            values = robust_values(fitting, drawn, gamma)
        if not fitting.redraws:
            drawn = counts[:, there]
        totals.append((drawn * values).sum(axis=1))
        found[agent] = made(totals[-1] / np.maximum(drawn.sum(axis=1), 1.0))
    if len(totals) == len(fittings):
        draws = min(map(len, totals))
        found[SUM] = made(np.sum([each[:draws] for each in totals], axis=0) / n)
    return found

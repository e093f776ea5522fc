"""Make the result dictionary of an iteration; docs/reference/metrics.md describes its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from marl_sb3.learners.learner import Learner
from marl_sb3.metrics import EpisodeTracker, Result, finite_or_none
from marl_sb3.training.counters import Counters
from marl_sb3.training.loop import IterationReport
from marl_sb3.training.machine_load import machine_load
from marl_sb3.types import AgentID, Array, PolicyID
from marl_sb3.vec_env.interface import Health


def iteration_result(
    report: IterationReport,
    counters: Counters,
    tracker: EpisodeTracker,
    learners: Mapping[PolicyID, Learner],
    agents: Sequence[AgentID],
    health: Health | None = None,
) -> Result:
    """Return the nested result of an iteration; numbers are finite or None.

    Args:
        health: of the processes that step the envs; None: there are none, and no metrics of them.
    """
    env_steps, agent_steps, episodes = counters.of_iteration()
    updated = report.of_learners()
    measured = {
        policy_id: updated.get(policy_id) or learner.metrics_before_training()
        for policy_id, learner in learners.items()
        if learner.trained
    }
    samples = sum(metrics["num_module_steps_trained"] for metrics in measured.values())
    total_s = report.sampling_s + report.update_s
    result = {
        "iteration": counters.iteration,
        "num_env_steps_sampled_lifetime": counters.env_steps,
        "num_agent_steps_sampled_lifetime": _by_agent(agents, counters.agent_steps),
        "num_episodes_lifetime": counters.episodes,
        "time_total_s": counters.time_s,
        "env_runners": {
            **tracker.summary(),
            "num_episodes": episodes,
            "num_env_steps_sampled": env_steps,
            "num_agent_steps_sampled": _by_agent(agents, agent_steps),
        },
        "learners": measured,
        "timers": {"env_runner_sampling_timer": report.sampling_s, "learner_update_timer": report.update_s},
        "throughput": {
            "env_steps_per_s": _rate(env_steps, total_s),
            "agent_steps_per_s": _rate(int(agent_steps.sum()), total_s),
            "learner_samples_per_s": _rate(samples, report.update_s),
        },
        **({} if health is None else {"fault_tolerance": asdict(health)}),
        "perf": machine_load(),
    }
    return finite_or_none(result)


def _by_agent(agents: Sequence[AgentID], counts: Array) -> dict[AgentID, int]:
    return dict(zip(agents, counts.tolist(), strict=True))


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None

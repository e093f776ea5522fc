"""Short trainings, and all that can be seen of them afterwards, to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch as th

from marl_sb3 import MultiAgentAlgorithm, make_vec_env

FAST: dict[str, Any] = {"n_steps": 16, "batch_size": 32, "n_epochs": 2, "policy_kwargs": {"net_arch": [8]}}


def training(env: Any = "arena", n_envs: int = 3, seed: int = 4, **settings: Any) -> MultiAgentAlgorithm:
    th.manual_seed(0)
    made = make_vec_env(env, n_envs, seed=1, **settings.pop("env_kwargs", {}))
    given = {name: value for name, value in {**FAST, **settings}.items() if value is not None}
    return MultiAgentAlgorithm(made, seed=seed, **given)


def exact(statistics: Any) -> Any:
    return {name: [np.array(number).tolist() for number in own.values()] for name, own in statistics.items()}


def facts_of_learning(algorithm: MultiAgentAlgorithm) -> list[Any]:
    episodes = [
        (e.env_index, e.length, e.agent_returns, e.agent_steps, e.custom, e.policy_of)
        for e in algorithm.tracker.episodes
    ]
    weights = [
        parameter.detach().numpy().tobytes()
        for policy in algorithm.policies.values()
        for parameter in policy.policy.parameters()
    ]
    counts = [algorithm.num_timesteps, *(policy.num_timesteps for policy in algorithm.policies.values())]
    counts += [exact(learner.processing.get_state()) for learner in algorithm.parts.learners.values()]
    return [episodes, weights, counts]


def facts(algorithm: MultiAgentAlgorithm) -> list[Any]:
    running = [algorithm.tracker.running(index) for index in range(algorithm.env.num_envs)]
    latest = algorithm.env.latest
    shown = [[*map(bytes, latest.observations)], latest.rewards.tobytes(), latest.episode_done.tolist()]
    shown += [[None if masks is None else masks.tolist() for masks in latest.action_masks], [repr(latest.infos[0])]]
    shown += [[repr(latest.reset_infos)]]
    shown.append({place: np.array(seen).tolist() for place, seen in latest.final_observations.items()})
    return [*facts_of_learning(algorithm), running, shown]

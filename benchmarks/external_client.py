"""The client process of `external_learning.py`: a simulator that holds all episodes of a training.

python benchmarks/external_client.py ENV URL N
"""

from __future__ import annotations

import sys
from typing import Any

from marl_sb3 import PolicyClient
from marl_sb3.core.envs.registry import env_factory, make_env
from marl_sb3.tools.serving.client import ServerError


def play(env_id: str, url: str, n_envs: int) -> None:
    """Step envs as a client that holds all episodes, until the training is over."""
    client = PolicyClient(url)
    envs: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    free = [make_env(env_factory(env_id), index, {}) for index in range(n_envs)]
    try:
        while True:
            while free:
                env, episode = free.pop(), client.start_episode()
                envs[episode], seen[episode] = env, env.reset(seed=client.seed(episode))[0]
            for episode, actions in client.get_actions(seen).items():
                env = envs[episode]
                by_agent = actions if isinstance(actions, dict) else {env.possible_agents[0]: actions}
                seen[episode], rewards, terminated, truncated, _ = env.step(by_agent)
                client.log_returns(episode, rewards, multiagent_done_dict=terminated)
                if not env.agents:
                    client.end_episode(episode, seen.pop(episode), truncated=any(truncated.values()))
                    free.append(envs.pop(episode))
    except ServerError as error:
        if "the training is over" not in str(error):
            raise


if __name__ == "__main__":
    play(sys.argv[1], sys.argv[2], int(sys.argv[3]))

"""A simulator that marl_sb3 does not step: it plays CartPole-v1, and a training tells it what to do.

In one terminal:   python -m marl_sb3.train --external examples/policy_client.yaml
In another:        python examples/policy_client.py http://127.0.0.1:9900

Only `PolicyClient` is of marl_sb3; the loop around it may be that of any program. It is RLlib's client of CartPole.
"""

from __future__ import annotations

import argparse

import gymnasium

from marl_sb3 import PolicyClient
from marl_sb3.tools.serving.client import EpisodeLostError, ServerError

OVER = 410  # status code of a training that is over


def play(client: PolicyClient, env: gymnasium.Env) -> float:
    """Play an episode; returns its return."""
    episode = client.start_episode()
    observation, _ = env.reset(seed=client.seed(episode))
    total, terminated, truncated = 0.0, False, False
    while not (terminated or truncated):
        action = client.get_action(episode, observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        client.log_returns(episode, reward)
        total += float(reward)
    client.end_episode(episode, observation, truncated=truncated)
    return total


def main() -> None:
    """Play until the training is over."""
    parser = argparse.ArgumentParser(description="Play CartPole-v1 for a training elsewhere, until it is over.")
    parser.add_argument("url", help="where clients connect, as the training prints it")
    parser.add_argument("--token", help="if the training demands one")
    arguments = parser.parse_args()
    returns: list[float] = []
    with PolicyClient(arguments.url, arguments.token) as client:
        while True:
            try:
                returns.append(play(client, gymnasium.make("CartPole-v1")))
            except EpisodeLostError as error:  # the training was restarted: begin another episode
                print(error, flush=True)
            except ServerError as error:
                if error.status != OVER:
                    raise
                break
    last = returns[-20:]
    print(f"{len(returns)} episodes; mean return of the last {len(last)}: {sum(last) / max(len(last), 1):.1f}")


if __name__ == "__main__":
    main()

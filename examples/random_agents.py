"""Two random agents in the arena: step a PettingZoo env by hand and print each agent's return."""

import argparse

import pettingzoo

import marl_sb3  # noqa: F401 - registers the arena with PettingZoo


def play_episode(seed: int) -> dict[str, float]:
    """One episode of uniformly random actions; returns the return of each agent."""
    env = pettingzoo.make("parallel", "marl_sb3/arena-v0")
    env.reset(seed=seed)
    for agent in env.agents:
        env.action_space(agent).seed(seed)
    returns = dict.fromkeys(env.agents, 0.0)
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        _, rewards, _, _, _ = env.step(actions)
        for agent, reward in rewards.items():
            returns[agent] += reward
    env.close()
    return returns


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=3, help="default: 3")
    for episode in range(parser.parse_args().episodes):
        returns = play_episode(seed=episode)
        print(f"episode {episode}: " + ", ".join(f"{agent} {value:.1f}" for agent, value in returns.items()))

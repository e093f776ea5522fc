"""Learn offline, with d3rlpy, from the episodes that a training recorded: CartPole-v1 by conservative Q-learning.

    python examples/offline_d3rlpy.py runs/cartpole_data

The first call records a training, and learns from it if d3rlpy is there. d3rlpy 2.8 needs an older gymnasium than
marl_sb3 does, so give it an environment of its own; marl_sb3 is not needed to learn:

    python -m venv offline && offline/bin/pip install d3rlpy 'minari>=0.5.4' h5py
    offline/bin/python examples/offline_d3rlpy.py runs/cartpole_data
"""

import argparse
from pathlib import Path

import gymnasium
import minari
import numpy as np

ENV = "CartPole-v1"


def record(directory: Path, env_steps: int) -> None:
    """Train PPO and record its episodes, those of the beginner at first."""
    import marl_sb3  # noqa: PLC0415 - not needed where a recording is learned from

    marl_sb3.train(ENV, timesteps=env_steps, record=directory, seed=1, progress_bar=False)


def read(directory: Path) -> dict[str, np.ndarray]:
    """Return the transitions of the only policy, one after the other, as `d3rlpy.dataset.MDPDataset` takes them."""
    (data,) = directory.glob("*/data")
    episodes = list(minari.MinariDataset(data).iterate_episodes())
    returns = [episode.rewards.sum() for episode in episodes]
    last = returns[-20:]
    print(f"{len(episodes)} episodes: mean return {np.mean(returns):.1f}, of the last {len(last)} {np.mean(last):.1f}")
    return {
        "observations": np.concatenate([episode.observations[:-1] for episode in episodes]).astype(np.float32),
        "actions": np.concatenate([episode.actions for episode in episodes])[:, None],
        "rewards": np.concatenate([episode.rewards for episode in episodes])[:, None].astype(np.float32),
        "terminals": np.concatenate([episode.terminations for episode in episodes]).astype(np.float32),
        "timeouts": np.concatenate([episode.truncations for episode in episodes]).astype(np.float32),
    }


def learn(transitions: dict[str, np.ndarray], updates: int, episodes: int = 20) -> float:
    """Learn without an env; returns the mean return in the env after it."""
    import d3rlpy  # noqa: PLC0415 - not needed to record

    d3rlpy.seed(1)
    config = d3rlpy.algos.DiscreteCQLConfig(learning_rate=3e-4, batch_size=128, target_update_interval=500)
    learner = config.create()
    no_files = d3rlpy.logging.NoopAdapterFactory()
    epoch = min(updates, 1000)
    learner.fit(d3rlpy.dataset.MDPDataset(**transitions), updates, epoch, logger_adapter=no_files, show_progress=False)
    env, returns = gymnasium.make(ENV), []
    for seed in range(episodes):
        (observation, _), total, over = env.reset(seed=seed), 0.0, False
        while not over:
            action = learner.predict(observation[None])[0]
            observation, reward, terminated, truncated, _ = env.step(int(action))
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return float(np.mean(returns))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Learn offline, with d3rlpy, from the episodes of a training.")
    parser.add_argument("directory", type=Path, help="folder of the recording; made if it does not exist")
    parser.add_argument("--env-steps", type=int, default=30_000, help="of the training; default: 30000")
    parser.add_argument("--updates", type=int, default=3000, help="of d3rlpy; default: 3000")
    arguments = parser.parse_args()
    if not arguments.directory.exists():
        record(arguments.directory, arguments.env_steps)
    transitions = read(arguments.directory)
    try:
        after = learn(transitions, arguments.updates)
    except ModuleNotFoundError as error:
        if error.name != "d3rlpy":
            raise
        print("d3rlpy is not installed here; the lines at the top of this file install it in an environment of its own")
    else:
        print(f"d3rlpy, {arguments.updates} updates: mean return {after:.1f}")

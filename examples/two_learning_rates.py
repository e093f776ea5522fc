"""Two policies with different learning rates and networks, mapped to the agents of the arena."""

import argparse

import pettingzoo

from marl_sb3 import PPO, MultiAgentAlgorithm, PolicySpec, make_vec_env


def main(env_steps: int) -> None:
    """Train for `env_steps` and print each policy's mean return after every iteration."""
    env = make_vec_env("arena", n_envs=20, seed=0)
    algo = MultiAgentAlgorithm(
        env,
        policies={
            "explorer": PolicySpec(PPO, learning_rate=1e-3),
            "hunter": PolicySpec(PPO, learning_rate=3e-4, policy_kwargs={"net_arch": [32, 32]}),
        },
        policy_mapping_fn=lambda agent: "explorer" if agent == "agent1" else "hunter",
        n_steps=100,
        batch_size=128,
        seed=0,
    )
    while algo.num_timesteps < env_steps:
        result = algo.train_iteration()
        returns = result["env_runners"]["module_episode_returns_mean"]
        rates = {policy: metrics["curr_lr"] for policy, metrics in result["learners"].items()}
        print(
            f"{algo.num_timesteps} env steps: "
            + ", ".join(f"{policy} (lr {rates[policy]:g}) {value:.1f}" for policy, value in returns.items())
        )
    env.close()
    observations, _ = pettingzoo.make("parallel", "marl_sb3/arena-v0").reset(seed=1)
    print("first actions:", algo.predict(observations, deterministic=True))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=20_000, help="default: 20000")
    main(parser.parse_args().env_steps)

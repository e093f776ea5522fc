"""An algorithm of one's own: REINFORCE with a baseline (Williams 1992), for all commands.

python -m marl_sb3.train CartPole-v1 --algo reinforce:REINFORCE
python -m marl_sb3.evaluate RUN --import reinforce
"""

import argparse
from typing import Any

import torch
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticCnnPolicy, ActorCriticPolicy, MultiInputActorCriticPolicy

from marl_sb3 import AlgorithmInfo, MultiAgentAlgorithm, PolicySpec, make_vec_env


class Reinforce(OnPolicyAlgorithm):
    """One gradient step for each rollout: the log-probability of an action times how much its return was above V.

    The critic V is the baseline. Its value of the last observation takes the place of rewards after the rollout.
    """

    policy_aliases = {  # noqa: RUF012
        "MlpPolicy": ActorCriticPolicy,
        "CnnPolicy": ActorCriticCnnPolicy,
        "MultiInputPolicy": MultiInputActorCriticPolicy,
    }

    def __init__(
        self,
        policy: Any,
        env: Any,
        learning_rate: Any = 1e-3,
        n_steps: int = 32,
        gamma: float = 0.99,
        baseline_coef: float = 0.5,
        max_grad_norm: float = 0.5,
        policy_kwargs: dict[str, Any] | None = None,
        **of_the_run: Any,  # device, seed, rollout_buffer_class, ...
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate,
            n_steps,
            gamma,
            gae_lambda=1.0,  # returns are sums of discounted rewards
            ent_coef=0.0,
            vf_coef=baseline_coef,
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            policy_kwargs=policy_kwargs,
            **of_the_run,
        )

    def train(self) -> None:
        """Update the policy from the rollout, and record metrics."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        (rollout,) = self.rollout_buffer.get(batch_size=None)
        values, log_prob, entropy = self.policy.evaluate_actions(rollout.observations, rollout.actions)
        values = values.flatten()
        policy_loss = -((rollout.returns - values.detach()) * log_prob).mean()
        value_loss = torch.nn.functional.mse_loss(values, rollout.returns)
        self.policy.optimizer.zero_grad()
        (policy_loss + self.vf_coef * value_loss).backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        self._n_updates += 1
        self.logger.record("train/policy_loss", policy_loss.item())
        self.logger.record("train/value_loss", value_loss.item())
        self.logger.record("train/entropy_loss", -entropy.mean().item())
        self.logger.record("train/mean_return", rollout.returns.mean().item())


REINFORCE = AlgorithmInfo(
    "reinforce",
    Reinforce,
    "REINFORCE with a baseline",
    hyperparameters={"baseline_coef": float},
    metrics={"mean_return": "train/mean_return"},
)


def main(env_steps: int) -> None:
    """Train one agent by REINFORCE and the other one by PPO, in the same episodes."""
    env = make_vec_env("arena", n_envs=20, seed=0)
    policies = {"agent1": PolicySpec(REINFORCE, gamma=0.95), "agent2": PolicySpec("ppo", batch_size=100)}
    algo = MultiAgentAlgorithm(env, policies, n_steps=100, seed=0)
    algo.learn(env_steps)
    returns = algo.tracker.summary()["agent_episode_returns_mean"]
    shown = ", ".join(f"{agent} ({type(algo.policies[agent]).__name__}) {returns[agent]:.1f}" for agent in policies)
    print(f"{algo.num_timesteps} env steps: mean returns {shown}")
    env.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env-steps", type=int, default=100_000, help="default: 100000")
    main(parser.parse_args().env_steps)

"""Every algorithm, and how small it is tested: a new one joins by a line in `LEARNERS`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import sb3_contrib
import stable_baselines3
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from toy_envs import CHOICES, FORCES, Forces, NoisyEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env


class Continuous(ScriptedEnv):
    """The same with actions in a Box."""

    def action_space(self, agent: str) -> spaces.Box:
        return FORCES


HYBRID = {
    "Dict": spaces.Dict({"choice": spaces.Discrete(3), "force": FORCES}),
    "Tuple": spaces.Tuple([spaces.Discrete(3), spaces.Dict({"force": FORCES})]),
}


class Hybrid(ScriptedEnv):
    """The same with actions of a choice and a force, of which the choice is noted."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._action_space = HYBRID[kind]

    def step(self, actions: Mapping[str, Any]) -> Any:
        assert all(self._action_space.contains(action) for action in actions.values())
        return super().step({agent: np.int64(next(_leaves(action))) for agent, action in actions.items()})


class HybridNoisy(NoisyEnv):
    """The same with actions of a choice and a force, of which it sees the digits."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__(**options)
        self._action_space = HYBRID[kind]

    def step(self, actions: Mapping[str, Any]) -> Any:
        digits = {agent: [*_leaves(action)] for agent, action in actions.items()}
        return super().step({agent: int(choice + 3 * round(1 + force)) for agent, (choice, force) in digits.items()})


def _leaves(action: Any) -> Iterator[Any]:
    parts = action.values() if isinstance(action, Mapping) else action if isinstance(action, tuple) else None
    if parts is None:
        yield np.asarray(action).item()
    for part in parts or ():
        yield from _leaves(part)


ACTIONS: dict[str, spaces.Space[Any]] = {
    **CHOICES,
    "Box": spaces.Box(-2, 1, (2,)),
    "Dict": spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.Box(-2, 1, (2,)), "c": spaces.MultiBinary(2)}),
    "Tuple": spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.Dict({"force": FORCES})]),
    "Dict of choices": spaces.Dict({"b": spaces.Discrete(3, start=1), "a": spaces.MultiDiscrete([3, 2])}),
}


@dataclass(frozen=True)
class Kind:
    """An algorithm as it is tested: small, and what of SB3 it has to equal bit for bit."""

    algorithm: type[BaseAlgorithm]
    hyperparameters: Mapping[str, Any]
    stock: type[BaseAlgorithm] | None
    update_path: str = "auto"
    masked: bool = False
    network: Mapping[str, Any] = field(default_factory=lambda: {"net_arch": [4]})
    cadence: str = "n_steps"  # the hyperparameter that says after how many steps it updates
    losses: tuple[str, ...] = ("policy_loss",)
    chooses: str = "action_net"  # the layer of the policy whose largest output is its action
    continuous: bool = False
    hybrid: str = ""  # the kind of its actions of several parts

    def scripted(self, **options: Any) -> Any:
        if self.hybrid:
            return make_vec_env(partial(Hybrid, self.hybrid), masked=self.masked, **options)
        if self.continuous:
            return make_vec_env(Continuous, **options)
        return make_vec_env(ScriptedEnv, masked=self.masked, **options)

    def in_turns(self) -> Any:
        """Episodes of 7 steps in which agent b waits now and then; rollouts of 3 and 6 steps end while it does."""
        script = {"a": (7, "truncated"), "b": (7, "terminated")}
        plans = [[(script, {}, {"b": [1, 3, 4, 6]})]] * 2
        if self.continuous:
            return make_vec_env(Forces, n_envs=2, seed=1, plans=plans)
        noisy: Any = partial(HybridNoisy, self.hybrid) if self.hybrid else NoisyEnv
        return make_vec_env(noisy, n_envs=2, seed=1, plans=plans, masked=self.masked)

    def small_envs(self) -> Any:
        if self.continuous:
            return make_vec_env("Pendulum-v1", n_envs=2, max_episode_steps=7)
        return make_vec_env("arena", n_envs=2, max_timesteps=7, height=4)

    def spec(self, **more: Any) -> PolicySpec:
        return PolicySpec(self.algorithm, **{**self.hyperparameters, "policy_kwargs": self.network, **more})

    @property
    def acts_in(self) -> list[str]:
        """Which of `ACTIONS` it is tested with."""
        if self.hybrid:
            return ["Tuple", "Dict", "Dict of choices"]
        if self.cadence == "train_freq":
            return ["Box"] if self.continuous else ["Discrete"]
        return [*CHOICES] if self.masked else [*CHOICES, "Box"]


def continuous(algorithm: type[BaseAlgorithm], chooses: str, path: str = "auto", **more: Any) -> Kind:
    """An algorithm of actors and critics with a replay buffer."""
    losses = ("critic_loss",)
    return Kind(
        algorithm,
        {**SMALL_REPLAY, **more},
        # SB3 takes objects as noise: test_equals_stock_replay compares them
        None if more or path == "fused" else algorithm,
        path,
        cadence="train_freq",
        losses=losses,
        chooses=chooses,
        continuous=True,
    )


def by_values(algorithm: type[BaseAlgorithm], chooses: str, path: str = "auto", **network: Any) -> Kind:
    """An algorithm with a replay buffer that explores by an epsilon."""
    return Kind(
        algorithm,
        {**SMALL_REPLAY, "target_update_interval": 8, "exploration_fraction": 0.9},
        None if path == "fused" else algorithm,
        path,
        network={"net_arch": [4], **network},
        cadence="train_freq",
        losses=("qf_loss",),
        chooses=chooses,
    )


def masked(algorithm: type[BaseAlgorithm], chooses: str, path: str, **network: Any) -> Kind:
    """One of those that choose among the actions that a mask allows; SB3 has none of them."""
    return replace(by_values(algorithm, chooses, path, **network), masked=True, stock=None)


def remembering(kind: Kind, cell: str = "lstm", **more: Any) -> Kind:
    """The same with a memory: SB3 has none of them, but its own loop trains them."""
    settings = {**kind.hyperparameters, "burn_in": 2, "sequence_length": 3, **more}
    return replace(kind, hyperparameters=settings, network={**MEMORY, "cell": cell}, stock=kind.algorithm)


SMALL_TRPO = {"n_steps": 6, "batch_size": 4, "n_critic_updates": 2}
SMALL_PPO = {"n_steps": 6, "batch_size": 4, "n_epochs": 1}  # the tests of kernels and of equality with SB3 have more
SMALL_REPLAY = {"train_freq": 3, "buffer_size": 30, "learning_starts": 4, "batch_size": 4, "gradient_steps": 2}
MEMORY = {"net_arch": [4], "lstm_hidden_size": 4, "n_lstm_layers": 2}
IQL_NETS: dict[str, Any] = {
    "network": {"net_arch": [4], "log_std_init": -9},
    "losses": ("critic_loss", "vf_loss"),
    "chooses": "actor.networks.0.2",
}
LEARNERS = {
    "PPO, fused": Kind(marl_sb3.PPO, SMALL_PPO, None, "fused"),
    "PPO, PyTorch": Kind(marl_sb3.PPO, SMALL_PPO, stable_baselines3.PPO, "torch"),
    "stock PPO": Kind(stable_baselines3.PPO, SMALL_PPO, stable_baselines3.PPO),
    "A2C, fused": Kind(marl_sb3.A2C, {"n_steps": 3}, None, "fused"),
    "A2C, PyTorch": Kind(marl_sb3.A2C, {"n_steps": 3}, stable_baselines3.A2C, "torch"),
    "stock A2C": Kind(stable_baselines3.A2C, {"n_steps": 3}, stable_baselines3.A2C),
    "TRPO, fused": Kind(marl_sb3.TRPO, SMALL_TRPO, None, "fused"),
    "TRPO, PyTorch": Kind(marl_sb3.TRPO, SMALL_TRPO, sb3_contrib.TRPO, "torch"),
    "stock TRPO": Kind(sb3_contrib.TRPO, SMALL_TRPO, sb3_contrib.TRPO),
    "MaskablePPO, fused": Kind(marl_sb3.MaskablePPO, SMALL_PPO, None, "fused", masked=True),
    "stock MaskablePPO": Kind(sb3_contrib.MaskablePPO, SMALL_PPO, None, masked=True),
    "MaskableA2C, fused": Kind(marl_sb3.MaskableA2C, {"n_steps": 3}, None, "fused", masked=True),
    "MaskableA2C, PyTorch": Kind(marl_sb3.MaskableA2C, {"n_steps": 3}, None, "torch", masked=True),
    "MaskableTRPO, fused": Kind(marl_sb3.MaskableTRPO, SMALL_TRPO, None, "fused", masked=True),
    "MaskableTRPO, PyTorch": Kind(marl_sb3.MaskableTRPO, SMALL_TRPO, None, "torch", masked=True),
    "RecurrentPPO, fused": Kind(marl_sb3.RecurrentPPO, SMALL_PPO, None, "fused", network=MEMORY),
    "RecurrentPPO with GRUs": Kind(marl_sb3.RecurrentPPO, SMALL_PPO, None, network={**MEMORY, "cell": "gru"}),
    "MaskableRecurrentPPO, fused": Kind(
        marl_sb3.MaskableRecurrentPPO, SMALL_PPO, None, "fused", masked=True, network=MEMORY
    ),
    "MaskableRecurrentPPO, PyTorch": Kind(
        marl_sb3.MaskableRecurrentPPO, SMALL_PPO, None, "torch", masked=True, network=MEMORY
    ),
    # None: sb3-contrib's class cannot be made for the arena's observations.
    "stock RecurrentPPO": Kind(sb3_contrib.RecurrentPPO, SMALL_PPO, None, network=MEMORY),
    "PPO, Dict actions": Kind(marl_sb3.PPO, SMALL_PPO, None, hybrid="Dict"),
    "A2C, Tuple actions": Kind(marl_sb3.A2C, {"n_steps": 3}, None, hybrid="Tuple"),
    "TRPO, Dict actions": Kind(marl_sb3.TRPO, SMALL_TRPO, None, hybrid="Dict"),
    "MaskablePPO, Tuple actions": Kind(marl_sb3.MaskablePPO, SMALL_PPO, None, masked=True, hybrid="Tuple"),
    "RecurrentPPO, Dict actions": Kind(marl_sb3.RecurrentPPO, SMALL_PPO, None, network=MEMORY, hybrid="Dict"),
    "DQN, fused": by_values(marl_sb3.DQN, "q_net.q_net.2", "fused"),
    "stock DQN": by_values(stable_baselines3.DQN, "q_net.q_net.2"),
    "QRDQN, fused": by_values(marl_sb3.QRDQN, "quantile_net.quantile_net.2", "fused", n_quantiles=1),
    "stock QRDQN": by_values(sb3_contrib.QRDQN, "quantile_net.quantile_net.2", n_quantiles=1),
    "MaskableDQN, fused": masked(marl_sb3.MaskableDQN, "q_net.q_net.2", "fused"),
    "MaskableDQN, PyTorch": masked(marl_sb3.MaskableDQN, "q_net.q_net.2", "torch"),
    "MaskableQRDQN, fused": masked(marl_sb3.MaskableQRDQN, "quantile_net.quantile_net.2", "fused", n_quantiles=1),
    "RecurrentDQN": remembering(by_values(marl_sb3.RecurrentDQN, "q_net.q_net.2"), cell="gru"),
    "RecurrentDQN, several steps": remembering(by_values(marl_sb3.RecurrentDQN, "q_net.q_net.2"), n_steps=2),
    "VDN": replace(by_values(marl_sb3.VDN, "q_net.q_net.2"), stock=None),
    "VDN, masks": masked(marl_sb3.VDN, "q_net.q_net.2", "torch"),
    "QMIX": replace(by_values(marl_sb3.QMIX, "q_net.q_net.2"), stock=None),
    "SAC, fused": continuous(marl_sb3.SAC, "actor.mu", "fused"),
    "stock SAC": continuous(stable_baselines3.SAC, "actor.mu"),
    "RecurrentSAC": remembering(continuous(marl_sb3.RecurrentSAC, "actor.mu")),
    "RecurrentSAC, GRU": remembering(continuous(marl_sb3.RecurrentSAC, "actor.mu"), cell="gru", n_steps=2),
    "TD3, fused": continuous(marl_sb3.TD3, "actor.mu.2", "fused", action_noise={"ornstein_uhlenbeck": 0.3}),
    "stock TD3": continuous(stable_baselines3.TD3, "actor.mu.2", action_noise={"ornstein_uhlenbeck": 0.3}),
    "DDPG, fused": continuous(marl_sb3.DDPG, "actor.mu.2", "fused", action_noise={"normal": 0.3}),
    "TQC, fused": continuous(marl_sb3.TQC, "actor.mu", "fused"),
    "stock TQC": continuous(sb3_contrib.TQC, "actor.mu"),
    "CrossQ": continuous(sb3_contrib.CrossQ, "actor.mu"),
    "IQL, Discrete": replace(by_values(marl_sb3.IQL, ""), hyperparameters=SMALL_REPLAY, **IQL_NETS),
    "IQL, Box": replace(continuous(marl_sb3.IQL, ""), **IQL_NETS),
}


def make(
    kind: Kind, policies: tuple[str, ...] = ("a", "b"), env: Any = None, specs: Any = None, **options: Any
) -> MultiAgentAlgorithm:
    env = kind.scripted(n_envs=2) if env is None else env
    specs = specs or {policy: kind.spec() for policy in policies}
    return MultiAgentAlgorithm(
        env, specs, **{"n_steps": 6, "seed": 3, "device": "cpu", "update_path": kind.update_path, **options}
    )

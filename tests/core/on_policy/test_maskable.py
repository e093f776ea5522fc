"""MaskablePPO: forbidden actions are never taken, masks stay with their transitions, envs without masks are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from sb3_contrib.common.envs import InvalidActionEnvDiscrete, InvalidActionEnvMultiBinary, InvalidActionEnvMultiDiscrete
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import NoisyEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.evaluation.playing import play
from marl_sb3.train import main

SMALL: dict[str, Any] = {"n_steps": 10, "batch_size": 5, "n_epochs": 2, "policy_kwargs": {"net_arch": [4]}}
STEPS = {"a": (5, "truncated"), "b": (3, "terminated")}


def spec(**more: Any) -> PolicySpec:
    return PolicySpec(sb3_contrib.MaskablePPO, **{**SMALL, **more})


def forbidden_actions(received: list[dict[str, Any]], longest: int = 5) -> list[int]:
    """The actions that were taken although `ScriptedEnv` forbade them: 0 in even steps, 1 in odd ones."""
    return [
        int(action)
        for number, actions in enumerate(received)
        for action in actions.values()
        if int(action) == number % longest % 2
    ]


@pytest.mark.parametrize("policies", ["shared", "per_agent"])
def test_forbidden_actions_are_never_taken(policies: str) -> None:
    env, other = (make_vec_env(ScriptedEnv, n_envs=3, masked=True, script=STEPS) for _ in range(2))
    ids = ("shared",) if policies == "shared" else ("a", "b")
    algorithm = MultiAgentAlgorithm(env, {name: spec(learning_rate=0.1) for name in ids}, seed=0, device="cpu")
    for _ in range(4):
        algorithm.train_iteration()
    with th.no_grad():  # it would take what is forbidden
        for policy in algorithm.policies.values():
            policy.policy.action_net.bias.copy_(th.tensor([50.0, 50.0, 0.0]))
    algorithm.train_iteration()
    for deterministic in (True, False):
        play(algorithm, other, n_episodes=3, deterministic=deterministic, seed=0)
    played = [*env.call("received", range(3)), *other.call("received", range(3))]
    assert sum(map(len, played)) == 3 * 5 * 10 + 2 * 3 * 5
    assert [forbidden_actions(received) for received in played] == [[]] * 6
    masks = {"a": [False, False, True], "b": [True, False, False]}
    seen = {agent: np.zeros(3, dtype=np.float32) for agent in "ab"}
    for deterministic in (True, False):
        assert algorithm.predict(seen, deterministic, masks) == {"a": 2, "b": 0}


def test_each_transition_keeps_the_mask_that_its_action_was_chosen_with() -> None:
    """Agent b waits, across the ends of rollouts, too; a forbidden action has no probability."""
    plans = [[({"a": (7, "truncated"), "b": (7, "terminated")}, {}, {"b": [1, 3, 4, 6]})]] * 2
    env = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=plans, masked=True)
    algorithm = MultiAgentAlgorithm(env, {"a": spec(n_steps=5), "b": spec(n_steps=5)}, seed=3, device="cpu")
    taken: list[Any] = []
    seen: set[Any] = set()

    class Keep(marl_sb3.MultiAgentCallback):
        def _on_rollout_end(self) -> None:
            for policy in self.algorithm.policies.values():
                buffer: Any = policy.rollout_buffer
                taken.append((buffer.acted.copy(), buffer.action_masks.copy(), buffer.actions.copy()))

        def _on_step(self) -> bool:
            return True

    algorithm.learn(6 * 5 * 2, callback=Keep())
    assert len(taken) == 12
    for acted, masks, actions in taken:
        of_transitions, chosen = masks[acted], actions[acted][:, 0].astype(int)
        assert (of_transitions[np.arange(len(chosen)), chosen] == 1).all()
        seen |= {tuple(mask) for mask in of_transitions.tolist()}
    assert seen == {(0, 1, 1), (1, 0, 1)}


@pytest.mark.parametrize(
    "env",
    [
        lambda: InvalidActionEnvDiscrete(dim=6, n_invalid_actions=3, ep_length=7),
        lambda: InvalidActionEnvMultiDiscrete(dims=[3, 2], n_invalid_actions=2, ep_length=7),
        lambda: InvalidActionEnvMultiBinary(dims=3, n_invalid_actions=2, ep_length=7),
    ],
)
def test_a_gymnasium_envs_own_masks_train_as_in_sb3_contrib(env: Any) -> None:
    """Its masks are drawn from the stream of random numbers that minibatches are drawn from."""

    def seeded(**_: Any) -> Any:
        made = env()
        made.action_space.seed(5)
        return made

    ours = MultiAgentAlgorithm(make_vec_env(seeded), {"p": spec(learning_rate=0.01)}, seed=3, device="cpu")
    ours.learn(50)
    network = {**SMALL, "learning_rate": 0.01}
    stock = sb3_contrib.MaskablePPO("MlpPolicy", DummyVecEnv([seeded]), seed=3, device="cpu", **network)
    stock.learn(50)
    for name, value in stock.policy.state_dict().items():
        assert th.equal(value, ours.policies["p"].policy.state_dict()[name]), name


def test_a_last_minibatch_of_one_transition_joins_the_one_before() -> None:
    """Its advantage cannot be normalised: sb3-contrib's weights are NaN after it."""
    env = make_vec_env(ScriptedEnv, masked=True, script={"a": (5, "truncated")})
    algorithm = MultiAgentAlgorithm(env, {"p": spec(n_steps=11)}, seed=0, device="cpu")
    metrics = algorithm.train_iteration()["learners"]["p"]
    assert metrics["num_grad_updates_lifetime"] == 2 * 2
    assert metrics["num_module_steps_trained"] == 2 * 11


MISSING = "policy 'p': action masks missing for MaskablePPO: the env gives none for a, b; accepted: masks in infos"


def test_an_env_without_masks_is_refused() -> None:
    algorithm = MultiAgentAlgorithm(make_vec_env(ScriptedEnv), {"p": spec()}, device="cpu")
    with pytest.raises(ConfigError, match=MISSING):
        algorithm.learn(10)


def test_a_space_that_has_no_masks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"policy 'p', agents agent: the action space is Box.*, which has no masks"):
        MultiAgentAlgorithm("Pendulum-v1", {"p": spec()}, device="cpu")


def test_the_command_refuses_an_env_without_masks_before_it_makes_a_folder(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["CartPole-v1", "--algo", "MaskablePPO", "--run-dir", "r", "--n-envs=1", "--quiet"]) == 2
    error = capsys.readouterr().err
    assert "--algo: policy 'shared': action masks missing for MaskablePPO: the env gives none for agent;" in error
    assert list(in_tmp.iterdir()) == []

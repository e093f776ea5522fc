"""Policies act without an env as they did with one; what a stranger describes is refused before it is built."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
from gymnasium import spaces
from toy_envs import SampledEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint
from marl_sb3.extensions.store.load import read_bundle

NUMBERS = spaces.Box(-1, np.array([1, np.inf], np.float32))
IMAGE = spaces.Box(0, 255, (36, 40, 3), np.uint8)
MIXED = spaces.Dict({"z": spaces.Discrete(3), "camera": spaces.Box(0, 255, (1, 36, 36), np.uint8), "a": NUMBERS})
SMALL = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "device": "cpu"}
TINY_CNN = {"policy_kwargs": {"features_extractor_kwargs": {"features_dim": 8}}}

# Observations, actions, spec.
CASES: dict[str, tuple[spaces.Space[Any], spaces.Space[Any], PolicySpec]] = {
    "box": (NUMBERS, spaces.Box(-1, 1, (2,)), PolicySpec()),
    "discrete": (spaces.Discrete(5), spaces.MultiDiscrete([3, 2]), PolicySpec(policy_kwargs={"net_arch": []})),
    "binary": (spaces.MultiBinary(4), spaces.MultiBinary(3), PolicySpec(policy_kwargs={"net_arch": {"vf": [9]}})),
    "image": (IMAGE, spaces.Discrete(3), PolicySpec(policy="CnnPolicy", **TINY_CNN)),
    "dict": (MIXED, spaces.Discrete(3), PolicySpec(policy="MultiInputPolicy")),
    "gsde": (spaces.MultiDiscrete([3, 4]), spaces.Box(-1, 1, (2,)), PolicySpec(use_sde=True)),
    "SB3's own class": (NUMBERS, spaces.Discrete(3), PolicySpec(stable_baselines3.PPO)),
    "a2c": (NUMBERS, spaces.Discrete(3), PolicySpec(stable_baselines3.A2C)),
    "lstm": (
        NUMBERS,
        spaces.Discrete(3),
        PolicySpec(
            sb3_contrib.RecurrentPPO, policy_kwargs={"lstm_hidden_size": 16, "n_lstm_layers": 2, "shared_lstm": False}
        ),
    ),
}


def trained(case: str) -> MultiAgentAlgorithm:
    observation, action, spec = CASES[case]
    env = make_vec_env(SampledEnv, n_envs=2, observation_space=observation, action_space=action)
    settings = dict(SMALL) if case != "a2c" else {"n_steps": 8, "device": "cpu"}
    return MultiAgentAlgorithm(env, {"only": spec}, seed=1, **settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved training of two policies in the arena, one iteration long."""
    algorithm = MultiAgentAlgorithm("arena", "per_agent", seed=3, **SMALL)
    algorithm.train_iteration()
    return algorithm.save(tmp_path_factory.mktemp("saved") / "algorithm")


@pytest.mark.parametrize("case", CASES)
def test_policies_act_without_an_env_as_they_did_with_one(case: str, tmp_path: Path) -> None:
    algorithm = trained(case)
    path, space = algorithm.save(tmp_path / "saved"), CASES[case][0]
    before = th.get_rng_state()
    bundle = load_policies(path, device="cpu")
    assert th.equal(th.get_rng_state(), before)
    assert bundle.policy_of == algorithm.policy_of
    assert (bundle.spaces["only"].observation, bundle.spaces["only"].action) == CASES[case][:2]
    space.seed(4)
    observations = {agent: space.sample() for agent in algorithm.policy_of}
    for deterministic in (True, False):
        acted = []
        for each in (algorithm, bundle):
            th.manual_seed(5)
            for policy in each.policies.values():
                if policy.use_sde:
                    policy.policy.reset_noise()
            acted.append(each.predict(observations, deterministic))
        for agent, action in acted[0].items():
            np.testing.assert_array_equal(action, acted[1][agent])


def test_a_run_is_loaded_by_its_best_checkpoint_or_by_the_one_that_is_named(tmp_path: Path) -> None:
    settings = {"n_steps": 4, "batch_size": 4, "n_epochs": 1, "checkpoint_every": 1}
    run = marl_sb3.train("arena", timesteps=8, n_envs=1, seed=1, settings=settings, run_dir=tmp_path / "run")
    assert run.best_checkpoint is None or load_policies(run.folder).checkpoint == run.best_checkpoint.name
    assert load_policies(run.folder, "1").checkpoint == "ckpt-000001"
    assert load_policies(run.folder, "latest").checkpoint == "ckpt-000002"


def test_a_bundle_knows_its_agents_and_refuses_others(saved: Path) -> None:
    bundle = load_policies(saved)
    assert bundle.agents_of("agent2") == ["agent2"]
    with pytest.raises(ConfigError, match="observations: unknown agent 'agent3'; the env has agent1, agent2"):
        bundle.predict({"agent3": None})
    for observation, fault in (([0, 1, 2], r"its shape is \(3,\)"), ([0, 500], "number 1 is 500; accepted: 0 to 99")):
        with pytest.raises(
            ConfigError, match=rf"agent 'agent1': the observation does not fit MultiDiscrete.*: {fault}"
        ):
            bundle.predict({"agent1": np.array(observation)})


def test_policies_of_classes_of_ones_own_are_to_be_passed(tmp_path: Path) -> None:
    class Own(stable_baselines3.PPO):
        """An algorithm that no checkpoint names."""

    specs = {"only": PolicySpec(Own)}
    path = MultiAgentAlgorithm("arena", specs, seed=1, **SMALL).save(tmp_path / "saved")
    with pytest.raises(ConfigError, match="policy 'only' was made of classes or functions: pass `policies`"):
        load_policies(path)
    assert isinstance(load_policies(path, policies=specs).policies["only"], Own)


class OwnBox(spaces.Box):
    """A space that no checkpoint holds."""


def test_spaces_that_no_checkpoint_holds_are_those_of_the_env(tmp_path: Path) -> None:
    def envs() -> Any:
        return make_vec_env(SampledEnv, observation_space=OwnBox(-1, 1, (2,)), action_space=spaces.Discrete(3))

    path = MultiAgentAlgorithm(envs(), seed=1, **SMALL).save(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"does not hold the observation space .*: pass `env`"):
        load_policies(path)
    assert load_policies(path, env=envs()).spaces["shared"].observation == OwnBox(-1, 1, (2,))


# --- Checkpoints of strangers ----------------------------------------------------------------------------------------


def changed(checkpoint: Checkpoint, **state: Any) -> Checkpoint:
    return replace(checkpoint, state={**checkpoint.state, **state})


DISCRETE = {"kind": "Discrete", "n": 4, "start": 0}


@pytest.mark.parametrize(
    ("its", "message"),
    [
        ({"observation": DISCRETE, "action": DISCRETE}, "as the policy is built"),
        ({"observation": None, "action": DISCRETE}, r"does not hold the observation space .*: pass `env`"),
        ({"observation": DISCRETE, "action": {**DISCRETE, "start": 1}}, "as the policy is built"),
        ({"action": DISCRETE}, "state/spaces/agent1/observation is missing"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(its: Any, message: str, saved: Path) -> None:
    checkpoint = read_checkpoint(saved)
    spaces_ = {**checkpoint.state["spaces"], "agent1": its}
    with pytest.raises(CheckpointError, match=message):
        read_bundle(changed(checkpoint, spaces=spaces_))


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"spaces": {}}, "state/spaces/agent1 is missing"),
        ({"policies": {"agent1": {}}}, "is unexpected|is missing"),
        ({"policy_of": {"agent1": "agent1"}}, "policy 'agent2' acts for no agent"),
        ({"policy_of": {"agent1": "agent1", "agent2": "x"}}, "unknown policy 'x'"),
    ],
)
def test_a_state_that_contradicts_itself_is_refused(state: Any, message: str, saved: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_bundle(changed(read_checkpoint(saved), **state))

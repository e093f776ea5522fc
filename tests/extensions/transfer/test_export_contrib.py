"""Policies of sb3-contrib's algorithms in files: zips open with sb3-contrib; ONNX where a graph can say all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pettingzoo
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import PPO, ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.sb3.private import integer_sizes
from marl_sb3.core.sb3.spaces import SpacesOnlyVecEnv
from marl_sb3.errors import ExportError
from marl_sb3.extensions.transfer import onnx_check
from marl_sb3.extensions.transfer.export import export_policies
from marl_sb3.extensions.transfer.onnx_check import largest_difference, open_session
from marl_sb3.extensions.transfer.onnx_graph import CRITIC_STATES as CRITICS
from marl_sb3.extensions.transfer.onnx_graph import START, more_inputs, to_onnx
from marl_sb3.extensions.transfer.onnx_graph import STATES as OWN

pytestmark = pytest.mark.usefixtures("one_onnx_registry")
SPACE, MASK = spaces.Box(-1, 1, (3,)), ["action_mask"]
SMALL: dict[str, Any] = {"n_steps": 4, "batch_size": 4}
NETWORKS = {"recurrent_ppo": {"net_arch": [4], "lstm_hidden_size": 4, "enable_critic_lstm": False}}
SEEN = np.random.default_rng(0).uniform(-2, 2, (5, 3)).astype(np.float32)


def trained(name: str) -> MultiAgentAlgorithm:
    env = make_vec_env(ScriptedEnv, masked=name == "maskable_ppo")
    network = NETWORKS.get(name, {"net_arch": [4]})
    spec = PolicySpec(algorithm_info(name).algorithm_class, learning_rate=0.1, policy_kwargs=network, **SMALL)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=0, device="cpu")
    algorithm.train_iteration()
    return algorithm


@pytest.mark.parametrize("name", ["trpo", "maskable_ppo", "recurrent_ppo"])
def test_sb3_contrib_opens_the_zip_and_predicts_the_same(name: str, tmp_path: Path) -> None:
    algorithm = trained(name)
    (file,) = export_policies(algorithm.bundle(), "sb3", tmp_path)
    ours = algorithm.policies["p"]
    loaded: Any = getattr(sb3_contrib, type(ours).__name__).load(file.path, device="cpu")
    expected, found = (policy.predict(SEEN, deterministic=True)[0] for policy in (ours, loaded))
    np.testing.assert_array_equal(found, expected)
    assert loaded.n_steps == 4
    assert not type(loaded.rollout_buffer).__module__.startswith("marl_sb3")


# --- Masks and memory ------------------------------------------------------------------------------------------------

MIXED = spaces.Dict({"near": SPACE, "mode": spaces.Discrete(3)})
FORCES = spaces.Box(-1, 1, (2,))
CHOICES = spaces.MultiDiscrete([3, 2])
LSTM = {"net_arch": [4], "lstm_hidden_size": 4}
# Algorithm, policy, observations, actions, network; the names of further inputs.
KINDS: dict[str, tuple[str, str, spaces.Space, spaces.Space, dict[str, Any], list[str]]] = {
    "masks of one choice": ("MaskablePPO", "MlpPolicy", SPACE, spaces.Discrete(3), {"net_arch": [4]}, MASK),
    "masks of several": ("MaskablePPO", "MultiInputPolicy", MIXED, CHOICES, {"net_arch": [4]}, MASK),
    "masks of bits": ("MaskablePPO", "MlpPolicy", SPACE, spaces.MultiBinary(3), {"net_arch": [4]}, MASK),
    "two LSTMs": (
        "RecurrentPPO", "MlpLstmPolicy", SPACE, FORCES, LSTM, [*OWN, *CRITICS, START],
    ),
    "a shared one": (
        "RecurrentPPO", "MultiInputLstmPolicy", MIXED, spaces.Discrete(3),
        {**LSTM, "n_lstm_layers": 2, "shared_lstm": True, "enable_critic_lstm": False}, [*OWN, START],
    ),
    "a critic without": (
        "RecurrentPPO", "MlpLstmPolicy", CHOICES, CHOICES, {**LSTM, "enable_critic_lstm": False}, [*OWN, START]
    ),
    "masks and memory": (
        "MaskableRecurrentPPO", "MlpLstmPolicy", SPACE, CHOICES, {**LSTM, "enable_critic_lstm": False},
        [*OWN, START, *MASK],
    ),
    "masks of bits, and a GRU": (
        "MaskableRecurrentPPO", "MlpLstmPolicy", SPACE, spaces.MultiBinary(3), {**LSTM, "cell": "gru"},
        [*OWN, *CRITICS, START, *MASK],
    ),
}  # fmt: skip


@cache
def stock(kind: str) -> tuple[Any, bytes]:
    """An algorithm of sb3-contrib with large weights, and its graph."""
    name, policy, seen, done, network, _ = KINDS[kind]
    settings = {"n_steps": 2, "batch_size": 2, "device": "cpu", "seed": 0, "policy_kwargs": network}
    with integer_sizes():
        algorithm = getattr(sb3_contrib, name, getattr(marl_sb3, name))(
            policy, SpacesOnlyVecEnv(1, seen, done), **settings
        )
    with th.no_grad():
        for parameter in algorithm.policy.parameters():
            parameter.mul_(3)
    return algorithm, to_onnx(algorithm, algorithm.observation_space, {})


OFTEN = ("two LSTMs",)  # the others take seconds; masks are among the faults below


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in OFTEN else pytest.mark.proof) for kind in KINDS]
)
def test_masks_are_inputs_and_states_are_inputs_and_outputs(kind: str) -> None:
    algorithm, model = stock(kind)
    assert largest_difference(model, algorithm, algorithm.observation_space) < 1e-5
    session = open_session(model)
    more = [each.name for each in session.get_inputs() if not each.name.startswith("observation")]
    assert more == KINDS[kind][5]
    after = [each.name for each in session.get_outputs() if each.name.startswith("next_")]
    assert after == [f"next_{name}" for name in more if name.endswith("state")]
    said = {each.key: json.loads(each.value) for each in onnx.load_from_string(model).metadata_props}
    for put, values in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
        assert {name: own["shape"] for name, own in said[put].items()} == {own.name: own.shape for own in values}


Inputs = dict[str, np.ndarray]
FAULTS: dict[str, tuple[str, Callable[[Inputs], Inputs]]] = {
    "masks are ignored": ("masks of several", lambda given: {MASK[0]: np.ones_like(given[MASK[0]])}),
    "masks of other choices": ("masks of several", lambda given: {MASK[0]: np.roll(given[MASK[0]], 1, axis=1)}),
    "starts are ignored": ("two LSTMs", lambda given: {START: np.zeros_like(given[START])}),
    "hidden and cell state are swapped": ("two LSTMs", lambda given: {OWN[0]: given[OWN[1]], OWN[1]: given[OWN[0]]}),
    "the critic's state is the actor's": (
        "two LSTMs",
        lambda given: dict(zip(CRITICS, (given[name] for name in OWN), strict=True)),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_graph_that_takes_them_wrongly_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, spoil = FAULTS[fault]
    algorithm, model = stock(kind)
    session = open_session(model)

    class Wrong:
        get_outputs = session.get_outputs

        def run(self, names: list[str], given: Inputs) -> Any:
            return session.run(names, {**given, **spoil(given)})

    monkeypatch.setattr(onnx_check, "open_session", lambda _: Wrong())
    with pytest.raises(ExportError, match=r"\w+ differ by"):
        largest_difference(model, algorithm, algorithm.observation_space)


@pytest.mark.parametrize("name", ["maskable_ppo", "recurrent_ppo"])
def test_played_from_its_file_a_policy_moves_as_in_evaluations(name: str, tmp_path: Path) -> None:
    """Agents end at other steps than their env: an episode of one begins while the other's goes on."""
    algorithm = trained(name)
    (file,) = export_policies(algorithm.bundle(), "onnx", tmp_path)
    env = make_vec_env(ScriptedEnv, n_envs=3, seed=4, masked=name == "maskable_ppo")
    actor = algorithm.bundle().make_actor(rows_of_policy(env, "p", algorithm.policy_of), deterministic=True)
    session, step, starts = open_session(file.path.read_bytes()), env.reset(), np.ones(6, dtype=np.bool_)
    more = more_inputs(algorithm.policies["p"], 6)
    for _ in range(7):
        more |= {MASK[0]: step.action_masks[0].reshape(6, -1)} if MASK[0] in more else {START: starts}
        found = session.run(None, {"observation": step.observations[0].reshape(6, -1), **more})
        outputs = {own.name: array for own, array in zip(session.get_outputs(), found, strict=True)}
        actions = actor.act(step).actions
        np.testing.assert_array_equal(outputs["actions"], actions)
        more |= {name: outputs[f"next_{name}"] for name in more if f"next_{name}" in outputs}
        step = env.step([actions.reshape(3, 2)])
        actor.observe(step)
        starts = (step.terminated | step.truncated).reshape(6)


class OwnMasks(PPO):
    """Takes masks by itself."""

    def predict(self, *given: Any, action_masks: Any = None, **more: Any) -> Any:
        return super().predict(*given, **more)


def test_masks_of_another_class_have_no_graph() -> None:
    algorithm = OwnMasks(
        "MlpPolicy", SpacesOnlyVecEnv(1, SPACE, spaces.Discrete(3)), n_steps=2, batch_size=2, device="cpu"
    )
    with pytest.raises(ConfigError, match=r"needs action masks and is no MaskableActorCriticPolicy.*an SB3 zip holds"):
        to_onnx(algorithm, SPACE, {})


# --- Outside of Python -----------------------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parents[3] / "examples" / "play_onnx.mjs"
MODULES = [Path(folder) for folder in os.environ.get("NODE_PATH", "").split(os.pathsep) if folder]
NODE_MODULES = next((folder for folder in MODULES if (folder / "onnxruntime-node").is_dir()), None)


@pytest.mark.skipif(
    shutil.which("node") is None or NODE_MODULES is None,
    reason="needs node, and onnxruntime-node in a folder of NODE_PATH",
)
def test_node_plays_connect_four_as_the_policy_does(tmp_path: Path) -> None:
    settings = {"n_steps": 32, "batch_size": 64, "learning_rate": 0.01}
    run = marl_sb3.train("classic/connect_four-v3", algo="maskable_ppo", timesteps=64, n_envs=2, seed=1,
                         settings=settings, run_dir=tmp_path / "run")  # fmt: skip
    (file,) = export_policies(run.bundle(), "onnx", tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE_MODULES, target_is_directory=True)
    shutil.copy(EXAMPLE, tmp_path)
    said = subprocess.run(
        ["node", EXAMPLE.name, file.path, "6", "3"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    games = [json.loads(line) for line in said.stdout.splitlines()]
    assert [game["policy"] for game in games] == [0, 1] * 3
    assert sum(require_same_moves(run.bundle(), game) for game in games) > 20


def require_same_moves(bundle: PolicyBundle, game: dict[str, Any]) -> int:
    """Play a game again in the env; returns how many moves the policy has chosen, the same ones."""
    env = pettingzoo.make("aec", "classic/connect_four-v3")
    env.reset()
    for number, move in enumerate(game["moves"]):
        agent, seen = env.agent_selection, env.observe(env.agent_selection)
        if number % 2 == game["policy"]:
            assert bundle.predict({agent: seen}, deterministic=True) == {agent: move}
        env.step(move)
    assert all(env.terminations.values())
    winner = -1 if game["winner"] < 0 else env.possible_agents[game["winner"]]
    assert [agent for agent, reward in env.rewards.items() if reward > 0] == ([] if winner == -1 else [winner])
    return len(game["moves"][game["policy"] :: 2])

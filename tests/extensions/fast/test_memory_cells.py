"""GRUs in place of LSTMs: their states, sequences, files and graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import torch as th
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from toy_envs import SampledEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.extensions.transfer.export import export_policies
from marl_sb3.extensions.transfer.onnx_check import open_session

NETWORK: dict[str, Any] = {"cell": "gru", "net_arch": [4], "lstm_hidden_size": 5, "n_lstm_layers": 2}
SMALL: dict[str, Any] = {"n_steps": 6, "batch_size": 4, "n_epochs": 2, "learning_rate": 0.05}
SEEN = np.random.default_rng(0).uniform(-2, 2, (5, 3)).astype(np.float32)


def trained(env: Any = None, **network: Any) -> Any:
    env = (
        make_vec_env(ScriptedEnv, n_envs=2, script={"a": (4, "truncated"), "b": (3, "terminated")})
        if env is None
        else env
    )
    spec = PolicySpec("recurrent_ppo", **SMALL, policy_kwargs={**NETWORK, **network})
    return MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")


@pytest.mark.parametrize(
    "network", [{}, {"shared_lstm": True, "enable_critic_lstm": False}, {"enable_critic_lstm": False}]
)
def test_a_sequence_in_one_call_equals_single_steps_and_its_cell_states_stay_zero(network: Any) -> None:
    """Two sequences of four steps; an episode of the second one begins in its third step."""
    policy = trained(**network).policies["p"].policy
    assert {type(module).__name__ for module in policy.modules()}.isdisjoint({"LSTM"})
    rng, zeros = th.Generator().manual_seed(0), th.zeros(2, 2, 5)
    seen = th.randn(2, 4, 3, generator=rng)
    starts = th.zeros(2, 4)
    for begins in (False, True):
        starts[1, 2] = float(begins)
        states, values, log_probs, actions = RNNStates((zeros, zeros), (zeros, zeros)), [], [], []
        with th.no_grad():
            for step in range(4):
                chosen, value, log_prob, states = policy(seen[:, step], states, starts[:, step])
                values.append(value.flatten())
                log_probs.append(log_prob)
                actions.append(chosen)
            together, of_chosen, _ = policy.evaluate_actions(
                seen.reshape(8, 3),
                th.stack(actions, 1).flatten(),
                RNNStates((zeros, zeros), (zeros, zeros)),
                starts.flatten(),
            )
        th.testing.assert_close(together.flatten(), th.stack(values, 1).flatten())
        th.testing.assert_close(of_chosen, th.stack(log_probs, 1).flatten())
        assert not states.pi[1].any()
        assert states.pi[0].any()


def test_a_gru_is_pytorchs_and_all_of_it_is_trained() -> None:
    algorithm = trained()
    policy = algorithm.policies["p"].policy
    cell, (hidden, zeros) = policy.lstm_actor, (th.rand(2, 3, 5), th.zeros(2, 3, 5))
    alone = th.nn.GRU(3, 5, 2)
    alone.load_state_dict(cell.state_dict())
    inputs = th.rand(4, 3, 3)
    outputs, (after, cell_state) = cell(inputs, (hidden, zeros))
    expected, expected_after = alone(inputs, hidden)
    assert th.equal(outputs, expected)
    assert th.equal(after, expected_after)
    assert cell_state is zeros
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    algorithm.train_iteration()
    assert not [name for name, value in policy.state_dict().items() if th.equal(value, before[name])]


def test_zips_of_sb3_hold_the_cell_and_those_of_lstms_need_no_class_of_ours(tmp_path: Path) -> None:
    algorithm = trained()
    algorithm.train_iteration()
    ours = algorithm.policies["p"]
    ours.save(tmp_path / "gru.zip")
    loaded: Any = marl_sb3.RecurrentPPO.load(tmp_path / "gru.zip", device="cpu")
    expected, state = ours.predict(SEEN, deterministic=True)
    found, of_loaded = loaded.predict(SEEN, deterministic=True)
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(of_loaded, state)
    of_lstms = trained(cell="lstm").policies["p"]
    assert type(of_lstms.policy) is of_lstms.policy_class is RecurrentActorCriticPolicy
    assert "cell" not in of_lstms.policy_kwargs


@pytest.mark.proof  # tracing takes seconds
@pytest.mark.usefixtures("one_onnx_registry")
def test_a_gru_has_an_onnx_graph(tmp_path: Path) -> None:
    algorithm = trained()
    (file,) = export_policies(algorithm.bundle(), "onnx", tmp_path)
    assert file.difference is not None
    assert file.difference < 1e-4
    given = {each.name: np.ones([2 if part == "batch" else part for part in each.shape], np.float32)
             for each in open_session(file.path.read_bytes()).get_inputs()}  # fmt: skip
    assert given["hidden_state"].shape == given["cell_state"].shape == (2, 2, 5)


def test_images_and_several_parts_have_grus_too() -> None:
    parts = spaces.Dict({"mode": spaces.Discrete(3), "near": spaces.Box(-1, 1, (2,))})
    env = make_vec_env(SampledEnv, observation_space=parts, action_space=spaces.Discrete(2))
    spec = PolicySpec("recurrent_ppo", "MultiInputPolicy", **SMALL, policy_kwargs=NETWORK)
    algorithm = MultiAgentAlgorithm(env, {"p": spec}, seed=3, device="cpu")
    assert algorithm.train_iteration()["learners"]["p"]["num_module_steps_trained"] == 2 * 12
    assert type(algorithm.policies["p"].policy.lstm_actor).__name__ == "GRU"


def test_a_cell_that_does_not_exist_and_one_of_a_class_without_a_choice_are_refused() -> None:
    with pytest.raises(ConfigError, match="cell is 'rnn'; accepted: lstm or gru"):
        trained(cell="rnn")
    for cell in ("rnn", None):  # of a class on its own, which no settings describe
        with pytest.raises(ConfigError, match=f"cell is {cell!r}; accepted: lstm or gru"):
            marl_sb3.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"cell": cell})
    with pytest.raises(ConfigError, match=r"unknown policy_kwargs 'cel' of MemoryPolicy; .*did you mean cell"):
        trained(cel="gru")
    stock = PolicySpec(sb3_contrib.RecurrentPPO, **SMALL, policy_kwargs=NETWORK)
    with pytest.raises(ConfigError, match="unknown policy_kwargs 'cell' of RecurrentActorCriticPolicy"):
        MultiAgentAlgorithm(make_vec_env(ScriptedEnv), {"p": stock}, device="cpu")

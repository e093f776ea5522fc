"""The masked rollout buffer: active steps alone, each once per pass; SB3's own where all are active."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.utils import explained_variance
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, make_vec_env
from marl_sb3.core.acting.policy import Decision, PolicyInputs
from marl_sb3.core.on_policy.rollout import MaskedDictRolloutBuffer, MaskedRolloutBuffer

BOX = spaces.Box(-1000, 1000, (3,), np.float32)
DICT = spaces.Dict({"vector": BOX, "mode": spaces.Discrete(1000)})
KINDS = {
    "array": (BOX, MaskedRolloutBuffer, RolloutBuffer),
    "Dict": (DICT, MaskedDictRolloutBuffer, DictRolloutBuffer),
}
GARBAGE = 1e6  # in every inactive place


def observation(kind: str, numbers: np.ndarray) -> Any:
    """One per row, with the row's number in it."""
    vector = np.stack([numbers, np.sin(numbers), np.cos(numbers)], axis=-1).astype(np.float32)
    return vector if kind == "array" else {"vector": vector, "mode": numbers.astype(np.int64) % 1000}


def filled(kind: str, buffer_class: type, active: np.ndarray) -> Any:
    """A full buffer in which step t of row r has the number `t * rows + r` in its observation and is different."""
    steps, rows = active.shape
    buffer = buffer_class(steps, KINDS[kind][0], spaces.Discrete(3), device="cpu", n_envs=rows, gamma=0.9)
    rng = np.random.default_rng(0)
    for step, mask in enumerate(active):
        values, log_probs, rewards = (np.where(mask, rng.normal(size=rows), GARBAGE) for _ in range(3))
        if buffer_class in (MaskedRolloutBuffer, MaskedDictRolloutBuffer):
            buffer.acted[step] = mask
        buffer.add(
            observation(kind, np.where(mask, step * rows + np.arange(rows), GARBAGE)),
            rng.integers(0, 3, rows),
            rewards,
            # As the learner does: an idle row begins an episode with whatever comes next.
            np.ones(rows) if step == 0 else ~active[step - 1] | ~mask,
            th.as_tensor(values, dtype=th.float32),
            th.as_tensor(log_probs, dtype=th.float32),
        )
    buffer.compute_returns_and_advantage(th.zeros(rows), ~active[-1])
    return buffer


def numbers_of(batch: Any) -> list[int]:
    observations = batch.observations if isinstance(batch.observations, th.Tensor) else batch.observations["vector"]
    return [int(number) for number in observations[:, 0]]


def tensors_of(batch: Any) -> dict[str, th.Tensor]:
    tensors = batch._asdict()
    observations = tensors.pop("observations")
    return {**tensors, **(observations if isinstance(observations, dict) else {"observations": observations})}


masks = arrays(np.bool_, array_shapes(min_dims=2, max_dims=2, max_side=6))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(active=masks, batch_size=st.sampled_from([None, 2, 3, 7]))
def test_each_pass_hands_out_every_active_step_once_and_no_other(
    kind: str, active: np.ndarray, batch_size: int | None
) -> None:
    buffer = filled(kind, KINDS[kind][1], active)
    expected = np.flatnonzero(active).tolist()
    names = {"advantages": "advantages", "returns": "returns", "old_values": "values", "old_log_prob": "log_probs"}
    stored = {name: getattr(buffer, name).reshape(-1).copy() for name in [*names.values(), "actions"]}
    for passes in (1, 2):
        batches = list(buffer.get(batch_size))
        assert sorted(number for batch in batches for number in numbers_of(batch)) == expected
        assert all(len(batch.advantages) == (batch_size or len(expected)) for batch in batches[:-1])
        for batch in batches:
            numbers = numbers_of(batch)
            for field, name in names.items():
                np.testing.assert_array_equal(getattr(batch, field), stored[name][numbers])
            np.testing.assert_array_equal(batch.actions[:, 0], stored["actions"][numbers])
            assert not np.any(np.abs(batch.returns.numpy()) > GARBAGE / 100)
        assert buffer.samples_drawn == passes * len(expected)
    assert buffer.num_transitions == len(expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [None, 4, 5])
def test_all_active_equals_sb3s_buffer_bit_for_bit(kind: str, batch_size: int | None) -> None:
    active = np.ones((6, 4), dtype=bool)
    drawn = []
    for buffer_class in KINDS[kind][1:]:
        buffer = filled(kind, buffer_class, active)
        np.random.seed(3)  # noqa: NPY002 - the generator that SB3 draws from
        drawn.append([batch for _ in range(2) for batch in buffer.get(batch_size)])
    for ours, stock in zip(*drawn, strict=True):
        assert type(ours) is type(stock)
        expected, found = tensors_of(stock), tensors_of(ours)
        assert expected.keys() == found.keys()
        assert all(th.equal(expected[name], found[name]) for name in expected)
        assert all(expected[name].dtype == found[name].dtype for name in expected)


def test_reset_forgets_masks_and_counts() -> None:
    active = np.array([[True, False], [False, True]])
    buffer = filled("array", MaskedRolloutBuffer, active)
    list(buffer.get(2))
    buffer.reset()
    assert buffer.acted.all()
    assert buffer.samples_drawn == 0
    assert not buffer.generator_ready


def ppo_with(buffer: Any, **hyperparameters: Any) -> marl_sb3.PPO:
    """A new PPO, always with the same weights."""
    env = make_vec_env(ScriptedEnv, n_envs=1).as_sb3_vec_env()
    settings_ = {"n_epochs": 3, "batch_size": 4, "learning_rate": 1e-2, "policy_kwargs": {"net_arch": [4]}}
    model = marl_sb3.PPO("MlpPolicy", env, n_steps=12, seed=0, device="cpu", **{**settings_, **hyperparameters})
    model.rollout_buffer = buffer
    model.set_logger(Logger(None, []))
    return model


def compact(buffer: Any, active: np.ndarray) -> RolloutBuffer:
    """SB3's own buffer with the active steps alone, in one row, in the order in which SB3 flattens."""
    keep = active.T.reshape(-1)
    stock = RolloutBuffer(int(active.sum()), BOX, spaces.Discrete(3), device="cpu", n_envs=1)
    for name in ("observations", "actions", "values", "log_probs", "advantages", "returns"):
        flat = buffer.swap_and_flatten(getattr(buffer, name))[keep]
        setattr(stock, name, flat.reshape(getattr(stock, name).shape))
    stock.full = True
    return stock


@pytest.mark.parametrize("clip_range_vf", [None, 0.2])
def test_ppo_learns_from_active_steps_as_if_there_were_no_others(clip_range_vf: float | None) -> None:
    """The loss, the normalisation of advantages, and the explained variance."""
    active = np.random.default_rng(1).random((7, 3)) < 0.6
    buffer = filled("array", MaskedRolloutBuffer, active)
    masked = ppo_with(buffer, clip_range_vf=clip_range_vf)
    alone = ppo_with(compact(buffer, active), clip_range_vf=clip_range_vf)
    stock_buffer = alone.rollout_buffer
    expected_variance = explained_variance(stock_buffer.values.flatten(), stock_buffer.returns.flatten())
    for model in (masked, alone):
        np.random.seed(3)  # noqa: NPY002 - the generator that SB3 draws from
        model.train()
    for name, value in alone.policy.state_dict().items():
        assert th.equal(masked.policy.state_dict()[name], value), name
    assert masked.logger.name_to_value == alone.logger.name_to_value
    assert masked.logger.name_to_value["train/explained_variance"] == expected_variance
    assert abs(expected_variance) < 10


@pytest.mark.parametrize("normalize", [True, False])
def test_advantages_are_normalised_over_the_active_steps_of_a_minibatch(normalize: bool) -> None:
    # Advantages 1, 2, 3, 6 have mean 3 and standard deviation sqrt((4 + 1 + 0 + 9) / 3). With the ratio at 1 the
    # policy loss is minus the mean advantage: 0 once normalised, -3 if not; with six values it would be another.
    active = np.array([[True, True], [True, False], [False, True]])
    buffer = filled("array", MaskedRolloutBuffer, active)
    buffer.advantages = np.array([[1, 2], [3, GARBAGE], [-GARBAGE, 6]], dtype=np.float32)
    model = ppo_with(buffer, n_epochs=1, batch_size=6, normalize_advantage=normalize)
    with th.no_grad():
        obs = th.as_tensor(buffer.observations.reshape(-1, 3))
        actions = th.as_tensor(buffer.actions.reshape(-1))
        buffer.log_probs = model.policy.evaluate_actions(obs, actions)[1].numpy().reshape(3, 2)
    model.train()
    loss = model.logger.name_to_value["train/policy_gradient_loss"]
    assert loss == pytest.approx(0 if normalize else -3, abs=1e-6)


@pytest.mark.parametrize("algorithm", ["ours", "stock"])
def test_one_active_step_in_a_rollout_is_learnt_from(algorithm: str) -> None:
    spec = marl_sb3.PolicySpec({"ours": marl_sb3.PPO, "stock": stable_baselines3.PPO}[algorithm], n_epochs=2)
    env = make_vec_env(ScriptedEnv, script={"a": (1, "terminated"), "b": (9, "terminated")})
    both = MultiAgentAlgorithm(env, {"a": spec, "b": spec}, n_steps=4, batch_size=2, seed=0, device="cpu")
    metrics = both.train_iteration()["learners"]
    assert metrics["a"]["num_module_steps_trained"] == 2
    assert metrics["b"]["num_module_steps_trained"] == 8
    assert metrics["a"]["policy_loss"] is not None


def test_an_episode_that_is_lost_is_cut_and_not_terminated() -> None:
    """Step 0: 1 + 12/2 - 10 = -3, as if truncated. Step 1 is lost. Step 2, of another episode: 2 - 20 = -18."""
    buffer = MaskedRolloutBuffer(3, BOX, spaces.Discrete(3), device="cpu", n_envs=1, gamma=0.5, gae_lambda=0.5)
    one, nothing = np.ones(1, dtype=bool), np.zeros((1, 3), dtype=np.float32)
    for starts, value, reward in ((True, 10.0, 1.0), (False, 12.0, 1.0), (True, 20.0, 2.0)):
        decision = Decision(np.zeros(1), (), np.zeros(1), np.array([value]), np.zeros(1))
        buffer.begin_step(PolicyInputs(nothing, np.array([starts])), decision, one)
        buffer.add_rewards(np.array([reward], dtype=np.float32))
        if value == 12:
            buffer.break_off(one)
    buffer.compute_returns_and_advantage(th.zeros(1), one)
    assert buffer.acted[:, 0].tolist() == [True, False, True]
    assert buffer.advantages[buffer.acted].tolist() == [-3.0, -18.0]

"""Prioritized replay: which transitions are drawn, how they are weighted, what they leave; and dueling networks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
import torch as th
import torch.nn.functional as F
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer
from toy_envs import RandomEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.state.state import TensorFile
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.fast.dueling import DuelingLayers
from marl_sb3.extensions.fast.kernels.replay import draw_from_tree, put_in_tree, sum_up
from marl_sb3.extensions.fast.prioritized import DrawsByPriority

SMALL: dict[str, Any] = {
    **{"replay": "prioritized", "buffer_size": 60, "learning_starts": 4, "batch_size": 8, "train_freq": 2},
    "policy_kwargs": {"net_arch": [4]},
}
FEW = {**SMALL, "policy_kwargs": {"net_arch": [4], "n_quantiles": 3}}
OF_CLASS = {"DQN": SMALL, "MaskableDQN": SMALL, "QRDQN": FEW, "MaskableQRDQN": FEW}


def env_of(name: str) -> Any:
    """Two envs of two agents that end at different times."""
    script = {"a": (7, "truncated"), "b": (5, "terminated")}
    return make_vec_env(ScriptedEnv, n_envs=2, seed=0, masked=name.startswith("Maskable"), script=script)


def trained(name: str, **settings: Any) -> Any:
    """The training of a policy."""
    spec = PolicySpec(getattr(marl_sb3, name), **{**OF_CLASS[name], **settings})
    return MultiAgentAlgorithm(env_of(name), {"p": spec}, n_steps=8, seed=0, device="cpu").learn(24)


def buffer_of(priorities: list[float]) -> Any:
    """A buffer of one row with a transition of each priority."""
    algorithm = marl_sb3.DQN("MlpPolicy", gym.make("CartPole-v1"), **{**SMALL, "buffer_size": len(priorities)})
    buffer: Any = algorithm.replay_buffer
    for number in range(len(priorities)):
        seen = np.full((1, 4), number, np.float32)
        buffer.add(seen, seen, np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])
    buffer.priorities[:] = np.array(priorities)[:, None]
    buffer.state_was_set()
    return algorithm


# --- The sum tree ----------------------------------------------------------------------------------------------------


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=40), st.data())
def test_numbers_are_found_where_their_running_sum_says(numbers: list[float], data: st.DataObject) -> None:
    capacity = 2 ** (len(numbers) - 1).bit_length()
    tree, own = np.zeros(2 * capacity), np.array(numbers)
    tree[capacity : capacity + len(numbers)] = numbers
    sum_up(tree)
    places = data.draw(st.lists(st.integers(0, len(numbers) - 1), max_size=9))
    changed = np.array(data.draw(st.lists(st.floats(0.0, 1e6), min_size=len(places), max_size=len(places))))
    put_in_tree(tree, np.array(places, np.int64), changed)
    for place, number in zip(places, changed, strict=True):
        own[place] = number
    np.testing.assert_array_equal(tree[capacity : capacity + len(numbers)], own)
    again = tree.copy()
    sum_up(again)
    np.testing.assert_array_equal(tree, again)
    assert tree[1] == pytest.approx(own.sum())
    if own.any():
        fractions = np.random.default_rng(0).random(50)
        drawn = draw_from_tree(tree, fractions)
        assert (own[drawn] > 0).all()
        ends, wanted = own.cumsum(), (np.arange(50) + fractions) / 50 * tree[1]
        assert (wanted <= ends[drawn] * (1 + 1e-9) + 1e-9).all()
        assert (wanted >= (ends - own)[drawn] * (1 - 1e-9) - 1e-9).all()


# --- What is drawn ---------------------------------------------------------------------------------------------------


def test_transitions_are_drawn_in_proportion_to_their_priorities() -> None:
    buffer = buffer_of([4.0, 0.0, 1.0, 3.0, 2.0]).replay_buffer
    np.random.seed(0)  # noqa: NPY002 - the generator of SB3
    drawn = np.concatenate([buffer.sample(10).observations[:, 0].numpy() for _ in range(400)])
    np.testing.assert_allclose(
        np.bincount(drawn.astype(int), minlength=5) / len(drawn), [0.4, 0, 0.1, 0.3, 0.2], atol=0.02
    )
    # Strata: of ten draws, four of the first, whose share is 0.4; with independent draws, their number would vary.
    assert {int((buffer.sample(10).observations[:, 0] == 0).sum()) for _ in range(50)} == {4}


@pytest.mark.parametrize(
    ("remaining", "expected"), [(1.0, [0.5, 1.0, 0.25]), (0.5, [2**-1.5, 1, 2**-3]), (0.0, [0.25, 1, 2**-4])]
)
def test_weights_are_those_by_hand(remaining: float, expected: list[float]) -> None:
    """Priorities 4, 1 and 16: (N P)^-beta over its maximum is 4^-beta, 1 and 16^-beta, with beta from 0.5 to 1."""
    algorithm = buffer_of([4.0, 1.0, 16.0])
    algorithm.replay_beta, algorithm._current_progress_remaining = 0.5, remaining
    algorithm.replay_buffer.drawn_priorities = np.array([4.0, 1.0, 16.0])
    np.testing.assert_allclose(algorithm.importance_weights(3), expected, rtol=1e-6)


def test_priorities_are_powers_of_errors_and_new_transitions_have_the_highest_so_far() -> None:
    algorithm = buffer_of([1.0, 1.0, 1.0, 1.0])
    algorithm.replay_alpha, buffer = 0.5, algorithm.replay_buffer
    assert buffer.highest == 1.0
    drawn = buffer.sample(4).observations[:, 0].numpy().astype(int)
    algorithm.note_errors(np.array([4.0, 0.25, 0.0, 9.0], np.float32))
    np.testing.assert_allclose(buffer.priorities[drawn, 0], [2.0, 0.5, 1e-3, 3.0], rtol=1e-5)
    buffer.add(np.ones((1, 4)), np.ones((1, 4)), np.zeros((1, 1)), np.zeros(1), np.zeros(1), [{}])  # over the oldest
    assert buffer.priorities[0, 0] == buffer.highest == pytest.approx(3.0, rel=1e-6)
    algorithm.note_errors(np.full(4, 0.01, np.float32))
    assert buffer.highest == pytest.approx(3.0, rel=1e-6)
    assert buffer._tree[1] == pytest.approx(buffer.priorities.sum())


# --- What is learned -------------------------------------------------------------------------------------------------


def by_hand(policy: Any, samples: Any, masks: Any) -> tuple[th.Tensor, th.Tensor]:
    """The loss of each transition and the size of its error, written down from the papers, one row after the other."""
    net, target = policy.networks()
    losses, errors = [], []
    for row in range(len(samples.rewards)):
        with th.no_grad():
            following = target(samples.next_observations[row : row + 1])[0].reshape(-1, 3)  # (quantiles, actions)
            means = following.mean(0)
            if masks is not None:
                means[~masks[row]] = -th.inf
            discount = 0.5 * (1 - samples.dones[row])
            wanted = samples.rewards[row] + discount * following[:, means.argmax()]
        found = net(samples.observations[row : row + 1])[0].reshape(-1, 3)[:, samples.actions[row, 0]]
        if len(found) == 1:
            losses.append(F.smooth_l1_loss(found[0], wanted[0]))
            errors.append((found[0] - wanted[0]).abs())
            continue
        total = th.zeros(())
        for number, quantile in enumerate(found):
            for each in wanted:
                level = abs((number + 0.5) / len(found) - float(each < quantile))
                total = total + level * F.smooth_l1_loss(quantile, each)
        losses.append(total / len(wanted))
        errors.append(losses[-1])
    return th.stack(losses), th.stack(errors)


@pytest.mark.parametrize("path", ["fused", "torch"])
@pytest.mark.parametrize("name", OF_CLASS)
def test_an_update_is_that_of_weighted_losses_by_hand(name: str, path: str) -> None:
    policy: Any = trained(name, gamma=0.5, learning_starts=99).policies["p"]
    policy.policy.optimizer.param_groups[0]["eps"] = 1.0  # Adam's first step then tells how large a gradient is
    policy.update_path, buffer = path, policy.replay_buffer
    filled = buffer.priorities > 0
    buffer.priorities[filled] = np.random.default_rng(3).uniform(0.5, 4.0, filled.sum())
    buffer.state_was_set()
    np.random.seed(1)  # noqa: NPY002
    samples = buffer.sample(8)
    weights = policy.importance_weights(8)
    assert weights.max() == 1.0
    assert weights.min() < 0.8
    masks = th.as_tensor(buffer.drawn_masks) if name.startswith("Maskable") else None
    losses, errors = by_hand(policy, samples, masks)
    network = policy.networks()[0]
    expected = th.autograd.grad((th.as_tensor(weights) * losses).mean(), list(network.parameters()))
    before = [each.detach().clone() for each in network.parameters()]
    policy.max_grad_norm, policy.lr_schedule = 1e9, lambda _: 1e-3
    np.random.seed(1)  # noqa: NPY002
    policy.train(1, 8)
    assert policy.takes_fused_path() is (path == "fused")
    assert policy.logger.name_to_value["train/loss"] == pytest.approx(
        float((th.as_tensor(weights) * losses).mean().detach()), rel=1e-5
    )
    for old, new, gradient in zip(before, network.parameters(), expected, strict=True):
        th.testing.assert_close(old - new, 1e-3 * gradient / (gradient.abs() + 1.0), rtol=1e-4, atol=1e-7)
    for place, error in dict(zip(buffer._drawn.tolist(), errors.tolist(), strict=True)).items():
        assert buffer.priorities.reshape(-1)[place] == pytest.approx((error + 1e-6) ** 0.6, rel=1e-4)


@pytest.mark.parametrize("path", ["fused", "torch"])
@pytest.mark.parametrize("stock", [stable_baselines3.DQN, sb3_contrib.QRDQN])
def test_equal_weights_are_an_update_of_sb3(stock: Any, path: str) -> None:
    """Drawn alike, and with weights of 1, it learns what SB3 learns."""
    few = {**FEW["policy_kwargs"]} if stock is sb3_contrib.QRDQN else {"net_arch": [4]}
    settings = {"seed": 3, "device": "cpu", "policy_kwargs": few}
    ours = getattr(marl_sb3, stock.__name__)("MlpPolicy", gym.make("CartPole-v1"), replay="prioritized", **settings)
    ours.update_path = path
    theirs = stock("MlpPolicy", gym.make("CartPole-v1"), **settings)
    rng = np.random.default_rng(0)
    for algorithm in (ours, theirs):
        algorithm._setup_learn(1)
    for _ in range(50):
        seen, after = rng.normal(size=(2, 1, 4)).astype(np.float32)
        ends = rng.integers(0, 2, 1)
        for algorithm in (ours, theirs):
            algorithm.replay_buffer.add(seen, after, ends[:, None], np.ones(1), ends, [{}])
    places = rng.integers(0, 50, 32)
    theirs.replay_buffer.sample = lambda *_, **__: theirs.replay_buffer._get_samples(places)
    ours.replay_buffer.sample = lambda *_, **__: ours.replay_buffer._samples_at(places, places * 0, None)
    ours.replay_buffer.drawn_priorities, ours.replay_buffer._drawn = np.ones(32), places
    for algorithm in (ours, theirs):
        algorithm.train(1, 32)
    for own, of_stock in zip(ours.policy.parameters(), theirs.policy.parameters(), strict=True):
        th.testing.assert_close(own, of_stock, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{}, {"n_steps": 3, "td_lambda": 0.5}])
@pytest.mark.parametrize("algo", ["VDN", "QMIX"])
def test_teams_are_drawn_and_weighted_as_wholes(algo: str, settings: dict[str, Any]) -> None:
    script = {"a": (7, "truncated"), "b": (5, "terminated"), "c": (6, "terminated")}
    env = make_vec_env(ScriptedEnv, n_envs=2, seed=0, script=script)
    spec = PolicySpec(getattr(marl_sb3, algo), **{**SMALL, **settings})
    policy: Any = MultiAgentAlgorithm(env, {"p": spec}, n_steps=8, seed=0, device="cpu").learn(24).policies["p"]
    buffer = policy.replay_buffer
    assert (buffer.priorities.reshape(-1, 2, 3)[:, :, 1:] == 0).all()
    assert len(set(buffer.priorities[:, ::3].ravel().tolist())) > 5
    batch = buffer.sample(8)
    weights = th.as_tensor(policy.importance_weights(8))
    assert weights.min() < 1.0
    lines, columns = np.divmod(buffer._drawn, 6)
    th.testing.assert_close(batch.observations, buffer.batch_of(lines, columns // 3).observations)
    losses, errors = policy.losses(batch)
    assert policy.loss(batch).item() == pytest.approx((weights * losses).mean().item())
    np.testing.assert_allclose(losses.detach(), errors.detach() ** 2, rtol=1e-5)
    for place, error in dict(zip(buffer._drawn.tolist(), errors.tolist(), strict=True)).items():
        assert buffer.priorities.reshape(-1)[place] == pytest.approx((error + 1e-6) ** 0.6, rel=1e-5)


# --- Checkpoints, memory, SB3's loop ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", [1, 3])
def test_a_training_goes_on_exactly(n_steps: int, in_tmp: Path) -> None:
    def envs() -> Any:
        return make_vec_env(RandomEnv, 2, 1, observation_space=spaces.Box(-1, 1, (3,)), action_space=spaces.Discrete(3))

    spec = PolicySpec(marl_sb3.DQN, **{**SMALL, "n_steps": n_steps})
    whole = MultiAgentAlgorithm(envs(), {"p": spec}, n_steps=8, seed=0, device="cpu").learn(24)
    whole.save("saved")
    whole.learn(24, reset_num_timesteps=False)
    resumed = MultiAgentAlgorithm.load("saved", envs()).learn(24, reset_num_timesteps=False)
    one, other = (each.policies["p"] for each in (whole, resumed))
    np.testing.assert_array_equal(one.replay_buffer._tree, other.replay_buffer._tree)
    assert one.replay_buffer.highest == other.replay_buffer.highest
    for own, again in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        assert th.equal(own, again)


@pytest.mark.parametrize(
    ("priority", "message"),
    [(-1.0, "not numbers from 0 on"), (np.nan, "not numbers from 0 on"), (0.0, "all priorities are 0")],
)
def test_a_checkpoint_with_priorities_that_draw_nothing_is_refused(priority: float, message: str) -> None:
    buffer = buffer_of([1.0, 1.0, 1.0]).replay_buffer
    buffer.priorities[:] = priority
    with pytest.raises(CheckpointError, match=message):
        buffer.require_columns(TensorFile("replay-000", buffer.tensors()), 3, 1)


def test_the_memory_of_the_sum_tree_is_counted() -> None:
    counted = marl_sb3.DQN.bytes_per_transition({"replay": "prioritized"})
    assert all(buffer_of([1.0] * size).replay_buffer._tree.nbytes <= size * counted for size in (64, 65, 1000))


@pytest.mark.parametrize("given", [{}, {"n_steps": 3}, {"policy": "MultiInputPolicy"}])
def test_it_learns_in_the_loop_of_sb3(given: dict[str, Any], in_tmp: Path) -> None:
    env = gym.make("CartPole-v1")
    if "policy" in given:
        env = gym.wrappers.TransformObservation(env, lambda seen: {"x": seen}, spaces.Dict(x=env.observation_space))
    made = marl_sb3.DQN(**{"policy": "MlpPolicy", "env": env, **SMALL, **given}).learn(40)
    buffer: Any = made.replay_buffer
    assert len(set(buffer.priorities[:40].ravel().tolist())) > 10
    made.save("saved")
    made.save_replay_buffer("buffer")
    loaded = marl_sb3.DQN.load("saved", env)
    loaded.load_replay_buffer("buffer")
    assert (loaded.replay, loaded.replay_alpha) == ("prioritized", 0.6)
    np.testing.assert_array_equal(loaded.replay_buffer.priorities, buffer.priorities)
    loaded.learn(20)


MEMORY = {"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}
REFUSED = [
    ({"replay": "prioritised"}, "replay", "replay is 'prioritised'; accepted: .*prioritized"),
    ({"replay": "uniform", "replay_alpha": 0.3}, "replay_alpha", "replay_alpha is 0.3 .* but replay is uniform"),
    (MEMORY, "replay", "goes neither with HerReplayBuffer nor"),
    ({"replay_buffer_class": ReplayBuffer}, "replay", "and the replay buffer a ReplayBuffer; accepted: uniform"),
]


@pytest.mark.parametrize(("given", "key", "message"), REFUSED)
@pytest.mark.parametrize("name", ["DQN", "VDN"])
def test_what_does_not_go_together_is_refused(name: str, given: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        DrawsByPriority.train(getattr(marl_sb3, name)("MlpPolicy", gym.make("CartPole-v1"), **{**SMALL, **given}), 1)
    assert caught.value.key == key


def test_uniform_draws_have_the_buffers_of_sb3() -> None:
    made = marl_sb3.VDN("MlpPolicy", gym.make("CartPole-v1"), **{**SMALL, **MEMORY, "replay": "uniform"})
    assert type(made.replay_buffer) is ReplayBuffer


# --- Dueling networks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quantiles", [1, 2])
def test_values_are_the_state_s_and_advantages_without_their_mean(quantiles: int) -> None:
    layers = DuelingLayers(2, 3, quantiles, [5, 4], th.nn.Tanh)
    features = th.tensor([[1.0, -2.0], [0.5, 0.25]])
    shared = th.tanh(layers.shared[0](features))  # type: ignore[index]
    value = layers.value[2](th.tanh(layers.value[0](shared)))
    advantage = layers.advantage[2](th.tanh(layers.advantage[0](shared)))
    found = layers(features)
    assert found.shape == (2, 3 * quantiles)
    for row in range(2):
        for quantile in range(quantiles):
            own = advantage[row, 3 * quantile : 3 * quantile + 3]
            for action in range(3):
                expected = value[row, quantile] + own[action] - (own[0] + own[1] + own[2]) / 3
                th.testing.assert_close(found[row, 3 * quantile + action], expected)
    widths = [each.out_features for each in layers.modules() if isinstance(each, th.nn.Linear)]
    assert widths == [5, 4, quantiles, 4, 3 * quantiles]


@pytest.mark.parametrize("name", ["DQN", "QRDQN", "MaskableDQN", "VDN", "QMIX"])
def test_networks_of_policies_are_dueling_where_the_setting_says_so(name: str, in_tmp: Path) -> None:
    few = {"n_quantiles": 3} if name == "QRDQN" else {}
    spec = PolicySpec(getattr(marl_sb3, name), **{**SMALL, "policy_kwargs": {"net_arch": [4], "dueling": True, **few}})
    MultiAgentAlgorithm(env_of(name), {"p": spec}, n_steps=8, seed=0, device="cpu").learn(16).save("saved")
    policy: Any = MultiAgentAlgorithm.load("saved", env_of(name)).policies["p"]
    found = [each for each in policy.policy.modules() if isinstance(each, DuelingLayers)]
    assert len(found) == 2  # the network and its target


@pytest.mark.parametrize("given", [{}, {"dueling": False}])
@pytest.mark.parametrize("stock", [stable_baselines3.DQN, sb3_contrib.QRDQN])
def test_without_it_policies_and_files_are_those_of_sb3(stock: Any, given: dict[str, Any], in_tmp: Path) -> None:
    ours = getattr(marl_sb3, stock.__name__)("MlpPolicy", gym.make("CartPole-v1"), policy_kwargs=given or None)
    assert type(ours.policy) is stock.policy_aliases["MlpPolicy"]
    ours.save("saved")
    assert type(stock.load("saved").policy) is type(ours.policy)


def test_an_unknown_argument_of_the_networks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"unknown policy_kwargs 'duelling' of DuelingDQNPolicy; .*dueling"):
        trained("DQN", policy_kwargs={"duelling": True})

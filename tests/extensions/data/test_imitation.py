"""Behaviour cloning for every algorithm, and recorded actions beside the loss of PPO."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch as th
from gymnasium import spaces
from recordings import copying, episode, write_dataset
from small_trainings import assert_goes_on_exactly

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.data.cloning import Cloning, CloningOptions
from marl_sb3.extensions.data.demonstrations import demonstrations
from marl_sb3.extensions.data.imitation import action_loss
from marl_sb3.extensions.fast.builtin import ALGORITHMS

SEEN = spaces.Box(-1, 1, (3,))
FORCES, PUSHES = spaces.Box(-1, 1, (1,)), spaces.Discrete(2)


class Toy(gymnasium.Env):
    """Random observations; the reward is the first number of the latest one."""

    observation_space = SEEN

    def __init__(self, continuous: bool = False, length: int = 8) -> None:
        self.action_space = FORCES if continuous else PUSHES
        self._length = length

    def _see(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._steps = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._steps += 1
        seen = self._see()
        return seen, float(seen[0]), False, self._steps == self._length, {}


class Masked(Toy):
    """The same with action masks."""

    def action_masks(self) -> np.ndarray:
        return np.ones(2, dtype=bool)


OF_BOXES = ("sac", "recurrent_sac", "td3", "ddpg", "tqc", "crossq")
SMALL_BUFFER = {"buffer_size": 400, "learning_starts": 4, "batch_size": 8}
SMALL_ROLLOUTS: dict[str, Any] = {"n_steps": 16}


def spec_of(algo: str, **more: Any) -> PolicySpec:
    info = ALGORITHMS[algo]
    of_algo = SMALL_BUFFER if "buffer_size" in info.kinds else SMALL_ROLLOUTS
    if "batch_size" in info.kinds and of_algo is SMALL_ROLLOUTS:
        of_algo = {**of_algo, "batch_size": 16}
    kwargs: dict[str, Any] = {"net_arch": [32]}
    if info.has_memory:
        kwargs |= {"lstm_hidden_size": 16}
    return PolicySpec(algo, info.policy, **{**of_algo, "policy_kwargs": kwargs, **more})


def training(algo: str, *, n_envs: int = 2, iteration: int | None = None, **more: Any) -> MultiAgentAlgorithm:
    kind = Masked if ALGORITHMS[algo].takes_masks else Toy
    env = make_vec_env(lambda: kind(algo in OF_BOXES), n_envs=n_envs, seed=3)
    return MultiAgentAlgorithm(env, {"shared": spec_of(algo, **more)}, n_steps=iteration, seed=4, device="cpu")


def data_of(learner: Any, episodes: list[Any]) -> Any:
    return demonstrations(episodes, learner.rows, learner.processing, learner.algorithm, learn=False)


def with_masks(episodes: list[Any]) -> list[Any]:
    return [
        episode(each.observations, each.actions, action_masks=np.ones((len(each.actions), 2), bool))
        for each in episodes
    ]


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_algorithm_learns_to_act_as_recorded(algo: str) -> None:
    algorithm = training(algo)
    learner = algorithm.parts.learners["shared"]
    space = FORCES if algo in OF_BOXES else PUSHES
    episodes = with_masks(copying(space)) if ALGORITHMS[algo].takes_masks else copying(space)
    before = {name: tensor.clone() for name, tensor in learner.algorithm.policy.state_dict().items()}
    cloning = Cloning(learner, episodes, CloningOptions(12, 16, 0.01, patience=12), seed=0)
    while not cloning.is_done:
        cloning.run_epoch()
    cloning.finish()
    new = copying(space, seed=1)[0]
    masks = {"action_masks": np.ones((12, 2), bool)} if ALGORITHMS[algo].takes_masks else {}
    actions = learner.algorithm.predict(new.observations[:-1], deterministic=True, **masks)[0]
    if algo in OF_BOXES:
        assert np.abs(actions - new.actions).mean() < 0.1 < np.abs(new.actions).mean()
    else:
        assert (actions == new.actions).mean() > 0.8
    after = learner.algorithm.policy.state_dict()
    critics = [name for name in after if "critic" in name or "value_net" in name]
    assert all(th.equal(after[name], before[name]) for name in critics)  # only what acts is trained
    for name in after:
        of_target = name.replace("actor.", "actor_target.").replace("q_net.", "q_net_target.")
        assert of_target not in after or th.equal(after[name], after[of_target])


WRONG_STATES: dict[str, Any] = {
    "epoch": 0,
    "best_epoch": 9,
    "checksum": -1,
    "random": {"bit_generator": "PCG64"},
    "weights": {},
    "moments": {"0": {"step": np.float32(-1)}},
}


@pytest.mark.parametrize("name", [*WRONG_STATES, "exp_avg_sq"])
def test_a_state_of_a_cloning_that_is_none_is_refused_and_changes_nothing(name: str) -> None:
    learner = training("ppo").parts.learners["shared"]
    cloning = Cloning(learner, copying(PUSHES), CloningOptions(), seed=0)
    cloning.run_epoch()
    state = cloning.get_state()
    if name == "exp_avg_sq":
        state["moments"]["0"][name] = state["moments"]["0"][name] - 1
    else:
        state[name] = WRONG_STATES[name]
    before = [parameter.clone() for parameter in learner.algorithm.policy.parameters()]
    with pytest.raises(CheckpointError):
        cloning.read_state(StateReader(state))
    assert all(map(th.equal, before, learner.algorithm.policy.parameters()))


def test_negative_log_likelihood_is_that_of_sb3() -> None:
    algorithm = training("ppo").policies["shared"]
    learner = training("ppo").parts.learners["shared"]
    loss = action_loss("shared", learner.algorithm)
    batch = loss.batch(data_of(learner, copying(PUSHES)), np.array([0, 5]))
    losses, entropies = loss.losses(batch, with_entropy=True)
    _, log_probs, expected = learner.algorithm.policy.evaluate_actions(batch.observations, batch.actions)
    th.testing.assert_close(losses, -log_probs)
    th.testing.assert_close(entropies, expected)
    assert type(algorithm) is type(learner.algorithm)


def test_what_fills_up_a_shorter_episode_does_not_count() -> None:
    learner = training("recurrent_ppo").parts.learners["shared"]
    long, other = copying(PUSHES, 2)
    episodes = [long, episode(other.observations[:6], other.actions[:5])]
    data, loss = data_of(learner, episodes), action_loss("shared", learner.algorithm)
    both, *alone = (loss.batch(data, np.array(chosen)) for chosen in ([0, 1], [0], [1]))
    assert [batch.number for batch in (both, *alone)] == [17, 12, 5]
    expected = sum(loss.mean(batch)[1] * batch.number for batch in alone) / 17
    th.testing.assert_close(loss.mean(both)[1], expected)


def test_validation_is_apart_by_episodes_and_decides_which_weights_stay() -> None:
    learner = training("ppo").parts.learners["shared"]
    for number, validation, parts in ((20, 0.1, (18, 2)), (1, 0.5, (1, 0))):
        assert Cloning(learner, copying(PUSHES, number), CloningOptions(validation=validation), 0).num_episodes == parts
    # Actions at random: what is learned of them is wrong elsewhere.
    random = np.random.default_rng(0)
    episodes = [episode(each.observations, random.integers(2, size=12)) for each in copying(PUSHES, 6)]
    cloning = Cloning(learner, episodes, CloningOptions(200, 8, 0.05, validation=0.4, patience=3), seed=0)
    losses = []
    while not cloning.is_done:
        losses.append(cloning.run_epoch()["imitation_loss_validation"])
    assert len(losses) == cloning.best_epoch + 3 < 200
    cloning.finish()
    assert cloning._validation_loss() == pytest.approx(min(losses))


def test_statistics_of_observations_are_those_of_the_data() -> None:
    learner = training("ppo", normalize_observations=True).parts.learners["shared"]
    episodes = [episode(np.array([[0, 0, 0], [2, 4, 0], [4, 8, 0.0]], np.float32), [0, 1])]
    Cloning(learner, episodes, CloningOptions(), seed=0)
    statistics = learner.processing.statistics["observations"]
    np.testing.assert_allclose(statistics.mean, [2, 4, 0], atol=1e-3)
    np.testing.assert_allclose(statistics.var, [8 / 3, 32 / 3, 0], atol=1e-3)
    expected = np.array([-2, 0, 2]) / np.sqrt(8 / 3)
    np.testing.assert_allclose(np.asarray(data_of(learner, episodes).seen)[:, 0], expected, atol=1e-3)


def test_a_policy_that_cannot_be_cloned_is_named() -> None:
    class Own:
        policy = object()

    with pytest.raises(ConfigError, match="object of Own cannot be trained on recorded actions"):
        action_loss("pol1", Own())


def test_masked_policies_need_masks() -> None:
    learner = training("maskable_ppo").parts.learners["shared"]
    with pytest.raises(ConfigError, match="MaskablePPO needs action masks, which the data do not have"):
        Cloning(learner, copying(PUSHES), CloningOptions(), seed=0)


# --- Beside PPO -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pushes(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_dataset(tmp_path_factory.mktemp("pushes") / "data", SEEN, PUSHES, copying(PUSHES)))


@pytest.mark.parametrize("algo", ["ppo", "a2c", "recurrent_ppo"])
def test_recorded_actions_become_likelier_beside_rewards(algo: str, pushes: str) -> None:
    """The rewards say nothing of the actions: without data nothing is learned."""
    losses = {}
    for coefficient in (0.0, 1.0):
        more = {} if algo == "a2c" else {"n_epochs": 3}
        settings = {"imitation_data": pushes, "imitation_coefficient": coefficient, "learning_rate": 0.02, **more}
        algorithm = training(algo, iteration=16, **settings)
        algorithm.learn(32 * (20 if algo == "a2c" else 6))
        losses[coefficient] = algorithm.train_iteration()["learners"]["shared"]["imitation_loss"]
    assert losses[1.0] < 0.5 < losses[0.0]


def test_the_gradient_is_that_of_both_losses(pushes: str) -> None:
    """One minibatch, one epoch, plain gradient descent: the step is that of PPO's loss and of the data, added."""
    plain = {"optimizer_class": th.optim.SGD, "net_arch": [8]}
    settings: dict[str, Any] = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "max_grad_norm": 1e9}
    settings["learning_rate"] = 1.0
    steps = {}
    for coefficient in (None, 0.0, 0.5):
        more = {} if coefficient is None else {"imitation_data": pushes, "imitation_coefficient": coefficient}
        env = make_vec_env(Toy, n_envs=2, seed=3)
        spec = PolicySpec(policy_kwargs=plain, **settings, **more)
        algorithm = MultiAgentAlgorithm(env, {"shared": spec}, seed=4, device="cpu", update_path="torch")
        policy = algorithm.policies["shared"].policy
        before = {name: weights.clone() for name, weights in policy.named_parameters()}
        learner: Any = algorithm.parts.learners["shared"]
        if coefficient == 0.5:
            algorithm.read_data()
            drawn = np.random.default_rng([4, 0x1417A7E]).integers(len(learner.parts[0].loss.data), size=16)
            batch = action_loss("shared", learner.algorithm).batch(learner.parts[0].loss.data, drawn)
            loss = -policy.evaluate_actions(batch.observations, batch.actions)[1].mean()
            gradients = th.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        algorithm.learn(16)
        steps[coefficient] = {name: weights - before[name] for name, weights in policy.named_parameters()}
    for (name, step), gradient in zip(steps[0.5].items(), gradients, strict=True):
        th.testing.assert_close(steps[0.0][name], steps[None][name], rtol=0, atol=0)
        added = 0.0 if gradient is None else -0.5 * gradient
        th.testing.assert_close(step, steps[None][name] + added, rtol=1e-4, atol=1e-6)


def test_a_resumed_training_draws_the_same_data(pushes: str, tmp_path: Path) -> None:
    more: Any = {"imitation_data": pushes, "imitation_coefficient": "lin_1", "normalize_observations": True}
    assert_goes_on_exactly(lambda: training("ppo", **more), tmp_path, 64, 64)


def test_the_kernels_are_left_with_the_reason(pushes: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="marl_sb3")
    training("ppo", imitation_data=pushes)
    assert "policy shared: PyTorch chooses the actions and computes the updates, not the faster kernels" in caplog.text
    with pytest.raises(ConfigError, match="does not cover this policy: imitation_data"):
        MultiAgentAlgorithm(
            make_vec_env(Toy, n_envs=2), {"shared": spec_of("ppo", imitation_data=pushes)}, update_path="fused"
        )


def test_stock_algorithms_take_data_too(pushes: str) -> None:
    spec = PolicySpec(stable_baselines3.PPO, n_steps=16, batch_size=16, imitation_data=pushes)
    algorithm = MultiAgentAlgorithm(make_vec_env(Toy, n_envs=2), {"shared": spec}, seed=1, device="cpu")
    assert algorithm.train_iteration()["learners"]["shared"]["imitation_coefficient"] == 0.1


REFUSED = {
    "sac": ("imitation_data", "SAC does not learn with it; accepted: replay_data, central_critic"),
    "ppo": ("replay_data", "PPO does not learn with it; accepted: imitation_data"),
    "trpo": ("imitation_data", "TRPO does not learn with it; accepted: central_critic"),
}


@pytest.mark.parametrize("algo", REFUSED)
def test_data_that_an_algorithm_does_not_take_are_refused(algo: str) -> None:
    setting, words = REFUSED[algo]
    with pytest.raises(ConfigError, match=words):
        training(algo, **{setting: "data"})
    with pytest.raises(ConfigError, match=r"imitation_coefficient is 0\.2, but imitation_data is not set"):
        PolicySpec(imitation_coefficient=0.2)

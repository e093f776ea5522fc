"""Replay buffers with recorded transitions: which ones, how they are processed, how they are drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from recordings import episode, write_dataset
from small_trainings import assert_goes_on_exactly
from toy_envs import NoisyEnv, RandomEnv

from marl_sb3 import ConfigError, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.extensions.data.dataset import PolicyData
from marl_sb3.extensions.data.demonstrations import demonstrations, require_episodes
from marl_sb3.extensions.data.recorded_data import columns_of, drawing_from_both

SEEN, TORQUES = (
    spaces.Box(-np.array([1, 1, 8.0], np.float32), np.array([1, 1, 8.0], np.float32)),
    spaces.Box(-2, 2, (1,)),
)
SMALL: dict[str, Any] = {"buffer_size": 200, "learning_starts": 2, "batch_size": 8, "policy_kwargs": {"net_arch": [8]}}


def pendulums(lengths: tuple[int, ...] = (3, 2, 4), seed: int = 0) -> list[Any]:
    """Episodes whose observations count the transitions: 0.01, 0.02, ..."""
    found, number = [], 0
    for length in lengths:
        seen = np.zeros((length + 1, 3), np.float32)
        seen[:, 0] = 0.01 * np.arange(number, number + length + 1)
        number += length + 1
        found.append(
            episode(seen, np.full((length, 1), 2.0, np.float32), -np.arange(1.0, length + 1), ends="truncated")
        )
    return found


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_dataset(tmp_path / "data", SEEN, TORQUES, pendulums()))


def training(data: str, algo: str = "sac", n_envs: int = 2, **more: Any) -> MultiAgentAlgorithm:
    env = make_vec_env("Pendulum-v1", n_envs=n_envs, seed=1)
    spec = PolicySpec(algo, replay_data=data, **{**SMALL, **more})
    return MultiAgentAlgorithm(env, {"shared": spec}, n_steps=5, seed=2, device="cpu")


def buffer_of(algorithm: MultiAgentAlgorithm) -> Any:
    algorithm.read_data()
    return algorithm.policies["shared"].replay_buffer


def test_the_buffer_begins_with_the_recorded_transitions(data: str) -> None:
    buffer = buffer_of(training(data))
    assert buffer.num_transitions == 9
    flat = {name: array.reshape(-1, *array.shape[2:])[:9] for name, array in buffer.arrays().items()}
    order = np.argsort(flat["observations"][:, 0])
    seen, then = (flat[name][order, 0] for name in ("observations", "next_observations"))
    np.testing.assert_allclose(seen, np.array([0, 1, 2, 4, 5, 7, 8, 9, 10]) / 100, atol=1e-6)
    np.testing.assert_allclose(then, seen + 0.01, atol=1e-6)
    np.testing.assert_array_equal(flat["actions"], np.ones((9, 1)))  # 2 of the env is 1 for SAC
    np.testing.assert_array_equal(flat["rewards"][order], [-1, -2, -3, -1, -2, -1, -2, -3, -4])
    np.testing.assert_array_equal(flat["dones"][order], [0, 0, 1, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(flat["timeouts"], flat["dones"])


def test_returns_over_several_steps_follow_the_episodes(data: str) -> None:
    """With 3 steps and gamma 0.5: -1 - 2/2 - 3/4 from the first of 3 transitions; from the third, its own alone."""
    algorithm = training(data, n_envs=1, n_steps=3, gamma=0.5)
    samples = buffer_of(algorithm).sample(400)
    found = dict(
        zip(np.round(samples.observations[:, 0].numpy(), 3).tolist(), samples.rewards[:, 0].tolist(), strict=True)
    )
    assert found[0.0] == pytest.approx(-1 - 2 / 2 - 3 / 4)
    assert found[np.float32(0.02).item() if 0.02 not in found else 0.02] == pytest.approx(-3)


def test_normalised_as_the_learner_normalises_its_own(data: str) -> None:
    algorithm = training(data, normalize_observations=True, normalize_rewards=True, clip_rewards=2.0)
    buffer = buffer_of(algorithm)
    processing = algorithm.processing["shared"]
    everything = np.concatenate([each.observations for each in pendulums()])
    np.testing.assert_allclose(processing.statistics["observations"].mean, everything.mean(axis=0), atol=1e-4)
    assert buffer.rewards.min() == -2
    assert processing.statistics["returns"].count == pytest.approx(9, abs=1e-3)
    samples = buffer.sample(50, env=algorithm.policies["shared"]._vec_normalize_env)
    assert samples.observations[:, 0].std() == pytest.approx(1, abs=0.4)


def test_a_share_of_each_minibatch_is_recorded(data: str) -> None:
    algorithm = training(data, replay_data_share=0.25)
    own = buffer_of(algorithm)
    assert own.num_transitions == 0
    algorithm.learn(40)
    assert own.num_transitions == 40
    samples = own.sample(100)
    is_recorded = samples.rewards[:, 0].numpy() % 1 == 0  # whole numbers, unlike those of the env
    np.testing.assert_array_equal(is_recorded, [False] * 75 + [True] * 25)
    assert set(samples.rewards[75:, 0].tolist()) <= {-1, -2, -3, -4}


def test_the_first_update_may_take_more_gradient_steps(data: str) -> None:
    algorithm = training(data, replay_data_updates=30, learning_starts=3)
    counts = [algorithm.train_iteration()["learners"]["shared"]["num_grad_updates_lifetime"] for _ in range(2)]
    # SMALL: updates begin after 4 agent steps of 10 in an iteration, one per env step.
    assert counts == [30 + 4, 30 + 4 + 5]


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_resumed_training_goes_on_exactly(share: float | None, data: str, tmp_path: Path) -> None:
    more: Any = {"replay_data_share": share, "normalize_observations": True}
    assert_goes_on_exactly(lambda: training(data, **more), tmp_path, 40, 20)


def test_other_data_than_before_are_mentioned(data: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    saved = training(data, replay_data_share=0.5)
    saved.learn(10)
    saved.save(tmp_path / "saved")
    other = str(write_dataset(tmp_path / "other", SEEN, TORQUES, pendulums((5,))))
    resumed = training(other, replay_data_share=0.5)
    MultiAgentAlgorithm.load(
        tmp_path / "saved", resumed.env, policies={"shared": resumed._setup.specs["shared"]}
    ).read_data()
    assert "inexact: policy shared: " in caplog.text
    assert "other has changed since the checkpoint" in caplog.text


def test_more_data_than_the_buffer_holds_are_mentioned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    many = str(write_dataset(tmp_path / "many", SEEN, TORQUES, pendulums((300,))))
    assert buffer_of(training(many)).num_transitions == 200
    assert "replay_data has 300 transitions, the replay buffer holds 200: the latest stay" in caplog.text


@pytest.mark.parametrize("algo", ["td3", "tqc", "crossq"])
def test_other_algorithms_learn_from_data(algo: str, data: str) -> None:
    metrics = training(data, algo, replay_data_share=0.5).train_iteration()["learners"]["shared"]
    assert metrics["critic_loss"] is not None


# --- Action masks -----------------------------------------------------------------------------------------------------


class MaskedWalk(RandomEnv):
    """One agent that may do everything."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(-1000, 1000, (3,), np.float32), spaces.Discrete(3))

    def action_masks(self) -> np.ndarray:
        return np.ones(3, bool)


def masked_learner(**more: Any) -> Any:
    plans = [[({"a": (4, "terminated"), "b": (4, "terminated")}, {})]] * 2
    env = make_vec_env(NoisyEnv, n_envs=2, plans=plans, masked=True)
    algorithm = MultiAgentAlgorithm(env, {"all": PolicySpec("maskable_dqn", **{**SMALL, **more})}, device="cpu",
                                    policy_mapping_fn=lambda _: "all")  # fmt: skip
    return algorithm.parts.learners["all"]


MASKS = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], bool)


def masked_data(learner: Any, masks: np.ndarray | None = MASKS) -> Any:
    """Two episodes of agent a, of three and two actions."""
    episodes = [
        episode(np.zeros((n + 1, 3), np.float32), [0] * n, agent="a", action_masks=None if masks is None else masks[:n])
        for n in (3, 2)
    ]
    return demonstrations(episodes, learner.rows, learner.processing, learner.algorithm)


def test_a_recorded_transition_has_the_mask_of_the_next_one() -> None:
    data = masked_data(masked_learner())
    found = data.transitions(np.arange(5), np.zeros(5, np.int64)).next_masks
    assert found.astype(int).tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1]]


def test_masks_are_drawn_from_both_buffers_with_their_shares() -> None:
    learner = masked_learner()
    own, recorded = learner.buffer, masked_learner().buffer
    data = masked_data(learner)
    for step in range(4):
        rows = np.arange(4)
        for buffer, mask in ((own, [1, 0, 0]), (recorded, [0, 0, 1])):
            one = data.transitions(np.full(4, step), rows)
            buffer.add_transitions(one._replace(next_masks=np.tile(np.array(mask, bool), (4, 1))))
    drawing_from_both(own, recorded, 0.25)(8)
    assert own.drawn_masks.astype(int).tolist() == [[1, 0, 0]] * 6 + [[0, 0, 1]] * 2


def test_data_without_masks_are_refused_for_a_policy_that_needs_them(tmp_path: Path) -> None:
    seen, acted = spaces.Box(-1000, 1000, (3,), np.float32), spaces.Discrete(3)
    path = str(write_dataset(tmp_path / "data", seen, acted, [episode(np.zeros((3, 3), np.float32), [0, 1])]))
    env = make_vec_env(MaskedWalk)
    algorithm = MultiAgentAlgorithm(env, {"p": PolicySpec("maskable_dqn", replay_data=path, **SMALL)}, device="cpu")
    with pytest.raises(ConfigError, match="MaskableDQN needs action masks, which the data do not have"):
        algorithm.read_data()


# --- Several agents ---------------------------------------------------------------------------------------------------


def rows_of(**more: Any) -> tuple[Any, Any]:
    env = make_vec_env(NoisyEnv, n_envs=2, plans=[[({"a": (4, "terminated"), "b": (4, "terminated")}, {})]] * 2)
    algorithm = MultiAgentAlgorithm(
        env, {"all": PolicySpec("dqn", **{**SMALL, **more})}, device="cpu", policy_mapping_fn=lambda _: "all"
    )
    return algorithm.parts.learners["all"], env.groups[0]


def of_agents(group: Any) -> list[Any]:
    space, length = group.observation_space, 3
    seen = np.zeros((length + 1, *space.shape), space.dtype)
    return [episode(seen, np.array([0, 1, 0]), agent=agent) for agent in ("a", "a", "b")]


def test_episodes_are_in_rows_of_their_agents() -> None:
    learner, group = rows_of()
    data = demonstrations(of_agents(group), learner.rows, learner.processing, learner.algorithm)
    # Rows: a and b of env 0, a and b of env 1.
    assert [part.tolist() for part in columns_of(data, learner.rows)] == [[0, 1, 2], [6, 7, 8], [3, 4, 5], []]


def test_remembered_observations_are_those_of_an_own_episode() -> None:
    """Two stacked frames, the previous action, the previous reward, and which agent it is."""
    env = make_vec_env("Pendulum-v1", n_envs=1)
    more = {"frame_stack": 2, "previous_action": True, "previous_reward": True, "agent_indicator": True}
    algorithm = MultiAgentAlgorithm(env, {"p": PolicySpec("sac", **{**SMALL, **more})}, device="cpu")
    learner = algorithm.parts.learners["p"]
    data = demonstrations(pendulums((2, 1)), learner.rows, learner.processing, learner.algorithm)
    seen = data.seen if isinstance(data.seen, np.ndarray) else np.concatenate([*data.seen.values()], axis=1)
    # first number of the older frame and of the newer one, action, reward, agent
    columns = seen[:, [0, 3, 6, 7, 8]]
    expected = [
        [0, 0, 0, 0, 1], [0, 0.01, 2, -1, 1], [0.01, 0.02, 2, -2, 1],
        [0, 0.03, 0, 0, 1], [0.03, 0.04, 2, -1, 1],
    ]  # fmt: skip
    np.testing.assert_allclose(columns, expected, atol=1e-6)


WRONG = {
    "data has no episodes; accepted: data with episodes of its agents": lambda group: [],
    "no episode of a, b, but of c": lambda group: [
        episode(np.zeros((2, *group.observation_space.shape)), [0], agent="c")
    ],
    "observations are not finite": lambda group: [
        episode(np.full((2, *group.observation_space.shape), np.nan), [0], agent="a")
    ],
    "an action is not in Discrete": lambda group: [
        episode(np.zeros((2, *group.observation_space.shape)), [99], agent="a")
    ],
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_episodes_are_refused(words: str) -> None:
    learner, group = rows_of()
    spaces_of = (group.observation_space, group.action_space)
    with pytest.raises(ConfigError, match=words):
        require_episodes([PolicyData("p", *spaces_of, WRONG[words](group))], learner.rows, "data")


def test_data_of_other_spaces_are_refused(data: str) -> None:
    env = make_vec_env("MountainCarContinuous-v0", n_envs=1)
    algorithm = MultiAgentAlgorithm(env, {"shared": PolicySpec("sac", replay_data=data, **SMALL)}, device="cpu")
    words = r"replay_data: policy 'shared': .* has observations of Box.* those of its agents are of Box"
    with pytest.raises(ConfigError, match=words):
        algorithm.learn(10)


def test_damaged_and_missing_data_are_refused(data: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replay_data: .*is no dataset"):
        training(str(tmp_path / "nowhere")).read_data()
    file = Path(data) / "main_data.hdf5"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ConfigError, match=r"replay_data: .* is damaged"):
        training(data).read_data()


def test_rewards_of_single_agents_are_no_teams() -> None:
    learner, _ = rows_of()
    learner.processing.team_reward = "sum"
    with pytest.raises(
        ConfigError, match="team_reward is sum, and recorded episodes have the rewards of single agents"
    ):
        demonstrations([], learner.rows, learner.processing, learner.algorithm, normalize=False)

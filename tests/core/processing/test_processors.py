"""What every processor promises: a new one joins by a line in `PROCESSORS`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import NoisyEnv, SampledEnv

import marl_sb3
from marl_sb3 import PPO, ConfigError, MultiAgentAlgorithm, PolicySpec, load_policies, make_vec_env
from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.processing.processing import ORDER, Processing
from marl_sb3.core.processing.processors import ProcessedPolicy
from marl_sb3.evaluation.playing import play
from marl_sb3.extensions.transfer.initial_weights import InitFrom, init_from

IMAGE = spaces.Box(0, 255, (12, 14, 3), "uint8")
FORCE = spaces.Box(np.array([0, -3], np.float32), np.array([5, 9], np.float32))


def in_turns(env: Any = NoisyEnv) -> Any:
    """Agent b waits now and then and ends before a; rollouts end while it waits."""
    script = {"a": (7, "truncated"), "b": (5, "terminated")}
    return make_vec_env(env, n_envs=2, seed=1, plans=[[(script, {}, {"b": [1, 3]})]] * 2)


class Choices(NoisyEnv):
    """An agent sees its number and noise, as choices."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._observation_space = spaces.MultiDiscrete([3, 5])

    def observation(self, agent: str) -> Any:
        return np.array([self.possible_agents.index(agent), self.rng.integers(5)])


def images() -> Any:
    return make_vec_env(SampledEnv, n_envs=2, seed=1, observation_space=IMAGE, action_space=FORCE)


@dataclass(frozen=True)
class Kind:
    """Settings as they are tested, and an env that they fit."""

    settings: Mapping[str, Any]
    env: Any = in_turns


PROCESSORS = {
    "resize": Kind({"resize": [6, 5]}, images),
    "grayscale": Kind({"grayscale": True}, images),
    "normalize_observations": Kind({"normalize_observations": True}),
    "frame_stack": Kind({"frame_stack": 3}),
    "frame_stack, choices": Kind({"frame_stack": 3}, lambda: in_turns(Choices)),
    "previous_action": Kind({"previous_action": True}),
    "previous_reward": Kind({"previous_reward": True}),
    "time_feature": Kind({"time_feature": 4}),
    "agent_indicator": Kind({"agent_indicator": True}),
    "clip_rewards": Kind({"clip_rewards": 0.5}),
    "normalize_rewards": Kind({"normalize_rewards": True}),
    "team_reward": Kind({"team_reward": "mean"}),
    "rescale_actions": Kind({"rescale_actions": True}, images),
    "vectors, all at once": Kind(
        {"normalize_observations": True, "frame_stack": 2, "previous_action": True, "previous_reward": True,
         "time_feature": 9, "agent_indicator": True, "clip_rewards": 2.0, "normalize_rewards": True}
    ),
    "choices, all at once": Kind(
        {"frame_stack": 2, "previous_action": True, "previous_reward": True, "time_feature": 9,
         "agent_indicator": True},
        lambda: in_turns(Choices),
    ),
    "images, all at once": Kind(
        {"resize": [6, 6], "grayscale": True, "frame_stack": 2, "time_feature": 9, "agent_indicator": True,
         "rescale_actions": True},
        images,
    ),
}  # fmt: skip
each_processor = pytest.mark.parametrize("kind", PROCESSORS.values(), ids=PROCESSORS)
SMALL = {"n_epochs": 1, "batch_size": 4, "policy_kwargs": {"net_arch": [4]}}


def make(kind: Kind) -> MultiAgentAlgorithm:
    """Policy b is in the middle of its rollout when an iteration ends."""
    specs = {name: PolicySpec(n_steps=n_steps, **SMALL, **kind.settings) for name, n_steps in (("a", 6), ("b", 4))}
    return MultiAgentAlgorithm(kind.env(), specs, n_steps=6, seed=3, device="cpu")


def shared(kind: Kind) -> MultiAgentAlgorithm:
    """Both agents have one policy."""
    return MultiAgentAlgorithm(kind.env(), n_steps=6, seed=3, device="cpu", **SMALL, **kind.settings)


def everything(algorithm: MultiAgentAlgorithm) -> dict[str, np.ndarray]:
    """Weights and running statistics of all policies, and what their rows remember."""
    found: dict[str, np.ndarray] = {}
    for policy_id, learner in algorithm.parts.learners.items():
        for name, tensor in learner.algorithm.policy.state_dict().items():
            found[f"{policy_id}/{name}"] = tensor.numpy().copy()
        for name, own in learner.processing.statistics.items():
            found |= {f"{policy_id}/{name}/{part}": np.array(getattr(own, part)) for part in ("mean", "var", "count")}
        memory = learner.actor.processing.get_state().get("memory", {})
        found |= {f"{policy_id}/memory/{name}": array for name, array in memory.items()}
    return found


def assert_same(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        np.testing.assert_array_equal(other[name], array, err_msg=name)


def test_every_processor_is_tested_here() -> None:
    switches = {*ORDER, "clip_rewards", "normalize_rewards", "rescale_actions", "team_reward"}
    details = {"normalize_keys", "clip_observations", "clip_normalized_rewards", "normalize_epsilon"}
    assert switches <= set(PROCESSORS)
    assert switches | details == set(ProcessingSettings.kinds())


@each_processor
def test_a_resumed_training_goes_on_as_an_undisturbed_one(kind: Kind, tmp_path: Path) -> None:
    undisturbed = make(kind)
    undisturbed.learn(2 * 12)
    folder = undisturbed.save(tmp_path / "saved")
    undisturbed.learn(2 * 12, reset_num_timesteps=False)
    resumed = MultiAgentAlgorithm.load(folder, kind.env(), device="cpu")
    resumed.learn(2 * 12, reset_num_timesteps=False)
    assert_same(everything(undisturbed), everything(resumed))


@each_processor
def test_evaluation_leaves_the_training_as_it_is_and_loaded_policies_act_as_trained_ones(
    kind: Kind, tmp_path: Path
) -> None:
    algorithm = shared(kind)
    algorithm.learn(12)
    before = everything(algorithm)
    played = play(algorithm, kind.env(), 4, seed=5).returns()
    assert_same(before, everything(algorithm))
    loaded = load_policies(algorithm.save(tmp_path / "saved"), device="cpu")
    assert play(loaded, kind.env(), 4, seed=5).returns() == played


@each_processor
def test_predict_with_state_acts_as_an_evaluation_does(kind: Kind) -> None:
    """It takes what the env shows, and returns what the env takes."""
    algorithm = shared(kind)
    algorithm.learn(12)
    env = kind.env()
    actor = algorithm.bundle().make_actor(rows_of_policy(env, "shared", algorithm.policy_of), deterministic=True)
    step, state, starts = env.reset(), {}, {agent: np.ones(2, dtype=bool) for agent in env.agents}
    owed = np.zeros((2, 2), dtype=np.float32)
    for _ in range(9):
        actions = actor.act(step).actions.reshape(2, 2, *env.groups[0].action_space.shape)
        for column, agent in enumerate(env.agents):
            acting = np.flatnonzero(step.to_act[:, column])
            if not len(acting):
                continue
            of_agent = None if agent not in state else {agent: tuple(array[acting] for array in state[agent])}
            found, after = algorithm.predict_with_state(
                {agent: step.observations[0][acting, column]}, of_agent, {agent: starts[agent][acting]},
                deterministic=True, rewards={agent: owed[acting, column]},
            )  # fmt: skip
            np.testing.assert_allclose(found[agent], actions[acting, column], rtol=1e-5, atol=1e-6)
            for everywhere, own in zip(_room(state, after, agent), after.get(agent, ()), strict=True):
                everywhere[acting] = own
            starts[agent][acting], owed[acting, column] = False, 0
        groups = [actions]
        step = env.step(groups)
        actor.observe(step)
        owed += step.rewards
        for column, agent in enumerate(env.agents):
            starts[agent] |= (step.terminated | step.truncated)[:, column]
            owed[starts[agent], column] = 0


def _room(state: dict[str, Any], after: Mapping[str, Any], agent: str) -> Any:
    """The state of both envs of an agent, to write into."""
    if agent in after and agent not in state:
        state[agent] = tuple(np.zeros((2, *array.shape[1:]), array.dtype) for array in after[agent])
    return state.get(agent, ())


def test_a_lost_statistic_is_found(tmp_path: Path) -> None:
    """The tests above would find a processor that forgets to save something."""
    algorithm = make(PROCESSORS["normalize_observations"])
    algorithm.learn(12)
    state = everything(algorithm)
    algorithm.parts.learners["a"].processing.statistics["observations"].count += 1
    with pytest.raises(AssertionError, match="a/observations/count"):
        assert_same(state, everything(algorithm))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"frame_stack": 0}, "frame_stack is 0; accepted: an integer from 1 to 256"),
        ({"frame_stack": 2.5}, "frame_stack is 2.5; accepted: an integer from 1 to 256"),
        ({"clip_rewards": -1}, "clip_rewards is -1; accepted: a number above 0, or null"),
        ({"resize": [4]}, "resize is .4.; accepted: a list of height and width"),
        ({"resize": [4, 4]}, "policy 'shared': resize: the observation space is Box.*accepted: an image"),
        ({"grayscale": True}, "grayscale: the observation space is Box.*accepted: an image of 3 channels"),
        ({"rescale_actions": True}, "rescale_actions: the action space is Discrete.3.; accepted: a Box"),
        ({"normalize_observations": True, "normalize_keys": ["x"]}, "normalize_keys is .'x'., but the observation"),
        ({"processing": {"frames": 2}}, "'frames' in processing is unknown; accepted: resize, grayscale"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_words(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        shared(Kind(settings))


def test_weights_come_with_the_statistics_that_they_suit(in_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "normalize_observations": True}
    run = marl_sb3.train("Pendulum-v1", timesteps=32, n_envs=2, seed=1, settings=settings)
    statistics = everything(run.algorithm)
    loaded = marl_sb3.load_run(run.folder, checkpoint="latest").algorithm
    assert_same(statistics, everything(loaded))
    started = MultiAgentAlgorithm(make_vec_env("Pendulum-v1"), n_steps=16, batch_size=16, normalize_observations=True)
    init_from(started, [InitFrom(run.folder)])
    assert_same(statistics, everything(started))
    plain = MultiAgentAlgorithm(make_vec_env("Pendulum-v1"), n_steps=16, batch_size=16)
    init_from(plain, [InitFrom(run.folder)])
    assert "policy shared normalises with running statistics of: none; " in caplog.text


def test_frames_of_images_without_channels_become_the_channels() -> None:
    image = spaces.Box(0, 255, (36, 40), np.uint8)
    processing = Processing(ProcessingSettings(frame_stack=3), ProcessedPolicy("p", ("a",), spaces.Discrete(2)), image)
    assert processing.observation_space == spaces.Box(0, 255, (36, 40, 3), np.uint8)
    memory = processing.initial(1)
    for number in (7, 8):
        seen, memory = processing.observe(np.full((1, 36, 40), number, np.uint8), memory, np.zeros(1, np.int64))
    assert seen.shape == (1, 36, 40, 3)
    assert seen[0, 5, 5].tolist() == [0, 7, 8]
    env = make_vec_env(SampledEnv, observation_space=image, action_space=spaces.Discrete(2))
    MultiAgentAlgorithm(env, {"p": PolicySpec(PPO, "CnnPolicy")}, lambda _: "p", frame_stack=2, n_steps=4, batch_size=4)

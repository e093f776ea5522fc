"""Value decomposition: what is stored of a team, what its values are to become, and what the mixer promises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from small_trainings import assert_goes_on_exactly
from toy_envs import NoisyEnv, SampledEnv, ScriptedEnv

from marl_sb3 import QMIX, MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, SwappedAssignment, make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.fast.team_q import MonotonicMixer
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

SMALL: dict[str, Any] = {
    **{"buffer_size": 120, "learning_starts": 4, "batch_size": 8, "train_freq": 2, "target_update_interval": 20},
    **{"gamma": 0.5, "learning_rate": 0.01, "policy_kwargs": {"net_arch": [4]}},
}
NARROW = {"mixing_embed_dim": 3, "hypernet_embed": 4}
# Agent b ends before the others, for good; a is truncated there, c is terminated at the end.
SCRIPT = {"a": (5, "truncated"), "b": (2, "terminated"), "c": (4, "truncated")}


class Shown(ScriptedEnv):
    """With a state: the number of the step."""

    def state(self) -> Any:
        return np.array([self.step_count, 10.0 * self.step_count, self.episode], np.float32)


def spec_of(algo: str, **more: Any) -> PolicySpec:
    return PolicySpec(algo, **{**SMALL, **(NARROW if algo == "qmix" else {}), **more})


def made(algo: str, env: Any = None, **more: Any) -> MultiAgentAlgorithm:
    env = make_vec_env(ScriptedEnv, n_envs=2, script=SCRIPT) if env is None else env
    return MultiAgentAlgorithm(env, {"team": spec_of(algo, **more)}, n_steps=10, seed=3, device="cpu")


def team_of(algorithm: MultiAgentAlgorithm) -> Any:
    return algorithm.policies["team"]


# --- What is stored --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["vdn", "qmix"])
def test_a_transition_is_of_the_whole_team_until_its_last_agent_has_ended(algo: str) -> None:
    algorithm = made(algo, make_vec_env(Shown, n_envs=2, script=SCRIPT, env_state=True), learning_starts=999)
    algorithm.train_iteration()
    buffer = team_of(algorithm).replay_buffer
    assert (buffer.pos, buffer.num_transitions) == (10, 60)
    batch = buffer.batch_of(np.arange(5), np.ones(5, np.int64))
    assert batch.present[:, 0].tolist() == [[1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 0]]
    assert batch.rewards[:, 0].tolist() == [[1, 2, 3], [1, 2, 3], [1, 0, 3], [1, 0, 3], [1, 0, 0]]
    # The values of truncated agents count with their final observations, those of terminated ones do not.
    assert batch.goes_on.tolist() == [[1, 1, 1], [1, 0, 1], [1, 0, 1], [1, 0, 1], [1, 0, 0]]
    seen, following = (each.reshape(5, 3, 3).numpy() for each in (batch.observations, batch.next_observations))
    assert seen[..., 2].tolist() == [[0, 0, 0], [1, 1, 1], [2, 0, 2], [3, 0, 3], [4, 0, 0]]
    assert following[..., 2].tolist() == [[1, 1, 1], [2, 2, 2], [3, 0, 3], [4, 0, 4], [5, 0, 0]]
    if algo == "qmix":
        assert batch.states.tolist() == [[step, 10 * step, 1] for step in range(5)]
        assert batch.next_states.tolist() == [[step, 10 * step, 1] for step in range(1, 6)]
        assert buffer.batch_of(np.array([5]), np.array([0])).states.tolist() == [[0, 0, 2]]


@pytest.mark.parametrize("env_state", [False, True])
def test_shards_send_whole_teams(env_state: bool) -> None:
    env = make_sharded_vec_env(Shown, 2, 2, script=SCRIPT, env_state=env_state)
    here = made("qmix", make_vec_env(Shown, 2, script=SCRIPT, env_state=env_state), learning_starts=999)
    apart = made("qmix", env, learning_starts=999)
    for algorithm in (here, apart):
        algorithm.train_iteration()
    buffers = [team_of(algorithm).replay_buffer for algorithm in (here, apart)]
    for name, column in buffers[0].tensors().items():
        if name != "actions":
            np.testing.assert_array_equal(buffers[1].tensors()[name], column, name)


def test_agents_that_come_later_take_part_from_then_on() -> None:
    env = make_vec_env(ScriptedEnv, script={"a": (4, "truncated"), "b": (4, "truncated")}, joins={"b": 2})
    algorithm = made("vdn", env, learning_starts=99)
    algorithm.train_iteration()
    batch = team_of(algorithm).replay_buffer.batch_of(np.arange(4), np.zeros(4, np.int64))
    assert batch.present[:, 0].tolist() == [[1, 0], [1, 0], [1, 1], [1, 1]]


def test_two_teams_learn_apart_and_policies_that_swap_learn_from_the_agents_that_they_play() -> None:
    script = dict.fromkeys("abcd", (6, "truncated"))
    env = make_vec_env(ScriptedEnv, n_envs=2, script=script)
    mapping = SwappedAssignment({"a": "one", "b": "one", "c": "two", "d": "two"})
    specs = {name: spec_of("qmix") for name in ("one", "two")}
    algorithm = MultiAgentAlgorithm(env, specs, policy_mapping_fn=mapping, n_steps=12, seed=0, device="cpu")
    algorithm.train_iteration()
    buffers: list[Any] = [vars(algorithm.policies[name])["replay_buffer"] for name in specs]
    played = [buffer.present[:12].reshape(12, 2, 4) for buffer in buffers]
    assert (played[0].sum(axis=2) == 2).all()
    assert (played[0] ^ played[1]).all()
    assert len({tuple(each) for each in played[0].reshape(-1, 4).tolist()}) > 1


# --- What the values are to become -----------------------------------------------------------------------------------


def filled(algo: str, **more: Any) -> Any:
    """A policy whose buffer is filled, and whose networks differ from their targets, with action masks."""
    env = make_vec_env(Shown, n_envs=2, script=SCRIPT, masked=True, env_state=more.pop("env_state", False))
    algorithm = made(algo, env, **more)
    for _ in range(3):
        algorithm.train_iteration()
    return team_of(algorithm)


def numpy_mixer(mixer: Any, values: np.ndarray, states: np.ndarray) -> np.ndarray:
    """The formulas of the paper's figure 2, one team after the other."""
    weights = {name: each.detach().numpy().astype(np.float64) for name, each in mixer.state_dict().items()}

    def layer(name: str, inputs: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ inputs + weights[f"{name}.bias"]

    def hidden(name: str, state: np.ndarray) -> np.ndarray:
        return layer(f"{name}.2", np.maximum(layer(f"{name}.0", state), 0))

    found = []
    for own, state in zip(values, states, strict=True):
        first = np.abs(hidden("first_weights", state)).reshape(len(own), -1)
        mixed = own @ first + layer("first_bias", state)
        mixed = np.where(mixed > 0, mixed, np.exp(np.minimum(mixed, 0)) - 1)
        found.append(mixed @ np.abs(hidden("last_weights", state)) + hidden("last_bias", state)[0])
    return np.array(found)


@pytest.mark.parametrize("team_reward", ["sum", "mean"])
@pytest.mark.parametrize("double_dqn", [True, False])
@pytest.mark.parametrize(("algo", "env_state"), [("vdn", False), ("qmix", False), ("qmix", True)])
def test_the_targets_are_those_that_numpy_computes(
    algo: str, env_state: bool, double_dqn: bool, team_reward: str
) -> None:
    policy = filled(algo, env_state=env_state, double_dqn=double_dqn, team_reward=team_reward)
    lines, teams = np.arange(10), np.arange(10) % 2
    batch = policy.replay_buffer.batch_of(lines, teams)
    found = policy.targets(batch).numpy()
    with th.no_grad():
        online, target = (net(batch.next_observations).numpy().reshape(10, 3, 3) for net in policy.networks())
    masks, goes_on = batch.next_masks.numpy(), batch.goes_on.numpy()
    assert not masks.all()
    best = np.where(masks, online if double_dqn else target, -np.inf).argmax(2)
    values = np.take_along_axis(target, best[..., None], 2)[..., 0] * goes_on
    if algo == "vdn":
        after = values.sum(1)
    else:
        seen = batch.next_observations.numpy().reshape(10, 3, 3) * goes_on[..., None]
        of_team = np.concatenate([seen.reshape(10, 9), goes_on], axis=1)
        after = numpy_mixer(policy.mixing.target, values, batch.next_states.numpy() if env_state else of_team)
    paid = batch.rewards.numpy().sum((1, 2)) / (3 if team_reward == "mean" else 1)
    np.testing.assert_allclose(found, paid + 0.5 * goes_on.any(1) * after, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("td_lambda", [1.0, 0.4, 0.0])
@pytest.mark.parametrize("algo", ["vdn", "qmix"])
def test_returns_over_several_steps_are_those_of_single_steps_added_up(algo: str, td_lambda: float) -> None:
    """Of 12 steps, they end with the last one, and where `c` and `a` were truncated: the fourth and fifth of five."""
    env = make_vec_env(Shown, n_envs=2, script=SCRIPT, masked=True, env_state=True)
    policy = team_of(made(algo, env, n_steps=3, td_lambda=td_lambda).learn(24))
    buffer, lines = policy.replay_buffer, np.arange(12)
    found = policy.targets(buffer.batch_of(lines, lines % 2))
    for line in lines:
        ends = [step for step in range(line, line + 3) if step % 5 in (3, 4) or step == 11]
        steps = range(line, min([*ends, line + 2]) + 1)
        buffer.n_steps = 1
        single = buffer.batch_of(np.array(steps), np.full(len(steps), line % 2))
        paid, worth = single.rewards.sum((1, 2)), policy.targets(single)
        after, expected = (worth - paid) / 0.5, worth[-1]
        for step in reversed(range(len(steps) - 1)):
            expected = paid[step] + 0.5 * ((1 - td_lambda) * after[step] + td_lambda * expected)
        np.testing.assert_allclose(found[line], expected, rtol=1e-4, atol=1e-4)


def test_nothing_follows_the_end_of_a_team_that_was_terminated() -> None:
    script = {"a": (2, "terminated"), "b": (1, "terminated")}
    algorithm = made("qmix", make_vec_env(ScriptedEnv, script=script), learning_starts=99)
    algorithm.train_iteration()
    policy = team_of(algorithm)
    batch = policy.replay_buffer.batch_of(np.array([1, 3]), np.zeros(2, np.int64))
    assert policy.targets(batch).tolist() == [1, 1]  # what agent a is paid


@pytest.mark.parametrize("algo", ["vdn", "qmix"])
def test_an_update_takes_all_values_of_the_team_towards_its_target(algo: str) -> None:
    policy = filled(algo)
    batch = policy.replay_buffer.batch_of(np.arange(10), np.zeros(10, np.int64))
    targets, losses = policy.targets(batch), []
    policy.targets, policy.replay_buffer.sample = lambda _: targets, lambda *_, **__: batch
    for _ in range(40):
        policy.train(1)
        losses.append(policy.logger.name_to_value["train/loss"])
    assert losses[-1] < losses[0] / 2


def test_a_shared_reward_is_that_of_each_agent_that_is_there() -> None:
    rewards = {name: [1.0, 2.0, 3.0, 4.0, 5.0] for name in SCRIPT}
    env = make_vec_env(ScriptedEnv, n_envs=2, script=SCRIPT, rewards=rewards)
    policy = team_of(made("vdn", env, team_reward="shared", gamma=0.0).learn(20))
    batch = policy.replay_buffer.batch_of(np.arange(5), np.zeros(5, np.int64))
    assert policy.targets(batch).tolist() == [1, 2, 3, 4, 5]


BOX = spaces.Box(-5, 5, (2,), np.float32)
OBSERVED: Mapping[str, tuple[spaces.Space[Any], int, dict[str, Any]]] = {
    "choices": (spaces.Discrete(4), 4, {}),
    "several choices": (spaces.MultiDiscrete([2, 3]), 5, {}),
    "parts": (spaces.Dict({"place": spaces.Discrete(4), "vector": BOX}), 6, {}),
    "normalised": (BOX, 2, {"normalize_observations": True}),
    "identity": (BOX, 4, {"agent_indicator": True}),
}


@pytest.mark.parametrize("name", OBSERVED)
def test_a_team_may_observe_anything_and_the_mixer_sees_all_of_it(name: str) -> None:
    space, numbers, more = OBSERVED[name]
    script = {"a": (5, "truncated"), "b": (3, "terminated")}
    env = make_vec_env(SampledEnv, n_envs=2, observation_space=space, action_space=spaces.Discrete(3), script=script)
    spec = PolicySpec("qmix", "MultiInputPolicy" if name == "parts" else "MlpPolicy", **{**SMALL, **NARROW, **more})
    algorithm = MultiAgentAlgorithm(env, {"team": spec}, n_steps=10, seed=3, device="cpu").learn(60)
    policy = team_of(algorithm)
    assert policy.mixing.inputs == 2 * (numbers + 1)
    vec_normalize = policy._vec_normalize_env
    batch = policy.replay_buffer.batch_of(np.arange(15), np.zeros(15, np.int64), vec_normalize)
    seen = policy._seen_by_all(batch.observations, batch.present[:, 0])
    assert seen.shape == (15, 2 * (numbers + 1))
    assert (seen[batch.present[:, 0, 1] == 0, numbers : 2 * numbers] == 0).all()
    assert (vec_normalize is not None) == (name == "normalised")
    assert th.isfinite(policy.targets(batch)).all()


# --- The mixer -------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**16), agents=st.integers(1, 4), embed=st.integers(0, 5), scale=st.floats(0.1, 30))
def test_the_whole_never_falls_when_an_agents_value_rises(seed: int, agents: int, embed: int, scale: float) -> None:
    th.manual_seed(seed)
    mixer = MonotonicMixer(3, agents, 4, embed)
    values = (scale * th.randn(6, agents)).requires_grad_()
    mixer(values, scale * th.randn(6, 3)).sum().backward()
    assert values.grad is not None
    assert (values.grad >= 0).all()
    assert (values.grad > 0).any()


# --- Acting ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["torch", "fused"])
def test_a_forbidden_action_is_never_taken_and_each_agent_explores_for_itself(path: str) -> None:
    env = make_vec_env(ScriptedEnv, n_envs=2, masked=True, script=dict.fromkeys("ab", (6, "truncated")))
    more = {"exploration_initial_eps": 0.5, "exploration_final_eps": 0.5, "learning_starts": 0, "learning_rate": 0.0}
    algorithm = MultiAgentAlgorithm(
        env, {"team": spec_of("vdn", **more)}, n_steps=60, seed=3, device="cpu", update_path=path
    )
    algorithm.train_iteration()
    same = []
    for received in env.call("received", range(2)):
        for step, actions in enumerate(received):
            assert all(action != (step % 6) % 2 for action in actions.values())
        same += [actions["a"] == actions["b"] for actions in received]
    assert 0 < np.mean(same) < 1
    policy = team_of(algorithm)
    policy.exploration_rate = 0.5
    seen = np.repeat(np.array([[1.0, 1.0, 2.0]], np.float32), 400, axis=0)
    best = policy.predict(seen[0], deterministic=True)[0]
    assert 0.25 < (policy.predict(seen)[0] != best).mean() < 0.42  # a third of the random actions are the best one
    assert policy.predict(seen[0])[0].shape == ()


def test_it_needs_no_masks() -> None:
    algorithm = made("vdn").learn(20)
    assert set(algorithm.predict({"a": np.zeros(3, np.float32)})) == {"a"}


# --- Going on --------------------------------------------------------------------------------------------------------


def same_weights(one: MultiAgentAlgorithm, other: MultiAgentAlgorithm) -> bool:
    found = [{**team_of(each).policy.state_dict(), **team_of(each).mixing.policy.state_dict()} for each in (one, other)]
    return all(th.equal(value, found[1][name]) for name, value in found[0].items())


class Growing(ScriptedEnv):
    """With a state that gets longer."""

    def state(self) -> Any:
        return np.zeros(1 + self.step_count, np.float32)


PLANS = [[(SCRIPT, {})]] * 2


@pytest.mark.parametrize(("env_state", "more"), [(True, {"n_steps": 3, "td_lambda": 0.6}), (False, {})])
@pytest.mark.parametrize("steps", [0, 40])
def test_a_resumed_training_is_the_same_as_one_that_was_not_interrupted(
    steps: int, env_state: bool, more: Mapping[str, Any], tmp_path: Path
) -> None:
    def begun() -> MultiAgentAlgorithm:
        return made("qmix", make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=PLANS, env_state=env_state), **more)

    assert same_weights(*assert_goes_on_exactly(begun, tmp_path, steps, 40))


def test_a_checkpoint_of_another_state_is_refused_and_one_before_the_first_step_is_not(tmp_path: Path) -> None:
    algorithm = made("qmix", make_vec_env(Shown, n_envs=2, script=SCRIPT, env_state=True))
    algorithm.save(tmp_path / "none")
    algorithm.learn(40).save(tmp_path / "saved")
    plain = make_vec_env(ScriptedEnv, n_envs=2, script=SCRIPT)
    words = "QMIX has learned from an env's state of 3 numbers, and the envs now show observations of 12"
    with pytest.raises(ConfigError, match=words):
        MultiAgentAlgorithm.load(tmp_path / "saved", plain).learn(20, reset_num_timesteps=False)
    MultiAgentAlgorithm.load(tmp_path / "none", plain).learn(20)


def test_a_mixer_of_no_width_is_refused_before_networks_of_its_size_are_made() -> None:
    state: Any = team_of(made("qmix").learn(20)).mixing_part(None).get_state()
    state["weights"]["policy.online.first_bias.weight"] = np.zeros((0, 10**12), np.float32)
    with pytest.raises(CheckpointError, match="first_bias"):
        team_of(made("qmix")).mixing_part(None).read_state(StateReader(state, "checkpoint"))


def test_qmix_from_a_zip_file_has_no_mixer_to_train_with(tmp_path: Path) -> None:
    team_of(made("qmix").learn(20)).save(tmp_path / "team")
    with pytest.raises(ConfigError, match="QMIX has no mixer before its training begins, and none from a zip file"):
        QMIX.load(tmp_path / "team.zip", device="cpu").train(1)


def test_a_new_mixer_leaves_the_random_draws_of_gpus_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, seeds = team_of(made("qmix")), list[int]()
    monkeypatch.setattr(th.cuda, "manual_seed_all", seeds.append)
    policy.make_mixing(3)
    assert not seeds


def test_a_checkpoint_goes_on_with_more_envs(tmp_path: Path) -> None:
    made("qmix", make_vec_env(Shown, n_envs=2, script=SCRIPT, env_state=True)).learn(20).save(tmp_path / "saved")
    env = make_vec_env(Shown, n_envs=3, script=SCRIPT, env_state=True)
    loaded = MultiAgentAlgorithm.load(tmp_path / "saved", env)
    buffer = team_of(loaded).replay_buffer
    assert buffer.num_transitions == 60
    batch = buffer.batch_of(np.arange(4), np.zeros(4, np.int64))  # every third of the transitions
    assert batch.states[:, 0].tolist() == [0, 1, 3, 4]
    loaded.learn(30, reset_num_timesteps=False)


def test_workers_give_the_same_weights() -> None:
    env = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=PLANS, env_state=True)
    here = made("qmix", env).learn(40)
    with_workers = make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=PLANS, env_state=True, n_workers=2)
    assert same_weights(here, made("qmix", with_workers).learn(40))
    with_workers.close()


# --- What is refused -------------------------------------------------------------------------------------------------


class Rewrites(MultiAgentCallback):
    def on_trajectory(self, trajectory: Any) -> None:
        """Change nothing."""


REFUSED: Mapping[str, tuple[str, Callable[[], Any]]] = {
    "steps": ("td_lambda is 0.5, and VDN .*accepted: 1, or n_steps above 1", lambda: made("vdn", td_lambda=0.5)),
    "memory": (
        "optimize_memory_usage is True, and VDN",
        lambda: made("vdn", optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False}),
    ),
    "data": (
        "replay_data is set, and VDN does not learn with it",
        lambda: made("vdn", replay_data="x"),
    ),
    "critic": ("central_critic is set, and QMIX", lambda: made("qmix", central_critic=True)),
    "hooks": ("VDN learns from whole teams, and on_trajectory", lambda: made("vdn").learn(8, callback=Rewrites())),
    "turns": (
        "agent 'b' waits in env 0, and VDN learns from simultaneous moves",
        lambda: made("vdn", make_vec_env(ScriptedEnv, skips={"b": [1]})).learn(8),
    ),
    "states": (
        r"the env's state\(\) had 1 numbers, and now has 2; accepted: always as many",
        lambda: made("qmix", make_vec_env(Growing, env_state=True)).learn(8),
    ),
    "rewards": (
        "team_reward is shared, but in env 0 agent 'a' was paid 1 and 'b' 2; accepted: sum, mean",
        lambda: made("vdn", team_reward="shared").learn(8),
    ),
    "kinds": ("team_reward is 'median'; accepted", lambda: made("vdn", team_reward="median")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_go_with_teams_is_refused_in_words(name: str) -> None:
    words, make = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        make()


def test_states_that_memory_has_no_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm = made("qmix", make_vec_env(Shown, n_envs=2, script=SCRIPT, env_state=True))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=100))
    with pytest.raises(ConfigError, match=r"the env's states in the replay buffer need 0.0 GiB.*smaller buffer_size"):
        algorithm.learn(4)


# --- The two-step game -----------------------------------------------------------------------------------------------

each_side = pytest.mark.parametrize(("algo", "paid"), [("vdn", 7), ("qmix", 8)])


@each_side
def test_in_the_two_step_game_qmix_finds_what_no_sum_of_values_tells(algo: str, paid: int, benchmark: Any) -> None:
    """A training with a faster step; the benchmark has that of the documentation."""
    small = {"learning_rate": 0.01, "train_freq": 2, "target_update_interval": 200, "policy_kwargs": {"net_arch": [16]}}
    assert benchmark("two_step_game").train(algo, 2_500, 0, **small) == paid


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(5))
@each_side
def test_the_same_with_five_seeds(algo: str, paid: int, seed: int, benchmark: Any) -> None:
    assert benchmark("two_step_game").train(algo, 16_000, seed) == paid

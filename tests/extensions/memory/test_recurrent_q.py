"""RecurrentDQN: its states, its loss, what it can remember, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from cells import CELLS, SMALL
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv
from toy_envs import NoisyEnv, RandomEnv, ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentAlgorithm, PolicySpec, RecurrentDQN, make_vec_env
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.memory.sequences import SequenceBatch

MEMORY = {"net_arch": [4], "lstm_hidden_size": 3, "n_lstm_layers": 2}


def in_turns(**more: Any) -> Any:
    """Episodes of 7 steps in which agent b waits now and then; one ends by a time limit, the other does not."""
    plans = [[({"a": (7, "truncated"), "b": (7, "terminated")}, {}, {"b": [1, 3, 4, 6]})]] * 2
    return make_vec_env(NoisyEnv, n_envs=2, seed=1, plans=plans, **more)


def played(cell: str = "lstm", steps: int = 10, **settings: Any) -> tuple[MultiAgentAlgorithm, Any]:
    """A training without updates, and its policy."""
    spec = PolicySpec(RecurrentDQN, **{**SMALL, "policy_kwargs": {**MEMORY, "cell": cell}, **settings})
    made = MultiAgentAlgorithm(in_turns(), {"p": spec}, n_steps=steps, seed=3, device="cpu")
    made.train_iteration()
    return made, made.policies["p"]


@th.no_grad()
def stepped(policy: Any, observation: np.ndarray, states: tuple[th.Tensor, ...]) -> tuple[th.Tensor, ...]:
    """The states after an observation."""
    return policy.q_net.step(th.as_tensor(observation)[None], states, th.zeros(1, dtype=th.bool))[1]


def tensors(states: np.ndarray) -> tuple[th.Tensor, ...]:
    """(layers, 1, size) of the states of a transition."""
    kept = th.as_tensor(states)[:, :, None]
    return (kept[0], kept[1] if len(kept) > 1 else th.zeros_like(kept[0]))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("learning_starts", [0, 99])
def test_the_stored_state_of_a_transition_is_what_its_network_remembers_of_the_episode(
    cell: str, learning_starts: int
) -> None:
    """While actions are random, too; agent b waits in four of seven steps, which it does not remember."""
    _, policy = played(cell, steps=17, learning_starts=learning_starts, train_freq=99, exploration_initial_eps=0.5)
    buffer = policy.replay_buffer
    assert buffer.counts.tolist() == [17, 7, 17, 7]  # of the latest episode, agent b has a transition that is not over
    for row, count in enumerate(buffer.counts):
        states = tensors(np.zeros_like(buffer.states[0, 0]))
        for line in range(count):
            for own, expected in zip(tensors(buffer.states[line, row]), states, strict=True):
                np.testing.assert_allclose(own, expected, atol=1e-6)
            states = stepped(policy, buffer.observations[line, row], states)
            if buffer.dones[line, row]:
                states = tensors(np.zeros_like(buffer.states[0, 0]))


def places_of(buffer: Any) -> list[tuple[int, int, int]]:
    """All transitions, by line and row, at each place of a sequence."""
    return [(line, row, place) for row in range(4) for line in range(buffer.counts[row]) for place in range(3)]


# --- The loss --------------------------------------------------------------------------------------------------------


@th.no_grad()
def by_hand(policy: Any, line: int, row: int, place: int, *, double_dqn: bool) -> list[float]:
    """The errors of the transitions of a sequence, one network call for each step, by loops over the buffer."""
    buffer = policy.replay_buffer
    count = int(buffer.counts[row])

    def is_last(at: int) -> bool:
        return at == count - 1 or bool(buffer.dones[at, row])

    first = line
    while first > line - place and first > 0 and not is_last(first - 1):
        first -= 1
    end = line + buffer.sequence_length - place
    start = first
    while start > first - buffer.burn_in and start > 0 and not is_last(start - 1):
        start -= 1
    values: dict[str, dict[float, th.Tensor]] = {}
    for name in ("q_net", "q_net_target"):
        network, states = getattr(policy, name), tensors(buffer.states[start, row])
        values[name], at = {}, start
        while True:
            outputs, states = network.step(
                th.as_tensor(buffer.observations[at, row])[None], states, th.zeros(1, dtype=th.bool)
            )
            values[name][at] = network.q_net(outputs)[0]
            if is_last(at):
                final = th.as_tensor(buffer.next_observations[at, row])[None]
                values[name][at + 1] = network.q_net(network.step(final, states, th.zeros(1, dtype=th.bool))[0])[0]
                break
            at += 1
    errors, at = [], first
    while at < end:
        steps, returned = 0, 0.0
        while True:
            returned += policy.gamma**steps * float(buffer.rewards[at + steps, row])
            steps += 1
            if steps == buffer.n_steps or is_last(at + steps - 1):
                break
        final = at + steps - 1
        if not (buffer.dones[final, row] and not buffer.timeouts[final, row]):
            best = values["q_net" if double_dqn else "q_net_target"][final + 1].argmax()
            returned += policy.gamma**steps * values["q_net_target"][final + 1][best].item()
        taken = values["q_net"][at][int(buffer.actions[at, row, 0])]
        errors.append(float(th.nn.functional.smooth_l1_loss(taken, th.tensor(returned, dtype=th.float32))))
        if is_last(at):
            break
        at += 1
    return errors


@pytest.mark.parametrize(("double_dqn", "n_steps"), [(True, 1), (False, 1), (True, 3)])
@pytest.mark.parametrize("cell", CELLS)
def test_the_loss_is_that_of_single_steps_by_hand(cell: str, double_dqn: bool, n_steps: int) -> None:
    _, policy = played(cell, steps=18, double_dqn=double_dqn, n_steps=n_steps)
    with th.no_grad():  # another target network
        for parameter in policy.q_net_target.parameters():
            parameter.mul_(1.7)
        for name in ("q_net", "q_net_target"):
            getattr(policy, name).q_net[-1].weight.mul_(5)
    buffer, expected = policy.replay_buffer, []
    lines, rows, places = (np.array(each) for each in zip(*places_of(buffer), strict=True))
    for line, row, place in zip(lines, rows, places, strict=True):
        expected.append(np.mean(by_hand(policy, line, row, place, double_dqn=double_dqn)))
    loss = policy.loss(buffer.sequences_at(lines, rows, places, None))
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-5)
    assert len({round(each, 5) for each in expected}) > 20


def test_no_gradient_reaches_the_burn_in() -> None:
    _, policy = played(steps=18)
    lines, rows, places = np.array([4]), np.array([0]), np.array([0])
    batch: SequenceBatch = policy.replay_buffer.sequences_at(lines, rows, places, None)
    assert batch.burn_in_lengths.tolist() == [2]
    before, within = batch.burn_in.requires_grad_(), batch.observations.requires_grad_()
    policy.loss(batch._replace(burn_in=before, observations=within)).backward()
    assert before.grad is None
    assert within.grad is not None
    assert (within.grad[:3] != 0).any()


@pytest.mark.parametrize("learns", [True, False])
def test_a_burn_in_brings_the_stored_state_up_to_date(learns: bool) -> None:
    """After the weights have changed, values from the start of an episode and values after a burn-in are the same."""
    _, policy = played(steps=18, burn_in=4 if learns else 0)
    with th.no_grad():
        for parameter in policy.q_net.memory.parameters():
            parameter.mul_(2.0)
    buffer = policy.replay_buffer
    from_start = buffer.sequences_at(np.array([2]), np.zeros(1, int), np.array([2]), None)
    later = buffer.sequences_at(np.array([2]), np.zeros(1, int), np.array([0]), None)
    expected, found = (policy.q_net.values(batch) for batch in (from_start, later))
    assert th.allclose(expected[2], found[0], atol=1e-6) == learns


# --- Predicting ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", CELLS)
def test_it_predicts_with_its_state_from_its_file_too(cell: str, tmp_path: Path) -> None:
    _, policy = played(cell)
    with th.no_grad():
        policy.q_net.q_net[-1].weight.mul_(50)
    seen = np.random.default_rng(0).normal(size=(6, 5, 3)).astype(np.float32)
    policy.save(tmp_path / "file")
    loaded = RecurrentDQN.load(tmp_path / "file.zip", device="cpu")
    starts = np.array([False, True, False, False, False])
    answers = []
    for each in (policy, loaded):
        state, taken = None, []
        for number, of_step in enumerate(seen):
            actions, state = each.predict(of_step, state, starts if number == 3 else None, deterministic=True)
            taken.append(actions)
        answers.append(np.stack(taken))
        first = [each.predict(of_step[1], None, deterministic=True)[0] for of_step in seen]
    np.testing.assert_array_equal(*answers)
    assert answers[0][3, 1] == first[3]  # an episode began there
    assert (answers[0] != [[each.predict(one, deterministic=True)[0] for one in of_step] for of_step in seen]).any()
    one, state = loaded.predict(seen[0, 0], deterministic=True)
    assert one.shape == ()
    assert [part.shape for part in state] == [(2, 1, 3)] * 2


def test_random_actions_leave_the_state_as_that_of_the_best_ones() -> None:
    _, policy = played()
    seen = np.zeros((300, 3), dtype=np.float32)
    policy.exploration_rate = 1.0
    actions, state = policy.predict(seen)
    assert min(np.bincount(actions, minlength=3)) > 70
    _, expected = policy.predict(seen, deterministic=True)
    for own, other in zip(state, expected, strict=True):
        np.testing.assert_array_equal(own, other)


# --- In SB3's own loop -----------------------------------------------------------------------------------------------


def random_env() -> RandomEnv:
    return RandomEnv(spaces.Box(-1, 1, (3,)), spaces.Discrete(3))


def in_sb3(env: Any, **settings: Any) -> RecurrentDQN:
    given = {**SMALL, "policy_kwargs": MEMORY, **settings}
    return RecurrentDQN("MlpPolicy", env, seed=3, device="cpu", **given)


def test_sb3s_own_loop_stores_the_states_of_its_envs_also_when_it_goes_on() -> None:
    policy: Any = in_sb3(random_env(), train_freq=1)
    policy.learn(25)
    policy.learn(9, reset_num_timesteps=False)
    buffer, states = policy.replay_buffer, tensors(np.zeros((2, 2, 3), np.float32))
    assert buffer.counts.tolist() == [34]
    assert 0 < buffer.dones.sum() < 34
    for line in range(34):
        for own, expected in zip(tensors(buffer.states[line, 0]), states, strict=True):
            np.testing.assert_allclose(own, expected, atol=1e-6)
        states = stepped(policy, buffer.observations[line, 0], states)
        if buffer.dones[line, 0]:
            states = tensors(np.zeros((2, 2, 3), np.float32))
    policy.learn(5)  # which resets the env
    assert (buffer.timeouts[33, 0], buffer.dones[33, 0]) == (1, 0)
    assert not buffer.states[34].any()


def test_a_loaded_one_learns_with_other_envs_and_other_buffers_and_lengths_are_refused(tmp_path: Path) -> None:
    in_sb3(random_env(), n_steps=2).learn(12).save(tmp_path / "file")
    loaded = RecurrentDQN.load(tmp_path / "file", DummyVecEnv([random_env] * 2), learning_starts=2)
    before = {name: value.clone() for name, value in loaded.policy.state_dict().items()}
    loaded.learn(10)
    assert any(not th.equal(value, before[name]) for name, value in loaded.policy.state_dict().items())
    with pytest.raises(ConfigError, match="replay_buffer_class is ReplayBuffer, but RecurrentDQN learns from sequence"):
        in_sb3(random_env(), replay_buffer_class=ReplayBuffer)
    for name, length, least in (("burn_in", -1, 0), ("burn_in", 1.5, 0), ("sequence_length", 0, 1), ("n_steps", 0, 1)):
        with pytest.raises(ConfigError, match=f"{name} is {length}; accepted: an integer from {least} on"):
            in_sb3(random_env(), **{name: length})


# --- What it learns --------------------------------------------------------------------------------------------------


QUICK = {
    "learning_rate": 5e-3,
    "learning_starts": 200,
    "target_update_interval": 100,
    "exploration_schedule": [[0, 1.0], [1500, 0.02]],
}
QUICK_SAC = {"learning_rate": 3e-3, "learning_starts": 200}


@pytest.mark.parametrize(
    ("side", "more", "low", "high"),
    [
        ("dqn-lstm", {**QUICK, "burn_in": 2, "sequence_length": 4}, 0.9, 1.0),
        ("dqn-frames", QUICK, 0.3, 0.65),
        pytest.param("sac-gru", {**QUICK_SAC, "burn_in": 2, "sequence_length": 4}, 0.8, 1.0, marks=pytest.mark.proof),
        pytest.param("sac-frames", {**QUICK_SAC, "batch_size": 32}, 0.2, 0.6, marks=pytest.mark.proof),
    ],
)
def test_two_agents_recall_their_cues_and_guess_by_frames(
    side: str, more: dict[str, Any], low: float, high: float, benchmark: Any
) -> None:
    """An episode has 5 steps: most sequences do not contain the cue, which is in their stored states alone."""
    paid, _ = benchmark("recall_task").train(side, delay=4, timesteps=2500, seed=0, **more)
    assert low <= paid <= high


def test_metrics_count_the_transitions_that_were_learned_from() -> None:
    spec = PolicySpec(RecurrentDQN, **{**SMALL, "learning_starts": 8, "policy_kwargs": MEMORY})
    made = MultiAgentAlgorithm(in_turns(), {"p": spec}, n_steps=20, seed=3, device="cpu")
    metrics = made.train_iteration()["learners"]["p"]
    updates = metrics["num_grad_updates_lifetime"]
    assert updates * 8 < metrics["num_module_steps_trained"] < updates * 8 * 3


# --- What is refused -------------------------------------------------------------------------------------------------


class Goals(ScriptedEnv):
    def observation_space(self, agent: str) -> spaces.Dict:
        return spaces.Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), spaces.Box(0, 1, (1,))))

    def compute_reward(self, agent: str, achieved: Any, desired: Any, infos: Any) -> Any:
        return np.zeros(len(achieved))


@pytest.mark.parametrize(
    ("given", "env", "words"),
    [
        ({"optimize_memory_usage": True, "replay_buffer_kwargs": {"handle_timeout_termination": False}}, ScriptedEnv,
         "optimize_memory_usage is true, which RecurrentDQN does not have; accepted: false"),
        ({"replay_buffer_class": "HerReplayBuffer", "policy": "MultiInputPolicy"}, Goals,
         "replay_buffer_class is HerReplayBuffer, but RecurrentDQN learns from sequences"),
        ({"policy_kwargs": {"cell": "rnn"}}, ScriptedEnv, "cell"),
        ({"replay_data": "somewhere"}, ScriptedEnv, "replay_data is set, and RecurrentDQN does not learn with it"),
        ({"exploration": marl_sb3.SoftQ()}, ScriptedEnv, "exploration is SoftQ with RecurrentDQN"),
        ({"burn_in": -1}, ScriptedEnv, "burn_in"),
    ],
    ids=["less memory", "goals", "cell", "recorded data", "exploration", "range"],
)  # fmt: skip
def test_what_needs_single_transitions_is_refused(given: dict[str, Any], env: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MultiAgentAlgorithm(make_vec_env(env), {"p": PolicySpec(RecurrentDQN, **{**SMALL, **given})}, device="cpu")

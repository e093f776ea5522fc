"""What reaches a replay buffer: transitions that run to the agent's next turn or its end, worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sb3_contrib
import stable_baselines3
from gymnasium import spaces
from stock_training import counts_of
from toy_envs import SampledEnv, ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.core.off_policy.replay import TransitionReplayBuffer, Transitions, read_resized
from marl_sb3.core.state.state import StateReader, TensorFile
from marl_sb3.errors import ConfigError, NumericError

SMALL = {"buffer_size": 100, "learning_starts": 100, "policy_kwargs": {"net_arch": [4]}}


def trained(env: Any, n_steps: int, **hyperparameters: Any) -> MultiAgentAlgorithm:
    specs = {agent: PolicySpec(stable_baselines3.DQN, **{**SMALL, **hyperparameters}) for agent in "ab"}
    algorithm = MultiAgentAlgorithm(env, specs, n_steps=n_steps, seed=0, device="cpu")
    algorithm.train_iteration()
    return algorithm


def stored(algorithm: MultiAgentAlgorithm, policy_id: str) -> list[tuple[Any, ...]]:
    """(step seen, reward, step seen next, done, timeout) of each transition, in the order in which they ended."""
    buffer: Any = algorithm.policies[policy_id].replay_buffer
    number = buffer.num_transitions
    columns = (
        buffer.observations[..., 2],
        buffer.rewards,
        buffer.next_observations[..., 2],
        buffer.dones,
        buffer.timeouts,
    )
    return list(zip(*(column.reshape(-1)[:number].tolist() for column in columns), strict=True))


def test_a_transition_spans_the_steps_in_which_its_agent_waits() -> None:
    script = {"a": (6, "truncated"), "b": (6, "terminated")}
    rewards = {"a": [1.0] * 6, "b": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]}
    env = make_vec_env(ScriptedEnv, script=script, rewards=rewards, skips={"b": [1, 2, 5]})
    algorithm = trained(env, 6)
    assert stored(algorithm, "b") == [(0, 7, 3, 0, 0), (3, 8, 4, 0, 0), (4, 48, 6, 1, 0)]
    assert stored(algorithm, "a") == [(i, 1, i + 1, i == 5, i == 5) for i in range(6)]
    assert [algorithm.policies[name].num_timesteps for name in "ab"] == [6, 3]
    numbers = {name: algorithm.policies[name].replay_buffer.observations[:3, 0, 0].tolist() for name in "ab"}
    assert numbers == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_an_open_transition_goes_on_after_an_update_and_into_the_next_iteration() -> None:
    env = make_vec_env(ScriptedEnv, script={"a": (9, "truncated"), "b": (9, "truncated")}, skips={"b": [2, 3, 4, 5, 6]})
    algorithm = trained(env, 4, train_freq=2)
    assert stored(algorithm, "b") == [(0, 2, 1, 0, 0)]
    algorithm.train_iteration()
    assert stored(algorithm, "b") == [(0, 2, 1, 0, 0), (1, 12, 7, 0, 0), (7, 2, 8, 0, 0)]


def test_the_step_in_which_a_callback_stopped_the_training_leaves_no_transition() -> None:
    class Stop(MultiAgentCallback):
        def _on_step(self) -> bool:
            return self.num_timesteps != 3

    env = make_vec_env(ScriptedEnv, script={"a": (9, "truncated"), "b": (9, "truncated")})
    algorithm = trained(env, 2)
    algorithm.learn(4, callback=Stop(), reset_num_timesteps=False)
    algorithm.train_iteration()
    assert [seen for seen, *_ in stored(algorithm, "a")] == [0, 1, 3, 4]


def test_transitions_fill_lines_in_the_order_in_which_they_ended() -> None:
    buffer = TransitionReplayBuffer(6, spaces.Box(0, 99, (1,)), spaces.Discrete(2), n_envs=2)

    def add(*numbers: float) -> None:
        values = np.array(numbers)
        zeros = np.zeros(len(numbers))
        rows = np.arange(len(numbers))
        buffer.add_transitions(Transitions(values, values + 0.5, zeros, values, zeros, zeros, rows))

    add(1)
    assert (buffer.num_transitions, buffer.can_sample) == (1, False)
    add(2, 3)
    assert (buffer.num_transitions, buffer.can_sample, buffer.pos, buffer.full) == (3, True, 1, False)
    assert {float(reward) for reward in buffer.sample(50).rewards} == {1, 2}  # the line of 3 is being filled
    add(4)
    add(5)
    add(6, 7)
    assert buffer.rewards.tolist() == [[7, 2], [3, 4], [5, 6]]
    assert buffer.next_observations[..., 0].tolist() == [[7.5, 2.5], [3.5, 4.5], [5.5, 6.5]]
    assert (buffer.num_transitions, buffer.full, buffer.pos) == (6, True, 0)
    assert {float(reward) for reward in buffer.sample(200).rewards} == {2, 3, 4, 5, 6, 7}


@pytest.mark.parametrize(("held", "lines", "rows", "expected"), [
    (4, 6, 2, [1, 2, 3, 4]), (7, 3, 2, [2, 3, 4, 5, 6, 7]), (3, 2, 4, [1, 2, 3]), (14, 3, 3, [*range(6, 15)]),
    (14, 9, 2, [*range(3, 15)]),
])  # fmt: skip
def test_transitions_of_another_number_of_envs_are_kept_from_the_oldest_to_the_newest(
    held: int, lines: int, rows: int, expected: list[float]
) -> None:
    """The other buffer has 3 rows and 4 lines, of which the oldest transitions are overwritten."""
    old, new = (TransitionReplayBuffer(n * r, spaces.Box(0, 99, (1,)), spaces.Discrete(2), n_envs=r)
                for n, r in ((4, 3), (lines, rows)))  # fmt: skip
    for number in range(1, held + 1):
        value, zero = np.array([number], np.float32), np.zeros(1)
        old.add_transitions(Transitions(value, value + 0.5, zero, value, zero, zero, np.array([0])))
    state = StateReader(old.get_state(), "here")
    read_resized(new, state, TensorFile("replay-000", old.tensors()), 3)()
    assert new.num_transitions == len(expected)
    assert new.rewards.reshape(-1)[: len(expected)].tolist() == expected
    assert new.next_observations.reshape(-1)[: len(expected)].tolist() == [number + 0.5 for number in expected]
    assert (new.full, new.pos * rows + new._filled) == (len(expected) == lines * rows, len(expected) % (lines * rows))


def test_a_training_with_another_number_of_envs_keeps_its_replay_buffer(tmp_path: Path) -> None:
    script = {"a": (9, "truncated"), "b": (9, "truncated")}
    algorithm = trained(make_vec_env(ScriptedEnv, n_envs=2, script=script), 4)
    before = stored(algorithm, "a")
    env = make_vec_env(ScriptedEnv, n_envs=3, script=script)
    again = MultiAgentAlgorithm.load(algorithm.save(tmp_path / "saved"), env, device="cpu")
    assert stored(again, "a") == before
    again.train_iteration()
    assert stored(again, "a")[: len(before)] == before
    assert len(stored(again, "a")) == len(before) + 12


def test_an_update_waits_for_a_line_of_transitions() -> None:
    env = make_vec_env(
        ScriptedEnv, n_envs=3, script={"a": (9, "truncated"), "b": (9, "truncated")}, skips={"b": [1, 2]}
    )
    algorithm = trained(env, 2, learning_starts=0, train_freq=1, batch_size=2)
    counts = {name: counts_of(algorithm.policies[name])[1] for name in "ab"}
    assert counts == {"a": 2, "b": 0}


def test_a_loss_that_is_not_finite_names_the_policy_and_its_origin() -> None:
    env = make_vec_env(ScriptedEnv)
    algorithm = trained(env, 4, learning_starts=1, train_freq=1, batch_size=2)
    algorithm.policies["b"].replay_buffer.rewards[0] = np.inf
    with pytest.raises(
        NumericError, match=r"policy 'b': the loss is not finite; it began in the rewards of the replay"
    ):
        algorithm.learn(100, reset_num_timesteps=False)


def test_a_network_that_gives_nan_in_an_update_is_named() -> None:
    """The first of two gradient steps makes the weights NaN, and PyTorch refuses the distribution in the second one."""
    spec = PolicySpec(sb3_contrib.CrossQ, **{**SMALL, "learning_starts": 1}, batch_size=4, gradient_steps=2)
    algorithm = MultiAgentAlgorithm(of_agents(spaces.Box(-1, 1, (2,))), {"p": spec}, n_steps=4, seed=0, device="cpu")
    algorithm.train_iteration()
    algorithm.policies["p"].replay_buffer.rewards[:] = np.inf  # type: ignore[attr-defined]
    with pytest.raises(NumericError, match="policy 'p': its network gives NaN or infinity in the update: Expected"):
        algorithm.train_iteration()


def of_agents(action_space: Any) -> Any:
    return make_vec_env(SampledEnv, observation_space=spaces.Box(-1, 1, (3,)), action_space=action_space)


@pytest.mark.parametrize(
    ("hyperparameters", "words"),
    [
        ({"optimize_memory_usage": True}, "optimize_memory_usage is true.*ends by a time limit.*accepted: false"),
        ({"optimize_memory_usage": True, "n_steps": 3}, "optimize_memory_usage is true, but n_steps is 3"),
        ({"n_steps": 0}, "n_steps is 0; accepted: an integer from 1"),
        ({"train_freq": [1, "episode"]}, "train_freq is in episodes.*1 env x 2 agents.*accepted: steps"),
        ({"train_freq": [1, "hour"]}, r"train_freq is .*accepted: an integer of at least 1, or \[N, step\]"),
        ({"train_freq": ["step", 1]}, "DQN raised: The unit of the `train_freq` must be"),
        ({"buffer_size": 10**15}, "replay buffers need more memory than is available .*a smaller buffer_size"),
        ({"buffer_size": 0}, "buffer_size is 0; accepted: an integer of at least 1"),
        (
            {"replay_buffer_class": "HerReplayBuffer"},
            "observe Box.*accepted: a Dict of observation, achieved",
        ),
        (
            {"replay_buffer_class": "MyBuffer"},
            "is 'MyBuffer'; accepted: HerReplayBuffer, ReplayBuffer or DictReplayBuffer, or null",
        ),
        ({"replay_buffer_kwargs": {"n_sampled_goal": 4}}, "has 'n_sampled_goal'; accepted: handle_timeout_termination"),
        ({"normalize_observations": True, "frame_stack": 2}, "normalize_observations and frame_stack are on.*one of"),
    ],
)
def test_settings_that_do_not_fit_are_refused(hyperparameters: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MultiAgentAlgorithm(
            of_agents(spaces.Discrete(2)), {"p": PolicySpec(stable_baselines3.DQN, **{**SMALL, **hyperparameters})}
        )


def test_an_algorithm_that_does_not_choose_such_actions_is_refused() -> None:
    env = of_agents(spaces.MultiDiscrete([2, 2]))
    with pytest.raises(ConfigError, match=r"agents a, b: the action space is MultiDiscrete.*accepted by DQN: Discrete"):
        MultiAgentAlgorithm(env, {"p": PolicySpec(stable_baselines3.DQN, **SMALL)})

"""Replay buffers that hold each frame once, against those that hold it in each stack."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_envs import SampledEnv

from marl_sb3 import DQN, SAC, MultiAgentAlgorithm, PolicySpec, make_vec_env
from marl_sb3.core.off_policy.per_row_replay import NStepBuffer
from marl_sb3.core.off_policy.replay import TransitionReplayBuffer, Transitions, read_resized
from marl_sb3.core.state.state import StateReader, TensorFile
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.fast.frames import FrameReplayBuffer, HoldsFramesOnce, NStepFrameBuffer
from marl_sb3.extensions.fast.replay import FusedOffPolicy

STACK, FRAMES = spaces.Box(0, 255, (6, 2, 2), np.uint8), 3  # of frames with 2 channels
N_STEP = {"n_steps": 2, "gamma": 0.5}
KINDS: Any = [(TransitionReplayBuffer, FrameReplayBuffer, {}), (NStepBuffer, NStepFrameBuffer, N_STEP)]


def both(kinds: Any, size: int, rows: int) -> tuple[Any, Any]:
    stacked, once, more = kinds
    settings = {"n_envs": rows, "device": "cpu", **more}
    spaces_ = STACK, spaces.Discrete(2)
    return stacked(size, *spaces_, **settings), once(size, *spaces_, frames=FRAMES, **settings)


def require_same(stacked: Any, once: Any) -> None:
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(once, name)[:], getattr(stacked, name)[:], err_msg=name)
    if stacked.can_sample:
        drawn = []
        for buffer in (stacked, once):
            np.random.seed(0)  # noqa: NPY002 - SB3's generator
            drawn.append([part for part in buffer.sample(7) if part is not None])
        assert all(a.dtype == b.dtype and a.equal(b) for a, b in zip(*drawn, strict=True))


def read(buffer: Any, other: Any, **changed: Any) -> None:
    file = TensorFile("replay-000", {**other.tensors(), **changed})
    buffer.read_state(StateReader(other.get_state(), "here"), file)()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 3), st.integers(3, 30))
def test_minibatches_are_those_of_stacks(seed: int, kinds: Any, rows: int, size: int) -> None:
    """Frames are often equal, or of zeros; agents wait, miss frames, and end in any way; buffers are read back."""
    rng = np.random.default_rng(seed)
    stacked, once = both(kinds, size, rows)
    start = np.zeros((FRAMES, 2, 2, 2), np.uint8)
    seen = [start] * rows

    def after(stack: Any) -> Any:
        return np.concatenate([stack[1:], rng.integers(0, 3, (1, 2, 2, 2), np.uint8) * rng.integers(0, 2)])

    for step in range(70):
        acting = np.flatnonzero(rng.random(rows) < 0.8)
        if not len(acting):
            continue
        following = [after(seen[row]) if rng.random() < 0.95 else rng.integers(0, 2, start.shape) for row in acting]
        done, odd = rng.random((2, len(acting))) < [[0.2], [0.1]]
        pair = (np.stack(stacks).astype(np.uint8).reshape(-1, *STACK.shape)
                for stacks in ([seen[row] for row in acting], following))  # fmt: skip
        timeouts = done & (rng.random(len(acting)) < 0.5)
        added = Transitions(*pair, rng.integers(0, 2, len(acting)), rng.random(len(acting)), done, timeouts, acting)
        for buffer in (stacked, once):
            buffer.add_transitions(added)
            if step == 30:
                buffer.break_off(np.ones(rows, dtype=np.bool_))
        for row, stack, ended, missed in zip(acting.tolist(), following, done, odd, strict=True):
            seen[row] = after(start) if ended else after(stack) if missed else stack
        require_same(stacked, once)
        if step % 20 == 10:
            replaced = both(kinds, size, rows)[1]
            read(replaced, once)
            once = copy.deepcopy(replaced)  # as SB3's pickled buffers are
    if kinds is KINDS[0]:
        others = both(kinds, size, 2)
        for other, own in zip(others, (stacked, once), strict=True):
            file = TensorFile("replay-000", own.tensors())
            read_resized(other, StateReader(own.get_state(), "here"), file, rows)()
            require_same(others[0], other)


def test_a_frame_takes_its_place_once_and_slots_that_there_are_not_are_refused() -> None:
    once = both(KINDS[0], 1000, 1)[1]
    frames = np.random.default_rng(0).integers(1, 255, (3000, 2, 2, 2), np.uint8)
    one = np.ones(1)
    for number in range(2900):
        pair = (frames[None, n : n + FRAMES].reshape(1, *STACK.shape) for n in (number, number + 1))
        once.add_transitions(Transitions(*pair, one, one, number % 200 == 0, one, np.array([0])))
    assert once.frames.nbytes / 1000 < 8 * 1.02
    for number, words in ((900, "stacks are not of the 900 frames that are there"), (0, "accepted: uint8 .1, 2, 2, 2")):
        with pytest.raises(CheckpointError, match=words):
            read(once, once, frames=once.frames[:number])


SMALL = {"policy": "CnnPolicy", "frame_stack": 3, "buffer_size": 40, "learning_starts": 6, "batch_size": 4,
         "policy_kwargs": {"net_arch": [4], "features_extractor_kwargs": {"features_dim": 4}}}  # fmt: skip


class Waiting(SampledEnv):
    def __init__(self, **settings: Any) -> None:
        super().__init__(script={"a": (5, "truncated"), "b": (7, "terminated")}, **settings)
        self.skips = {"b": [1, 2]}


def trained(algorithm: Any, n_envs: int, tmp_path: Path, actions: Any, **more: Any) -> list[Any]:
    image = spaces.Box(0, 255, (36, 36, 1), np.uint8)

    def env() -> Any:
        return make_vec_env(Waiting, n_envs, observation_space=image, action_space=actions)

    spec = PolicySpec(algorithm, **{**SMALL, **more})
    whole = MultiAgentAlgorithm(env(), {"p": spec}, n_steps=12, seed=0, device="cpu")
    whole.learn(60)
    saved = whole.save(tmp_path / "saved")
    whole.learn(60, reset_num_timesteps=False)
    loaded = MultiAgentAlgorithm.load(saved, env(), device="cpu")
    loaded.learn(60, reset_num_timesteps=False)
    return [whole, loaded]


@pytest.mark.parametrize(("algorithm", "actions", "more"), [
    (DQN, spaces.Discrete(2), {}), (DQN, spaces.Discrete(2), {"n_steps": 2, "replay": "prioritized"}),
    (SAC, spaces.Box(-1, 1, (1,)), {}),
])  # fmt: skip
def test_a_training_and_its_resume_have_the_weights_of_one_with_stacks(
    algorithm: Any, actions: Any, more: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = trained(algorithm, 2, tmp_path, actions, **more)
    assert all(isinstance(each.policies["p"].replay_buffer, HoldsFramesOnce) for each in found)
    monkeypatch.setattr(FusedOffPolicy, "stacked_frames", staticmethod(lambda spec, stored: 0))
    found += trained(algorithm, 2, tmp_path, actions, **more)
    assert not isinstance(found[-1].policies["p"].replay_buffer, HoldsFramesOnce)
    for each in found[:3]:
        require_same(found[3].policies["p"].replay_buffer, each.policies["p"].replay_buffer)
    weights = [each.policies["p"].policy.state_dict() for each in found]
    assert all(own.equal(weights[-1][name]) for each in weights for name, own in each.items())


@pytest.mark.parametrize(("more", "size"), [({}, "6,714"), ({"agent_indicator": True}, "65,732")])
def test_the_memory_that_is_asked_for_is_that_of_frames(more: Any, size: str) -> None:
    env = make_vec_env(SampledEnv, observation_space=spaces.Box(0, 255, (84, 84, 1), np.uint8),
                       action_space=spaces.Discrete(2))  # fmt: skip
    with pytest.raises(ConfigError, match=rf"policy 'p' {size},"):
        MultiAgentAlgorithm(env, {"p": PolicySpec(DQN, **{**SMALL, **more, "buffer_size": 10**12})})

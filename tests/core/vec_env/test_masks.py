"""Action masks: where they come from, how they are laid out, what is refused, and that they survive a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from toy_envs import ScriptedEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.seeding import episode_seed
from marl_sb3.doors import STEPPED_ELSEWHERE, VECTORIZERS
from marl_sb3.errors import CheckpointError, EnvError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint, write_checkpoint

ALL = [name for name in VECTORIZERS.names() if name not in ("auto", *STEPPED_ELSEWHERE)]
ACTIONS = 3
AGENTS = ("a", "b")


def mask_of(seed: int, step: int, column: int) -> list[bool]:
    """Which of the actions an agent may take: all but one."""
    return [action != (seed + step + column) % ACTIONS for action in range(ACTIONS)]


class MaskedEnv(ScriptedEnv):
    """Episodes of 2 steps (a) and 4 steps (b); which action is forbidden depends on seed, step and agent."""

    SCRIPT: Mapping[str, tuple[int, str]] = {"a": (2, "terminated"), "b": (4, "truncated")}

    def __init__(self, script: Any = None, **arguments: Any) -> None:
        super().__init__(script or self.SCRIPT, **arguments)

    @classmethod
    def make_batched(cls, num_envs: int) -> BatchedEnv:
        return MaskedBatch(num_envs)

    def mask(self, agent: str) -> Any:
        return np.array(mask_of(self.seed, self.step_count, AGENTS.index(agent)))

    def observation(self, agent: str) -> np.ndarray:
        return np.array([AGENTS.index(agent), self.seed % 1000, self.step_count], dtype=np.float32)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.seed = seed or 0
        observations, _ = super().reset(seed, options)
        return observations, self._masks()

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        return (*super().step(actions)[:4], self._masks())

    def _masks(self) -> dict[str, Any]:
        return {agent: {"action_mask": self.mask(agent)} for agent in self.agents}


class MaskedBatch(BatchedEnv):
    """The same as arrays."""

    possible_agents = AGENTS
    metadata: Mapping[str, Any] = {}
    render_mode = None

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.observation_space = spaces.Box(-1000, 1000, (3,), np.float32)
        self.action_space = spaces.Discrete(ACTIONS)
        self.seeds = np.zeros(num_envs, dtype=np.int64)
        self.steps = np.zeros(num_envs, dtype=np.int64)

    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        self.seeds[env_indices], self.steps[env_indices] = seeds, 0

    def step(self, actions: np.ndarray) -> BatchedStep:
        self.steps += 1
        ends = self.steps[:, None] == [2, 4]
        rewards = np.broadcast_to([1.0, 2.0], ends.shape)
        return BatchedStep(rewards, ends & [True, False], ends & [False, True], {agent: {} for agent in AGENTS})

    def observations(self) -> np.ndarray:
        columns = np.broadcast_to(np.arange(2), (self.num_envs, 2))
        seeds, steps = (np.repeat(values[:, None], 2, axis=1) for values in (self.seeds % 1000, self.steps))
        return np.stack([columns, seeds, steps], axis=2).astype(np.float32)

    def action_masks(self) -> np.ndarray:
        of_envs = zip(self.seeds.tolist(), self.steps.tolist(), strict=True)
        return np.array([[mask_of(seed, step, column) for column in (0, 1)] for seed, step in of_envs])

    def get_state(self) -> State:
        return {"seeds": self.seeds, "steps": self.steps}

    def set_state(self, state: StateReader) -> None:
        self.seeds, self.steps = (state.counts(name, (self.num_envs,)) for name in ("seeds", "steps"))


def expected_masks(vec: MultiAgentVecEnv, seeds: Sequence[Sequence[int]]) -> list[Any]:
    """What the masks of the latest step have to be, from the seeds of the running episodes and the observations."""
    step = vec.latest
    masks = []
    for index, (first, second) in enumerate(step.to_act.tolist()):
        column = 0 if first else 1
        number = int(step.observations[0][index, column, 2])
        seed = next(seed for seed in seeds[index] if seed % 1000 == int(step.observations[0][index, column, 1]))
        there = [
            mask_of(seed, number, column) if acts else [True] * ACTIONS for column, acts in enumerate((first, second))
        ]
        masks.append(there)
    return masks


@pytest.mark.parametrize("vectorizer", ALL)
def test_the_infos_of_a_truncated_agent_have_the_mask_of_its_final_observation(vectorizer: str) -> None:
    vec = make_vec_env(MaskedEnv, n_envs=2, seed=5, vectorizer=vectorizer)
    vec.limit_episodes(3)
    vec.reset()
    for _ in range(3):
        (masks,) = vec.latest.action_masks
        assert masks is not None
        step = vec.step([masks.argmax(axis=2)])
    assert step.truncated.tolist() == [[False, True]] * 2
    for index in range(2):
        found = np.asarray(step.infos[index]["b"]["action_mask"])
        assert found.tolist() == mask_of(episode_seed(5, index, 0), 3, 1)


@pytest.mark.parametrize("vectorizer", ALL)
def test_masks_are_those_of_the_present_observations(vectorizer: str) -> None:
    seeds = [[episode_seed(5, env, episode) for episode in range(4)] for env in range(3)]
    vec = make_vec_env(MaskedEnv, n_envs=3, seed=5, vectorizer=vectorizer)
    steps = [vec.reset()]
    for number in range(11):
        (masks,) = vec.latest.action_masks
        assert masks is not None
        assert masks.dtype == np.bool_
        assert masks.tolist() == expected_masks(vec, seeds), number
        steps.append(vec.step([masks.argmax(axis=2)]))
    assert sum(int(step.episode_done.sum()) for step in steps) == 6
    assert steps[-1].copy().action_masks[0] is not steps[-1].action_masks[0]


@pytest.mark.parametrize("vectorizer", ALL)
@pytest.mark.parametrize("before", [0, 3])
def test_masks_are_brought_back(vectorizer: str, before: int, tmp_path: Path) -> None:
    vec, again = (make_vec_env(MaskedEnv, n_envs=2, seed=seed, vectorizer=vectorizer) for seed in (1, 2))
    vec.reset()
    for _ in range(before):
        vec.step([np.zeros((2, 2), dtype=np.int64)])
    write_checkpoint(tmp_path / "c", vec.get_state(), {}, {})
    assert again.set_state(StateReader(read_checkpoint(tmp_path / "c").state)) == {}
    for _ in range(6):
        ours, theirs = vec.latest.action_masks[0], again.latest.action_masks[0]
        assert ours is not None
        assert theirs is not None
        assert ours.tolist() == theirs.tolist()
        for env in (vec, again):
            env.step([np.zeros((2, 2), dtype=np.int64)])


def test_an_env_that_begins_anew_brings_its_new_masks(tmp_path: Path) -> None:
    vec, again = (make_vec_env(MaskedEnv, n_envs=2, seed=1, vectorizer="sync") for _ in range(2))
    vec.reset()
    vec.step([np.zeros((2, 2), dtype=np.int64)])
    state = vec.get_state()
    again.envs[1].unwrapped.observation = lambda agent: np.random.default_rng().random(3).astype(np.float32)
    assert list(again.set_state(StateReader(state))) == [1]
    (masks,) = again.latest.action_masks
    assert masks is not None
    assert masks[0].tolist() == vec.latest.action_masks[0][0].tolist()
    seed = again.envs[1].unwrapped.seed
    assert masks[1].tolist() == [mask_of(seed, 0, 0), mask_of(seed, 0, 1)]


@pytest.mark.parametrize(
    ("space", "mask"),
    [
        (spaces.Discrete(3, start=2), [1, 0, 1]),
        (spaces.MultiDiscrete([2, 3]), [1, 0, 0, 1, 1]),
        (spaces.MultiBinary(2), [1, 1, 0, 1]),
        (spaces.Box(-1, 1, (2,)), None),
    ],
)
@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
def test_masks_have_sb3_contribs_layout(space: Any, mask: list[int] | None, vectorizer: str) -> None:
    class Spaced(MaskedEnv):
        def action_space(self, agent: str) -> Any:
            return space

        def mask(self, agent: str) -> Any:
            return "not read" if mask is None else np.array(mask, dtype=np.int8)

    vec = make_vec_env(Spaced, n_envs=2, seed=0, vectorizer=vectorizer)
    (masks,) = vec.reset().action_masks
    assert (None if masks is None else masks.tolist()) == (None if mask is None else [[list(map(bool, mask))] * 2] * 2)


@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
def test_agents_that_wait_may_do_anything_and_a_group_is_known_when_it_first_acts(vectorizer: str) -> None:
    vec = make_vec_env(
        lambda: MaskedEnv({"a": (4, "truncated"), "b": (4, "truncated")}, skips={"a": [1, 3], "b": [0, 2]}),
        seed=0, vectorizer=vectorizer,
    )  # fmt: skip
    vec.reset()
    for _ in range(4):
        (masks,) = vec.latest.action_masks
        assert masks is not None
        assert masks.all(axis=2).tolist() == (~vec.latest.to_act).tolist()
        vec.step([np.zeros((1, 2), dtype=np.int64)])


def test_only_the_groups_that_have_masks_have_them() -> None:
    class TwoKinds(MaskedEnv):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(ACTIONS + AGENTS.index(agent))

        def _masks(self) -> dict[str, Any]:
            return {agent: info for agent, info in super()._masks().items() if agent == "a"}

    vec = make_vec_env(lambda: TwoKinds(skips={"a": [0]}), seed=0, vectorizer="sync")
    assert vec.reset().action_masks == (None, None)  # a is not seen yet
    masks, none = vec.step([np.zeros((1, 1), dtype=np.int64)] * 2).action_masks
    assert (none, masks is None) == (None, False)


WRONG = {
    "missing": (
        None,
        "its infos have no action_mask, but agents with the same spaces had one when they first acted",
    ),
    "short": ([True, False], r"action_mask has shape \(2,\); accepted: \(3,\), for Discrete\(3\)"),
    "numbers": ([1, 2, 0], r"action_mask is \[1, 2, 0\]; accepted: booleans, or 0 and 1"),
    "nothing": ([0, 0, 0], "action_mask forbids every action; an agent that acts needs one"),
}


@pytest.mark.parametrize("vectorizer", ["sync", "supersuit"])
@pytest.mark.parametrize("kind", list(WRONG))
def test_a_wrong_mask_is_refused_with_its_place(kind: str, vectorizer: str) -> None:
    wrong, words = WRONG[kind]

    class Wrong(MaskedEnv):
        def _masks(self) -> dict[str, Any]:
            masks = super()._masks()
            if self.step_count == 1 and self.env_index == 1:
                masks["b"] = {} if wrong is None else {"action_mask": np.array(wrong)}
            return masks

    vec = make_vec_env(lambda env_index: Wrong(env_index=env_index), n_envs=2, seed=0, vectorizer=vectorizer)
    vec.reset()
    with pytest.raises(EnvError, match=f"^env 1, episode 0, step 1, agent 'b': {words}"):
        vec.step([np.zeros((2, 2), dtype=np.int64)])


def test_a_choice_without_an_action_is_named() -> None:
    class Wrong(MaskedEnv):
        def action_space(self, agent: str) -> Any:
            return spaces.MultiDiscrete([2, 2])

        def mask(self, agent: str) -> Any:
            return np.array([1, 1, 0, 0])

    with pytest.raises(EnvError, match=r"agent 'a': action_mask forbids every action of choice 1 \(counted from 0\)"):
        make_vec_env(Wrong, seed=0, vectorizer="sync").reset()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (np.zeros((2, 2, 3), dtype=bool), "^env 0, episode 0, step 1, agent 'a': action_mask forbids every action"),
        (np.ones((2, 2, 4), dtype=bool), r"action_masks\(\) is an array of bool \(2, 2, 4\); accepted: .* \(2, 2, 3\)"),
        (None, r"action_masks\(\) is None; accepted: an array of bool \(2, 2, 3\)"),
    ],
)
def test_wrong_masks_of_a_batched_env_are_refused(wrong: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vec = make_vec_env(MaskedEnv, n_envs=2, seed=0, vectorizer="batched")
    vec.reset()
    monkeypatch.setattr(MaskedBatch, "action_masks", lambda self: wrong)
    with pytest.raises(EnvError, match=words):
        vec.step([np.zeros((2, 2), dtype=np.int64)])


@pytest.mark.parametrize("vectorizer", ALL)
def test_masks_of_a_stranger_are_checked(vectorizer: str) -> None:
    vec = make_vec_env(MaskedEnv, seed=0, vectorizer=vectorizer)
    vec.reset()
    for wrong in (np.zeros((1, 2, 3), dtype=bool), np.ones((1, 2, 2), dtype=bool), np.ones((1, 2, 3))):
        with pytest.raises(CheckpointError, match="action_masks/0 is an array of"):
            vec.set_state(StateReader({**vec.get_state(), "action_masks": [wrong]}))

"""What every part of a checkpoint promises; a new part joins by a line in `PARTS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from toy_envs import NoisyEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, PolicySpec, make_vec_env
from marl_sb3.core.state import randomness
from marl_sb3.core.state.checkpoint import Checkpoint, find_files
from marl_sb3.core.state.fields import Part
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint

E = 2
Keys = tuple[Any, ...]


class Remembers(MultiAgentCallback):
    def get_state(self) -> dict[str, Any]:
        return {"calls": self.n_calls, "values": np.arange(3)}

    def set_state(self, state: StateReader) -> None:
        state.integer("calls")


def build() -> MultiAgentAlgorithm:
    """Iterations of 4 steps end within rollouts of 6, in the middle of episodes; agent b waits meanwhile."""
    script = {"a": (7, "truncated"), "b": (7, "terminated")}
    env = make_vec_env(NoisyEnv, n_envs=E, seed=1, plans=[[(script, {}, {"b": [1, 3, 4, 6]})]] * E)
    small = {"batch_size": 4, "n_epochs": 2, "policy_kwargs": {"net_arch": [4]}, "device": "cpu"}
    specs = {"a": PolicySpec(n_steps=6, central_critic=True, central_critic_net=[4]), "b": PolicySpec(n_steps=6)}
    return MultiAgentAlgorithm(env, specs, n_steps=4, seed=3, **small)


# By its path in the state, how to find the part in an algorithm.
PARTS: Mapping[str, Callable[[MultiAgentAlgorithm], Part]] = {
    "policies/a": lambda algorithm: algorithm.parts.learners["a"],
    "policies/b": lambda algorithm: algorithm.parts.learners["b"],
    "env": lambda algorithm: algorithm.parts.runner,
    "tracker": lambda algorithm: algorithm.parts.tracker,
    "counters": lambda algorithm: algorithm.parts.counters,
    "callbacks": lambda algorithm: algorithm.parts.callbacks,
    "random": lambda algorithm: algorithm.parts.randomness,
}
each_part = pytest.mark.parametrize("path", PARTS)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("parts") / "saved"
    algorithm = build()
    algorithm.learn(2 * 4 * E, callback=Remembers())
    algorithm.save(folder)
    return read_checkpoint(folder)


@pytest.fixture
def fresh() -> Iterator[MultiAgentAlgorithm]:
    with randomness.preserve_rng():
        yield build()


def reader(checkpoint: Checkpoint, path: str, state: Any = None) -> StateReader:
    """What the checkpoint holds of a part, or `state` in its place."""
    *outer, name = path.split("/")
    node: Any = checkpoint.state
    for key in (*outer, name):
        node = node[key]
    kinds = find_files(checkpoint.tensors, checkpoint.name, 2)[name == "b"] if outer else {}
    return StateReader(node if state is None else state, f"state/{path}", E, kinds)


def plain(tree: Any) -> Any:
    """Comparable, and without clocks, which go on."""
    if isinstance(tree, Mapping):
        return {key: plain(value) for key, value in tree.items() if key != "running_s"}
    if isinstance(tree, (list, tuple)):
        return [plain(value) for value in tree]
    return tree.tolist() if isinstance(tree, np.ndarray) else tree


def tensors(part: Any) -> Any:
    return plain(part.get_tensors()) if hasattr(part, "get_tensors") else {}


def test_all_parts_are_tested_here() -> None:
    parts = build().parts
    assert set(PARTS) == {*parts.by_name(), *(f"policies/{policy_id}" for policy_id in parts.learners)}


@each_part
def test_a_fresh_part_takes_over_the_state(path: str, saved: Checkpoint, fresh: MultiAgentAlgorithm) -> None:
    part, given = PARTS[path](fresh), reader(saved, path)
    before = plain(part.get_state()), tensors(part)
    put_back = part.read_state(given)
    assert (plain(part.get_state()), tensors(part)) == before, "nothing changes while a state is read"
    expected = plain({name: given.value(name) for name in given})
    assert before[0] != expected, "otherwise this test shows nothing"
    put_back()
    assert plain(part.get_state()) == expected
    assert tensors(part) == {kind: plain(dict(file)) for kind, file in given.files.items()}


def leaves(tree: Any, path: Keys = ()) -> Iterator[Keys]:
    """The paths of all values that are there; states of callbacks are their own business."""
    if isinstance(tree, Mapping) and tree:
        for key, value in tree.items():
            yield from leaves(value, (*path, key)) if key != "own" else ()
    elif isinstance(tree, list) and tree:
        for index, value in enumerate(tree):
            yield from leaves(value, (*path, index))
    elif tree is not None:
        yield path


def damaged(tree: Any, path: Keys) -> Any:
    copy = deepcopy(tree)
    node = copy
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = ["damaged"]
    return copy


def places(given: StateReader, leaf: Keys) -> list[str]:
    """What a message may say of where the damage is: a path as far as the leaf or nearly."""
    return [f"{given.where}/{'/'.join(map(str, leaf[:length]))}" for length in range(len(leaf), 0, -1)]


def read_all(part: Part, path: str, given: StateReader) -> None:
    put_back = part.read_state(given)
    if path == "env":  # envs read their own states when these are set
        put_back()


@each_part
def test_a_damaged_state_is_refused_by_its_path(path: str, saved: Checkpoint, fresh: MultiAgentAlgorithm) -> None:
    part, given = PARTS[path](fresh), reader(saved, path)
    state = {name: given.value(name) for name in given}
    before = plain(part.get_state()), tensors(part)
    for leaf in leaves(state):
        with pytest.raises(CheckpointError) as caught:
            read_all(part, path, reader(saved, path, damaged(state, leaf)))
        assert any(place in str(caught.value) for place in places(given, leaf)), (leaf, caught.value)
    assert (plain(part.get_state()), tensors(part)) == before


@each_part
def test_a_part_that_forgets_is_found_out(
    path: str, saved: Checkpoint, fresh: MultiAgentAlgorithm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the first test."""
    part = PARTS[path](fresh)
    monkeypatch.setattr(type(part), "read_state", lambda *_: lambda: None)
    with pytest.raises(AssertionError):
        test_a_fresh_part_takes_over_the_state(path, saved, fresh)

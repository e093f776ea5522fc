"""What every store of checkpoints keeps; a new one joins by a line in `STORES_TESTED`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marl_sb3
from marl_sb3.core.state.checkpoint import Checkpoint, require_finite, require_storable, store_of
from marl_sb3.core.state.state import StateReader, TensorFile
from marl_sb3.doors import STORES, Store
from marl_sb3.errors import CheckpointError, ConfigError, NumericError
from marl_sb3.extensions.store import checkpoint_format

SMALLEST = np.nextafter(np.float32(0), np.float32(1))
STATE = {
    "numbers": [1, 2**70, 0.1, -0.0, True, None],
    "$array": {"deep": {"": np.array([[0.1, -0.0, 5e-324]])}},
    "ids": np.arange(3, dtype=np.int64),
    "pair": (1, "b"),
    "none": np.ones((2, 0), dtype=np.bool_),
    "policies": {},
}
TENSORS = {
    "policy-000": {"w": np.array([[SMALLEST, -0.0, 1e30]], np.float32), "half": np.ones((), np.float16)},
    "optimizer-000": {"step": np.array(3, np.int64)},
    "replay-000": {"done": np.array([True, False])},
}
ABOUT = {"iteration": 7}


class MemoryStore:
    """Keeps checkpoints in a dictionary, by paths that begin with `memory`."""

    def __init__(self) -> None:
        self.kept: dict[str, Checkpoint] = {}
        self.damaged: set[str] = set()
        self.full = False

    def takes(self, path: str | Path) -> bool:
        return str(path).startswith("memory")

    def place(self, path: str | Path) -> Path:
        if str(path) == "memory":
            raise ConfigError("memory is no name of a checkpoint; accepted: memory:NAME")
        return Path(path)

    def write(self, place: Path, state: Any, tensors: Any, about: Any) -> None:
        held = {name: TensorFile(name, {key: a.copy() for key, a in group.items()}) for name, group in tensors.items()}
        arrays = dict(enumerate(_arrays(state)))
        for name, group in {"arrays": arrays, **held}.items():
            require_storable(name, group)
            require_finite(name, group)
        if self.full:
            raise OSError(28, "no space left")
        self.kept[str(place)] = Checkpoint(place, StateReader(about), _held(state), held)

    def read(self, path: str | Path, which: str | None, use: Callable[[Checkpoint], Any]) -> Any:
        if str(path) not in self.kept:
            raise CheckpointError(f"{path} is not there")
        if str(path) in self.damaged:
            raise CheckpointError(f"{path} is damaged")
        return use(self.kept[str(path)])


def _held(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {name: _held(value) for name, value in node.items()}
    return [_held(value) for value in node] if isinstance(node, (list, tuple)) else copy.deepcopy(node)


def _arrays(tree: Any) -> Iterator[Any]:
    for node in tree.values() if isinstance(tree, Mapping) else tree:
        if isinstance(node, np.ndarray):
            yield node
        elif isinstance(node, (Mapping, list, tuple)):
            yield from _arrays(node)


class Folders:
    """The store of folders in a test: a path of it, how a disk fills up, and how a checkpoint is damaged."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.path, self._monkeypatch = STORES["folder"], str(folder / "saved"), monkeypatch
        (folder / "other").mkdir()
        (folder / "other" / "thesis.txt").touch()
        self.taken = str(folder / "other")

    def fill_up(self) -> None:
        def write(*_: Any) -> int:
            raise OSError(28, "no space left")

        self._monkeypatch.setattr(checkpoint_format, "_write_file", write)

    def damage(self) -> None:
        file = Path(self.path, "policy-000.safetensors")
        file.write_bytes(file.read_bytes()[:-1] + b"!")  # its SHA-256 is not that of the manifest


class Memory:
    """The same of the store in memory."""

    path, taken = "memory:a", "memory"

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = MemoryStore()

    def fill_up(self) -> None:
        self.store.full = True

    def damage(self) -> None:
        self.store.damaged.add(self.path)


STORES_TESTED = {"folder": Folders, "memory": Memory}


@pytest.fixture(params=STORES_TESTED.values(), ids=STORES_TESTED)
def tested(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    found = request.param(tmp_path, monkeypatch)
    STORES.add("tested", found.store)
    yield found
    STORES.remove("tested")


def write(store: Store, path: str, state: Any = STATE, tensors: Any = TENSORS) -> Path:
    store.write(store.place(path), state, tensors, ABOUT)
    return store.place(path)


def bits(tree: Any) -> Any:
    """A tree in which numbers are equal only if their bits and types are."""
    if isinstance(tree, np.ndarray):
        return tree.dtype.str, tree.shape, tree.tobytes()
    if isinstance(tree, Mapping):
        return {name: bits(value) for name, value in tree.items()}
    return [bits(value) for value in tree] if isinstance(tree, (list, tuple)) else (type(tree), repr(tree))


def in_memory(found: Checkpoint) -> Any:
    return bits(found.state), {name: bits(group.load()) for name, group in found.tensors.items()}


def test_what_is_read_equals_what_was_written_to_the_last_bit(tested: Any) -> None:
    write(tested.store, tested.path)
    assert tested.store.read(tested.path, "latest", in_memory) == (bits(STATE), bits(TENSORS))
    assert tested.store.read(tested.path, None, lambda found: found.about.integer("iteration")) == 7


def test_tensors_tell_their_forms_and_come_in_pieces(tested: Any) -> None:
    write(tested.store, tested.path)

    def use(found: Checkpoint) -> None:
        for file, group in TENSORS.items():
            assert list(found.tensors[file].keys() ^ group.keys()) == []
            assert found.tensors[file].forms == TensorFile(file, group).forms
            for name, array in group.items():
                parts = [np.atleast_1d(part) for _, part in found.tensors[file].pieces(name)]
                assert np.concatenate(parts).tobytes() == array.tobytes()

    tested.store.read(tested.path, "latest", use)


def test_arrays_that_change_after_the_writing_are_read_as_they_were(tested: Any) -> None:
    state, tensors = copy.deepcopy((STATE, TENSORS))
    write(tested.store, tested.path, state, tensors)
    state["ids"][:] = 9
    tensors["policy-000"]["w"][:] = 9
    assert tested.store.read(tested.path, "latest", in_memory) == (bits(STATE), bits(TENSORS))


def test_what_is_not_there_is_refused(tested: Any) -> None:
    with pytest.raises(CheckpointError, match="not there"):
        tested.store.read(tested.path, "latest", in_memory)


def test_what_is_damaged_is_refused_before_it_is_used(tested: Any) -> None:
    write(tested.store, tested.path)
    tested.damage()
    with pytest.raises(CheckpointError, match="damaged"):
        tested.store.read(tested.path, "latest", lambda found: pytest.fail("it is used"))


def test_something_else_is_never_replaced(tested: Any) -> None:
    with pytest.raises(ConfigError, match="accepted"):
        tested.store.place(tested.taken)


@pytest.mark.parametrize(
    ("state", "tensors", "error"),
    [
        ({"x": np.array([np.nan])}, TENSORS, NumericError),
        (STATE, {"policy-000": {"w": np.array([np.inf])}}, NumericError),
        (STATE, {"policy-000": {"w": np.ones(1, np.complex128)}}, CheckpointError),
    ],
)
def test_what_no_checkpoint_holds_leaves_the_one_before(tested: Any, state: Any, tensors: Any, error: Any) -> None:
    write(tested.store, tested.path)
    with pytest.raises(error):
        write(tested.store, tested.path, state, tensors)
    assert tested.store.read(tested.path, "latest", in_memory) == (bits(STATE), bits(TENSORS))


def test_a_writing_that_fails_leaves_the_checkpoint_before(tested: Any) -> None:
    write(tested.store, tested.path)
    tested.fill_up()
    with pytest.raises(OSError, match="no space"):
        write(tested.store, tested.path, {"policies": {}}, {})
    assert tested.store.read(tested.path, "latest", in_memory) == (bits(STATE), bits(TENSORS))


def test_a_training_is_saved_and_continued_bit_for_bit(tested: Any) -> None:
    env = marl_sb3.make_vec_env("arena", n_envs=2, seed=1)
    algo = marl_sb3.MultiAgentAlgorithm(env, n_steps=8, batch_size=16, n_epochs=1, seed=1)
    algo.train_iteration()
    assert store_of(tested.path) is tested.store
    assert algo.save(tested.path) == tested.store.place(tested.path)
    algo.train_iteration()
    again = marl_sb3.MultiAgentAlgorithm.load(tested.path, marl_sb3.make_vec_env("arena", n_envs=2, seed=1))
    again.train_iteration()
    (state, tensors), (its_state, its_tensors) = algo.get_state(), again.get_state()
    assert bits(tensors) == bits(its_tensors)
    for name in state.keys() - {"counters", "tracker"}:  # they hold seconds
        assert bits(state[name]) == bits(its_state[name])
    assert marl_sb3.load_policies(tested.path).policies.keys() == algo.policies.keys()

"""What every store of checkpoints keeps; a new one joins by a line in `STORES_TESTED`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_trainings import arena, bits, build

import marl_sb3
from marl_sb3.core.state.checkpoint import Checkpoint, require_finite, require_storable, store_of
from marl_sb3.core.state.state import StateReader, TensorFile
from marl_sb3.doors import STORES, Store
from marl_sb3.errors import CheckpointError, ConfigError, NumericError
from marl_sb3.extensions.store import checkpoint_format
from marl_sb3.extensions.store.checkpoint_format import state_from_json, state_to_json

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
        text, arrays = state_to_json(state)
        held = {
            name: TensorFile(name, {key: array.copy() for key, array in group.items()})
            for name, group in {"arrays": arrays, **tensors}.items()
        }
        for name, group in held.items():
            require_storable(name, group)
            require_finite(name, group)
        if self.full:
            raise OSError(28, "no space left")
        state = state_from_json(text, held.pop("arrays"))
        self.kept[str(place)] = Checkpoint(place, StateReader(about), state, held)

    def read(self, path: str | Path, which: str | None, use: Callable[[Checkpoint], Any]) -> Any:
        if str(path) not in self.kept:
            raise CheckpointError(f"{path} is not there")
        if str(path) in self.damaged:
            raise CheckpointError(f"{path} is damaged")
        return use(self.kept[str(path)])


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


def in_memory(found: Checkpoint) -> Any:
    return bits(found.state), {name: bits(group.load()) for name, group in found.tensors.items()}


def assert_kept(tested: Any) -> None:
    assert tested.store.read(tested.path, "latest", in_memory) == (bits(STATE), bits(TENSORS))


def test_what_is_read_equals_what_was_written_to_the_last_bit(tested: Any) -> None:
    state, tensors = copy.deepcopy((STATE, TENSORS))
    write(tested.store, tested.path, state, tensors)
    state["ids"][:] = 9  # arrays that change after the writing are read as they were
    tensors["policy-000"]["w"][:] = 9
    assert_kept(tested)
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


def test_what_is_not_there_or_damaged_is_refused_before_it_is_used(tested: Any) -> None:
    for words in ("not there", "damaged"):
        with pytest.raises(CheckpointError, match=words):
            tested.store.read(tested.path, "latest", lambda found: pytest.fail("it is used"))
        write(tested.store, tested.path)
        tested.damage()


def test_something_else_is_never_replaced(tested: Any) -> None:
    with pytest.raises(ConfigError, match="accepted"):
        tested.store.place(tested.taken)


@pytest.mark.parametrize(
    ("state", "tensors", "error", "words"),
    [
        ({"x": np.array([1, np.nan])}, TENSORS, NumericError, "arrays: /x is not finite; no checkpoint is written"),
        (
            STATE,
            {"policy-000": {"w": np.array([1, np.inf])}},
            NumericError,
            "policy-000: w is not finite",
        ),
        (STATE, {"policy-000": {"w": np.ones(1, np.complex128)}}, CheckpointError, "w has dtype complex128; accepted"),
        ({"policies": {}}, {}, OSError, "no space"),
    ],
)
def test_what_cannot_be_written_leaves_the_checkpoint_before(
    tested: Any, state: Any, tensors: Any, error: Any, words: str
) -> None:
    write(tested.store, tested.path)
    if error is OSError:
        tested.fill_up()
    with pytest.raises(error, match=words):
        write(tested.store, tested.path, state, tensors)
    assert_kept(tested)


def test_a_training_is_saved_and_continued_bit_for_bit(tested: Any) -> None:
    algorithm = build("shared, batched", seed=1)
    algorithm.train_iteration()
    assert store_of(tested.path) is tested.store
    assert algorithm.save(tested.path) == tested.store.place(tested.path)
    algorithm.train_iteration()
    again = marl_sb3.MultiAgentAlgorithm.load(tested.path, arena(), device="cpu")
    again.train_iteration()
    (state, tensors), (its_state, its_tensors) = algorithm.get_state(), again.get_state()
    assert bits(tensors) == bits(its_tensors)
    for name in state.keys() - {"counters", "tracker"}:  # they hold seconds
        assert bits(state[name]) == bits(its_state[name])
    assert marl_sb3.load_policies(tested.path).policies.keys() == algorithm.policies.keys()

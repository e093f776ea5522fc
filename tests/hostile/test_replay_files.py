"""Files of replay buffers from a stranger: each fault is refused in words, and the training stays as it was."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bases import BASES
from checkpoint_source import Source, pack, read_files, tensors_of, unpack, write_files

from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint

BY_NAME = {base.name: base for base in BASES}
PLAIN, GOALS = "replay buffers", "goals, n-step returns"
FIRST, SECOND = "replay-000.safetensors", "replay-001.safetensors"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Source]:
    folder = tmp_path_factory.mktemp("saved")
    return {
        name: Source(read_files(BY_NAME[name].save(folder / str(number)))) for number, name in enumerate((PLAIN, GOALS))
    }


def numbers(file: str, name: str, change: Callable[[Any], object]) -> Callable[[Source], Any]:
    """Other numbers in a tensor of the same form."""

    def changed(source: Source) -> Any:
        dtype, shape, data = tensors_of(source.data(file))[name]
        kind = {"F32": np.float32, "I64": np.int64, "BOOL": np.bool_}[dtype]
        values = np.frombuffer(data, kind).copy().reshape(shape)
        change(values)
        return source.with_tensor(file, name, (dtype, shape, values.tobytes()))

    return changed


def filled(value: Any) -> Callable[[Any], object]:
    return lambda values: values.fill(value)


def state_of(number: int, change: Callable[[Any], object]) -> Callable[[Source], Any]:
    """Another place of the next transition."""

    def changed(source: Source) -> Any:
        state = source.tree()
        change([*state["policies"].values()][number]["replay"])
        return source.with_tree(state)

    return changed


def header(change: Callable[[Any], object], length: int | None = None) -> Callable[[Source], Any]:
    def changed(source: Source) -> Any:
        described, payload = unpack(source.data(FIRST))
        change(described)
        return source.with_file(FIRST, pack(described, payload, length))

    return changed


def missing(source: Source) -> Any:
    return Source({name: data for name, data in source.files.items() if name != FIRST}).with_tree(source.tree())


FAULTS: Mapping[str, tuple[str, Callable[[Source], Any], str]] = {
    "cut": (PLAIN, lambda source: source.with_file(FIRST, source.data(FIRST)[:-9]), "not a valid safetensors file"),
    "missing": (PLAIN, missing, "the file of the replay buffer is missing"),
    "a huge header": (PLAIN, header(lambda described: None, 2**40), "not a valid safetensors file"),
    "another shape": (PLAIN, header(lambda of: of["rewards"].update(shape=of["rewards"]["shape"][::-1])), "accepted"),
    "another dtype": (PLAIN, header(lambda of: of["rewards"].update(dtype="I32")), "rewards is .*accepted: float32"),
    "NaN": (PLAIN, numbers(FIRST, "rewards", filled(np.nan)), "'rewards' is not finite"),
    "a category outside its space": (
        PLAIN,
        numbers(FIRST, "actions", filled(99)),
        "actions holds numbers that are not",
    ),
    "a place beyond the buffer": (PLAIN, state_of(0, lambda replay: replay.update(pos=10**9)), "pos"),
    "gaps everywhere": (PLAIN, numbers(SECOND, "gaps", filled(True)), "gaps are not between transitions"),
    "episodes of negative length": (GOALS, numbers(FIRST, "ep_length", filled(-1)), "not those of episodes"),
    "episodes that begin nowhere": (GOALS, numbers(FIRST, "ep_start", filled(2**40)), "not those of episodes"),
    "transitions outside their episode": (GOALS, numbers(FIRST, "ep_length", filled(1)), "not those of episodes"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_refused_in_words(fault: str, saved: Mapping[str, Source], tmp_path: Path) -> None:
    name, change, words = FAULTS[fault]
    write_files(change(saved[name]), tmp_path / "mutant")
    algorithm = BY_NAME[name].build()
    with pytest.raises(CheckpointError, match=words):
        algorithm.set_state(read_checkpoint(tmp_path / "mutant"))
    buffers: list[Any] = [policy.replay_buffer for policy in algorithm.policies.values()]  # type: ignore[attr-defined]
    assert [buffer.num_transitions for buffer in buffers] == [0, 0]

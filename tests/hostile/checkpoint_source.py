"""What mutants are made of: a checkpoint, those of other trainings, and dice with a seed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from json_trees import to_json
from mutant_files import MANIFEST, STATE, Files, Mutant, Odd, as_bytes, sealed
from tensor_files import Tensor, tensors_of, to_safetensors


@dataclass
class Source:
    """A valid checkpoint, taken apart.

    Attributes:
        files: its files.
        others: those of checkpoints of something else.
    """

    files: Files
    others: Sequence[Files] = field(default_factory=list)

    @property
    def state(self) -> Any:
        """A new copy of `state.json`."""
        return json.loads(as_bytes(self.files[STATE]))

    @property
    def manifest(self) -> Any:
        """A new copy of `manifest.json`."""
        return json.loads(as_bytes(self.files[MANIFEST]))

    @cached_property
    def tensor_files(self) -> list[str]:
        """The names of the files of tensors."""
        return sorted(name for name in self.files if name.endswith(".safetensors"))

    @cached_property
    def arrays(self) -> list[tuple[str, str]]:
        """(file, name) of every tensor."""
        return [(file, name) for file in self.tensor_files for name in tensors_of(as_bytes(self.files[file]))]

    def with_file(self, name: str, data: bytes | Odd) -> Files:
        """With another file; the manifest agrees."""
        return sealed({**self.files, name: data})

    def with_state(self, state: Any) -> Files:
        """With another `state.json`; the manifest agrees."""
        return self.with_file(STATE, to_json(state))

    def with_tensor(self, file: str, name: str, tensor: Tensor) -> Files:
        """With another tensor; the manifest agrees."""
        return self.with_file(file, to_safetensors({**tensors_of(as_bytes(self.files[file])), name: tensor}))


class Dice:
    """A generator of random numbers, with the questions that mutations ask."""

    def __init__(self, *seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def number(self, below: int) -> int:
        return int(self.rng.integers(below))

    def one_of(self, choices: Sequence[Any]) -> Any:
        return choices[self.number(len(choices))]

    def bytes(self, length: int) -> bytes:
        return self.rng.bytes(length)


Family = Callable[[Source, Dice], Mutant]

"""The tensor files of each policy in a checkpoint; only this module knows their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from marl_sb3.storage.parts import Arrays, TensorFile
from marl_sb3.storage.state import StateReader

# Files are numbered from 0, in the order of the mapping `policies` of the state: `policy-000`.
KINDS = ("policy", "optimizer")  # weights; state of the optimizers
OPTIONAL_KINDS = ("replay",)  # the replay buffer of a policy that has one

PATTERN = rf"(?:{'|'.join((*KINDS, *OPTIONAL_KINDS))})-[0-9]{{3,6}}"  # matches their names without suffix

OfPolicy = Mapping[str, TensorFile]  # the files of a policy by kind


def file_name(kind: str, number: int) -> str:
    """Name of a file of a policy, without suffix."""
    return f"{kind}-{number:03d}"


def has_weights(name: str) -> bool:
    """Whether a file with this name, without suffix, holds the weights of a policy."""
    return name.startswith(f"{KINDS[0]}-")


def by_file(of_policies: Iterable[Mapping[str, Arrays]]) -> dict[str, Arrays]:
    """Return the tensors of all policies by file name.

    Args:
        of_policies: for each policy, in order: its tensors by kind of file.
    """
    return {
        file_name(kind, number): arrays for number, kinds in enumerate(of_policies) for kind, arrays in kinds.items()
    }


def find_file(tensors: Mapping[str, Arrays], where: str, number: int, kind: str) -> TensorFile:
    """Return one file of a policy.

    Raises:
        CheckpointError: it is missing.
    """
    name = file_name(kind, number)
    return TensorFile(name, StateReader(tensors, where).value(name))


def find_files(tensors: Mapping[str, Arrays], where: str, num_policies: int) -> list[OfPolicy]:
    """Return the files of each policy, by kind.

    Raises:
        CheckpointError: a file is missing, or there are files of further policies.
    """
    required = [file_name(kind, number) for kind in KINDS for number in range(num_policies)]
    optional = [file_name(kind, number) for kind in OPTIONAL_KINDS for number in range(num_policies)]
    StateReader(tensors, where).require_names([*required, *(name for name in optional if name in tensors)])
    return [
        {
            kind: find_file(tensors, where, number, kind)
            for kind in (*KINDS, *OPTIONAL_KINDS)
            if kind in KINDS or file_name(kind, number) in tensors
        }
        for number in range(num_policies)
    ]

"""The tensor files of each policy in a checkpoint: no other module knows what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from marl_sb3.storage.parts import Arrays, TensorFile
from marl_sb3.storage.state import StateReader

# A policy is known by its number, from 0, in the order of the mapping `policies` of the state: `policy-000`.
KINDS = ("policy", "optimizer")  # its weights; what its optimizers keep

PATTERN = rf"(?:{'|'.join(KINDS)})-[0-9]{{3,6}}"  # of the names, without their suffix

OfPolicy = Mapping[str, TensorFile]  # the files of a policy by kind


def file_name(kind: str, number: int) -> str:
    """What a file of a policy is called, without its suffix."""
    return f"{kind}-{number:03d}"


def by_file(of_policies: Iterable[Mapping[str, Arrays]]) -> dict[str, Arrays]:
    """The tensors of all policies by file name.

    Args:
        of_policies: of each policy in order, its tensors by kind of file.
    """
    return {
        file_name(kind, number): arrays for number, kinds in enumerate(of_policies) for kind, arrays in kinds.items()
    }


def find_file(tensors: Mapping[str, Arrays], where: str, number: int, kind: str) -> TensorFile:
    """One file of a policy.

    Args:
        tensors: of a checkpoint, by file name.
        where: name of the checkpoint, for messages.
        number: of the policy.
        kind: one of `KINDS`.

    Raises:
        CheckpointError: it is missing.
    """
    name = file_name(kind, number)
    return TensorFile(name, StateReader(tensors, where).value(name))


def find_files(tensors: Mapping[str, Arrays], where: str, num_policies: int) -> list[OfPolicy]:
    """The files of each policy, by kind.

    Raises:
        CheckpointError: a file is missing, or does not belong to any of so many policies.
    """
    expected = sorted(file_name(kind, number) for kind in KINDS for number in range(num_policies))
    StateReader(tensors, where).require_names(expected)
    return [{kind: find_file(tensors, where, number, kind) for kind in KINDS} for number in range(num_policies)]

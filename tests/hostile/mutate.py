"""Mutants of a checkpoint folder: what damage, ignorance or malice may make of it, each from a seed.

Most of them bring a manifest that agrees with what they did, so that they reach what lies behind size and SHA-256.
"""

from __future__ import annotations

from checkpoint_source import Dice, Family, Source
from mutant_files import Mutant
from mutate_files import (
    cut,
    flipped_bytes,
    manifest_leaf,
    manifest_names,
    sealed_flipped_bytes,
    tensor_dtype,
    tensor_file,
    tensor_header,
    tensor_names,
    tensor_shape,
    tensor_values,
)
from mutate_folders import odd_file, odd_folder, of_another_run, payload, swapped_files
from mutate_meaning import action_log, env_arrays, optimizer, optimizer_step, specs, torch_generator, weights
from mutate_state import array_reference, state_fields, state_leaf, state_neighbour, state_node, state_text


def several(source: Source, dice: Dice) -> Mutant:
    """Two of the others, one on top of the other."""
    calm = [family for family in FAMILIES if family not in (several, odd_file, odd_folder, manifest_names)]
    first = dice.one_of(calm)(source, dice)
    try:
        second = dice.one_of(calm)(Source(first.files, source.others), dice)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, UnicodeDecodeError, RecursionError):
        return Mutant("several", first.what, first.files)  # the first has left nothing that the second could read
    return Mutant("several", f"{first.what}; {second.what}", second.files)


FAMILIES: tuple[Family, ...] = (
    flipped_bytes, sealed_flipped_bytes, sealed_flipped_bytes, cut, manifest_leaf, manifest_names, tensor_header,
    tensor_header, tensor_file, tensor_values, tensor_values, tensor_shape, tensor_dtype, tensor_names, state_leaf,
    state_leaf, state_leaf, state_leaf, state_neighbour, state_node, state_fields, state_text, array_reference,
    odd_file, odd_folder, payload, of_another_run, swapped_files, torch_generator, optimizer, optimizer_step, weights,
    specs, specs, action_log, env_arrays, env_arrays, several,
)  # fmt: skip


def make_mutant(source: Source, seed: int, index: int) -> Mutant:
    """The mutant of this number; the families take turns."""
    return FAMILIES[index % len(FAMILIES)](source, Dice(seed, index))

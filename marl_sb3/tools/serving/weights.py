"""The policies of a checkpoint as one safetensors file, with all that is needed to act with them elsewhere.

The tensors are called `policy-000/NAME`, with the names of PyTorch's modules, in the order of the policies; the arrays
of the state are called `arrays/NAME`. The metadata have the name of the checkpoint and its state, without what only a
training needs: agents, spaces, hyperparameters, statistics of normalisations. Reading unpickles and imports nothing.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.state.checkpoint import Checkpoint
from marl_sb3.core.state.state import State, StateReader, TensorFile
from marl_sb3.errors import CheckpointError
from marl_sb3.extensions.store.checkpoint_format import parse_json, state_from_json, state_to_json
from marl_sb3.extensions.store.load import read_bundle
from marl_sb3.types import Array

FORMAT = "marl_sb3 weights 1"

_KEPT = ("evaluation_deterministic", "policy_of", "spaces", "specs", "counters")
_KEPT_OF_POLICY = ("processing", "progress_remaining", "exploration_rate")
_MAX_HEADER_BYTES = 2**26


def pack_weights(checkpoint: Checkpoint) -> bytes:
    """Return the policies of a checkpoint as the content of a safetensors file."""
    state: State = {name: checkpoint.state[name] for name in _KEPT}
    state["policies"] = {
        policy_id: {name: saved[name] for name in _KEPT_OF_POLICY if name in saved}
        for policy_id, saved in checkpoint.state["policies"].items()
    }
    text, arrays = state_to_json(state)
    tensors = {f"arrays/{name}": array for name, array in arrays.items()}
    for file in (name for name in checkpoint.tensors if name.startswith("policy-")):
        tensors |= {f"{file}/{name}": array for name, array in checkpoint.tensors[file].items()}
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    return save(contiguous, {"format": FORMAT, "checkpoint": checkpoint.name, "state": text.decode()})


def unpack_weights(data: bytes, sha256: str) -> PolicyBundle:
    """Make the policies that `pack_weights` has packed; the data are untrusted.

    Args:
        data: the content of the file.
        sha256: its hash, as the server gave it.

    Raises:
        CheckpointError: the data are damaged, or of another version of marl_sb3.
        ConfigError: a policy has classes or functions, which such a file does not hold.
    """
    if hashlib.sha256(data).hexdigest() != sha256:
        raise CheckpointError("the weights are damaged: their SHA-256 is not the one that the server gave")
    length = int.from_bytes(data[:8], "little")  # of the header of a safetensors file, which is JSON
    if len(data) < 8 or length > min(len(data) - 8, _MAX_HEADER_BYTES):
        raise CheckpointError("the weights are no safetensors file: their header is not complete")
    what = "the header of the weights"
    metadata = StateReader(parse_json(what, data[8 : 8 + length]), what).fields("__metadata__")
    if metadata.string("format") != FORMAT:
        raise metadata.error("format", metadata.value("format"), FORMAT)
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"the weights are no safetensors file: {error}") from error
    files: dict[str, dict[str, Array]] = {}
    for name, tensor in tensors.items():
        file, _, inner = name.partition("/")
        files.setdefault(file, {})[inner] = tensor
    # Those of optimizers are empty: acting needs none.
    files |= {name.replace("policy-", "optimizer-"): {} for name in files if name.startswith("policy-")}
    state = state_from_json(str(metadata.value("state")).encode(), files.pop("arrays", {}))
    of_policies = {name: TensorFile(name, arrays) for name, arrays in files.items()}
    found = Checkpoint(Path(metadata.string("checkpoint")), StateReader({}, "about"), state, of_policies)
    return read_bundle(found, device="cpu")

"""Read and write the weights of an SB3 algorithm as NumPy arrays.

They have the names of SB3's `get_parameters`, such as `policy.mlp_extractor.policy_net.0.weight`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.core.sb3.private import torch_members, torch_variables
from marl_sb3.core.state import Form, TensorFile, copies, form_of
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

Arrays = dict[str, Array]


def weights(algorithm: BaseAlgorithm) -> Arrays:
    """Return copies of all parameters and buffers of the algorithm's modules."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in _module_tensors(algorithm).items()}


def read_weights(algorithm: BaseAlgorithm, file: TensorFile) -> Callable[[], None]:
    """Check the form of weights in a file without reading them into memory.

    Returns:
        A function that reads the weights and writes them into the modules, in place. If they do not match the
        checkpoint's manifest, it raises `CheckpointError` and changes nothing.

    Raises:
        CheckpointError: names, dtypes or shapes differ from those of the modules.
    """
    own = weight_forms(algorithm)
    require_same_names(own, file.arrays, file.name)
    for name, form in own.items():
        found = form_of(file.arrays, name)
        if found != form:
            raise CheckpointError(f"{file.name}: {name} is {found}; accepted: {form}, as the policy is built")

    def commit() -> None:
        read = copies(file.arrays)
        with th.no_grad():
            for name, tensor in _module_tensors(algorithm).items():
                tensor.copy_(th.from_numpy(read[name]))

    return commit


def weight_forms(algorithm: BaseAlgorithm) -> dict[str, Form]:
    """Return dtype and shape of all parameters and buffers of the algorithm's modules.

    Raises:
        CheckpointError: a module's state holds something that is no tensor, or a tensor of a dtype that NumPy lacks.
    """
    return {name: form_of_tensor(name, tensor) for name, tensor in _module_tensors(algorithm).items()}


def form_of_tensor(name: str, tensor: Any) -> Form:
    """Return dtype and shape of a tensor.

    Raises:
        CheckpointError: it is no tensor, or has a dtype that NumPy lacks.
    """
    try:
        return Form(th.empty(0, dtype=tensor.dtype).numpy().dtype, tuple(tensor.shape))
    except (TypeError, AttributeError) as error:
        what = f"dtype {tensor.dtype}" if isinstance(tensor, th.Tensor) else type(tensor).__name__
        raise CheckpointError(f"{name} has {what}, which a checkpoint cannot hold") from error


def _module_tensors(algorithm: BaseAlgorithm) -> dict[str, th.Tensor]:
    """Return the module's own tensors, not copies."""
    found: dict[str, th.Tensor] = {}
    for name, owner in torch_members(algorithm).items():
        if isinstance(owner, th.nn.Module):
            found.update({f"{name}.{key}": tensor for key, tensor in owner.state_dict().items()})
    return {**found, **torch_variables(algorithm)}


def require_same_names(own: Mapping[str, Any], arrays: Mapping[str, Any], where: str) -> None:
    """Refuse names from a checkpoint, `arrays`, that are not those of the policy as it is built, `own`."""
    for name in own:
        if name not in arrays:
            raise CheckpointError(f"{where}: {name} is missing")
    for name in arrays:
        if name not in own:
            raise CheckpointError(f"{where}: {name[:80]!r} is not in the policy as it is built")

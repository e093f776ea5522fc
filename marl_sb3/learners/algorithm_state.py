"""The tensors of an SB3 algorithm as NumPy arrays, out and back in: weights, and what its optimizers keep.

Names are those of SB3's `get_parameters`: `policy.mlp_extractor.policy_net.0.weight`; of an optimizer,
`policy.optimizer/<index of the parameter>/<name>`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import CheckpointError
from marl_sb3.state import State
from marl_sb3.types import Array

Arrays = dict[str, Array]


def weights(algorithm: BaseAlgorithm) -> Arrays:
    """Copies of all parameters and buffers of its modules."""
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in _module_tensors(algorithm).items()}


def set_weights(algorithm: BaseAlgorithm, arrays: Mapping[str, Array], where: str) -> None:
    """Write them into the modules, in place; nothing is changed unless all of them fit.

    Raises:
        CheckpointError: a name, dtype or shape differs; `where` is the file they came from.
    """
    own = _module_tensors(algorithm)
    _require_same_names(own, arrays, where)
    for name, tensor in own.items():
        wanted = tensor.detach().cpu().numpy()
        if arrays[name].dtype != wanted.dtype or arrays[name].shape != wanted.shape:
            raise CheckpointError(
                f"{where}: {name} is {arrays[name].dtype} {arrays[name].shape}; "
                f"accepted: {wanted.dtype} {wanted.shape}, as the policy is built"
            )
    with th.no_grad():
        for name, tensor in own.items():
            tensor.copy_(th.from_numpy(arrays[name].copy()))


def _module_tensors(algorithm: BaseAlgorithm) -> dict[str, th.Tensor]:
    """The live tensors, not copies of them."""
    found: dict[str, th.Tensor] = {}
    for name, owner in _torch_objects(algorithm).items():
        if isinstance(owner, th.nn.Module):
            found.update({f"{name}.{key}": tensor for key, tensor in owner.state_dict().items()})
    return found


def _torch_objects(algorithm: BaseAlgorithm) -> dict[str, Any]:
    """Modules and optimizers by the names that SB3 saves them under."""
    names, _ = algorithm._get_torch_save_params()
    found = {}
    for name in names:
        owner: Any = algorithm
        for part in name.split("."):
            owner = getattr(owner, part)
        found[name] = owner
    return found


def _optimizers(algorithm: BaseAlgorithm) -> dict[str, th.optim.Optimizer]:
    return {name: owner for name, owner in _torch_objects(algorithm).items() if isinstance(owner, th.optim.Optimizer)}


def _require_same_names(own: Mapping[str, Any], arrays: Mapping[str, Any], where: str) -> None:
    for name in own:
        if name not in arrays:
            raise CheckpointError(f"{where}: {name} is missing")
    for name in arrays:
        if name not in own:
            raise CheckpointError(f"{where}: {name[:80]!r} is not in the policy as it is built")


# --- Optimizers ------------------------------------------------------------------------------------------------------


def optimizer_arrays(algorithm: BaseAlgorithm) -> Arrays:
    """Copies of what the optimizers keep for each parameter."""
    arrays: Arrays = {}
    for name, optimizer in _optimizers(algorithm).items():
        for index, parameter in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                arrays[f"{name}/{index}/{key}"] = th.as_tensor(value).detach().cpu().numpy().copy()
    return arrays


def optimizer_settings(algorithm: BaseAlgorithm) -> State:
    """Learning rate and the like, of each group of parameters of each optimizer."""
    return {
        name: [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        for name, optimizer in _optimizers(algorithm).items()
    }


def set_optimizers(algorithm: BaseAlgorithm, arrays: Mapping[str, Array], settings: Any, where: str) -> None:
    """Put the optimizers where they stood; nothing is changed unless everything fits.

    Raises:
        CheckpointError: a name, dtype, shape or setting is not that of such an optimizer.
    """
    optimizers = _optimizers(algorithm)
    if not isinstance(settings, Mapping):
        raise CheckpointError(f"the settings of the optimizers of {where} are not a mapping")
    _require_same_names(optimizers, settings, where)
    kept = {name: _read_state(name, optimizer, arrays, where) for name, optimizer in optimizers.items()}
    groups = {name: _read_groups(name, optimizer, settings[name], where) for name, optimizer in optimizers.items()}
    if sum(len(of_parameter) for state in kept.values() for of_parameter in state.values()) != len(arrays):
        raise CheckpointError(f"{where} holds tensors that no optimizer of the policy has")
    for name, optimizer in optimizers.items():
        optimizer.load_state_dict({"state": kept[name], "param_groups": groups[name]})


def _parameters(optimizer: th.optim.Optimizer) -> list[th.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _read_state(
    name: str, optimizer: th.optim.Optimizer, arrays: Mapping[str, Array], where: str
) -> dict[int, dict[str, th.Tensor]]:
    expected = _kept_by(optimizer)
    state: dict[int, dict[str, th.Tensor]] = {}
    for index, parameter in enumerate(_parameters(optimizer)):
        kept = {key: arrays[f"{name}/{index}/{key}"] for key in expected if f"{name}/{index}/{key}" in arrays}
        if not kept:
            continue  # no step has been taken with it
        for key, like in expected.items():
            shape = tuple(parameter.shape) if like.dim() else ()
            if key not in kept or kept[key].shape != shape or kept[key].dtype != like.numpy().dtype:
                raise CheckpointError(f"{where}: {name}/{index}/{key} is not {like.numpy().dtype} of shape {shape}")
            lowest, highest = _LIMITS.get(key, (-np.inf, np.inf))
            if (kept[key] < lowest).any() or (kept[key] > highest).any():
                raise CheckpointError(f"{where}: {name}/{index}/{key} is not within {lowest} and {highest}")
        state[index] = {key: th.from_numpy(array.copy()) for key, array in kept.items()}
    return state


# Counts of steps, and means of squares: below 0 an optimizer would divide by 0, or by the root of a negative number.
_LIMITS = {
    "step": (0.0, 2.0**53),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"), (0.0, np.inf)),
}


def _kept_by(optimizer: th.optim.Optimizer) -> dict[str, th.Tensor]:
    """What such an optimizer keeps for a parameter: seen on one that is stepped once."""
    parameter = th.nn.Parameter(th.zeros(1))
    probe = _made_like(optimizer, parameter, {**optimizer.param_groups[0], "lr": 0.0})
    parameter.grad = th.zeros(1)
    probe.step()
    return {key: th.as_tensor(value) for key, value in probe.state[parameter].items()}


def _made_like(
    optimizer: th.optim.Optimizer, parameter: th.nn.Parameter, settings: Mapping[str, Any]
) -> th.optim.Optimizer:
    arguments = inspect.signature(type(optimizer)).parameters
    given = {key: value for key, value in settings.items() if key in arguments and key != "params"}
    return type(optimizer)([parameter], **given)


def _read_groups(name: str, optimizer: th.optim.Optimizer, saved: Any, where: str) -> list[dict[str, Any]]:
    groups = optimizer.state_dict()["param_groups"]
    if not isinstance(saved, list) or len(saved) != len(groups):
        raise CheckpointError(f"{where}: {name} has {len(groups)} groups of parameters as the policy is built")
    read = [_read_group(name, group, values, where) for group, values in zip(groups, saved, strict=True)]
    for group in read:
        try:
            _made_like(optimizer, th.nn.Parameter(th.zeros(1)), group)  # which knows what it accepts
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: {name} does not accept its settings: {error}") from error
    return read


def _read_group(name: str, group: Mapping[str, Any], saved: Any, where: str) -> dict[str, Any]:
    own = {key: value for key, value in group.items() if key != "params"}
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{where}: a group of {name} is not a mapping")
    _require_same_names(own, saved, f"{where}: {name}")
    read = {key: _read_setting(value, saved[key]) for key, value in own.items()}
    for key, value in read.items():
        if value is _MISFIT:
            raise CheckpointError(f"{where}: {name} has another kind of {key} than {own[key]!r}")
    return {**read, "params": group["params"]}


_MISFIT = object()
_LARGEST = float(np.finfo(np.float32).max)  # PyTorch refuses larger ones in the middle of a step


def _read_setting(own: Any, saved: Any) -> Any:
    """The saved setting if it is of the kind of our own: a number, or a pair of them; all others are our own."""
    if isinstance(own, tuple):
        fits = isinstance(saved, list) and len(saved) == len(own)
        parts = tuple(map(_read_setting, own, saved)) if fits else ()
        return parts if fits and _MISFIT not in parts else _MISFIT
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        is_number = isinstance(saved, (int, float)) and not isinstance(saved, bool)
        return saved if is_number and 0 <= saved <= _LARGEST else _MISFIT
    return saved if type(saved) is type(own) and np.all(saved == own) else _MISFIT

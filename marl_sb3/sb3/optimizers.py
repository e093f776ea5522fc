"""Read and write the state of the optimizers of an SB3 algorithm as NumPy arrays.

The state of an optimizer is `policy.optimizer/<index of the parameter>/<name>`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import CheckpointError
from marl_sb3.sb3.private import torch_members
from marl_sb3.sb3.tensors import Arrays, form_of_tensor, require_same_names
from marl_sb3.storage.parts import TensorFile
from marl_sb3.storage.state import State, is_plain
from marl_sb3.storage.tensor_file import Form, copies, form_of
from marl_sb3.types import Array


def _optimizers(algorithm: BaseAlgorithm) -> dict[str, th.optim.Optimizer]:
    return {name: owner for name, owner in torch_members(algorithm).items() if isinstance(owner, th.optim.Optimizer)}


def num_optimized(algorithm: BaseAlgorithm) -> int:
    """Return how many numbers the optimizers step: target networks do not count."""
    return sum(parameter.numel() for each in _optimizers(algorithm).values() for parameter in _parameters(each))


def parameter_addresses(algorithm: BaseAlgorithm) -> list[int]:
    """Return where the parameters that the optimizers step begin in memory."""
    return [parameter.data_ptr() for each in _optimizers(algorithm).values() for parameter in _parameters(each)]


def optimizer_arrays(algorithm: BaseAlgorithm) -> Arrays:
    """Return copies of the optimizers' state of each parameter."""
    arrays: Arrays = {}
    for name, optimizer in _optimizers(algorithm).items():
        for index, parameter in enumerate(_parameters(optimizer)):
            for key, value in optimizer.state.get(parameter, {}).items():
                arrays[f"{name}/{index}/{key}"] = th.as_tensor(value).detach().cpu().numpy().copy()
    return arrays


def reset_optimizers(algorithm: BaseAlgorithm) -> None:
    """Remove what the optimizers have learned of each parameter, because the weights are replaced by others."""
    for optimizer in _optimizers(algorithm).values():
        optimizer.state.clear()


def optimizer_settings(algorithm: BaseAlgorithm) -> State:
    """Return the settings (learning rate, ...) of each parameter group of each optimizer."""
    return {
        name: [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        for name, optimizer in _optimizers(algorithm).items()
    }


def read_optimizers(algorithm: BaseAlgorithm, file: TensorFile, settings: Any) -> Callable[[], None]:
    """Check the saved state of the optimizers.

    Returns:
        A function that puts the state into the optimizers.

    Raises:
        CheckpointError: a name, dtype, shape or setting does not fit the optimizers.
    """
    optimizers, where = _optimizers(algorithm), file.name
    if not isinstance(settings, Mapping):
        raise CheckpointError(f"the settings of the optimizers of {where} are not a mapping")
    require_same_names(optimizers, settings, where)
    groups = {name: _read_groups(name, optimizer, settings[name], where) for name, optimizer in optimizers.items()}
    present = _present(optimizer_forms(algorithm), file.arrays, where)
    read = copies(file.arrays)
    _require_limits(read, where)
    states = {
        name: {
            index: {key: th.from_numpy(read[f"{name}/{index}/{key}"]) for key in forms}
            for index, forms in present[name].items()
        }
        for name in optimizers
    }

    def commit() -> None:
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict({"state": states[name], "param_groups": groups[name]})

    return commit


def _require_limits(read: Mapping[str, Array], where: str) -> None:
    for path, array in read.items():
        lowest, highest = _LIMITS.get(path.rpartition("/")[2], (-np.inf, np.inf))
        if (array < lowest).any() or (array > highest).any():
            raise CheckpointError(f"{where}: {path} is not within {lowest} and {highest}")


def _parameters(optimizer: th.optim.Optimizer) -> list[th.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


Kept = dict[str, dict[int, dict[str, Form]]]  # optimizer -> index of a parameter -> name -> form of the state


def optimizer_forms(algorithm: BaseAlgorithm) -> Kept:
    """Return the form of the optimizers' state of each parameter, as it is after a first step."""
    kept: Kept = {}
    for name, optimizer in _optimizers(algorithm).items():
        if not is_plain(optimizer_settings(algorithm)[name]):
            raise CheckpointError(f"{name} ({type(optimizer).__name__}) has settings that are not plain data")
        by_dimensions: dict[int, dict[str, Form]] = {}
        for parameter in _parameters(optimizer):
            if parameter.dim() not in by_dimensions:
                by_dimensions[parameter.dim()] = _kept_by(name, optimizer, parameter.dim())
        kept[name] = {
            index: {key: _scaled(form, parameter.shape) for key, form in by_dimensions[parameter.dim()].items()}
            for index, parameter in enumerate(_parameters(optimizer))
        }
    return kept


def by_path(kept: Kept) -> dict[str, Form]:
    """Return the forms by their names in a checkpoint."""
    return {
        f"{name}/{index}/{key}": form
        for name, of_parameters in kept.items()
        for index, forms in of_parameters.items()
        for key, form in forms.items()
    }


def _present(expected: Kept, arrays: Mapping[str, Array], where: str) -> Kept:
    """Return the forms for the parameters that have state in `arrays`; refuse state of another form."""
    present = {
        name: {
            index: forms
            for index, forms in of_parameters.items()
            if any(f"{name}/{index}/{key}" in arrays for key in forms)
        }
        for name, of_parameters in expected.items()
    }
    flat = by_path(present)
    for path, form in flat.items():
        if path not in arrays or form_of(arrays, path) != form:
            raise CheckpointError(f"{where}: {path} is not {form.dtype} of shape {form.shape}")
    if len(flat) != len(arrays):
        raise CheckpointError(f"{where} holds tensors that no optimizer of the policy has")
    return present


# Step counts and means of squares: with negative values an optimizer would divide by 0 or by a NaN.
_LIMITS = {
    "step": (0.0, 2.0**53),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"), (0.0, np.inf)),
}


_SIZES = (2, 3, 5, 7, 11, 13)  # sizes of a probe parameter's axes: all differ, so that a size tells the axis


def _kept_by(name: str, optimizer: th.optim.Optimizer, dimensions: int) -> dict[str, Form]:
    """Return the form of the optimizer's state of a probe parameter of sizes `_SIZES`, found by taking one step."""
    parameter = th.nn.Parameter(th.zeros(_SIZES[:dimensions]))
    try:
        probe = _made_like(optimizer, parameter, {**optimizer.param_groups[0], "lr": 0.0})
        parameter.grad = th.zeros_like(parameter)
        _step_once(probe)
        tensors = {key: th.as_tensor(value) for key, value in probe.state[parameter].items()}
    except Exception as error:  # a user's own optimizer may raise anything
        kind = type(optimizer).__name__
        raise CheckpointError(f"{name} ({kind}) has state that a checkpoint cannot hold: {error}") from error
    return {key: form_of_tensor(f"{name}: {key}", tensor) for key, tensor in tensors.items()}


def _step_once(optimizer: th.optim.Optimizer) -> None:
    """Call `optimizer.step()` without PyTorch's wrappers, which import its compiler and take over a second."""
    with th.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def _scaled(form: Form, shape: Sequence[int]) -> Form:
    """Return the form of the state of a parameter of this shape, from that of a probe of sizes `_SIZES`."""
    sizes = dict(zip(_SIZES, shape, strict=False))
    return Form(form.dtype, tuple(sizes.get(size, size) for size in form.shape))


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
            _made_like(optimizer, th.nn.Parameter(th.zeros(1)), group)  # the optimizer checks them
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{where}: {name} does not accept its settings: {error}") from error
    return read


def _read_group(name: str, group: Mapping[str, Any], saved: Any, where: str) -> dict[str, Any]:
    own = {key: value for key, value in group.items() if key != "params"}
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{where}: a group of {name} is not a mapping")
    require_same_names(own, saved, f"{where}: {name}")
    read = {key: _read_setting(value, saved[key]) for key, value in own.items()}
    for key, value in read.items():
        if value is _MISFIT:
            raise CheckpointError(f"{where}: {name} has a {key} of another type than {own[key]!r}")
    return {**read, "params": group["params"]}


_MISFIT = object()
_LARGEST = float(np.finfo(np.float32).max)  # PyTorch raises in the middle of a step for larger numbers


def _read_setting(own: Any, saved: Any) -> Any:
    """Return the saved setting: a number or a pair of numbers; anything else has to equal the optimizer's own."""
    if isinstance(own, tuple):
        fits = isinstance(saved, list) and len(saved) == len(own)
        parts = tuple(map(_read_setting, own, saved)) if fits else ()
        return parts if fits and _MISFIT not in parts else _MISFIT
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        is_number = isinstance(saved, (int, float)) and not isinstance(saved, bool)
        return saved if is_number and (saved == own or 0 <= saved <= _LARGEST) else _MISFIT
    return saved if type(saved) is type(own) and np.all(saved == own) else _MISFIT

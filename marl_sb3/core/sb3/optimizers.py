"""Read and write the state of the optimizers of an SB3 algorithm as NumPy arrays.

The state of an optimizer is `policy.optimizer/<index of the parameter>/<name>`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from torch.utils.hooks import RemovableHandle

from marl_sb3.core.sb3.private import torch_members
from marl_sb3.core.sb3.tensors import Arrays, form_of_tensor, require_same_names
from marl_sb3.core.state import Form, State, TensorFile, copies, form_of, is_plain
from marl_sb3.errors import CheckpointError


def _optimizers(algorithm: BaseAlgorithm) -> dict[str, th.optim.Optimizer]:
    return {name: owner for name, owner in torch_members(algorithm).items() if isinstance(owner, th.optim.Optimizer)}


def num_optimized(algorithm: BaseAlgorithm) -> int:
    """Return how many numbers the optimizers step: target networks do not count."""
    return sum(parameter.numel() for each in _optimizers(algorithm).values() for parameter in _parameters(each))


def parameter_addresses(algorithm: BaseAlgorithm) -> list[int]:
    """Return where the parameters that the optimizers step begin in memory."""
    return [parameter.data_ptr() for each in _optimizers(algorithm).values() for parameter in _parameters(each)]


def count_steps(algorithm: Any) -> RemovableHandle | None:
    """Count the optimizer's steps in `num_grad_updates` of its algorithm; not those of a wrapper without hooks."""

    def count(*_: Any) -> None:
        algorithm.num_grad_updates += 1

    optimizer = algorithm.policy.optimizer
    return optimizer.register_step_post_hook(count) if isinstance(optimizer, th.optim.Optimizer) else None


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
    _require_forms(optimizer_forms(algorithm), file)
    states: dict[str, dict[int, dict[str, th.Tensor]]] = {name: {} for name in optimizers}
    for path, array in copies(file.arrays).items():
        name, index, key = path.rsplit("/", 2)
        lowest, highest = _LIMITS.get(key, (-np.inf, np.inf))
        if (array < lowest).any() or (array > highest).any():
            raise CheckpointError(f"{where}: {path} is not within {lowest} and {highest}")
        states[name].setdefault(int(index), {})[key] = th.from_numpy(array)

    def commit() -> None:
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict({"state": states[name], "param_groups": groups[name]})

    return commit


def _parameters(optimizer: th.optim.Optimizer) -> list[th.nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


# Step counts and means of squares: with negative values an optimizer would divide by 0 or by a NaN.
_LIMITS = {
    "step": (0.0, 2.0**53),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"), (0.0, np.inf)),
}


def _require_forms(expected: Mapping[str, Form], file: TensorFile) -> None:
    """Refuse state of another form, and of a part of what an optimizer keeps of a parameter."""
    begun = {path.rpartition("/")[0] for path in expected if path in file.arrays}
    present = {path: form for path, form in expected.items() if path.rpartition("/")[0] in begun}
    for path, form in present.items():
        if path not in file.arrays or form_of(file.arrays, path) != form:
            raise CheckpointError(f"{file.name}: {path} is not {form.dtype} of shape {form.shape}")
    if len(present) != len(file.arrays):
        raise CheckpointError(f"{file.name} holds tensors that no optimizer of the policy has")


_SIZES = (2, 3, 5, 7, 11, 13)  # sizes of a probe parameter's axes: all differ, so that a size tells the axis


def optimizer_forms(algorithm: BaseAlgorithm) -> dict[str, Form]:
    """Return the form of the optimizers' state by its names in a checkpoint, as it is after a first step.

    Raises:
        CheckpointError: a checkpoint cannot hold the settings or the state of an optimizer.
    """
    forms: dict[str, Form] = {}
    for name, optimizer in _optimizers(algorithm).items():
        if not is_plain(optimizer_settings(algorithm)[name]):
            raise CheckpointError(f"{name} ({type(optimizer).__name__}) has settings that are not plain data")
        parameters = _parameters(optimizer)
        probes = {each: _probe_forms(name, optimizer, each) for each in {parameter.dim() for parameter in parameters}}
        for index, parameter in enumerate(parameters):
            sizes = dict(zip(_SIZES, parameter.shape, strict=False))
            for key, form in probes[parameter.dim()].items():
                shape = tuple(sizes.get(size, size) for size in form.shape)
                forms[f"{name}/{index}/{key}"] = Form(form.dtype, shape)
    return forms


def _probe_forms(name: str, optimizer: th.optim.Optimizer, dimensions: int) -> dict[str, Form]:
    """Return the form of the optimizer's state of a probe parameter of sizes `_SIZES`, found by taking one step."""
    parameter = th.nn.Parameter(th.zeros(_SIZES[:dimensions]))
    try:
        probe = _made_like(optimizer, parameter, {**optimizer.param_groups[0], "lr": 0.0})
        parameter.grad = th.zeros_like(parameter)
        with th.no_grad():  # without PyTorch's wrappers, which import its compiler and take over a second
            inspect.unwrap(type(probe).step)(probe)
        tensors = {key: th.as_tensor(value) for key, value in probe.state[parameter].items()}
    except Exception as error:  # a user's own optimizer may raise anything
        kind = type(optimizer).__name__
        raise CheckpointError(f"{name} ({kind}) has state that a checkpoint cannot hold: {error}") from error
    return {key: form_of_tensor(f"{name}: {key}", tensor) for key, tensor in tensors.items()}


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
    if not isinstance(saved, Mapping):
        raise CheckpointError(f"{where}: a group of {name} is not a mapping")
    read = {key: value for key, value in group.items() if key != "params"}
    require_same_names(read, saved, f"{where}: {name}")
    for key, own in read.items():
        try:
            read[key] = _read_setting(own, saved[key])
        except ValueError:
            raise CheckpointError(f"{where}: {name} has a {key} of another type than {own!r}") from None
    return {**read, "params": group["params"]}


_LARGEST = float(np.finfo(np.float32).max)  # PyTorch raises in the middle of a step for larger numbers


def _read_setting(own: Any, saved: Any) -> Any:
    """Return the saved setting: a number or a pair of numbers; anything else has to equal the optimizer's own.

    Raises:
        ValueError: it is something else.
    """
    if isinstance(own, tuple):
        if not isinstance(saved, list):
            raise ValueError(saved)
        return tuple(_read_setting(*pair) for pair in zip(own, saved, strict=True))
    if isinstance(own, (int, float)) and not isinstance(own, bool):
        is_number = isinstance(saved, (int, float)) and not isinstance(saved, bool)
        fits = is_number and (saved == own or 0 <= saved <= _LARGEST)
    else:
        fits = type(saved) is type(own) and np.all(saved == own)
    if not fits:
        raise ValueError(saved)
    return saved

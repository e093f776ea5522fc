"""Read and write the weights and the optimizers' state of an SB3 algorithm as NumPy arrays.

Weights have the names of SB3's `get_parameters`, such as `policy.mlp_extractor.policy_net.0.weight`. The state of an
optimizer is `policy.optimizer/<index of the parameter>/<name>`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from torch.utils.hooks import RemovableHandle

from marl_sb3.core.sb3.private import torch_members
from marl_sb3.core.state.state import Form, State, StateReader, TensorFile, is_plain
from marl_sb3.errors import CheckpointError
from marl_sb3.types import Array

Arrays = dict[str, Array]


# --- Weights ---------------------------------------------------------------------------------------------------------


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
    file.require(weight_forms(algorithm))

    def commit() -> None:
        read = file.load()
        with th.no_grad():
            for name, tensor in _module_tensors(algorithm).items():
                tensor.copy_(th.from_numpy(read[name]))

    return commit


def weight_forms(algorithm: BaseAlgorithm) -> dict[str, Form]:
    """Return dtype and shape of all parameters and buffers of the algorithm's modules.

    Raises:
        CheckpointError: a module's state holds something that is no tensor, or a tensor of a dtype that NumPy lacks.
    """
    return {name: _form(name, tensor) for name, tensor in _module_tensors(algorithm).items()}


def _form(name: str, tensor: Any) -> Form:
    try:
        return Form(th.empty(0, dtype=tensor.dtype).numpy().dtype, tuple(tensor.shape))
    except (TypeError, AttributeError) as error:
        what = f"dtype {tensor.dtype}" if isinstance(tensor, th.Tensor) else type(tensor).__name__
        raise CheckpointError(f"{name} has {what}, which a checkpoint cannot hold") from error


def _module_tensors(algorithm: BaseAlgorithm) -> dict[str, th.Tensor]:
    """Return the module's own tensors, not copies."""
    found: dict[str, th.Tensor] = {}
    members, variables = torch_members(algorithm)
    for name, owner in members.items():
        if isinstance(owner, th.nn.Module):
            found.update({f"{name}.{key}": tensor for key, tensor in owner.state_dict().items()})
    return {**found, **variables}


# --- Optimizers ------------------------------------------------------------------------------------------------------


def _optimizers(algorithm: BaseAlgorithm) -> dict[str, th.optim.Optimizer]:
    members, _ = torch_members(algorithm)
    return {name: owner for name, owner in members.items() if isinstance(owner, th.optim.Optimizer)}


def optimized_parameters(algorithm: BaseAlgorithm) -> Iterator[tuple[str, th.optim.Optimizer, th.nn.Parameter]]:
    """Yield each parameter that an optimizer steps, with its path: not those of target networks."""
    for name, optimizer in _optimizers(algorithm).items():
        index = 0
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                yield f"{name}/{index}", optimizer, parameter
                index += 1


def count_steps(algorithm: Any) -> RemovableHandle | None:
    """Count the optimizer's steps in `num_grad_updates` of its algorithm; not those of a wrapper without hooks."""

    def count(*_: Any) -> None:
        algorithm.num_grad_updates += 1

    optimizer = algorithm.policy.optimizer
    return optimizer.register_step_post_hook(count) if isinstance(optimizer, th.optim.Optimizer) else None


def optimizer_arrays(algorithm: BaseAlgorithm) -> Arrays:
    """Return copies of the optimizers' state of each parameter."""
    arrays: Arrays = {}
    for path, optimizer, parameter in optimized_parameters(algorithm):
        for key, value in optimizer.state.get(parameter, {}).items():
            arrays[f"{path}/{key}"] = th.as_tensor(value).detach().cpu().numpy().copy()
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


# Step counts and means of squares: with negative values an optimizer would divide by 0 or by a NaN.
_LIMITS = {
    "step": (0.0, 2.0**53),
    **dict.fromkeys(("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum"), (0.0, np.inf)),
}


def read_optimizers(algorithm: BaseAlgorithm, file: TensorFile, settings: StateReader) -> Callable[[], None]:
    """Check the saved state of the optimizers.

    Returns:
        A function that puts the state into the optimizers.

    Raises:
        CheckpointError: a name, dtype, shape or setting does not fit the optimizers.
    """
    optimizers = _optimizers(algorithm)
    settings.require_names(list(optimizers))
    groups = {name: _read_groups(settings, name, optimizer) for name, optimizer in optimizers.items()}
    states: dict[str, dict[int, dict[str, th.Tensor]]] = {name: {} for name in optimizers}
    forms = optimizer_forms(algorithm)
    begun = {path.rpartition("/")[0] for path in file.forms}  # an optimizer keeps all or nothing of a parameter
    file.require({path: form for path, form in forms.items() if path.rpartition("/")[0] in begun})
    for path, array in file.load().items():
        name, index, key = path.rsplit("/", 2)
        lowest, highest = _LIMITS.get(key, (-np.inf, np.inf))
        if (array < lowest).any() or (array > highest).any():
            raise CheckpointError(f"{file.name}: {path} is not within {lowest} and {highest}")
        states[name].setdefault(int(index), {})[key] = th.from_numpy(array)

    def commit() -> None:
        for name, optimizer in optimizers.items():
            optimizer.load_state_dict({"state": states[name], "param_groups": groups[name]})

    return commit


_signature = cache(inspect.signature)
_SIZES = (2, 3, 5, 7, 11, 13)  # sizes of a probe parameter's axes: all differ, so that a size tells the axis


def optimizer_forms(algorithm: BaseAlgorithm) -> dict[str, Form]:
    """Return the form of the optimizers' state by its names in a checkpoint, as it is after a first step.

    Raises:
        CheckpointError: a checkpoint cannot hold the settings or the state of an optimizer.
    """
    for name, optimizer in _optimizers(algorithm).items():
        if not is_plain(optimizer_settings(algorithm)[name]):
            raise CheckpointError(f"{name} ({type(optimizer).__name__}) has settings that are not plain data")
    forms: dict[str, Form] = {}
    probes: dict[tuple[th.optim.Optimizer, int], dict[str, Form]] = {}
    for path, optimizer, parameter in optimized_parameters(algorithm):
        kind = optimizer, parameter.dim()
        if kind not in probes:
            probes[kind] = _probe_forms(path.rpartition("/")[0], *kind)
        sizes = dict(zip(_SIZES, parameter.shape, strict=False))
        for key, form in probes[kind].items():
            forms[f"{path}/{key}"] = Form(form.dtype, tuple(sizes.get(size, size) for size in form.shape))
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
    return {key: _form(f"{name}: {key}", tensor) for key, tensor in tensors.items()}


def _made_like(
    optimizer: th.optim.Optimizer, parameter: th.nn.Parameter, settings: Mapping[str, Any]
) -> th.optim.Optimizer:
    arguments = _signature(type(optimizer)).parameters  # type: ignore[arg-type]
    given = {key: value for key, value in settings.items() if key in arguments and key != "params"}
    return type(optimizer)([parameter], **given)


def _read_groups(settings: StateReader, name: str, optimizer: th.optim.Optimizer) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = optimizer.state_dict()["param_groups"]
    saved_groups = settings.listed(name, len(groups))
    for number, group in enumerate(groups):
        saved = saved_groups.fields(str(number))
        saved.require_names([key for key in group if key != "params"])
        for key in saved:
            try:
                group[key] = _read_setting(group[key], saved.value(key))
            except ValueError:
                raise saved.error(key, saved.value(key), f"a value like {group[key]!r}") from None
        try:
            _made_like(optimizer, th.nn.Parameter(th.zeros(1)), group)  # the optimizer checks them
        except (TypeError, ValueError) as error:
            raise CheckpointError(f"{saved.where}: the optimizer does not accept its settings: {error}") from error
    return groups


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

"""The classes of networks by name: those of a fixed table, and those that a user has registered."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_flattened_obs_dim
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, create_mlp
from torch import nn, optim

from marl_sb3.core.config.networks import CLASSES, EXTRACTOR_KWARGS, POLICY_KWARGS
from marl_sb3.core.config.values import require
from marl_sb3.errors import ConfigError, refuse, require_known, shown

POLICY = "policy"
OF_THE_USER = "a name given to marl_sb3.register_network (commands: --import MODULE, with the module that calls it)"
# What a class is for -> its base class; the first that fits counts, because policies and extractors are modules too.
_BASES: Mapping[str, type[Any]] = {
    POLICY: BasePolicy,
    "features_extractor_class": BaseFeaturesExtractor,
    "optimizer_class": optim.Optimizer,
    "activation_fn": nn.Module,
}

_registered: dict[str, dict[str, type[Any]]] = {use: {} for use in _BASES}


def register_network(name: str, cls: type[Any]) -> None:
    """Give a class of your own a name, which configurations, `--set`, checkpoints and `PolicySpec` may use.

    The class must be registered in each process that loads a run or a checkpoint with the name: a file only holds the
    name, and nothing is imported by it. A later registration replaces an earlier one.

    Args:
        name: the value of `policy`, or of `policy_kwargs.features_extractor_class`, `.activation_fn` or
            `.optimizer_class`.
        cls: a policy class (a subclass of SB3's `BasePolicy`), a features extractor (`BaseFeaturesExtractor`), an
            optimizer (`torch.optim.Optimizer`), or an activation function (any other `torch.nn.Module`).

    Raises:
        ConfigError: the class is none of these, or the name is not a string or belongs to a class of SB3 or PyTorch.
    """
    if not isinstance(name, str) or not name:
        refuse("the name of a network class", name, "a string", "name")
    use = next((use for use, base in _BASES.items() if isinstance(cls, type) and issubclass(cls, base)), None)
    if use is None:
        refuse(
            f"network class {name!r}",
            cls,
            "a subclass of BasePolicy, BaseFeaturesExtractor, torch.optim.Optimizer or torch.nn.Module",
            "cls",
        )
    if name in CLASSES.get(use, ()) or (use == POLICY and name.endswith("Policy") and name[:3] in _OF_SB3):
        raise ConfigError(f"the name {name!r} is built in for {use}; choose another name", key="name")
    _registered[use][name] = cls


_OF_SB3 = ("Mlp", "Cnn", "Mul")  # MlpPolicy, CnnLstmPolicy, MultiInputPolicy, ...


def registered_class(use: str, name: Any) -> type[Any] | None:
    """Return the class that a user has registered under a name, if there is one.

    Args:
        use: an entry of `policy_kwargs`, or `policy`.
    """
    return _registered[use].get(name) if isinstance(name, str) else None


def activation_name(policy_class: type[Any], policy_kwargs: Mapping[str, Any]) -> str | None:
    """Return the name of the activation function of a policy's layers; None if the class takes no such argument."""
    parameter = inspect.signature(policy_class).parameters.get("activation_fn")
    found = policy_kwargs.get("activation_fn", None if parameter is None else parameter.default)
    return getattr(found, "__name__", None)


def resolve_policy_kwargs(policy_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Check the entries of `policy_kwargs`, and replace names of classes by the classes.

    Entries of other types than those of files, such as classes, stay as they are: a class of the user's may take them.

    Raises:
        ConfigError: an unknown name, or a value out of range.
    """
    resolved = dict(policy_kwargs)
    for name, value in policy_kwargs.items():
        if name in CLASSES and isinstance(value, str):
            resolved[name] = _class(name, value)
        elif name in POLICY_KWARGS and isinstance(value, (str, bool, int, float, list, tuple, Mapping)):
            require(name, value, POLICY_KWARGS[name], f"policy_kwargs.{name}")
    extractor, arguments = (policy_kwargs.get(f"features_extractor_{part}") for part in ("class", "kwargs"))
    if isinstance(extractor, str) and extractor in EXTRACTOR_KWARGS and arguments:
        resolved["features_extractor_kwargs"] = _extractor_kwargs(extractor, arguments)
    return resolved


def _extractor_kwargs(extractor: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Check the arguments of a features extractor of marl_sb3."""
    known, resolved, key = EXTRACTOR_KWARGS[extractor], dict(given), "policy_kwargs.features_extractor_kwargs"
    for name, value in given.items():
        require_known(name, known, f"features_extractor_kwargs of {extractor} has {shown(name)}", key)
        if name in CLASSES and isinstance(value, type):
            continue
        resolved[name] = require(f"features_extractor_kwargs.{name}", value, known[name], key)
        if name in CLASSES:
            resolved[name] = _class(name, value)
    return resolved


def _class(use: str, name: str) -> type[Any]:
    own, known = _registered[use], CLASSES[use]
    if name in own:
        return own[name]
    if name not in known:
        accepted = ", ".join([*known, *own])
        refuse(use, name, f"{accepted}, or {OF_THE_USER}", f"policy_kwargs.{use}")
    module, _, cls = known[name].partition(":")
    found: type[Any] = getattr(importlib.import_module(module), cls)
    return found


# --- Layers that actor and critic share ------------------------------------------------------------------------------


class MlpFeatures(BaseFeaturesExtractor):
    """Layers that actor and critic have in common, where they share the features extractor; `net_arch` follows them.

    Args:
        observation_space: any space that SB3 turns into one vector.
        net_arch: the widths of the layers.
        activation_fn: after each of them.

    Raises:
        ConfigError: the observations are a Dict.
    """

    def __init__(
        self,
        observation_space: spaces.Space[Any],
        net_arch: Sequence[int] = (64, 64),
        activation_fn: type[nn.Module] = nn.Tanh,
    ) -> None:
        refuse_dict("mlp", observation_space)
        super().__init__(observation_space, net_arch[-1])
        self.layers = nn.Sequential(*layers(get_flattened_obs_dim(observation_space), net_arch, activation_fn))

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """(rows, last width) features of (rows, ...) observations."""
        features: th.Tensor = self.layers(observations.flatten(1))
        return features


def layers(inputs: int, net_arch: Sequence[int], activation_fn: type[nn.Module]) -> list[nn.Module]:
    """Make layers of these widths, each with an activation function after it."""
    return create_mlp(int(inputs), -1, list(net_arch), activation_fn)


def refuse_dict(name: str, space: spaces.Space[Any]) -> None:
    """Refuse observations of several parts.

    Raises:
        ConfigError: they are a Dict; `name` is that of the features extractor.
    """
    if isinstance(space, spaces.Dict):
        words = f"the features extractor {name} takes one array, but the observation space is {space}"
        raise ConfigError(f"{words}; accepted: a space that is no Dict", key="policy_kwargs.features_extractor_class")

"""Copy a policy into another one of the same training, as self-play does with earlier versions of a policy."""

from __future__ import annotations

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.learners.sb3.tensors import reset_optimizers
from marl_sb3.storage.state import StateReader
from marl_sb3.types import PolicyID


def copy_policy(bundle: PolicyBundle, source: PolicyID, target: PolicyID) -> None:
    """Give a policy the weights and the running statistics of another one; its optimizers start anew.

    Raises:
        ConfigError: there is no such policy, or the two have other networks or other processing. Nothing is changed.
    """
    for policy_id in (source, target):
        if policy_id not in bundle.policies:
            there = ", ".join(bundle.policies)
            raise ConfigError(f"copy_policy: unknown policy {policy_id!r}; accepted: {there}", key="policies")
    own, others = (_tensors(bundle.policies[policy_id]) for policy_id in (target, source))
    for name in {**own, **others}:
        if _form(own, name) != _form(others, name):
            words = f"{name} is {_form(others, name)} in {source!r} and {_form(own, name)} in {target!r}"
            raise ConfigError(f"copy_policy: {words}; accepted: two policies with the same network", key="policies")
    try:
        statistics = StateReader(bundle.processing[source].get_state(), f"{source!r}")
        put_statistics = bundle.processing[target].read_state(statistics)
    except CheckpointError as error:
        words = f"{source!r} and {target!r} have other normalisation ({error})"
        raise ConfigError(f"copy_policy: {words}; accepted: two policies with the same", key="policies") from error
    put_statistics()
    with th.no_grad():
        for name, tensor in own.items():
            tensor.copy_(others[name])
    reset_optimizers(bundle.policies[target])


def _tensors(algorithm: BaseAlgorithm) -> dict[str, th.Tensor]:
    """Return the policy's own tensors, not copies."""
    return dict(algorithm.policy.state_dict())


def _form(tensors: dict[str, th.Tensor], name: str) -> str:
    return f"of shape {tuple(tensors[name].shape)}" if name in tensors else "missing"

"""Copy a policy into another one of the same training, as self-play does with earlier versions of a policy."""

from __future__ import annotations

import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.bundle import PolicyBundle
from marl_sb3.learners.sb3.optimizers import reset_optimizers
from marl_sb3.policies.networks import activation_name
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
    own, others = (_network(bundle.policies[policy_id]) for policy_id in (target, source))
    for name in {**own, **others}:
        if own.get(name) != others.get(name):
            words = (
                f"{name} is {others.get(name, 'missing')} in {source!r} and {own.get(name, 'missing')} in {target!r}"
            )
            raise ConfigError(f"copy_policy: {words}; accepted: two policies with the same network", key="policies")
    try:
        statistics = StateReader(bundle.processing[source].get_state(), f"{source!r}")
        put_statistics = bundle.processing[target].read_state(statistics)
    except CheckpointError as error:
        words = f"{source!r} and {target!r} have other normalisation ({error})"
        raise ConfigError(f"copy_policy: {words}; accepted: two policies with the same", key="policies") from error
    put_statistics()
    with th.no_grad():
        received = bundle.policies[source].policy.state_dict()
        for name, tensor in bundle.policies[target].policy.state_dict().items():
            tensor.copy_(received[name])
    reset_optimizers(bundle.policies[target])


def _network(algorithm: BaseAlgorithm) -> dict[str, str | None]:
    """Return the shape of each tensor of a policy, and its activation function."""
    shapes = {name: f"of shape {tuple(tensor.shape)}" for name, tensor in algorithm.policy.state_dict().items()}
    return {**shapes, "policy_kwargs.activation_fn": activation_name(algorithm.policy_class, algorithm.policy_kwargs)}

"""What a policy is to be: the algorithm, the network, the hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.hyperparameters import hyperparameter_defaults, resolve_hyperparameters
from marl_sb3.learners.ppo import PPO
from marl_sb3.state import Fields, State, is_plain
from marl_sb3.types import PolicyID

_LARGEST = 2**20  # of the numbers in the description of a policy in a checkpoint

# On the command line and in files; the classes themselves are as good in the library.
ALGORITHMS: Mapping[str, type[BaseAlgorithm]] = {"ppo": PPO}


def algorithm_class(name: str) -> type[BaseAlgorithm]:
    """The class behind an algorithm's name.

    Raises:
        ConfigError: there is none.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}; accepted: {', '.join(ALGORITHMS)}", key="algo")
    return ALGORITHMS[name]


class PolicySpec:
    """An SB3 algorithm to be made for one policy.

    Args:
        algorithm: `marl_sb3.PPO` (default), `stable_baselines3.PPO`, or a subclass.
        policy: SB3's policy name or class, `MlpPolicy` by default.
        hyperparameters: SB3's constructor arguments, by its names. `learning_rate="lin_3e-4"` is a schedule.

    Raises:
        ConfigError: an unknown hyperparameter, or a value out of range.
    """

    def __init__(
        self,
        algorithm: type[BaseAlgorithm] = PPO,
        policy: str | type[Any] = "MlpPolicy",
        **hyperparameters: Any,
    ) -> None:
        if not (isinstance(algorithm, type) and issubclass(algorithm, tuple(_supported()))):
            names = ", ".join(cls.__name__ for cls in _supported())
            raise ConfigError(f"algorithm is {algorithm!r}; accepted: {names} and subclasses", key="algo")
        if isinstance(policy, str) and policy not in algorithm.policy_aliases:
            raise ConfigError(
                f"unknown policy {policy!r} of {algorithm.__name__}; accepted: {', '.join(algorithm.policy_aliases)}",
                key="policy",
            )
        self.algorithm = algorithm
        self.policy = policy
        self.hyperparameters = resolve_hyperparameters(algorithm, hyperparameters)
        self._given = dict(hyperparameters)  # `lin_3e-4` says more than a function

    def with_defaults(self, defaults: Mapping[str, Any]) -> PolicySpec:
        """The same, with these hyperparameters where it has none of its own.

        Raises:
            ConfigError: an unknown hyperparameter, or a value out of range.
        """
        resolve_hyperparameters(self.algorithm, defaults)  # says which name is wrong
        return PolicySpec(self.algorithm, self.policy, **{**defaults, **self._given})

    def to_plain(self) -> State | None:
        """The spec as plain data that `from_plain` takes; None if it holds classes or functions of somebody's own."""
        names = {cls: name for name, cls in ALGORITHMS.items()}
        if self.algorithm not in names or not isinstance(self.policy, str) or not is_plain(self._given):
            return None
        return {"algorithm": names[self.algorithm], "policy": self.policy, "hyperparameters": self._given}

    @classmethod
    def from_plain(cls, plain: Fields, num_weights: int) -> PolicySpec:
        """The spec that `to_plain` described.

        Args:
            plain: the description; it may come from a stranger.
            num_weights: that the policy has; a network that needs more is refused before it fills the memory.

        Raises:
            CheckpointError: it describes none.
            ConfigError: an unknown hyperparameter, or a value out of range.
        """
        given = plain.fields("hyperparameters")
        values = {name: given.value(name) for name in given}
        _require_small(values, _LARGEST, given.where)
        _require_no_more_weights(values.get("policy_kwargs"), num_weights, f"{given.where}/policy_kwargs")
        return cls(algorithm_class(plain.text("algorithm")), plain.text("policy"), **values)

    def __repr__(self) -> str:
        settings = "".join(f", {name}={value!r}" for name, value in self.hyperparameters.items())
        return f"PolicySpec({self.algorithm.__name__}, {self.policy!r}{settings})"


def _require_small(tree: Any, limit: int, where: str) -> None:
    """Refuse what would fill the memory: the description of a policy may come from a stranger."""
    if isinstance(tree, (int, float)) and abs(tree) > limit:
        raise CheckpointError(f"{where} holds a number beyond {limit}")
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        _require_small(child, limit, where)


def _require_no_more_weights(tree: Any, num_weights: int, where: str) -> None:
    """Refuse lists of layers that have more connections than there are weights, and any number beyond those."""
    children = list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    widths = [child for child in children if isinstance(child, int)]
    if sum(one * other for one, other in pairwise([1, *widths])) > num_weights:
        raise CheckpointError(f"{where} describes a network of more than the {num_weights} weights that are there")
    for child in children:
        _require_no_more_weights(child, num_weights, where)


def _supported() -> list[type[BaseAlgorithm]]:
    from stable_baselines3 import PPO as StockPPO  # noqa: N811 - its name next to ours

    return [StockPPO]


def policy_specs(
    policies: str | Mapping[PolicyID, PolicySpec], policy_ids: Sequence[PolicyID], defaults: Mapping[str, Any]
) -> dict[PolicyID, PolicySpec]:
    """The spec of each policy, with the defaults for all of them filled in.

    Raises:
        ConfigError: one of them is not a `PolicySpec`.
    """
    if isinstance(policies, str):
        return {policy_id: PolicySpec(**defaults) for policy_id in policy_ids}
    for policy_id, spec in policies.items():
        if not isinstance(spec, PolicySpec):
            raise ConfigError(f"policy {policy_id!r} is {spec!r}; accepted: a PolicySpec", key="policies")
    return {policy_id: spec.with_defaults(defaults) for policy_id, spec in policies.items()}


def rollout_steps(n_steps: int | None, specs: Mapping[PolicyID, PolicySpec]) -> int:
    """The rollout length of all policies: as given, or as the specs say, or SB3's default.

    Raises:
        ConfigError: it is not a whole number of at least 1.
    """
    if n_steps is None:
        own = [spec.hyperparameters["n_steps"] for spec in specs.values() if "n_steps" in spec.hyperparameters]
        default: int = hyperparameter_defaults(next(iter(specs.values())).algorithm)["n_steps"]
        return int(own[0]) if own else default
    if isinstance(n_steps, bool) or not isinstance(n_steps, int) or n_steps < 1:
        raise ConfigError(f"n_steps is {n_steps!r}; accepted: a whole number of at least 1", key="n_steps")
    return n_steps

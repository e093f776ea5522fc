"""The specification of a policy: its algorithm, network and hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.config.names import canonical_hyperparameters
from marl_sb3.config.processing import PROCESSING, ProcessingSettings, processing_settings, split_processing
from marl_sb3.config.values import Count, FiniteFloat, PositiveInt, accepts
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.algorithms import algorithm_name, is_recurrent, require_algorithm, saved_algorithm_class
from marl_sb3.learners.ppo.ppo import PPO
from marl_sb3.policies.hyperparameters import resolve_hyperparameters
from marl_sb3.storage.state import State, StateReader, is_plain
from marl_sb3.types import PolicyID

# Limits of the numbers and strings in a checkpoint's spec of a policy: the file may come from a stranger.
_LARGEST, _LONGEST = 2**20, 100
_MOST_EPOCHS, _MOST_LAYERS, _MOST_HEADS = 1000, 100, 1000
_LONGEST_ROLLOUT = 2**16  # steps; a buffer takes memory for each of them


class PolicySpec:
    """The SB3 algorithm that trains one policy, with its hyperparameters.

    Args:
        algorithm: `marl_sb3.PPO` (default), another algorithm of SB3 or sb3-contrib in `ALGORITHMS`, or a subclass.
        policy: SB3's policy name or class, `MlpPolicy` by default; with RecurrentPPO, it is its `MlpLstmPolicy`.
        hyperparameters: SB3's constructor arguments, by its names or RLlib's (`lr`, `minibatch_size`, `lambda_`, ...).
            `learning_rate="lin_3e-4"` is a schedule. And the settings of `ProcessingSettings`, such as
            `normalize_observations=True`: by themselves, or in a mapping `processing`.

    Attributes:
        algorithm: as given.
        policy: as given.
        hyperparameters: SB3's constructor arguments.
        processing: what is done to its observations, rewards and actions.

    Raises:
        ConfigError: an unknown setting, or a value out of range.
    """

    def __init__(
        self,
        algorithm: type[BaseAlgorithm] = PPO,
        policy: str | type[Any] = "MlpPolicy",
        **hyperparameters: Any,
    ) -> None:
        require_algorithm(algorithm)
        if isinstance(policy, str) and is_recurrent(algorithm) and not policy.endswith("LstmPolicy"):
            policy = f"{policy.removesuffix('Policy')}LstmPolicy"
        if isinstance(policy, str) and policy not in algorithm.policy_aliases:
            raise ConfigError(
                f"unknown policy {policy!r} of {algorithm.__name__}; accepted: {', '.join(algorithm.policy_aliases)}",
                key="policy",
            )
        self.algorithm = algorithm
        self.policy = policy
        self._processing, self._given = split_processing(canonical_hyperparameters(hyperparameters))
        self.processing: ProcessingSettings = processing_settings(self._processing)
        self.hyperparameters = resolve_hyperparameters(algorithm, self._given)  # `_given` still has `lin_3e-4`

    def with_defaults(self, defaults: Mapping[str, Any]) -> PolicySpec:
        """Return this spec with `defaults` for the settings that it does not have.

        Raises:
            ConfigError: an unknown setting, or a value out of range.
        """
        own = {**self._given, **self._processing}
        defaults = canonical_hyperparameters(defaults)
        # The error names the wrong hyperparameter.
        resolve_hyperparameters(self.algorithm, split_processing(defaults)[1])
        return self if defaults.keys() <= own.keys() else PolicySpec(self.algorithm, self.policy, **{**defaults, **own})

    def to_plain(self) -> State | None:
        """Return the spec as plain data for `from_plain`; None if it holds the user's own classes or functions."""
        name = algorithm_name(self.algorithm)
        if name is None or not isinstance(self.policy, str) or not is_plain([self._given, self._processing]):
            return None
        return {
            "algorithm": name,
            "policy": self.policy,
            "hyperparameters": self._given,
            "processing": self._processing,
        }

    @classmethod
    def from_plain(cls, plain: StateReader, num_weights: int) -> PolicySpec:
        """Make a spec from what `to_plain` returned.

        Args:
            plain: the description; it may come from a stranger.
            num_weights: the number of weights that the policy has. A network that needs more is refused before it fills
                the memory.

        Raises:
            CheckpointError: the data is not a valid spec.
            ConfigError: an unknown hyperparameter, or a value out of range.
        """
        given, algorithm = plain.fields("hyperparameters"), saved_algorithm_class(plain.string("algorithm"))
        values = {name: given.value(name) for name in given.names()}
        _require_small(values, _LARGEST, given.where)
        if values.get("policy_kwargs") is not None:
            network = given.fields("policy_kwargs")
            _require_plain(network)
            _require_no_more_weights(values["policy_kwargs"], num_weights, network.where)
        if "n_steps" in values:
            given.integer("n_steps", 1, _LONGEST_ROLLOUT)
        if "n_epochs" in values:
            given.integer("n_epochs", 1, _MOST_EPOCHS)
        resolve_hyperparameters(algorithm, values)  # checked before `cls` is called: a name could be `algorithm`
        return cls(algorithm, plain.string("policy"), **values, **_read_processing(plain))

    def __repr__(self) -> str:
        given = {**self.hyperparameters, **self._processing}
        settings = "".join(f", {name}={value!r}" for name, value in given.items())
        return f"PolicySpec({self.algorithm.__name__}, {self.policy!r}{settings})"


def _read_processing(plain: StateReader) -> dict[str, Any]:
    """The settings of processing; none in checkpoints of versions that had none."""
    if "processing" not in plain:
        return {}
    given = plain.fields("processing")
    values = {name: given.value(name) for name in given.names()}
    for name, value in values.items():
        if name not in PROCESSING:
            raise given.error(name, value, f"settings of {', '.join(PROCESSING)}")
    processing_settings(values)
    return values


def _require_small(tree: Any, limit: int, where: str) -> None:
    """Refuse numbers and strings that could fill the memory: a checkpoint may come from a stranger."""
    if isinstance(tree, (int, float)) and abs(tree) > limit:
        raise CheckpointError(f"{where} holds a number beyond {limit}; if you trust the file, pass `policies`")
    if isinstance(tree, str) and len(tree) > _LONGEST:
        raise CheckpointError(f"{where} holds a string of more than {_LONGEST} characters")
    for child in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        _require_small(child, limit, where)


def _require_plain(network: StateReader) -> None:
    """Refuse settings of a network that are not plain data: PyTorch and SB3 would fail on them during training."""
    for name in network.names():
        if name not in _NETWORK or not accepts(_NETWORK[name], network.value(name)):
            words = f"one of {', '.join(_NETWORK)}, as SB3 describes them; or pass `policies`"
            raise network.error(name[:_LONGEST], network.value(name), words)


_Pair = Annotated[list[FiniteFloat], Meta(min_length=2, max_length=2)]
_Widths = Annotated[list[PositiveInt], Meta(max_length=_MOST_LAYERS)]


def _fields(**kinds: Any) -> type[Struct]:
    """Return the type of mappings that may hold these entries and no others."""
    # Not a class: msgspec would evaluate the text of its annotations while a checkpoint is read.
    return defstruct(
        "Fields", [(name, kind | UnsetType, UNSET) for name, kind in kinds.items()], forbid_unknown_fields=True
    )


# The network settings that a checkpoint may hold. Classes are not among them: the caller passes those.
_NETWORK: Mapping[str, Any] = {
    "net_arch": _Widths | Mapping[Literal["pi", "vf", "qf"], _Widths],
    "activation_fn": str,
    "log_std_init": FiniteFloat,
    **dict.fromkeys(("ortho_init", "full_std", "use_expln", "squash_output"), bool),
    **dict.fromkeys(("share_features_extractor", "normalize_images"), bool),
    "features_extractor_kwargs": _fields(features_dim=FiniteFloat, cnn_output_dim=FiniteFloat, normalized_image=bool),
    **dict.fromkeys(("n_critics", "n_quantiles"), Annotated[int, Meta(ge=1, le=_MOST_HEADS)]),
    "batch_norm": bool,
    "batch_norm_momentum": FiniteFloat,
    "clip_mean": FiniteFloat,
    "renorm_warmup_steps": Count,
    "lstm_hidden_size": PositiveInt,
    "n_lstm_layers": Annotated[int, Meta(ge=1, le=_MOST_LAYERS)],
    **dict.fromkeys(("shared_lstm", "enable_critic_lstm"), bool),
    "lstm_kwargs": _fields(dropout=FiniteFloat),
    # Settings of Adam, SB3's default; without those that choose PyTorch's implementation (`foreach`, `fused`, ...).
    "optimizer_kwargs": _fields(eps=FiniteFloat, weight_decay=FiniteFloat, betas=_Pair, amsgrad=bool),
}


def _require_no_more_weights(tree: Any, num_weights: int, where: str) -> None:
    """Refuse layers with more connections than the policy has weights, and any larger number."""
    children = list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    widths = [child for child in children if isinstance(child, int)]
    if sum(one * other for one, other in pairwise([1, *widths])) > num_weights:
        raise CheckpointError(f"{where} describes a network of more weights than the {num_weights} in the checkpoint")
    for child in children:
        _require_no_more_weights(child, num_weights, where)


def policy_specs(
    policies: str | Mapping[PolicyID, PolicySpec], policy_ids: Sequence[PolicyID], defaults: Mapping[str, Any]
) -> dict[PolicyID, PolicySpec]:
    """Return the spec of each policy, with the defaults filled in."""
    if isinstance(policies, str):
        return {policy_id: PolicySpec(**defaults) for policy_id in policy_ids}
    for policy_id, spec in policies.items():
        if not isinstance(spec, PolicySpec):
            raise ConfigError(f"policy {policy_id!r} is {spec!r}; accepted: a PolicySpec", key="policies")
    return {policy_id: spec.with_defaults(defaults) for policy_id, spec in policies.items()}

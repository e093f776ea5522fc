"""Start policies from the weights of another run or of an SB3 zip: all layers or some.

Only weights are taken: optimizers start anew, and counters stay as they are. Everything is checked before anything is
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch as th

from marl_sb3.core.learners.spec import specs_of_checkpoint
from marl_sb3.core.policies import activation_name
from marl_sb3.core.sb3.tensors import reset_optimizers
from marl_sb3.core.state.checkpoint import Checkpoint, find_files, store_of
from marl_sb3.core.state.state import StateReader
from marl_sb3.doors import STORES
from marl_sb3.errors import CheckpointError, ConfigError, refuse, require_known
from marl_sb3.extensions.transfer.sb3_files import sb3_weights
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from marl_sb3.core.training.algorithm import MultiAgentAlgorithm

_log = logging.getLogger(__name__)

ACCEPTED = "[POLICY=]PATH[:SOURCE_POLICY], PATH a run folder, a checkpoint or an SB3 zip"

_PREFIX = "policy."  # of the names of a policy's tensors in a checkpoint
_SHOWN = 80  # characters shown of a name from a file


# --- The text after `--init-from` ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitFrom:
    """A source of initial weights."""

    path: Path  # a run folder (see `CheckpointFolder.load` for its checkpoint), a checkpoint, or an SB3 zip
    policy_id: PolicyID | None = None  # the policy that gets the weights; None: all policies
    # the policy of the source; None: the one with the same id, or the only one in a zip
    source_id: PolicyID | None = None

    def __str__(self) -> str:
        """Return the text that `parse_init_from` reads."""
        target = "" if self.policy_id is None else f"{self.policy_id}="
        return f"{target}{self.path}{'' if self.source_id is None else f':{self.source_id}'}"


def parse_init_from(text: str) -> InitFrom:
    """Parse the value of `--init-from`: `RUN`, `FILE.zip`, `pol1=PATH`, `pol1=PATH:polX`."""
    policy_id, equals, rest = text.partition("=") if "=" in text else ("", "", text)
    path, colon, source_id = rest.rpartition(":")
    is_of_a_drive = len(path) == 1 and source_id[:1] in ("\\", "/")
    if not colon or path == "hf" or is_of_a_drive:  # or that of an address on the Hub
        path, colon, source_id = rest, "", ""
    if not path or (equals and not policy_id) or (colon and not source_id):
        refuse("--init-from", text, ACCEPTED, "init_from")
    return InitFrom(Path(path), policy_id or None, source_id or None)


def init_from(
    algorithm: MultiAgentAlgorithm,
    sources: Sequence[InitFrom],
    layers: Sequence[str] | None = None,
    *,
    trust_pickle: bool = False,
) -> list[str]:
    """Give policies the weights of others. If anything does not fit, nothing is changed.

    Running statistics of normalised observations and rewards come along, unless `layers` takes only some tensors. The
    optimizers of these policies start anew, because their state belongs to the old weights.

    Args:
        layers: patterns such as `mlp_extractor.policy_net.*` (wildcards as in file names); only tensors that match one
            are taken. None: all tensors; the source must have the same ones.
        trust_pickle: allow SB3 zips; see `sb3_weights`.

    Returns:
        A line about each source: its path, and which checkpoint of a run was taken, and why.

    Raises:
        ConfigError: a source cannot be read, does not have a policy, or does not fit.
    """
    lines: list[str] = []
    changed: list[tuple[th.Tensor, th.Tensor]] = []  # a tensor of a policy, its new value
    starting: dict[PolicyID, Path] = {}
    set_statistics: list[Callable[[], None]] = []
    for source in sources:
        if source.policy_id is not None:
            require_known(source.policy_id, algorithm.policies, f"unknown policy {source.policy_id!r}", "init_from")
        policies = {name: its for name, its in algorithm.policies.items() if source.policy_id in (None, name)}
        if twice := [policy_id for policy_id in policies if policy_id in starting]:
            raise ConfigError(f"policy {twice[0]!r} would start from two sources", key="init_from")
        starting |= dict.fromkeys(policies, source.path)
        weights, why = _read(source, policies, trust_pickle)
        lines.append(f"weights from {source.path}{f': {why}' if why else ''}")
        for policy_id, policy in policies.items():
            try:
                changed += _fitting(policy_id, dict(policy.policy.state_dict()), weights[policy_id].tensors, layers)
            except ConfigError as error:
                raise ConfigError(f"{source.path}: {error}", key="init_from") from error
            _warn_of_other_activation(policy_id, policy, weights[policy_id], source.path)
            if layers is None:
                set_statistics += _statistics(algorithm, policy_id, weights[policy_id], source.path)
    for set_one in set_statistics:
        set_one()
    with th.no_grad():
        for tensor, value in changed:
            tensor.copy_(value)
    for policy_id, path in starting.items():
        reset_optimizers(algorithm.policies[policy_id])
        _log.info("policy %s starts from %s", policy_id, path)
    return list(dict.fromkeys(lines))


# --- What a source holds ----------------------------------------------------------------------------------------------


class _Weights(NamedTuple):
    """The weights of one policy in a file."""

    tensors: Mapping[str, Any]  # by the names of SB3's `policy.state_dict()`; in a zip they may be anything
    # the running statistics of its processing; None if the file does not hold any
    statistics: StateReader | None = None
    # name of the activation function between its layers; None if the file does not say it
    activation: str | None = None


def _read(
    source: InitFrom, policies: Mapping[PolicyID, BaseAlgorithm], trust_pickle: bool
) -> tuple[dict[PolicyID, _Weights], str]:
    """Return the weights of a source for each of these policies; for a run also why its checkpoint was taken."""
    if source.path.is_dir() or store_of(source.path) is not STORES["folder"]:
        ids = {policy_id: source.source_id or policy_id for policy_id in policies}

        def read(found: Checkpoint) -> tuple[dict[PolicyID, _Weights], str]:
            loaded = {source_id: _of_checkpoint(found, source_id, source.path) for source_id in set(ids.values())}
            return {policy_id: loaded[source_id] for policy_id, source_id in ids.items()}, found.why

        return store_of(source.path).read(source.path, None, read)
    if not source.path.is_file():
        raise ConfigError(f"there is no {source.path}; accepted: {ACCEPTED}", key="init_from")
    if source.source_id is not None:
        raise ConfigError(f"{source.path} holds one policy; accepted: no :SOURCE_POLICY after it", key="init_from")
    sizes = [sum(tensor.nbytes for tensor in policy.policy.state_dict().values()) for policy in policies.values()]
    tensors = sb3_weights(source.path, 4 * max(sizes, default=0) + 2**20, trust_pickle=trust_pickle)
    return dict.fromkeys(policies, _Weights(tensors)), ""


def _of_checkpoint(checkpoint: Checkpoint, source_id: PolicyID, path: Path) -> _Weights:
    policies = StateReader(checkpoint.state).fields("policies")
    names = list(policies)
    if source_id not in names:
        there = ", ".join(name[:_SHOWN] for name in names)
        raise ConfigError(f"{path}: the source has no policy {source_id!r}; it has {there}", key="init_from")
    files = find_files(checkpoint.tensors, checkpoint.name, len(names))[names.index(source_id)]
    arrays = files["policy"].load()
    tensors = {
        name.removeprefix(_PREFIX): th.from_numpy(array) for name, array in arrays.items() if name.startswith(_PREFIX)
    }
    activation = None
    with suppress(ConfigError, CheckpointError):  # a policy may be of a class that this process does not know
        spec = specs_of_checkpoint(checkpoint)[source_id]
        activation = activation_name(spec.policy_class, spec.hyperparameters.get("policy_kwargs") or {})
    return _Weights(tensors, policies.fields(source_id).fields("processing"), activation)


# --- Into the policies ------------------------------------------------------------------------------------------------


def _fitting(
    policy_id: PolicyID, policy: Mapping[str, th.Tensor], source: Mapping[str, Any], layers: Sequence[str] | None
) -> list[tuple[th.Tensor, th.Tensor]]:
    """Return each tensor of a policy that will change, with its new value.

    Raises:
        ConfigError: a layer is missing, or does not fit.
    """
    for pattern in layers or ():
        if not any(fnmatchcase(name, pattern) for name in policy):
            raise ConfigError(f"policy {policy_id!r} has no layer {pattern!r}; it has {', '.join(policy)}")
    for name in source if layers is None else ():
        if name not in policy:
            raise ConfigError(f"policy {policy_id!r} has no layer {name[:_SHOWN]!r}, which the source has")
    chosen = [name for name in policy if layers is None or any(fnmatchcase(name, pattern) for pattern in layers)]
    for name in chosen:
        if name not in source:
            raise ConfigError(f"policy {policy_id!r}: the source has no layer {name!r}")
        form, accepted = _form(source[name]), _form(policy[name])
        if form != accepted:
            words = f"the source's is {form}; accepted: {accepted}"
            raise ConfigError(f"policy {policy_id!r}, layer {name!r}: {words}")
        if not bool(th.isfinite(source[name]).all()):
            raise ConfigError(f"policy {policy_id!r}, layer {name!r}: the source's is not finite")
    return [(policy[name], source[name]) for name in chosen]


def _form(tensor: Any) -> str:
    if not isinstance(tensor, th.Tensor) or tensor.layout != th.strided or tensor.is_meta:
        return "no plain tensor"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _statistics(
    algorithm: MultiAgentAlgorithm, policy_id: PolicyID, source: _Weights, path: Path
) -> list[Callable[[], None]]:
    """Return what sets the running statistics of a policy to those of its source; warn if the source has others."""
    processing = algorithm.parts.learners[policy_id].processing
    names, in_source = list(processing.statistics), list(source.statistics or ())
    if sorted(in_source) == sorted(names):
        return [] if source.statistics is None else [processing.read_state(source.statistics)]
    _log.warning(
        "policy %s normalises with running statistics of: %s; %s has: %s: its weights may not suit what it observes",
        policy_id, ", ".join(names) or "none", path, (", ".join(in_source) or "none")[:200],
    )  # fmt: skip
    return []


def _warn_of_other_activation(policy_id: PolicyID, policy: BaseAlgorithm, source: _Weights, path: Path) -> None:
    """Warn if the layers of the source had another activation function, which its weights do not show."""
    activation = activation_name(policy.policy_class, policy.policy_kwargs)
    if activation is not None and source.activation not in (None, activation):
        _log.warning(
            "policy %s has policy_kwargs.activation_fn %s, and %s was trained with %s: with the same weights it acts "
            "differently",
            policy_id, activation, path, source.activation,
        )  # fmt: skip

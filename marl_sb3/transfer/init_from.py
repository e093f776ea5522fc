"""Start policies from the weights of another run or of an SB3 zip: all layers or some.

Only weights are taken: optimizers start anew, and counters stay as they are. Everything is checked before anything is
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch as th

from marl_sb3.errors import ConfigError
from marl_sb3.learners.sb3.zip_file import sb3_weights
from marl_sb3.storage.checkpoint_folder import find_checkpoint
from marl_sb3.storage.checkpoint_format import Checkpoint
from marl_sb3.storage.policy_files import find_file
from marl_sb3.storage.state import StateReader
from marl_sb3.storage.tensor_file import Form, StoredTensors, form_of
from marl_sb3.types import Array, PolicyID

if TYPE_CHECKING:
    from marl_sb3.training.algorithm import MultiAgentAlgorithm

_log = logging.getLogger(__name__)

Weights = Mapping[str, th.Tensor]  # of one policy, by the names of its `state_dict`

ACCEPTED = "[POLICY=]PATH[:SOURCE_POLICY], PATH a run folder, a checkpoint or an SB3 zip"

_ONLY = "its only policy"  # the id of the policy in an SB3 zip
_PREFIX = "policy."  # of the names of a policy's tensors in a checkpoint
_SHOWN = 80  # characters shown of a name from a file


# --- The text after `--init-from` ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitFrom:
    """A source of initial weights.

    Attributes:
        path: a run folder (its best checkpoint is used), a checkpoint, or an SB3 zip.
        policy_id: the policy that gets the weights; None: all policies.
        source_id: the policy of the source; None: the one with the same id, or the only one in a zip.
    """

    path: Path
    policy_id: PolicyID | None = None
    source_id: PolicyID | None = None

    def __str__(self) -> str:
        """Return the text that `parse_init_from` reads."""
        target = "" if self.policy_id is None else f"{self.policy_id}="
        return f"{target}{self.path}{'' if self.source_id is None else f':{self.source_id}'}"


def parse_init_from(text: str) -> InitFrom:
    """Parse the value of `--init-from`: `RUN`, `FILE.zip`, `pol1=PATH`, `pol1=PATH:polX`."""
    policy_id, equals, rest = text.partition("=") if "=" in text else ("", "", text)
    path, colon, source_id = rest.rpartition(":")
    if not colon or (len(path) == 1 and source_id[:1] in ("\\", "/")):  # the colon of a drive
        path, colon, source_id = rest, "", ""
    if not path or (equals and not policy_id) or (colon and not source_id):
        raise ConfigError(f"--init-from is {text!r}; accepted: {ACCEPTED}", key="init_from")
    return InitFrom(Path(path), policy_id or None, source_id or None)


def init_from(
    algorithm: MultiAgentAlgorithm,
    sources: Sequence[InitFrom],
    layers: Sequence[str] | None = None,
    *,
    trust_pickle: bool = False,
) -> None:
    """Give policies the weights of others. If anything does not fit, nothing is changed.

    Args:
        trust_pickle: allow SB3 zips; see `learners.sb3.zip_file.sb3_weights`.

    Raises:
        ConfigError: a source cannot be read, does not have a policy, or does not fit.
    """
    taken: list[tuple[th.Tensor, th.Tensor]] = []
    starting: dict[PolicyID, InitFrom] = {}
    for source in sources:
        targets = list(algorithm.policies) if source.policy_id is None else [source.policy_id]
        for policy_id in targets:
            if policy_id in starting:
                raise ConfigError(f"policy {policy_id!r} would start from two sources", key="init_from")
            starting[policy_id] = source
        weights, pairs = _read(algorithm, source, targets, trust_pickle)
        try:
            taken += _fitting(algorithm, weights, pairs, layers)
        except ConfigError as error:
            raise ConfigError(f"{source.path}: {error}", key="init_from") from error
    _take(algorithm, taken, starting)
    for policy_id, source in starting.items():
        _log.info("policy %s starts from %s", policy_id, source.path)


def _read(
    algorithm: MultiAgentAlgorithm, source: InitFrom, targets: Sequence[PolicyID], trust_pickle: bool
) -> tuple[Mapping[PolicyID, Weights], dict[PolicyID, PolicyID]]:
    """Return the weights of a source, and target policy -> source policy."""
    if source.path.is_dir():
        weights = checkpoint_weights(find_checkpoint(source.path, "best"))
        return weights, {policy_id: source.source_id or policy_id for policy_id in targets}
    if not source.path.is_file():
        raise ConfigError(f"there is no {source.path}; accepted: {ACCEPTED}", key="init_from")
    if source.source_id is not None:
        raise ConfigError(f"{source.path} holds one policy; accepted: no :SOURCE_POLICY after it", key="init_from")
    expected = max((_size(_tensors_of(algorithm, policy_id)) for policy_id in targets), default=0)
    only = sb3_weights(source.path, 4 * expected + 2**20, trust_pickle=trust_pickle)
    return {_ONLY: only}, dict.fromkeys(targets, _ONLY)


# --- Checkpoints -----------------------------------------------------------------------------------------------------


class StoredWeights(Mapping[str, th.Tensor]):
    """The weights of a policy in a checkpoint; a tensor is read when it is accessed."""

    def __init__(self, tensors: Mapping[str, Array]) -> None:
        self._tensors = tensors

    def __getitem__(self, name: str) -> th.Tensor:
        return th.from_numpy(self._tensors[f"{_PREFIX}{name}"])

    def __iter__(self) -> Iterator[str]:
        return (name.removeprefix(_PREFIX) for name in self._tensors if name.startswith(_PREFIX))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return f"{_PREFIX}{name}" in self._tensors

    def form(self, name: str) -> Form:
        """Return dtype and shape of a tensor without reading it."""
        return form_of(self._tensors, f"{_PREFIX}{name}")

    def load(self, names: Sequence[str]) -> Weights:
        """Return some of the tensors, reading the file once."""
        wanted = [f"{_PREFIX}{name}" for name in names]
        read = self._tensors.load(wanted) if isinstance(self._tensors, StoredTensors) else self._tensors
        return {name: th.from_numpy(read[f"{_PREFIX}{name}"]) for name in names}


def checkpoint_weights(checkpoint: Checkpoint) -> dict[PolicyID, StoredWeights]:
    """Return the weights of each policy in a checkpoint.

    Raises:
        CheckpointError: a policy's file is missing.
    """
    policy_ids = StateReader(checkpoint.state).fields("policies")
    return {
        policy_id: StoredWeights(find_file(checkpoint.tensors, checkpoint.name, number, "policy").arrays)
        for number, policy_id in enumerate(policy_ids)
    }


# --- Into the policies -----------------------------------------------------------------------------------------------


def load_weights(
    algorithm: MultiAgentAlgorithm,
    source: Mapping[PolicyID, Weights],
    policies: Mapping[PolicyID, PolicyID] | Sequence[PolicyID] | None = None,
    layers: Sequence[str] | None = None,
) -> None:
    """Give policies the weights of others, in place. If a weight does not fit, nothing is changed.

    The optimizers of these policies start anew, because their state belongs to the old weights.

    Args:
        source: policy id -> tensors by the names of SB3's `policy.state_dict()`: from `algorithm.policies[...]` of
            another algorithm, `checkpoint_weights` or `learners.sb3.zip_file.sb3_weights`.
        policies: ids of the policies that get weights, or a mapping from these ids to those in the source; None: all.
        layers: patterns such as `mlp_extractor.policy_net.*` (wildcards as in file names); only tensors that match one
            are taken. None: all tensors; the source must have the same ones.

    Raises:
        ConfigError: an unknown policy or layer, another shape or dtype, or a number that is not finite.
    """
    if isinstance(policies, str):
        raise ConfigError(
            f"policies is {policies!r}; accepted: a list of policy ids, or a mapping to those of the source"
        )
    targets = list(algorithm.policies) if policies is None else list(policies)
    pairs = dict(policies) if isinstance(policies, Mapping) else dict(zip(targets, targets, strict=True))
    _take(algorithm, _fitting(algorithm, source, pairs, layers), pairs)


def _fitting(
    algorithm: MultiAgentAlgorithm,
    source: Mapping[PolicyID, Weights],
    pairs: Mapping[PolicyID, PolicyID],
    layers: Sequence[str] | None,
) -> list[tuple[th.Tensor, th.Tensor]]:
    """Return each tensor that will change, with a copy of its new value."""
    taken = []
    for policy_id, source_id in pairs.items():
        own = _tensors_of(algorithm, policy_id)
        if source_id not in source:
            there = ", ".join(name[:_SHOWN] for name in source)
            raise ConfigError(f"the source has no policy {source_id!r}; it has {there}", key="init_from")
        weights = source[source_id]
        chosen = _chosen(policy_id, own, weights, layers)
        if isinstance(weights, StoredWeights):
            for name in chosen:  # before the tensors are read
                _require_shape(_of_layer(policy_id, name), own[name], weights.form(name))
            weights = weights.load(chosen)
        for name in chosen:
            _require_fit(_of_layer(policy_id, name), own[name], weights[name])
            taken.append((own[name], weights[name].detach().clone()))  # a copy: the source may be one of the targets
    return taken


def _tensors_of(algorithm: MultiAgentAlgorithm, policy_id: PolicyID) -> dict[str, th.Tensor]:
    """Return the policy's own tensors, not copies."""
    if policy_id not in algorithm.policies:
        raise ConfigError(f"unknown policy {policy_id!r}; accepted: {', '.join(algorithm.policies)}", key="init_from")
    return dict(algorithm.policies[policy_id].policy.state_dict())


def _chosen(policy_id: PolicyID, own: Weights, source: Mapping[str, Any], layers: Sequence[str] | None) -> list[str]:
    """Return the names of the layers to take; raises if the source does not have one."""
    for pattern in layers or ():
        if not any(fnmatchcase(name, pattern) for name in own):
            raise ConfigError(f"policy {policy_id!r} has no layer {pattern!r}; it has {', '.join(own)}")
    chosen = [name for name in own if layers is None or any(fnmatchcase(name, pattern) for pattern in layers)]
    for name in chosen:
        if name not in source:
            raise ConfigError(f"policy {policy_id!r}: the source has no layer {name!r}")
    for name in source if layers is None else ():
        if name not in own:
            raise ConfigError(f"policy {policy_id!r} has no layer {name[:_SHOWN]!r}, which the source has")
    return chosen


def _require_fit(what: str, own: th.Tensor, received: Any) -> None:
    if not isinstance(received, th.Tensor) or received.layout != th.strided or received.is_meta:
        raise ConfigError(f"{what}: the source has no plain tensor of that name")
    if received.shape != own.shape or received.dtype != own.dtype:
        raise ConfigError(f"{what}: the source's is {_form(received)}; accepted: {_form(own)}")
    if not bool(th.isfinite(received).all()):
        raise ConfigError(f"{what}: the source's is not finite")


def _of_layer(policy_id: PolicyID, name: str) -> str:
    return f"policy {policy_id!r}, layer {name!r}"


def _require_shape(what: str, own: th.Tensor, received: Form) -> None:
    if tuple(own.shape) != received.shape:
        raise ConfigError(f"{what}: the source's is {received.shape} {received.dtype}; accepted: {_form(own)}")


def _form(tensor: th.Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _size(tensors: Weights) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _take(
    algorithm: MultiAgentAlgorithm, taken: Sequence[tuple[th.Tensor, th.Tensor]], policy_ids: Mapping[PolicyID, Any]
) -> None:
    with th.no_grad():
        for own, received in taken:
            own.copy_(received)
    for policy_id in policy_ids:
        algorithm.policies[policy_id].policy.optimizer.state.clear()

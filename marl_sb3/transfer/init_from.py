"""Start policies from the weights of another run or of an SB3 zip: all layers or some.

Only weights are taken: optimizers start anew, and counters stay as they are. Everything is checked before anything is
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch as th

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.load import specs_of_checkpoint
from marl_sb3.policies.networks import activation_name
from marl_sb3.sb3.files import sb3_weights
from marl_sb3.sb3.optimizers import reset_optimizers
from marl_sb3.storage.checkpoint_folder import find_checkpoint
from marl_sb3.storage.checkpoint_format import Checkpoint
from marl_sb3.storage.policy_files import find_file
from marl_sb3.storage.state import StateReader
from marl_sb3.storage.tensor_file import StoredTensors, form_of
from marl_sb3.types import Array, PolicyID

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm

    from marl_sb3.training.algorithm import MultiAgentAlgorithm

_log = logging.getLogger(__name__)

ACCEPTED = "[POLICY=]PATH[:SOURCE_POLICY], PATH a run folder, a checkpoint or an SB3 zip"

_PREFIX = "policy."  # of the names of a policy's tensors in a checkpoint
_SHOWN = 80  # characters shown of a name from a file


# --- The text after `--init-from` ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InitFrom:
    """A source of initial weights.

    Attributes:
        path: a run folder (see `CheckpointFolder.load` for its checkpoint), a checkpoint, or an SB3 zip.
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
) -> list[str]:
    """Give policies the weights of others. If anything does not fit, nothing is changed.

    Running statistics of normalised observations and rewards come along, unless `layers` takes only some tensors. The
    optimizers of these policies start anew, because their state belongs to the old weights.

    Args:
        layers: patterns such as `mlp_extractor.policy_net.*` (wildcards as in file names); only tensors that match one
            are taken. None: all tensors; the source must have the same ones.
        trust_pickle: allow SB3 zips; see `sb3.files.sb3_weights`.

    Returns:
        A line about each source: its path, and which checkpoint of a run was taken, and why.

    Raises:
        ConfigError: a source cannot be read, does not have a policy, or does not fit.
    """
    lines: list[str] = []
    taken: list[tuple[th.Tensor, th.Tensor]] = []
    starting: dict[PolicyID, InitFrom] = {}
    put_statistics: list[Callable[[], None]] = []
    for source in sources:
        targets = list(algorithm.policies) if source.policy_id is None else [source.policy_id]
        own = {policy_id: _tensors_of(algorithm, policy_id) for policy_id in targets}
        weights, why = _read(source, own, trust_pickle)
        lines.append(f"weights from {source.path}{f': {why}' if why else ''}")
        for policy_id in targets:
            if policy_id in starting:
                raise ConfigError(f"policy {policy_id!r} would start from two sources", key="init_from")
            starting[policy_id] = source
            try:
                taken += _fitting(policy_id, own[policy_id], weights[policy_id], layers)
            except ConfigError as error:
                raise ConfigError(f"{source.path}: {error}", key="init_from") from error
            _warn_of_other_activation(policy_id, algorithm.policies[policy_id], weights[policy_id], source.path)
            if layers is None:
                put_statistics += _statistics(algorithm, policy_id, weights[policy_id], source.path)
    for put in put_statistics:
        put()
    with th.no_grad():
        for tensor, received in taken:
            tensor.copy_(received)
    for policy_id, source in starting.items():
        reset_optimizers(algorithm.policies[policy_id])
        _log.info("policy %s starts from %s", policy_id, source.path)
    return list(dict.fromkeys(lines))


def _statistics(
    algorithm: MultiAgentAlgorithm, policy_id: PolicyID, source: _Weights, path: Path
) -> list[Callable[[], None]]:
    """Return what sets the running statistics of a policy to those of its source; warn if the source has others."""
    processing = algorithm.parts.learners[policy_id].processing
    names = list(processing.statistics)
    found = [] if source.statistics is None else list(source.statistics)
    if sorted(found) == sorted(names):
        return [] if source.statistics is None else [processing.read_state(source.statistics)]
    mine, theirs = ", ".join(names) or "none", ", ".join(found) or "none"
    _log.warning(
        "policy %s normalises with running statistics of: %s; %s has: %s: its weights may not suit what it observes",
        policy_id, mine, path, theirs[:200],
    )  # fmt: skip
    return []


def _warn_of_other_activation(policy_id: PolicyID, own: BaseAlgorithm, source: _Weights, path: Path) -> None:
    """Warn if the layers of the source had another activation function, which its weights do not show."""
    mine = activation_name(own.policy_class, own.policy_kwargs)
    if mine is not None and source.activation not in (None, mine):
        _log.warning(
            "policy %s has policy_kwargs.activation_fn %s, and %s was trained with %s: with the same weights it acts "
            "differently",
            policy_id, mine, path, source.activation,
        )  # fmt: skip


def _read(
    source: InitFrom, own: Mapping[PolicyID, Mapping[str, th.Tensor]], trust_pickle: bool
) -> tuple[dict[PolicyID, _Weights], str]:
    """Return the weights of a source for each of these policies, whose own tensors are given, and why these."""
    if source.path.is_dir():
        checkpoint = find_checkpoint(source.path, None)
        found = _of_checkpoint(checkpoint)
        wanted = {policy_id: source.source_id or policy_id for policy_id in own}
        for source_id in wanted.values():
            if source_id not in found:
                there = ", ".join(name[:_SHOWN] for name in found)
                words = f"the source has no policy {source_id!r}; it has {there}"
                raise ConfigError(f"{source.path}: {words}", key="init_from")
        return {policy_id: found[source_id] for policy_id, source_id in wanted.items()}, checkpoint.why
    if not source.path.is_file():
        raise ConfigError(f"there is no {source.path}; accepted: {ACCEPTED}", key="init_from")
    if source.source_id is not None:
        raise ConfigError(f"{source.path} holds one policy; accepted: no :SOURCE_POLICY after it", key="init_from")
    expected = max((sum(tensor.nbytes for tensor in tensors.values()) for tensors in own.values()), default=0)
    only = _of_zip(sb3_weights(source.path, 4 * expected + 2**20, trust_pickle=trust_pickle))
    return dict.fromkeys(own, only), ""


# --- What files hold --------------------------------------------------------------------------------------------------


class _Weights(NamedTuple):
    """The weights of one policy in a file.

    Attributes:
        forms: shape and dtype of each tensor, by the names of SB3's `policy.state_dict()`.
        load: reads some of them.
        statistics: the running statistics of its processing; None if the file does not hold any.
        activation: name of the activation function between its layers; None if the file does not say it.
    """

    forms: Mapping[str, str]
    load: Callable[[Sequence[str]], Mapping[str, th.Tensor]]
    statistics: StateReader | None = None
    activation: str | None = None


def _of_zip(tensors: Mapping[str, Any]) -> _Weights:
    return _Weights(
        {name: _form(tensor) for name, tensor in tensors.items()}, lambda names: {name: tensors[name] for name in names}
    )


def _of_checkpoint(checkpoint: Checkpoint) -> dict[PolicyID, _Weights]:
    """Return the weights of each policy; a tensor is read when it is taken."""
    policies = StateReader(checkpoint.state).fields("policies")
    activations = _activations(checkpoint)
    return {
        policy_id: _of_arrays(find_file(checkpoint.tensors, checkpoint.name, number, "policy").arrays)._replace(
            statistics=policies.fields(policy_id).fields("processing"),
            activation=activations.get(policy_id),
        )
        for number, policy_id in enumerate(policies)
    }


def _activations(checkpoint: Checkpoint) -> dict[PolicyID, str | None]:
    """Return the activation function of each policy; none if a policy is of a class that this process does not know."""
    try:
        specs = specs_of_checkpoint(checkpoint)
    except (ConfigError, CheckpointError):
        return {}
    return {
        policy_id: activation_name(spec.policy_class, spec.hyperparameters.get("policy_kwargs") or {})
        for policy_id, spec in specs.items()
    }


def _of_arrays(arrays: Mapping[str, Array]) -> _Weights:
    def load(names: Sequence[str]) -> dict[str, th.Tensor]:
        paths = [f"{_PREFIX}{name}" for name in names]
        read = arrays.load(paths) if isinstance(arrays, StoredTensors) else arrays
        return {name: th.from_numpy(read[path]) for name, path in zip(names, paths, strict=True)}

    forms = {path.removeprefix(_PREFIX): form_of(arrays, path) for path in arrays if path.startswith(_PREFIX)}
    return _Weights({name: f"{form.shape} {form.dtype}" for name, form in forms.items()}, load)


def _form(tensor: Any) -> str:
    if not isinstance(tensor, th.Tensor) or tensor.layout != th.strided or tensor.is_meta:
        return "no plain tensor"
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


# --- Into the policies -----------------------------------------------------------------------------------------------


def _fitting(
    policy_id: PolicyID, own: Mapping[str, th.Tensor], weights: _Weights, layers: Sequence[str] | None
) -> list[tuple[th.Tensor, th.Tensor]]:
    """Return each tensor of a policy that will change, with its new value."""
    chosen = _chosen(policy_id, own, weights.forms, layers)
    for name in chosen:  # before the tensors are read
        if weights.forms[name] != _form(own[name]):
            words = f"the source's is {weights.forms[name]}; accepted: {_form(own[name])}"
            raise ConfigError(f"policy {policy_id!r}, layer {name!r}: {words}")
    read = weights.load(chosen)
    for name in chosen:
        if not bool(th.isfinite(read[name]).all()):
            raise ConfigError(f"policy {policy_id!r}, layer {name!r}: the source's is not finite")
    return [(own[name], read[name]) for name in chosen]


def _tensors_of(algorithm: MultiAgentAlgorithm, policy_id: PolicyID) -> dict[str, th.Tensor]:
    """Return the policy's own tensors, not copies."""
    if policy_id not in algorithm.policies:
        raise ConfigError(f"unknown policy {policy_id!r}; accepted: {', '.join(algorithm.policies)}", key="init_from")
    return dict(algorithm.policies[policy_id].policy.state_dict())


def _chosen(
    policy_id: PolicyID, own: Collection[str], source: Collection[str], layers: Sequence[str] | None
) -> list[str]:
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

"""Load the policies in a checkpoint, which is untrusted, to act without an env."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.core.acting.by_agent import PolicyBundle, PolicySpaces
from marl_sb3.core.learners.building import build_for_acting, policy_rows, processing_of
from marl_sb3.core.learners.spec import PolicySpec, specs_of_checkpoint
from marl_sb3.core.mapping import PolicyMapping, PolicyRows, read_deterministic, read_mapping
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.sb3.private import set_progress_remaining
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.sb3.tensors import read_weights
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.checkpoint import DTYPES_OF_BOXES, INTEGERS, Checkpoint, OfPolicy, find_files, store_of
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import AgentGroup
from marl_sb3.doors import STORES
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.files.paths import file_names
from marl_sb3.files.signed import verified_copy
from marl_sb3.types import Array, PolicyID
from marl_sb3.wrappers.observations import policy_actions


def load_policies(
    path: str | Path,
    checkpoint: str | None = None,
    policies: Mapping[PolicyID, PolicySpec] | None = None,
    device: str = "auto",
    env: MultiAgentVecEnv | None = None,
    verify: str | Path | None = None,
) -> PolicyBundle:
    """Load the policies of a run or of a saved algorithm, to act without an env.

    Args:
        path: a run folder, one of its checkpoints, or a member of its league, `RUN/league/main@120`, the policy of
            which plays all agents that it may; what `MultiAgentAlgorithm.save` wrote; or a run on the Hugging Face Hub,
            `hf:OWNER/NAME[@REVISION]`, which is downloaded.
        checkpoint: of a run folder: `best`, `latest` or the number of an iteration. None: the best; or the latest,
            where the sum of returns would decide and the agents' returns oppose each other. `checkpoint_why` of the
            result says in a sentence which one was taken, and why.
        policies: policy id -> spec; needed if a spec has classes or functions, which a checkpoint cannot hold.
        device: `cpu`, `cuda`, `cuda:N`, or `auto`: CUDA, if there is any, for convolutions and wide layers (512).
        env: from `make_vec_env`, with the agents of the training; needed if a space is of a class of your own, which a
            checkpoint cannot hold.
        verify: file of a public key: the folder that `path` means must be signed by it, see `sign_folder`. It is
            verified before anything in it is read, and a copy of it is what is read. None: it need not be signed.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, its signature is missing or wrong, or it does not hold a
            space: `env` is needed.
        ConfigError: the checkpoint does not hold the spec of a policy: `policies` is needed.
    """
    store = store_of(path)
    with ExitStack() as cleanup:
        if verify is not None:
            path, store = cleanup.enter_context(verified_copy(store.folder(path), verify)), STORES["folder"]
        return store.read(path, checkpoint, lambda found: read_bundle(found, policies, device, env))


def read_bundle(
    checkpoint: Checkpoint,
    specs: Mapping[PolicyID, PolicySpec] | None = None,
    device: str = "auto",
    env: MultiAgentVecEnv | None = None,
) -> PolicyBundle:
    """Load the policies in a checkpoint, which is untrusted; see `load_policies`, where `specs` are `policies`."""
    state = StateReader(checkpoint.state)
    files = find_files(checkpoint.tensors, checkpoint.name, len(list(state.fields("policies"))))
    specs = specs or specs_of_checkpoint(checkpoint)
    deterministic = read_deterministic(state, "evaluation_deterministic", specs)
    mapping = read_mapping(state, list(specs))
    saved_policies = state.fields("policies")
    for saved in (saved_policies, state.fields("spaces")):
        saved.require_names(list(specs))
    spaces = {policy_id: _spaces(checkpoint, policy_id, mapping, env) for policy_id in saved_policies.names()}
    algorithms: dict[PolicyID, BaseAlgorithm] = {}
    processing: dict[PolicyID, Processing] = {}
    with preserve_rng():
        for (policy_id, its_spaces), its_files in zip(spaces.items(), files, strict=True):
            rows, saved = _rows(policy_id, mapping, its_spaces), saved_policies.fields(policy_id)
            try:
                processing[policy_id] = processing_of(rows, specs[policy_id].processing)
            except ConfigError as error:
                raise CheckpointError(f"{saved.where}: {error}") from error
            processing[policy_id].read_state(saved.fields("processing"))()
            rows = policy_rows(rows, processing[policy_id])
            algorithms[policy_id] = _algorithm(
                checkpoint, rows, specs[policy_id], processing[policy_id], its_files, device
            )
    bundle = PolicyBundle(
        algorithms,
        mapping.policy_of,
        spaces,
        processing,
        checkpoint.name,
        deterministic,
        checkpoint_why=checkpoint.why,
        candidates=mapping.varied,
    )
    if (own := member_policy(checkpoint.name, bundle.policies)) is None:
        return bundle
    return replace(bundle, policy_of={**bundle.policy_of, **dict.fromkeys(bundle.agents_of(own), own)})


def member_policy(name: str, policies: Iterable[PolicyID]) -> PolicyID | None:
    """Return the policy whose snapshot a member of a league is, such as `main@120`; None for other checkpoints.

    Args:
        name: of its folder.
        policies: of the run.
    """
    number = name.rpartition("@")[2]
    names = {policy_id: file_names([policy_id], f"@{number}")[policy_id] for policy_id in policies}
    return next((policy_id for policy_id in names if number.isdecimal() and names[policy_id] == name), None)


def _spaces(
    checkpoint: Checkpoint, policy_id: PolicyID, mapping: PolicyMapping, env: MultiAgentVecEnv | None
) -> PolicySpaces:
    """Return the spaces of a policy in a checkpoint; those in the env if the checkpoint does not hold them."""
    plain = StateReader(checkpoint.state).fields("spaces").fields(policy_id)
    missing = [name for name in PolicySpaces._fields if plain.value(name) is None]
    if not missing:
        return PolicySpaces(*(space_from_plain(plain.fields(name)) for name in PolicySpaces._fields))
    for group in () if env is None else env.groups:
        if set(mapping.seats_of(policy_id)) & set(group.agents):
            return PolicySpaces(group.observation_space, group.action_space)
    raise CheckpointError(
        f"{checkpoint.name} does not hold the {missing[0]} space of {plain.where}, which is of a class that a "
        "checkpoint cannot hold: pass `env`"
    )


def _rows(policy_id: PolicyID, mapping: PolicyMapping, its: PolicySpaces) -> PolicyRows:
    """Return the rows of a policy as if there were one env."""
    agents, everybody = tuple(mapping.seats_of(policy_id)), list(mapping.candidates)
    columns = tuple(map(everybody.index, agents))
    group = AgentGroup(agents, columns, *its)
    return PolicyRows(policy_id, 1, len(everybody), 0, group, agents, columns, tuple(range(len(agents))))


def _algorithm(
    checkpoint: Checkpoint, rows: PolicyRows, spec: PolicySpec, processing: Processing, files: OfPolicy, device: str
) -> BaseAlgorithm:
    try:
        algorithm: Any = build_for_acting(rows, spec, processing, device)
    except (ConfigError, TypeError, ValueError, OverflowError, MemoryError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from error
    read_weights(algorithm, files["policy"])()
    learner = StateReader(checkpoint.state).fields("policies").fields(rows.policy_id)
    env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
    set_progress_remaining(algorithm, Progress(learner.number("progress_remaining"), env_steps))  # for zips
    if trait(algorithm, "exploration_rate") is not None:  # of DQN, for actions that are not deterministic
        algorithm.exploration_rate = learner.number("exploration_rate", 0.0, 1.0)
    return algorithm  # type: ignore[no-any-return]


# --- Spaces ----------------------------------------------------------------------------------------------------------

_INFINITE = {"inf": math.inf, "-inf": -math.inf}
_MAX_DIMENSIONS = 32

Space = spaces.Space[Any]


def space_from_plain(plain: StateReader) -> Space:
    """Make a space from the plain data that `space_to_plain` returned.

    Args:
        plain: the description, which is untrusted.

    Raises:
        CheckpointError: it does not describe a space.
    """
    kind = _one_of(plain, "kind", _KINDS)
    try:
        return _KINDS[kind](plain)
    except CheckpointError:
        raise
    except (ValueError, TypeError, AssertionError, OverflowError, MemoryError) as error:
        raise CheckpointError(f"{plain.where} describes no {kind}: {error}") from error


def _box_from_plain(plain: StateReader) -> spaces.Box:
    dtype = np.dtype(_one_of(plain, "dtype", DTYPES_OF_BOXES))
    shape = _shape(plain, "shape")
    low, high = (_bound_from_plain(plain, name, dtype, shape) for name in ("low", "high"))
    if (low > high).any():
        raise CheckpointError(f"{plain.where} has a low bound above the high one")
    return spaces.Box(low, high, shape, dtype.type)


def _bound_from_plain(plain: StateReader, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    value = plain.value(name)
    if isinstance(value, Mapping):
        parts = plain.fields(name)
        bound, sign = parts.array("finite", dtype, shape), parts.array("sign", np.int8, shape)
        if dtype.kind == "f":
            bound[sign > 0], bound[sign < 0] = np.inf, -np.inf
        return bound
    if isinstance(value, str) and value in _INFINITE and dtype.kind == "f":
        value = _INFINITE[value]
    elif isinstance(value, (str, bool)) or not isinstance(value, (int, float)) or not _holds(dtype, value):
        raise plain.error(name, value, f"a number of {dtype}, or inf or -inf for floats")
    return np.full(shape, value, dtype)


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether a number fits the dtype: within its range, and an integer for integer dtypes."""
    if dtype.kind == "f":
        return bool(abs(value) <= float(np.finfo(dtype).max))
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return isinstance(value, int) and low <= value <= high


def _multi_discrete_from_plain(plain: StateReader) -> spaces.MultiDiscrete:
    dtype = np.dtype(_one_of(plain, "dtype", INTEGERS))
    shape = _shape(plain, "shape")
    nvec, start = (plain.array(name, np.int64, shape) for name in ("nvec", "start"))
    if (nvec < 1).any() or (np.abs(start) > 2**53).any():
        raise CheckpointError(f"{plain.where} has numbers of choices below 1, or starts out of range")
    return spaces.MultiDiscrete(nvec.astype(dtype), dtype.type, start=start.astype(dtype))


def _joined_from_plain(plain: StateReader) -> Space:
    """Read the space of actions of several parts, in which their policies choose."""
    found = policy_actions(_composite_from_plain(plain.fields("of"), _MAX_DIMENSIONS))
    if not hasattr(found, "to_env"):
        raise CheckpointError(f"{plain.where} has parts in which no policy acts")
    return found


def _composite_from_plain(plain: StateReader, depth: int) -> Space:
    """Read a space of parts, which may have parts themselves down to a depth."""
    if plain.value("kind") not in _COMPOSITE or not depth:
        _one_of(plain, "kind", [kind for kind in _KINDS if kind not in ("Dict", "Joined")])
        return space_from_plain(plain)
    parts = plain.fields("spaces")
    read = [(name, _composite_from_plain(parts.fields(name), depth - 1)) for name in parts.names()]
    if plain.value("kind") == "Tuple":
        return spaces.Tuple([part for _, part in read])
    return spaces.Dict(read)  # pairs keep their order; `sort_keys` is of Gymnasium 1.4


def _one_of(plain: StateReader, name: str, accepted: Any) -> str:
    value = plain.string(name)
    if value not in accepted:
        raise plain.error(name, value, ", ".join(accepted))
    return value


def _shape(plain: StateReader, name: str) -> tuple[int, ...]:
    sizes = plain.listed(name)
    shape = tuple(sizes.integer(number) for number in sizes)
    if len(shape) > _MAX_DIMENSIONS:
        raise plain.error(name, plain.value(name), f"at most {_MAX_DIMENSIONS} dimensions")
    return shape


_KINDS: Mapping[str, Callable[[StateReader], Space]] = {
    "Box": _box_from_plain,
    "Discrete": lambda plain: spaces.Discrete(plain.integer("n", 1), start=plain.integer("start", -(2**53))),
    "MultiDiscrete": _multi_discrete_from_plain,
    "MultiBinary": lambda plain: spaces.MultiBinary(
        list(_shape(plain, "n")) if isinstance(plain.value("n"), list) else plain.integer("n", 1)
    ),
    "Dict": lambda plain: _composite_from_plain(plain, 1),
    "Joined": _joined_from_plain,
}
_COMPOSITE = ("Dict", "Tuple")

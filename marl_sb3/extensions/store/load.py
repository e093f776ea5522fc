"""Load the policies in a checkpoint, which is untrusted, to act without an env."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.core.acting import PolicyBundle, PolicySpaces
from marl_sb3.core.learners import PolicySpec, build_for_acting, policy_rows, processing_of, specs_of_checkpoint
from marl_sb3.core.mapping import PolicyMapping, PolicyRows, read_deterministic, read_mapping
from marl_sb3.core.processing import Processing
from marl_sb3.core.sb3 import Progress, read_weights, set_progress_remaining
from marl_sb3.core.state import Checkpoint, OfPolicy, StateReader, find_files, preserve_rng, store_of
from marl_sb3.core.vec_env import AgentGroup, MultiAgentVecEnv
from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.extensions.store.spaces import space_from_plain
from marl_sb3.types import PolicyID


def load_policies(
    path: str | Path,
    checkpoint: str | None = None,
    policies: Mapping[PolicyID, PolicySpec] | None = None,
    device: str = "auto",
    env: MultiAgentVecEnv | None = None,
) -> PolicyBundle:
    """Load the policies of a run or of a saved algorithm, to act without an env.

    Args:
        path: a run folder, one of its checkpoints, or what `MultiAgentAlgorithm.save` wrote.
        checkpoint: of a run folder: `best`, `latest` or the number of an iteration. None: the best; or the latest,
            where the sum of returns would decide and the agents' returns oppose each other. `checkpoint_why` of the
            result says in a sentence which one was taken, and why.
        policies: policy id -> spec; needed if a spec has classes or functions, which a checkpoint cannot hold.
        device: as in SB3.
        env: from `make_vec_env`, with the agents of the training; needed if a space is of a class of your own, which a
            checkpoint cannot hold.

    Raises:
        CheckpointError: there is no checkpoint, it is damaged, or it does not hold a space: `env` is needed.
        ConfigError: the checkpoint does not hold the spec of a policy: `policies` is needed.
    """
    return store_of(path).read(path, checkpoint, lambda found: read_bundle(found, policies, device, env))


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
    return PolicyBundle(
        algorithms,
        mapping.policy_of,
        spaces,
        processing,
        checkpoint.name,
        deterministic,
        checkpoint_why=checkpoint.why,
        candidates=mapping.varied,
    )


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
        algorithm = build_for_acting(rows, spec, processing, device)
    except (ConfigError, TypeError, ValueError, OverflowError, MemoryError, RuntimeError) as error:
        raise CheckpointError(f"{checkpoint.name}: {error}") from error
    read_weights(algorithm, files["policy"])()
    learner = StateReader(checkpoint.state).fields("policies").fields(rows.policy_id)
    env_steps = StateReader(checkpoint.state).fields("counters").integer("num_timesteps")
    set_progress_remaining(algorithm, Progress(learner.number("progress_remaining"), env_steps))  # for zips
    if hasattr(algorithm, "exploration_rate"):  # of DQN, for actions that are not deterministic
        algorithm.exploration_rate = learner.number("exploration_rate", 0.0, 1.0)
    return algorithm

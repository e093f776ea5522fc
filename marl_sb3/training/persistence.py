"""What a `MultiAgentAlgorithm` is made of, for a checkpoint, and how it is put back."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import lru_cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.bundle import require_policy_files, specs_of_checkpoint
from marl_sb3.learners.sb3.tensors import (
    Arrays,
    by_path,
    optimizer_arrays,
    optimizer_forms,
    require_weights,
    set_optimizers,
    set_weights,
    weight_forms,
    weights,
)
from marl_sb3.learners.sb3.zip_file import require_zippable
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.storage.checkpoint_format import Checkpoint, fits_into_state, optimizer_file, policy_file
from marl_sb3.storage.process_rng import random_state, set_random_state
from marl_sb3.storage.state import State, StateReader, is_plain
from marl_sb3.storage.tensor_file import require_storable
from marl_sb3.training.callback import callback_states
from marl_sb3.types import PolicyID

if TYPE_CHECKING:
    from marl_sb3.training.algorithm import MultiAgentAlgorithm

_log = logging.getLogger(__name__)

_LONGEST_ROLLOUT = 2**16  # steps; a checkpoint may come from a stranger, and buffers are made for as many


@lru_cache(maxsize=1)
def versions() -> State:
    """The versions with which a resumed run goes on exactly; with others it may not."""
    return {name: version(name) for name in ("marl_sb3", "stable-baselines3", "torch", "numpy")}


def state_of(algorithm: MultiAgentAlgorithm) -> State:
    """Everything but the tensors of policies and optimizers."""
    return {
        "num_envs": algorithm.env.num_envs,
        "n_steps": algorithm.n_steps,
        "evaluation_deterministic": algorithm.evaluation_deterministic,
        **_of_policies(algorithm),
        "counters": {**algorithm._counters.get_state(), "total_timesteps": algorithm._total_timesteps},
        **_running_episodes(algorithm),
        "tracker": algorithm.tracker.get_state(),
        "random": random_state(),
        "callbacks": {} if algorithm._callback is None else callback_states(algorithm._callback),
    }


def _running_episodes(algorithm: MultiAgentAlgorithm) -> State:
    """The envs in the middle of their episodes, or why they are left out."""
    state = algorithm._runner.get_env_state()
    if not is_plain(state):
        why = "the get_state() of the env returned something else than plain data"
    elif not fits_into_state(state):
        why = "the running episodes are too large for a checkpoint"
    else:
        return {"env": state}
    if not algorithm.episodes_left_out:
        algorithm.episodes_left_out = True
        _log.warning("inexact: %s: a training that is resumed from one begins new episodes", why)
    return {"env": None, "env_left_out": why}


def require_savable(algorithm: MultiAgentAlgorithm) -> None:
    """Refuse what could be trained and then not be saved.

    Raises:
        ConfigError: of which policy, and why.
    """
    for policy_id, policy in algorithm.policies.items():
        try:
            require_storable("its weights", weight_forms(policy))
            require_storable("its optimizer", by_path(optimizer_forms(policy)))
            require_zippable(policy)
        except CheckpointError as error:
            raise ConfigError(f"policy {policy_id!r} could not be saved: {error}", key="policies") from error
    if not fits_into_state(_of_policies(algorithm)):
        raise ConfigError(f"{len(algorithm.policies)} policies are more than a checkpoint can hold", key="policies")


def _of_policies(algorithm: MultiAgentAlgorithm) -> State:
    return {
        "policy_of": dict(algorithm.policy_of),
        "trained": [policy_id for policy_id, learner in algorithm._learners.items() if learner.trained],
        "spaces": algorithm.bundle().spaces_to_plain(),
        "specs": {policy_id: spec.to_plain() for policy_id, spec in algorithm._specs.items()},
        "policies": {policy_id: learner.get_state() for policy_id, learner in algorithm._learners.items()},
    }


def tensors_of(algorithm: MultiAgentAlgorithm) -> dict[str, Arrays]:
    """The tensors of each policy and of its optimizers, by file name."""
    tensors: dict[str, Arrays] = {}
    for number, policy in enumerate(algorithm.policies.values()):
        tensors[policy_file(number)] = weights(policy)
        tensors[optimizer_file(number)] = optimizer_arrays(policy)
    return tensors


def restore(algorithm: MultiAgentAlgorithm, checkpoint: Checkpoint) -> dict[int, str]:
    """See `MultiAgentAlgorithm.set_state`."""
    state = StateReader(checkpoint.state)
    _require_same_shape(algorithm, state)
    restore_weights(algorithm, checkpoint)
    same_envs = state.integer("num_envs", 1) == algorithm.env.num_envs
    policies = state.fields("policies")
    for number, (policy_id, learner) in enumerate(algorithm._learners.items()):
        own, file = policies.fields(policy_id), optimizer_file(number)
        set_optimizers(learner.algorithm, checkpoint.tensors[file], own.value("optimizers"), file)
        learner.set_state(own, same_envs=same_envs)
    _set_counters(algorithm, state.fields("counters"))
    algorithm.tracker.set_state(state.fields("tracker"), same_envs=same_envs)
    algorithm._callback_states = state.fields("callbacks")
    inexact = _set_env(algorithm, state)
    set_random_state(state.fields("random"))  # last: nothing may draw after it
    return inexact


def restore_weights(algorithm: MultiAgentAlgorithm, checkpoint: Checkpoint) -> None:
    """See `MultiAgentAlgorithm.set_weights`."""
    StateReader(checkpoint.state).fields("policies").require_names(list(algorithm.policies))
    require_policy_files(checkpoint, len(algorithm.policies))
    by_file = {policy_file(number): policy for number, policy in enumerate(algorithm.policies.values())}
    for change in (require_weights, set_weights):  # all of them are looked at before the first is changed
        for file, policy in by_file.items():
            change(policy, checkpoint.tensors[file], file)


def _require_same_shape(algorithm: MultiAgentAlgorithm, state: StateReader) -> None:
    policy_of = state.fields("policy_of")
    policy_of.require_names(list(algorithm.policy_of))
    for agent, policy_id in algorithm.policy_of.items():
        if policy_of.string(agent) != policy_id:
            raise policy_of.error(agent, policy_of.string(agent), policy_id)
    if state.integer("n_steps") != algorithm.n_steps:
        raise state.error("n_steps", state.integer("n_steps"), str(algorithm.n_steps))


def _set_counters(algorithm: MultiAgentAlgorithm, counters: StateReader) -> None:
    algorithm._counters.set_state(counters)
    total = counters.value("total_timesteps")
    algorithm._total_timesteps = None if total is None else counters.integer("total_timesteps", 1)
    algorithm.between_iterations = True


def _set_env(algorithm: MultiAgentAlgorithm, state: StateReader) -> dict[int, str]:
    algorithm._runner.forget_episodes()
    theirs, ours = state.integer("num_envs"), algorithm.env.num_envs
    if theirs != ours:
        return _begin_anew(algorithm, f"the checkpoint is of {theirs} envs, here are {ours}")
    if "env_left_out" in state:
        return _begin_anew(algorithm, state.string("env_left_out"))
    if state.value("env") is None:
        return {}
    return algorithm._runner.set_env_state(state.fields("env"))


def _begin_anew(algorithm: MultiAgentAlgorithm, why: str) -> dict[int, str]:
    """The next rollout begins new episodes: others than those of the first one."""
    if algorithm.seed is not None:
        seeds = np.random.SeedSequence(algorithm.seed, spawn_key=(algorithm.num_timesteps,))
        algorithm.env.seed(int(seeds.generate_state(1)[0]))
    return dict.fromkeys(range(algorithm.env.num_envs), why)


def constructor_arguments(
    checkpoint: Checkpoint, policies: Mapping[PolicyID, PolicySpec] | None, n_steps: int | None
) -> dict[str, Any]:
    """What the constructor of the algorithm in a checkpoint has to be given.

    Args:
        checkpoint: the checkpoint; it may come from a stranger.
        policies: what the caller says that they are.
        n_steps: what the caller says that it is.

    Raises:
        CheckpointError: the checkpoint does not say, or what it says makes no policy.
        ConfigError: policies were made of classes or functions, and `policies` is None.
    """
    state = StateReader(checkpoint.state)
    policy_of = state.fields("policy_of")
    trained = StateReader(dict(enumerate(state.items("trained"))), f"{state.where}/trained")
    return {
        "policies": policies or specs_of_checkpoint(checkpoint),
        "policy_mapping_fn": {agent: policy_of.string(agent) for agent in policy_of.names()},
        "policies_to_train": [trained.string(number) for number in trained],
        "n_steps": n_steps or _rollout_length(state),
        "evaluation_deterministic": state.boolean("evaluation_deterministic"),
    }


def _rollout_length(state: StateReader) -> int:
    n_steps = state.integer("n_steps", 1)
    if n_steps > _LONGEST_ROLLOUT:
        raise state.error(
            "n_steps", n_steps, f"at most {_LONGEST_ROLLOUT}; if you trust the file, pass n_steps={n_steps}"
        )
    return n_steps

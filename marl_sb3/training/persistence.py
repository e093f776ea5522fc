"""Save and restore the parts of a training: the names and the order of the parts in a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from marl_sb3.learners.learner import Learner
from marl_sb3.metrics import EpisodeTracker
from marl_sb3.runners.runner import Runner
from marl_sb3.storage.checkpoint_format import Checkpoint, OfPolicy, by_file, find_files
from marl_sb3.storage.parts import Arrays, Part, SavedPart, in_order
from marl_sb3.storage.process_rng import ProcessRandomness
from marl_sb3.storage.state import State, StateReader
from marl_sb3.training.callback import CallbackStates
from marl_sb3.training.loop import Counters
from marl_sb3.training.setup import Setup
from marl_sb3.types import PolicyID

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainingParts:
    """All parts with a state, which a resumed training needs besides its `Setup`."""

    learners: Mapping[PolicyID, Learner]
    runner: Runner
    tracker: EpisodeTracker
    counters: Counters
    callbacks: CallbackStates = field(default_factory=CallbackStates)
    randomness: ProcessRandomness = field(default_factory=ProcessRandomness)

    def by_name(self) -> dict[str, Part]:
        """Return the parts without tensors, by their names in a checkpoint."""
        return {
            "env": self.runner,
            "tracker": self.tracker,
            "counters": self.counters,
            "callbacks": self.callbacks,
            "random": self.randomness,
        }


def state_of(setup: Setup, parts: TrainingParts) -> State:
    """Return the whole state except for the tensors of learners."""
    return {
        **setup.to_plain(),
        "policies": {policy_id: learner.get_state() for policy_id, learner in parts.learners.items()},
        **{name: part.get_state() for name, part in parts.by_name().items()},
    }


def tensors_of(parts: TrainingParts) -> dict[str, Arrays]:
    """Return the tensors of learners by file name."""
    return by_file(learner.get_tensors() for learner in parts.learners.values())


def restore(setup: Setup, parts: TrainingParts, checkpoint: Checkpoint, seed: int | None) -> dict[int, str]:
    """Restore all parts from a checkpoint. If a part does not accept its state, nothing is changed.

    Args:
        seed: the run seed, for envs that begin new episodes.

    Returns:
        Env index -> reason, for every env that could not be restored exactly; it has begun its next episode.

    Raises:
        CheckpointError: the checkpoint does not fit the training.
    """
    state = StateReader(checkpoint.state)
    setup.require_same(state)
    num_envs, policies = state.integer("num_envs", 1), state.fields("policies")
    put_envs = parts.runner.read_state(SavedPart.of(state, "env", num_envs))
    put_random = parts.randomness.read_state(SavedPart.of(state, "random", num_envs))
    setters: list[Callable[[], object]] = [
        parts.learners[policy_id].read_state(SavedPart.of(policies, policy_id, num_envs, files))
        for policy_id, files in _files(parts, checkpoint).items()
    ]
    for name in ("tracker", "counters", "callbacks"):
        setters.append(parts.by_name()[name].read_state(SavedPart.of(state, name, num_envs)))
    lost = dict(put_envs())  # first: a user's env may refuse its saved state
    in_order(setters)()
    parts.runner.restart_lost(lost, _seed_of_new_episodes(seed, parts.counters.env_steps))
    put_random()  # last: no random numbers may be drawn afterwards
    return lost


def restore_weights(parts: TrainingParts, checkpoint: Checkpoint) -> None:
    """Restore only the weights, and the statistics by which observations are normalised for them.

    If anything does not fit, nothing is changed.

    Raises:
        CheckpointError: the policies or their layers differ.
    """
    files, saved = _files(parts, checkpoint), StateReader(checkpoint.state).fields("policies")
    setters: list[Callable[[], object]] = []
    for policy_id, learner in parts.learners.items():
        setters.append(learner.read_weights(files[policy_id]))
        setters.append(learner.processing.read_state(saved.fields(policy_id).fields("processing")))
    in_order(setters)()


def _files(parts: TrainingParts, checkpoint: Checkpoint) -> dict[PolicyID, OfPolicy]:
    policies = StateReader(checkpoint.state).fields("policies")
    policies.require_names(list(parts.learners))
    found = find_files(checkpoint.tensors, checkpoint.name, len(parts.learners))
    return dict(zip(parts.learners, found, strict=True))


def _seed_of_new_episodes(seed: int | None, env_steps: int) -> int | None:
    """Return a seed for new episodes that differ from those of the first rollout."""
    return None if seed is None else int(np.random.SeedSequence(seed, spawn_key=(env_steps,)).generate_state(1)[0])


def warn_of_inexact(envs: Mapping[int, str], num_envs: int) -> None:
    """Log a line for each reason why envs could not be restored exactly."""
    for why in dict.fromkeys(envs.values()):
        those = [str(index) for index, reason in envs.items() if reason == why]
        which = "all envs" if len(those) == num_envs else f"envs {', '.join(those)}" if those[1:] else f"env {those[0]}"
        _log.warning("inexact: new episodes begin in %s: %s", which, why)

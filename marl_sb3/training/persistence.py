"""The parts of a training: their names in a checkpoint, and the order in which they are restored."""

from __future__ import annotations

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
from marl_sb3.types import PolicyID


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

    def get_state(self) -> State:
        """Return the whole state except for the tensors of learners."""
        return {
            "policies": {policy_id: learner.get_state() for policy_id, learner in self.learners.items()},
            **{name: part.get_state() for name, part in self.by_name().items()},
        }

    def get_tensors(self) -> dict[str, Arrays]:
        """Return the tensors of learners by file name."""
        return by_file(learner.get_tensors() for learner in self.learners.values())

    def restore(self, checkpoint: Checkpoint, seed: int | None) -> dict[int, str]:
        """Restore all parts from a checkpoint. If a part does not accept its state, nothing is changed.

        Args:
            checkpoint: of a training with the same `Setup`.
            seed: the run seed, for envs that begin new episodes.

        Returns:
            Env index -> reason, for every env that could not be restored exactly; it has begun its next episode.

        Raises:
            CheckpointError: the checkpoint does not fit the training.
        """
        state = StateReader(checkpoint.state)
        num_envs, policies = state.integer("num_envs", 1), state.fields("policies")
        put_envs = self.runner.read_state(SavedPart.of(state, "env", num_envs))
        setters: list[Callable[[], object]] = [
            self.learners[policy_id].read_state(SavedPart.of(policies, policy_id, num_envs, files))
            for policy_id, files in self._files(checkpoint).items()
        ]
        for name, each in self.by_name().items():  # `random` last: no numbers may be drawn afterwards
            if each is not self.runner:
                setters.append(each.read_state(SavedPart.of(state, name, num_envs)))
        lost = dict(put_envs())  # first: a user's env may refuse its saved state
        *put_others, put_random = setters
        in_order(put_others)()
        # Other episodes begin than those of the first rollout.
        self.runner.restart_lost(lost, None if seed is None else derived_seed(seed, self.counters.env_steps))
        put_random()
        return lost

    def restore_weights(self, checkpoint: Checkpoint) -> None:
        """Restore only the weights, and the statistics by which observations are normalised for them.

        If anything does not fit, nothing is changed.

        Raises:
            CheckpointError: the policies or their layers differ.
        """
        files, saved = self._files(checkpoint), StateReader(checkpoint.state).fields("policies")
        setters: list[Callable[[], object]] = []
        for policy_id, learner in self.learners.items():
            setters.append(learner.read_weights(files[policy_id]))
            setters.append(learner.processing.read_state(saved.fields(policy_id).fields("processing")))
        in_order(setters)()

    def _files(self, checkpoint: Checkpoint) -> dict[PolicyID, OfPolicy]:
        StateReader(checkpoint.state).fields("policies").require_names(list(self.learners))
        found = find_files(checkpoint.tensors, checkpoint.name, len(self.learners))
        return dict(zip(self.learners, found, strict=True))


def derived_seed(seed: int, number: int) -> int:
    """Return one of many seeds that follow from a seed."""
    return int(np.random.SeedSequence(seed, spawn_key=(number,)).generate_state(1)[0])

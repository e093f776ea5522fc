"""Exploration by an object: it chooses the actions of a policy in a training, from the outputs of its network."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.core.acting.policy import Decision, ExploringPolicy, Policy, PolicyInputs, RolloutPolicy
from marl_sb3.core.config.algorithms import Decay, Points
from marl_sb3.core.config.values import PositiveFloat
from marl_sb3.core.learners.learner import LearnerOptions, LearnerPart
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.sb3.inference import distribution, log_prob, q_values
from marl_sb3.core.sb3.schedules import Progress, make_schedule
from marl_sb3.core.state.randomness import generator_state, set_generator_state
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.errors import ConfigError, shown
from marl_sb3.types import Array, BoolArray, FloatArray


class Exploration:
    """Chooses the actions of a policy in training; `PolicySpec(exploration=...)` takes an object of a subclass.

    Each policy of a training gets a copy of the object.
    """

    # the generator of its random numbers, which follows from the seed of the run. Its state is in checkpoints.
    rng: np.random.Generator

    def choose(self, outputs: FloatArray, masks: BoolArray | None, progress: Progress) -> Array:
        """Choose an action for each row.

        Args:
            outputs: (rows, choices) Q values, with QRDQN their means over the quantiles; or the logits of a policy that
                learns from rollouts.
            masks: (rows, choices) bool, True where an action is allowed; None: the env gives none.
            progress: of the training, as schedules take it; `progress.env_steps` is a count.

        Returns:
            (rows,) integers from 0 to choices - 1.
        """
        raise NotImplementedError

    @property
    def learner_part(self) -> type[LearnerPart]:
        """The part of a learner that acts by the object."""
        return Explorer

    def get_state(self) -> State:
        """Return what a resumed training needs besides the state of `rng`, as plain data."""
        return {}

    def set_state(self, state: StateReader) -> None:
        """Take over what `get_state` returned; the data is untrusted."""


class SoftQ(Exploration):
    """Draws actions from softmax(outputs / temperature): Boltzmann exploration (Sutton and Barto 2018, section 2.8).

    Args:
        temperature: a number above 0, or a schedule as of a learning rate. At 0, where `lin_X` ends, the largest output
            is chosen.
    """

    def __init__(self, temperature: Any = 1.0) -> None:
        self._temperature = make_schedule(temperature, "temperature", PositiveFloat | Decay | Points)

    @override
    def choose(self, outputs: FloatArray, masks: BoolArray | None, progress: Progress) -> Array:
        # The argmax of x + T g, with g from Gumbel's distribution, is a sample of softmax(x / T).
        drawn = outputs + self._temperature(progress) * self.rng.gumbel(size=outputs.shape)
        actions: Array = (drawn if masks is None else np.where(masks, drawn, -np.inf)).argmax(axis=1)
        return actions


class Explorer(LearnerPart):
    """A copy of an `Exploration`, which chooses the actions of a learner's policy, and is a part of checkpoints.

    Raises:
        ConfigError: a checkpoint could not hold its state; or it cannot choose for this algorithm and these actions, or
            in shards.
    """

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        self.exploration, self._progress = deepcopy(spec.exploration), options.progress_remaining
        name = type(self.exploration).__name__
        self.exploration.rng = np.random.default_rng(spawned(seed, Stream.EXPLORATION))
        if not is_plain(self.exploration.get_state()):
            words = "does not return plain data: numbers, strings, NumPy arrays, and lists and mappings of these"
            raise ConfigError(f"{name}.get_state() {words}", key="exploration")
        policy = _choosing_policy(learner.actor.policy, self) if options.experience.acts_here else None
        if policy is None:
            algorithm = learner.algorithm
            why = f"with {type(algorithm).__name__} and actions {algorithm.action_space}"
            words = f"exploration is {name} {why if options.experience.acts_here else 'in shards or on Ray'}"
            accepted = "DQN, QRDQN, or an algorithm with rollouts and without memory, with Discrete actions; no shards"
            raise ConfigError(f"policy {learner.policy_id!r}: {words}; accepted: {accepted}", key="exploration")
        learner.actor.policy = policy
        self.states = {"exploration": self}

    def choose(self, outputs: FloatArray, masks: BoolArray | None) -> Array:
        """Return (rows,) int64 actions for (rows, choices) outputs.

        Raises:
            ConfigError: the object returned something else.
        """
        rows, choices = outputs.shape
        actions: Array = np.asarray(self.exploration.choose(outputs, masks, self._progress()))
        right = actions.shape == (rows,) and actions.dtype.kind in "iu"
        if not right or (rows and not 0 <= actions.min() <= actions.max() < choices):
            accepted = f"an array of {rows} integers from 0 to {choices - 1}"
            words = f"{type(self.exploration).__name__}.choose() returned {shown(actions)}; accepted: {accepted}"
            raise ConfigError(words, key="exploration")
        return actions.astype(np.int64)

    def get_state(self) -> State:
        """See `Part.get_state`."""
        return {"random": generator_state(self.exploration.rng), "own": self.exploration.get_state()}

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """See `Part.read_state`; the object takes over its state as a copy of it, which then replaces it."""
        saved.require_names(["random", "own"])
        restored = deepcopy(self.exploration)
        set_generator_state(restored.rng, saved, "random")
        restored.set_state(saved.fields("own"))
        return lambda: setattr(self, "exploration", restored)


# --- Policies --------------------------------------------------------------------------------------------------------


class _ChoosingByValues(ExploringPolicy):
    """Acts as DQN and QRDQN do, but an `Explorer` chooses the actions after `learning_starts`."""

    def __init__(self, replaced: ExploringPolicy, explorer: Explorer) -> None:
        super().__init__(replaced.algorithm, None, replaced.warms_up)
        self.takes_masks, self.needs_masks = True, replaced.takes_masks and replaced.needs_masks
        self._explorer = explorer

    @override
    def _chosen_by_policy(self, inputs: PolicyInputs) -> Array:
        return self._explorer.choose(q_values(self.algorithm, inputs.observations, None), inputs.masks)


class _ChoosingByLogits(RolloutPolicy):
    """Acts in rollouts; an `Explorer` chooses the actions, whose log-probabilities are those of the policy."""

    def __init__(self, replaced: RolloutPolicy, explorer: Explorer) -> None:
        super().__init__(replaced.algorithm)
        self.takes_masks, self.needs_masks = True, replaced.takes_masks
        self._explorer = explorer

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        masks = inputs.masks if self.needs_masks else None
        of_policy = distribution(self.algorithm, inputs.observations, (), inputs.starts, masks)
        of_choices: Any = of_policy.distribution
        actions = self._explorer.choose(of_choices.logits.cpu().numpy(), inputs.masks)
        log_probs = log_prob(self.algorithm, of_policy, actions)
        return Decision(actions, (), actions, self.values(inputs), log_probs)


def _choosing_policy(policy: Policy, explorer: Explorer) -> Policy | None:
    """Return a policy like this one whose actions the explorer chooses; None if its outputs are not one per action."""
    network = policy.algorithm.policy
    if not isinstance(policy.algorithm.action_space, spaces.Discrete):
        return None
    if type(policy) is ExploringPolicy and (hasattr(network, "q_net") or hasattr(network, "quantile_net")):
        return _ChoosingByValues(policy, explorer)
    if type(policy) is RolloutPolicy and hasattr(network, "get_distribution"):
        return _ChoosingByLogits(policy, explorer)
    return None

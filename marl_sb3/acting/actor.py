"""Act for the rows of a policy: the only code that handles waiting rows, recurrent state, noise and masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.errors import ConfigError
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import RowProcessing
from marl_sb3.sb3.inference import States, initial_states, predict, takes_masks
from marl_sb3.sb3.noise import (
    draw_noise,
    is_noise_due,
    noise,
    noise_of_rows,
    uses_noise,
)
from marl_sb3.storage.parts import Fields, Stateful, array, arrays
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays
from marl_sb3.vec_env.step import VecStep

_ACCEPTED = (
    "masks in infos[agent]['action_mask'], in observations {observation, action_mask}, or from action_masks() of a "
    "Gymnasium env"
)


def required_masks(rows: PolicyRows, step: VecStep, algorithm: str) -> BoolArray | None:
    """Return the (rows, n) masks of a step; None if the env gives none and no agent of the policy acts next.

    Args:
        algorithm: the name of the algorithm that needs them.

    Raises:
        ConfigError: an agent acts next, and the env gives no masks.
    """
    masks = rows.masks(step.action_masks)
    if masks is None and rows.of_agents(step.to_act).any():
        agents = ", ".join(rows.agents)
        words = f"action masks missing for {algorithm}: the env gives none for {agents}; accepted: {_ACCEPTED}"
        raise ConfigError(f"policy {rows.policy_id!r}: {words}", key="algo")
    return masks


class Batch(NamedTuple):
    """The inputs of a policy for some rows.

    Attributes:
        observations: (rows, ...).
        starts: (rows,) bool; True where an episode starts: the recurrent state is not used there.
        masks: (rows, n) bool, True where an action is allowed; None: all are allowed, or the policy takes no masks.
        states: recurrent state, (layers, rows, size) each; () for a policy without memory.
    """

    observations: Observations
    starts: BoolArray
    masks: BoolArray | None
    states: States

    def of_rows(self, wanted: BoolArray) -> Batch:
        """Return the batch of the rows where `wanted`, (rows,) bool, is True."""
        return Batch(
            map_arrays(lambda array: array[wanted], self.observations),
            self.starts[wanted],
            None if self.masks is None else self.masks[wanted],
            tuple(array[:, wanted] for array in self.states),
        )


class Decision(Protocol):
    """A tuple of arrays, (rows, ...) each: the actions as the env takes them, and what the learner needs of them."""

    @property
    def actions(self) -> Array:
        """(rows, *action shape), as the env takes them."""

    def __iter__(self) -> Iterator[Array]: ...


D_co = TypeVar("D_co", bound=Decision, covariant=True)


class Decider(Protocol[D_co]):
    """Chooses the actions of a batch of rows that act."""

    @property
    def takes_masks(self) -> bool:
        """Whether the policy uses action masks."""

    def initial_states(self, rows: int) -> States:
        """Return the recurrent state of `rows` rows at the start of an episode; () without memory."""

    def decide(self, batch: Batch) -> tuple[D_co, States]:
        """Choose actions.

        Returns:
            The decision, and the new recurrent states.
        """

    def no_decision(self, rows: int) -> D_co:
        """Return a decision of zeros for `rows` rows that do not act."""


class Actions(NamedTuple):
    """A decision of actions alone: no learner records anything else of it."""

    actions: Array


class PredictDecider:
    """Chooses actions by SB3's `predict`: for everything but training.

    Args:
        deterministic: the most likely actions instead of sampled ones.
    """

    def __init__(self, algorithm: BaseAlgorithm, deterministic: bool) -> None:
        self.takes_masks = takes_masks(algorithm)
        self._algorithm = algorithm
        self._deterministic = deterministic

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        return initial_states(self._algorithm, rows)

    def decide(self, batch: Batch) -> tuple[Actions, States]:
        """See `Decider.decide`."""
        observations, starts, masks, states = batch
        actions, after = predict(self._algorithm, observations, states, starts, masks, self._deterministic)
        return Actions(actions), after

    def no_decision(self, rows: int) -> Actions:
        """See `Decider.no_decision`."""
        return Actions(zero_actions_of(self._algorithm, rows))


def zero_actions_of(algorithm: BaseAlgorithm, rows: int) -> Array:
    """(rows, *action shape) zeros."""
    space = algorithm.action_space
    return np.zeros((rows, *(space.shape or ())), dtype=space.dtype)


D = TypeVar("D", bound=Decision)


class RowActor(Stateful, Generic[D]):
    """Acts for the rows of one policy, in training and in evaluations; owns their recurrent state.

    The recurrent state of a row is reset where an episode of its agent starts, and does not change while the agent
    waits.

    Attributes:
        rows: the rows of the policy.
        step: steps since the rollout began.
        starts: (rows,) bool; True where an episode starts with the next action. Never changed in place.
        states: recurrent state before the next action, (layers, rows, size) each; () for a policy without memory. Never
            changed in place.
    """

    starts: BoolArray
    states: States

    def __init__(self, rows: PolicyRows, algorithm: BaseAlgorithm, decider: Decider[D]) -> None:
        self.rows = rows
        self.step = 0
        self._algorithm = algorithm
        self._decider = decider
        self.begin_episodes()

    @property
    def takes_masks(self) -> bool:
        """Whether the policy uses action masks; if not, it ignores them."""
        return self._decider.takes_masks

    @property
    def algorithm_name(self) -> str:
        """The name of the algorithm's class."""
        return type(self._algorithm).__name__

    # --- Episodes and rollouts ---------------------------------------------------------------------------------------

    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""
        self.starts = np.ones(self.rows.num_rows, dtype=bool)
        self.states = self._decider.initial_states(self.rows.num_rows)

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """Note that these envs have begun new episodes."""
        self.end_episodes(self.rows.of_envs(env_indices))

    def end_episodes(self, ended: BoolArray) -> None:
        """Note that episodes of agents have ended: (rows,) bool. Their next actions start new episodes."""
        self.starts = self.starts | ended

    def begin_rollout(self) -> None:
        """Draw new exploration noise if the policy uses noise."""
        self.step = 0
        if uses_noise(self._algorithm):
            draw_noise(self._algorithm, self.rows.num_rows)

    # --- Acting ------------------------------------------------------------------------------------------------------

    def act(self, observations: Observations, acting: BoolArray, masks: BoolArray | None = None) -> D:
        """Choose actions.

        Args:
            observations: (rows, ...); filler in rows that wait, which the policy does not see.
            acting: (rows,) bool; the rows that act. The decision is zeros in the others.
            masks: (rows, n) bool, True where an action is allowed; None: all actions are allowed.
        """
        if uses_noise(self._algorithm) and is_noise_due(self._algorithm, self.step):
            draw_noise(self._algorithm, self.rows.num_rows)
        batch = Batch(observations, self.starts, masks if self.takes_masks else None, self.states)
        if np.count_nonzero(acting) == len(acting):  # a quarter of the time of `all`
            decision, self.states = self._decider.decide(batch)
        else:
            decision = self._decide_for_some(batch, acting)
        self.starts = self.starts & ~acting
        self.step += 1
        return decision

    def _decide_for_some(self, batch: Batch, acting: BoolArray) -> D:
        """Show the policy only the rows that act: filler observations of waiting rows need not lie in the space."""
        decision = self._decider.no_decision(len(acting))
        if acting.any():
            with noise_of_rows(self._algorithm.policy, acting):
                decided, states = self._decider.decide(batch.of_rows(acting))
            for everywhere, chosen in zip(decision, decided, strict=True):
                everywhere[acting] = chosen
            self._put_states(states, acting)
        return decision

    def _put_states(self, states: States, acting: BoolArray) -> None:
        self.states = tuple(array.copy() for array in self.states)
        for everywhere, of_acting in zip(self.states, states, strict=True):
            everywhere[:, acting] = of_acting

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {"starts": array("starts"), "states": arrays("states"), "noise": noise("_algorithm")}


class Player:
    """Chooses actions of the env from observations of the env.

    Args:
        actor: acts for the rows, in episodes that have just begun.
        processing: of their observations and actions; its running statistics stand still.

    Attributes:
        rows: the rows.
    """

    def __init__(self, actor: RowActor[Actions], processing: RowProcessing) -> None:
        self.rows: PolicyRows = actor.rows
        self._actor = actor
        self._processing = processing
        actor.begin_rollout()

    def act(self, step: VecStep) -> Array:
        """`(rows, *action shape)` for the latest step; rows that do not act hold filler that no env reads.

        Raises:
            ConfigError: the policy needs action masks, and the env gives none.
        """
        acting = self.rows.of_agents(step.to_act)
        masks = required_masks(self.rows, step, self._actor.algorithm_name) if self._actor.takes_masks else None
        decision = self._actor.act(self._processing.look(step), acting, masks)
        return self._processing.act(decision.actions, acting)

    def observe(self, step: VecStep) -> None:
        """Note the rewards and ends of a step."""
        self._processing.observe(step)
        self._actor.end_episodes(self.rows.of_agents(step.terminated | step.truncated))

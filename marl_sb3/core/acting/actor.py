"""Act for the rows of a policy: the only code that handles waiting rows, recurrent state, noise and masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from stable_baselines3.common.vec_env import VecTransposeImage
from typing_extensions import override

from marl_sb3.core.acting.policy import Decision, Policy, PolicyInputs
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.processing.processing import RescaleActions
from marl_sb3.core.processing.rows import RowProcessing
from marl_sb3.core.sb3.inference import States, noise, noise_of_rows, uses_noise
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Fields, Stateful, array, part, scalar
from marl_sb3.core.vec_env.observations import ZeroBased, map_arrays, pairs, with_rows
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError, NumericError
from marl_sb3.types import Array, BoolArray, Observations, PolicyID


class Acted(NamedTuple):
    """What the rows of a policy did in a step."""

    acting: BoolArray  # (rows,) bool; the rows that acted. The other attributes hold filler for all others.
    seen: Observations  # (rows, ...) observations as the learner keeps them: not normalised if that is done later
    inputs: PolicyInputs  # what the policy was shown
    decision: Decision  # what it chose
    actions: Array  # (rows, *action shape), as the env takes them
    step: VecStep  # the latest one, on whose observations the policy acted
    stepping: BoolArray | None = None  # (rows,) bool; the rows whose env takes a step, where some may not; None: all


class Observed(NamedTuple):
    """What came of a step for the rows of a policy, whether or not they acted."""

    step: VecStep  # the step
    rewards: Array  # (rows,) float32, processed
    ended: BoolArray  # (rows,) bool; the rows whose agents were terminated or truncated


class ActingWatcher(Protocol):
    """Sees what all policies do in all envs: recorders of episodes, and hooks of them.

    Envs and policies reuse the memory of the arrays: a watcher copies what it keeps until the next call.
    """

    def begin_episodes(self, step: VecStep) -> None:
        """Called with the reset of all envs."""

    def before_step(self, step: VecStep, acted: Mapping[PolicyID, Acted], actions: Sequence[Array]) -> None:
        """Called when all policies have chosen, before the envs are stepped.

        Args:
            step: the latest step, on whose observations the policies have acted.
            acted: policy id -> what its rows did.
            actions: per group, (E, A_group, *action shape), as the envs get them.
        """

    def after_step(self, step: VecStep) -> None:
        """Called with the step that followed, before the policies learn of it."""

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """Called when these envs have begun new episodes, because the running ones could not be restored."""


class Actor(Stateful):
    """Acts for the rows of one policy, in training and in evaluations; owns their recurrent state.

    The recurrent state of a row is reset where an episode of its agent starts, and does not change while the agent
    waits. In every step of the envs `act` is called before it, and `observe` after it.

    Args:
        rows: the rows of the policy.
        policy: chooses the actions.
        processing: what is done to the rows' observations, rewards and actions.
        bootstraps: whether the rewards of agents that are truncated go on with the values of their final observations.
    """

    fields: ClassVar[Fields] = {
        "step": scalar("step"),
        "starts": array("starts"),
        "states": array("states"),
        "noise": noise("policy.algorithm"),
        "row_noise": part("policy.row_noise"),
        "processing": part("processing"),
    }

    starts: BoolArray  # (rows,) bool; True where an episode starts with the next action. Never changed in place.
    # recurrent state before the next action, (layers, rows, size) each; () for a policy without memory. Never changed
    # in place.
    states: States

    def __init__(self, rows: PolicyRows, policy: Policy, processing: RowProcessing, bootstraps: bool = False) -> None:
        self.rows = rows
        self.policy = policy
        self.processing = processing
        self._bootstraps = bootstraps
        env = trait(policy.algorithm, "env") if policy.transposes_images else None
        self._image_env: Any = env if isinstance(env, VecTransposeImage) else None
        self._uses_noise, self._no_starts = uses_noise(policy.algorithm), np.zeros(rows.num_rows, dtype=bool)
        self.step = 0  # steps since the rollout began
        self.begin_episodes()

    # --- Episodes and rollouts ---------------------------------------------------------------------------------------

    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""
        self.starts = np.ones(self.rows.num_rows, dtype=bool)
        self.states = self.policy.initial_states(self.rows.num_rows)
        self.processing.begin_episodes()
        self._reset_row_noise(self.starts)

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """Note that these envs have begun new episodes."""
        lost = self.rows.of_envs(env_indices)
        self.starts = self.starts | lost
        self.processing.restart_envs(env_indices)
        self._reset_row_noise(lost)

    def begin_rollout(self) -> None:
        """Draw new exploration noise if the policy uses gSDE."""
        self.step = 0
        algorithm = self.policy.algorithm
        if _in_training_mode(algorithm.policy):  # to look takes a tenth of the time
            algorithm.policy.set_training_mode(False)
        if self._uses_noise:
            with not_finite_refused(self.rows.policy_id, "rollout"):
                algorithm.policy.reset_noise(self.rows.num_rows)

    def _reset_row_noise(self, rows: BoolArray) -> None:
        if self.policy.row_noise is not None:
            self.policy.row_noise.reset(rows)

    # --- Acting ------------------------------------------------------------------------------------------------------

    def act(self, step: VecStep) -> Acted:
        """Choose the actions that follow a step.

        Raises:
            ConfigError: the policy needs action masks, an agent acts next, and the env gives none.
            NumericError: the policy's network gives NaN or infinity.
        """
        acting = self.rows.of_agents(step.to_act)
        seen = self.processing.processed_observations(step)
        if self._image_env is not None:
            seen = self._image_env.transpose_observations(seen)
        late = self.processing.late_normalizer
        shown = seen if late is None else late.normalized(seen)
        inputs = PolicyInputs(shown, self.starts, self.masks(step) if self.policy.takes_masks else None, self.states)
        try:
            decision = self.decide(inputs, acting)
        except ValueError as error:
            _refuse_not_finite(error, self.rows.policy_id, f"rollout, step {self.step}")
            raise
        if step.chosen:
            decision = self._with_chosen(step, inputs, decision)
        self.processing.acted(decision.actions, acting)
        actions = env_actions(decision.actions, self.processing.rescale, self.rows.zero_based_actions)
        stepping = step.to_act.any(axis=1).repeat(len(self.rows.agents)) if self.rows.steps_apart else None
        return Acted(acting, seen, inputs, decision, actions, step, stepping)

    def _with_chosen(self, step: VecStep, inputs: PolicyInputs, decision: Decision) -> Decision:
        """Put the actions that clients have chosen themselves in place of the policy's."""
        policy_id, columns, policy = self.rows.policy_id, self.rows.agent_columns, self.policy
        chosen = {
            env_index * len(columns) + columns.index(column): action
            for (env_index, column), action in step.chosen.items()
            if column in columns
        }
        if not chosen:
            return decision
        rows = np.array(list(chosen))
        of_env = self.rows.zero_based_actions.from_env(np.stack([np.asarray(action) for action, _ in chosen.values()]))
        of_policy = of_env if self.processing.rescale is None else self.processing.rescale.reverse(of_env)
        actions = decision.actions.copy()
        actions[rows] = of_policy.reshape(len(rows), *actions.shape[1:])
        learned, log_probs = policy.learned(actions), decision.log_probs
        if decision.learned is None:
            return decision._replace(actions=actions)
        others = np.ones(len(actions), dtype=np.bool_)
        others[rows] = False
        learned = np.where(others.reshape(-1, *[1] * (learned.ndim - 1)), decision.learned, learned)
        if log_probs is not None:
            given = [log_prob for _, log_prob in chosen.values()]
            if None in given:
                words = "its algorithm learns from the log-probabilities of its own actions, and clients have sent none"
                accepted = "log_probs beside actions, actions that the policy is asked for, or an off-policy algorithm"
                raise ConfigError(f"policy {policy_id!r}: {words}; accepted: {accepted}")
            log_probs = log_probs.copy()
            log_probs[rows] = given
        return decision._replace(actions=actions, learned=learned, log_probs=log_probs)

    def observations(self, step: VecStep) -> Observations:
        """(rows, ...) observations of a step as the learner keeps them; filler in rows that wait."""
        return self._transposed(self.processing.processed_observations(step))

    def _transposed(self, observations: Observations) -> Observations:
        return observations if self._image_env is None else self._image_env.transpose_observations(observations)

    def masks(self, step: VecStep) -> BoolArray | None:
        """Return the (rows, n) masks of a step; None if the env gives none.

        Raises:
            ConfigError: the policy needs masks, one of its agents acts next, and the env gives none.
        """
        masks = self.rows.masks(step.action_masks)
        if masks is None and self.policy.needs_masks and self.rows.of_agents(step.to_act).any():
            agents, algorithm = ", ".join(self.rows.agents), type(self.policy.algorithm).__name__
            accepted = (
                "masks in infos[agent]['action_mask'], in observations {observation, action_mask}, or from "
                "action_masks() of a Gymnasium env"
            )
            words = f"action masks missing for {algorithm}: the env gives none for {agents}; accepted: {accepted}"
            raise ConfigError(f"policy {self.rows.policy_id!r}: {words}", key="algo")
        return masks

    def decide(self, inputs: PolicyInputs, acting: BoolArray) -> Decision:
        """Choose the actions of the rows that act, (rows,) bool; filler in the others: the policy does not see them."""
        algorithm = self.policy.algorithm
        if self._uses_noise and algorithm.sde_sample_freq > 0 and self.step % algorithm.sde_sample_freq == 0:
            algorithm.policy.reset_noise(self.rows.num_rows)
        if np.count_nonzero(acting) == len(acting):  # a quarter of the time of `all`
            decision = self.policy.act(inputs)
            self.states, self.starts = decision.states, self._no_starts
        else:
            decision = self._decide_for_some(inputs, acting)
            self.starts = self.starts & ~acting
        self.step += 1
        return decision

    def _decide_for_some(self, inputs: PolicyInputs, acting: BoolArray) -> Decision:
        """Show the policy only the rows that act: filler observations of waiting rows need not lie in the space."""
        if not acting.any():
            space, nothing = self.policy.algorithm.action_space, np.zeros(len(acting), dtype=np.float32)
            actions = np.zeros((len(acting), *(space.shape or ())), dtype=space.dtype)
            return Decision(actions, self.states, actions, nothing, nothing)
        with noise_of_rows(self.policy.algorithm.policy, acting):
            decision = self.policy.act(inputs.of_rows(acting))
        self.states = tuple(array.copy() for array in self.states)
        for everywhere, of_acting in zip(self.states, decision.states, strict=True):
            everywhere[:, acting] = of_acting
        spread: list[Any] = [
            None if part is None else with_rows(np.zeros((len(acting), *part.shape[1:]), part.dtype), acting, part)
            for part in (decision.actions, *decision[2:])
        ]
        return Decision(spread[0], self.states, *spread[1:])

    # --- Rewards and ends --------------------------------------------------------------------------------------------

    def observe(self, step: VecStep) -> Observed:
        """Note the rewards and ends of a step, also those of rows that wait."""
        ended = self.rows.of_agents(step.terminated | step.truncated)
        self.starts = self.starts | ended
        if self.policy.row_noise is not None:
            self.policy.row_noise.reset(ended)
        rewards = self.processing.observe(step, self._discounted_values if self._bootstraps else None)
        return Observed(step, rewards, ended)

    def _discounted_values(self, final_observations: Observations, rows: BoolArray) -> Array:
        """Return the (n,) discounted values of observations that rows, (rows,) bool, were truncated on."""
        states, starts = tuple(array[:, rows] for array in self.states), np.zeros(np.count_nonzero(rows), dtype=bool)
        inputs = PolicyInputs(self._transposed(final_observations), starts, None, states, rows)
        return self.policy.algorithm.gamma * self.policy.final_values(inputs)  # type: ignore[no-any-return]

    def break_off(self, step: VecStep) -> None:
        """Take from a step only what the next actions depend on: where episodes ended, and running statistics."""
        self.starts = self.starts | self.rows.of_agents(step.terminated | step.truncated)
        self.processing.observe(step)
        self._reset_row_noise(np.ones(self.rows.num_rows, dtype=np.bool_))

    def next_values(self, step: VecStep, acting: BoolArray) -> Array:
        """Return the (rows,) values of the observations that the rows act on next; 0 in rows that wait."""
        inputs = PolicyInputs(self.observations(step), self.starts, None, self.states)
        values = np.zeros(len(acting), dtype=np.float32)
        if acting.any():
            values[acting] = self.policy.values(inputs if acting.all() else inputs.of_rows(acting))
        return values

    def final_observations(self, step: VecStep, wanted: BoolArray) -> Observations:
        """Return the (n, ...) observations that agents, (E, A) bool, ended on, as the learner keeps them."""
        return self._transposed(self.processing.final_observations(step, wanted))

    def following(self, step: VecStep) -> Observations:
        """Return the observations after a step, (rows, ...); of agents that ended, their final ones."""
        following = self.observations(step)
        if not len(step.final_observations):
            return following
        known = step.final_observations.among(self.rows.mine & (step.terminated | step.truncated))
        if known.any():
            following, rows = map_arrays(np.copy, following), self.rows.of_agents(known)
            for own, given in pairs(following, self.final_observations(step, known)):
                own[rows] = given
        return following

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def state_was_set(self) -> None:
        self.policy.algorithm.policy.set_training_mode(False)


def _in_training_mode(module: Any) -> bool:
    return module.training or any(_in_training_mode(part) for part in module._modules.values() if part is not None)


def env_actions(actions: Array, rescale: RescaleActions | None, counted: ZeroBased) -> Array:
    """Turn (rows, ...) actions of a policy into actions of its env: the only place that does.

    Args:
        actions: in the policy's action space.
        rescale: maps them to the range of the env's Box; None: it is the policy's.
        counted: the env's action space, which may count from another number than 0.
    """
    in_range = actions if rescale is None else rescale(actions)
    return counted.to_env(in_range) if counted.shifts else in_range


@contextmanager
def not_finite_refused(policy_id: PolicyID, where: str) -> Iterator[None]:
    """Name the policy in the error that PyTorch raises for a distribution with NaN or infinite parameters.

    Args:
        where: what is computed, for the message.

    Raises:
        NumericError: instead of that error.
    """
    try:
        yield
    except ValueError as error:
        _refuse_not_finite(error, policy_id, where)
        raise


def _refuse_not_finite(error: ValueError, policy_id: PolicyID, where: str) -> None:
    if "to satisfy the constraint" in str(error):
        what = str(error).partition(", but found invalid values")[0]
        words = f"policy {policy_id!r}: its network gives NaN or infinity in the {where}: {what}"
        raise NumericError(words) from error

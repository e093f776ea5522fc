"""Process observations, rewards and actions between the rows of a policy and its envs, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.processing.processing import NormalizeObservations, Processing, RescaleActions
from marl_sb3.core.processing.processors import REWARD, FrameStack, RowMemory
from marl_sb3.core.state.fields import Fields, Stateful, array, scalar
from marl_sb3.core.state.state import AS_SUMS, StateReader
from marl_sb3.core.vec_env.observations import map_arrays, pairs, with_rows, zeros
from marl_sb3.core.vec_env.slot_states import require_categories
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray, Observations

# Final observations (n, ...) of rows, (rows,) bool, that were truncated -> (n,) what their returns go on with.
Bootstrap = Callable[[Observations, BoolArray], Array]


class Bootstrapped(NamedTuple):
    """What agents that were truncated in a step were paid, and what was added to that."""

    rows: BoolArray  # (rows,) bool; their rows
    paid: Array  # (n,) the reward of the transition
    added: Array  # (n,) float32


class RowProcessing(Stateful):
    """The processing of the rows of a policy, and the only place where their rewards are summed between turns.

    This one changes neither observations nor rewards; see `ProcessedRows` for policies with settings. In every step
    `observe` is called first, then `processed_observations`, then `acted`.
    """

    # normalises observations when the policy acts on them, and when they are drawn from a replay buffer; None: they are
    # not normalised, or are already
    late_normalizer: NormalizeObservations | None = None
    rescale: RescaleActions | None = None  # maps the policy's actions to those of the env; None: they are the same
    _bootstrapped: Bootstrapped | None = None

    def __init__(self, rows: PolicyRows) -> None:
        self._rows = rows
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Note that all envs have just been reset."""
        self._paid: Array = np.zeros(self._rows.num_rows, dtype=np.float32)  # for transitions that are not over

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """Note that these envs have begun new episodes. Transitions of their previous episodes are dropped."""
        self._paid[self._rows.of_envs(env_indices)] = 0

    def observe(self, step: VecStep, bootstrap: Bootstrap | None = None) -> Array:
        """Record the results of the latest actions.

        Args:
            step: the step that these actions led to.
            bootstrap: returns what is added to the rewards of agents that were truncated; None: nothing is added.

        Returns:
            (rows,) float32: the reward of each transition that is over with this step, and 0 in the other rows. It is
            the sum of everything that the row was paid since it acted.
        """
        rewards = self._rows.of_agents(step.rewards).copy()
        if bootstrap is not None and np.count_nonzero(step.truncated):
            self._add_values_at_time_limits(step, rewards, bootstrap)
        if step.in_play is step.to_act:  # nobody waits or has ended: this step is all of every transition
            return rewards
        return self._sum(step, rewards)[0]

    def _sum(self, step: VecStep, rewards: Array) -> tuple[Array, BoolArray]:
        """Add rewards, (rows,); returns the sums of the transitions that are over with this step, and which are."""
        stops = self._rows.of_agents(step.to_act | step.terminated | step.truncated)
        in_play = self._rows.of_agents(step.in_play)
        over = in_play & stops
        paid = self._paid + np.where(in_play, rewards, np.float32(0))  # what comes before a first action is left out
        self._paid = np.where(over, np.float32(0), paid)
        return np.where(over, paid, np.float32(0)), over

    def _add_values_at_time_limits(self, step: VecStep, rewards: Array, bootstrap: Bootstrap) -> None:
        """Truncation is not termination: bootstrap from the value of the final observation (SB3 issue 633)."""
        wanted = self._rows.mine & step.in_play & step.truncated & ~step.terminated
        if wanted.any():
            rows = self._rows.of_agents(wanted)
            added = bootstrap(self.final_observations(step, wanted), rows)
            self._bootstrapped = Bootstrapped(rows, self._paid[rows] + rewards[rows], added)
            rewards[rows] += added

    def take_bootstrapped(self) -> Bootstrapped | None:
        """Return what the rewards of the latest step were bootstrapped with, once; None if none was."""
        taken, self._bootstrapped = self._bootstrapped, None
        return taken

    def processed_observations(self, step: VecStep) -> Observations:
        """Return the (rows, ...) processed observations of a step; filler in rows that wait."""
        return self._rows.observations(step.observations)

    def invalidate(self) -> None:
        """Note that statistics have been replaced: the latest step will be processed again."""

    def final_observations(self, step: VecStep, wanted: BoolArray) -> Observations:
        """Return the (n, ...) processed final observations of agents, (E, A) bool, that have ended."""
        final: Observations = self._rows.zero_based_observations.from_env(step.final_observations.stacked(wanted))
        return final

    def acted(self, actions: Array, acting: BoolArray) -> None:
        """Note the (rows, ...) actions of the policy in the rows that act."""

    fields: ClassVar[Fields] = {"paid": array("_paid")}


def process_rows(
    processing: Processing, rows: PolicyRows, gamma: float, learns: bool, late: bool = False
) -> RowProcessing:
    """Return the processing of the rows of a policy.

    Args:
        processing: processing of the policy.
        rows: the rows of the policy.
        gamma: discount of the returns by which rewards are normalised.
        learns: whether observations and rewards update running statistics.
        late: whether observations and rewards are normalised later; see `RowProcessing.late_normalizer`. Statistics
            take them in at once.
    """
    if not processing.settings.changed():
        return RowProcessing(rows)
    return ProcessedRows(processing, rows, gamma, learns, late)


class ProcessedRows(RowProcessing):
    """See `RowProcessing`.

    The memory of a row changes when the row acts next; while it waits, its memory stays unchanged and it updates no
    statistics. The sum of what it was paid for a transition is processed as one reward.

    Args: see `process_rows`.
    """

    def __init__(
        self, processing: Processing, rows: PolicyRows, gamma: float, learns: bool, late: bool = False
    ) -> None:
        self.processing, self.gamma, self._learns = processing, gamma, learns
        self._normalizes = not late
        self.late_normalizer = processing.normalizer if late else None
        self._space = self.late_normalizer.before if self.late_normalizer else processing.observation_space
        self.rescale = processing.rescale
        known = processing.agents  # it may act for some of them only, in evaluations
        numbers = range(len(rows.agents)) if set(rows.agents) - set(known) else map(known.index, rows.agents)
        self._agents = np.tile(list(numbers), rows.num_envs)
        if processing.team_reward and learns and (len(rows.team_columns) < 2 or processing.settings.previous_reward):
            why = "it has no team" if len(rows.team_columns) < 2 else "previous_reward shows each agent its own"
            words = f"policy {rows.policy_id!r}: team_reward is {processing.team_reward}, and {why}"
            raise ConfigError(f"{words}; accepted: null, or agents whose policies take no turns", key="team_reward")
        super().__init__(rows)

    @override
    def begin_episodes(self) -> None:
        super().begin_episodes()
        self.memory: RowMemory = self.processing.initial(self._rows.num_rows)
        self.returns = np.zeros(self._rows.num_rows, dtype=np.float64)  # discounted, of the running episodes
        self._forget_step(taken_in=False)

    def _forget_step(self, *, taken_in: bool) -> None:
        """Forget the latest step: the next `processed_observations` is at another one."""
        self._before = self.memory
        self._seen: Observations | None = None
        self._taken_in = taken_in  # whether statistics know it already

    @override
    def restart_envs(self, env_indices: Sequence[int]) -> None:
        super().restart_envs(env_indices)
        lost = self._rows.of_envs(env_indices)
        self.memory = self._reset(self.memory, lost)
        self.returns[lost] = 0
        self._forget_step(taken_in=self._taken_in)

    def _reset(self, memory: RowMemory, rows: BoolArray) -> RowMemory:
        if not memory or not rows.any():
            return memory
        initial = self.processing.initial(int(rows.sum()))
        return {name: with_rows(array, rows, initial[name]) for name, array in memory.items()}

    # --- What comes --------------------------------------------------------------------------------------------------

    @override
    def observe(self, step: VecStep, bootstrap: Bootstrap | None = None) -> Array:
        paid, over = self._sum(step, self._rows.of_agents(self._team_rewards(step)))
        ended = self._rows.of_agents(step.terminated | step.truncated)
        if REWARD in self.memory:
            rewards = with_rows(self.memory[REWARD], over, paid[over, None])
            self.memory = {**self.memory, REWARD: rewards}
        self._before = self.memory
        self.memory = self._reset(self.memory, ended)
        self.processed_observations(step)  # statistics take in observations first, and final observations see that
        processed = self._processed_rewards(paid, over)
        self.returns[ended] = 0
        if bootstrap is not None:
            self._add_values_at_time_limits(step, processed, bootstrap)
        return processed

    def _team_rewards(self, step: VecStep) -> Array:
        """(E, all agents) float32: what agents are paid, or their teams, as `team_reward` says."""
        how, columns = self.processing.team_reward, list(self._rows.team_columns)
        if how in ("sum", "mean") and columns:
            paid: Any = sum(step.rewards[:, column] for column in columns)  # one by one, as the kernels add them up
            return np.broadcast_to(paid[:, None] / np.float32(len(columns) if how == "mean" else 1), step.rewards.shape)
        if how == "shared":
            there, paid = step.in_play[:, columns], step.rewards[:, columns]
            low, high = paid.min(axis=1, where=there, initial=np.inf), paid.max(axis=1, where=there, initial=-np.inf)
            for env_index in np.flatnonzero(high - low > 1e-4 * np.abs(high) + 1e-6):
                words = f"team_reward is shared, but env {env_index} paid it {low[env_index]:g} and {high[env_index]:g}"
                raise ConfigError(f"policy {self._rows.policy_id!r}: {words}; accepted: sum, mean", key="team_reward")
        return step.rewards

    def _processed_rewards(self, rewards: Array, over: BoolArray) -> Array:
        """Clip the rewards of transitions that are over, then divide them as `VecNormalize` does.

        They are divided by the running standard deviation of discounted returns.
        """
        settings, statistics = self.processing.settings, self.processing.returns
        if settings.clip_rewards is not None:
            rewards = np.clip(rewards, -settings.clip_rewards, settings.clip_rewards)
        if statistics is not None and over.any():
            if self._learns:
                self.returns[over] = self.returns[over] * self.gamma + rewards[over]
                statistics.update(self.returns[over])
            if self._normalizes:
                limit = settings.clip_normalized_rewards
                rewards = np.clip(rewards / np.sqrt(statistics.var + settings.normalize_epsilon), -limit, limit)
        return rewards.astype(np.float32)

    @override
    def processed_observations(self, step: VecStep) -> Observations:
        if self._seen is None:
            to_act = self._rows.of_agents(step.to_act)
            self._seen, self._after = self._process(self._rows.observations(step.observations), to_act)
            self._taken_in = True
        return self._seen

    def invalidate(self) -> None:
        """See `RowProcessing.invalidate`; the step does not update the statistics a second time."""
        self._forget_step(taken_in=self._taken_in)

    def _process(self, raw: Observations, to_act: BoolArray) -> tuple[Observations, RowMemory]:
        learn = self._learns and not self._taken_in
        if to_act.all():
            return self.processing.observe(raw, self.memory, self._agents, learn, self._normalizes)
        filler = zeros(self._space, (len(to_act),))
        if not to_act.any():
            return filler, self.memory
        memory = {name: array[to_act] for name, array in self.memory.items()}
        rows = map_arrays(lambda array: array[to_act], raw)
        seen, after = self.processing.observe(rows, memory, self._agents[to_act], learn, self._normalizes)
        for everywhere, own in pairs(filler, seen):
            everywhere[to_act] = own
        return filler, {name: with_rows(array, to_act, after[name]) for name, array in self.memory.items()}

    def final_observations(self, step: VecStep, wanted: BoolArray) -> Observations:
        """See `RowProcessing.final_observations`; memory and statistics stay unchanged."""
        rows = self._rows.of_agents(wanted)
        memory = {name: array[rows] for name, array in self._before.items()}
        final = super().final_observations(step, wanted)
        seen, _ = self.processing.observe(final, memory, self._agents[rows], normalize=self._normalizes)
        return seen if self.late_normalizer is None else self.late_normalizer.restored(seen)

    # --- What goes ---------------------------------------------------------------------------------------------------

    @override
    def acted(self, actions: Array, acting: BoolArray) -> None:
        after = self.processing.acted(self._after, actions)
        if not acting.all():
            after = {name: with_rows(self._after[name], acting, array[acting]) for name, array in after.items()}
        self.memory = after
        self._forget_step(taken_in=False)

    # --- State -------------------------------------------------------------------------------------------------------

    # What is needed to process the latest step again.
    fields: ClassVar[Fields] = {
        **RowProcessing.fields,
        "memory": array("memory"),
        "returns": array("returns", *AS_SUMS),
        "taken_in": scalar("_taken_in"),
    }

    @override
    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        stack = self.processing.processors.get("frame_stack")
        for name, space in stack.remembered.items() if isinstance(stack, FrameStack) else ():
            require_categories(values["memory"][name], space, f"{state.where}/memory/{name}")

    def state_was_set(self) -> None:
        """Process the latest step again."""
        self._forget_step(taken_in=self._taken_in)

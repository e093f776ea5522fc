"""What a team has experienced: a replay buffer of whole teams, what fills it, and the learner of their policy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch as th
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, Observed
from marl_sb3.core.experience import Experience
from marl_sb3.core.learners.building import stored_space
from marl_sb3.core.learners.learner import LearnerOptions
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.off_policy.off_policy import OffPolicyLearner
from marl_sb3.core.off_policy.per_row_replay import PerRowReplay
from marl_sb3.core.off_policy.replay import ReplayExperience, Transitions
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.masked_q import WithMasks
from marl_sb3.extensions.fast.prioritized import NOT_PRIORITIZED, PRIORITIZED, SINGLE, WithPriorities, with_columns
from marl_sb3.types import Array, BoolArray, FloatArray

# --- The replay buffer -----------------------------------------------------------------------------------------------


class TeamBatch(NamedTuple):
    """A minibatch of B transitions of a team of N agents, n actions each, with the S - 1 that follow each of them.

    What is next is that of K steps: of all S, or of the last one of each return alone.
    """

    observations: Any  # (B * N, ...), the agents of a team one after the other; filler for those that are not there
    actions: th.Tensor  # (B, N) int64
    states: th.Tensor  # (B, d) float32: the env's state before, d = 0 if none is kept
    present: th.Tensor  # (B, S, N) float32: 1 for agents that acted
    rewards: th.Tensor  # (B, S, N) float32: 0 for all others
    last: th.Tensor  # (B,) int64: the number of the last step of a return, from 0; later ones are filler
    next_observations: Any  # (B * K * N, ...)
    next_masks: th.Tensor  # (B * K, N, n) bool
    goes_on: th.Tensor  # (B * K, N) float32: 1 for agents whose values count afterwards: those not terminated
    next_states: th.Tensor  # (B * K, d) float32


class OfTeams(WithMasks):
    """Mixin for a replay buffer: the rows of a team are side by side, and drawn together.

    A line has places for all rows of all envs, as in SB3; a transition of a team takes the places of one env, those of
    agents that are not there too.

    Attributes:
        team_size: number of agents of the team, N.
        n_steps: the most steps of a return; see `NStepBuffer`.
        follows_all: whether a minibatch has what follows each step of a return, and not the last one alone.
        state_size: numbers of the env's state; 0: none is kept.
        about_states: is told the `state_size` of all transitions before they are added.
    """

    team_size: int = 1
    n_steps: int = 1
    follows_all: bool = False
    state_size: int = 0
    about_states: Callable[[int], None]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.present = np.zeros((self.buffer_size, self.n_envs), dtype=np.bool_)

    def hold_states(self, state_size: int) -> None:
        """Hold the env's state before and after each transition, too; the buffer is empty.

        Raises:
            ConfigError: the states need more memory than is available.
        """
        if state_size == self.state_size:
            return
        # The rows of a team share the numbers, so that all arrays have lines of rows: the last ones are not used.
        shape = self.buffer_size, self.n_envs, -(-state_size // self.team_size)
        size, available = 2 * 4 * math.prod(shape), psutil.virtual_memory().available
        if size > available:
            words = f"the env's states in the replay buffer need {size / 2**30:,.1f} GiB of memory, and"
            words += f" {available / 2**30:,.1f} are available; accepted: a smaller buffer_size, or env_state=false"
            raise ConfigError(words, key="buffer_size")
        self.states, self.next_states = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self.state_size = state_size
        self.names = (*self.names, "states", "next_states")  # type: ignore[misc]

    @override
    def add_transitions(self, added: Transitions) -> None:
        """Add transitions, one of each agent of a team that was there.

        Args:
            added: in ascending order of the rows; `more` of them are `states` of their envs and `next_states`.
        """
        more = added.more or {}
        envs, firsts, place_of = np.unique(added.rows // self.team_size, return_index=True, return_inverse=True)
        index = place_of * self.team_size + added.rows % self.team_size
        count = len(envs) * self.team_size

        def dense(array: Array) -> Array:
            whole = np.zeros((count, *array.shape[1:]), array.dtype)
            whole[index] = array
            return whole

        parts: list[Any] = [None if part is None else map_arrays(dense, part) for part in added._replace(more=None)]
        whole = Transitions(*parts)
        is_there = dense(np.ones(len(added.rows), np.bool_))
        rows = (envs[:, None] * self.team_size + np.arange(self.team_size)).reshape(-1)
        masks = whole.next_masks if whole.next_masks is None else whole.next_masks | ~is_there[:, None]
        places = self._places_for(rows)
        self.present[places] = is_there
        state_size = more["states"].shape[1] if more else 0
        self.about_states(state_size)
        self.hold_states(state_size)
        for name, states in more.items():
            getattr(self, name)[places] = self._shared(states[firsts])
        super().add_transitions(whole._replace(rows=rows, next_masks=masks))

    def _shared(self, states: FloatArray) -> FloatArray:
        """Share the numbers of (n, d) states among the rows of a team: (n * N, numbers of a row)."""
        shared = np.zeros((len(states), self.team_size * self.states.shape[2]), np.float32)
        shared[:, : self.state_size] = states
        return shared.reshape(len(states) * self.team_size, -1)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """Draw a minibatch of teams, a `TeamBatch`.

        Args:
            batch_size: number of transitions of a team.
            env: normalises observations; None: they are as they were added.
        """
        if isinstance(self, WithPriorities):
            return super().sample(batch_size, env)
        if isinstance(self, PerRowReplay):
            return self.batch_of(*self._drawn(self.counts[:: self.team_size], batch_size), env)
        lines = np.random.randint(0, self.buffer_size if self.full else self.pos, size=batch_size)  # noqa: NPY002
        teams = np.random.randint(0, self.n_envs // self.team_size, size=batch_size)  # noqa: NPY002 - as SB3 does
        return self.batch_of(lines, teams, env)

    def _samples_at(self, lines: Array, columns: Array, env: VecNormalize | None) -> TeamBatch:
        return self.batch_of(lines, columns // self.team_size, env)

    def batch_of(self, lines: Array, teams: Array, env: VecNormalize | None = None) -> TeamBatch:
        """Return the minibatch of the transitions of these lines and envs, (B,) each, and of those that follow."""
        rows = teams[:, None, None] * self.team_size + np.arange(self.team_size)
        steps = (lines[:, None] + np.arange(self.n_steps)) % self.buffer_size
        first, each = (lines[:, None], rows[:, 0]), (steps[:, :, None], rows)
        present, timeouts = self.present[each], self.timeouts[each] > 0
        goes_on = present & ~((self.dones[each] > 0) & ~timeouts)
        over = np.asarray(~goes_on.any(axis=2) | (present & timeouts).any(axis=2))
        last = self._last_of_returns(steps, rows[:, 0, 0], over)
        rewards: Any = self._normalize_reward(self.rewards[each], env)
        if not self.follows_all:
            goes_on = goes_on[np.arange(len(lines)), last]
            steps = (lines + last)[:, None] % self.buffer_size
        following = steps.reshape(-1, 1), np.repeat(rows[:, 0], steps.shape[1], axis=0)
        return TeamBatch(
            self._seen(self.observations, first, env),
            self.to_torch(self.actions[first][..., 0].astype(np.int64)),
            self._states_at("states", first),
            self.to_torch(present.astype(np.float32)),
            self.to_torch((rewards * present).astype(np.float32)),
            self.to_torch(last),
            self._seen(self.next_observations, following, env),
            self.to_torch(self.next_masks[following]),
            self.to_torch(goes_on.reshape(-1, self.team_size).astype(np.float32)),
            self._states_at("next_states", following),
        )

    def _last_of_returns(self, steps: Array, columns: Array, over: BoolArray) -> Array:
        """(B,) the numbers of the steps, of (B, S), at which returns end.

        They do where the team goes on with nobody, where an agent was truncated, since its value counts from there on,
        and where no transition follows.
        """
        if isinstance(self, PerRowReplay):
            over = over | ((steps + 1) % self.buffer_size == self._next[columns][:, None])
        return np.where(over.any(axis=1), over.argmax(axis=1), self.n_steps - 1)

    def _seen(self, of_all: Any, places: Any, env: VecNormalize | None) -> Any:
        rows = map_arrays(lambda array: array[places].reshape(-1, *array.shape[2:]), of_all)
        return map_arrays(self.to_torch, self._normalize_obs(rows, env))  # type: ignore[arg-type]

    def _states_at(self, name: str, places: Any) -> th.Tensor:
        if not self.state_size:
            return self.to_torch(np.zeros((len(places[0]), 0), np.float32))
        of_teams = getattr(self, name)[places].reshape(len(places[0]), -1)
        return self.to_torch(of_teams[:, : self.state_size])


_COLUMNS = "next_masks", "present"
# How minibatches are drawn -> classes of replay buffers -> those of teams.
OF_TEAMS = {
    "uniform": with_columns("Team", OfTeams, SINGLE, *_COLUMNS),
    "prioritized": {**with_columns("Team", OfTeams, PRIORITIZED, *_COLUMNS), **NOT_PRIORITIZED},
}


# --- Experience ------------------------------------------------------------------------------------------------------


class TeamExperience(ReplayExperience):
    """See `ReplayExperience`; the transitions of a step are added by team, with the env's state if a mixer sees it."""

    _states: FloatArray | None = None  # (E, d) before the latest step

    @override
    def begin(self, acted: Acted) -> None:
        super().begin(acted)
        self._states = _flat(acted.step.env_state) if self.algorithm.mixes else None

    @override
    def add(self, observed: Observed) -> None:
        step = observed.step
        self._require_moves_at_once(step)
        self._next_states = None if self._states is None else self._states_after(step, self._states.shape[1])
        super().add(observed)

    def _states_after(self, step: VecStep, size: int) -> FloatArray:
        """Return the (E, size) states of the envs after a step; of episodes that are over, the last ones."""
        following = _flat(step.env_state)
        assert following is not None
        last = {
            env_index: np.asarray(state, np.float32).reshape(-1) for env_index, state in step.final_env_states.items()
        }
        for found in (following.shape[1], *map(len, last.values())):
            if found != size:
                where = (
                    f"policy {self.actor.rows.policy_id!r}: the env's state() had {size} numbers, and now has {found}"
                )
                raise ConfigError(f"{where}; accepted: always as many", key="env_state")
        for env_index, state in last.items():
            following[env_index] = state
        return following

    def _require_moves_at_once(self, step: VecStep) -> None:
        """Refuse agents that wait in a step: what a team does would be no joint action."""
        rows = self.actor.rows
        if step.in_play is step.acted or (len(rows.agents) == 1 and self._states is None):
            return
        waiting = np.flatnonzero(rows.of_agents(step.in_play & ~step.acted & step.stepped[:, None]))
        if len(waiting):
            env_index, place = divmod(int(waiting[0]), len(rows.agents))
            name = type(self.algorithm).__name__
            words = f"agent {rows.agents[place]!r} waits in env {env_index}, and {name} learns from simultaneous moves"
            accepted = "an env in which all agents of a team act in every step until they end; or dqn, maskable_dqn"
            raise ConfigError(f"policy {rows.policy_id!r}: {words}; accepted: {accepted}", key="algo")

    @override
    def record(self, transitions: Transitions) -> None:
        if self.algorithm.team_reward == "shared":
            self._require_shared(transitions)
        if self._states is not None and self._next_states is not None:
            envs = transitions.rows // len(self.actor.rows.agents)
            more = {"states": self._states[envs], "next_states": self._next_states[envs]}
            transitions = transitions._replace(more=more)
        super().record(transitions)

    def _require_shared(self, transitions: Transitions) -> None:
        rows = self.actor.rows
        envs, paid = transitions.rows // len(rows.agents), transitions.rewards
        first = np.searchsorted(envs, envs)  # of each transition, the first one of its env
        other = np.flatnonzero(~np.isclose(paid, paid[first], rtol=1e-4, atol=1e-6))
        if len(other):
            one, another = (int(index) for index in (first[other[0]], other[0]))
            names = [rows.agents[transitions.rows[index] % len(rows.agents)] for index in (one, another)]
            words = f"team_reward is shared, but in env {envs[one]} agent {names[0]!r} was paid {paid[one]:g} and "
            words += f"{names[1]!r} {paid[another]:g}"
            raise ConfigError(f"policy {rows.policy_id!r}: {words}; accepted: sum, mean", key="team_reward")

    @override
    def show_to(self, rewriter: Any) -> None:
        if rewriter is not None:
            words = f"{type(self.algorithm).__name__} learns from whole teams, and on_trajectory sees single agents"
            where = f"policy {self.actor.rows.policy_id!r}"
            raise ConfigError(f"{where}: {words}; accepted: no such hook", key="callback")
        super().show_to(rewriter)


def _flat(states: Array | None) -> FloatArray | None:
    """(E, d) float32, a copy."""
    return None if states is None else np.array(states, np.float32).reshape(len(states), -1)


# --- The learner -----------------------------------------------------------------------------------------------------


class TeamLearner(OffPolicyLearner):
    """See `OffPolicyLearner`; a minibatch is of whole teams, the agents of the policy in one env."""

    algorithm: Any
    takes_parts = ("curiosity",)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self.trained and self.algorithm.mixes:
            self._states["mixing"] = self.algorithm.mixing_part(self.buffer)

    @classmethod
    @override
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> BaseAlgorithm:
        _check(rows, spec)
        algorithm: Any = super()._build(rows, spec, seed, options, processing)
        algorithm.team_reward = processing.settings.team_reward or "sum"
        processing.team_reward = None  # the buffer holds what each agent is paid
        if options.experience.learns_here:
            buffer = algorithm.replay_buffer
            buffer.team_size, buffer.about_states = len(rows.agents), algorithm.make_mixing
            buffer.follows_all = algorithm.td_lambda < 1
        return algorithm  # type: ignore[no-any-return]

    @override
    def make_experience(self) -> Experience:
        return TeamExperience(self.actor, stored_space(self.processing, self.algorithm), self.progress_remaining)

    @override
    def finish_update(self, gradient_steps: int) -> Result:
        metrics = super().finish_update(gradient_steps)
        trained = gradient_steps * self.algorithm.batch_size * len(self.rows.agents)
        return {**metrics, "num_module_steps_trained": trained}


def _check(rows: PolicyRows, spec: PolicySpec) -> None:
    """Refuse what does not go with teams.

    Raises:
        ConfigError: names the policy and the setting.
    """
    where, name, values = f"policy {rows.policy_id!r}", spec.algorithm.__name__, spec.values
    refused: Mapping[str, tuple[bool, str]] = {
        "td_lambda": (values["td_lambda"] < 1 and values["n_steps"] == 1, "1, or n_steps above 1"),
        "replay_buffer_class": (values["replay_buffer_class"] == "HerReplayBuffer", "null"),
        "optimize_memory_usage": (values["optimize_memory_usage"], "false"),
    }
    for setting, (applies, accepted) in refused.items():
        if applies:
            words = f"{setting} is {values[setting]}, and {name} draws whole teams, step by step"
            raise ConfigError(f"{where}: {words}; accepted: {accepted}", key=setting)

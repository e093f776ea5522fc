"""E envs stepped as arrays by a `BatchedEnv`: what the other vectorizers do, without touching single envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.env_faults import ask_for_state, close_in_words, raise_in_words
from marl_sb3.envs.batched import BatchedEnv
from marl_sb3.errors import ConfigError, EnvError, EnvNumericError
from marl_sb3.storage.state import MAX_SEED, State, StateReader
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.base import (
    FinalObservations,
    MultiAgentVecEnv,
    StackedFinalObservations,
    VecStep,
)
from marl_sb3.vec_env.groups import AgentGroup
from marl_sb3.vec_env.observations import map_arrays, read_observations, same_in_env, zero_observations
from marl_sb3.vec_env.seeding import episode_seed, fresh_seed
from marl_sb3.wrappers.env_interface import require_agents
from marl_sb3.wrappers.faults import unfit_numbers, unfit_words

_NO_FINAL_OBSERVATIONS = FinalObservations({})


class ArrayInfos:
    """`StepInfos` over arrays; a dictionary is made for the envs that are asked for."""

    def __init__(self, infos: Mapping[AgentID, Mapping[str, Array]], num_envs: int) -> None:
        self._infos = infos
        self._num_envs = num_envs

    def __getitem__(self, env_index: int) -> dict[str, Any]:
        return {agent: {k: v[env_index].item() for k, v in info.items()} for agent, info in self._infos.items()}

    def values(self, agent: AgentID, key: str) -> Array:
        """See `StepInfos.values`."""
        found = self._infos.get(agent, {}).get(key)
        return np.full(self._num_envs, np.nan) if found is None else found.astype(np.float64)


class BatchedVecEnv(MultiAgentVecEnv):
    """A `MultiAgentVecEnv` on a `BatchedEnv`.

    Args:
        env: the envs.
        seed: the run seed; None draws one.

    Raises:
        ConfigError: its agents have ids that are not accepted.
    """

    def __init__(self, env: BatchedEnv, seed: int | None = None) -> None:
        require_agents(env.possible_agents)
        self._env = env
        self.num_envs = env.num_envs
        self.agents = tuple(env.possible_agents)
        columns = tuple(range(len(self.agents)))
        self.groups = (AgentGroup(self.agents, columns, env.observation_space, env.action_space),)
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self.to_act = np.zeros((self.num_envs, len(self.agents)), dtype=np.bool_)
        self._episodes = np.full(self.num_envs, -1)
        self._episode_steps = np.zeros(self.num_envs, dtype=np.int64)
        self._run_seed = fresh_seed() if seed is None else seed
        self._all_envs = list(range(self.num_envs))
        self._closed = False

    def seed(self, seed: int) -> None:
        """See `MultiAgentVecEnv.seed`."""
        self._run_seed = seed
        self._episodes[:] = -1

    def reset(self, options: Sequence[Mapping[str, Any]] | None = None) -> tuple[Observations, ...]:
        """See `MultiAgentVecEnv.reset`.

        Raises:
            ConfigError: there are options, which batched envs do not take.
        """
        if options is not None and any(options):
            raise ConfigError(f"reset options {list(options)}: a batched env takes none; use vectorizer='sync'")
        self._begin_episodes(self._all_envs)
        self.to_act = np.ones_like(self.to_act)
        observations = self._shown()
        self.observations = (observations,)
        return self.observations

    def _begin_episodes(self, env_indices: Sequence[int]) -> None:
        self._episodes[env_indices] += 1
        self._episode_steps[env_indices] = 0
        episodes = self._episodes.tolist()
        seeds = [episode_seed(self._run_seed, index, episodes[index]) for index in env_indices]
        try:
            self._env.reset(env_indices, seeds)
        except Exception as error:
            self._blame(error, "reset()", env_indices)
            raise

    def step(self, actions: Sequence[Array]) -> VecStep:
        """See `MultiAgentVecEnv.step`."""
        acted = self.to_act
        self._episode_steps += 1
        try:
            step = self._env.step(actions[0])
        except Exception as error:
            self._blame(error, "step()", self._all_envs)
            raise
        if step.rewards.dtype.kind not in "biuf":
            raise EnvError(f"{self._where(0)}: rewards have dtype {step.rewards.dtype}; accepted: real numbers")
        rewards = step.rewards.astype(np.float32)
        terminated, truncated = step.terminated, step.truncated
        if not acted.all():
            rewards, terminated, truncated = rewards * acted, terminated & acted, truncated & acted
        self._check_rewards(rewards)
        observations = self._shown()
        ended = terminated | truncated
        if not ended.any():
            return self._result(observations, rewards, terminated, truncated, acted, step.infos)
        final_observations = StackedFinalObservations(ended, observations)
        self.to_act = acted & ~ended
        episode_done: BoolArray = ~np.any(self.to_act, axis=1)
        if episode_done.any():
            self._begin_episodes(np.flatnonzero(episode_done).tolist())
            self.to_act[episode_done] = True
            observations = self._shown()
        return self._result(
            observations, rewards, terminated, truncated, acted, step.infos, episode_done, final_observations
        )

    def _result(
        self,
        observations: Observations,
        rewards: Array,
        terminated: BoolArray,
        truncated: BoolArray,
        acted: BoolArray,
        infos: Mapping[AgentID, Mapping[str, Array]],
        episode_done: BoolArray | None = None,
        final_observations: FinalObservations = _NO_FINAL_OBSERVATIONS,
    ) -> VecStep:
        if not self.to_act.all():
            observations = map_arrays(self._zeros_where_idle, observations)
        self.observations = (observations,)
        reset_infos: dict[int, dict[str, Any]] = {}
        if episode_done is None:
            episode_done = np.zeros(self.num_envs, dtype=np.bool_)
        else:
            reset_infos = {index: self._reset_info() for index in np.flatnonzero(episode_done).tolist()}
        return VecStep(
            observations=self.observations,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            acted=acted,
            to_act=self.to_act,
            episode_done=episode_done,
            final_observations=final_observations,
            infos=ArrayInfos(infos, self.num_envs),
            reset_infos=reset_infos,
        )

    def _zeros_where_idle(self, array: Array) -> Array:
        filled = array.copy()  # the original may hold final observations
        filled[~self.to_act] = 0
        return filled

    def _reset_info(self) -> dict[str, Any]:
        return {agent: {} for agent in self.agents}

    def _shown(self) -> Observations:
        try:
            observations = self._env.observations()
        except Exception as error:
            self._blame(error, "observations()", self._all_envs)
            raise
        self._check_observations(observations)
        return observations

    def _blame(self, error: Exception, call: str, env_indices: Sequence[int]) -> None:
        """Raise what the batched env has raised in words, if it is its fault."""
        raise_in_words(error, call, self._where_and_seed(env_indices))

    def _where_and_seed(self, env_indices: Sequence[int]) -> str:
        """Of the first of these envs: which of them it was, nobody knows."""
        first, count = env_indices[0], len(env_indices)
        episode = int(self._episodes[first])
        batch = f" (the first of {count} in one batch)" if count > 1 else ""
        if episode < 0:
            return f"env {first}, before its first episode{batch}"
        return f"{self._where(first)}, seed {episode_seed(self._run_seed, first, episode)}{batch}"

    def _where(self, env_index: int) -> str:
        return f"env {env_index}, episode {self._episodes[env_index]}, step {self._episode_steps[env_index]}"

    def _check_rewards(self, rewards: Array) -> None:
        if not np.isfinite(rewards).all():
            env_index, column = np.argwhere(~np.isfinite(rewards))[0].tolist()
            raise self._error(env_index, column, f"reward is {rewards[env_index, column]}, not a finite number")

    def _check_observations(self, observations: Observations) -> None:
        """Bounds of a Box are the env's own business; what a network cannot take is not."""
        space: Any = self.groups[0].observation_space
        if isinstance(observations, dict):
            for key, array in observations.items():
                self._check_finite(array, space[key], f" (key {key!r})")
        elif isinstance(space, spaces.Box):
            self._check_finite(observations, space)

    def _check_finite(self, array: Array, space: spaces.Space[Any], where: str = "") -> None:
        assert space.dtype is not None
        unfit = unfit_numbers(array, space.dtype)
        if unfit.any():
            place = tuple(np.argwhere(unfit)[0].tolist())
            words = unfit_words(array[place], space.dtype)
            raise self._error(place[0], place[1], f"observation is {words} at index {place[2:]}{where}")

    def _error(self, env_index: int, column: int, problem: str) -> EnvNumericError:
        return EnvNumericError(f"{self._where(env_index)}, agent {self.agents[column]!r}: {problem}")

    def reset_infos(self) -> Sequence[Mapping[str, Any]]:
        """See `MultiAgentVecEnv.reset_infos`."""
        return [self._reset_info() for _ in self._all_envs]

    def get_attr(self, name: str, env_indices: Sequence[int]) -> list[Any]:
        """See `MultiAgentVecEnv.get_attr`; all envs share the attributes of the batched env."""
        return [getattr(self._env, name) for _ in env_indices]

    def set_attr(self, name: str, value: Any, env_indices: Sequence[int]) -> None:
        """See `MultiAgentVecEnv.set_attr`; it is set for all envs at once."""
        setattr(self._env, name, value)

    def env_method(self, name: str, env_indices: Sequence[int], *args: Any, **kwargs: Any) -> list[Any]:
        """See `MultiAgentVecEnv.env_method`; a batched env has `render` for single envs."""
        if name != "render":
            raise AttributeError(f"a batched env has no method {name!r} for single envs; use vectorizer='sync'")
        return [self._render(index) for index in env_indices]

    def _render(self, index: int) -> Any:
        try:
            return self._env.render(index)
        except Exception as error:
            self._blame(error, "render()", [index])
            raise

    def env_is_wrapped(self, wrapper_class: type, env_indices: Sequence[int]) -> list[bool]:
        """See `MultiAgentVecEnv.env_is_wrapped`; batched envs wear no wrappers."""
        return [isinstance(self._env, wrapper_class) for _ in env_indices]

    def get_state(self) -> State:
        """See `MultiAgentVecEnv.get_state`."""
        return {
            "run_seed": self._run_seed,
            "episodes": self._episodes,
            "episode_steps": self._episode_steps,
            "to_act": self.to_act,
            "observations": list(self.observations),
            "own": ask_for_state(self._env.get_state, self._where_and_seed(self._all_envs)),
        }

    def set_state(self, state: StateReader) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`; all envs are brought back exactly, or none is."""
        run_seed = state.integer("run_seed", 0, MAX_SEED)
        counts = {name: state.counts(name, (self.num_envs,)) for name in ("episodes", "episode_steps")}
        to_act = state.array("to_act", np.bool_, self.to_act.shape)
        if not to_act.any(axis=1).all():
            raise state.error("to_act", to_act, "an agent that acts in every env")
        observations = read_observations(state, zero_observations(self.groups, self.num_envs))
        self._run_seed, self.to_act, self.observations = run_seed, to_act, observations
        self._episodes, self._episode_steps = counts["episodes"], counts["episode_steps"]
        why = self._set_own(state)
        if why is None:
            return {}
        self._begin_episodes(self._all_envs)
        self.to_act = np.ones_like(self.to_act)
        self.observations = (self._env.observations(),)
        return dict.fromkeys(self._all_envs, why)

    def _set_own(self, state: StateReader) -> str | None:
        if state.value("own") is None:
            return f"{type(self._env).__name__} has no get_state() that a checkpoint can hold"
        self._env.set_state(state.fields("own"))
        shown = (map_arrays(self._zeros_where_idle, self._env.observations()),)
        same = all(same_in_env(shown, self.observations, index) for index in self._all_envs)
        return None if same else "its set_state() led to other observations"

    def close(self) -> None:
        """See `MultiAgentVecEnv.close`."""
        if not self._closed:
            self._closed = True
            close_in_words(self._env.close, self._where_and_seed(self._all_envs))

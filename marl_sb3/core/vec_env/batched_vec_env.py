"""E envs stepped as arrays by a `BatchedEnv`, with the same results as of the other vectorizers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.core.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.envs.faults import RAISED, ask_for_state, close_in_words, raise_in_words
from marl_sb3.core.envs.registry import EnvFactory, make_env, why_not_batched
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.interface import InProcessVecEnv, Options, VecEnvRequest
from marl_sb3.core.vec_env.masks import forbidden_place, forbidden_words, read_masks
from marl_sb3.core.vec_env.observations import AgentGroup, agent_groups, same, zeros_where_idle
from marl_sb3.core.vec_env.seeding import episode_seed, fresh_seed
from marl_sb3.core.vec_env.slot_states import CONFIGURE, OTHER_SPACES, EnvSettings, EnvStates, read_envs
from marl_sb3.core.vec_env.step import (
    NO_FINAL_OBSERVATIONS,
    ActionMasks,
    ArrayInfos,
    FinalObservations,
    StackedFinalObservations,
    VecStep,
    first_step,
)
from marl_sb3.errors import ConfigError, EnvError, EnvNumericError
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.wrappers.checks import require_agents, unfit_numbers, unfit_words
from marl_sb3.wrappers.observations import choices_of, env_space, policy_actions


def make_batch(factory: EnvFactory, num_envs: int, env_kwargs: Mapping[str, Any], first_index: int = 0) -> BatchedEnv:
    """Make a batch of envs by the factory of single ones.

    Raises:
        ConfigError: it has no `make_batched`, or does not take these arguments.
    """
    if (why_not := why_not_batched(factory, env_kwargs)) is not None:
        raise ConfigError(f"{why_not}; use the sync vectorizer", key="vectorizer")
    make_env(factory, first_index, env_kwargs).close()  # raises better errors for wrong arguments
    return factory.make_batched(num_envs, **env_kwargs)  # type: ignore[attr-defined, no-any-return]


def batched_vec_env(request: VecEnvRequest) -> BatchedVecEnv:
    """Return a vec env of a request, as a `Vectorizer` does."""
    return BatchedVecEnv(make_batch(request.factory, request.n_envs, request.env_kwargs), request.seed)


class BatchedVecEnv(InProcessVecEnv):
    """A `MultiAgentVecEnv` on a `BatchedEnv`.

    Args:
        first_index: index of the first env. With workers, each has a part of all envs.
    """

    def __init__(self, env: BatchedEnv, seed: int | None = None, first_index: int = 0) -> None:
        require_agents(env.possible_agents)
        self.batch = env
        self.execution = env.execution
        self.first_index = first_index
        self.num_envs = env.num_envs
        self.agents = tuple(env.possible_agents)
        given = {agent: env.spaces_of(agent) for agent in self.agents}
        self.groups = agent_groups({agent: (seen, policy_actions(done)) for agent, (seen, done) in given.items()})
        self.metadata = env.metadata
        self.render_mode = env.render_mode
        self.episodes = np.full(self.num_envs, -1)
        self.episode_steps = np.zeros(self.num_envs, dtype=np.int64)
        self.horizon: int | None = None
        self.run_seed = fresh_seed() if seed is None else seed
        self._all_envs = list(range(self.num_envs))
        self._all_stepped = np.ones(self.num_envs, dtype=np.bool_)
        self._none_done: BoolArray = np.zeros(self.num_envs, dtype=np.bool_)
        configure, set_task = getattr(env, "configure", None), getattr(env, "set_task", None)
        kind = type(env).__name__
        self.settings = [EnvSettings(configure, kind, [index], set_task=set_task) for index in self._all_envs]
        self.choices: list[Any] = [choices_of(group.action_space) for group in self.groups]
        # Functions that take actions of several parts apart; None for a group whose actions have one part.
        self._splits = [getattr(group.action_space, "split", None) for group in self.groups]
        self.masked: bool | None = None  # None: not known before the first reset
        self._no_masks: ActionMasks = (None,) * len(self.groups)

    def _by_group(self, given: Any) -> tuple[Any, ...]:
        return given if len(self.groups) > 1 else (given,)

    def _seed(self, seed: int) -> None:
        self.run_seed = seed
        self.episodes[:] = -1

    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        given = [options or {} for options in options] if options is not None and any(options) else None
        if given is not None and "options" not in inspect.signature(self.batch.reset).parameters:
            name = type(self.batch).__name__
            raise ConfigError(f"reset options {given}: the batched env {name} takes none; use vectorizer='sync'")
        self._begin_episodes(self._all_envs, given)
        return self._first_step()

    @override
    def episode_seeds(self, env_indices: Sequence[int]) -> list[int | None]:
        episodes = self.episodes.tolist()
        return [None if episodes[env] < 0 else self.episode_seed(env, episodes[env]) for env in env_indices]

    @override
    def limit_episodes(self, env_steps: int) -> None:
        self.horizon = env_steps

    def _first_step(self) -> VecStep:
        """Return the first step after a reset of all envs; all agents act next."""
        to_act = np.ones((self.num_envs, len(self.agents)), dtype=np.bool_)
        infos = self.reset_infos(self._all_envs)
        return first_step(self._shown(), self.masks(to_act), to_act, infos, self._env_state())

    def reset_infos(self, env_indices: Sequence[int]) -> dict[int, Mapping[str, Any]]:
        """Return the infos of the latest resets of these envs: env index -> agent -> info."""
        told = getattr(self.batch, "reset_infos", lambda _: dict[int, Any]())(env_indices)
        return {index: told.get(index, {agent: {} for agent in self.agents}) for index in env_indices}

    def _begin_episodes(self, env_indices: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None) -> None:
        self.episodes[env_indices] += 1
        self.episode_steps[env_indices] = 0
        episodes = self.episodes.tolist()
        seeds = [self.episode_seed(index, episodes[index]) for index in env_indices]
        for index in env_indices:
            self._checked(CONFIGURE, [index], self.settings[index].begin_episode)
        for group in self.groups:
            if self.batch.spaces_of(group.agents[0]) != (group.observation_space, env_space(group.action_space)):
                raise EnvError(f"{self._where(env_indices[0])}: {OTHER_SPACES}")
        self._of_env("reset", env_indices, env_indices, seeds, *([] if options is None else [options]))

    def _step(self, actions: Sequence[Array]) -> VecStep:
        acted = self.latest.to_act
        self.episode_steps += 1
        given = [own if split is None else split(own) for own, split in zip(actions, self._splits, strict=True)]
        step: BatchedStep = self._of_env("step", self._all_envs, given if given[1:] else given[0])
        if step.rewards.dtype.kind not in "biuf":
            raise EnvError(f"{self._where(0)}: rewards have dtype {step.rewards.dtype}; accepted: real numbers")
        rewards = step.rewards.astype(np.float32)
        terminated, truncated = step.terminated.view(), step.truncated.view()  # the env may write into its own later
        all_acted = np.count_nonzero(acted) == acted.size  # a quarter of the time of `all`
        if not all_acted:
            rewards, terminated, truncated = rewards * acted, terminated & acted, truncated & acted
        if self.horizon is not None:
            at_horizon = (self.episode_steps >= self.horizon)[:, None]
            truncated = truncated | (at_horizon & acted & ~terminated)
        if np.count_nonzero(np.isfinite(rewards)) != rewards.size:
            index, column = np.argwhere(~np.isfinite(rewards))[0].tolist()
            raise self.error(index, column, f"reward is {rewards[index, column]}, not a finite number")
        observations = self._shown()
        ended, infos = terminated | truncated, step.infos
        if self.masked and truncated.any():  # what a truncated agent could do next counts where values are learned
            masks = deepcopy(self._by_group(self._of_env("action_masks", self._all_envs)))
            infos = self.with_masks(infos, masks)
        to_act, episode_done = acted, self._none_done
        final_observations: FinalObservations = NO_FINAL_OBSERVATIONS
        reset_infos: dict[int, Mapping[str, Any]] = {}
        final_env_states: dict[int, Array] = {}
        if np.count_nonzero(ended):
            final_observations = StackedFinalObservations(ended, self.groups, observations)
            to_act = acted & ~ended
            episode_done = ~np.any(to_act, axis=1)
            over: list[int] = np.flatnonzero(episode_done).tolist()
            if over:
                final_states = self._env_state()
                final_env_states = {} if final_states is None else {index: final_states[index] for index in over}
                self._begin_episodes(over)
                reset_infos = self.reset_infos(over)
                to_act[episode_done] = True
                observations = self._shown()
        if not (all_acted and to_act is acted):
            observations = zeros_where_idle(self.groups, observations, to_act)
        return VecStep(
            observations=observations,
            action_masks=self.masks(to_act) if self.masked else self._no_masks,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            acted=acted,
            to_act=to_act,
            in_play=acted,
            stepped=self._all_stepped,
            episode_done=episode_done,
            final_observations=final_observations,
            infos=ArrayInfos(infos, self.num_envs),
            reset_infos=reset_infos,
            env_state=self._env_state(),
            final_env_states=final_env_states,
        )

    def with_masks(self, infos: Mapping[str, Mapping[str, Array]], masks: Sequence[Any]) -> Any:
        """Return the infos of agents with their masks, (E, A_group, n) of each group."""
        of_groups = [(group, own) for group, own in zip(self.groups, masks, strict=True) if own is not None]
        of_agents = {agent: own[:, at] for group, own in of_groups for at, agent in enumerate(group.agents)}
        return {**infos, **{agent: {MASK: own, **infos.get(agent, {})} for agent, own in of_agents.items()}}

    def _env_state(self) -> Array | None:
        """Return the states of the envs, (E, ...), if they are asked for."""
        if not self.shows_env_state:
            return None
        states: Array | None = self._of_env("env_states", self._all_envs)
        if states is None:
            name = type(self.batch).__name__
            raise ConfigError(f"env_state: {name} has no env_states(); use vectorizer='sync'", key="env_state")
        return states

    def masks(self, to_act: BoolArray) -> ActionMasks:
        """Return the masks of the agents that act next; the first call finds out whether there are any."""
        given: Any = self._of_env("action_masks", self._all_envs)
        if self.masked is None:
            self.masked = given is not None and any(self.choices)
        if not self.masked:
            return self._no_masks
        of_groups = zip(self.groups, self._by_group(given), self.choices, strict=True)
        return tuple(choices and self._masks_of(group, masks, choices, to_act) for group, masks, choices in of_groups)

    def _masks_of(self, group: AgentGroup, masks: Any, choices: Sequence[int], all_to_act: BoolArray) -> Any:
        to_act = all_to_act[:, group.columns]
        shape = (*to_act.shape, sum(choices))
        if masks is None or masks.shape != shape or masks.dtype != np.bool_:
            received = None if masks is None else f"an array of {masks.dtype} {masks.shape}"
            raise EnvError(f"{self._where(0)}: action_masks() is {received}; accepted: an array of bool {shape}")
        masks = masks | ~to_act[:, :, None]
        place = forbidden_place(masks, choices)
        if place is not None:
            index, column, choice = place
            problem = forbidden_words(choice, choices)
            raise EnvError(f"{self._where(index)}, agent {group.agents[column]!r}: {problem}")
        return masks

    def _shown(self) -> tuple[Observations, ...]:
        observations = self._by_group(self._of_env("observations", self._all_envs))
        self.check_observations(observations)
        return observations

    def _of_env(self, method: str, env_indices: Sequence[int], *arguments: Any) -> Any:
        """Call a method of the batched env; if it raises an exception, the message names the first of these envs."""
        return self._checked(f"{method}()", env_indices, getattr(self.batch, method), *arguments)

    def _checked(self, call: str, env_indices: Sequence[int], function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except RAISED as error:
            raise_in_words(error, call, self._where_and_seed(env_indices))
            raise

    def episode_seed(self, env_index: int, episode: int) -> int:
        """Return the seed of an episode."""
        return episode_seed(self.run_seed, self.first_index + env_index, episode)

    def _where_and_seed(self, env_indices: Sequence[int]) -> str:
        """Describe the first of these envs: it is not known which of them failed."""
        first, count = env_indices[0], len(env_indices)
        episode = int(self.episodes[first])
        batch = f" (the first of {count} in one batch)" if count > 1 else ""
        if episode < 0:
            return f"env {self.first_index + first}, before its first episode{batch}"
        return f"{self._where(first)}, seed {self.episode_seed(first, episode)}{batch}"

    def _where(self, env_index: int) -> str:
        episode, step = self.episodes[env_index], self.episode_steps[env_index]
        return f"env {self.first_index + env_index}, episode {episode}, step {step}"

    def check_observations(self, observations: Sequence[Observations]) -> None:
        """Refuse observations, per group, that a network cannot take; the bounds of a Box are not checked."""
        for group, seen in zip(self.groups, observations, strict=True):
            whole: Any = group.observation_space
            for key, array in seen.items() if isinstance(seen, dict) else [(None, seen)]:
                space = whole if key is None else whole[key]
                unfit = unfit_numbers(array, space.dtype) if isinstance(space, spaces.Box) else None
                if unfit is not None and np.count_nonzero(unfit):
                    place = tuple(np.argwhere(unfit)[0].tolist())
                    words = f"{unfit_words(array[place], space.dtype)} at index {place[2:]}"
                    where = "" if key is None else f" (key {key!r})"
                    raise self.error(place[0], group.columns[place[1]], f"observation is {words}{where}")

    def error(self, env_index: int, column: int, problem: str) -> EnvNumericError:
        """Make the error for an agent in the latest step."""
        return EnvNumericError(f"{self._where(env_index)}, agent {self.agents[column]!r}: {problem}")

    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        """See `MultiAgentVecEnv.call`: `render` is for single envs, attributes belong to all envs."""
        return [self._call_one(index, name, *args, **kwargs) for index in env_indices]

    def _call_one(self, env_index: int, name: str, /, *args: Any, **kwargs: Any) -> Any:
        if name == "render":
            return self._of_env("render", [env_index], env_index)
        if name == "set_wrapper_attr":
            return setattr(self.batch, *args)
        if name == "has_wrapper":
            return isinstance(self.batch, *args)  # it has no wrappers
        if name == "get_wrapper_attr":
            return self._attribute(env_index, *args)
        is_there = hasattr(self.batch, name) or name in self.settings[env_index].in_force
        if args or kwargs or not is_there or callable(self._attribute(env_index, name)):
            raise AttributeError(f"a batched env has no method {name!r} for single envs; use vectorizer='sync'")
        return self._attribute(env_index, name)

    def _attribute(self, env_index: int, name: str) -> Any:
        """Return a setting that `configure` has set for this env, otherwise an attribute of the batched env."""
        in_force = self.settings[env_index].in_force
        return in_force[name] if name in in_force else getattr(self.batch, name)

    def _get_state(self) -> State:
        return {
            "run_seed": self.run_seed,
            "episodes": self.episodes.copy(),
            "episode_steps": self.episode_steps.copy(),
            "to_act": self.latest.to_act,
            "observations": list(self.latest.observations),
            "action_masks": list(self.latest.action_masks),
            "settings": [settings.get_state() for settings in self.settings],
            "own": ask_for_state(self.batch.get_state, self._where_and_seed(self._all_envs)),
        }

    def _set_state(self, state: StateReader) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`; either all envs are restored exactly, or none."""
        saved, masks = read_envs(state, self.groups, self.num_envs), read_masks(state, self.groups, self.num_envs)
        self.run_seed, self.episodes, self.episode_steps = saved.run_seed, saved.episodes, saved.steps
        own_and_saved = list(zip(self.settings, saved.settings, strict=True))
        kept = [own.restore(then, self.first_index + index) for index, (own, then) in enumerate(own_and_saved)]
        why = next(filter(None, kept), None) or self._set_own(state, saved)
        for own, then in own_and_saved:
            own.coming = then["coming"]
        if why is None:
            self.masked = any(own is not None for own in masks)
            in_play = saved.to_act & (self.episode_steps > 0)[:, None]
            self._latest = first_step(saved.observations, masks, saved.to_act, {}, self._env_state(), in_play)
            return {}
        self._begin_episodes(self._all_envs)
        self._latest = self._first_step()
        return dict.fromkeys(self._all_envs, why)

    def _set_own(self, state: StateReader, saved: EnvStates) -> str | None:
        if state.value("own") is None or saved.apart:
            none = f"{type(self.batch).__name__} has no get_state() that a checkpoint can hold"
            return "the envs were stepped one by one when it was saved" if saved.apart else none
        self.batch.set_state(state.fields("own"))
        shown = zeros_where_idle(self.groups, self._by_group(self.batch.observations()), saved.to_act)
        return None if same(shown, saved.observations) else "its set_state() led to other observations"

    def _close(self) -> None:
        close_in_words(self.batch.close, self._where_and_seed(self._all_envs))

"""Envs that are functions of JAX, of gymnax, JaxMARL, jumanji and your own: vmapped, and compiled for all envs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.core.envs.batched import BatchedStep
from marl_sb3.core.envs.converted import AGENT, MASK
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.envs.batches.base import AdaptedBatch, batch_factory, gymnasium_space
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.observations import choices_of

GYMNAX, JAXMARL, JUMANJI = "gymnax/", "jaxmarl/", "jumanji/"  # and an id of the library's


class JaxEnv(Protocol):
    """One env as functions that JAX can compile: without side effects, with arrays of fixed shapes.

    `JaxBatch` maps them over all envs. No function resets an env by itself.
    """

    spaces: Mapping[AgentID, tuple[spaces.Space[Any], spaces.Space[Any]]]  # of Gymnasium, by agent
    name: str

    def reset(self, key: Any) -> tuple[Mapping[AgentID, Any], Any]:
        """Begin an episode with a key of `jax.random`; returns the observations of the agents, and the env's state."""

    def step(
        self, key: Any, state: Any, actions: Mapping[AgentID, Any]
    ) -> tuple[Mapping[AgentID, Any], Any, Mapping[AgentID, Any], Mapping[AgentID, Any], Mapping[AgentID, Any]]:
        """Take a step; returns observations, the next state, rewards, and which agents are terminated and truncated."""

    def masks(self, state: Any) -> Mapping[AgentID, Any] | None:
        """Return the action masks of the agents in a state; None if there are none."""
        return None


class JaxBatch(AdaptedBatch):
    """A batch of a `JaxEnv`; an episode depends on its seed and its actions alone.

    Args:
        env: the functions of one env.
        num_envs: E.
    """

    def __init__(self, env: JaxEnv, num_envs: int) -> None:
        import jax

        super().__init__(num_envs, env.spaces, {"name": env.name})
        self._env, self._jax = env, jax
        self._begin, self._advance, self._masks = map(jax.jit, (self._begun, self._stepped, jax.vmap(env.masks)))
        # Structure, shapes and dtypes of all that an env is, without running it.
        like = jax.eval_shape(jax.vmap(self._fresh), np.zeros(num_envs, np.uint32))
        self._all = jax.tree.map(self._blank, like)

    def _is_key(self, leaf: Any) -> bool:
        return bool(self._jax.numpy.issubdtype(leaf.dtype, self._jax.dtypes.prng_key))

    def _blank(self, like: Any) -> Any:
        """Return what stands in the place of an array, or of keys, before the first reset."""
        random, numpy = self._jax.random, self._jax.numpy
        return random.split(random.key(0), like.shape) if self._is_key(like) else numpy.zeros(like.shape, like.dtype)

    def _fresh(self, seed: Any) -> Any:
        """Begin an episode of one env: its key, state and what the agents see."""
        key, own = self._jax.random.split(self._jax.random.PRNGKey(seed))
        seen, state = self._env.reset(own)
        return key, state, seen

    def _begun(self, everything: Any, chosen: Any, seeds: Any) -> Any:
        """Begin episodes in the chosen envs, (E,) bool; the others stay as they are."""
        jax = self._jax
        fresh = jax.vmap(self._fresh)(seeds)

        def merged(new: Any, old: Any) -> Any:
            return jax.numpy.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), new, old)

        return jax.tree.map(merged, fresh, everything)

    def _stepped(self, everything: Any, actions: Mapping[AgentID, Any]) -> Any:
        keys, states, _ = everything
        jax = self._jax

        def step(key: Any, state: Any, own: Mapping[AgentID, Any]) -> Any:
            key, drawn = jax.random.split(key)
            seen, state, *rest = self._env.step(drawn, state, own)
            columns = [jax.numpy.stack([each[agent] for agent in self.possible_agents]) for each in rest]
            return (key, state, seen), columns

        return jax.vmap(step)(keys, states, actions)

    @override
    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        chosen, given = np.zeros(self.num_envs, np.bool_), np.zeros(self.num_envs, np.uint32)
        chosen[list(env_indices)], given[list(env_indices)] = True, seeds
        self._all = self._begin(self._all, chosen, given)

    @override
    def step(self, actions: Any) -> BatchedStep:
        self._all, (rewards, terminated, truncated) = self._advance(self._all, self.by_agent(actions))
        ended = np.asarray(terminated, np.bool_)
        return BatchedStep(np.asarray(rewards), ended, np.asarray(truncated, np.bool_) & ~ended, {})

    @override
    def observations(self) -> Any:
        return self.seen_by_group(self._all[2])

    @override
    def action_masks(self) -> Any:
        given = self._masks(self._all[1])
        return None if given is None else self.masks_by_group(given)

    @override
    def get_state(self) -> State:
        return {"leaves": [self._plain(leaf) for leaf in self._jax.tree.leaves(self._all)]}

    def _plain(self, leaf: Any) -> Array:
        """Return the array of a leaf; that of the data of keys."""
        return np.array(self._jax.random.key_data(leaf) if self._is_key(leaf) else leaf)

    @override
    def set_state(self, state: StateReader) -> None:
        leaves, structure = self._jax.tree.flatten(self._all)
        given = state.like("leaves", [self._plain(leaf) for leaf in leaves])
        wrapped = [
            self._jax.random.wrap_key_data(own, impl=self._jax.random.key_impl(leaf))
            if self._is_key(leaf)
            else self._jax.numpy.asarray(own)
            for own, leaf in zip(given, leaves, strict=True)
        ]
        self._all = self._jax.tree.unflatten(structure, wrapped)


# --- gymnax ----------------------------------------------------------------------------------------------------------


class GymnaxEnv(JaxEnv):
    """An env of gymnax (Lange 2022), from version 1.0 on; its only agent is called `agent`.

    Args:
        env_id: the id of gymnax's.
        params: that differ from the env's own, such as `max_steps_in_episode`.
    """

    def __init__(self, env_id: str, **params: Any) -> None:
        import gymnax
        from gymnax.environments.spaces import gymnax_space_to_gym_space

        _require_id(GYMNAX, env_id, gymnax.registered_envs)
        self._env, own = gymnax.make(env_id)
        unknown = sorted(params.keys() - vars(own).keys())
        if unknown:
            words = f"env {GYMNAX}{env_id}: it has no {', '.join(unknown)}; accepted: {', '.join(vars(own))}"
            raise ConfigError(words, key=f"env.{unknown[0]}")
        self._params, self.name = own.replace(**params), f"{GYMNAX}{env_id}"
        both = self._env.observation_space(self._params), self._env.action_space(self._params)
        seen, done = (gymnasium_space(gymnax_space_to_gym_space(space)) for space in both)
        self.spaces = {AGENT: (seen, done)}

    def reset(self, key: Any) -> tuple[Mapping[AgentID, Any], Any]:
        """See `JaxEnv`."""
        seen, state = self._env.reset_env(key, self._params)
        return {AGENT: seen}, state

    def step(self, key: Any, state: Any, actions: Mapping[AgentID, Any]) -> Any:
        """See `JaxEnv`."""
        seen, state, reward, terminated, _ = self._env.step_env(key, state, actions[AGENT], self._params)
        truncated = self._env.is_truncated(state, self._params)
        return {AGENT: seen}, state, {AGENT: reward}, {AGENT: terminated}, {AGENT: truncated}


# --- JaxMARL ---------------------------------------------------------------------------------------------------------


class JaxMarlEnv(JaxEnv):
    """An env of JaxMARL (Rutherford et al. 2023).

    JaxMARL does not tell an episode that its limit of steps ends from one that the game ends: where all agents are done
    in the step that reaches the env's `max_steps`, they are truncated here.

    Args:
        env_id: the id of JaxMARL's.
        arguments: of the env.
    """

    def __init__(self, env_id: str, **arguments: Any) -> None:
        import jaxmarl

        _require_id(JAXMARL, env_id, jaxmarl.registered_envs)
        try:
            self._env = jaxmarl.make(env_id, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"env {JAXMARL}{env_id}: JaxMARL says: {error}", key="env") from error
        self.name, self._agents = f"{JAXMARL}{env_id}", list(self._env.agents)
        self._limit = getattr(self._env, "max_steps", math.inf)
        self.spaces = {
            agent: (gymnasium_space(self._env.observation_space(agent)), gymnasium_space(self._env.action_space(agent)))
            for agent in self._agents
        }

    def reset(self, key: Any) -> tuple[Mapping[AgentID, Any], Any]:
        """See `JaxEnv`."""
        seen, state = self._env.reset(key)
        return {agent: seen[agent] for agent in self._agents}, state

    def step(self, key: Any, state: Any, actions: Mapping[AgentID, Any]) -> Any:
        """See `JaxEnv`."""
        seen, state, rewards, dones, _ = self._env.step_env(key, state, dict(actions))
        is_late = getattr(state, "step", 0) >= self._limit
        truncated = dict.fromkeys(self._agents, dones["__all__"] & is_late)
        terminated = {agent: dones[agent] & ~truncated[agent] for agent in self._agents}
        seen, rewards = ({agent: each[agent] for agent in self._agents} for each in (seen, rewards))
        return seen, state, rewards, terminated, truncated

    def masks(self, state: Any) -> Mapping[AgentID, Any] | None:
        """See `JaxEnv`."""
        try:
            given = self._env.get_avail_actions(state)
        except (NotImplementedError, AttributeError):  # most have none
            return None
        return {agent: given[agent].astype(bool) for agent in self._agents}


# --- jumanji ---------------------------------------------------------------------------------------------------------


class JumanjiEnv(JaxEnv):
    """An env of jumanji (Bonnet et al. 2024): its only agent, `agent`, observes a Dict of the parts of an observation.

    Args:
        env_id: the id of jumanji's.
        arguments: of the env.
    """

    def __init__(self, env_id: str, **arguments: Any) -> None:
        import jumanji
        from jumanji.specs import jumanji_specs_to_gym_spaces

        _require_id(JUMANJI, env_id, sorted(jumanji.registered_environments()))
        try:
            self._env = jumanji.make(env_id, **arguments)
        except (TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"env {JUMANJI}{env_id}: jumanji says: {error}", key="env") from error
        self.name = f"{JUMANJI}{env_id}"
        both = self._env.observation_spec, self._env.action_spec
        seen, done = (gymnasium_space(jumanji_specs_to_gym_spaces(spec)) for spec in both)
        self._has_mask = isinstance(seen, spaces.Dict) and MASK in seen.spaces and choices_of(done) is not None
        if self._has_mask and isinstance(seen, spaces.Dict):
            seen = spaces.Dict({key: own for key, own in seen.spaces.items() if key != MASK})
        self.spaces = {AGENT: (seen, done)}

    def _shown(self, state: Any, timestep: Any) -> tuple[Mapping[AgentID, Any], Any]:
        """Return what the agent observes, and the state with the mask of the next action."""
        seen, mask = timestep.observation, None
        if isinstance(self.spaces[AGENT][0], spaces.Dict):
            seen = _as_dict(seen)
            mask = seen.pop(MASK).reshape(-1) if self._has_mask else None
        return {AGENT: seen}, (state, mask)

    def reset(self, key: Any) -> tuple[Mapping[AgentID, Any], Any]:
        """See `JaxEnv`."""
        return self._shown(*self._env.reset(key))

    def step(self, key: Any, state: Any, actions: Mapping[AgentID, Any]) -> Any:
        """See `JaxEnv`; an episode is truncated where its last step has a discount."""
        own, timestep = self._env.step(state[0], actions[AGENT])
        seen, state = self._shown(own, timestep)
        is_terminal = timestep.last() & (timestep.discount == 0).all()
        truncated = timestep.last() & ~is_terminal
        return seen, state, {AGENT: timestep.reward.sum()}, {AGENT: is_terminal}, {AGENT: truncated}

    def masks(self, state: Any) -> Mapping[AgentID, Any] | None:
        """See `JaxEnv`."""
        return {AGENT: state[1]} if self._has_mask else None


def _as_dict(observation: Any) -> dict[str, Any]:
    """Return an observation, a NamedTuple of arrays and of such tuples, as dictionaries."""
    parts = observation._asdict()
    return {key: _as_dict(own) if hasattr(own, "_asdict") else own for key, own in parts.items()}


def _require_id(prefix: str, env_id: str, known: Sequence[str]) -> None:
    if env_id not in known:
        raise ConfigError(f"env {prefix}{env_id}: there is no such env; accepted: {', '.join(known)}", key="env")


def jax_envs(make: Callable[..., JaxEnv]) -> EnvFactory:
    """Return the factory of envs that are functions of JAX, for `make_vec_env`, `train` and `register_env`.

    Args:
        make: `make(**env_kwargs)` returns the `JaxEnv`; its class, say.
    """
    return batch_factory(
        partial(_named, lambda _, **env_kwargs: make(**env_kwargs), ""), f"{make.__module__}:{make.__qualname__}"
    )


def _named(make: Callable[..., JaxEnv], env_id: str, num_envs: int, **env_kwargs: Any) -> JaxBatch:
    return JaxBatch(make(env_id, **env_kwargs), num_envs)


made_by_gymnax, made_by_jaxmarl, made_by_jumanji = (
    partial(_named, kind) for kind in (GymnaxEnv, JaxMarlEnv, JumanjiEnv)
)

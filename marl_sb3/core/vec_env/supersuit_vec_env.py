"""E copies of a `ParallelEnv` in one process, vectorised by SuperSuit.

SuperSuit's `MarkovVectorEnv` needs all possible agents in all dictionaries, resets the env by itself and without a
seed, and drops data that is not in its arrays. `SuperSuitAdapter` is between it and the env: it fills the places of
agents that do not act, and keeps the complete step in `last_step`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import supersuit
from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array, iterate
from pettingzoo import ParallelEnv

from marl_sb3.core.vec_env.interface import Options, VecEnvRequest
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.core.vec_env.separate_envs import EnvFactory, SyncVecEnv
from marl_sb3.core.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, Observations


class SuperSuitAdapter(ParallelEnv):  # type: ignore[misc]
    """The env of a slot, in which all agents are always present.

    A pickled instance has no slot: SuperSuit copies the adapter by cloudpickle, and a copied env would repeat the
    random numbers of the original. `SuperSuitVecEnv` gives each copy its own slot.
    """

    last_step: SlotStep  # the latest step, with data that SuperSuit's arrays do not have

    def __init__(self, slot: EnvSlot) -> None:
        view = slot.view
        self.slot = slot  # the env
        self.possible_agents: list[AgentID] = list(view.possible_agents)
        self.agents = self.possible_agents
        self.metadata = dict(slot.env.metadata)
        self.render_mode = getattr(slot.env.unwrapped, "render_mode", None)
        # All agents have the same spaces: SuperSuit takes no others.
        self._observation_space: spaces.Space[Any] = view.observation_space(self.possible_agents[0])
        self._action_space: spaces.Space[Any] = view.action_space(self.possible_agents[0])
        self._zeros = next(iter(iterate(self._observation_space, create_empty_array(self._observation_space, n=1))))
        self.options: Mapping[str, Any] | None = None  # options of the next reset
        self._first_of_episode: Mapping[AgentID, Any] | None = None  # of an episode that `step` has begun

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "slot": None}

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The agents' observation space."""
        return self._observation_space

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The agents' action space."""
        return self._action_space

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin the next episode, or return that which `step` has begun; SuperSuit never sets the arguments."""
        observations, self._first_of_episode = self._first_of_episode, None
        if observations is None:
            observations, self.options = self.slot.reset(self.options), None
        # No infos: SuperSuit would overwrite those of the episode's last step.
        return self._fill(observations), {}

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Step the env. All agents are reported as ended at the end of the episode, when SuperSuit has to reset."""
        step = self.last_step = self.slot.step([np.stack([actions[agent] for agent in self.possible_agents])])
        over = step.reset_infos is not None
        if over:
            self._first_of_episode = step.observations
        # SuperSuit joins the two flags by position: every dictionary is in the order of possible_agents.
        return (
            self._fill(step.observations),
            {agent: step.rewards.get(agent, 0.0) for agent in self.possible_agents},
            {agent: over or agent in self.slot.ended for agent in self.possible_agents},
            dict.fromkeys(self.possible_agents, False),
            {agent: {} for agent in self.possible_agents},
        )

    def _fill(self, observations: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        to_act = self.slot.to_act
        return {agent: observations[agent] if agent in to_act else self._zeros for agent in self.possible_agents}


class SuperSuitVecEnv(SyncVecEnv):
    """A vec env of `pettingzoo_env_to_vec_env_v1` and `concat_vec_envs_v1`, with a `SuperSuitAdapter` for each env.

    Args:
        make_env: makes the env of an index; called once for each of the E envs.

    Raises:
        ConfigError: the agents' spaces differ, which SuperSuit cannot vectorise, or the envs differ in their
            agents or spaces, or are not separate envs.
    """

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None) -> None:
        super().__init__(make_env, num_envs, seed)
        if len(self.groups) > 1:
            first, other = self.groups[:2]
            kind = "action_space" if first.observation_space == other.observation_space else "observation_space"
            raise ConfigError(
                f"agents {first.agents[0]!r} and {other.agents[0]!r} have different {kind}s: {getattr(first, kind)} "
                f"and {getattr(other, kind)}; the supersuit vectorizer takes only envs in which all agents have the "
                "same spaces"
            )
        markov = supersuit.pettingzoo_env_to_vec_env_v1(SuperSuitAdapter(self._slots[0]))
        self._concat = supersuit.concat_vec_envs_v1(markov, num_envs, base_class="gymnasium")
        self._adapters: list[SuperSuitAdapter] = [copy.par_env for copy in self._concat.vec_envs]
        for adapter, slot in zip(self._adapters, self._slots, strict=True):
            adapter.slot = slot

    def _reset_slots(self, options: Sequence[Options]) -> None:
        for adapter, env_options in zip(self._adapters, options, strict=True):
            adapter.options = env_options
        self._concat.reset()

    def _step_slots(self, actions: Sequence[Array]) -> tuple[tuple[Observations, ...], list[SlotStep]]:
        (of_group,) = actions
        rows = self._concat.step(of_group.reshape(-1, *of_group.shape[2:]))[0]
        shape = (self.num_envs, len(self.agents))
        observations = map_arrays(lambda array: array.reshape(*shape, *array.shape[1:]), rows)
        return (observations,), [adapter.last_step for adapter in self._adapters]


def supersuit_vec_env(request: VecEnvRequest) -> SuperSuitVecEnv:
    """See `doors.Vectorizer`."""
    return SuperSuitVecEnv(request.make_env, request.n_envs, request.seed)

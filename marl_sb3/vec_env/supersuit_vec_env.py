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

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, Observations
from marl_sb3.vec_env.interface import Options
from marl_sb3.vec_env.observations import AgentGroup, map_arrays
from marl_sb3.vec_env.separate_envs import EnvFactory, SeparateEnvs, final_env_states
from marl_sb3.vec_env.slot import EnvSlot, SlotStep
from marl_sb3.vec_env.step import DictInfos, FinalObservations, VecStep


class SuperSuitAdapter(ParallelEnv):  # type: ignore[misc]
    """The env of a slot, in which all agents are always present.

    A pickled instance has no slot: SuperSuit copies the adapter by cloudpickle, and a copied env would repeat the
    random numbers of the original. `SuperSuitVecEnv` gives each copy its own slot.

    Attributes:
        slot: the env.
        options: options of the next reset.
        last_step: the latest step, with data that SuperSuit's arrays do not have; None before the first.
    """

    def __init__(self, slot: EnvSlot) -> None:
        view = slot.view
        self.slot = slot
        self.possible_agents: list[AgentID] = list(view.possible_agents)
        self.agents = self.possible_agents
        self.metadata = dict(slot.env.metadata)
        self.render_mode = getattr(slot.env.unwrapped, "render_mode", None)
        # All agents have the same spaces: SuperSuit takes no others.
        self._observation_space: spaces.Space[Any] = view.observation_space(self.possible_agents[0])
        self._action_space: spaces.Space[Any] = view.action_space(self.possible_agents[0])
        self.options: Mapping[str, Any] | None = None
        self.last_step: SlotStep | None = None
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
        return {agent: observations[agent] if agent in to_act else self._zeros() for agent in self.possible_agents}

    def _zeros(self) -> Any:
        space = self._observation_space
        return next(iter(iterate(space, create_empty_array(space, n=1))))


class SuperSuitVecEnv(SeparateEnvs):
    """A vec env of `pettingzoo_env_to_vec_env_v1` and `concat_vec_envs_v1`, with a `SuperSuitAdapter` for each env.

    Args:
        make_env: makes the env of an index; called once for each of the E envs.

    Raises:
        ConfigError: the agents' spaces differ, which SuperSuit cannot vectorise, or the envs differ in their
            agents or spaces, or are not separate envs.
    """

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None) -> None:
        super().__init__(make_env, num_envs, seed)
        _require_single_group(self.groups)
        markov = supersuit.pettingzoo_env_to_vec_env_v1(SuperSuitAdapter(self._slots[0]))
        self._concat = supersuit.concat_vec_envs_v1(markov, num_envs, base_class="gymnasium")
        self._adapters: list[SuperSuitAdapter] = [copy.par_env for copy in self._concat.vec_envs]
        for adapter, slot in zip(self._adapters, self._slots, strict=True):
            adapter.slot = slot

    def _reset(self, options: Sequence[Options] | None) -> VecStep:
        if options is not None:
            for adapter, env_options in zip(self._adapters, options, strict=True):
                adapter.options = env_options
        observations, _ = self._concat.reset()
        return self._first_step((self._by_env(observations),))

    def _step(self, actions: Sequence[Array]) -> VecStep:
        (group_actions,) = actions
        acted = self.latest.to_act
        observations, rewards, _, _, _ = self._concat.step(group_actions.reshape(-1, *group_actions.shape[2:]))
        steps = [_last_step(adapter) for adapter in self._adapters]
        infos = [step.infos for step in steps]
        reset_infos = {index: step.reset_infos for index, step in enumerate(steps) if step.reset_infos is not None}
        return VecStep(
            observations=(self._by_env(observations),),
            action_masks=self._masks_after(infos, reset_infos),
            rewards=rewards.reshape(acted.shape),
            terminated=self._ends(steps, 0),
            truncated=self._ends(steps, 1),
            acted=acted,
            to_act=self._turns(),
            in_play=self._in_play(acted, steps),
            stepped=np.ones(self.num_envs, dtype=np.bool_),
            episode_done=np.array([step.reset_infos is not None for step in steps]),
            final_observations=FinalObservations(
                {
                    (index, self.agents.index(agent)): seen
                    for index, step in enumerate(steps)
                    for agent, seen in step.final_observations.items()
                }
            ),
            infos=DictInfos(infos),
            reset_infos=reset_infos,
            env_state=self._env_state(),
            final_env_states=final_env_states(steps),
        )

    def _ends(self, steps: Sequence[SlotStep], flag: int) -> Array:
        """(E, A) bool; the agents that were terminated (flag 0) or truncated (flag 1)."""
        return np.array([[step.ends.get(agent, (False, False))[flag] for agent in self.agents] for step in steps])

    def _by_env(self, observations: Observations) -> Observations:
        shape = (self.num_envs, len(self.agents))
        return map_arrays(lambda array: array.reshape(*shape, *array.shape[1:]), observations)


def _last_step(adapter: SuperSuitAdapter) -> SlotStep:
    assert adapter.last_step is not None, "the adapter has been stepped"
    return adapter.last_step


def _require_single_group(groups: Sequence[AgentGroup]) -> None:
    """Refuse agents with different spaces, which SuperSuit does not support."""
    first = groups[0]
    for other in groups[1:]:
        for kind in ("observation_space", "action_space"):
            ours, theirs = getattr(first, kind), getattr(other, kind)
            if ours != theirs:
                raise ConfigError(
                    f"agents {first.agents[0]!r} and {other.agents[0]!r} have different {kind}s: {ours} and {theirs}; "
                    "the supersuit vectorizer takes only envs in which all agents have the same spaces"
                )

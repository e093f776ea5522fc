"""One `ParallelEnv` as SuperSuit needs it: every agent present in every step, nothing lost on the way.

SuperSuit's `MarkovVectorEnv` wants all possible agents in all dictionaries, resets the env by itself and without a
seed, and forgets what it does not put into its arrays. `AgentRows` stands between it and the env: it fills the
places of inactive agents, seeds every reset, and keeps the step's whole truth in `last_step`.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces
from gymnasium.vector.utils import create_empty_array, iterate
from pettingzoo import ParallelEnv

from marl_sb3.types import AgentID
from marl_sb3.vec_env.seeding import episode_seed, fresh_seed
from marl_sb3.vec_env.separate_envs import require_same_agents


@dataclass
class RowStep:
    """What SuperSuit's arrays do not say about a step."""

    acted: frozenset[AgentID]
    infos: Mapping[str, Any]
    final_observations: dict[AgentID, Any] = field(default_factory=dict)
    env_ended: bool = False


class AgentRows(ParallelEnv):  # type: ignore[misc]
    """A `ParallelEnv` whose agents are all there, always; `live` says which of them act.

    An instance that is pickled leaves its env behind: SuperSuit copies it with cloudpickle, and a copied env would
    repeat the random stream of the original. `SuperSuitVecEnv` gives each copy an env of its own.
    """

    def __init__(self, env: Any, env_index: int = 0) -> None:
        self.possible_agents: list[AgentID] = list(env.possible_agents)
        self.agents = self.possible_agents
        self.metadata = dict(env.metadata)
        self.render_mode = getattr(env.unwrapped, "render_mode", None)
        self._observation_spaces: dict[AgentID, spaces.Space[Any]] = {
            agent: env.observation_space(agent) for agent in self.possible_agents
        }
        self._action_spaces: dict[AgentID, spaces.Space[Any]] = {
            agent: env.action_space(agent) for agent in self.possible_agents
        }
        self.options: Mapping[str, Any] | None = None
        self.live: set[AgentID] = set()
        self.ended: set[AgentID] = set()
        self.last_step: RowStep | None = None
        self.reset_infos: Mapping[str, Any] = {}
        self.run_seed = fresh_seed()
        self.open(env, env_index)

    def open(self, env: Any, env_index: int) -> None:
        """Stand for `env`, the `env_index`-th of its vec env.

        Raises:
            ConfigError: its agents or their spaces are not those of this vec env.
        """
        require_same_agents(env, env_index, self)
        self.env = env
        self.env_index = env_index
        self.episode_index = -1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "env": None}

    def observation_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The agent's observation space."""
        return self._observation_spaces[agent]

    def action_space(self, agent: AgentID) -> spaces.Space[Any]:
        """The agent's action space."""
        return self._action_spaces[agent]

    def seed(self, run_seed: int) -> None:
        """Make the next reset episode 0 of this run seed."""
        self.run_seed = run_seed
        self.episode_index = -1

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[AgentID, Any], dict[AgentID, dict[str, Any]]]:
        """Begin the next episode with its own seed; SuperSuit's arguments, never set, do not count."""
        self.episode_index += 1
        chosen = episode_seed(self.run_seed, self.env_index, self.episode_index)
        observations, self.reset_infos = self.env.reset(seed=chosen, options=self.options)
        self.options = None
        self.ended = set()
        self.live = set(self.env.agents)
        # No infos: SuperSuit would write them over those of the episode's last step.
        return self._fill(observations), {}

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[dict[AgentID, Any], ...]:
        """Step the live agents; an agent that has ended counts as terminated, without reward.

        SuperSuit resets when all agents are terminated or truncated: when none is live any more.
        """
        acted = frozenset(self.live)
        live_actions = {agent: actions[agent] for agent in self.possible_agents if agent in acted}
        observations, rewards, terminated, truncated, infos = self.env.step(live_actions)
        step = RowStep(acted, infos)
        for agent in live_actions:
            if terminated[agent] or truncated[agent]:
                self.ended.add(agent)
                step.final_observations[agent] = deepcopy(observations[agent])  # the env may reuse its array
        self.live = set(self.env.agents) - self.ended  # agents may join during an episode, but none comes back
        if not self.live:
            step.env_ended = True
            step.infos = deepcopy(infos)  # SuperSuit resets the env before anyone reads them
        self.last_step = step
        # SuperSuit joins the two flags by position: every dictionary is in the order of possible_agents.
        # An agent that is not live has ended, as far as it is concerned.
        return (
            self._fill(observations),
            {agent: rewards[agent] if agent in acted else 0.0 for agent in self.possible_agents},
            {agent: terminated[agent] if agent in acted else agent not in self.live for agent in self.possible_agents},
            {agent: agent in acted and truncated[agent] for agent in self.possible_agents},
            {agent: {} for agent in self.possible_agents},
        )

    def _fill(self, observations: Mapping[AgentID, Any]) -> dict[AgentID, Any]:
        return {
            agent: observations[agent] if agent in self.live else self._zeros(agent) for agent in self.possible_agents
        }

    def _zeros(self, agent: AgentID) -> Any:
        space = self._observation_spaces[agent]
        return next(iter(iterate(space, create_empty_array(space, n=1))))

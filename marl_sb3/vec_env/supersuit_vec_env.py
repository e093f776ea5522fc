"""E copies of a `ParallelEnv` in one process, vectorised by SuperSuit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import supersuit

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, Observations
from marl_sb3.vec_env.action_log import ActionLog
from marl_sb3.vec_env.agent_rows import AgentRows, RowStep
from marl_sb3.vec_env.base import AgentGroup, DictInfos, EnvStep, FinalObservations
from marl_sb3.vec_env.observations import map_arrays, put, zero_observations
from marl_sb3.vec_env.separate_envs import EnvFactory, SeparateEnvs, require_separate
from marl_sb3.wrappers import wrap


class SuperSuitVecEnv(SeparateEnvs):
    """`pettingzoo_env_to_vec_env_v1` and `concat_vec_envs_v1`, with an `AgentRows` below each copy.

    Args:
        make_env: makes the env of an index; called once for each of the E envs.
        num_envs: E.
        seed: the run seed; None draws one.

    Raises:
        ConfigError: the agents' spaces differ, which SuperSuit cannot vectorise, or the envs differ in their
            agents or spaces, or are not separate envs.
    """

    def __init__(self, make_env: EnvFactory, num_envs: int, seed: int | None = None) -> None:
        first = AgentRows(wrap(make_env(0), 0))
        self.groups = (_single_group(first),)
        self.agents = self.groups[0].agents
        self.num_envs = num_envs
        self.metadata = first.metadata
        self.render_mode = first.render_mode
        markov = supersuit.pettingzoo_env_to_vec_env_v1(first)
        self._concat = supersuit.concat_vec_envs_v1(markov, num_envs, base_class="gymnasium")
        self._rows: list[AgentRows] = [copy.par_env for copy in self._concat.vec_envs]
        for index, rows in enumerate(self._rows):
            rows.open(first.env if index == 0 else wrap(make_env(index), index), index)
        require_separate(self.envs)
        self.active = np.zeros((num_envs, len(self.agents)), dtype=bool)
        self._log = ActionLog(num_envs, self.groups)
        if seed is not None:
            self.seed(seed)

    @property
    def envs(self) -> Sequence[Any]:
        """See `SeparateEnvs.envs`."""
        return [rows.env for rows in self._rows]

    def seed(self, seed: int) -> None:
        """See `MultiAgentVecEnv.seed`."""
        for rows in self._rows:
            rows.seed(seed)

    def reset(self, options: Sequence[Mapping[str, Any]] | None = None) -> tuple[Observations, ...]:
        """See `MultiAgentVecEnv.reset`."""
        if options is not None:
            for rows, env_options in zip(self._rows, options, strict=True):
                rows.options = env_options
        observations, _ = self._concat.reset()
        self._log.begin(range(self.num_envs))
        self._update_active()
        self.observations = (self._by_env(observations),)
        return self.observations

    def step(self, actions: Sequence[Array]) -> EnvStep:
        """See `MultiAgentVecEnv.step`."""
        (group_actions,) = actions
        acted = self.active
        self._log.record(actions)
        rows = group_actions.reshape(-1, *group_actions.shape[2:])
        observations, rewards, terminated, truncated, _ = self._concat.step(rows)
        self._update_active()
        steps = [self._last_step(env) for env in self._rows]
        ended = [step.env_ended for step in steps]
        if any(ended):
            self._log.begin(np.flatnonzero(ended).tolist())
        self.observations = (self._by_env(observations),)
        return EnvStep(
            observations=self.observations,
            rewards=rewards.reshape(acted.shape),
            terminated=terminated.reshape(acted.shape).astype(bool) & acted,
            truncated=truncated.reshape(acted.shape).astype(bool) & acted,
            acted=acted,
            env_ended=np.array(ended),
            final_observations=FinalObservations(dict(self._final_observations(steps))),
            infos=DictInfos([step.infos for step in steps]),
            reset_infos={index: self._rows[index].reset_infos for index, done in enumerate(ended) if done},
        )

    def reset_infos(self) -> Sequence[Mapping[str, Any]]:
        """See `MultiAgentVecEnv.reset_infos`."""
        return [rows.reset_infos for rows in self._rows]

    # --- State -------------------------------------------------------------------------------------------------------

    def _progress(self) -> tuple[int, list[int], BoolArray]:
        ended = [[agent in rows.ended for agent in self.agents] for rows in self._rows]
        return self._rows[0].run_seed, [rows.episode_index for rows in self._rows], np.array(ended, dtype=np.bool_)

    def _count_from(self, index: int, run_seed: int, episode: int) -> None:
        rows = self._rows[index]
        rows.run_seed, rows.episode_index = run_seed, episode - 1
        rows.env.continue_at(episode)

    def _restart(self, index: int) -> tuple[Observations, ...]:
        return self._in_place(index, self._rows[index].reset()[0])

    def _replay_step(self, index: int, actions: Sequence[Array]) -> tuple[Observations, ...]:
        (group,) = actions
        return self._in_place(index, self._rows[index].step(dict(zip(self.agents, group, strict=True)))[0])

    def _in_place(self, index: int, shown: Mapping[AgentID, Any]) -> tuple[Observations, ...]:
        observations = zero_observations(self.groups, self.num_envs)
        for column, agent in enumerate(self.agents):
            put(shown[agent], observations[0], (index, column))
        return observations

    def _live_agents(self, index: int) -> BoolArray:
        return np.array([agent in self._rows[index].live for agent in self.agents], dtype=np.bool_)

    def _adopt(self, index: int, live: Sequence[AgentID], ended: set[AgentID]) -> None:
        rows = self._rows[index]
        rows.episode_index += 1
        rows.live, rows.ended = set(live), ended

    # --- A step ------------------------------------------------------------------------------------------------------

    def _update_active(self) -> None:
        # A new array: `EnvStep.acted` keeps the old one.
        self.active = np.array([[agent in rows.live for agent in self.agents] for rows in self._rows])

    def _by_env(self, observations: Observations) -> Observations:
        shape = (self.num_envs, len(self.agents))
        return map_arrays(lambda array: array.reshape(*shape, *array.shape[1:]), observations)

    def _final_observations(self, steps: Sequence[RowStep]) -> Iterator[tuple[tuple[int, int], Any]]:
        for env_index, step in enumerate(steps):
            for agent, observation in step.final_observations.items():
                yield (env_index, self.agents.index(agent)), observation

    @staticmethod
    def _last_step(rows: AgentRows) -> RowStep:
        assert rows.last_step is not None
        return rows.last_step


def _single_group(rows: AgentRows) -> AgentGroup:
    """The one group of a homogeneous env; SuperSuit has no other."""
    agents = tuple(rows.possible_agents)
    first = agents[0]
    for agent in agents[1:]:
        for kind in ("observation_space", "action_space"):
            ours, theirs = getattr(rows, kind)(first), getattr(rows, kind)(agent)
            if ours != theirs:
                raise ConfigError(
                    f"agents {first!r} and {agent!r} have different {kind}s: {ours} and {theirs}; "
                    "the supersuit vectorizer takes envs whose agents all have the same spaces"
                )
    return AgentGroup(agents, tuple(range(len(agents))), rows.observation_space(first), rows.action_space(first))

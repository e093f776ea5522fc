"""E copies of a `ParallelEnv` in one process, vectorised by SuperSuit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import supersuit

from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, Observations
from marl_sb3.vec_env.groups import AgentGroup
from marl_sb3.vec_env.interface import Options
from marl_sb3.vec_env.observations import map_arrays
from marl_sb3.vec_env.separate_envs import EnvFactory, SeparateEnvs, final_env_states
from marl_sb3.vec_env.slot import SlotStep
from marl_sb3.vec_env.step import DictInfos, FinalObservations, VecStep
from marl_sb3.vec_env.supersuit_adapter import SuperSuitAdapter


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

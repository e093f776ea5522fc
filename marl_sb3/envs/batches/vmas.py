"""Scenarios of VMAS (Bettini et al. 2022): envs of several agents as PyTorch tensors, `vmas/balance`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch as th
from typing_extensions import override

from marl_sb3.core.envs.batched import BatchedStep
from marl_sb3.envs.batches.base import AdaptedBatch, gymnasium_space, is_asked_for
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array

VMAS = "vmas/"  # and the name of a scenario
_GIVEN = ("num_envs", "seed", "terminated_truncated", "dict_spaces", "wrapper", "grad_enabled")
_LONGEST = 100  # env steps of an episode, unless `max_steps` is given: most scenarios end no episode by themselves


class VmasBatch(AdaptedBatch):
    """A scenario of VMAS.

    The draws of all envs come from one generator, which each reset of all envs seeds with the seed of the first env's
    episode; what an env draws depends on the episodes of the others.

    Args:
        scenario: its name.
        num_envs: E.
        max_steps: env steps after which an episode is truncated.
        env_kwargs: of `vmas.make_env` and the scenario, such as `continuous_actions`, `device`, `n_agents`.

    Raises:
        ConfigError: VMAS has no such scenario, or refuses the arguments.
    """

    def __init__(self, scenario: str, num_envs: int, max_steps: int | None = _LONGEST, **env_kwargs: Any) -> None:
        import vmas

        if taken := set(_GIVEN) & env_kwargs.keys():
            words = "accepted: n_envs and seed of the training, and what vmas.make_env and the scenario take besides"
            raise ConfigError(f"env {VMAS}{scenario}: {min(taken)} is given as env argument; {words}", key="env")
        if scenario not in (known := [*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios]):
            words = f"VMAS has no such scenario; accepted: {', '.join(known)}"
            raise ConfigError(f"env {VMAS}{scenario}: {words}", key="env")
        try:
            self.env: Any = vmas.make_env(
                scenario, num_envs, max_steps=max_steps, seed=0, terminated_truncated=True, **env_kwargs
            )
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"env {VMAS}{scenario}: VMAS says: {error}", key="env") from error
        both = ([gymnasium_space(each) for each in own] for own in (self.env.observation_space, self.env.action_space))
        spaces_of = zip(*both, strict=True)
        self._names = [agent.name for agent in self.env.agents]
        metadata = {"name": f"{VMAS}{scenario}", "render_modes": ["rgb_array"]}
        super().__init__(num_envs, dict(zip(self._names, spaces_of, strict=True)), metadata, "rgb_array")
        self._ended: Any = np.zeros(num_envs, np.bool_)  # in the latest step, and not reset since

    @override
    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        if is_asked_for(self, env_indices, self._ended):
            self.env.seed(seeds[0])
        if len(env_indices) == self.num_envs:
            self.env.reset(return_observations=False)
        else:
            for index in env_indices:
                self.env.reset_at(index, return_observations=False)
        self._ended[list(env_indices)] = False
        self._look()

    def _look(self) -> None:
        seen, *_ = self.env.get_from_scenario(
            get_observations=True, get_rewards=False, get_infos=False, get_dones=False, dict_agent_names=False
        )
        self._seen = seen

    @override
    def step(self, actions: Any) -> BatchedStep:
        of_agents, like = self.by_agent(actions), {"dtype": th.float32, "device": self.env.device}
        given = [th.as_tensor(of_agents[name].reshape(self.num_envs, -1), **like) for name in self._names]
        self._seen, rewards, terminated, truncated, infos = self.env.step(given)
        ends = terminated.cpu().numpy(), (truncated & ~terminated).cpu().numpy()
        self._ended = ends[0] | ends[1]
        numbers = [
            {key: value.reshape(-1).cpu().numpy() for key, value in info.items() if value.numel() == self.num_envs}
            for info in infos
        ]
        ended, late = (np.repeat(each[:, None], len(self._names), axis=1) for each in ends)
        paid: Array = th.stack(list(rewards), dim=1).detach().cpu().numpy()
        return BatchedStep(paid, ended, late, dict(zip(self._names, numbers, strict=True)))

    @override
    def observations(self) -> Any:
        return self.seen_by_group({name: _array(seen) for name, seen in zip(self._names, self._seen, strict=True)})

    @override
    def render(self, env_index: int) -> Any:
        return self.env.render(mode="rgb_array", env_index=env_index)


def _array(seen: Any) -> Any:
    return {key: _array(own) for key, own in seen.items()} if isinstance(seen, dict) else seen.detach().cpu().numpy()

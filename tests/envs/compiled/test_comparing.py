"""What `require_same` says of a batched env that differs from the plain one."""

from __future__ import annotations

from typing import Any

import pytest

from marl_sb3.core.envs.batched import BatchedStep
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.envs.compiled.twins import require_same
from marl_sb3.errors import ConfigError, EnvError


class Faulty(ArenaEnv):
    """Its batched version forgets one kind of reward, or one info."""

    @classmethod
    def make_batched(cls, num_envs: int, **env_kwargs: Any) -> Any:
        batch = ArenaEnv.make_batched(num_envs, **env_kwargs)
        step = batch.step

        def faulty(actions: Any) -> BatchedStep:
            made = step(actions)
            made.rewards[made.rewards == 1.0] = 2.0
            return made

        batch.step = faulty  # type: ignore[method-assign]
        return batch


def test_the_first_difference_is_named() -> None:
    words = r"differs from the plain one: after \d+ steps of each env, env \d, agent 'agent1', rewards: 1\.0 and 2\.0"
    with pytest.raises(EnvError, match=words):
        require_same(Faulty, steps=50)
    require_same(ArenaEnv, steps=50, max_timesteps=7)


def test_an_env_without_a_batched_version_is_refused() -> None:
    class Plain(ArenaEnv):
        pass

    with pytest.raises(ConfigError, match="the env has no batched version"):
        require_same(Plain)

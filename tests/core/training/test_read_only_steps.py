"""What callbacks are told of a step cannot be written to, wherever the envs are stepped."""

from __future__ import annotations

from typing import Any

import pytest
from toy_envs import ScriptedEnv

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, make_vec_env
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

LAYOUTS: dict[str, Any] = {
    "one by one": lambda: make_vec_env(ScriptedEnv, n_envs=4, seed=0),
    "as a batch": lambda: make_vec_env("arena", n_envs=4, seed=0),
    "in workers": lambda: make_vec_env(ScriptedEnv, n_envs=4, seed=0, n_workers=2),
    "in shards": lambda: make_sharded_vec_env(ScriptedEnv, 4, 2, 0),
}


class Writes(MultiAgentCallback):
    """Tries to change what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[str] = []

    def _on_step(self) -> bool:
        step = self.locals["step"]
        for name, array in [("rewards", self.locals["rewards"]), ("dones", self.locals["dones"])] + [
            (name, getattr(step, name)) for name in ("rewards", "terminated", "truncated", "acted", "to_act")
        ]:
            with pytest.raises(ValueError, match="assignment destination is read-only"):
                array[:] = 1
            self.refused.append(name)
        if len(step.observations):  # those of shards stay there
            with pytest.raises(ValueError, match="read-only"):
                step.observations[0][:] = 0
        assert step.copy().rewards.flags.writeable  # a copy is one's own
        return True


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_callback_cannot_write_into_what_it_is_told(layout: str) -> None:
    env, callback = LAYOUTS[layout](), Writes()
    try:
        MultiAgentAlgorithm(env, n_steps=2, batch_size=4, device="cpu").learn(8, callback=callback)
    finally:
        env.close()
    assert len(callback.refused) == 7 * 2

"""Make the pictures of the gallery: `python docs/figures/make_gallery.py [ENV ...]`.

It needs `pip install 'pettingzoo[classic,butterfly,sisl]' mpe2 'gymnasium[box2d]'` besides. Each picture is what
`evaluate --video` and the page of `serve --ui` show of the env, after some env steps of random actions.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from PIL import Image

from marl_sb3.core.envs.registry import env_factory
from marl_sb3.extensions.display.filmed_env import with_images
from marl_sb3.types import Array

HERE = Path(__file__).parent / "gallery"
WIDTH, HEIGHT = 240, 200  # pixels, at most
# Env id -> env steps before the picture.
ENVS = {
    "arena": 40,
    "waterworld": 60,
    "classic/connect_four-v3": 16,
    "classic/tictactoe-v3": 5,
    "classic/chess-v6": 20,
    "classic/leduc_holdem-v4": 1,
    "sisl/pursuit-v5": 10,
    "sisl/multiwalker-v9": 20,
    "butterfly/knights_archers_zombies-v11": 150,
    "butterfly/pistonball-v6": 20,
    "butterfly/cooperative_pong-v6": 20,
    "mpe2/simple_spread-v3": 5,
    "mpe2/simple_tag-v3": 5,
    "mpe2/simple_speaker_listener-v4": 5,
    "CartPole-v1": 5,
    "Pendulum-v1": 10,
    "LunarLander-v3": 30,
    "FrozenLake-v1": 1,
}


def picture(env_id: str, env_steps: int) -> Array:
    """(height, width, 3) uint8: an env after so many steps of random actions, or where its episode has ended."""
    env = with_images(env_factory(env_id), {})
    observations, _ = env.reset(seed=0)
    for index, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(index)
    while env_steps and env.agents:
        env_steps -= 1
        actions = {agent: env.action_space(agent).sample(_mask(observations.get(agent))) for agent in env.agents}
        observations, *_ = env.step(actions)
    shown: Array = env.render()
    env.close()
    return shown


def _mask(observation: Any) -> Any:
    return observation["action_mask"] if isinstance(observation, dict) and "action_mask" in observation else None


def main() -> None:
    """Write a PNG for each env."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    HERE.mkdir(exist_ok=True)
    chosen = sys.argv[1:] or ENVS
    for env_id in chosen:
        env_steps = ENVS[env_id]
        image = Image.fromarray(picture(env_id, env_steps))
        image.thumbnail((WIDTH, HEIGHT), Image.Resampling.LANCZOS)
        image.quantize(64).save(HERE / f"{env_id.rpartition('/')[2]}.png", optimize=True)


if __name__ == "__main__":
    main()

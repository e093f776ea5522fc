"""Gymnasium's classic control as compiled envs: each line computes what the original does, in the same order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from marl_sb3.core.envs import AGENT
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import LIMIT, GymnasiumTwin
from marl_sb3.types import Array

_MODULE = "gymnasium.envs.classic_control"


def _rules(env: Any, fields: list[Any], settings: list[str], begin: Any, step: Any, observe: Any) -> CompiledRules:
    return CompiledRules(
        agents=[AGENT],
        observation_space=env.observation_space,
        action_space=env.action_space,
        state=np.dtype([*LIMIT, *fields], align=True),
        begin=begin,
        step=step,
        observe=observe,
        settings=["limit", *settings],
    )


# --- CartPole --------------------------------------------------------------------------------------------------------

_MOST_RADIANS = 12 * 2 * math.pi / 360
_TOTAL_MASS = 0.1 + 1.0
_POLE_MASS_LENGTH = 0.1 * 0.5
_FOUR_THIRDS = 4.0 / 3.0


def _begin_cart_pole(state: Any, rng: np.random.Generator) -> None:
    state.timestep = 0
    state.place[:] = rng.uniform(low=-0.05, high=0.05, size=(4,))


def _step_cart_pole(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    x, x_dot, theta, theta_dot = state.place[0], state.place[1], state.place[2], state.place[3]
    force = 10.0 if actions[0] == 1 else -10.0
    cosine, sine = math.cos(theta), math.sin(theta)
    temp = (force + _POLE_MASS_LENGTH * (theta_dot * theta_dot) * sine) / _TOTAL_MASS
    theta_acc = (9.8 * sine - cosine * temp) / (0.5 * (_FOUR_THIRDS - 0.1 * (cosine * cosine) / _TOTAL_MASS))
    x_acc = temp - _POLE_MASS_LENGTH * theta_acc * cosine / _TOTAL_MASS
    x = x + 0.02 * x_dot
    theta = theta + 0.02 * theta_dot
    state.place[0], state.place[1] = x, x_dot + 0.02 * x_acc
    state.place[2], state.place[3] = theta, theta_dot + 0.02 * theta_acc
    fell = x < -2.4 or x > 2.4 or theta < -_MOST_RADIANS or theta > _MOST_RADIANS
    state.timestep += 1
    outcome.rewards[0] = (-1.0 if fell else 0.0) if state.sutton_barto else 1.0
    outcome.terminated[0] = fell
    outcome.truncated[0] = state.timestep == state.limit


def _observe_cart_pole(state: Any, observations: Array) -> None:
    for k in range(4):
        observations[0, k] = state.place[k]


def _cart_pole_rules(env: Any) -> CompiledRules:
    fields = [("place", "f8", (4,)), ("sutton_barto", "i8")]
    return _rules(env, fields, ["sutton_barto"], _begin_cart_pole, _step_cart_pole, _observe_cart_pole)


def _set_up_cart_pole(states: Any, env: Any) -> None:
    states.sutton_barto = bool(env._sutton_barto_reward)


def _copy_place(state: Any, env: Any) -> None:
    state.place[:] = env.state


CART_POLE = GymnasiumTwin(f"{_MODULE}.cartpole:CartPoleEnv", _cart_pole_rules, _set_up_cart_pole, _copy_place)

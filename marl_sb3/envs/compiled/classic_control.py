"""Gymnasium's classic control as compiled envs: each line computes what the original does, in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from marl_sb3.compiling import strict_entry
from marl_sb3.core.envs.converted import AGENT
from marl_sb3.envs.compiled.random import uniform
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import LIMIT, GymnasiumTwin
from marl_sb3.types import Array

_MODULE = "gymnasium.envs.classic_control"


def _observe_place(state: Any, observations: Array) -> None:
    for k in range(state.place.size):
        observations[0, k] = state.place[k]


def _copy_place(state: Any, env: Any) -> None:
    state.place[:] = env.state


_TURNED = {"place": (-100, 100)}  # angles are turned until they are small
_TWO_NUMBERS = ("place", "f8", (2,))


def _rules(
    fields: Sequence[Any],
    settings: Sequence[tuple[str, str]],
    start: Any,
    step: Any,
    observe: Any = _observe_place,
    bounds: Mapping[str, tuple[int, int]] = _TURNED,
) -> Callable[[Any], CompiledRules]:
    return lambda env: CompiledRules(
        agents=[AGENT],
        observation_space=env.observation_space,
        action_space=env.action_space,
        state=np.dtype([*LIMIT, *fields, *settings], align=True),
        start=start,
        step=step,
        observe=observe,
        bounds=bounds,
        settings=["limit", *(name for name, _ in settings)],
    )


def _number(value: Any) -> float:
    """Return a setting; other numbers than Python's make sums of other types."""
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is a {type(value).__name__}")
    return float(value)


# --- CartPole --------------------------------------------------------------------------------------------------------

_MOST_RADIANS = 12 * 2 * math.pi / 360
_TOTAL_MASS = 0.1 + 1.0
_POLE_MASS_LENGTH = 0.1 * 0.5
_FOUR_THIRDS = 4.0 / 3.0


def _start_cart_pole(state: Any, rng: Array) -> None:
    state.timestep = 0
    for k in range(4):
        state.place[k] = uniform(rng, -0.05, 0.05)


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
    outcome.truncated[0] = 0 < state.limit <= state.timestep


CART_POLE = GymnasiumTwin(
    f"{_MODULE}.cartpole:CartPoleEnv",
    _rules([("place", "f8", (4,))], [("sutton_barto", "i8")], _start_cart_pole, _step_cart_pole),
    lambda env: {"sutton_barto": bool(env._sutton_barto_reward)},
    _copy_place,
)

# --- Acrobot ---------------------------------------------------------------------------------------------------------

# `x ** 2` of a NumPy number is `pow(x, 2.0)`, which once in a thousand times is rounded otherwise than `x * x`. The
# compiler would make a product of it if it knew the exponent: a field of the state holds it.
_EXPONENT = ("two", "f8")

_HALF_PI = math.pi / 2.0
_MOST_1, _MOST_2 = 4 * math.pi, 9 * math.pi  # the greatest speeds of both joints
_GRAVITY_1, _GRAVITY_2 = (1.0 * 0.5 + 1.0 * 1.0) * 9.8, 1.0 * 0.5 * 9.8
_DT, _HALF_DT, _SIXTH_DT = 0.2, 0.2 / 2.0, 0.2 / 6.0


@strict_entry
def _accelerations(torque: float, theta1: float, theta2: float, speed1: float, speed2: float, two: float) -> Any:
    cosine2, sine2 = math.cos(theta2), math.sin(theta2)
    d1 = 0.25 + (1.25 + cosine2) + 1.0 + 1.0
    d2 = (0.25 + 0.5 * cosine2) + 1.0
    phi2 = _GRAVITY_2 * math.cos(theta1 + theta2 - _HALF_PI)
    phi1 = (
        -0.5 * math.pow(speed2, two) * sine2
        - 1.0 * speed2 * speed1 * sine2
        + _GRAVITY_1 * math.cos(theta1 - _HALF_PI)
        + phi2
    )
    above = torque + d2 / d1 * phi1 - 0.5 * math.pow(speed1, two) * sine2 - phi2
    of_2 = above / (0.25 + 1.0 - math.pow(d2, two) / d1)
    return -(d2 * of_2 + phi1) / d1, of_2


@strict_entry
def _turned(angle: float) -> float:
    while angle > math.pi:
        angle = angle - 2 * math.pi
    while angle < -math.pi:
        angle = angle + 2 * math.pi
    return angle


# NumPy computes cosines and sines of float32 as sums of even and odd powers, with these factors. Each is multiplied and
# added in one operation of the processor. Near 0, where angles are not turned first, that is all it does.
_OF_COSINE = (
    *(float.fromhex(factor) for factor in ("0x1.98e616p-16", "-0x1.6c06dcp-10", "0x1.55553cp-5")),
    *(-0.5, 1.0),
)
_OF_SINE = (
    *(float.fromhex(factor) for factor in ("0x1.7d3bbcp-19", "-0x1.a06bbap-13", "0x1.11119ap-7", "-0x1.555556p-3")),
    0.0,
)


@strict_entry
def _fused(a: float, b: float, c: float) -> float:
    """Return `a * b + c` of numbers of float32, rounded to float32 once."""
    product = a * b  # exact, as a number of float64
    total = product + c
    other = total - product
    rest = (product - (total - other)) + (c - other)
    low, high = np.float32(np.nextafter(total, -np.inf)), np.float32(np.nextafter(total, np.inf))
    if low == high or rest == 0.0:
        return np.float64(np.float32(total))
    return np.float64(high if rest > 0.0 else low)  # the total, which is rounded itself, lies midway between two


@strict_entry
def _sum_of_powers(factors: tuple[float, ...], squared: float) -> float:
    total = factors[0]
    for k in range(1, 5):
        total = _fused(total, squared, factors[k])
    return total


def _start_acrobot(state: Any, rng: Array) -> None:
    state.timestep = 0
    for k in range(4):
        state.place[k] = state.shown[2 + k] = np.float32(uniform(rng, -0.1, 0.1))
    for k in range(2):
        angle = state.place[k]
        squared = np.float64(np.float32(angle * angle))
        state.shown[2 * k] = _sum_of_powers(_OF_COSINE, squared)
        state.shown[2 * k + 1] = _fused(_sum_of_powers(_OF_SINE, squared), angle, angle)


def _step_acrobot(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    torque, two = float(actions[0] - 1), state.two
    a, b, c, d = state.place[0], state.place[1], state.place[2], state.place[3]
    # The classic method of Runge and Kutta: the derivatives of (a, b, c, d) at four points are (c, d, accelerations).
    e1, f1 = _accelerations(torque, a, b, c, d, two)
    c2, d2 = c + _HALF_DT * e1, d + _HALF_DT * f1
    e2, f2 = _accelerations(torque, a + _HALF_DT * c, b + _HALF_DT * d, c2, d2, two)
    c3, d3 = c + _HALF_DT * e2, d + _HALF_DT * f2
    e3, f3 = _accelerations(torque, a + _HALF_DT * c2, b + _HALF_DT * d2, c3, d3, two)
    c4, d4 = c + _DT * e3, d + _DT * f3
    e4, f4 = _accelerations(torque, a + _DT * c3, b + _DT * d3, c4, d4, two)
    a = _turned(a + _SIXTH_DT * (c + 2 * c2 + 2 * c3 + c4))
    b = _turned(b + _SIXTH_DT * (d + 2 * d2 + 2 * d3 + d4))
    state.place[0], state.place[1] = a, b
    state.place[2] = min(max(c + _SIXTH_DT * (e1 + 2 * e2 + 2 * e3 + e4), -_MOST_1), _MOST_1)
    state.place[3] = min(max(d + _SIXTH_DT * (f1 + 2 * f2 + 2 * f3 + f4), -_MOST_2), _MOST_2)
    state.shown[0], state.shown[1], state.shown[2], state.shown[3] = math.cos(a), math.sin(a), math.cos(b), math.sin(b)
    state.shown[4], state.shown[5] = state.place[2], state.place[3]
    state.timestep += 1
    is_high = -math.cos(a) - math.cos(b + a) > 1.0
    outcome.rewards[0] = 0.0 if is_high else -1.0
    outcome.terminated[0] = is_high
    outcome.truncated[0] = 0 < state.limit <= state.timestep


def _observe_acrobot(state: Any, observations: Array) -> None:
    for k in range(6):
        observations[0, k] = state.shown[k]


def _copy_acrobot(state: Any, env: Any) -> None:
    state.place[:], state.shown[:] = env.state, env._get_ob()


_OF_ACROBOT = [("place", "f8", (4,)), ("shown", "f4", (6,))]
ACROBOT = GymnasiumTwin(
    f"{_MODULE}.acrobot:AcrobotEnv",
    _rules(_OF_ACROBOT, [_EXPONENT], _start_acrobot, _step_acrobot, _observe_acrobot),
    lambda env: {"two": 2.0},
    _copy_acrobot,
)

# --- Pendulum --------------------------------------------------------------------------------------------------------


def _start_pendulum(state: Any, rng: Array) -> None:
    state.timestep = 0
    state.place[0] = uniform(rng, -math.pi, math.pi)
    state.place[1] = uniform(rng, -1.0, 1.0)


def _step_pendulum(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    theta, speed = state.place[0], state.place[1]
    torque = min(max(actions[0, 0], np.float32(-2.0)), np.float32(2.0))
    angle = ((theta + math.pi) % (2 * math.pi)) - math.pi
    effort = np.float32(0.001) * np.float32(math.pow(torque, np.float32(state.two)))
    cost = math.pow(angle, state.two) + 0.1 * math.pow(speed, state.two) + effort
    speed = speed + (3 * state.g / 2.0 * math.sin(theta) + np.float32(3.0) * torque) * 0.05
    speed = min(max(speed, -8.0), 8.0)
    state.place[0], state.place[1] = theta + speed * 0.05, speed
    state.timestep += 1
    outcome.rewards[0] = -cost
    outcome.truncated[0] = 0 < state.limit <= state.timestep


def _observe_pendulum(state: Any, observations: Array) -> None:
    observations[0, 0], observations[0, 1] = math.cos(state.place[0]), math.sin(state.place[0])
    observations[0, 2] = state.place[1]


PENDULUM = GymnasiumTwin(
    f"{_MODULE}.pendulum:PendulumEnv",
    _rules([_TWO_NUMBERS], [("g", "f8"), _EXPONENT], _start_pendulum, _step_pendulum, _observe_pendulum, {}),
    lambda env: {"g": _number(env.g), "two": 2.0},
    _copy_place,
)

# --- MountainCar -----------------------------------------------------------------------------------------------------


def _start_mountain_car(state: Any, rng: Array) -> None:
    state.timestep = 0
    state.place[0], state.place[1] = uniform(rng, -0.6, -0.4), 0.0


def _step_mountain_car(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    position, velocity = state.place[0], state.place[1]
    velocity = velocity + ((actions[0] - 1) * 0.001 + math.cos(3 * position) * -0.0025)
    velocity = min(max(velocity, -0.07), 0.07)
    position = min(max(position + velocity, -1.2), 0.6)
    if position == -1.2 and velocity < 0:
        velocity = 0.0
    state.place[0], state.place[1] = position, velocity
    state.timestep += 1
    outcome.rewards[0] = -1.0
    outcome.terminated[0] = position >= 0.5 and velocity >= state.goal
    outcome.truncated[0] = 0 < state.limit <= state.timestep


def _goal(env: Any) -> Mapping[str, Any]:
    return {"goal": _number(env.goal_velocity)}


MOUNTAIN_CAR = GymnasiumTwin(
    f"{_MODULE}.mountain_car:MountainCarEnv",
    _rules([_TWO_NUMBERS], [("goal", "f8")], _start_mountain_car, _step_mountain_car),
    _goal,
    _copy_place,
)

# --- MountainCarContinuous -------------------------------------------------------------------------------------------

_f4 = np.float32


@strict_entry
def _moved_exactly(position: float, action: float) -> Any:
    """Return the place after the first step of an episode, which begins in float64 and at rest."""
    force = min(max(action, -1.0), 1.0)
    power = 0.0015 * force if force != action else np.float64(_f4(_f4(action) * _f4(0.0015)))
    slope = 0.0025 * math.cos(3 * position)
    velocity = power - slope if force != action else np.float64(_f4(_f4(power) - _f4(slope)))
    velocity = min(max(velocity, -0.07), 0.07)
    return position + velocity, velocity


@strict_entry
def _moved(position: float, velocity: float, action: float) -> Any:
    """Return the place after a later step: the place before was rounded to float32, and so are all sums with it."""
    force = min(max(action, -1.0), 1.0)
    slope = 0.0025 * math.cos(np.float64(_f4(3.0) * _f4(position)))
    power = force * 0.0015 - slope if force != action else np.float64(_f4(_f4(_f4(action) * _f4(0.0015)) - _f4(slope)))
    velocity = np.float64(_f4(velocity) + _f4(power))
    if velocity > _f4(0.07):
        velocity = 0.07
    if velocity < _f4(-0.07):
        velocity = -0.07
    return np.float64(_f4(position) + _f4(velocity)), velocity


def _step_continuous(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    action, single = np.float64(actions[0, 0]), state.single
    if single:
        position, velocity = _moved(state.place[0], state.place[1], action)
        if position > _f4(0.6):
            position = 0.6
        if position < _f4(-1.2):
            position = -1.2
    else:
        position, velocity = _moved_exactly(state.place[0], action)
        position = min(max(position, -1.2), 0.6)
    left, right, goal = -1.2, 0.45, state.goal
    if single and position != left:
        left, right = np.float64(_f4(-1.2)), np.float64(_f4(0.45))
    if single and abs(velocity) != 0.07:
        goal = np.float64(_f4(goal))
    if position == left and velocity < 0:
        velocity, goal = 0.0, state.goal
    reached = position >= right and velocity >= goal
    state.place[0], state.place[1] = _f4(position), _f4(velocity)
    state.single = 1
    state.timestep += 1
    outcome.rewards[0] = (100.0 if reached else 0.0) - action * action * 0.1
    outcome.terminated[0] = reached
    outcome.truncated[0] = 0 < state.limit <= state.timestep


def _start_continuous(state: Any, rng: Array) -> None:
    state.timestep, state.single = 0, 0
    state.place[0], state.place[1] = uniform(rng, -0.6, -0.4), 0.0


def _copy_continuous(state: Any, env: Any) -> None:
    state.place[:], state.single = env.state, env.state.dtype == np.float32


_OF_CONTINUOUS = [_TWO_NUMBERS, ("single", "i8")]  # `single`: whether the place is float32
MOUNTAIN_CAR_CONTINUOUS = GymnasiumTwin(
    f"{_MODULE}.continuous_mountain_car:Continuous_MountainCarEnv",
    _rules(_OF_CONTINUOUS, [("goal", "f8")], _start_continuous, _step_continuous),
    _goal,
    _copy_continuous,
)

"""Gymnasium's classic control, frozen lake and taxi as compiled envs.

Each line computes what the original does, in the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import attrgetter, methodcaller
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from marl_sb3.compiling import strict_entry
from marl_sb3.core.envs.converted import AGENT
from marl_sb3.envs.compiled.random import random, uniform
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import GymnasiumTwin, counted
from marl_sb3.types import Array


def _observe_place(state: Any, observations: Array) -> None:
    for k in range(state.place.size):
        observations[0, k] = state.place[k]


def _control(
    name: str,
    start: Any,
    step: Any,
    settings: Callable[[Any], Mapping[str, Any]],
    *fields: Any,
    observe: Any = _observe_place,
    state: Mapping[str, Callable[[Any], Any]] = MappingProxyType({}),
    numbers: int = 2,
    turned: Mapping[str, tuple[float, float]] = {"place": (-100, 100)},  # angles are turned until they are small
) -> GymnasiumTwin:
    """Return the twin of a class of `gymnasium.envs.classic_control`; its state are so many numbers, and fields."""

    def rules(env: Any) -> CompiledRules:
        return counted(
            [("place", "f8", (numbers,)), *fields],
            settings(env),
            agents=[AGENT],
            observation_space=env.observation_space,
            action_space=env.action_space,
            start=start,
            step=step,
            observe=observe,
            bounds=turned,
        )

    return GymnasiumTwin(f"gymnasium.envs.classic_control.{name}", rules, {"place": attrgetter("state"), **state})


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
    outcome.rewards[0] = (-1.0 if fell else 0.0) if state.sutton_barto else 1.0
    outcome.terminated[0] = fell


CART_POLE = _control(
    "cartpole:CartPoleEnv",
    _start_cart_pole,
    _step_cart_pole,
    lambda env: {"sutton_barto": bool(env._sutton_barto_reward)},
    numbers=4,
)

# --- Acrobot ---------------------------------------------------------------------------------------------------------

# `x ** 2` of a NumPy number is `pow(x, 2.0)`, which once in a thousand times is rounded otherwise than `x * x`. The
# compiler would make a product of it if it knew the exponent: a field of the state, `two`, holds it.

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
    is_high = -math.cos(a) - math.cos(b + a) > 1.0
    outcome.rewards[0] = 0.0 if is_high else -1.0
    outcome.terminated[0] = is_high


def _observe_acrobot(state: Any, observations: Array) -> None:
    for k in range(6):
        observations[0, k] = state.shown[k]


ACROBOT = _control(
    "acrobot:AcrobotEnv",
    _start_acrobot,
    _step_acrobot,
    lambda env: {"two": 2.0},
    ("shown", "f4", (6,)),
    observe=_observe_acrobot,
    state={"shown": methodcaller("_get_ob")},
    numbers=4,
)

# --- Pendulum --------------------------------------------------------------------------------------------------------


def _start_pendulum(state: Any, rng: Array) -> None:
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
    outcome.rewards[0] = -cost


def _observe_pendulum(state: Any, observations: Array) -> None:
    observations[0, 0], observations[0, 1] = math.cos(state.place[0]), math.sin(state.place[0])
    observations[0, 2] = state.place[1]


PENDULUM = _control(
    "pendulum:PendulumEnv",
    _start_pendulum,
    _step_pendulum,
    lambda env: {"g": _number(env.g), "two": 2.0},
    observe=_observe_pendulum,
    turned={},
)

# --- MountainCar -----------------------------------------------------------------------------------------------------


def _start_mountain_car(state: Any, rng: Array) -> None:
    state.place[0], state.place[1] = uniform(rng, -0.6, -0.4), 0.0


def _step_mountain_car(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    position, velocity = state.place[0], state.place[1]
    velocity = velocity + ((actions[0] - 1) * 0.001 + math.cos(3 * position) * -0.0025)
    velocity = min(max(velocity, -0.07), 0.07)
    position = min(max(position + velocity, -1.2), 0.6)
    if position == -1.2 and velocity < 0:
        velocity = 0.0
    state.place[0], state.place[1] = position, velocity
    outcome.rewards[0] = -1.0
    outcome.terminated[0] = position >= 0.5 and velocity >= state.goal


_GOAL: Any = lambda env: {"goal": _number(env.goal_velocity)}  # noqa: E731
MOUNTAIN_CAR = _control("mountain_car:MountainCarEnv", _start_mountain_car, _step_mountain_car, _GOAL)

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
    outcome.rewards[0] = (100.0 if reached else 0.0) - action * action * 0.1
    outcome.terminated[0] = reached


def _start_continuous(state: Any, rng: Array) -> None:
    state.single = 0
    state.place[0], state.place[1] = uniform(rng, -0.6, -0.4), 0.0


def _is_single(env: Any) -> bool:
    return bool(env.state.dtype == np.float32)


MOUNTAIN_CAR_CONTINUOUS = _control(
    "continuous_mountain_car:Continuous_MountainCarEnv",
    _start_continuous,
    _step_continuous,
    _GOAL,
    ("single", "i8"),  # whether the place is float32
    state={"single": _is_single},
)

# --- FrozenLake and Taxi ---------------------------------------------------------------------------------------------


def _start(state: Any, rng: Array) -> None:
    """Draw the first place; the settings hold the cumulative sum of its probabilities."""
    drawn, state.place = random(rng), 0
    for place in range(len(state.first) - 1, -1, -1):
        if state.first[place] > drawn:
            state.place = place


def _observe(state: Any, observations: Array) -> None:
    observations[0] = state.place


def _text(env: Any, settings: Mapping[str, Any], step: Any, allow: Any = None) -> CompiledRules:
    """Return the rules of a game whose state is a place, and which tells the probability of what it has drawn."""
    return counted(
        [("place", "i8")],
        {**settings, "first": np.cumsum(env.initial_state_distrib)},
        agents=[AGENT],
        observation_space=Discrete(len(env.P)),
        action_space=Discrete(len(env.P[0])),
        start=_start,
        step=step,
        observe=_observe,
        allow=allow,
        infos=[(AGENT, "prob", float)],
        bounds={"place": (0, len(env.P) - 1)},
    )


_FROZEN, _HOLE, _GOAL = range(3)


def _step_lake(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    drawn = random(rng)
    here, action, probability = state.place, actions[0], 1.0
    kind = state.kinds[here]
    if kind == _FROZEN:
        if state.is_slippery:
            fails, succeeds = (1.0 - state.success) / 2.0, state.success
            # Left of the action, the action itself, right of it: the first whose cumulative probability is greater
            # than the number, or left where rounding leaves none.
            turn = 0
            if fails <= drawn < fails + succeeds:
                turn = 1
            elif fails + succeeds <= drawn < fails + succeeds + fails:
                turn = 2
            action, probability = (action + turn - 1) % 4, succeeds if turn == 1 else fails
        row, column = here // state.width, here % state.width
        if action == 0:
            column = max(column - 1, 0)
        elif action == 1:
            row = min(row + 1, state.height - 1)
        elif action == 2:
            column = min(column + 1, state.width - 1)
        else:
            row = max(row - 1, 0)
        state.place = row * state.width + column
        kind = state.kinds[state.place]
        outcome.rewards[0] = state.rewards[kind]
    outcome.infos[0] = probability
    outcome.terminated[0] = kind != _FROZEN


def _lake_rules(env: Any) -> CompiledRules:
    """Read the settings from the table of transitions, where those of the arguments are."""
    letters, rewards, (height, width) = env.desc.ravel(), np.zeros(3), env.desc.shape
    kinds = np.where(letters == b"H", _HOLE, np.where(letters == b"G", _GOAL, _FROZEN)).astype(np.uint8)
    transitions = [each for cell in env.P.values() for each in cell.values()]
    slippery = next((each for each in transitions if len(each) == 3), None)
    for cell in np.flatnonzero(kinds == _FROZEN).tolist():
        for _, there, reward, _ in (each for of_action in env.P[cell].values() for each in of_action):
            rewards[kinds[there]] = reward
    settings = {
        "height": height,
        "width": width,
        "is_slippery": slippery is not None,
        "success": 1.0 if slippery is None else float(slippery[1][0]),
        "rewards": rewards,  # of a field of each kind
        "kinds": kinds,  # of each field
    }
    return _text(env, settings, _step_lake)


FROZEN_LAKE = GymnasiumTwin(
    "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv", _lake_rules, {"place": attrgetter("s")}, {"prob": 1}
)

# --- Taxi ------------------------------------------------------------------------------------------------------------

# The walls of the map, for each of 5 rows: whether the taxi may drive east from each of 5 columns.
_EAST = np.array([[1, 0, 1, 1, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]], dtype=np.uint8)
_STOPS = np.array([0, 4, 20, 23])  # the cells where passengers wait and leave
_IN_TAXI = 4


def _step_taxi(state: Any, actions: Array, rng: Array, outcome: Outcome) -> None:
    random(rng)  # the original draws from the one transition that there is
    action, destination, passenger, cell = actions[0], state.place % 4, state.place // 4 % 5, state.place // 20
    row, column = cell // 5, cell % 5
    reward = -1.0
    if action == 0:
        row = min(row + 1, 4)
    elif action == 1:
        row = max(row - 1, 0)
    elif action == 2:
        column += _EAST[row, column]
    elif action == 3:
        column -= _EAST[row, column - 1] if column > 0 else 0
    elif action == 4:
        if passenger < _IN_TAXI and cell == _STOPS[passenger]:
            passenger = _IN_TAXI
        else:
            reward = -10.0
    elif passenger == _IN_TAXI and cell == _STOPS[destination]:
        passenger, reward = destination, 20.0
        outcome.terminated[0] = True
    else:
        reward = -10.0
        for stop in range(4):
            if passenger == _IN_TAXI and cell == _STOPS[stop]:
                passenger, reward = stop, -1.0
    state.place = ((row * 5 + column) * 5 + passenger) * 4 + destination
    outcome.rewards[0] = reward
    outcome.infos[0] = 1.0


def _allow_in_taxi(state: Any, allowed: Array) -> None:
    """Allow what changes something."""
    destination, passenger, cell = state.place % 4, state.place // 4 % 5, state.place // 20
    row, column = cell // 5, cell % 5
    allowed[0, 0] = row < 4
    allowed[0, 1] = row > 0
    allowed[0, 2] = _EAST[row, column] == 1
    allowed[0, 3] = column > 0 and _EAST[row, column - 1] == 1
    allowed[0, 4] = passenger < _IN_TAXI and cell == _STOPS[passenger]
    allowed[0, 5] = passenger == _IN_TAXI and cell == _STOPS[destination]
    for stop in range(4):
        if passenger == _IN_TAXI and cell == _STOPS[stop]:
            allowed[0, 5] = True


def _taxi_rules(env: Any) -> CompiledRules:
    if getattr(env, "fickle_passenger", False) or any(len(each) > 1 for of in env.P.values() for each in of.values()):
        raise ValueError("is_rainy and fickle_passenger")
    return _text(env, {}, _step_taxi, _allow_in_taxi)


TAXI = GymnasiumTwin("gymnasium.envs.toy_text.taxi:TaxiEnv", _taxi_rules, {"place": attrgetter("s")}, {"prob": 1.0})

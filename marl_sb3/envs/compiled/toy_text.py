"""Gymnasium's frozen lake and taxi as compiled envs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete

from marl_sb3.core.envs.converted import AGENT, MASK
from marl_sb3.envs.compiled.random import random
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.compiled.twins import LIMIT, GymnasiumBatch, GymnasiumTwin
from marl_sb3.types import AgentID, Array

_MODULE = "gymnasium.envs.toy_text"
_INFOS = ((AGENT, "prob", float),)


def _start(state: Any, rng: Array) -> None:
    """Draw the first place; the settings hold the cumulative sum of its probabilities."""
    drawn, state.timestep, state.place = random(rng), 0, 0
    for place in range(len(state.first) - 1, -1, -1):
        if state.first[place] > drawn:
            state.place = place


def _observe(state: Any, observations: Array) -> None:
    observations[0] = state.place


def _copy(state: Any, env: Any) -> None:
    state.place = env.s


# --- FrozenLake ------------------------------------------------------------------------------------------------------

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
    state.timestep += 1
    outcome.infos[0] = probability
    outcome.terminated[0] = kind != _FROZEN
    outcome.truncated[0] = 0 < state.limit <= state.timestep


def _lake_rules(env: Any) -> CompiledRules:
    size = env.desc.size
    settings: list[Any] = [
        *((name, "i8") for name in ("height", "width", "is_slippery")),
        ("success", "f8"),
        ("rewards", "f8", (3,)),  # of a field of each kind
        ("kinds", "u1", (size,)),  # of each field
        ("first", "f8", (size,)),
    ]
    return CompiledRules(
        agents=[AGENT],
        observation_space=Discrete(size),
        action_space=Discrete(4),
        state=np.dtype([*LIMIT, ("place", "i8"), *settings], align=True),
        start=_start,
        step=_step_lake,
        observe=_observe,
        infos=_INFOS,
        bounds={"place": (0, size - 1)},
        settings=["limit", *(name for name, *_ in settings)],
    )


def _lake_settings(env: Any) -> Mapping[str, Any]:
    """Read the settings from the table of transitions, where those of the arguments are."""
    letters, rewards, (height, width) = env.desc.ravel(), np.zeros(3), env.desc.shape
    kinds = np.where(letters == b"H", _HOLE, np.where(letters == b"G", _GOAL, _FROZEN))
    transitions = [each for cell in env.P.values() for each in cell.values()]
    slippery = next((each for each in transitions if len(each) == 3), None)
    for cell in np.flatnonzero(kinds == _FROZEN).tolist():
        for _, there, reward, _ in (each for of_action in env.P[cell].values() for each in of_action):
            rewards[kinds[there]] = reward
    return {
        "height": height,
        "width": width,
        "is_slippery": slippery is not None,
        "success": 1.0 if slippery is None else slippery[1][0],
        "rewards": rewards,
        "kinds": kinds,
        "first": np.cumsum(env.initial_state_distrib),
    }


class _Lakes(GymnasiumBatch):
    """Their resets tell the probability of what they have drawn: 1."""

    def reset_infos(self, env_indices: Sequence[int]) -> Mapping[int, Mapping[AgentID, Mapping[str, Any]]]:
        """Return the infos of resets: env index -> agent -> info."""
        return {index: {AGENT: {"prob": 1}} for index in env_indices}


FROZEN_LAKE = GymnasiumTwin(f"{_MODULE}.frozen_lake:FrozenLakeEnv", _lake_rules, _lake_settings, _copy, _Lakes)

# --- Taxi ------------------------------------------------------------------------------------------------------------

# The walls of the map, for each of 5 rows: whether the taxi may drive east from each of 5 columns.
_EAST = np.array([[1, 0, 1, 1, 0], [1, 0, 1, 1, 0], [1, 1, 1, 1, 0], [0, 1, 0, 1, 0], [0, 1, 0, 1, 0]], dtype=np.uint8)
_STOPS = np.array([0, 4, 20, 23])  # the cells where passengers wait and leave
_IN_TAXI = 4
_PLACES = 500  # of the taxi, the passenger and the destination together


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
    state.timestep += 1
    outcome.rewards[0] = reward
    outcome.infos[0] = 1.0
    outcome.truncated[0] = 0 < state.limit <= state.timestep


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
    return CompiledRules(
        agents=[AGENT],
        observation_space=Discrete(_PLACES),
        action_space=Discrete(6),
        state=np.dtype([*LIMIT, ("place", "i8"), ("first", "f8", (_PLACES,))], align=True),
        start=_start,
        step=_step_taxi,
        observe=_observe,
        allow=_allow_in_taxi,
        infos=_INFOS,
        bounds={"place": (0, _PLACES - 1)},
        settings=["limit", "first"],
    )


def _taxi_settings(env: Any) -> Mapping[str, Any]:
    if getattr(env, "fickle_passenger", False) or any(len(each) > 1 for of in env.P.values() for each in of.values()):
        raise ValueError("is_rainy and fickle_passenger")
    return {"first": np.cumsum(env.initial_state_distrib)}


class _Taxis(GymnasiumBatch):
    """Their resets tell that probability, and the masks of the actions that change something."""

    def reset_infos(self, env_indices: Sequence[int]) -> Mapping[int, Mapping[AgentID, Mapping[str, Any]]]:
        """Return the infos of resets: env index -> agent -> info."""
        masks = self.action_masks()[:, 0].astype(np.int8)
        return {index: {AGENT: {"prob": 1.0, MASK: masks[index].copy()}} for index in env_indices}


TAXI = GymnasiumTwin(f"{_MODULE}.taxi:TaxiEnv", _taxi_rules, _taxi_settings, _copy, _Taxis)

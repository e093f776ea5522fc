"""Search at play time: policies look ahead in copies of the env, guided by their own probabilities and values.

The search is that of AlphaZero (Silver et al., Science 362, 2018): PUCT, without noise at the root.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from pettingzoo import AECEnv

from marl_sb3.core.acting.asked_agent import AgentInputs, RequestedOutputs
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.mapping import Deterministic, by_policy
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import AgentLayout, same
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError, described
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.observations import OBSERVATION

_EXPLORATION = 1.5  # c of PUCT: how much probabilities count beside values
_UNTRIED = 0.2  # how much less than its position an action is worth that was not tried


@dataclass(frozen=True)
class SearchingBundle(PolicyBundle):
    """Policies that choose each action by a search instead of their most likely one."""

    simulations: int = 0  # of each search


def searching(bundle: PolicyBundle, simulations: int) -> PolicyBundle:
    """Return policies that look ahead where they play.

    Args:
        bundle: PPO and the like, with values and probabilities of discrete actions, and without memory.
        simulations: how many positions a search looks at, for each action; 0: the policies do not look ahead.

    Raises:
        ConfigError: a policy cannot.
    """
    if simulations == 0:
        return bundle
    for policy_id, algorithm in bundle.policies.items():
        changed = bundle.processing[policy_id].settings.changed()
        if not hasattr(algorithm.policy, "predict_values") or not isinstance(algorithm.action_space, spaces.Discrete):
            why = f"is of {type(algorithm).__name__} with actions in {algorithm.action_space}"
        elif remembers := [*changed, *(["an LSTM"] if hasattr(algorithm.policy, "lstm_actor") else [])]:
            why = f"has {', '.join(remembers)}"
        else:
            continue
        accepted = "policies with values and probabilities of discrete actions, without memory and processing"
        raise ConfigError(f"search: policy {policy_id!r} {why}; accepted: {accepted}", key="--search")
    fields = {field.name: getattr(bundle, field.name) for field in dataclasses.fields(bundle)}
    return SearchingBundle(**{**fields, "simulations": simulations})


class Searcher:
    """Searches for the agents of policies in all envs.

    Args:
        bundle: the policies.
        env: two agents take turns in it, and one is paid what the other loses. A search copies an env as it is, with
            what players do not see and what its generators will draw: results say something only where players see
            everything, and nothing is drawn. An env whose metadata have `shows_everything=False` is refused.
        deterministic: whether to take the action that was visited most, or one by the shares of visits; as in
            `play`.

    Raises:
        ConfigError: it is another kind of env, or other processes step it.
    """

    def __init__(self, bundle: SearchingBundle, env: MultiAgentVecEnv, deterministic: Deterministic) -> None:
        self._bundle, self._likeliest = bundle, by_policy(deterministic, bundle.policies)
        self._games: Sequence[Any] = [getattr(each, "unwrapped", each) for each in getattr(env, "envs", ())]
        self._agents, self._places = env.agents, AgentLayout(env.agents, env.groups).places
        accepted = "games of two agents that take turns, in this process (without --workers)"
        take_turns = all(
            isinstance(game, AECEnv) and not (game.metadata or {}).get("is_parallelizable", False)
            for game in self._games
        )
        if len(env.agents) != 2 or not self._games or not take_turns:
            raise ConfigError(f"search: this env is another kind; accepted: {accepted}", key="--search")
        if not all((game.metadata or {}).get("shows_everything", True) for game in self._games):
            words = "the game has hidden information or chance, which copies of the env would show to the players"
            raise ConfigError(f"search: {words}; accepted: games of perfect information", key="--search")

    def put(self, step: VecStep, actions: Sequence[Array]) -> None:
        """Write the actions that follow a step into the arrays of all groups, (E, A_group)."""
        acting = [(index, self._agents[column]) for index, column in np.argwhere(step.to_act).tolist()]
        for index, agent in acting:
            at = self._places[agent]
            seen: Any = step.observations[at.group]
            if not same([seen[index, at.group_column]], [_seen(self._games[index], agent)[0]]):
                words = "wrappers of this env show its agents something else, which copies do not have"
                raise ConfigError(f"search: {words}; accepted: an env without them", key="--search")
        for (index, agent), action in zip(acting, self.actions([index for index, _ in acting]), strict=True):
            at = self._places[agent]
            actions[at.group][index, at.group_column] = action

    def actions(self, env_indices: Sequence[int]) -> list[int]:
        """Search in these envs at once, for an action of each agent whose turn it is.

        Raises:
            ConfigError: an env cannot be copied.
        """
        games = [self._games[index] for index in env_indices]
        shown = [copy.deepcopy(_shown(game)) for game in games]
        roots = self._positions([copied(game) for game in games])
        for before, root in zip(shown, roots, strict=True):
            _require_equal(before, root.game)
        for _ in range(self._bundle.simulations):
            self._simulate(roots)
        for before, game in zip(shown, games, strict=True):
            _require_equal(before, game)
        return [int(root.actions[self._chosen(root)]) for root in roots]

    def _chosen(self, root: _Position) -> int:
        if self._likeliest[self._bundle.policy_of[root.agent]]:
            return int(np.argmax(root.visits))
        return int(th.multinomial(th.from_numpy(root.visits), 1))

    def _simulate(self, roots: Sequence[_Position]) -> None:
        """From each of these positions, follow the most promising actions to one that is new, or to the end."""
        paths = [root.most_promising_path() for root in roots]
        ends = [path[-1] for path in paths]
        new = {number: end.tried(action) for number, (end, action) in enumerate(ends) if action not in end.following}
        going_on = [number for number, (_, game) in new.items() if game is not None]
        found = dict(zip(going_on, self._positions([new[number][1] for number in going_on]), strict=True))
        for number, (paid, _) in new.items():
            position, action = ends[number]
            position.following[action] = paid, found.get(number)
        for path in paths:
            self._note(path)

    def _note(self, path: Sequence[tuple[_Position, int]]) -> None:
        """Count the actions of a path; values are those of the agent whose turn it is."""
        paid, after = path[-1][0].following[path[-1][1]]
        value = 0.0 if after is None else after.value
        for position, action in reversed(path):
            paid, after = position.following[action]
            if after is not None:
                algorithm: Any = self._bundle.policies[self._bundle.policy_of[position.agent]]
                value *= algorithm.gamma * (1.0 if after.agent == position.agent else -1.0)
            value += paid
            position.note(action, value)

    def _positions(self, games: Sequence[Any]) -> list[_Position]:
        """Ask the policies about several positions, once for each agent."""
        found: dict[int, _Position] = {}
        for agent in self._agents:
            numbers = [number for number, game in enumerate(games) if game.agent_selection == agent]
            if not numbers:
                continue
            shown = [_seen(games[number], agent) for number in numbers]
            seen = np.stack([observation for observation, _ in shown])
            masks = None if shown[0][1] is None else {agent: np.stack([mask for _, mask in shown if mask is not None])}
            answer = self._bundle.ask(AgentInputs({agent: seen}, action_masks=masks), _WANTED)
            distribution: Any = answer.distributions[agent].distribution
            of_agent = zip(numbers, answer.values[agent].tolist(), distribution.probs.numpy(force=True), strict=True)
            found |= {number: _Position(games[number], value, odds) for number, value, odds in of_agent}
        return [found[number] for number in range(len(games))]


_WANTED = RequestedOutputs(values=True, distributions=True)


def _seen(game: AECEnv, agent: AgentID) -> tuple[Array, Array | None]:
    """Return what an agent observes, and its action mask."""
    seen = game.observe(agent)
    if isinstance(seen, dict) and set(seen) == {OBSERVATION, MASK}:
        return seen[OBSERVATION], seen[MASK]
    if isinstance(seen, dict):
        raise ConfigError(f"search: {agent} observes a Dict; accepted: observations in one array", key="--search")
    return seen, game.infos.get(agent, {}).get(MASK)


class _Position:
    """A position of the game, what the policy thinks of it, and what came of its actions so far.

    Args:
        game: the env.
        value: of the position for the agent whose turn it is.
        odds: (actions,) the probabilities of its actions; 0: it is not possible.
    """

    def __init__(self, game: AECEnv, value: float, odds: Array) -> None:
        self.game, self.value = game, value
        self.agent: AgentID = game.agent_selection
        possible = np.flatnonzero(odds > 0)
        self.actions = possible + int(game.action_space(self.agent).start)
        self._odds = odds[possible] / odds[possible].sum()
        self.visits, self._sums = np.zeros(len(possible)), np.zeros(len(possible))
        # By the number of an action: what it pays, and the next position; None: the game is over.
        self.following: dict[int, tuple[float, _Position | None]] = {}

    def most_promising_path(self) -> list[tuple[_Position, int]]:
        """Return the positions and the numbers of their actions up to one that was not tried, or ends the game."""
        path, position = list[tuple[_Position, int]](), self
        while True:
            visits = position.visits
            means = np.where(visits > 0, position._sums / np.maximum(visits, 1), position.value - _UNTRIED)
            bonus = _EXPLORATION * position._odds * np.sqrt(visits.sum() + 1) / (1 + visits)
            number = int(np.argmax(means + bonus))
            path.append((position, number))
            _, after = position.following.get(number, (0.0, None))
            if after is None:
                return path
            position = after

    def tried(self, number: int) -> tuple[float, AECEnv | None]:
        """Take an action in a copy; returns what it pays, and the copy; None if the game is over."""
        game = copied(self.game)
        game.step(int(self.actions[number]))
        is_over = not game.agents or game.terminations[self.agent] or game.truncations[self.agent]
        return float(game.rewards.get(self.agent, 0.0)), None if is_over else game

    def note(self, number: int, value: float) -> None:
        """Count a try of an action."""
        self.visits[number] += 1
        self._sums[number] += value


# --- Copies of envs ---------------------------------------------------------------------------------------------------


_FIXED = ("possible_agents", "action_spaces", "observation_spaces", "metadata")  # never change


def copied(game: AECEnv) -> AECEnv:
    """Return a copy of an env in the middle of an episode.

    `copy.deepcopy` begins PettingZoo's envs anew: they are pickled by the arguments that they were made with. What
    pygame has opened, such as a window, is shared.

    Raises:
        ConfigError: it cannot be copied.
    """
    made = object.__new__(type(game))
    memo: dict[int, Any] = {id(game): made}
    try:
        for name, value in vars(game).items():
            is_shared = name in _FIXED or type(value).__module__.startswith("pygame")
            made.__dict__[name] = value if is_shared else copy.deepcopy(value, memo)
    except Exception as error:  # of the env's code
        raise ConfigError(f"search: this env cannot be copied: {described(error)}", key="--search") from error
    return made


def _shown(game: AECEnv) -> tuple[AgentID, list[Any]]:
    """Return whose turn it is, and what each agent sees."""
    return game.agent_selection, [game.observe(agent) for agent in game.agents]


def _require_equal(before: tuple[AgentID, list[Any]], game: AECEnv) -> None:
    """Refuse a copy that shows its agents something else, and an env that the steps of its copies have changed."""
    turn, seen = _shown(game)
    if turn != before[0] or len(seen) != len(before[1]) or not same(seen, before[1]):
        words = "this env cannot be copied: what its copies show is not what it shows, or their steps change it"
        raise ConfigError(f"search: {words}; accepted: envs whose state is in their attributes", key="--search")

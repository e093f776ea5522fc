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

from marl_sb3.core.acting import AgentInputs, PolicyBundle, Want
from marl_sb3.core.mapping import Deterministic, by_policy
from marl_sb3.core.vec_env import MultiAgentVecEnv, VecStep, same
from marl_sb3.errors import ConfigError, described
from marl_sb3.types import AgentID, Array

_EXPLORATION = 1.5  # c of PUCT: how much probabilities count beside values
_UNTRIED = 0.2  # how much less than its position an action is worth that was not tried


@dataclass(frozen=True)
class SearchingBundle(PolicyBundle):
    """Policies that choose each action by a search instead of their most likely one."""

    simulations: int = 0  # of each search


def searching(bundle: PolicyBundle, simulations: int) -> SearchingBundle:
    """Return policies that look ahead where they play.

    Args:
        bundle: PPO and the like, with values and probabilities of discrete actions, and without memory.
        simulations: how many positions a search looks at, for each action.

    Raises:
        ConfigError: a policy cannot.
    """
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
            everything, and nothing is drawn.
        deterministic: whether to take the action that was visited most, or one by the shares of visits; as in
            `play_episodes`.

    Raises:
        ConfigError: it is another kind of env, or other processes step it.
    """

    def __init__(self, bundle: SearchingBundle, env: MultiAgentVecEnv, deterministic: Deterministic) -> None:
        self._bundle, self._likeliest = bundle, by_policy(deterministic, bundle.policies)
        self._games: Sequence[Any] = [getattr(each, "unwrapped", each) for each in getattr(env, "envs", ())]
        self._places = {
            agent: (number, place)
            for number, group in enumerate(env.groups)
            for place, agent in enumerate(group.agents)
        }
        self._agents = env.agents
        accepted = "games of two agents that take turns, in this process (without --workers)"
        if len(env.agents) != 2 or not self._games or not all(map(_takes_turns, self._games)):
            raise ConfigError(f"search: this env is another kind; accepted: {accepted}", key="--search")

    def put(self, step: VecStep, actions: Sequence[Array]) -> None:
        """Write the actions that follow a step into the arrays of all groups, (E, A_group)."""
        for index, column in np.argwhere(step.to_act).tolist():
            group, place = self._places[self._agents[column]]
            actions[group][index, place] = self._action(self._games[index])

    def _action(self, game: AECEnv) -> int:
        """Search for an action of the agent whose turn it is."""
        root = self._position(copied(game))
        for _ in range(self._bundle.simulations):
            self._simulate(root)
        if self._likeliest[self._bundle.policy_of[game.agent_selection]]:
            return int(root.actions[np.argmax(root.visits)])
        return int(root.actions[th.multinomial(th.from_numpy(root.visits), 1)])

    def _position(self, game: AECEnv) -> _Position:
        agent: AgentID = game.agent_selection
        seen = {agent: game.observe(agent)}
        mask = game.infos.get(agent, {}).get("action_mask")
        inputs = AgentInputs(seen, action_masks=None if mask is None else {agent: mask})
        answer = self._bundle.ask(inputs, Want(values=True, distributions=True))
        distribution: Any = answer.distributions[agent].distribution
        odds = distribution.probs.numpy(force=True).reshape(-1)
        actions = np.flatnonzero(odds > 0)  # a mask makes others impossible
        first: int = game.action_space(agent).start
        return _Position(game, float(answer.values[agent]), actions + first, odds[actions])

    def _simulate(self, position: _Position) -> float:
        """Follow the most promising actions to a position that is new, or to the end; returns the value at the start.

        Values are those of the agent whose turn it is.
        """
        number = position.most_promising()
        agent = position.game.agent_selection
        known = position.following.get(number)
        if known is None:
            game = copied(position.game)
            game.step(int(position.actions[number]))
            paid = float(game.rewards.get(agent, 0.0))
            over = not game.agents or game.terminations[agent] or game.truncations[agent]
            known = position.following[number] = paid, None if over else self._position(game)
            value = 0.0 if known[1] is None else known[1].value
        else:
            value = 0.0 if known[1] is None else self._simulate(known[1])
        paid, after = known
        if after is not None:
            sign = 1.0 if after.game.agent_selection == agent else -1.0
            value *= sign * self._gamma(agent)
        position.note(number, paid + value)
        return paid + value

    def _gamma(self, agent: AgentID) -> float:
        algorithm: Any = self._bundle.policies[self._bundle.policy_of[agent]]
        return float(algorithm.gamma)


class _Position:
    """A position of the game, what the policy thinks of it, and what came of its actions so far."""

    def __init__(self, game: AECEnv, value: float, actions: Array, odds: Array) -> None:
        self.game, self.value, self.actions, self._odds = game, value, actions, odds / odds.sum()
        self.visits, self._sums = np.zeros(len(actions)), np.zeros(len(actions))
        # By the number of an action: what it pays, and the next position; None: the game is over.
        self.following: dict[int, tuple[float, _Position | None]] = {}

    def most_promising(self) -> int:
        """Return the number of the action to try next."""
        means = np.where(self.visits > 0, self._sums / np.maximum(self.visits, 1), self.value - _UNTRIED)
        bonus = _EXPLORATION * self._odds * np.sqrt(self.visits.sum() + 1) / (1 + self.visits)
        return int(np.argmax(means + bonus))

    def note(self, number: int, value: float) -> None:
        """Count a try of an action."""
        self.visits[number] += 1
        self._sums[number] += value


# --- Copies of envs ---------------------------------------------------------------------------------------------------


def _takes_turns(game: Any) -> bool:
    if not isinstance(game, AECEnv):
        return False
    return not (game.metadata or {}).get("is_parallelizable", False)


_FIXED = ("possible_agents", "action_spaces", "observation_spaces", "metadata", "game")  # never change


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
        is_equal = made.agent_selection == game.agent_selection and all(
            same([made.observe(agent)], [game.observe(agent)]) for agent in game.agents
        )
    except Exception as error:  # of the env's code
        raise ConfigError(f"search: this env cannot be copied: {described(error)}", key="--search") from error
    if not is_equal:
        raise ConfigError("search: a copy of this env shows its agents something else", key="--search")
    return made

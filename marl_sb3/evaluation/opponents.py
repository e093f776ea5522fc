"""Who plays: policies of several runs, random agents, and code that is no policy."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.envs.faults import RAISED
from marl_sb3.core.mapping import by_policy
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.observations import AgentLayout, taken
from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import Door
from marl_sb3.envs.finding import attribute_from_here
from marl_sb3.errors import ConfigError, HookError, described, shown
from marl_sb3.extensions.hub import is_address
from marl_sb3.types import AgentID, Array, BoolArray, PolicyID
from marl_sb3.wrappers.observations import choices_of

RANDOM = "random"
_PLACE = "MODULE:CLASS of an opponent"


class Opponent(Protocol):
    """Plays agents that no policy plays.

    One object plays an agent in all envs, and is not told where episodes begin: what it needs has to be in the
    observation.
    """

    def act(self, observation: Any, mask: BoolArray | None, rng: np.random.Generator) -> Any:
        """Choose an action.

        Args:
            observation: what the env shows the agent, before any processing of a policy; without its action mask.
            mask: (n,) True for each action that is allowed, see `choices_of`; None if the env gives none.
            rng: for its draws; each agent of each env has its own, which follows from the seed of the evaluation.

        Returns:
            An action in the agent's action space, as the env takes it.
        """


class HasBundle(Protocol):
    """An algorithm or a run, which plays by its policies."""

    def bundle(self) -> PolicyBundle:
        """Return the policies."""


# Players of known games, by name: a class of your own can be added, or the place of one.
OPPONENTS: Door[type[Opponent]] = Door("opponent")
_MINIMAX = ("Greedy", "Minimax2", "Minimax4", "Lines2", "Perfect", "Sparring")
for _class in (*_MINIMAX, "MCTS10", "MCTS100", "MCTS1000"):
    OPPONENTS.add(_class.lower(), f"marl_sb3.evaluation.board_players:{_class}")

Code: TypeAlias = str | type[Opponent] | Opponent  # no policy
Against: TypeAlias = Code | Mapping[AgentID, Code] | PolicyBundle | HasBundle


@dataclass(frozen=True)
class Rival:
    """Somebody whom a viewer may let play against the policies of a run, or against a person."""

    name: str
    load: Callable[[MultiAgentVecEnv], Against]  # called when it is first chosen
    about: str = ""  # such as its rating


class RandomOpponent:
    """Takes each allowed action with the same probability.

    Args:
        space: the actions.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._space = copy.deepcopy(space)

    def act(self, observation: Any, mask: BoolArray | None, rng: np.random.Generator) -> Any:
        """See `Opponent.act`."""
        choices, of_parts = choices_of(self._space), hasattr(self._space, "to_env")
        if mask is None or choices is None or of_parts:
            self._space.seed(int(rng.integers(2**31)))
            return self._space.sample(mask) if of_parts else self._space.sample()
        allowed = np.split(mask, np.cumsum(choices)[:-1])
        drawn = np.array([rng.choice(np.flatnonzero(of_choice)) for of_choice in allowed])
        return drawn.reshape(self._space.shape) + getattr(self._space, "start", 0)


def bundle_of(against: Against) -> PolicyBundle | None:
    """Return the policies of an opponent that has some; None for all others."""
    if not isinstance(against, (str, type, PolicyBundle)) and callable(getattr(against, "bundle", None)):
        against = against.bundle()  # type: ignore[union-attr]
    return against if isinstance(against, PolicyBundle) else None


def is_code(name: str) -> bool:
    """Return whether a text names an opponent that is no policy: `random`, one of `OPPONENTS`, or `MODULE:CLASS`."""
    return name == RANDOM or name in OPPONENTS or (":" in name and not is_address(name))


def opponents_of(against: Against, env: MultiAgentVecEnv, agents: Collection[AgentID]) -> dict[AgentID, Opponent]:
    """Return who plays each of these agents.

    Args:
        against: `random`; a name in `OPPONENTS`; `MODULE:CLASS`, which is imported; a class, which is called once for
            each agent, with `agent=` the agent's id if it has a parameter of this name, else without arguments; an
            object, which plays all agents; or a mapping from agents to these.

    Raises:
        ConfigError: it is none of these, cannot be imported, or cannot be made.
    """
    if isinstance(against, Mapping):
        if missing := [agent for agent in agents if agent not in against]:
            words = f"no opponent for {', '.join(missing)}; accepted: an opponent for each of {', '.join(agents)}"
            raise ConfigError(f"against has {', '.join(map(shown, against)) or 'no agent'}: {words}", key="against")
        return {agent: opponents_of(against[agent], env, [agent])[agent] for agent in agents}
    if against == RANDOM:
        layout = AgentLayout(env.agents, env.groups)
        return {agent: RandomOpponent(layout.action_space(agent)) for agent in agents}
    player: Any = against
    if isinstance(against, str):
        if not is_code(against):
            accepted = f"{', '.join((RANDOM, *OPPONENTS.names()))}, or MODULE:CLASS; runs play each other in a match"
            raise ConfigError(f"opponent {shown(against)}; accepted: {accepted}", key="against")
        what = f"opponent {shown(against)}"
        player = OPPONENTS[against] if against in OPPONENTS else attribute_from_here(against, what, _PLACE, "against")
    if not callable(getattr(player, "act", None)):
        words = f"opponent {shown(against)}: there is no method act(observation, mask, rng)"
        accepted = "such a class, an object with this method, MODULE:CLASS, or policies of a run"
        raise ConfigError(f"{words}; accepted: {RANDOM}, {', '.join(OPPONENTS.names())}, {accepted}", key="against")
    return {agent: _made(player, agent) if isinstance(player, type) else player for agent in agents}


def opponent_name(opponent: Against) -> str:
    """`random`, the name of a player of the package, or `MODULE:CLASS`."""
    if isinstance(opponent, str):
        return opponent
    kind = opponent if isinstance(opponent, type) else type(opponent)
    if kind.__module__ == "marl_sb3.evaluation.board_players":
        return kind.__name__.lower()
    return RANDOM if kind is RandomOpponent else f"{kind.__module__}:{kind.__qualname__}"


def _made(kind: type, agent: AgentID) -> Opponent:
    try:
        takes_agent = "agent" in inspect.signature(kind).parameters
        made: Opponent = kind(agent=agent) if takes_agent else kind()
    except RAISED as error:  # code of the user's
        words = f"opponent {opponent_name(kind)} cannot be made for agent {agent!r}: {described(error)}"
        raise ConfigError(words, key="against") from error
    return made


class OpponentRows:
    """Acts for some agents in all envs by opponents, beside the actors of policies.

    The draws of an agent in an env depend on the seed, the env's index and the agent's place alone.

    Args:
        env: the envs.
        opponents: agent -> who plays it.
        seed: of the draws; None: from the operating system's entropy.
    """

    def __init__(self, env: MultiAgentVecEnv, opponents: Mapping[AgentID, Opponent], seed: int | None) -> None:
        self._layout = AgentLayout(env.agents, env.groups)
        self._opponents = {agent: opponents[agent] for agent in self._layout.places if agent in opponents}
        entropy = np.random.SeedSequence(seed).entropy
        self._rngs = {
            agent: [
                np.random.default_rng(spawned(entropy, Stream.OPPONENTS, index, self._layout.places[agent].column))
                for index in range(env.num_envs)
            ]
            for agent in self._opponents
        }
        self._lengths, self._ended = (np.zeros(env.num_envs, dtype=np.int64) for _ in range(2))
        self.play(opponents)

    def play(self, agents: Collection[AgentID]) -> None:
        """From the next step on, act for these of the agents."""
        self._agents = agents

    def marked(self) -> Callable[[], None]:
        """Return a function that takes the next `put` back."""
        lengths, ended = self._lengths, self._ended.copy()
        generators = [rng.bit_generator for of_agent in self._rngs.values() for rng in of_agent]
        states = [generator.state for generator in generators]

        def take_back() -> None:
            self._lengths, self._ended = lengths, ended.copy()
            for generator, state in zip(generators, states, strict=True):
                generator.state = state

        return take_back

    def put(self, step: VecStep, actions: Sequence[Array]) -> None:
        """Write the actions that follow a step into the arrays of all groups, (E, A_group, ...); called in every step.

        Raises:
            HookError: an opponent raised an exception, or returned what is no action or a forbidden one.
            ConfigError: a player of the package does not know the game.
        """
        self._lengths = np.where(step.episode_done, 0, self._lengths + step.stepped)
        self._ended += step.episode_done
        for agent, opponent in self._opponents.items():
            if agent not in self._agents:
                continue
            who = f"opponent {opponent_name(opponent)}, agent {agent!r}"
            for index in np.flatnonzero(step.to_act[:, self._layout.places[agent].column]).tolist():
                where = f"{who}, env {index}, episode {self._ended[index] + 1}, step {self._lengths[index] + 1}"
                put_answer(opponent, self._layout, (index, agent), step, actions, self._rngs[agent][index], where)


def put_answer(
    opponent: Opponent,
    layout: AgentLayout,
    row: tuple[int, AgentID],
    step: VecStep,
    actions: Sequence[Array],
    rng: np.random.Generator,
    where: str,
) -> None:
    """Ask an opponent for the action that follows a step; write it into the arrays of all groups, (E, A_group, ...).

    Args:
        row: index of the env, and the agent.
        where: said of errors.

    Raises:
        HookError: it raised an exception, or returned what is no action or a forbidden one.
        ConfigError: a player of the package does not know the game.
    """
    index, agent = row
    at = layout.places[agent]
    place, masks = (index, at.group_column), step.action_masks[at.group]
    seen = copy.deepcopy(taken(step.observations[at.group], place))  # envs reuse the memory
    mask = None if masks is None else masks[place].copy()
    try:
        actions[at.group][place] = _ask(opponent, layout.action_space(agent), seen, mask, rng)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", key="against") from error
    except (Exception, SystemExit) as error:  # code of the user's
        why = error if isinstance(error, HookError) else f"it raised {described(error)}"
        raise HookError(f"{where}: {why}") from error


def _ask(
    opponent: Opponent, space: spaces.Space[Any], seen: Any, mask: BoolArray | None, rng: np.random.Generator
) -> Array:
    """Ask an opponent, and check its answer; most arguments are those of `Opponent.act`.

    Raises:
        HookError: it is no action in the space, or the mask forbids it.
    """
    allowed = None if mask is None else mask.copy()
    answer = opponent.act(seen, mask, rng)
    try:
        given = space.from_env(answer) if hasattr(space, "from_env") else np.asarray(answer)
        fits = given.dtype.kind in ("iuf" if isinstance(space, spaces.Box) else "iu") and given.shape == space.shape
        action = given.astype(space.dtype) if fits else given
    except (TypeError, ValueError):  # of a ragged list
        fits = False
    if not fits or not space.contains(action):
        raise HookError(f"it returned {shown(answer)}; accepted: an action in {space}")
    choices = choices_of(space)
    if allowed is not None and choices is not None:
        numbers = action[getattr(space, "choice_columns", ...)].astype(np.int64) - getattr(space, "start", 0)
        chosen = np.cumsum([0, *choices[:-1]]) + numbers.reshape(-1)
        if not allowed[chosen].all():
            words = f"it returned {shown(answer)}, which the action mask forbids"
            raise HookError(f"{words}; accepted: what the mask allows, {allowed.astype(int).tolist()}")
    return action


# --- Policies of several runs -----------------------------------------------------------------------------------------

# A bundle whose policy of the same agent acts; or a bundle and the id of one of its policies.
Source: TypeAlias = PolicyBundle | tuple[PolicyBundle, PolicyID]

_SOURCES = "policies from load_policies, or a pair of these and a policy id"


def combine_policies(sources: Mapping[AgentID, Source]) -> PolicyBundle:
    """Combine policies of several runs into one bundle, such as for a match between two of them.

    A policy of the result is called like the first of its agents. Custom metrics and `evaluation_deterministic` are
    those of the sources.

    Args:
        sources: for each agent of the env, the policies of a run, of which the one for the same agent is taken; or a
            pair of these and the id of the policy to take: `{"player_1": load_policies(new), "player_2":
            (load_policies(old), "shared")}`.

    Raises:
        ConfigError: a source has no such policy; or its policy tells its agents apart (`agent_indicator`), and they are
            not all of the agents that it was trained for.
    """
    if not sources:
        raise ConfigError(f"combine_policies: there are no agents; accepted: {{agent: {_SOURCES}}}", key="policies")
    chosen = {agent: _chosen(agent, source) for agent, source in sources.items()}
    names: dict[tuple[int, PolicyID], AgentID] = {}  # of a policy of a bundle: its first agent
    policy_of = {
        agent: names.setdefault((id(bundle), policy_id), agent) for agent, (bundle, policy_id) in chosen.items()
    }
    origins = {name: chosen[name] for name in names.values()}
    for name, (bundle, policy_id) in origins.items():
        agents, trained = [agent for agent in sources if policy_of[agent] == name], bundle.agents_of(policy_id)
        if bundle.processing[policy_id].settings.agent_indicator and agents != trained:
            words = f"policy {policy_id!r} observes which agent it acts for (agent_indicator)"
            words += f": it acts for {', '.join(agents)}; accepted: {', '.join(trained)}, in this order"
            raise ConfigError(f"combine_policies: {words}", key="policies")
    return PolicyBundle(
        policies={name: bundle.policies[policy_id] for name, (bundle, policy_id) in origins.items()},
        policy_of=policy_of,
        spaces={name: bundle.spaces[policy_id] for name, (bundle, policy_id) in origins.items()},
        processing={name: bundle.processing[policy_id] for name, (bundle, policy_id) in origins.items()},
        evaluation_deterministic={
            name: by_policy(bundle.evaluation_deterministic, bundle.policies)[policy_id]
            for name, (bundle, policy_id) in origins.items()
        },
        custom_metrics={
            name: metric for bundle, _ in origins.values() for name, metric in bundle.custom_metrics.items()
        },
    )


def of_policy(bundle: PolicyBundle, policy_id: PolicyID) -> PolicyBundle:
    """Return one of the policies alone, for all agents that it may play."""
    return combine_policies(dict.fromkeys(bundle.agents_of(policy_id), (bundle, policy_id)))


def _chosen(agent: AgentID, source: Source) -> tuple[PolicyBundle, PolicyID]:
    bundle, policy_id = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    if not isinstance(bundle, PolicyBundle):
        raise ConfigError(
            f"combine_policies: agent {agent!r} has {source!r:.200}; accepted: {_SOURCES}", key="policies"
        )
    meant = bundle.policy_of.get(agent) if policy_id is None else policy_id
    if meant is None or meant not in bundle.policies:
        missing = f"no agent {agent!r}" if meant is None else f"no policy {meant!r}"
        there = ", ".join(map(repr, bundle.policies))
        words = f"the policies for agent {agent!r} have {missing}; accepted: a pair of them and one of {there}"
        raise ConfigError(f"combine_policies: {words}", key="policies")
    return bundle, meant


def misfit(bundle: PolicyBundle, env: MultiAgentVecEnv, agents: Iterable[AgentID]) -> str | None:
    """Say why policies cannot act for some agents of an env; None if they can."""
    layout = AgentLayout(env.agents, env.groups)
    for agent in agents:
        if agent not in bundle.policy_of:
            return f"no policy of it is for agent {agent}, but for {', '.join(bundle.policy_of)}"
        of_env = layout.observation_space(agent), layout.action_space(agent)
        for space, trained in zip(of_env, bundle.spaces[bundle.policy_of[agent]], strict=True):
            if space != trained:
                return f"the env has space {space} for agent {agent!r}; its policy: {trained}"
    return None

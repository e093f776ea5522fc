"""Episodes of one env, one env step at a time, in which persons may act for some agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from msgspec import Struct

from marl_sb3.core.acting.by_agent import PolicyBundle, PolicySpaces
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.core.mapping import Deterministic, zero_actions
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.sb3 import inference
from marl_sb3.core.state.randomness import get_rng, preserve_rng, set_rng
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.core.vec_env.observations import AgentLayout, ZeroBased, map_arrays, same
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError, EnvError, MarlSb3Error, described
from marl_sb3.evaluation.board import board_of, names_of_actions, names_of_cells
from marl_sb3.evaluation.opponents import RANDOM, Rival, bundle_of, misfit
from marl_sb3.evaluation.pairing import Pairing
from marl_sb3.evaluation.played import Scoreboard, Seat
from marl_sb3.evaluation.playing import require_same_agents, seats_of, seed_generators
from marl_sb3.evaluation.search import searching
from marl_sb3.evaluation.viewed_env import ViewedEnv
from marl_sb3.types import AgentID, Array, BoolArray
from marl_sb3.wrappers.observations import choices_of

_TURN = threading.Lock()  # The global random generators belong to one game at a time.
_MOST_CHOICES, _MOST_NUMBERS = 256, 64  # of an action that a person can choose
_PERSON = "You"


class Control(Struct):
    """How a person acts for an agent."""

    sizes: list[int] = []  # numbers of choices, of each part of the action
    starts: list[int] = []  # the first choice of each part
    names: list[str] = []  # of a single part's choices, if the env or its board tells them
    places: list[tuple[int, int]] = []  # of these choices on the board: row and column
    low: list[float] = []  # bounds of the numbers that an action consists of, where there are no choices
    high: list[float] = []
    is_single: bool = False  # the action is a number and no list
    why_not: str = ""  # why a person cannot act for the agent


class Insight(Struct):
    """What the policy of an agent makes of the observation that the agent acts on next."""

    agent: AgentID
    action: Any  # that it chooses, as the env takes it
    probabilities: list[list[float]] = []  # of the choices of each part of the action
    q_values: list[float] = []  # of the choices
    spreads: list[float] = []  # standard deviations of continuous actions, in the scale of the policy
    value: float | None = None  # of the observation
    note: str = ""  # why something is missing


@dataclass(frozen=True)
class GamePlan:
    """What is played."""

    env: str | EnvFactory  # an id, or a factory
    settings: Mapping[str, Any]  # of `make_vec_env`, with the arguments of the env
    # loads the policies of a checkpoint, as `SavedRun.policies` does; None: all agents act at random
    policies: Callable[[str | None, MultiAgentVecEnv], PolicyBundle] | None
    deterministic: Deterministic = True  # the most likely actions, or sampled ones
    seed: int | None = None  # of the episodes and the actions; None: drawn
    name: str = RANDOM  # of who plays by these policies
    opposed: bool = False  # see `Scoreboard`
    rivals: Sequence[Rival] = ()  # who may play agents in place of the policies; their names differ
    against: str = ""  # the rival at first; empty: none, all agents are played by the policies
    # the agents that the policies play in the first episode against a rival. None: the agents of the first agent's
    # policy; if that is all agents, the first agent alone. If the policies or the rival cannot play so, they play the
    # other way round.
    seat: Sequence[AgentID] | None = None
    swaps: bool = True  # whether the sides swap after each episode, if both can play both
    search: int = 0  # simulations by which policies look ahead, see `searching`; 0: they do not


class Game:
    """An env and the policies that play in it. With the same seed, its episodes are those of an evaluation in one env.

    Args:
        plan: what is played.
        view: makes the env from its arguments.

    Raises:
        ConfigError: the env cannot be made.
    """

    env: MultiAgentVecEnv  # of one env
    viewed: ViewedEnv  # the env in it
    controls: dict[AgentID, Control]
    # The agents that a person acts for, and their next actions; None: not chosen yet. Policies that see their
    # `previous_action` see what they would have done.
    persons: dict[AgentID, Array | None]
    policies: PolicyBundle  # of the checkpoint that `begin` was asked for
    against: str  # the name of the rival; empty if there is none
    their_checkpoint: str | None  # of the rival's policies; None if it plays by none, or they are of no checkpoint
    players: dict[AgentID, str]  # the names of who plays
    episode: int  # its number, from 1
    step: int  # env steps since its start
    is_over: bool  # whether it has ended; `advance` begins the next one
    returns: dict[AgentID, float]  # sums of the rewards since its start
    latest_actions: dict[AgentID, Any]  # of the agents that acted in the latest step
    score: Scoreboard  # of the episodes with these players
    result: str  # who has won the episode, if it is over and the returns tell
    changed: bool  # whether persons have come or gone since its start, so that it is won by no side but its agents
    finished: Sequence[Episode] = ()  # the episode that has ended with the latest step, if one has

    _pairing: Pairing
    _seats: list[Sequence[AgentID]]  # see `_loaded`
    _take_back: Callable[[], None]  # against a rival: takes back what was chosen, as if `_rng_before` were now

    def __init__(self, plan: GamePlan, view: Callable[[Mapping[str, Any]], ViewedEnv]) -> None:
        self.plan = plan
        self._asked: tuple[str | None, str] | None = None
        self._failed: MarlSb3Error | None = None

        def make(**env_kwargs: Any) -> ViewedEnv:
            self.viewed = view(env_kwargs)
            return self.viewed

        self.env = make_vec_env(make, 1, plan.seed, **{**plan.settings, "n_workers": 0})
        layout = AgentLayout(self.env.agents, self.env.groups)
        self._places = layout.places
        self._spaces: dict[AgentID, Any] = {agent: layout.action_space(agent) for agent in self.env.agents}
        self.controls = {agent: _control(self.viewed, agent, self._spaces[agent]) for agent in self.env.agents}
        self.persons = {}

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    @cached_property
    def starts_alike(self) -> bool:
        """Whether all episodes begin with the same observations, so that the most likely actions may repeat a game."""
        settings = {name: value for name, value in self.plan.settings.items() if name != "render_mode"}
        starts = []
        with closing(make_vec_env(self.plan.env, 1, **{**settings, "n_workers": 0})) as env, _TURN, preserve_rng():
            for seed in (0, 1):
                seed_generators(seed)
                env.seed(seed)
                env.reset()
                starts.append([map_arrays(np.copy, group) for group in env.latest.observations])
        return same(*starts)

    # --- Playing -----------------------------------------------------------------------------------------------------

    def begin(
        self,
        seed: int,
        deterministic: Deterministic,
        checkpoint: str | None,
        against: str = "",
        swaps: bool = True,
    ) -> None:
        """Begin the first episode of a seed.

        Args:
            seed, deterministic: see `play`.
            checkpoint: see `SavedRun.policies`.
            against: the name of a rival; empty: none.
            swaps: whether the sides swap after each episode, if both can play both. A person keeps its agents.

        Raises:
            CheckpointError: a checkpoint cannot be loaded; nothing has changed.
            ConfigError: there is no such rival, or it cannot play here; nothing has changed.
            EnvError: the env broke the `ParallelEnv` contract.
            HookError: the rival is code of the user's, and failed.
        """
        self._load(checkpoint, against)
        self._swaps, self._swapped = swaps and len(self._seats) > 1, False
        self._tracker = EpisodeTracker(self.env, self.policies.policy_of, 1, self.policies.custom_metrics)
        self._tracker.policies_in = lambda _: self.players
        self._tracker.begin()
        with _TURN, preserve_rng():
            seed_generators(seed)
            self.env.seed(seed)
            self.env.reset()
            self._name_by_cells()
            self._pairing.begin(deterministic, seed)
            self._pairing.play(self._ours())
            self.episode = 0
            self._begin_episode()
            self._choose()
            self._rng = get_rng()

    def _load(self, checkpoint: str | None, against: str) -> None:
        """Load the policies and the rival, unless they are here, and check that they can play; see `begin`."""
        is_here = self._asked == (checkpoint, against)
        loaded = (self.policies, self._pairing, self._seats) if is_here else self._loaded(checkpoint, against)
        if against and self.persons and (fault := self._fault(*loaded[:2], against, self.persons)) is not None:
            raise ConfigError(fault, key="against")
        if not is_here:
            self.score = Scoreboard(takes_turns=self.viewed.takes_turns, opposed=self.plan.opposed)
        self.policies, self._pairing, self._seats = loaded
        self.their_checkpoint = getattr(self._pairing.theirs, "checkpoint", None)
        self._asked, self.against = (checkpoint, against), against

    def _loaded(self, checkpoint: str | None, against: str) -> tuple[PolicyBundle, Pairing, list[Sequence[AgentID]]]:
        """Load the policies and the rival.

        Returns:
            The agents that the policies may play, too: those of the first episode, and those after a swap if there is
            one.
        """
        load, agents = self.plan.policies, self.env.agents
        if load is None:
            policies = _no_policies(self.env)
            return policies, Pairing(self.env, policies, RANDOM, (), agents), [()]
        with _TURN:  # it draws weights, and puts the generators back as they were
            policies = searching(load(checkpoint, self.env), self.plan.search)
        if not against:
            require_same_agents(policies, self.env)
            return policies, Pairing(self.env, policies, None, agents, ()), [agents]
        with _TURN:
            rival = self._rival(against).load(self.env)
            bundle = bundle_of(rival)
            theirs = rival if bundle is None else searching(bundle, self.plan.search)
        own = [agent for agent in agents if policies.policy_of.get(agent) == policies.policy_of.get(agents[0])]
        own = own if len(own) < len(agents) else [agents[0]]
        first = seats_of(agents, [own if self.plan.seat is None else self.plan.seat])[0]
        pairing = Pairing(self.env, policies, theirs, agents, agents)
        faults = {seat: self._fault(policies, pairing, against, seat) for seat in (first, self._others(first))}
        seats: list[Sequence[AgentID]] = [seat for seat, fault in faults.items() if fault is None]
        if not seats or (self.plan.seat is not None and seats[0] != first):
            raise ConfigError(next(filter(None, faults.values())), key="against")
        return policies, pairing, seats

    def _rival(self, name: str) -> Rival:
        for rival in self.plan.rivals:
            if rival.name == name:
                return rival
        there = ", ".join(rival.name for rival in self.plan.rivals) or "none: there is no opponent here"
        raise ConfigError(f"unknown opponent {name!r:.100}; accepted: {there:.1000}", key="against")

    def _begin_episode(self) -> None:
        self.episode, self.step, self.is_over, self.result = self.episode + 1, 0, False, ""
        self.returns, self.latest_actions, self.changed = dict.fromkeys(self.env.agents, 0.0), {}, False
        self.forget_choices()
        self._name_players()

    def advance(self) -> None:
        """Take an env step, with the actions that persons have chosen and those of the policies; or begin an episode.

        Raises:
            EnvError: the env broke the `ParallelEnv` contract. `begin` starts anew.
            HookError: the rival is code of the user's, and failed; so it does until `begin`, or until others play.
        """
        self.finished = ()
        if self._failed is not None:
            raise self._failed
        if self.is_over:
            self._begin_episode()
            return
        for agent in self.to_act:
            chosen, at = self.persons.get(agent), self._places[agent]
            if chosen is not None and self._is_allowed(agent, chosen):
                self._actions[at.group][0, at.group_column] = chosen
        self.latest_actions = {agent: self._next_action(agent) for agent in self.to_act}
        with _TURN, preserve_rng():  # the draws are as if there were no other games
            set_rng(self._rng)
            step = self.env.step(self._actions)
            self._record(step)
            self._pairing.observe(step)
            self._choose()
            self._rng = get_rng()

    def _record(self, step: VecStep) -> None:
        """Note what came of a step; after the end of an episode, others may play the agents in the next one."""
        self.step += 1
        rewards = zip(self.env.agents, step.rewards[0].tolist(), strict=True)
        self.returns = {agent: self.returns[agent] + paid for agent, paid in rewards}
        self.is_over = bool(step.episode_done[0])
        self.finished = self._tracker.record(step)
        if self.is_over:
            self.score.add(self.returns, self._sides())
            self.result = self.score.result()
            self._swapped = self._swaps and not self._swapped
            self._pairing.play(self._ours())

    def _choose(self) -> None:
        """Let the policies, and the rival, choose the next actions."""
        if self.against:
            self._take_back, self._rng_before = self._pairing.marked(), get_rng()
        self._actions, self._failed = zero_actions(self.env), None
        try:
            self._pairing.act(self.env.latest, self._actions)
        except MarlSb3Error as error:
            self._failed = error
            raise

    # --- Who plays ---------------------------------------------------------------------------------------------------

    def _others(self, agents: Collection[AgentID]) -> Seat:
        return tuple(agent for agent in self.env.agents if agent not in agents)

    def _fault(self, policies: PolicyBundle, pairing: Pairing, against: str, ours: Collection[AgentID]) -> str | None:
        """Say who cannot play the agents that it would have to, and why; None if both can."""
        for name, bundle, agents in ((self.plan.name, policies, ours), (against, pairing.theirs, self._others(ours))):
            if bundle is not None and (why := misfit(bundle, self.env, agents)) is not None:
                return f"{name} cannot play {', '.join(agents)}: {why}"
        return None

    def _ours(self) -> Collection[AgentID]:
        """Return the agents that the policies play; against a rival, a person sits in their place."""
        return (self.persons if self.against else ()) or self._seats[self._swapped]

    def _name_players(self) -> None:
        ours = self._ours()
        names = {a: self.plan.name if a in ours or not self.against else self.against for a in self.env.agents}
        self.players = {**names, **dict.fromkeys(self.persons, _PERSON)}

    def _sides(self) -> dict[AgentID, str]:
        """Return the side of each agent: against a rival, the name of its player; else each agent is a side."""
        alone = {agent: agent for agent in self.env.agents}
        if self.changed:
            return alone
        if self.against and len(set(self.players.values())) > 1:
            return self.players
        return {**alone, **dict.fromkeys(self.persons, _PERSON)} if len(self.persons) == 1 else alone

    @property
    def to_act(self) -> list[AgentID]:
        """The agents that act next; after the end of an episode, in the next one."""
        return [agent for agent in self.env.agents if self.env.latest.to_act[0, self._places[agent].column]]

    def _next_action(self, agent: AgentID) -> Any:
        at = self._places[agent]
        return self._actions[at.group][0, at.group_column].tolist()

    # --- Persons -----------------------------------------------------------------------------------------------------

    def take(self, agent: AgentID) -> None:
        """Let a person act for an agent. Numbers are as near to 0 as they may be until the person changes them.

        Raises:
            ConfigError: a person cannot act for the agent.
            HookError: the rival is code of the user's, has another agent to act for now, and failed.
        """
        control, space = self.controls[agent], self._spaces[agent]
        if control.why_not:
            raise ConfigError(f"a person cannot act for {agent}: {control.why_not}")
        if self.against:
            fault = self._fault(self.policies, self._pairing, self.against, [*self.persons, agent])
            if fault is not None:
                raise ConfigError(fault, key="against")
        zeros = np.zeros(space.shape, space.dtype)
        self.persons[agent] = None if control.sizes else np.clip(zeros, space.low, space.high)
        self._change_players()

    def release(self, agent: AgentID) -> None:
        """Let an agent act without a person."""
        self.persons.pop(agent, None)
        self._change_players()

    def _change_players(self) -> None:
        """Let others play from now on: the next actions, which others have chosen already, are chosen anew."""
        self.changed = self.changed or (self.step > 0 and not self.is_over)
        self._pairing.play(self._ours())
        self._name_players()
        if self.against:
            with _TURN, preserve_rng():
                set_rng(self._rng_before)
                self._take_back()
                self._choose()
                self._rng = get_rng()

    def act(self, agent: AgentID, action: Any) -> None:
        """Set the next action of an agent that a person acts for, as the env takes it.

        Raises:
            ConfigError: nobody has taken the agent over, or the action is not one of its actions, or not allowed now.
        """
        if agent not in self.persons:
            raise ConfigError(f"no person has taken over {agent:.100}")
        space, given = self._spaces[agent], np.asarray(action)
        with np.errstate(invalid="ignore", over="ignore"):  # numbers that do not fit are other ones afterwards
            array = given.astype(space.dtype)
        is_rounded = space.dtype.kind != "f" and not np.array_equal(array, given)
        if is_rounded or not space.contains(array if space.shape else array[()]):
            raise ConfigError(f"the action of {agent} is {action!r:.100}; accepted: one of {space}")
        if not self._is_allowed(agent, array):
            raise ConfigError(f"action {action!r:.100} of {agent} is not allowed now")
        self.persons[agent] = array

    def _is_allowed(self, agent: AgentID, action: Array) -> bool:
        mask, space = self.mask(agent), self._spaces[agent]
        if mask is None:
            return True
        starts = np.cumsum([0, *(choices_of(space) or ())[:-1]])
        return bool(mask[starts + np.atleast_1d(ZeroBased(space).from_env(action))].all())

    def awaited(self) -> list[AgentID]:
        """Return the agents that act next, and whose persons have not chosen an action."""
        return [] if self.is_over else [agent for agent in self.to_act if self.persons.get(agent, True) is None]

    def forget_choices(self) -> None:
        """Let persons choose anew; numbers stay as they are."""
        self.persons = {
            agent: None if self.controls[agent].sizes else numbers for agent, numbers in self.persons.items()
        }

    def mask(self, agent: AgentID) -> BoolArray | None:
        """Return which choices an agent has in its next action; None if it has all."""
        at = self._places[agent]
        masks = self.env.latest.action_masks[at.group]
        return None if masks is None else masks[0, at.group_column]

    def _name_by_cells(self) -> None:
        """Name actions that have no names by their cells at the start of an episode."""
        for agent, control in self.controls.items():
            if control.is_single and control.sizes and not control.names:
                with suppress(EnvError):  # said when somebody takes the agent over
                    board, start = board_of(self.viewed, agent), control.starts[0]
                    if board is not None:
                        control.names, control.places = names_of_cells(board, range(start, start + control.sizes[0]))

    def insight(self, agent: AgentID) -> Insight | None:
        """Ask the policy of an agent about its next action; None if it does not act next."""
        if self.is_over or agent not in self.to_act:
            return None
        decision = self._pairing.decision_of(agent)
        if decision is None:
            note = f"{self.players[agent]} is no policy: it shows nothing but its action."
            return Insight(agent, self._next_action(agent), note=note)
        actor, acted = decision
        row = actor.rows.agents.index(agent)
        insight = Insight(agent, acted.actions[row].tolist())
        try:
            _look_inside(insight, actor.policy.algorithm, acted.inputs.of_rows(np.arange(len(acted.acting)) == row))
        except Exception as error:  # an algorithm of the user's own need not answer
            insight.note = described(error)
        return insight


def _no_policies(env: MultiAgentVecEnv) -> PolicyBundle:
    """Return a bundle without policies, for agents of which none acts by a policy."""
    groups = {f"random-{number}": group for number, group in enumerate(env.groups)}
    return PolicyBundle(
        policies={},
        policy_of={agent: name for name, group in groups.items() for agent in group.agents},
        spaces={name: PolicySpaces(group.observation_space, group.action_space) for name, group in groups.items()},
        processing={},
    )


def _control(env: ViewedEnv, agent: AgentID, space: spaces.Space[Any]) -> Control:
    refused = Control(why_not=f"its actions are {space}")
    if isinstance(space, spaces.Box):
        fits = len(space.shape) == 1 and space.shape[0] <= _MOST_NUMBERS and space.is_bounded()
        return Control(low=space.low.tolist(), high=space.high.tolist()) if fits else refused
    sizes, shape = choices_of(space), space.shape or ()
    if sizes is None or sum(sizes) > _MOST_CHOICES or len(shape) > 1:
        return refused
    starts = np.broadcast_to(getattr(space, "start", 0), len(sizes)).tolist()
    control = Control(sizes=list(sizes), starts=starts, is_single=shape == ())
    if control.is_single:
        control.names = names_of_actions(env, agent, sizes[0])
    return control


def _look_inside(insight: Insight, algorithm: Any, inputs: PolicyInputs) -> None:
    """Add probabilities or Q values, and the value of the observation, as far as the algorithm has them."""
    from torch.distributions import Bernoulli, Categorical

    seen, states, starts = inputs.observations, inputs.states, inputs.starts
    if inference.has_distribution(algorithm):
        of_sb3: Any = inference.distribution(algorithm, seen, states, starts, inputs.masks)
        inner: Any = getattr(of_sb3, "distributions", None) or of_sb3.distribution
        for part in inner if isinstance(inner, list) else [inner]:
            if isinstance(part, Categorical):
                insight.probabilities.append(part.probs[0].tolist())
            elif isinstance(part, Bernoulli):
                insight.probabilities.extend([1 - one, one] for one in part.probs[0].tolist())
            else:
                insight.spreads = part.stddev[0].tolist()
    elif isinstance(algorithm.action_space, spaces.Discrete):
        insight.q_values = inference.q_values(algorithm, seen, None, states, starts)[0].tolist()
    if inference.critic_states(algorithm, 1):
        insight.note = "The state of the critic's own LSTM is not kept here: there is no value."
    elif hasattr(algorithm.policy, "predict_values"):
        insight.value = float(inference.values(algorithm, seen, states, starts)[0][0])

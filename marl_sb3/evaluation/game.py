"""Episodes of one env, one env step at a time, in which persons may act for some agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from msgspec import Struct

from marl_sb3.core.acting import PolicyBundle, PolicyInputs, PolicySpaces
from marl_sb3.core.envs import EnvFactory
from marl_sb3.core.mapping import Deterministic, zero_actions
from marl_sb3.core.metrics import Episode, EpisodeTracker
from marl_sb3.core.sb3 import inference
from marl_sb3.core.state import get_rng, preserve_rng, set_rng
from marl_sb3.core.vec_env import MultiAgentVecEnv, ZeroBased, make_vec_env, map_arrays, same
from marl_sb3.errors import ConfigError, EnvError, described
from marl_sb3.evaluation.board import board_of, names_of_actions, names_of_cells, result_of
from marl_sb3.evaluation.opponents import OpponentRows, RandomOpponent
from marl_sb3.evaluation.playing import PolicySide, require_same_agents, seed_generators
from marl_sb3.evaluation.viewed_env import ViewedEnv
from marl_sb3.types import AgentID, Array, BoolArray
from marl_sb3.wrappers import choices_of

_TURN = threading.Lock()  # The global random generators belong to one game at a time.
_MOST_CHOICES, _MOST_NUMBERS = 256, 64  # of an action that a person can choose


class Control(Struct):
    """How a person acts for an agent."""

    sizes: list[int] = []  # numbers of choices, of each part of the action
    starts: list[int] = []  # the first choice of each part
    names: list[str] = []  # of a single part's choices, if the env or its board tells them
    places: list[tuple[int, int]] = []  # of these choices on the board: row and column
    low: list[float] = []  # bounds of the numbers that an action consists of, where there are no choices
    high: list[float] = []
    is_single: bool = False  # the action is a number and no list
    why_not: str = ""  # why nobody can act for the agent


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


class Game:
    """An env and the policies that play it. Episodes of a seed are those of evaluations with the same seed and one env.

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
    episode: int  # its number, from 1
    step: int  # env steps since its start
    is_over: bool  # whether it has ended; `advance` begins the next one
    returns: dict[AgentID, float]  # sums of the rewards since its start
    latest_actions: dict[AgentID, Any]  # of the agents that acted in the latest step
    finished: Sequence[Episode] = ()  # the episode that has ended with the latest step, if one has

    def __init__(self, plan: GamePlan, view: Callable[[Mapping[str, Any]], ViewedEnv]) -> None:
        self.plan = plan
        self._asked: tuple[str | None] | None = None

        def make(**env_kwargs: Any) -> ViewedEnv:
            self.viewed = view(env_kwargs)
            return self.viewed

        self.env = make_vec_env(make, 1, plan.seed, **{**plan.settings, "n_workers": 0})
        self._places = {
            agent: (number, column)
            for number, group in enumerate(self.env.groups)
            for column, agent in enumerate(group.agents)
        }
        self._spaces: dict[AgentID, Any] = {
            agent: self.env.groups[number].action_space for agent, (number, _) in self._places.items()
        }
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

    def begin(self, seed: int, deterministic: Deterministic, checkpoint: str | None) -> None:
        """Begin the first episode of a seed; the arguments are those of `play_episodes` and `SavedRun.policies`.

        Raises:
            CheckpointError: the checkpoint cannot be loaded; nothing has changed.
            EnvError: the env broke the `ParallelEnv` contract.
        """
        load = self.plan.policies
        if self._asked != (checkpoint,):
            policies = _no_policies(self.env) if load is None else load(checkpoint, self.env)
            require_same_agents(policies, self.env)
            self.policies, self._asked = policies, (checkpoint,)
        at_random = {} if load is not None else {name: RandomOpponent(space) for name, space in self._spaces.items()}
        self._opponents = OpponentRows(self.env, at_random, seed)
        self._tracker = EpisodeTracker(self.env, self.policies.policy_of, 1, self.policies.custom_metrics)
        with _TURN, preserve_rng():
            seed_generators(seed)
            self.env.seed(seed)
            self.env.reset()
            self._name_by_cells()
            self._side = PolicySide(self.policies, self.env, self.env.agents if load else (), deterministic)
            self._choose()
            self._rng = get_rng()
        self._tracker.begin()
        self.episode = 0
        self._begin_episode()

    def _begin_episode(self) -> None:
        self.episode, self.step, self.is_over = self.episode + 1, 0, False
        self.returns, self.latest_actions = dict.fromkeys(self.env.agents, 0.0), {}
        self.forget_choices()

    def advance(self) -> None:
        """Take an env step, with the actions that persons have chosen and those of the policies; or begin an episode.

        Raises:
            EnvError: the env broke the `ParallelEnv` contract. `begin` starts anew.
        """
        self.finished = ()
        if self.is_over:
            self._begin_episode()
            return
        for agent, group, column in self.to_act:
            chosen = self.persons.get(agent)
            if chosen is not None and self._is_allowed(agent, chosen):
                self._actions[group][0, column] = chosen
        self.latest_actions = {agent: self._actions[group][0, column].tolist() for agent, group, column in self.to_act}
        with _TURN, preserve_rng():  # the draws are as if there were no other games
            set_rng(self._rng)
            step = self.env.step(self._actions)
            self._side.observe(step)
            self._choose()
            self._rng = get_rng()
        self.step += 1
        rewards = zip(self.env.agents, step.rewards[0].tolist(), strict=True)
        self.returns = {agent: self.returns[agent] + paid for agent, paid in rewards}
        self.is_over = bool(step.episode_done[0])
        self.finished = self._tracker.record(step)

    def _choose(self) -> None:
        """Let the policies choose the next actions."""
        self._actions = zero_actions(self.env)
        self._acted = self._side.act(self.env.latest, self._actions)
        self._opponents.put(self.env.latest, self._actions)

    @property
    def to_act(self) -> list[tuple[AgentID, int, int]]:
        """The agents that act next, with their places: the group, and the column in it."""
        flags = self.env.latest.to_act[0].tolist()
        return [(agent, *self._places[agent]) for agent, acts in zip(self.env.agents, flags, strict=True) if acts]

    # --- Persons -----------------------------------------------------------------------------------------------------

    def take(self, agent: AgentID) -> None:
        """Let a person act for an agent. Numbers are as near to 0 as they may be until the person changes them.

        Raises:
            ConfigError: nobody can act for the agent.
        """
        control, space = self.controls[agent], self._spaces[agent]
        if control.why_not:
            raise ConfigError(f"nobody can act for {agent}: {control.why_not}")
        zeros = np.zeros(space.shape, space.dtype)
        self.persons[agent] = None if control.sizes else np.clip(zeros, space.low, space.high)

    def act(self, agent: AgentID, action: Any) -> None:
        """Set the next action of an agent that a person acts for, as the env takes it.

        Raises:
            ConfigError: nobody has taken the agent over, or the action is not one of its actions, or not allowed now.
        """
        if agent not in self.persons:
            raise ConfigError(f"nobody has taken over {agent:.100}")
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
        return [] if self.is_over else [agent for agent, *_ in self.to_act if self.persons.get(agent, True) is None]

    def forget_choices(self) -> None:
        """Let persons choose anew; numbers stay as they are."""
        self.persons = {
            agent: None if self.controls[agent].sizes else numbers for agent, numbers in self.persons.items()
        }

    def result(self) -> str:
        """Say who has won the episode, if it is over and the returns tell."""
        return result_of(self.returns, self.persons, takes_turns=self.viewed.takes_turns) if self.is_over else ""

    def mask(self, agent: AgentID) -> BoolArray | None:
        """Return which choices an agent has in its next action; None if it has all."""
        group, column = self._places[agent]
        masks = self.env.latest.action_masks[group]
        return None if masks is None else masks[0, column]

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
        actor = next(actor for actor in self._side.actors if agent in actor.rows.agents)
        acted, row = self._acted[actor.rows.policy_id], actor.rows.agents.index(agent)
        if self.is_over or not acted.acting[row]:
            return None
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
        insight.q_values = inference.q_values(algorithm, seen, None)[0].tolist()
    if inference.critic_states(algorithm, 1):
        insight.note = "The state of the critic's own LSTM is not kept here: there is no value."
    elif hasattr(algorithm.policy, "predict_values"):
        insight.value = float(inference.values(algorithm, seen, states, starts)[0][0])

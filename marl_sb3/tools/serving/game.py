"""Episodes of a run's env, one env step at a time, in which a person may act for some agents."""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from typing import Any

import numpy as np
from gymnasium import spaces
from msgspec import Struct

from marl_sb3.core.acting import Acted, Actor, PolicyBundle, PolicyInputs
from marl_sb3.core.config import EXTERNAL
from marl_sb3.core.mapping import Deterministic, by_policy, rows_of_policy, zero_actions
from marl_sb3.core.sb3 import inference
from marl_sb3.core.state import get_rng, preserve_rng, set_rng
from marl_sb3.core.vec_env import MultiAgentVecEnv, ZeroBased, make_vec_env, map_arrays, same
from marl_sb3.errors import ConfigError, EnvError, described
from marl_sb3.evaluation import EvaluationPlan, require_same_agents, seed_generators
from marl_sb3.runs import SavedRun, env_of, env_settings
from marl_sb3.tools.serving.board import Board, board_of, names_of_actions, names_of_cells, result_of
from marl_sb3.tools.serving.shown_env import ShownEnv, make_shown_env
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


class LiveGame:
    """The env of a run and its policies. Episodes of a seed are those of `evaluate` with the same seed and one env.

    Args:
        run: the run.

    Attributes:
        env: a vec env of one env.
        shown: the env in it.
        controls: of each agent.
        persons: the agents that a person acts for, and their next actions; None: not chosen yet. Policies that see
            their `previous_action` see what they would have done.
        episode: number of the episode, from 1.
        step: env steps since its start.
        is_over: whether it has ended; `advance` begins the next one.
        returns: (A,) sums of the rewards since its start.
        starts_alike: whether all episodes begin with the same observations, so that the most likely actions may repeat
            a game.
        latest_actions: of the agents that acted in the latest step.

    Raises:
        ConfigError: the env cannot be made.
    """

    shown: ShownEnv
    policies: PolicyBundle
    episode: int
    step: int
    is_over: bool
    returns: Array
    latest_actions: dict[AgentID, Any]

    def __init__(self, run: SavedRun) -> None:
        self._run = run
        self._asked: tuple[str | None] | None = None
        if run.config.env == EXTERNAL:
            words = "clients step the env of this run, so that no episode can be played in it"
            raise ConfigError(f"{words}; accepted: another env with the same agents and spaces, as --env (env=)")
        self.plan = EvaluationPlan.of_run(run.config, 1)
        env = env_of(run.config)

        def make(**env_kwargs: Any) -> ShownEnv:
            self.shown = make_shown_env(env, env_kwargs)
            return self.shown

        settings = {**env_settings(run.config), "n_workers": 0}
        unseen = {name: value for name, value in settings.items() if name != "render_mode"}
        with closing(make_vec_env(env, 1, **unseen)) as another:
            self.starts_alike = _starts_alike(another)
        self.env = make_vec_env(make, 1, self.plan.seed, **settings)
        self._places = {
            agent: (number, column)
            for number, group in enumerate(self.env.groups)
            for column, agent in enumerate(group.agents)
        }
        self._spaces: dict[AgentID, Any] = {
            agent: self.env.groups[number].action_space for agent, (number, _) in self._places.items()
        }
        self.controls = {agent: self._control(agent) for agent in self.env.agents}
        self.persons: dict[AgentID, Array | None] = {}

    def _control(self, agent: AgentID) -> Control:
        control = _control(self._spaces[agent])
        if control.is_single and control.sizes:
            control.names = names_of_actions(self.shown, agent, control.sizes[0])
        return control

    def _name_by_cells(self) -> None:
        """Name actions that have no names by their cells at the start of an episode."""
        for agent, control in self.controls.items():
            if control.is_single and control.sizes and not control.names:
                with suppress(EnvError):  # said when somebody takes the agent over
                    board, start = self.board(agent), control.starts[0]
                    if board is not None:
                        control.names, control.places = names_of_cells(board, range(start, start + control.sizes[0]))

    def close(self) -> None:
        """Close the env."""
        self.env.close()

    # --- Playing -----------------------------------------------------------------------------------------------------

    def begin(self, seed: int, deterministic: Deterministic, checkpoint: str | None) -> None:
        """Begin the first episode of a seed; the arguments are those of `EvaluationPlan` and `SavedRun.policies`.

        Raises:
            CheckpointError: the checkpoint cannot be loaded; nothing has changed.
            EnvError: the env broke the `ParallelEnv` contract.
        """
        if self._asked != (checkpoint,):
            policies = self._run.policies(checkpoint, self.env)
            require_same_agents(policies, self.env)
            self.policies, self._asked = policies, (checkpoint,)
        likeliest = by_policy(deterministic, self.policies.policies)
        with _TURN, preserve_rng():
            seed_generators(seed)
            self.env.seed(seed)
            self.env.reset()
            self._name_by_cells()
            self._actors = [
                self.policies.make_actor(rows_of_policy(self.env, policy_id, self.policies.policy_of), is_likeliest)
                for policy_id, is_likeliest in likeliest.items()
                if policy_id in self.policies.policy_of.values()
            ]
            self._choose()
            self._rng = get_rng()
        self.episode = 0
        self._begin_episode()

    def _begin_episode(self) -> None:
        self.episode, self.step, self.is_over = self.episode + 1, 0, False
        self.returns, self.latest_actions = np.zeros(len(self.env.agents)), {}
        self.forget_choices()

    def advance(self) -> None:
        """Take an env step, with the actions that persons have chosen and those of the policies; or begin an episode.

        Raises:
            EnvError: the env broke the `ParallelEnv` contract. `begin` starts anew.
        """
        if self.is_over:
            self._begin_episode()
            return
        self._put_persons()
        acting = self.to_act
        self.latest_actions = {agent: self._actions[group][0, column].tolist() for agent, group, column in acting}
        with _TURN, preserve_rng():  # the draws are as if there were no other games
            set_rng(self._rng)
            step = self.env.step(self._actions)
            for actor in self._actors:
                actor.observe(step)
            self._choose()
            self._rng = get_rng()
        self.step += 1
        self.returns += step.rewards[0]
        self.is_over = bool(step.episode_done[0])

    def _choose(self) -> None:
        """Let the policies choose the next actions."""
        self._actions, self._acted = zero_actions(self.env), list[tuple[Actor, Acted]]()
        for actor in self._actors:
            acted = actor.act(self.env.latest)
            actor.rows.put_actions(acted.actions, self._actions)
            self._acted.append((actor, acted))

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

    def awaited(self) -> list[AgentID]:
        """Return the agents that act next, and whose persons have not chosen an action."""
        return [] if self.is_over else [agent for agent, *_ in self.to_act if self.persons.get(agent, True) is None]

    def forget_choices(self) -> None:
        """Let persons choose anew; numbers stay as they are."""
        self.persons = {agent: None if self.controls[agent].sizes else own for agent, own in self.persons.items()}

    def board(self, agent: AgentID) -> Board | None:
        """Return which cells of the picture mean an action of the agent now; see `board_of`."""
        return board_of(self.shown, agent)

    def result(self) -> str:
        """Say who has won the episode, if it is over and the returns tell."""
        returns = dict(zip(self.env.agents, self.returns.tolist(), strict=True))
        return result_of(returns, self.persons, takes_turns=self.shown.takes_turns) if self.is_over else ""

    def mask(self, agent: AgentID) -> BoolArray | None:
        """Return which choices an agent has in its next action; None if it has all."""
        group, column = self._places[agent]
        masks = self.env.latest.action_masks[group]
        return None if masks is None else masks[0, column]

    def _put_persons(self) -> None:
        for agent, group, column in self.to_act:
            action = self.persons.get(agent)
            if action is not None and self._is_allowed(agent, action):
                self._actions[group][0, column] = action

    def _is_allowed(self, agent: AgentID, action: Array) -> bool:
        mask, space = self.mask(agent), self._spaces[agent]
        if mask is None:
            return True
        starts = np.cumsum([0, *(choices_of(space) or ())[:-1]])
        return bool(mask[starts + np.atleast_1d(ZeroBased(space).from_env(action))].all())

    def insight(self, agent: AgentID) -> Insight | None:
        """Ask the policy of an agent about its next action; None if it does not act next."""
        actor, acted = next(pair for pair in self._acted if agent in pair[0].rows.agents)
        row = actor.rows.agents.index(agent)
        if self.is_over or not acted.acting[row]:
            return None
        found = Insight(agent, acted.actions[row].tolist())
        try:
            _look_inside(found, actor.policy.algorithm, acted.inputs.of_rows(np.arange(len(acted.acting)) == row))
        except Exception as error:  # an algorithm of the user's own need not answer
            found.note = described(error)
        return found


def _starts_alike(env: MultiAgentVecEnv) -> bool:
    starts = []
    with _TURN, preserve_rng():
        for seed in (0, 1):
            seed_generators(seed)
            env.seed(seed)
            env.reset()
            starts.append([map_arrays(np.copy, group) for group in env.latest.observations])
    return same(*starts)


def _control(space: spaces.Space[Any]) -> Control:
    refused = Control(why_not=f"its actions are {space}")
    if isinstance(space, spaces.Box):
        fits = len(space.shape) == 1 and space.shape[0] <= _MOST_NUMBERS and space.is_bounded()
        return Control(low=space.low.tolist(), high=space.high.tolist()) if fits else refused
    sizes, shape = choices_of(space), space.shape or ()
    if sizes is None or sum(sizes) > _MOST_CHOICES or len(shape) > 1:
        return refused
    starts = np.broadcast_to(getattr(space, "start", 0), len(sizes)).tolist()
    return Control(sizes=list(sizes), starts=starts, is_single=shape == ())


def _look_inside(found: Insight, algorithm: Any, inputs: PolicyInputs) -> None:
    """Add probabilities or Q values, and the value of the observation, as far as the algorithm has them."""
    from torch.distributions import Bernoulli, Categorical

    seen, states, starts = inputs.observations, inputs.states, inputs.starts
    if inference.has_distribution(algorithm):
        of_sb3: Any = inference.distribution(algorithm, seen, states, starts, inputs.masks)
        inner: Any = getattr(of_sb3, "distributions", None) or of_sb3.distribution
        for part in inner if isinstance(inner, list) else [inner]:
            if isinstance(part, Categorical):
                found.probabilities.append(part.probs[0].tolist())
            elif isinstance(part, Bernoulli):
                found.probabilities.extend([1 - one, one] for one in part.probs[0].tolist())
            else:
                found.spreads = part.stddev[0].tolist()
    elif isinstance(algorithm.action_space, spaces.Discrete):
        found.q_values = inference.q_values(algorithm, seen, None)[0].tolist()
    if inference.critic_states(algorithm, 1):
        found.note = "The state of the critic's own LSTM is not kept here: there is no value."
    elif hasattr(algorithm.policy, "predict_values"):
        found.value = float(inference.values(algorithm, seen, states, starts)[0][0])

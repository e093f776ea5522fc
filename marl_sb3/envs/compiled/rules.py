"""What a compiled env consists of: a record that holds its state, and functions of it in numba's subset of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from marl_sb3.errors import ConfigError
from marl_sb3.types import AgentID, Array, BoolArray, FloatArray


class Outcome(NamedTuple):
    """What a step of one env leads to: arrays that the rules write into. They hold zeros when `step` is called."""

    rewards: FloatArray  # (A,) float64
    terminated: BoolArray  # (A,) bool
    truncated: BoolArray  # (A,) bool
    infos: FloatArray  # (K,) float64: a number for each of `CompiledRules.infos`, in that order


@dataclass(frozen=True)
class CompiledRules:
    """The rules of an env of which all agents act in each step, and end together.

    The functions stand at the top level of a module; `step` and `observe` are in numba's subset of Python, and are
    compiled when the first batch is made, or loaded from the cache of an earlier process. They get one env at a time.
    Plain Python can run them, too, on a record of `numpy.recarray`, which is how to debug them.
    """

    agents: Sequence[AgentID]
    # of every agent; or agent -> its own: Boxes of float32, or Discrete and MultiDiscrete spaces of int64
    observation_space: spaces.Space[Any] | Mapping[AgentID, spaces.Space[Any]]
    action_space: spaces.Space[Any] | Mapping[AgentID, spaces.Space[Any]]  # the same
    # of one env, with names: numbers and arrays of numbers; NumPy's `bool` as `uint8`. Settings are numbers of it, too.
    state: np.dtype[Any]
    # `begin(state, rng)` begins an episode: it writes into the record of an env, with random numbers of a
    # `numpy.random.Generator`, in plain Python. What the record held before is still there, settings for example.
    # None: `start` or `run` begins them.
    begin: Callable[[Any, np.random.Generator], None] | None = None
    # `step(state, actions, rng, outcome)`: steps an env, and writes into its record and an `Outcome`. `actions` are
    # (A, *shape) int64 or float32; `rng` is for the functions of `marl_sb3.envs.compiled.random`. Where the shapes of
    # agents differ, actions are (A, n): n is the number of numbers of the widest; those of the others come first.
    step: Callable[[Any, Array, Array, Outcome], None] | None = None
    # `observe(state, observations)`: writes (A, *shape) observations; (A, n) where shapes differ, as for actions.
    observe: Callable[[Any, Array], None] | None = None
    # `allow(state, allowed)`: writes the actions that agents may choose next, (A, n) bool, laid out as for MaskablePPO;
    # agents with fewer of them have the first ones. None: they may choose all.
    allow: Callable[[Any, Array], None] | None = None
    # the agent and key of each info, with the type of its values, such as `("agent1", "collision", bool)`
    infos: Sequence[tuple[AgentID, str, type]] = ()
    # the least and greatest value of fields that are places in arrays: checkpoints with others are refused
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # fields that are settings: an episode does not change them, and checkpoints do not hold them; or field -> value
    settings: Sequence[str] | Mapping[str, Any] = ()
    # `start(state, rng)`, in the place of `begin`: begins an episode in compiled code; `rng` is as in `step`.
    start: Callable[[Any, Array], None] | None = None
    # In their place, `run(address)`: does what a table says, see `marl_sb3.compiling`, to records of any size; it is
    # compiled once, where `step` and `observe` are compiled for each state, action and observation.
    run: Callable[[int], None] | None = None
    # whether the field `timestep` counts the steps of an episode from 0, before `step` is called; all agents are
    # truncated when it has reached the field `limit`; 0: never
    counts: bool = False

    def __post_init__(self) -> None:
        for given in (self.observation_space, self.action_space):
            if not isinstance(given, spaces.Space) and list(given) != list(self.agents):
                words = f"compiled rules: spaces of {', '.join(given)}"
                raise ConfigError(f"{words}; accepted: one for each of {', '.join(self.agents)}, in this order")
            _require_spaces(list(given.values()) if not isinstance(given, spaces.Space) else [given])
        rules = [each for each in (self.step, self.observe, self.run) if each is not None]
        begins = [each for each in (self.begin, self.start) if each is not None]
        masks_fit = not (self.run or isinstance(self.spaces_of(self.agents[0])[1], spaces.Box))
        beside = "accepted: beside `step` and `observe`"
        wrong = {
            "accepted: `step` and `observe`, or `run`": len(rules) != (1 if self.run else 2),
            f"`start` is given; {beside}": self.start is not None and self.run is not None,
            "`begin` and `start` are given; accepted: one of them": len(begins) == 2,
            "nothing begins episodes; accepted: `begin`, `start` or `run`": not (begins or self.run),
            f"`allow` is given; {beside}, for Discrete and MultiDiscrete actions": bool(self.allow) and not masks_fit,
            f"`counts` is given; {beside}, with the fields `timestep` and `limit`": self.counts
            and (self.run is not None or not {"timestep", "limit"}.issubset(self.state.names or ())),
        }
        for words, is_so in wrong.items():
            if is_so:
                raise ConfigError(f"compiled rules: {words}")
        for function in (self.step, self.observe, self.run, self.allow, self.start):
            if function is not None and function.__closure__:
                words = f"compiled rules: {function.__qualname__} uses variables of a function around it"
                raise ConfigError(f"{words}; accepted: a function at the top level of a module")

    def spaces_of(self, agent: AgentID) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return the observation and the action space of an agent."""
        seen, done = self.observation_space, self.action_space
        return (
            seen if isinstance(seen, spaces.Space) else seen[agent],
            done if isinstance(done, spaces.Space) else done[agent],
        )

    @property
    def begins_compiled(self) -> bool:
        """Whether episodes begin in compiled code."""
        return self.start is not None or self.begin is None

    @property
    def saved(self) -> list[str]:
        """The fields that checkpoints hold."""
        return [name for name in self.state.names or () if name not in self.settings]

    @property
    def columns(self) -> dict[AgentID, dict[str, int]]:
        """Agent -> key of its infos -> their place."""
        found: dict[AgentID, dict[str, int]] = {agent: {} for agent in self.agents}
        for place, (agent, key, _) in enumerate(self.infos):
            found[agent][key] = place
        return found


def fields_of(values: Mapping[str, Any]) -> list[tuple[str, Any, tuple[int, ...]]]:
    """Return fields of a record that hold these numbers and arrays."""
    arrays = {name: np.asarray(value) for name, value in values.items()}
    return [(name, np.uint8 if a.dtype == np.bool_ else a.dtype, a.shape) for name, a in arrays.items()]


def _require_spaces(given: Sequence[spaces.Space[Any]]) -> None:
    """Refuse spaces whose numbers do not fit in one array of float32 or int64."""
    for space in given:
        if type(space) not in (spaces.Box, spaces.Discrete, spaces.MultiDiscrete):
            raise ConfigError(f"compiled rules: the space is {space}; accepted: a Box, Discrete or MultiDiscrete")
        wanted = np.float32 if isinstance(space, spaces.Box) else np.int64
        if space.dtype != wanted:
            words = f"compiled rules: the numbers of {space} are {space.dtype}"
            raise ConfigError(f"{words}; accepted: float32 in a Box, int64 in a Discrete or MultiDiscrete")
        if space.dtype != given[0].dtype:
            words = f"compiled rules: agents have {given[0]} and {space}"
            raise ConfigError(f"{words}; accepted: a Box for each of them, or a Discrete or MultiDiscrete for each")

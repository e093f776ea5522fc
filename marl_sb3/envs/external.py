"""An env that clients step: a game, a robot or a simulator that Python cannot call sends what its agents see.

Only its agents and spaces are known here. A client's report of a step is put into `report`. The next `reset` or `step`
returns it, so that it is checked and counted as for any other env.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marl_sb3.core.config.values import EXTERNAL, PositiveSeconds, require
from marl_sb3.envs.drawn import FixedSpaces
from marl_sb3.errors import ConfigError, refuse, shown
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.types import AgentID

Space = spaces.Space[Any]


# --- Spaces in a file ------------------------------------------------------------------------------------------------


def _box(where: str, low: Any = None, high: Any = None, shape: Any = None, dtype: str = "float32") -> Space:
    kind = np.dtype(dtype)
    if kind.kind not in "fiu":
        refuse(f"{where}: dtype", dtype, "floats or integers, such as float32", where)
    bounds = [_without_null(bound, infinite) for bound, infinite in ((low, -math.inf), (high, math.inf))]
    arrays = [np.asarray(bound, dtype=np.float64) for bound in bounds]
    size = np.broadcast_shapes(*(array.shape for array in arrays)) if shape is None else tuple(shape)
    lows, highs = (np.broadcast_to(array, size) for array in arrays)
    if not (lows < highs).all() or (kind.kind != "f" and not np.isfinite([lows, highs]).all()):
        accepted = "low below high" if kind.kind == "f" else f"numbers for {dtype}, low below high"
        words = f"{where}: low is {shown(low)} and high {shown(high)}; accepted: {accepted}"
        raise ConfigError(words, key=where)
    return spaces.Box(lows.astype(kind), highs.astype(kind), size, kind.type)


def _without_null(bound: Any, infinite: float) -> Any:
    """Replace null, which stands for no bound."""
    if isinstance(bound, list):
        return [_without_null(part, infinite) for part in bound]
    return infinite if bound is None else bound


def _parts(where: str, spaces: Any) -> list[tuple[Any, Space]]:
    named = spaces.items() if isinstance(spaces, Mapping) else enumerate(spaces)
    return [(name, space_of(part, f"{where}.{name}")) for name, part in named]


_KINDS: Mapping[str, Callable[..., Space]] = {
    "Box": _box,
    "Discrete": lambda where, n, start=0: spaces.Discrete(n, start=start),
    "MultiDiscrete": lambda where, nvec, start=None: spaces.MultiDiscrete(nvec, start=start),
    "MultiBinary": lambda where, n: spaces.MultiBinary(n),
    "Dict": lambda where, **arguments: spaces.Dict(_parts(where, **arguments)),
    "Tuple": lambda where, **arguments: spaces.Tuple([part for _, part in _parts(where, **arguments)]),
}


def space_of(plain: Any, where: str) -> Space:
    """Make a space from a mapping, as in a YAML file.

    Args:
        plain: `{kind: Box, shape: [4], low: -1, high: 1, dtype: float32}`, where a bound is a number, nested lists of
            numbers, or null for none; `{kind: Discrete, n: 5}`; `{kind: MultiDiscrete, nvec: [3, 2]}`;
            `{kind: MultiBinary, n: 4}`; `{kind: Dict, spaces: {NAME: SPACE}}`; `{kind: Tuple, spaces: [SPACE]}`.
        where: its key, for messages.

    Raises:
        ConfigError: it describes no space.
    """
    if not isinstance(plain, Mapping) or str(plain.get("kind")) not in _KINDS:  # a file may have a list there
        refuse(where, plain, f"a mapping with a kind of {', '.join(_KINDS)}")
    arguments = {str(name): value for name, value in plain.items() if name != "kind"}
    try:
        return _KINDS[str(plain["kind"])](where, **arguments)
    except ConfigError:
        raise
    except (TypeError, ValueError, AssertionError, AttributeError, OverflowError, MemoryError) as error:
        raise ConfigError(f"{where}: {shown(plain)} describes no space: {error}", key=where) from error


# --- The env ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StepReport:
    """What a client says of a step of its simulator, or of a start: then there are observations and infos alone."""

    # agent -> what it sees: agents that act next, and the last observations of agents that ended
    observations: Mapping[AgentID, Any] = field(default_factory=dict)
    # agent -> reward since the latest report; 0 for an agent without one
    rewards: Mapping[AgentID, float] = field(default_factory=dict)
    # agent -> whether it was terminated; False without an entry
    terminated: Mapping[AgentID, bool] = field(default_factory=dict)
    # agent -> whether it was truncated; False without an entry
    truncated: Mapping[AgentID, bool] = field(default_factory=dict)
    # agent -> info; `action_mask` in it is the mask of its next action
    infos: Mapping[AgentID, Mapping[str, Any]] = field(default_factory=dict)
    # agent -> the action that the client has chosen for it, instead of asking
    actions: Mapping[AgentID, Any] = field(default_factory=dict)
    # agent -> log-probability of that action under the client's copy of the policy
    log_probs: Mapping[AgentID, float] = field(default_factory=dict)
    number: int | None = None  # of the report in its episode, counted from 1; None: it is not checked

    def ended(self) -> set[AgentID]:
        """The agents that were terminated or truncated."""
        return {agent for flags in (self.terminated, self.truncated) for agent, flag in flags.items() if flag}

    @property
    def is_last(self) -> bool:
        """Whether no agent is left to act."""
        return not set(self.observations) - self.ended()


class ExternalEnv(FixedSpaces, ParallelEnv):  # type: ignore[misc]
    """The place of an env that clients step; see the module.

    Args:
        agents: agent id -> `{observation_space: SPACE, action_space: SPACE}`, with spaces as `space_of` takes them.
        episode_timeout_s: an episode is given up if its client is silent for so many seconds.

    Raises:
        ConfigError: a space is missing or wrong.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": EXTERNAL, "render_modes": []}
    steps_apart: ClassVar[bool] = True  # each env when its client says so

    def __init__(self, agents: Mapping[AgentID, Any], episode_timeout_s: float = 60.0) -> None:
        if not isinstance(agents, Mapping) or not agents:
            accepted = "a mapping of agent ids to {observation_space: ..., action_space: ...}"
            refuse("agents", agents, accepted, "env.agents")
        self.possible_agents = list(agents)
        given = {agent: _spaces_of(agent, entry) for agent, entry in agents.items()}
        self.observation_spaces, self.action_spaces = (
            {agent: both[which] for agent, both in given.items()} for which in (0, 1)
        )
        self.episode_timeout_s = require("env.episode_timeout_s", episode_timeout_s, PositiveSeconds)
        self.agents: list[AgentID] = []
        # what the next `reset` or `step` returns; None: no client has an episode here
        self.report: StepReport | None = None

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Return the first observations that the client has reported."""
        report = self._taken()
        self.agents = [agent for agent in self.possible_agents if agent in report.observations]
        return dict(report.observations), self._infos(report, self.agents)

    def step(self, actions: Mapping[AgentID, Any]) -> tuple[Any, ...]:
        """Return what the client has reported of its step."""
        report = self._taken()
        ended = report.ended()
        self.agents = [agent for agent in self.possible_agents if agent in report.observations and agent not in ended]
        told = list(dict.fromkeys([*actions, *report.rewards, *ended, *self.agents]))
        rewards = {agent: report.rewards.get(agent, 0.0) for agent in (*actions, *report.rewards)}
        flags = [
            {agent: bool(own.get(agent)) for agent in (*actions, *own)} for own in (report.terminated, report.truncated)
        ]
        return dict(report.observations), rewards, *flags, self._infos(report, told)

    def _taken(self) -> StepReport:
        report, self.report = self.report, None
        assert report is not None, "the vec env steps it when there is a report"
        return report

    def _infos(self, report: StepReport, agents: list[AgentID]) -> dict[AgentID, Any]:
        return {**{agent: {} for agent in agents}, **report.infos}


def _spaces_of(agent: AgentID, entry: Any) -> tuple[Space, Space]:
    names = ("observation_space", "action_space")
    where = f"env.agents.{agent}"
    if not isinstance(entry, Mapping) or set(entry) != set(names):
        refuse(where, entry, " and ".join(names))
    observation_space, action_space = (space_of(entry[name], f"{where}.{name}") for name in names)
    return observation_space, action_space


# --- The file after `--external` -------------------------------------------------------------------------------------


def read_external(path: str | Path) -> dict[str, Any]:
    """Read a YAML file of the keys `agents`, see `ExternalEnv`, and `settings`, those of a run.

    Returns:
        The settings by the id of the env, as `load_config` takes them.

    Raises:
        ConfigError: it cannot be read, or says something else.
    """
    content = read_yaml(Path(path))
    if not isinstance(content, Mapping) or "agents" not in content or set(content) - {"agents", "settings"}:
        accepted = "a mapping with the keys agents and settings, of which agents is needed"
        refuse(str(path), content, accepted, "external")
    settings = content.get("settings") or {}
    if not isinstance(settings, Mapping):
        refuse(f"{path}: settings", settings, "a mapping", "external")
    try:
        ExternalEnv(content["agents"])
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", key="external") from error
    more = settings.get("env_kwargs") or {}
    if not isinstance(more, Mapping):
        refuse(f"{path}: settings.env_kwargs", more, "a mapping", "external")
    return {EXTERNAL: {**settings, "env_kwargs": {**more, "agents": content["agents"]}}}

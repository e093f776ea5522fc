"""E envs whose rules are compiled, as a batched env; compiled rollouts call the same function to step them."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.compiling import (
    BEGIN,
    ENVS,
    OBSERVE,
    RNG_WORDS,
    STEP,
    c_function,
    carray,
    is_ours,
    pointer,
    strict_kernel,
)
from marl_sb3.core.envs.batched import BatchedEnv, BatchedStep
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.observations import agent_groups
from marl_sb3.envs.compiled.random import seed_generator, words_of
from marl_sb3.envs.compiled.rules import CompiledRules, Outcome
from marl_sb3.envs.drawn import DrawnEnv
from marl_sb3.errors import EnvError
from marl_sb3.fingerprints import UnknownValueError, fingerprint
from marl_sb3.types import AgentID, Array, BoolArray
from marl_sb3.wrappers.observations import choices_of

_MOST_SEEDS = 2**63  # that compiled code begins episodes with


def _limits(space: Any) -> tuple[Any, Any, str] | None:
    """Return the (*shape) least and greatest numbers of actions, and words for them; None: all are accepted."""
    if isinstance(space, spaces.Box):
        return None
    low = np.asarray(space.start)
    high = low + (space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    return low, high, f"with an integer in {low}..{high}" if isinstance(space, spaces.Discrete) else f"in {space}"


class CompiledBatch(BatchedEnv):
    """See `BatchedEnv`.

    Args:
        rules: of each env.
        template: the plain env, with the metadata and the render mode.
    """

    execution = "marl_sb3.extensions.fast.compiled_rollouts:IN_COMPILED_CODE"

    def __init__(self, num_envs: int, rules: CompiledRules, template: Any) -> None:
        self.num_envs = num_envs
        self.possible_agents = list(rules.agents)
        self.metadata, self.render_mode = template.metadata, template.render_mode
        self.groups = agent_groups({agent: rules.spaces_of(agent) for agent in rules.agents})
        # Of every agent, if all have the same.
        self.observation_space, self.action_space = self.groups[0].observation_space, self.groups[0].action_space
        # of the actions of each group
        self.limits = [_limits(group.action_space) for group in self.groups]
        self.template = template
        of_agents = (num_envs, len(rules.agents))
        self.rngs = np.zeros((num_envs, RNG_WORDS), np.uint64)
        observed, done = _arrays(rules)
        self.actions = np.zeros((num_envs, *done[0]), done[1])
        self.rewards = np.zeros(of_agents)
        self.terminated, self.truncated = np.zeros(of_agents, np.bool_), np.zeros(of_agents, np.bool_)
        self.infos = np.zeros((num_envs, len(rules.infos)))
        self.observed = np.zeros((num_envs, *observed[0]), observed[1])
        # of the latest episodes that compiled code has begun; -1: with the generator that was there
        self.seeds = np.zeros(num_envs, np.int64)
        self.allowed = np.ones((*of_agents, _most_choices(rules)), np.bool_)
        self.use(rules)

    @override
    def spaces_of(self, agent: AgentID) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        return self.rules.spaces_of(agent)

    def use(self, rules: CompiledRules) -> None:
        """Take rules with other sizes of the fields of the state; all states are zeros after that."""
        self.rules, self._columns = rules, rules.columns
        self._is_observed = False  # the latest step has observed them, and nothing has changed since
        self._kinds = {kind for *_, kind in rules.infos}
        self.states: Any = np.zeros(self.num_envs, rules.state).view(np.recarray)  # a record for each env
        for name, value in rules.settings.items() if isinstance(rules.settings, Mapping) else ():
            self.states[name] = value
        self._bind()

    def _bind(self) -> None:
        """Give the compiled function the addresses of the arrays."""
        vars(self).pop("address", None)
        self.table = np.zeros(len(ENVS.names or ()), np.int64)  # the fields of `ENVS`, for calls of the function
        arrays = [self.states, self.rngs, self.actions, self.rewards, self.terminated, self.truncated, self.infos]
        arrays += [self.observed, self.allowed, self.seeds]
        self.table[3:] = [array.ctypes.data for array in arrays]
        self._of_table: int = self.table.ctypes.data
        self._call: Any = None

    @cached_property
    def address(self) -> int:
        """The address of the function that steps and observes the envs; it is compiled when it is first needed."""
        return int(compiled_function(self.rules).address)

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for `copy` and `pickle`, without addresses: a copy has arrays of its own."""
        own = {name: value for name, value in vars(self).items() if name != "address"}
        return {**own, **dict.fromkeys(("table", "_of_table", "_call"))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set what `__getstate__` returned."""
        vars(self).update(state)
        self._bind()

    def run(self, what: int, first: int = 0, end: int | None = None) -> None:
        """Step and observe all envs, or observe some only, or begin their episodes."""
        table = self.table
        table[0], table[1], table[2] = what, first, self.num_envs if end is None else end
        if self._call is None:
            self._call = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.address)
        self._call(self._of_table)

    def begin(self, state: Any, rng: np.random.Generator) -> Array:
        """Begin an episode in a record, in plain Python; returns the words of its generator after that."""
        assert self.rules.begin is not None
        self.rules.begin(state, rng)
        return words_of(rng)

    @override
    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        self._is_observed = False
        for env_index, seed in zip(env_indices, seeds, strict=True):
            if self.rules.begins_compiled and seed < _MOST_SEEDS:
                self.seeds[env_index] = seed
                self.run(BEGIN, env_index, env_index + 1)
            else:
                self.begin_with(env_index, np.random.default_rng(seed))

    def begin_with(self, env_index: int, rng: np.random.Generator) -> None:
        """Begin an episode in an env that draws what this generator would draw."""
        self._is_observed = False
        if self.rules.begins_compiled:
            self.rngs[env_index], self.seeds[env_index] = words_of(rng), -1
            self.run(BEGIN, env_index, env_index + 1)
        else:
            self.rngs[env_index] = self.begin(self.states[env_index], rng)

    @override
    def step(self, actions: Any) -> BatchedStep:
        self._check(actions)
        if len(self.groups) == 1:
            self.actions[...] = actions
        else:
            in_rows = self.actions.reshape(*self.rewards.shape, -1)
            for group, own in zip(self.groups, actions, strict=True):
                numbers = own.reshape(*own.shape[:2], -1)
                in_rows[:, group.columns, : numbers.shape[2]] = numbers
        self.run(STEP)
        self._is_observed = True
        return BatchedStep(
            rewards=self.rewards,
            terminated=self.terminated.copy(),
            truncated=self.truncated.copy(),
            infos=self.infos_of(self.infos),
        )

    def infos_of(self, infos: Array) -> dict[Any, dict[str, Array]]:
        """Return (E, K) infos as agent -> key -> (E,) values."""
        by_kind: dict[type, Array] = {kind: infos.T.astype(kind, order="C") for kind in self._kinds}
        return {
            agent: {key: by_kind[self.rules.infos[place][2]][place] for key, place in own.items()}
            for agent, own in self._columns.items()
        }

    def _check(self, actions: Any) -> None:
        """Refuse numbers out of their range, such as of a Discrete, which the rules would use as places."""
        of_groups = actions if len(self.groups) > 1 else (actions,)
        for group, own, limits in zip(self.groups, of_groups, self.limits, strict=True):
            if limits is None:
                continue
            low, high, words = limits
            accepted = (own >= low) & (own <= high)  # not a NaN
            if np.count_nonzero(accepted) < accepted.size:  # a quarter of the time of `all`
                env_index, column = np.argwhere(~accepted)[0][:2].tolist()
                counted = [self.states[name] for name in ("timestep", "timesteps") if name in self.states.dtype.names]
                where = "".join([f"env {env_index}", *(f", step {steps[env_index]}" for steps in counted)])
                received = own[env_index, column].tolist()
                raise EnvError(f"{where}: {group.agents[column]} must act {words}; received {received}")

    @override
    def observations(self) -> Any:
        if not self._is_observed:
            self.run(OBSERVE)
        self._is_observed = False  # once: whoever has seen them may change the states
        of_groups = self.of_groups(self.observed)
        return of_groups if len(of_groups) > 1 else of_groups[0]

    def of_groups(self, observed: Array) -> tuple[Array, ...]:
        """Return the observations of all agents, an array like `observed`, as a new one for each group."""
        if len(self.groups) == 1:
            return (observed.copy(),)
        in_rows, found = observed.reshape(*self.rewards.shape, -1), []
        for group in self.groups:
            shape = tuple(group.observation_space.shape or ())
            own = in_rows[:, group.columns, : math.prod(shape)]
            found.append(own.reshape(*own.shape[:2], *shape))
        return tuple(found)

    @override
    def action_masks(self) -> Any:
        if self.rules.allow is None:
            return None
        self.run(OBSERVE)
        of_groups = self.masks_of_groups(self.allowed)
        return of_groups if len(of_groups) > 1 else of_groups[0]

    def masks_of_groups(self, allowed: BoolArray) -> tuple[BoolArray, ...]:
        """Return the masks of all agents, an array like `allowed`, as a new one for each group."""
        return tuple(
            np.array(allowed[:, group.columns, : sum(choices_of(group.action_space) or ())]) for group in self.groups
        )

    @override
    def render(self, env_index: int) -> Any:
        if not isinstance(self.template, DrawnEnv):
            raise NotImplementedError(f"{type(self.template).__name__} in a batch does not render")
        return self.template.render_state(self.states[env_index])

    def close(self) -> None:
        """Close the template."""
        self.template.close()

    def saved(self) -> dict[str, Array]:
        """Return the arrays of the state, as checkpoints hold them: views."""
        return {name: np.asarray(self.states[name]) for name in self.rules.saved}

    @override
    def get_state(self) -> State:
        return {**{name: array.copy() for name, array in self.saved().items()}, "rngs": self.rngs}

    @override
    def set_state(self, state: StateReader) -> None:
        self.put(state, state.array("rngs", np.uint64, self.rngs.shape))

    def put(self, state: StateReader, rngs: Array) -> None:
        """Restore a state, with these words of the generators."""
        bounds, own = self.rules.bounds, self.saved()
        read = {name: state.array(name, a.dtype, a.shape, *bounds.get(name, (None, None))) for name, a in own.items()}
        self._is_observed = False
        for name, array in own.items():
            array[...] = read[name]
        self.rngs[...] = rngs


def _arrays(rules: CompiledRules) -> Any:
    """Return shape and type of the observations of an env, and of its actions; as wide as the widest of an agent."""
    found = []
    for of_agents in zip(*map(rules.spaces_of, rules.agents), strict=True):
        shapes = {tuple(space.shape or ()) for space in of_agents}
        shape = shapes.pop() if len(shapes) == 1 else (max(map(math.prod, shapes)),)
        found.append(((len(of_agents), *shape), np.float32 if isinstance(of_agents[0], spaces.Box) else np.int64))
    return found


def _most_choices(rules: CompiledRules) -> int:
    """Return the size of the largest mask of an agent; 0: there are no masks."""
    return max(sum(choices_of(rules.spaces_of(agent)[1]) or ()) for agent in rules.agents) if rules.allow else 0


# --- Compiling -------------------------------------------------------------------------------------------------------


@strict_kernel
def run_envs(
    address: int, sizes: Any, act_in: Any, observe_in: Any, view: Any, step: Any, observe: Any, allow: Any, start: Any
) -> None:
    """Step and observe envs, or begin their episodes, as the record at an address says: see `marl_sb3.compiling`.

    Args:
        address: of the record, see `ENVS`.
        sizes: bytes of a record, number of agents, of infos and of choices in masks; shapes of an env's actions and
            observations.
        act_in: the type of actions.
        observe_in: the type of observations.
        view: `view(address)` returns what the functions get as the state of the env whose record is there.
        step: see `CompiledRules`, as the others; `allow` and `start` may be None.
    """
    of_record, agents, infos, choices, of_actions, of_observations = sizes
    table = carray(pointer(address), (1,), ENVS)[0]
    n = table.end
    rngs = carray(pointer(table.rngs_at), (n, RNG_WORDS), np.uint64)
    actions = carray(pointer(table.actions_at), (n, *of_actions), act_in)
    rewards = carray(pointer(table.rewards_at), (n, agents), np.float64)
    terminated = carray(pointer(table.terminated_at), (n, agents), np.bool_)
    truncated = carray(pointer(table.truncated_at), (n, agents), np.bool_)
    of_infos = carray(pointer(table.infos_at), (n, infos), np.float64)
    observations = carray(pointer(table.observations_at), (n, *of_observations), observe_in)
    allowed = carray(pointer(table.allowed_at), (n, agents, choices), np.bool_)
    seeds = carray(pointer(table.seeds_at), (n,), np.int64)
    for i in range(table.first, n):
        state = view(table.states_at + i * of_record)
        if table.what == STEP:
            for agent in range(agents):
                rewards[i, agent] = 0.0
                terminated[i, agent] = truncated[i, agent] = False
            for k in range(infos):
                of_infos[i, k] = 0.0
            step(state, actions[i], rngs[i], Outcome(rewards[i], terminated[i], truncated[i], of_infos[i]))
        elif table.what == BEGIN:  # noqa: SIM102 - only a test of nothing else leaves a call of None out
            if start is not None:
                if seeds[i] >= 0:
                    seed_generator(seeds[i], rngs[i])
                start(state, rngs[i])
        observe(state, observations[i])
        if allow is not None:
            allow(state, allowed[i])


@cache  # also by `codes`: the values of globals that the functions use
def _compiled(functions: tuple[Any, ...], constants: tuple[Any, ...], codes: tuple[str, ...]) -> Any:
    record, counts, sizes, act_in, observe_in = constants
    own: list[Any] = [None if each is None else strict_kernel(each) for each in functions]
    step, observe, allow, start = own
    own_step, own_start = step, start

    @strict_kernel
    def view(address: int) -> Any:
        return carray(pointer(address), (1,), record)[0]

    @strict_kernel
    def counted_step(state: Any, actions: Any, rng: Any, outcome: Any) -> None:
        state.timestep += 1
        step(state, actions, rng, outcome)
        is_over = 0 < state.limit <= state.timestep
        for agent in range(len(outcome.truncated)):
            outcome.truncated[agent] = is_over

    @strict_kernel
    def counted_start(state: Any, rng: Any) -> None:
        state.timestep = 0
        start(state, rng)

    if counts:
        own_step, own_start = counted_step, counted_start

    def run(address: int) -> None:
        run_envs(address, sizes, act_in, observe_in, view, own_step, observe, allow, own_start)

    # Of this folder, of which it calls functions.
    return c_function(run, (*filter(None, functions), words_of), repr(constants))


def compiled_function(rules: CompiledRules) -> Any:
    """Return the C function `void(address of a table)` that steps and observes envs with these rules.

    Its `address` is where compiled code calls it. It is compiled once for each user, as kernels are.
    """
    if rules.run is not None:
        return c_function(rules.run, (words_of,), what="the rules of the envs: about 6 s of one core")
    (of_observations, observe_in), (of_actions, act_in) = _arrays(rules)
    numbers = rules.state.itemsize, len(rules.agents), len(rules.infos), _most_choices(rules)
    constants = rules.state, rules.counts, (*numbers, of_actions, of_observations), act_in, observe_in
    functions = rules.step, rules.observe, rules.allow, rules.start
    return _compiled(functions, constants, tuple(map(_identity, functions)))


def _identity(function: Any) -> str:
    """Return what tells a function from itself with other values of its globals; "": nothing does."""
    try:
        return "" if function is None or is_ours(function) else fingerprint(function)
    except UnknownValueError:
        return ""

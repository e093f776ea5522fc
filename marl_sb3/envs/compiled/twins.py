"""Batches that step in the place of other envs: compared with them, and used only where both do the same.

`require_same` compares a batch with the envs that it stands for. A `Twin` makes the batch of envs that others have
written, once their code is proved to be the known one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from typing_extensions import override

from marl_sb3.core.config.algorithms import place_of
from marl_sb3.core.envs.converted import AGENT, MASK, SingleAgentEnv
from marl_sb3.core.envs.registry import EnvFactory, make_env
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.core.vec_env.observations import taken
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.originals import KNOWN, why_not_original
from marl_sb3.envs.compiled.random import words_of
from marl_sb3.envs.compiled.rules import CompiledRules, fields_of
from marl_sb3.errors import EnvError
from marl_sb3.types import AgentID, Array
from marl_sb3.wrappers.observations import choices_of

# --- Comparing -------------------------------------------------------------------------------------------------------

_OF_AGENTS = ("rewards", "terminated", "truncated", "acted", "to_act", "in_play")  # (E, A) each
_OF_ENVS = ("stepped", "episode_done")  # (E,) each
_ABSENT: Any = object()
_SHOWN = 200  # characters of a value in a message


def require_same(
    env: Any, steps: int = 2000, seed: int = 0, n_envs: int = 3, tolerance: float = 0.0, **env_kwargs: Any
) -> None:
    """Require that the batched version of an env does what the env does, with random actions.

    Args:
        env: as `make_vec_env` takes it.
        steps: of each env.
        seed: of the envs and the actions.
        n_envs: number of envs.
        tolerance: by which observations, rewards and infos may differ, relative to 1 and the value; 0: not at all.
        env_kwargs: arguments of the env.

    Raises:
        EnvError: they differ; the message says in which step, env and agent, and what.
        ConfigError: there is no batched version of the env with these arguments.
    """
    plain, batched = (
        make_vec_env(env, n_envs, seed, vectorizer, env_kwargs=env_kwargs) for vectorizer in ("sync", "batched")
    )
    try:
        found = first_difference(plain, batched, steps, seed, tolerance)
    finally:
        plain.close()
        batched.close()
    if found is not None:
        raise EnvError(f"the batched env differs from the plain one: {found}")


def first_difference(
    plain: MultiAgentVecEnv, batched: MultiAgentVecEnv, steps: int, seed: int = 0, tolerance: float = 0.0
) -> str | None:
    """Step two vec envs side by side, and describe where they differ first; None: nowhere. See `require_same`."""
    for name in ("agents", "groups", "metadata", "render_mode"):
        of_both = getattr(plain, name), getattr(batched, name)
        if of_both[0] != of_both[1]:
            return f"{name}: {of_both[0]} and {of_both[1]}"
    spaces = [deepcopy(group.action_space) for group in plain.groups]
    for space in spaces:
        space.seed(seed)
    rng = np.random.default_rng(seed)
    pair = plain.reset(), batched.reset()
    for number in range(steps + 1):
        known, received = (dict(_values(step, env)) for step, env in zip(pair, (plain, batched), strict=True))
        for place in {**known, **received}:
            a, b = known.get(place, _ABSENT), received.get(place, _ABSENT)
            if not _equal(a, b, tolerance):
                env_index, agent, what = place
                where = f"env {env_index}" if agent is None else f"env {env_index}, agent {agent!r}"
                return f"after {number} steps of each env, {where}, {what}: {_shown(a)} and {_shown(b)}"
        if number < steps:
            masks = pair[0].action_masks
            actions = [
                _random_actions(space, mask, (plain.num_envs, len(group.agents)), rng)
                for space, mask, group in zip(spaces, masks, plain.groups, strict=True)
            ]
            pair = plain.step(actions), batched.step(actions)
    return None


def _random_actions(space: Any, mask: Array | None, shape: tuple[int, int], rng: np.random.Generator) -> Array:
    """Draw actions, (E, A, ...), that the mask allows."""
    actions = np.array([[space.sample() for _ in range(shape[1])] for _ in range(shape[0])])
    if mask is None:
        return actions
    ends = np.cumsum(choices_of(space) or ())[:-1]
    drawn = [(part * rng.random(part.shape)).argmax(axis=2) for part in np.split(mask, ends, axis=2)]
    return np.stack(drawn, axis=2).reshape(actions.shape) + getattr(space, "start", 0)


def _values(step: VecStep, env: MultiAgentVecEnv) -> Iterator[tuple[tuple[int, Any, str], Any]]:
    """Yield everything in a step as (env index, agent, what) and its value."""
    for index, seed in enumerate(env.episode_seeds(range(env.num_envs))):
        yield (index, None, "seed of the episode"), seed
        for name in _OF_ENVS:
            yield (index, None, name), getattr(step, name)[index]
        infos, of_reset = step.infos[index], step.reset_infos.get(index, {})
        for group, seen, mask in zip(env.groups, step.observations, step.action_masks, strict=True):
            for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True)):
                for name in _OF_AGENTS:
                    yield (index, agent, name), getattr(step, name)[index, column]
                yield (index, agent, "observation"), taken(seen, (index, place))
                yield (index, agent, "action mask"), _ABSENT if mask is None else mask[index, place]
                final = step.final_observations.get((index, column), _ABSENT)
                yield (index, agent, "final observation"), final
                for key, value in infos.get(agent, {}).items():
                    # Masks are compared above; of the next action of an agent that is truncated they are infos.
                    if key != MASK or step.truncated[index, column]:
                        yield (index, agent, f"info {key!r}"), value
                for key, value in of_reset.get(agent, {}).items():
                    if key != MASK:
                        yield (index, agent, f"info {key!r} of the reset"), value


def _equal(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key], tolerance) for key in a)
    if a is b or a is _ABSENT or b is _ABSENT:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or np.array_equal(a, b):
        return bool(a.shape == b.shape)
    both_floats = (a.dtype.kind, b.dtype.kind) == ("f", "f")
    return both_floats and bool(np.isclose(a, b, tolerance, tolerance, equal_nan=True).all())


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else str(value.tolist() if hasattr(value, "tolist") else value)[:_SHOWN]


# --- Twins -----------------------------------------------------------------------------------------------------------

WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)  # those that `gymnasium.make` puts around an env
SAMPLE_STEPS = 50  # of each env that is compared with its twin before that is used
TOLERANCE = 1e-6  # of a sample: sines may differ in the last bit on other machines

_sampled: dict[str, str | None] = {}  # what the samples have found


def counted(fields: Sequence[Any], settings: Mapping[str, Any], **others: Any) -> CompiledRules:
    """Return rules of which the steps of an episode are counted, with other fields of the record and others' values.

    Args:
        fields: those that an episode changes.
        settings: name -> value of those that it does not change, or that are not read in the next step.
        others: see `CompiledRules`.
    """
    values = {name: np.asarray(value) for name, value in {"limit": 0, **settings}.items()}
    state = np.dtype([("timestep", np.int64), *fields, *fields_of(values)], align=True)
    return CompiledRules(state=state, settings=values, counts=True, **others)


class TwinBatch(CompiledBatch):
    """E envs in the place of others.

    Args:
        twin: makes them.
        template: one of the originals, in its wrappers.
    """

    def __init__(self, num_envs: int, twin: Any, template: Any) -> None:
        self.original = (template.env if type(template) is SingleAgentEnv else template).unwrapped
        super().__init__(num_envs, twin.rules(self.original), template)
        self._is_made = True

    @override
    def reset(
        self,
        env_indices: Sequence[int],
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        super().reset(env_indices, seeds)
        for env_index, seed, given in zip(env_indices, seeds, options or (), strict=options is not None):
            self.begin_with_options(env_index, seed, given)

    def begin_with_options(self, env_index: int, seed: int, options: Mapping[str, Any]) -> None:
        """Begin an episode with options; here, the original does nothing with them."""

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse attributes of the original, which would change nothing here."""
        if "_is_made" in vars(self) and name not in vars(self):
            raise AttributeError(f"compiled envs have no attribute {name!r} that can be set; use vectorizer='sync'")
        super().__setattr__(name, value)


class GymnasiumBatch(TwinBatch):
    """E envs of a Gymnasium class; the original begins the episodes with options."""

    def __init__(self, num_envs: int, twin: GymnasiumTwin, template: Any) -> None:
        self._state, self._reset_info = twin.state, twin.reset_info
        super().__init__(num_envs, twin, template)
        limits = (each._max_episode_steps for each in _wrappers(template.env) if isinstance(each, TimeLimit))
        self.states.limit = next(limits, 0)

    @override
    def begin_with_options(self, env_index: int, seed: int, options: Mapping[str, Any]) -> None:
        self.original.reset(seed=seed, options=dict(options) or None)
        self.states["timestep"][env_index] = 0
        for name, value_in in self._state.items():
            self.states[name][env_index] = value_in(self.original)
        self.rngs[env_index] = words_of(self.original.np_random)

    def reset_infos(self, env_indices: Sequence[int]) -> Mapping[int, Mapping[AgentID, Mapping[str, Any]]]:
        """Return the infos of resets: env index -> agent -> info."""
        masks = self.action_masks()
        of_envs = [{} if masks is None else {MASK: masks[index, 0].astype(np.int8)} for index in env_indices]
        own = zip(env_indices, of_envs, strict=True)
        return {index: {AGENT: {**self._reset_info, **info}} for index, info in own}


@dataclass(frozen=True)
class Twin(ABC):
    """Makes compiled envs in the place of those of one class; see `marl_sb3.envs.TWINS`.

    The twin is used only for an env that `why_not_original` knows, in wrappers that are known. What NumPy makes of its
    code on this machine is sampled besides, for `SAMPLE_STEPS` steps.
    """

    original: str  # the class of the originals, `module:name`
    rules: Callable[[Any], CompiledRules]  # returns those of an original, with its settings
    beneath: ClassVar[tuple[str, ...]]  # beginnings of the names of modules whose code all originals run
    batch: ClassVar[type[TwinBatch]]

    def __call__(self, factory: EnvFactory) -> Mapping[str, Callable[..., Any]]:
        """Return what makes the batch in the place of a factory's envs, and says why it may not, by name."""
        return {"make_batched": partial(self.make, factory), "why_not_batched": partial(self.why_not, factory)}

    @abstractmethod
    def inner(self, env: Any, env_kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]] | str:
        """Return the original in an env that was made with these arguments, and those that its class gets.

        Or say what is around it that the twin cannot stand for.
        """

    def make(self, factory: EnvFactory, num_envs: int, **env_kwargs: Any) -> CompiledBatch:
        """Return the envs as a batch.

        Raises:
            TypeError, ValueError, AttributeError: the twin does not take these settings.
        """
        return self.batch(num_envs, self, make_env(factory, 0, env_kwargs))

    def why_not(self, factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> str | None:
        """Say why the twin is not used; None if it is used."""
        env: Any = make_env(factory, 0, env_kwargs)
        try:
            why_not = self._refusal(env, env_kwargs)
            key = f"{type(env.unwrapped)} {getattr(getattr(env, 'env', None), 'spec', None)} {dict(env_kwargs)}"
            if why_not is None and key not in _sampled:
                _sampled[key] = self._sample(factory, env_kwargs)
            return why_not or _sampled[key]
        finally:
            env.close()

    def _refusal(self, env: Any, env_kwargs: Mapping[str, Any]) -> str | None:
        found = self.inner(env, env_kwargs)
        if isinstance(found, str):
            return found
        original, arguments = found
        if (place := place_of(type(original))) != self.original:
            return f"the env is a {place}, and not {self.original}"
        module, _, name = place.partition(":")
        beneath = (*self.beneath, f"{module.rpartition('.')[0]}.utils")

        def anew(made: Any) -> Any:
            expected = getattr(made, name)(**arguments)
            if hasattr(original, "spec"):
                expected.spec = original.spec
            return expected

        return why_not_original([*(each for each in KNOWN if each.startswith(beneath)), module], original, anew)

    def _sample(self, factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> str | None:
        original = SyncVecEnv(lambda index: make_env(factory, index, env_kwargs), 1, 0)
        try:
            twin = BatchedVecEnv(self.make(factory, 1, **env_kwargs), 0)
        except (TypeError, ValueError, AttributeError) as error:  # settings of another type, or another version
            return f"the compiled version does not take its settings: {error}"
        found = first_difference(original, twin, SAMPLE_STEPS, seed=0, tolerance=TOLERANCE)
        return None if found is None else f"the compiled version differs: {found}"


def _wrappers(env: Any) -> Iterator[Any]:
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env


@dataclass(frozen=True)
class GymnasiumTwin(Twin):
    """Steps the envs of one class of Gymnasium as compiled ones."""

    state: Mapping[str, Callable[[Any], Any]]  # field of the record -> returns its value in an original
    reset_info: Mapping[str, Any] = field(default_factory=dict)  # of each reset, besides masks
    beneath = ("gymnasium.core", "gymnasium.utils.", "gymnasium.wrappers.")
    batch = GymnasiumBatch

    @override
    def inner(self, env: Any, env_kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]] | str:
        if type(env) is not SingleAgentEnv:
            return f"the env is a {type(env).__name__}"
        if env.render_mode is not None:
            return f"render_mode is {env.render_mode!r}"
        wrappers = [type(each) for each in _wrappers(env.env)]
        if foreign := [each.__name__ for each in wrappers if each not in WRAPPERS or wrappers.count(TimeLimit) > 1]:
            return f"the env is wrapped in {foreign[0]}"
        if any(callable(getattr(type(each), name, None)) for each in _wrappers(env.env) for name in vars(each)):
            return "a method of a wrapper is replaced"
        original: Any = env.env.unwrapped
        return original, original.spec.kwargs

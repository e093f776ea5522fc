"""Compiled twins of known envs: each replaces an env only if its code is proved to be the known one; see `Twin`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit
from typing_extensions import override

from marl_sb3.core.config.algorithms import place_of
from marl_sb3.core.envs.converted import SingleAgentEnv
from marl_sb3.core.envs.registry import EnvFactory, make_env
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.envs.compiled.batch import CompiledBatch
from marl_sb3.envs.compiled.comparing import first_difference
from marl_sb3.envs.compiled.originals import KNOWN, why_not_original
from marl_sb3.envs.compiled.random import words_of
from marl_sb3.envs.compiled.rules import CompiledRules

WRAPPERS = (TimeLimit, OrderEnforcing, PassiveEnvChecker)  # those that `gymnasium.make` puts around an env
# The modules of these, and of what all envs of Gymnasium call.
_OF_GYMNASIUM = tuple(
    f"gymnasium.{name}" for name in ("core", "utils.seeding", "utils.passive_env_checker", "wrappers.common")
)
SAMPLE_STEPS = 50  # of each env that is compared with its twin before that is used
TOLERANCE = 1e-6  # of a sample: sines may differ in the last bit on other machines

_sampled: dict[str, str | None] = {}  # what the samples have found

# Of each twin's state: the steps of the episode, and the number at which it is truncated; 0: never.
LIMIT = [("timestep", "i8"), ("limit", "i8")]


@dataclass(frozen=True)
class Twin(ABC):
    """Makes compiled envs in the place of those of one class; see `marl_sb3.envs.TWINS`.

    The twin is used only for an env that `why_not_original` knows, in wrappers that are known. What NumPy makes of its
    code on this machine is sampled besides, for `SAMPLE_STEPS` steps.
    """

    original: str  # the class of the originals, `module:name`
    rules: Callable[[Any], CompiledRules]  # returns the rules of an original
    settings: Callable[[Any], Mapping[str, Any]]  # returns those of an original: field of the state -> its value

    def __call__(self, factory: EnvFactory) -> Mapping[str, Callable[..., Any]]:
        """Return what makes the batch in the place of a factory's envs, and says why it may not, by name."""
        return {"make_batched": partial(self.make, factory), "why_not_batched": partial(self.why_not, factory)}

    @abstractmethod
    def refusal(self, env: Any, env_kwargs: Mapping[str, Any]) -> str | None:
        """Say why the twin cannot stand for an env, which was made with these arguments; None: it may."""

    @abstractmethod
    def make(self, factory: EnvFactory, num_envs: int, **env_kwargs: Any) -> CompiledBatch:
        """Return the envs as a batch.

        Raises:
            TypeError, ValueError, AttributeError: the twin does not take these settings.
        """

    def why_not(self, factory: EnvFactory, env_kwargs: Mapping[str, Any]) -> str | None:
        """Say why the twin is not used; None if it is used."""
        env: Any = make_env(factory, 0, env_kwargs)
        try:
            why_not = self.refusal(env, env_kwargs)
            key = f"{type(env.unwrapped)} {getattr(getattr(env, 'env', None), 'spec', None)} {dict(env_kwargs)}"
            if why_not is None and key not in _sampled:
                _sampled[key] = self._sample(factory, env_kwargs)
            return why_not or _sampled[key]
        finally:
            env.close()

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


class TwinBatch(CompiledBatch):
    """E envs in the place of others.

    Args:
        twin: makes them.
        template: one of the originals, in its wrappers.
        original: the same without them.
    """

    def __init__(self, num_envs: int, twin: Twin, template: Any, original: Any) -> None:
        super().__init__(num_envs, twin.rules(original), template)
        for field, value in twin.settings(original).items():
            self.states[field] = value


@dataclass(frozen=True)
class GymnasiumTwin(Twin):
    """Steps the envs of one class of Gymnasium as compiled ones."""

    copy: Callable[[Any, Any], None]  # writes the state of an original into a record
    batch: type[GymnasiumBatch] | None = None  # None: `GymnasiumBatch`

    @override
    def refusal(self, env: Any, env_kwargs: Mapping[str, Any]) -> str | None:
        if type(env) is not SingleAgentEnv:
            return f"the env is a {type(env).__name__}"
        if env.render_mode is not None:
            return f"render_mode is {env.render_mode!r}"
        wrappers = [type(each) for each in _wrappers(env.env)]
        if foreign := [each.__name__ for each in wrappers if each not in WRAPPERS or wrappers.count(TimeLimit) > 1]:
            return f"the env is wrapped in {foreign[0]}"
        if any(callable(getattr(type(each), name, None)) for each in _wrappers(env.env) for name in vars(each)):
            return "a method of a wrapper is replaced"
        inner: Any = env.env.unwrapped
        found = place_of(type(inner))
        if found != self.original:
            return f"the env is a {found}, and not {self.original}"
        module, _, name = found.partition(":")
        helpers = f"{module.rpartition('.')[0]}.utils"
        modules = [*_OF_GYMNASIUM, *([helpers] if helpers in KNOWN else []), module]

        def anew(made: Any) -> Any:
            expected = getattr(made, name)(**inner.spec.kwargs)
            expected.spec = inner.spec
            return expected

        return why_not_original(modules, inner, anew)

    @override
    def make(self, factory: EnvFactory, num_envs: int, **env_kwargs: Any) -> GymnasiumBatch:
        return (self.batch or GymnasiumBatch)(num_envs, self, make_env(factory, 0, env_kwargs))


class GymnasiumBatch(TwinBatch):
    """E envs of a Gymnasium class; the original begins the episodes with options."""

    def __init__(self, num_envs: int, twin: GymnasiumTwin, template: Any) -> None:
        self.original, self.copy_original = template.env.unwrapped, twin.copy
        super().__init__(num_envs, twin, template, self.original)
        self.states.limit = next(
            (each._max_episode_steps for each in _wrappers(template.env) if isinstance(each, TimeLimit)), 0
        )
        self._is_made = True

    @override
    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse attributes of the original, which would change nothing here."""
        if "_is_made" in vars(self) and name not in vars(self):
            raise AttributeError(f"compiled envs have no attribute {name!r} that can be set; use vectorizer='sync'")
        super().__setattr__(name, value)

    @override
    def reset(
        self,
        env_indices: Sequence[int],
        seeds: Sequence[int],
        options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        if options is None:
            super().reset(env_indices, seeds)
            return
        self._is_observed = False
        for env_index, seed, given in zip(env_indices, seeds, options, strict=True):
            self.original.reset(seed=seed, options=given or None)
            state = self.states[env_index]
            self.copy_original(state, self.original)
            state.timestep = 0
            self.rngs[env_index] = words_of(self.original.np_random)

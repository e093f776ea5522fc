"""Compare a batched env with the env that it stands for: the same seeds and actions must lead to the same steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.core.vec_env.observations import taken
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import EnvError
from marl_sb3.types import Array
from marl_sb3.wrappers.observations import choices_of

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
        found = _difference(plain, batched, *pair, tolerance)
        if found is not None or number == steps:
            return found and f"after {number} steps of each env, {found}"
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


def _difference(
    plain: MultiAgentVecEnv, batched: MultiAgentVecEnv, expected: VecStep, step: VecStep, tolerance: float
) -> str | None:
    """Compare one step."""
    envs = list(range(plain.num_envs))
    seeds = plain.episode_seeds(envs), batched.episode_seeds(envs)
    if seeds[0] != seeds[1]:
        return f"seeds of the episodes are {seeds[0]} and {seeds[1]}"
    if _same_arrays(expected, step) and all(expected.infos[index] == step.infos[index] for index in envs):
        return None
    known = dict(_values(expected, plain))
    received = dict(_values(step, plain))
    for place in {**known, **received}:
        a, b = (values.get(place, _ABSENT) for values in (known, received))
        if not _equal(a, b, tolerance):
            env_index, agent, what = place
            where = f"env {env_index}" if agent is None else f"env {env_index}, agent {agent!r}"
            return f"{where}, {what}: {_shown(a)} and {_shown(b)}"
    return None


def _same_arrays(expected: VecStep, step: VecStep) -> bool:
    """Whether there are no ends, and all arrays are equal to the last bit, which is quickly seen."""
    pairs = [(getattr(expected, name), getattr(step, name)) for name in (*_OF_ENVS, *_OF_AGENTS)]
    pairs += [*zip(expected.observations, step.observations, strict=True)]
    pairs += [*zip(expected.action_masks, step.action_masks, strict=True)]
    ended = expected.terminated.any() or expected.truncated.any() or expected.reset_infos or step.reset_infos
    return not ended and all(a is b or np.array_equal(a, b) for a, b in pairs if not isinstance(a, Mapping))


def _values(step: VecStep, env: MultiAgentVecEnv) -> Iterator[tuple[tuple[int, Any, str], Any]]:
    """Yield everything in a step as (env index, agent, what) and its value."""
    for index in range(env.num_envs):
        for name in _OF_ENVS:
            yield (index, None, name), getattr(step, name)[index]
        for number, group in enumerate(env.groups):
            for place, (agent, column) in enumerate(zip(group.agents, group.columns, strict=True)):
                for name in _OF_AGENTS:
                    yield (index, agent, name), getattr(step, name)[index, column]
                yield (index, agent, "observation"), taken(step.observations[number], (index, place))
                mask = step.action_masks[number]
                yield (index, agent, "action mask"), _ABSENT if mask is None else mask[index, place]
                final = step.final_observations.get((index, column), _ABSENT)
                yield (index, agent, "final observation"), final
                for key, value in step.infos[index].get(agent, {}).items():
                    # Masks are compared above; of the next action of an agent that is truncated they are infos.
                    if key != MASK or step.truncated[index, column]:
                        yield (index, agent, f"info {key!r}"), value
                for key, value in step.reset_infos.get(index, {}).get(agent, {}).items():
                    if key != MASK:
                        yield (index, agent, f"info {key!r} of the reset"), value


def _equal(a: Any, b: Any, tolerance: float) -> bool:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(_equal(a[key], b[key], tolerance) for key in a)
    if a is _ABSENT or b is _ABSENT:
        return a is b
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        return False
    if np.array_equal(a, b):
        return True
    both_floats = (a.dtype.kind, b.dtype.kind) == ("f", "f")
    return both_floats and bool(np.isclose(a, b, tolerance, tolerance, equal_nan=True).all())


def _shown(value: Any) -> str:
    return "nothing" if value is _ABSENT else str(value.tolist() if hasattr(value, "tolist") else value)[:_SHOWN]

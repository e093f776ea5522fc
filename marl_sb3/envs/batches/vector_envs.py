"""Vector envs of Gymnasium, `gymnasium.make_vec`'s and others, and EnvPool's, as batched envs of one agent."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv
from typing_extensions import override

from marl_sb3.core.envs.batched import BatchedStep
from marl_sb3.core.envs.converted import AGENT, MASK
from marl_sb3.core.envs.registry import EnvFactory
from marl_sb3.envs.batches.base import AdaptedBatch, batch_factory, is_asked_for, with_rows
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.types import Array, BoolArray, Observations

_SAME_STEP, _DISABLED = "SameStep", "Disabled"  # values of `gymnasium.vector.AutoresetMode`
_FINAL = ("final_obs", "final_observation")


class VectorEnvBatch(AdaptedBatch):
    """A `gymnasium.vector.VectorEnv` as a batch of envs whose only agent is called `agent`.

    Envs that have ended are reset in the step in which they end, each with the seed of its next episode: by
    `reset(options={"reset_mask": ...})`, as Gymnasium says for the autoreset mode DISABLED, which its own vector envs
    take in the mode NEXT_STEP, too. A vector env in the mode SAME_STEP has reset them by itself; their episodes from
    the second one on then follow from the seed of the first.

    Args:
        env: the vector env.

    Raises:
        ConfigError: it begins the next episode in the step after the last one of an episode, and in no other way.
    """

    _resets_apart: ClassVar[bool] = False  # whether `_begin` begins episodes in some of the envs without a mask

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        mode = env.metadata.get("autoreset_mode")
        self._mode = getattr(mode, "value", mode)
        is_gymnasiums = isinstance(env.unwrapped, (SyncVectorEnv, AsyncVectorEnv))
        self._takes_some = is_gymnasiums or self._mode == _DISABLED or self._resets_apart
        if self._mode != _SAME_STEP and not self._takes_some:
            raise ConfigError(
                f"the vector env {type(env.unwrapped).__name__} has the autoreset mode {self._mode or 'NextStep'}: the "
                "action in the first step of an episode is lost; accepted: the modes Disabled (then it takes "
                "reset(options={'reset_mask': ...})) and SameStep",
                key="env",
            )
        self.env: Any = env
        agent_spaces = {AGENT: (env.single_observation_space, env.single_action_space)}
        name = getattr(env.spec, "id", None) or type(env.unwrapped).__name__
        metadata = {**{key: value for key, value in env.metadata.items() if key != "autoreset_mode"}, "name": name}
        super().__init__(env.num_envs, agent_spaces, metadata, env.render_mode)
        self._seen: Any = None  # the observations, (E, ...)
        self._ended: BoolArray = np.zeros(env.num_envs, np.bool_)  # in the latest step, and not reset since
        self._next: Any = None  # in the mode SAME_STEP, those of the episodes that have begun, and their masks
        self._masks: BoolArray | None = None

    @override
    def reset(
        self, env_indices: Sequence[int], seeds: Sequence[int], options: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        if options is not None and any(each != options[0] for each in options):
            raise ConfigError(f"reset options {list(options)}: a vector env takes the same ones for all envs")
        if self._mode == _SAME_STEP and self._ended[list(env_indices)].all():
            self._seen, self._masks = self._next
        elif len(env_indices) < self.num_envs and not self._takes_some:
            words = f"{type(self.env.unwrapped).__name__} cannot begin episodes in some envs, before it has ended them"
            raise ConfigError(f"episode_horizon: {words}; accepted: none", key="episode_horizon")
        else:
            self._read_masks(self._begin(env_indices, seeds, dict(options[0]) if options else {}))
        self._ended[list(env_indices)] = False

    def _begin(self, env_indices: Sequence[int], seeds: Sequence[int], options: dict[str, Any]) -> Mapping[str, Any]:
        """Begin episodes, note what the envs show, and return the infos."""
        of_envs: list[Any] = [None] * self.num_envs
        for index, seed in zip(env_indices, seeds, strict=True):
            of_envs[index] = seed
        if len(env_indices) < self.num_envs:
            chosen = np.zeros(self.num_envs, np.bool_)
            chosen[list(env_indices)] = True
            options["reset_mask"] = chosen
        infos: Mapping[str, Any]
        self._seen, infos = self.env.reset(seed=of_envs, options=options or None)
        return infos

    @override
    def step(self, actions: Array) -> BatchedStep:
        self._seen, rewards, terminated, truncated, infos = self.env.step(actions[:, 0])
        self._ended = np.asarray(terminated | truncated, np.bool_)
        self._read_masks(infos)
        if self._mode == _SAME_STEP and self._ended.any():
            self._next = self._seen, self._masks
            self._seen = with_rows(self._seen, np.flatnonzero(self._ended).tolist(), self._final(infos))
            if self._masks is not None:  # what could have been done next is not told
                self._masks = self._masks | self._ended[:, None]
        return BatchedStep(
            np.asarray(rewards).reshape(-1, 1),
            np.asarray(terminated, np.bool_).reshape(-1, 1),
            np.asarray(truncated, np.bool_).reshape(-1, 1),
            {AGENT: self._numbers(infos)},
        )

    def _final(self, infos: Mapping[str, Any]) -> Any:
        """Return the observations on which episodes have ended in this step."""
        final = next((infos[name] for name in _FINAL if name in infos), None)
        if final is None:
            raise EnvError("a vector env in the mode SameStep has ended episodes without `final_obs` in its infos")
        if isinstance(final, Mapping):
            return {key: array[self._ended] for key, array in final.items()}
        rows = list(final[self._ended])
        return {key: [row[key] for row in rows] for key in rows[0]} if isinstance(rows[0], Mapping) else np.stack(rows)

    def _numbers(self, infos: Mapping[str, Any]) -> dict[str, Array]:
        """Return the infos that are a number for each env; where an env has none, it is NaN."""
        numbers = {}
        for name, values in infos.items():
            if not name.startswith("_") and isinstance(values, np.ndarray) and values.shape == (self.num_envs,):
                known = infos.get(f"_{name}")
                if values.dtype.kind in "biuf":
                    numbers[name] = values if known is None or known.all() else np.where(known, values, np.nan)
        return numbers

    def _read_masks(self, infos: Mapping[str, Any]) -> None:
        """Keep the action masks of an `action_mask` in the infos; envs that give none now have the ones before."""
        if (given := infos.get(MASK)) is None:
            return
        masks, known = np.asarray(given, np.bool_), infos.get(f"_{MASK}")
        if self._masks is not None and known is not None:
            masks = np.where(np.asarray(known)[:, None], masks, self._masks)
        self._masks = masks

    @override
    def observations(self) -> Observations:
        seen: Observations = self.seen_by_group({AGENT: self._seen})
        return seen

    @override
    def action_masks(self) -> BoolArray | None:
        return None if self._masks is None else self._masks[:, None]

    @override
    def render(self, env_index: int) -> Any:
        frames: Any = self.env.render()
        return None if frames is None else frames[env_index]

    @override
    def close(self) -> None:
        self.env.close()


def vector_envs(make: Callable[..., VectorEnv[Any, Any, Any]]) -> EnvFactory:
    """Return the factory of the envs of a vector env, for `make_vec_env`, `train` and `register_env`.

    Args:
        make: `make(num_envs=..., **env_kwargs)` returns a `VectorEnv`; its class, say.
    """

    def make_batched(num_envs: int, **env_kwargs: Any) -> VectorEnvBatch:
        return VectorEnvBatch(make(num_envs=num_envs, **env_kwargs))

    return batch_factory(make_batched, f"{make.__module__}:{make.__qualname__}")


def made_by_gymnasium(
    env_id: str, num_envs: int, vectorization_mode: str = "sync", **env_kwargs: Any
) -> VectorEnvBatch:
    """Return the batch of `gymnasium.make_vec(env_id, num_envs, vectorization_mode, **env_kwargs)`.

    Raises:
        ConfigError: Gymnasium does not know the env or the mode, or refuses the arguments.
    """
    try:
        made = gymnasium.make_vec(env_id, num_envs, vectorization_mode, **env_kwargs)
    except (gymnasium.error.Error, TypeError, ValueError) as error:
        raise ConfigError(f"env vector/{env_id}: Gymnasium says: {error}", key="env") from error
    return VectorEnvBatch(made)


# --- EnvPool ---------------------------------------------------------------------------------------------------------

ENVPOOL = "envpool/"  # and the name of a task, `envpool/Pong-v5`


class EnvPoolBatch(VectorEnvBatch):
    """Envs of EnvPool (Weng et al. 2022), which its own threads step.

    EnvPool takes the seed of an env when it makes it: that of its first episode decides about all later ones. The envs
    are made anew whenever all of them are reset before they have ended; a single env, for each episode.

    Args:
        task: the id of EnvPool's.
        num_envs: E.
        env_kwargs: of the task, such as `num_threads`, `frame_skip`, `stack_num`.
    """

    _resets_apart = True

    def __init__(self, task: str, num_envs: int, **env_kwargs: Any) -> None:
        self._task, self._env_kwargs = task, env_kwargs
        super().__init__(self._make(num_envs, [0] * num_envs))

    def _make(self, num_envs: int, seeds: Sequence[int]) -> Any:
        import envpool

        if taken := {"num_envs", "batch_size", "seed", "env_type"} & self._env_kwargs.keys():
            words = "accepted: n_envs and seed of the training; all envs take each step together"
            raise ConfigError(f"env {ENVPOOL}{self._task}: {min(taken)} is given as env argument; {words}", key="env")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return envpool.make_gymnasium(self._task, num_envs=num_envs, seed=list(seeds), **self._env_kwargs)
        except (AssertionError, TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"env {ENVPOOL}{self._task}: EnvPool says: {error}", key="env") from error

    @override
    def _begin(self, env_indices: Sequence[int], seeds: Sequence[int], options: dict[str, Any]) -> Mapping[str, Any]:
        if options:
            raise ConfigError(f"reset options {options}: envs of EnvPool take none")
        if is_asked_for(self, env_indices, self._ended):
            self.env.close()
            self.env = self._make(self.num_envs, seeds)
        rows, infos = self.env.reset(np.asarray(env_indices, np.int32))
        is_whole = len(env_indices) == self.num_envs
        self._seen = rows if is_whole else with_rows(self._seen, env_indices, rows)
        return infos if is_whole else {}

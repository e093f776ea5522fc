"""The envs of a training whose envs are divided into shards, which runners step elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import TYPE_CHECKING, Any, NoReturn

from typing_extensions import override

from marl_sb3.core.config.values import Count, NumberOfEnvs, PositiveInt, require
from marl_sb3.core.envs.registry import EnvFactory, env_factory, takes_argument
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.make import make_vec_env
from marl_sb3.core.vec_env.seeding import fresh_seed, shard_seed
from marl_sb3.errors import ConfigError, VecEnvOrderError
from marl_sb3.extensions.remote.ray import AnyRunners, RaySettings, either

if TYPE_CHECKING:
    from marl_sb3.extensions.remote.sharded import ShardedRunner


@dataclass(frozen=True)
class EnvPlan:
    """How the envs of all shards are made."""

    env: str | EnvFactory  # an env id, or a factory that other processes can be given
    n_envs: int  # number of envs in all shards
    n_shards: int  # number of shards; it divides `n_envs`
    seed: int  # the run seed
    vectorizer: str = "auto"  # see `make_vec_env`
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)  # further arguments of `make_vec_env`

    @property
    def shard_size(self) -> int:
        """Number of envs in a shard."""
        return self.n_envs // self.n_shards

    def envs_of(self, shard: int) -> range:
        """Return the indices of a shard's envs among all envs."""
        return range(shard * self.shard_size, (shard + 1) * self.shard_size)

    def make(self, shard: int) -> MultiAgentVecEnv:
        """Make the envs of a shard; the seeds of their episodes follow from the run seed and the shard."""
        factory = _with_indices_from(env_factory(self.env), self.envs_of(shard).start)
        seed = shard_seed(self.seed, shard)
        return make_vec_env(factory, self.shard_size, seed, self.vectorizer, **self.env_kwargs)

    def probe(self) -> MultiAgentVecEnv:
        """Make a single env, which tells the agents and spaces."""
        return make_vec_env(self.env, 1, self.seed, self.vectorizer, **self.env_kwargs)


def _with_indices_from(factory: EnvFactory, first: int) -> EnvFactory:
    """Return a factory that counts the indices of envs from `first` on, if the factory asks for them."""
    if first == 0 or not takes_argument(factory, "env_index"):
        return factory

    def shifted(env_index: int, **env_kwargs: Any) -> Any:
        return factory(env_index=first + env_index, **env_kwargs)

    shifted.__qualname__ = getattr(factory, "__qualname__", type(factory).__name__)
    shifted.__module__ = getattr(factory, "__module__", shifted.__module__)
    vars(shifted)["__signature__"] = signature(factory)
    own: Mapping[str, Any] = getattr(factory, "__dict__", {})
    vars(shifted).update({name: getattr(factory, name) for name in ("make_batched", "why_not_batched") if name in own})
    return shifted


def _refused(call: str) -> Any:
    def refuse(*_: Any) -> NoReturn:
        raise VecEnvOrderError(
            f"{call} of envs in shards: their runners step them; make_vec_env() makes envs to step here"
        )

    return refuse


class ShardedVecEnv(MultiAgentVecEnv):
    """Stands for the envs of all shards in the process of the learners. It cannot be stepped: runners step the shards.

    Args:
        plan: how the envs are made.

    Attributes:
        plan: with the seed of `seed()`, if that was called.
        runners: which processes roll out the shards; None: this one.
        shards: the runner of the training, which calls go to; None: there is none yet.

    Raises:
        ConfigError: an argument is wrong, or a factory cannot be given to other processes.
    """

    execution = "marl_sb3.extensions.remote.sharded:IN_SHARDS"

    def __init__(self, plan: EnvPlan, runners: AnyRunners | None = None) -> None:
        if plan.n_envs % plan.n_shards:
            fitting = [n for n in range(1, plan.n_envs + 1) if plan.n_envs % n == 0]
            raise ConfigError(
                f"n_shards is {plan.n_shards}, which does not divide n_envs {plan.n_envs}; accepted: "
                f"{', '.join(map(str, fitting))}",
                key="n_shards",
            )
        n_workers = plan.env_kwargs.get("n_workers", 0)
        if n_workers != 0:
            raise ConfigError(
                f"n_workers is {n_workers!r}, but envs in shards have no workers: each runner is a process of its own; "
                "accepted with n_shards, --runners or --ray: 0, and more --runners",
                key="n_workers",
            )
        with preserve_rng():
            probe = plan.probe()
            probe.close()
        self.plan, self.runners = plan, runners
        self.num_envs = plan.n_envs
        self.agents, self.groups = probe.agents, probe.groups
        self.metadata, self.render_mode = probe.metadata, probe.render_mode
        self.shards: ShardedRunner | None = None
        self._example: MultiAgentVecEnv | None = None  # an env in this process, which is never stepped

    @override
    def close(self) -> None:
        if self.shards is not None:
            self.shards.close()
        if self._example is not None:
            self._example.close()
            self._example = None

    def _seed(self, seed: int) -> None:
        self.plan = replace(self.plan, seed=seed)

    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        if name in _THE_SAME_OF_ALL:
            if self._example is None:
                with preserve_rng():
                    self._example = self.plan.probe()
            return [self._example.call(name, [0], *args, **kwargs)[0] for _ in env_indices]
        return self._of_envs("call", env_indices, name, args, kwargs)

    def _configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        self._of_envs("configure", env_indices, settings)

    def _of_envs(self, method: str, env_indices: Sequence[int], *arguments: Any) -> list[Any]:
        """Ask the shards of these envs; returns the result of each env."""
        if self.shards is None:
            raise VecEnvOrderError("the shards are not there yet; make a MultiAgentAlgorithm of these envs first")
        size, results = self.plan.shard_size, dict[int, Any]()
        for shard in sorted({index // size for index in env_indices}):
            places = [place for place, index in enumerate(env_indices) if index // size == shard]
            inner = [env_indices[place] % size for place in places]
            results.update(zip(places, self.shards.ask(shard, method, inner, *arguments), strict=True))
        return [results[place] for place in range(len(env_indices))]

    _reset = _refused("reset()")
    _send = _recv = _refused("step()")
    _get_state, _set_state = _refused("get_state()"), _refused("set_state()")


# Methods that do not depend on what happens in an env: hindsight experience replay calls them for every minibatch.
_THE_SAME_OF_ALL = ("has_wrapper", "compute_reward")


def make_sharded_vec_env(
    env: str | EnvFactory,
    n_envs: int,
    n_shards: int,
    seed: int | None = None,
    vectorizer: str = "auto",
    ray: RaySettings | None = None,
    runners: AnyRunners | None = None,
    **env_kwargs: Any,
) -> ShardedVecEnv:
    """Make envs for a `MultiAgentAlgorithm` that are stepped in shards.

    A shard is a fixed share of the envs with random streams of its own. The same seed and the same number of shards
    give the same training, whatever processes step the shards.

    Args:
        env: see `make_vec_env`.
        n_envs: number of envs in all shards.
        n_shards: number of shards; it divides `n_envs`.
        seed: run seed, from which the seeds of all episodes are derived; None draws one.
        vectorizer: see `make_vec_env`.
        ray: how the shards are rolled out on Ray; None: not on Ray.
        runners: number of processes of this machine that roll out the shards; or how Ray does. None: this process does.
        env_kwargs: see `make_vec_env`.

    Raises:
        ConfigError: an argument is wrong.
    """
    n_envs, n_shards = require("n_envs", n_envs, NumberOfEnvs), require("n_shards", n_shards, PositiveInt)
    seed = fresh_seed() if seed is None else require("seed", seed, Count)
    chosen = runners if isinstance(runners, RaySettings) else either(ray, runners)
    return ShardedVecEnv(EnvPlan(env, n_envs, n_shards, seed, vectorizer, env_kwargs), chosen)

"""Which processes roll out the shards of a training: those of this machine, or those of a Ray cluster.

These are no settings of a run: they change no result, and no file may name a cluster that this process then trusts, or
what the processes of a cluster install and start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from marl_sb3.core.config.values import Named, PositiveFloat, PositiveInt, require
from marl_sb3.errors import ConfigError
from marl_sb3.files.plain_yaml import read_yaml

ROUND_TIMEOUT_S = 3600.0  # of `RaySettings.round_timeout_s`, and of runners of this machine


@dataclass(frozen=True)
class RaySettings:
    """How the shards of a training are rolled out on Ray.

    Raises:
        ConfigError: a value is not accepted.
    """

    # `local`: a Ray of its own, which ends with the training; `auto`: the cluster that runs on this machine;
    # `HOST:PORT`: of a cluster's head
    address: str = "local"
    # number of runners, each a process on the cluster. None: one for each CPU of this machine, at most one for each
    # shard.
    runners: PositiveInt | None = None
    num_cpus: PositiveFloat = 1.0  # CPUs that Ray reserves for each runner
    runtime_env: Named | None = None  # Ray's `runtime_env` of the runners: what their envs need. None: nothing.
    start_timeout_s: PositiveFloat = 180.0  # seconds that the runners may take to start
    # seconds that a runner may take for a round before it is killed and replaced
    round_timeout_s: PositiveFloat = ROUND_TIMEOUT_S

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            require(f"ray: {name}", getattr(self, name), kind)


AnyRunners = RaySettings | int  # on Ray, or by so many processes of this machine


def either(ray: RaySettings | None, runners: int | None) -> AnyRunners | None:
    """Return how the shards are rolled out, by arguments of which one may be given.

    Args:
        ray: on Ray.
        runners: by so many processes of this machine.

    Raises:
        ConfigError: both are given, or the number is not accepted.
    """
    if runners is None:
        return ray
    if ray is not None:
        raise ConfigError(
            "runners and ray are both given; accepted: one of them, or RaySettings(..., runners=N)", "ray"
        )
    return require("runners", runners, PositiveInt)  # type: ignore[no-any-return]


def read_runtime_env(path: str | Path) -> Mapping[str, Any]:
    """Read Ray's `runtime_env` from a YAML or JSON file that the user has named.

    Raises:
        ConfigError: there is no such file, or it holds no mapping.
    """
    content = read_yaml(Path(path))
    if not isinstance(content, Mapping):
        raise ConfigError(f"{path} is no mapping; accepted: Ray's runtime_env", key="ray_runtime_env")
    return content

"""The options for runners, and of commands that can use Ray."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from marl_sb3.cli.parser import CommandParser
from marl_sb3.errors import ConfigError

if TYPE_CHECKING:
    from marl_sb3.config.ray import AnyRunners, RaySettings

_OF_RAY = {"ray_runtime_env": "--ray-runtime-env", "runner_cpus": "--runner-cpus"}


def add_ray_options(parser: CommandParser, what: str, process: str) -> None:
    """Give a command the options of Ray.

    Args:
        what: what `--ray` does.
        process: what a process on Ray is for: `runner` or `trial`.
    """
    parser.option(
        "--ray ADDRESS",
        f"{what}; ADDRESS is local (or left out), a Ray of its own on this machine; auto or HOST:PORT, a cluster; "
        "default: no Ray",
        nargs="?",
        const="local",
    )
    parser.option("--runner-cpus X", f"CPUs that Ray sets aside for each {process}; default: 1", type=float)
    parser.option(
        "--ray-runtime-env FILE",
        "YAML or JSON file with Ray's runtime_env: what the envs need on the cluster; default: nothing",
    )


def ray_settings(arguments: argparse.Namespace) -> RaySettings | None:
    """Return how to use Ray; None without `--ray`.

    Raises:
        ConfigError: an option of Ray is given without `--ray`, or a value is not accepted.
    """
    given: dict[str, Any] = {name: getattr(arguments, name) for name in _OF_RAY}
    if arguments.ray is None:
        useless = [option for name, option in _OF_RAY.items() if given[name] is not None]
        if useless:
            raise ConfigError(f"{useless[0]} is only for Ray; accepted: with --ray", key="ray")
        return None
    from marl_sb3.config.ray import RaySettings, read_runtime_env

    file = given["ray_runtime_env"]
    return RaySettings(
        arguments.ray,
        getattr(arguments, "runners", None),
        num_cpus=1.0 if given["runner_cpus"] is None else given["runner_cpus"],
        runtime_env=None if file is None else read_runtime_env(file),
    )


def runner_settings(arguments: argparse.Namespace) -> AnyRunners | None:
    """Return which processes roll out the shards; None without `--ray` and `--runners`.

    Raises:
        ConfigError: see `ray_settings`.
    """
    on_ray = ray_settings(arguments)
    if on_ray is not None or arguments.runners is None:
        return on_ray
    from marl_sb3.config.ray import RunnerSettings

    return RunnerSettings(arguments.runners)

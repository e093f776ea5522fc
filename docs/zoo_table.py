"""Say which entries of a file of rl-baselines3-zoo's marl_sb3 reads and trains: `python docs/zoo_table.py ppo.yml`.

Prints the table of `docs/rl_zoo.md`. An entry that loads is trained for one rollout if its env is installed.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import marl_sb3
from marl_sb3 import PolicySpec, make_vec_env
from marl_sb3.errors import MarlSb3Error
from marl_sb3.extensions.dialects.zoo import ATARI, DEFAULT, unsupported
from marl_sb3.files.plain_yaml import read_yaml
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config

HEADER = ("entry", "loads as written", "trains")
# Envs for the sections that are not one's own.
ENVS = {DEFAULT: "arena", ATARI: "ALE/Pong-v5"}


def table(path: Path, env_steps: int) -> str:
    """The Markdown table of a file.

    Args:
        path: env id -> settings, or section -> settings.
        env_steps: how long each entry is trained, at least a rollout; 0: not at all.
    """
    rows = [HEADER, tuple("---" for _ in HEADER)]
    rows += [row(path, str(name), entry, env_steps) for name, entry in read_yaml(path).items()]
    return "".join(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n" for cells in rows)


def row(path: Path, name: str, entry: Mapping[str, Any], env_steps: int) -> tuple[str, ...]:
    """What comes of an entry, see `HEADER`; if parts of it are not supported, of the rest."""
    left_out = unsupported(entry)
    without = "without it: " if len(left_out) == 1 else "without them: " if left_out else ""
    keys = ", ".join(f"`{key}`" for key in left_out)
    try:
        config = load_config(ENVS.get(name, name), hparams=path, settings=left_out)
        PolicySpec(policy=config.policy, **config.hyperparameters)  # checks them
    except MarlSb3Error as error:
        return f"`{name}`", f"no: {_one_line(error)}", ""
    loads = f"no: {keys} not supported yet" if left_out else "yes"
    return f"`{name}`", loads, without + _trained(path.resolve(), config, left_out, env_steps)


def _trained(path: Path, config: TrainConfig, settings: Mapping[str, Any], env_steps: int) -> str:
    if env_steps == 0:
        return "not tried"
    try:
        make_vec_env(config.env, 1).close()
    except MarlSb3Error:
        return "not tried, the env is not installed"
    here = Path.cwd()
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            run = marl_sb3.train(config.env, hparams=path, settings=settings, timesteps=env_steps, seed=0)
        except MarlSb3Error as error:
            return f"no: {_one_line(error)}"
        finally:
            os.chdir(here)
    assert run.result is not None
    return f"yes, {run.result['num_env_steps_sampled_lifetime']:,} env steps"


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def main() -> None:
    """Print the table of the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path, help="a file of settings by env id")
    parser.add_argument("--steps", type=int, default=300, help="env steps of each training; 0: none; default: 300")
    arguments = parser.parse_args()
    print(table(arguments.file, arguments.steps), end="")


if __name__ == "__main__":
    main()

"""Run folders for tests of figures and comparisons, written line by line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml


def write_run(folder: Path, returns: Sequence[float | None], env: str = "arena", **settings: Any) -> Path:
    """A run of so many iterations of 100 env steps and a second each; agent `b` has a tenth of the returns of `a`."""
    folder.mkdir(parents=True)
    config = {"seed": 1, "algo": "ppo", "n_envs": 2, "hyperparameters": {"gamma": 0.9}, **settings}
    (folder / "config.yaml").write_text(yaml.safe_dump({env: config}))
    lines = []
    for number, value in enumerate(returns, 1):
        agents = {} if value is None else {"a": value / 1.1, "b": value / 11}
        lines.append(
            {
                "iteration": number,
                "time_total_s": float(number),
                "num_env_steps_sampled_lifetime": 100 * number,
                "num_agent_steps_sampled_lifetime": {"a": 100 * number, "b": 50 * number},
                "env_runners": {
                    "episode_return_mean": value,
                    "episode_len_mean": 10.0,
                    "agent_episode_returns_mean": agents,
                },
            }
        )
    (folder / "result.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder

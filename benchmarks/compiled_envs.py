"""Measure what an env step costs where envs are compiled, and where Gymnasium's own are stepped one by one.

    python benchmarks/compiled_envs.py [--seconds 1.0] [--envs ID,ID] [--json FILE]

Random actions, drawn beforehand, in what `make_vec_env` returns, on one core without training. Both sides take turns;
the best of three measurements of each counts, in processor time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from command_line import parser
from measure import Report, Setting

from marl_sb3 import make_vec_env

IDS = """CartPole-v1 Acrobot-v1 Pendulum-v1 MountainCar-v0 MountainCarContinuous-v0 FrozenLake-v1 Taxi-v4
mpe2/simple_spread-v3 mpe2/simple_reference-v3 mpe2/simple_tag-v3 mpe2/simple_speaker_listener-v4"""
NUM_ENVS = (8, 64)
SETTING = Setting(
    what="envs of Gymnasium and mpe2, random actions, no training",
    hyperparameters={},
    threads="1",
    changes={"A": "compiled envs"},
    packages=("marl_sb3", "gymnasium", "numpy", "numba"),
)


class Side:
    """A vec env with random actions.

    Args:
        vectorizer: `sync` or `batched`.
    """

    def __init__(self, env_id: str, num_envs: int, vectorizer: str) -> None:
        self.env = make_vec_env(env_id, num_envs, 0, vectorizer)
        self.env.reset()
        groups = self.env.groups
        for group in groups:
            group.action_space.seed(0)
        self.actions = [
            [self._drawn(group.action_space, num_envs, len(group.agents)) for group in groups] for _ in range(20)
        ]

    @staticmethod
    def _drawn(space: Any, *shape: int) -> Any:
        return np.array([[space.sample() for _ in range(shape[1])] for _ in range(shape[0])])

    def microseconds(self, seconds: float) -> float:
        """Measure once: microseconds of processor time per env step."""
        steps, started_s = 0, time.process_time()
        while time.process_time() - started_s < seconds:
            for actions in self.actions:
                self.env.step(actions)
            steps += len(self.actions) * self.env.num_envs
        return 1e6 * (time.process_time() - started_s) / steps


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print a row for each env."""
    options = parser(__doc__, repeats=None)
    options.add_argument("--seconds", type=float, default=1.0, metavar="S", help="of each measurement; default: 1.0")
    options.add_argument("--envs", default=",".join(IDS.split()), metavar="ID,ID", help="default: all")
    arguments = options.parse_args(argv)
    results: dict[str, Any] = {}
    print("| env | envs | one by one | compiled | times |\n| --- | ---: | ---: | ---: | ---: |")
    for env_id in arguments.envs.split(","):
        for num_envs in NUM_ENVS:
            sides = {name: Side(env_id, num_envs, name) for name in ("sync", "batched")}
            raw: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(3):
                for name, side in sides.items():
                    raw[name].append(side.microseconds(arguments.seconds))
            best = {name: min(figures) for name, figures in raw.items()}
            ratio = best["sync"] / best["batched"]
            print(f"| `{env_id}` | {num_envs} | {best['sync']:.1f} | {best['batched']:.2f} | {ratio:.0f} |")
            results[f"{env_id} {num_envs}"] = {"unit": "microseconds per env step", "raw": raw, "best": best}
    Report("compiled_envs", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()

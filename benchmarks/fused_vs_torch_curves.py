"""Test whether the fused and the torch path learn alike: returns in the arena over seeds, with Welch's t-test.

    python benchmarks/fused_vs_torch_curves.py [--seeds 10] [--timesteps 40000] [--json FILE]

Both paths train the same preset with the same seeds. They agree to floating-point tolerance in one update. Over many
updates the trajectories diverge, so that only the distributions of their returns can be compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from command_line import add_count, parser
from measure import Report, Setting, take_turns
from scipy import stats

import marl_sb3
from marl_sb3.core.metrics.names import Result

HYPERPARAMETERS = {"learning_rate": 1e-3}
SETTING = Setting(
    what="arena, its preset, one shared policy",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread",
    changes={"B": "fused networks, in rollouts and in updates"},
)


class Curve(marl_sb3.MultiAgentCallback):
    """Records the mean return after each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []

    def on_iteration_end(self, result: Result) -> bool:
        """Record the mean return."""
        self.returns.append(result["env_runners"]["episode_return_mean"])
        return True


def curve(path: str, timesteps: int, seed: int) -> list[float]:
    """Train the arena's preset for `timesteps` env steps; return the mean return after each iteration."""
    kept = Curve()
    settings = {"update_path": path, **HYPERPARAMETERS}
    with tempfile.TemporaryDirectory() as folder:
        marl_sb3.train(
            "arena", seed=seed, timesteps=timesteps, settings=settings, run_dir=Path(folder) / "run", callback=[kept]
        )
    return kept.returns


def main(argv: Sequence[str] | None = None) -> None:
    """Train and print means and p-values at four points of the training."""
    options = parser(__doc__, repeats=None)
    add_count(options, "--seeds", 10, "trainings of each path")
    add_count(options, "--timesteps", 40_000, "env steps of a training")
    arguments = options.parse_args(argv)
    sides = {path: partial(curve, path, arguments.timesteps) for path in ("fused", "torch")}
    curves = take_turns(sides, arguments.seeds, "curves")
    arrays = {path: np.array(returns) for path, returns in curves.items()}
    iterations = arrays["fused"].shape[1]
    for point in np.ceil(np.array([0.25, 0.5, 0.75, 1.0]) * iterations).astype(int) - 1:
        fused, torch = arrays["fused"][:, point], arrays["torch"][:, point]
        p = stats.ttest_ind(fused, torch, equal_var=False).pvalue
        print(
            f"iteration {point + 1:3d}: fused {fused.mean():6.2f} (SD {fused.std(ddof=1):.2f}), "
            f"torch {torch.mean():6.2f} (SD {torch.std(ddof=1):.2f}), p = {p:.2f}"
        )
    Report("fused_vs_torch_curves", SETTING, {"episode_return_mean": curves}).write(arguments.json)


if __name__ == "__main__":
    main()

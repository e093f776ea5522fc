"""Do the fused and the lean update learn alike? Returns of the arena over seeds, compared with Welch's t-test.

    python benchmarks/fused_vs_lean_curves.py [--seeds 10] [--timesteps 40000]

Same seeds, same preset. The two agree to floating point tolerance in one update; over many, trajectories part, and only
their distribution can be compared.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from scipy import stats

import marl_sb3
from marl_sb3.metrics import Result


class Curve(marl_sb3.MultiAgentCallback):
    """The mean return after each iteration."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: list[float] = []

    def on_iteration_end(self, result: Result) -> bool:
        """Keep it."""
        self.returns.append(result["env_runners"]["episode_return_mean"])
        return True


def curve(path: str, seed: int, timesteps: int) -> list[float]:
    """Train the arena's preset for `timesteps` of its 200,000 env steps."""
    kept = Curve()
    settings = {"update_path": path, "learning_rate": 1e-3}
    with tempfile.TemporaryDirectory() as folder:
        marl_sb3.train(
            "arena", seed=seed, timesteps=timesteps, settings=settings, run_dir=Path(folder) / "run", callback=[kept]
        )
    return kept.returns


def main() -> None:
    """Print means and p-values at four points of the training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10, help="runs of each; default: 10")
    parser.add_argument("--timesteps", type=int, default=40_000, help="env steps of a run; default: 40000")
    arguments = parser.parse_args()
    curves = {
        path: np.array([curve(path, seed, arguments.timesteps) for seed in range(arguments.seeds)])
        for path in ("fused", "lean")
    }
    iterations = curves["fused"].shape[1]
    for point in (np.array([0.25, 0.5, 0.75, 1.0]) * iterations).astype(int) - 1:
        fused, lean = curves["fused"][:, point], curves["lean"][:, point]
        p = stats.ttest_ind(fused, lean, equal_var=False).pvalue
        print(
            f"iteration {point + 1:3d}: fused {fused.mean():6.2f} (SD {fused.std(ddof=1):.2f}), "
            f"lean {lean.mean():6.2f} (SD {lean.std(ddof=1):.2f}), p = {p:.2f}"
        )


if __name__ == "__main__":
    main()

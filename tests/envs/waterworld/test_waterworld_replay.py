"""An episode that PettingZoo 1.25 has played, played again by our rules.

`pettingzoo_episode.npz` holds the arrays `TRACED` of what this command wrote, in an environment with PettingZoo 1.25:

    python benchmarks/waterworld_pettingzoo_side.py '{"settings": SETTINGS, "policy": "chase", "episodes": 1, "seed": 5,
        "every": 150, "trace": 1}' FILE
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

FILE = Path(__file__).parent / "pettingzoo_episode.npz"
SETTINGS: dict[str, Any] = {
    "n_pursuers": 3,
    "n_evaders": 4,
    "n_poisons": 5,
    "n_sensors": 12,
    "pursuer_max_accel": 0.05,
    "max_cycles": 150,
    "radius": 0.03,
    "local_ratio": 0.5,
    "obstacle_coord": [[0.6, 0.4]],
}


def test_our_rules_repeat_an_episode_of_pettingzoos(benchmark: Any) -> None:
    with np.load(FILE, allow_pickle=False) as arrays:
        trace = dict(arrays)
    assert trace["moved"].sum() == 11  # 8 foods eaten, 3 poisons touched
    found = benchmark("waterworld_checks").replay(trace, SETTINGS)
    assert found["env steps"] == 150
    assert found["rewards"] == 3 * 151
    assert found["rewards that differ"] == 0
    assert found["observed numbers that differ"] == 0
    # Of what PettingZoo computes in float32: thrusts and observations.
    assert found["largest position difference"] < 1e-6
    assert found["largest observation difference"] < 1e-5

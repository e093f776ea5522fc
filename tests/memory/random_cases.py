"""Compare compiled rollouts and updates with single steps, in random trainings, for some time.

    python tests/memory/random_cases.py --seconds 60 [--seed S]
    python tests/memory/random_cases.py --case 123       # one of them, as it was drawn

A training whose rollouts are taken in compiled calls has to end as one that takes its steps one by one: episodes,
weights, statistics, the state of the envs, to the bit. A difference ends the comparison with the number of the case.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from compiled_toys import Drifting, Masked, Uneven, UnevenCategories
from whole_rollouts import facts, training

from marl_sb3 import MultiAgentAlgorithm
from marl_sb3.core.policies import MlpFeatures
from marl_sb3.core.training.runner import LocalRunner
from marl_sb3.extensions.fast.compiled_rollouts import CompiledRunner

# Env -> settings of it to choose from; each choice of sizes is compiled once.
ENVS: dict[Any, list[dict[str, Any]]] = {
    "arena": [
        {"max_timesteps": 7},
        {"height": 3, "width": 5, "max_timesteps": 12},
        {"height": 6, "width": 4, "observe": "coordinates", "max_timesteps": 3},
        {"height": 5, "width": 5, "observe": "window", "window": 5, "max_timesteps": 9},
    ],
    Drifting: [{}, {"partial": 0}],
    Uneven: [{}],
    UnevenCategories: [{}],
    Masked: [{}],
    "CartPole-v1": [{}, {"max_episode_steps": 5}],
    "Pendulum-v1": [{"max_episode_steps": 6}],
    "FrozenLake-v1": [{}, {"map_name": "8x8"}],
    "Taxi-v4": [{"max_episode_steps": 8}],
    "mpe2/simple_spread-v3": [{"N": 2, "max_cycles": 6}, {"N": 4, "max_cycles": 4}],
    "mpe2/simple_tag-v3": [{"max_cycles": 5}],
    "waterworld": [{"max_cycles": 7, "radius": 0.05}],
}
WITH_MASKS = (Masked, "Taxi-v4")
UNEQUAL = (Uneven, UnevenCategories, Masked, "mpe2/simple_tag-v3")  # agents have different spaces
NUMBERS = (Drifting, Uneven, "CartPole-v1", "Pendulum-v1", "mpe2/simple_spread-v3", "waterworld")  # are observed


def drawn(case: int) -> tuple[dict[str, Any], int]:
    """Return the settings of a training, and its number of rollouts."""
    rng = np.random.default_rng(case)

    def chance(share: float) -> bool:
        return bool(rng.random() < share)

    env = [*ENVS][int(rng.integers(len(ENVS)))]
    algorithm = "maskable_ppo" if env in WITH_MASKS else str(rng.choice(["ppo", "ppo", "a2c"]))
    layers = [int(size) for size in rng.integers(1, 20, rng.integers(0, 4))]
    network: dict[str, Any] = {"net_arch": layers}
    if chance(0.2):
        network["features_extractor_class"] = MlpFeatures
    settings: dict[str, Any] = {
        "env": env,
        "env_kwargs": {"env_kwargs": ENVS[env][int(rng.integers(len(ENVS[env])))]},
        "algorithm": algorithm,
        "policies": "per_agent" if env in UNEQUAL or chance(0.4) else "shared",
        "policy_kwargs": network,
        "n_envs": int(rng.integers(1, 9)),
        "n_steps": int(rng.integers(2, 20)),
        "seed": int(rng.integers(1000)),
    }
    processing = {"frame_stack": 2, "time_feature": 20, "agent_indicator": True, "normalize_rewards": True}
    settings |= {name: value for name, value in processing.items() if chance(0.2)}
    if env in NUMBERS and chance(0.3):
        settings["normalize_observations"] = True
    if algorithm == "a2c":
        settings |= {"batch_size": None, "n_epochs": None}
    else:
        settings |= {"batch_size": int(rng.integers(2, 70)), "n_epochs": int(rng.integers(1, 4))}
        settings |= {name: 0.05 for name in ("target_kl", "clip_range_vf") if chance(0.2)}
    return settings, int(rng.integers(1, 6))


def trained(settings: dict[str, Any], rollouts: int) -> tuple[MultiAgentAlgorithm, list[str | None]]:
    """Train; returns the algorithm, and for each rollout why it was not compiled."""
    whys: list[str | None] = []
    collect = CompiledRunner._why_not

    def why_not(self: CompiledRunner, listener: Any) -> str | None:
        whys.append(collect(self, listener))
        return whys[-1]

    CompiledRunner._why_not = why_not  # type: ignore[method-assign]
    try:
        algorithm = training(**dict(settings))
        return algorithm.learn(rollouts * settings["n_envs"] * settings["n_steps"]), whys
    finally:
        CompiledRunner._why_not = collect  # type: ignore[method-assign]


def stepped(settings: dict[str, Any], rollouts: int) -> MultiAgentAlgorithm:
    """Train with single steps."""
    collect = CompiledRunner.collect
    CompiledRunner.collect = LocalRunner.collect  # type: ignore[method-assign]
    try:
        return training(**dict(settings)).learn(rollouts * settings["n_envs"] * settings["n_steps"])
    finally:
        CompiledRunner.collect = collect  # type: ignore[method-assign]


def compare(case: int) -> int:
    """Compare a case; returns the number of its rollouts that were compiled.

    Raises:
        AssertionError: the two trainings differ.
    """
    settings, rollouts = drawn(case)
    at_once, whys = trained(settings, rollouts)
    if None not in whys:  # such as: a single number is normalised, which NumPy adds up in another order
        return 0
    if facts(at_once) != facts(stepped(settings, rollouts)):
        raise AssertionError(f"case {case}: compiled rollouts end otherwise than single steps: {settings}")
    return whys.count(None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, help="of the cases; default: another one each time, which is printed")
    parser.add_argument("--case", type=int, help="compare this case only")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.case is not None:
        print(f"case {options.case}: {compare(options.case)} compiled rollouts, as single steps: {drawn(options.case)}")
        return
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    end_s, cases, rollouts, compiled = time.monotonic() + options.seconds, 0, 0, 0
    print(f"seed {seed}", flush=True)
    while time.monotonic() < end_s:
        of_case = compare(seed * 10**6 + cases)
        rollouts, compiled, cases = rollouts + of_case, compiled + bool(of_case), cases + 1
    if compiled < 0.8 * cases:
        raise AssertionError(f"only {compiled} of {cases} random trainings had compiled rollouts")
    print(f"{compiled} of {cases} random trainings had {rollouts} compiled rollouts, and ended as with single steps")


if __name__ == "__main__":
    main()

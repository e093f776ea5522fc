"""Measure how far the fused updates of DQN, SAC and others are from PyTorch's; compare with the effect of one ulp.

    python benchmarks/replay_accuracy.py [--steps 100] [--cases dqn-1,sac-1,...] [--json FILE]

All sides sample the same minibatches from the same replay buffer of random transitions and draw the same random
numbers. Each figure is the distance from stock SB3's weights, over all parameters of the policy with its target
networks, divided by the distance that stock SB3's weights have moved:

    fused       marl_sb3's class on its fused path
    one ulp     stock SB3 with each weight replaced by the next float32 above or below; the largest of three draws

A difference of the size of "one ulp" is rounding. Networks have two hidden layers of 64 units, minibatches 64 rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch as th
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table
from stable_baselines3.common.logger import Logger
from torch import nn
from trainings import one_torch_thread

from marl_sb3.core.config.algorithms import algorithm_info

INPUTS, TRANSITIONS, ROWS = 6, 2000, 64
CHOICE, AXES = spaces.Discrete(4), spaces.Box(-1, 1, (2,), np.float32)


@dataclass(frozen=True)
class Case:
    """An algorithm and a scale of observations."""

    algo: str  # name of the algorithm
    largest: float = 1.0  # observations are random numbers between 0 and this
    activation: type[nn.Module] = nn.ReLU  # activation function of the networks

    @property
    def words(self) -> str:
        """A description for the table."""
        return f"{self.activation.__name__}, 0 to {self.largest:g}"


CASES = {
    **{f"{algo}-1": Case(algo) for algo in ("dqn", "qrdqn", "sac", "tqc", "td3", "ddpg")},
    **{f"{algo}-100": Case(algo, 100.0) for algo in ("dqn", "sac", "td3")},
    **{f"{algo}-tanh-1": Case(algo, 1.0, nn.Tanh) for algo in ("dqn", "sac", "td3")},
}
SETTING = Setting(
    what=f"a replay buffer of {TRANSITIONS} random transitions of {INPUTS} numbers",
    hyperparameters={"batch_size": ROWS, "net_arch": [64, 64]},
    threads="1 torch thread",
    changes={"B": "fused updates"},
    packages=("marl_sb3", "stable-baselines3", "sb3-contrib", "torch", "numpy"),
)


class Blank(gymnasium.Env[Any, Any]):
    """An env that has spaces and is never stepped."""

    def __init__(self, case: Case) -> None:
        self.observation_space = spaces.Box(0, case.largest, (INPUTS,), np.float32)
        self.action_space = CHOICE if case.algo in ("dqn", "qrdqn") else AXES


def made(case: Case, *, stock: bool) -> Any:
    """Make an algorithm with a full replay buffer; stock and fused have the same weights and transitions."""
    named = algorithm_info(case.algo).algorithm_class
    kind: Any = next(base for base in named.__mro__ if not stock or not base.__module__.startswith("marl_sb3"))
    kwargs = {"net_arch": [64, 64], "activation_fn": case.activation}
    model = kind("MlpPolicy", Blank(case), seed=0, device="cpu", buffer_size=TRANSITIONS, policy_kwargs=kwargs)
    model.update_path = "fused"  # SB3's own class does not read it
    model.set_logger(Logger(None, []))
    rng, space = np.random.default_rng(0), model.action_space
    for _ in range(TRANSITIONS):
        seen, following = rng.uniform(0, case.largest, (2, 1, INPUTS)).astype(np.float32)
        action = rng.integers(4, size=(1, 1)) if space is CHOICE else rng.uniform(-1, 1, (1, 2))
        model.replay_buffer.add(seen, following, action, rng.normal(size=1), rng.uniform(size=1) < 0.1, [{}])
    return model


def weights(model: Any) -> np.ndarray[Any, Any]:
    """Return all parameters of the policy as float64."""
    return np.concatenate([value.detach().numpy().ravel() for value in model.policy.parameters()]).astype(np.float64)


def nudge(model: Any, draw: int) -> None:
    """Replace each weight by the next float32 above or below, drawn with the seed `draw`."""
    rng = np.random.default_rng(draw)
    for value in model.policy.parameters():
        array = value.detach().numpy()
        array[...] = np.nextafter(array, rng.choice(np.float32([-np.inf, np.inf]), array.shape))


def trained(model: Any, steps: int) -> np.ndarray[Any, Any]:
    """Take gradient steps with fixed random numbers and return the weights."""
    np.random.seed(1)  # noqa: NPY002 - SB3's stream of random numbers
    th.manual_seed(1)
    model.train(gradient_steps=steps, batch_size=ROWS)
    return weights(model)


def differences(case: Case, steps: int) -> dict[str, float]:
    """Return the relative distance of each side for one case."""
    before = weights(made(case, stock=True))
    expected = trained(made(case, stock=True), steps)
    moved = float(np.linalg.norm(expected - before))
    found = trained(made(case, stock=False), steps)
    nudged = []
    for draw in range(3):
        model = made(case, stock=True)
        nudge(model, draw)
        nudged.append(float(np.linalg.norm(trained(model, steps) - expected)) / moved)
    return {"fused": float(np.linalg.norm(found - expected)) / moved, "ulp": max(nudged)}


def main(argv: Sequence[str] | None = None) -> None:
    """Compute and print the differences after one gradient step and after many."""
    options = parser(__doc__, repeats=None)
    add_count(options, "--steps", 100, "gradient steps")
    add_names(options, "--cases", CASES)
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    rows, results = [], {}
    for name in arguments.cases:
        found = {steps: differences(CASES[name], steps) for steps in (1, arguments.steps)}
        results[name] = {f"after {steps}": figures for steps, figures in found.items()}
        cells = [f"{figures[side]:.1e}" for figures in found.values() for side in ("fused", "ulp")]
        rows.append([name, CASES[name].words, *cells])
    header = ["", "", "1 step: fused", "one ulp", f"{arguments.steps} steps: fused", "one ulp"]
    print_table(header, rows)
    Report("replay_accuracy", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()

"""Does a training learn as well from clients over HTTP as from envs that it steps itself?

For each env and seed, the same settings are trained twice: with envs in process, and with envs that a client process
steps, which holds all episodes. Printed are the env steps until the mean return of the latest episodes reaches the
threshold, and the env steps in a second.

    python benchmarks/external_learning.py --seeds 5
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from command_line import add_count, add_names, parser
from measure import Report, Setting, number, print_table, say

from marl_sb3.core.config.values import EXTERNAL
from marl_sb3.core.envs.registry import env_factory, make_env
from marl_sb3.runs.execution import execute
from marl_sb3.runs.settings import load_config
from marl_sb3.runs.start import prepare
from marl_sb3.tools.serving.external import external_server
from marl_sb3.tools.serving.spaces_json import describe

CLIENT = Path(__file__).parent / "external_client.py"
HYPERPARAMETERS = {
    "CartPole-v1": {
        "n_envs": 8, "n_steps": 32, "batch_size": 256, "n_epochs": 20, "gae_lambda": 0.8, "gamma": 0.98,
        "learning_rate": "lin_0.001", "clip_range": "lin_0.2",
    },
    "arena": {"n_envs": 20, "n_steps": 50, "batch_size": 200, "n_epochs": 5},
}  # fmt: skip
TIMESTEPS = {"CartPole-v1": 60_000, "arena": 200_000}
THRESHOLDS = {"CartPole-v1": 195.0, "arena": 20.0}
SETTING = Setting(
    "PPO, a shared policy; envs in process, and envs that a client process steps over HTTP",
    HYPERPARAMETERS,
    "the training and its client share the cores",
    {},
)


@dataclass(frozen=True)
class Curve:
    """What came of a training."""

    steps: Sequence[int]  # env steps after each iteration
    returns: Sequence[float | None]  # mean return of the latest episodes after each iteration; None: none has ended
    steps_per_s: float  # env steps in a second

    def steps_to(self, threshold: float) -> int:
        """Return the env steps until a return was reached; those of the whole training if it was not."""
        reached = (
            step for step, mean in zip(self.steps, self.returns, strict=True) if mean is not None and mean >= threshold
        )
        return next(reached, self.steps[-1])


def train(env_id: str, seed: int, *, is_external: bool) -> Curve:
    """Train in an env with envs in process, or with a client."""
    settings: Mapping[str, Any] = HYPERPARAMETERS[env_id]
    budget = {"algo": "ppo", "n_timesteps": TIMESTEPS[env_id], "seed": seed}
    with tempfile.TemporaryDirectory() as folder:
        if not is_external:
            run = prepare(load_config(env_id, hparams={env_id: {**settings, **budget}}), Path(folder, "run"))
            started_s = time.perf_counter()
            execute(run)
        else:
            hparams = {EXTERNAL: {**settings, **budget, "env_kwargs": {"agents": _agents_of(env_id)}}}
            run = prepare(load_config(EXTERNAL, hparams=hparams), Path(folder, "run"))
            with external_server(run.algorithm) as server:
                client = [sys.executable, str(CLIENT), env_id, server.address, str(settings["n_envs"])]
                with subprocess.Popen(client):
                    while not run.algorithm.env.num_episodes:
                        time.sleep(0.01)
                    started_s = time.perf_counter()
                    execute(run)
        took_s = time.perf_counter() - started_s
        results = run.results
    steps = [result["num_env_steps_sampled_lifetime"] for result in results]
    return Curve(steps, [result["env_runners"]["episode_return_mean"] for result in results], steps[-1] / took_s)


def _agents_of(env_id: str) -> dict[str, Any]:
    env = make_env(env_factory(env_id), 0, {})
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    return {
        agent: {name: describe(space_of(agent)) for name, space_of in spaces.items()} for agent in env.possible_agents
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = parser(__doc__, repeats=None)
    add_names(options, "--envs", HYPERPARAMETERS)
    add_count(options, "--seeds", 5, "trainings of each side")
    arguments = options.parse_args(argv)
    SETTING.print()
    rows, found = [], {}
    for env_id in arguments.envs:
        sides: dict[str, list[Curve]] = {"in_process": [], "from_clients": []}
        for seed in range(1, arguments.seeds + 1):
            for side, curves in sides.items():
                curves.append(train(env_id, seed, is_external=side == "from_clients"))
                say(f"{env_id}, seed {seed}, {side}: {curves[-1].steps_to(THRESHOLDS[env_id]):,} env steps")
        threshold = THRESHOLDS[env_id]
        needed = [statistics.fmean(curve.steps_to(threshold) for curve in curves) for curves in sides.values()]
        speeds = [statistics.fmean(curve.steps_per_s for curve in curves) for curves in sides.values()]
        rows.append([env_id, *map(number, (threshold, *needed, needed[1] / needed[0], *speeds))])
        found[env_id] = {
            "raw": {side: [asdict(curve) for curve in curves] for side, curves in sides.items()},
            "env_steps_to_threshold": dict(zip(sides, needed, strict=True)),
        }
    header = ["env", "return", "steps in process", "from clients", "ratio", "env steps/s in process", "from clients"]
    print_table(header, rows)
    Report("external_learning", SETTING, found).write(arguments.json)


if __name__ == "__main__":
    main()

"""Measure env workers: with an env that waits, with one that computes (beside other libraries), and their overhead.

    python benchmarks/workers.py [--only waiting,overhead,computing] [--env sisl/pursuit-v5] [--json FILE]

The waiting env sleeps for 2 ms in each step and computes nothing, so that two cores can stand for many. The overhead is
the time of a CartPole step in one worker minus that of a step in the main process. SuperSuit steps the computing env
with `num_cpus`, SB3 with `SubprocVecEnv`, where all agents of an env count as one.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import gymnasium
import numpy as np
import supersuit
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table, say, take_turns
from stable_baselines3.common.vec_env import SubprocVecEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.envs.registry import env_factory, make_env

SETTING = Setting(
    what="env steps per second with random actions and several numbers of worker processes",
    hyperparameters={},
    threads="1 BLAS thread in each process",
    changes={"A": "nothing: the steps are the same with any number of workers"},
    packages=("marl_sb3", "stable-baselines3", "supersuit", "pettingzoo", "numpy"),
)
WAIT_S = 0.002
TURNS = 3  # of the waiting env
HANGS_S = 120.0  # a side that takes longer is considered hung


class Waiting(gymnasium.Env):  # type: ignore[type-arg]
    """An env that waits for 2 ms in each step, as if for an external simulator."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode without waiting."""
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        """Wait; the observation and the reward are zeros."""
        time.sleep(WAIT_S)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def waiting() -> gymnasium.Env:  # type: ignore[type-arg]
    """Make a `Waiting`."""
    return Waiting()


class AsOneAgent(gymnasium.Env):  # type: ignore[type-arg]
    """A `ParallelEnv` as an env with one agent, for `SubprocVecEnv`; all agents must have the same spaces."""

    def __init__(self, env: str) -> None:
        self._env = make_env(env_factory(env), 0, {})
        agents = self._env.possible_agents
        space, self._action_space = (
            getattr(self._env, name)(agents[0]) for name in ("observation_space", "action_space")
        )
        shape = (len(agents), *space.shape)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = spaces.Discrete(2)  # ignored by `step`

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode; return the stacked observations of all agents."""
        observations, _ = self._env.reset(seed=seed)
        return self._stacked(observations), {}

    def step(self, action: Any) -> Any:
        """Let all agents act at random, whatever the action is."""
        given = {agent: self._action_space.sample() for agent in self._env.agents}
        observations, rewards, *_ = self._env.step(given)
        return self._stacked(observations), float(sum(rewards.values())), not self._env.agents, False, {}

    def _stacked(self, observations: Mapping[str, Any]) -> Any:
        stacked = np.zeros(self.observation_space.shape, np.float32)
        for number, agent in enumerate(self._env.possible_agents):
            if agent in observations:
                stacked[number] = observations[agent]
        return stacked


def steps_per_s(step: Callable[[], object], num_envs: int, seconds: float) -> float:
    """Measure env steps per second; the first three steps are not counted."""
    for _ in range(3):
        step()
    steps, started_s = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - started_s < seconds:
        step()
        steps += 1
    return steps * num_envs / (time.perf_counter() - started_s)


def ours(env: Any, n_envs: int, n_workers: int, seconds: float) -> float:
    """Measure marl_sb3, in env steps per second."""
    with closing(make_vec_env(env, n_envs, seed=0, n_workers=n_workers, vectorizer="sync")) as vec:
        vec.reset()
        for group in vec.groups:
            group.action_space.seed(0)
        actions = [
            np.array([[group.action_space.sample() for _ in group.agents] for _ in range(n_envs)])
            for group in vec.groups
        ]
        return steps_per_s(lambda: vec.step(actions), n_envs, seconds)


def of_supersuit(env: str, n_envs: int, n_cpus: int, seconds: float) -> float:
    """Measure SuperSuit, in env steps per second."""
    markov = supersuit.pettingzoo_env_to_vec_env_v1(make_env(env_factory(env), 0, {}))
    vec = supersuit.concat_vec_envs_v1(markov, n_envs, num_cpus=n_cpus, base_class="stable_baselines3")
    vec.reset()
    actions = np.array([vec.action_space.sample() for _ in range(vec.num_envs)])
    return steps_per_s(lambda: vec.step(actions), n_envs, seconds)


def of_sb3(env: str, n_envs: int, seconds: float) -> float:
    """Measure `SubprocVecEnv`, which has a process for each env, in env steps per second."""
    vec = SubprocVecEnv([partial(AsOneAgent, env)] * n_envs)
    vec.reset()
    actions = np.zeros(n_envs, np.int64)
    try:
        return steps_per_s(lambda: vec.step(actions), n_envs, seconds)
    finally:
        vec.close()


def apart(side: Callable[[], float]) -> float:
    """Measure in a process of its own; return 0 if it hung or failed."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(side, there))
    process.start()
    there.close()
    try:
        found: float = here.recv() if here.poll(HANGS_S) else 0.0
    except EOFError:
        found = 0.0
    process.kill()
    process.join()
    return found


def _measure(side: Callable[[], float], result: Connection) -> None:
    result.send(side())


def measure_waiting(n_envs: int, most: int, seconds: float) -> list[dict[str, Any]]:
    """Measure the waiting env with several numbers of workers; return speedup over one worker and efficiency."""
    counts = [number for number in (1, 2, 4, 8, 16, 32) if number <= most]
    raw: dict[int, list[float]] = {number: [] for number in counts}
    for _ in range(TURNS):  # in turns: when the machine is slow for a minute, it is slow for all
        for number in counts:
            say(f"waiting env, {number} workers")
            raw[number].append(ours(waiting, n_envs, number, seconds))
    medians = {number: statistics.median(figures) for number, figures in raw.items()}
    points = [
        {"workers": number, "raw": raw[number], "speedup": medians[number] / medians[1],
         "efficiency": medians[number] / (number / WAIT_S)}
        for number in counts
    ]  # fmt: skip
    rows = [
        [
            str(point["workers"]),
            f"{medians[point['workers']]:,.0f}",
            f"{point['speedup']:.1f} x",
            f"{point['efficiency']:.0%}",
        ]
        for point in points
    ]
    print(f"an env that waits {WAIT_S * 1000:g} ms per step, {n_envs} envs")
    print_table(["workers", "env steps/s", "of one worker", "of the ideal"], rows)
    return points


def measure_overhead(repeats: int, steps: int) -> dict[str, Any]:
    """Measure how many microseconds longer a step takes in a worker than in this process."""
    found = take_turns({f"{n} workers": partial(_step_us, n, steps) for n in (0, 1)}, repeats, "step of CartPole")
    here, there = (min(figures) for figures in found.values())
    print(
        f"a step of CartPole: {here:.0f} us in this process, {there:.0f} us in a worker: {there - here:.0f} us longer"
    )
    return {"unit": "microseconds", "raw": found, "overhead": there - here}


def _step_us(n_workers: int, steps: int, turn: int) -> float:
    with closing(make_vec_env("CartPole-v1", 1, seed=0, n_workers=n_workers)) as vec:
        vec.reset()
        actions, times = [np.zeros((1, 1), np.int64)], []
        for _ in range(steps):
            started_s = time.perf_counter()
            vec.step(actions)
            times.append(time.perf_counter() - started_s)
    return statistics.median(times) * 1e6


def measure_computing(env: str, n_envs: int, seconds: float, repeats: int) -> dict[str, Any]:
    """Measure marl_sb3, SuperSuit and SB3 with an env that computes, in env steps per second."""
    sides = {
        **{
            f"marl_sb3, {n} workers" if n else "marl_sb3, in process": partial(ours, env, n_envs, n, seconds)
            for n in (0, 1, 2)
        },
        "SuperSuit, in process": partial(of_supersuit, env, n_envs, 0, seconds),
        "SuperSuit, num_cpus=2": partial(of_supersuit, env, n_envs, 2, seconds),
        f"SB3, SubprocVecEnv of {n_envs}": partial(of_sb3, env, n_envs, seconds),
    }
    found = take_turns({name: lambda _, side=side: apart(side) for name, side in sides.items()}, repeats, env)
    medians = {name: statistics.median(figures) for name, figures in found.items()}
    base = medians["marl_sb3, in process"]
    print(f"{env}, {n_envs} envs")
    print_table(
        ["", "env steps/s", ""],
        [[name, f"{m:,.0f}" if m else "hung or failed", f"{m / base:.2f} x"] for name, m in medians.items()],
    )
    return {"unit": "env steps/s", "raw": {name: [f for f in figures if f] for name, figures in found.items()}}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the measurements and print a table for each."""
    options = parser(__doc__)
    add_names(options, "--only", ["waiting", "overhead", "computing"])
    options.add_argument("--env", default="sisl/pursuit-v5", help="the env that computes; default: sisl/pursuit-v5")
    add_count(options, "--n-envs", 128, "number of waiting envs", metavar="E")
    add_count(options, "--computing-envs", 8, "number of computing envs", metavar="E")
    add_count(options, "--most", 32, "largest number of workers for the waiting env")
    options.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each measurement; default: 2")
    add_count(options, "--steps", 3000, "CartPole steps for the overhead")
    arguments = options.parse_args(argv)
    SETTING.print()
    measurements: dict[str, Callable[[], Any]] = {
        "waiting": lambda: measure_waiting(arguments.n_envs, arguments.most, arguments.seconds),
        "overhead": lambda: measure_overhead(arguments.repeats, arguments.steps),
        "computing": lambda: measure_computing(
            arguments.env, arguments.computing_envs, arguments.seconds, arguments.repeats
        ),
    }
    results = {name: measurements[name]() for name in arguments.only}
    Report("workers", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()

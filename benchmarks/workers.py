"""How far workers carry: an env that waits, the overhead of a step, and an env that computes, beside other libraries.

    python benchmarks/workers.py [--only waiting,overhead,computing] [--env sisl/pursuit-v5] [--json FILE]

The waiting env sleeps for 2 ms in each step and computes nothing, so that two cores can stand for many. The overhead is
the time of a step in one worker less that in the process itself, of CartPole. SuperSuit steps the computing env with
`num_cpus`, SB3 with `SubprocVecEnv`, in which the agents of an env are one row.
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
from gymnasium import spaces
from measure import Report, Setting, parser, positive, print_table, say, some_of, take_turns
from stable_baselines3.common.vec_env import SubprocVecEnv

from marl_sb3 import make_vec_env
from marl_sb3.envs.registry import env_factory, make_env

SETTING = Setting(
    what="env steps per second with random actions, over numbers of worker processes",
    hyperparameters={},
    threads="1 BLAS thread in each process",
    changes={"A": "nothing: the steps are the same with any number of workers"},
    packages=("marl_sb3", "stable-baselines3", "supersuit", "pettingzoo", "numpy"),
)
WAIT_S = 0.002
HANGS_S = 120.0  # after this time a side has hung


class Waiting(gymnasium.Env):  # type: ignore[type-arg]
    """Waits for 2 ms in each step, as a simulator elsewhere does."""

    observation_space = spaces.Box(-1, 1, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """At once."""
        return np.zeros(4, np.float32), {}

    def step(self, action: Any) -> Any:
        """After the wait."""
        time.sleep(WAIT_S)
        return np.zeros(4, np.float32), 0.0, False, False, {}


def waiting() -> gymnasium.Env:  # type: ignore[type-arg]
    """A `Waiting`."""
    return Waiting()


class AsOneAgent(gymnasium.Env):  # type: ignore[type-arg]
    """A `ParallelEnv` with equal agents as one agent, for `SubprocVecEnv`: the stacked observations, all actions."""

    def __init__(self, env: str) -> None:
        self._env = make_env(env_factory(env), 0, {})
        agents = self._env.possible_agents
        space, self._action_space = (
            getattr(self._env, name)(agents[0]) for name in ("observation_space", "action_space")
        )
        shape = (len(agents), *space.shape)
        self.observation_space = spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = spaces.Discrete(2)  # not used: the actions are drawn here

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin an episode of all agents."""
        observations, _ = self._env.reset(seed=seed)
        return self._stacked(observations), {}

    def step(self, action: Any) -> Any:
        """All agents act at random."""
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
    """Env steps per second, after some that are not counted."""
    for _ in range(3):
        step()
    steps, started_s = 0, time.perf_counter()
    while steps < 3 or time.perf_counter() - started_s < seconds:
        step()
        steps += 1
    return steps * num_envs / (time.perf_counter() - started_s)


def ours(env: Any, n_envs: int, n_workers: int, seconds: float) -> float:
    """Env steps per second of marl_sb3."""
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
    """Env steps per second of SuperSuit."""
    markov = supersuit.pettingzoo_env_to_vec_env_v1(make_env(env_factory(env), 0, {}))
    vec = supersuit.concat_vec_envs_v1(markov, n_envs, num_cpus=n_cpus, base_class="stable_baselines3")
    vec.reset()
    actions = np.array([vec.action_space.sample() for _ in range(vec.num_envs)])
    return steps_per_s(lambda: vec.step(actions), n_envs, seconds)


def of_sb3(env: str, n_envs: int, seconds: float) -> float:
    """Env steps per second of `SubprocVecEnv`, which has a process for each env."""
    vec = SubprocVecEnv([partial(AsOneAgent, env)] * n_envs)
    vec.reset()
    actions = np.zeros(n_envs, np.int64)
    try:
        return steps_per_s(lambda: vec.step(actions), n_envs, seconds)
    finally:
        vec.close()


def apart(side: Callable[[], float]) -> float:
    """Measure in a process of its own; 0 if it has hung or failed."""
    ours_, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(side, theirs))
    process.start()
    theirs.close()
    try:
        found: float = ours_.recv() if ours_.poll(HANGS_S) else 0.0
    except EOFError:
        found = 0.0
    process.kill()
    process.join()
    return found


def _measure(side: Callable[[], float], result: Connection) -> None:
    result.send(side())


def measure_waiting(n_envs: int, most: int, seconds: float) -> list[dict[str, Any]]:
    """Env steps per second of the waiting env over numbers of workers, and the efficiency against one of them."""
    counts = [number for number in (1, 2, 4, 8, 16, 32) if number <= most]
    raw: dict[int, list[float]] = {number: [] for number in counts}
    for _ in range(3):  # in turns: a machine that is slow for a minute is slow for all of them
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
    """Microseconds that a step in one worker takes longer, and medians of both."""
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
    """Env steps per second of an env that computes, with marl_sb3, SuperSuit and SB3."""
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
    """Print a table for each measurement."""
    options = parser(__doc__)
    names = ["waiting", "overhead", "computing"]
    options.add_argument("--only", type=some_of(names), default=names, metavar="NAMES", help="default: all")
    options.add_argument("--env", default="sisl/pursuit-v5", help="the env that computes; default: sisl/pursuit-v5")
    options.add_argument("--n-envs", type=positive, default=128, metavar="E", help="that wait; default: 128")
    options.add_argument("--computing-envs", type=positive, default=8, metavar="E", help="that compute; default: 8")
    options.add_argument("--most", type=positive, default=32, metavar="N", help="most workers that wait; default: 32")
    options.add_argument("--seconds", type=float, default=2.0, metavar="S", help="of each measurement; default: 2")
    options.add_argument("--steps", type=positive, default=3000, help="of CartPole; default: 3000")
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

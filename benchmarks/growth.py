"""Measure how the cost of an iteration grows with envs, agents, policies and the width of the networks.

    python benchmarks/growth.py [--only envs,agents,policies,independent,width] [--repeats 3] [--json FILE]

envs: 1 to 4,096 arenas with one shared policy. Above 256 envs, rollouts get shorter so that an iteration takes seconds:
      it has at most 25,600 env steps.
agents: 2 to 64 agents in each of 16 envs (`many_agents.py`) with one shared policy.
policies: 1 to 64 policies for 64 agents of that env, mapped round robin.
independent: 1 to 64 agents of that env, each with its own policy.
width: hidden layers of 32 to 512 units, in 20 arenas with one shared policy.

The points of a kind take turns. In each turn, the first iteration is not counted; then as many are counted as fill
`--seconds`, at least one. The times of rollouts and of updates are those that `timers` reports.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from command_line import add_count, add_names, parser, positive
from many_agents import ManyAgents
from measure import Report, Setting, number, print_table, spread, take_turns
from trainings import one_torch_thread

from marl_sb3 import MultiAgentAlgorithm, MultiAgentVecEnv, PolicySpec, make_vec_env

HYPERPARAMETERS: dict[str, Any] = {"batch_size": 128, "n_epochs": 10, "learning_rate": 3e-4}
SETTING = Setting(
    what="marl_sb3 (fused, batched envs), networks 64x64 unless said otherwise",
    hyperparameters=HYPERPARAMETERS,
    threads="1 torch thread; policies are updated in parallel, one per core",
    changes={"A": "batched envs", "B": "fused networks, in rollouts and in updates"},
    packages=("marl_sb3", "stable-baselines3", "torch", "numpy", "numba"),
)


@dataclass(frozen=True)
class Cost:
    """What some iterations cost."""

    env_steps: int  # env steps of all envs
    agent_steps: int  # agent steps of all agents
    rollout_s: float  # wall-clock time of the rollouts
    update_s: float  # wall-clock time of the updates of all policies
    cpu_s: float  # CPU time of the iterations, over all threads

    @property
    def seconds(self) -> float:
        """Wall-clock time of rollouts and updates."""
        return self.rollout_s + self.update_s

    def rates(self) -> dict[str, float]:
        """Return the figures of the table."""
        return {
            "env_steps_per_s": self.env_steps / self.seconds,
            "agent_steps_per_s": self.agent_steps / self.seconds,
            "rollout_env_steps_per_s": self.env_steps / self.rollout_s,
            "update_env_steps_per_s": self.env_steps / self.update_s,
            "us_per_agent_step": 1e6 * self.seconds / self.agent_steps,
            "cpu_us_per_agent_step": 1e6 * self.cpu_s / self.agent_steps,
        }


def cost(algorithm: MultiAgentAlgorithm, seconds: float) -> Cost:
    """Run iterations for so many seconds of rollouts and updates, and return what they cost."""
    algorithm.train_iteration()
    total = Cost(0, 0, 0.0, 0.0, 0.0)
    while total.seconds < seconds:
        started_s = time.process_time()
        result = algorithm.train_iteration()
        cpu_s = time.process_time() - started_s
        counts, timers = result["env_runners"], result["timers"]
        total = Cost(
            total.env_steps + counts["num_env_steps_sampled"],
            total.agent_steps + sum(counts["num_agent_steps_sampled"].values()),
            total.rollout_s + timers["env_runner_sampling_timer"],
            total.update_s + timers["learner_update_timer"],
            total.cpu_s + cpu_s,
        )
    return total


# --- A function for each kind: (count, env steps of a rollout, seed) -> the algorithm to measure ---------------------


def envs(count: int, n_steps: int, seed: int) -> MultiAgentAlgorithm:
    """Make one shared policy for `count` arenas."""
    n_steps = max(2, min(n_steps, 25_600 // count))
    return _algorithm(make_vec_env("arena", n_envs=count), n_steps, seed)


def agents(count: int, n_steps: int, seed: int) -> MultiAgentAlgorithm:
    """Make one shared policy for `count` agents."""
    return _algorithm(make_vec_env(ManyAgents, n_envs=16, agents=count), n_steps, seed)


def policies(count: int, n_steps: int, seed: int) -> MultiAgentAlgorithm:
    """Make `count` policies for 64 agents."""
    env = make_vec_env(ManyAgents, n_envs=16, agents=64)
    ids = [f"policy{index}" for index in range(count)]
    mapping = {agent: ids[index % count] for index, agent in enumerate(env.agents)}
    specs = {policy_id: PolicySpec() for policy_id in ids}
    return _algorithm(env, n_steps, seed, policies=specs, policy_mapping_fn=mapping)


def independent(count: int, n_steps: int, seed: int) -> MultiAgentAlgorithm:
    """Make a policy for each of `count` agents."""
    return _algorithm(make_vec_env(ManyAgents, n_envs=16, agents=count), n_steps, seed, policies="per_agent")


def width(count: int, n_steps: int, seed: int) -> MultiAgentAlgorithm:
    """Make one shared policy with two hidden layers of `count` units."""
    env = make_vec_env("arena", n_envs=20)
    return _algorithm(env, n_steps, seed, policy_kwargs={"net_arch": [count, count]})


def _algorithm(env: MultiAgentVecEnv, n_steps: int, seed: int, **settings: Any) -> MultiAgentAlgorithm:
    return MultiAgentAlgorithm(env, n_steps=n_steps, seed=seed, device="cpu", **HYPERPARAMETERS, **settings)


@dataclass(frozen=True)
class Kind:
    """What grows: how to make an algorithm of a size, and the sizes."""

    algorithm: Callable[[int, int, int], MultiAgentAlgorithm]
    counts: Sequence[int]


KINDS: Mapping[str, Kind] = {
    "envs": Kind(envs, (1, 4, 16, 64, 256, 1024, 4096)),
    "agents": Kind(agents, (2, 4, 8, 16, 32, 64)),
    "policies": Kind(policies, (1, 2, 4, 8, 16, 32, 64)),
    "independent": Kind(independent, (1, 4, 16, 64)),
    "width": Kind(width, (32, 64, 128, 256, 512)),
}


# --- The command -----------------------------------------------------------------------------------------------------


def measure(name: str, counts: Sequence[int], repeats: int, n_steps: int, seconds: float) -> list[dict[str, Any]]:
    """Measure all points of a kind and print their table; return their figures for JSON."""

    def point(count: int, turn: int) -> Cost:
        return cost(KINDS[name].algorithm(count, n_steps, turn), seconds)

    sides = {f"{name} {count}": partial(point, count) for count in counts}
    costs = take_turns(sides, repeats, "growth")
    points = [
        {"count": count, "raw": [{**asdict(one), **one.rates()} for one in turns]}
        for count, turns in zip(counts, costs.values(), strict=True)
    ]
    header = [name, "env steps/s", "rollout alone", "update alone", "agent steps/s", "us per agent step (min to max)"]
    header.append("us of CPU time")
    print()
    print_table(header, [_row(point) for point in points])
    return points


def _row(point: Mapping[str, Any]) -> list[str]:
    raw = point["raw"]
    shown = ("env_steps_per_s", "rollout_env_steps_per_s", "update_env_steps_per_s", "agent_steps_per_s")
    medians = [number(statistics.median(one[name] for one in raw)) for name in shown]
    times = [spread([one[name] for one in raw]) for name in ("us_per_agent_step", "cpu_us_per_agent_step")]
    return [str(point["count"]), *medians, *times]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the kinds one after the other and print a table for each."""
    options = parser(__doc__)
    add_names(options, "--only", KINDS)
    options.add_argument("--points", type=positive, metavar="N", help="the first N points of each kind; default: all")
    add_count(options, "--n-steps", 100, "env steps per env in a rollout")
    options.add_argument(
        "--seconds", type=float, default=0.5, metavar="S", help="seconds for each point in a turn; default: 0.5"
    )
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    results = {
        name: measure(
            name, KINDS[name].counts[: arguments.points], arguments.repeats, arguments.n_steps, arguments.seconds
        )
        for name in arguments.only
    }
    Report("growth", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()

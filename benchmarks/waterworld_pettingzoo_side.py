"""PettingZoo's side of `waterworld_vs_pettingzoo.py`, which starts it; it does not use marl_sb3.

    python benchmarks/waterworld_pettingzoo_side.py JSON FILE.npz

It needs an environment with PettingZoo 1.25 and pymunk < 7. JSON is an object with `settings` (arguments of
`waterworld_v4`), `policy`, `episodes`, `seed`, `every` (the observations of every Nth env step are kept) and `trace`
(the number of episodes of which all states are kept too). FILE gets the arrays of `waterworld_checks.Record` and those
of `TRACED`.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from pettingzoo.sisl import waterworld_v4
from pettingzoo.sisl.waterworld.waterworld_base import WaterworldBase
from waterworld_policies import POLICIES

PX = 750  # side of the square in pixels
EVENTS = ("food_encounters", "captures", "poison_hits")


class Counted(WaterworldBase):
    """Waterworld that also counts the events of each pursuer, and records which objects were moved."""

    def reset(self) -> Any:
        """Begin an episode and reset the counts."""
        self.counts = np.zeros((len(EVENTS), self.n_pursuers), dtype=np.int64)
        self.moved = np.zeros(self.n_evaders + self.n_poisons, dtype=np.bool_)
        return super().reset()

    def _count(self, event: str, arbiter: Any) -> None:
        self.counts[EVENTS.index(event), arbiter.shapes[0].collision_type - 1] += 1

    def pursuer_poison_begin_callback(self, arbiter: Any, space: Any, data: Any) -> Any:
        """Count that a pursuer touches a poison; the poison is moved."""
        self._count("poison_hits", arbiter)
        self.moved[self.n_evaders + arbiter.shapes[1].collision_type - 2000] = True
        return super().pursuer_poison_begin_callback(arbiter, space, data)

    def pursuer_evader_begin_callback(self, arbiter: Any, space: Any, data: Any) -> Any:
        """Count that a pursuer touches a food."""
        self._count("food_encounters", arbiter)
        return super().pursuer_evader_begin_callback(arbiter, space, data)

    def pursuer_evader_separate_callback(self, arbiter: Any, space: Any, data: Any) -> Any:
        """A pursuer stops touching a food: count a capture if it was eaten; then the food is moved."""
        if arbiter.shapes[1].counter >= self.n_coop:
            self._count("captures", arbiter)
            self.moved[arbiter.shapes[1].collision_type - 1000] = True
        return super().pursuer_evader_separate_callback(arbiter, space, data)

    def moving(self) -> tuple[Any, Any]:
        """Return positions and velocities of pursuers, foods and poisons: (2, N) each; the square has side 1."""
        bodies = [thing.body for thing in (*self.pursuers, *self.evaders, *self.poisons)]
        positions, velocities = ([tuple(getattr(body, name)) for body in bodies] for name in ("position", "velocity"))
        return np.array(positions).T / PX, np.array(velocities).T / PX


def main() -> None:
    """Play the episodes and write the file."""
    job = json.loads(sys.argv[1])
    waterworld_v4._env = Counted  # `raw_env` makes envs of this class
    sys.modules[waterworld_v4.raw_env.__module__]._env = Counted
    arrays = play(job)
    versions = {name: version(name) for name in ("pettingzoo", "pymunk", "numpy")}
    np.savez(sys.argv[2], versions=json.dumps(versions), **arrays)


def play(job: dict[str, Any]) -> dict[str, Any]:
    """Play the episodes; return the arrays of the file."""
    env = waterworld_v4.parallel_env(**job["settings"])
    base = env.unwrapped.env
    policy, rng = POLICIES[job["policy"]], np.random.default_rng(job["seed"])
    kept: list[Any] = []
    returns, counts, lengths = [], [], []
    trace: dict[str, list[Any]] = {name: [] for name in TRACED}
    step_s, steps = 0.0, 0
    for episode in range(job["episodes"]):
        seen, _ = env.reset(seed=job["seed"] + episode)
        total, length, agents = np.zeros(len(env.agents)), 0, list(env.agents)
        tracing = episode < job["trace"]
        if tracing:
            add(trace, base, None, None, seen, True)
        while env.agents:
            actions = policy(np.stack([seen[agent] for agent in agents]), base.n_sensors, rng)
            started_s = time.process_time()
            seen, rewards, *_ = env.step(dict(zip(agents, actions, strict=True)))
            step_s += time.process_time() - started_s
            paid = np.array([rewards[agent] for agent in agents])
            total, length, steps = total + paid, length + 1, steps + 1
            if steps % job["every"] == 0:
                kept.append(np.stack([seen[agent] for agent in agents]))
            if tracing:
                add(trace, base, actions, paid, seen, False)
        returns.append(total)
        counts.append(base.counts.copy())
        lengths.append(length)
    record = {
        "observations": kept,
        "returns": returns,
        "counts": counts,
        "lengths": lengths,
        "env_step_s": step_s / steps,
    }
    return {name: np.array(values) for name, values in {**record, **trace}.items()}


TRACED = ("begins", "positions", "velocities", "moved", "actions", "rewards", "seen")


def add(trace: dict[str, list[Any]], base: Any, actions: Any, rewards: Any, seen: Any, begins: bool) -> None:
    """Add a state to the trace, with the actions before it, the rewards and the observations."""
    positions, velocities = base.moving()
    nothing, moved = np.zeros((base.n_pursuers, 2), dtype=np.float32), base.moved
    base.moved = np.zeros_like(moved)
    values = (
        begins,
        positions,
        velocities,
        moved,
        nothing if actions is None else actions,
        nothing[:, 0] if rewards is None else rewards,
        np.stack(list(seen.values())),
    )
    for name, value in zip(TRACED, values, strict=True):
        trace[name].append(value)


if __name__ == "__main__":
    main()

"""Envs and networks of several sizes in one process, or in processes of one folder of compiled code.

As a program: `python of_sizes.py KIND WORD ...` prints a digest for each size. Those after `fork` are of forked
processes; after `apart`, with own folders of compiled code; after `counting`, with functions that numba names by
itself. After `here`, none of this is so, and what processes have named alike is printed first.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
from compiling_once import shared_symbols
from gymnasium import spaces
from numba.core.bytecode import FunctionIdentity


def begin(state: Any, rng: np.random.Generator) -> None:
    state.counts[:] = 0


@numba.njit
def weighed(state: Any) -> float:
    """Return a number from code that is too long to become a part of what calls it."""
    total = 0.0
    for i in range(state.counts.shape[0]):
        for j in range(state.counts.shape[0]):
            high, low = max(state.counts[i], state.counts[j]), min(state.counts[i], state.counts[j])
            if high > 2 * low:
                total += np.sqrt(high) - np.log(1 + low) + np.sin(i) * np.cos(j)
            elif (i + j) % 2:
                total -= np.tan(low / (1 + high)) + high % (1 + low) + np.exp(-high)
            else:
                total += np.arctan2(high, 1 + low) - np.hypot(i, j)
    return total


def step(state: Any, actions: Any, rng: Any, outcome: Any) -> None:
    place = 0
    for agent in range(2):
        place = (place + 1 + actions[agent]) % state.counts.shape[0]
        state.counts[place] += 1
        outcome.rewards[agent] = weighed(state) + state.counts[place]


def observe(state: Any, observations: Any) -> None:
    for agent in range(2):
        observations[agent, 0] = state.counts[state.counts.shape[0] - 1 - agent]


def rules(size: int) -> Any:
    """A user's rules, whose record has another layout for each size."""
    from marl_sb3.envs.compiled.batch import CompiledBatch
    from marl_sb3.envs.compiled.rules import CompiledRules

    ours = CompiledRules(
        agents=("a", "b"),
        observation_space=spaces.Box(0, 1000, (1,), np.float32),
        action_space=spaces.Discrete(3),
        state=np.dtype([("counts", np.int64, (size,))]),
        begin=begin,
        step=step,
        observe=observe,
    )
    plain = SimpleNamespace(metadata={}, render_mode=None, close=lambda: None)
    return steps(CompiledBatch(3, ours, plain), 3)


def steps(batch: Any, choices: int) -> list[Any]:
    """Return all numbers of 60 steps with actions drawn with one seed."""
    rng, seen = np.random.default_rng(0), []
    batch.reset(range(3), range(3))
    for _ in range(60):
        step = batch.step(rng.integers(choices, size=(3, len(batch.possible_agents))))
        seen += [step.rewards.tolist(), step.truncated.tolist(), batch.observations().tolist()]
        seen.append([np.asarray(batch.states[name]).tolist() for name in batch.states.dtype.names])
    return seen


def arena(size: int) -> Any:
    from marl_sb3.envs.arena import ArenaEnv

    return steps(ArenaEnv.make_batched(3, height=size, width=size, max_timesteps=100), 4)


def particles(size: int) -> Any:
    from marl_sb3 import make_vec_env

    batch: Any = make_vec_env("mpe2/simple_spread-v3", n_envs=3, env_kwargs={"N": size}).batch
    return steps(batch, 5)


def update(size: int) -> Any:
    """The weights after two rollouts and updates of PPO, with as many layers."""
    from marl_sb3 import PPO, MultiAgentAlgorithm, PolicySpec, make_vec_env

    spec = PolicySpec(PPO, batch_size=16, policy_kwargs={"net_arch": [8] * size})
    algo = MultiAgentAlgorithm(make_vec_env("arena", n_envs=2, seed=0), policies={"shared": spec}, n_steps=16, seed=0)
    algo.learn(64)
    weights = algo.policies["shared"].get_parameters()["policy"]
    return [weight.tolist() for weight in weights.values()]


KINDS: dict[str, Callable[[int], Any]] = {"rules": rules, "arena": arena, "particles": particles, "update": update}


def digest(kind: str, size: int) -> str:
    return f"{size} {hashlib.sha256(repr(KINDS[kind](size)).encode()).hexdigest()}"


def main(kind: str, *words: str) -> None:
    how = set[str]()
    for word in words:
        if word == "here":
            how.clear()
            print(sorted(shared_symbols(Path(numba.config.CACHE_DIR))))  # type: ignore[attr-defined]
        elif not word.isdecimal():
            how.add(word)
        elif "fork" not in how:
            print(digest(kind, int(word)), flush=True)
        elif os.fork():
            os.wait()
        else:
            if "counting" in how:
                FunctionIdentity._unique_ids = itertools.count(1)
            if "apart" in how:
                numba.config.CACHE_DIR += f"/{word}"  # type: ignore[attr-defined]
            print(digest(kind, int(word)), flush=True)
            os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

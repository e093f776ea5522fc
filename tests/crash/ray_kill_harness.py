"""Kill runners and nodes of a Ray cluster while they roll out shards, and compare the training with an undisturbed one.

    python tests/crash/ray_kill_harness.py --kills 50 --nodes 5

The cluster is on this machine; each of its nodes is a set of processes of its own. The undisturbed training rolls out
the same shards in this process.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from kills import Tally, command

from marl_sb3 import MultiAgentAlgorithm
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.extensions.remote.sharded_vec_env import make_sharded_vec_env

ENVS, SHARDS, STEPS, NODES, MOST_AT_ONCE = 8, 8, 50, 4, 3


@contextmanager
def cluster_of(nodes: int, cpus: int = 1) -> Iterator[Any]:
    """A Ray cluster on this machine: a head without CPUs, and nodes that can be removed and added."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(nodes):
            cluster.add_node(num_cpus=cpus)
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def algorithm_on(address: str | None, runners: int = 1) -> MultiAgentAlgorithm:
    """The training; None rolls out the shards in this process."""
    ray = None if address is None else RaySettings(address, runners, start_timeout_s=300.0)
    env = make_sharded_vec_env("arena", ENVS, SHARDS, seed=5, ray=ray)
    small: dict[str, Any] = {"n_epochs": 1, "policy_kwargs": {"net_arch": [8]}, "device": "cpu", "update_path": "torch"}
    return MultiAgentAlgorithm(env, "per_agent", n_steps=STEPS, seed=5, batch_size=100, **small)


def digest(algorithm: MultiAgentAlgorithm) -> str:
    """Of all weights, of the optimizers, and of the episodes."""
    found = hashlib.sha256()
    for learner in algorithm.parts.learners.values():
        for arrays in learner.get_tensors().values():
            for name, array in sorted(arrays.items()):
                found.update(name.encode() + array.tobytes())
    found.update(
        repr([(e.env_index, e.length, *e.agent_returns.values()) for e in algorithm.tracker.episodes]).encode()
    )
    return found.hexdigest()[:16]


def processes(name: str = "ray::ServingAct") -> list[psutil.Process]:
    """The processes of this name, the runners, of the cluster that this process has started."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [each] if each.name().startswith(name) else []
    return found


class Disturber(threading.Thread):
    """Disturbs what runs meanwhile, at random moments.

    Args:
        disturb: called with random numbers; returns the name of what it has done, or None.
        most: how many times at most.
        mean_s: mean of the time between two.
        rng: of the moments.
    """

    def __init__(
        self, disturb: Callable[[random.Random], str | None], most: int, mean_s: float, rng: random.Random
    ) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[str] = Counter()
        self._disturb, self._most, self._mean_s, self._rng = disturb, most, mean_s, rng
        self._is_over = threading.Event()

    def run(self) -> None:
        while self.counts.total() < self._most and not self._is_over.wait(self._rng.expovariate(1 / self._mean_s)):
            if (done := self._disturb(self._rng)) is not None:
                self.counts[done] += 1

    def end(self) -> Counter[str]:
        """Stop; returns what was done."""
        self._is_over.set()
        self.join()
        return self.counts


class Cluster:
    """Runners and nodes of which any may be killed at any moment.

    In one iteration at most `MOST_AT_ONCE` runners are killed: a shard that ends one runner after the other ends the
    training.

    Args:
        cluster: of `cluster_of`.
        algorithm: which rolls out its shards there.
        kills: runners to kill.
        nodes: nodes to remove; the main thread adds new ones, which Ray allows no other thread.
    """

    def __init__(self, cluster: Any, algorithm: MultiAgentAlgorithm, kills: int, nodes: int) -> None:
        self._cluster, self._algorithm = cluster, algorithm
        self._left = Counter(runners=kills, nodes=nodes)
        self._killed_in: Counter[int] = Counter()  # iteration -> runners

    def disturb(self, rng: random.Random) -> str | None:
        """Kill a runner or remove a node; see `Disturber`."""
        kind = rng.choice([kind for kind, left in self._left.items() if left > 0])
        done = self._remove_node(rng) if kind == "nodes" else self._kill_runner(rng)
        self._left[kind] -= done
        return kind if done else None

    def _remove_node(self, rng: random.Random) -> bool:
        """Remove a node that this process is not connected to."""
        from ray._private.worker import global_worker

        ours = global_worker.node.raylet_socket_name
        others = [each for each in self._cluster.worker_nodes if each.raylet_socket_name != ours]
        if len(others) < NODES - 1:
            return False
        self._cluster.remove_node(rng.choice(sorted(others, key=lambda each: each.unique_id)), False)
        return True

    def _kill_runner(self, rng: random.Random) -> bool:
        runners, iteration = processes(), self._algorithm.iteration
        if not runners or self._killed_in[iteration] >= MOST_AT_ONCE:
            return False
        self._killed_in[iteration] += 1
        rng.choice(runners).kill()
        return True


def campaign(options: argparse.Namespace, folder: Path) -> Tally:
    """Train under fire, and compare with the training that nobody disturbed."""
    with cluster_of(NODES) as cluster:
        algorithm = algorithm_on(cluster.address, options.runners)
        algorithm.train_iteration()
        most = options.kills + options.nodes
        disturb = Cluster(cluster, algorithm, options.kills, options.nodes).disturb
        disturber = Disturber(disturb, most, 0.5, random.Random(options.seed))
        disturber.start()
        while disturber.is_alive():
            algorithm.train_iteration()
            while len(cluster.worker_nodes) < NODES:
                cluster.add_node(num_cpus=1)
        counts, result = disturber.end(), algorithm.train_iteration()
        counts["replaced"] = result["fault_tolerance"]["num_worker_restarts"]
        counts["iterations"] = algorithm.iteration
        disturbed = digest(algorithm)
        algorithm.env.close()
    undisturbed = algorithm_on(None)
    for _ in range(counts["iterations"]):
        undisturbed.train_iteration()
    expected = digest(undisturbed)
    return Tally(counts, [] if disturbed == expected else [f"the digest is {disturbed}, not {expected}"])


if __name__ == "__main__":
    sys.exit(command(campaign, None, kills=50, nodes=5, runners=3))

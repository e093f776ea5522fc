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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

from marl_sb3 import MultiAgentAlgorithm
from marl_sb3.extensions.remote import RaySettings, make_sharded_vec_env

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


def runner_processes() -> list[psutil.Process]:
    """The runners of the cluster that this process has started."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found += [each] if each.name().startswith("ray::ServingAct") else []
    return found


@dataclass
class Killer(threading.Thread):
    """Kills runners and removes nodes until it has done so often enough."""

    cluster: Any  # of `cluster_of`
    # which rolls out its shards there. In one iteration at most `MOST_AT_ONCE` runners are killed: a shard that ends
    # one runner after the other ends the training.
    algorithm: MultiAgentAlgorithm
    kills: int  # runners to kill
    nodes: int  # nodes to remove; the main thread adds new ones, which Ray allows no other thread
    seed: int
    killed: int = 0  # runners killed so far
    removed: int = 0  # nodes removed so far
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        super().__init__(daemon=True)
        self.rng = random.Random(self.seed)
        self._iteration, self._in_iteration = -1, 0

    def __hash__(self) -> int:
        return id(self)

    @property
    def done(self) -> bool:
        """Whether all kills are done."""
        return self.killed >= self.kills and self.removed >= self.nodes

    def run(self) -> None:
        """Kill."""
        every = max(1, self.kills // max(1, self.nodes))
        while not self.done:
            time.sleep(self.rng.uniform(0.05, 1.0))
            if self.removed < self.nodes and self.killed >= self.removed * every:
                self._remove_node()
            elif self.killed < self.kills:
                self._kill_runner()

    def _remove_node(self) -> None:
        """Remove a node that this process is not connected to."""
        from ray._private.worker import global_worker

        ours = global_worker.node.raylet_socket_name
        others = [each for each in self.cluster.worker_nodes if each.raylet_socket_name != ours]
        if len(others) >= NODES - 1:
            self.cluster.remove_node(self.rng.choice(sorted(others, key=lambda each: each.unique_id)), False)
            self.removed += 1

    def _kill_runner(self) -> None:
        found = runner_processes()
        if self.algorithm.iteration != self._iteration:
            self._iteration, self._in_iteration = self.algorithm.iteration, 0
        if found and self._in_iteration < MOST_AT_ONCE:
            self._in_iteration += 1
            self.rng.choice(found).kill()
            self.killed += 1


def main(arguments: list[str] | None = None) -> int:
    """Run the harness; 0 if both trainings are the same."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runners", type=int, default=3)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    with cluster_of(NODES) as cluster:
        algorithm = algorithm_on(cluster.address, given.runners)
        algorithm.train_iteration()
        killer = Killer(cluster, algorithm, given.kills, given.nodes, given.seed)
        killer.start()
        started_s = time.monotonic()
        while not killer.done:
            algorithm.train_iteration()
            while len(cluster.worker_nodes) < NODES:
                cluster.add_node(num_cpus=1)
        killer.join()
        result = algorithm.train_iteration()
        disturbed, iterations = digest(algorithm), algorithm.iteration
        algorithm.env.close()
    undisturbed = algorithm_on(None)
    for _ in range(iterations):
        undisturbed.train_iteration()
    same = digest(undisturbed) == disturbed
    print(
        f"{killer.killed} runners and {killer.removed} nodes killed in {time.monotonic() - started_s:.0f} s and "
        f"{iterations} iterations, {result['fault_tolerance']['num_worker_restarts']} runners replaced: "
        f"{disturbed} {'=' if same else '!='} {digest(undisturbed)}"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())

"""Roll out all shards in the processes of a pool.

The process of the learners keeps the state of every shard after each round. If a process ends, its shards are rolled
out again elsewhere from these states, to the same bits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.vec_env.interface import Health
from marl_sb3.errors import ConfigError, RunnersLostError
from marl_sb3.extensions.remote.processes.messages import Failed
from marl_sb3.extensions.remote.processes.pool import Lost, ProcessPool, differing
from marl_sb3.extensions.remote.processes.worker import RestartBudget
from marl_sb3.extensions.remote.ray import ROUND_TIMEOUT_S
from marl_sb3.extensions.remote.shard import Inexact, RoundOrder, SavedShard, ShardPlan, ShardRollout

_log = logging.getLogger(__name__)

_MAX_FAILED_STARTS = 2  # in a row; after the next one, one process is started per round
_MAX_LOSSES = 4  # processes that may end while they work on the same shard


@dataclass
class _Process:
    """A process of the pool."""

    ready: bool = False  # whether it runs and has the same versions
    shards: set[int] = field(default_factory=set)  # those whose present state it has
    doing: list[int] | None = None  # the shards of what it is asked for; empty: the answer is not wanted any more
    asked_s: float = 0.0  # since when


class ShardRunners:
    """Rolls out all shards of a training: keeps their states, and replaces processes that end.

    Args:
        make_pool: makes the pool, whose processes serve a `ShardHost`; called when it is first needed.
        number: number of processes.
        start_timeout_s: seconds that the start may take; later, seconds to wait for a process if none is left.
        round_timeout_s: seconds after which a process that does not answer is killed and replaced.
        poll_s: longest time between two looks at the processes, and between tries to start one if none is left.

    Attributes:
        saved: the state of each shard after the latest round.
    """

    def __init__(
        self,
        make_pool: Callable[[], ProcessPool],
        number: int = 1,
        start_timeout_s: float = 180.0,
        round_timeout_s: float = ROUND_TIMEOUT_S,
        poll_s: float = 1.0,
    ) -> None:
        self._make_pool, self._number = make_pool, number
        self._start_timeout_s, self._round_timeout_s, self._poll_s = start_timeout_s, round_timeout_s, poll_s
        self._pool: ProcessPool  # with the plan, from the start on
        self._plan: ShardPlan | None = None
        self._processes: dict[int, _Process] = {}
        self._starts = RestartBudget(_MAX_FAILED_STARTS)
        self._joined = 0  # processes that have become ready
        self.saved: dict[int, SavedShard] = {}

    @property
    def health(self) -> Health | None:
        """The state of the processes; None if none was started, or if this process rolls out the shards."""
        if self._plan is None or not self._pool.is_elsewhere:
            return None
        return Health(len(self._ready()), max(0, self._joined - self._number))

    # --- Shards ------------------------------------------------------------------------------------------------------

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact]:
        """Restore the states of shards.

        Returns:
            Shard -> env index within it -> reason, for what could not be restored exactly.

        Raises:
            CheckpointError: a state does not fit its shard.
        """
        for process in self._processes.values():
            process.shards -= set(saved)
        self.saved.update(saved)
        inexact, _ = self._work(None, list(saved))
        return inexact

    def roll_out(self, order: RoundOrder) -> list[ShardRollout]:
        """Take one round in all shards; returns their rollouts, in the order of the shards.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
            RunnersLostError: no process is left, or one shard has ended several of them.
        """
        rollouts = self._called("roll_out", list(self.saved), self._pool.share(order))
        return [rollouts[shard] for shard in self.saved]

    def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        """See `ShardedRunner.ask`."""
        return self._called(method, [shard], *arguments)[shard]

    def _called(self, method: str, shards: Sequence[int], *arguments: Any) -> dict[int, Any]:
        """Call a method of shards, keep their states afterwards, and log what was lost with processes meanwhile."""
        inexact, results = self._work(method, shards, *arguments)
        self.saved.update({shard: state for shard, (_, state) in results.items()})
        for shard, reasons in inexact.items():
            for index, why in reasons.items():
                _log.warning("inexact: a new episode begins in env %d of shard %d: %s", index, shard, why)
        return {shard: result for shard, (result, _) in results.items()}

    # --- Work --------------------------------------------------------------------------------------------------------

    def _work(
        self, method: str | None, shards: Sequence[int], *arguments: Any
    ) -> tuple[dict[int, Inexact], dict[int, Any]]:
        """Do something with shards, with each once, whatever processes end meanwhile; see `ShardHost.work`.

        Raises:
            MarlSb3Error: like that in a shard.
            RunnersLostError: no process is left, or one shard has ended several of them.
        """
        with preserve_rng():
            try:
                return self._results(method, shards, arguments)
            except BaseException:  # nobody knows what states the processes have, and their answers are not wanted
                for process in self._processes.values():
                    process.shards.clear()
                    process.doing = None if process.doing is None else []
                raise

    def _results(
        self, method: str | None, shards: Sequence[int], arguments: Sequence[Any]
    ) -> tuple[dict[int, Inexact], dict[int, Any]]:
        inexact: dict[int, Inexact] = {}
        results: dict[int, Any] = {}
        losses = RestartBudget(_MAX_LOSSES)
        shares = self._shares(shards)
        alone: list[int] = []  # shards whose processes have ended; each ends no other's work when it ends the next
        while len(results) < len(shards):
            for number in self._wait_for_any():
                if self._processes[number].doing is None and (wanted := shares.pop(number, alone[:1])):
                    alone = [shard for shard in alone if shard not in wanted]
                    self._ask(number, wanted, method, arguments)
            for number, asked, result in self._poll():
                if isinstance(result, Failed):
                    raise result.error
                if isinstance(result, Lost):
                    if len(asked) == 1 and (times := losses.lost(asked[0])):
                        assert self._plan is not None
                        words = f"{times} runners have ended in one round while in {self._plan.name_of(asked[0])}"
                        raise RunnersLostError(f"{words}: {result.why}")
                    alone += [*asked, *shares.pop(number, [])]
                else:
                    inexact.update(result[0])
                    results.update(result[1])
        return inexact, results

    def _shares(self, shards: Sequence[int]) -> dict[int, list[int]]:
        """Share out shards: process -> those that it is asked for first; what belongs to another, it gives away."""
        if len(self._processes) < self._number:  # several starts have failed: another one is tried
            self._begin()
        holders = {shard: number for number, process in self._processes.items() for shard in process.shards}
        shares = balanced(list(self.saved), self._wait_for_any(), holders)
        for number, share in shares.items():
            self._processes[number].shards.intersection_update(share)
        return {number: wanted for number, share in shares.items() if (wanted := [s for s in share if s in shards])}

    def _ask(self, number: int, wanted: list[int], method: str | None, arguments: Sequence[Any]) -> None:
        """Ask a process that owes no answer; shards that it has not had come with it."""
        process = self._processes[number]
        process.doing, process.asked_s = wanted, time.monotonic()
        states = {shard: self.saved[shard] for shard in wanted if shard not in process.shards}
        kept = sorted(process.shards.union(wanted))
        self._pool.send(number, "work", kept, states, method, wanted, *arguments)

    def _poll(self) -> list[tuple[int, list[int], Any]]:
        """Return what has happened since the last call, or within a second; processes that have ended are replaced.

        Returns:
            Processes that have answered, the shards that they were asked for, and the results; `Lost` for those that
            have ended. What is not wanted any more is left out.
        """
        answers = dict(self._pool.poll(self._poll_s))
        until_s, silent = time.monotonic() - self._round_timeout_s, Lost(f"no answer for {self._round_timeout_s:g} s")
        late = [number for number, each in self._processes.items() if each.doing is not None and each.asked_s < until_s]
        done = []
        for number, result in {**dict.fromkeys(late, silent), **answers}.items():
            process = self._processes[number]
            if not process.ready:
                self._join(number, result)
                continue
            asked, process.doing = process.doing or [], None
            if isinstance(result, Lost):
                self._replace(number, f"a runner has ended ({result.why}); its shards are rolled out again elsewhere")
            process.shards.update(asked)
            if asked or isinstance(result, Lost):
                done.append((number, asked, result))
        return done

    # --- Processes ---------------------------------------------------------------------------------------------------

    def start(self, plan: ShardPlan) -> None:
        """Start the processes; a second call does nothing.

        Raises:
            ConfigError: one cannot be started, has other versions, or has not started in time; nothing is left behind.
        """
        if self._plan is not None:
            return
        if self._number > plan.envs.n_shards:
            raise ConfigError(
                f"runners is {self._number}, more than the {plan.envs.n_shards} shards; accepted: at most n_shards",
                key="ray.runners",
            )
        with preserve_rng():
            self._pool, self._plan = self._make_pool(), plan
            try:
                for _ in range(self._number):
                    self._begin()
                self.restore({shard: SavedShard() for shard in range(plan.envs.n_shards)})
            except BaseException:
                self.close()
                self._plan, self._joined = None, 0
                raise

    def _begin(self) -> None:
        self._processes[self._pool.begin(self._plan)] = _Process()

    def _ready(self) -> list[int]:
        """Return the processes that can be asked."""
        return [number for number, process in self._processes.items() if process.ready]

    def _join(self, number: int, answer: Any) -> None:
        """Take in the first answer of a process: its versions, or why it cannot be used."""
        if isinstance(answer, (Lost, Failed)):
            fault: str | None = answer.why if isinstance(answer, Lost) else str(answer.error)
        else:
            differences = answer and differing(answer)
            fault = differences and f"it has {differences}"
        if fault and self._joined < self._number:
            raise ConfigError(f"a runner cannot start: {fault}", key="ray")
        if fault:
            self._starts.lost()
            self._replace(number, f"a runner that replaces another cannot start: {fault}")
            return
        self._processes[number].ready = True
        self._joined += 1
        self._starts.succeeded()
        if self._joined > self._number:
            _log.info("a runner has joined: %d of %d", len(self._ready()), self._number)

    def _replace(self, number: int, words: str) -> None:
        del self._processes[number]
        self._pool.end(number)
        _log.warning(words)
        if not self._starts.is_spent():
            self._begin()

    def _wait_for_any(self) -> list[int]:
        """Return the processes that are ready; if none is, wait for one, and at the start for all.

        Raises:
            ConfigError: at the start, not all have become ready in time.
            RunnersLostError: later, none has.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while self._joined < self._number or not self._ready():
            if time.monotonic() > deadline:
                within = f"within {self._start_timeout_s:g} s"
                if self._joined >= self._number:
                    raise RunnersLostError(f"no runner is left, and none has started {within}")
                words = f"{self._joined} of {self._number} runners have started {within}"
                accepted = "as many as the cluster has resources for (ray.num_cpus each)"
                raise ConfigError(f"{words}; accepted: {accepted}", key="ray.runners")
            if not self._processes:  # several starts have failed, as on a node that was about to end
                time.sleep(self._poll_s)
                self._begin()
            self._poll()
        return self._ready()

    def close(self) -> None:
        """Close all envs and end all processes; a second call does nothing."""
        if self._plan is not None:
            self._pool.close()
            self._processes.clear()


def balanced(shards: Sequence[int], processes: Sequence[int], holders: Mapping[int, int]) -> dict[int, list[int]]:
    """Share out all shards evenly; a shard stays where it is if possible.

    Args:
        shards: all shards.
        processes: those that are ready, at least one.
        holders: shard -> the process that has it.

    Returns:
        Process -> its shards, in order.
    """
    least, more = divmod(len(shards), len(processes))
    quotas = {process: least + (place < more) for place, process in enumerate(processes)}
    assigned: dict[int, list[int]] = {process: [] for process in processes}
    homeless = []
    for shard in shards:
        holder = holders.get(shard)
        if holder in assigned and len(assigned[holder]) < quotas[holder]:
            assigned[holder].append(shard)
        else:
            homeless.append(shard)
    for process, quota in quotas.items():
        free = quota - len(assigned[process])
        assigned[process] += homeless[:free]
        del homeless[:free]
    return {process: sorted(share) for process, share in assigned.items()}

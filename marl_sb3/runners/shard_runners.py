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

from marl_sb3.errors import ConfigError, RunnersLostError
from marl_sb3.processes.pool import Answer, Failed, Lost, Pool, differing
from marl_sb3.processes.worker import RestartBudget
from marl_sb3.runners.rounds import Inexact, RoundOrder, SavedShard, ShardPlan, ShardRollout
from marl_sb3.storage.process_rng import preserve_rng
from marl_sb3.vec_env.interface import Health

_log = logging.getLogger(__name__)

_POLL_S = 1.0
_MAX_FAILED_STARTS = 2  # in a row; after the next one, one process is started per round
_MAX_LOSSES = 4  # processes that may end while they work on the same shard


class ShardRunners:
    """Rolls out all shards of a training.

    Args:
        make_pool: makes the pool, whose processes serve a `ShardHost`; called when it is first needed.
        number: number of processes.
        start_timeout_s: seconds that the start may take; later, seconds to wait for a process if none is left.
        round_timeout_s: seconds after which a process that does not answer is killed and replaced.
    """

    def __init__(
        self,
        make_pool: Callable[[], Pool],
        number: int = 1,
        start_timeout_s: float = 180.0,
        round_timeout_s: float = 3600.0,
    ) -> None:
        self._make_pool = make_pool
        self._number = number
        self._timeouts_s = start_timeout_s, round_timeout_s
        self._pool: Pool | None = None
        self._processes: _Processes | None = None
        self._saved: dict[int, SavedShard] = {}

    @property
    def health(self) -> Health | None:
        """The state of the processes; None if none was started, or if this process rolls out the shards."""
        if self._processes is None or self._pool is None or not self._pool.is_elsewhere:
            return None
        return Health(len(self._processes.ready), self._processes.restarts)

    def start(self, plan: ShardPlan) -> None:
        """Start the processes; a second call does nothing.

        Raises:
            ConfigError: they cannot be started; nothing is left behind.
        """
        if self._pool is not None:
            return
        if self._number > plan.envs.n_shards:
            raise ConfigError(
                f"runners is {self._number}, more than the {plan.envs.n_shards} shards; accepted: at most n_shards",
                key="ray.runners",
            )
        with preserve_rng():
            self._pool = self._make_pool()
            try:
                self._processes = _Processes(self._pool, plan, self._number, *self._timeouts_s)
                self._processes.start()
                self.restore({shard: SavedShard() for shard in plan.shards})
            except BaseException:
                self.close()
                self._pool = self._processes = None
                raise

    def restore(self, saved: Mapping[int, SavedShard]) -> dict[int, Inexact]:
        """Restore the states of shards.

        Returns:
            Shard -> env index within it -> reason, for what could not be restored exactly.

        Raises:
            CheckpointError: a state does not fit its shard.
        """
        self._started.forget_states(list(saved))
        self._saved.update(saved)
        inexact, _ = self._work("keep", list(saved), None)
        return inexact

    def roll_out(self, order: RoundOrder) -> list[ShardRollout]:
        """Take one round in all shards; returns their rollouts, in the order of the shards.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
            RunnersLostError: no process is left, or one shard has ended several of them.
        """
        assert self._pool is not None, "start() comes first"
        inexact, rollouts = self._work("roll_out", list(self._saved), self._pool.share(order))
        self._keep({shard: rollout.state for shard, rollout in rollouts.items()}, inexact)
        return [rollouts[shard] for shard in self._saved]

    def saved(self) -> list[SavedShard]:
        """Return the states of all shards after the latest round."""
        return list(self._saved.values())

    def call(self, shard: int, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `ShardCalls.call`."""
        results: list[Any] = self._changed(shard, "call", name, env_indices, args, kwargs)
        return results

    def configure(self, shard: int, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `ShardCalls.configure`."""
        self._changed(shard, "configure", env_indices, settings)

    def _changed(self, shard: int, action: str, *arguments: Any) -> Any:
        """Let the process of a shard do something that changes the shard's state; returns the result."""
        inexact, results = self._work(action, [shard], arguments)
        result, state = results[shard]
        self._keep({shard: state}, inexact)
        return result

    def _work(self, action: str, shards: Sequence[int], argument: Any) -> tuple[dict[int, Inexact], dict[int, Any]]:
        with preserve_rng():
            return self._started.work(self._saved, action, shards, argument)

    @property
    def _started(self) -> _Processes:
        assert self._processes is not None, "start() comes first"
        return self._processes

    def _keep(self, states: Mapping[int, SavedShard], inexact: Mapping[int, Inexact]) -> None:
        """Keep new states, and log what was lost with processes on the way to them."""
        self._saved.update(states)
        for shard, reasons in inexact.items():
            for index, why in reasons.items():
                _log.warning("inexact: a new episode begins in env %d of shard %d: %s", index, shard, why)

    def close(self) -> None:
        """Close all envs and end all processes; a second call does nothing."""
        if self._processes is not None:
            self._processes.close()


# --- Supervision -----------------------------------------------------------------------------------------------------


@dataclass
class _Process:
    """A process of the pool.

    Attributes:
        ready: whether it runs and has the same versions.
        shards: those whose present state it has.
        asked: ticket -> the shards of a message that has not been answered, in order.
        asked_s: time since when it has owed an answer.
    """

    ready: bool = False
    shards: set[int] = field(default_factory=set)
    asked: dict[int, list[int]] = field(default_factory=dict)
    asked_s: float = 0.0

    def ask(self, ticket: int, shards: list[int]) -> None:
        """Note a message."""
        if not self.asked:
            self.asked_s = time.monotonic()
        self.asked[ticket] = shards

    def answered(self, ticket: int) -> list[int]:
        """Note an answer; returns the shards of the message, whose states the process has now."""
        shards = self.asked.pop(ticket)
        self.shards |= set(shards)
        self.asked_s = time.monotonic()
        return shards

    def is_silent(self, timeout_s: float) -> bool:
        """Whether it has owed an answer for longer than this."""
        return self.ready and bool(self.asked) and time.monotonic() - self.asked_s > timeout_s


@dataclass(frozen=True)
class _Done:
    """A message was answered, with what `ShardHost.work` returned."""

    shards: Sequence[int]
    result: Any


@dataclass(frozen=True)
class _Loss:
    """A process has ended, or was ended because it did not answer.

    Attributes:
        why: in words.
        current: the shards that it was working on.
        shards: all shards that it owed an answer for.
    """

    why: str
    current: Sequence[int]
    shards: Sequence[int]


class _Processes:
    """Starts the processes of a pool, notes which shards they have, and replaces those that end.

    Attributes:
        restarts: processes that have replaced others.
    """

    def __init__(
        self, pool: Pool, plan: ShardPlan, number: int, start_timeout_s: float, round_timeout_s: float
    ) -> None:
        self.restarts = 0
        self._pool, self._plan, self._number = pool, plan, number
        self._start_timeout_s, self._round_timeout_s = start_timeout_s, round_timeout_s
        self._all: dict[int, _Process] = {}
        self._starts = RestartBudget(_MAX_FAILED_STARTS)

    @property
    def ready(self) -> list[int]:
        """The processes that can be asked."""
        return [number for number, process in self._all.items() if process.ready]

    # --- Start -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start all processes.

        Raises:
            ConfigError: one has ended, has other versions, or has not started in time.
        """
        for _ in range(self._number):
            self._begin()
        deadline = time.monotonic() + self._start_timeout_s
        while len(self.ready) < self._number:
            for answer in self._pool.poll(_POLL_S):
                fault = self._greet(answer)
                if fault is not None:
                    raise ConfigError(f"a runner cannot start: {fault}", key="ray")
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{len(self.ready)} of {self._number} runners have started within {self._start_timeout_s:g} s; "
                    "accepted: as many as the cluster has resources for (ray.num_cpus each)",
                    key="ray.runners",
                )

    def _begin(self) -> None:
        number = self._pool.begin(self._plan)
        self._all[number] = process = _Process()
        process.ask(self._pool.send(number, "versions"), [])

    def _greet(self, answer: Answer) -> str | None:
        """Take in the first answer of a process; returns in words why it cannot be used, or None."""
        process = self._all[answer.process]
        process.answered(answer.ticket)
        if isinstance(answer.result, Lost):
            return answer.result.why
        if isinstance(answer.result, Failed):
            return str(answer.result.error)
        fault = differing(answer.result)
        process.ready = fault is None
        return None if fault is None else f"it has {fault}"

    def _replace(self) -> None:
        if not self._starts.is_spent():
            self._begin()

    def _join_late(self, answer: Answer) -> None:
        fault = self._greet(answer)
        if fault is None:
            self._starts.succeeded()
            self.restarts += 1
            _log.info("a runner has joined: %d of %d", len(self.ready), self._number)
            return
        self._starts.lost()
        self._end(answer.process)
        _log.warning("a runner that replaces another cannot start: %s", fault)
        self._replace()

    def _wait_for_any(self) -> list[int]:
        """Return the processes that are ready; if none is, wait for one.

        Raises:
            RunnersLostError: none has become ready in time.
        """
        deadline = time.monotonic() + self._start_timeout_s
        while not self.ready:
            if time.monotonic() > deadline:
                raise RunnersLostError(f"no runner is left, and none has started within {self._start_timeout_s:g} s")
            if not self._all:  # several starts have failed, as on a node that was about to end
                time.sleep(_POLL_S)
                self._begin()
            self._poll()
        return self.ready

    # --- Work --------------------------------------------------------------------------------------------------------

    def work(
        self, saved: Mapping[int, SavedShard], action: str, shards: Sequence[int], argument: Any
    ) -> tuple[dict[int, Inexact], dict[int, Any]]:
        """Do something with shards, with each once, whatever processes end meanwhile.

        Args:
            saved: the states of all shards, for processes that do not have them.
            action: see `ShardHost.work`.
            shards: those to work on.
            argument: of the action.

        Returns:
            See `ShardHost.work`.

        Raises:
            MarlSb3Error: like that in a shard.
            RunnersLostError: no process is left, or one shard has ended several of them.
        """
        try:
            return self._work(saved, action, shards, argument)
        except BaseException:
            self._forget_messages()
            raise

    def _work(
        self, saved: Mapping[int, SavedShard], action: str, shards: Sequence[int], argument: Any
    ) -> tuple[dict[int, Inexact], dict[int, Any]]:
        def ask(number: int, wanted: list[int]) -> None:
            self._give(number, wanted, saved)
            states = {shard: saved[shard] for shard in wanted if shard not in self._all[number].shards}
            self._all[number].ask(self._pool.send(number, "work", states, action, wanted, argument), wanted)

        inexact: dict[int, Inexact] = {}
        results: dict[int, Any] = {}
        losses = RestartBudget(_MAX_LOSSES)
        if len(self._all) < self._number:  # several starts have failed: another one is tried
            self._begin()
        for number, own in balanced(list(saved), self._wait_for_any(), self._holders()).items():
            if wanted := [shard for shard in own if shard in shards]:
                ask(number, wanted)
        while len(results) < len(shards):
            for report in self._poll():
                if isinstance(report, _Done):
                    if isinstance(report.result, Failed):
                        raise report.result.error
                    inexact.update(report.result[0])
                    results.update(report.result[1])
                    continue
                self._count(report, losses)
                for shard in report.shards:  # one per message: a shard which ends its process takes no other with it
                    ask(self._least_busy(), [shard])
        return inexact, results

    def _give(self, number: int, shards: list[int], saved: Mapping[int, SavedShard]) -> None:
        """Let the processes that have had these shards forget them."""
        for holder, other in self._all.items():
            moved = other.shards & set(shards) if holder != number else set()
            if moved:
                other.shards -= moved
                self._pool.send(holder, "forget", sorted(moved))

    def _count(self, loss: _Loss, losses: RestartBudget) -> None:
        """Count processes that end while they work on one shard alone."""
        if len(loss.current) != 1:
            return
        (shard,) = loss.current
        if times := losses.lost(shard):
            where = self._plan.name_of(shard)
            raise RunnersLostError(f"{times} runners have ended in one round while in {where}: {loss.why}")

    def _holders(self) -> dict[int, int]:
        """Return shard -> the process that has its present state."""
        return {shard: number for number, process in self._all.items() for shard in process.shards}

    def _least_busy(self) -> int:
        """Return the process that owes answers for the fewest shards; see `_wait_for_any`."""
        return min(self._wait_for_any(), key=lambda number: sum(map(len, self._all[number].asked.values())))

    def _poll(self) -> list[_Done | _Loss]:
        """Return what has happened since the last call, or within a second; processes that have ended are replaced."""
        found: list[_Done | _Loss] = []
        for answer in self._pool.poll(_POLL_S):
            process = self._all.get(answer.process)
            if process is None:
                continue  # it was lost a moment ago
            if not process.ready:
                self._join_late(answer)
            elif isinstance(answer.result, Lost):
                found.append(self._lose(answer.process, answer.result.why))
            elif answer.ticket in process.asked:
                found.append(_Done(process.answered(answer.ticket), answer.result))
        silent = [number for number, process in self._all.items() if process.is_silent(self._round_timeout_s)]
        return found + [self._lose(number, f"no answer for {self._round_timeout_s:g} s") for number in silent]

    def _lose(self, number: int, why: str) -> _Loss:
        asked = list(self._all[number].asked.values())
        self._end(number)
        _log.warning("a runner has ended (%s); its shards are rolled out again elsewhere", why)
        self._replace()
        return _Loss(why, asked[0] if asked else [], [shard for shards in asked for shard in shards])

    def _end(self, number: int) -> None:
        del self._all[number]
        self._pool.end(number)

    def forget_states(self, shards: Sequence[int]) -> None:
        """Note that the processes do not have the present states of these shards."""
        for process in self._all.values():
            process.shards -= set(shards)

    def _forget_messages(self) -> None:
        """Note that answers which are still to come are not wanted; nobody knows what states the processes have."""
        for process in self._all.values():
            if process.ready:
                process.asked.clear()
                process.shards.clear()

    def close(self) -> None:
        """End all processes."""
        self._pool.close()
        self._all.clear()


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
    return {process: sorted(own) for process, own in assigned.items()}

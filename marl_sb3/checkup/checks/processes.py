"""Checks made from outside the process in which the env is played."""

from __future__ import annotations

from marl_sb3.checkup.checks.stops import stop_check
from marl_sb3.checkup.finding import Check, Severity

PROCESSES: tuple[Check, ...] = (
    stop_check(
        "differs-between-processes", "processes", Severity.FAULT,
        "the same seed gives another episode in another process",
        "No run can be repeated or resumed exactly.",
        "Look for the order of sets, which differs between processes: iterate over sorted(the_set). Look also for "
        "hash(), id(), the time and the process id.",
    ),
    stop_check(
        "hangs", "processes", Severity.FAULT, "a call of the env does not return",
        "Training would wait for it forever.",
        "Look at the line that was running. If the env is that slow, --timeout gives it more time.",
    ),
    stop_check(
        "crashes", "processes", Severity.FAULT, "the env ends the process",
        "Training ends without a checkpoint.",
        "Look at the line that was running: C code may have a bug, memory may have run out, or os._exit was called.",
    ),
)  # fmt: skip

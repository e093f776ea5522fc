"""Checks of the interface: whether the env can be made, reset and stepped at all."""

from __future__ import annotations

from marl_sb3.checkup.checks.stops import stop_check
from marl_sb3.checkup.finding import Check, Severity

INTERFACE: tuple[Check, ...] = (
    stop_check(
        "interface", "interface", Severity.FAULT, "the env lacks a part of the ParallelEnv interface",
        "All commands refuse such an env.",
        "Add what the message asks for.",
    ),
    stop_check(
        "space-changes", "interface", Severity.FAULT, "two calls for a space return different spaces",
        "Networks are built once for the spaces; later observations or actions do not fit them.",
        "Create each space once, in the constructor, and return that object.",
    ),
    stop_check(
        "raises", "episodes", Severity.FAULT, "the env raises an exception",
        "Training stops with this error.",
        "Look at the line that the message names; -v shows the whole traceback.",
    ),
    stop_check(
        "bad-return", "episodes", Severity.FAULT, "reset() or step() does not return what it should",
        "Training stops with an error.",
        "Return (observations, infos) from reset() and (observations, rewards, terminated, truncated, infos) from "
        "step(), each a dictionary by agent.",
    ),
    stop_check(
        "no-agents", "episodes", Severity.FAULT, "no agent is live when an episode begins",
        "Without live agents the episode cannot be played.",
        "Set `agents` in reset() to a list of the agents that act first.",
    ),
    stop_check(
        "close-raises", "end", Severity.WARNING, "close() raises an exception",
        "Training logs the error and continues, but the env may not have released its resources.",
        "Make close() work at any time, also before the first reset().",
    ),
    stop_check(
        "left-running", "end", Severity.WARNING, "a thread or a process of the env runs on after close()",
        "Python waits for it, so that a finished training does not end.",
        "End it in close(), or start it with daemon=True.",
    ),
)  # fmt: skip

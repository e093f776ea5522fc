"""Checks of the interface: whether the env can be made, reset and stepped at all."""

from __future__ import annotations

from marl_sb3.checkup.checks.stops import stop_check
from marl_sb3.checkup.finding import Check, Severity

INTERFACE: tuple[Check, ...] = (
    stop_check(
        "interface", "interface", Severity.FAULT, "the env lacks a part of the ParallelEnv interface",
        "Every command refuses such an env.",
        "Give the env what the message asks for.",
    ),
    stop_check(
        "space-changes", "interface", Severity.FAULT, "two calls for a space return different spaces",
        "A network is built for the spaces once; later observations or actions do not fit it.",
        "Make each space once, in the constructor, and return it.",
    ),
    stop_check(
        "raises", "episodes", Severity.FAULT, "the env raises an exception",
        "A training ends there.",
        "Look at the line that the message names; -v shows the whole traceback.",
    ),
    stop_check(
        "bad-return", "episodes", Severity.FAULT, "reset() or step() does not return what it should",
        "A training ends there.",
        "Return (observations, infos) from reset() and (observations, rewards, terminated, truncated, infos) from "
        "step(), each a dictionary by agent.",
    ),
    stop_check(
        "no-agents", "episodes", Severity.FAULT, "no agent is live when an episode begins",
        "There is nobody to act, so that the episode cannot be played.",
        "Set `agents` in reset(): a list of the agents that act first.",
    ),
    stop_check(
        "close-raises", "close", Severity.WARNING, "close() raises an exception",
        "A training logs it and goes on, but the env may not have freed what it holds.",
        "Let close() work at any time, before the first reset() too.",
    ),
)  # fmt: skip

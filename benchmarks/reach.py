"""How long a side takes from a cold process to a return; for benchmarks that compare marl_sb3 with other libraries."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from measure import Comparison, print_table, spread
from processes import parsed_lines, watch


@dataclass(frozen=True)
class Reach:
    """How long one process took to reach the return."""

    seconds: float  # from its start until it reached the return, or gave up
    reached: bool  # whether it reached the return
    env_steps: int | None  # env steps by then; None if it reported nothing
    episode_return_mean: float | None  # mean return by then; None if it reported nothing


def our_reach(words: Sequence[str], target: float, seed: int, timeout_s: float) -> Reach:
    """Run `python -m marl_sb3.train` with these words until a return; its time is that of the whole process."""
    command = [sys.executable, "-m", "marl_sb3.train", *words]
    command += ["--stop", f"env_runners/episode_return_mean={target:g}", "--seed", str(seed), "--quiet"]
    with tempfile.TemporaryDirectory() as folder:
        watched = watch(command, timeout_s, folder)
        results = sorted(Path(folder).glob("runs/*/*/result.jsonl"))
        lines = results[0].read_text(encoding="utf-8").splitlines() if results else []
    if not lines:
        return Reach(watched.seconds, False, None, None)
    last = json.loads(lines[-1])
    returned = last["env_runners"]["episode_return_mean"]
    reached = returned is not None and returned >= target
    return Reach(watched.seconds, reached, last["num_env_steps_sampled_lifetime"], returned)


def their_reach(command: Sequence[str], target: float, timeout_s: float) -> Reach:
    """Run another library's side; its time ends with the line that says that the return was reached.

    Raises:
        SideError: it failed, or did not print what was expected.
    """
    watched = watch(command, timeout_s)
    lines = parsed_lines(watched, Path(command[1]).name)[1:] if watched.lines else []
    if not lines:
        return Reach(watched.seconds, False, None, None)
    last, at_s = lines[-1], watched.lines[-1][0]
    returned = last["episode_return_mean"]
    reached = returned is not None and returned >= target
    return Reach(at_s if reached else watched.seconds, reached, last["env_steps"], returned)


def print_reaches(turns: Mapping[str, Sequence[Reach]], base: str) -> dict[str, Any]:
    """Print a table with a row for each side; return the figures for JSON."""
    raw = {side: [one.seconds for one in runs] for side, runs in turns.items()}
    times = Comparison("s", raw, base, less_is_better=True)
    header = ["", "s: median (min to max)", "speed", "env steps: median (min to max)"]
    print_table(header, [_row(side, turns, base, times.ratios()[side]) for side in turns])
    return {**times.facts(), "runs": {side: [asdict(one) for one in turns[side]] for side in turns}}


def _row(side: str, turns: Mapping[str, Sequence[Reach]], base: str, ratio: float) -> list[str]:
    """Return a table row. The seconds of a process that gave up are a lower bound, and so the ratio is a bound too."""
    runs = turns[side]
    failed = sum(not one.reached for one in runs)
    base_failed = side != base and not all(one.reached for one in turns[base])
    seconds = spread([one.seconds for one in runs])
    if failed:
        seconds = f"> {seconds}, {failed} of {len(runs)} did not reach it"
    sign = ("< " if failed and side != base else "") + ("> " if base_failed else "")
    steps = [one.env_steps for one in runs if one.env_steps is not None]
    return [side, seconds, f"{sign}{ratio:.1f} x", spread(steps) if steps else "none"]

"""How large the package is, and how many functions of it run: `python tests/budgets.py` prints the table.

`test_layers.py` holds each count at its budget, which may only fall.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "marl_sb3"
# Folders and modules of the package, by what they are budgeted with; the rest is the core and what it stands on.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "runs, cli, commands, dialects, results": ("runs", "cli", "extensions/dialects", "results", "commands", "COMMANDS"),
    "extensions, engine, envs": ("extensions", "envs", "compiling.py", "systems.py"),
    "evaluation, league, callbacks": ("evaluation", "league", "callbacks"),
    "tools": ("tools",),
}
# Most of each: lines rounded up to a hundred. To raise one needs a commit that names the user who needs it.
MOST: Mapping[str, int] = {
    "package: lines": 83_700,
    "package: files": 405,
    "runs, cli, commands, dialects, results: lines": 10_900,
    "extensions, engine, envs: lines": 34_800,
    "evaluation, league, callbacks: lines": 5_100,
    "tools: lines": 13_900,
    "functions": 5_408,
    "functions of at most 3 lines": 2_399,
    "doors": 10,
    "tests: lines": 66_300,
    "env step: functions": 64,
    "env step: files": 19,
    "update: functions": 56,
    "update: files": 14,
    "save: functions": 167,
    "save: files": 35,
    "load: functions": 465,
    "load: files": 60,
    "one setting: functions": 36,
    "one setting: files": 16,
}
SLACK = 200  # of a count of lines below its budget: a commit that saves more lowers the budget


def measured() -> dict[str, int]:
    """Return each count that reading the files gives."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    lines = {path.relative_to(PACKAGE).as_posix(): text.count("\n") for path, text in sources.items()}
    stubs = sum(path.read_text(encoding="utf-8").count("\n") for path in PACKAGE.rglob("*.pyi"))
    counts = {"package: lines": sum(lines.values()) + stubs, "package: files": len(lines)}
    counts |= {f"{group}: lines": 0 for group in GROUPS}
    for name, number in lines.items():
        if group := _group(name, sources[PACKAGE / name]):
            counts[f"{group}: lines"] += number
    trees = {path: ast.parse(text) for path, text in sources.items()}
    statements = (each for tree in trees.values() for each in statements_of(tree))
    functions = [each for each in statements if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    doors = trees[PACKAGE / "doors.py"].body
    counts["functions"] = len(functions)
    counts["functions of at most 3 lines"] = sum(map(_is_short, functions))
    counts["doors"] = sum(isinstance(each, ast.AnnAssign) and "Door[" in ast.unparse(each) for each in doors)
    counts["tests: lines"] = sum(path.read_text(encoding="utf-8").count("\n") for path in TESTS.rglob("*.py"))
    return counts


def inside(node: ast.AST) -> list[ast.AST]:
    """Return the statements directly inside one; a walk through all expressions would take ten times as long."""
    parts = (getattr(node, part, ()) for part in ("body", "handlers", "cases", "orelse", "finalbody"))
    return [each for part in parts for each in part]


def statements_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements inside one."""
    for each in inside(node):
        yield each
        yield from statements_of(each)


def _group(name: str, text: str) -> str | None:
    """The first group that has a module."""
    is_command = "/" not in name and text.endswith("sys.exit(main())\n")
    for group, parts in GROUPS.items():
        if any(name == part or name.startswith(f"{part}/") for part in parts) or ("COMMANDS" in parts and is_command):
            return group
    return None


def _is_short(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    body = function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body
    return sum(each.end_lineno - each.lineno + 1 for each in body if each.end_lineno is not None) <= 3


# --- What runs --------------------------------------------------------------------------------------------------------


def traces() -> dict[str, int]:
    """Return how many functions of the package, in how many files, run in a training whose updates PyTorch computes.

    It is measured in a process of its own: what was imported or kept before would not run again.
    """
    done = subprocess.run([sys.executable, __file__, "traces"], capture_output=True, text=True, check=True)
    counted = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
    return {name: int(number) for name, number in counted}


def _print_traces() -> None:
    from stable_baselines3.common.callbacks import CallbackList

    from marl_sb3 import MultiAgentAlgorithm, make_vec_env

    make = partial(make_vec_env, "arena", 2, seed=1, vectorizer="sync")
    algorithm = MultiAgentAlgorithm(
        make(), "per_agent", n_steps=100, seed=1, batch_size=100, update_path="torch", n_epochs=1
    )
    algorithm.train_iteration()
    runner, loop = algorithm._runner, algorithm._loop
    report = sys.modules[type(loop).__module__].IterationReport()
    runner.begin_rollouts()
    loop.callback = CallbackList([])
    loop.callback.init_callback(algorithm)
    _traced("env step", lambda: runner.collect(1, loop))
    runner.collect(99, loop)
    _traced("update", lambda: loop._update(list(algorithm.parts.learners.values()), report))
    with tempfile.TemporaryDirectory() as folder:
        _traced("save", lambda: algorithm.save(f"{folder}/saved"))
        other = make()
        _traced("load", lambda: MultiAgentAlgorithm.load(f"{folder}/saved", other))
        _trace_setting(Path(folder))


def _traced(name: str, run: Callable[[], Any]) -> None:
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            calls[code.co_filename, code.co_qualname] += 1

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    print(f"{name}: functions {len(calls)}")
    print(f"{name}: files {len({file for file, _ in calls})}")


VALUE = 1.25e-4


class _Constructed(BaseException):
    """The value has arrived; the training need not begin, nor compile its kernels."""


def _holds_value(value: Any, depth: int = 0) -> bool:
    """Whether it is the value, or its text, or has it inside."""
    if isinstance(value, float):
        return value == VALUE
    if isinstance(value, str):
        return f"{VALUE:e}" in value or "1.25e-4" in value or f"{VALUE}" in value
    if type(value).__name__ in ("PolicySpec", "TrainConfig"):
        value = vars(value)
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return depth < 5 and any(_holds_value(each, depth + 1) for each in parts)


def _trace_setting(folder: Path) -> None:
    """Count the functions that are given a learning rate on its way from the command line to SB3's constructor."""
    from contextlib import chdir, redirect_stdout, suppress
    from io import StringIO

    from marl_sb3.train import main as train

    holding: set[tuple[str, str]] = set()

    def profile(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        ours = code.co_filename.startswith(f"{PACKAGE}{os.sep}")
        if event == "call" and ours and any(map(_holds_value, list(frame.f_locals.values()))):
            holding.add((code.co_filename, code.co_qualname))
        if code.co_qualname == "PPO.__init__" and "stable_baselines3" in code.co_filename:
            raise _Constructed

    with chdir(folder), redirect_stdout(StringIO()), suppress(_Constructed):
        sys.setprofile(profile)
        train(["arena", "--timesteps", "100", "--policies", "per_agent", "--set", "agent1.learning_rate=1.25e-4"])
    print(f"one setting: functions {len(holding)}")
    print(f"one setting: files {len({file for file, _ in holding})}")


def main() -> None:
    """Print each count beside its budget."""
    for name, number in {**measured(), **traces()}.items():
        print(f"{name:50} {number:8,} of {MOST.get(name, 0):8,}")


if __name__ == "__main__":
    _print_traces() if sys.argv[1:] == ["traces"] else main()

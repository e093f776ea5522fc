"""Show a run: its start, its progress, its end, and the command that continues it."""

from __future__ import annotations

import logging
import shlex
import time
from typing import TYPE_CHECKING

from marl_sb3.core.config.algorithms import AUTO
from marl_sb3.core.config.values import EXTERNAL, counted
from marl_sb3.core.envs.registry import imported_modules
from marl_sb3.core.training.results import ShowProgress
from marl_sb3.envs.finding import importable_id
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.display.progress import Goals, no_episode_yet, training_view
from marl_sb3.extensions.display.screen import standard_console
from marl_sb3.extensions.display.tables import (
    CUSTOM,
    MOST_AGENTS,
    SUM,
    SUM_ROW,
    evaluated,
    metric_rows,
    returns_table,
    samples_table,
)
from marl_sb3.extensions.display.text import duration, number
from marl_sb3.extensions.fast.speed import OF_ALGORITHMS, of_policy, of_rollouts
from marl_sb3.files.regular import last_line
from marl_sb3.results.health import find_problems, hints
from marl_sb3.results.reading import read_run
from marl_sb3.runs.building import rollout_lengths
from marl_sb3.runs.execution import execute
from marl_sb3.runs.start import remark_on_changes
from marl_sb3.startup import COMPILING_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from rich.console import Console
    from stable_baselines3.common.callbacks import BaseCallback

    from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
    from marl_sb3.results.health import Problem
    from marl_sb3.runs.jobs import SeedRun, SeedRuns
    from marl_sb3.runs.run import Run
    from marl_sb3.runs.schema import TrainConfig

_log = logging.getLogger(__name__)

_MOST_POLICIES = 8  # of more policies, only the folder is printed, not each file
_MUCH_COMPILING_S = 1.0  # so long in a run is said, and is no part of its rate
_SILENT_S = 30.0  # while several seeds train: time between lines about their progress


def execute_and_show(run: Run, callbacks: Sequence[BaseCallback] = (), most_agents: int | None = MOST_AGENTS) -> Run:
    """Train a run as `execute` does, and print its start, its progress and its end; a notebook keeps the live view.

    Args:
        run: from `prepare` or `resume_run`.
        callbacks: more callbacks.
        most_agents: number of agents to show; None: all.
    """
    console, config, compiled_before_s = standard_console(), run.config, COMPILING_S[0]
    print_start(console, run)
    goals = Goals(
        config.checkpoints.metric,
        config.checkpoints.mode == "max",
        config.stop,
        lambda: run.checkpoint,
        most_agents,
        run.algorithm.tracker.longest_running,
    )
    progress = ShowProgress(training_view(console, config.env, goals, keep=console.is_jupyter))
    try:
        execute(run, [*callbacks, progress])
    except BaseException:
        progress.close()
        _print_lines(console, _how_to_go_on(run))
        raise
    print_summary(console, run, most_agents, COMPILING_S[0] - compiled_before_s)
    return run


def _print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines without wrapping them, so that they can be copied from the terminal in one piece."""
    for line in lines:
        console.print(line, soft_wrap=True, markup=False, highlight=False)


# --- The start --------------------------------------------------------------------------------------------------------


def print_start(console: Console, run: Run) -> None:
    """Print the main settings of the run and its folder."""
    if run.checkpoint is not None:
        done = counted(run.algorithm.num_timesteps, "env step")
        _print_lines(console, [f"resuming from {run.checkpoint}, after {done}"])
    remark, settings = remark_on_changes(run), _settings(run.config, f"seed {run.config.seed}")
    remarks = [] if remark is None else [remark]
    slow = _slow(run.algorithm)
    _print_lines(console, [*remarks, *settings, *slow, *run.started_from, f"run folder: {run.files.shown}"])


def _slow(training: MultiAgentAlgorithm) -> Iterator[str]:
    """Yield a line for all policies that are slow for the same reason, and one for envs without their compiled twin."""
    found: dict[str, list[str]] = {}
    tells_all = _log.isEnabledFor(logging.INFO)  # then policies with kernels have said it already
    policies: Mapping[str, Any] = training.policies
    for policy_id, algorithm in policies.items():
        has_kernels = hasattr(algorithm, "described_path")
        if tells_all and not has_kernels:
            said = of_policy(False, False, None, f"{type(algorithm).__name__} has no compiled kernels")
            found.setdefault(said, []).append(policy_id)
        elif has_kernels and not tells_all and algorithm.why_slow() is not None:
            found.setdefault(algorithm.described_path(), []).append(policy_id)
    for path, ids in found.items():
        named = f"policies {', '.join(ids)}" if len(ids) <= _MOST_POLICIES else f"{len(ids)} policies"
        yield f"policy {ids[0]}: {path}" if len(ids) == 1 else f"{named}: {path}"
    why_not = training.env.why_not_batched
    if why_not is not None and (tells_all or why_not not in OF_ALGORITHMS):
        yield of_rollouts(why_not)


def _settings(config: TrainConfig, seeds: str) -> Iterator[str]:
    length = f"{config.env}: {counted(config.n_timesteps, 'env step')} in {counted(config.n_envs, 'env')}"
    networks = {config.policy, *(own.get("policy", AUTO) for own in config.own_settings.values())} - {AUTO, "MlpPolicy"}
    yield ", ".join([length, config.algo, *sorted(networks), f"policies {config.named_policies}", seeds])
    if config.picks_rollouts:
        steps = " or ".join(f"{length:,}" for length in rollout_lengths(config))
        yield f"rollouts: {steps} steps of each env, since {config.env} has no preset; --set n_steps=N sets others"


# --- The end ----------------------------------------------------------------------------------------------------------


def print_summary(
    console: Console, run: Run, most_agents: int | None = MOST_AGENTS, spent_compiling_s: float = 0.0
) -> None:
    """Print the results of a run and its files; paths are never cut.

    Args:
        spent_compiling_s: of the time of its rollouts and updates.
    """
    if run.stopped_by:
        _print_lines(console, [f"stopped: {run.stopped_by}"])
    if run.result is None:
        done = run.algorithm.num_timesteps >= run.config.n_timesteps
        what = "the run is complete; --timesteps N adds to it" if done else "no iteration was finished: nothing to save"
        _print_lines(console, [what])
        return
    evaluation = run.latest_evaluation or {}
    iteration = f"; evaluation of iteration {evaluation['iteration']}" if evaluation else ""
    _print_lines(console, [f"means over the latest episodes{iteration}:"])
    console.print(returns_table(run.result, evaluation, console.width, most_agents))
    no_returns = no_episode_yet(run.result, run.algorithm.tracker.longest_running())
    seconds, env_steps = run.result["time_total_s"], run.result["num_env_steps_sampled_lifetime"]
    agent_steps = sum(run.result["num_agent_steps_sampled_lifetime"].values())
    is_much = _MUCH_COMPILING_S <= spent_compiling_s < seconds  # evaluations may compile, too, which are not counted
    compiling = f", {duration(spent_compiling_s)} of them compiling" if is_much else ""
    working_s = seconds - spent_compiling_s if is_much else seconds
    rate = env_steps / working_s if working_s else None
    totals = [
        *([] if no_returns is None else [no_returns]),
        f"trained: {counted(env_steps, 'env step')}, {counted(agent_steps, 'agent step')}",
        f"rollouts and updates: {duration(seconds)}{compiling} ({number(rate, 0)} env steps/s)",
    ]
    verb = "serve" if run.config.env == EXTERNAL else "evaluate"  # what clients step cannot be made here
    command = () if run.interrupted else (f"{verb} with: python -m marl_sb3.{verb}",)
    # An interrupted run may go on: nothing is said of what looks wrong in it.
    wrong = [] if run.interrupted or run.files.is_lost else _problems(run.folder, run.config)
    report = f"python -m marl_sb3.report {shlex.quote(str(run.files.shown))}"
    _print_lines(console, [*totals, *hints(wrong, report), *_files(run), *_how_to_go_on(run, *command)])


def _problems(folder: Path, config: TrainConfig) -> list[Problem]:
    try:
        logged = read_run(folder)
    except ConfigError:  # somebody has changed the folder meanwhile
        return []
    return find_problems(logged.columns, begins_trained=config.init_from is not None)


def print_files(console: Console, run: Run, command: str) -> None:
    """Print the files of a run whose policies were not trained here, and the command that takes it."""
    _print_lines(console, [*_files(run), *_how_to_go_on(run, f"evaluate with: {command}")])


def _files(run: Run) -> Iterator[str]:
    files = run.files
    if run.checkpoint is not None:
        yield f"checkpoint: {files.as_shown(files.checkpoints.path / run.checkpoint)}"
    if run.checkpoint_why and run.policy_files:
        yield f"evaluate and export take these policies: {run.checkpoint_why}"
    if len(run.policy_files) > _MOST_POLICIES:
        yield f"policies: {files.as_shown(files.policies)} ({len(run.policy_files)} SB3 zips)"
    else:
        yield from (f"policy {policy_id}: {files.as_shown(path)}" for policy_id, path in run.policy_files.items())


def _how_to_go_on(run: Run, command: str = "continue with: python -m marl_sb3.train --resume") -> list[str]:
    """Return a command on the run; none if there is no checkpoint, or only this process can make the env."""
    has_env = importable_id(run.config.env, run.factory) is not None or imported_modules()
    if run.checkpoint is None or run.files.is_lost or not has_env:
        return []
    return [f"{command} {_run_and_env(run.files.shown, run.config.env)}"]


def _run_and_env(folder: Path, env: str) -> str:
    """Return the arguments that name a run, and its env and modules if these are code of the user's own."""
    modules = "".join(f" --import {module}" for module in imported_modules())
    named = f" --env {shlex.quote(env)}" if ":" in env else ""
    return f"{shlex.quote(str(folder))}{named}{modules}"


# --- Several seeds ----------------------------------------------------------------------------------------------------


def execute_and_show_seeds(runs: SeedRuns, most_agents: int | None = MOST_AGENTS) -> None:
    """Train with several seeds, and print how each ends, and the means over those that were trained to their end."""
    console, last_line_s = standard_console(), time.monotonic()
    at_once = f"{counted(runs.jobs.at_once, 'training run')} at a time; folder of the runs: {runs.shown}"
    _print_lines(console, [*_settings(runs.config, counted(len(runs.runs), "seed")), at_once])

    def watch() -> None:
        nonlocal last_line_s
        if time.monotonic() >= last_line_s + _SILENT_S:
            last_line_s = time.monotonic()
            _print_lines(console, [runs.progress()])

    try:
        runs.execute(lambda run: _print_lines(console, [_how_it_ended(run, runs.config.env)]), watch)
    finally:
        _print_over_seeds(console, runs, most_agents)


def _how_it_ended(run: SeedRun, env: str) -> str:
    if run.result is not None:
        value = no_episode_yet(run.result, 0) or f"return {number(run.result['env_runners'][SUM])}"
        return f"seed {run.seed}: {value}, {duration(run.result['time_total_s'])}"
    if run.is_interrupted:
        command = f"continue with: python -m marl_sb3.train --resume {_run_and_env(run.shown, env)}"
        has_checkpoint = any(run.folder.glob("checkpoints/ckpt-*"))
        return f"seed {run.seed}: interrupted; {command if has_checkpoint else 'it has no checkpoint'}"
    return f"seed {run.seed}: failed with exit code {run.exit_code}: {last_line(run.log)}; log: {run.shown}.log"


def _print_over_seeds(console: Console, runs: SeedRuns, most_agents: int | None) -> None:
    """Print the statistics over the seeds, of the training and of the last evaluation."""
    results = [run.result for run in runs.runs if run.result is not None and no_episode_yet(run.result, 0) is None]
    if not results:
        return
    parts = {"training, latest episodes": [result["env_runners"] for result in results]}
    if all(evaluated(result) for result in results):
        parts["evaluation of the last iteration"] = [dict(evaluated(result)) for result in results]
    for title, metrics in parts.items():
        rows = metric_rows(metrics[0], most_agents) if CUSTOM in metrics[0] else [SUM_ROW]
        samples = [(row.label, [value for each in metrics if (value := row.number(each)) is not None]) for row in rows]
        _print_lines(console, [f"{title}, over {counted(len(results), 'seed')}:"])
        console.print(samples_table(samples, console.width, SUM_ROW.label, "per seed"))
    found = {run.seed: _problems(run.folder, runs.config) for run in runs.runs if run.result is not None}
    worst = max(found, key=lambda seed: len(found[seed]))
    where = f"python -m marl_sb3.report {shlex.quote(str(runs.shown))}"
    wrong = sum(map(bool, found.values()))
    _print_lines(console, [f"in {wrong} of {counted(len(found), 'seed')}, such as {worst}:"] if wrong else [])
    _print_lines(console, hints(found[worst], where))

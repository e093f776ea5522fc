"""Show a run: its start, its progress, its end, and the command that continues it."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

from marl_sb3.config.values import counted
from marl_sb3.display.screen import in_notebook, standard_console
from marl_sb3.display.tables import (
    CUSTOM,
    MOST_AGENTS,
    SUM,
    SUM_ROW,
    evaluated,
    metric_rows,
    returns_table,
    samples_table,
)
from marl_sb3.display.text import duration, number
from marl_sb3.display.training_view import Goals, no_episode_yet, training_view
from marl_sb3.envs.registry import importable_id, imported_modules
from marl_sb3.runs.build import rollout_lengths
from marl_sb3.runs.execute import execute
from marl_sb3.runs.start import remark_on_changes
from marl_sb3.training.results import ShowProgress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import Console
    from stable_baselines3.common.callbacks import BaseCallback

    from marl_sb3.config import TrainConfig
    from marl_sb3.runs.run import Run
    from marl_sb3.runs.seeds import SeedRun, SeedRuns

_MOST_POLICIES = 8  # of more policies, only the folder is printed, not each file


def progress_of(
    run: Run, console: Console, *, keep: bool = False, most_agents: int | None = MOST_AGENTS
) -> ShowProgress:
    """Make a callback that shows the progress of a run.

    Args:
        keep: keep the last view on the screen when the training ends.
        most_agents: number of agents to show; None: all.
    """
    config = run.config
    higher_is_better = config.checkpoints.mode == "max"
    goals = Goals(
        config.checkpoints.metric,
        higher_is_better,
        config.stop,
        lambda: run.checkpoint,
        most_agents,
        run.algorithm.tracker.longest_running,
    )
    return ShowProgress(training_view(console, config.env, goals, keep=keep))


def execute_and_show(run: Run, callbacks: Sequence[BaseCallback] = (), most_agents: int | None = MOST_AGENTS) -> Run:
    """Train a run as `execute` does, and print its start, its progress and its end; a notebook keeps the live view.

    Args:
        most_agents: number of agents to show; None: all.
    """
    console = standard_console()
    print_start(console, run)
    progress = progress_of(run, console, keep=in_notebook(), most_agents=most_agents)
    try:
        execute(run, [*callbacks, progress])
    except BaseException:
        progress.close()
        print_how_to_go_on(console, run)
        raise
    print_summary(console, run, most_agents)
    return run


_SILENT_S = 30.0  # while several seeds train: time between lines about their progress


def execute_and_show_seeds(runs: SeedRuns, most_agents: int | None = MOST_AGENTS) -> None:
    """Train with several seeds, and print how each ends, and the means over those that were trained to their end."""
    console = standard_console()
    _print_settings(console, runs.config, counted(len(runs.runs), "seed"))
    print_line(console, f"{counted(runs.at_once, 'training')} at a time; folder of the runs: {runs.shown}")
    last_line_s = time.monotonic()

    def watch() -> None:
        nonlocal last_line_s
        if time.monotonic() >= last_line_s + _SILENT_S:
            last_line_s = time.monotonic()
            print_line(console, runs.progress())

    try:
        runs.execute(lambda run: _print_end(console, run), watch)
    finally:
        _print_over_seeds(console, runs, most_agents)


def _print_end(console: Console, run: SeedRun) -> None:
    """Print how the training with one seed has ended."""
    if run.result is not None:
        value = no_episode_yet(run.result, 0) or f"return {number(run.result['env_runners'][SUM])}"
        print_line(console, f"seed {run.seed}: {value}, {duration(run.result['time_total_s'])}")
    elif run.is_interrupted:
        go_on = f"continue with: python -m marl_sb3.train --resume {_run_and_env(run.shown, run.env)}"
        words = go_on if run.has_checkpoint else "it has no checkpoint"
        print_line(console, f"seed {run.seed}: interrupted; {words}")
    else:
        words = f"failed with exit code {run.exit_code}: {run.last_words()}; log: {run.shown}.log"
        print_line(console, f"seed {run.seed}: {words}")


def _print_over_seeds(console: Console, runs: SeedRuns, most_agents: int | None) -> None:
    """Print the statistics over the seeds, of the training and of the last evaluation."""
    done = [run.result for run in runs.runs if run.result is not None]
    results = [result for result in done if no_episode_yet(result, 0) is None]
    if not results:
        return
    parts = {"training, latest episodes": [result["env_runners"] for result in results]}
    if all(evaluated(result) for result in results):
        parts["evaluation of the last iteration"] = [dict(evaluated(result)) for result in results]
    for title, metrics in parts.items():
        rows = metric_rows(metrics[0], most_agents) if CUSTOM in metrics[0] else [SUM_ROW]
        samples = [(row.label, [value for each in metrics if (value := row.number(each)) is not None]) for row in rows]
        print_line(console, f"{title}, over {counted(len(results), 'seed')}:")
        console.print(samples_table(samples, console.width, SUM_ROW.label, "per seed"))


def print_start(console: Console, run: Run) -> None:
    """Print the main settings of the run and its folder."""
    config = run.config
    if run.checkpoint is not None:
        done = counted(run.algorithm.num_timesteps, "env step")
        print_line(console, f"resuming from {run.checkpoint}, after {done}")
        remark = remark_on_changes(run)
        if remark is not None:
            print_line(console, remark)
    _print_settings(console, config, f"seed {config.seed}")
    for line in run.started_from:
        print_line(console, line)
    print_line(console, f"run folder: {run.files.shown}")


def _print_settings(console: Console, config: TrainConfig, seeds: str) -> None:
    policies = config.policies if isinstance(config.policies, str) else ", ".join(config.policies)
    print_line(
        console,
        f"{config.env}: {counted(config.n_timesteps, 'env step')} in {counted(config.n_envs, 'env')}, {config.algo}, "
        f"policies {policies}, {seeds}",
    )
    if config.picks_rollouts:
        steps = " or ".join(f"{length:,}" for length in rollout_lengths(config))
        words = f"since {config.env} has no preset; --set n_steps=N sets others"
        print_line(console, f"rollouts: {steps} steps of each env, {words}")


def print_summary(console: Console, run: Run, most_agents: int | None = MOST_AGENTS) -> None:
    """Print the results of a run and its files; paths are never cut."""
    if run.stopped_by:
        print_line(console, f"stopped: {run.stopped_by}")
    if run.result is None:
        done = run.algorithm.num_timesteps >= run.config.n_timesteps
        what = "the run is complete; --timesteps N adds to it" if done else "no iteration was finished: nothing to save"
        print_line(console, what)
        return
    evaluation = run.latest_evaluation or {}
    of = f"; evaluation of iteration {evaluation['iteration']}" if evaluation else ""
    print_line(console, f"means over the latest episodes{of}:")
    console.print(returns_table(run.result, evaluation, console.width, most_agents))
    no_returns = no_episode_yet(run.result, run.algorithm.tracker.longest_running())
    for line in (*([] if no_returns is None else [no_returns]), *_totals(run.result), *_files(run)):
        print_line(console, line)
    if run.interrupted:
        print_how_to_go_on(console, run)
    else:
        _print_command(console, run, "evaluate with: python -m marl_sb3.evaluate")


def print_how_to_go_on(console: Console, run: Run) -> None:
    """Print the command that resumes a run, if it has a checkpoint and its folder is there."""
    if not run.files.is_lost:
        _print_command(console, run, "continue with: python -m marl_sb3.train --resume")


def _print_command(console: Console, run: Run, command: str) -> None:
    """Print a command on the run, unless only this process can make the env."""
    has_env = importable_id(run.config.env, run.factory) is not None or imported_modules()
    if run.checkpoint is not None and has_env:
        print_line(console, f"{command} {_run_and_env(run.files.shown, run.config.env)}")


def _run_and_env(folder: Path, env: str) -> str:
    """Return the arguments that name a run, and its env and modules if these are code of the user's own."""
    modules = "".join(f" --import {module}" for module in imported_modules())
    named = f" --env {shlex.quote(env)}" if ":" in env else ""
    return f"{shlex.quote(str(folder))}{named}{modules}"


def print_line(console: Console, text: str) -> None:
    """Print a line without wrapping it, so that it can be copied from the terminal in one piece."""
    console.print(text, soft_wrap=True, markup=False, highlight=False)


def _totals(result: dict[str, Any]) -> list[str]:
    seconds, env_steps = result["time_total_s"], result["num_env_steps_sampled_lifetime"]
    agent_steps = sum(result["num_agent_steps_sampled_lifetime"].values())
    rate = env_steps / seconds if seconds else None
    return [
        f"trained: {counted(env_steps, 'env step')}, {counted(agent_steps, 'agent step')}",
        f"rollouts and updates: {duration(seconds)} ({number(rate, 0)} env steps/s)",
    ]


def _files(run: Run) -> list[str]:
    lines = []
    if run.checkpoint is not None:
        lines.append(f"checkpoint: {run.files.as_shown(run.files.checkpoints.path / run.checkpoint)}")
    if run.checkpoint_why and run.policy_files:
        lines.append(f"policies below, as evaluate and export take them: {run.checkpoint_why}")
    if len(run.policy_files) > _MOST_POLICIES:
        lines.append(f"policies: {run.files.as_shown(run.files.policies)} ({len(run.policy_files)} SB3 zips)")
    else:
        lines += [f"policy {policy_id}: {run.files.as_shown(path)}" for policy_id, path in run.policy_files.items()]
    return lines

"""The result of an iteration: what it holds, who receives it, how it is logged, printed and shown."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from typing import Any, Protocol, cast

import psutil
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import DISABLED, HumanOutputFormat, KVWriter, Logger, filter_excluded_keys
from stable_baselines3.common.utils import configure_logger

from marl_sb3.core.learners.learner import joined_metrics
from marl_sb3.core.metrics.names import Result, finite_or_none, flatten
from marl_sb3.core.training.callback import TrainingCallback, call_hook, training_callbacks
from marl_sb3.core.training.loop import IterationReport
from marl_sb3.core.training.setup import TrainingParts
from marl_sb3.doors import View
from marl_sb3.output import Guard, LenientStream
from marl_sb3.types import AgentID, Array


def iteration_result(report: IterationReport, parts: TrainingParts, agents: Sequence[AgentID]) -> Result:
    """Return the nested result of an iteration; numbers are finite or None."""
    counters, health = parts.counters, parts.runner.health
    env_steps, agent_steps, episodes = counters.of_iteration()
    measured = {
        policy_id: joined_metrics(report.metrics[policy_id]) if policy_id in report.metrics else learner.metrics({})
        for policy_id, learner in parts.learners.items()
        if learner.trained
    }
    samples = sum(metrics["num_module_steps_trained"] for metrics in measured.values())
    total_s = report.sampling_s + report.update_s
    result = {
        "iteration": counters.iteration,
        "num_env_steps_sampled_lifetime": counters.env_steps,
        "num_agent_steps_sampled_lifetime": _by_agent(agents, counters.agent_steps),
        "num_episodes_lifetime": counters.episodes,
        "time_total_s": counters.time_s,
        "env_runners": {
            **parts.tracker.summary(),
            "num_episodes": episodes,
            "num_env_steps_sampled": env_steps,
            "num_agent_steps_sampled": _by_agent(agents, agent_steps),
        },
        "learners": measured,
        "timers": {"env_runner_sampling_timer": report.sampling_s, "learner_update_timer": report.update_s},
        "throughput": {
            "env_steps_per_s": _rate(env_steps, total_s),
            "agent_steps_per_s": _rate(int(agent_steps.sum()), total_s),
            "learner_samples_per_s": _rate(samples, report.update_s),
        },
        **({} if health is None else {"fault_tolerance": asdict(health)}),
        "perf": dict(machine_load(int(5 * time.monotonic()))),
    }
    return finite_or_none(result)


def _by_agent(agents: Sequence[AgentID], counts: Array) -> dict[AgentID, int]:
    return dict(zip(agents, counts.tolist(), strict=True))


def _rate(count: float, seconds: float) -> float | None:
    return count / seconds if seconds > 0 else None


@lru_cache(maxsize=1)  # the system counts in hundredths of a second, and reading takes a while
def machine_load(fifth_of_second: int) -> Mapping[str, float | None]:
    """Return CPU use since the last one and memory use, in percent; None if the system does not report it."""
    load: dict[str, float | None] = {"cpu_util_percent": None, "ram_util_percent": None}
    # Errors may be of any type: containers hide parts of /proc, and the training does not need these values.
    with suppress(Exception):
        load["cpu_util_percent"] = float(psutil.cpu_percent())
    with suppress(Exception):
        load["ram_util_percent"] = float(psutil.virtual_memory().percent)
    return load


# --- Loggers ---------------------------------------------------------------------------------------------------------


class ResultWriter(Protocol):
    """A `KVWriter` that logs iterations. Its `write` gets values that a callback dumps between two iterations."""

    name: str  # name of the log for the argument `exclude` of `logger.record`

    def write_result(self, result: Result, recorded: Mapping[str, Any], step: int) -> None:
        """Write an iteration.

        Args:
            recorded: flat name -> value, recorded by callbacks since the latest result or dump.
        """


class ResultLogger(Logger):
    """SB3's logger with a method to write results."""

    def __init__(self, folder: str | None, writers: Sequence[ResultWriter]) -> None:
        super().__init__(folder, cast("list[KVWriter]", list(writers)))
        self._writers = list(writers)

    def write_result(self, result: Result, step: int) -> None:
        """Write an iteration to all logs, with the values recorded since the last one."""
        if self.level == DISABLED:
            return
        for writer in self._writers:
            kept = filter_excluded_keys(self.name_to_value, self.name_to_excluded, writer.name)
            writer.write_result(result, kept, step)
        for noted in (self.name_to_value, self.name_to_count, self.name_to_excluded):
            noted.clear()


_MAX_LENGTH = 1000  # characters of a name: SB3 raises if shortened names are equal


class _StandardOutput:
    """Writes to the current `sys.stdout`: a live view replaces it, so that tables go above the view."""

    def write(self, text: str) -> None:
        LenientStream(sys.stdout).write(text)

    def flush(self) -> None:
        LenientStream(sys.stdout).flush()


class PrintedMetrics(KVWriter):
    """Prints a table of the metrics of each iteration, as SB3 does with `verbose=1`."""

    def __init__(self) -> None:
        self._table = HumanOutputFormat(_StandardOutput(), max_length=_MAX_LENGTH)  # type: ignore[arg-type]
        self._show: Guard[None] = Guard(lambda: None)

    def write(self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0) -> None:
        """Print the table; after a failure, which is logged, nothing more is printed."""
        self._show(self._table.write, key_values, key_excluded, step)

    def close(self) -> None:
        """Do nothing."""


class Reporter:
    """Passes results to callbacks and to the logger.

    Args:
        verbose: whether the first logger prints metrics.
        tensorboard_log: the folder of TensorBoard's events, see `begin`; None: they are written nowhere.
    """

    def __init__(self, verbose: int, tensorboard_log: str | None) -> None:
        self._formats: list[KVWriter] = [PrintedMetrics()] if verbose else []
        self._folder = tensorboard_log
        # it may be replaced. A `ResultLogger` gets the nested result; SB3's own loggers get flat names.
        self.logger = self._own = Logger(None, self._formats)
        self._unwritten: Result = {}  # metrics that callbacks have added since a result was written

    def begin(self, name: str, *, anew: bool) -> None:
        """Write TensorBoard's events into a folder `NAME_1`, `NAME_2`, ..., as SB3 does: a new one, or the latest."""
        if self._folder is not None and self.logger is self._own:
            self.logger = self._own = configure_logger(0, self._folder, name, anew)
            self.logger.output_formats.extend(self._formats)

    def report(self, result: Result, callback: BaseCallback, env_steps: int, *, write: bool) -> bool:
        """Let callbacks complete a result and receive it, and write it; returns False if one ends the training.

        Args:
            env_steps: env steps so far, the logger's step.
            write: whether the logger writes it now; otherwise metrics added by callbacks are kept for the next write.
        """
        callbacks, measured = list(training_callbacks(callback)), set(result)
        for each in callbacks:
            call_hook(each, "complete_result", result)
        # Every callback gets the result, even if an earlier one ends the training.
        answers = [call_hook(each, "on_iteration_end", result) for each in callbacks]
        if write:
            self.write(result, env_steps)
        else:
            self._unwritten.update({name: result[name] for name in result if name not in measured})
        for each in callbacks:
            call_hook(each, "on_iteration_logged", result)
        return all(answers)

    def write(self, result: Result, env_steps: int) -> None:
        """Let the logger write a result, with the metrics that were kept for it."""
        if self._own.dir is None:  # without `learn`
            self.begin("run", anew=True)
        complete, self._unwritten = {**self._unwritten, **result}, {}
        if isinstance(self.logger, ResultLogger):
            self.logger.write_result(complete, env_steps)
            return
        for name, value in flatten(complete).items():
            self.logger.record(name, value)
        self.logger.dump(env_steps)


# --- Progress --------------------------------------------------------------------------------------------------------


class ShowProgress(TrainingCallback):
    """Passes the progress of the training to a view. An error of the view ends the view, but not the training.

    Args:
        view: what shows it.
    """

    sees_steps = False  # may be called once for many steps

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view
        self._show: Guard[None] = Guard(view.close)

    def _on_training_start(self) -> None:
        self._show(self._view.begin, self.num_timesteps, self.locals["total_timesteps"])

    def _on_step(self) -> bool:
        self._show(self._view.advance, self.num_timesteps)
        return True

    def on_iteration_end(self, result: Result) -> bool:
        """Show the new numbers."""
        self._show(self._view.add, result)
        return True

    def _on_training_end(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the view and release the terminal."""
        self._show(self._view.close)

"""A curriculum: envs get other tasks while the policies train, from their next episodes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Annotated, Any

from msgspec import Meta

from marl_sb3.callbacks.stop import Thresholds
from marl_sb3.core.config.values import require
from marl_sb3.core.metrics.names import Result, flatten
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.training.algorithm import MultiAgentCallback
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.slot_states import same_tree
from marl_sb3.errors import ConfigError, HookError, described, refuse, require_known, shown
from marl_sb3.extensions.dialects.names import require_logged

NextTask = Callable[[Result, Any], Any]

_Stages = Annotated[Sequence[Any], Meta(min_length=1, description="a list of at least one task")]
_SETTING = "env.NAME, a setting of the env, or task, for an env with set_task(task)"


class CurriculumCallback(MultiAgentCallback):
    """Moves all envs from task to task; an env that is in an episode ends it with the task that it has.

    The envs take the tasks by their method `configure(**settings)` or `set_task(task)`; see `MultiAgentVecEnv.
    configure`. The tasks are a part of checkpoints, those of running episodes and those to come.

    Args:
        next_task: returns the task after an iteration, from its result and the present task; the same one: no change.
            None: `stages` are gone through.
        setting: what is changed: `env.NAME`, a setting that the envs' `configure` takes, or `task`.
        stages: the tasks, from the first to the last; with `next_task`, the one to begin with alone.
        advance_at: metric name -> value: the next stage begins when all of them are at least so high. The metrics of
            episodes run over the last 100; therefore the stage stays until these are all of its own.
        more_metrics: names of metrics that other callbacks add to the result.

    Attributes:
        stage: number of the present stage or task, from 0.
        task: the present task; running episodes may have an earlier one.

    Raises:
        ConfigError: an argument is wrong; or, when the training starts, a metric is unknown, or the envs do not take
            the tasks.
    """

    def __init__(
        self,
        next_task: NextTask | None = None,
        *,
        setting: str = "task",
        stages: Sequence[Any] = (),
        advance_at: Mapping[str, float] | None = None,
        more_metrics: Sequence[str] = (),
    ) -> None:
        super().__init__()
        _, dot, name = setting.partition("env.") if isinstance(setting, str) else ("", "", "")
        if setting != "task" and not (dot and name.isidentifier() and setting == f"env.{name}"):
            refuse("curriculum: setting", setting, _SETTING, "curriculum")
        self._name = name or "task"
        self._stages = list(require("curriculum: stages", stages, _Stages, "curriculum"))
        self._advance_at = dict(require("curriculum: advance_at", advance_at or {}, Thresholds, "curriculum"))
        self._next_task, self._more_metrics = next_task, more_metrics
        if next_task is None and len(self._stages) > 1 and not self._advance_at:
            words = "curriculum: advance_at is missing; accepted: {METRIC: VALUE}, from which on the next stage begins"
            raise ConfigError(words, key="curriculum")
        if next_task is not None and (len(self._stages) > 1 or self._advance_at):
            words = "curriculum: next_task and several stages or advance_at are given; accepted: one of them"
            raise ConfigError(words, key="curriculum")
        for task in self._stages:
            self._require_plain(task)
        self.stage, self.task = 0, self._stages[0]
        self._begun_at = 0  # episodes that had ended when the stage began

    def metric_names(self) -> list[str]:
        """Return the flat names of the metrics that it adds to a result."""
        is_number = all(isinstance(task, (int, float)) for task in self._stages)
        return ["curriculum/stage", *([f"curriculum/{self._name}"] if is_number else [])]

    def _init_callback(self) -> None:
        known = [*self.algorithm.metric_names(), *self._more_metrics]
        try:
            for name in self._advance_at:
                require_logged(name, known, "curriculum")
        except ConfigError as error:
            raise ConfigError(f"curriculum: advance_at: {error}", key="curriculum") from error

    def _on_training_start(self) -> None:
        if self.algorithm.num_timesteps == 0:  # otherwise the envs have their tasks
            self.move(self.algorithm.env)

    def complete_result(self, result: Result) -> None:
        """Add the stage, and the task if it is a number."""
        result["curriculum"] = {"stage": self.stage}
        if isinstance(self.task, (int, float)):
            result["curriculum"][self._name] = self.task

    def on_iteration_end(self, result: Result) -> bool:
        """Set the next task if it is due."""
        if self._next_task is None:
            if self.stage < len(self._stages) - 1 and self._is_mastered(result):
                self._begin_stage(self._stages[self.stage + 1], result)
        elif not same_tree(task := self._asked_for(self._next_task, result), self.task):
            self._begin_stage(task, result)
        return True

    def _begin_stage(self, task: Any, result: Result) -> None:
        self.stage, self.task = self.stage + 1, task
        self._begun_at = result["num_episodes_lifetime"]
        self.move(self.algorithm.env)

    def _asked_for(self, next_task: NextTask, result: Result) -> Any:
        try:
            task = next_task(result, deepcopy(self.task))
        except Exception as error:  # code of the user's
            words = f"curriculum: next_task() failed after iteration {result['iteration']}: {described(error)}"
            raise HookError(words) from error
        self._require_plain(task)
        return task

    def _is_mastered(self, result: Result) -> bool:
        """Whether all metrics are high enough, and of episodes of this stage."""
        window = self.algorithm.tracker.episodes.maxlen or 0
        earlier = self.algorithm.env.num_envs + window  # that may be of the stage before
        if self.stage > 0 and result["num_episodes_lifetime"] < self._begun_at + earlier:
            return False
        values = flatten(result)
        reached = [(values.get(name), least) for name, least in self._advance_at.items()]
        return all(value is not None and value >= least for value, least in reached)

    def move(self, env: MultiAgentVecEnv) -> None:
        """Give the present task to all envs, from their next episodes on.

        Raises:
            ConfigError: they do not take it.
        """
        try:
            env.configure(range(env.num_envs), **{self._name: self.task})
        except ConfigError as error:
            words = f"curriculum: stage {self.stage}, task {shown(self.task)}: {error}"
            raise ConfigError(words, key="curriculum") from error

    @staticmethod
    def _require_plain(task: Any) -> None:
        if not is_plain(task) or isinstance(task, tuple):
            accepted = "numbers, strings, booleans, None, arrays, and lists and mappings of these"
            refuse("curriculum: a task", task, accepted, "curriculum")

    def get_state(self) -> State:
        """Return the present task."""
        return {"stage": self.stage, "task": self.task, "begun_at": self._begun_at}

    def set_state(self, state: StateReader) -> None:
        """Go on with the task of a checkpoint, which its envs have."""
        self.stage, self._begun_at = state.integer("stage"), state.integer("begun_at")
        if self._next_task is None and self.stage >= len(self._stages):
            raise state.error("stage", self.stage, f"a stage of the curriculum, below {len(self._stages)}")
        self.task = state.value("task") if self._next_task is not None else self._stages[self.stage]

    @classmethod
    def of(cls, settings: Mapping[str, Any], more_metrics: Sequence[str] = ()) -> CurriculumCallback:
        """Make the curriculum of a run from its settings.

        Raises:
            ConfigError: a setting is missing, unknown or wrong.
        """
        accepted = ("setting", "stages", "advance_at")
        for name in settings:
            require_known(name, accepted, f"curriculum: {shown(name)} is unknown", "curriculum")
        return cls(**settings, more_metrics=more_metrics)

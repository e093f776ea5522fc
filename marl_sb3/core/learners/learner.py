"""Learners: each trains one policy by its SB3 algorithm."""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch as th
from threadpoolctl import ThreadpoolController
from typing_extensions import override

from marl_sb3.core.acting.actor import ActingWatcher, Actor
from marl_sb3.core.config.algorithms import info_of
from marl_sb3.core.config.settings import policy_sections
from marl_sb3.core.experience import Experience
from marl_sb3.core.learners.building import coefficients, is_off_policy, policy_rows, processing_of
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.sb3.private import COUNTS, set_progress_remaining, set_up_logging
from marl_sb3.core.sb3.schedules import Progress, Schedule
from marl_sb3.core.sb3.tensors import (
    Arrays,
    optimizer_arrays,
    optimizer_settings,
    read_optimizers,
    read_weights,
    weights,
)
from marl_sb3.core.sb3.traits import require_path, trait
from marl_sb3.core.state.fields import Commit, Field, Fields, Part, Stateful, in_order, part
from marl_sb3.core.state.randomness import generators
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.doors import Engine, ExperienceMaker, imported
from marl_sb3.errors import ConfigError
from marl_sb3.types import GoalRewards, PolicyID


class Update(NamedTuple):
    """One update of one policy, in two parts. All random numbers that it needs were drawn when it was made."""

    run: Callable[..., None]  # computes the update; it takes the number of threads that it may have
    # puts the results into the policy, and returns the metrics below `learners/{policy}/`; raises `NumericError` if a
    # loss, a gradient or a weight is not finite
    finish: Callable[[], Result]
    parallel: bool = False  # whether `run` may run in a thread, at the same time as the updates of other policies


class Pace(NamedTuple):
    """How long an iteration is for one policy, in env steps of each env, if the run does not set it."""

    report_steps: int  # steps in an iteration
    rollout_steps: int | None = None  # steps in a rollout; None for a policy that learns from a replay buffer


_LATEST = frozenset(
    {"curr_lr", "exploration_rate", "num_grad_updates_lifetime", "num_trainable_parameters", "replay_buffer_size"}
)


def joined_metrics(of_updates: Sequence[Result]) -> Result:
    """Join the metrics of several updates: the latest counts and settings, the sum of steps, means of the others."""
    joined = dict(of_updates[-1])
    if len(of_updates) == 1:
        return joined
    for name in joined.keys() - _LATEST:
        values = [metrics[name] for metrics in of_updates if metrics[name] is not None]
        if name == "num_module_steps_trained":
            joined[name] = sum(values)
        else:
            joined[name] = sum(values) / len(values) if values else None
    return joined


L = TypeVar("L", bound="Learner")


class LocalExperience(ExperienceMaker):
    """The `ExperienceMaker` of a training in one process: the learner records what its own actor experiences."""

    acts_here = learns_here = True

    @override
    def make(self, learner: Learner) -> Experience | None:
        return learner.make_experience() if learner.trained else None


LOCAL_EXPERIENCE = LocalExperience()


@dataclass(frozen=True)
class LearnerOptions:
    """What the learners of all policies of a training are made with."""

    device: str  # see `build`
    n_steps: int | None  # env steps per env in a rollout, if the spec does not set it; A2C has a default of its own
    update_path: str  # see `marl_sb3.PPO`; SB3's own classes have no such choice
    # from 1 at the start of training to 0 at its end, for schedules of exploration
    progress_remaining: Callable[[], Progress]
    experience: ExperienceMaker = LOCAL_EXPERIENCE  # where the policies act, and what they learn from
    # the env's `compute_reward`, for hindsight experience replay; None: nothing is learned here
    goal_rewards: GoalRewards | None = None


class LearnerPart:
    """Takes part in the learning of one policy, beside its SB3 algorithm: by a loss, by transitions, or by how it acts.

    It is made, after the learner, for a policy whose settings ask for it; see `PolicySection.parts`.

    Args:
        learner: that of the policy.
        spec: that of the policy, with the settings of the part.
        seed: that of the policy; None: random draws are not seeded.
        options: what the learners of all policies are made with.
    """

    adds_loss: ClassVar[bool] = False  # whether it adds to the loss that the algorithm minimises
    acts: ClassVar[bool] = False  # whether copies of the policy that act elsewhere have it, too
    # names below `learners/{policy}/` -> the names under which `recorded` returns them
    metrics: Mapping[str, str] = MappingProxyType({})
    states: Mapping[str, Part] = MappingProxyType({})  # parts of checkpoints, by name in the state of the learner
    first_updates: int = 0  # gradient steps that the first update of the learner takes in addition

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        """Raise `ConfigError` if the policy cannot learn so."""

    def read(self) -> None:
        """Read what it needs from files, before the first iteration; called before every one.

        Raises:
            ConfigError: the files cannot be read, or do not fit the policy.
        """

    def attach(self, env: MultiAgentVecEnv, acting: Mapping[PolicyID, Any]) -> ActingWatcher | None:
        """Look at these envs from now on, in which an `ActingPart` each acts; return what is to see all steps."""

    def export_state(self) -> State:
        """Return what copies of the policy that act elsewhere need to know of it in the next round."""
        return {}

    def import_state(self, exported: State) -> None:
        """Take over what `export_state` of the learner in training has returned."""

    def before_update(self) -> None:
        """Prepare for an update of the policy, which is about to begin."""

    def recorded(self) -> Mapping[str, float]:
        """Return what is to be recorded of the update that is over, under names of SB3's logger."""
        return {}


class Learner(Stateful, ABC):
    """Trains one policy; it is a part of a checkpoint, which may be taken between any two env steps.

    Args:
        rows: the rows of the policy.
        algorithm: its SB3 algorithm.
        trained: whether the policy is trained; if not, it only acts.
        processing: what is done to its observations, rewards and actions.
        options: what the learners of all policies are made with.
    """

    # whether the `n_steps` of the run is the length of its rollouts, if its spec does not set it
    takes_common_steps: ClassVar[bool] = False
    takes_parts: ClassVar[Sequence[str]] = ()  # the settings whose `LearnerPart` it takes
    # name -> schedule of attributes of the algorithm that SB3 takes as numbers: they are set before each update
    schedules: Mapping[str, Schedule] = MappingProxyType({})
    engine: Engine | None = None  # computes its updates; None: its algorithm does
    parts: Sequence[LearnerPart] = ()  # the parts that its settings ask for
    experience: Any  # a LearnedExperience, and subclasses know more; None if it is not trained and acts in this process

    def __init__(
        self, rows: PolicyRows, algorithm: Any, trained: bool, processing: Processing, options: LearnerOptions
    ) -> None:
        self.policy_id = rows.policy_id  # the id of the policy
        self.rows = rows
        self.algorithm = algorithm
        self.trained = trained
        self.processing = processing
        info = info_of(type(algorithm))
        assert info is not None, "a PolicySpec takes no other class"
        self._recorded_as = info.all_metrics
        self.metric_names = list(self._recorded_as)  # the names of its metrics, in order; see `AlgorithmInfo.metrics`
        set_up_logging(algorithm)
        self.progress_remaining = options.progress_remaining
        self._states: dict[str, Part] = {}  # parts of checkpoints that only this learner has, by name
        self.actor = self._make_actor()  # acts for the rows of the policy, unless copies of it act elsewhere
        self.own_actor = self.actor if options.experience.acts_here else None  # what acts, if no copies do
        self.experience = options.experience.make(self)

    @classmethod
    def make(
        cls: type[L], rows: PolicyRows, spec: PolicySpec, trained: bool, seed: int | None, options: LearnerOptions
    ) -> L:
        """Make the learner of a policy; see `AlgorithmInfo.learner_class` for the class.

        Args:
            rows: the rows of the policy.
            spec: algorithm, network and hyperparameters.
            trained: whether the policy is trained; if not, it only acts.
            seed: for the initial weights and all random draws of the algorithm.
            options: what the learners of all policies are made with.

        Raises:
            ConfigError: the hyperparameters do not fit the rollout or the spaces.
        """
        if options.n_steps is not None and cls.takes_common_steps and "n_steps" not in spec.hyperparameters:
            spec = spec.with_defaults({"n_steps": options.n_steps})
        processing = processing_of(rows, spec.processing)
        algorithm = cls._build(policy_rows(rows, processing), spec, seed, options, processing)
        learns_here = options.experience.learns_here
        parts = [each for each in cls._parts_of(rows.policy_id, spec) if learns_here or each.acts] if trained else []
        if spec.exploration is not None:
            parts.append(spec.exploration.learner_part)
        engine: Engine | None = None
        if learns_here or not is_off_policy(spec.algorithm):
            path, more_losses = require_path(options.update_path), any(part_class.adds_loss for part_class in parts)
            engine = trait(algorithm, "prepare_engine")(rows.policy_id, path, has_more_losses=more_losses)
        learner = cls(rows, algorithm, trained, processing, options)
        learner.engine = engine
        for part_class in parts:
            part = part_class(learner, spec, seed, options)
            learner.parts = [*learner.parts, part]
            learner._states.update(part.states)
            learner._recorded_as = {**learner._recorded_as, **part.metrics}
        learner.metric_names = list(learner._recorded_as)
        learner.schedules = coefficients(spec.hyperparameters.get("ent_coef"))
        return learner

    @classmethod
    @abstractmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> Any:
        """Make the SB3 algorithm; `rows` are in the spaces in which the policy observes and acts.

        A copy that acts elsewhere is not checked: its learner has more rows.
        """

    @abstractmethod
    def _make_actor(self) -> Actor:
        """Make what acts for the rows."""

    @abstractmethod
    def make_experience(self) -> Experience:
        """Make what records the experience of the actor in this process."""

    @property
    @abstractmethod
    def pace(self) -> Pace:
        """How long an iteration is for this policy."""

    def follow_schedules(self, progress_remaining: float) -> None:
        """Set what the algorithm's own schedules take, and the values of those that it does not have itself."""
        set_progress_remaining(self.algorithm, progress_remaining)
        for name, schedule in self.schedules.items():
            setattr(self.algorithm, name, float(schedule(progress_remaining)))

    @abstractmethod
    def begin_update(self, progress_remaining: float) -> Update:
        """Prepare an update. It draws random numbers, so that policies do this one after the other.

        Args:
            progress_remaining: from 1 at the start of training to 0 at its end, for schedules.
        """

    def due_in(self) -> int:
        """Return the env steps of each env until the next update, at the end of a rollout; 0: now."""
        return 0 if self.experience is None else self.experience.due_in()

    # --- Parts -------------------------------------------------------------------------------------------------------

    @classmethod
    def _parts_of(cls, policy_id: PolicyID, spec: PolicySpec) -> list[type[LearnerPart]]:
        """Return the parts that the settings of a policy ask for.

        Raises:
            ConfigError: they ask for one that this learner does not take.
        """
        given = spec.of_parts
        known = {name: part for section in policy_sections().values() for name, part in section.parts.items()}
        asked = [name for name in known if name in given]
        if given and (not asked or not set(asked) <= set(cls.takes_parts)):
            words = f"{', '.join(given)} is set, and {spec.algorithm.__name__} does not learn with it"
            accepted = ", ".join(cls.takes_parts) or "no such setting"
            raise ConfigError(f"policy {policy_id!r}: {words}; accepted: {accepted}", key=next(iter(given)))
        return [imported(known[name]) for name in asked]

    # --- Metrics -----------------------------------------------------------------------------------------------------

    def metrics(self, recorded: Mapping[str, Any]) -> Result:
        """Return all metrics, from what the algorithm's `train()` has recorded in SB3's logger; at first, nothing."""
        computed = self._computed(recorded)
        metrics: Result = {}
        for name, key in self._recorded_as.items():
            value = computed[name] if key is None else recorded.get(key.removeprefix("-"))
            metrics[name] = -value if value is not None and key is not None and key.startswith("-") else value
        return metrics

    def _take_recorded(self) -> dict[str, Any]:
        """Return what the algorithm and the parts have recorded of an update; its logger forgets it."""
        recorded = {**self.algorithm.logger.name_to_value}
        self.algorithm.logger.dump()
        for each in self.parts:
            recorded |= each.recorded()
        return recorded

    @abstractmethod
    def _computed(self, recorded: Mapping[str, Any]) -> Result:
        """Return the metrics that the algorithm does not record, at least those that it has."""

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        "optimizers": Field(
            lambda self: optimizer_settings(self.algorithm),
            lambda self, saved, name: read_optimizers(self.algorithm, saved.files["optimizer"], saved.fields(name)),
        ),
        "actor": part("own_actor", lambda self: self.rows.num_envs),
        "experience": part("experience", lambda self: self.rows.num_envs),
        "processing": part("processing"),
        "observation_space": generators("algorithm.observation_space"),
        "action_space": generators("algorithm.action_space"),
        **COUNTS,
    }

    @override
    def all_fields(self) -> Fields:
        return {**{name: _of_part(state) for name, state in self._states.items()}, **self.fields}

    def get_tensors(self) -> Mapping[str, Arrays]:
        """Return the weights and the optimizers' state, copied, by kind of file; see `checkpoint.KINDS`."""
        return {"policy": weights(self.algorithm), "optimizer": optimizer_arrays(self.algorithm)}

    def read_state(self, saved: StateReader) -> Commit:
        """See `Part.read_state`; with another number of envs, new episodes begin."""
        return in_order([read_weights(self.algorithm, saved.files["policy"]), super().read_state(saved)])


def _of_part(of_learner: Part) -> Field:
    """Return the field of a part of checkpoints that only one learner has."""
    return Field(lambda _: of_learner.get_state(), lambda _, saved, name: of_learner.read_state(saved.fields(name)))


def iteration_steps(learners: Sequence[Learner], n_steps: int | None) -> int:
    """Return the env steps of each env in an iteration.

    Where `n_steps` is None, an iteration takes as many steps as the longest rollout, times the fewest rollouts that a
    policy alone would have in an iteration. Without rollouts, it is as long as the longest iteration of a policy alone.
    """
    if n_steps is not None:
        return n_steps
    paces = [learner.pace for learner in learners]
    rollouts = [(pace.report_steps, pace.rollout_steps) for pace in paces if pace.rollout_steps is not None]
    if not rollouts:
        return max(pace.report_steps for pace in paces)
    return max(steps for _, steps in rollouts) * min(report // steps for report, steps in rollouts)


# --- Threads of a training --------------------------------------------------------------------------------------------


def available_cores() -> int:
    """Return the number of cores that this process may use: its CPU affinity, at most `OMP_NUM_THREADS` if set."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(cores, int(limit))) if limit.isdecimal() else cores


def parallel_updates(n_threads: int) -> int:
    """Return how many updates of `n_threads` threads each fit on this process's cores."""
    return max(1, available_cores() // n_threads)


@lru_cache(maxsize=2)
def _blas_libraries(with_scipy: bool) -> ThreadpoolController:
    """Return the BLAS libraries that are loaded; `with_scipy` includes SciPy's, which the fused kernels call."""
    return ThreadpoolController().select(user_api="blas")


def blas_threads(count: int) -> AbstractContextManager[object]:
    """Limit NumPy's and SciPy's BLAS to `count` threads inside the context: small products are fastest with one."""
    libraries = _blas_libraries("scipy.linalg.cython_blas" in sys.modules)
    limit: AbstractContextManager[object] = libraries.limit(limits=count)
    return limit


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Limit PyTorch and BLAS to `count` threads inside the context; afterwards they have the threads they had before.

    PyTorch's threads wait for each other after every operation. Where other processes use the cores, two of them take
    up to thirty times as long as one.
    """
    before = th.get_num_threads()
    th.set_num_threads(count)
    try:
        with blas_threads(count):
            yield
    finally:
        th.set_num_threads(before)


def run_in_threads(jobs: Sequence[Callable[[int], None]], at_once: int) -> None:
    """Run jobs that release the GIL in `at_once` threads, each with its share; raises the first exception of a job."""
    if len(jobs) < 2 or at_once < 2:
        for job in jobs:
            job(at_once)
        return
    with ThreadPoolExecutor(min(len(jobs), at_once)) as pool:
        for running in [pool.submit(job, max(1, at_once // len(jobs))) for job in jobs]:
            running.result()

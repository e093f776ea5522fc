"""Learners: each trains one policy by its SB3 algorithm."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, TypeVar

from marl_sb3.acting.actor import Actor
from marl_sb3.acting.exploration import Exploration, Explorer, choosing_policy
from marl_sb3.config.algorithms import info_of
from marl_sb3.errors import ConfigError
from marl_sb3.experience.shards import ShardedExperience
from marl_sb3.experience.turns import Experience
from marl_sb3.learners.building import coefficients, is_off_policy, policy_rows, processing_of
from marl_sb3.learners.spec import PolicySpec
from marl_sb3.learners.update_path import TwoPaths, choose_path
from marl_sb3.metrics import Result
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import Processing
from marl_sb3.sb3.optimizers import (
    optimizer_arrays,
    optimizer_settings,
    read_optimizers,
)
from marl_sb3.sb3.private import COUNTS, set_progress_remaining, set_up_logging
from marl_sb3.sb3.schedules import Progress, Schedule
from marl_sb3.sb3.tensors import Arrays, read_weights, weights
from marl_sb3.storage.parts import Commit, Fields, SavedPart, Stateful, TensorFile, computed, in_order, part
from marl_sb3.storage.space_data import generators
from marl_sb3.types import GoalRewards, PolicyID


class Update(NamedTuple):
    """One update of one policy, in two parts. All random numbers that it needs were drawn when it was made.

    Attributes:
        run: computes the update.
        finish: puts the results into the policy, and returns the metrics below `learners/{policy}/`; raises
            `NumericError` if a loss, a gradient or a weight is not finite.
        parallel: whether `run` may run in a thread, at the same time as the updates of other policies.
    """

    run: Callable[[], None]
    finish: Callable[[], Result]
    parallel: bool = False


class Pace(NamedTuple):
    """How long an iteration is for one policy, in env steps of each env, if the run does not set it.

    Attributes:
        report_steps: steps in an iteration.
        rollout_steps: steps in a rollout; None for a policy that learns from a replay buffer.
    """

    report_steps: int
    rollout_steps: int | None = None


_LATEST = frozenset(
    {"curr_lr", "exploration_rate", "num_grad_updates_lifetime", "num_trainable_parameters", "replay_buffer_size"}
)


def joined_metrics(of_updates: Sequence[Result]) -> Result:
    """Join the metrics of several updates: the latest counts and settings, the sum of steps, means of the others."""
    joined = dict(of_updates[-1])
    if len(of_updates) == 1:
        return joined
    for name in joined.keys() - _LATEST:
        known = [metrics[name] for metrics in of_updates if metrics[name] is not None]
        if name == "num_module_steps_trained":
            joined[name] = sum(known)
        else:
            joined[name] = sum(known) / len(known) if known else None
    return joined


L = TypeVar("L", bound="Learner")


@dataclass(frozen=True)
class LearnerOptions:
    """What the learners of all policies of a training are made with.

    Attributes:
        device: as in SB3.
        n_steps: env steps per env in a rollout, if the spec does not set it; A2C has a default of its own.
        update_path: see `TwoPaths`; SB3's own classes have no such choice.
        progress_remaining: from 1 at the start of training to 0 at its end, for schedules of exploration.
        sharded: whether the policies act in shards, which send their experience.
        goal_rewards: the env's `compute_reward`, for hindsight experience replay; None: of no use in shards.
        num_shards: the number of shards, for the copies of the policies that act in one of them; they are on the CPU,
            and their weights come with the order of each round. None: for the policies themselves.
    """

    device: str
    n_steps: int | None
    update_path: str
    progress_remaining: Callable[[], Progress]
    sharded: bool = False
    goal_rewards: GoalRewards | None = None
    num_shards: int | None = None


class Learner(Stateful, ABC):
    """Trains one policy; it is a part of a checkpoint, which may be taken between any two env steps.

    Args:
        rows: the rows of the policy.
        algorithm: its SB3 algorithm.
        trained: whether the policy is trained; if not, it only acts.
        processing: of its observations, rewards and actions.
        options: what the learners of all policies are made with.

    Attributes:
        policy_id: the id of the policy.
        metric_names: the names of its metrics, in order; see `AlgorithmInfo.metrics`.
        schedules: of attributes of the algorithm that SB3 takes as numbers; they are set before each update.
        takes_common_steps: whether the `n_steps` of the run is the length of its rollouts, if its spec does not set it.
        actor: acts for the rows of the policy, unless it acts in shards.
        experience: what the policy learns from; None if it is not trained and acts in this process.
    """

    takes_common_steps: ClassVar[bool] = False
    schedules: Mapping[str, Schedule] = MappingProxyType({})
    experience: Experience | ShardedExperience | None

    def __init__(
        self, rows: PolicyRows, algorithm: Any, trained: bool, processing: Processing, options: LearnerOptions
    ) -> None:
        self.policy_id = rows.policy_id
        self.rows = rows
        self.algorithm = algorithm
        self.trained = trained
        self.processing = processing
        info = info_of(type(algorithm))
        assert info is not None, "a PolicySpec takes no other class"
        self._recorded_as = info.all_metrics
        self.metric_names = list(self._recorded_as)
        set_up_logging(algorithm)
        self._is_sharded = options.sharded
        self.actor = self._make_actor()
        if options.sharded:
            self.experience = (self._sharded if trained else ShardedExperience)(self.actor, processing)
        else:
            self.experience = self._make_experience(options.progress_remaining) if trained else None

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
        if options.n_steps is not None and cls.takes_common_steps:
            spec = spec.with_defaults({"n_steps": options.n_steps})
        processing = processing_of(rows, spec.processing)
        algorithm = cls._build(policy_rows(rows, processing), spec, seed, options, processing)
        explores_in_shard = options.num_shards is not None and is_off_policy(spec.algorithm)
        learns_here = trained and options.num_shards is None
        if isinstance(algorithm, TwoPaths) and not explores_in_shard:
            algorithm.imitates = learns_here and spec.data.imitation_data is not None
            choose_path(rows.policy_id, algorithm, options.update_path)
        learner = cls(rows, algorithm, trained, processing, options)
        if learns_here and spec.data.changed():
            learner.take_data(spec, seed, options)
        learner.schedules = coefficients(spec)
        if spec.exploration is not None:
            learner.explore_by(spec.exploration, seed, options)
        return learner

    @classmethod
    @abstractmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> Any:
        """Make the SB3 algorithm; `rows` are in the spaces in which the policy observes and acts.

        It is not checked whether the hyperparameters fit the rows of a shard: the learner has more.
        """

    _sharded: ClassVar[type[ShardedExperience]]

    @abstractmethod
    def _make_actor(self) -> Actor:
        """Make what acts for the rows."""

    @abstractmethod
    def _make_experience(self, progress_remaining: Callable[[], float]) -> Experience:
        """Make what records the experience in this process."""

    @property
    @abstractmethod
    def pace(self) -> Pace:
        """How long an iteration is for this policy."""

    def explore_by(self, exploration: Exploration, seed: int | None, options: LearnerOptions) -> None:
        """Let an object choose the actions in training; it becomes a part of checkpoints.

        Raises:
            ConfigError: it cannot, for this algorithm and these actions, or in shards.
        """
        self.explorer = Explorer(exploration, seed, options.progress_remaining)
        policy = None if options.sharded else choosing_policy(self.actor.policy, self.explorer)
        if policy is None:
            name, space = type(self.algorithm).__name__, self.algorithm.action_space
            why = "in shards or on Ray" if options.sharded else f"with {name} and actions {space}"
            accepted = "DQN, QRDQN, or an algorithm with rollouts and without memory, with Discrete actions; no shards"
            words = f"policy {self.policy_id!r}: exploration is {type(exploration).__name__} {why}"
            raise ConfigError(f"{words}; accepted: {accepted}", key="exploration")
        self.actor.policy = policy
        self.fields = {**self.fields, "exploration": part("explorer")}  # type: ignore[misc]

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

    # --- Recorded data -----------------------------------------------------------------------------------------------

    def take_data(self, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        """Prepare to learn from the recorded episodes that the settings name; they are read by `read_data`.

        Raises:
            ConfigError: the algorithm cannot learn from them.
        """
        raise data_refused(self.policy_id, spec, "it cannot learn from recorded episodes", "no such setting")

    def read_data(self) -> None:
        """Read recorded episodes, if there are any and they were not read yet.

        Raises:
            ConfigError: they cannot be read, or are not of such a policy.
        """

    # --- Metrics -----------------------------------------------------------------------------------------------------

    def metrics(self, recorded: Mapping[str, Any]) -> Result:
        """Return all metrics, from what the algorithm's `train()` has recorded in SB3's logger; at first, nothing."""
        computed = self._computed(recorded)
        return {
            name: computed[name] if key is None else _with_sign(recorded, key)
            for name, key in self._recorded_as.items()
        }

    @abstractmethod
    def _computed(self, recorded: Mapping[str, Any]) -> Result:
        """Return the metrics that the algorithm does not record, at least those that it has."""

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        "optimizers": computed(
            lambda self: optimizer_settings(self.algorithm),
            lambda self, saved, name: read_optimizers(self.algorithm, saved.files["optimizer"], saved.value(name)),
        ),
        "actor": computed(
            lambda self: None if self._is_sharded else self.actor.get_state(),
            lambda self, saved, name: self._read_acting(saved, name, None if self._is_sharded else self.actor),
        ),
        "experience": computed(
            lambda self: None if self.experience is None else self.experience.get_state(),
            lambda self, saved, name: self._read_acting(saved, name, self.experience),
        ),
        "processing": part("processing"),
        "observation_space": generators("algorithm.observation_space"),
        "action_space": generators("algorithm.action_space"),
        **COUNTS,
    }

    def get_tensors(self) -> Mapping[str, Arrays]:
        """Return the weights and the optimizers' state, copied, by kind of file; see `checkpoint.KINDS`."""
        return {"policy": weights(self.algorithm), "optimizer": optimizer_arrays(self.algorithm)}

    def read_state(self, saved: SavedPart) -> Commit:  # type: ignore[override]
        """See `Part.read_state`; with another number of envs, new episodes begin."""
        return in_order([self.read_weights(saved.files), super().read_state(saved)])

    def _read_acting(
        self, saved: SavedPart, name: str, own: Actor | Experience | ShardedExperience | None
    ) -> Callable[[], object] | None:
        """Check what actor or experience has saved; new episodes begin if the number of envs has changed."""
        if own is None:
            saved.null(name)
            return None
        return own.begin_episodes if saved.num_envs != self.rows.num_envs else own.read_state(saved.fields(name))

    def read_weights(self, files: Mapping[str, TensorFile]) -> Callable[[], None]:
        """Do what `read_state` does, but only for the weights."""
        return read_weights(self.algorithm, files["policy"])


def data_refused(policy_id: PolicyID, spec: PolicySpec, why: str, accepted: str) -> ConfigError:
    """Return the error for settings of recorded data that an algorithm does not take."""
    names = ", ".join(spec.data.changed())
    words = f"policy {policy_id!r}: {names} is set, but {spec.algorithm.__name__}: {why}; accepted: {accepted}"
    return ConfigError(words, key=next(iter(spec.data.changed())))


def _with_sign(recorded: Mapping[str, Any], key: str) -> Any:
    value = recorded.get(key.removeprefix("-"))
    return -value if value is not None and key.startswith("-") else value


def common_steps(n_steps: int | None, specs: Mapping[PolicyID, PolicySpec]) -> int | None:
    """Return the length of rollouts for specs without `n_steps`.

    It is the given one, else that of the first spec with `n_steps`, else None: SB3's default.
    """
    # The `n_steps` of others is that of n-step returns.
    on_policy = [spec.hyperparameters for spec in specs.values() if not is_off_policy(spec.algorithm)]
    own = (given["n_steps"] for given in on_policy if "n_steps" in given)
    return n_steps if n_steps is not None else next(own, None)


def iteration_steps(learners: Sequence[Learner], n_steps: int | None) -> int:
    """Return the env steps of each env in an iteration.

    They are as given. Else an iteration is as long as the longest rollout, times the fewest rollouts that a policy has
    in an iteration of its own; without rollouts, it is the longest one of a policy.
    """
    if n_steps is not None:
        return n_steps
    paces = [learner.pace for learner in learners]
    rollouts = [(pace.report_steps, pace.rollout_steps) for pace in paces if pace.rollout_steps is not None]
    if not rollouts:
        return max(pace.report_steps for pace in paces)
    return max(steps for _, steps in rollouts) * min(report // steps for report, steps in rollouts)

"""Train one policy by its SB3 off-policy algorithm: updates from a replay buffer, at the algorithm's own cadence."""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
import psutil
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from typing_extensions import override

from marl_sb3.core.acting.actor import Actor, not_finite_refused
from marl_sb3.core.acting.policy import ExploringPolicy, RowNoise
from marl_sb3.core.config.values import Count, counted, require
from marl_sb3.core.experience import Experience
from marl_sb3.core.learners.building import build, check_action_space, is_off_policy, processing_of, stored_space
from marl_sb3.core.learners.finite import check_replay_update
from marl_sb3.core.learners.learner import Learner, LearnerOptions, Pace, Update, joined_metrics
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.off_policy.per_row_replay import (
    CompactBuffer,
    GoalEnv,
    HindsightBuffer,
    NStepBuffer,
    NStepDictBuffer,
    PerRowReplay,
    goal_spaces,
)
from marl_sb3.core.off_policy.replay import (
    ReplayExperience,
    TransitionDictReplayBuffer,
    TransitionReplayBuffer,
    read_resized,
)
from marl_sb3.core.processing.processing import Processing
from marl_sb3.core.processing.processors import parts_of
from marl_sb3.core.processing.rows import process_rows
from marl_sb3.core.sb3.private import OFF_POLICY_COUNTS, num_updates
from marl_sb3.core.sb3.spaces import check_spaces, normalize_minibatches
from marl_sb3.core.sb3.tensors import Arrays, optimized_parameters
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Commit, Field, Fields, in_order
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import CheckpointError, ConfigError, require_known
from marl_sb3.types import Array, GoalRewards
from marl_sb3.wrappers.observations import choices_of

_log = logging.getLogger(__name__)

_ENV_STEPS_PER_REPORT = 1000


class OffPolicyLearner(Learner):
    """A `Learner` that updates by its algorithm's own `train()` from a replay buffer.

    An update is due after each rollout of `train_freq` steps or episodes. Until `learning_starts` agent steps have been
    taken, and until the replay buffer has a line to draw from, updates do nothing.
    """

    algorithm: OffPolicyAlgorithm
    policy_class: ClassVar[type[ExploringPolicy]] = ExploringPolicy
    takes_parts: ClassVar[Sequence[str]] = ("replay_data", "curiosity")
    trains: Callable[..., None] | None = None  # takes the place of the algorithm's `train()`

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._num_parameters = sum(parameter.numel() for *_, parameter in optimized_parameters(self.algorithm))

    @property
    def buffer(self) -> Any:
        """The replay buffer."""
        return self.algorithm.replay_buffer

    @classmethod
    def _build(
        cls, rows: PolicyRows, spec: PolicySpec, seed: int | None, options: LearnerOptions, processing: Processing
    ) -> BaseAlgorithm:
        if not options.experience.learns_here:
            copy: Any = build(rows, spec, processing, options.device)
            copy.replay_buffer = None
            options.experience.prepare_copy(copy)
            return copy  # type: ignore[no-any-return]
        check_spaces(rows, spec.algorithm)
        check_replay(rows, spec, processing)
        algorithm: Any = build(rows, spec, processing, options.device, seed)
        assert options.goal_rewards is not None
        stored = stored_space(processing, algorithm)
        algorithm.replay_buffer = replay_buffer(rows, spec, algorithm, stored, options.goal_rewards)
        return algorithm  # type: ignore[no-any-return]

    def _make_actor(self) -> Actor:
        algorithm, noise = self.algorithm, self.algorithm.action_noise
        processed = process_rows(self.processing, self.rows, algorithm.gamma, self.trained, late=True)
        normalize_minibatches(algorithm, self.processing)
        explores = self.trained and isinstance(noise, ActionNoise)
        row_noise = RowNoise(noise, self.rows.num_rows) if explores else None  # type: ignore[arg-type]
        return Actor(self.rows, self.policy_class(algorithm, row_noise, warms_up=self.trained), processed)

    def make_experience(self) -> Experience:
        """See `Learner.make_experience`."""
        return ReplayExperience(self.actor, stored_space(self.processing, self.algorithm), self.progress_remaining)

    @property
    @override
    def pace(self) -> Pace:
        every: Any = self.algorithm.train_freq
        return Pace(max(_ENV_STEPS_PER_REPORT // self.rows.num_envs, int(every.frequency), 1))

    # --- Update ------------------------------------------------------------------------------------------------------

    @override
    def begin_update(self, progress_remaining: float) -> Update:
        self.follow_schedules(progress_remaining)
        metrics: list[Result] = []

        def run(threads: int = 1) -> None:
            trait(self.algorithm, "use_threads")(threads)
            for _ in self.experience.due_updates():
                metrics.append(self._train())

        return Update(run, lambda: joined_metrics(metrics or [self.finish_update(0)]))

    def _train(self) -> Result:
        """Update by the algorithm's `train()`, or do nothing if the policy is not to learn yet.

        Returns:
            The metrics.

        Raises:
            NumericError: a loss or a number in the replay buffer is not finite.
        """
        algorithm, experience = self.algorithm, self.experience
        gradient_steps = 0
        if algorithm.num_timesteps > algorithm.learning_starts and self.buffer.can_sample and experience is not None:
            # -1: as many as agent steps in the rollout
            gradient_steps = algorithm.gradient_steps if algorithm.gradient_steps >= 0 else experience.agent_steps
        if gradient_steps > 0 and num_updates(algorithm) == 0:
            gradient_steps += sum(each.first_updates for each in self.parts)
        if gradient_steps > 0:
            with not_finite_refused(self.policy_id, "update"):
                (self.trains or algorithm.train)(gradient_steps=gradient_steps, batch_size=algorithm.batch_size)
        return self.finish_update(gradient_steps)

    def finish_update(self, gradient_steps: int) -> Result:
        """Return the metrics of gradient steps, after a look for numbers that are not finite."""
        recorded = self._take_recorded()
        if gradient_steps:
            check_replay_update(self.policy_id, recorded, self.buffer)
        return {**self.metrics(recorded), "num_module_steps_trained": gradient_steps * self.algorithm.batch_size}

    def _computed(self, recorded: Mapping[str, Any]) -> Result:
        return {
            "exploration_rate": trait(self.algorithm, "exploration_rate"),
            "replay_buffer_size": self.buffer.num_transitions,
            "num_grad_updates_lifetime": num_updates(self.algorithm),
            "num_trainable_parameters": self._num_parameters,
            "num_module_steps_trained": 0,
        }

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        **Learner.fields,
        "replay": Field(
            lambda self: self.buffer.get_state() if self.trained else None,
            lambda self, saved, name: self._read_replay(saved) if self.trained else saved.like(name, None),
        ),
        **OFF_POLICY_COUNTS,
    }

    def get_tensors(self) -> Mapping[str, Arrays]:
        """See `Learner.get_tensors`; the replay buffer is not copied."""
        of_policy = super().get_tensors()
        return {**of_policy, "replay": self.buffer.tensors()} if self.trained else of_policy

    def _read_replay(self, saved: StateReader) -> Commit:
        buffer, state = self.buffer, saved.fields("replay")
        if "replay" not in saved.files:
            raise CheckpointError(f"{saved.where}: the file of the replay buffer is missing")
        if saved.num_envs == self.rows.num_envs:
            commit: Commit = buffer.read_state(state, saved.files["replay"])
            return commit
        if isinstance(buffer, TransitionReplayBuffer | TransitionDictReplayBuffer):
            rows = saved.num_envs * len(self.rows.agents)
            return read_resized(buffer, state, saved.files["replay"], rows)
        words = (
            f"inexact: policy {self.policy_id!r}: the replay buffer begins anew: it holds the transitions of "
            f"{self.rows.num_envs} envs one after the other, and the checkpoint has {saved.num_envs}"
        )
        return in_order([buffer.reset, lambda: _log.warning("%s", words)])


# --- Settings --------------------------------------------------------------------------------------------------------

RowReplayBuffer = TransitionReplayBuffer | TransitionDictReplayBuffer | PerRowReplay
HER = "HerReplayBuffer"
FRAMES = "frames"  # (class, FRAMES) in `AlgorithmTraits.replay_buffers`: one in its place that holds each frame once

_TIMEOUTS, _OF_GOALS = "handle_timeout_termination", ("n_sampled_goal", "goal_selection_strategy")
_BUFFER_KINDS: Mapping[str, Any] = {
    _TIMEOUTS: bool,
    "n_sampled_goal": Count,
    "goal_selection_strategy": Literal["future", "final", "episode"],
}


def check_replay(rows: PolicyRows, spec: PolicySpec, processing: Processing) -> None:
    """Refuse what the algorithm cannot learn from, or what is not supported for rows that act in turns.

    Raises:
        ConfigError: names the policy and the setting.
    """
    check_action_space(rows, spec)
    values = spec.values
    where = f"policy {rows.policy_id!r}"
    names = list(processing.processors)
    after = names[names.index("normalize_observations") + 1 :] if processing.normalizer else []
    if after:
        raise ConfigError(
            f"{where}: normalize_observations and {', '.join(after)} are on, but "
            f"{spec.algorithm.__name__} normalises observations last, when they are drawn from the replay buffer; "
            "accepted: one of them",
            key="normalize_observations",
        )
    _check_buffer(rows, values, where)
    every = values["train_freq"]
    in_episodes = isinstance(every, list | tuple) and every[1] == "episode"
    if in_episodes and rows.num_rows > 1:
        shape = f"{counted(rows.num_envs, 'env')} x {counted(len(rows.agents), 'agent')}"
        raise ConfigError(
            f"{where}: train_freq is in episodes, which end at different times in {shape}; accepted: steps, or one env "
            "and a policy for each agent",
            key="train_freq",
        )


def _check_buffer(rows: PolicyRows, values: Mapping[str, Any], where: str) -> None:
    """Refuse settings of a replay buffer that do not go together."""
    hindsight, given = values["replay_buffer_class"] == HER, values["replay_buffer_kwargs"] or {}
    accepted = (_TIMEOUTS, *_OF_GOALS) if hindsight else (_TIMEOUTS,)
    for name in given:
        require_known(name, accepted, f"{where}: replay_buffer_kwargs has {name!r}", "replay_buffer_kwargs")
        require(name, given[name], _BUFFER_KINDS[name], "replay_buffer_kwargs")
    if hindsight:
        _check_goals(rows, values, where)
    if values["optimize_memory_usage"]:
        _check_compact(rows, values, where)


def _check_goals(rows: PolicyRows, values: Mapping[str, Any], where: str) -> None:
    space = rows.group.observation_space
    goals = goal_spaces(space)
    if goals is None or goals[0] != goals[1]:
        raise ConfigError(
            f"{where}: replay_buffer_class is {HER}, but agents {', '.join(rows.agents)} observe {space}; accepted: a "
            "Dict of observation, achieved_goal and desired_goal, with goals of the same space",
            key="replay_buffer_class",
        )
    if values["n_steps"] > 1:
        words = f"{where}: n_steps is {values['n_steps']}, but {HER} has no n-step returns; accepted: 1"
        raise ConfigError(words, key="n_steps")
    if rows.team_columns:
        raise ConfigError(f"{where}: team_reward does not go with {HER}; accepted: null", key="team_reward")


def _check_compact(rows: PolicyRows, values: Mapping[str, Any], where: str) -> None:
    given = values["replay_buffer_kwargs"] or {}
    reasons = {
        "the observations are of several parts": isinstance(rows.group.observation_space, spaces.Dict),
        f"n_steps is {values['n_steps']}": values["n_steps"] > 1,
        f"ends by a time limit need their own observation: set replay_buffer_kwargs to {{{_TIMEOUTS}: false}} to treat "
        "them as terminations": given.get(_TIMEOUTS, True),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        words = f"{where}: optimize_memory_usage is true, but {reason}"
        raise ConfigError(f"{words}; accepted: false", key="optimize_memory_usage")


def replay_buffer(
    rows: PolicyRows,
    spec: PolicySpec,
    algorithm: Any,
    stored: spaces.Space[Any],
    goal_rewards: GoalRewards,
    size: int | None = None,
) -> RowReplayBuffer:
    """Make the replay buffer of a policy.

    Args:
        stored: the space of the observations that it keeps.
        size: the number of transitions that it holds; None: as the spec says.

    Raises:
        ConfigError: there are goals, but the env has no `compute_reward` that gives their rewards.
    """
    values, is_dict = spec.values, isinstance(stored, spaces.Dict)
    more: dict[str, Any] = {}
    buffer_class: Callable[..., RowReplayBuffer] = TransitionDictReplayBuffer if is_dict else TransitionReplayBuffer
    if values["replay_buffer_class"] == HER:
        buffer_class, more = HindsightBuffer, {"goals": _goal_env(rows, stored, goal_rewards)}
    elif values["n_steps"] > 1:
        buffer_class = NStepDictBuffer if is_dict else NStepBuffer
        more = {"n_steps": values["n_steps"], "gamma": algorithm.gamma}
    elif values["optimize_memory_usage"]:
        buffer_class, more = CompactBuffer, {"optimize_memory_usage": True}
    kinds, frames = trait(algorithm, "replay_buffers"), trait(algorithm, "stacked_frames")(spec, stored)
    if frames and (buffer_class, FRAMES) in kinds:
        buffer_class, more = kinds[buffer_class, FRAMES], {**more, "frames": frames}
    buffer_class = kinds.get(buffer_class, buffer_class)
    more |= {**(values["replay_buffer_kwargs"] or {}), "device": algorithm.device, "n_envs": algorithm.n_envs}
    with warnings.catch_warnings():
        # `require_memory` refuses such a buffer.
        warnings.filterwarnings("ignore", message="This system does not have apparently enough memory")
        return buffer_class(size or values["buffer_size"], stored, algorithm.action_space, **more)


def _goal_env(rows: PolicyRows, stored: spaces.Space[Any], goal_rewards: GoalRewards) -> GoalEnv:
    """Return what gives the rewards of new goals, after asking it for those of one goal of zeros for each agent."""
    made, parts = GoalEnv(rows.agents, goal_rewards), goal_spaces(stored)
    assert parts is not None
    goal: Array = np.zeros((1, *(parts[0].shape or ())), parts[0].dtype)
    for agent in rows.agents:
        try:
            made.of_agent(agent, goal, goal, [{}])
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(
                f"policy {rows.policy_id!r}: replay_buffer_class is {HER}, but {error}; the env needs compute_reward("
                "agent, achieved_goals, desired_goals, infos), for one agent without the first, which returns an "
                "array with the reward of each goal",
                key="replay_buffer_class",
            ) from error
    return made


def require_memory(policies: Iterable[tuple[PolicyRows, PolicySpec]]) -> None:
    """Refuse replay buffers that need more memory than is available; policies with rollouts have none.

    Raises:
        ConfigError: they do; the message has the size of each.
    """
    sizes = {rows.policy_id: _bytes(rows, spec) for rows, spec in policies if is_off_policy(spec.algorithm)}
    available = psutil.virtual_memory().available
    if sum(sizes.values()) <= available:
        return
    each = ", ".join(f"{policy_id!r} {size / 2**30:,.1f} GiB" for policy_id, size in sizes.items())
    raise ConfigError(
        f"the replay buffers need more memory than is available ({available / 2**30:,.1f} GiB): policy {each}; "
        "accepted: a smaller buffer_size",
        key="buffer_size",
    )


def _bytes(rows: PolicyRows, spec: PolicySpec) -> int:
    """Return the memory of a policy's replay buffer."""
    processing, values = processing_of(rows, spec.processing), spec.values
    stored = processing.observation_space if processing.normalizer is None else processing.normalizer.before
    copies = 1 if values["optimize_memory_usage"] else 2
    parts = [*parts_of(stored).values()] * copies + [processing.action_space]
    numbers = 12 + sum(math.prod(part.shape or ()) * np.dtype(part.dtype).itemsize for part in parts)  # rewards, ends
    if frames := trait(spec.algorithm, "stacked_frames")(spec, stored):  # a frame, spare ones, indices of both stacks
        stack = math.prod(stored.shape or ())
        numbers += stack // frames * 65 // 64 + 8 * frames - 2 * stack
    numbers += sum(choices_of(rows.group.action_space) or ()) if spec.info.takes_masks else 0
    more = 16 if values["replay_buffer_class"] == HER else int(values["optimize_memory_usage"])  # two int64; a bool
    numbers += trait(spec.algorithm, "bytes_per_transition")(values)
    lines = max(values["buffer_size"] // rows.num_rows, 1)
    return int(lines * rows.num_rows * (numbers + more))

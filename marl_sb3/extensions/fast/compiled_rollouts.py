"""Rollouts of fused policies in compiled envs: many steps in one call, where nothing watches single steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from typing_extensions import override

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.acting.policy import RolloutPolicy
from marl_sb3.core.config.algorithms import place_of
from marl_sb3.core.experience import Experience
from marl_sb3.core.learners.learner import LOCAL_EXPERIENCE
from marl_sb3.core.mapping import PolicyMapping
from marl_sb3.core.metrics.episodes import EpisodeTracker
from marl_sb3.core.on_policy.rollout import RolloutExperience
from marl_sb3.core.sb3.private import sees_steps
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.training.loop import TrainingLoop
from marl_sb3.core.training.runner import LocalRunner, Runner, StepListener
from marl_sb3.core.training.setup import Setup, local_runner
from marl_sb3.extensions.fast.coverage import first_reason
from marl_sb3.extensions.fast.rollout_call import EpisodesToCome, RolloutCall
from marl_sb3.extensions.fast.rollout_processing import why_not_processed
from marl_sb3.extensions.fast.speed import OF_ALGORITHMS, of_rollouts
from marl_sb3.output import ORDINARY

_log = logging.getLogger(__name__)

# By whether a policy takes masks: sb3-contrib is imported only by those who use it.
_BUFFERS = (
    "marl_sb3.core.on_policy.rollout:MaskedRolloutBuffer",
    "marl_sb3.core.on_policy.sequences:ActionMaskRolloutBuffer",
)
_LEAST_READY = 4  # episodes that are prepared for each env; more where they are short


class CompiledRunner(LocalRunner):
    """Takes all steps of a rollout in one call where it can, else one by one; the results are the same, to the bit.

    A listener with `on_steps(env_steps, last, episodes)` is called once for all, with a `LastStep`. Where it
    `keeps_steps`, that has them all.

    Args: see `LocalRunner`.
    """

    _coming: EpisodesToCome | None = None  # episodes that are prepared; None: none are
    _said: str | None = ""  # why the latest steps were taken one by one; None: they were not

    def __init__(self, *arguments: Any, warns: bool = True) -> None:
        super().__init__(*arguments, warns=warns)
        self._tells = warns  # of several runners, the first one logs how all of them take their steps

    @override
    def collect(self, env_steps: int, listener: StepListener) -> bool:
        self._refresh()  # a changed policy may act without the kernels from now on
        why = self._why_not(listener)
        loop: Any = listener
        if why != self._said and self._tells:
            self._said = why
            level = logging.INFO if why is None or why.endswith(tuple(OF_ALGORITHMS)) else logging.WARNING
            _log.log(level, "%s", of_rollouts(why), extra=ORDINARY)
        if why is not None:
            return super().collect(env_steps, listener)
        env: Any = self.env
        self._latest, self._failed = None, True
        lines = env_steps if getattr(listener, "keeps_steps", False) else 1
        if self._coming is None or self._coming.made_for != (env.run_seed, env.batch.states.dtype):
            self._coming = EpisodesToCome(env, _LEAST_READY)
        last, episodes = RolloutCall(env, self._pairs, self.tracker, env_steps, self._coming, lines).run()
        self._latest, self._failed = last, False
        goes_on = False
        try:
            goes_on = bool(loop.on_steps(env_steps, last, episodes))
        finally:
            for _, experience in self._pairs:  # the actors know already where episodes have ended
                if not goes_on and experience is not None:
                    experience.break_off()
        if goes_on:
            self._complete(last)
        return goes_on

    @override
    def forget_episodes(self) -> None:
        super().forget_episodes()
        self._coming = None  # a state that is read next may have other settings of the envs

    def _why_not(self, listener: StepListener) -> str | None:
        """Say why steps are taken one by one; None: they need not be."""
        env: Any = self.env
        # First what takes least time to find out: rollouts of other policies may have a single step.
        found = ((actor.rows.policy_id, _why_not(actor, experience, env.masked)) for actor, experience in self._pairs)
        if (
            why := next((f"policy {policy_id}: {why}" for policy_id, why in found if why is not None), None)
        ) is not None:
            return why
        sees = (
            sees_steps(listener.callback) if isinstance(listener, TrainingLoop) else not hasattr(listener, "on_steps")
        )
        if self.watchers or sees:
            return "a callback watches each step"
        if env.shows_env_state:
            return "the env shows its state"
        if env.masked and env.batch.rules.allow is None:
            return "the env's action masks are not part of its compiled rules"
        if any(settings.coming for settings in env.settings):
            return "settings of the env change with the next episodes"
        return None if env.latest.to_act.all() else "not every agent acts"


def _why_not(actor: Actor, experience: Experience | None, masked: bool) -> str | None:
    policy, rows = actor.policy, actor.rows
    if type(experience) is not RolloutExperience:
        return "it does not learn from rollouts"
    if type(policy) is not RolloutPolicy:
        return "it has memory, or an explorer"
    if not getattr(policy.kernels, "runs_in_rollouts", False):
        return "PyTorch chooses its actions"
    if experience.carried is not None:
        return "not every agent acts"
    buffer: Any = experience.buffer
    is_known = place_of(type(buffer)) == _BUFFERS[policy.takes_masks]
    if not is_known or "more_columns" in vars(buffer) or experience.rewriter is not None:
        return "more is kept of each step"
    dtype = buffer.observations.dtype
    wanted = np.float32 if isinstance(policy.algorithm.observation_space, spaces.Box) else np.int64
    why = {
        "it needs action masks": policy.takes_masks and policy.needs_masks and not masked,
        "a space does not count from 0": rows.zero_based_observations.shifts or rows.zero_based_actions.shifts,
        f"observations are {dtype}": dtype != wanted,
    }
    return first_reason(why) or why_not_processed(actor.processing)


class InCompiledCode:
    """The `Execution` of batched envs with compiled rules."""

    experience = LOCAL_EXPERIENCE

    def make_runner(self, setup: Setup, tracker: EpisodeTracker, progress_after: Callable[[int], Progress]) -> Runner:
        """See `Execution.make_runner`; where policies play in turn, the runner is the one that lets them."""
        return self.make_local_runner(setup.mapping, setup.env, setup.learners, tracker)

    def make_local_runner(
        self, mapping: PolicyMapping, *given: Any, warns: bool = True, first_env: int = 0
    ) -> LocalRunner:
        """Make the runner of envs, or of a shard of them; see `local_runner`."""
        if mapping.assignment is not None:
            return local_runner(mapping, *given, warns=warns, first_env=first_env)
        return CompiledRunner(*given, warns=warns)


IN_COMPILED_CODE = InCompiledCode()

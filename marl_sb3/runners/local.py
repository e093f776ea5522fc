"""Step the envs in this process, with the policies that are trained: nothing is copied."""

from __future__ import annotations

from collections.abc import Mapping

from marl_sb3.learners.interface import Collector
from marl_sb3.metrics import EpisodeTracker
from marl_sb3.policies.placement import zero_actions
from marl_sb3.runners.interface import StepListener
from marl_sb3.storage.state import State, StateReader
from marl_sb3.types import Array, PolicyID
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.step import VecStep


class LocalRunner:
    """A `Runner` on one vec env.

    Args:
        env: the envs.
        collectors: what acts for each policy.
        tracker: follows the episodes.
    """

    def __init__(
        self, env: MultiAgentVecEnv, collectors: Mapping[PolicyID, Collector], tracker: EpisodeTracker
    ) -> None:
        self.env = env
        self.tracker = tracker
        self._collectors = list(collectors.values())
        self._latest: VecStep | None = None  # None: new episodes are to begin

    def begin_rollouts(self, *, anew: bool) -> bool:
        """See `Runner.begin_rollouts`; with new episodes all of them begin."""
        if self._latest is None:
            self._begin_episodes()
            anew = True
        due = [collector for collector in self._collectors if anew or collector.steps_left == 0]
        for collector in due:
            collector.begin_rollout()
        return any(collector.records for collector in due)

    def collect(self, env_steps: int, listener: StepListener) -> bool:
        """See `Runner.collect`."""
        assert self._latest is not None, "begin_rollouts() comes first"
        step = self._latest
        for collector in self._collectors:  # not before: callbacks may set weights when a rollout starts
            collector.read_weights()
        for _ in range(env_steps):
            self._latest = step = self.env.step(self._act(step))
            if not listener.on_step(step, self.tracker.record(step)):
                return False
            for collector in self._collectors:
                collector.observe(step)
        for collector in self._collectors:
            if collector.records and collector.steps_left == 0:
                collector.finish_rollout(step.observations, step.to_act)
        return True

    def forget_episodes(self) -> None:
        """See `Runner.forget_episodes`."""
        self._latest = None

    def _begin_episodes(self) -> None:
        self._latest = self.env.reset()
        self.tracker.begin()
        for collector in self._collectors:
            collector.begin_episodes()

    def _act(self, step: VecStep) -> list[Array]:
        groups = zero_actions(self.env)
        for collector in self._collectors:
            collector.rows.put_actions(collector.act(step.observations, step.to_act), groups)
        return groups

    # --- State -------------------------------------------------------------------------------------------------------

    def get_env_state(self) -> State | None:
        """The envs in the middle of their episodes; None if new ones are to begin."""
        return None if self._latest is None else self.env.get_state()

    def set_env_state(self, state: StateReader) -> dict[int, str]:
        """Go on from where `get_env_state` was called; trackers and collectors have been set before.

        Returns:
            For every env that could not be brought back exactly, why; it has begun its next episode.

        Raises:
            CheckpointError: it is not the state of such envs.
        """
        inexact = dict(self.env.set_state(state))
        self._latest = self.env.latest
        self.tracker.restart(inexact)
        for collector in self._collectors:
            collector.restart_envs(list(inexact))
        return inexact

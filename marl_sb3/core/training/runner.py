"""Runners give the joint loop its experience: what they have in common, and one that steps the envs in this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from typing_extensions import override

from marl_sb3.core.acting.actor import Acted, ActingWatcher, Actor
from marl_sb3.core.config.algorithms import built_in
from marl_sb3.core.experience import Experience, ExperienceHook
from marl_sb3.core.mapping import zero_actions
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.state.fields import Part
from marl_sb3.core.state.state import State, StateReader, is_plain
from marl_sb3.core.vec_env.interface import Health, MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.types import Array, PolicyID

if TYPE_CHECKING:
    from marl_sb3.extensions.hooks.rewriting import TrajectoryRewriter

_log = logging.getLogger(__name__)


class StepListener(Protocol):
    """Is called after every step of a rollout."""

    # whether it may change policies in the middle of a rollout. Shards see such changes from their next round on.
    changes_policies: bool

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """Note a step of all envs, and the episodes that it ended; return False to stop the rollout."""


class ActingPart(Protocol):
    """What acts for the rows of one policy and records what they experience: a learner, or a copy of its policy."""

    actor: Actor  # chooses the actions
    experience: Any  # an `Experience`; None: nothing is recorded


class Runner(Part, Protocol):
    """Steps the envs with the policies' actions, and records the experience."""

    # see every step of the envs; None: the envs are not stepped together, and nobody can
    watchers: list[ActingWatcher] | None = None
    episodes_left_out: bool = False  # whether running episodes were left out of a checkpoint; a warning was logged then

    @property
    def health(self) -> Health | None:
        """The state of the processes that step the envs; None if this process does."""

    def start(self) -> None:
        """Start the processes that step the envs; without a call, the first rollout starts them.

        Raises:
            ConfigError: they cannot be started.
        """
        return None

    def begin_rollouts(self) -> bool:
        """Begin new rollouts where the last one is complete or was broken off; return whether any began."""

    def collect(self, env_steps: int, listener: StepListener) -> bool:
        """Take steps in every env, and finish the rollouts that are complete afterwards.

        If the listener stops the rollout or raises, all rollouts are broken off; the episodes go on. If anything else
        fails, new episodes begin with the next rollouts.

        Args:
            env_steps: number of steps of each env; at most as many as any rollout has left.

        Returns:
            False if the listener stopped the rollout.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
        """

    def forget_episodes(self) -> None:
        """Make the next rollout begin new episodes in all envs."""

    def show_experience(self, hook: ExperienceHook | None, first_step: int = 0) -> None:
        """Show what policies have experienced to a hook, before they learn from it; None: to no hook any more.

        Args:
            first_step: number of the next step of each env, where there was no hook before.

        Raises:
            ConfigError: the hook cannot run where the envs are stepped.
        """

    def read_state(self, saved: StateReader) -> Callable[[], Mapping[int, str]]:
        """See `Part.read_state`.

        Returns:
            A function that restores the envs in the middle of their episodes. It returns env index -> reason for every
            env that could not be restored exactly. It raises `CheckpointError` if an env refuses its saved state,
            `EnvError` if an env fails.
        """

    def restart_lost(self, lost: Mapping[int, str], seed: int | None) -> None:
        """Begin new episodes in these envs; the last step of loading, after all parts are restored.

        Args:
            lost: env index -> reason, from the function that `read_state` returned.
            seed: new seed of the envs if none of them was restored; None: they keep their seeds.
        """

    def episodes_to_save(self, running: Any) -> tuple[Any, str | None]:
        """Return the running episodes for a checkpoint; or None, and the reason why they are left out of it."""
        if is_plain(running):
            return running, None
        return None, self.leave_out("an env's get_state() returned something other than plain data")

    def leave_out(self, why: str) -> str:
        """Note that checkpoints are without the running episodes, and warn of it once; returns the reason."""
        if not self.episodes_left_out:
            self.episodes_left_out = True
            _log.warning("inexact: %s: a run that is resumed from a checkpoint begins new ones", why)
        return why

    def without_episodes(self, saved: StateReader, num_envs: int) -> Callable[[], dict[int, str]] | None:
        """Return what `read_state` returns for a checkpoint that has no episodes of so many envs; None: it has some."""
        if saved.num_envs != num_envs:
            why = f"the checkpoint has {saved.num_envs} envs, the run {num_envs}"
        elif saved.value("left_out") is not None:
            why = saved.string("left_out")
        else:
            return None

        def begin_anew() -> dict[int, str]:
            self.forget_episodes()
            return dict.fromkeys(range(num_envs), why)

        return begin_anew


class LocalRunner(Runner):
    """Steps one vec env in this process, with the trained policies themselves: no weights are copied.

    Args:
        env: the envs.
        policies: policy id -> what acts for it.
        tracker: the finished episodes.
        warns: whether a policy that does not use the action masks of the env is reported, once.
    """

    watchers: list[ActingWatcher]
    played: Array | None = (
        None  # (E, A) number of the candidate that played each agent in the latest step; None: the first
    )

    def __init__(
        self,
        env: MultiAgentVecEnv,
        policies: Mapping[PolicyID, ActingPart],
        tracker: EpisodeTracker,
        *,
        warns: bool = True,
    ) -> None:
        self.env = env
        self.tracker = tracker
        self.watchers: list[ActingWatcher] = []
        self._rewriter: TrajectoryRewriter | None = None
        self._pairs: list[tuple[Actor, Experience | None]] = [
            (each.actor, each.experience) for each in policies.values()
        ]
        self._no_actions = zero_actions(env)
        self._latest: VecStep | None = None  # None: the next rollout begins new episodes
        self._warns = warns
        self._failed = False  # whether the latest step of the envs failed

    @property
    @override
    def health(self) -> Health | None:
        return self.env.health

    def begin_rollouts(self, anew: bool = False) -> bool:
        """Begin new rollouts: all of them, complete or not, with `anew` or where new episodes begin."""
        if self._latest is None:
            anew = True
            self._begin_episodes()
        due = [(actor, own) for actor, own in self._pairs if anew or own is None or own.due_in() == 0]
        for actor, experience in due:
            if experience is not None:
                experience.begin_rollout()
            actor.begin_rollout()
        return any(experience is not None for _, experience in due)

    @override
    def collect(self, env_steps: int, listener: StepListener) -> bool:
        assert self._latest is not None, "begin_rollouts() comes first"
        step = self._latest
        self._refresh()  # here and not earlier: callbacks may set weights when a rollout starts
        for _ in range(env_steps):
            step = self._step(step)
            if not self._goes_on(step, listener):
                return False
        self._complete(step)
        return True

    def _complete(self, step: VecStep) -> None:
        """Finish the rollouts that are complete after a step."""
        for actor, experience in self._pairs:
            if experience is not None and experience.due_in() == 0:
                experience.complete(self._seen_by(actor, step))
        if self._rewriter is not None:
            self._rewriter.forget()

    def _step(self, step: VecStep) -> VecStep:
        """Take the step after `step` in every env. If that fails, nobody knows where the envs are."""
        self._latest, self._failed = None, True
        actions, acted_by = self._actions_of_others(step), dict[PolicyID, Acted]()
        for actor, experience in self._pairs:
            acted = self._act(actor, step, actions)
            if experience is not None:
                experience.begin(acted)
            acted_by[actor.rows.policy_id] = acted
        for watcher in self.watchers:
            watcher.before_step(step, acted_by, actions)
        self._latest = step = self.env.step(actions)
        self._failed = False
        return step

    def _actions_of_others(self, step: VecStep) -> list[Array]:
        """Return new arrays for the actions of all groups, with those of agents that none of the policies plays."""
        return list(map(np.array, self._no_actions))

    def _seen_by(self, actor: Actor, step: VecStep) -> VecStep:
        """Return a step as the policy of an actor sees it: the rows that others play now wait."""
        return step

    def _act(self, actor: Actor, step: VecStep, actions: Sequence[Array]) -> Acted:
        """Let a policy act for its rows, and write its actions into those of all groups."""
        acted = actor.act(step)
        actor.rows.put_actions(acted.actions, actions)
        return acted

    def _record(self, step: VecStep) -> Sequence[Episode]:
        """Note a step, which may have ended episodes; returns these."""
        return self.tracker.record(step)

    def _goes_on(self, step: VecStep, listener: StepListener) -> bool:
        """Tell all of a step; returns whether the listener lets the rollout go on."""
        goes_on, episodes = False, self._record(step)
        if step.given_up:
            self._restart(step.given_up)
        try:
            for watcher in self.watchers:
                watcher.after_step(step)
            goes_on = listener.on_step(step, episodes)
            if listener.changes_policies:
                self._refresh()
        finally:
            # All actors before anything is recorded, for critics that see what other policies observe.
            seen = [actor.observe(self._seen_by(actor, step)) if goes_on else None for actor, _ in self._pairs]
            for (actor, experience), observed in zip(self._pairs, seen, strict=True):
                if observed is None:
                    actor.break_off(self._seen_by(actor, step))
                if experience is not None:
                    experience.break_off() if observed is None else experience.add(observed)
        return goes_on

    def _refresh(self) -> None:
        for actor, _ in self._pairs:
            actor.policy.refresh()

    @override
    def show_experience(self, hook: ExperienceHook | None, first_step: int = 0, first_env: int = 0) -> None:
        """Show it to the hook; `first_env` is the index of the first env among those of all shards."""
        before = self._rewriter
        if before is not None and hook is not None:
            before.hook = hook
        if (before is None) == (hook is None):
            return
        if before is not None:
            self.watchers.remove(before)
            self._rewriter = None
        elif hook is not None:
            actors = [actor for actor, _ in self._pairs]
            self._rewriter = hook.rewriter(actors, first_env=first_env, first_step=first_step)
            self.watchers.append(self._rewriter)
        for _, experience in self._pairs:
            if experience is not None:
                experience.show_to(self._rewriter)

    @property
    def has_begun(self) -> bool:
        """Whether episodes are running."""
        return self._latest is not None

    @override
    def forget_episodes(self) -> None:
        self._latest = None

    def _begin_episodes(self) -> None:
        self._latest = step = self.env.reset()
        self.tracker.begin()
        if self._warns:
            self._warns = False
            self._warn_of_unused_masks(step)
        for actor, experience in self._pairs:
            actor.begin_episodes()
            if experience is not None:
                experience.begin_episodes()
        for watcher in self.watchers:
            watcher.begin_episodes(step)

    def _warn_of_unused_masks(self, step: VecStep) -> None:
        trained = [actor for actor, experience in self._pairs if experience is not None]
        masked = [actor for actor in trained if actor.rows.masks(step.action_masks) is not None]
        if unaware := [str(actor.rows.policy_id) for actor in masked if not actor.policy.takes_masks]:
            who = "policy %s does" if len(unaware) == 1 else "policies %s do"
            words = f"{who} not use the action masks of the env, and may choose forbidden actions; %s never do"
            _log.warning(words, ", ".join(unaware), ", ".join(n for n, info in built_in().items() if info.takes_masks))

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """See `Part.get_state`: the envs in the middle of their episodes, or the reason why these are left out."""
        if self._latest is None:
            return {"running": None, "left_out": "a step of the envs failed" if self._failed else None}
        if self._rewriter is not None and self._rewriter.holds_steps():
            return {"running": None, "left_out": self.leave_out("on_trajectory has yet to see the running episodes")}
        running, why = self.episodes_to_save(self.env.get_state())
        return {"running": running, "left_out": why}

    def read_state(self, saved: StateReader) -> Callable[[], dict[int, str]]:
        """See `Runner.read_state`. If an env refuses its saved state, new episodes will begin in all envs."""
        if begin_anew := self.without_episodes(saved, self.env.num_envs):
            return begin_anew
        running = None if saved.value("running") is None else saved.fields("running")

        def put() -> dict[int, str]:
            self.forget_episodes()
            if running is None:
                return {}
            inexact = dict(self.env.set_state(running))
            self._latest = self.env.latest
            return inexact

        return put

    @override
    def restart_lost(self, lost: Mapping[int, str], seed: int | None) -> None:
        if self._latest is not None:
            self._restart(list(lost))
        elif lost and seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> None:
        """Give the next episodes of all envs another run seed."""
        self.env.seed(seed)

    def _restart(self, env_indices: Sequence[int]) -> None:
        """Forget the running episodes of these envs: other ones begin there."""
        self.tracker.restart(list(env_indices))
        for actor, experience in self._pairs:
            actor.restart_envs(env_indices)
            if experience is not None:
                experience.give_up(actor.rows.of_envs(env_indices))
        for watcher in self.watchers:
            watcher.restart_envs(env_indices)

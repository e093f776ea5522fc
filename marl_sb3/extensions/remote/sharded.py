"""Collect experience in shards: once per round the weights go out and the rollouts come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from typing_extensions import override

from marl_sb3.core.envs.registry import imported_modules
from marl_sb3.core.experience import ExperienceHook
from marl_sb3.core.learners.learner import available_cores
from marl_sb3.core.mapping import PolicyMapping
from marl_sb3.core.metrics.episodes import EpisodeTracker
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.runner import Runner, StepListener
from marl_sb3.core.vec_env.interface import Health
from marl_sb3.core.vec_env.seeding import shard_seed
from marl_sb3.errors import ConfigError, RunnersLostError, described
from marl_sb3.extensions.remote.processes.messages import by_value
from marl_sb3.extensions.remote.processes.pool import InProcessPool, LocalPool, ProcessPool
from marl_sb3.extensions.remote.ray import ROUND_TIMEOUT_S, AnyRunners, RaySettings
from marl_sb3.extensions.remote.shard import (
    RecordedSteps,
    RoundOrder,
    SavedShard,
    ShardHost,
    ShardPlan,
    ShardRollout,
    host_in_a_process_of_its_own,
    side_by_side,
)
from marl_sb3.extensions.remote.shard_experience import LearnerShard, ShardedExperience, ShardedRollout
from marl_sb3.extensions.remote.shard_runners import ShardRunners
from marl_sb3.extensions.remote.sharded_vec_env import ShardedVecEnv
from marl_sb3.systems import require_fork
from marl_sb3.types import BoolArray, PolicyID

if TYPE_CHECKING:
    from marl_sb3.core.training.setup import Setup


class ShardedRunner(Runner):
    """Rolls out shards. A round lasts until the nearest update that is due.

    Args:
        plan: returns how the shards are made; called when they are first needed.
        runners: roll out the shards.
        sources: policy id -> the experience of its learner.
        tracker: keeps the finished episodes.
        progress_after: returns what is left of the training after so many env steps more, from 1 to 0.
        mapping: which policies play which agents.
    """

    def __init__(
        self,
        plan: Callable[[], ShardPlan],
        runners: ShardRunners,
        sources: Mapping[PolicyID, ShardedExperience],
        tracker: EpisodeTracker,
        progress_after: Callable[[int], Progress],
        mapping: PolicyMapping,
    ) -> None:
        self.tracker = tracker
        self._candidates, self._assignment = mapping.candidates, mapping.assignment
        self._plan = cache(plan)
        self._runners = runners
        self._sources = sources
        self._progress_after = progress_after
        self._anew = True
        self._new_episodes = True
        self._experience_hook: bytes | None = None

    @property
    @override
    def health(self) -> Health | None:
        return self._runners.health

    @override
    def start(self) -> None:
        self._runners.start(self._plan())

    # --- Rounds ------------------------------------------------------------------------------------------------------

    def begin_rollouts(self) -> bool:
        """See `Runner.begin_rollouts`; the shards follow in the next round."""
        self.start()
        self._anew = self._anew or self._new_episodes
        sources = self._sources.values()
        due = [source for source in sources if self._anew or source.each_round or source.due_in() == 0]
        for source in due:
            if self._new_episodes:
                source.begin_episodes()
            source.begin_rollout()
        return any(source.records for source in due)

    def collect(self, env_steps: int, listener: StepListener) -> bool:
        """See `Runner.collect`. The listener is called when the round is over, for each of its steps."""
        order, rollouts = self._roll_out(env_steps)
        self._anew = True  # if the listener stops the rollouts or raises
        steps = side_by_side([rollout.steps for rollout in rollouts])
        if not self._pass_on(rollouts, steps, listener):
            return False
        self._anew = False
        for policy_id, source in self._sources.items():
            acted: BoolArray = steps.arrays["acted"]
            if steps.played is not None:  # who plays whom varies
                places = [ids.index(policy_id) if policy_id in ids else -1 for ids in self._candidates.values()]
                acted = acted & (steps.played == places)
            of_rows = acted[:, :, list(source.rows.agent_columns)].reshape(env_steps, -1)
            source.receive([rollout.policies[policy_id] for rollout in rollouts], of_rows, order.progress[1:])
        return True

    def _roll_out(self, env_steps: int) -> tuple[RoundOrder, list[ShardRollout]]:
        """Take one round in all shards; if the runners are lost, nothing has changed."""
        new_episodes, generator = self._new_episodes, np.random.get_state()  # noqa: NPY002
        order = RoundOrder(
            env_steps,
            self._anew,
            self._new_episodes,
            {policy_id: source.order() for policy_id, source in self._sources.items()},
            int(np.random.randint(2**31)),  # noqa: NPY002 - from the training's own stream, which a checkpoint holds
            [self._progress_after(self._plan().envs.n_envs * step) for step in range(env_steps + 1)],
            self._experience_hook,
            None if self._assignment is None else self._assignment.get_state(),
        )
        self._new_episodes = True  # if a shard fails, nobody knows where its envs are
        try:
            rollouts = self._runners.roll_out(order)
        except RunnersLostError:
            self._new_episodes = new_episodes
            np.random.set_state(generator)  # noqa: NPY002
            raise
        self._new_episodes = False
        return order, rollouts

    def _pass_on(self, rollouts: list[ShardRollout], steps: RecordedSteps, listener: StepListener) -> bool:
        """Give steps and episodes to the listener; returns False if it stopped the rollout."""
        size = self._plan().envs.shard_size
        for number in range(len(steps)):
            finished = [
                replace(episode, env_index=shard * size + episode.env_index)
                for shard, rollout in enumerate(rollouts)
                for episode in rollout.episodes[number]
            ]
            self.tracker.episodes.extend(finished)
            if not listener.on_step(steps.step(number), finished):
                return False
        return True

    @override
    def forget_episodes(self) -> None:
        self._new_episodes = True

    def show_experience(self, hook: ExperienceHook | None, first_step: int = 0) -> None:
        """See `Runner.show_experience`: the hook runs in the shards, which get it anew in each round.

        Raises:
            ConfigError: policies have replay buffers or rollouts of different lengths, or the hook cannot be sent.
        """
        self._experience_hook = None
        if hook is None:
            return
        trained = [source for source in self._sources.values() if source.records]
        lengths = {source.algorithm.n_steps for source in trained if isinstance(source, ShardedRollout)}
        if len(lengths) != 1 or not all(isinstance(source, ShardedRollout) for source in trained):
            words = "on_trajectory over shards needs policies with rollouts, all of the same n_steps"
            raise ConfigError(f"{words}; accepted: no --ray, runners and n_shards", key="callback")
        try:
            self._experience_hook = by_value(hook)
        except Exception as error:  # pickling calls code of the user's
            words = f"on_trajectory runs in the shards, and its callback cannot be sent there: {described(error)}"
            raise ConfigError(words, key="callback") from error

    # --- Envs --------------------------------------------------------------------------------------------------------

    def ask(self, shard: int, method: str, *arguments: Any) -> Any:
        """Do `call` or `configure` with some envs of a shard; indices are counted within the shard."""
        self.start()
        return self._runners.ask(shard, method, *arguments)

    def close(self) -> None:
        """Close the envs of all shards."""
        self._runners.close()

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """See `Part.get_state`: the states of all shards, or the reason why these are left out."""
        states = None if self._new_episodes else [saved.state for saved in self._runners.saved.values()]
        shards, why = self.episodes_to_save(states)
        state = {"n_shards": self._plan().envs.n_shards, "shards": shards, "left_out": why}
        return state if self._assignment is None else {**state, "assignment": self._assignment.get_state()}

    @override
    def read_state(self, saved: StateReader) -> Callable[[], dict[int, str]]:
        envs = self._plan().envs
        if saved.num_envs == envs.n_envs:
            if "n_shards" not in saved:
                raise saved.error("n_shards", None, f"{envs.n_shards}: the envs of the checkpoint were not in shards")
            if saved.integer("n_shards") != envs.n_shards:
                raise saved.error("n_shards", saved.integer("n_shards"), f"{envs.n_shards}, as the run has")
        put_envs = self.without_episodes(saved, envs.n_envs)
        if put_envs is None:
            shards = None if saved.value("shards") is None else saved.items("shards", envs.n_shards)
            put_envs = partial(self._restore, shards)
        if self._assignment is None:
            return put_envs
        of_assignment, put_assignment = saved.fields("assignment"), self._assignment.set_state
        deepcopy(self._assignment).set_state(of_assignment)  # which refuses it, if anything does

        def put() -> dict[int, str]:
            put_assignment(of_assignment)
            return put_envs()

        return put

    def _restore(self, states: list[State] | None) -> dict[int, str]:
        self._new_episodes = self._anew = states is None
        if states is None:
            return {}
        self.start()
        lost = self._runners.restore({shard: SavedShard(state) for shard, state in enumerate(states)})
        size = self._plan().envs.shard_size
        return {shard * size + index: why for shard, inexact in lost.items() for index, why in inexact.items()}

    def restart_lost(self, lost: Mapping[int, str], seed: int | None) -> None:
        """See `Runner.restart_lost`; a shard of which no env was restored gets another seed."""
        envs = self._plan().envs
        gone = [shard for shard in range(envs.n_shards) if all(index in lost for index in envs.envs_of(shard))]
        if gone and seed is not None:
            self.start()
            self._runners.restore({shard: SavedShard(None, shard_seed(seed, shard)) for shard in gone})


# --- The execution ---------------------------------------------------------------------------------------------------


class InShards:
    """The `Execution` of a `ShardedVecEnv`."""

    experience = LearnerShard()

    def make_runner(self, setup: Setup, tracker: EpisodeTracker, progress_after: Callable[[int], Progress]) -> Runner:
        """See `Execution.make_runner`; nothing is started."""
        envs = cast("ShardedVecEnv", setup.env)

        def plan() -> ShardPlan:
            return ShardPlan(
                envs.plan,
                envs.agents,
                setup.specs,
                setup.mapping,
                frozenset(policy_id for policy_id, learner in setup.learners.items() if learner.trained),
                setup.rollout_steps,
                setup.update_path,
                setup.n_threads,
                tracker.custom_metrics,
                imported_modules(),
            )

        sources = {policy_id: learner.experience for policy_id, learner in setup.learners.items()}
        runners = shard_runners(envs.runners, envs.plan.n_shards)
        runner = ShardedRunner(plan, runners, sources, tracker, progress_after, setup.mapping)
        envs.shards = runner
        return runner


IN_SHARDS: Final = InShards()


def shard_runners(settings: AnyRunners | None, n_shards: int) -> ShardRunners:
    """Return what rolls out the shards of a training. Nothing is started before its `start`.

    Args:
        settings: which processes do; None: this one.
        n_shards: number of shards.
    """
    if settings is None:
        return ShardRunners(partial(InProcessPool, ShardHost))
    if isinstance(settings, RaySettings):
        number = settings.runners or min(n_shards, available_cores())

        def on_ray() -> ProcessPool:
            from marl_sb3.extensions.remote.processes.ray import Connection, RayPool

            return RayPool(Connection(settings, number), host_in_a_process_of_its_own)

        return ShardRunners(on_ray, number, settings.start_timeout_s, settings.round_timeout_s)

    require_fork("n_runners", settings, "0")
    modules = f"numba,{ShardHost.__module__}"  # most policies act by kernels
    here = partial(LocalPool, host_in_a_process_of_its_own, modules, "runner", ROUND_TIMEOUT_S)
    return ShardRunners(here, settings, round_timeout_s=ROUND_TIMEOUT_S)

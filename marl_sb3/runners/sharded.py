"""Collect experience in shards: once per round the weights go out and the rollouts come back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from marl_sb3.errors import RunnersLostError
from marl_sb3.experience.shards import PolicyRollout, ShardedExperience
from marl_sb3.metrics import Episode, EpisodeTracker
from marl_sb3.runners.rounds import RecordedSteps, RoundOrder, SavedShard, ShardPlan, ShardRollout, side_by_side
from marl_sb3.runners.runner import StepListener
from marl_sb3.runners.shard_runners import ShardRunners
from marl_sb3.storage.parts import SavedPart
from marl_sb3.storage.state import State, is_plain
from marl_sb3.types import BoolArray, PolicyID
from marl_sb3.vec_env.interface import Health, shard_seed

_log = logging.getLogger(__name__)


class Sampled(NamedTuple):
    """How far the training is.

    Attributes:
        env_steps: env steps so far, over all envs.
        planned: env steps at the planned end; None: there is none.
    """

    env_steps: int
    planned: int | None


class ShardedRunner:
    """A `Runner` on shards. A round lasts until the nearest update that is due.

    Args:
        plan: returns how the shards are made; called when they are first needed.
        runners: roll out the shards.
        sources: policy id -> the experience of its learner.
        tracker: keeps the finished episodes.
        sampled: returns how far the training is.

    Attributes:
        episodes_left_out: see `Runner`.
    """

    def __init__(
        self,
        plan: Callable[[], ShardPlan],
        runners: ShardRunners,
        sources: Mapping[PolicyID, ShardedExperience],
        tracker: EpisodeTracker,
        sampled: Callable[[], Sampled],
    ) -> None:
        self.tracker = tracker
        self.episodes_left_out = False
        self._make_plan = plan
        self._made_plan: ShardPlan | None = None
        self._runners = runners
        self._sources = sources
        self._sampled = sampled
        self._anew = True
        self._new_episodes = True

    @property
    def health(self) -> Health | None:
        """See `Runner.health`."""
        return self._runners.health

    @property
    def _plan(self) -> ShardPlan:
        if self._made_plan is None:
            self._made_plan = self._make_plan()
        return self._made_plan

    def start(self) -> None:
        """See `Runner.start`."""
        self._runners.start(self._plan)

    # --- Rounds ------------------------------------------------------------------------------------------------------

    def begin_rollouts(self) -> bool:
        """See `Runner.begin_rollouts`; the shards follow in the next round."""
        self.start()
        self._anew = self._anew or self._new_episodes
        sources = self._sources.values()
        due = [source for source in sources if self._anew or source.due_in() == 0]
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
        after = accumulate([self._plan.envs.n_envs] * env_steps, initial=order.sampled)
        progress = [order.progress(sampled) for sampled in after][1:]
        for policy_id, source in self._sources.items():
            source.receive(_of_policy(rollouts, policy_id), _acted(source, steps), progress)
        return True

    def _roll_out(self, env_steps: int) -> tuple[RoundOrder, list[ShardRollout]]:
        """Take one round in all shards; if the runners are lost, nothing has changed."""
        new_episodes, generator = self._new_episodes, np.random.get_state()  # noqa: NPY002
        order = self._order(env_steps)
        self._new_episodes = True  # if a shard fails, nobody knows where its envs are
        try:
            rollouts = self._runners.roll_out(order)
        except RunnersLostError:
            self._new_episodes = new_episodes
            np.random.set_state(generator)  # noqa: NPY002
            raise
        self._new_episodes = False
        return order, rollouts

    def _order(self, env_steps: int) -> RoundOrder:
        sampled = self._sampled()
        return RoundOrder(
            env_steps,
            self._anew,
            self._new_episodes,
            {policy_id: source.order() for policy_id, source in self._sources.items()},
            int(np.random.randint(2**31)),  # noqa: NPY002 - from the training's own stream, which a checkpoint holds
            sampled.env_steps,
            sampled.planned,
        )

    def _pass_on(self, rollouts: list[ShardRollout], steps: RecordedSteps, listener: StepListener) -> bool:
        """Give steps and episodes to the listener; returns False if it stopped the rollout."""
        size = self._plan.envs.shard_size
        for number in range(len(steps)):
            finished = [
                _moved(episode, shard * size)
                for shard, rollout in enumerate(rollouts)
                for episode in rollout.episodes[number]
            ]
            self.tracker.episodes.extend(finished)
            if not listener.on_step(steps.step(number), finished):
                return False
        return True

    def forget_episodes(self) -> None:
        """See `Runner.forget_episodes`."""
        self._new_episodes = True

    # --- Envs --------------------------------------------------------------------------------------------------------

    def call(self, shard: int, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `ShardCalls.call`."""
        self.start()
        return self._runners.call(shard, name, env_indices, args, kwargs)

    def configure(self, shard: int, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `ShardCalls.configure`."""
        self.start()
        self._runners.configure(shard, env_indices, settings)

    def close(self) -> None:
        """See `ShardCalls.close`."""
        self._runners.close()

    # --- State -------------------------------------------------------------------------------------------------------

    def get_state(self) -> State:
        """See `Part.get_state`: the states of all shards, or the reason why these are left out."""
        if self._new_episodes:
            return {"n_shards": self._n_shards, "shards": None, "left_out": None}
        states = [saved.state for saved in self._runners.saved()]
        if is_plain(states):
            return {"n_shards": self._n_shards, "shards": states, "left_out": None}
        why = "an env's get_state() returned something other than plain data"
        if not self.episodes_left_out:
            self.episodes_left_out = True
            _log.warning("inexact: %s: a run that is resumed from one begins new episodes", why)
        return {"n_shards": self._n_shards, "shards": None, "left_out": why}

    @property
    def _n_shards(self) -> int:
        return self._plan.envs.n_shards

    def read_state(self, saved: SavedPart) -> Callable[[], dict[int, str]]:
        """See `Runner.read_state`."""
        envs = self._plan.envs
        if saved.num_envs != envs.n_envs:
            return lambda: self._begin_anew(f"the checkpoint has {saved.num_envs} envs, the run {envs.n_envs}")
        if "n_shards" not in saved:
            raise saved.error("n_shards", None, f"{envs.n_shards}: the envs of the checkpoint were not in shards")
        if saved.integer("n_shards") != envs.n_shards:
            raise saved.error("n_shards", saved.integer("n_shards"), f"{envs.n_shards}, as the run has")
        if saved.value("left_out") is not None:
            why = saved.string("left_out")
            return lambda: self._begin_anew(why)
        shards = None if saved.value("shards") is None else saved.items("shards", envs.n_shards)
        return lambda: self._restore(shards)

    def _begin_anew(self, why: str) -> dict[int, str]:
        self.forget_episodes()
        return dict.fromkeys(range(self._plan.envs.n_envs), why)

    def _restore(self, states: list[State] | None) -> dict[int, str]:
        self._new_episodes = self._anew = states is None
        if states is None:
            return {}
        self.start()
        lost = self._runners.restore({shard: SavedShard(state) for shard, state in enumerate(states)})
        size = self._plan.envs.shard_size
        return {shard * size + index: why for shard, inexact in lost.items() for index, why in inexact.items()}

    def restart_lost(self, lost: Mapping[int, str], seed: int | None) -> None:
        """See `Runner.restart_lost`; a shard of which no env was restored gets another seed."""
        envs = self._plan.envs
        gone = [shard for shard in self._plan.shards if all(index in lost for index in envs.envs_of(shard))]
        if gone and seed is not None:
            self.start()
            self._runners.restore({shard: SavedShard(None, shard_seed(seed, shard)) for shard in gone})


def _moved(episode: Episode, first: int) -> Episode:
    return replace(episode, env_index=first + episode.env_index)


def _of_policy(rollouts: list[ShardRollout], policy_id: PolicyID) -> list[PolicyRollout]:
    return [rollout.policies[policy_id] for rollout in rollouts]


def _acted(source: ShardedExperience, steps: RecordedSteps) -> BoolArray:
    """Return (steps, rows) bool: the rows of a policy that acted."""
    acted = steps.arrays["acted"]
    columns = list(source.rows.agent_columns)
    return acted[:, :, columns].reshape(len(acted), -1)

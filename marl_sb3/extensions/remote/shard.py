"""Shards: some envs with copies of the policies, and the messages of a round to and from them.

A process rolls out the shards of its `ShardHost`.
"""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
import torch as th

from marl_sb3.core.envs.registry import import_modules
from marl_sb3.core.learners.learner import LearnerOptions, limited_threads
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.mapping import PolicyMapping, rows_of_policy
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker, InfoMetric
from marl_sb3.core.sb3.schedules import Progress
from marl_sb3.core.state.fields import read_states
from marl_sb3.core.state.randomness import preserve_rng
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.runner import LocalRunner
from marl_sb3.core.training.setup import local_runner
from marl_sb3.core.vec_env.seeding import Stream, fresh_seed, spawned
from marl_sb3.core.vec_env.step import NO_FINAL_OBSERVATIONS, ArrayInfos, DictInfos, StepInfos, VecStep
from marl_sb3.doors import imported
from marl_sb3.errors import ConfigError, EnvRaisedError, VecEnvOrderError
from marl_sb3.extensions.remote.processes.messages import known_error, not_the_first
from marl_sb3.extensions.remote.processes.pool import versions
from marl_sb3.extensions.remote.shard_experience import CopyShard, PolicyOrder, PolicyRollout, ShardPolicy
from marl_sb3.extensions.remote.sharded_vec_env import EnvPlan
from marl_sb3.extensions.remote.workers.steps import JoinedInfos
from marl_sb3.startup import start_without_dynamo
from marl_sb3.types import AgentID, Array, PolicyID

Inexact = dict[int, str]  # env index -> the reason why an env could not be restored exactly


@dataclass(frozen=True)
class ShardPlan:
    """How the shards of a training are made; it does not change while the training lasts."""

    envs: EnvPlan  # how the envs are made
    agents: tuple[AgentID, ...]  # the agents of each env, in order
    specs: Mapping[PolicyID, PolicySpec]  # policy id -> spec
    mapping: PolicyMapping  # which policies play which agents
    trained: frozenset[PolicyID]  # the policies that are trained
    n_steps: int | None  # see `LearnerOptions`
    update_path: str  # see `marl_sb3.PPO`
    n_threads: int  # threads of one operation of PyTorch or BLAS
    custom_metrics: Mapping[str, InfoMetric]  # see `EpisodeTracker`
    imports: Sequence[str] = ()  # modules that register networks, as after `--import`

    def name_of(self, shard: int) -> str:
        """Return a shard in words, for messages."""
        envs = self.envs.envs_of(shard)
        which = f"env {envs[0]}, number 0" if len(envs) == 1 else f"envs {envs[0]} to {envs[-1]}, numbered from 0"
        return f"shard {shard} ({which} within the shard)"


@dataclass(frozen=True)
class RoundOrder:
    """What all shards do in one round."""

    env_steps: int  # steps of each env
    anew: bool  # whether all rollouts begin anew
    new_episodes: bool  # whether all envs begin new episodes first
    policies: Mapping[PolicyID, PolicyOrder]  # policy id -> its weights and statistics
    seed: int  # the random numbers of a shard in this round follow from it and the shard
    progress: Sequence[Progress]  # what is left of the training before and after each step, from 1 to 0
    # pickled; what it keeps in itself is forgotten after the round. None: there is none.
    experience_hook: bytes | None = None
    assignment: State | None = None  # of the `Assignment`; None: there is none


@dataclass(frozen=True)
class SavedShard:
    """The state of a shard between two rounds."""

    state: State | None = None  # what `Shard.get_state` returned; None: the shard begins new episodes
    env_seed: int | None = None  # seed of the envs if they begin new episodes; None: they keep theirs


@dataclass(frozen=True)
class ShardRollout:
    """What came of one round of one shard."""

    steps: RecordedSteps  # all steps of its envs
    # the episodes that ended in each step; env indices are counted within the shard
    episodes: Sequence[Sequence[Episode]]
    policies: Mapping[PolicyID, PolicyRollout]  # policy id -> what it experienced


# --- A shard ---------------------------------------------------------------------------------------------------------


class Shard:
    """A fixed share of the envs with random streams of its own.

    What it does in a round follows from its state before and the round's order alone. Another process that is given
    both therefore comes to the same results, to the last bit.

    Args:
        plan: how the shards are made.
        index: which of them it is.

    Raises:
        ConfigError: the envs cannot be made, or have other agents than those of the learners' process.
    """

    def __init__(self, plan: ShardPlan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._first_settings: list[State] = []  # those that the first episodes begin with
        self._order: RoundOrder  # of the round, as the recorder
        self._recorder: StepRecorder
        before = logging.root.manager.disable
        logging.disable(max(before, logging.INFO))  # the learners have logged the lines about each policy
        with preserve_rng(), ExitStack() as at_the_end:
            at_the_end.callback(logging.disable, before)
            self._env = plan.envs.make(index)
            if self._env.agents != plan.agents:
                agents, wanted = ", ".join(map(str, self._env.agents)), ", ".join(map(str, plan.agents))
                raise ConfigError(f"the envs of shard {index} have agents {agents}; those of the learners: {wanted}")
            self._policies = {policy_id: self._make_policy(policy_id) for policy_id in plan.specs}
        self._tracker = EpisodeTracker(self._env, plan.mapping.policy_of, custom_metrics=plan.custom_metrics)
        self._assignment = deepcopy(plan.mapping.assignment)  # that of the learners may change in the meantime
        mapping, first_env = replace(plan.mapping, assignment=self._assignment), plan.envs.envs_of(index)[0]
        given = self._env, self._policies, self._tracker
        make = getattr(imported(self._env.execution), "make_local_runner", local_runner)
        self._runner: LocalRunner = make(mapping, *given, warns=index == 0, first_env=first_env)
        watchers = [each.attach(self._env, self._policies) for own in self._policies.values() for each in own.parts]
        self._runner.watchers += [watcher for watcher in watchers if watcher is not None]

    def _make_policy(self, policy_id: PolicyID) -> ShardPolicy:
        plan, spec = self._plan, self._plan.specs[policy_id]
        team = plan.mapping.team_of(policy_id) if spec.processing.team_reward else ()
        rows = rows_of_policy(self._env, policy_id, plan.mapping.seats_of(policy_id), team)
        copies = CopyShard(plan.envs.n_shards)
        options = LearnerOptions("cpu", plan.n_steps, plan.update_path, self._progress_remaining, copies)
        learner = spec.info.learner_class.make(rows, spec, policy_id in plan.trained, None, options)
        return ShardPolicy(learner)

    def _progress_remaining(self) -> Progress:
        return self._order.progress[len(self._recorder.episodes)]

    # --- Rounds ------------------------------------------------------------------------------------------------------

    def roll_out(self, order: RoundOrder) -> ShardRollout:
        """Take the steps of one round.

        Raises:
            EnvError: an env broke the `ParallelEnv` contract.
            NumericError: a policy's network gave NaN or infinity.
        """
        with preserve_rng(), limited_threads(self._plan.n_threads):
            self._begin(order)
            self._runner.collect(order.env_steps, self._recorder)
        return ShardRollout(
            self._recorder.recorded(),
            self._recorder.episodes,
            {policy_id: policy.finish_round() for policy_id, policy in self._policies.items()},
        )

    def _begin(self, order: RoundOrder) -> None:
        self._order, self._recorder = order, StepRecorder(self._runner)
        seeds = spawned(order.seed, Stream.NUMBERED, self._index).generate_state(4)
        of_policies, of_torch, of_numpy, of_python = seeds.tolist()
        th.default_generator.manual_seed(of_torch)
        np.random.seed(of_numpy)  # noqa: NPY002 - SB3 uses the global generator
        random.seed(of_python)
        for number, (policy_id, policy) in enumerate(self._policies.items()):
            policy.begin_round(order.policies[policy_id], (of_policies + number) % 2**32)
        if self._assignment is not None and order.assignment is not None:
            self._assignment.set_state(StateReader(deepcopy(order.assignment), "assignment of the round"))
        hook = None if order.experience_hook is None else pickle.loads(order.experience_hook)
        envs = self._plan.envs
        first_step = self._order.progress[0].env_steps // envs.n_envs
        self._runner.show_experience(hook, first_step, envs.envs_of(self._index)[0])
        if order.new_episodes:
            self._runner.forget_episodes()
        self._runner.begin_rollouts()
        if order.anew:
            self._runner.begin_rollouts(anew=True)
        self._first_settings.clear()  # the envs' states hold them now

    # --- Envs --------------------------------------------------------------------------------------------------------

    def call(self, env_indices: Sequence[int], name: str, args: Any, kwargs: Any) -> list[Any]:
        """See `MultiAgentVecEnv.call`; indices are counted within the shard."""
        with preserve_rng():
            return self._env.call(name, env_indices, *args, **kwargs)

    def configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> list[None]:
        """See `MultiAgentVecEnv.configure`; indices are counted within the shard."""
        self._env.configure(env_indices, **settings)
        if not self._runner.has_begun:
            self._first_settings.append({"envs": list(env_indices), "settings": dict(settings)})
        return [None for _ in env_indices]

    def close(self) -> None:
        """Close the envs."""
        self._env.close()

    # --- State -------------------------------------------------------------------------------------------------------

    def saved(self) -> SavedShard:
        """Return a copy of the state between two rounds."""
        self._tracker.episodes.clear()  # they have been sent
        state = {
            "env": self._runner.get_state(),
            "tracker": self._tracker.get_state(),
            "policies": {policy_id: policy.get_state() for policy_id, policy in self._policies.items()},
            "first_settings": self._first_settings,
        }
        return SavedShard(deepcopy(state))

    def restore(self, saved: SavedShard) -> Inexact:
        """Restore a state.

        Returns:
            Env index within the shard -> reason, for each env that could not be restored exactly; it begins a new
            episode.

        Raises:
            CheckpointError: the state does not fit the shard.
        """
        if saved.state is None:
            if saved.env_seed is not None:
                self._runner.seed(saved.env_seed)
            self._runner.forget_episodes()
            return {}
        state = StateReader(saved.state, f"shard {self._index}", self._env.num_envs)
        with preserve_rng():
            put_policies = read_states(self._policies, state.fields("policies"))
            put_tracker = self._tracker.read_state(state.fields("tracker"))
            lost = self._runner.read_state(state.fields("env"))()
            put_policies()
            put_tracker()
            # Where nothing was restored, other episodes begin than at the start.
            first_settings = state.listed("first_settings")
            for given in map(first_settings.fields, first_settings):
                self.configure(given.items("envs"), given.fields("settings").values())
            self._runner.restart_lost(lost, fresh_seed())
        return lost


# --- The shards of a process -----------------------------------------------------------------------------------------


class ShardHost:
    """The shards of one process: made when they are first needed, and then kept between rounds.

    Args:
        plan: how the shards are made.
    """

    def __init__(self, plan: ShardPlan) -> None:
        self._plan = plan
        self._shards: dict[int, Shard] = {}

    def work(
        self,
        kept: Sequence[int],
        saved: Mapping[int, SavedShard],
        method: str | None,
        shards: Sequence[int],
        *arguments: Any,
    ) -> tuple[dict[int, Inexact], dict[int, tuple[Any, SavedShard] | None]]:
        """Restore the states of some shards, then call a method of these and other shards.

        Args:
            kept: the shards of this process; it closes all others, which another one has from now on.
            saved: shard -> the state to restore.
            method: of `Shard`; None: nothing more is done.
            shards: whose method is called.
            arguments: of the method.

        Returns:
            Shard -> what could not be restored exactly; and shard -> what the method returned, with the state of the
            shard afterwards, None without a method.

        Raises:
            MarlSb3Error: the first error of a shard, whose message names the shard.
            AttributeError: an env does not have what was called.
            RuntimeError: any other exception in a shard.
        """
        for number in set(self._shards) - set(kept):
            self._shards.pop(number).close()
        inexact = {number: self._call(number, "restore", state) for number, state in saved.items()}
        if method is None:
            return inexact, dict.fromkeys(shards)
        results = {number: self._call(number, method, *arguments) for number in shards}
        return inexact, {number: (result, self._call(number, "saved")) for number, result in results.items()}

    def _call(self, number: int, method: str, *arguments: Any) -> Any:
        try:
            if number not in self._shards:
                self._shards[number] = self._made(number)
            return getattr(self._shards[number], method)(*arguments)
        except Exception as error:
            raise known_error(error, f"{self._plan.name_of(number)}: ") from error

    def _made(self, number: int) -> Shard:
        try:
            import_modules(self._plan.imports)
            return Shard(self._plan, number)
        except EnvRaisedError as error:
            if not self._shards and str(error).startswith("env 0:"):
                raise
            raise not_the_first(error, "as many shards and runners as envs", "n_shards") from error

    versions = staticmethod(versions)  # those of this process

    def close(self) -> None:
        """Close all shards."""
        while self._shards:
            self._shards.popitem()[1].close()


def host_in_a_process_of_its_own(plan: ShardPlan) -> ShardHost:
    """Return a host; the process is prepared for nothing else."""
    start_without_dynamo()
    return ShardHost(plan)


# --- Steps -----------------------------------------------------------------------------------------------------------

_ARRAYS = ("rewards", "terminated", "truncated", "acted", "to_act", "in_play", "stepped", "episode_done")


@dataclass(frozen=True)
class RecordedSteps:
    """The steps of some envs without their observations."""

    arrays: Mapping[str, Array]  # name in `VecStep` -> (steps, E, ...)
    infos: Sequence[StepInfos | None]  # of each step; None if all of its infos are empty
    played: Array | None = None  # (steps, E, A); see `LocalRunner.played`

    def __len__(self) -> int:
        return len(self.arrays["acted"])

    def step(self, number: int) -> VecStep:
        """Return a step; its observations are not there."""
        arrays = {name: array[number] for name, array in self.arrays.items()}
        return VecStep(
            observations=_NotHere(),
            action_masks=(),
            final_observations=NO_FINAL_OBSERVATIONS,
            infos=self.infos_of(number),
            reset_infos={},
            **arrays,
        )

    def infos_of(self, number: int) -> StepInfos:
        """Return the infos of a step."""
        return self.infos[number] or DictInfos([{}] * self.arrays["acted"].shape[1])


def side_by_side(shards: Sequence[RecordedSteps]) -> RecordedSteps:
    """Put the envs of all shards side by side."""
    arrays = {name: np.concatenate([shard.arrays[name] for shard in shards], axis=1) for name in _ARRAYS}
    starts = np.cumsum([0, *(shard.arrays["acted"].shape[1] for shard in shards)])[:-1].tolist()
    steps = range(len(shards[0]))
    infos = [JoinedInfos([shard.infos_of(step) for shard in shards], starts) for step in steps]
    played = [shard.played for shard in shards if shard.played is not None]
    return RecordedSteps(arrays, infos, np.concatenate(played, axis=1) if played else None)


class StepRecorder:
    """Keeps the steps and the episodes of a round, as its `StepListener`.

    Args:
        runner: takes the steps.
    """

    changes_policies = False
    keeps_steps = True

    def __init__(self, runner: LocalRunner) -> None:
        self._runner = runner
        self.episodes: list[Sequence[Episode]] = []  # that ended in each step
        self._arrays: dict[str, list[Array]] = {name: [] for name in _ARRAYS}
        self._infos: list[StepInfos | None] = []
        self._played: list[Array] = []

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """Keep a step, before the policies record it; see `StepListener.on_step`."""
        if self._runner.played is not None:
            self._played.append(self._runner.played)
        for name, kept in self._arrays.items():
            kept.append(getattr(step, name).copy())
        self._infos.append(_copied(step.infos, len(step.acted)))
        self.episodes.append(episodes)
        return True

    def on_steps(self, steps: int, last: Any, episodes: Sequence[Episode]) -> bool:
        """Keep all steps of a round, which were taken at once; `last` has them."""
        for name, kept in self._arrays.items():
            kept.extend(last.arrays[name])
        self._infos += last.infos_of_steps
        by_step: list[list[Episode]] = [[] for _ in range(steps)]
        for step, episode in zip(last.ended_in, episodes, strict=True):
            by_step[step].append(episode)
        self.episodes += by_step
        return True

    def recorded(self) -> RecordedSteps:
        """Return the steps."""
        arrays = {name: np.stack(kept) for name, kept in self._arrays.items()}
        return RecordedSteps(arrays, self._infos, np.stack(self._played) if self._played else None)


_PLAIN = (int, float, bool, str, np.generic)


def _copied(infos: StepInfos, num_envs: int) -> StepInfos | None:
    """Return a copy of the infos of a step, which the envs may change later; None if they are empty."""
    if isinstance(infos, ArrayInfos):
        columns = {agent: {key: value.copy() for key, value in info.items()} for agent, info in infos.columns.items()}
        return ArrayInfos(columns, num_envs)
    copies = [
        {agent: _copy(of_agent) for agent, of_agent in info.items()} if any(info.values()) else {}
        for info in (infos[index] for index in range(num_envs))
    ]
    return DictInfos(copies) if any(copies) else None


def _copy(info: Any) -> Any:
    if not isinstance(info, dict):
        return deepcopy(info)
    return {key: value if isinstance(value, _PLAIN) else deepcopy(value) for key, value in info.items()}


class _NotHere(tuple[Any, ...]):
    """Stands for observations, which stay with the shards."""

    def __getitem__(self, index: Any) -> NoReturn:
        raise VecEnvOrderError("the observations of a step stay with its shard; callbacks get rewards, ends and infos")

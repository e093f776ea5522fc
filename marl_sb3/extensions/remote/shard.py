"""Shards: some envs and copies of the policies that act in them, and the shards that one process rolls out."""

from __future__ import annotations

import logging
import pickle
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import torch as th

from marl_sb3.core.envs import import_modules
from marl_sb3.core.learners import LearnerOptions, limited_threads
from marl_sb3.core.mapping import rows_of_policy
from marl_sb3.core.metrics import Episode, EpisodeTracker
from marl_sb3.core.sb3 import Progress
from marl_sb3.core.state import SavedPart, State, StateReader, preserve_rng, read_states
from marl_sb3.core.training import local_runner
from marl_sb3.core.vec_env import VecStep, fresh_seed
from marl_sb3.errors import ConfigError, EnvRaisedError
from marl_sb3.extensions.remote.processes.messages import known_error
from marl_sb3.extensions.remote.processes.pool import versions
from marl_sb3.extensions.remote.rounds import Inexact, RoundOrder, SavedShard, ShardPlan, ShardRollout, StepRecorder
from marl_sb3.extensions.remote.shard_experience import OfCopy, ShardPolicy
from marl_sb3.startup import start_without_dynamo
from marl_sb3.types import PolicyID


class Shard:
    """A fixed share of the envs with random streams of its own.

    What it does in a round follows from its state before and the round's order alone. Another process that is given
    both therefore comes to the same results, to the last bit. It is the `StepListener` of its own rounds.

    Args:
        plan: how the shards are made.
        index: which of them it is.

    Raises:
        ConfigError: the envs cannot be made, or have other agents than those of the learners' process.
    """

    changes_policies = False

    def __init__(self, plan: ShardPlan, index: int) -> None:
        self._plan = plan
        self._index = index
        self._first_settings: list[State] = []  # those that the first episodes begin with
        self._order: RoundOrder  # of the round, as the recorder
        self._recorder: StepRecorder
        with preserve_rng(), _no_infos_logged():
            self._env = plan.envs.make(index)
            if self._env.agents != plan.agents:
                agents, wanted = ", ".join(map(str, self._env.agents)), ", ".join(map(str, plan.agents))
                raise ConfigError(f"the envs of shard {index} have agents {agents}; those of the learners: {wanted}")
            self._policies = {policy_id: self._make_policy(policy_id) for policy_id in plan.specs}
        self._tracker = EpisodeTracker(self._env, plan.mapping.policy_of, custom_metrics=plan.custom_metrics)
        self._assignment = deepcopy(plan.mapping.assignment)  # that of the learners may change in the meantime
        mapping, first_env = replace(plan.mapping, assignment=self._assignment), plan.envs.envs_of(index)[0]
        given = self._env, self._policies, self._tracker
        self._runner = local_runner(mapping, *given, warns=index == 0, first_env=first_env)

    def _make_policy(self, policy_id: PolicyID) -> ShardPolicy:
        plan, spec = self._plan, self._plan.specs[policy_id]
        rows = rows_of_policy(self._env, policy_id, plan.mapping.seats_of(policy_id))
        copies = OfCopy(plan.envs.n_shards)
        options = LearnerOptions("cpu", plan.n_steps, plan.update_path, self._progress_remaining, copies)
        learner = spec.info.learner_class.make(rows, spec, policy_id in plan.trained, None, options)
        return ShardPolicy(learner.actor, learner.experience, learner.processing)

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
            self._runner.collect(order.env_steps, self)
        return ShardRollout(
            self._recorder.recorded(),
            self._recorder.episodes,
            {policy_id: policy.finish_round() for policy_id, policy in self._policies.items()},
            self.saved(),
        )

    def _begin(self, order: RoundOrder) -> None:
        self._order, self._recorder = order, StepRecorder()
        seeds = np.random.SeedSequence(order.seed, spawn_key=(self._index,)).generate_state(4)
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

    def on_step(self, step: VecStep, episodes: Sequence[Episode]) -> bool:
        """Keep a step before the policies record it; see `StepListener.on_step`."""
        self._recorder.add(step, episodes, self._runner.played)
        return True

    # --- Envs --------------------------------------------------------------------------------------------------------

    def ask(self, method: str, *arguments: Any) -> tuple[Any, SavedShard]:
        """Do `call` or `configure`; returns the result and the state afterwards."""
        return getattr(self, method)(*arguments), self.saved()

    def call(self, name: str, env_indices: Sequence[int], args: Any, kwargs: Any) -> list[Any]:
        """See `MultiAgentVecEnv.call`; indices are counted within the shard."""
        with preserve_rng():
            return self._env.call(name, env_indices, *args, **kwargs)

    def configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        """See `MultiAgentVecEnv.configure`; indices are counted within the shard."""
        self._env.configure(env_indices, **settings)
        if not self._runner.has_begun:
            self._first_settings.append({"envs": list(env_indices), "settings": dict(settings)})

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
        with preserve_rng():
            return self._restore(StateReader(saved.state, f"shard {self._index}"))

    def _restore(self, state: StateReader) -> Inexact:
        put_policies = read_states(self._policies, state.fields("policies"))
        put_tracker = self._tracker.read_state(SavedPart.of(state, "tracker", self._env.num_envs))
        lost = self._runner.read_state(SavedPart.of(state, "env", self._env.num_envs))()
        put_policies()
        put_tracker()
        # Where nothing was restored, other episodes begin than at the start.
        first_settings = state.listed("first_settings")
        for number in first_settings:
            given = first_settings.fields(number)
            settings = given.fields("settings")
            self.configure(given.items("envs"), {name: settings.value(name) for name in settings.names()})
        self._runner.restart_lost(lost, fresh_seed())
        return lost


@contextmanager
def _no_infos_logged() -> Iterator[None]:
    """Keep the lines about each policy, which the learners have logged, from being logged once more for each shard."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.INFO))
    try:
        yield
    finally:
        logging.disable(before)


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
    ) -> tuple[dict[int, Inexact], dict[int, Any]]:
        """Restore the states of some shards, then call a method of these and other shards.

        Args:
            kept: the shards of this process; it closes all others, which another one has from now on.
            saved: shard -> the state to restore.
            method: of `Shard`; None: nothing more is done.
            shards: whose method is called.
            arguments: of the method.

        Returns:
            Shard -> what could not be restored exactly, and shard -> what the method returned.

        Raises:
            MarlSb3Error: the first error of a shard, whose message names the shard.
            AttributeError: an env does not have what was called.
            RuntimeError: any other exception in a shard.
        """
        for number in set(self._shards) - set(kept):
            self._shards.pop(number).close()
        inexact = {number: self._call(number, "restore", state) for number, state in saved.items()}
        return inexact, {number: method and self._call(number, method, *arguments) for number in shards}

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
            raise ConfigError(
                f"{error}; this process has made other envs before; accepted, if it can make only one: as many shards "
                "and runners as envs",
                key="n_shards",
            ) from error

    def versions(self) -> dict[str, str]:
        """Return the versions of this process."""
        return versions()

    def close(self) -> None:
        """Close all shards."""
        while self._shards:
            self._shards.popitem()[1].close()


def host_in_a_process_of_its_own(plan: ShardPlan) -> ShardHost:
    """Return a host; the process is prepared for nothing else."""
    start_without_dynamo()
    return ShardHost(plan)

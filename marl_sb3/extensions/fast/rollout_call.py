"""One call of the kernel of rollouts: its arguments, and what becomes of its results."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.mapping import PolicyRows
from marl_sb3.core.metrics.episodes import Episode, EpisodeTracker
from marl_sb3.core.vec_env.batched_vec_env import BatchedVecEnv
from marl_sb3.core.vec_env.step import ArrayInfos, StackedFinalObservations, VecStep
from marl_sb3.errors import EnvError
from marl_sb3.extensions.fast.kernel_tables import filled
from marl_sb3.extensions.fast.rollout_processing import RolloutProcessing
from marl_sb3.types import Array, BoolArray

_NO_HORIZON = int(np.iinfo(np.int64).max)


class EpisodesToCome:
    """Episodes of each env that have not begun.

    Args:
        most: of each env.
    """

    def __init__(self, env: BatchedVecEnv, most: int) -> None:
        batch: Any = env.batch
        self.made_for = (env.run_seed, batch.states.dtype)
        words: list[int] = []
        if batch.rules.begins_compiled:  # the 32-bit words of the seed, as `SeedSequence` takes them, and two more
            words = [env.run_seed >> bits & 0xFFFFFFFF for bits in range(0, max(1, env.run_seed.bit_length()), 32)]
            words += [*[0] * (4 - len(words)), 0, 0]
        self.entropy = np.array(words, np.uint64)  # see `NextEpisodes`
        most = 0 if len(self.entropy) else most
        self.states = np.zeros((env.num_envs, most), batch.states.dtype).view(np.recarray)
        self.rngs = np.zeros((env.num_envs, most, batch.rngs.shape[1]), np.uint64)
        self.ready = np.full(env.num_envs, min(1, len(self.entropy)))
        self.used = np.zeros(env.num_envs, np.int64)
        self.first = np.zeros(env.num_envs, np.int64)  # the number of the first episode that is prepared for each env

    def prepare(self, env: BatchedVecEnv) -> Any:
        """Prepare as many as there is room for, where none is left, or others were prepared; returns `NextEpisodes`."""
        from marl_sb3.extensions.fast.kernels.episodes import NextEpisodes

        batch: Any = env.batch
        most = self.rngs.shape[1]
        following = env.episodes + 1
        is_over = (self.used >= self.ready) | (self.first + self.used != following)
        for index in np.flatnonzero(is_over).tolist() if most else ():
            self.first[index], self.used[index], self.ready[index] = following[index], 0, most
            for number in range(most):
                self.states[index, number] = batch.states[index]
                seed = env.episode_seed(index, int(following[index]) + number)
                rng = np.random.default_rng(seed)
                self.rngs[index, number] = batch.begin(self.states[index, number], rng)
        states = self.states.view(np.uint8).reshape(*self.states.shape, -1 if most else 0)
        return NextEpisodes(states, self.rngs, self.ready, self.used, self.entropy, env.first_index)


@dataclass(frozen=True)
class LastStep(VecStep):
    """The last of many steps that were taken at once.

    All of them are in `arrays` and `infos_of_steps` if the listener keeps them.
    """

    # rewards of the first env in each of the steps, (steps, A) float32, and whether an episode ended there, (steps,)
    first_env: tuple[Array, Array] = (np.empty((0, 0)), np.empty(0))
    arrays: Mapping[str, Array] = field(default_factory=dict)  # name in `VecStep` -> (steps, E, ...)
    infos_of_steps: Sequence[ArrayInfos] = ()
    ended_in: Sequence[int] = ()  # the step, from 0 on, that each of the episodes ended in


class RolloutCall:
    """Some steps of all envs: the arguments of the kernel, and what becomes of its results."""

    def __init__(
        self,
        env: BatchedVecEnv,
        pairs: list[tuple[Actor, Any]],
        tracker: EpisodeTracker,
        steps: int,
        to_come: EpisodesToCome,
        lines: int,
    ) -> None:
        from marl_sb3.compiling import note_compiling
        from marl_sb3.extensions.fast.kernels import episodes as counting
        from marl_sb3.extensions.fast.kernels import rollouts as kernel

        note_compiling(kernel.collect, "rollouts: about 8 s of one core")
        batch: Any = env.batch
        self._counting = counting
        self._kernel, self._env, self._batch, self._tracker, self._steps = kernel, env, batch, tracker, steps
        self._pairs, self._to_come, self._lines = pairs, to_come, lines
        envs, agents = env.num_envs, len(env.agents)
        self._sizes = self._counting.Sizes(
            steps=steps,
            envs=envs,
            agents=agents,
            infos=batch.infos.shape[1],
            observation=batch.observed.size // (envs * agents),
            action=batch.actions.size // (envs * agents),
            choices=batch.allowed.shape[2] if env.masked else 0,
            observes_floats=batch.observed.dtype == np.float32,
            state_bytes=batch.states.dtype.itemsize,
            horizon=env.horizon or _NO_HORIZON,
        )
        self._kept: list[Array] = []  # what the kernel knows by its address
        self._ended_on = np.zeros_like(batch.observed)
        self._last = self._counting.Last(
            rewards=np.zeros((lines, envs, agents), np.float32),
            allowed=np.zeros((lines, envs, agents, self._sizes.choices), np.bool_),
            terminated=np.zeros((lines, envs, agents), np.bool_),
            truncated=np.zeros((lines, envs, agents), np.bool_),
            infos=np.zeros((lines, *batch.infos.shape)),
            observations=self._at(self._ended_on),
            of_first_env=np.zeros((steps, agents), np.float32),
        )
        self._starts = [actor.starts.copy() for actor, _ in self._pairs]
        self._places = [_places(actor.rows) for actor, _ in self._pairs]
        self._processing = [
            RolloutProcessing(actor, env.latest, batch.observed, envs_of * agents + columns, starts, self._at)
            for (actor, _), starts, (envs_of, columns, _) in zip(self._pairs, self._starts, self._places, strict=True)
        ]
        self._running = self._counts()

    def run(self) -> tuple[VecStep, list[Episode]]:
        """Take the steps; returns the last one, and the episodes that have ended.

        Raises:
            EnvError: the env has returned what is not accepted.
        """
        kernel, tracker = self._kernel, self._tracker
        policies = self._policies()
        episodes: list[Episode] = []
        step, began_s = 0, time.perf_counter()
        ends = []
        while step < self._steps:
            to_come = self._to_come.prepare(self._env)
            most = (self._steps - step) * self._env.num_envs
            if not len(to_come.entropy):
                most = to_come.ready.sum() - to_come.used.sum()
            agents, metrics = self._sizes.agents, len(self._running.metrics)
            finished = self._counting.Finished(
                places=np.empty((most, 3), np.int64),
                agent_steps=np.empty((most, agents), np.int64),
                returns=np.empty((most, agents)),
                metrics=np.empty((most, metrics)),
            )
            step, lines, how, index, column = kernel.collect(
                self._batch.address,
                self._batch.table.ctypes.data,
                policies,
                self._sizes,
                to_come,
                self._running,
                finished,
                self._last,
                step,
            )
            ends.append((finished, lines))
            for each in self._processing:
                each.write_back()
            if how not in (self._counting.COMPLETE, self._counting.NO_EPISODES):
                raise self._wrong(how, index, column, min(step, self._lines - 1))
        took_s = time.perf_counter() - began_s
        for finished, lines in ends:
            episodes += self._episodes(finished, lines, began_s, took_s)
        for number, own in enumerate(tracker.accumulators.values()):
            own.so_far, own.count = self._running.metrics[number], self._running.counts[number]
        tracker.episodes.extend(episodes)
        return self._conclude(np.concatenate([finished.places[:lines] for finished, lines in ends])), episodes

    # --- What the kernel gets ----------------------------------------------------------------------------------------

    def _at(self, array: Array) -> int:
        self._kept.append(array)
        return array.ctypes.data

    def _policies(self) -> Array:
        """(policies,) records, see `POLICY`."""
        kernel = self._kernel
        noise = self._noise()
        policies = []
        for number, (actor, experience) in enumerate(self._pairs):
            fused, buffer, rows = actor.policy.kernels, experience.buffer, actor.rows  # type: ignore[attr-defined]
            nets, here = fused.nets, slice(buffer.pos, None)
            works = [np.empty(int(net.table[:, 1].sum()) * rows.num_rows, np.float32) for net in nets[:3]]
            takes_masks = actor.policy.takes_masks and self._sizes.choices > 0
            numbers = math.prod(actor.policy.algorithm.observation_space.shape or ())
            fields = {
                "agents": len(rows.agents),
                "rows_at": self._at(self._places[number]),
                "numbers": numbers,
                "ones": len(fused.category_sizes),
                "sizes_of_ones_at": self._at(fused.category_sizes),
                "starts_of_ones_at": self._at(fused.category_starts),
                "trunk_at": self._at(nets.trunk.table),
                "trunk_layers": len(nets.trunk.table),
                "trunk_activation": nets.trunk.hidden,
                "pi_at": self._at(nets.pi.table),
                "pi_layers": len(nets.pi.table),
                "vf_at": self._at(nets.vf.table),
                "vf_layers": len(nets.vf.table),
                "activation": nets.pi.hidden,
                "trunk_work_at": self._at(works[0]),
                "pi_work_at": self._at(works[1]),
                "vf_work_at": self._at(works[2]),
                "is_gaussian": fused.is_gaussian,
                "parts": buffer.actions.shape[2],
                "part_sizes_at": self._at(fused.sizes),
                "outputs": noise[number].shape[2],
                "of_gaussian_at": self._at(_of_gaussian(actor) if fused.is_gaussian else noise[0]),
                "is_rescaled": actor.processing.rescale is not None,
                "noise_at": self._at(noise[number]),
                "seen_at": self._at(buffer.observations[here]),
                "chosen_at": self._at(buffer.actions[here]),
                "values_at": self._at(buffer.values[here]),
                "log_probs_at": self._at(buffer.log_probs[here]),
                "episode_starts_at": self._at(buffer.episode_starts[here]),
                "paid_at": self._at(buffer.rewards[here]),
                "row_starts_at": self._at(self._starts[number]),
                "memory_at": self._at(np.zeros(rows.num_rows * numbers)),
                **self._processing[number].fields,
                "takes_masks": takes_masks,
                "masks_at": self._at(
                    buffer.action_masks[here] if takes_masks else np.zeros(noise[number].shape[1:], np.float32)
                ),
            }
            if actor.policy.takes_masks and not takes_masks:
                buffer.action_masks[here] = 1.0
            policies.append(filled(kernel.POLICY, fields))
        return np.concatenate(policies)

    def _noise(self) -> list[Array]:
        """Return for each policy the (steps, rows, outputs) random numbers that it would draw step by step."""
        fused: list[Any] = [actor.policy.kernels for actor, _ in self._pairs]  # type: ignore[attr-defined]
        rows = [actor.rows.num_rows for actor, _ in self._pairs]
        noise, draws = zip(*(own.draws(self._steps, n) for own, n in zip(fused, rows, strict=True)), strict=True)
        for draw in chain.from_iterable(zip(*draws, strict=True)):
            draw()  # step by step: each policy in turn draws from the same stream
        return list(noise)

    def _counts(self) -> Any:
        """Return the tracker's counts of the running episodes, and where custom metrics are read."""
        tracker, columns = self._tracker, self._batch.rules.columns
        accumulators = [*tracker.accumulators.values()]
        readings = [
            (number, columns[agent][own.metric.key])
            for number, own in enumerate(accumulators)
            for agent in own.agents
            if own.metric.key in columns.get(agent, ())
        ]
        shape = len(accumulators), self._sizes.envs
        return self._counting.Running(
            returns=tracker.returns,
            agent_steps=tracker.agent_steps,
            lengths=tracker.lengths,
            metrics=np.array([own.so_far for own in accumulators], np.float64).reshape(shape),
            counts=np.array([own.count for own in accumulators], np.float64).reshape(shape),
            readings=np.array(readings, np.int64).reshape(-1, 2),
            reductions=np.array([_REDUCTIONS.index(own.metric.reduce) for own in accumulators], np.int64),
            episodes=self._env.episodes,
            episode_steps=self._env.episode_steps,
        )

    # --- What it leaves ----------------------------------------------------------------------------------------------

    def _episodes(self, finished: Any, lines: int, began_s: float, took_s: float) -> Iterator[Episode]:
        """Make the episodes that have ended; they took their share of the time of the call."""
        tracker, agents = self._tracker, self._env.agents
        columns = [array[:lines].tolist() for array in finished]
        for (step, index, length), agent_steps, returns, metrics in zip(*columns, strict=True):
            now_s = began_s + took_s * (step + 1) / self._steps
            yield Episode(
                env_index=index,
                length=length,
                agent_returns=dict(zip(agents, returns, strict=True)),
                agent_steps=dict(zip(agents, agent_steps, strict=True)),
                custom={
                    name: value for name, value in zip(tracker.accumulators, metrics, strict=True) if np.isfinite(value)
                },
                duration_s=now_s - tracker.started_s[index],
                policy_of=tracker.policies_in(index),
            )
            tracker.started_s[index] = now_s

    def _conclude(self, places: Array) -> LastStep:
        """Note in env and learners that the steps are taken; returns the last one.

        Args:
            places: (n, 3) the steps in which episodes have ended, and their envs; see `Finished`.
        """
        env, batch, kept = self._env, self._batch, self._last
        ended: BoolArray = kept.terminated | kept.truncated
        acted, infos = np.ones(ended.shape, np.bool_), self._infos()
        lines = {
            "rewards": kept.rewards,
            "terminated": kept.terminated,
            "truncated": kept.truncated,
            **dict.fromkeys(("acted", "to_act", "in_play"), acted),
            "stepped": acted[:, :, 0],
            "episode_done": np.all(ended, axis=2),
        }
        # What is one array in all steps is one in the last step, too: readers compare them by identity first.
        latest = {id(array): array[-1].copy() for array in lines.values()}
        done = latest[id(lines["episode_done"])]
        of_first = places[places[:, 1] == 0, 0]
        step = LastStep(
            first_env=(kept.of_first_env, np.isin(np.arange(self._steps), of_first)),
            arrays=lines if self._lines == self._steps else {},
            infos_of_steps=infos,
            ended_in=places[:, 0].tolist(),
            observations=batch.of_groups(batch.observed),
            action_masks=env.masks(acted[-1]) if env.masked else (None,) * len(env.groups),
            final_observations=StackedFinalObservations(ended[-1], env.groups, batch.of_groups(self._ended_on)),
            infos=infos[-1],
            reset_infos=env.reset_infos(np.flatnonzero(done).tolist()),
            **{name: latest[id(array)] for name, array in lines.items()},
        )
        env.continue_with(step)
        for (actor, experience), starts in zip(self._pairs, self._starts, strict=True):
            actor.starts = starts
            actor.step += self._steps
            experience.buffer.note_steps(self._steps, starts)
            experience.algorithm.num_timesteps += self._steps * len(starts)
            experience.steps = experience.buffer.pos
        return step

    def _infos(self) -> list[ArrayInfos]:
        """Return the infos of each line."""
        env, batch, kept, found = self._env, self._batch, self._last, []
        by_agent = batch.infos_of(kept.infos.reshape(self._lines * self._sizes.envs, self._sizes.infos))
        for line in range(self._lines):
            here = slice(line * self._sizes.envs, (line + 1) * self._sizes.envs)
            infos = {agent: {key: values[here] for key, values in own.items()} for agent, own in by_agent.items()}
            if self._sizes.choices and kept.truncated[line].any():
                infos = env.with_masks(infos, batch.masks_of_groups(kept.allowed[line]))
            found.append(ArrayInfos(infos, self._sizes.envs))
        return found

    def _wrong(self, how: int, index: int, column: int, line: int) -> Exception:
        """Return the error for what the env has returned, as the step by step path words it."""
        env = self._env
        if how == self._counting.WRONG_REWARD:
            reward = self._last.rewards[line, index, column]
            return env.error(index, column, f"reward is {reward}, not a finite number")
        if how == self._counting.WRONG_ENDS:
            return EnvError(f"env {index}: some of its agents have ended; compiled rules end all of them at once")
        if how == self._counting.WRONG_MASK:
            env.masks(np.ones((env.num_envs, len(env.agents)), np.bool_))  # raises
        of_ended = how == self._counting.WRONG_LAST_OBSERVATION
        observed = self._batch.of_groups(self._ended_on if of_ended else self._batch.observed)
        env.check_observations(observed)  # raises
        for (actor, _), processing in zip(self._pairs, self._processing, strict=True):
            if "features" not in processing.fields:
                actor.policy.kernels.inputs(actor.rows.observations(observed))  # type: ignore[attr-defined]
        return EnvError("the env has returned observations that are not in its space")


def _places(rows: PolicyRows) -> Array:
    """(3, rows) int64: the env of each row, the column of its agent, and the number of the row."""
    envs, columns = np.arange(rows.num_envs), np.array(rows.agent_columns)
    of_rows = envs.repeat(len(columns)), np.tile(columns, len(envs)), np.arange(rows.num_rows)
    return np.stack(of_rows).astype(np.int64)


_REDUCTIONS = ("sum", "mean", "min", "max", "last")  # in the order of the kernel


def _of_gaussian(actor: Actor) -> Array:
    """(6, n) float32: log standard deviations, standard deviations, lowest and highest actions of policy and env."""
    algorithm: Any = actor.policy.algorithm
    of_env: Any = actor.rows.group.action_space
    log_std = algorithm.policy.log_std.detach().numpy()
    limits = [limit.reshape(-1) for space in (algorithm.action_space, of_env) for limit in (space.low, space.high)]
    return np.stack([log_std, np.exp(log_std), *limits]).astype(np.float32)

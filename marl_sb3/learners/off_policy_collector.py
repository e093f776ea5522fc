"""Fill the replay buffer of an SB3 off-policy algorithm.

The order of random draws and of floating point operations is that of SB3's `off_policy_algorithm.py`. A shared policy
therefore trains bit for bit as in SB3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.noise import ActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecTransposeImage

from marl_sb3.acting.action_noise import RowNoise
from marl_sb3.acting.actor import RowActor
from marl_sb3.acting.policy import ExploringDecider
from marl_sb3.experience.making import RowReplayBuffer
from marl_sb3.experience.replay import Transitions
from marl_sb3.experience.turns import OpenTransitions, index_of
from marl_sb3.learners.numeric_faults import policy_in_errors
from marl_sb3.policies.placement import PolicyRows
from marl_sb3.processing import RowProcessing
from marl_sb3.sb3.private import after_step, set_progress_remaining
from marl_sb3.storage.parts import Fields, Stateful, computed, integer, part
from marl_sb3.storage.state import StateReader
from marl_sb3.types import Array, BoolArray, Observations
from marl_sb3.vec_env.observations import map_arrays
from marl_sb3.vec_env.step import VecStep


class OffPolicyCollector(Stateful):
    """See `Collector`; the transitions are added to `algorithm.replay_buffer` when they are over.

    A transition of an agent runs from its action to its next turn or its end, with everything that it is paid
    meanwhile. A rollout is what SB3 collects between two updates.

    Args:
        algorithm: the SB3 algorithm of the policy; its buffer is made for these rows.
        processing: of the rows' observations, rewards and actions.
        records: whether its learner learns; if not, it only acts, without exploration.
        progress_remaining: from 1 at the start of training to 0 at its end, for schedules of exploration.
        stored: the space of the observations that the buffer keeps.

    Attributes:
        agent_steps: actions since the rollout began.
        takes_masks: see `Collector.takes_masks`.
    """

    takes_masks = False

    def __init__(
        self,
        rows: PolicyRows,
        algorithm: OffPolicyAlgorithm,
        processing: RowProcessing,
        records: bool,
        progress_remaining: Callable[[], float],
        stored: spaces.Space[Any],
    ) -> None:
        self.rows = rows
        self.algorithm = algorithm
        self.processing = processing
        self.records = records
        self.agent_steps = 0
        self._decider = ExploringDecider(algorithm, records)
        self.actor = RowActor(rows, algorithm, self._decider)
        self._progress_remaining = progress_remaining
        self._episodes = 0  # of agents, that ended since the rollout began
        self._noise = self._make_noise()
        space = algorithm.action_space
        self._open = OpenTransitions(rows.num_rows, stored, space, self.buffer.actions.dtype)

    def _make_noise(self) -> RowNoise | None:
        noise = self.algorithm.action_noise
        return RowNoise(noise, self.rows.num_rows) if self.records and isinstance(noise, ActionNoise) else None

    @property
    def buffer(self) -> RowReplayBuffer:
        """The replay buffer."""
        return self.algorithm.replay_buffer  # type: ignore[return-value]

    @property
    def steps_left(self) -> int:
        """See `Collector.steps_left`; when an episode ends is not known beforehand."""
        return self._left(self.actor.step, self._episodes) if self.records else 0

    def _left(self, steps: int, episodes: int) -> int:
        every: TrainFreq = self.algorithm.train_freq  # type: ignore[assignment]
        if every.unit is TrainFrequencyUnit.STEP:
            return every.frequency - steps
        return 0 if episodes >= every.frequency else 1

    def begin_episodes(self) -> None:
        """See `Collector.begin_episodes`."""
        self.actor.begin_episodes()
        self.processing.begin_episodes()
        self._forget(np.ones(self.rows.num_rows, dtype=np.bool_))

    def restart_envs(self, env_indices: Sequence[int]) -> None:
        """See `Collector.restart_envs`."""
        self.actor.restart_envs(env_indices)
        self.processing.restart_envs(env_indices)
        self._forget(self.rows.of_envs(env_indices))

    def _forget(self, rows: BoolArray) -> None:
        """Give up what these rows, (rows,) bool, have begun: open transitions, returns over several steps, noise."""
        self._open.drop(rows)
        self.buffer.break_off(rows)
        if self._noise is not None:
            self._noise.reset(rows)

    def begin_rollout(self) -> None:
        """See `Collector.begin_rollout`; open transitions go on. `predict` ends the training mode of the policy."""
        self.agent_steps = self._episodes = 0
        with policy_in_errors(self.rows.policy_id, "rollout"):
            self.actor.begin_rollout()

    def read_weights(self) -> None:
        """See `Collector.read_weights`."""
        self._decider.read_weights()

    def masks(self, step: VecStep) -> BoolArray | None:
        """See `Collector.masks`: no algorithm with a replay buffer takes any."""
        return None

    # --- Acting ------------------------------------------------------------------------------------------------------

    def act(self, step: VecStep) -> Array:
        """See `Collector.act`; a policy that learns opens a transition for each row that acts."""
        acting = self.rows.of_agents(step.to_act)
        observations = self._prepared(self.processing.look(step))
        with policy_in_errors(self.rows.policy_id, f"rollout, step {self.actor.step}"):
            chosen = self.actor.act(self.processing.normalized(observations), acting).actions
        actions, learned = self._explored(chosen, acting)
        if self.records:
            self._open.begin(acting, observations, learned)
            number = int(np.count_nonzero(acting))
            self.algorithm.num_timesteps += number
            self.agent_steps += number
        return self.processing.act(actions, acting)

    def _prepared(self, observations: Observations) -> Observations:
        env = self.algorithm.env
        return env.transpose_observations(observations) if isinstance(env, VecTransposeImage) else observations

    def _explored(self, chosen: Array, acting: BoolArray) -> tuple[Array, Array]:
        """Return the actions as the env takes them, and as the policy learns from them: those of a Box from -1 to 1."""
        if not isinstance(self.algorithm.action_space, spaces.Box):
            return chosen, chosen
        policy = self.algorithm.policy
        scaled = policy.scale_action(chosen)
        if self._noise is not None and np.count_nonzero(acting):
            chosen_rows = index_of(acting)
            scaled[chosen_rows] = np.clip(scaled[chosen_rows] + self._noise.draw(acting), -1, 1)
        return policy.unscale_action(scaled), scaled

    # --- Rewards and ends --------------------------------------------------------------------------------------------

    def observe(self, step: VecStep) -> None:
        """See `Collector.observe`."""
        ended = self.rows.of_agents(step.terminated | step.truncated)
        rewards = self.processing.observe(step)
        if self.records:
            self._keep(step, rewards, ended)
            set_progress_remaining(self.algorithm, self._progress_remaining())
            after_step(self.algorithm)
            self._episodes += int(np.count_nonzero(ended))
            if self._noise is not None:
                self._noise.reset(ended)
        self.actor.end_episodes(ended)

    def break_off(self, step: VecStep) -> None:
        """See `Collector.break_off`: as in SB3, the step leaves no transition; transitions from before stay."""
        self.processing.observe(step)
        self.actor.end_episodes(self.rows.of_agents(step.terminated | step.truncated))
        self._forget(np.ones(self.rows.num_rows, dtype=np.bool_))
        every: Any = self.algorithm.train_freq
        self.actor.step = self._episodes = every.frequency

    def _keep(self, step: VecStep, rewards: Array, ended: BoolArray) -> None:
        over = self._open.rows & (ended | self.rows.of_agents(step.to_act))
        if not np.count_nonzero(over):  # for few rows much faster than any()
            return
        timeouts = self.rows.of_agents(step.truncated & ~step.terminated)
        following = self._following(step, ended & over)
        observations, actions = self._open.take(over)
        chosen = index_of(over)
        following = map_arrays(lambda array: array[chosen], following)
        added = Transitions(observations, following, actions, rewards[chosen], ended[chosen], timeouts[chosen])
        self.buffer.add_transitions(added, over)

    def _following(self, step: VecStep, ended: BoolArray) -> Observations:
        """Return the observations after a step, (rows, ...); of agents that ended, their final ones."""
        following = self._prepared(self.processing.look(step))
        if not np.count_nonzero(ended):
            return following
        places = np.argwhere(self.rows.mine & (step.terminated | step.truncated))
        known = np.zeros(step.terminated.shape, dtype=np.bool_)
        for place in map(tuple, places.tolist()):
            known[place] = place in step.final_observations
        if not known.any():
            return following
        final: Any = self._prepared(self.processing.final_observations(step, known))
        rows = self.rows.of_agents(known)
        if isinstance(following, dict):
            return {key: _replaced(array, rows, final[key]) for key, array in following.items()}
        return _replaced(following, rows, final)

    def finish_rollout(self, step: VecStep) -> None:
        """See `Collector.finish_rollout`: open transitions go on."""

    # --- State -------------------------------------------------------------------------------------------------------

    fields: ClassVar[Fields] = {
        "actor": part("actor"),
        "processing": part("processing"),
        "step": integer("actor.step"),
        "episodes": integer("_episodes"),
        "agent_steps": integer("agent_steps"),
        "open": computed(
            lambda self: self._open.get_state() if self._open.rows.any() else None,
            lambda self, state, name: (
                self._open.clear if state.value(name) is None else self._open.read_state(state.fields(name))
            ),
        ),
        "noise": part("_noise"),
    }

    def check_state(self, values: Mapping[str, Any], state: StateReader) -> None:
        """Refuse more steps than a rollout has."""
        left = self._left(values["step"], values["episodes"])
        if self.records and left < 0:
            raise state.error("step", values["step"], f"an integer up to {values['step'] + left}")

    def state_was_set(self) -> None:
        """Prepare the policy to act."""
        self.algorithm.policy.set_training_mode(False)


def _replaced(array: Array, rows: BoolArray, values: Array) -> Array:
    array = array.copy()  # the step's own stay as they are: others read them
    array[rows] = values
    return array

"""Prioritized experience replay (Schaul et al. 2016, https://arxiv.org/abs/1511.05952) for DQN and its kin.

Transitions are drawn as often as they were surprising: in proportion to the size of their latest TD error to the power
`replay_alpha`. What was not learned from yet counts as the most surprising so far. Rare transitions are weighted up, by
importance sampling to the power `replay_beta`, which grows to 1 until the end of the training.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch as th
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from torch import nn
from typing_extensions import override

from marl_sb3.core.off_policy.per_row_replay import CompactBuffer, HindsightBuffer, NStepBuffer, NStepDictBuffer
from marl_sb3.core.off_policy.replay import (
    TransitionBuffer,
    TransitionDictReplayBuffer,
    TransitionReplayBuffer,
    Transitions,
)
from marl_sb3.core.state.fields import Fields, scalar
from marl_sb3.core.state.state import TensorFile
from marl_sb3.errors import CheckpointError, ConfigError, require_known, shown
from marl_sb3.extensions.fast.frames import OF_FRAMES
from marl_sb3.extensions.fast.torch_updates import faster_images
from marl_sb3.types import Array, FloatArray

_Kinds: TypeAlias = Mapping[Any, type[TransitionBuffer]]  # by what `AlgorithmTraits.replay_buffers` has them by
_LEAST_ERROR = 1e-6  # is added to errors, so that each transition has a chance

# --- Replay buffers --------------------------------------------------------------------------------------------------


class WithPriorities(TransitionBuffer):
    """Mixin for a replay buffer: draws transitions in proportion to their priorities.

    Attributes:
        team_size: rows whose transitions are drawn together: the first one has the priority of all.
        drawn_priorities: (batch,) float64; those of the latest minibatch.
    """

    team_size: int = 1
    drawn_priorities: Array
    highest: float = 1.0  # priority so far, which new transitions get

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._tree = np.zeros(2 * 2 ** (self.buffer_size * self.n_envs - 1).bit_length())
        self._summed_up = False  # whether the tree has the sums of what was put into `priorities`
        self._drawn: Array = np.zeros(0, np.int64)

    @property
    def priorities(self) -> Array:
        """(lines, rows) float64, 0 where there is no transition; a view of the numbers of the sum tree."""
        numbers = self._tree[len(self._tree) // 2 :][: self.buffer_size * self.n_envs]
        return numbers.reshape(self.buffer_size, self.n_envs)

    @override
    def _put_observations(self, places: Any, added: Transitions) -> None:
        super()._put_observations(places, added)
        lines, columns = places if isinstance(places, tuple) else (places, np.arange(self.n_envs))
        is_drawn = columns % self.team_size == 0
        self._put(lines * self.n_envs + columns, np.where(is_drawn, self.highest, 0.0))

    def _put(self, places: Array, priorities: Array) -> None:
        from marl_sb3.extensions.fast.kernels.replay import put_in_tree  # numba, which takes long to import

        put_in_tree(self._tree, places, priorities)

    @override
    def all_fields(self) -> Fields:
        return {**super().all_fields(), "highest": scalar("highest", 0.0)}

    @override
    def state_was_set(self) -> None:
        super().state_was_set()
        self._summed_up = False

    def reset(self) -> None:
        """Empty the buffer; its arrays stay."""
        super().reset()
        self._summed_up = False

    def add(self, obs: Any, next_obs: Any, action: Array, reward: Array, done: Array, infos: Any) -> None:
        """See `ReplayBuffer.add`, which SB3's own loop calls."""
        timeouts = np.array([info.get("TimeLimit.truncated", False) for info in infos])
        ends = np.asarray(done), timeouts, np.arange(self.n_envs)
        self.add_transitions(Transitions(obs, next_obs, action, reward, *ends))

    # --- Drawing -----------------------------------------------------------------------------------------------------

    @override
    def sample(self, batch_size: int, env: Any = None) -> Any:
        """Draw a minibatch: one transition of each of `batch_size` equal shares of the sum of all priorities."""
        from marl_sb3.extensions.fast.kernels.replay import draw_from_tree, sum_up

        if not self._summed_up:
            sum_up(self._tree)
            self.highest, self._summed_up = max(self.highest, float(self.priorities.max())), True
        self._drawn = draw_from_tree(self._tree, np.random.random_sample(batch_size))  # noqa: NPY002 - SB3's generator
        lines, columns = np.divmod(self._drawn, self.n_envs)
        self.drawn_priorities = self.priorities[lines, columns]
        return self._samples_at(lines, columns, env)

    def update_priorities(self, priorities: Array) -> None:
        """Set the priorities, (batch,) above 0, of the latest minibatch."""
        self.highest = max(self.highest, float(priorities.max()))
        self._put(self._drawn, priorities)

    # --- State -------------------------------------------------------------------------------------------------------

    def require_columns(self, file: TensorFile, lines: int, rows: int) -> None:
        """See `TransitionBuffer.require_columns`; refuses priorities that nothing can be drawn by."""
        super().require_columns(file, lines, rows)
        pieces = [piece for _, piece in file.pieces("priorities")]
        if not all(np.isfinite(piece).all() and (piece >= 0).all() for piece in pieces):
            raise CheckpointError(f"{file.name}: priorities are not numbers from 0 on")
        if pieces and not any(piece.any() for piece in pieces):
            raise CheckpointError(f"{file.name}: all priorities are 0")


def with_columns(prefix: str, mixin: type[TransitionBuffer], kinds: _Kinds, *columns: str) -> _Kinds:
    """Return replay buffers that have the columns of a mixin, too.

    Args:
        prefix: of the names of the classes, under which the module of the mixin has them: SB3 pickles replay buffers by
            their names.
        kinds: classes of replay buffers -> those that are to have the columns in their place.
    """
    made: dict[Any, type[TransitionBuffer]] = {}
    for stock, kind in kinds.items():
        members = {"names": (*kind.names, *columns), "__doc__": mixin.__doc__, "__module__": mixin.__module__}
        made[stock] = type(f"{prefix}{kind.__name__}", (mixin, kind), members)
        setattr(sys.modules[mixin.__module__], made[stock].__name__, made[stock])
    return made


SINGLE: _Kinds = {
    **{kind: kind for kind in (TransitionReplayBuffer, TransitionDictReplayBuffer, NStepBuffer, NStepDictBuffer)},
    **OF_FRAMES,
}
PRIORITIZED = with_columns("Prioritized", WithPriorities, SINGLE, "priorities")


def _refuse_buffer(*_: Any, **__: Any) -> Any:
    words = "replay is prioritized, which goes neither with HerReplayBuffer nor with optimize_memory_usage"
    raise ConfigError(f"{words}; accepted: uniform, or one of them off", key="replay")


NOT_PRIORITIZED: Mapping[Any, Any] = dict.fromkeys((CompactBuffer, HindsightBuffer), _refuse_buffer)


# --- Algorithms ------------------------------------------------------------------------------------------------------

# The replay buffers of SB3's own loop -> the buffers here that those with priorities take the place of.
_OF_SB3: dict[type[Any], type[Any]] = {
    ReplayBuffer: TransitionReplayBuffer,
    DictReplayBuffer: TransitionDictReplayBuffer,
    NStepReplayBuffer: NStepBuffer,
}


class DrawsByPriority(OffPolicyAlgorithm):
    """What DQN and QR-DQN share that draw transitions by their priorities.

    Args:
        arguments: of the algorithm.
        replay: how minibatches are drawn: `uniform`, or `prioritized`.
        replay_alpha: power of the TD errors in priorities; 0: all transitions are drawn as often.
        replay_beta: power of the importance weights at the beginning; it grows to 1 until the end.
        settings: of the algorithm.

    Raises:
        ConfigError: there is no such way, or a power is given for draws that have none.
    """

    # how minibatches are drawn -> classes of replay buffers -> those that it needs in their place
    buffers_by_replay: ClassVar[Mapping[str, Mapping[Any, Any]]] = {
        "uniform": OF_FRAMES,
        "prioritized": {**PRIORITIZED, **NOT_PRIORITIZED},
    }
    replay_buffer: Any

    def __init__(
        self,
        *arguments: Any,
        replay: str = "uniform",
        replay_alpha: float = 0.6,
        replay_beta: float = 0.4,
        **settings: Any,
    ) -> None:
        require_known(replay, self.buffers_by_replay, f"replay is {shown(replay)}", "replay")
        if replay == "uniform" and (replay_alpha, replay_beta) != (0.6, 0.4):
            words = f"replay_alpha is {replay_alpha} and replay_beta {replay_beta}, but replay is uniform"
            raise ConfigError(f"{words}; accepted: both with replay=prioritized alone", key="replay_alpha")
        self.replay, self.replay_alpha, self.replay_beta = replay, replay_alpha, replay_beta
        super().__init__(*arguments, **settings)

    @property
    def replay_buffers(self) -> Mapping[Any, Any]:
        """The buffers that take the place of others; see `AlgorithmTraits`."""
        return self.buffers_by_replay[self.replay]

    @staticmethod
    def bytes_per_transition(values: Mapping[str, Any]) -> int:
        """See `AlgorithmTraits.bytes_per_transition`: a sum tree has up to four numbers for each."""
        return 4 * 8 if values.get("replay") == "prioritized" else 0

    @override
    def _setup_model(self) -> None:
        given = self.replay_buffer_class
        super()._setup_model()
        if given is None and self.replay == "prioritized":  # for SB3's own loop
            settings = {"device": self.device, "n_envs": self.n_envs, **self.replay_buffer_kwargs}
            kind = CompactBuffer if self.optimize_memory_usage else _OF_SB3[type(self.replay_buffer)]
            make = self.replay_buffers[kind]
            self.replay_buffer = make(self.buffer_size, self.observation_space, self.action_space, **settings)
            self.replay_buffer_class = None  # in files, too

    # --- Updates -----------------------------------------------------------------------------------------------------

    def importance_weights(self, rows: int) -> FloatArray:
        """(rows,) float32 weights of the latest minibatch, 1 for the rarest: those of the paper over their maximum."""
        buffer = self.replay_buffer
        if not isinstance(buffer, WithPriorities):
            return np.ones(rows, np.float32)
        beta = 1 - (1 - self.replay_beta) * self._current_progress_remaining
        weights: Array = (buffer.drawn_priorities.min() / buffer.drawn_priorities) ** beta
        return weights.astype(np.float32)

    def note_errors(self, errors: FloatArray) -> None:
        """Set the priorities of the latest minibatch, by the sizes of its TD errors, (rows,)."""
        if isinstance(self.replay_buffer, WithPriorities):
            self.replay_buffer.update_priorities((errors.astype(np.float64) + _LEAST_ERROR) ** self.replay_alpha)

    def losses(self, samples: Any) -> tuple[th.Tensor, th.Tensor]:
        """Return the loss of each transition of a minibatch, (rows,), and the size of its TD error."""
        raise NotImplementedError

    def loss(self, samples: Any) -> th.Tensor:
        """Return the loss of a minibatch; the priorities of its transitions follow."""
        losses, errors = self.losses(samples)
        self.note_errors(errors.detach().cpu().numpy())
        return (th.as_tensor(self.importance_weights(len(losses)), device=self.device) * losses).mean()

    def trained_parts(self) -> list[tuple[th.optim.Optimizer, nn.Module]]:
        """Return each optimizer with what it trains."""
        return [(self.policy.optimizer, self.policy)]

    @override
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        algorithm: Any = self
        if self.replay == "prioritized" and not isinstance(self.replay_buffer, WithPriorities):
            words = f"replay is prioritized, and the replay buffer a {type(self.replay_buffer).__name__}"
            raise ConfigError(f"{words}; accepted: uniform, or no buffer of one's own", key="replay")
        if self.replay == "prioritized" and algorithm.kernels() is None:
            with faster_images(self, self.replay_buffer, "sample"):
                self.train_by_loss(gradient_steps, batch_size)
        else:
            super().train(gradient_steps=gradient_steps, batch_size=batch_size)

    def train_by_loss(self, gradient_steps: int, batch_size: int) -> None:
        """Update as SB3's DQN does, but with `loss`."""
        algorithm: Any = self
        parts = self.trained_parts()
        parameters = [each for _, part in parts for each in part.parameters()]
        self.policy.set_training_mode(True)
        self._update_learning_rate([optimizer for optimizer, _ in parts])
        losses = []
        for _ in range(gradient_steps):
            loss = self.loss(self.replay_buffer.sample(batch_size, env=self._vec_normalize_env))
            losses.append(loss.item())
            for optimizer, _ in parts:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if algorithm.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(parameters, algorithm.max_grad_norm)
            for optimizer, _ in parts:
                optimizer.step()
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", np.mean(losses))

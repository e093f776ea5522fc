"""Policies with memory for algorithms with a replay buffer: an LSTM or a GRU after the features extractor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.policies import BaseModel, BasePolicy
from stable_baselines3.dqn.policies import DQNPolicy, QNetwork
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from typing_extensions import override

from marl_sb3.core.sb3.inference import States
from marl_sb3.core.sb3.policies import CELLS, with_arguments_of_bases, with_kin
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.errors import require_known
from marl_sb3.extensions.memory.sequences import Observed, SequenceBatch
from marl_sb3.types import Array

Tensors = tuple[th.Tensor, ...]


class MemoryNetwork(nn.Module):
    """An LSTM or a GRU, see `GRU`, whose states are hidden and cell state, (layers, rows, size) each.

    Args:
        inputs: numbers that it gets in each step.
        cell: `lstm` or `gru`.
        lstm_hidden_size: size of each layer.
        n_lstm_layers: number of layers.

    Raises:
        ConfigError: there is no such cell.
    """

    def __init__(self, inputs: int, cell: str, lstm_hidden_size: int, n_lstm_layers: int) -> None:
        super().__init__()
        require_known(cell, CELLS, f"cell is {cell!r}", "policy_kwargs.cell")
        self.num_layers, self.hidden_size = n_lstm_layers, lstm_hidden_size
        self.net = CELLS[cell](int(inputs), lstm_hidden_size, n_lstm_layers)

    def initial(self, rows: int) -> Tensors:
        """Return the states at the start of an episode."""
        zeros = th.zeros(self.num_layers, rows, self.hidden_size, device=next(self.parameters()).device)
        return zeros, zeros

    def after(self, features: th.Tensor, lengths: th.Tensor, states: Tensors) -> Tensors:
        """Return the states after the first `lengths`, (rows,), of the steps of each row."""
        packed = pack_padded_sequence(features, lengths.clamp(min=1), enforce_sorted=False)
        _, after = self.net(packed, states)
        kept = (lengths > 0).to(features.device)[None, :, None]
        return tuple(th.where(kept, new, old) for new, old in zip(after, states, strict=True))


if TYPE_CHECKING:  # base classes of mixins for type checkers
    _Network = BaseModel
    _Policy = BasePolicy
else:
    _Network = _Policy = object


class Remembering(_Network):
    """Mixin for a network of SB3 whose layers get the outputs of a `MemoryNetwork`, which gets the features."""

    def __init__(self, *, features_dim: int, memory_kwargs: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(features_dim=memory_kwargs["lstm_hidden_size"], **settings)  # type: ignore[call-arg]
        self.memory = MemoryNetwork(features_dim, **memory_kwargs)

    def features_of(self, observations: Observed) -> th.Tensor:
        """(T, rows, features) of (T, rows, ...) observations."""
        first = next(iter(observations.values())) if isinstance(observations, dict) else observations
        flat: Any = map_arrays(lambda array: array.flatten(0, 1), observations)  # type: ignore[call-arg,arg-type]
        extractor: Any = self.features_extractor
        features: th.Tensor = self.extract_features(flat, extractor)
        return features.reshape(*first.shape[:2], -1)

    def step(self, observations: Observed, states: Tensors, starts: th.Tensor) -> tuple[th.Tensor, Tensors]:
        """Return the (rows, size) outputs of the memory for a single step, and its states after it.

        Args:
            observations: (rows, ...); or T for each row, (rows * T, ...), and so are the outputs.
            states: before the step.
            starts: (rows,) bool, True where an episode starts: the state is not used there.
        """
        kept = tuple(state.masked_fill(starts[None, :, None], 0.0) for state in states)
        extractor: Any = self.features_extractor
        features = self.extract_features(observations, extractor)
        in_time = features.reshape(starts.shape[0], -1, features.shape[-1]).swapaxes(0, 1)
        outputs, after = self.memory.net(in_time, kept)
        return outputs.swapaxes(0, 1).flatten(0, 1), after

    def unroll(self, batch: SequenceBatch, states: Tensors) -> th.Tensor:
        """Return the outputs of the memory for all observations of a batch, (T + n_steps, B, size).

        No gradient reaches the burn-in.

        Args:
            states: before the burn-in.
        """
        if batch.burn_in_lengths.any():
            with th.no_grad():
                states = self.memory.after(self.features_of(batch.burn_in), batch.burn_in_lengths, states)
        outputs: th.Tensor = self.memory.net(self.features_of(batch.observations), states)[0]
        return outputs


class PolicyWithMemory(_Policy):
    """Mixin for a policy of SB3 that remembers.

    Attributes:
        memory_kwargs: the arguments of its `MemoryNetwork`, but the first one.
        lstm_hidden_state_shape: (layers, 1, size), as sb3-contrib's recurrent policies have it.
    """

    memory_kwargs: dict[str, Any]

    def __init__(
        self, *arguments: Any, lstm_hidden_size: int = 256, n_lstm_layers: int = 1, cell: str = "lstm", **settings: Any
    ) -> None:
        self.memory_kwargs = {"lstm_hidden_size": lstm_hidden_size, "n_lstm_layers": n_lstm_layers, "cell": cell}
        super().__init__(*arguments, **settings)

    @property
    def lstm_hidden_state_shape(self) -> tuple[int, int, int]:
        """(layers, 1, size) of a state."""
        return self.memory_kwargs["n_lstm_layers"], 1, self.memory_kwargs["lstm_hidden_size"]

    @property
    def num_states(self) -> int:
        """Number of recurrent states of a row: those that `remember` takes."""
        return 2

    def remember(self, observations: Observed, states: Tensors, starts: th.Tensor) -> tuple[th.Tensor, Tensors]:
        """See `Remembering.step`, of the network that chooses the actions; with the states of the others, too."""
        raise NotImplementedError

    def choose(self, outputs: th.Tensor, deterministic: bool) -> th.Tensor:
        """Return the actions for (rows, size) outputs of the memory."""
        raise NotImplementedError

    def remembered(self, observations: Any, states: States, starts: Array | None) -> tuple[th.Tensor, States, bool]:
        """Take a step.

        Args:
            observations: a single one, or (rows, ...).
            states: before the step; (): those at the start of an episode.
            starts: (rows,) bool; None: no episode starts.

        Returns:
            The (rows, size) outputs of the memory, the states after the step, and whether there was more than a single
            observation.
        """
        self.set_training_mode(False)
        seen, is_batch = self.obs_to_tensor(observations)
        rows = len(next(iter(seen.values())) if isinstance(seen, dict) else seen)
        layers, _, size = self.lstm_hidden_state_shape
        given = states or (np.zeros((layers, rows, size), dtype=np.float32),) * 2
        begin = np.zeros(rows, dtype=np.bool_) if starts is None else np.asarray(starts, dtype=np.bool_).reshape(rows)
        with th.no_grad():
            before = tuple(th.as_tensor(np.asarray(state, np.float32), device=self.device) for state in given)
            outputs, after = self.remember(seen, before, th.as_tensor(begin, device=self.device))
        return outputs, tuple(state.cpu().numpy() for state in after), is_batch

    def actions_of(self, outputs: th.Tensor, deterministic: bool) -> Array:
        """Return actions for (rows, size) outputs of the memory, within the action space."""
        space: Any = self.action_space
        with th.no_grad():
            chosen = self.choose(outputs, deterministic).cpu().numpy().reshape(-1, *space.shape)
        return self.unscale_action(chosen) if isinstance(space, spaces.Box) else chosen

    @override
    def predict(
        self,
        observation: Any,
        state: States | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
    ) -> tuple[Array, States]:
        """See `RecurrentActorCriticPolicy.predict` of sb3-contrib.

        Args:
            observation: a single observation, or a batch of n.
            state: hidden and cell state, (layers, n, size) each; None: that at the start of an episode.
            episode_start: (n,) bool, True where an episode starts: the state is not used there; None: nowhere.
            deterministic: whether to take the most likely action.

        Returns:
            The actions, and the state after them.
        """
        outputs, after, is_batch = self.remembered(observation, state or (), episode_start)
        actions = self.actions_of(outputs, deterministic)
        return actions if is_batch else actions.squeeze(axis=0), after

    def _get_constructor_parameters(self) -> dict[str, Any]:
        return {**super()._get_constructor_parameters(), **self.memory_kwargs}


# --- Q values --------------------------------------------------------------------------------------------------------


class RecurrentQNetwork(Remembering, QNetwork):
    """SB3's `QNetwork` with a memory."""

    @override
    def forward(self, obs: Any, states: Tensors = (), starts: th.Tensor | None = None) -> th.Tensor:
        """Return the (rows, actions) Q values.

        Args:
            obs: (rows, ...), or sequences; see `Remembering.step`.
            states: see `Remembering.step`; (): those at the start of an episode.
            starts: see there.
        """
        rows = len(next(iter(obs.values())) if isinstance(obs, dict) else obs)
        given = states or self.memory.initial(rows)
        begin = th.zeros(rows, dtype=th.bool, device=self.device) if starts is None else starts > 0
        values: th.Tensor = self.q_net(self.step(obs, given, begin)[0])
        return values

    def values(self, batch: SequenceBatch) -> th.Tensor:
        """Return the Q values of all observations of a batch, (T + n_steps, B, actions)."""
        values: th.Tensor = self.q_net(self.unroll(batch, batch.states))
        return values


@with_arguments_of_bases()
class RecurrentDQNPolicy(PolicyWithMemory, DQNPolicy):
    """SB3's `DQNPolicy` with memory: see there for the other arguments.

    Args:
        lstm_hidden_size: size of a layer of the memory.
        n_lstm_layers: number of its layers.
        cell: `lstm` or `gru`.
    """

    q_net: RecurrentQNetwork
    q_net_target: RecurrentQNetwork

    @override
    def make_q_net(self) -> RecurrentQNetwork:
        settings = self._update_features_extractor(self.net_args, features_extractor=None)
        return RecurrentQNetwork(memory_kwargs=self.memory_kwargs, **settings).to(self.device)

    @override
    def remember(self, observations: Observed, states: Tensors, starts: th.Tensor) -> tuple[th.Tensor, Tensors]:
        return self.q_net.step(observations, states, starts)

    @override
    def choose(self, outputs: th.Tensor, deterministic: bool) -> th.Tensor:
        return self.q_net.q_net(outputs).argmax(dim=1)  # type: ignore[no-any-return]


RECURRENT_DQN = with_kin(RecurrentDQNPolicy, "RecurrentDQN", DQN.policy_aliases)

"""RecurrentDQN: Q-learning with a memory, from sequences with stored states (R2D2, Kapturowski et al. 2019)."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import stable_baselines3
import torch as th
import torch.nn.functional as F
from gymnasium.spaces import Dict
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer
from typing_extensions import override

from marl_sb3.core.acting.policy import Decision, ExploringPolicy, PolicyInputs
from marl_sb3.core.metrics.names import Result
from marl_sb3.core.off_policy.off_policy import OffPolicyLearner
from marl_sb3.core.off_policy.per_row_replay import HindsightBuffer, NStepBuffer, NStepDictBuffer
from marl_sb3.core.off_policy.replay import TransitionDictReplayBuffer, TransitionReplayBuffer
from marl_sb3.core.sb3.inference import States, critic_states, initial_states
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.memory.networks import RECURRENT_DQN, PolicyWithMemory
from marl_sb3.extensions.memory.sequences import SequenceBatch, SequenceBuffer, SequenceDictBuffer, Sequences
from marl_sb3.types import Array

# --- Acting ----------------------------------------------------------------------------------------------------------


class RememberingPolicy(ExploringPolicy):
    """Explores as an `ExploringPolicy` does, and remembers, also while its actions are random.

    The states are hidden and cell state of the network that acts, then those of a critic with a memory of its own.
    """

    @override
    def initial_states(self, rows: int) -> States:
        return (*initial_states(self.algorithm, rows), *critic_states(self.algorithm, rows))

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        self._outputs, after, _ = self.algorithm.policy.remembered(inputs.observations, inputs.states, inputs.starts)
        return super().act(inputs)._replace(states=after)

    @override
    def _chosen_by_policy(self, inputs: PolicyInputs) -> Array:
        return self.algorithm.explore(self._outputs)  # type: ignore[no-any-return]


class RecurrentLearner(OffPolicyLearner):
    """An `OffPolicyLearner` whose policy has a memory; a minibatch has `batch_size` sequences."""

    policy_class = RememberingPolicy
    takes_parts = ("curiosity",)

    @override
    def finish_update(self, gradient_steps: int) -> Result:
        drawn, self.buffer.num_drawn = self.buffer.num_drawn, 0
        return {**super().finish_update(gradient_steps), "num_module_steps_trained": drawn}


# --- Algorithms ------------------------------------------------------------------------------------------------------

if TYPE_CHECKING:  # base class of the mixin for type checkers
    _Base = OffPolicyAlgorithm
else:
    _Base = object


class WithMemory(_Base):
    """Mixin in front of an algorithm of SB3 with a replay buffer, whose policy is a `PolicyWithMemory`.

    Args:
        arguments: of the algorithm.
        burn_in: the most transitions before a sequence with which its stored state is brought up to date; they are not
            learned from.
        sequence_length: the most transitions of a sequence that are learned from.
        settings: of the algorithm.

    Raises:
        ConfigError: a setting is on that needs single transitions, or a length is out of its range.
    """

    policy: Any
    replay_buffer: Any
    _states: States = ()  # in SB3's own loop: the recurrent states of its envs before their next actions
    _acting: th.Tensor | None = None  # outputs of the memory, while SB3's own loop chooses actions

    def __init__(
        self,
        *arguments: Any,
        buffer_size: int = 100_000,
        batch_size: int = 32,
        burn_in: int = 10,
        sequence_length: int = 20,
        **settings: Any,
    ) -> None:
        self.burn_in, self.sequence_length = burn_in, sequence_length
        lengths = {"burn_in": burn_in, "sequence_length": sequence_length, "n_steps": settings.get("n_steps", 1)}
        for name, length in lengths.items():  # settings are checked already, but not those of a class on its own
            least = 0 if name == "burn_in" else 1
            if not isinstance(length, (int, np.integer)) or length < least:
                refuse(name, length, f"an integer from {least} on")
        for name in ("optimize_memory_usage", "use_sde"):
            if settings.get(name):
                words = f"{name} is true, which {type(self).__name__} does not have; accepted: false"
                raise ConfigError(words, key=name)
        if inspect.isclass(settings.get("replay_buffer_class")):
            self._refuse_single_transitions(settings["replay_buffer_class"])
        super().__init__(*arguments, **{**settings, "buffer_size": buffer_size, "batch_size": batch_size})

    def _refuse_single_transitions(self, kind: type[Any]) -> None:
        if issubclass(kind, ReplayBuffer) and not issubclass(kind, Sequences):
            words = f"replay_buffer_class is {kind.__name__}, but {type(self).__name__} learns from sequences"
            raise ConfigError(f"{words}; accepted: none", key="replay_buffer_class")

    @staticmethod
    def bytes_per_transition(values: Mapping[str, Any]) -> int:
        """Return the memory that the recurrent states of a transition take in the replay buffer."""
        policy_kwargs = values.get("policy_kwargs") or {}
        size, layers = policy_kwargs.get("lstm_hidden_size", 256), policy_kwargs.get("n_lstm_layers", 1)
        states = 1 if policy_kwargs.get("cell") == "gru" else 2
        return int(states * layers * size * np.dtype(np.float32).itemsize)

    @property
    def replay_buffers(self) -> Mapping[Any, Any]:
        """The buffers of sequences that take the place of others; see `core.off_policy.replay_buffer`."""
        policy: PolicyWithMemory = self.policy
        layers, _, size = policy.lstm_hidden_state_shape
        step = 2 if policy.memory_kwargs["cell"] == "gru" else 1  # a GRU has no cell states
        settings: dict[str, Any] = {
            "num_states": policy.num_states,
            "state_shape": (layers, size),
            "kept_states": range(0, policy.num_states, step),
            "burn_in": self.burn_in,
            "sequence_length": self.sequence_length,
        }
        of_one, of_dict = (partial(kind, **settings) for kind in (SequenceBuffer, SequenceDictBuffer))
        return {
            TransitionReplayBuffer: partial(of_one, gamma=self.gamma),
            TransitionDictReplayBuffer: partial(of_dict, gamma=self.gamma),
            NStepBuffer: of_one,
            NStepDictBuffer: of_dict,
            HindsightBuffer: lambda *_, **__: self._refuse_single_transitions(HerReplayBuffer),
        }

    def explore(self, outputs: th.Tensor) -> Array:
        """Return actions for (rows, size) outputs of the memory, as `predict` chooses them without `deterministic`."""
        return self.policy.actions_of(outputs, deterministic=False)  # type: ignore[no-any-return]

    @override
    def predict(
        self,
        observation: Any,
        state: States | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
    ) -> tuple[Array, States]:
        """See `PolicyWithMemory.predict`; not deterministic, it explores."""
        if self._acting is not None:
            return self.explore(self._acting), ()
        if deterministic:
            return self.policy.predict(observation, state, episode_start, deterministic)  # type: ignore[no-any-return]
        outputs, after, is_batch = self.policy.remembered(observation, state or (), episode_start)
        actions = self.explore(outputs)
        return actions if is_batch else actions.squeeze(axis=0), after[: len(initial_states(self, 1))]

    # --- Learning ----------------------------------------------------------------------------------------------------

    def optimizers(self) -> list[th.optim.Optimizer]:
        """Return those that `learn_from` steps."""
        return [self.policy.optimizer]

    def learn_from(self, batch: SequenceBatch, gradient_step: int) -> dict[str, float]:
        """Take a gradient step, of this number in the update; returns what is to be recorded of it, by name."""
        raise NotImplementedError

    @override
    def train(self, gradient_steps: int, batch_size: int = 32) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.optimizers())
        found = [
            self.learn_from(self.replay_buffer.sample(batch_size, env=self._vec_normalize_env), step)
            for step in range(gradient_steps)
        ]
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in found[0] if found else ():
            self.logger.record(f"train/{name}", np.mean([each[name] for each in found]))

    # --- SB3's own loop ----------------------------------------------------------------------------------------------

    def _setup_model(self) -> None:
        given: Any = self.replay_buffer_class
        kind: Any = given or Unmade
        self.replay_buffer_class = kind
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"`n_steps=\d+` is ignored because a custom")  # not by this one
            super()._setup_model()
        self.replay_buffer_class = given
        if given is None:
            make = self.replay_buffers[NStepDictBuffer if isinstance(self.observation_space, Dict) else NStepBuffer]
            settings = {"device": self.device, "n_envs": self.n_envs, "n_steps": self.n_steps, "gamma": self.gamma}
            given_sizes = self.buffer_size, self.observation_space, self.action_space
            self.replay_buffer = make(*given_sizes, **settings, **self.replay_buffer_kwargs)

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        before = self._last_obs
        prepared = super()._setup_learn(*args, **kwargs)
        if self._last_obs is not before:  # the envs were reset
            self.replay_buffer.break_off(np.ones(self.n_envs, dtype=np.bool_))
        return prepared

    def _sample_action(self, *args: Any, **kwargs: Any) -> tuple[Array, Array]:
        assert self._last_episode_starts is not None
        states = self._states
        if not states or states[0].shape[1] != self.n_envs:
            states = (*initial_states(self, self.n_envs), *critic_states(self, self.n_envs))
        kept = np.where(self._last_episode_starts[:, None], 0, np.stack(states))
        self.replay_buffer.states_before = kept.transpose(2, 0, 1, 3)
        self._acting, self._states, _ = self.policy.remembered(self._last_obs, states, self._last_episode_starts)
        try:
            return super()._sample_action(*args, **kwargs)
        finally:
            self._acting = None

    def _store_transition(self, *args: Any) -> None:
        super()._store_transition(*args)
        self._last_episode_starts = args[4]  # where episodes ended


def minimise(loss: th.Tensor, optimizer: th.optim.Optimizer, most: float | None = None) -> None:
    """Take a gradient step; `most`: the greatest norm of the gradient of all parameters, None: any."""
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    if most is not None:
        th.nn.utils.clip_grad_norm_([each for group in optimizer.param_groups for each in group["params"]], most)
    optimizer.step()


class Unmade:
    """Stands for a replay buffer until the policy is made, whose states it is to hold."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """Allocate no memory."""


class RecurrentDQN(WithMemory, stable_baselines3.DQN):
    """DQN with an LSTM or a GRU, which learns from sequences of transitions: see `WithMemory`.

    The arguments are those of `stable_baselines3.DQN`, and these.

    Args:
        buffer_size: number of transitions that the replay buffer holds, each with the recurrent state before it.
        batch_size: number of sequences in a minibatch.
        double_dqn: whether the network that learns chooses the action of which the target network gives the value
            (van Hasselt et al. 2016), as in R2D2.
    """

    policy_aliases: ClassVar[dict[str, Any]] = RECURRENT_DQN

    def __init__(self, *arguments: Any, double_dqn: bool = True, **settings: Any) -> None:
        self.double_dqn = double_dqn
        super().__init__(*arguments, **settings)

    @override
    def explore(self, outputs: th.Tensor) -> Array:
        if np.random.rand() < self.exploration_rate:  # noqa: NPY002 - SB3's generator
            return np.array([self.action_space.sample() for _ in range(len(outputs))])
        return super().explore(outputs)

    @override
    def learn_from(self, batch: SequenceBatch, gradient_step: int) -> dict[str, float]:
        loss = self.loss(batch)
        minimise(loss, self.policy.optimizer, self.max_grad_norm)
        return {"loss": loss.item()}

    def loss(self, batch: SequenceBatch) -> th.Tensor:
        """Return the Huber loss of the Q values of a batch, as in `stable_baselines3.DQN`."""
        values = self.policy.q_net.values(batch)
        with th.no_grad():
            of_target = self.policy.q_net_target.values(batch)
            best = (values if self.double_dqn else of_target).argmax(dim=2, keepdim=True)
            following = batch.after(of_target.gather(2, best)[..., 0])
            targets = batch.returns + batch.discounts * following
        taken = values[: len(batch.actions)].gather(2, batch.actions.long())[..., 0]
        return (batch.weights * F.smooth_l1_loss(taken, targets, reduction="none")).sum()

"""Q-learning of teams: the value of a joint action is made of the values of its agents' own actions (VDN, QMIX).

In training, the team's reward teaches the whole; each agent acts by its own values, as in DQN.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.preprocessing import get_flattened_obs_dim, preprocess_obs
from stable_baselines3.common.utils import polyak_update
from torch import nn
from typing_extensions import override

from marl_sb3.core.sb3.tensors import (
    optimizer_arrays,
    optimizer_forms,
    optimizer_settings,
    read_optimizers,
    read_weights,
    weights,
)
from marl_sb3.core.state.fields import in_order
from marl_sb3.core.state.state import State, StateReader, TensorFile
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.masked_q import MaskedQLearning
from marl_sb3.extensions.fast.replay import DQN
from marl_sb3.extensions.fast.team_replay import OF_TEAMS, TeamBatch
from marl_sb3.types import Array, BoolArray


class TeamQLearning(MaskedQLearning, DQN):
    """What VDN and QMIX share; it learns in marl_sb3's trainings.

    Each agent explores for itself, unlike in SB3, where all rows take random actions at the same time. Updates are
    PyTorch's; actions are chosen by the kernels where they cover the policy, see `TwoPaths`.

    Args:
        policy: as in `stable_baselines3.DQN`; the same for `env` and `settings`.
        double_dqn: whether the online network chooses the next actions, and the target network only says what
            they are worth: the overestimates of a maximum add up over the agents.
        td_lambda: from 0 to 1, with returns over several steps (`n_steps`): a value after k steps counts by
            `(1 - td_lambda) * td_lambda ** (k - 1)`, the last one by the rest: TD(lambda) (Sutton and Barto 2018,
            section 12.1), cut off after `n_steps`. 1: the last one alone counts.
    """

    updates_fused = False
    needs_masks = False  # where the env gives none, all actions are allowed
    not_in_sb3 = "draws single agents"
    mixes: ClassVar[bool] = False  # whether a network mixes the values of the agents
    team_reward: str = "sum"  # or `mean`; or `shared`: all agents have the same reward, and it is the team's
    buffers_by_replay: ClassVar[Mapping[str, Mapping[Any, Any]]] = OF_TEAMS

    def __init__(
        self, policy: Any, env: Any, *, double_dqn: bool = True, td_lambda: float = 1.0, **settings: Any
    ) -> None:
        self.double_dqn, self.td_lambda = double_dqn, td_lambda
        super().__init__(policy, env, **settings)

    # --- Acting ------------------------------------------------------------------------------------------------------

    @override
    def acting_kernels(self) -> Any:
        return None if super().acting_kernels() is None else self

    def explore(self, observations: Any, action_masks: BoolArray | None = None) -> Array:
        """See `FusedReplayUpdate.explore`; each row by a chance of its own."""
        return self._exploring(self.kernels().greedy(observations, action_masks), action_masks)

    def predict(
        self,
        observation: Any,
        state: tuple[Array, ...] | None = None,
        episode_start: Array | None = None,
        deterministic: bool = False,
        action_masks: Any = None,
    ) -> tuple[Array, tuple[Array, ...] | None]:
        """See `MaskedQLearning.predict`; each observation of a batch may have a random action of its own."""
        best, state = super().predict(observation, state, episode_start, True, action_masks)
        if deterministic:
            return best, state
        masks = None if action_masks is None else np.asarray(action_masks, dtype=np.bool_).reshape(best.size, -1)
        return self._exploring(best.reshape(-1), masks).reshape(best.shape), state

    def _exploring(self, best: Array, masks: BoolArray | None) -> Array:
        """Replace some of the best actions, (rows,), by random ones, as often as `exploration_rate` says."""
        actions, space = best.copy(), self.action_space
        for row in np.flatnonzero(np.random.rand(len(best)) < self.exploration_rate):  # noqa: NPY002 - as in SB3
            actions[row] = space.sample(None if masks is None else masks[row].astype(np.int8))
        return actions

    # --- Learning ----------------------------------------------------------------------------------------------------

    def make_mixing(self, state_size: int) -> None:
        """Make what mixes the values of the agents, if there is something and none is there; see `QMIX.make_mixing`."""

    def whole(self, values: th.Tensor, there: th.Tensor, observations: Any, states: th.Tensor, *, target: bool) -> Any:
        """Return the (B,) values of teams.

        Args:
            values: (B, N) of their agents' actions; 0 for those that are not there.
            there: (B, N) float32; 1 for agents that are there.
            observations: (B * N, ...).
            states: (B, d) of the env.
            target: whether by the target network.
        """
        raise NotImplementedError

    @override
    def train(self, gradient_steps: int, batch_size: int = 64) -> None:
        self.train_by_loss(gradient_steps, batch_size)

    @override
    def losses(self, samples: TeamBatch) -> tuple[th.Tensor, th.Tensor]:
        targets = self.targets(samples)
        values = self.q_net(samples.observations).reshape(*samples.actions.shape, -1)
        present = samples.present[:, 0]
        taken = values.gather(2, samples.actions[..., None]).squeeze(2) * present
        errors = self.whole(taken, present, samples.observations, samples.states, target=False) - targets
        return errors**2, errors.abs()

    def targets(self, batch: TeamBatch) -> th.Tensor:
        """Return what the values of teams are to be, (B,): their reward, and what follows it.

        What follows is the value of the agents that were not terminated; nothing follows if all were. An agent that was
        truncated counts with its final observation.
        """
        paid, numbers = self._paid(batch), range(batch.rewards.shape[1])
        with th.no_grad():
            following = self.q_net_target(batch.next_observations).reshape(*batch.goes_on.shape, -1)
            online = self.q_net(batch.next_observations).reshape(following.shape) if self.double_dqn else following
            best = online.masked_fill(~batch.next_masks, -th.inf).argmax(dim=2, keepdim=True)
            values = following.gather(2, best).squeeze(2) * batch.goes_on
            whole = self.whole(values, batch.goes_on, batch.next_observations, batch.next_states, target=True)
            after = (batch.goes_on.amax(dim=1) * whole).reshape(len(paid), -1).expand(-1, len(numbers))
            targets: th.Tensor = after[:, -1]
            for step in reversed(numbers):  # those after the last one of a return are filler, and forgotten there
                joined = (1 - self.td_lambda) * after[:, step] + self.td_lambda * targets
                targets = paid[:, step] + self.gamma * th.where(batch.last == step, after[:, step], joined)
        return targets

    def _paid(self, batch: TeamBatch) -> th.Tensor:
        paid = batch.rewards.sum(dim=2)
        if self.team_reward == "sum":
            return paid
        if self.team_reward == "mean":
            return paid / batch.rewards.shape[2]
        return paid / batch.present.sum(dim=2).clamp(min=1)  # all of them are equal


class VDN(TeamQLearning):
    """Value decomposition networks: the value of a team is the sum of its agents' (Sunehag et al. 2018)."""

    @override
    def whole(self, values: th.Tensor, there: th.Tensor, observations: Any, states: th.Tensor, *, target: bool) -> Any:
        return values.sum(dim=1)


# --- QMIX ------------------------------------------------------------------------------------------------------------


class MonotonicMixer(nn.Module):
    """Mixes the values of agents so that the whole never falls when one of them rises (Rashid et al. 2018, figure 2).

    Its weights are functions of a state, computed by hypernetworks; those that the values pass through are not
    negative.

    Args:
        inputs: numbers of the state.
        agents: number of agents, N.
        mixing_embed_dim: width of its hidden layer.
        hypernet_embed: width of the hidden layer of the hypernetworks of weights; 0: they have none.
    """

    def __init__(self, inputs: int, agents: int, mixing_embed_dim: int, hypernet_embed: int) -> None:
        super().__init__()

        def hypernet(outputs: int) -> nn.Module:
            if not hypernet_embed:
                return nn.Sequential(nn.Linear(inputs, outputs))
            hidden = nn.Linear(inputs, hypernet_embed)
            return nn.Sequential(hidden, nn.ReLU(), nn.Linear(hypernet_embed, outputs))

        self.first_weights, self.last_weights = hypernet(agents * mixing_embed_dim), hypernet(mixing_embed_dim)
        self.first_bias = nn.Linear(inputs, mixing_embed_dim)
        last_bias = nn.Linear(inputs, mixing_embed_dim), nn.ReLU(), nn.Linear(mixing_embed_dim, 1)
        self.last_bias = nn.Sequential(*last_bias)

    def forward(self, values: th.Tensor, states: th.Tensor) -> th.Tensor:
        """(B,) values of the whole, from (B, N) values of agents and (B, inputs) states."""
        first = self.first_weights(states).abs().reshape(len(values), values.shape[1], -1)
        hidden = nn.functional.elu((values[:, None] @ first).squeeze(1) + self.first_bias(states))
        last = self.last_weights(states).abs()
        whole: th.Tensor = (hidden * last).sum(dim=1) + self.last_bias(states).squeeze(1)
        return whole


class Mixing:
    """A mixer with its target network and optimizer, in the form in which `core.sb3` saves policies.

    Args:
        inputs: numbers of the state.
        by_state: whether that is the env's; if not, it is what the agents observe.
        make: makes a mixer for so many inputs.
        device: of the networks.
    """

    def __init__(self, inputs: int, by_state: bool, make: Callable[[int], nn.Module], device: th.device) -> None:
        self.inputs, self.by_state = inputs, by_state
        networks = nn.ModuleDict({"online": make(inputs), "target": make(inputs)}).to(device)
        networks["target"].load_state_dict(networks["online"].state_dict())
        networks["target"].requires_grad_(False)
        self.online, self.target = networks["online"], networks["target"]
        self.policy: Any = networks
        self.optimizer = networks.optimizer = th.optim.Adam(self.online.parameters(), foreach=False)  # type: ignore[assignment]


class QMIX(TeamQLearning):
    """QMIX: a network mixes the values of the agents, by weights that depend on the state (Rashid et al. 2018).

    The state is the env's where the setting `env_state` shows it; else it is what all agents of the team observe, zeros
    for those that are not there, and who is there.

    Args:
        policy: as in `stable_baselines3.DQN`; the same for `env` and `settings`, with those of `TeamQLearning`.
        mixing_embed_dim: see `MonotonicMixer`; the same for `hypernet_embed`.
    """

    mixes = True
    mixing: Mixing | None = None  # made when the first step of a training, or a checkpoint, tells its inputs

    def __init__(
        self, policy: Any, env: Any, *, mixing_embed_dim: int = 32, hypernet_embed: int = 64, **settings: Any
    ) -> None:
        self.mixing_embed_dim, self.hypernet_embed = mixing_embed_dim, hypernet_embed
        super().__init__(policy, env, **settings)

    @override
    def make_mixing(self, state_size: int) -> None:
        """Make the mixer, if there is none.

        Args:
            state_size: numbers of the env's state; 0: it has none.

        Raises:
            ConfigError: the mixer has learned from another state.
        """
        inputs, found = state_size or self._size_of_observations(), self.mixing
        if found is None:
            self.mixing = self.new_mixing(inputs, bool(state_size))
        elif (found.inputs, found.by_state) != (inputs, bool(state_size)):
            kinds = {True: "an env's state", False: "observations"}
            words = f"QMIX has learned from {kinds[found.by_state]} of {found.inputs} numbers, and the envs now show"
            words += f" {kinds[bool(state_size)]} of {inputs}"
            raise ConfigError(f"{words}; accepted: the same agents, spaces, state and env_state", key="env_state")

    def new_mixing(self, inputs: int, by_state: bool) -> Mixing:
        """Return a mixer for so many inputs."""
        buffer: Any = self.replay_buffer
        settings = buffer.team_size, self.mixing_embed_dim, self.hypernet_embed

        with th.random.fork_rng(devices=[]):  # the draws of the policies stay as they are
            th.default_generator.manual_seed(self.seed or 0)  # `th.manual_seed` would seed those of GPUs, too
            return Mixing(inputs, by_state, lambda size: MonotonicMixer(size, *settings), self.device)

    def _size_of_observations(self) -> int:
        buffer: Any = self.replay_buffer
        space = self.observation_space
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else [space]
        numbers = sum(int(get_flattened_obs_dim(part)) for part in parts if part is not None)
        return int(buffer.team_size * (numbers + 1))

    @override
    def whole(self, values: th.Tensor, there: th.Tensor, observations: Any, states: th.Tensor, *, target: bool) -> Any:
        mixing = self._mixing()
        seen = states if mixing.by_state else self._seen_by_all(observations, there)
        return (mixing.target if target else mixing.online)(values, seen)

    def _seen_by_all(self, observations: Any, there: th.Tensor) -> th.Tensor:
        """(B, inputs) what the agents of a team observe, zeros for those that are not there; and who is there."""
        prepared: Any = preprocess_obs(observations, self.observation_space, self.policy.normalize_images)
        parts = prepared.values() if isinstance(prepared, dict) else [prepared]
        flat = th.cat([part.reshape(there.numel(), -1) for part in parts], dim=1)
        return th.cat([(flat * there.reshape(-1, 1)).reshape(len(there), -1), there], dim=1)

    @override
    def trained_parts(self) -> list[tuple[th.optim.Optimizer, nn.Module]]:
        mixing = self._mixing()
        return [*super().trained_parts(), (mixing.optimizer, mixing.online)]

    def _mixing(self) -> Mixing:
        if self.mixing is None:  # files of SB3's kind hold the agents' networks alone
            words = (
                "QMIX has no mixer before its training begins, and none from a zip file; accepted: marl_sb3.train, or a"
            )
            raise ConfigError(f"{words} MultiAgentAlgorithm of the env, also with this file as init_from")
        return self.mixing

    def _on_step(self) -> None:
        super()._on_step()
        if self.mixing is not None and self._n_calls % max(self.target_update_interval // self.n_envs, 1) == 0:
            polyak_update(self.mixing.online.parameters(), self.mixing.target.parameters(), self.tau)

    def mixing_part(self, buffer: Any) -> MixingPart:
        """Return the mixer as a part of checkpoints.

        Args:
            buffer: the replay buffer.
        """
        return MixingPart(self, buffer)

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "mixing"]


class MixingPart:
    """The mixer of a QMIX in checkpoints; it is no part of the policy, which acts without it.

    Args:
        algorithm: whose mixer it is.
        buffer: its replay buffer, which holds the states that the mixer sees.
    """

    def __init__(self, algorithm: QMIX, buffer: Any) -> None:
        self._algorithm, self._buffer = algorithm, buffer

    def get_state(self) -> State:
        """See `Part.get_state`."""
        mixing: Any = self._algorithm.mixing
        if mixing is None:
            seed = {"seed": self._algorithm.seed or 0}  # of the one that will be made
            return {"by_state": False, "weights": {}, "moments": {}, "settings": seed}
        return {
            "by_state": mixing.by_state,
            "weights": weights(mixing),
            "moments": optimizer_arrays(mixing),
            "settings": optimizer_settings(mixing),
        }

    def read_state(self, saved: StateReader) -> Callable[[], None]:
        """See `Part.read_state`."""
        saved.require_names(["by_state", "weights", "moments", "settings"])
        by_state, of_weights = saved.boolean("by_state"), saved.fields("weights")
        if not of_weights.values():
            settings = saved.fields("settings")  # older files have no seed
            seed = settings.integer("seed") if "seed" in settings else self._algorithm.seed
            return lambda: vars(self._algorithm).update(mixing=None, seed=seed)
        inputs = of_weights.array(_FIRST, np.float32, (self._algorithm.mixing_embed_dim, None)).shape[1]
        if not inputs:
            raise of_weights.error(_FIRST, 0, "at least one input")
        mixing: Any = self._algorithm.new_mixing(inputs, by_state)
        read = saved.like("weights", weights(mixing))
        setters = [read_weights(mixing, TensorFile(f"{saved.where}/weights", read))]
        forms = {name: np.zeros(form.shape or (), form.dtype) for name, form in optimizer_forms(mixing).items()}
        moments = saved.like("moments", forms) if saved.fields("moments").values() else {}
        file = TensorFile(f"{saved.where}/moments", moments)
        setters.append(read_optimizers(mixing, file, saved.fields("settings")))
        if by_state:
            self._buffer.hold_states(inputs)  # for the replay buffer, which is read next
        return in_order([*setters, lambda: setattr(self._algorithm, "mixing", mixing)])


_FIRST = "policy.online.first_bias.weight"  # a layer that sees all inputs

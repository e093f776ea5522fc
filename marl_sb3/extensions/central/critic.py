"""A central critic for policies with rollouts: MAPPO (Yu et al. 2022), where the policy's algorithm is PPO.

Its values take the place of the policy's own in the rollout: advantages and returns follow from them, and the update of
the policy stays that of its algorithm, by the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from typing_extensions import override

from marl_sb3.core.acting import Decision, Policy, PolicyInputs
from marl_sb3.core.learners import LearnerOptions, PolicySpec
from marl_sb3.core.sb3 import States, progress_remaining
from marl_sb3.core.state import SavedPart, State, StateReader, generator_state, set_generator_state
from marl_sb3.core.training import MultiAgentAlgorithm
from marl_sb3.core.vec_env import MultiAgentVecEnv, VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.central.inputs import CentralInputs
from marl_sb3.extensions.central.part import MOST_INPUTS, SAVED_NET, CentralPart, read_net, saved_net
from marl_sb3.types import Array, BoolArray, FloatArray


class Units(nn.Module):
    """Running mean and standard deviation of numbers, those of long ago counting less.

    Args:
        shape: of the numbers.
    """

    mean: th.Tensor  # what is added up of the numbers
    square: th.Tensor  # and of their squares
    weight: th.Tensor  # and of ones

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        for name in ("mean", "square", "weight"):
            self.register_buffer(name, th.zeros(() if name == "weight" else shape, dtype=th.float64))

    def take_in(self, numbers: Array) -> None:
        """Count numbers, (n, *shape)."""
        now = numbers.astype(np.float64)
        of_now = now.mean(axis=0), np.square(now).mean(axis=0), 1.0
        for own, each in zip((self.mean, self.square, self.weight), of_now, strict=True):
            own.mul_(_MEMORY).add_(th.as_tensor((1 - _MEMORY) * each))

    def of_numbers(self) -> tuple[th.Tensor, th.Tensor]:
        """Return mean and standard deviation, float32; 0 and 1 before the first numbers."""
        if not self.weight:
            return th.zeros_like(self.mean).float(), th.ones_like(self.mean).float()
        mean = self.mean / self.weight
        return mean.float(), (self.square / self.weight - mean.square()).clamp(min=1e-4).sqrt().float()

    def forward(self, numbers: th.Tensor) -> th.Tensor:
        """(n, *shape) numbers in these units, at most 10 from 0."""
        mean, std = self.of_numbers()
        return ((numbers - mean) / std).clamp(-10, 10)


class PopArt(nn.Module):
    """A last layer that keeps its outputs when the units change in which it learns them (van Hasselt et al. 2016).

    Args:
        inputs: width of the layer before.
        normalizes: whether the units change; if not, they are those of the returns.
    """

    def __init__(self, inputs: int, normalizes: bool) -> None:
        super().__init__()
        self.layer, self.units, self.normalizes = nn.Linear(inputs, 1), Units(), normalizes

    def take_in(self, returns: Array) -> None:
        """Change the units by new returns, (n,), and the layer so that it returns the same values."""
        if not self.normalizes:
            return
        (mean, std), is_first = self.units.of_numbers(), not self.units.weight
        self.units.take_in(returns)
        new_mean, new_std = self.units.of_numbers()
        if not is_first:
            with th.no_grad():
                self.layer.bias.mul_(std).add_(mean - new_mean).div_(new_std)
                self.layer.weight.mul_(std / new_std)

    def forward(self, features: th.Tensor) -> th.Tensor:
        """(n,) values in the present units."""
        values: th.Tensor = self.layer(features).squeeze(-1)
        return values


_MEMORY = 0.95  # share of what was added up that stays with each update


class CentralCritic(CentralPart):
    """Estimates the values of a policy's rollouts from what its envs show altogether; see `CentralSettings`."""

    metrics = MappingProxyType({"central_vf_loss": "train/central_value_loss"})

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        super().__init__(learner, spec, seed, options)
        self._rng = np.random.default_rng(seed)
        self._recorded: Mapping[str, float] = {}  # of the latest update
        self._env: MultiAgentVecEnv | None = None
        self._net: nn.Sequential | None = None
        learner.actor.policy = CentralValues(learner.actor.policy, self)
        buffer = learner.buffer
        self._more_columns = buffer.more_columns
        buffer.of_transition = (*buffer.of_transition, "central")
        buffer.more_columns = self._columns
        self._make_room(0)

    @override
    def see(self, algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
        self._env, self._inputs = algorithm.env, CentralInputs(algorithm.env, self._learner.rows)
        self._seen: tuple[VecStep, FloatArray] | None = None  # the latest step, and what the critic sees after it

    def _make_room(self, inputs: int) -> None:
        """Let the rollout buffer keep so many inputs of each transition."""
        buffer = self._learner.buffer
        buffer.central = np.zeros((buffer.buffer_size, buffer.n_envs, inputs), np.float32)

    # --- Values ------------------------------------------------------------------------------------------------------

    def values(self, inputs: FloatArray) -> FloatArray:
        """Return the (n,) values of (n, inputs)."""
        net = self._made(inputs.shape[1])
        mean, std = self._last.units.of_numbers()
        with th.no_grad():
            values: FloatArray = (net(th.from_numpy(inputs)) * std + mean).numpy()
        return values

    def seen(self) -> FloatArray:
        """Return what the critic sees now, (rows, inputs)."""
        if self._env is None:
            raise ConfigError("central_critic: the policy acts outside of a training", key="central_critic")
        step = self._env.latest
        if self._seen is None or self._seen[0] is not step:  # it is asked twice in each step
            self._seen = step, self._inputs.of_rows(step)
        return self._seen[1]

    def of_acting(self, count: int) -> FloatArray:
        """Return what the critic sees for those rows that act next, of which there are so many."""
        rows, seen = self._learner.rows, self.seen()
        if count == len(seen):
            return seen
        assert self._env is not None
        return self._chosen(seen, rows.of_agents(self._env.latest.to_act), count)

    def of_truncated(self, count: int) -> FloatArray:
        """Return what the critic sees at the end of the agents that were truncated, of which there are so many."""
        assert self._env is not None
        step, rows = self._env.latest, self._learner.rows
        ended = rows.of_agents(step.in_play & step.truncated & ~step.terminated)
        return self._chosen(self._inputs.of_final(step, ended), np.ones(int(ended.sum()), np.bool_), count)

    def _chosen(self, seen: FloatArray, rows: BoolArray, count: int) -> FloatArray:
        if int(rows.sum()) != count:
            words = f"policy {self._learner.policy_id!r}: central_critic, and other policies play its agents in turn"
            raise ConfigError(f"{words}; accepted: a mapping that does not vary", key="central_critic")
        return seen[rows]

    def _columns(self, inputs: PolicyInputs) -> Mapping[str, Array]:
        """Return what the rollout buffer keeps of each transition besides; see `TurnAwareRollout.more_columns`."""
        more = {} if self._more_columns is None else self._more_columns(inputs)
        seen = self.seen()
        if self._learner.buffer.central.shape[2] != seen.shape[1]:
            self._make_room(seen.shape[1])
        return {**more, "central": seen}

    # --- Learning ----------------------------------------------------------------------------------------------------

    def _made(self, inputs: int) -> nn.Sequential:
        """Return the network, which is made when it first sees an input."""
        if self._net is None:
            self._net, self._optimizer = self._network(inputs)
        if self._inputs_of_net != inputs:
            words = f"central_critic: it has learned from {self._inputs_of_net} numbers, the envs show {inputs}"
            raise ConfigError(f"{words}; accepted: envs with the same agents, spaces and state", key="central_critic")
        return self._net

    @property
    def _first(self) -> Any:
        """The units of the inputs."""
        assert self._net is not None
        return self._net[0]

    @property
    def _last(self) -> Any:
        """The layer that gives the values."""
        assert self._net is not None
        return self._net[-1]

    @property
    def _inputs_of_net(self) -> int:
        return len(self._first.mean)

    def _network(self, inputs: int) -> tuple[nn.Sequential, th.optim.Adam]:
        widths, popart = [inputs, *self._settings.central_critic_net], self._settings.central_critic_popart
        made = self.seeded(lambda: nn.Sequential(Units((inputs,)), *self.layers(widths), PopArt(widths[-1], popart)))
        return made, th.optim.Adam(made.parameters(), eps=1e-5, foreach=False)

    @override
    def before_update(self) -> None:
        algorithm, buffer = self._learner.algorithm, self._learner.buffer
        if hasattr(algorithm, "vf_coef"):
            algorithm.vf_coef = 0.0  # the policy's own value network would only take part in the norm of the gradients
        inputs, returns = buffer.central[buffer.acted], buffer.returns[buffer.acted]
        net = self._made(inputs.shape[1])
        self._first.take_in(inputs)
        self._last.take_in(returns)
        mean, std = self._last.units.of_numbers()
        targets = (th.from_numpy(returns) - mean) / std
        rate = algorithm.lr_schedule(progress_remaining(algorithm))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        losses, size = list[float](), getattr(algorithm, "batch_size", None) or len(inputs)
        for _ in range(getattr(algorithm, "n_epochs", 1)):
            order = self._rng.permutation(len(inputs))
            for start in range(0, len(inputs), size):
                chosen = order[start : start + size]
                loss = nn.functional.huber_loss(net(th.from_numpy(inputs[chosen])), targets[chosen], delta=10.0)
                self._optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(net.parameters(), 10.0)
                self._optimizer.step()
                losses.append(loss.item())
        self._recorded = {"train/central_value_loss": float(np.mean(losses) * std.square())}

    @override
    def recorded(self) -> Mapping[str, float]:
        latest, self._recorded = self._recorded, {}  # an update without transitions has none
        return latest

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def get_state(self) -> State:
        random = {"random": generator_state(self._rng)}
        if self._net is None:
            return {"inputs": 0, "weights": {}, "moments": {}, "steps": 0, **random}
        return {"inputs": self._inputs_of_net, **saved_net(self._net, self._optimizer), **random}

    @override
    def read_state(self, saved: StateReader | SavedPart) -> Callable[[], None]:
        saved.require_names(["inputs", *SAVED_NET, "random"])
        inputs, rng = saved.integer("inputs", 0, MOST_INPUTS), np.random.default_rng(0)
        set_generator_state(rng, saved.fields("random"))
        if not inputs:
            return lambda: self._set(None, None, rng)
        saved.fields("weights").array("0.mean", np.float64, (inputs,))  # a file that is so large has so many inputs
        net, optimizer = self._network(inputs)
        self._make_room(inputs)  # for the rollout, which is read next
        read_net(saved, net, optimizer)
        return lambda: self._set(net, optimizer, rng)

    def _set(self, net: nn.Sequential | None, optimizer: th.optim.Adam | None, rng: np.random.Generator) -> None:
        self._net, self._rng = net, rng
        if optimizer is not None:
            self._optimizer = optimizer


class CentralValues(Policy):
    """Acts as another policy, but its values are those of a central critic.

    Args:
        replaced: chooses the actions.
        critic: estimates.
    """

    def __init__(self, replaced: Policy, critic: CentralCritic) -> None:
        super().__init__(replaced.algorithm)
        self._replaced, self._critic = replaced, critic
        for name in ("takes_masks", "needs_masks", "transposes_images", "row_noise"):
            setattr(self, name, getattr(replaced, name))

    @override
    def refresh(self) -> None:
        self._replaced.refresh()

    @override
    def initial_states(self, rows: int) -> States:
        return self._replaced.initial_states(rows)

    @override
    def learned(self, actions: Array) -> Array:
        return self._replaced.learned(actions)

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        decision = self._replaced.act(inputs)
        return decision._replace(values=self._critic.values(self._critic.of_acting(len(inputs.starts))))

    @override
    def values(self, inputs: PolicyInputs) -> FloatArray:
        return self._critic.values(self._critic.of_acting(len(inputs.starts)))

    @override
    def final_values(self, inputs: PolicyInputs) -> FloatArray:
        return self._critic.values(self._critic.of_truncated(len(inputs.starts)))

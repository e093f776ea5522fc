"""Run an SB3 `ActorCriticPolicy` on the fused kernels: parameters to arrays and back, and acting.

The torch modules hold the authoritative parameters. They and the optimizer's state are copied into the kernel's layout
before an update and back after it: a copy of some 10,000 numbers costs less than one minibatch in PyTorch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from torch import nn

from marl_sb3.errors import EnvError
from marl_sb3.learners.coverage import ACTIVATIONS
from marl_sb3.learners.optimizer_kinds import OPTIMIZERS, OptimizerKind
from marl_sb3.types import Array, BoolArray, FloatArray


@dataclass(frozen=True)
class Inputs:
    """Observations in the kernels' form: one of the two arrays is used, the other one has no columns.

    Attributes:
        indices: (rows, ones) int64; the positions of the ones of one-hot inputs.
        floats: (rows, inputs) float32.
    """

    indices: Array
    floats: FloatArray


class FusedPolicy:
    """An `ActorCriticPolicy` in the kernels' layout.

    Args:
        policy: a policy that the kernels cover, see `coverage`; a new object is made when its layers are replaced.
    """

    def __init__(self, policy: ActorCriticPolicy) -> None:
        self._kernel = _compiled_kernel()
        self.policy = policy
        self._space = policy.observation_space
        self.one_hot = isinstance(self._space, (spaces.Discrete, spaces.MultiDiscrete))
        self._one_hot_sizes = _category_sizes(self._space)
        self._one_hot_starts = np.cumsum(self._one_hot_sizes) - self._one_hot_sizes  # where each block begins
        self.activation = ACTIVATIONS.index(policy.activation_fn)
        self.is_gaussian = isinstance(policy.action_space, spaces.Box)
        self.sizes = _category_sizes(policy.action_space)
        self._linears: list[tuple[nn.Linear, int]] = []  # each with its offset in `theta`
        self._size = 0
        self.pi_table = self._table(policy.mlp_extractor.policy_net, policy.action_net)
        self.vf_table = self._table(policy.mlp_extractor.value_net, policy.value_net)
        self.log_std_offset = self._size
        self._log_std: nn.Parameter | None = policy.log_std if self.is_gaussian else None
        if self._log_std is not None:
            self._size += self._log_std.numel()
        self.theta: FloatArray = np.empty(self._size, dtype=np.float32)
        self.nets = self._kernel.Nets(
            self.pi_table,
            self.vf_table,
            self.log_std_offset,
            self.sizes,
            self.is_gaussian,
            self.activation,
            self.one_hot,
        )
        self._work_rows: dict[str, int] = {}
        self._work: dict[str, tuple[Array, FloatArray]] = {}
        self.read_parameters()

    def _table(self, hidden: nn.Module, last: nn.Module) -> Array:
        rows = []
        for linear in [*hidden.modules(), last]:
            if isinstance(linear, nn.Linear):
                weights = linear.in_features * linear.out_features
                rows.append((linear.in_features, linear.out_features, self._size, self._size + weights))
                self._linears.append((linear, self._size))
                self._size += weights + linear.out_features
        return np.array(rows, dtype=np.int64)

    def _parameters(self) -> list[tuple[nn.Parameter, int, bool]]:
        """Return each parameter with its offset in `theta`, and whether the kernels hold it transposed."""
        listed: list[tuple[nn.Parameter, int, bool]] = []
        for linear, offset in self._linears:
            listed.append((linear.weight, offset, True))  # type: ignore[arg-type]
            listed.append((linear.bias, offset + linear.weight.numel(), False))
        if self._log_std is not None:
            listed.append((self._log_std, self.log_std_offset, False))
        return listed

    # --- Parameters --------------------------------------------------------------------------------------------------

    def read_parameters(self) -> None:
        """Copy the policy's parameters into `theta`."""
        for parameter, offset, transposed in self._parameters():
            _read(parameter.detach(), self.theta, offset, transposed)

    def write_parameters(self) -> None:
        """Copy `theta` into the policy's parameters."""
        for parameter, offset, transposed in self._parameters():
            _write(parameter.detach(), self.theta, offset, transposed)

    @property
    def optimizer_kind(self) -> OptimizerKind:
        """What the kernels need to know of the policy's optimizer."""
        return OPTIMIZERS[type(self.policy.optimizer)]

    def has_even_steps(self) -> bool:
        """Whether the optimizer has taken the same number of steps with all parameters, as the kernels do."""
        states = [self.policy.optimizer.state.get(parameter) for parameter, _, _ in self._parameters()]
        return len({int(state["step"]) if state else 0 for state in states}) == 1

    def read_moments(self) -> tuple[FloatArray, FloatArray, int]:
        """Return the optimizer's first and second moments in the layout of `theta`, and the number of its steps."""
        kind = self.optimizer_kind
        m, v = np.zeros_like(self.theta), np.full_like(self.theta, kind.initial)
        named = tuple(zip(reversed(kind.moments), (v, m), strict=False))
        steps = 0
        for parameter, offset, transposed in self._parameters():
            state = self.policy.optimizer.state.get(parameter)
            if state:
                for name, moments in named:
                    _read(state[name], moments, offset, transposed)
                steps = int(state["step"])
        return m, v, steps

    def write_moments(self, m: FloatArray, v: FloatArray, steps: int) -> None:
        """Copy the moments into PyTorch's optimizer."""
        kind = self.optimizer_kind
        named = tuple(zip(reversed(kind.moments), (v, m), strict=False))
        for parameter, offset, transposed in self._parameters():
            state = self.policy.optimizer.state[parameter]
            if not state:
                state["step"] = th.tensor(0.0) if kind.steps_in_tensor else 0
                for name in kind.moments:
                    state[name] = th.zeros_like(parameter, memory_format=th.preserve_format)
            if kind.steps_in_tensor:
                state["step"].fill_(steps)
            else:
                state["step"] = steps
            for name, moments in named:
                _write(state[name], moments, offset, transposed)

    # --- Acting ------------------------------------------------------------------------------------------------------

    def inputs(self, observations: Array) -> Inputs:
        """Return observations, (rows, *observation shape), in the kernels' form.

        Raises:
            EnvError: a number of a Discrete or MultiDiscrete observation is out of range.
        """
        rows = len(observations)
        if self.one_hot:
            numbers = observations.reshape(rows, -1).astype(np.int64, copy=False)
            require_in_range(numbers, self._one_hot_sizes, "observation", self._space)
            return Inputs(numbers + self._one_hot_starts, np.empty((rows, 0), dtype=np.float32))
        floats = np.ascontiguousarray(observations.reshape(rows, -1), dtype=np.float32)
        return Inputs(np.empty((rows, 0), dtype=np.int64), floats)

    def act(self, observations: Array, action_masks: BoolArray | None = None) -> tuple[Array, FloatArray, FloatArray]:
        """Sample actions as the policy's `forward` does, from the same stream of random numbers.

        Args:
            observations: (rows, *observation shape).
            action_masks: (rows, sum of the numbers of values) True where an action is allowed; None: all are.

        Returns:
            Actions (rows, *action shape), values (rows,), log-probabilities (rows,).
        """
        inputs, rows = self.inputs(observations), len(observations)
        outputs, values = self._both_nets(inputs, rows)
        actions, log_probs = self._sample(outputs, action_masks)
        return actions, values.reshape(-1).copy(), log_probs

    def _sample(self, outputs: FloatArray, action_masks: BoolArray | None) -> tuple[Array, FloatArray]:
        """Return actions, (rows, *action shape), and their log-probabilities from the actor's outputs."""
        rows, space = len(outputs), self.policy.action_space
        if self.is_gaussian:
            noise = th.normal(th.zeros(rows, outputs.shape[1]), th.ones(rows, outputs.shape[1])).numpy()
            log_std = self.theta[self.log_std_offset :]
            std = np.exp(log_std)
            actions = outputs + std * noise
            # From the rounded actions, as in PyTorch and in the update: added to a mean of 1e4, noise loses digits.
            scaled = (actions - outputs) / std
            log_probs = -0.5 * (scaled * scaled).sum(axis=1) - (log_std + np.float32(0.5 * np.log(2 * np.pi))).sum()
        else:
            # torch.multinomial draws one sample like this: the index of the largest p / e, with exponential e.
            drawn = [th.empty(rows, int(size)).exponential_().numpy() for size in self.sizes]
            noise = drawn[0] if len(drawn) == 1 else np.concatenate(drawn, axis=1)
            masks = np.empty((rows, 0), np.float32) if action_masks is None else action_masks.astype(np.float32)
            actions, log_probs = self._kernel.sample(outputs, masks, self.sizes, noise)
        return actions.reshape(rows, *(space.shape or ())), log_probs

    def values(self, observations: Array) -> FloatArray:
        """(rows,) values of observations."""
        inputs, rows = self.inputs(observations), len(observations)
        offsets, work = self._workspace("vf", rows)
        outputs: FloatArray = self._kernel.forward(
            self.theta, self.vf_table, offsets, work, inputs.indices, inputs.floats, self.one_hot, rows, self.activation
        )
        return outputs.reshape(-1).copy()

    def final_values(self, observations: Array) -> FloatArray:
        """(rows,) values of the observations that agents were truncated on."""
        return self.values(observations)

    def _both_nets(self, inputs: Inputs, rows: int) -> tuple[FloatArray, FloatArray]:
        """Return the outputs of actor and critic: views of their workspaces, which the next call overwrites."""
        pi, vf = (self.pi_table, *self._workspace("pi", rows)), (self.vf_table, *self._workspace("vf", rows))
        outputs: tuple[FloatArray, FloatArray] = self._kernel.forward_both(
            self.theta, *pi, *vf, inputs.indices, inputs.floats, self.one_hot, rows, self.activation
        )
        return outputs

    def _workspace(self, key: str, rows: int) -> tuple[Array, FloatArray]:
        """Return the workspace of a net, and its layers' offsets, for at least `rows` rows."""
        if self._work_rows.get(key, 0) < rows:
            self._work_rows[key] = rows
            offsets, size = self._kernel.workspace(self.pi_table if key == "pi" else self.vf_table, rows)
            self._work[key] = offsets, np.empty(size, np.float32)
        return self._work[key]


@lru_cache(maxsize=1)
def _compiled_kernel() -> ModuleType:
    """Return the module of the kernels, compiled or loaded from the cache of an earlier process."""
    from marl_sb3.kernels import ppo as kernel
    from marl_sb3.kernels.cache import note_compiling

    note_compiling(kernel.train)
    kernel.warm_up()
    return kernel


def require_in_range(numbers: Array, sizes: Array, what: str, space: spaces.Space[Any]) -> None:
    """Refuse numbers that would be indices out of range: the kernels do not check, for speed.

    Args:
        numbers: (rows, parts) int64.
        sizes: (parts,) number of values of each part.
        what: name of the quantity, for the message.
        space: the space that it belongs to.

    Raises:
        EnvError: a number is negative or not below its size.
    """
    wrong = numbers.view(np.uint64) >= sizes.view(np.uint64)  # as unsigned integers, negative numbers are huge
    if wrong.any():
        row = int(np.argwhere(wrong)[0, 0])
        raise EnvError(f"{what} {numbers[row].tolist()} is not in {space} (row {row} of the batch)")


def _category_sizes(space: spaces.Space[Any]) -> Array:
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.astype(np.int64)
    return np.array([space.n] if isinstance(space, spaces.Discrete) else [], dtype=np.int64)


def _read(tensor: th.Tensor, flat: FloatArray, offset: int, transposed: bool) -> None:
    array = tensor.numpy()
    flat[offset : offset + array.size] = (array.T if transposed else array).reshape(-1)


def _write(tensor: th.Tensor, flat: FloatArray, offset: int, transposed: bool) -> None:
    array = tensor.numpy()
    values = flat[offset : offset + array.size]
    array[...] = values.reshape(array.T.shape).T if transposed else values.reshape(array.shape)

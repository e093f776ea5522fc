"""Run SB3's actor-critic policies on the kernels: acting, and whole updates. Import this only where kernels are used.

The kernels work in the memory of PyTorch's modules and optimizers, see `kernels.layers`. Only the weights that one-hot
inputs are multiplied with are copied, before a rollout or an update and after an update.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.utils import explained_variance

from marl_sb3.compiling import await_compiled, note_compiling
from marl_sb3.core.acting.policy import PolicyInputs
from marl_sb3.core.on_policy.rollout import flat_samples, minibatch_starts
from marl_sb3.core.sb3.inference import States
from marl_sb3.core.sb3.private import progress_remaining
from marl_sb3.core.sb3.traits import trait
from marl_sb3.errors import EnvError
from marl_sb3.extensions.fast.coverage import ACTIVATIONS, shared_layers
from marl_sb3.extensions.fast.kernel_tables import OptimizerTable, TransposedCopies, layer_table, linears, parameters_of
from marl_sb3.extensions.fast.kernels import acting as acting_kernel
from marl_sb3.extensions.fast.kernels import ppo as kernel
from marl_sb3.extensions.fast.kernels.distributions import sample, sample_gaussian
from marl_sb3.extensions.fast.kernels.layers import LINEAR
from marl_sb3.extensions.fast.kernels.mlp import Inputs, Net
from marl_sb3.extensions.fast.kernels.optimizers import Optimizer
from marl_sb3.extensions.fast.update_path import CHUNK_ROWS, MOST_CHUNKS, in_threads
from marl_sb3.types import Array, BoolArray, FloatArray

# --- Acting ----------------------------------------------------------------------------------------------------------


class FusedPolicy:
    """An `ActorCriticPolicy` that acts by the kernels.

    Attributes:
        runs_in_rollouts: whether compiled rollouts may run its nets.

    Args:
        policy: a policy that the kernels cover; a new object is made when its layers are replaced.
        weights_of_inputs: what observations are multiplied with; None: the weights of the first layers of its nets.
    """

    runs_in_rollouts = True

    def __init__(self, policy: ActorCriticPolicy, weights_of_inputs: Sequence[Any] | None = None) -> None:
        self.policy = policy
        self._space = policy.observation_space
        self.category_sizes = _category_sizes(self._space)  # (n,) of what it observes; empty for a Box
        self.category_starts = np.cumsum(self.category_sizes) - self.category_sizes  # where each block begins
        self.is_gaussian = isinstance(policy.action_space, spaces.Box)
        # (sub-distributions,) the number of values of each part of an action; empty for a Gaussian
        self.sizes = _category_sizes(policy.action_space)
        extractor, shared = policy.mlp_extractor, shared_layers(policy)
        self._layers: list[list[Any]] = [
            [*linears(extractor.policy_net), policy.action_net],
            [*linears(extractor.value_net), policy.value_net],
        ]
        common = linears(shared)
        log_std = [policy.log_std] if self.is_gaussian else []
        # its parameters, in the order of the kernels
        self.parameters: list[th.Tensor] = [*parameters_of(chain(*self._layers, common)), *log_std]
        first = weights_of_inputs or [layers[0].weight for layers in ([common] if common else self._layers)]
        self.copies = TransposedCopies(first if len(self.category_sizes) else [])
        activation = ACTIVATIONS.index(policy.activation_fn)
        tables = [layer_table(layers, self.copies.addresses()) for layers in self._layers]
        pi, vf = (Net(table, activation, LINEAR) for table in tables)
        of_trunk = ACTIVATIONS.index(type(shared[-1])) if common else LINEAR
        trunk = Net(layer_table(common, self.copies.addresses()), of_trunk, of_trunk)
        self._log_std: FloatArray | None = log_std[0].detach().numpy() if log_std else None
        address = log_std[0].data_ptr() if log_std else 0
        # its nets as the kernels take them
        self.nets = kernel.Nets(trunk, pi, vf, address, self.is_gaussian, self.sizes)
        self._work_sizes = [int(table[:, 1].sum()) for table in tables]
        self._work_rows = 0
        self._of_rollout: tuple[FloatArray, Sequence[Callable[[], Any]]] | None = None  # see `draws`
        self._action_shape = policy.action_space.shape or ()

    def read_parameters(self) -> None:
        """Copy the weights of one-hot observations again; the kernels read all others in PyTorch's memory."""
        self.copies.read()

    def inputs(self, observations: Any) -> Inputs:
        """Return observations, (rows, *observation shape), as the kernels take them.

        Raises:
            EnvError: a number of a Discrete or MultiDiscrete observation is out of range.
        """
        rows = len(observations)
        if len(self.category_sizes):
            numbers = observations.reshape(rows, -1)
            indices = np.array(numbers, np.int64, order="C")
            wrong = acting_kernel.one_hot(indices, self.category_sizes)
            if wrong >= 0:
                raise _out_of_range(numbers, wrong, "observation", self._space)
            return Inputs(indices, np.empty((rows, 0), np.float32))
        floats = np.ascontiguousarray(observations.reshape(rows, -1), dtype=np.float32)
        return Inputs(np.empty((rows, 0), dtype=np.int64), floats)

    def _inputs_of_nets(self, observations: Any) -> Inputs:
        """Return what actor and critic see: observations, or what the layers that they have in common make of them."""
        trunk, seen = self.nets.trunk, self.inputs(observations)
        if not len(trunk.table):
            return seen
        rows = len(seen.floats)
        work = np.empty(rows * int(trunk.table[:, 1].sum()), np.float32)
        features = acting_kernel.outputs_of(*trunk, *seen, work)
        return Inputs(np.empty((rows, 0), dtype=np.int64), features)

    def act(self, inputs: PolicyInputs) -> tuple[Array, FloatArray, FloatArray, States]:
        """Sample actions as the policy's `forward` does, from the same stream of random numbers.

        Returns:
            Actions (rows, *action shape), values (rows,), log-probabilities (rows,), and the states after the step.
        """
        pi, vf, rows = self.nets.pi, self.nets.vf, len(inputs.starts)
        work, seen = self._work(rows), self._inputs_of_nets(inputs.observations)
        if self.is_gaussian:
            outputs, values = acting_kernel.outputs_of_both(pi.table, vf.table, pi.hidden, *seen, *work)
            return *self._sample(outputs, values, inputs.masks), ()
        drawn = _allowed(inputs.masks, rows), self.sizes, self._noise(rows)
        actions, values, log_probs = acting_kernel.draw(pi.table, vf.table, pi.hidden, *seen, *work, *drawn)
        return actions.reshape(rows, *self._action_shape), values, log_probs, ()

    def values(self, inputs: PolicyInputs) -> FloatArray:
        """(rows,) values."""
        vf, work = self.nets.vf, self._work(len(inputs.starts))[1]
        seen = self._inputs_of_nets(inputs.observations)
        return acting_kernel.outputs_of(*vf, *seen, work).reshape(-1).copy()

    def _work(self, rows: int) -> tuple[FloatArray, FloatArray]:
        """Return memory for the activations of actor and critic, which the next call overwrites."""
        if self._work_rows < rows:
            self._work_rows = rows
            self._arrays = [np.empty(rows * size, np.float32) for size in self._work_sizes]
        of_actor, of_critic = self._arrays
        return of_actor, of_critic

    def _noise(self, rows: int) -> FloatArray:
        """Return the random numbers of a step, (rows, outputs of the actor); the next call overwrites them."""
        (noise,), (draw,) = self.draws(1, rows)
        draw()
        return noise  # type: ignore[no-any-return]

    def draws(self, steps: int, rows: int) -> tuple[FloatArray, Sequence[Callable[[], Any]]]:
        """Return memory for (steps, rows, outputs of the actor) random numbers, and what draws those of each step.

        The next call with the same arguments returns the same memory.
        """
        shape = steps, rows, int(self.nets.pi.table[-1, 1])
        if self._of_rollout is None or self._of_rollout[0].shape != shape:
            noise = th.empty(shape)
            self._of_rollout = noise.numpy(), [self._draw_of(step) for step in noise]
        return self._of_rollout

    def _draw_of(self, noise: th.Tensor) -> Callable[[], Any]:
        """Return what fills (rows, outputs of the actor) with the numbers that the policy's `forward` would draw.

        torch.multinomial draws one sample as the index of the largest p / e, with exponential e for each part.
        """
        if self.is_gaussian:
            return noise.normal_
        if len(self.sizes) == 1:
            return noise.exponential_
        parts = th.split(noise, self.sizes.tolist(), dim=1)
        return lambda: [part.copy_(th.empty(part.shape).exponential_()) for part in parts]

    def _sample(
        self, outputs: FloatArray, values: FloatArray, action_masks: BoolArray | None
    ) -> tuple[Array, FloatArray, FloatArray]:
        """Return actions, (rows, *action shape), values and log-probabilities from the outputs of actor and critic."""
        rows = len(outputs)
        if self._log_std is not None:
            actions, log_probs = sample_gaussian(outputs, self._log_std, np.exp(self._log_std), self._noise(rows))
        else:
            actions, log_probs = sample(outputs, _allowed(action_masks, rows), self.sizes, self._noise(rows))
        return actions.reshape(rows, *self._action_shape), values.reshape(-1).copy(), log_probs


def _allowed(action_masks: BoolArray | None, rows: int) -> FloatArray:
    """Return action masks as the kernels take them: without columns, everything is allowed."""
    return np.empty((rows, 0), np.float32) if action_masks is None else action_masks.astype(np.float32)


def _out_of_range(numbers: Array, row: int, what: str, space: spaces.Space[Any]) -> EnvError:
    """Return the error for (rows, parts) integers of which a row is wrong: the nets do not check them, for speed."""
    return EnvError(f"{what} {numbers[row].tolist()} is not in {space} (row {row} of the batch)")


def _category_sizes(space: spaces.Space[Any]) -> Array:
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec.astype(np.int64)
    return np.array([space.n] if isinstance(space, spaces.Discrete) else [], dtype=np.int64)


# --- Updates ---------------------------------------------------------------------------------------------------------


class FusedRolloutUpdate:
    """An update of PPO, MaskablePPO or A2C by the kernels: prepare (here), run (in parallel with others), write back.

    Args:
        algorithm: the algorithm to update; its rollout buffer is full. One without `n_epochs`, `batch_size` or
            `clip_range` takes one step on the whole rollout, or has the policy gradient as its loss, as A2C.
        fused: its policy.
    """

    def __init__(self, algorithm: Any, fused: FusedPolicy) -> None:
        self._fused = fused
        self._rollout: Any = algorithm.rollout_buffer
        settings = self.settings = _settings(algorithm)
        self._samples = _rollout_samples(self._rollout, fused, clips_values=settings.clip_range_vf < np.inf)
        samples = len(self._samples.returns)
        self.n_epochs: int = getattr(algorithm, "n_epochs", 1)  # passes over the rollout; after `run`, that were begun
        self.samples_drawn = samples * self.n_epochs  # number of agent steps in all minibatches
        self.num_grad_updates = 0  # optimizer steps taken, after `run`
        # SB3 draws the order of an epoch at its start. Drawing all at once gives the same numbers, and what is drawn
        # after an update that ends early is drawn as after the epochs that it has begun.
        orders, self._random_states = [], []
        for _ in range(self.n_epochs):
            orders.append(self._draw_order(samples))
            if settings.kl_limit < np.inf:
                self._random_states.append(np.random.get_state())  # noqa: NPY002
        batch_size, least = getattr(algorithm, "batch_size", None), getattr(self._rollout, "least_minibatch", 1)
        bounds = np.append(minibatch_starts(samples, batch_size, least), samples)
        self._bounds, self._minibatches, self._done = bounds, len(bounds) - 1, 0
        self._stats = np.zeros((self.n_epochs * self._minibatches, kernel.NUM_STATS))
        self._optimizer = OptimizerTable(algorithm.policy.optimizer, fused.parameters)
        fused.read_parameters()
        moved = fused.copies.addresses()
        copied = [parameter for parameter in fused.parameters if parameter.data_ptr() in moved]
        self._moments = TransposedCopies([moment for each in copied for moment in self._optimizer.moments(each)])
        optimizer = self._optimizer.present({**moved, **self._moments.addresses()})
        self._train, flops, tasks = self._prepare(optimizer, np.stack(orders).astype(np.int64, copy=False), bounds)
        self._most_threads = tasks if flops * len(self._stats) > _WORTH_THREADS else 1

    def _draw_order(self, samples: int) -> Array:
        """Return the order of the samples in an epoch, as SB3 draws it."""
        return np.random.permutation(samples)  # noqa: NPY002

    def _prepare(
        self, optimizer: Optimizer, orders: Array, bounds: Array
    ) -> tuple[Callable[[Array, int, int], int], float, int]:
        """Return the kernel with all arguments but the last three, about how many flops a minibatch has, and its tasks.

        Args:
            orders: (epochs, N) int64; the order of samples in each epoch.
            bounds: (minibatches + 1,) int64; where in an epoch each minibatch begins, and N.
        """
        await_compiled(kernel.train)
        note_compiling(kernel.train, "the update: about 6 s of one core")
        nets, samples, rows = self._fused.nets, self._samples, int(np.diff(bounds).max())
        parameters, partition = sum(each.numel() for each in self._fused.parameters), _partition(nets, rows)
        chunks = partition.chunks, partition.least_rows
        memory = kernel.memory(nets, samples, parameters, len(self._stats), rows, *chunks)
        arguments = nets, optimizer, samples, memory, orders, bounds, self.settings
        return partial(kernel.train, *arguments), partition.flops, partition.tasks

    def run(self, threads: int = 1) -> None:
        """Compute the update, without holding the GIL.

        Args:
            threads: at most; their number changes no result. A small update takes one.
        """
        number = max(1, min(threads, self._most_threads))
        in_threads(self._run_in_thread, number)
        self.num_grad_updates = self._done
        if self.reached_kl is not None:
            epochs, rest = divmod(self._done - 1, self._minibatches)
            self.num_grad_updates -= 1
            self.samples_drawn = epochs * int(self._bounds[-1]) + int(self._bounds[rest + 1])
            self.n_epochs = epochs + 1

    def _run_in_thread(self, thread: int, threads: int) -> None:
        if thread:
            self._train(np.empty_like(self._stats), thread, threads)
        else:
            self._done = self._train(self._stats, thread, threads)

    def write_back(self) -> None:
        """Complete what `run` has changed in PyTorch's objects."""
        self._fused.copies.write()
        self._moments.write()
        self._optimizer.count_steps(self.num_grad_updates)
        if self.reached_kl is not None:
            np.random.set_state(self._random_states[self.n_epochs - 1])  # noqa: NPY002

    @property
    def reached_kl(self) -> float | None:
        """The approximate KL of the minibatch in which the update ended, because it was above its limit."""
        kl = float(self._stats[self._done - 1, kernel.APPROX_KL])
        return kl if self.is_finite and kl > self.settings.kl_limit else None

    @property
    def is_finite(self) -> bool:
        """Whether every loss and gradient is finite; if not, the update stopped before it applied the first bad one."""
        used = self._stats[: self._done]
        return bool(np.isfinite(used[:, [kernel.LOSS, kernel.GRAD_NORM]]).all())

    def means(self) -> dict[str, float]:
        """Return means of statistics over minibatches, named as in `PPO`; the KL is of the last epoch, as in SB3."""
        stats, steps = self._stats[: self._done], self._stats[: self.num_grad_updates]
        columns = {
            "policy_loss": kernel.POLICY_LOSS,
            "value_loss": kernel.VALUE_LOSS,
            "entropy_loss": kernel.ENTROPY_LOSS,
            "clip_fraction": kernel.CLIP_FRACTION,
            "vf_loss_unclipped": kernel.UNCLIPPED_VALUE_LOSS,
        }
        means = {name: float(stats[:, column].mean()) for name, column in columns.items()}
        if len(steps):
            means["gradients_global_norm"] = float(steps[:, kernel.GRAD_NORM].mean())
        last_epoch = (self._done - 1) // self._minibatches * self._minibatches
        means["approx_kl"] = float(stats[last_epoch:, kernel.APPROX_KL].mean())
        means["last_loss"] = float(stats[-1, kernel.LOSS])
        values = flat_samples(self._rollout, "values").reshape(-1)
        means["explained_variance"] = float(explained_variance(values, self._samples.returns))
        return means


class _Partition(NamedTuple):
    """How an update is divided into tasks: the same on all machines, because it decides how results are rounded."""

    chunks: int  # see `kernel.Memory`
    least_rows: int
    tasks: int  # that can run at the same time
    flops: float  # of the largest minibatch's products, about


_CHUNK_FLOPS = 1e6  # 10 microseconds
_WORTH_THREADS = 1e8  # floating-point operations, about a millisecond; threads start in a tenth of that


def _partition(nets: kernel.Nets, rows: int) -> _Partition:
    parts, tables = (1, nets[:3]) if len(nets.trunk.table) else (2, nets[1:3])
    # Each weight takes part in three products. The first layer may have one-hot inputs, which are not multiplied.
    flops = sum(6.0 * float((net.table[1:, 0] * net.table[1:, 1]).sum()) for net in tables)
    least_rows = max(CHUNK_ROWS // (3 - parts), math.ceil(_CHUNK_FLOPS * parts / max(flops, 1.0)))
    chunks = max(1, min(MOST_CHUNKS, rows // least_rows))
    return _Partition(chunks, least_rows, parts * chunks, flops * rows)


def _settings(algorithm: Any) -> kernel.Settings:
    clipped, clip_range_vf = hasattr(algorithm, "clip_range"), trait(algorithm, "clip_range_vf")
    target_kl = getattr(algorithm, "target_kl", None)
    return kernel.Settings(
        normalize_advantage=bool(algorithm.normalize_advantage),
        clipped=clipped,
        clip_range=float(algorithm.clip_range(progress_remaining(algorithm))) if clipped else 0.0,
        ent_coef=float(algorithm.ent_coef),
        vf_coef=float(algorithm.vf_coef),
        max_grad_norm=float(algorithm.max_grad_norm),
        clip_range_vf=float(clip_range_vf(progress_remaining(algorithm))) if clip_range_vf is not None else np.inf,
        kl_limit=1.5 * target_kl if target_kl is not None else np.inf,
    )


def _rollout_samples(rollout: Any, fused: FusedPolicy, clips_values: bool) -> kernel.Samples:
    actions = flat_samples(rollout, "actions")
    if not fused.is_gaussian:
        numbers = actions.astype(np.int64, copy=False)
        wrong = numbers.view(np.uint64) >= fused.sizes.view(np.uint64)
        if wrong.any():
            raise _out_of_range(numbers, int(np.argwhere(wrong)[0, 0]), "action", fused.policy.action_space)
    none = np.empty((len(actions), 0))
    masks = flat_samples(rollout, "action_masks") if hasattr(rollout, "action_masks") else none.astype(np.float32)
    return kernel.Samples(
        inputs=fused.inputs(flat_samples(rollout, "observations")),
        int_actions=(none if fused.is_gaussian else actions).astype(np.int64, copy=False),
        float_actions=(actions if fused.is_gaussian else none).astype(np.float32, copy=False),
        allowed=masks.reshape(len(actions), -1),
        log_probs=flat_samples(rollout, "log_probs").reshape(-1),
        advantages=flat_samples(rollout, "advantages").reshape(-1),
        returns=flat_samples(rollout, "returns").reshape(-1),
        values=flat_samples(rollout, "values").reshape(-1) if clips_values else np.empty(0, np.float32),
    )

"""What central critics share; and those of policies with rollouts: MAPPO (Yu et al. 2022), where the algorithm is PPO.

Its values take the place of the policy's own in the rollout: advantages and returns follow from them, and the update of
the policy stays that of its algorithm, by the same kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn
from typing_extensions import override

from marl_sb3.core.acting.policy import Decision, Policy, PolicyInputs
from marl_sb3.core.learners.learner import LearnerOptions, LearnerPart, blas_threads
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.sb3.inference import States
from marl_sb3.core.sb3.private import progress_remaining
from marl_sb3.core.state.fields import Part
from marl_sb3.core.state.randomness import generator_state, set_generator_state
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.central.inputs import CentralInputs
from marl_sb3.extensions.central.value_net import ValueNet
from marl_sb3.extensions.settings import CentralSettings
from marl_sb3.types import Array, BoolArray, FloatArray, PolicyID

MOST_INPUTS = 10**6  # of a critic, in a file


class CentralPart(LearnerPart, Part):
    """A critic of a policy that sees the whole env; see `CriticSelector` for which.

    In shards, copies of it see the envs, and note what the critic learns from.
    """

    acts = True

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        self._learner, self._settings = learner, vars(spec)["central"]
        assert isinstance(self._settings, CentralSettings)
        self._seed = 0 if seed is None else seed
        self.acts_here, self._learns_here = options.experience.acts_here, options.experience.learns_here
        self.states = {"central_critic": self}

    def check_training(self, algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
        """Raise `ConfigError` if the critic cannot learn in a training."""

    def layers(self, widths: Sequence[int]) -> list[nn.Module]:
        """Return layers of these widths, each with its activation; the draws are those of `seeded`."""
        return [layer for pair in pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())]

    def seeded(self, make: Callable[[], nn.Module]) -> Any:
        """Make a network on the policy's device by random draws of its own: those of the policies stay as they are."""
        with th.random.fork_rng(devices=()):
            th.default_generator.manual_seed(self._seed)
            return make().to(self._learner.algorithm.device)


def watch_envs(algorithm: MultiAgentAlgorithm, callback: BaseCallback) -> None:
    """Show the envs of a training to its central critics; a `WatcherMaker` that adds the watchers itself."""
    learners = algorithm.parts.learners
    for each in (part for learner in learners.values() for part in learner.parts if isinstance(part, CentralPart)):
        each.check_training(algorithm, callback)
        watcher = each.attach(algorithm.env, learners)
        if watcher is not None and each.acts_here:  # else shards have shown the envs to its copies
            algorithm.remove_watcher(watcher)
            algorithm.add_watcher(watcher)


def read_seed(saved: StateReader, own: int) -> int:
    """Return the seed of a network that is not made yet, from what there is in its place; older files have none."""
    return saved.integer("seed") if "seed" in saved else own


class CentralCritic(CentralPart):
    """Estimates the values of a policy's rollouts from what its envs show altogether; see `CentralSettings`."""

    metrics = MappingProxyType({"central_vf_loss": "train/central_value_loss"})

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        super().__init__(learner, spec, seed, options)
        self._rng = np.random.default_rng(seed)
        self._recorded: Mapping[str, float] = {}  # of the latest update
        self._vf_coef: float | None = None  # the policy's own, while it is updated
        self._env: MultiAgentVecEnv | None = None
        self._net: ValueNet | None = None
        learner.actor.policy = CentralValues(learner.actor.policy, self)
        buffer = learner.buffer
        self._more_columns = buffer.more_columns
        buffer.of_transition = (*buffer.of_transition, "central")
        buffer.more_columns = self._columns
        self._make_room(0)

    @override
    def attach(self, env: MultiAgentVecEnv, acting: Mapping[PolicyID, Any]) -> None:
        self._env, self._inputs = env, CentralInputs(env, self._learner.rows)
        self._seen: tuple[VecStep, FloatArray] | None = None  # the latest step, and what the critic sees after it

    def _make_room(self, inputs: int) -> None:
        """Let the rollout buffer keep so many inputs of each transition."""
        buffer = self._learner.buffer
        buffer.central = np.zeros((buffer.buffer_size, buffer.n_envs, inputs), np.float32)

    # --- Values ------------------------------------------------------------------------------------------------------

    def values(self, inputs: FloatArray) -> FloatArray:
        """Return the (n,) values of (n, inputs)."""
        return self._made(inputs.shape[1]).values(inputs)

    def final_values(self, rows: Any) -> FloatArray:
        """Return the values of what the critic sees at the end of rows, (rows,) bool, whose agents were truncated."""
        assert self._env is not None
        return self.values(self._inputs.of_final(self._env.latest, rows))

    def seen(self) -> FloatArray:
        """Return what the critic sees now, (rows, inputs)."""
        if self._env is None:
            raise ConfigError("central_critic: the policy acts outside of a training", key="central_critic")
        step = self._env.latest
        if self._seen is None or self._seen[0] is not step:  # it is asked twice in each step
            self._seen = step, self._inputs.of_rows(step)
        return self._seen[1]

    def of_rows(self, rows: BoolArray | None) -> FloatArray:
        """Return what the critic sees for rows, (rows,) bool, that act next; None: for all."""
        return self.seen() if rows is None else self.seen()[rows]

    def _columns(self, inputs: PolicyInputs) -> Mapping[str, Array]:
        """Return what the rollout buffer keeps of each transition besides; see `TurnAwareRollout.more_columns`."""
        more = {} if self._more_columns is None else self._more_columns(inputs)
        seen = self.seen()
        if self._learner.buffer.central.shape[2] != seen.shape[1]:
            self._make_room(seen.shape[1])
        return {**more, "central": seen}

    # --- Learning ----------------------------------------------------------------------------------------------------

    def _made(self, inputs: int) -> ValueNet:
        """Return the network, which is made when it first sees an input."""
        if self._net is None:
            self._net = self._network(inputs)
        if self._net.inputs != inputs:
            words = f"central_critic: it has learned from {self._net.inputs} numbers, the envs show {inputs}"
            raise ConfigError(f"{words}; accepted: envs with the same agents, spaces and state", key="central_critic")
        return self._net

    def _network(self, inputs: int) -> ValueNet:
        settings = self._settings
        layers = self.seeded(lambda: nn.ModuleList(self.layers([inputs, *settings.central_critic_net, 1])))
        linear = [layer for layer in layers.cpu() if isinstance(layer, nn.Linear)]
        return ValueNet(linear, settings.central_critic_popart)

    @override
    def before_update(self) -> None:
        algorithm, buffer = self._learner.algorithm, self._learner.buffer
        if hasattr(algorithm, "vf_coef") and self._vf_coef is None:  # else the latest update failed
            # The policy's own value network would only take part in the norm of the gradients.
            self._vf_coef, algorithm.vf_coef = algorithm.vf_coef, 0.0
        inputs, returns = buffer.central[buffer.acted], buffer.returns[buffer.acted]
        net, number = self._made(inputs.shape[1]), len(inputs)
        net.take_in(inputs, returns)
        size, minibatches = getattr(algorithm, "batch_size", None) or number, list[Array]()
        for _ in range(getattr(algorithm, "n_epochs", 1)):
            order = self._rng.permutation(number)
            minibatches += [order[start : start + size] for start in range(0, number, size)]
        rate = algorithm.lr_schedule(progress_remaining(algorithm))
        with blas_threads(1):
            loss = net.learn(inputs, returns, minibatches, rate)
        self._recorded = {"train/central_value_loss": loss}

    @override
    def recorded(self) -> Mapping[str, float]:
        if self._vf_coef is not None:
            self._learner.algorithm.vf_coef, self._vf_coef = self._vf_coef, None
        latest, self._recorded = self._recorded, {}  # an update without transitions has none
        return latest

    # --- Shards ------------------------------------------------------------------------------------------------------

    @override
    def export_state(self) -> State:
        net = None if self._net is None else {"inputs": self._net.inputs, **self._net.values_state()}
        return {"seed": self._seed, "net": net}

    @override
    def import_state(self, exported: State) -> None:
        self._seed, net = exported["seed"], exported["net"]
        if net is None:  # the first input will make the same as beside the learner
            self._net = None
            return
        if self._net is None or self._net.inputs != net["inputs"]:
            self._net = self._network(net["inputs"])
        self._net.read_values(StateReader(net, "central critic of the round"))

    # --- State -------------------------------------------------------------------------------------------------------

    @override
    def get_state(self) -> State:
        if not self._learns_here:  # the rest is beside the learner
            return {"like": np.zeros(self._learner.buffer.central.shape[2], np.float32)}
        net = {"seed": self._seed} if self._net is None else self._net.get_state()
        return {"inputs": self._net.inputs if self._net else 0, "net": net, "random": generator_state(self._rng)}

    @override
    def read_state(self, saved: StateReader) -> Callable[[], None]:
        if not self._learns_here:
            saved.require_names(["like"])  # a file that is so large has so many inputs
            self._make_room(len(saved.array("like", np.float32, (None,))))  # for the rollout, which is read next
            return lambda: None
        saved.require_names(["inputs", "net", "random"])
        inputs, rng = saved.integer("inputs", 0, MOST_INPUTS), np.random.default_rng(0)
        set_generator_state(rng, saved, "random")
        if not inputs:
            seed = read_seed(saved.fields("net"), self._seed)
            return lambda: self._set(None, rng, seed)
        # A file that is so large has so many inputs.
        saved.fields("net").fields("units").array("sums", np.float64, (2, inputs))
        net = self._network(inputs)
        self._make_room(inputs)  # for the rollout, which is read next
        net.read_state(saved.fields("net"))
        return lambda: self._set(net, rng, self._seed)

    def _set(self, net: ValueNet | None, rng: np.random.Generator, seed: int) -> None:
        self._net, self._rng, self._seed = net, rng, seed


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
        return decision._replace(values=self._critic.values(self._critic.of_rows(inputs.chosen)))

    @override
    def values(self, inputs: PolicyInputs) -> FloatArray:
        return self._critic.values(self._critic.of_rows(inputs.chosen))

    @override
    def final_values(self, inputs: PolicyInputs) -> FloatArray:
        return self._critic.final_values(inputs.chosen)

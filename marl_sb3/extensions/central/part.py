"""What central critics of all algorithms share: how they are made, shown the envs of a training, and saved."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from marl_sb3.core.learners.learner import LearnerOptions, LearnerPart
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.state.fields import Part
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
from marl_sb3.extensions.settings import CentralSettings
from marl_sb3.types import Array

MOST_INPUTS = 10**6  # of a critic, in a file
_MOMENTS = {"exp_avg": None, "exp_avg_sq": 0.0}  # what Adam remembers, and the least numbers of it


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


# --- State -----------------------------------------------------------------------------------------------------------


def read_seed(saved: StateReader, own: int) -> int:
    """Return the seed of a network that is not made yet, from what there is in its place; older files have none."""
    return saved.integer("seed") if "seed" in saved else own


def saved_net(net: nn.Module, optimizer: th.optim.Optimizer | None = None) -> State:
    """Return the weights of a network, and what its optimizer remembers, as plain data and arrays."""
    moments, steps = dict[str, Array](), 0
    for name, parameter in net.named_parameters():
        own = {} if optimizer is None else optimizer.state.get(parameter)
        if own:
            steps = int(own["step"])
            moments |= {f"{name}.{key}": own[key].cpu().numpy().copy() for key in _MOMENTS}
    return {"weights": _weights(net), "moments": moments, "steps": steps}


def read_net(saved: StateReader, net: nn.Module, optimizer: th.optim.Optimizer | None = None) -> None:
    """Set a network and its optimizer to what `saved_net` returned.

    Raises:
        CheckpointError: it is of another network.
    """
    saved.require_names(["weights", "moments", "steps"])
    weights = saved.like("weights", _weights(net))
    net.load_state_dict({name: th.from_numpy(np.array(array)) for name, array in weights.items()})
    steps = saved.integer("steps", 0)
    if not steps or optimizer is None:
        return
    parameters = dict(net.named_parameters())
    moments = saved.fields("moments")
    moments.require_names([f"{name}.{key}" for name in parameters for key in _MOMENTS])
    for name, own in parameters.items():
        kept = {
            key: th.from_numpy(moments.array(f"{name}.{key}", np.float32, own.shape, lowest)).to(own.device)
            for key, lowest in _MOMENTS.items()
        }
        optimizer.state[own] = {"step": th.tensor(float(steps)), **kept}


def _weights(net: nn.Module) -> dict[str, Array]:
    return {name: tensor.cpu().numpy().copy() for name, tensor in net.state_dict().items()}

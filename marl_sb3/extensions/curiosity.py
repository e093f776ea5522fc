"""Curiosity: agents are paid, beside the rewards of the env, for observations that are new to them.

Random network distillation (Burda et al. 2018, https://arxiv.org/abs/1810.12894): a network learns what another one,
whose weights are random and stay so, makes of observations. Where few were like it, its error is large: that is paid.
As there, observations are normalised and clipped at 5, and rewards are divided by the standard deviation of their
discounted sums, which do not end with episodes. Unlike there, that is of the latest sums: the first errors are a
thousand times as large as later ones. Rewards are added to those of the env, so that any algorithm can learn from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch as th
from stable_baselines3.common.preprocessing import preprocess_obs
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.utils import obs_as_tensor
from torch import nn
from typing_extensions import override

from marl_sb3.core.config.algorithms import Decay, Points
from marl_sb3.core.config.values import NonNegativeFloat
from marl_sb3.core.learners.building import stored_space
from marl_sb3.core.learners.learner import LearnerOptions, LearnerPart
from marl_sb3.core.learners.spec import PolicySpec
from marl_sb3.core.processing.processing import RunningStatistics
from marl_sb3.core.processing.rows import Bootstrap
from marl_sb3.core.sb3.schedules import make_schedule
from marl_sb3.core.state.fields import Field, Fields, Stateful, array, part, scalar
from marl_sb3.core.state.state import AS_SUMS, StateReader
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray, FloatArray

_BATCH = 128  # observations of a gradient step
_DISCOUNT = 0.99  # of the sums by which rewards are scaled
_LIMIT = 5.0  # of normalised observations
_EPSILON = 1e-8  # added to variances before they divide
_LATEST = 2048.0  # sums by whose standard deviation rewards are divided; the weights of earlier ones fall
_HIDDEN, _OUTPUTS = 128, 64
# Of the first layer. A smooth network would be learned from few observations for all others, too: with weights and
# biases of this size, its units bend where observations lie.
_FIRST_GAIN, _FIRST_BIAS = 3.0, 2.0


def _tensors(find: Any, lowest: float | None = None) -> Field:
    """A field of tensors by name, which `find` returns of its owner; they are set in place."""

    def arrays(owner: Any) -> dict[str, Array]:
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in find(owner).items()}

    def put(owner: Any, values: Mapping[str, Array]) -> None:
        with th.no_grad():
            for name, tensor in find(owner).items():
                tensor.copy_(th.from_numpy(np.array(values[name])))

    return Field(arrays, lambda owner, state, name: state.like(name, arrays(owner), lowest), put)


def _moments(name: str) -> Any:
    """Return what finds one of Adam's numbers of each parameter."""
    return lambda own: {key: own.optimizer.state[each][name] for key, each in own.predictor.named_parameters()}


def _read_sums(own: Any, state: StateReader, name: str) -> Array:
    """Read the sums of the rows; with another number of envs, they begin anew, as the episodes do."""
    is_same = state.num_envs == own.num_envs
    return state.array(name, np.float64, own._sums.shape, *AS_SUMS) if is_same else np.zeros_like(own._sums)


class Curiosity(Stateful, LearnerPart):
    """Adds what is paid for new observations to the rewards that a policy learns from; evaluations do not have it.

    Raises:
        ConfigError: the policy acts in shards or on Ray.
    """

    metrics: Mapping[str, str] = {"curiosity_reward_mean": "curiosity/reward", "curiosity_loss": "curiosity/loss"}
    fields: ClassVar[Fields] = {
        "weights": _tensors(lambda own: {**own.networks.state_dict()}),
        "steps": _tensors(_moments("step"), 0.0),
        "means": _tensors(_moments("exp_avg")),
        "squares": _tensors(_moments("exp_avg_sq"), 0.0),
        "observations": part("seen"),
        "sums": Field(lambda own: own._sums.copy(), _read_sums, lambda own, sums: setattr(own, "_sums", sums)),
        "of_sums": part("_of_sums"),
        "waiting": array("_waiting"),
        "num_waiting": scalar("_num_waiting", 0, _BATCH - 1),
        "has_learned": scalar("_has_learned"),
    }

    def __init__(self, learner: Any, spec: PolicySpec, seed: int | None, options: LearnerOptions) -> None:
        self.algorithm, self.num_envs, settings = learner.algorithm, learner.rows.num_envs, vars(spec)["learning"]
        if not options.experience.acts_here:
            words = f"policy {learner.policy_id!r}: curiosity is {settings.curiosity} in shards or on Ray"
            raise ConfigError(f"{words}; accepted: null, or envs that this process steps", key="curiosity")
        self._scale = make_schedule(settings.curiosity_scale, "curiosity_scale", NonNegativeFloat | Decay | Points)
        self._progress, self._space = options.progress_remaining, stored_space(learner.processing, self.algorithm)
        with th.random.fork_rng(devices=[]):  # the draws of the policies stay as they are
            th.default_generator.manual_seed(seed or 0)
            self.target, self.predictor = self._network(), self._network()
        self.networks = nn.ModuleDict({"target": self.target, "predictor": self.predictor}).to(self.algorithm.device)
        rate = settings.curiosity_learning_rate
        self.optimizer = th.optim.Adam(self.predictor.parameters(), rate, foreach=False)
        for each in self.predictor.parameters():  # what is made in the first step else, after a checkpoint is read
            self.optimizer.state[each] = {
                **{"step": th.zeros(()), "exp_avg": th.zeros_like(each), "exp_avg_sq": th.zeros_like(each)}
            }
        sample = self._prepared(map_arrays(lambda each: each[None], self._space.sample()))
        self.seen = {name: RunningStatistics(shape=each.shape[1:]) for name, each in sample.items()}
        self._waiting = {name: np.zeros((_BATCH, *each.shape[1:]), np.float32) for name, each in sample.items()}
        self._num_waiting, self._has_learned = 0, False
        self._sums, self._of_sums = np.zeros(learner.rows.num_rows), RunningStatistics(shape=())
        self._paid, self._losses = list[float](), list[float]()
        learner.actor.processing = _Paying(learner.actor, self)
        self.states = {"curiosity": self}

    def _network(self) -> nn.Module:
        """Return a network of two hidden layers behind the features that the policy sees."""
        policy: Any = self.algorithm.policy
        make = getattr(policy, "features_extractor_class", FlattenExtractor)
        features = make(policy.observation_space, **(getattr(policy, "features_extractor_kwargs", None) or {}))
        first, second = nn.Linear(features.features_dim, _HIDDEN), nn.Linear(_HIDDEN, _HIDDEN)
        nn.init.orthogonal_(first.weight, _FIRST_GAIN)
        nn.init.normal_(first.bias, 0.0, _FIRST_BIAS)
        nn.init.orthogonal_(second.weight, 2**0.5)
        return nn.Sequential(features, first, nn.ReLU(), second, nn.ReLU(), nn.Linear(_HIDDEN, _OUTPUTS))

    def _prepared(self, observations: Any) -> dict[str, Array]:
        """Return observations, (n, ...) by key, as SB3's networks take them; "" is the key of one that has no parts."""
        tensors: Any = preprocess_obs(obs_as_tensor(observations, th.device("cpu")), self._space)
        parts = tensors if isinstance(tensors, dict) else {"": tensors}
        return {name: each.numpy() for name, each in parts.items()}

    def paid(self, observations: Any, rows: BoolArray) -> FloatArray:
        """Return what these rows, (rows,) bool, are paid for what they see next, (n, ...); and learn from it."""
        parts = self._prepared(observations)
        for name, each in parts.items():
            own = self.seen[name]
            own.update(each)
            normal = (each - own.mean) / np.sqrt(own.var + _EPSILON)
            parts[name] = np.clip(normal, -_LIMIT, _LIMIT).astype(np.float32)
        with th.no_grad():
            errors = self._errors(parts).mean(dim=1).cpu().numpy()
        self._learn(parts)
        self._sums[rows] = self._sums[rows] * _DISCOUNT + errors
        self._of_sums.count = min(self._of_sums.count, _LATEST)
        self._of_sums.update(self._sums[rows])
        # Before there was anything to learn from, nothing is known to be new.
        scale = self._scale(self._progress()) / np.sqrt(self._of_sums.var + _EPSILON) if self._has_learned else 0.0
        paid: FloatArray = (scale * errors).astype(np.float32)
        self._paid.append(float(paid.mean()))
        return paid

    def _errors(self, parts: Mapping[str, Array]) -> th.Tensor:
        """(n, outputs) squared errors of normalised observations."""
        tensors = {name: th.as_tensor(each, device=self.algorithm.device) for name, each in parts.items()}
        seen: Any = tensors.get("", tensors)
        with th.no_grad():
            wanted = self.target(seen)
        errors: th.Tensor = (self.predictor(seen) - wanted) ** 2
        return errors

    def _learn(self, parts: Mapping[str, Array]) -> None:
        """Take a gradient step whenever there are enough observations."""
        number, begin = len(next(iter(parts.values()))), 0
        while begin < number:
            taken = min(number - begin, _BATCH - self._num_waiting)
            for name, each in parts.items():
                self._waiting[name][self._num_waiting : self._num_waiting + taken] = each[begin : begin + taken]
            begin, self._num_waiting = begin + taken, (self._num_waiting + taken) % _BATCH
            if self._num_waiting == 0:
                loss = self._errors(self._waiting).mean()
                self.optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                self.optimizer.step()
                self._losses.append(float(loss.item()))
                self._has_learned = True

    @override
    def recorded(self) -> Mapping[str, float]:
        found = {"curiosity/reward": self._paid, "curiosity/loss": self._losses}
        means = {name: float(np.mean(values)) for name, values in found.items() if values}
        self._paid, self._losses = [], []
        return means


class _Paying:
    """The processing of a policy's rows, which also pays them for new observations.

    Args:
        actor: acts for the rows.
        curiosity: says how much that is.
    """

    def __init__(self, actor: Any, curiosity: Curiosity) -> None:
        self._actor, self._curiosity, self._processing = actor, curiosity, actor.processing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._processing, name)

    def observe(self, step: VecStep, bootstrap: Bootstrap | None = None) -> Array:
        """See `RowProcessing.observe`; what was new is paid for with the transition that led to it."""
        rewards = self._processing.observe(step, bootstrap)
        rows = self._actor.rows
        over = rows.of_agents(step.in_play & (step.to_act | step.terminated | step.truncated))
        if over.any():
            following = map_arrays(lambda each: each[over], self._actor.following(step))
            rewards[over] += self._curiosity.paid(following, over)
        return rewards  # type: ignore[no-any-return]

"""Measure how far the fused PPO update is from PyTorch's, and compare with the effect of one ulp in the weights.

    python benchmarks/fused_accuracy.py [--rollouts 10] [--cases tanh-1,tanh-1e6,...] [--json FILE]

A case is a small network and a scale of random observations. For each case there are two figures: the gradient of one
minibatch, and the weights after ten rollouts with their updates. Both are computed in four ways:

    PyTorch     stock SB3, float32
    fused       `marl_sb3.PPO` through its kernels, float32
    one ulp     stock SB3, float32, with every weight replaced by the next float32 above or below (the largest of three
                draws)
    float64     stock SB3 with a network in float64

Each figure is the norm of a difference over all parameters. Differences of gradients are divided by the norm of
PyTorch's gradient, differences of weights by the norm of the change of PyTorch's weights. A difference of the size of
"one ulp" is rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch as th
from command_line import add_count, add_names, parser
from gymnasium import spaces
from measure import Report, Setting, print_table
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import nn
from trainings import one_torch_thread

import marl_sb3
from marl_sb3.types import Array

N_ENVS, N_STEPS, N_EPOCHS, BATCH_SIZE = 4, 32, 4, 32
ULP_SEEDS = (1, 2, 3)
SETTING = Setting(
    what="PPO updates of small networks on observations of several scales",
    hyperparameters={"n_steps": N_STEPS, "n_envs": N_ENVS, "batch_size": BATCH_SIZE, "n_epochs": N_EPOCHS},
    threads="1 torch thread, 1 BLAS thread",
    changes={"B": "fused networks, in rollouts and in updates"},
)


# --- What is compared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An observation space and a network."""

    high: float = 1.0  # observations are random numbers between 0 and this
    size: int = 8  # length of an observation
    dtype: str = "float32"  # dtype of the observations
    fixed: float = 0.0  # the share of an observation that never changes, as in the memory of a games console
    relu: bool = False  # use ReLU instead of tanh
    weight_scale: float = 1.0  # factor of the initial weights; above 1 it saturates tanh
    gaussian: bool = False  # two continuous actions instead of a choice of 4


CASES = {
    "tanh-1": Case(),
    "tanh-100": Case(high=100.0),
    "tanh-1e4": Case(high=1e4),
    "tanh-1e6": Case(high=1e6),
    "tanh-uint8": Case(high=255, size=128, dtype="uint8"),
    "tanh-ram": Case(high=255, size=128, dtype="uint8", fixed=0.75),
    "tanh-saturated": Case(weight_scale=20.0),
    "tanh-gaussian-1": Case(gaussian=True),
    "tanh-gaussian-1e4": Case(high=1e4, gaussian=True),
    "relu-1": Case(relu=True),
    "relu-100": Case(high=100.0, relu=True),
    "relu-1e6": Case(high=1e6, relu=True),
    "relu-uint8": Case(high=255, size=128, dtype="uint8", relu=True),
    "relu-gaussian-1e4": Case(high=1e4, relu=True, gaussian=True),
}


class ScaledEnv(gymnasium.Env[Any, Any]):
    """An env with random observations and rewards that depend on the action.

    Episodes have 10 steps; every other one is truncated, the rest are terminated.

    Args:
        case: describes observations and actions.
        index: index of the env, the seed of its random numbers.
    """

    def __init__(self, case: Case, index: int) -> None:
        self._case = case
        self._rng = np.random.default_rng(index)
        self._fixed = self._drawn(round(case.fixed * case.size))
        self._steps = self._episodes = 0
        self.observation_space = spaces.Box(0, case.high, (case.size,), np.dtype(case.dtype).type)
        self.action_space = spaces.Box(-1, 1, (2,), np.float32) if case.gaussian else spaces.Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Begin an episode; the seed is ignored and the stream of random numbers continues."""
        self._steps, self._episodes = 0, self._episodes + 1
        return self._observation(), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take a step."""
        self._steps += 1
        over, odd = self._steps == 10, self._episodes % 2 == 1
        reward = float(np.sum(action)) * self._rng.uniform() + self._rng.normal()
        return self._observation(), reward, over and odd, over and not odd, {}

    def _observation(self) -> Array:
        return np.concatenate([self._fixed, self._drawn(self._case.size - len(self._fixed))])

    def _drawn(self, count: int) -> Array:
        numbers = self._rng.uniform(0, self._case.high, count)
        return numbers.round().astype(np.uint8) if self._case.dtype == "uint8" else numbers.astype(np.float32)


# --- Four ways -------------------------------------------------------------------------------------------------------


class Float64Features(FlattenExtractor):
    """Turns observations into float64 features."""

    def forward(self, observations: th.Tensor) -> th.Tensor:
        """Return float64 features: (rows, features)."""
        return super().forward(observations).double()


class Float64Policy(ActorCriticPolicy):
    """The same network in float64; it samples actions with the same random numbers as a float32 network."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, features_extractor_class=Float64Features, **kwargs)

    def forward(self, obs: th.Tensor, deterministic: bool = False) -> tuple[th.Tensor, th.Tensor, th.Tensor]:
        """Sample actions with float32 noise, since PyTorch draws other numbers for float64."""
        distribution, values = self.get_distribution(obs), self.predict_values(obs)
        inner: Any = distribution.distribution
        if isinstance(self.action_space, spaces.Box):
            noise = th.normal(th.zeros(inner.mean.shape), th.ones(inner.mean.shape))
            actions = inner.mean + inner.stddev * noise
        else:  # as `torch.multinomial` draws one sample
            actions = (inner.probs / th.empty(inner.probs.shape).exponential_()).argmax(dim=1)
        return actions, values, distribution.log_prob(actions)


class Float64PPO(stable_baselines3.PPO):
    """Stock SB3 with a network in float64; the rollout buffer stays in float32."""

    def _setup_model(self) -> None:
        super()._setup_model()
        self.policy.double()

    def train(self) -> None:
        """Convert the numbers of the rollout to float64, so that the whole loss is computed in float64."""
        for name in ("returns", "advantages", "values", "log_probs"):
            setattr(self.rollout_buffer, name, getattr(self.rollout_buffer, name).astype(np.float64))
        super().train()


class FusedPPO(marl_sb3.PPO):
    """`marl_sb3.PPO` that always uses the fused kernels."""

    update_path = "fused"


def algorithm(kind: type[Any], case: Case, ulp_seed: int | None = None, **hyperparameters: Any) -> Any:
    """Make an algorithm for a case. All kinds begin with the same weights; `ulp_seed` moves these by one ulp."""
    settings = {"n_steps": N_STEPS, "batch_size": BATCH_SIZE, "n_epochs": N_EPOCHS, "ent_coef": 0.01, "device": "cpu"}
    made = kind(
        Float64Policy if kind is Float64PPO else "MlpPolicy",
        DummyVecEnv([lambda index=index: ScaledEnv(case, index) for index in range(N_ENVS)]),
        policy_kwargs={"activation_fn": nn.ReLU if case.relu else nn.Tanh},
        seed=0,
        **{**settings, **hyperparameters},
    )
    made.set_logger(Logger(None, []))
    for parameter in made.policy.parameters():
        parameter.data *= case.weight_scale if parameter.dim() > 1 else 1.0
    if ulp_seed is not None:
        _move_by_one_ulp(made.policy, np.random.default_rng(ulp_seed))
    return made


def _move_by_one_ulp(policy: nn.Module, rng: np.random.Generator) -> None:
    for parameter in policy.parameters():
        weights = parameter.detach().numpy()
        ends = np.where(rng.random(weights.shape) < 0.5, -np.inf, np.inf).astype(np.float32)
        weights[...] = np.nextafter(weights, ends)


# --- Two figures -----------------------------------------------------------------------------------------------------


def gradient(kind: type[Any], case: Case, ulp_seed: int | None = None) -> Array:
    """Return the gradient of the loss over one minibatch, a whole rollout of stock SB3: (parameters,) float64.

    It is read from Adam's first moments, which are 0.1 times the first gradient. The gradient norm is not clipped; the
    probability ratios are.
    """
    settings = {"batch_size": N_ENVS * N_STEPS, "n_epochs": 1, "max_grad_norm": 1e30}
    source = algorithm(stable_baselines3.PPO, case, **settings)
    source.train = lambda: None
    source.learn(N_ENVS * N_STEPS)
    buffer = source.rollout_buffer
    buffer.log_probs += np.random.default_rng(0).normal(0, 0.2, buffer.log_probs.shape).astype(np.float32)
    updated = algorithm(kind, case, ulp_seed, **settings)
    updated.rollout_buffer = deepcopy(buffer)
    updated.train()
    optimizer = updated.policy.optimizer
    moments = [optimizer.state[parameter]["exp_avg"] for parameter in optimizer.param_groups[0]["params"]]
    return _flat(moments) / 0.1


def trained_weights(kind: type[Any], case: Case, rollouts: int, ulp_seed: int | None = None) -> Array:
    """Return the weights after some rollouts and their updates: (parameters,) float64."""
    trained = algorithm(kind, case, ulp_seed)
    if rollouts:
        th.manual_seed(0)
        trained.learn(rollouts * N_ENVS * N_STEPS)
    return _flat(list(trained.policy.parameters()))


def _flat(tensors: Sequence[th.Tensor]) -> Array:
    return np.concatenate([tensor.detach().double().numpy().reshape(-1) for tensor in tensors])


@dataclass(frozen=True)
class Distances:
    """Relative distances between the results of two ways."""

    fused: float  # between fused and PyTorch
    ulp: float  # between PyTorch with and without weights moved by one ulp
    fused_64: float  # between fused and float64
    torch_64: float  # between PyTorch and float64

    @property
    def multiple(self) -> float:
        """The distance of the fused way divided by that of one ulp."""
        return self.fused / self.ulp


def distances(compute: Callable[..., Array], before: Array | float = 0.0) -> Distances:
    """Compute an array in all four ways and compare.

    Args:
        compute: `(kind, ulp_seed=None) -> array`.
        before: what is subtracted from PyTorch's array to get the norm that distances are divided by.
    """
    by_torch, fused, exact = (compute(kind) for kind in (stable_baselines3.PPO, FusedPPO, Float64PPO))
    moved = [compute(stable_baselines3.PPO, ulp_seed=seed) for seed in ULP_SEEDS]
    size = float(np.linalg.norm(by_torch - before))

    def apart(one: Array, other: Array) -> float:
        return float(np.linalg.norm(one - other)) / size

    return Distances(
        apart(fused, by_torch), max(apart(one, by_torch) for one in moved), apart(fused, exact), apart(by_torch, exact)
    )


def gradient_distances(case: Case) -> Distances:
    """Compare the gradients of one minibatch."""
    return distances(lambda kind, ulp_seed=None: gradient(kind, case, ulp_seed))


def weight_distances(case: Case, rollouts: int) -> Distances:
    """Compare the weights after some rollouts and their updates."""
    start = trained_weights(stable_baselines3.PPO, case, 0)
    return distances(lambda kind, ulp_seed=None: trained_weights(kind, case, rollouts, ulp_seed), start)


# --- The command -----------------------------------------------------------------------------------------------------


def _row(name: str, found: Distances) -> list[str]:
    figures = (found.fused, found.ulp, found.fused_64, found.torch_64)
    return [name, *(f"{figure:.1e}" for figure in figures), f"{found.multiple:.1f}"]


def main(argv: Sequence[str] | None = None) -> None:
    """Compute and print a table of gradients and a table of weights."""
    options = parser(__doc__, repeats=None)
    add_count(options, "--rollouts", 10, "rollouts before the weights are compared")
    add_names(options, "--cases", CASES)
    arguments = options.parse_args(argv)
    one_torch_thread()
    SETTING.print()
    header = ["", "fused-PyTorch", "one ulp-PyTorch", "fused-float64", "PyTorch-float64", "fused/one ulp"]
    tables: dict[str, dict[str, Distances]] = {
        "gradient of one minibatch": {name: gradient_distances(CASES[name]) for name in arguments.cases},
        f"weights after {arguments.rollouts} rollouts": {
            name: weight_distances(CASES[name], arguments.rollouts) for name in arguments.cases
        },
    }
    for title, table in tables.items():
        print(f"\n{title}")
        print_table(header, [_row(name, found) for name, found in table.items()])
    results = {title: {name: asdict(found) for name, found in table.items()} for title, table in tables.items()}
    Report("fused_accuracy", SETTING, results).write(arguments.json)


if __name__ == "__main__":
    main()

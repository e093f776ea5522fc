"""Compare the fused PPO update with the time that its matrix products alone take on this machine.

    python benchmarks/update_vs_limit.py [--repeats 5] [--cases arena-64,arena-256,cartpole-256] [--json FILE]

All sides update from the same weights on the same rollout of 4,000 rows, and take turns: stock SB3's `train()`; the
torch path and the fused path of `marl_sb3.PPO.train()`; the fused kernel alone, without what `train()` does around it;
and the limit. Times are microseconds per minibatch of 128 rows.

The limit is SGEMM alone: every matrix product of a minibatch's forward and backward pass, timed by itself at the same
shape, in float32 and one thread, by the faster of NumPy's BLAS and SciPy's (called from compiled code, as the kernel
does). With one-hot observations (arena) the first layer gathers rows instead of multiplying, and the limit leaves it
out; with float observations (CartPole) it is a product like any other. The limit also leaves out activations, losses,
gradient norms and Adam, so that no implementation can reach 100%.
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg.cython_blas  # noqa: F401 - `threadpool_limits` only limits libraries that are loaded
import stable_baselines3
from command_line import add_count, add_names, parser
from measure import Comparison, Report, Setting, number, print_table, spread, take_turns
from numba import njit
from stable_baselines3.common.logger import Logger
from threadpoolctl import threadpool_limits
from trainings import one_torch_thread

import marl_sb3
from marl_sb3.types import FloatArray

BATCH_SIZE = 128
STOCK, TORCH, FUSED = "stock SB3, train()", "marl_sb3 torch, train()", "marl_sb3 fused, train()"
KERNEL, LIMIT = "fused kernel alone", "limit: SGEMM alone"


# --- What is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A rollout and a network."""

    env: str  # its id
    n_envs: int  # number of envs; envs x steps x agents are 4,000 rows
    n_steps: int  # env steps per env
    width: int  # of both hidden layers, in actor and critic
    inputs: int  # of the first layer; 0 where it gathers rows
    actions: int  # outputs of the actor


CASES = {
    "arena-64": Case("arena", 20, 100, 64, 0, 4),
    "arena-256": Case("arena", 20, 100, 256, 0, 4),
    "cartpole-256": Case("CartPole-v1", 8, 500, 256, 4, 2),
}


@dataclass(frozen=True)
class Product:
    """A product (rows, inner) @ (inner, columns), whose factors may be transposed views."""

    rows: int
    inner: int
    columns: int
    left_transposed: bool = False
    right_transposed: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.rows * self.inner * self.columns


def products(case: Case) -> list[Product]:
    """Return the products of one minibatch, transposed as in the kernel."""
    found = []
    for outputs in (case.actions, 1):  # actor, critic
        sizes = [case.inputs, case.width, case.width, outputs]
        for layer, (inputs, width) in enumerate(itertools.pairwise(sizes)):
            if inputs:
                found.append(Product(BATCH_SIZE, inputs, width))
                found.append(Product(inputs, BATCH_SIZE, width, left_transposed=True))  # gradient of the weights
            if layer > 0:
                found.append(Product(BATCH_SIZE, width, inputs, right_transposed=True))  # gradient of the inputs
    return found


# --- The limit -------------------------------------------------------------------------------------------------------


def _with_numpy(left: FloatArray, right: FloatArray, out: FloatArray, calls: int) -> None:
    for _ in range(calls):
        np.dot(left, right, out)


_with_scipy: Any = njit(_with_numpy)  # compiled code calls SciPy's BLAS


def product_us(product: Product, calls: int) -> float:
    """Return the microseconds of a product with the faster BLAS: the median of five measurements of `calls` calls."""
    left = _matrix(product.rows, product.inner, product.left_transposed)
    right = _matrix(product.inner, product.columns, product.right_transposed)
    out = np.empty((product.rows, product.columns), np.float32)
    _with_scipy(left, right, out, 1)  # compiles
    medians = [
        statistics.median(_timed_s(partial(blas, left, right, out, calls)) for _ in range(5))
        for blas in (_with_scipy, _with_numpy)
    ]
    return 1e6 * min(medians) / calls


def _matrix(rows: int, columns: int, transposed: bool) -> FloatArray:
    rng = np.random.default_rng(0)
    shape = (columns, rows) if transposed else (rows, columns)
    matrix = rng.standard_normal(shape, dtype=np.float32)
    return matrix.T if transposed else matrix


def _timed_s(function: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    function()
    return time.perf_counter() - started_s


# --- The updates -----------------------------------------------------------------------------------------------------


class Updates:
    """Measures the same update on each side, in microseconds per minibatch.

    Args:
        case: the rollout and the network.
        n_epochs: epochs of the update.
    """

    def __init__(self, case: Case, n_epochs: int) -> None:
        self._stock = _algorithm(stable_baselines3.PPO, case, n_epochs)
        self._ours = _algorithm(marl_sb3.PPO, case, n_epochs)
        self._rollout = _full_buffer(self._stock)
        self._weights = copy.deepcopy(self._stock.get_parameters())
        self.minibatches: float = self._rollout.buffer_size * self._rollout.n_envs * n_epochs / BATCH_SIZE
        for way in (self.stock_us, self.torch_us, self.fused_us):
            way(0)  # compiles and allocates

    def stock_us(self, turn: int) -> float:
        """Measure stock SB3's `train()`."""
        return self._timed_us(self._ready(self._stock).train)

    def torch_us(self, turn: int) -> float:
        """Measure `marl_sb3.PPO.train()` on the torch path."""
        self._ours.update_path = "torch"
        return self._timed_us(self._ready(self._ours).train)

    def fused_us(self, turn: int) -> float:
        """Measure `marl_sb3.PPO.train()` on the fused path."""
        self._ours.update_path = "fused"
        return self._timed_us(self._ready(self._ours).train)

    def kernel_us(self, turn: int) -> float:
        """Measure the kernel of the fused path alone."""
        self._ours.update_path = "fused"
        self._ready(self._ours)
        return self._timed_us(self._ours.prepare_update().run)

    def _ready(self, algorithm: stable_baselines3.PPO) -> stable_baselines3.PPO:
        algorithm.set_parameters(self._weights)
        algorithm.rollout_buffer = copy.deepcopy(self._rollout)
        return algorithm

    def _timed_us(self, function: Callable[[], object]) -> float:
        return 1e6 * _timed_s(function) / self.minibatches


def _algorithm(ppo: type[Any], case: Case, n_epochs: int) -> Any:
    env = marl_sb3.make_vec_env(case.env, n_envs=case.n_envs).as_sb3_vec_env()
    algorithm = ppo(
        "MlpPolicy",
        env,
        n_steps=case.n_steps,
        batch_size=BATCH_SIZE,
        n_epochs=n_epochs,
        policy_kwargs={"net_arch": [case.width] * 2},
        seed=0,
        device="cpu",
    )
    algorithm.set_logger(Logger(None, []))
    return algorithm


def _full_buffer(algorithm: Any) -> Any:
    """Return a filled rollout buffer, as it is before the update."""
    algorithm.train, train = lambda: None, algorithm.train
    algorithm.learn(algorithm.n_steps * algorithm.n_envs)
    algorithm.train = train
    return copy.deepcopy(algorithm.rollout_buffer)


# --- The command -----------------------------------------------------------------------------------------------------


def measure(name: str, repeats: int, n_epochs: int, calls: int) -> dict[str, Any]:
    """Measure one case and print its table; return its figures for JSON."""
    case, updates = CASES[name], Updates(CASES[name], n_epochs)
    by_product: dict[Product, list[float]] = {product: [] for product in products(case)}

    def limit_us(turn: int) -> float:
        for product, figures in by_product.items():
            figures.append(product_us(product, calls))
        return sum(by_product[product][-1] for product in products(case))

    sides = {STOCK: updates.stock_us, TORCH: updates.torch_us, FUSED: updates.fused_us}
    turns = take_turns({**sides, KERNEL: updates.kernel_us, LIMIT: limit_us}, repeats, name)
    times = Comparison("us per minibatch", turns, STOCK, less_is_better=True)
    medians = times.medians()
    shares = {side: medians[LIMIT] / median for side, median in medians.items()}
    gflops_per_s = sum(product.flops for product in products(case)) / medians[LIMIT] / 1e3
    _print(name, times, shares, gflops_per_s)
    return {
        **times.facts(),
        "case": asdict(case),
        "share_of_limit": shares,
        "samples_per_s": {side: 1e6 * BATCH_SIZE / median for side, median in medians.items()},
        "sgemm_gflops_per_s": gflops_per_s,
        "products": [{**asdict(product), "flops": product.flops, "us": us} for product, us in by_product.items()],
    }


def _print(name: str, times: Comparison, shares: Mapping[str, float], gflops_per_s: float) -> None:
    case = CASES[name]
    flops = sum(product.flops for product in products(case))
    print(f"\n{name}: {flops / 1e6:.1f} MFLOP of products per minibatch; SGEMM does {number(gflops_per_s)} GFLOP/s")
    medians, ratios = times.medians(), times.ratios()
    rows = [
        [
            side,
            spread(us),
            number(1e6 * BATCH_SIZE / medians[side]),
            f"{100 * shares[side]:.1f}%",
            f"{ratios[side]:.1f} x",
        ]
        for side, us in times.raw.items()
    ]
    print_table(["", f"{times.unit}: median (min to max)", "samples/s", "of the limit", "speed"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the cases one after the other and print a table for each."""
    options = parser(__doc__, repeats=5)
    add_names(options, "--cases", CASES)
    add_count(options, "--epochs", 10, "epochs of an update")
    add_count(options, "--calls", 100, "calls of each product that are timed together")
    arguments = options.parse_args(argv)
    setting = Setting(
        what="one PPO update of 4,000 rows",
        hyperparameters={"batch_size": BATCH_SIZE, "n_epochs": arguments.epochs},
        threads="1 torch thread, 1 BLAS thread",
        changes={"A": "torch path", "B": "fused path"},
        packages=("marl_sb3", "stable-baselines3", "torch", "numpy", "scipy", "numba"),
    )
    one_torch_thread()
    setting.print()
    with threadpool_limits(1, user_api="blas"):
        results = {
            name: measure(name, arguments.repeats, arguments.epochs, arguments.calls) for name in arguments.cases
        }
    Report("update_vs_limit", setting, results).write(arguments.json)


if __name__ == "__main__":
    main()

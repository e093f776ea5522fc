"""JAX's side of `against_jax.py`: PPO and its envs as one compiled program, after PureJaxRL; it needs only JAX.

Envs, rollout, advantages and all epochs of the update are one `jax.jit`, and several iterations are one call of it, as
in PureJaxRL's `ppo.py` (https://github.com/luchris429/purejaxrl): separate networks for actor and critic, Adam with
clipped gradients, a new permutation of the rows for each epoch, minibatches by `lax.scan`. The loss is SB3's on both
sides: the value loss is not clipped.

What favours JAX: values are computed for the whole rollout at once, and those of truncated episodes only where there
are any; the arena's one-hot observations are looked up in the first layer, not multiplied with it; rows that do not
fill a minibatch are left out, where SB3 makes a smaller one of them.

CartPole-v1 has Gymnasium's rules, in float32 as in gymnax, and starts again where an episode has ended. A truncated
episode is bootstrapped from the value of its last observation, as in SB3.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import jax  # type: ignore[import-not-found]  # not installed where marl_sb3 is developed
import jax.numpy as jnp  # type: ignore[import-not-found]
import numpy as np
from jax import lax  # type: ignore[import-not-found]
from timed_cases import Training, print_costs, print_versions, side_parser

# Env steps of one call of the compiled program, which is at least one iteration.
TIMED_ENV_STEPS = 20_000  # where calls are timed
ASKED_ENV_STEPS = 2_000  # where the return is looked at after each call
EPISODES = 100  # of which the return is the mean, as marl_sb3's
PACKAGES = ("jax", "jaxlib", "numpy")
Array = Any
Weights = Any  # a tree of arrays


# --- The envs --------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """One step of E envs with A agents each."""

    rewards: Array  # (E, A)
    terminated: Array  # (E,) bool
    truncated: Array  # (E,) bool
    last: Array  # (E, A, ...): observations after the step, before envs start again


class CartPole:
    """E times CartPole-v1, with one agent each."""

    n_actions, inputs = 2, 4
    gravity, mass, pole_mass, half_length, force, tau = 9.8, 1.1, 0.1, 0.5, 10.0, 0.02
    most_angle, most_place, most_steps = 12 * 2 * math.pi / 360, 2.4, 500

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs

    def reset(self, key: Array) -> Any:
        """The state of envs that start: place, speed, angle and angular speed (E, 4), and steps done (E,)."""
        return jax.random.uniform(key, (self.n_envs, 4), minval=-0.05, maxval=0.05), jnp.zeros(self.n_envs, jnp.int32)

    def observe(self, state: Any) -> Array:
        """(E, 1, 4) float32."""
        return state[0][:, None]

    def step(self, state: Any, actions: Array, key: Array) -> tuple[Any, Step]:
        """Push each cart to the left or right: (E, 1) actions."""
        moving, steps = state
        _, speed, angle, turning = moving.T
        push = self.force * (2.0 * actions[:, 0] - 1.0)
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        pole = self.pole_mass * self.half_length
        both = (push + pole * turning**2 * sin) / self.mass
        inertia = self.half_length * (4.0 / 3.0 - self.pole_mass * cos**2 / self.mass)
        angular = (self.gravity * sin - cos * both) / inertia
        linear = both - pole * angular * cos / self.mass
        rates = jnp.stack([speed, linear, turning, angular], -1)
        moved, steps = moving + self.tau * rates, steps + 1
        terminated = (jnp.abs(moved[:, 0]) > self.most_place) | (jnp.abs(moved[:, 2]) > self.most_angle)
        truncated = ~terminated & (steps >= self.most_steps)
        start, zero = self.reset(key)
        ended = terminated | truncated
        state = jnp.where(ended[:, None], start, moved), jnp.where(ended, zero, steps)
        return state, Step(jnp.ones((self.n_envs, 1)), terminated, truncated, moved[:, None])


class Arena:
    """E arenas of 10 x 10 cells; `marl_sb3/envs/arena/rules.py` explains the rules."""

    n_actions, inputs, cells, most_steps = 4, 200, 100, 100

    def __init__(self, n_envs: int) -> None:
        self.n_envs = n_envs
        row, column = np.divmod(np.arange(self.cells)[:, None], 10)
        up_right_down_left = np.array([[-1, 0, 1, 0], [0, 1, 0, -1]])
        rows, columns = np.clip(row + up_right_down_left[0], 0, 9), np.clip(column + up_right_down_left[1], 0, 9)
        self.destinations = jnp.asarray(rows * 10 + columns, jnp.int32)

    def reset(self, _: Array) -> Any:
        """The cells of both agents (E, 2), the cells that agent1 has visited (E, 100), and steps done (E,)."""
        corners = jnp.tile(jnp.array([0, self.cells - 1], jnp.int32), (self.n_envs, 1))
        return corners, jnp.zeros((self.n_envs, self.cells), bool), jnp.zeros(self.n_envs, jnp.int32)

    def observe(self, state: Any) -> Array:
        """(E, 2, 2) int32: the own cell and the other's."""
        return self._seen(state[0])

    def _seen(self, cells: Array) -> Array:
        return jnp.stack([cells, cells[:, ::-1]], -1)

    def step(self, state: Any, actions: Array, key: Array) -> tuple[Any, Step]:
        """Move both agents, in an order that a coin decides: (E, 2) actions."""
        cells, visited, steps = state
        wanted = self.destinations[cells, actions]
        first = jax.random.bernoulli(key, shape=(self.n_envs, 1))
        moves_first = jnp.concatenate([first, ~first], 1)
        wants_old = wanted == cells[:, ::-1]
        blocked = jnp.where(moves_first | wants_old[:, ::-1], wants_old, wanted[:, :1] == wanted[:, 1:])
        cells, steps = jnp.where(blocked, cells, wanted), steps + 1
        envs = jnp.arange(self.n_envs)
        before = visited[envs, cells[:, 0]]
        after = before | ~blocked[:, 0]
        visited = visited.at[envs, cells[:, 0]].set(after)
        collided, found = blocked.any(1), after & ~before
        explorer = jnp.where(collided, -1.0, jnp.where(found, 1.0, -0.5))
        rewards = jnp.stack([explorer, jnp.where(collided, 1.0, -0.1)], -1)
        truncated = steps >= self.most_steps
        start = self.reset(key)
        held = lambda new, old: jnp.where(truncated.reshape(-1, *[1] * (old.ndim - 1)), new, old)  # noqa: E731
        step = Step(rewards, jnp.zeros_like(truncated), truncated, self._seen(cells))
        return jax.tree.map(held, start, (cells, visited, steps)), step


ENVS = {"CartPole-v1": CartPole, "arena": Arena}


# --- The networks ----------------------------------------------------------------------------------------------------


def network(key: Array, sizes: list[int], last_gain: float) -> Weights:
    """Weights and biases of layers; orthogonal, as in SB3 and PureJaxRL."""
    gains = [math.sqrt(2.0)] * (len(sizes) - 2) + [last_gain]
    keys = jax.random.split(key, len(gains))
    orthogonal = jax.nn.initializers.orthogonal
    return [
        (orthogonal(gain)(each, shape), jnp.zeros(shape[1]))
        for each, gain, shape in zip(keys, gains, pairwise(sizes), strict=True)
    ]


def forward(layers: Weights, seen: Array) -> Array:
    """The outputs for observations (..., inputs), or (..., 2) integers that stand for one-hot vectors."""
    (first, bias), *rest = layers
    if jnp.issubdtype(seen.dtype, jnp.integer):
        half = first.shape[0] // 2
        hidden = first[seen[..., 0]] + first[half + seen[..., 1]] + bias
    else:
        hidden = seen @ first + bias
    for weight, bias in rest:
        hidden = jnp.tanh(hidden) @ weight + bias
    return hidden


# --- PPO -------------------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """All that changes from iteration to iteration."""

    weights: Weights
    moments: tuple[Weights, Weights]  # of Adam
    updates: Array  # gradient steps done
    iterations: Array
    env: Any
    returns: Array  # (E,) sum of the rewards of the running episodes
    key: Array


class Rollout(NamedTuple):
    """T steps of E envs with A agents."""

    seen: Array  # (T, E, A, ...)
    actions: Array  # (T, E, A)
    logits: Array  # (T, E, A, n)
    step: Step
    returns: Array  # (T, E) of the episodes that ended, zeros elsewhere


def adam(weights: Weights, moments: Any, gradient: Weights, count: Array, rate: Array, most: float) -> Any:
    """Adam with epsilon 1e-5, after the gradient was clipped to a norm; returns weights and moments."""
    norm = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1.0, most / (norm + 1e-6))
    gradient = jax.tree.map(lambda g: g * scale, gradient)
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, moments[0], gradient)
    square = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, moments[1], gradient)
    first, second = 1 - 0.9**count, 1 - 0.999**count
    change = lambda w, m, v: w - rate * (m / first) / (jnp.sqrt(v / second) + 1e-5)  # noqa: E731
    return jax.tree.map(change, weights, mean, square), (mean, square)


class PPO:
    """A training.

    Args:
        env: name of the env.
        hyperparameters: with SB3's names, `n_envs`, `net_arch`, and `n_timesteps` for a learning rate `lin_X`.
        seed: of everything random.
        call_env_steps: of a call, about.
    """

    def __init__(self, env: str, hyperparameters: Mapping[str, Any], seed: int, call_env_steps: int) -> None:
        self.h = hyperparameters
        self.env = ENVS[env](self.h["n_envs"])
        self.rollout_env_steps = self.h["n_envs"] * self.h["n_steps"]
        iterations = max(1, call_env_steps // self.rollout_env_steps)
        self.call_env_steps = iterations * self.rollout_env_steps
        self.state = self._first(jax.random.PRNGKey(seed))
        program = jax.jit(partial(lax.scan, self._iteration, length=iterations), donate_argnums=0)
        self._call = program.lower(self.state, None).compile()

    def call(self) -> tuple[Array, Array]:
        """Train for some iterations; return which episodes ended, and their sums of returns: (iterations, T, E)."""
        self.state, ended = self._call(self.state, None)
        return jax.block_until_ready(ended)

    def _first(self, key: Array) -> State:
        actor, critic, start, key = jax.random.split(key, 4)
        sizes = [self.env.inputs, *self.h["net_arch"]]
        weights = network(actor, [*sizes, self.env.n_actions], 0.01), network(critic, [*sizes, 1], 1.0)
        zeros = lambda: jax.tree.map(jnp.zeros_like, weights)  # noqa: E731
        returns = jnp.zeros(self.h["n_envs"])
        return State(weights, (zeros(), zeros()), jnp.int32(0), jnp.int32(0), self.env.reset(start), returns, key)

    def _iteration(self, state: State, _: None) -> tuple[State, tuple[Array, Array]]:
        state, rollout = lax.scan(self._act, state, length=self.h["n_steps"])
        state = state._replace(iterations=state.iterations + 1)
        state = self._update(state, rollout)
        return state, (rollout.step.terminated | rollout.step.truncated, rollout.returns)

    def _act(self, state: State, _: None) -> tuple[State, Rollout]:
        key, sample, chance = jax.random.split(state.key, 3)
        seen = self.env.observe(state.env)
        logits = forward(state.weights[0], seen)
        actions = jax.random.categorical(sample, logits)
        env, step = self.env.step(state.env, actions, chance)
        returns = state.returns + step.rewards.sum(1)
        ended = step.terminated | step.truncated
        state = state._replace(env=env, returns=jnp.where(ended, 0.0, returns), key=key)
        return state, Rollout(seen, actions, logits, step, jnp.where(ended, returns, 0.0))

    def _advantages(self, state: State, rollout: Rollout) -> tuple[Array, Array]:
        """Advantages and targets of the critic, (T, E, A)."""
        step, critic = rollout.step, state.weights[1]
        values = forward(critic, rollout.seen)[..., 0]
        next_values = forward(critic, self.env.observe(state.env))[None, ..., 0]
        next_values = jnp.concatenate([values[1:], next_values])
        cut = step.truncated[..., None]
        next_values = lax.cond(
            cut.any(),
            lambda: jnp.where(cut, forward(critic, step.last)[..., 0], next_values),
            lambda: next_values,
        )
        going = 1.0 - step.terminated[..., None]
        errors = step.rewards + self.h["gamma"] * next_values * going - values
        kept = self.h["gamma"] * self.h["gae_lambda"] * (going * ~cut)
        add = lambda advantage, each: 2 * (each[0] + each[1] * advantage,)  # noqa: E731
        advantages = lax.scan(
            add, jnp.zeros_like(errors[0]), (errors, jnp.broadcast_to(kept, errors.shape)), reverse=True, unroll=16
        )[1]
        return advantages, advantages + values

    def _update(self, state: State, rollout: Rollout) -> State:
        advantages, targets = self._advantages(state, rollout)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(rollout.logits), rollout.actions[..., None], -1)[..., 0]
        rows = jax.tree.map(
            lambda each: each.reshape(-1, *each.shape[3:]),
            (rollout.seen, rollout.actions, chosen, advantages, targets),
        )
        rate = self._learning_rate(state.iterations)

        def minibatch(carry: Any, batch: Any) -> tuple[Any, None]:
            weights, moments, updates = carry
            gradient = jax.grad(self._loss)(weights, *batch)
            return (*adam(weights, moments, gradient, updates + 1, rate, self.h["max_grad_norm"]), updates + 1), None

        def epoch(carry: Any, key: Array) -> tuple[Any, None]:
            size, count = self.h["batch_size"], len(rows[1]) // self.h["batch_size"]
            order = jax.random.permutation(key, len(rows[1]))[: size * count]
            batches = jax.tree.map(lambda each: each[order].reshape(count, size, *each.shape[1:]), rows)
            return lax.scan(minibatch, carry, batches)

        key, *keys = jax.random.split(state.key, 1 + self.h["n_epochs"])
        carry = state.weights, state.moments, state.updates
        weights, moments, updates = lax.scan(epoch, carry, jnp.stack(keys))[0]
        return state._replace(weights=weights, moments=moments, updates=updates, key=key)

    def _learning_rate(self, iterations: Array) -> Array:
        rate = self.h["learning_rate"]
        if not isinstance(rate, str):
            return rate
        return float(rate.removeprefix("lin_")) * (1 - iterations * self.rollout_env_steps / self.h["n_timesteps"])

    def _loss(
        self, weights: Weights, seen: Array, actions: Array, old: Array, advantages: Array, targets: Array
    ) -> Array:
        h = self.h
        logs = jax.nn.log_softmax(forward(weights[0], seen))
        ratio = jnp.exp(jnp.take_along_axis(logs, actions[:, None], 1)[:, 0] - old)
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = jnp.clip(ratio, 1 - h["clip_range"], 1 + h["clip_range"])
        policy = -jnp.minimum(advantages * ratio, advantages * clipped).mean()
        value = ((forward(weights[1], seen)[:, 0] - targets) ** 2).mean()
        entropy = -(jnp.exp(logs) * logs).sum(1).mean()
        return policy + h["vf_coef"] * value - h["ent_coef"] * entropy


# --- The side --------------------------------------------------------------------------------------------------------


def timed(env: str, hyperparameters: Mapping[str, Any], seed: int) -> Training:
    """A training whose calls are timed."""
    ppo = PPO(env, hyperparameters, seed, TIMED_ENV_STEPS)
    return Training(ppo.call, ppo.call_env_steps)


def until(env: str, hyperparameters: Mapping[str, Any], seed: int, stop_return: float) -> Iterator[dict[str, Any]]:
    """Train until the latest episodes have this mean return or `n_timesteps` are over; yield a line per call."""
    started_s = time.perf_counter()
    ppo, latest = PPO(env, hyperparameters, seed, ASKED_ENV_STEPS), deque[float](maxlen=EPISODES)
    env_steps, mean = 0, None
    while env_steps < hyperparameters["n_timesteps"] and (mean is None or mean < stop_return):
        ended, returns = map(np.asarray, ppo.call())
        latest.extend(returns[ended].tolist())
        env_steps += ppo.call_env_steps
        mean = sum(latest) / len(latest) if latest else None
        yield {"env_steps": env_steps, "episode_return_mean": mean, "seconds": time.perf_counter() - started_s}


def main() -> None:
    """Print versions, and a line for each case; with `--stop-return`, train one case and print a line for each call."""
    parser = side_parser(__doc__, "list of cases: name, env and hyperparameters with SB3's names")
    parser.add_argument(
        "--stop-return", type=float, help="train the first case until this mean return; default: time all"
    )
    parser.add_argument("--cache", metavar="DIR", help="keep compiled programs there; default: JAX's, nowhere")
    arguments = parser.parse_args()
    if arguments.cache:
        jax.config.update("jax_compilation_cache_dir", arguments.cache)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    print_versions(PACKAGES)
    if arguments.stop_return is None:
        print_costs(timed, arguments)
        return
    case = arguments.trained[0]
    for line in until(case["env"], case["hyperparameters"], arguments.seed, arguments.stop_return):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()

"""What SB3's policies compute: actions with recurrent state and masks, values, distributions of actions, Q values."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import attrgetter
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.distributions import Distribution, StateDependentNoiseDistribution
from stable_baselines3.common.preprocessing import preprocess_obs

from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Field
from marl_sb3.core.state.state import StateReader
from marl_sb3.types import Array, BoolArray, FloatArray

States = tuple[Array, ...]  # (layers, rows, size) each; () for a policy without memory


def takes_masks(algorithm: BaseAlgorithm, *, needed: bool = False) -> bool:
    """Whether the algorithm's `predict` takes action masks, as MaskablePPO's does; `needed`: and cannot do without."""
    return _predict_takes_masks(type(algorithm)) and (not needed or trait(algorithm, "needs_masks"))


@cache
def _predict_takes_masks(algorithm: type[BaseAlgorithm]) -> bool:
    for method in (vars(cls)["predict"] for cls in algorithm.__mro__ if "predict" in vars(cls)):
        parameters = inspect.signature(method).parameters
        if "action_masks" in parameters:
            return True
        if all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):  # it hands nothing on
            return False
    return False


def initial_states(algorithm: BaseAlgorithm, rows: int) -> States:
    """Return the recurrent state of `rows` rows at the start of an episode; () for a policy without memory.

    Policies with memory are those with the attributes of sb3-contrib's recurrent policies: their `predict` takes and
    returns the hidden and the cell state of the actor's LSTM.
    """
    shape = getattr(algorithm.policy, "lstm_hidden_state_shape", None)
    return () if shape is None else _hidden_and_cell(shape[0], rows, shape[2])


def _hidden_and_cell(layers: int, rows: int, size: int) -> States:
    return tuple(np.zeros((layers, rows, size), dtype=np.float32) for _ in range(2))


def has_distribution(algorithm: BaseAlgorithm) -> bool:
    """Whether the policy has a distribution of actions."""
    actor = getattr(algorithm.policy, "actor", None)
    return hasattr(algorithm.policy, "get_distribution") or hasattr(actor, "get_action_dist_params")


def critic_states(algorithm: BaseAlgorithm, rows: int) -> States:
    """The state of the critic's own LSTM at the start of an episode; () if it has none."""
    lstm = getattr(algorithm.policy, "lstm_critic", None)
    return () if lstm is None else _hidden_and_cell(lstm.num_layers, rows, lstm.hidden_size)


def values(algorithm: BaseAlgorithm, observations: Any, states: States, starts: BoolArray) -> tuple[FloatArray, States]:
    """Values of observations.

    Args:
        observations: a single observation, or a batch of n.
        states: those of the critic's LSTM, or of the actor's where the critic has none; () for a policy without memory.
        starts: (n,) bool; True where an episode starts: the state is not used there.

    Returns:
        (n,) values, and the new states of the critic's own LSTM; () if it has none.
    """
    policy: Any = algorithm.policy
    seen = _tensor(algorithm, observations)
    with th.no_grad():
        if not states:
            return _rows(policy.predict_values(seen)), ()
        memory, begun = _memory(algorithm, states, starts)
        found = _rows(policy.predict_values(seen, memory, begun))
        if policy.lstm_critic is None:
            return found, ()
        prepared = preprocess_obs(seen, policy.observation_space, normalize_images=policy.normalize_images)
        features = policy.vf_features_extractor(prepared)
        _, after = policy._process_sequence(features, memory, begun, policy.lstm_critic)
    return found, tuple(part.cpu().numpy() for part in after)


def distribution(
    algorithm: BaseAlgorithm, observations: Any, states: States, starts: BoolArray, masks: BoolArray | None
) -> Distribution:
    """The distribution of the actions for a single observation, as a batch of one, or for a batch of n."""
    policy: Any = algorithm.policy
    seen = _tensor(algorithm, observations)
    with th.no_grad():
        if not hasattr(policy, "get_distribution"):
            mean, log_std, more = policy.actor.get_action_dist_params(seen)
            found = policy.actor.action_dist.proba_distribution(mean, log_std, **more)
        else:
            memory = _memory(algorithm, states, starts) if states else ()
            found = policy.get_distribution(seen, *memory, **({} if masks is None else {"action_masks": masks}))
            found = found[0] if states else found
    return copy.copy(found)  # type: ignore[no-any-return] # the policy changes its own with the next call


def log_prob(algorithm: BaseAlgorithm, of: Distribution, actions: Array) -> FloatArray:
    """(n,) log-probabilities of (n, ...) actions as the policy's `predict` returns them."""
    with th.no_grad():
        return _rows(of.log_prob(_actions(algorithm, actions)))


def q_values(
    algorithm: BaseAlgorithm, observations: Any, actions: Array | None, states: States = (), starts: Any = None
) -> FloatArray:
    """Q values.

    Args:
        observations: a single observation, or a batch of n.
        actions: (n, ...) actions as the policy's `predict` returns them; None: the most likely ones. Not used where
            there is one value for each action.
        states: recurrent state, and `starts` as in `values`, where the policy has a value for each action.

    Returns:
        (n, number of actions), or (n, number of critics); means over the quantiles of QRDQN and TQC.
    """
    policy: Any = algorithm.policy
    seen = _tensor(algorithm, observations)
    with th.no_grad():
        if isinstance(algorithm.action_space, spaces.Discrete):
            net = next(getattr(policy, name) for name in ("q_net", "quantile_net", "critic") if hasattr(policy, name))
            found = net(seen, *(_memory(algorithm, states, starts) if states else ()))
            found = found.mean(dim=1) if found.dim() == 3 else found  # it has quantiles
        else:
            taken = policy._predict(seen, deterministic=True) if actions is None else _actions(algorithm, actions)
            of_critics = policy.critic(seen, taken)
            found = th.cat(of_critics, dim=1) if isinstance(of_critics, tuple) else of_critics.mean(dim=2)
    return found.cpu().numpy()  # type: ignore[no-any-return]


# --- Tensors ---------------------------------------------------------------------------------------------------------


def _tensor(algorithm: BaseAlgorithm, observations: Any) -> Any:
    policy = algorithm.policy
    policy.set_training_mode(False)  # as `predict` does: batch normalisation and dropout stand still
    return policy.obs_to_tensor(observations)[0]


def _memory(algorithm: BaseAlgorithm, states: States, starts: BoolArray) -> tuple[tuple[th.Tensor, ...], th.Tensor]:
    device = algorithm.device
    memory = tuple(th.tensor(part, dtype=th.float32, device=device) for part in states)
    return memory, th.tensor(starts, dtype=th.float32, device=device)


def _actions(algorithm: BaseAlgorithm, actions: Array) -> th.Tensor:
    """Actions as the policy samples them: SB3 rescales those of squashed policies, and flattens Boxes."""
    space = algorithm.action_space
    if not isinstance(space, spaces.Box):
        return th.tensor(actions, device=algorithm.device)
    scaled = algorithm.policy.scale_action(actions) if algorithm.policy.squash_output else actions
    return th.tensor(scaled, dtype=th.float32, device=algorithm.device).reshape(len(actions), -1)


def _rows(tensor: th.Tensor) -> FloatArray:
    return tensor.cpu().numpy().reshape(-1)


# --- The exploration noise of gSDE, which SB3 keeps in the distribution of actions -----------------------------------


def uses_noise(algorithm: BaseAlgorithm) -> bool:
    """Whether the algorithm explores by gSDE."""
    return bool(trait(algorithm, "use_sde"))


def _noisy(policy: Any) -> Any:
    """The module with the action distribution: the actor of an off-policy policy, else the policy itself."""
    return policy.actor if isinstance(getattr(policy, "actor", None), th.nn.Module) else policy


@contextmanager
def noise_of_rows(policy: Any, acting: BoolArray) -> Iterator[None]:
    """Select the noise matrices of the acting rows inside the context.

    SB3 finds a row's matrix by the row's position in the batch, and uses one matrix for all rows if the batch has
    another length. A batch of only the acting rows therefore needs a selection of matrices. Without gSDE nothing
    changes.

    Args:
        policy: an SB3 policy whose noise was drawn for all rows.
        acting: (rows,) bool; the rows of the batch that is evaluated inside the context, in this order.
    """
    distribution: Any = getattr(_noisy(policy), "action_dist", None)
    noisy = isinstance(distribution, StateDependentNoiseDistribution)
    # If a callback drew another number of matrices, all rows share one, as in SB3.
    if not noisy or len(distribution.exploration_matrices) != len(acting) or acting.all():
        yield
        return
    drawn = distribution.exploration_mat, distribution.exploration_matrices
    rows = th.as_tensor(np.flatnonzero(acting), device=drawn[1].device)
    distribution.exploration_matrices = drawn[1][rows]
    if len(rows) == 1:  # SB3 reads the single matrix for a batch of one
        distribution.exploration_mat = distribution.exploration_matrices[0]
    try:
        yield
    finally:
        distribution.exploration_mat, distribution.exploration_matrices = drawn


@contextmanager
def preserve_noise(algorithms: Iterable[Any]) -> Iterator[None]:
    """Restore the noise of these algorithms on exit: inside, noise is drawn on a copy of the distribution."""
    found = [(_noisy(a.policy), _noisy(a.policy).action_dist) for a in algorithms if uses_noise(a)]
    try:
        for module, distribution in found:
            module.action_dist = copy.copy(distribution)
        yield
    finally:
        for module, distribution in found:
            module.action_dist = distribution


# --- State -----------------------------------------------------------------------------------------------------------


def noise(path: str) -> Field:
    """The noise matrices of an algorithm, an attribute: that for a single observation, then one for each row drawn.

    None without gSDE.
    """
    get = attrgetter(path)

    def matrices(owner: Any) -> Array | None:
        if not uses_noise(get(owner)):
            return None
        drawn = _noisy(get(owner).policy).action_dist
        joined: Array = th.cat([drawn.exploration_mat[None], drawn.exploration_matrices]).detach().cpu().numpy()
        return joined

    def read(owner: Any, state: StateReader, name: str) -> Array | None:
        own = matrices(owner)
        return state.like(name, None) if own is None else state.array(name, own.dtype, (None, *own.shape[1:]))

    def put(owner: Any, saved: Array | None) -> None:
        if saved is not None:
            distribution = _noisy(get(owner).policy).action_dist
            drawn = th.as_tensor(saved, device=distribution.exploration_mat.device)
            distribution.exploration_mat, distribution.exploration_matrices = drawn[0], drawn[1:]

    return Field(matrices, read, put)

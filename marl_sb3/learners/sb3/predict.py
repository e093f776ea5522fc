"""SB3's `predict` with recurrent state and action masks, for the policies that take them."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.types import Array, BoolArray

States = tuple[Array, ...]  # (layers, rows, size) each; () for a policy without memory


def takes_masks(algorithm: BaseAlgorithm) -> bool:
    """Whether the algorithm's `predict` takes action masks, as sb3-contrib's MaskablePPO does."""
    return _predict_takes_masks(type(algorithm))


@cache
def _predict_takes_masks(algorithm: type[BaseAlgorithm]) -> bool:
    return "action_masks" in inspect.signature(algorithm.predict).parameters


def initial_states(algorithm: BaseAlgorithm, rows: int) -> States:
    """Return the recurrent state of `rows` rows at the start of an episode; () for a policy without memory.

    Policies with memory are those with the attributes of sb3-contrib's recurrent policies: their `predict` takes and
    returns the hidden and the cell state of the actor's LSTM.
    """
    shape = getattr(algorithm.policy, "lstm_hidden_state_shape", None)
    if shape is None:
        return ()
    layers, _, size = shape
    return tuple(np.zeros((layers, rows, size), dtype=np.float32) for _ in range(2))


def predict(
    algorithm: BaseAlgorithm,
    observations: Any,
    states: States,
    starts: BoolArray,
    masks: BoolArray | None,
    deterministic: bool,
) -> tuple[Array, States]:
    """Call the algorithm's `predict`.

    Args:
        observations: a single observation, or a batch of rows.
        states: recurrent state of these rows, laid out as by `initial_states`.
        starts: (rows,) bool; True where an episode starts: the state is not used there.
        masks: (rows, n) bool, or None; only for an algorithm that takes them.
        deterministic: the most likely actions instead of sampled ones.

    Returns:
        The actions as the env takes them, and the new recurrent states.
    """
    more: dict[str, Any] = {} if masks is None else {"action_masks": masks}
    if states:
        more |= {"state": states, "episode_start": starts}
    actions, after = algorithm.predict(observations, deterministic=deterministic, **more)
    return actions, after if states and after is not None else ()

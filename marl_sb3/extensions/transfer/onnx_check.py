"""Check that an ONNX file acts as its policy: compare their outputs for random observations, masks and states."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy, deepcopy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm

from marl_sb3.core.envs.converted import MASK
from marl_sb3.core.sb3 import inference
from marl_sb3.core.vec_env.observations import stacked
from marl_sb3.errors import ExportError
from marl_sb3.extensions.transfer.onnx_graph import (
    CRITIC_STATES,
    NEXT,
    START,
    STATES,
    UNPROCESSED,
    GraphProcessing,
    by_input,
    copy_on_cpu,
    has_q_values,
    more_inputs,
    onnx_packages,
    outputs_of,
    parts_of_distribution,
)
from marl_sb3.types import Array, Observations
from marl_sb3.wrappers.observations import choices_of

TOLERANCE = 1e-4
BATCH_SIZES = (1, 7, 64)
MEMORY_STEPS = 4  # of policies with memory, whose states go in again
_FORBIDDEN = -1e6  # the logits of forbidden actions are below

# The range of samples from wide Boxes: larger numbers would test rounding rather than the graph.
_LARGEST_OBSERVATION = 10.0

Arrays = Mapping[str, Array]


def largest_difference(
    model: bytes,
    algorithm: BaseAlgorithm,
    observation_space: spaces.Space[Any],
    processing: GraphProcessing = UNPROCESSED,
) -> float:
    """Compare an ONNX model, run by onnxruntime, with SB3's `predict`, and with SB3's values and distribution.

    Args:
        model: the content of the file.
        algorithm: the algorithm of the exported policy.
        observation_space: of what the model takes.
        processing: what the model does around the policy.

    Returns:
        The largest difference of an output, divided by the largest number of that output if that is above 1. For
        discrete actions, the difference is the log-probability of SB3's action minus that of the model's: 0 if they
        are the same.

    Raises:
        ConfigError: a package is missing.
        ExportError: onnxruntime cannot run it, or a difference is above `TOLERANCE`.
    """
    session = open_session(model)
    names = [output.name for output in session.get_outputs()]
    space, rng = _checked_space(observation_space), np.random.default_rng(0)
    space.seed(0)
    largest = 0.0
    if algorithm.policy.device.type != "cpu":  # other devices may compute with less precision
        policy, algorithm = copy_on_cpu(algorithm), copy(algorithm)
        algorithm.policy, algorithm.device = policy, th.device("cpu")
    for rows in BATCH_SIZES:
        more = _drawn(algorithm, rows, rng)
        for _ in range(MEMORY_STEPS if START in more else 1):
            observations = stacked([space.sample() for _ in range(rows)])
            received = dict(zip(names, session.run(names, {**by_input(observations), **more}), strict=True))
            received["actions"] = processing.done.from_env(received["actions"])
            normalize, rescale, seen = processing.normalize, processing.rescale, processing.seen.from_env(observations)
            seen = seen if normalize is None else normalize.normalized(seen)
            expected = _by_sb3(algorithm, seen, more)
            if rescale is not None:
                expected["actions"] = rescale(expected["actions"])
            for name, difference in _differences(algorithm.action_space, expected, received, more.get(MASK)).items():
                if not difference <= TOLERANCE:  # True for NaN too
                    words = f"{name} differ by {difference:.2g}; accepted: {TOLERANCE:g}"
                    raise ExportError(f"the ONNX graph does not act as the policy: {words}")
                largest = max(largest, difference)
            after = {name.removeprefix(NEXT): array for name, array in received.items() if name.startswith(NEXT)}
            more = {**_drawn(algorithm, rows, rng), **after}
    return largest


def _drawn(algorithm: BaseAlgorithm, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """Draw what a graph takes besides observations: states, starts of episodes, masks that allow something."""
    drawn = more_inputs(algorithm, rows)
    for name, array in drawn.items():
        numbers = rng.uniform(-1, 1, array.shape)
        drawn[name] = numbers < 0 if array.dtype == np.bool_ else numbers.astype(array.dtype)
    if MASK in drawn:
        first = 0
        for size in choices_of(algorithm.action_space) or ():
            drawn[MASK][np.arange(rows), first + rng.integers(size, size=rows)] = True
            first += size
    return drawn


def open_session(model: bytes) -> Any:
    """Open an ONNX model in onnxruntime, which uses one thread of the CPU.

    Raises:
        ConfigError: a package is missing.
        ExportError: onnxruntime cannot load it.
    """
    _, runtime = onnx_packages()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base
        raise ExportError(f"onnxruntime cannot load the ONNX graph: {str(error).splitlines()[0]}") from error


def _checked_space(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """Return the space with wide Boxes narrowed; images stay as they are."""
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: _checked_space(part) for key, part in space.spaces.items()})
    if isinstance(space, spaces.Box) and space.dtype != np.uint8:
        low, high = (
            np.clip(bound, -_LARGEST_OBSERVATION, _LARGEST_OBSERVATION).astype(space.dtype)
            for bound in (space.low, space.high)
        )
        return spaces.Box(low, high, space.shape, space.dtype)
    return deepcopy(space)


def _by_sb3(algorithm: Any, observations: Observations, more: Arrays) -> dict[str, Array]:
    """Compute what the outputs should be with SB3's own methods, not with those that made the graph."""
    policy, masks, starts = algorithm.policy, more.get(MASK), more.get(START, np.zeros(1, dtype=np.bool_))
    of_actor, of_critic = (tuple(more[name] for name in names if name in more) for names in (STATES, CRITIC_STATES))
    memory = {"state": of_actor, "episode_start": starts} if of_actor else {}
    masked = {} if masks is None else {"action_masks": masks}
    asked = algorithm if has_q_values(policy) else policy  # the policies of Q values know no masks
    actions, after = asked.predict(observations, deterministic=True, **memory, **masked)
    kept = {f"{NEXT}{name}": array for name, array in zip(STATES, after or (), strict=False)}
    if has_q_values(policy):
        q_values = inference.q_values(algorithm, observations, None, of_actor, starts)
        return {"actions": actions, "q_values": q_values, **kept}
    if len(outputs_of(policy)) == 1:  # actions
        return {"actions": actions, **kept}
    found = {"actions": actions}
    if hasattr(policy, "predict_values"):
        values, after_critic = inference.values(algorithm, observations, of_critic or of_actor, starts)
        states = dict(zip((*STATES, *CRITIC_STATES), (*(after or ()), *after_critic), strict=False))
        found |= {"values": values, **{f"{NEXT}{name}": array for name, array in states.items()}}
    with th.no_grad():
        own = parts_of_distribution(inference.distribution(algorithm, observations, of_actor, starts, masks))
    if isinstance(own, th.distributions.Normal):
        return {**found, "mean": own.loc.numpy(), "log_std": own.scale.log().numpy()}
    parts = own if isinstance(own, list) else [own]  # a list for a MultiDiscrete space
    return {**found, "logits": np.concatenate([part.logits.numpy() for part in parts], axis=1)}


def _differences(space: spaces.Space[Any], expected: Arrays, received: Arrays, masks: Array | None) -> dict[str, float]:
    if {name: array.shape for name, array in expected.items()} != {n: array.shape for n, array in received.items()}:
        raise ExportError("the outputs of the ONNX graph have other names or shapes than those of the policy")
    allowed = expected
    if masks is not None and "q_values" in expected:  # which do not tell what is forbidden
        allowed = {**expected, "q_values": np.where(masks, expected["q_values"], -np.inf)}
    likelier = {} if isinstance(space, spaces.Box) else {"actions": _likelier(space, allowed, received["actions"])}
    if masks is not None and "logits" in expected:  # numbers as large as these would hide all differences
        expected, received = ({**each, "logits": _allowed(each["logits"], masks)} for each in (expected, received))
    differences: dict[str, float] = {}
    for name, own in expected.items():
        differences[name] = float(np.max(np.abs(own - received[name])) / max(1.0, np.max(np.abs(own))))
    return differences | likelier


def _allowed(logits: Array, masks: Array) -> Array:
    """Return logits with zeros for what is forbidden, also where there is one for each bit of a MultiBinary space."""
    is_forbidden = ~masks & (logits < _FORBIDDEN) if masks.shape == logits.shape else np.abs(logits) > -_FORBIDDEN
    return np.where(is_forbidden, 0, logits)


def _likelier(space: Any, expected: Arrays, received: Array) -> float:
    """Return the largest log-probability of SB3's choices minus that of the received ones."""
    rows, logits = len(received), expected["q_values" if "q_values" in expected else "logits"]
    chosen, other = (actions.reshape(rows, -1).astype(np.int64) for actions in (expected["actions"], received))
    sizes = np.array(choices_of(space))
    if logits.shape[1] < sizes.sum():  # of a MultiBinary without masks
        return float(np.max(np.abs(logits) * (chosen != other)))
    if ((other < 0) | (other >= sizes)).any():
        return float("inf")
    starts = np.cumsum(sizes) - sizes
    row = np.arange(rows)[:, None]
    return float(np.max(logits[row, starts + chosen] - logits[row, starts + other]))

"""Check that an ONNX file acts as its policy, by comparing their outputs for random observations."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy

from marl_sb3.errors import ExportError
from marl_sb3.transfer.onnx_graph import (
    UNPROCESSED,
    GraphProcessing,
    by_input,
    copy_on_cpu,
    onnx_packages,
)
from marl_sb3.types import Array, Observations

TOLERANCE = 1e-4
BATCH_SIZES = (1, 7, 64)

# The range of samples from wide Boxes: larger numbers would test rounding rather than the graph.
_LARGEST_OBSERVATION = 10.0

Arrays = Mapping[str, Array]


def largest_difference(
    model: bytes,
    algorithm: BaseAlgorithm,
    observation_space: spaces.Space[Any],
    seed: int = 0,
    processing: GraphProcessing = UNPROCESSED,
) -> float:
    """Compare an ONNX model, run by onnxruntime, with SB3's `predict`, and with SB3's values and distribution.

    Args:
        model: the content of the file.
        algorithm: the algorithm of the exported policy.
        observation_space: of what the model takes.
        seed: seed of the observations.
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
    space = _checked_space(observation_space)
    space.seed(seed)
    largest = 0.0
    # Other devices may compute with less precision.
    policy = algorithm.policy if algorithm.policy.device.type == "cpu" else copy_on_cpu(algorithm)
    for rows in BATCH_SIZES:
        observations = _stacked([space.sample() for _ in range(rows)])
        received = dict(zip(names, session.run(names, by_input(observations)), strict=True))
        normalize, rescale = processing.normalize, processing.rescale
        expected = _by_sb3(policy, observations if normalize is None else normalize.normalized(observations))
        if rescale is not None:
            expected["actions"] = rescale(expected["actions"])
        for name, difference in _differences(algorithm.action_space, expected, received).items():
            if not difference <= TOLERANCE:  # True for NaN too
                words = f"{name} differ by {difference:.2g}; accepted: {TOLERANCE:g}"
                raise ExportError(f"the ONNX graph does not act as the policy: {words}")
            largest = max(largest, difference)
    return largest


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


def _stacked(rows: list[Any]) -> Observations:
    if isinstance(rows[0], Mapping):
        return {key: np.stack([row[key] for row in rows]) for key in rows[0]}
    return np.stack(rows)


def _by_sb3(policy: Any, observations: Observations) -> dict[str, Array]:
    """Compute what the outputs should be with SB3's own methods, not with those that made the graph."""
    actions, _ = policy.predict(observations, deterministic=True)
    with th.no_grad():
        more = _values_and_distribution(policy, policy.obs_to_tensor(observations)[0])
    return {"actions": actions, **{name: tensor.detach().cpu().numpy() for name, tensor in more.items()}}


def _values_and_distribution(policy: Any, observations: Any) -> dict[str, th.Tensor]:
    if hasattr(policy, "quantile_net"):
        return {"q_values": policy.quantile_net(observations).mean(dim=1)}
    if hasattr(policy, "q_net"):
        return {"q_values": policy.q_net(observations)}
    if not isinstance(policy, ActorCriticPolicy):
        return {}
    values = {"values": policy.predict_values(observations).flatten()}
    distribution: Any = policy.get_distribution(observations).distribution
    if isinstance(distribution, th.distributions.Normal):
        return {**values, "mean": distribution.loc, "log_std": distribution.scale.log()}
    parts = distribution if isinstance(distribution, list) else [distribution]  # a list for a MultiDiscrete space
    return {**values, "logits": th.cat([part.logits for part in parts], dim=1)}


def _differences(space: spaces.Space[Any], expected: Arrays, received: Arrays) -> dict[str, float]:
    if {name: array.shape for name, array in expected.items()} != {n: array.shape for n, array in received.items()}:
        raise ExportError("the outputs of the ONNX graph have other names or shapes than those of the policy")
    differences = {name: _relative(expected[name], received[name]) for name in expected}
    if not isinstance(space, spaces.Box):
        differences["actions"] = _likelier(space, expected, received["actions"])
    return differences


def _relative(expected: Array, received: Array) -> float:
    return float(np.max(np.abs(expected - received)) / max(1.0, np.max(np.abs(expected))))


def _likelier(space: Any, expected: Arrays, received: Array) -> float:
    """Return the largest log-probability of SB3's choices minus that of the received ones."""
    rows, logits = len(received), expected["q_values" if "q_values" in expected else "logits"]
    chosen, other = (actions.reshape(rows, -1).astype(np.int64) for actions in (expected["actions"], received))
    if isinstance(space, spaces.MultiBinary):
        return float(np.max(np.abs(logits) * (chosen != other)))
    sizes: Array = space.nvec.reshape(-1) if isinstance(space, spaces.MultiDiscrete) else np.array([space.n])
    if ((other < 0) | (other >= sizes)).any():
        return float("inf")
    starts = np.cumsum(sizes) - sizes
    row = np.arange(rows)[:, None]
    return float(np.max(logits[row, starts + chosen] - logits[row, starts + other]))

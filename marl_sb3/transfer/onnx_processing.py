"""The processing that an ONNX graph contains: normalised observations and rescaled actions.

Other processing of observations keeps a memory, or has no counterpart in ONNX. The graph of a policy with such
processing takes processed observations; the metadata of the file say how they are made.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

from marl_sb3.processing import Processing
from marl_sb3.processing.actions import RescaleActions
from marl_sb3.processing.normalize import NormalizeObservations
from marl_sb3.types import Array, Observations

_IN_GRAPH = {"normalize_observations"}


@dataclass(frozen=True)
class GraphProcessing:
    """What a graph does before and after the policy.

    Attributes:
        normalize: of the observations; None: the graph takes them as the policy sees them.
        rescale: of the actions; None: they stay in the policy's space.
    """

    normalize: NormalizeObservations | None = None
    rescale: RescaleActions | None = None

    def observe(self, observations: Observations) -> Observations:
        """Process observations as the graph does, in NumPy."""
        return observations if self.normalize is None else self.normalize.normalized(observations)

    def env_actions(self, actions: Array) -> Array:
        """Process actions as the graph does, in NumPy."""
        return actions if self.rescale is None else self.rescale(actions)

    def traced_observation(self, key: str, observation: th.Tensor) -> th.Tensor:
        """Process one input of the graph; `key` is its key in a Dict, or empty."""
        if self.normalize is None or key not in self.normalize.statistics:
            return observation
        own, clip = self.normalize.statistics[key], self.normalize.clip
        mean, deviation = (th.as_tensor(a) for a in (np.array(own.mean), np.sqrt(own.var + self.normalize.epsilon)))
        return ((observation.double() - mean) / deviation).clamp(-clip, clip).float()

    def traced_actions(self, actions: th.Tensor) -> th.Tensor:
        """Process the actions of the graph."""
        if self.rescale is None:
            return actions
        low, high = (th.as_tensor(bound, dtype=actions.dtype) for bound in (self.rescale.low, self.rescale.high))
        return th.minimum(th.maximum(low + (actions + 1) * 0.5 * (high - low), low), high)


UNPROCESSED = GraphProcessing()


def graph_of(
    processing: Processing, observation_space: spaces.Space[Any]
) -> tuple[GraphProcessing, spaces.Space[Any], dict[str, str]]:
    """Return what a graph contains of a policy's processing, its input space, and its metadata.

    Args:
        processing: of the policy.
        observation_space: of the env.
    """
    normalize = processing.processors.get("normalize_observations")
    if set(processing.processors) <= _IN_GRAPH:
        assert normalize is None or isinstance(normalize, NormalizeObservations)
        metadata = {"input": "observations of the env"} if processing.settings.changed() else {}
        return GraphProcessing(normalize, processing.rescale), observation_space, metadata
    metadata = {"input": "processed observations", "processing": json.dumps(description(processing))}
    return GraphProcessing(None, processing.rescale), processing.observation_space, metadata


def description(processing: Processing) -> dict[str, Any]:
    """Describe processing as JSON data: its settings, the order of observations' steps, and its statistics."""
    return {
        "settings": processing.settings.changed(),
        "order": list(processing.processors),
        "env_observation_space": str(processing.env_observation_space),
        "observation_space": str(processing.observation_space),
        "statistics": {
            name: {"mean": np.array(own.mean).tolist(), "var": np.array(own.var).tolist()}
            for name, own in processing.statistics.items()
        },
    }

"""Type aliases of ids, mappings and arrays that all layers use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

AgentID: TypeAlias = str
PolicyID: TypeAlias = str
PolicyMappingFn: TypeAlias = Callable[..., PolicyID]  # of the agent, or of the agent and the episode

Array: TypeAlias = npt.NDArray[Any]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
FloatArray: TypeAlias = npt.NDArray[np.float32]

# (agent, achieved goals (n, ...), desired goals (n, ...), infos) -> (n,) rewards: an env's `compute_reward`.
GoalRewards: TypeAlias = Callable[[AgentID, Array, Array, Sequence[dict[str, Any]]], Any]

# A batch of observations: one array, or one array per key of a `Dict` space.
Observations: TypeAlias = Array | dict[str, Array]

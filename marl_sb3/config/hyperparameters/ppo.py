"""PPO's hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_sb3.config.hyperparameters.common import ON_POLICY, Epochs, Minibatch, Schedule
from marl_sb3.config.values import PositiveFloat

PPO: Mapping[str, Any] = {
    **ON_POLICY,
    "batch_size": Minibatch,
    "n_epochs": Epochs,
    "clip_range": Schedule,
    "clip_range_vf": Schedule | None,
    "target_kl": PositiveFloat | None,
}

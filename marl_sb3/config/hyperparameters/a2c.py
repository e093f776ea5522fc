"""A2C's hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marl_sb3.config.hyperparameters.common import ON_POLICY
from marl_sb3.config.values import PositiveFloat

A2C: Mapping[str, Any] = {
    **ON_POLICY,
    "rms_prop_eps": PositiveFloat,
    "use_rms_prop": bool,
}

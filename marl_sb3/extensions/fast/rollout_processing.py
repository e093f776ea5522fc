"""The processing of observations and rewards in compiled rollouts: which settings these cover, and their arguments."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from marl_sb3.core.acting.actor import Actor
from marl_sb3.core.processing.rows import ProcessedRows, RowProcessing
from marl_sb3.core.vec_env.observations import with_rows
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.extensions.fast.kernel_tables import filled
from marl_sb3.types import Array
from marl_sb3.wrappers.observations import choices_of

_FEATURES = {"frame_stack", "time_feature", "agent_indicator"}
_KNOWN = {
    *_FEATURES,
    "normalize_observations",
    "clip_observations",
    "clip_rewards",
    "normalize_rewards",
    "clip_normalized_rewards",
    "normalize_epsilon",
    "rescale_actions",
    "team_reward",
}
_OLD_NUMPY = np.lib.NumpyVersion(np.__version__) < "2.0.0"  # divides float32 rewards by a float64 in float32


def why_not_processed(processing: RowProcessing) -> str | None:
    """Say why compiled rollouts cannot process what rows of a policy see and get; None: they can."""
    if type(processing) is RowProcessing:
        return None
    if type(processing) is not ProcessedRows or processing.late_normalizer is not None:
        return "its observations, rewards or actions are processed"
    own, space = processing.processing, processing.processing.env_observation_space
    if "frame_stack" in own.processors and len(space.shape or ()) > 1:
        return "it stacks observations of several axes"
    others = [name for name in own.settings.changed() if name not in _KNOWN]
    if own.settings.team_reward == "shared":
        others = ["team_reward=shared"]
    if others:
        return f"{', '.join(others)} {'is' if len(others) == 1 else 'are'} set"
    if own.normalizer is not None and math.prod(own.env_observation_space.shape or ()) < 2:
        return "it normalises a single number, which NumPy adds up in another order"
    return "NumPy is older than 2.0" if _OLD_NUMPY and own.statistics else None


class RolloutProcessing:
    """The numbers of a policy's processing as the kernel of rollouts takes them, and its results.

    Args:
        actor: acts for the rows of the policy.
        step: the latest one, on which the policy acts first.
        observed: (E, A, ...); what the agents observe, in the memory of the envs.
        places: (rows,) int64; the agents of the rows among those of all envs.
        ended: (rows,) bool; where an episode has ended.
        at: returns the address of an array, which it keeps.

    Attributes:
        fields: of the policy's record, see `kernels.rollouts.POLICY`.
    """

    def __init__(
        self, actor: Actor, step: VecStep, observed: Array, places: Array, ended: Array, at: Callable[[Array], int]
    ) -> None:
        own: Any = actor.processing
        rows, self._processing = actor.rows.num_rows, own
        self._statistics: list[tuple[Any, Array]] = []
        self._memory: dict[str, Array] = {}
        self._ended, self._at = ended, at
        self.fields: dict[str, Any] = {"rewards_at": self._at(np.zeros(rows, np.float32))}
        self.fields |= {"clip": math.inf, "gamma": actor.policy.algorithm.gamma}
        if type(own) is RowProcessing:
            return
        own.processed_observations(step)  # the statistics may not know them yet
        self.fields["clip"] = own.processing.settings.clip_observations
        of_rows = {
            "rows": rows,
            "observed_at": observed.ctypes.data,
            "width": math.prod(observed.shape[2:]),
            "places_at": self._at(places),
            "numbers": math.prod(actor.rows.group.observation_space.shape or ()),
        }
        if own.processing.team_reward is not None:
            team = np.array(actor.rows.team_columns, np.int64)
            divisor = len(team) if own.processing.team_reward == "mean" else 1
            self.fields |= {"team": len(team), "team_at": self._at(team), "team_divisor": divisor}
        if own.processing.settings.changed().keys() - {"rescale_actions", "team_reward", *_FEATURES}:
            self._normalize(of_rows)
        if _FEATURES & own.processing.processors.keys():
            self._see(of_rows, actor)

    def _normalize(self, of_rows: dict[str, int]) -> None:
        """Set the fields of what is normalised and clipped."""
        from marl_sb3.extensions.fast.kernels import processing as kernel

        own = self._processing
        settings, normalizer, of_paid = own.processing.settings, own.processing.normalizer, own.processing.returns
        fields = {
            **of_rows,
            "rewards_at": self.fields["rewards_at"],
            "returns_at": own.returns.ctypes.data,
            "ended_at": self._at(self._ended),
            "epsilon": settings.normalize_epsilon,
            "clip_paid": math.inf if settings.clip_rewards is None else settings.clip_rewards,
            "clip_normal": settings.clip_normalized_rewards,
            "discount": own.gamma,
        }
        if normalizer is not None:
            (of_seen,) = normalizer.statistics.values()
            divisors = self._at(np.sqrt(of_seen.var + settings.normalize_epsilon).reshape(-1))
            fields["seen_statistics_at"] = means = self._copied(of_seen)
            fields |= {"seen_recent_at": self._copied(of_seen.recent), "divisors_at": divisors}
            self.fields |= {"means_at": means, "divisors_at": divisors}
        if of_paid is not None:
            fields["paid_statistics_at"] = self._copied(of_paid)
            fields["paid_recent_at"] = self._copied(of_paid.recent)
        self.fields |= {"process": kernel.process().address, "process_at": self._at(filled(kernel.PROCESSING, fields))}

    def _see(self, of_rows: dict[str, int], actor: Actor) -> None:
        """Set the fields of what policies see beyond what the env shows."""
        from marl_sb3.extensions.fast.kernels import features as kernel

        own, rows, numbers = self._processing.processing, of_rows["rows"], of_rows["numbers"]
        choices = choices_of(own.env_observation_space) or ()
        codes = np.tile([own.agents.index(agent) for agent in actor.rows.agents], actor.rows.num_envs)
        self._memory = {name: array.copy() for name, array in self._processing.memory.items()}
        unused = np.zeros((rows, numbers), np.int64 if choices else np.float32), np.zeros(rows, np.int64)
        fields = {
            **of_rows,
            "choices_at": self._at(np.array(choices, np.int64)) if choices else 0,
            "are_ones": isinstance(own.observation_space, spaces.Box),
            **{name: self.fields.pop(name, 0) for name in ("means_at", "divisors_at")},
            "clip": self.fields["clip"],
            "frames": own.settings.frame_stack,
            "stack_at": self._at(self._memory.get("frames", unused[0])),
            "times_at": self._at(self._memory.get("time", unused[1])),
            "time": own.settings.time_feature or 0,
            "codes_at": self._at(codes),
            "codes": len(own.agents) if own.settings.agent_indicator else 0,
            "starts_at": self._at(self._ended),
            "seen_numbers": math.prod(own.observation_space.shape or ()),
        }
        self.fields |= {"features": kernel.features().address, "features_at": self._at(filled(kernel.FEATURES, fields))}

    def _copied(self, statistics: Any) -> int:
        """Return the address of a copy of statistics; 0: there are none."""
        if statistics is None:
            return 0
        array = np.concatenate([np.ravel(statistics.mean), np.ravel(statistics.var), [statistics.count]])
        self._statistics.append((statistics, array))
        return array.ctypes.data

    def write_back(self) -> None:
        """Put statistics and frames where step by step processing goes on with them."""
        for own, array in self._statistics:
            shape, n = np.shape(own.mean), len(array) // 2
            own.mean, own.var = array[:n].reshape(shape).copy(), array[n : 2 * n].reshape(shape).copy()
            own.count = float(array[-1])
        if self._memory:
            initial = self._processing.processing.initial(len(self._ended))
            self._processing.memory = {
                name: with_rows(array, self._ended, initial[name][self._ended]) for name, array in self._memory.items()
            }
        self._processing.invalidate()

"""The processing of one policy: which processors there are, in which order, and their running statistics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.running_mean_std import RunningMeanStd
from typing_extensions import override

from marl_sb3.core.config.settings import ProcessingSettings
from marl_sb3.core.processing.processors import (
    WHOLE,
    AgentIndicator,
    FrameStack,
    Grayscale,
    ObservationProcessor,
    PreviousAction,
    PreviousReward,
    ProcessedPolicy,
    ProcessorInput,
    Resize,
    RowMemory,
    Space,
    TimeFeature,
    map_parts,
    named,
    part,
    parts_of,
    with_parts,
)
from marl_sb3.core.state.fields import Fields, Stateful, array, read_states, scalar, states_of
from marl_sb3.core.state.state import AS_SUMS, MAX_NUMBER, State, StateReader
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, Observations

# --- Running statistics, operation by operation as SB3's `VecNormalize` ----------------------------------------------


_MAX_COUNT = 1e18

Statistics = Mapping[str, "RunningStatistics"]


class RunningStatistics(Stateful, RunningMeanStd):
    """SB3's running mean and variance, which can also keep what came in since a certain moment."""

    fields: ClassVar[Fields] = {
        "mean": array("mean", *AS_SUMS),
        "var": array("var", 0.0, MAX_NUMBER),
        "count": scalar("count", 0.0, _MAX_COUNT),
    }

    recent: RunningStatistics | None = None  # the same since `begin_recent`; None before the first call

    def begin_recent(self) -> None:
        """Begin to keep what comes in from now on."""
        self.recent = RunningStatistics(epsilon=0.0, shape=np.shape(self.mean))

    @override
    def update_from_moments(self, batch_mean: Array, batch_var: Array, batch_count: float) -> None:
        super().update_from_moments(batch_mean, batch_var, batch_count)
        if self.recent is not None:
            self.recent.update_from_moments(batch_mean, batch_var, batch_count)


def recent_state(statistics: Statistics) -> State:
    """Return what came into the statistics since `begin_recent`, by name."""
    return states_of({name: own.recent for name, own in statistics.items() if own.recent is not None})


class NormalizeObservations(ObservationProcessor):
    """See `VecNormalize` with `norm_obs=True`. An observation updates the statistics before it is normalised.

    Attributes:
        clip: limit of the results.
        epsilon: added to variances before they divide.
        before: the space before normalisation.
        statistics: running statistics by key; of a space that is no Dict, under one key.

    Raises:
        ConfigError: a key is unknown or no Box.
    """

    def __init__(self, space: Space, settings: ProcessingSettings, policy: ProcessedPolicy) -> None:
        self.clip, self.epsilon, self.before = settings.clip_observations, settings.normalize_epsilon, space
        boxes = _boxes(space, settings.normalize_keys)
        self.statistics = {key: RunningStatistics(shape=box.shape) for key, box in boxes.items()}
        normal = {key: spaces.Box(-self.clip, self.clip, box.shape, np.float32) for key, box in boxes.items()}
        self.space = with_parts(space, normal)

    @override
    def observe(self, inputs: ProcessorInput) -> tuple[Observations, RowMemory]:
        self.take_in(inputs)
        return self.normalized(inputs.seen), {}

    def take_in(self, inputs: ProcessorInput) -> None:
        """Take observations into the statistics, if these are to learn from them."""
        if inputs.learn:
            for key, own in self.statistics.items():
                own.update(part(inputs.seen, key))

    def normalized(self, seen: Observations) -> Observations:
        """Return normalised observations; the statistics do not change."""
        return map_parts(seen, self._normalized, self.statistics)

    def restored(self, seen: Observations) -> Observations:
        """Return observations normalised and back again, as SB3 keeps the last ones of episodes for its replay buffers.

        That is the observation up to rounding, and up to `clip`.
        """

        def back(key: str, array: Array) -> Array:
            own, dtype = self.statistics[key], parts_of(self.before)[key].dtype
            numbers: Array = self._normalized(key, array) * np.sqrt(own.var + self.epsilon) + own.mean
            return numbers.astype(dtype)

        return map_parts(seen, back, self.statistics)

    def _normalized(self, key: str, array: Array) -> Array:
        own = self.statistics[key]
        limited: Array = np.clip((array - own.mean) / np.sqrt(own.var + self.epsilon), -self.clip, self.clip)
        return limited.astype(np.float32)


def _boxes(space: Space, keys: Sequence[str] | None) -> dict[str, spaces.Box]:
    parts = parts_of(space)
    if keys is not None and WHOLE in parts:
        words = f"normalize_keys is {list(keys)}, but the observation space is {space}; accepted: keys of a Dict"
        raise ConfigError(words, key="normalize_keys")
    for key in keys or ():
        if key not in parts:
            words = f"normalize_keys names {key!r}; the observation has {', '.join(parts)}"
            raise ConfigError(words, key="normalize_keys")
    chosen = {key: parts[key] for key in (parts if keys is None else keys)}
    for key, each in chosen.items():
        if not isinstance(each, spaces.Box):
            hint = "; normalize_keys can leave it out" if key else ""
            words = f"normalize_observations: {named(key)}the space is {each}; accepted: a Box{hint}"
            raise ConfigError(words, key="normalize_observations")
    return chosen  # type: ignore[return-value]


# --- All that is done ------------------------------------------------------------------------------------------------


class RescaleActions:
    """Maps [-1, 1] to the range of a Box, as Gymnasium's `RescaleAction(env, -1, 1)` does.

    Args:
        space: the env's action space.

    Raises:
        ConfigError: the env's action space is no Box with finite bounds.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        of_parts = hasattr(space, "to_env")  # then, some numbers are choices
        if not isinstance(space, spaces.Box) or of_parts or not (space.is_bounded() and (space.low < space.high).all()):
            words = f"rescale_actions: the action space is {space}; accepted: a Box with finite bounds"
            raise ConfigError(words, key="rescale_actions")
        assert space.dtype is not None
        self.low, self.high, self._dtype = space.low, space.high, space.dtype  # those of the env's actions
        self.space = spaces.Box(-1, 1, space.shape, space.dtype.type)  # in which the policy acts

    def __call__(self, actions: Array) -> Array:
        """Convert (rows, ...) actions of the policy to actions of the env."""
        scaled: Array = self.low + (actions + 1) * 0.5 * (self.high - self.low)
        inside: Array = np.clip(scaled, self.low, self.high)  # rounding must not leave the Box
        return inside.astype(self._dtype)

    def reverse(self, actions: Array) -> Array:
        """Convert (rows, ...) actions of the env to actions of the policy."""
        scaled: Array = 2.0 * (actions - self.low) / (self.high - self.low) - 1.0
        return scaled.astype(self._dtype)


# The order in which observations are processed; this is the one place that states it. Rewards are clipped, then
# normalised. Frames are stacked after they are normalised, as rl-baselines3-zoo does it; numbers that are in order
# already, such as one-hot codes, are appended last and stay as they are.
ORDER: Mapping[str, Callable[[Space, ProcessingSettings, ProcessedPolicy], ObservationProcessor]] = {
    "resize": Resize,
    "grayscale": Grayscale,
    "normalize_observations": NormalizeObservations,
    "frame_stack": FrameStack,
    "previous_action": PreviousAction,
    "previous_reward": PreviousReward,
    "time_feature": TimeFeature,
    "agent_indicator": AgentIndicator,
}


class Processing:
    """What is done to the observations, rewards and actions of one policy.

    It holds no memory of rows: `RowProcessing` and `predict` pass it in.

    Args:
        settings: the settings of the policy.
        policy: the policy; its `action_space` is that of the env.
        observation_space: the env's observation space.

    Raises:
        ConfigError: a setting does not fit the spaces; the message names the policy.
    """

    def __init__(self, settings: ProcessingSettings, policy: ProcessedPolicy, observation_space: Space) -> None:
        self.settings, self.agents = settings, policy.agents
        self.team_reward = settings.team_reward  # None: it is left to the algorithm, or each learns from its own
        self.env_observation_space = observation_space
        self.observation_space = observation_space  # the space of processed observations
        self.processors: dict[str, ObservationProcessor] = {}  # by setting, in the order in which they are applied
        changed = settings.changed()
        try:
            self.rescale = RescaleActions(policy.action_space) if settings.rescale_actions else None
            # in which the policy acts
            self.action_space: spaces.Space[Any] = self.rescale.space if self.rescale else policy.action_space
            policy = policy._replace(action_space=self.action_space)
            for name in ORDER:
                if name in changed:
                    self.processors[name] = ORDER[name](self.observation_space, settings, policy)
                    self.observation_space = self.processors[name].space
        except ConfigError as error:
            raise ConfigError(f"policy {policy.policy_id!r}: {error}", key=error.key) from error
        # statistics of the discounted returns, by which rewards are normalised
        self.returns = RunningStatistics(shape=()) if settings.normalize_rewards else None
        found = self.processors.get("normalize_observations")
        self.normalizer = found if isinstance(found, NormalizeObservations) else None
        self._remembering = [each for each in self.processors.values() if each.initial(1)]

    def initial(self, rows: int) -> dict[str, Array]:
        """Return the memory of `rows` rows at the start of an episode."""
        return {name: array for each in self._remembering for name, array in each.initial(rows).items()}

    def observe(
        self, seen: Observations, memory: RowMemory, agents: Array, learn: bool = False, normalize: bool = True
    ) -> tuple[Observations, RowMemory]:
        """Process observations; returns them with the new memory of the rows.

        Args:
            seen: (rows, ...) observations of the env.
            memory: memory of these rows; it is not changed in place.
            agents: (rows,) index of each row's agent among the agents of the policy.
            learn: whether the observations update running statistics.
            normalize: whether observations are normalised; the statistics take them in anyway.
        """
        for each in self.processors.values():
            inputs = ProcessorInput(seen, memory, agents, learn)
            if each is self.normalizer and not normalize:
                self.normalizer.take_in(inputs)
                continue
            seen, changed = each.observe(inputs)
            memory = {**memory, **changed} if changed else memory
        return seen, memory

    def acted(self, memory: RowMemory, actions: Array) -> RowMemory:
        """Return the memory of rows after they have taken these (rows, ...) actions of the policy."""
        for each in self._remembering:
            memory = {**memory, **each.acted(memory, actions)}
        return memory

    # --- State -------------------------------------------------------------------------------------------------------

    @property
    def statistics(self) -> dict[str, RunningStatistics]:
        """All running statistics by name."""
        of_parts = {} if self.normalizer is None else self.normalizer.statistics
        observed = {f"observations/{key}" if key else "observations": own for key, own in of_parts.items()}
        return observed if self.returns is None else {**observed, "returns": self.returns}

    def get_state(self) -> State:
        """Return the running statistics for `read_state`."""
        return states_of(self.statistics)

    def read_state(self, state: StateReader) -> Callable[[], None]:
        """Check what `get_state` returned; see `Part.read_state`.

        Raises:
            CheckpointError: the state does not fit this processing.
        """
        return read_states(self.statistics, state)

"""How the policy of one SB3 algorithm acts: in rollouts by PyTorch or by kernels, exploring, or as `predict` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.noise import ActionNoise, NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor
from typing_extensions import override

from marl_sb3.core.sb3.inference import States, initial_states, takes_masks
from marl_sb3.core.sb3.traits import trait
from marl_sb3.core.state.fields import Fields, Stateful, array
from marl_sb3.core.vec_env.observations import map_arrays
from marl_sb3.errors import ConfigError
from marl_sb3.types import Array, BoolArray, FloatArray, Observations


class PolicyInputs(NamedTuple):
    """The inputs of a policy for some rows."""

    observations: Observations  # (rows, ...)
    starts: BoolArray  # (rows,) bool; True where an episode starts: the recurrent state is not used there
    # (rows, n) bool, True where an action is allowed; None: all are allowed, or the policy takes no masks
    masks: BoolArray | None = None
    states: States = ()  # recurrent state, (layers, rows, size) each; () for a policy without memory
    chosen: BoolArray | None = None  # (all rows,) bool; which rows of the actor these are. None: all.

    @property
    def masked(self) -> dict[str, Any]:
        """The masks as an argument by its name; nothing if there are none."""
        return {} if self.masks is None else {"action_masks": self.masks}

    def of_rows(self, chosen: BoolArray) -> PolicyInputs:
        """Return the inputs of the rows where `chosen`, (rows,) bool, is True."""
        return PolicyInputs(
            map_arrays(lambda array: array[chosen], self.observations),
            self.starts[chosen],
            None if self.masks is None else self.masks[chosen],
            tuple(array[:, chosen] for array in self.states),
            chosen,
        )


class Decision(NamedTuple):
    """What a policy chooses for some rows; (rows, ...) each."""

    actions: Array  # in the action space of the policy
    states: States = ()  # recurrent states after these actions, as in `PolicyInputs`
    learned: Array | None = None  # the actions as the algorithm learns from them; None if it does not learn
    # (rows,) values of the observations, if the algorithm estimates them when it acts; else None
    values: FloatArray | None = None
    log_probs: FloatArray | None = None  # (rows,) log-probabilities of `learned`, together with `values`


class Policy:
    """How one algorithm acts for rows that are to act, with the random draws of SB3.

    Args:
        algorithm: the algorithm.
    """

    takes_masks: bool = False  # whether it uses action masks; if not, it gets none
    # whether images have to be given with the channels first, as SB3's networks take them
    transposes_images: bool = True
    row_noise: RowNoise | None = None  # the action noise of each row of the actor; None: none

    def __init__(self, algorithm: BaseAlgorithm) -> None:
        self.algorithm: Any = algorithm
        self.needs_masks: bool = trait(algorithm, "needs_masks")  # whether it cannot do without masks

    def refresh(self) -> None:
        """Note that weights or modules may have changed since the latest step, by a learner or a callback."""

    def initial_states(self, rows: int) -> States:
        """Return the recurrent state of `rows` rows at the start of an episode; () without memory."""
        return ()

    def act(self, inputs: PolicyInputs) -> Decision:
        """Choose actions."""
        raise NotImplementedError

    def learned(self, actions: Array) -> Array:
        """Return actions as the algorithm learns from them: scaled to -1 to 1 if its network gives them so."""
        policy, is_box = self.algorithm.policy, isinstance(self.algorithm.action_space, spaces.Box)
        scales = isinstance(self.algorithm, OffPolicyAlgorithm) or getattr(policy, "squash_output", False)
        return policy.scale_action(actions) if is_box and scales else actions

    def values(self, inputs: PolicyInputs) -> FloatArray:
        """Return the (rows,) values of observations, for policies that learn from rollouts."""
        raise NotImplementedError

    def final_values(self, inputs: PolicyInputs) -> FloatArray:
        """Return the (rows,) values of observations on which agents were truncated, for the same policies."""
        raise NotImplementedError


class PredictingPolicy(Policy):
    """Chooses actions by SB3's `predict`, without learning from them.

    Args:
        algorithm: the algorithm.
        deterministic: the most likely actions instead of sampled ones.
        with_log_probs: whether sampled actions come with log-probabilities and values, where the algorithm has them
            and no memory. The actions are the same.
    """

    transposes_images = False  # `predict` does it

    def __init__(self, algorithm: BaseAlgorithm, deterministic: bool, with_log_probs: bool = False) -> None:
        super().__init__(algorithm)
        self.takes_masks = takes_masks(algorithm)
        of_parts = hasattr(algorithm.action_space, "to_env")  # then, `predict` gives no arrays
        self._predict: Any = trait(algorithm, "predict_arrays") if of_parts else algorithm.predict
        self._deterministic = deterministic
        can_tell = isinstance(algorithm, OnPolicyAlgorithm) and not initial_states(algorithm, 1)
        self._with_log_probs = with_log_probs and can_tell and not deterministic

    @override
    def initial_states(self, rows: int) -> States:
        return initial_states(self.algorithm, rows)

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        more = inputs.masked
        if self._with_log_probs:
            algorithm: Any = self.algorithm
            with th.no_grad():
                outputs = algorithm.policy(algorithm.policy.obs_to_tensor(inputs.observations)[0], **more)
            sampled, values, log_probs = (output.cpu().numpy() for output in outputs)
            return decision_of(algorithm, sampled, values.reshape(-1), log_probs)
        if inputs.states:
            more |= {"state": inputs.states, "episode_start": inputs.starts}
        actions, after = self._predict(inputs.observations, deterministic=self._deterministic, **more)
        return Decision(actions, after if inputs.states and after is not None else ())


def decision_of(
    algorithm: Any, sampled: Array, values: FloatArray, log_probs: FloatArray, states: States = ()
) -> Decision:
    """Bring sampled actions within the bounds of their space, as `OnPolicyAlgorithm.collect_rollouts` does."""
    space, actions = algorithm.action_space, sampled
    if isinstance(space, spaces.Box):
        squashes = algorithm.policy.squash_output
        actions = algorithm.policy.unscale_action(sampled) if squashes else sampled.clip(space.low, space.high)
    return Decision(actions, states, sampled, values, log_probs)


class RolloutPolicy(Policy):
    """Acts in the rollouts of an on-policy algorithm without memory, and estimates values.

    By the kernels where they cover the policy, else by PyTorch with the operations of SB3's `collect_rollouts`.
    """

    def __init__(self, algorithm: OnPolicyAlgorithm) -> None:
        super().__init__(algorithm)
        self.takes_masks = takes_masks(algorithm)
        self._acting_kernels = trait(algorithm, "acting_kernels")
        self.refresh()

    @override
    def refresh(self) -> None:
        self.kernels: Any = self._acting_kernels()
        if self.kernels is not None:
            self.kernels.read_parameters()

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        if self.kernels is not None:
            return decision_of(self.algorithm, *self.kernels.act(inputs))
        return self._act_by_torch(inputs)

    def _act_by_torch(self, inputs: PolicyInputs) -> Decision:
        with th.no_grad():
            actions, values, log_probs = self.algorithm.policy(self._tensor(inputs.observations), **inputs.masked)
        sampled, values, log_probs = actions.cpu().numpy(), values.cpu().numpy().reshape(-1), log_probs.cpu().numpy()
        return decision_of(self.algorithm, sampled, values, log_probs)

    @override
    def values(self, inputs: PolicyInputs) -> FloatArray:
        if self.kernels is not None:
            return self.kernels.values(inputs)  # type: ignore[no-any-return]
        return self._values(self._tensor(inputs.observations), inputs)

    def final_values(self, inputs: PolicyInputs) -> FloatArray:
        """See `Policy.final_values`.

        PyTorch computes them one by one as in SB3: the last bits depend on the batch size.
        """
        if self.kernels is not None:
            return self.values(inputs)
        values = []
        for row in np.eye(len(inputs.starts), dtype=bool):
            of_row = inputs.of_rows(row)
            observation = map_arrays(lambda array: array[0], of_row.observations)
            values.append(self._values(self.algorithm.policy.obs_to_tensor(observation)[0], of_row))
        return np.concatenate(values)

    def _values(self, observations: Any, inputs: PolicyInputs) -> FloatArray:
        """Return the values of observations as tensors; the other inputs are those of `inputs`."""
        with th.no_grad():
            values = self.algorithm.policy.predict_values(observations, *self._memory(inputs))
        result: FloatArray = values.cpu().numpy().reshape(-1)
        return result

    def _memory(self, inputs: PolicyInputs) -> tuple[Any, ...]:
        """Return what a policy with memory takes to estimate values, besides the observations."""
        return ()

    def _tensor(self, observations: Any) -> Any:
        return obs_as_tensor(observations, self.algorithm.device)


# --- Exploration -----------------------------------------------------------------------------------------------------

_BY_NAME: Mapping[str, Callable[[Array, Array], ActionNoise]] = {
    "normal": NormalActionNoise,
    "ornstein_uhlenbeck": OrnsteinUhlenbeckActionNoise,
}


def make_action_noise(setting: Any, action_space: spaces.Space[Any]) -> ActionNoise | None:
    """Make the action noise that a hyperparameter describes: `{normal: 0.1}`, or an SB3 object, or None.

    Args:
        setting: a mapping of one name to the scale, in an action space of -1 to 1.
        action_space: that of the policy.

    Raises:
        ConfigError: the action space is no Box.
    """
    if setting is None or isinstance(setting, ActionNoise):
        return setting
    if not isinstance(action_space, spaces.Box):
        raise ConfigError(f"action_noise is {setting!r}; accepted for {action_space}: null", key="action_noise")
    ((name, scale),) = setting.items()
    mean = np.zeros(action_space.shape)
    return _BY_NAME[name](mean, np.full(action_space.shape, float(scale)))


class RowNoise(Stateful):
    """A noise process for each row. It starts anew where an episode of the row's agent starts.

    Args:
        base: a process of the policy, of which each row gets a copy.
    """

    def __init__(self, base: ActionNoise, num_rows: int) -> None:
        self._of_rows = [deepcopy(base) for _ in range(num_rows)]

    def draw(self, acting: BoolArray | None) -> Array:
        """Draw for the rows that act, (rows,) bool, or all of them; returns (acting rows, *action shape)."""
        rows = range(len(self._of_rows)) if acting is None else np.flatnonzero(acting)
        return np.stack([self._of_rows[row]() for row in rows])

    def reset(self, rows: BoolArray) -> None:
        """Start the processes of these rows, (rows,) bool, anew."""
        for row in np.flatnonzero(rows):
            self._of_rows[row].reset()

    fields: ClassVar[Fields] = {"previous": array("_previous")}

    @property
    def _previous(self) -> Array | None:
        """What the processes remember, (rows, *action shape); None for processes without memory."""
        kept = [np.asarray(noise.noise_prev) for noise in self._of_rows if hasattr(noise, "noise_prev")]
        return np.stack(kept) if kept else None

    @_previous.setter
    def _previous(self, previous: Array | None) -> None:
        for row, noise in enumerate(self._of_rows if previous is not None else ()):
            noise.noise_prev = previous[row]  # type: ignore[attr-defined, index]


class ExploringPolicy(Policy):
    """Explores as SB3's off-policy algorithms do: random actions until `learning_starts`, then those of `predict`.

    By the kernels where they cover the policy. What is learned of actions in a Box is scaled to -1 to 1.

    Args:
        algorithm: the algorithm.
        row_noise: is added to the scaled actions; None: nothing is.
        warms_up: whether the first actions are random; a policy that is not trained acts by its weights.
    """

    def __init__(self, algorithm: OffPolicyAlgorithm, row_noise: RowNoise | None, warms_up: bool) -> None:
        super().__init__(algorithm)
        self.takes_masks = takes_masks(algorithm)
        self.row_noise = row_noise
        self.warms_up = warms_up
        self._kernels: Any = None
        self._is_read = False

    def refresh(self) -> None:
        """See `Policy.refresh`; the kernels are looked up when they are next needed."""
        self._is_read = False

    @override
    def act(self, inputs: PolicyInputs) -> Decision:
        chosen = self._chosen(inputs)
        if not isinstance(self.algorithm.action_space, spaces.Box):
            return Decision(chosen, (), chosen)
        scaled = self.algorithm.policy.scale_action(chosen)
        if self.row_noise is not None:
            scaled[...] = np.clip(scaled + self.row_noise.draw(inputs.chosen), -1, 1)
        return Decision(self.algorithm.policy.unscale_action(scaled), (), scaled)

    def _chosen(self, inputs: PolicyInputs) -> Array:
        algorithm = self.algorithm
        by_noise = algorithm.use_sde and algorithm.use_sde_at_warmup
        if self.warms_up and algorithm.num_timesteps < algorithm.learning_starts and not by_noise:
            return self._random(inputs)
        return self._chosen_by_policy(inputs)

    def _random(self, inputs: PolicyInputs) -> Array:
        masks: Any = [()] * len(inputs.starts) if inputs.masks is None else zip(inputs.masks.astype(np.int8))
        return np.array([self.algorithm.action_space.sample(*mask) for mask in masks])

    def _chosen_by_policy(self, inputs: PolicyInputs) -> Array:
        algorithm = self.algorithm
        if not self._is_read:
            self._kernels, self._is_read = trait(algorithm, "acting_kernels")(), True
        if self._kernels is not None:
            return self._kernels.explore(inputs.observations, **inputs.masked)  # type: ignore[no-any-return]
        return algorithm.predict(inputs.observations, deterministic=False, **inputs.masked)[0]  # type: ignore[no-any-return]

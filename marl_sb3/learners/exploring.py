"""Choose actions as SB3's off-policy algorithms explore."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from marl_sb3.learners.deciders import Actions, Batch, zero_actions_of
from marl_sb3.learners.replay.fused_updates import FusedUpdate, FusedUpdates
from marl_sb3.learners.sb3.predict import States


class ExploringDecider:
    """Takes random actions until `learning_starts`, then those of `predict`.

    Args:
        warms_up: whether the first actions are random; a policy that is not trained acts by its weights.
    """

    takes_masks = False

    def __init__(self, algorithm: OffPolicyAlgorithm, warms_up: bool) -> None:
        self._algorithm = algorithm
        self._warms_up = warms_up
        self._is_read = False
        self._fused: FusedUpdate | None = None  # what chooses the actions, if the kernels do

    def read_weights(self) -> None:
        """Note that the policy may have other weights than in the latest step, or other modules."""
        self._is_read = False

    def _read(self) -> None:
        algorithm = self._algorithm
        own = type(algorithm).predict is not FusedUpdates.predict  # a subclass may explore in its own way
        self._fused = algorithm.fused_update() if isinstance(algorithm, FusedUpdates) and not own else None
        self._is_read = True

    def initial_states(self, rows: int) -> States:
        """See `Decider.initial_states`."""
        return ()

    def decide(self, batch: Batch) -> tuple[Actions, States]:
        """See `Decider.decide`."""
        algorithm = self._algorithm
        if self._is_warming_up():
            return Actions(np.array([algorithm.action_space.sample() for _ in range(len(batch.starts))])), ()
        if not self._is_read:
            self._read()
        if self._fused is not None:
            return Actions(self._fused.explore(batch.observations)), ()
        actions, _ = algorithm.predict(batch.observations, deterministic=False)
        return Actions(actions), ()

    def _is_warming_up(self) -> bool:
        algorithm = self._algorithm
        by_noise = algorithm.use_sde and algorithm.use_sde_at_warmup
        return self._warms_up and algorithm.num_timesteps < algorithm.learning_starts and not by_noise

    def no_decision(self, rows: int) -> Actions:
        """See `Decider.no_decision`."""
        return Actions(zero_actions_of(self._algorithm, rows))

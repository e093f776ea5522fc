"""A worker's part of the envs: what a vec env needs besides `MultiAgentVecEnv` to be stepped there and brought back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from marl_sb3.errors import CheckpointError, EnvRaisedError
from marl_sb3.types import Array
from marl_sb3.vec_env.interface import MultiAgentVecEnv
from marl_sb3.vec_env.step import VecStep
from marl_sb3.vec_env.workers.plan import ShareState, Shown


class FirstEnvMadeError(Exception):
    """The first env of a share was made, and a later one was not."""

    def __init__(self, env_index: int, error: EnvRaisedError) -> None:
        super().__init__(env_index, error)
        self.env_index = env_index
        self.error = error

    def __str__(self) -> str:
        return str(self.error)


class Share(MultiAgentVecEnv):
    """The vec env of a worker."""

    @property
    @abstractmethod
    def silent(self) -> bool:
        """Whether the infos of the latest step are empty dictionaries, one for each agent that acted."""

    @abstractmethod
    def found_masks(self) -> Mapping[int, bool]:
        """Return group -> whether an agent that acts has a mask, for groups of which the main process decides."""

    @abstractmethod
    def settle_masks(self, masked: Mapping[int, bool]) -> VecStep:
        """Take the decision of the main process, and return the latest step with its masks."""

    @abstractmethod
    def share_state(self) -> ShareState:
        """Return the state for `set_share_state`."""

    @abstractmethod
    def set_share_state(self, state: ShareState) -> Mapping[int, str]:
        """See `MultiAgentVecEnv.set_state`."""

    def bring_back(self, state: ShareState) -> None:
        """Return to an earlier state; envs for which that is not possible are lost."""
        try:
            self.mark_lost(self.set_share_state(state))
        except CheckpointError as error:  # an env's own set_state refused what its get_state had returned
            self.mark_lost(dict.fromkeys(range(self.num_envs), str(error)))
            if self._latest is None:
                self.reset()

    @abstractmethod
    def repeat(self, actions: Sequence[Array]) -> None:
        """Take a step of the past again; an env that fails is lost."""

    @abstractmethod
    def mark_lost(self, reasons: Mapping[int, str]) -> None:
        """Note that these envs, by row, could not be brought back."""

    @abstractmethod
    def replace_lost(self, shown: Shown | None) -> dict[int, str]:
        """Begin new episodes in the envs that are lost, or that show something else than `shown`.

        In the next step, these envs stand still: it reports the reset.

        Returns:
            Row -> reason.
        """

    @abstractmethod
    def go_on(self) -> None:
        """After that step, let them go on."""

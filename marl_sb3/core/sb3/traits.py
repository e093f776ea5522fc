"""What only some algorithms have: a few attributes of SB3's, and those that are for `MultiAgentAlgorithm` alone."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from marl_sb3.errors import ConfigError, require_known
from marl_sb3.types import Array, PolicyID

if TYPE_CHECKING:
    from gymnasium import spaces

    from marl_sb3.doors import Engine

UPDATE_PATHS = ("auto", "fused", "torch")


class AlgorithmTraits:
    """What `trait` looks up on an algorithm, with what holds for algorithms that do not have it.

    No algorithm has to be derived from this class, and those of stock SB3 have little of it.
    """

    rollout_buffer: Any
    env: Any = None  # SB3's envs; an algorithm of the user's own may have none
    policy_aliases: Mapping[str, type[Any]] = {}  # classes of policies by name
    use_sde: bool = False  # whether the policy explores by gSDE
    exploration_rate: float | None = None  # share of random actions; None: exploration is not measured so
    normalize_advantage: bool = False
    clip_range_vf: Any = None  # schedule; None: values are not clipped
    needs_masks: bool = True  # whether an algorithm whose `predict` takes action masks cannot act without them
    accepted_actions: tuple[type[spaces.Space[Any]], ...] | None = None  # None: Discrete for DQN and its kind, else Box
    takes_joined_actions: bool = False  # whether it acts in Tuple and Dict spaces; then it has `predict_arrays`, too
    predict_arrays: Any = None  # as `predict`, but actions of several parts are vectors of `JoinedActions`

    def acting_kernels(self) -> Any:
        """Return what acts in rollouts by compiled code; None: PyTorch does."""

    learns_offline: bool = False  # whether it learns from recorded episodes by its own losses, and is not cloned
    update_path: str | None = None  # the way in which it computes updates; None: it has one way
    num_grad_updates: int | None = None  # optimizer steps since the object was made; None: they are counted for it
    update_stats: Mapping[str, float] = {}  # means over the latest update that SB3's logger does not get
    # classes of replay buffers -> those that this algorithm needs in their place, which hold more of each transition
    replay_buffers: Mapping[Any, Any] = {}

    @staticmethod
    def stacked_frames(spec: Any, stored: spaces.Space[Any]) -> int:
        """Return of how many frames images are stacked, if such buffers hold each frame once; 0: they do not."""
        return 0

    @staticmethod
    def bytes_per_transition(values: Mapping[str, Any]) -> int:
        """Return the memory that a transition takes in such a buffer beside SB3's, with these hyperparameters."""
        return 0

    def compute_returns(self, last_values: Any, dones: Array) -> None:
        """Fill in the returns and advantages of the rollout buffer; see its `compute_returns_and_advantage`."""
        self.rollout_buffer.compute_returns_and_advantage(last_values=last_values, dones=dones)

    def use_threads(self, threads: int) -> None:
        """Note how many threads the next update may have, which PyTorch does not ask for."""

    def prepare_engine(self, policy_id: PolicyID, update_path: str, *, has_more_losses: bool) -> Engine | None:
        """Prepare for updates in a training, and return what computes them; None: the algorithm's `train()`.

        Args:
            policy_id: for messages and the log.
            update_path: the user's choice; see `marl_sb3.PPO`.
            has_more_losses: whether parts of the learner add to the loss; see `LearnerPart`.

        Raises:
            ConfigError: the user has chosen compiled code, which does not compute the updates of this policy.
        """
        if update_path == "fused":
            words = f"update_path is 'fused', and {type(self).__name__} has no fused update"
            raise ConfigError(f"policy {policy_id!r}: {words}; accepted: auto or torch", key="update_path")
        return None


def trait(algorithm: Any, name: str) -> Any:
    """Return an attribute of an algorithm, or of a class of these; else what `AlgorithmTraits` has in its place."""
    default = vars(AlgorithmTraits)[name]
    found = getattr(algorithm, name, default)
    return MethodType(default, algorithm) if found is default and isinstance(default, FunctionType) else found


def require_path(update_path: Any) -> str:
    """Return the name of a way to compute updates.

    Raises:
        ConfigError: there is none of this name.
    """
    require_known(path := str(update_path), UPDATE_PATHS, f"update_path is {update_path!r}", "update_path")
    return path

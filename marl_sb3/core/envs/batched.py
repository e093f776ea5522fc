"""The interface of a batched env: E envs of one kind as arrays, instead of E objects that are stepped one by one.

A `ParallelEnv` class offers a batched version by the class method `make_batched(num_envs, **env_kwargs)`, which
`make_vec_env` then uses. Both versions must return exactly the same for the same seeds and actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gymnasium import spaces

from marl_sb3.core.state.state import State, StateReader
from marl_sb3.doors import IN_THIS_PROCESS, Execution
from marl_sb3.types import AgentID, Array, BoolArray, Observations


class BatchedStep(NamedTuple):
    """The result of a step of E envs with A agents each, before any env is reset."""

    rewards: Array  # (E, A) numbers
    terminated: BoolArray  # (E, A) bool
    truncated: BoolArray  # (E, A) bool
    infos: Mapping[AgentID, Mapping[str, Array]]  # agent -> key -> (E,) values


class BatchedEnv(ABC):
    """E envs whose agents begin their episodes together.

    Where agents have different spaces, `spaces_of` says which; observations, actions and masks are then tuples of what
    is said of them below: one for each set of agents with the same spaces, in order of their first agents.

    Where the `ParallelEnv` takes reset options, `reset` takes a third argument `options`: a mapping for each of the
    envs that are reset. Where it has `configure(**settings)`, the batched env has `configure(env_indices, **settings)`,
    which is called before these envs are reset. The same holds for `set_task(task)` and `set_task(env_indices, task)`.
    Where resets return infos, `reset_infos(env_indices)` returns those of the latest: env index -> agent -> info.
    """

    execution: Execution | str = IN_THIS_PROCESS  # how a training steps such envs
    num_envs: int  # E
    possible_agents: Sequence[AgentID]  # agent ids in the order of the agent axis
    metadata: Mapping[str, Any]  # metadata of the `ParallelEnv`
    render_mode: str | None  # render mode of the `ParallelEnv`
    observation_space: spaces.Space[Any]  # the space of every agent
    action_space: spaces.Space[Any]  # the space of every agent

    def spaces_of(self, agent: AgentID) -> tuple[spaces.Space[Any], spaces.Space[Any]]:
        """Return the observation and the action space of an agent."""
        return self.observation_space, self.action_space

    @abstractmethod
    def reset(self, env_indices: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in these envs, as `ParallelEnv.reset(seed=...)` does in one."""

    @abstractmethod
    def step(self, actions: Array) -> BatchedStep:
        """Step every env.

        Args:
            actions: `(E, A, *action_space.shape)`; of a Tuple or Dict, its parts as such arrays. Actions of agents that
                have ended are ignored.

        Raises:
            EnvError: an action is not accepted.
        """

    @abstractmethod
    def observations(self) -> Observations | tuple[Observations, ...]:
        """The current observations, (E, A, ...), in new arrays that the caller may keep."""

    def action_masks(self) -> BoolArray | tuple[BoolArray | None, ...] | None:
        """(E, A, n) bool: the actions that every agent may take now, laid out as in `VecStep.action_masks`.

        None at the first reset: the envs have no masks, and are not asked again. They are also asked where agents have
        just been truncated, before any env is reset: of these agents, what they could have done next, or all alike.
        """
        return None

    def env_states(self) -> Array | None:
        """(E, ...): what `ParallelEnv.state()` returns, in a new array; None if the envs have no `state()`."""
        return None

    def get_state(self) -> State | None:
        """Return the full state as a tree of plain data and arrays, for `set_state`.

        Arrays and lists with an item for each env have the envs on their first axis: with workers, each of which has a
        batch of its own, states of batches are joined to one and split again. Where the other axes of such arrays
        differ from batch to batch, zeros are added at their ends; `set_state` then gets more than it needs.

        None means that the state cannot be restored: a resumed run then begins new episodes and logs it.
        """
        return None

    def set_state(self, state: StateReader) -> None:
        """Restore a state that `get_state` returned.

        Raises:
            CheckpointError: it is not the state of such envs. It is untrusted: check all of it first.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot be put back")

    def render(self, env_index: int) -> Any:
        """Render one env, as `ParallelEnv.render` does."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def close(self) -> None:  # noqa: B027 - most envs hold nothing
        """Release the resources of the envs."""

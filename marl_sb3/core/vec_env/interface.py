"""The interface of vectorised multi-agent envs: E envs, A agents, arrays with both axes in front; seeds of episodes.

Every vectorizer (batched, sync, SuperSuit's) implements `MultiAgentVecEnv`; higher layers never handle single envs or
dictionaries of agents.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import override

from marl_sb3.core.config.values import Count, require
from marl_sb3.core.envs.converted import SingleAgentEnv
from marl_sb3.core.envs.registry import EnvFactory, make_env
from marl_sb3.core.state.state import State, StateReader
from marl_sb3.core.vec_env.observations import AgentGroup
from marl_sb3.core.vec_env.slot_states import EnvSettings
from marl_sb3.core.vec_env.step import VecStep
from marl_sb3.doors import IN_THIS_PROCESS, Execution, counterpart
from marl_sb3.errors import ConfigError, VecEnvOrderError
from marl_sb3.types import AgentID, Array, GoalRewards

if TYPE_CHECKING:
    from pettingzoo import ParallelEnv
    from stable_baselines3.common.vec_env import VecEnv


Options = Mapping[str, Any] | None  # options of the reset of one env


@dataclass(frozen=True)
class VecEnvRequest:
    """What a vectorizer is asked for: the arguments of `make_vec_env`, which have been checked."""

    factory: EnvFactory  # makes the envs, with `env_kwargs`
    n_envs: int
    seed: int | None
    env_kwargs: Mapping[str, Any]
    vectorizer: str = "auto"
    n_workers: int | str = 0
    worker_timeout_s: float = 300.0
    max_worker_restarts: int = 5
    env_state: bool = False

    def make_env(self, index: int) -> ParallelEnv:
        """Make the env of an index."""
        return make_env(self.factory, index, self.env_kwargs)


@dataclass(frozen=True)
class Health:
    """The state of the processes that step the envs."""

    num_healthy_workers: int  # processes that run
    num_worker_restarts: int  # processes that were replaced since the start


class MultiAgentVecEnv(ABC):
    """E envs stepped together. An env resets itself in the step in which the last of its agents ends.

    `reset` begins episodes. `send` passes actions to the envs and `recv` returns the resulting step; `step` does both.
    Between `send` and `recv` the envs may be running in other processes: all other methods except `close` raise
    `VecEnvOrderError`, and the actions must not be changed.

    A vectorizer implements `_reset`, `_send` and `_recv`, and sets `_latest` in `_set_state`.
    """

    why_not_batched: str | None = None  # why envs are stepped one by one that may have been a batch
    execution: Execution | str = IN_THIS_PROCESS  # steps the envs in a training; or its place, for `doors.imported`
    # whether a step may leave out envs, because clients step them; see `VecStep.stepped`
    steps_apart: ClassVar[bool] = False
    num_envs: int  # E
    agents: tuple[AgentID, ...]  # all agent ids, in the order of the agent axis
    groups: tuple[AgentGroup, ...]  # the agents by their spaces, in order of first appearance
    metadata: Mapping[str, Any]  # the env's own metadata
    render_mode: str | None  # the env's render mode, or None
    _latest: VecStep | None = None
    _sent = False
    shows_env_state = False  # whether each step has an `env_state`

    @property
    def latest(self) -> VecStep:
        """The latest step: from `reset`, from `recv`, or after `set_state`, when no agent has acted yet.

        Raises:
            VecEnvOrderError: there is none before the first reset.
        """
        if self._latest is None:
            raise VecEnvOrderError("the envs have no step yet; call reset() first")
        return self._latest

    @property
    def health(self) -> Health | None:
        """The state of the processes that step the envs; None if this process does."""
        return None

    def seed(self, seed: int) -> None:
        """Set the run seed, from the next `reset` on; see `seeding.episode_seed`."""
        self._require_idle("seed()")
        self._seed(require("seed", seed, Count))

    def reset(self, options: Sequence[Options] | None = None) -> VecStep:
        """Begin a new episode in every env.

        Args:
            options: the options of each env's `reset`; None: no options.

        Returns:
            The first step: `to_act`, observations, masks, and `reset_infos` of every env; see `VecStep`.

        Raises:
            ConfigError: there are options, but not one for each env, or the envs do not take them.
            EnvError: an env broke the `ParallelEnv` contract.
        """
        self._require_idle("reset()")
        if options is not None and len(options) != self.num_envs:
            raise ConfigError(f"reset options for {len(options)} envs; accepted: one for each of {self.num_envs}")
        known = self.metadata.get("reset_options")
        if known is not None:
            unknown = sorted({str(name) for of_env in options or () for name in of_env or () if name not in known})
            if unknown:
                accepted = ", ".join(known) or "none"
                raise ConfigError(f"reset options: {', '.join(unknown)}; the env takes {accepted}")
        self._latest = step = self._reset(options)
        return step

    def step(self, actions: Sequence[Array]) -> VecStep:
        """Take one step in every env: `send` and `recv`."""
        self.send(actions)
        return self.recv()

    def send(self, actions: Sequence[Array]) -> None:
        """Begin a step of every env; `recv` completes it.

        Args:
            actions: per group, `(E, A_group, *action_space.shape)`. Places of agents that do not act are not read.
                They must not change before `recv`.

        Raises:
            VecEnvOrderError: a step is under way already, or there has been no reset.
        """
        if self._sent or self._latest is None:
            twice = "send() twice without recv(); call recv() for the step under way first"
            raise VecEnvOrderError(twice if self._sent else "send() before the first reset(); call reset() first")
        self._send(actions)
        self._sent = True

    def recv(self) -> VecStep:
        """Complete the step that `send` began.

        Raises:
            VecEnvOrderError: `send` has not been called.
            EnvError: an env broke the `ParallelEnv` contract.
        """
        if not self._sent:
            raise VecEnvOrderError("recv() without send(); send() gives the envs the actions of a step")
        self._sent = False
        self._latest = step = self._recv()
        return step

    def continue_with(self, step: VecStep) -> None:
        """Go on from a step that the envs have taken without this object."""
        self._latest = step

    def call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]:
        """Call the method `name` of each of these envs; an attribute that is no method is returned.

        A name is looked up in the env's wrappers from the outermost inwards, then in the env. Every env also has
        `get_wrapper_attr(name)`, `set_wrapper_attr(name, value)` and `has_wrapper(wrapper_class)`. The envs of a
        batched env share its attributes; of its methods, only `render` is for single envs.

        Raises:
            AttributeError: the envs do not have it.
        """
        self._require_idle(f"call({name!r})")
        return self._call(name, env_indices, *args, **kwargs)

    def episode_seeds(self, env_indices: Sequence[int]) -> list[int | None]:
        """Return the seed of the running episode of each of these envs; None if it is not known, or none has begun."""
        return [None] * len(env_indices)

    def limit_episodes(self, env_steps: int) -> None:
        """Truncate all agents after so many env steps of an episode, if the env has not ended it before.

        An agent is truncated with its observation of that step; one that waits, with its last one.

        Raises:
            ConfigError: these envs cannot do that.
        """
        raise ConfigError(f"episode_horizon: {type(self).__name__} cannot end episodes", key="episode_horizon")

    def show_env_state(self) -> None:
        """Let every step from now on have an `env_state`, which the envs' `state()` returns."""
        self.shows_env_state = True

    def configure(self, env_indices: Sequence[int], /, **settings: Any) -> None:
        """Change settings of these envs from their next episodes on; running episodes keep theirs.

        An env takes settings if it, or one of its wrappers, has a method `configure(**settings)`; a batched env has
        `configure(env_indices, **settings)`. The method is called right before the env's next reset; it checks the
        values, and its errors are raised from that reset. The settings are part of the state.

        Raises:
            ConfigError: there is no such env, the env has no `configure` or takes no such setting, or a value is not
                plain data, which a checkpoint could not hold.
        """
        self._require_idle("configure()")
        unknown = [index for index in env_indices if index not in range(self.num_envs)]
        if unknown:
            raise ConfigError(f"configure: env index {unknown[0]!r}; accepted: 0 to {self.num_envs - 1}")
        self._configure(env_indices, settings)

    @abstractmethod
    def close(self) -> None:
        """Close every env, even while a step is under way. A second call does nothing."""

    def get_state(self) -> State:
        """Return the state for `set_state`, also in the middle of episodes."""
        self._require_idle("get_state()")
        return self._get_state()

    def set_state(self, state: StateReader) -> Mapping[int, str]:
        """Restore a state on envs that were made in the same way, and set `latest`.

        Returns:
            Env index -> reason, for every env that could not be restored exactly; it has begun its next episode.

        Raises:
            CheckpointError: the state does not fit the envs.
        """
        self._require_idle("set_state()")
        return self._set_state(state)

    def as_sb3_vec_env(self) -> VecEnv:
        """Return an SB3 `VecEnv` with one row per agent: row `e * A + a` is agent `a` of env `e`.

        If every agent acts in every step, stock SB3's PPO on it gets the same weights as `MultiAgentAlgorithm` with
        one shared policy: bit for bit on PyTorch's path, to floating-point tolerance on the fused path. If agents end
        at different steps, join late or take turns, the two differ: a `VecEnv` cannot mark idle rows, so SB3 also
        trains on steps in which an agent does not act.

        Raises:
            ConfigError: the agents' spaces differ.
        """
        from marl_sb3.core.vec_env.flat_vec_env import FlatVecEnv

        return FlatVecEnv(self)

    def __getattr__(self, name: str) -> Any:
        """Raise an error; its message refers to what does the same here as a name of SB3's `VecEnv`."""
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{counterpart(name, 'env', owner=self)}")

    def _require_idle(self, call: str) -> None:
        if self._sent:
            raise VecEnvOrderError(f"{call} between send() and recv(); call recv() first")

    # --- What a vectorizer implements: the methods above, which have checked the order of calls and their arguments --

    @abstractmethod
    def _seed(self, seed: int) -> None: ...
    @abstractmethod
    def _reset(self, options: Sequence[Options] | None) -> VecStep: ...
    @abstractmethod
    def _send(self, actions: Sequence[Array]) -> None: ...
    @abstractmethod
    def _recv(self) -> VecStep: ...
    @abstractmethod
    def _call(self, name: str, env_indices: Sequence[int], /, *args: Any, **kwargs: Any) -> list[Any]: ...
    @abstractmethod
    def _configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None: ...
    @abstractmethod
    def _get_state(self) -> State: ...
    @abstractmethod
    def _set_state(self, state: StateReader) -> Mapping[int, str]: ...  # sets `_latest`


class InProcessVecEnv(MultiAgentVecEnv):
    """A vec env that steps its envs in this process: `recv` does the work."""

    _actions: Sequence[Array]
    settings: Sequence[EnvSettings]  # one for each env
    _closed = False

    def step(self, actions: Sequence[Array]) -> VecStep:
        """See `MultiAgentVecEnv.step`; the same without the way through `send` and `recv`."""
        if self._sent or self._latest is None:
            self.send(actions)  # which refuses it
        self._latest = step = self._step(actions)
        return step

    def _send(self, actions: Sequence[Array]) -> None:
        self._actions = actions

    def _recv(self) -> VecStep:
        return self._step(self._actions)

    def _configure(self, env_indices: Sequence[int], settings: Mapping[str, Any]) -> None:
        for index in env_indices:
            self.settings[index].require(settings)
        for index in env_indices:
            self.settings[index].change(settings)

    @override
    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._close()

    @abstractmethod
    def _step(self, actions: Sequence[Array]) -> VecStep: ...
    @abstractmethod
    def _close(self) -> None: ...


def goal_rewards_of(env: MultiAgentVecEnv) -> GoalRewards:
    """Return a function that asks the first env for the rewards of goals.

    It calls the env's `compute_reward(agent, achieved_goals, desired_goals, infos)`; a Gymnasium env's method takes no
    agent. Goals are (n, ...) arrays, infos a list of n dictionaries; the env returns n rewards.
    """

    def rewards(agent: AgentID, achieved: Array, desired: Array, infos: Sequence[dict[str, Any]]) -> Any:
        whose = () if env.call("has_wrapper", [0], SingleAgentEnv)[0] else (agent,)
        return env.call("compute_reward", [0], *whose, achieved, desired, infos)[0]

    return rewards

"""The doors of the core: what an extension implements, and where it says so.

The core uses what stands in a `Door` and names no extension; `marl_sb3.extensions` says which come with the package. A
user's own implementation is added in the same way, from a module that `--import` names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast, runtime_checkable

if TYPE_CHECKING:
    from inspect import Signature

    import numpy as np
    from pettingzoo import ParallelEnv
    from stable_baselines3.common.callbacks import BaseCallback

    from marl_sb3.core.config.algorithms import AlgorithmTable
    from marl_sb3.core.config.settings import PolicySection
    from marl_sb3.core.experience import ExperienceHook, LearnedExperience
    from marl_sb3.core.learners.learner import Learner
    from marl_sb3.core.learners.spec import PolicySpec
    from marl_sb3.core.mapping import PolicyMapping
    from marl_sb3.core.metrics.episodes import EpisodeTracker
    from marl_sb3.core.metrics.names import Result
    from marl_sb3.core.sb3.schedules import Progress
    from marl_sb3.core.state.checkpoint import Checkpoint, Tensors
    from marl_sb3.core.state.state import State, StateReader
    from marl_sb3.core.training.algorithm import MultiAgentAlgorithm
    from marl_sb3.core.training.callback import TrainingWatcher
    from marl_sb3.core.training.runner import LocalRunner, Runner
    from marl_sb3.core.training.setup import Setup
    from marl_sb3.core.vec_env.interface import MultiAgentVecEnv, VecEnvRequest
    from marl_sb3.core.vec_env.observations import AgentGroup
    from marl_sb3.types import AgentID, PolicyID

T = TypeVar("T")


def imported(place: T | str) -> T:
    """Return what stands at a place, `package.module:NAME`, which is imported; anything else as it is."""
    if not isinstance(place, str):
        return place
    module, _, name = place.partition(":")
    return cast("T", getattr(import_module(module), name))


class Door(Generic[T]):
    """The implementations of one protocol, by name and in the order in which they were added.

    Args:
        what: one of them in words, for messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._added: dict[str, T | str] = {}

    def add(self, name: str, implementation: T | str) -> None:
        """Add an implementation; one of the same name is replaced, in its place.

        Args:
            name: the core, a setting or a message refers to it by this name.
            implementation: the object, or its place, `package.module:NAME`, which is imported when it is first used.
        """
        self._added[name] = implementation

    def remove(self, name: str) -> None:
        """Remove an implementation."""
        del self._added[name]

    def __contains__(self, name: object) -> bool:
        return name in self._added

    def __getitem__(self, name: str) -> T:
        """Return an implementation, which is imported if it has not been.

        Raises:
            KeyError: there is none of this name.
        """
        if name not in self._added:
            raise KeyError(f"unknown {self._what} {name!r}; accepted: {', '.join(self._added) or 'none is there'}")
        added = self._added[name] = imported(self._added[name])
        return added

    def names(self) -> list[str]:
        """Return the names, without importing anything."""
        return list(self._added)

    def added(self) -> dict[str, T | str]:
        """Return what was added, places as such, so that another process can add it."""
        return dict(self._added)

    def __iter__(self) -> Iterator[T]:
        return (self[name] for name in self.names())


# --- Envs ------------------------------------------------------------------------------------------------------------


class EnvKind(Protocol):
    """The envs of a library, and how one of them becomes a `ParallelEnv`, which all else is made for.

    A factory of envs is the user's and may return anything. Of the kinds that recognise what it has returned, the one
    that was added last makes a `ParallelEnv` of it; what nobody recognises has to be one. `recognises` is shown the
    envs of all kinds: it should look at names and classes, and import no library for that. A kind is sent to the
    workers that step its envs.
    """

    what: str  # one of the envs in words, for messages

    def recognises(self, env: Any) -> bool:
        """Whether an env is of this kind."""

    def as_parallel(self, env: Any) -> ParallelEnv:
        """Return the env as a `ParallelEnv`; it is closed with it."""

    def arguments(
        self, factory: Any, signature: Signature, env_kwargs: Mapping[str, Any], env_index: int
    ) -> Sequence[Any] | None:
        """Return the positional arguments of a factory that the kind calls in a way of its own.

        Returns:
            None: this factory takes `env_kwargs` by name, as most do.
        """
        return None


ENV_KINDS: Door[EnvKind] = Door("kind of envs")


class EnvFinder(Protocol):
    """Finds envs by their ids. Those that `marl_sb3.register_env` was given come first, then each finder is asked."""

    reserved: Collection[str] = ()  # ids of the finder's that `register_env` refuses

    def find(self, env_id: str) -> Callable[..., Any] | None:
        """Return the factory of an id; None if the next finder is to be asked.

        Raises:
            ConfigError: the id is one of the finder's, but there is no such env.
        """

    def known_ids(self) -> Iterable[str]:
        """Return ids for the message on one that no finder knows."""
        return ()

    def meant(self, name: str, mine: Sequence[str]) -> str:
        """Say what a name may mean, as one of the ids `mine`; "" if nobody knows. The last finder is asked first."""
        return ""


ENV_FINDERS: Door[EnvFinder] = Door("finder of envs")


class Vectorizer(Protocol):
    """Makes a vec env, which steps the envs that a request asks for.

    The steps do not depend on the vectorizer, to the last bit: `tests/core/vec_env/test_vectorizers.py` has what each
    of them promises. The horizon of episodes and the state of the envs are set on what it returns.
    """

    def __call__(self, request: VecEnvRequest, /) -> MultiAgentVecEnv:
        """Return a vec env of `request.n_envs` envs, each of which `request.make_env(index)` makes.

        Raises:
            ConfigError: it cannot step these envs, or not as the request says.
        """


# By the names that `make_vec_env` takes as `vectorizer`, and the commands after `--vectorizer`.
VECTORIZERS: Door[Vectorizer] = Door("vectorizer")
# The names of those that a request with `n_workers` takes, and factories with `steps_apart`; nobody else can.
STEPPED_ELSEWHERE = ("n_workers", "steps_apart")


# --- Checkpoints -----------------------------------------------------------------------------------------------------


class Store(Protocol):
    """Keeps checkpoints: the state of a training, a tree of plain data and arrays, and the tensors of its policies.

    Of the stores that take a path, the one that was added last writes and reads it. What is read equals what was
    written to the last bit, `-0.0` and the dtypes of arrays too; tuples are read as lists. Tensors may be read when
    they are accessed, by a `marl_sb3.core.state.state.TensorFile`. What is not finite is not written, and what is
    damaged is refused before anything of it is used. A write that fails leaves what was there before.
    `tests/extensions/store/test_stores.py` checks all of it.
    """

    def takes(self, path: str | Path) -> bool:
        """Whether a path that the user names is one of this store's."""

    def folder(self, path: str | Path) -> Path:
        """Return the folder here that a path means, whose signature can be verified.

        Raises:
            ConfigError: there is none.
        """

    def place(self, path: str | Path) -> Path:
        """Return where the checkpoint of a path is kept, in the form that `write` takes and users see.

        Raises:
            ConfigError: there is something else that must not be replaced.
        """

    def write(self, place: Path, state: State, tensors: Tensors, about: Mapping[str, Any]) -> None:
        """Write a checkpoint, or replace the one that is there.

        Args:
            place: from `place`.
            state: a tree of plain data and arrays, with strings as keys.
            tensors: those of policies and their optimizers, by name of a file and of the tensor.
            about: a description, plain data, which can be read without the rest.

        Raises:
            NumericError: an array is not finite; see `marl_sb3.core.state.checkpoint.require_finite`.
            CheckpointError: a tensor has a dtype that checkpoints do not hold; see `require_storable` there.
            OSError: the disk is full or failing.
        """

    def read(self, path: str | Path, which: str | None, use: Callable[[Checkpoint], T]) -> T:
        """Find a checkpoint, pass it on, and return the answer.

        Args:
            path: that of a checkpoint, or of what holds several.
            which: one of several: `latest`, `best`, or the number of an iteration; None: the store chooses.
            use: may be called again with another checkpoint, where a running training removes the first.

        Raises:
            CheckpointError: there is none, or it is damaged; or from `use`.
        """


STORES: Door[Store] = Door("store of checkpoints")


# --- Where policies act and learn -------------------------------------------------------------------------------------


class ExperienceMaker(Protocol):
    """Says where a policy acts and where it learns, and makes what its learner learns from."""

    @property
    def acts_here(self) -> bool:
        """Whether the learner's own actor chooses the actions; if not, copies of the policy act elsewhere."""

    @property
    def learns_here(self) -> bool:
        """Whether the policy is updated in this process; if not, it is such a copy."""

    def make(self, learner: Learner) -> LearnedExperience | None:
        """Make the experience of a learner that has its actor; None if there is nothing to record."""

    def prepare_copy(self, algorithm: Any) -> None:
        """Set what an SB3 algorithm with a replay buffer needs to act as a copy, where `learns_here` is False."""
        return None


class Execution(Protocol):
    """Says where the envs of a training are stepped and where its policies act: the `execution` of a vec env.

    One that has `make_local_runner`, which takes what `local_runner` takes, makes the runners of shards, too.
    """

    @property
    def experience(self) -> ExperienceMaker:
        """For the learners of the training."""

    def make_runner(self, setup: Setup, tracker: EpisodeTracker, progress_after: Callable[[int], Progress]) -> Runner:
        """Make the runner of a training.

        Args:
            setup: the policies, their learners, and the envs, whose `execution` this is.
            tracker: counts the finished episodes.
            progress_after: returns what is left of the training after so many env steps more, from 1 to 0.
        """


IN_THIS_PROCESS = "marl_sb3.core.training.setup:IN_THIS_PROCESS"  # the place of the one that most envs have


# --- Which policy plays which agent -----------------------------------------------------------------------------------


@runtime_checkable
class Assignment(Protocol):
    """Says which policy plays each agent in an episode; an object of it is given as `policy_mapping_fn`.

    The rows of agents that a policy does not play in an episode wait: it does not act for them, and learns nothing of
    them. All agents that a policy may play have the same spaces. `SampledAssignment` draws the policies;
    `tests/extensions/assignment/test_assignments.py` checks what each assignment keeps.
    """

    def candidates(self, agents: Sequence[AgentID]) -> Mapping[AgentID, Sequence[PolicyID]]:
        """Return which policies may play each agent of the env, the same ones in every call.

        The first of an agent plays it in evaluations and in `predict`. If no agent has a second one, the mapping is
        fixed, and `assign` is not called.
        """

    def assign(self, env_index: int, episode: int, rng: np.random.Generator) -> Mapping[AgentID, PolicyID]:
        """Return which policy plays each agent in an episode, before its first step; one of its candidates.

        The answer follows from the arguments and from `get_state`, and the call does not change that state: workers
        and shards, which have copies of the object, then come to the same answer. A callback may change the state
        between two steps; shards see that from their next round on.

        Args:
            env_index: index of the env among all envs.
            episode: number of the episode in this env, from 0 on.
            rng: its own for each episode; it follows from the seed of the run.
        """

    def get_state(self) -> State:
        """Return what the answers depend on besides the arguments, as plain data; it is part of checkpoints."""
        return {}

    def set_state(self, state: StateReader) -> None:
        """Take over what `get_state` returned; the data is untrusted."""
        return None


class AssignedRunnerMaker(Protocol):
    """Makes the runner of envs that a process steps, where an `Assignment` varies who plays."""

    def __call__(self, mapping: PolicyMapping, *arguments: Any, **settings: Any) -> LocalRunner:
        """Return the runner; the arguments are those of `core.training.setup.local_runner`."""

    def read_mapping(self, mapping: Any, policy_ids: Sequence[PolicyID], groups: Sequence[AgentGroup]) -> Any:
        """Return an `Assignment` for a `policy_mapping_fn` of a form of its own, and anything else as it is."""


EACH_EPISODE = "each episode"  # the runner of assignments that do not name another one in an attribute `runner`
ASSIGNED_RUNNERS: Door[AssignedRunnerMaker] = Door("runner of envs whose agents policies play in turn")


# --- How a policy learns ----------------------------------------------------------------------------------------------


class PreparedUpdate(Protocol):
    """An update of one policy for which all random numbers are drawn."""

    samples_drawn: int  # transitions in its minibatches, counted once for each time that one is used

    def run(self, threads: int) -> None:
        """Compute the update in at most so many threads; it may do so at the same time as those of other policies."""


class Engine(Protocol):
    """Computes the updates of one policy, in place of the `train()` of its SB3 algorithm, which has prepared it."""

    def prepare_update(self) -> PreparedUpdate | None:
        """Draw the random numbers of the next update; None: the algorithm's `train()` computes this one."""

    def finish_update(self, update: Any) -> None:
        """Write the results of an update that has run into SB3's objects, and record its metrics in SB3's logger."""


ALGORITHM_TABLES: Door[AlgorithmTable] = Door("table of algorithms")  # read when an algorithm is first looked up

# Sections of settings of policies beside `processing`, by name; their `parts` are the parts of learners that they need.
POLICY_SECTIONS: Door[type[PolicySection]] = Door("section of settings of policies")


# --- What is seen of a training --------------------------------------------------------------------------------------


class WatcherMaker(Protocol):
    """Makes what watches trainings: it sees what all policies do, and the episodes that end, before callbacks do.

    Its name is that of its state in checkpoints. `tests/core/training/test_watchers.py` checks what each of them keeps.
    """

    def __call__(
        self, algorithm: MultiAgentAlgorithm, callback: BaseCallback, /
    ) -> TrainingWatcher | ExperienceHook | None:
        """Return what watches a training that begins, or what changes its experience; None: nothing does, at no cost.

        Args:
            algorithm: is about to train.
            callback: all callbacks of the training.

        Raises:
            ConfigError: it cannot, for example in shards; see `MultiAgentAlgorithm.require_watchable`.
        """


WATCHERS: Door[WatcherMaker] = Door("watcher of trainings")


class View(Protocol):
    """Shows a training while it runs: `learn(progress_bar=True)` makes one view by each of `VIEWS`.

    All counts are env steps. The first method that raises ends the view, which is closed then, and not the training.
    """

    def begin(self, done: int, total: int) -> None:
        """Start at `done` of `total` env steps."""

    def advance(self, done: int) -> None:
        """Note that all envs have taken a step; it is called after each step and must be quick."""

    def add(self, result: Result) -> None:
        """Show the result of an iteration, nested as in `result.jsonl`; it must not be changed."""

    def close(self) -> None:
        """Give the terminal back, or what else it has; there may be a second call, which has no effect."""


VIEWS: Door[Callable[[], View]] = Door("view of a training")


# --- Names of settings -----------------------------------------------------------------------------------------------


class Dialect(Protocol):
    """Other names of settings of a policy, such as RLlib's, in the arguments of `MultiAgentAlgorithm`.

    They translate one after the other, in the order in which they were added; what each keeps is checked by
    `tests/extensions/dialects/test_dialects.py`. Configurations of runs are read before, by `marl_sb3.runs.settings`.
    """

    # the kinds of settings that no policy has by itself, by name, such as `checkpoints.every`; messages name them
    of_runs: Mapping[str, Any] = {}

    def translated(self, spec: PolicySpec, given: Mapping[str, Any], n_envs: int) -> dict[str, Any]:
        """Return settings by SB3's names, and by those of `ProcessingSettings` and `DataSettings`.

        What is no name of the dialect stays as it is, so that translating twice changes nothing.

        Args:
            spec: the policy; `spec.values` has the names of all hyperparameters of its algorithm.
            given: settings of the policy by name.
            n_envs: number of envs of the training.

        Raises:
            ConfigError: a name has no counterpart, or not with this value, or a setting is given by two names.
        """
        return dict(given)

    def explain(self, name: str) -> str | None:
        """Say what a name means, for the error of a `PolicySpec`, which takes SB3's names only; None: unknown."""
        return None

    def names_of(self, setting: str) -> str | None:
        """Say which names mean a setting, for an error about it, such as "RLlib's lr"; None: no others."""
        return None

    def method(self, name: str, of: str) -> str | None:
        """Say what stands here for a name of the library's `algorithm`, `env`, `make_vec_env`, ...; None: unknown."""
        return None


DIALECTS: Door[Dialect] = Door("dialect of settings")


def counterpart(name: str, of: str, before: str = ": ", owner: object = None) -> str:
    """Return what the first dialect that knows a name says of it, else ""; raise first a property's own error."""
    if hasattr(type(owner), name):
        object.__getattribute__(owner, name)
    said = (each.method(name, of) for each in DIALECTS) if not name.startswith("_") else ()
    return next((f"{before}{instead}" for instead in said if instead), "")

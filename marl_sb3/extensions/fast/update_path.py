"""The two ways in which marl_sb3's own algorithms update: fused, or with PyTorch, which equals SB3 bit for bit."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
from pettingzoo import AECEnv, ParallelEnv

from marl_sb3.core.sb3.traits import UPDATE_PATHS, require_path
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.doors import Engine, counterpart
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast.coverage import PathStillValid
from marl_sb3.extensions.fast.speed import of_policy
from marl_sb3.output import ORDINARY, print_text
from marl_sb3.systems import after_fork

_counterpart = cache(counterpart)  # SB3 and updates ask algorithms for what only some have
# How an update is divided is the same on all machines, because it decides how results are rounded.
CHUNK_ROWS, MOST_CHUNKS = 128, 8  # fewer rows are slow to multiply; more chunks take long to add up
# What is made for the kernels, and is no part of a saved algorithm.
_MADE_ANEW = ("_made", "_said", "_of_rollout", "_acting", "_is_read", "_reads_again")

_log = logging.getLogger(__name__)


def load_blas() -> None:
    """Load SciPy's BLAS, which the kernels call: `blas_threads` limits only libraries that are loaded already."""
    import marl_sb3.extensions.fast.kernels.layers  # noqa: F401 - only fused updates need it


@cache
def _helpers() -> ThreadPoolExecutor:
    """Return threads that help with updates; they are kept, for a gradient step takes little longer than a start."""
    return ThreadPoolExecutor(os.cpu_count(), "update")


after_fork(_helpers.cache_clear)  # a child has none of them


def in_threads(job: Callable[[int, int], None], threads: int) -> None:
    """Run job(thread, threads) here as thread 0, and in helpers as the others, who may come late or not at all."""
    running = []
    try:
        with suppress(RuntimeError):  # the system gives this process no more threads
            for number in range(1, threads):
                running.append(_helpers().submit(job, number, threads))
        job(0, threads)
    finally:
        for each in running:
            each.cancel()


def require_rows(env: Any) -> None:
    """Refuse envs of several agents, and what makes some, in better words than those of SB3's algorithms.

    Raises:
        ConfigError: it is one of them.
    """
    if isinstance(env, MultiAgentVecEnv):
        words = "env is a MultiAgentVecEnv, whose agents act together; accepted: env.as_sb3_vec_env(), or a"
        raise ConfigError(f"{words} MultiAgentAlgorithm(env, algorithm=...) for policies of its agents", key="env")
    if isinstance(env, (ParallelEnv, AECEnv, ModuleType, FunctionType, type)) and not isinstance(env, gymnasium.Env):
        words = f"env is {env!r:.80}; accepted: an env of Gymnasium, or make_vec_env(...).as_sb3_vec_env(), in which"
        rest = "agents are rows; or a MultiAgentAlgorithm(make_vec_env(...)); see docs/coming_from/pettingzoo.md"
        raise ConfigError(f"{words} {rest}", key="env")


class TwoPaths:
    """A mixin for SB3's algorithms: updates by the *fused* path or by the *torch* path.

    The fused path is faster and equals SB3 to floating point tolerance; the torch path takes every policy and equals
    SB3 bit for bit. Where `auto` leads to the latter, networks for images are updated faster, to floating point
    tolerance: see `torch_updates`.
    """

    # `auto` takes the fused path if it covers the policy, see `why_not_fused`; `fused` and `torch` force one. May be
    # set at any time between updates.
    update_path: str = "auto"
    known_as: str = "policy"  # the name of the policy in the log
    updates_fused: ClassVar[bool] = True  # whether the kernels compute the updates of a policy that they cover
    has_more_losses: bool = False  # whether recorded actions are a part of its loss, which the kernels do not have
    _made: tuple[str, Any, PathStillValid] | None = None  # path, policy in the kernels' form, its checks
    _said: str | None = None  # what was printed of the path

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Raise the error again; its message refers to what does the same here as a name of RLlib's policies."""
            try:
                return object.__getattribute__(self, name)  # of a property, its own error
            except AttributeError as error:
                raise AttributeError(f"{error}{_counterpart(name, 'policy')}", name=name, obj=self) from None

    def coverage(self) -> PathStillValid | str:
        """Return the checks of the fused path, or why it does not cover the policy."""
        raise NotImplementedError

    def _in_kernels_form(self, validity: PathStillValid) -> Any:
        """Return a new object that acts and updates by the kernels, for a policy that they cover; see `coverage`."""
        raise NotImplementedError

    def why_not_fused(self) -> str | None:
        """Return why the fused path does not cover the policy; None if it does."""
        covered = self._covered()
        return covered if isinstance(covered, str) else None

    def _covered(self) -> PathStillValid | str:
        coverage = self.coverage()
        return coverage if isinstance(coverage, str) else coverage.why_not() or coverage

    def takes_fused_path(self) -> bool:
        """Whether updates take the fused path.

        Raises:
            ConfigError: that path is forced but does not cover the policy, or the path has an unknown name.
        """
        return self._is_made() or self._checked() is not None

    def kernels(self) -> Any:
        """Return the policy in the kernels' form, if updates take the fused path; else None.

        Raises:
            ConfigError: see `takes_fused_path`.
        """
        if not self._is_made():
            validity, before = self._checked(), self._made
            fewer = before is not None and before[2].trains and (validity is None or not validity.trains)
            if self.update_path == "auto" and (fewer or (before is not None and validity is None)):
                _log.warning("%s: from here on, %s", self.known_as, self.described_path(), extra=ORDINARY)
            self._made = None if validity is None else (self.update_path, self._in_kernels_form(validity), validity)
        return None if self._made is None else self._made[1]

    def why_slow(self) -> str | None:
        """Return why PyTorch acts or computes updates though the kernels are faster, if nobody has asked for it."""
        return self.why_not_fused() if self.update_path == "auto" else None

    def described_path(self) -> str:
        """Return what chooses the actions and computes the updates, in words.

        Raises:
            ConfigError: see `takes_fused_path`.
        """
        covered = self._checked()
        acts = covered is not None and bool(covered.layers)
        return of_policy(acts, covered is not None and covered.trains and self.updates_fused, self.why_slow())

    def _setup_learn(self, *args: Any, **kwargs: Any) -> Any:
        """See `BaseAlgorithm._setup_learn`; with `verbose=1`, it prints which path updates take, until that changes."""
        prepared = super()._setup_learn(*args, **kwargs)  # type: ignore[misc]
        if self.verbose >= 1 and self._said != (path := self.described_path()):  # type: ignore[attr-defined]
            print_text(f"marl_sb3 {type(self).__name__}: {path}")
            self._said = path
        return prepared

    def acting_kernels(self) -> Any:
        """Return what acts in rollouts by the kernels; None if PyTorch does."""
        return self.kernels()

    def prepare_engine(self, policy_id: str, update_path: str, *, has_more_losses: bool) -> Engine | None:
        """Set the path, check that it covers the policy, and log which one is taken; see `AlgorithmTraits`.

        Only a `FusedOnPolicy` has an engine: the other algorithms with two paths have kernels within their own
        `train()`.

        Raises:
            ConfigError: see `takes_fused_path`.
        """
        self.has_more_losses, self.known_as = has_more_losses, f"policy {policy_id}"
        if update_path != "auto":  # otherwise a subclass may have set its own
            self.update_path = update_path
        if self.takes_fused_path():
            load_blas()
        if _log.isEnabledFor(logging.INFO):
            _log.info("%s: %s", self.known_as, self.described_path())
        return None

    def _is_made(self) -> bool:
        return self._made is not None and self._made[0] == self.update_path and self._made[2].holds()

    def _checked(self) -> PathStillValid | None:
        """Return the checks of the fused path, if updates take it."""
        path = self.update_path if self.update_path in UPDATE_PATHS else require_path(self.update_path)
        if path == "torch":
            return None
        covered = self._covered()
        if isinstance(covered, PathStillValid):
            return covered
        if path == "fused":
            words = f"the fused update does not cover this policy: {covered}"
            raise ConfigError(f"{words}; accepted: update_path=auto or torch", key="update_path")
        return None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for `copy` and `pickle`; the kernels' form of the policy is made anew when needed."""
        return {name: value for name, value in vars(self).items() if name not in _MADE_ANEW}

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "known_as", "has_more_losses", "update_threads", *_MADE_ANEW]  # type: ignore[misc]


class LearnsInTrainings:
    """A mixin for algorithms that learn in marl_sb3's trainings alone: the loop of SB3's `learn` does not do."""

    not_in_sb3: ClassVar[str] = "stores no action masks"  # what that loop does

    def learn(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse.

        Raises:
            ConfigError: always.
        """
        name = type(self).__name__
        words = f"{name}.learn() is SB3's loop, which {self.not_in_sb3}; accepted: marl_sb3.train, or a"
        raise ConfigError(f"{words} MultiAgentAlgorithm of the env with PolicySpec(marl_sb3.{name})")

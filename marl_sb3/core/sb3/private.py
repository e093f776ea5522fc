"""Access to private members of SB3's algorithms: for a new version of SB3, check this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

import torch as th
from stable_baselines3.common import torch_layers
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback, EventCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import BasePolicy

from marl_sb3.core.state.fields import Field, Fields, scalar
from marl_sb3.core.state.state import StateReader

# --- Algorithms that are not SB3's ------------------------------------------------------------------------------------


def set_up_logging(algorithm: Any) -> None:
    """Give an algorithm a logger without outputs, and the counts that learners keep in it if it lacks them."""
    if not isinstance(algorithm, BaseAlgorithm):
        for name, value in {"num_timesteps": 0, "_n_updates": 0, "_current_progress_remaining": 1.0}.items():
            setattr(algorithm, name, getattr(algorithm, name, value))
        algorithm.logger = Logger(None, [])
    else:
        algorithm.set_logger(Logger(None, []))


# --- Schedules and counts --------------------------------------------------------------------------------------------


def progress_remaining(algorithm: BaseAlgorithm) -> float:
    """Return the argument of the algorithm's schedules: 1 at the start of training, 0 at its end."""
    return algorithm._current_progress_remaining


def set_progress_remaining(algorithm: BaseAlgorithm, progress: float) -> None:
    """Set what `progress_remaining` returns."""
    algorithm._current_progress_remaining = progress


def num_updates(algorithm: BaseAlgorithm) -> int:
    """Return SB3's count `train/n_updates`: for PPO, the number of epochs."""
    return algorithm._n_updates


# The counts in the state of an owner that has the algorithm as `algorithm`.
COUNTS: Fields = {
    "num_timesteps": scalar("algorithm.num_timesteps"),
    "n_updates": scalar("algorithm._n_updates"),
    "progress_remaining": scalar("algorithm._current_progress_remaining")._replace(
        get=lambda owner: float(progress_remaining(owner.algorithm))  # without the env steps of a `Progress`
    ),
}


def _of_dqn(attribute: str, read: Callable[[StateReader, str], float]) -> Field:
    """The field of an attribute; None for an algorithm that has none."""
    return Field(
        lambda owner: getattr(owner.algorithm, attribute, None),
        lambda owner, state, name: read(state, name) if hasattr(owner.algorithm, attribute) else state.like(name, None),
        lambda owner, value: None if value is None else setattr(owner.algorithm, attribute, value),
    )


# The same for off-policy algorithms: how often `after_step` was called, and the share of random actions.
OFF_POLICY_COUNTS: Fields = {
    "steps": _of_dqn("_n_calls", StateReader.integer),
    "exploration_rate": _of_dqn("exploration_rate", lambda state, name: state.number(name, 0.0, 1.0)),
}


# --- Policies with LSTMs ---------------------------------------------------------------------------------------------


def calls_lstm_as_sb3(policy: BasePolicy) -> bool:
    """Whether the policy's LSTMs get sequences in the way of sb3-contrib: in one call if no episode starts in them."""
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy

    sb3: Any = RecurrentActorCriticPolicy
    own: Any = type(policy)
    methods = (own._process_sequence, own.evaluate_actions) if issubclass(own, sb3) else (None,)
    return all(getattr(each, "__module__", "").partition(".")[0] in _LIBRARIES for each in methods)


# --- Off-policy algorithms -------------------------------------------------------------------------------------------


def after_step(algorithm: BaseAlgorithm) -> None:
    """What the algorithm does after each step of all envs: DQN copies its target network and sets its epsilon."""
    algorithm._on_step()  # type: ignore[attr-defined]


# --- Policies --------------------------------------------------------------------------------------------------------


@contextmanager
def unchecked_distributions() -> Iterator[None]:
    """Keep PyTorch's distributions from checking their arguments."""
    before = th.distributions.Distribution._validate_args
    th.distributions.Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        th.distributions.Distribution.set_default_validate_args(before)


@contextmanager
def integer_sizes() -> Iterator[None]:
    """Let SB3 count the numbers of a MultiDiscrete observation as an `int`: PyTorch's LSTM refuses NumPy's integers."""
    layers: Any = torch_layers
    size_of = layers.get_flattened_obs_dim
    layers.get_flattened_obs_dim = lambda space: int(size_of(space))
    try:
        yield
    finally:
        layers.get_flattened_obs_dim = size_of


# --- Callbacks -------------------------------------------------------------------------------------------------------

_WITHIN_ROLLOUTS = frozenset(
    (
        "on_step",
        "_on_step",
        "update_locals",
        "update_child_locals",
        "on_episode_start",
        "on_episode_step",
        "on_episode_end",
    )
)
_LIBRARIES = ("marl_sb3", "stable_baselines3", "sb3_contrib")  # whose own hooks leave the policies as they are


def _inner(callback: Any) -> list[Any]:
    """Return the callbacks that a list or an event callback of SB3 has."""
    if isinstance(callback, CallbackList):
        return list(callback.callbacks)
    of_event = ("callback", "callback_on_new_best") if isinstance(callback, EventCallback) else ()
    return [each for name in of_event if (each := getattr(callback, name, None)) is not None]


def all_callbacks(callback: Any) -> Iterator[BaseCallback]:
    """Yield a callback and all callbacks within SB3's lists and event callbacks, in order."""
    if isinstance(callback, BaseCallback) and not isinstance(callback, CallbackList):
        yield callback
    for each in _inner(callback):
        yield from all_callbacks(each)


def has_step_hook(callback: Any, *, asks: bool = False) -> bool:
    """Whether code of a user's runs within a rollout; with `asks`, not counting those with `sees_steps = False`."""
    of_inner = any(has_step_hook(each, asks=asks) for each in _inner(callback))
    if of_inner or (asks and not getattr(callback, "sees_steps", True)):
        return of_inner
    if isinstance(callback, ConvertCallback) and callback.callback is not None:  # SB3 makes one without, too
        return True
    hooks = [hook for name in _WITHIN_ROLLOUTS if (hook := getattr(type(callback), name, None))]
    own = [hook for hook in hooks if hook.__module__.partition(".")[0] not in _LIBRARIES]
    return not _WITHIN_ROLLOUTS.isdisjoint(vars(callback)) or not all(map(_only_returns_true, own))


def sees_steps(callback: Any) -> bool:
    """Whether a callback has to be called in each step, and not once for many; it may say so in `sees_steps`."""
    own = [each for each in all_callbacks(callback) if getattr(each, "sees_steps", True)]
    return has_step_hook(callback, asks=True) or not all(_only_returns_true(type(each)._on_step) for each in own)


def _only_returns_true(hook: Any) -> bool:
    """Whether it just returns True, as `_on_step` of many callbacks, which SB3 demands."""
    code, true = getattr(hook, "__code__", None), (lambda self: True).__code__
    return code is not None and code.co_code == true.co_code and code.co_consts[-1] is True


# --- Saving ----------------------------------------------------------------------------------------------------------


def torch_members(algorithm: Any) -> Sequence[Mapping[str, Any]]:
    """Return modules and optimizers, and the tensors outside of them, by the names under which SB3 saves them.

    Such as `policy.optimizer`, and SAC's `log_ent_coef`.
    """
    members, variables = ["policy", "policy.optimizer"], list[str]()
    if isinstance(algorithm, BaseAlgorithm):
        members, variables = algorithm._get_torch_save_params()
    return [{name: attrgetter(name)(algorithm) for name in names} for names in (members, variables)]


def pickled_members(algorithm: BaseAlgorithm) -> Mapping[str, Any]:
    """Return the attributes that SB3's `save` pickles: all but tensors, modules and those the algorithm excludes."""
    if not isinstance(algorithm, BaseAlgorithm):  # a class that is not SB3's has no such file
        return {}
    names, tensors = algorithm._get_torch_save_params()
    apart = {name.partition(".")[0] for name in (*names, *tensors)} | {*algorithm._excluded_save_params()}
    return {name: value for name, value in vars(algorithm).items() if name not in apart}

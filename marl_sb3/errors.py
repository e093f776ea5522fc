"""Every exception that marl_sb3 raises on purpose.

The commands turn each of them into one or two lines; `ConfigError`, `EnvError` and `CheckpointError` end
with exit code 2, others and `EnvRaisedError` with 1.
"""

from __future__ import annotations

import difflib
import errno
from collections.abc import Iterable
from typing import Any, NoReturn


class MarlSb3Error(Exception):
    """Base of all errors of this package."""


class ConfigError(MarlSb3Error, ValueError):
    """A setting is wrong. The message names it, the value received, and what is accepted.

    Args:
        message: describes what is wrong.
        key: name of the setting (`learning_rate`, `env.height`), if there is one, so that a caller can add where its
            value was given.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key  # as given
        self.policy_id: str | None = None  # the policy that the setting is of, if it is known

    @property
    def path(self) -> str | None:
        """The key, behind the id of the policy if that is known: `agent1.learning_rate`."""
        return self.key if self.key is None or self.policy_id is None else f"{self.policy_id}.{self.key}"


class EnvError(MarlSb3Error, RuntimeError):
    """An env broke the PettingZoo `ParallelEnv` contract while it ran.

    The message names the env's index, the episode, the step and, where it applies, the agent.
    """


class EnvRaisedError(EnvError):
    """An env raised an exception, which is the cause of this one.

    The message names the call, the env's index, the episode, the step, the episode's seed, and the line of the env.
    """


class WorkerError(EnvRaisedError):
    """A process that steps envs ends or hangs again and again; the cause has its stacks, if it left any."""


class VecEnvOrderError(MarlSb3Error, RuntimeError):
    """The methods of a vec env were called in a wrong order, such as `recv()` without `send()`."""


class HookError(MarlSb3Error, RuntimeError):
    """A hook of a callback, or an opponent of the user's, has failed.

    The message names it, and where. Its exception is the cause, if any.
    """


class NumericError(MarlSb3Error, ArithmeticError):
    """A loss, a gradient or one of their inputs is NaN or infinite; the message names it and its origin."""


class EnvNumericError(EnvError, NumericError):
    """An env returned an observation or a reward that is NaN or infinite."""


class RunnersLostError(WorkerError):
    """No runner is left, or one shard has ended several of them."""


class CheckpointError(MarlSb3Error, RuntimeError):
    """A checkpoint is damaged, is no checkpoint, or does not belong to this run. Nothing in it was used.

    The message names the file, what is wrong with it, and what is accepted.
    """


class ExportError(MarlSb3Error, RuntimeError):
    """A policy could not be exported, or the exported file does not act as the policy. No file is left."""


def is_disk_full(error: BaseException) -> bool:
    """Whether an error says that the disk is full, which is no mistake of the user."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def described(error: BaseException) -> str:
    """Type and text of an exception, such as `KeyError: 'wheel'`; one of an env may be unable to say its text."""
    try:
        text = str(error)
    except Exception as failed:
        text = f"(its text is unknown: its __str__ raised {type(failed).__name__})"
    return f"{type(error).__name__}: {text}".removesuffix(": ")


def did_you_mean(given: object, known: Iterable[str], most: int = 1) -> str:
    """Return `did you mean A, B?` with the known names that are most like a given one; empty if none is."""
    names = list(map(str, known))
    close = difflib.get_close_matches(str(given), names, most) or [n for n in names if given and str(given) in n]
    return f"did you mean {', '.join(close[:most])}?" if close else ""


def require_known(name: object, known: Iterable[str], words: str, key: str | None = None) -> None:
    """Raise ConfigError if a name is none of those that are accepted; it says which one may be meant.

    Args:
        words: say what is wrong, with the name: `unknown algorithm 'pppo'`.
        key: of the error.
    """
    accepted = list(known)
    if name not in accepted:
        hint = did_you_mean(name, accepted)
        raise ConfigError(f"{words}; accepted: {', '.join(accepted)}{hint and f'; {hint}'}", key=key)


SHOWN = 200  # characters of a wrong value in a message


def shown(value: Any, most: int = SHOWN) -> str:
    """Return a value as text for a message, cut after `most` characters."""
    try:
        text = repr(value)
    except ValueError:  # an integer of thousands of digits
        return "a number of too many digits"
    return text if len(text) <= most else f"{text[:most]}..."


def refuse(name: str, value: object, accepted: str, key: str | None = None) -> NoReturn:
    """Raise ConfigError for a value that is not accepted: `NAME is VALUE; accepted: ACCEPTED`.

    Args:
        name: of the setting, argument or option.
        key: of the error; None: the name.
    """
    raise ConfigError(f"{name} is {shown(value)}; accepted: {accepted}", key=name if key is None else key)


def install_words(extra: str) -> str:
    """Say how to install what a feature needs, in the spelling of the README.

    Args:
        extra: name of the optional dependencies in `pyproject.toml`.
    """
    return f"install it with: pip install -c constraints.txt '.[{extra}]' (in the clone of marl_sb3)"


def note(error: BaseException, name: str, text: str) -> None:
    """Note in an exception what messages say of it: the `traceback_file` that holds its traceback, or a `remedy`."""
    error.__dict__[name] = text


def noted(error: BaseException, name: str) -> str | None:
    """Return what `note` has noted in an exception; None if there is nothing."""
    return error.__dict__.get(name)

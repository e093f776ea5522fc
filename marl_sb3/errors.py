"""Every exception that marl_sb3 raises on purpose.

The commands turn each of them into one or two lines; `ConfigError` and `EnvError` end with exit code 2, others with 1.
"""

from __future__ import annotations


class MarlSb3Error(Exception):
    """Base of all errors of this package."""


class ConfigError(MarlSb3Error, ValueError):
    """A setting is wrong: the message says which, the value received, and what is accepted.

    Args:
        message: what is wrong, for a person.
        key: the setting's name where there is one (`learning_rate`, `env.height`), so that a
            caller who knows where the value came from can say so.
    """

    def __init__(self, message: str, key: str | None = None) -> None:
        super().__init__(message)
        self.key = key


class EnvError(MarlSb3Error, RuntimeError):
    """An env broke the PettingZoo `ParallelEnv` contract while it ran.

    The message names the env's index, the episode, the step and, where it applies, the agent.
    """


class NumericError(MarlSb3Error, ArithmeticError):
    """A loss, a gradient or what they are made of is NaN or infinite; the message names it and where it began."""

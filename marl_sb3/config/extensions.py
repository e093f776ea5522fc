"""The planned ends of a run. Each extension plans a new end; a run from `config.yaml` repeats all extensions.

Schedules such as `lin_3e-4` run to the planned end. When it moves they jump: after 10,000 of 10,000 env steps
`lin_3e-4` is 0; with 10,000 more it is 1.5e-4 again, and falls to 0 once more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl_sb3.config.names import canonical_name
from marl_sb3.config.schema import Extension, TrainConfig
from marl_sb3.config.values import PositiveInt, accepts
from marl_sb3.errors import ConfigError


@dataclass(frozen=True)
class Phase:
    """A part of a run with one planned end.

    Attributes:
        n_timesteps: the planned end, in env steps of the whole run.
        until: the env steps of the whole run after which the next phase begins; None in the last one.
    """

    n_timesteps: int
    until: int | None = None

    @property
    def end(self) -> int:
        """The step at which the phase ends unless a stop condition ends it, in env steps of the whole run."""
        return self.n_timesteps if self.until is None else min(self.until, self.n_timesteps)


def phases_after(config: TrainConfig, env_steps: int) -> list[Phase]:
    """Return the phases of a run that do not end within its first `env_steps`."""
    extended = [Phase(each["n_timesteps"], each["until"]) for each in _extensions(config) if each["until"] > env_steps]
    return [*extended, Phase(config.n_timesteps)]


def is_complete(config: TrainConfig, env_steps: int) -> bool:
    """Whether a run that has trained `env_steps` is complete."""
    return env_steps >= config.n_timesteps and len(phases_after(config, env_steps)) == 1


def continued(config: TrainConfig, env_steps: int, timesteps: int | None, changes: Mapping[str, Any]) -> TrainConfig:
    """Return the configuration of a run that is continued.

    Args:
        timesteps: train for this many env steps more; None: to the planned end.
        changes: new values of fields; None: no change.
    """
    given = {canonical_name(name): value for name, value in changes.items() if value is not None}
    if timesteps is not None:
        if not accepts(PositiveInt, timesteps):
            words = f"--timesteps is {timesteps!r}; accepted with --resume: an integer of at least 1, env steps to add"
            raise ConfigError(words, key="n_timesteps")
        given["n_timesteps"] = env_steps + timesteps
    after = config.changed(given)
    now = phases_after(config, env_steps)[0]
    extended = timesteps is not None and (now.until is not None or now.n_timesteps != after.n_timesteps)
    # If a stop condition ended the run so far, a run that repeats it must not stop there.
    beyond_stop = now.until is None and bool(config.stop or after.stop) and not is_complete(after, env_steps)
    return _with_boundary(after, env_steps, now) if extended or beyond_stop else after


def _with_boundary(config: TrainConfig, env_steps: int, now: Phase) -> TrainConfig:
    """Return the configuration with the end of phase `now` at `env_steps`, if that phase has trained any."""
    earlier = [each for each in _extensions(config) if each["until"] <= env_steps]
    begun = earlier[-1]["until"] if earlier else 0
    ended: list[Extension] = [{"until": env_steps, "n_timesteps": now.n_timesteps}] if env_steps > begun else []
    return replace(config, extensions=[*earlier, *ended] or None)


def _extensions(config: TrainConfig) -> Sequence[Extension]:
    return config.extensions or ()

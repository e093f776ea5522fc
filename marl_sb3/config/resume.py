"""What changes when a run goes on: its planned end, and settings that its state does not depend on.

Each extension plans a new end; a run from `config.yaml` repeats all extensions. Schedules such as `lin_3e-4` run to the
planned end. When it moves they jump: after 10,000 of 10,000 env steps `lin_3e-4` is 0; with 10,000 more it is 1.5e-4
again, and falls to 0 once more.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from marl_sb3.config.schema import ACCEPTED, Extension, TrainConfig, names_in, value_of
from marl_sb3.config.settings import canonical_name
from marl_sb3.config.values import PositiveInt, accepts
from marl_sb3.errors import ConfigError
from marl_sb3.types import PolicyID

# --- The planned ends of a run ---------------------------------------------------------------------------------------


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


# --- Changes of settings ---------------------------------------------------------------------------------------------


# Hyperparameters that an algorithm reads anew in each update, or while it explores.
_READ_ANEW = """
learning_rate gamma gae_lambda clip_range clip_range_vf ent_coef vf_coef max_grad_norm target_kl normalize_advantage
n_epochs batch_size tau target_update_interval gradient_steps policy_delay target_policy_noise target_noise_clip
exploration_fraction exploration_final_eps cg_max_steps cg_damping line_search_shrinking_factor line_search_max_iter
n_critic_updates sub_sampling_factor
"""
_HYPERPARAMETERS = frozenset(_READ_ANEW.split())
# Settings that change nothing of what is learned.
_OTHERS = frozenset(
    [f"{section}.{name}" for section in ("checkpoints", "evaluation") for name in names_in(section)]
    + ["on_nan", "n_workers", "worker_timeout_s", "max_worker_restarts", "n_parallel_updates"]
)
_MAPPINGS = {"hyperparameters": "", "env_kwargs": "env."}  # whose entries are compared, and how their names begin
_INSTEAD = {"n_timesteps": "--timesteps N, env steps to add", "stop": "--stop METRIC=VALUE"}


class Change(NamedTuple):
    """The old and the new value of a setting; `learns_otherwise`: what is learned from here on depends on it."""

    old: Any
    new: Any
    learns_otherwise: bool

    def __str__(self) -> str:
        return f"from {self.old} to {self.new}"


def changes_between(before: TrainConfig, after: TrainConfig) -> dict[str, Change]:
    """Return the settings that differ, by name; those of one policy as `POLICY.NAME`.

    Raises:
        ConfigError: a run cannot go on with one of them; the message says what can be done instead.
    """
    found = dict(_differences(before, after))
    for key, change in found.items():
        own = key.rpartition(".")[2]
        # Without a number, SAC and its like learn the coefficient: its state is in the checkpoint.
        is_learned = own == "ent_coef" and any(isinstance(value, str) for value in change[:2])
        if key not in _OTHERS and (is_learned or not change.learns_otherwise or own not in _HYPERPARAMETERS):
            raise _refusal(after, key)
    return found


def _refusal(config: TrainConfig, key: str) -> ConfigError:
    if key in _INSTEAD:
        return ConfigError(f"{config.where(key)}with --resume, accepted: {_INSTEAD[key]}", key=key)
    accepted = ", ".join([*sorted(_HYPERPARAMETERS), "checkpoints.*", "evaluation.*"])
    return ConfigError(
        f"{config.where(key)}{key} cannot change in a run that goes on: its state depends on it; accepted: {accepted}; "
        f"for any other setting, start a new run from its weights: train {shlex.quote(config.env)} --init-from RUN "
        "--set KEY=VALUE",
        key=key,
    )


def _differences(before: TrainConfig, after: TrainConfig) -> Iterator[tuple[str, Change]]:
    for name in ACCEPTED:
        old, new = value_of(before, name), value_of(after, name)
        if name in _MAPPINGS:
            yield from _different(old, new, _MAPPINGS[name], learns_otherwise=name == "hyperparameters")
        elif name == "policy_settings":
            for policy_id in new:
                ours, theirs = _own(before, policy_id), _own(after, policy_id)
                of_run = before.of_policy(policy_id).hyperparameters
                yield from _different({**of_run, **ours}, {**of_run, **theirs}, f"{policy_id}.", learns_otherwise=True)
        elif old != new:
            yield name, Change(old, new, learns_otherwise=False)


def _own(config: TrainConfig, policy_id: PolicyID) -> dict[str, Any]:
    return {**config.own_settings(policy_id), "agents": config.agents_of(policy_id)}


def _different(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str, *, learns_otherwise: bool
) -> Iterator[tuple[str, Change]]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield f"{prefix}{name}", Change(old.get(name), new.get(name), learns_otherwise)

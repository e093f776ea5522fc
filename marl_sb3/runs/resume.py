"""What changes when a run goes on: its planned end, and settings that its state does not depend on.

Each extension plans a new end or has other settings than what follows; a run from `config.yaml` repeats all of them.
Schedules such as `lin_3e-4` run to the
planned end. When it moves they jump: after 10,000 of 10,000 env steps `lin_3e-4` is 0; with 10,000 more it is 1.5e-4
again, and falls to 0 once more.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from marl_sb3.core.config.values import PositiveInt, accepts
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.dialects.names import canonical_name
from marl_sb3.runs.schema import ACCEPTED, FREE, Extension, TrainConfig, value_of

# --- The planned ends of a run ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase:
    """A part of a run with one planned end."""

    n_timesteps: int  # the planned end, in env steps of the whole run
    until: int | None = None  # the env steps of the whole run after which the next phase begins; None in the last one
    # values of settings by key, `NAME` or `POLICY.NAME`, which in the last phase are those of the configuration
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The step at which the phase ends unless a stop condition ends it, in env steps of the whole run."""
        return self.n_timesteps if self.until is None else min(self.until, self.n_timesteps)


def phases_after(env_steps: int, n_timesteps: int, extensions: Sequence[Extension] | None) -> list[Phase]:
    """Return the phases of a run that do not end within its first `env_steps`, from its two settings."""
    return [*(_phase(each) for each in extensions or () if each["until"] > env_steps), Phase(n_timesteps)]


def _phase(extension: Extension) -> Phase:
    return Phase(extension["n_timesteps"], extension["until"], extension.get("settings", {}))


def is_complete(config: TrainConfig, env_steps: int) -> bool:
    """Whether a run that has trained `env_steps` is complete."""
    is_last = len(phases_after(env_steps, config.n_timesteps, config.extensions)) == 1
    return env_steps >= config.n_timesteps and is_last


def config_in(config: TrainConfig, phase: Phase) -> TrainConfig:
    """Return the configuration with the settings of a phase."""
    of_run, of_policies = dict(config.hyperparameters), dict(config.policy_settings)
    for key, value in phase.settings.items():
        policy_id, _, name = key.rpartition(".")
        if policy_id:
            of_policies[policy_id] = {**of_policies.get(policy_id, {}), name: value}
        else:
            of_run[name] = value
    return replace(config, hyperparameters=of_run, policy_settings=of_policies) if phase.settings else config


def continued(
    before: TrainConfig, after: TrainConfig, env_steps: int, timesteps: int | None, changes: Mapping[str, Any]
) -> TrainConfig:
    """Return the configuration of a run that is continued.

    Args:
        before: that of the run folder.
        after: with the settings of the present phase, and with those that change now.
        timesteps: train for this many env steps more; None: to the planned end.
        changes: new values of fields; None: no change.
    """
    given = {canonical_name(name): value for name, value in changes.items() if value is not None}
    if timesteps is not None:
        if not accepts(PositiveInt, timesteps):
            words = f"--timesteps is {timesteps!r}; accepted with --resume: an integer of at least 1, env steps to add"
            raise ConfigError(words, key="n_timesteps")
        given["n_timesteps"] = env_steps + timesteps
    after = after.changed(given)
    now = phases_after(env_steps, before.n_timesteps, before.extensions)[0]
    present = config_in(before, now)
    extended = timesteps is not None and (now.until is not None or now.n_timesteps != after.n_timesteps)
    # If a stop condition ended the run so far, a run that repeats it must not stop there.
    beyond_stop = now.until is None and bool(before.stop or after.stop) and not is_complete(after, env_steps)
    differs = bool(_learned_otherwise(present, after)) and not is_complete(after, env_steps)
    if not extended and not beyond_stop and not differs:
        # Later phases remain as they are planned.
        return before.changed({**{name: value_of(after, name) for name in FREE}, **given}) if now.settings else after
    ended = [_phase(each) for each in before.extensions or () if each["until"] <= env_steps]
    if env_steps > (ended[-1].until or 0 if ended else 0):  # the present phase has trained some, and ends here
        ended.append(replace(now, until=env_steps))
    extensions: list[Extension] = []
    for phase in ended:
        other = _learned_otherwise(after, config_in(before, phase))
        extension: Extension = {"until": phase.until, "n_timesteps": phase.n_timesteps}
        extensions.append({**extension, "settings": other} if other else extension)
    return replace(after, extensions=extensions or None)


def _learned_otherwise(before: TrainConfig, after: TrainConfig) -> dict[str, Any]:
    """Return the new values of settings on which depends what is learned, and that a run may change as it goes on."""
    ours, theirs = before.hyperparameters, after.hyperparameters
    found = {name: theirs[name] for name in theirs if name in CHANGEABLE and ours.get(name) != theirs[name]}
    for policy_id in dict.fromkeys([*before.own_settings, *after.own_settings]):
        own = {name for config in (before, after) for name in config.own_settings.get(policy_id, ())} & CHANGEABLE
        ours, theirs = (config.of_policy(policy_id).hyperparameters for config in (before, after))
        different = [name for name in theirs if name in own and ours.get(name) != theirs[name]]
        found.update({f"{policy_id}.{name}": theirs[name] for name in different})
    return found


# --- Changes of settings ---------------------------------------------------------------------------------------------


# Hyperparameters that an algorithm reads anew in each update, or while it explores.
_READ_ANEW = """
learning_rate gamma gae_lambda clip_range clip_range_vf ent_coef vf_coef max_grad_norm target_kl normalize_advantage
n_epochs batch_size tau target_update_interval gradient_steps policy_delay target_policy_noise target_noise_clip
exploration_fraction exploration_final_eps cg_max_steps cg_damping line_search_shrinking_factor line_search_max_iter
n_critic_updates sub_sampling_factor
"""
CHANGEABLE = frozenset(_READ_ANEW.split())
_MAPPINGS = {"hyperparameters": "", "env_kwargs": "env."}  # whose entries are compared, and how their names begin
_ACCEPTED = f"{', '.join(sorted(CHANGEABLE))}, checkpoints.*, evaluation.*; for any other setting"
_INSTEAD = {
    "n_timesteps": "with --resume, accepted: --timesteps N, env steps to add",
    "stop": "with --resume, accepted: --stop METRIC=VALUE, or --stop none",
}


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
        if key in FREE or (not is_learned and change.learns_otherwise and own in CHANGEABLE):
            continue
        words = f"{key} cannot change in a run that goes on: its state depends on it; accepted: {_ACCEPTED}"
        words += f", start a new run from its weights: train {shlex.quote(after.env)} --init-from RUN --set KEY=VALUE"
        raise ConfigError(f"{after.where(key)}{_INSTEAD.get(key, words)}", key=key)
    return found


def _differences(before: TrainConfig, after: TrainConfig) -> Iterator[tuple[str, Change]]:
    for name in ACCEPTED:
        old, new = value_of(before, name), value_of(after, name)
        if name in _MAPPINGS:
            yield from _different(old, new, _MAPPINGS[name], learns_otherwise=name == "hyperparameters")
        elif name == "policy_settings":
            for policy_id in new:
                of_run = before.of_policy(policy_id).hyperparameters
                ours, theirs = (
                    {**of_run, **config.own_settings.get(policy_id, {}), "agents": config.agents.get(policy_id)}
                    for config in (before, after)
                )
                yield from _different(ours, theirs, f"{policy_id}.", learns_otherwise=True)
        elif old != new:
            yield name, Change(old, new, learns_otherwise=False)


def _different(
    old: Mapping[str, Any], new: Mapping[str, Any], prefix: str, *, learns_otherwise: bool
) -> Iterator[tuple[str, Change]]:
    for name in dict.fromkeys([*old, *new]):
        if old.get(name) != new.get(name):
            yield f"{prefix}{name}", Change(old.get(name), new.get(name), learns_otherwise)

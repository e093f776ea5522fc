"""What SB3 users need of a policy's processing: a `VecNormalize` is written and read, the settings written as JSON."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecNormalize

from marl_sb3.errors import CheckpointError, ConfigError
from marl_sb3.learners.sb3.private import set_vec_normalize
from marl_sb3.learners.sb3.spaces_only_vec_env import OneRow
from marl_sb3.processing import Processing
from marl_sb3.processing.statistics import statistics_state
from marl_sb3.storage.state import StateReader

_NOTE = (
    "The zip holds the policy behind its processing. `statistics` of normalised observations and rewards are in "
    "VECNORMALIZE.pkl, which `VecNormalize.load(path, venv)` of Stable-Baselines3 opens; all other settings have to be "
    "applied to the env in this order. marl_sb3.load_policies does all of it."
)


def write_processing(processing: Processing, gamma: float, zip_path: Path) -> None:
    """Write the processing of a policy beside its SB3 zip; nothing is written if there is none.

    `NAME.vecnormalize.pkl` is what `VecNormalize.load` opens: statistics that do not change (`training=False`). It is
    written if observations or rewards are normalised. `NAME.processing.json` has the settings.

    Args:
        processing: of the policy.
        gamma: its discount.
        zip_path: `NAME.zip`.
    """
    changed = processing.settings.changed()
    if not changed:
        return
    if processing.statistics:
        vec_normalize(processing, gamma).save(str(zip_path.with_suffix(".vecnormalize.pkl")))
    note = _NOTE.replace("VECNORMALIZE", f"{zip_path.stem}.vecnormalize")
    text = json.dumps({"note": note, "settings": changed, "order": list(processing.processors)}, indent=2)
    zip_path.with_suffix(".processing.json").write_text(text + "\n", encoding="utf-8")


def normalize_minibatches(algorithm: BaseAlgorithm, processing: Processing) -> None:
    """Let an algorithm normalise what it draws from its replay buffer, by the present statistics of its policy."""
    if processing.statistics:
        made = vec_normalize(processing, algorithm.gamma)  # type: ignore[attr-defined]
        normalize, returns = processing.normalizer, processing.rewards.statistics.get("returns")
        if normalize is not None:
            own: Any = normalize.statistics
            made.obs_rms = own if isinstance(normalize.before, spaces.Dict) else next(iter(own.values()))
        if returns is not None:
            made.ret_rms = returns
        set_vec_normalize(algorithm, made)


def unpickle_statistics(processing: Processing, path: Path) -> None:
    """Take over the running statistics of a `VecNormalize` that SB3 saved.

    This unpickles the file, which may run any code: it is called only where the user asks for it by name.

    Raises:
        ConfigError: the file cannot be read, is no `VecNormalize`, or does not fit the processing; nothing is changed.
    """
    accepted = "what VecNormalize.save of Stable-Baselines3 wrote"
    try:
        saved = pickle.loads(path.read_bytes())
    except Exception as error:  # a pickle may raise anything
        raise ConfigError(
            f"{path} cannot be unpickled: {type(error).__name__}: {error}; accepted: {accepted}"
        ) from error
    if not isinstance(saved, VecNormalize):
        raise ConfigError(f"{path} holds a {type(saved).__name__}; accepted: {accepted}")
    found: dict[str, Any] = {"returns": saved.ret_rms} if processing.settings.normalize_rewards else {}
    if processing.normalizer is not None:
        if not saved.norm_obs:
            raise ConfigError(f"{path} holds no statistics of observations, which the policy normalises")
        own: Any = saved.obs_rms
        by_key = own if isinstance(own, dict) else dict.fromkeys(processing.normalizer.statistics, own)
        found |= {f"observations/{key}" if key else "observations": moments for key, moments in by_key.items()}
    try:
        processing.read_state(StateReader(statistics_state(found), str(path)))()
    except CheckpointError as error:
        raise ConfigError(f"the statistics do not fit the policy: {error}") from error


def vec_normalize(processing: Processing, gamma: float) -> VecNormalize:
    """Make a `VecNormalize` with the statistics of a policy, which do not change.

    Args:
        processing: of the policy.
        gamma: its discount.
    """
    settings, normalize = processing.settings, processing.normalizer
    before: spaces.Space[Any] = processing.env_observation_space if normalize is None else normalize.before
    made = VecNormalize(
        OneRow(before, processing.action_space),
        training=False,
        norm_obs=normalize is not None,
        norm_reward=settings.normalize_rewards,
        clip_obs=settings.clip_observations,
        clip_reward=settings.clip_normalized_rewards,
        gamma=gamma,
        epsilon=settings.normalize_epsilon,
        norm_obs_keys=list(normalize.statistics) if normalize and isinstance(before, spaces.Dict) else None,
    )
    if normalize is not None:
        copies: Any = {key: own.copy() for key, own in normalize.statistics.items()}
        made.obs_rms = copies if isinstance(before, spaces.Dict) else next(iter(copies.values()))
    if settings.normalize_rewards:
        made.ret_rms = processing.rewards.statistics["returns"].copy()
    return made

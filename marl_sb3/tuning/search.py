"""A search: what is tried, by which rules, and where it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from marl_sb3.config import TrainConfig, load_config, read_yaml, require_named
from marl_sb3.config.names import canonical_name
from marl_sb3.config.values import integer
from marl_sb3.errors import ConfigError
from marl_sb3.storage.atomic import write_whole
from marl_sb3.tuning.objective import Objective
from marl_sb3.tuning.space import Space, parse_space
from marl_sb3.tuning.storage import without_password

SAMPLERS = ("tpe", "random", "grid", "gp")
PRUNERS = ("median", "asha", "none")
STORAGE_VARIABLE = "MARL_SB3_STORAGE"  # tells workers the storage's URL: command lines can be read by all users
THE_SEARCH = "the search"  # the source of what a trial has because it is one
_FILE = "study.yaml"
_NEWER = frozenset({"hparams", "n_envs", "vectorizer", "device"})  # files of older versions lack them


@dataclass(frozen=True)
class Search:
    """Everything that decides what a search does.

    Attributes:
        env: env id.
        space: the parameters that are searched.
        name: of the study.
        trials: how many, without those that are repeated because they were killed.
        seed: from which the seed of every trial follows, and what the sampler draws.
        algo: algorithm; None: the default one.
        policies: as in `TrainConfig`; None: as in the preset.
        timesteps: env steps of a trial; None: as in the preset.
        hparams: the settings of the env, by its id, instead of the shipped preset; None: the preset.
        n_envs: envs that step together; None: as in the preset.
        vectorizer: as in `TrainConfig`; None: as in the preset.
        device: as in `TrainConfig`; None: as in the preset.
        settings: what is set in every trial, by keys as after `--set`.
        sampler: one of `SAMPLERS`.
        pruner: one of `PRUNERS`.
        objective: see `Objective`.
        mode: see `Objective`.
        over: see `Objective`.
        evaluations: how many a trial has, in equal distances.
        evaluation_episodes: complete episodes in each of them.
        storage: URL of a database; None: a journal in the study's folder.
    """

    env: str
    space: Space
    name: str
    trials: int = 50
    seed: int = 0
    algo: str | None = None
    policies: str | None = None
    timesteps: int | None = None
    hparams: Mapping[str, Any] | None = None
    n_envs: int | None = None
    vectorizer: str | None = None
    device: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampler: str = "tpe"
    pruner: str = "median"
    objective: str = "sum"
    mode: str = "max"
    over: str = "last"
    evaluations: int = 10
    evaluation_episodes: int = 10
    storage: str | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "evaluations", "evaluation_episodes"):
            require_integer(name, getattr(self, name), 1)
        require_integer("seed", self.seed, 0)
        for name in ("timesteps", "n_envs"):
            if getattr(self, name) is not None:
                require_integer(name, getattr(self, name), 1)
        if self.hparams is not None and not isinstance(self.hparams, Mapping):
            raise ConfigError(f"hparams is {self.hparams!r}; accepted: a mapping of the env to settings", key="hparams")
        for name, accepted in (("sampler", SAMPLERS), ("pruner", PRUNERS)):
            if getattr(self, name) not in accepted:
                raise ConfigError(f"--{name} is {getattr(self, name)!r}; accepted: {', '.join(accepted)}", key=name)
        for name in ("env", "name", "objective", "mode", "over"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} is {getattr(self, name)!r}; accepted: a string", key=name)
        if not isinstance(self.settings, Mapping):
            raise ConfigError(f"settings is {self.settings!r}; accepted: a mapping", key="settings")
        if "seed" in self.settings or "seed" in self.space.names:
            # All trials would have it, and all trainings with fresh seeds.
            raise ConfigError("seed is not for trials to choose or share; accepted: --seed, of the search", key="seed")

    def parsed_objective(self) -> Objective:
        """The objective, checked."""
        return Objective(self.objective, self.mode, self.over)

    def trial_seed(self, index: int) -> int:
        """The run seed of a trial, in [0, 2**31), by its place in the order of trials, those tried again left out."""
        return self._derived_seed(index)

    def evaluation_seed(self) -> int:
        """Of the episodes of all evaluations, in [0, 2**31): the same in every trial, so that figures compare."""
        return self._derived_seed(2**31)

    def fresh_seed(self, index: int) -> int:
        """A run seed that no trial has had, in [0, 2**31)."""
        return self._derived_seed(index, 2)

    def fresh_evaluation_seed(self, index: int) -> int:
        """Of episodes by which no trial was judged, in [0, 2**31)."""
        return self._derived_seed(index, 3)

    def _derived_seed(self, *key: int) -> int:
        """Keys (index, 1) are those of samplers."""
        return int(np.random.SeedSequence(self.seed, spawn_key=key).generate_state(1)[0]) >> 1

    def trial_config(self, settings: Mapping[str, Any], seed: int, where: str = "the space, ") -> TrainConfig:
        """The configuration of a trial.

        Args:
            settings: what was chosen.
            seed: run seed.
            where: what the choice was made from, for messages.

        Raises:
            ConfigError: a setting is wrong, or the budget is too small for the evaluations.
        """
        config = self._config(settings, where, n_timesteps=self.timesteps, seed=seed)
        between, rollout = config.n_timesteps // self.evaluations, _rollout_steps(config)
        if between < rollout:
            evaluations = "its evaluation" if self.evaluations == 1 else f"its {self.evaluations} evaluations"
            raise ConfigError(
                f"a trial of {config.n_timesteps} env steps is too short for {evaluations}: a rollout has {rollout} "
                "env steps; accepted: more --timesteps or fewer --evaluations",
                key="timesteps",
            )
        own = {
            "seed": seed,
            "n_timesteps": config.n_timesteps,
            "extensions": None,
            "n_parallel_updates": config.n_parallel_updates,  # each worker has its share of the cores
            "checkpoints.every": 0,
            "evaluation.interval": between,
            "evaluation.interval_unit": "timesteps",
            "evaluation.duration": self.evaluation_episodes,
            "evaluation.duration_unit": "episodes",
            "evaluation.seed": self.evaluation_seed(),
        }
        return replace(config.changed(own, THE_SEARCH), notes=())  # they are told once, when the search begins

    def usual_config(self, settings: Mapping[str, Any]) -> TrainConfig:
        """The configuration of a training with these settings that is no trial: of full length, for one.

        Raises:
            ConfigError: a setting is wrong.
        """
        return self._config(settings)

    def _config(self, settings: Mapping[str, Any], where: str = "the space, ", **budget: Any) -> TrainConfig:
        return load_config(
            self.env,
            self.algo,
            self.hparams,
            settings={**self.settings, **settings},
            label=lambda key: f"{where}{key}" if key in settings else f"--set {key}",
            policies=self.policies,
            n_envs=self.n_envs,
            vectorizer=self.vectorizer,
            device=self.device,
            **budget,
        )

    def with_fitting_evaluations(self) -> Search:
        """The same, with fewer evaluations where the shortest of its trials has room for fewer, but at least one."""
        configs = [self._config(settings, n_timesteps=self.timesteps) for settings in self.space.corners()]
        room = min(config.n_timesteps // _rollout_steps(config) for config in configs)
        return replace(self, evaluations=max(1, min(self.evaluations, room)))

    def same_as(self, other: Search) -> list[str]:
        """The names of what would make the trials of one meaningless in the other."""
        own, theirs = self.to_plain(), other.to_plain()
        return [name for name in own if name != "trials" and own[name] != theirs[name]]

    def to_plain(self) -> dict[str, Any]:
        """As in the study's file: without the password of its database."""
        storage = None if self.storage is None else without_password(self.storage)
        return {**asdict(self), "space": self.space.to_plain(), "storage": storage}

    def write(self, folder: Path) -> None:
        """Write `study.yaml`, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _FILE, yaml.safe_dump(self.to_plain(), sort_keys=False))


def read_search(folder: Path, env: str | None = None, storage: str | None = None) -> Search | None:
    """The search that a study's folder holds; None if it holds none.

    Nothing is imported, and no other machine is connected to, because a file says so.

    Args:
        folder: the study's.
        env: the env as the user names it.
        storage: URL of its database as the user names it.

    Raises:
        ConfigError: the file is damaged, or names code or a server that the user has not named.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    content = read_yaml(path)
    known = {item.name for item in fields(Search)}
    if not isinstance(content, Mapping) or not known - _NEWER <= set(content) <= known:
        raise ConfigError(f"{path} is not that of a study", key="study")
    settings = content["settings"]
    if isinstance(settings, Mapping):  # which may have names of an older version
        content = {**content, "settings": {canonical_name(str(name)): value for name, value in settings.items()}}
    search = Search(**{**content, "space": _space(content["space"], path)})
    require_named(search.env, [] if env is None else [env], path)
    return replace(search, storage=_storage(search.storage, storage, path))


def _space(written: Any, path: Path) -> Space:
    if not isinstance(written, Mapping):
        raise ConfigError(f"{path}: space is {written!r}; accepted: a mapping of parameters to ranges", key="space")
    return parse_space(written, f"{path}, space")


def _storage(written: Any, named: str | None, path: Path) -> str | None:
    """Where the study is kept, from what its file says and what the user says."""
    if written is None and named is None:
        return None
    if named is None:
        if str(written).startswith("sqlite:///") and "?" not in str(written):  # options may name code
            return str(written)
        raise ConfigError(f"{path}: the study is kept in {written}; accepted: --storage with this URL", key="storage")
    if written != without_password(named):
        kept = "a journal in its folder" if written is None else written
        words = f"--storage is {without_password(named)}, but {path} says that the study is kept in {kept}"
        raise ConfigError(words, key="storage")
    return named


def require_integer(name: str, value: Any, minimum: int) -> None:
    """Refuse what is no integer, or too small.

    Raises:
        ConfigError: with the option and what is accepted.
    """
    integer(minimum).require(f"--{name.replace('_', '-')}", value, name)


def _rollout_steps(config: TrainConfig) -> int:
    """Env steps of a rollout of all envs."""
    from marl_sb3.learners.algorithms import algorithm_class
    from marl_sb3.policies.hyperparameters import hyperparameter_defaults

    default = hyperparameter_defaults(algorithm_class(config.algo)).get("n_steps", 1)
    n_steps = config.hyperparameters.get("n_steps", default)
    return config.n_envs * (n_steps if isinstance(n_steps, int) and n_steps > 0 else 1)  # policies refuse all others

"""The settings of a search, the file `study.yaml` that holds them, and its objectives: numbers from evaluations."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

from msgspec import Meta

from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.config.values import Count, Fraction, Named, PositiveInt, require
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.vec_env.seeding import SEARCH_EVALUATIONS, Stream, seed_of, spawned
from marl_sb3.errors import ConfigError, refuse
from marl_sb3.extensions.dialects.names import metric_here
from marl_sb3.files.atomic import write_whole
from marl_sb3.files.plain_yaml import read_yaml, yaml_text
from marl_sb3.runs.files import require_named
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config
from marl_sb3.tools.tuning.space import Space, parse_space
from marl_sb3.tools.tuning.storage import is_inner_database, require_own_study, without_password

_EVALUATED = "evaluation/env_runners/"
_AGENTS = f"{_EVALUATED}agent_episode_returns_mean/"
_POLICIES = f"{_EVALUATED}module_episode_returns_mean/"
_AGAINST_RANDOM = "evaluation/against_random/"
_SHORT = {"sum": f"{_EVALUATED}episode_return_mean", "against_random": f"{_AGAINST_RANDOM}gain_mean"}
_MEAN = re.compile(r"mean_of_last_0*([1-9][0-9]{0,8})")
NOT_TOGETHER = ("sum", "min")  # objectives that combine the returns of all agents


@dataclass(frozen=True)
class Objective:
    """What a search maximizes or minimizes."""

    # `sum` or `min` of the agents' returns, `against_random`, an agent's or a policy's id, the name of a custom metric,
    # or the flat name of any metric
    of: str = "sum"
    mode: str = "max"
    # which evaluations of a trial count: `last`, `best`, or the mean of the last k, as `mean_of_last_3`
    over: str = "last"

    def __post_init__(self) -> None:
        if self.mode not in ("max", "min"):
            refuse("--mode", self.mode, "max or min", "mode")
        if self.over not in ("last", "best") and not _MEAN.fullmatch(self.over):
            refuse("--over", self.over, "last, best or mean_of_last_K", "over")

    @property
    def sign(self) -> float:
        """1 where more is better, -1 where less is."""
        return 1.0 if self.mode == "max" else -1.0

    @property
    def plays_random(self) -> bool:
        """Whether it needs evaluations against random policies."""
        return _SHORT.get(self.of, self.of).startswith(_AGAINST_RANDOM)

    @property
    def n_last(self) -> int:
        """The number of evaluations of which the mean counts."""
        mean = _MEAN.fullmatch(self.over)
        return int(mean[1]) if mean else 1

    def require_known(self, names: Sequence[str]) -> None:
        """Refuse an objective that is not among the names of metrics."""
        if self.of != "min" and self.metric(names) not in names:
            agents, policies = (
                ", ".join(name.removeprefix(prefix) for name in names if name.startswith(prefix))
                for prefix in (_AGENTS, _POLICIES)
            )
            here = metric_here(self.of)
            raise ConfigError(
                f"--objective is {self.of!r}{here and '; '}{here}; accepted: sum, min, against_random, an agent "
                f"({agents}), a policy ({policies}), a custom metric or the name of any metric",
                key="objective",
            )

    def metric(self, names: Sequence[str]) -> str:
        """The flat name of the objective's metric; `names` are those of all metrics."""
        if self.of in _SHORT:
            return _SHORT[self.of]
        candidates = (f"{_AGENTS}{self.of}", f"{_POLICIES}{self.of}", f"{_EVALUATED}custom_metrics/{self.of}_mean")
        return next((name for name in candidates if name in names), self.of)

    def value(self, result: Mapping[str, Any]) -> float | None:
        """The objective of an iteration; None if it was not evaluated."""
        flat = flatten(result)
        if self.of == "min":
            returns = [value for name, value in flat.items() if name.startswith(_AGENTS)]
            return min(returns) if returns and None not in returns else None
        if not any(name.startswith(_EVALUATED) for name in flat):
            return None
        value = flat.get(self.metric(list(flat)))
        return None if value is None else float(value)

    def of_training(self, results: Sequence[Mapping[str, Any]]) -> float:
        """The objective of a complete training, from the results of its iterations.

        Raises:
            ConfigError: no evaluation has a value.
        """
        evaluated = [self.value(result) for result in results if "evaluation" in result]
        values = [value for value in evaluated if value is not None]
        if not values:
            raise ConfigError(f"no evaluation of the trial has a value of the objective {self.of!r}", key="objective")
        if self.over == "best":
            return max(values) if self.mode == "max" else min(values)
        last = values[-self.n_last :]
        return math.fsum(last) / len(last)


def parse_objectives(objective: str, mode: str, over: str) -> list[Objective]:
    """The objectives with these names, separated by commas; `mode` is that of all, or a list of the same length."""
    names = [name.strip() for name in objective.split(",")]
    modes = [name.strip() for name in mode.split(",")]
    modes = modes * len(names) if len(modes) == 1 else modes
    if len(modes) != len(names):
        refuse("--mode", mode, f"one of max and min, or {len(names)} of them", "mode")
    if "" in names or len(set(names)) < len(names):
        refuse("--objective", objective, "different names, A or A,B", "objective")
    return [Objective(name, of_one, over) for name, of_one in zip(names, modes, strict=True)]


# --- The search -------------------------------------------------------------------------------------------------------


Sampler = Literal["tpe", "random", "grid", "gp", "pbt"]
Pruner = Literal["median", "asha", "none"]
_WHOLE_LENGTH = "n_timesteps"  # by it the user says how long a whole training is
_EVERY = "checkpoints.every"  # of a file, it is for whole trainings
THE_SEARCH = "the search"  # the source of settings that a configuration has only because it is a trial
_FILE = "study.yaml"


@dataclass(frozen=True)
class Search:
    """All settings of a search: the options that `SearchOptions` explains, with their defaults.

    None is as in the preset; for `algo` it is the default, for `hparams` the shipped preset.
    """

    env: str
    space: Space
    name: str
    trials: PositiveInt = 50
    seed: Count = 0
    algo: str | None = None
    policies: str | None = None
    timesteps: PositiveInt | None = None
    hparams: Named | None = None
    n_envs: PositiveInt | None = None
    vectorizer: str | None = None
    device: str | None = None
    settings: Named = field(default_factory=dict)
    sampler: Sampler = "tpe"
    pruner: Pruner = "asha"
    objective: str = "sum"
    mode: str = "max"
    over: str = "mean_of_last_3"
    evaluations: PositiveInt = 10
    evaluation_episodes: PositiveInt = 10
    storage: str | None = None
    pbt_quantile: Annotated[float, Meta(gt=0, le=0.5)] = 0.25
    pbt_resample: Fraction = 0.1

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            require(f"--{name.replace('_', '-')}", getattr(self, name), kind, name)
        self.require_not_set({"seed"})
        if len(self.objectives()) > 1 and self.pruner != "none":
            words = f"--pruner is {self.pruner!r}; accepted with several objectives: none"
            raise ConfigError(words, key="pruner")
        self._check_population()

    def require_not_set(self, names: Collection[str]) -> None:
        """Refuse settings of `OF_THE_SEARCH` that are set for all trials or searched."""
        for name in sorted({*self.settings, *self.space.names} & {*names}):
            words = f"{name} is not for trials to choose or share; accepted: {OF_THE_SEARCH[name]}"
            raise ConfigError(words, key=name)

    def _check_population(self) -> None:
        """Refuse what a population cannot do, and its options without one."""
        if not self.is_population:
            for name, value in _OF_POPULATIONS.items():
                if getattr(self, name) != value:
                    option = f"--{name.replace('_', '-')} is {getattr(self, name)}"
                    raise ConfigError(f"{option}, and --sampler {self.sampler}; accepted: --sampler pbt", key=name)
            return
        accepted: Mapping[str, tuple[bool, str]] = {
            "trials": (self.trials >= 2, "at least 2 members"),
            "pruner": (self.pruner == "none", "none: a member that falls behind copies a better one"),
            "objective": ("," not in self.objective, "a single one, by which members are compared"),
            "evaluations": (self.evaluations >= 2, "at least 2: members are compared after each"),
        }
        for name, (is_accepted, words) in accepted.items():
            if not is_accepted:
                value = getattr(self, name)
                raise ConfigError(f"--{name} is {value!r}; accepted with --sampler pbt: {words}", key=name)
        if any(name == "stop" or name.startswith("stop.") for name in self.settings):
            raise ConfigError("--stop is given; accepted with --sampler pbt: all members train to the end", key="stop")

    @property
    def is_population(self) -> bool:
        """Whether the trials are members of a population, see `marl_sb3.tools.tuning.population`."""
        return self.sampler == "pbt"

    @property
    def generations(self) -> int:
        """How many trials a member has, one after the other."""
        return self.evaluations if self.is_population else 1

    @property
    def n_trainings(self) -> int:
        """The number of trials in all: `trials`, or of a population those of all generations."""
        return self.trials * self.generations

    def objectives(self) -> list[Objective]:
        """The objectives, checked. Of several, the first decides where one number is needed."""
        return parse_objectives(self.objective, self.mode, self.over)

    def trial_seed(self, index: int) -> int:
        """The run seed of the trial with this index, in [0, 2**31); retries have the index of the first attempt."""
        return seed_of(spawned(self.seed, Stream.NUMBERED, index))

    def evaluation_seed(self) -> int:
        """The seed of all evaluations, in [0, 2**31); all trials have the same, so that their values compare."""
        return seed_of(spawned(self.seed, Stream.NUMBERED, SEARCH_EVALUATIONS))

    def fresh_seeds(self, index: int) -> tuple[int, int]:
        """Seeds of a confirmation and of its evaluations, in [0, 2**31); no trial had them."""
        own, evaluations = (spawned(self.seed, each, index) for each in (Stream.FINALS, Stream.FINAL_EVALUATIONS))
        return seed_of(own), seed_of(evaluations)

    def trial_config(self, settings: Mapping[str, Any], seed: int, where: str = "the space, ") -> TrainConfig:
        """The configuration of a trial.

        Args:
            where: the origin of the space, put before the names of parameters in messages.

        Raises:
            ConfigError: a setting is wrong, or the budget is too small for the evaluations.
        """
        config = self.config(settings, where, n_timesteps=self.timesteps, seed=seed).changed({"extensions": None})
        if self.timesteps is not None:  # also where `--set n_timesteps` says how long `best.yml` trains
            config = config.changed({"n_timesteps": self.timesteps}, "--timesteps")
        if self.is_population and config.stop:
            words = f"the settings stop at {', '.join(config.stop)}; accepted with --sampler pbt: stop: {{}}"
            raise ConfigError(words, key="stop")
        self._require_long_enough(config, "a trial")
        return self._evaluated(config, seed, self.evaluation_seed())

    def whole_config(self, settings: Mapping[str, Any]) -> TrainConfig:
        """The configuration of a whole training with these settings, as in `best.yml`.

        Its env steps are those of the preset or of `--set`; where neither says them, or a trial is longer than that of
        the preset, those of a trial. Those of a population are always those of its members, because their settings
        change at certain steps. It has no stop conditions, which end trials.

        Args:
            settings: by key, and `extensions` of a member that has changed its.
        """
        settings = dict(settings)
        phases = {"extensions": settings.pop("extensions", None)} if self.is_population else {}
        config = self.config(settings)
        if self.timesteps is not None and (
            self.is_population
            or "n_timesteps" not in config.sources
            or (self.timesteps > config.n_timesteps and _WHOLE_LENGTH not in self.settings)
        ):
            config = self.config(settings, n_timesteps=self.timesteps)
        return config.changed({"seed": None, "stop": {}, **phases})

    def final_config(self, settings: Mapping[str, Any], seed_index: int) -> TrainConfig:
        """The configuration of a finalist's training with a fresh seed.

        It is as long as a trial; where `--set n_timesteps` says how long a whole training is, as long as that. The
        episodes of its evaluations are new, too: the finalists were chosen by those of the trials.

        Raises:
            ConfigError: a setting is wrong, or the training is too short for the evaluations.
        """
        config = self.whole_config(settings)
        if not self.is_population:
            config = config.changed({"extensions": None})
            if self.timesteps is not None and _WHOLE_LENGTH not in self.settings:
                config = config.changed({"n_timesteps": self.timesteps}, "--timesteps")
        self._require_long_enough(config, "a finalist's training")
        return self._evaluated(config, *self.fresh_seeds(seed_index))

    def _require_long_enough(self, config: TrainConfig, training: str) -> None:
        rollout = rollout_steps(config)
        if config.n_timesteps // self.evaluations < rollout:
            evaluations = "its evaluation" if self.evaluations == 1 else f"its {self.evaluations} evaluations"
            words = f"{training} of {config.n_timesteps} env steps is too short for {evaluations}"
            fewer = "" if self.evaluations == 1 else ", or fewer --evaluations"
            accepted = f"accepted: --timesteps {rollout * self.evaluations} or more{fewer}"
            raise ConfigError(f"{words}: a rollout has {rollout} env steps; {accepted}", key="timesteps")

    def _evaluated(self, config: TrainConfig, seed: int, evaluation_seed: int) -> TrainConfig:
        """A configuration with a seed, and with the evaluations of the search."""
        set_by_search = {
            "seed": seed,
            "n_timesteps": config.n_timesteps,
            "n_parallel_updates": config.n_parallel_updates,  # workers divide the cores among them
            "checkpoints.every": config.checkpoints.every if _EVERY in {*self.settings, *self.space.names} else 0,
            "evaluation.interval": config.n_timesteps // self.evaluations,
            "evaluation.interval_unit": "timesteps",
            "evaluation.duration": self.evaluation_episodes,
            "evaluation.duration_unit": "episodes",
            "evaluation.seed": evaluation_seed,
        }
        if any(objective.plays_random for objective in self.objectives()):
            set_by_search["evaluation.against_random"] = True
        return replace(config.changed(set_by_search, THE_SEARCH), notes=())  # shown once, when the search starts

    def preset_params(self) -> dict[str, Any] | None:
        """The parameters of a trial with the settings of the preset; None if the space does not contain it."""
        return self.space.params_of(self.preset())

    def preset(self) -> TrainConfig:
        """The configuration that the search starts from and is compared with, with all defaults of SB3."""
        from marl_sb3.runs.building import resolved

        return resolved(replace(self.config({}), seed=0))

    def config(
        self, settings: Mapping[str, Any], where: str = "the space, ", *, picks_rollouts: bool = False, **budget: Any
    ) -> TrainConfig:
        """The configuration of a training with these settings; without a budget, that of a full one.

        Args:
            picks_rollouts: whether it may pick rollouts that no source gives, as `train` does in an env without a
                preset. Not in a trial: a file with the best settings gives the same rollouts.
        """
        config = load_config(
            self.env,
            self.algo,
            self.hparams,
            settings={**self.settings, **settings},
            label=lambda key: f"{where}{key}" if key in settings else f"--set {key}",
            policies=self.policies,
            n_envs=self.n_envs,
            vectorizer=self.vectorizer,
            device=self.device,
            trust_file=True,  # `prepare_study` has seen what the user names
            **budget,
        )
        return config if picks_rollouts else replace(config, picks_rollouts=False)

    def to_plain(self) -> dict[str, Any]:
        """The search as plain data for `study.yaml`, without the password of its database."""
        storage = None if self.storage is None else without_password(self.storage)
        plain = {**asdict(self), "space": self.space.to_plain(), "storage": storage}
        # Other studies are as they were before there were populations.
        return plain if self.is_population else {name: plain[name] for name in plain if name not in _OF_POPULATIONS}

    def write(self, folder: Path) -> None:
        """Write `study.yaml` atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _FILE, yaml_text(self.to_plain()))


# Settings that the search sets in every training, and what users give instead. Stored studies of former versions may
# have all but the seed.
OF_THE_SEARCH = {
    "seed": "--seed, of the search",
    "evaluation.seed": "--seed, of the search",
    "evaluation.interval": "--evaluations, of each trial",
    "evaluation.interval_unit": "--evaluations, of each trial",
    "evaluation.duration": "--evaluation-episodes",
    "evaluation.duration_unit": "--evaluation-episodes",
    "extensions": "n_timesteps and --timesteps",
}
_OF_POPULATIONS = {name: getattr(Search, name) for name in ("pbt_quantile", "pbt_resample")}
# The kinds of all fields but the space, which checks itself.
_KINDS = {name: kind for name, kind in get_type_hints(Search, include_extras=True).items() if name != "space"}


def read_search(folder: Path, env: str | None = None, storage: str | None = None) -> Search | None:
    """Read the search from a study's folder; None if the folder has no study.

    The file cannot make this process import code or connect to a server that the user has not named.
    """
    require_own_study(folder)
    path = folder / _FILE
    if not path.is_file():
        return None
    content = read_yaml(path)
    names = {item.name for item in fields(Search)}
    if not isinstance(content, Mapping) or {*content, *_OF_POPULATIONS} != names:
        raise ConfigError(f"{path} is not that of a study", key="study")
    search = Search(**{**content, "space": parse_space(content["space"], f"{path}, space")})
    require_named(search.env, [] if env is None else [env], path)
    return replace(search, storage=_storage(search.storage, storage, path))


def _storage(written: Any, named: str | None, path: Path) -> str | None:
    """The storage to use, from the URLs in the file and from the user; they must agree."""
    if written is None and named is None:
        return None
    if named is None:
        if is_inner_database(str(written), path.parent):
            return str(written)
        raise ConfigError(f"{path}: the study is kept in {written}; accepted: --storage with this URL", key="storage")
    if written != without_password(named):
        kept = "a journal in its folder" if written is None else written
        words = f"--storage is {without_password(named)}, but {path} says that the study is kept in {kept}"
        raise ConfigError(words, key="storage")
    return named


def rollout_steps(config: TrainConfig) -> int:
    """Env steps of a rollout of all envs."""
    from marl_sb3.core.learners.spec import hyperparameter_defaults

    default = hyperparameter_defaults(algorithm_info(config.algo).algorithm_class).get("n_steps", 1)
    n_steps = config.hyperparameters.get("n_steps", default)
    return config.n_envs * (n_steps if isinstance(n_steps, int) and n_steps > 0 else 1)  # else: refused by policies

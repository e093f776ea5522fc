"""A benchmark's file: which algorithms are trained in which envs, with which settings and seeds.

Keys are those of `_TOP`, `_OF_ENV` and `_OF_ALGO`; whatever else an env or an algorithm has is a setting, as after
`--set`. The last of these wins: the preset, `settings`, the env's, the algorithm's, the algorithm's in this env.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from marl_sb3.core.config.algorithms import algorithm_info
from marl_sb3.core.config.values import Count, PositiveInt, accepts, require
from marl_sb3.core.metrics.names import flatten
from marl_sb3.errors import ConfigError, refuse, require_known, shown
from marl_sb3.evaluation.opponents import OPPONENTS, RANDOM, is_code
from marl_sb3.files.atomic import UNFINISHED, write_whole
from marl_sb3.files.paths import as_path, folder_name, path_is_usable, require_file_name
from marl_sb3.files.plain_yaml import parse_value, read_yaml
from marl_sb3.files.regular import require_own
from marl_sb3.runs.building import import_algorithms
from marl_sb3.runs.files import preset_path, to_yaml
from marl_sb3.runs.folder import RunFolder, require_run
from marl_sb3.runs.schema import TrainConfig
from marl_sb3.runs.settings import load_config, require_trusted
from marl_sb3.runs.start import resolve

_TOP = ("algos", "envs", "seeds", "episodes", "checkpoint", "presets", "settings")
_OF_ENV = ("env", "algos", "seeds", "episodes", "checkpoint", "presets", "against", "metrics", "references")
_OF_ALGO = ("algo", "presets")
_SETTINGS_FILE = "settings.yaml"
_Checkpoint = Literal["latest", "best"]
OUTCOME = ("table.md", "marl_eval.json")  # what came of a benchmark
_BESIDE = ("result.json", "failed", "processor.json")  # files of a training, besides its claims


@dataclass(frozen=True, eq=False)
class BenchmarkEnv:
    """An env, under its name in the file."""

    name: str
    folder: Path  # of all trainings in it
    episodes: int  # of an evaluation after a training: complete ones; against opponents for each agent
    checkpoint: str  # that is evaluated: `latest` or `best`, see `evaluate --checkpoint`
    against: Sequence[str]  # who plays the other agents, one after the other; none: all are played by the policies
    metrics: Sequence[str]  # what the table shows; none: the usual ones
    references: Mapping[str, float]  # name -> value of the first metric, from elsewhere

    @property
    def random_file(self) -> Path:
        """What random agents reach."""
        return self.folder / "random.json"


@dataclass(frozen=True, eq=False)
class Training:
    """A training of a benchmark."""

    env: BenchmarkEnv
    algo: str  # the name in the file
    config: TrainConfig  # with the seed

    @property
    def seed(self) -> int:
        """The seed of the run."""
        assert self.config.seed is not None
        return self.config.seed

    def __str__(self) -> str:
        return f"{self.env.name}, {self.algo}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.env.folder / self.algo / f"seed-{self.seed}"

    def beside(self, suffix: str) -> Path:
        """Return a file beside the run folder, which has to be empty when the run begins."""
        return self.folder.with_name(f"{self.folder.name}.{suffix}")

    @property
    def result_file(self) -> Path:
        """What the policies reached; it exists if the training is done."""
        return self.beside("result.json")

    @property
    def failure_file(self) -> Path:
        """Why it has failed, and where; it exists until the benchmark is continued."""
        return self.beside("failed")

    @property
    def is_open(self) -> bool:
        """Whether it is neither done nor failed."""
        return not (self.result_file.exists() or self.failure_file.exists())


@dataclass(frozen=True)
class Benchmark:
    """What a file asks for."""

    file: str  # as the user named it
    folder: Path  # absolute: an env may change the working folder
    shown: Path  # the same for messages
    trainings: Sequence[Training]  # all with the first seed, then with the second, and so on

    @cached_property
    def pairs(self) -> Mapping[BenchmarkEnv, Mapping[str, Sequence[Training]]]:
        """Env -> algorithm -> the trainings with all seeds, in the order of the file."""
        found: dict[str, tuple[BenchmarkEnv, dict[str, list[Training]]]] = {}
        for each in self.trainings:
            found.setdefault(each.env.name, (each.env, {}))[1].setdefault(each.algo, []).append(each)
        return dict(found.values())

    def open(self) -> list[Training]:
        """Return the trainings that are neither done nor failed."""
        return [training for training in self.trainings if training.is_open]

    def require_own(self) -> None:
        """Refuse a folder that holds something else, and links or folders where a benchmark has files or runs.

        Raises:
            ConfigError: there is something of that kind; names it.
        """
        names = ["workers/", "workers/*", *OUTCOME]
        for each in self.trainings:
            folders = (each.env.folder, each.folder.parent, each.folder)
            files = (each.env.random_file, each.folder.with_name(_SETTINGS_FILE), *map(each.beside, _BESIDE))
            names += [f"{path.relative_to(self.folder)}/" for path in folders]
            names += [str(path.relative_to(self.folder)) for path in files]
        with path_is_usable("cannot use the folder of a benchmark", self.shown, "folder"):
            require_own(self.folder, dict.fromkeys(names))
            others = (path for path in self.folder.rglob("*") if not path.is_dir())
            if not any(self.folder.glob(f"*/*/{_SETTINGS_FILE}")) and (
                other := next((path for path in others if not path.name.startswith(UNFINISHED)), None)
            ):  # what a start leaves that was cut off counts for nothing
                words = f"--folder is {self.shown}, which holds no benchmark, but {other.relative_to(self.folder)}"
                raise ConfigError(f"{words}; accepted: a new or empty folder, or that of a benchmark", key="folder")
        for each in self.open():
            if not RunFolder(each.folder).checkpoints.names():  # it begins anew
                require_run(each.folder, each.config.env)

    def begin(self) -> None:
        """Check the settings of what is not trained yet, write all settings, and remove failures, to try again.

        Raises:
            ConfigError: a setting does not fit, or the folder has trainings with other settings, or is none of ours.
        """
        self.require_own()
        firsts = [trainings[0] for algos in self.pairs.values() for trainings in algos.values()]
        for training in firsts:
            self._require_same(training)
        for training in firsts:
            if any(not each.result_file.exists() for each in self.pairs[training.env][training.algo]):
                try:
                    resolve(training.config)
                except ConfigError as error:
                    raise ConfigError(f"{self.file}: {training.env.name}, {training.algo}: {error}") from error
        for training in firsts:
            training.folder.parent.mkdir(parents=True, exist_ok=True)
            write_whole(training.folder.with_name(_SETTINGS_FILE), _settings(training))
        for training in self.trainings:
            training.failure_file.unlink(missing_ok=True)

    def _require_same(self, training: Training) -> None:
        file = training.folder.with_name(_SETTINGS_FILE)
        if not file.exists() or not any(training.folder.parent.glob("seed-*")):
            return
        found = read_yaml(file)
        if not isinstance(found, Mapping):
            raise ConfigError(f"{file} is not that of a benchmark", key="folder")
        before, now = (flatten(each) for each in (found, parse_value(_settings(training))))
        for key in {**now, **before}:
            if before.get(key) != now.get(key):
                name, (old, new) = key.partition("/")[2], (shown(each.get(key)) for each in (before, now))
                words = (
                    f"{file.parent} has trainings with {name.replace('/', '.')} {old}, and {self.file} now has {new}"
                )
                raise ConfigError(f"{words}; accepted: the same settings, or another --folder", key="folder")


def _settings(training: Training) -> str:
    return to_yaml(training.config.changed({"seed": None}))


# --- The file --------------------------------------------------------------------------------------------------------


def read_benchmark(file: str, folder: str | Path | None = None, *, trust_file: bool = False) -> Benchmark:
    """Read a benchmark's file; nothing is written.

    Args:
        file: its path, or the name of one in `hparams/benchmarks/`, which is trusted.
        folder: of the trainings; None: `runs/benchmark-NAME`.
        trust_file: import the code that the file names.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not accepted; the message names both.
    """
    of_package = preset_path(f"benchmarks/{file}")
    is_ours = re.fullmatch(r"[\w-]+", file) is not None and of_package.exists()
    path = of_package if is_ours else Path(file)
    with path_is_usable("cannot read", path, "FILE"):
        content = read_yaml(path)
    own = as_path("folder", folder or f"runs/benchmark-{path.stem}")
    return Benchmark(
        file, own.absolute(), own, list(_Reader(file, own.absolute(), content, is_ours or trust_file).trainings())
    )


class _Reader:
    """Reads the content of a file.

    Args:
        trusted: whether code is imported that it names.
    """

    def __init__(self, file: str, folder: Path, content: Any, trusted: bool) -> None:
        self.file, self.folder, self.trusted = file, folder, trusted
        self.top = self._mapping("", content)
        for key in self.top:
            require_known(key, _TOP, f"{file}: {key} is no key of a benchmark", key)
        self.algos = self._entries("algos", self.top.get("algos", {}))
        self.envs = self._entries("envs", self.top.get("envs"))
        self.settings = self._mapping("settings", self.top.get("settings") or {})

    def trainings(self) -> Iterator[Training]:
        """Yield all trainings."""
        folders: dict[str, str] = {}
        found: list[tuple[int, Training]] = []
        for name, of_env in self.envs.items():
            where = f"envs.{name}"
            folder = require_file_name(f"{self.file}: {where}", folder_name(name), where)
            if (other := folders.setdefault(folder, name)) != name:
                raise self._refused(where, f"has the same folder as {other}, {folder}; accepted: another name")
            env = self._env(where, name, self.folder / folder, of_env)
            seeds = self._seeds(where, of_env)
            for algo, of_pair in self._algos_of(where, of_env).items():
                config = self._config(name, of_env, algo, of_pair)
                for place, seed in enumerate(seeds):
                    found.append((place, Training(env, algo, config.changed({"seed": seed}))))
        return (training for _, training in sorted(found, key=lambda each: each[0]))

    def _env(self, where: str, name: str, folder: Path, given: Mapping[str, Any]) -> BenchmarkEnv:
        def asked(key: str, default: Any) -> Any:
            return given.get(key, self.top.get(key, default))

        episodes = self._value(f"{where}.episodes", asked("episodes", 100), PositiveInt)
        checkpoint = self._value(f"{where}.checkpoint", asked("checkpoint", "latest"), _Checkpoint)
        against, metrics = (
            self._value(f"{where}.{key}", given.get(key) or [], Sequence[str]) for key in ("against", "metrics")
        )
        if unknown := [who for who in against if not is_code(who)]:
            accepted = f"a list of {', '.join((RANDOM, *OPPONENTS.names()))} and MODULE:CLASS"
            raise self._refused(f"{where}.against", f"has {unknown[0]}; accepted: {accepted}")
        self._require_trusted(f"{where}.against", [who for who in against if ":" in who])
        references = self._mapping(f"{where}.references", given.get("references") or {})
        for who, value in references.items():
            self._value(f"{where}.references.{who}", value, float)
        return BenchmarkEnv(name, folder, episodes, checkpoint, against, metrics, references)

    def _seeds(self, where: str, given: Mapping[str, Any]) -> list[int]:
        where, seeds = (f"{where}.seeds", given["seeds"]) if "seeds" in given else ("seeds", self.top.get("seeds", 1))
        listed = list(range(seeds)) if accepts(PositiveInt, seeds) else seeds
        if not isinstance(listed, list) or not listed or len({*map(str, listed)}) < len(listed):
            refuse(
                f"{self.file}: {where}", seeds, "a number of seeds of at least 1, or a list of different seeds", where
            )
        return [self._value(where, seed, Count) for seed in listed]

    def _algos_of(self, where: str, of_env: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
        """Return the settings of each algorithm in one env alone."""
        is_own = "algos" in of_env
        key = f"{where}.algos" if is_own else "algos"
        found = self._entries(key, of_env["algos"]) if is_own else {name: {} for name in self.algos}
        if not found:
            raise self._refused(key, f"is missing; {_ENTRIES}")
        for name in found:
            require_file_name(f"{self.file}: {key}", name, key)
        return found

    def _config(
        self, env_name: str, of_env: Mapping[str, Any], algo_name: str, of_pair: Mapping[str, Any]
    ) -> TrainConfig:
        places = {  # the last one wins
            "settings": self.settings,
            f"envs.{env_name}": {key: value for key, value in of_env.items() if key not in _OF_ENV},
            f"algos.{algo_name}": self.algos.get(algo_name, {}),
            f"envs.{env_name}.algos.{algo_name}": of_pair,
        }
        settings: dict[str, Any] = {"n_parallel_updates": 1}  # other trainings have the other cores
        from_place: dict[str, str] = {}
        for place, given in places.items():
            settings |= given
            from_place |= {key: f"{self.file}, {place}.{key}" for key in given}
        env, algo = of_env.get("env", env_name), settings.pop("algo", algo_name)
        presets = settings.pop("presets", of_env.get("presets", self.top.get("presets", True)))
        for key, value, kind, accepted in (
            ("env", env, str, "the id of an env; its arguments are env.NAME"),
            ("algo", algo, str, "the name of an algorithm"),
            ("presets", presets, bool, "true or false"),
        ):
            if not isinstance(value, kind):
                where = f"envs.{env_name}, {algo_name}: {key}"
                refuse(f"{self.file}: {where}", value, accepted, where)
        if "seed" in settings:
            raise ConfigError(f"{from_place['seed']}: accepted: seeds, beside envs or in an env", key="seed")
        self._require_trusted(f"envs.{env_name}", [each for each in (env, algo) if ":" in each])
        if self.trusted:
            import_algorithms({env: {"algo": algo, **settings}}, env)
        try:
            algorithm_info(algo)
        except ConfigError as error:
            raise ConfigError(f"{self.file}, algos.{algo_name}: {error}", key="algo") from error
        config = load_config(
            env, algo, None if presets else {env: {}}, settings, label=lambda key: from_place.get(key, self.file)
        )
        if not self.trusted:
            require_trusted(config.code(), config.sources, ())
        return config

    # --- Parts of a file ---------------------------------------------------------------------------------------------

    def _refused(self, key: str, words: str) -> ConfigError:
        return ConfigError(f"{self.file}: {key} {words}", key=key)

    def _mapping(self, key: str, value: Any) -> Mapping[str, Any]:
        return {str(name): own for name, own in self._value(key, value, Mapping).items()}

    def _value(self, key: str, value: Any, kind: Any) -> Any:
        return require(f"{self.file}: {key}", value, kind, key)

    def _entries(self, key: str, value: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return name -> settings of what may be a list of names, too."""
        if isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value):
            return {name: {} for name in value}
        if not isinstance(value, Mapping):
            raise self._refused(key, f"is {'missing' if value is None else shown(value)}; {_ENTRIES}")
        return {str(name): self._mapping(f"{key}.{name}", own or {}) for name, own in value.items()}

    def _require_trusted(self, key: str, names: Sequence[str]) -> None:
        if names and not self.trusted:
            words = f"wants to import {', '.join(map(shown, names))}"
            raise self._refused(key, f"{words}; accepted: with --trust-file, if you trust this code")


_ENTRIES = "accepted: a list of names, or a mapping from names to settings"

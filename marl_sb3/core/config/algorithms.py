"""What is known of an algorithm, an `AlgorithmInfo`, and the registry that finds it by name or class."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from typing import Annotated, Any, NamedTuple, cast

from msgspec import Meta

from marl_sb3.core.config.values import FiniteFloat, takes_integers_only
from marl_sb3.doors import ALGORITHM_TABLES, counterpart, imported
from marl_sb3.errors import ConfigError, refuse, require_known, shown

# --- Schedules -------------------------------------------------------------------------------------------------------

# The forms of schedules, besides numbers; `sb3.schedules` makes them.
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?"
Decay = Annotated[
    str,
    Meta(
        pattern=rf"^(lin_{_NUMBER}|exp_{_NUMBER}(_{_NUMBER})?)\Z",
        description="lin_X for a line from X down to 0, or exp_X or exp_X_Y for equal factors from X to X/100 or Y",
    ),
]
Points = Annotated[
    Sequence[Annotated[Sequence[FiniteFloat], Meta(min_length=2, max_length=2)]],
    Meta(min_length=1, description="[[ENV_STEPS, X], ...] for lines between points"),
]

# Settings that are no arguments of SB3's classes, each with the argument of those classes that take it.
ADDED: Mapping[str, str] = {"exploration_schedule": "exploration_fraction"}

AUTO = "auto"  # the name of the policy that fits the observations

# --- Algorithms ------------------------------------------------------------------------------------------------------


@cache
def parameters_of(algorithm_class: type[Any]) -> Mapping[str, inspect.Parameter]:
    """Return the arguments of an algorithm; where it hands `**kwargs` on, those of its parent classes as well."""
    found: dict[str, inspect.Parameter] = {}
    for cls in (each for each in algorithm_class.__mro__ if "__init__" in vars(each)):
        own = inspect.signature(cls).parameters
        found = {**{name: each for name, each in own.items() if each.kind is not each.VAR_KEYWORD}, **found}
        if all(each.kind is not each.VAR_KEYWORD for each in own.values()):
            break
    return found


@dataclass(frozen=True)
class AlgorithmInfo:
    """An algorithm: all that marl_sb3 has to know to offer it."""

    name: str  # its name on command lines, in files and in checkpoints
    # its class, or the place of it, `module:class`. The class is made and used as SB3's are; see
    # `docs/how_to/algorithms.md` for what it must have if it is no subclass of one of SB3's.
    algorithm: type[Any] | str
    help: str = ""  # what it is, in a line
    # name -> accepted values: a type such as `float`, or msgspec's `Annotated[float, Meta(ge=0)]`. Not needed for
    # arguments that SB3's algorithms have too, and that mean the same.
    hyperparameters: Mapping[str, Any] = field(default_factory=dict, repr=False)
    # the class that trains its policies, a subclass of `Learner`, or its place; None: the learner of the class that it
    # is derived from, or else that of algorithms with rollouts
    learner: type[Any] | str | None = None
    # more metrics below `learners/POLICY/` than those of the class that it is derived from, by name -> the name under
    # which `train()` records it in SB3's logger. With a minus in front: of the opposite sign. None: the learner
    # computes it.
    metrics: Mapping[str, str | None] = field(default_factory=dict)
    policy: str = "MlpPolicy"  # the policy, by name, that `MlpPolicy` stands for
    aliases: Sequence[str] = ()  # other names of it on command lines and in files
    stock: str | None = None  # the place of the class of SB3 that it takes the place of
    takes_masks: bool = False  # whether its policies need action masks
    has_memory: bool = False  # whether its policies have a recurrent state

    @property
    def place(self) -> str:
        """Where its class is: `module:class`."""
        return self.algorithm if isinstance(self.algorithm, str) else place_of(self.algorithm)

    @property
    def class_name(self) -> str:
        """The name of its class."""
        return self.place.partition(":")[2]

    @property
    def algorithm_class(self) -> type[Any]:
        """Its class, which is imported now if it is not yet."""
        return imported(self.algorithm)

    @cached_property
    def _base(self) -> AlgorithmInfo | None:
        """The algorithm of the first base class that has one; None for those in tables, which need none."""
        registry = _registry()
        if any(self is own for own in (*registry.bases, *registry.built_in.values())):
            return None
        places = [place_of(base) for base in self.algorithm_class.__mro__[1:]]
        known = {**{base.place: base for base in registry.bases}, **registry.by_place}
        return next((known[place] for place in places if place in known), registry.bases[-1])

    @property
    def learner_class(self) -> Any:
        """The class of its learners, which is imported now if it is not yet."""
        if self.learner is None and self._base is not None:
            return self._base.learner_class
        return imported(cast("str | type[Any]", self.learner))

    @cached_property
    def kinds(self) -> Mapping[str, Any]:
        """Name -> accepted values of its hyperparameters; those that are not in it are not checked."""
        if isinstance(self.algorithm, str) or self._base is None:
            return self.hyperparameters
        names = parameters_of(self.algorithm)  # type: ignore[arg-type]
        known = {*names, *(name for name, beside in ADDED.items() if beside in names)}
        return {**{name: kind for name, kind in self._base.kinds.items() if name in known}, **self.hyperparameters}

    @cached_property
    def all_metrics(self) -> Mapping[str, str | None]:
        """Its metrics, as in `metrics`, after those of the class that it is derived from."""
        return {**(self._base.all_metrics if self._base else {}), **self.metrics}

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle a built-in one by its name, and another one without the kinds of its hyperparameters.

        Those are not picklable; what they have to accept was checked in the process that pickles.
        """
        if built_in().get(self.name) is self:
            return algorithm_info, (self.name,)
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return AlgorithmInfo, tuple({**values, "hyperparameters": {}}.values())


def place_of(cls: type[Any]) -> str:
    """Return where a class is: `module:class`."""
    return f"{cls.__module__}:{cls.__qualname__}"


# --- Those that are known ---------------------------------------------------------------------------------------------


class AlgorithmTable(NamedTuple):
    """What a package of algorithms brings, at the door `ALGORITHM_TABLES`; `package.module:NAME` is a place."""

    algorithms: Sequence[AlgorithmInfo]  # in the order in which they are listed
    # what is known of the classes that other algorithms are derived from; the last one stands for all others
    bases: Sequence[AlgorithmInfo] = ()
    # Returns the form in which the algorithms act in an action space that arrays cannot hold: a Box whose vectors
    # `to_env` turns into actions of the env, and `from_env` back, with the env's own space `of_env` and with
    # `refusal_of(algorithm)`. None: they do not act there.
    action_form: Callable[[Any], Any] | str | None = None
    # The files of single policies for those who do not have marl_sb3, with the methods of `SB3Files`; or their place.
    policy_files: Any = None


class _Registry:
    """The algorithms that are known, by all of their names."""

    def __init__(self, tables: Iterable[AlgorithmTable]) -> None:
        self.bases = tuple(base for table in tables for base in table.bases)  # see `AlgorithmTable`
        # name -> algorithm, of those in tables
        self.built_in = {info.name: info for table in tables for info in table.algorithms}
        # algorithms that are built in and the user's own, by all names but aliases
        self.known: dict[str, AlgorithmInfo] = {}
        # place of a class, or of the class of SB3 that it takes the place of -> algorithm
        self.by_place: dict[str, AlgorithmInfo] = {}
        self.names: dict[str, str] = {}  # any name or alias, in lower case without `_` and `-` -> the name
        # hyperparameters of some algorithm that are integers: a file may have 1e5 for 100000
        self.integers: set[str] = set()
        for info in self.built_in.values():
            self.add(info, info.name)

    def add(self, info: AlgorithmInfo, name: str) -> None:
        self.known[name] = info
        self.by_place.update(dict.fromkeys(filter(None, (info.place, info.stock)), info))
        self.names.update({_plain(each): name for each in (name, *info.aliases)})
        self.integers.update(each for each, kind in info.kinds.items() if takes_integers_only(kind))


@cache
def _registry() -> _Registry:
    return _Registry(list(ALGORITHM_TABLES))


def action_form(space: Any) -> Any:
    """Return the form in which algorithms act in a space that arrays cannot hold; None if no package has one."""
    forms = (imported(table.action_form)(space) for table in ALGORITHM_TABLES if table.action_form is not None)
    return next((form for form in forms if form is not None), None)


def policy_files() -> list[Any]:
    """Return the kinds of files of single policies; the first one is what `save_policies` writes."""
    return [imported(table.policy_files) for table in ALGORITHM_TABLES if table.policy_files is not None]


def built_in() -> Mapping[str, AlgorithmInfo]:
    """Return the algorithms that come with the package, by name."""
    return _registry().built_in


def add_algorithm(info: AlgorithmInfo, name: str | None = None) -> None:
    """Make an algorithm known; a later one of the same name takes the place of an earlier one.

    Args:
        name: None: that of `info`; else `module:NAME`, by which it was named.
    """
    _registry().add(info, name or info.name)


def _plain(name: str) -> str:
    return name if ":" in name else name.lower().replace("_", "").replace("-", "")


def canonical_algorithm(value: Any) -> Any:
    """Convert `RecurrentPPO` or `ppo_lstm` to `recurrent_ppo`. Unknown names are returned unchanged."""
    return _registry().names.get(_plain(value), value) if isinstance(value, str) else value


def algorithm_info(name: str) -> AlgorithmInfo:
    """Return the algorithm of a name: a built-in one, one that was registered, or `module:NAME`.

    Nothing is imported by the name, which a file may hold: the user has imported the module.

    Raises:
        ConfigError: there is none of this name.
    """
    known = _registry().known
    if name not in known and ":" in name:
        add_algorithm(_imported(name), name)
    code = "or package.module:NAME of an AlgorithmInfo"
    if name not in known and (instead := counterpart(name, "algo")):
        raise ConfigError(f"unknown algorithm {shown(name)}{instead}", key="algo")
    require_known(name, [*known, code], f"unknown algorithm {shown(name)}", "algo")
    return known[name]


def _imported(name: str) -> AlgorithmInfo:
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        trust = f"--import {module}, or --algo with this name" if module.isprintable() else "a module's name"
        words = f"algorithm {shown(name)} is in a module that is not imported; accepted, if you trust its code: {trust}"
        words += "; train and imitate also take --trust-file (trust_file=True), for all that a file names"
        raise ConfigError(words, key="algo")
    found = getattr(sys.modules[module], attribute, None)
    if not isinstance(found, AlgorithmInfo):
        refuse(f"algorithm {shown(name)}", found, "an AlgorithmInfo", "algo")
    return found


def known_name(info: AlgorithmInfo) -> str | None:
    """Return the name under which an algorithm is known; None if it is not registered."""
    return next((name for name, known in _registry().known.items() if known is info), None)


def kinds_of(algo: Any) -> Mapping[str, Any]:
    """Return the kinds of the hyperparameters of the algorithm of a name; none if there is no such algorithm."""
    info = _registry().known.get(algo) if isinstance(algo, str) else None
    return {} if info is None else info.kinds


def info_of(algorithm: type[Any]) -> AlgorithmInfo | None:
    """Return the algorithm of a class, or of its first base class with one; None if it has none."""
    by_place = _registry().by_place
    return next((by_place[place] for place in map(place_of, algorithm.__mro__) if place in by_place), None)


def takes_integers(name: str) -> bool:
    """Whether a hyperparameter of some algorithm takes integers only."""
    return name in _registry().integers


# --- Names in checkpoints --------------------------------------------------------------------------------------------


def saved_name(algorithm: type[Any]) -> str | None:
    """Return the name of a class in checkpoints, such as `ppo` or `stable_baselines3.PPO`; None if it has none."""
    place, info = place_of(algorithm), info_of(algorithm)
    if info is None or place not in (info.place, info.stock):
        return None
    if place == info.place:
        return known_name(info)
    return _name_of_stock(place)


def saved_class(name: str) -> type[Any]:
    """Return the class of a name in a checkpoint.

    Raises:
        ConfigError: there is none of this name.
    """
    stock = {_name_of_stock(info.stock): info.stock for info in built_in().values() if info.stock}
    return imported(stock[name]) if name in stock else algorithm_info(name).algorithm_class


def _name_of_stock(place: str) -> str:
    """Return the name of a class of SB3 in checkpoints: `stable_baselines3.PPO`."""
    module, _, cls = place.partition(":")
    return f"{module.partition('.')[0]}.{cls}"

"""Make the command line of a function from its parameters, `Annotated[type, "--out FILE", "its help text"]`.

`bool` is an option without a value, `Literal` has its choices, and a `Sequence` may be given several times. None, False
and no values are defaults that need not stand there. A parameter may be a dataclass or a `TypedDict`, whose fields are
options, too. `Annotated` may have more than the two texts:

- a function that makes a value of a text, and raises `argparse.ArgumentTypeError`; else the type does
- a list of choices
- bounds of numbers, `Meta(ge=1)`, as in kinds of settings
- `Section`, `Setting`, `Bare`, `Python`, `NEW_RUN`, `REPEATED`: see there
- a dict of what stands for `{name}` in the help texts of a dataclass
- a tuple of all these, for options that several commands have

Modules of commands evaluate their annotations: they have no `from __future__ import annotations`.
"""

from __future__ import annotations

import argparse
import enum
import functools
import importlib
import linecache
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    is_typeddict,
)

from msgspec import Meta

from marl_sb3.cli.parser import CommandParser, integer
from marl_sb3.cli.running import run_command, setup_logging
from marl_sb3.core.config.values import require
from marl_sb3.errors import ConfigError
from marl_sb3.runs.schema import FREE, OFFERED, SECTIONS, TrainConfig
from marl_sb3.signals import end_with_parent

T = TypeVar("T")


class Rule(enum.Enum):
    """How often, and where, an option is accepted."""

    NEW_RUN = "by new runs, not by those that are resumed"
    REPEATED = "several times, though its type is no sequence"


NEW_RUN, REPEATED = Rule.NEW_RUN, Rule.REPEATED


class Section(NamedTuple):
    """A section of the help text that begins with this option."""

    title: str


class Setting(NamedTuple):
    """The setting that an option gives, such as `checkpoints.every`; `runs.schema` says how it is offered."""

    name: str


class Bare(NamedTuple):
    """The value of an option that is given without one."""

    value: str


class Python(NamedTuple):
    """What the documentation of a function says instead of the help text."""

    words: str


@dataclass_transform(kw_only_default=True)
def record(cls: type[T]) -> type[T]:
    """Make a dataclass of options, without comparisons and texts: making these would take time in every `--help`."""
    return dataclass(eq=False, repr=False, kw_only=True)(cls)


_FIELD = re.compile(r"((?:^ {4}# .*\n)*)^ {4}(\w+): .*?(?:  # (.*))?$", re.MULTILINE)


@functools.cache
def documented(cls: type) -> Mapping[str, str]:
    """Return what the source of a class says of each field, beside it or above it: the help of settings and options."""
    module = sys.modules[cls.__module__]
    text = "".join(linecache.getlines(str(module.__file__), vars(module)))
    declared = re.search(rf"^class {cls.__name__}\b.*?(?=^[^\s)]|\Z)", text, re.MULTILINE | re.DOTALL)
    entries = {}
    for above, name, beside in _FIELD.findall("" if declared is None else declared[0]):
        words = beside or " ".join(line.strip("# ") for line in above.splitlines())
        if words and name in cls.__annotations__:
            entries[name] = words if words.endswith(".") else f"{words}."
    return entries


class Option(NamedTuple):
    """A parameter of a function or a field of a record, and what the command line takes for it."""

    name: str
    kind: Any  # its type, without what `Annotated` adds
    about: tuple[object, ...]  # what `Annotated` adds
    default: Any = None

    def find(self, kind: type[T]) -> T | None:
        """Return the first of what `Annotated` adds that is of a type; None if there is none."""
        return next((each for each in self.about if isinstance(each, kind)), None)

    @property
    def shown(self) -> str:
        """The option as in the help text, `--out FILE`; without dashes it is an argument."""
        setting = self.find(Setting)
        return self.find(str) or ("" if setting is None else OFFERED[setting.name].shown)

    @property
    def flag(self) -> str:
        """The option without what its value is called."""
        return self.shown.partition(" ")[0]

    @property
    def is_record(self) -> bool:
        """Whether it is a dataclass or a `TypedDict` of options."""
        return is_dataclass(self.kind) or is_typeddict(self.kind)

    @property
    def words(self) -> str:
        """The help text, with code between backticks."""
        words, setting = [each for each in self.about if isinstance(each, str)][1:], self.find(Setting)
        if words or setting is None:
            return "".join(words)
        section, _, name = setting.name.rpartition(".")
        declared, offered = SECTIONS[section] if section else TrainConfig, OFFERED[setting.name]
        meaning = offered.words or documented(declared)[name].partition(" None: ")[0].rstrip(".")
        return f"{meaning}; default: {getattr(declared, name) if offered.default is None else offered.default}"

    @property
    def is_of_new_run(self) -> bool:
        """Whether runs that go on do not take it: their state depends on it."""
        setting = self.find(Setting)
        return NEW_RUN in self.about or (setting is not None and setting.name not in {*FREE, "n_timesteps"})

    def kinds(self) -> list[Any]:
        """Return the types that a value may have, beside None."""
        kinds = get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)
        return [kind for kind in kinds if kind is not NoneType]

    def settings(self) -> dict[str, Any]:
        """Return how argparse takes it."""
        kind, *_ = self.kinds()
        kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
        if kind is bool:
            return {"action": "store_true"}
        is_repeated = REPEATED in self.about
        if get_origin(kind) is Sequence:
            is_repeated, kind = True, get_args(kind)[0]
        may_lack = NoneType in get_args(self.kind)
        default = [] if is_repeated and not may_lack else self.default
        parse = next(filter(callable, self.about), None) or _PARSERS.get(kind)
        choices: Sequence[str] | None = get_args(kind) if get_origin(kind) is Literal else self.find(list)
        if (setting := self.find(Setting)) is not None:
            choices = OFFERED[setting.name].choices
        settings: dict[str, Any] = {"type": parse, "choices": choices}
        if not self.shown.startswith("-"):
            several, one = ("*", "?") if may_lack else ("+", None)
            return {**settings, "nargs": several if is_repeated else one}
        if (bare := self.find(Bare)) is not None:
            settings |= {"nargs": "?", "const": bare.value}
        return {**settings, "default": default, "action": "append" if is_repeated else "store"}


_PARSERS: Mapping[Any, Callable[[str], Any]] = {
    **{int: integer, float: float, Path: Path},
    list[str]: lambda text: text.split(","),
}


def options_of(target: Callable[..., Any]) -> Iterator[Option]:
    """Return the parameters of a function, or the fields of a dataclass or a `TypedDict`, that are options."""
    defaults = getattr(target, "__kwdefaults__", None) or vars(target)  # of a function, or of a class
    hints: dict[str, Any] = target.__annotations__
    for name, hint in hints.items():
        kind, *about = get_args(hint) if get_origin(hint) is Annotated else [hint]
        flat = tuple(each for part in about for each in (part if type(part) is tuple else (part,)))
        option = Option(name, kind, flat, defaults.get(name))
        if option.shown or option.is_record:
            yield option


def add_options(parser: CommandParser, target: Callable[..., Any], texts: Mapping[str, str] | None = None) -> None:
    """Add the options of a function or a record to a parser.

    Args:
        texts: what stands for `{name}` in help texts, by name.
    """
    for option in options_of(target):
        if (section := option.find(Section)) is not None:
            parser.section(section.title)
        if option.is_record:
            add_options(parser, option.kind, option.find(dict))
        elif option.flag != _VERBOSITY[0]:
            words = option.words.replace("`", "")
            parser.option(option.shown, option.name, words.format(**texts) if texts else words, **option.settings())


def values_of(target: Callable[..., Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of a function, or the values of a record, that a command line gives.

    Raises:
        ConfigError: a number is out of bounds.
    """
    values = {}
    for option in options_of(target):
        if option.is_record:
            values[option.name] = option.kind(**values_of(option.kind, arguments))
            continue
        values[option.name] = value = getattr(arguments, option.name)
        bounds, (kind, *_) = option.find(Meta), option.kinds()
        kind = kind if bounds is None else Annotated[kind, bounds]
        if value is not None and get_origin(kind) is Annotated:
            require(option.flag, value, kind)
    return values


def given_options(record: Any) -> Iterator[tuple[Option, Any]]:
    """Return the options of a dataclass, and of the dataclasses in it, each with its value."""
    for option in options_of(type(record)):
        value = getattr(record, option.name)
        if is_dataclass(value):
            yield from given_options(value)
        elif not option.is_record:
            yield option, value


# --- Commands --------------------------------------------------------------------------------------------------------


COMMANDS = (
    *("train", "tune", "benchmark", "evaluate", "watch", "plot", "compare", "match", "report"),
    *("export", "imitate", "serve", "doctor", "new", "completions"),
)

_VERBOSITY = ("-v", "log more, and show tracebacks of errors; -vv logs even more; default: off")
Verbosity = Annotated[int, *_VERBOSITY]  # of all commands


@dataclass(eq=False, repr=False)
class Command:
    """A command: a function, whose parameters are its options, and which returns the exit code."""

    function: Callable[..., int]
    usage: str  # its name, and what it takes, for the first line of the help text
    description: str
    epilog: str

    def parser(self) -> CommandParser:
        """Make the parser of the command."""
        name, _, takes = self.usage.partition(" ")
        parser = CommandParser(f"python -m marl_sb3.{name}", takes, description=self.description, epilog=self.epilog)
        add_options(parser, self.function)
        parser.option(_VERBOSITY[0], "verbosity", _VERBOSITY[1], action="count", default=0)
        return parser

    def values(self, argv: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the arguments of the function that a command line gives."""
        return values_of(self.function, self.parser().parse_args(argv))

    def __call__(self, argv: Sequence[str] | None = None) -> int:
        """Run the command; returns its exit code."""
        end_with_parent()
        arguments = self.parser().parse_args(argv)

        def run() -> int:
            setup_logging(arguments.verbosity)
            _import_users_modules(arguments)
            return self.function(**values_of(self.function, arguments))

        return run_command(run, arguments.verbosity)


def command(usage: str, description: str, epilog: str) -> Callable[[Callable[..., int]], Command]:
    """Make a command of a function; the arguments are those of `Command`."""
    return lambda function: Command(function, usage, description, epilog)


def command_named(name: str) -> Command:
    """Import one of `COMMANDS`."""
    found: Command = importlib.import_module(f"marl_sb3.commands.{name}").main
    return found


def _import_users_modules(arguments: argparse.Namespace) -> None:
    """Import the modules that `--import` names, that of `--algo module:NAME`, and those of a trusted file."""
    if getattr(arguments, "imports", None):  # a command that makes no env has no such option
        from marl_sb3.core.envs.registry import import_modules

        import_modules(arguments.imports)
    if ":" in (getattr(arguments, "algo", None) or ""):
        from marl_sb3.core.learners.spec import named_algorithm

        named_algorithm(arguments.algo)
    if getattr(arguments, "trust_file", False) and getattr(arguments, "hparams", None) is not None:
        from marl_sb3.runs.building import import_algorithms

        import_algorithms(arguments.hparams, one_env(getattr(arguments, "env", None), arguments.env_option))


def one_env(positional: str | None, option: str | None) -> str | None:
    """Return the env that the command line names, by `--env` or as the positional argument.

    Raises:
        ConfigError: both are given, and differ.
    """
    if option is not None and positional not in (None, option):
        raise ConfigError(f"ENV is {positional!r} and --env is {option!r}; accepted: one of them", key="env")
    return positional if option is None else option

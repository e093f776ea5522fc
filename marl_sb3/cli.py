"""What the commands have in common: exit codes, error messages, options. Imports nothing heavy."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn, TextIO

import marl_sb3
from marl_sb3.errors import (
    CheckpointError,
    ConfigError,
    EnvError,
    EnvRaisedError,
    MarlSb3Error,
    remedy_of,
    traceback_file,
)
from marl_sb3.output import lenient_output
from marl_sb3.signals import interrupting

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

_SIMILAR = 0.7  # how alike an unknown option and the one that may have been meant are, as `difflib` counts


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` with one-line errors and `--version`.

    Long options may not be abbreviated, lest new ones break scripts.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)
        words = f"marl_sb3 {marl_sb3.__version__}"
        self.add_argument("--version", action="version", version=words, help="print the version and exit")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; for one with options that are not known, say which may have been meant."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            meant = self._meant(unknown[0], getattr(arguments, "settings", None))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; did you mean {meant}?' if meant else ''}")
        return arguments

    def _meant(self, unknown: str, settings: list[str] | None) -> str | None:
        """What an argument that is not known may have been meant to be.

        Args:
            unknown: the argument.
            settings: what was given after `--set`; None for a command that has no such option.
        """
        if unknown.startswith("-"):
            known = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(unknown.partition("=")[0], known, n=1, cutoff=_SIMILAR)
            return close[0] if close else "--set KEY=VALUE" if settings is not None else None
        if settings and "=" not in settings[-1]:  # --set lr 1e-4
            return f"--set {settings[-1]}={unknown}"
        return f"--set {unknown}" if settings is not None and "=" in unknown else None

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and leave with exit code 2."""
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def add_verbosity(parser: argparse.ArgumentParser) -> None:
    """Give a command `-v` and `-vv`, as `verbosity`."""
    words = "say more, show tracebacks; -vv still more; default: off"
    parser.add_argument("-v", dest="verbosity", action="count", default=0, help=words)


_INTEGER = re.compile(r"([-+]?[0-9]+(?:_[0-9]+)*(?:\.[0-9]+)?(?:e[-+]?[0-9]{1,2})?)([km]?)", re.IGNORECASE)
_LONGEST_INTEGER = 100  # characters
_SUFFIXES = {"": 1, "k": 1_000, "m": 1_000_000}


def integer(text: str) -> int:
    """An integer on the command line, for `type=`: `100000`, `100_000`, `1e5`, `100k` or `0.1M`.

    Raises:
        ArgumentTypeError: it is not an integer.
    """
    match = _INTEGER.fullmatch(text.strip())
    if match is not None and len(text) <= _LONGEST_INTEGER:
        number, suffix = match.groups()
        value = Fraction(number.replace("_", "")) * _SUFFIXES[suffix.lower()]
        if value.denominator == 1:
            return value.numerator
    raise argparse.ArgumentTypeError(f"received {text[:60]!r}; accepted: an integer, such as 100000, 1e5 or 100k")


def algorithm_name(text: str) -> str:
    """The name of an algorithm on the command line, for `type=`: `PPO` is `ppo`."""
    return text.lower()


def assignments(option: str, texts: Iterable[str], accepted: str = "KEY=VALUE") -> dict[str, Any]:
    """What a repeatable option `KEY=VALUE` sets, with values read as YAML.

    Args:
        option: its name.
        texts: what was given after it, each time.
        accepted: what is accepted, for messages.

    Raises:
        ConfigError: one of them is not `KEY=VALUE`, or its value cannot be read.
    """
    from marl_sb3.config import parse_value

    return {key: parse_value(value) for key, value in (assignment(option, text, accepted) for text in texts)}


def assignment(option: str, text: str, accepted: str = "KEY=VALUE") -> tuple[str, str]:
    """Split `KEY=VALUE`.

    Raises:
        ConfigError: there is no key or no `=`.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"{option} is {text!r}; accepted: {accepted}", key=option)
    return key.strip(), value


def add_env_option(parser: argparse.ArgumentParser, *, also_positional: bool, makes_env: bool = True) -> None:
    """Let the env be named by `--env ENV`, in every command alike; those that train take it as first word, too."""
    if also_positional:
        words = "another way to give ENV; default: ENV"
    elif not makes_env:
        words = "the env that the run has to be of; no env is made; default: any"
    else:
        words = "the run's env; required if it is your own code (package.module:factory); default: as in the run"
    parser.add_argument("--env", metavar="ENV", dest="env_option", help=words)


def named_env(arguments: argparse.Namespace) -> str | None:
    """The env that the command line names, by `--env` or as first word.

    Raises:
        ConfigError: both are there, and differ.
    """
    option: str | None = arguments.env_option
    positional: str | None = getattr(arguments, "env", None)
    if option is not None and positional not in (None, option):
        raise ConfigError(f"ENV is {positional!r} and --env is {option!r}; accepted: one of them", key="env")
    return positional if option is None else option


def tell_run(given: str | Path, found: Path) -> None:
    """Say which run a command takes, where the user named a folder of runs."""
    if Path(given) != found:
        print(f"newest run in {given}: {found}", file=sys.stderr)


def run_command(command: Callable[[], int], verbosity: int) -> int:
    """Run a command and turn what it raises into a message and an exit code; `-v` lets the traceback through.

    Output that nobody reads any more ends no command and changes no exit code; output that could not be written, on a
    full disk, say, makes it 1.
    """
    with lenient_output() as output, interrupting():
        exit_code = _exit_code(command, verbosity)
        output.flush()
        if output.is_lost:
            print(f"error: standard output could not be written: {output.error}", file=sys.stderr)
            exit_code = exit_code or EXIT_FAILED
    return exit_code


def _exit_code(command: Callable[[], int], verbosity: int) -> int:
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except MarlSb3Error as error:
        is_users = isinstance(error, (ConfigError, EnvError, CheckpointError)) and not isinstance(error, EnvRaisedError)
        return _failed(error, str(error), EXIT_USAGE if is_users else EXIT_FAILED, verbosity)
    except Exception as error:
        hint = "" if verbosity or traceback_file(error) else " (-v shows where)"
        return _failed(error, f"{type(error).__name__}: {error}{hint}", EXIT_FAILED, verbosity)


def _failed(error: Exception, message: str, exit_code: int, verbosity: int) -> int:
    if verbosity:
        import traceback

        traceback.print_exception(error)
    file, remedy = traceback_file(error), remedy_of(error)
    more = f"{f'; traceback: {file}' if file else ''}{f'; {remedy}' if remedy else ''}"
    print(f"error: {_printable(message)}{more}", file=sys.stderr)
    return exit_code


def _printable(message: str) -> str:
    """A message may quote a file, and the file may hold characters that a terminal takes for commands."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in message)


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the moment: while a live view is shown, lines go above it."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


def setup_logging(verbosity: int) -> None:
    """Show the package's log: warnings, with -v also infos, with -vv everything."""
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter("%(levelname)-8s %(message)s"))
    logger = logging.getLogger("marl_sb3")
    logger.handlers = [handler]
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbosity, 2)])

"""The parser of all commands, and the values that options take."""

from __future__ import annotations

import argparse
import atexit
import difflib
import gc
import re
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import marl_sb3
from marl_sb3.cli.running import EXIT_USAGE, StandardError
from marl_sb3.core.config.values import integer_in
from marl_sb3.errors import ConfigError, did_you_mean, refuse
from marl_sb3.output import printable

# Options of RLlib's, rl-baselines3-zoo's and CleanRL's commands -> those here.
_OF_OTHERS = {
    "--run": "--algo ALGO",
    "--config": "--set KEY=VALUE, or --hparams FILE for a file",
    "--num-env-runners": "--set num_env_runners=N",
    "--hyperparameters": "--set KEY=VALUE",
    "--hyperparams": "--set KEY=VALUE",
    "--env-kwargs": "--set env.NAME=VALUE",
    "--env-id": "--env ENV",
    "--total-timesteps": "--timesteps N",
    "--n-timesteps": "--timesteps N",
    "--learning-rate": "--set learning_rate=X",
    "--tensorboard-log": "--run-dir DIR, whose runs have TensorBoard's files",
    "--trained-agent": "--init-from RUN",
}
# In argparse's words, which quote the choices in some versions.
_CHOICE = re.compile(r"invalid choice: '(?P<given>[^']+)' \(choose from (?P<known>.+)\)")
_SIMILAR = 0.75  # least similarity, by `difflib`, of an unknown option and the one that is suggested; not --out, --port


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` with one-line errors and `--version`.

    Long options may not be abbreviated: a new option could make an abbreviation in a script ambiguous.

    Args:
        prog: what the user types to run the command.
        takes: its positional arguments, for the first line of the help text.
    """

    def __init__(self, prog: str, takes: str, **settings: Any) -> None:
        usage = f"{prog} {takes}"
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(prog, usage, formatter_class=formatter, allow_abbrev=False, **settings)
        self._section: argparse._ActionsContainer = self
        self.options: list[argparse.Action] = []  # and arguments, without --help and --version
        words = f"marl_sb3 {marl_sb3.__version__}"
        self.add_argument("--version", action="version", version=words, help="print the version and exit")

    def section(self, title: str) -> None:
        """Begin a section of the help text: the options that are added from now on are in it."""
        self._section = self.add_argument_group(title)

    def option(self, option: str, dest: str, words: str, **settings: Any) -> None:
        """Add an option, `--seed S`, whose value is called S in the help text; or an argument, `RUN`."""
        name, _, metavar = option.partition(" ")
        if not option.startswith("-"):
            self.options.append(self._section.add_argument(dest, metavar=option, help=words, **settings))
        else:
            settings |= {"metavar": metavar} if metavar else {}
            self.options.append(self._section.add_argument(name, dest=dest, help=words, **settings))

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; the error about an unknown option suggests the one that may have been meant."""
        arguments, unknown = self.parse_known_intermixed_args(args, namespace)  # options between two arguments, too
        if unknown:
            meant = self._meant(unknown[0], getattr(arguments, "settings", None) or ())
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; did you mean {meant}?' if meant else ''}")
        return arguments

    def _meant(self, unknown: str, settings: Sequence[str]) -> str | None:
        """Return the option that the user may have meant by an unknown argument; None if there is none.

        Args:
            settings: the values of `--set`.
        """
        takes_settings = "--set" in self._option_string_actions
        if unknown.startswith("-"):
            name = unknown.partition("=")[0]
            ours = _OF_OTHERS.get(name, "")
            if ours.partition(" ")[0] in self._option_string_actions:
                return ours
            close = difflib.get_close_matches(name, self._option_string_actions, 1, _SIMILAR)
            return close[0] if close else "--set KEY=VALUE" if takes_settings else None
        if settings and "=" not in settings[-1]:  # --set lr 1e-4
            return f"--set {settings[-1]}={unknown}"
        return f"--set {unknown}" if takes_settings and "=" in unknown else None

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the process after a help text, without a last collection, which would scan all that was imported."""
        atexit.register(gc.freeze)
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Print an error and end the process with exit code 2."""
        if choice := _CHOICE.search(message):
            hint = did_you_mean(choice["given"], re.findall(r"[\w-]+", choice["known"]))
            message = f"{message}{hint and f'; {hint}'}"
        StandardError(sys.stderr).write(printable(f"error: {message} (see {self.prog} --help)\n"))
        sys.exit(EXIT_USAGE)


def integer(text: str) -> int:
    """Parse an integer, for `type=`: `100000`, `100_000`, `1e5`, `100k` or `0.1M`."""
    value = integer_in(text)
    if value is not None:
        return value
    raise argparse.ArgumentTypeError(f"received {text[:60]!r}; accepted: an integer, such as 100000, 1e5 or 100k")


def number_of_workers(text: str) -> int | str:
    """Parse a number of workers, for `type=`: an integer, or `auto`."""
    try:
        return text if text == "auto" else integer(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"{error}, or auto") from None


def assignments(option: str, texts: Iterable[str], accepted: str = "KEY=VALUE") -> dict[str, Any]:
    """Parse the values of a repeatable option `KEY=VALUE`; each VALUE is YAML."""
    from marl_sb3.files.plain_yaml import parse_value

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            refuse(option, text, accepted, option)
        try:
            found[key.strip()] = parse_value(value)
        except ConfigError as error:
            raise ConfigError(f"{option} {key.strip()}: {error}", key=option) from error
    return found


def stop_conditions(texts: Sequence[str]) -> dict[str, Any] | None:
    """Return metric -> value from `--stop`; None without `--stop`, no metric for `--stop none`.

    Raises:
        ConfigError: one of them is not `METRIC=NUMBER`.
    """
    if texts == ["none"]:
        return {}
    accepted = "METRIC=NUMBER, such as env_runners/episode_return_mean=15, or none alone"
    return assignments("--stop", texts, accepted) or None

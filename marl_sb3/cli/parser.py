"""The parser of all commands, the options that several of them have, and the values that options take."""

from __future__ import annotations

import argparse
import atexit
import difflib
import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import marl_sb3
from marl_sb3.cli.command import EXIT_USAGE, run_command, setup_logging
from marl_sb3.core.config import canonical_algorithm, documented, integer_in
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.fast import ALGORITHMS
from marl_sb3.runs import SECTIONS, TrainConfig

if TYPE_CHECKING:
    from marl_sb3.extensions.remote import AnyRunners, RaySettings


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
        words = f"marl_sb3 {marl_sb3.__version__}"
        self.add_argument("--version", action="version", version=words, help="print the version and exit")

    def section(self, title: str) -> None:
        """Begin a section of the help text: the options that are added from now on are in it."""
        self._section = self.add_argument_group(title)

    def option(self, option: str, words: str, **settings: Any) -> None:
        """Add an option: `--seed S` takes a value, called S in the help text; `--quiet` takes none."""
        name, _, metavar = option.partition(" ")
        if metavar:
            settings["metavar"] = metavar
        elif not settings.keys() & {"choices", "action"}:
            settings["action"] = "store_true"
        self._section.add_argument(name, help=words, **settings)

    def repeated(self, option: str, words: str, **settings: Any) -> None:
        """Add an option with a value that may be given several times; its values are a list."""
        self.option(option, words, action="append", default=[], **settings)

    def run(self, command: Callable[[argparse.Namespace], int], argv: Sequence[str] | None) -> int:
        """Run a command with what a command line says; returns its exit code."""
        arguments = self.parse_args(argv)

        def run() -> int:
            setup_logging(arguments.verbosity)
            _import_users_modules(arguments)
            return command(arguments)

        return run_command(run, arguments.verbosity)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse a command line; the error about an unknown option suggests the one that may have been meant."""
        arguments, unknown = self.parse_known_args(args, namespace)
        if unknown:
            meant = self._meant(unknown[0], getattr(arguments, "settings", None))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{f'; did you mean {meant}?' if meant else ''}")
        return arguments

    def _meant(self, unknown: str, settings: list[str] | None) -> str | None:
        """Return the option that the user may have meant by an unknown argument; None if there is none.

        Args:
            settings: the values of `--set`; None for a command without that option.
        """
        if unknown.startswith("-"):
            close = difflib.get_close_matches(unknown.partition("=")[0], self._option_string_actions, 1, _SIMILAR)
            return close[0] if close else "--set KEY=VALUE" if settings is not None else None
        if settings and "=" not in settings[-1]:  # --set lr 1e-4
            return f"--set {settings[-1]}={unknown}"
        return f"--set {unknown}" if settings is not None and "=" in unknown else None

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the process after a help text, without a last collection, which would scan all that was imported."""
        atexit.register(gc.freeze)
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Print an error and end the process with exit code 2."""
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def add_verbosity(parser: CommandParser) -> None:
    """Give a command `-v` and `-vv`, as `verbosity`."""
    words = "log more, and show tracebacks of errors; -vv logs even more; default: off"
    parser.option("-v", words, dest="verbosity", action="count", default=0)


def add_env_option(
    parser: CommandParser, *, also_positional: bool, makes_env: bool = True, words: str | None = None
) -> None:
    """Add `--env` and `--import`, which all commands have; those that make envs also take ENV without `--env`.

    Args:
        words: the help text of `--env`; None: that of commands on a run.
    """
    of_run = "the run's env; required if it is your own code (package.module:factory); default: as in the run"
    if also_positional:
        of_run = "the same as the argument ENV; default: none"
    elif not makes_env:
        of_run = "the run's env, for the log (no env is made); default: as in the run"
    words = words or of_run
    parser.option("--env ENV", words, dest="env_option")
    parser.repeated(
        "--import MODULE",
        "import this module first, such as one of yours that calls register_network or register_env; may be repeated; "
        "default: none",
        dest="imports",
    )


def _import_users_modules(arguments: argparse.Namespace) -> None:
    """Import the modules that `--import` names, that of `--algo module:NAME`, and those of a trusted file."""
    if getattr(arguments, "imports", None):  # a command that makes no env has no such option
        from marl_sb3.core.envs import import_modules  # takes half a second

        import_modules(arguments.imports)
    if ":" in (getattr(arguments, "algo", None) or ""):
        from marl_sb3.core.learners import named_algorithm

        named_algorithm(arguments.algo)
    if getattr(arguments, "trust_file", False) and arguments.hparams is not None:
        from marl_sb3.runs import import_algorithms

        import_algorithms(arguments.hparams, named_env(arguments))


def named_env(arguments: argparse.Namespace) -> str | None:
    """Return the env that the command line names, by `--env` or as the positional argument.

    Raises:
        ConfigError: both are given, and differ.
    """
    option: str | None = arguments.env_option
    positional: str | None = getattr(arguments, "env", None)
    if option is not None and positional not in (None, option):
        raise ConfigError(f"ENV is {positional!r} and --env is {option!r}; accepted: one of them", key="env")
    return positional if option is None else option


def add_run(parser: CommandParser) -> None:
    """Add RUN and `--checkpoint`."""
    parser.add_argument("run", metavar="RUN", help="a run folder, or a folder of runs, for the newest run in it")
    add_checkpoint(parser)


def add_checkpoint(parser: CommandParser) -> None:
    """Add `--checkpoint`."""
    words = "best, latest or the number of an iteration; default: best, or latest where the agents' returns oppose each"
    parser.option("--checkpoint WHICH", f"{words} other; a line of the output says which and why")


def found_run(path: str) -> Path:
    """Return the run folder at a path; of a folder of runs the newest, which is then printed."""
    from marl_sb3.runs import find_run

    folder = find_run(path)
    if Path(path) != folder:
        print(f"newest run in {path}: {folder}", file=sys.stderr)
    return folder


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


def add_setting(parser: CommandParser, option: str, setting: str, default: str | None = None, **arguments: Any) -> None:
    """Add an option for a setting, with the words of the setting's declaration.

    Args:
        setting: its name, such as `n_envs` or `checkpoints.every`.
        default: the default in words; None: that of the setting.
    """
    section, _, name = setting.rpartition(".")
    declared = SECTIONS[section] if section else TrainConfig
    words = documented(declared).get(name, "").partition(" None: ")[0].rstrip(".").replace("`", "")
    value = getattr(declared, name) if default is None else default
    parser.option(option, f"{words}; default: {value}", **arguments)


def add_setup_options(parser: CommandParser) -> None:
    """Add the options that say what is trained: those of all commands that train."""
    parser.option(
        "--policies",
        "one policy for all agents, or one for each; default: as in the preset, else shared",
        choices=["shared", "per_agent"],
    )
    *names, last = ALGORITHMS
    parser.option(
        "--algo NAME",
        f"algorithm: {', '.join(names)} or {last}; or package.module:NAME of an AlgorithmInfo; default: ppo",
        type=canonical_algorithm,
    )
    add_setting(parser, "--n-envs E", "n_envs", "as in the preset, else 8", type=integer)


def add_hparams(parser: CommandParser) -> None:
    """Add `--hparams` and `--trust-file`."""
    parser.option(
        "--hparams FILE", "settings by env id, or a run's config.yaml; default: the preset shipped for the algorithm"
    )
    parser.option(
        "--trust-file",
        "import all that the file after --hparams names: an env, algorithms, callbacks and an evaluation function of "
        "your own; default: only what the command line names",
    )


def add_device_options(parser: CommandParser) -> None:
    """Add the options that say how envs are stepped, and on which device networks are."""
    add_setting(parser, "--vectorizer NAME", "vectorizer")
    add_setting(parser, "--device NAME", "device")


def assignments(option: str, texts: Iterable[str], accepted: str = "KEY=VALUE") -> dict[str, Any]:
    """Parse the values of a repeatable option `KEY=VALUE`; each VALUE is YAML."""
    from marl_sb3.files import parse_value

    found = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} is {text!r}; accepted: {accepted}", key=option)
        found[key.strip()] = parse_value(value)
    return found


def stop_conditions(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Return metric -> value from `--stop`; None without `--stop`, no metric for `--stop none`.

    Raises:
        ConfigError: one of them is not `METRIC=NUMBER`.
    """
    if arguments.stop == ["none"]:
        return {}
    accepted = "METRIC=NUMBER, such as env_runners/episode_return_mean=15, or none alone"
    return assignments("--stop", arguments.stop, accepted) or None


# --- Options of servers ----------------------------------------------------------------------------------------------

TOKEN_VARIABLE = "MARL_SB3_TOKEN"
_LAST_PORT = 65535
_OF_SERVER = ("host", "port", "token", "tls_cert", "tls_key")


def add_server_options(parser: CommandParser, port: int) -> None:
    """Give a command the options of a server.

    Args:
        port: the default.
    """
    parser.option(
        "--host HOST", "name or address to listen on; one that others reach needs a token; default: 127.0.0.1"
    )
    parser.option("--port PORT", f"port to listen on; 0: any free one; default: {port}", type=integer)
    parser.option(
        "--token TOKEN",
        f"what requests have to show as Authorization: Bearer TOKEN; default: ${TOKEN_VARIABLE}, else no token",
    )
    parser.option("--tls-cert FILE", "PEM file of a certificate, for HTTPS; default: HTTP")
    parser.option("--tls-key FILE", "PEM file of its key; default: in the file of the certificate")


def server_settings(arguments: argparse.Namespace, port: int) -> dict[str, Any]:
    """Return host, port, token and the files of TLS, as `marl_sb3.tools.serving` takes them.

    Args:
        port: the default.

    Raises:
        ConfigError: there is no such port.
    """
    token = arguments.token or os.environ.get(TOKEN_VARIABLE) or None
    files = {
        name: None if getattr(arguments, name) is None else Path(getattr(arguments, name))
        for name in ("tls_cert", "tls_key")
    }
    given = port if arguments.port is None else arguments.port
    if not 0 <= given <= _LAST_PORT:
        raise ConfigError(f"--port is {given}; accepted: 0 to {_LAST_PORT}", key="--port")
    return {"host": arguments.host or "127.0.0.1", "port": given, "token": token, **files}


def require_no_server_options(arguments: argparse.Namespace, accepted: str) -> None:
    """Refuse options of a server where nothing is served.

    Args:
        accepted: the option that they go with.
    """
    for name in _OF_SERVER:
        if getattr(arguments, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is only for servers; accepted: with {accepted}", key=option)


# --- Options of Ray --------------------------------------------------------------------------------------------------


def add_ray_options(parser: CommandParser, what: str, process: str) -> None:
    """Give a command the options of Ray.

    Args:
        what: what `--ray` does.
        process: what a process on Ray is for: `runner` or `trial`.
    """
    parser.option(
        "--ray ADDRESS",
        f"{what}; ADDRESS is local (or left out), a Ray of its own on this machine; auto or HOST:PORT, a cluster; "
        "default: no Ray",
        nargs="?",
        const="local",
    )
    parser.option("--runner-cpus X", f"CPUs that Ray sets aside for each {process}; default: 1", type=float)
    parser.option(
        "--ray-runtime-env FILE",
        "YAML or JSON file with Ray's runtime_env: what the envs need on the cluster; default: nothing",
    )


def ray_settings(arguments: argparse.Namespace) -> RaySettings | None:
    """Return how to use Ray; None without `--ray`.

    Raises:
        ConfigError: an option of Ray is given without `--ray`, or a value is not accepted.
    """
    file, cpus = arguments.ray_runtime_env, arguments.runner_cpus
    if arguments.ray is None:
        for option, value in {"--ray-runtime-env": file, "--runner-cpus": cpus}.items():
            if value is not None:
                raise ConfigError(f"{option} is only for Ray; accepted: with --ray", key="ray")
        return None
    from marl_sb3.extensions.remote import RaySettings, read_runtime_env

    runtime_env = None if file is None else read_runtime_env(file)
    runners = getattr(arguments, "runners", None)
    return RaySettings(arguments.ray, runners, num_cpus=1.0 if cpus is None else cpus, runtime_env=runtime_env)


def runner_settings(arguments: argparse.Namespace) -> AnyRunners | None:
    """Return which processes roll out the shards; None without `--ray` and `--runners`.

    Raises:
        ConfigError: see `ray_settings`.
    """
    from marl_sb3.extensions.remote import either

    ray = ray_settings(arguments)
    return either(ray, arguments.runners if ray is None else None)

"""What the commands have in common: exit codes, error messages, options. Imports nothing heavy."""

from __future__ import annotations

import argparse
import importlib
import sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from marl_sb3.errors import CheckpointError, ConfigError, EnvError, MarlSb3Error

if TYPE_CHECKING:
    from rich.console import Console

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class CommandParser(argparse.ArgumentParser):
    """An `ArgumentParser` with one-line errors; long options may not be abbreviated, lest new ones break scripts."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and leave with exit code 2."""
        print(f"error: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(EXIT_USAGE)


def assignment(option: str, text: str) -> tuple[str, str]:
    """Split `KEY=VALUE`.

    Raises:
        ConfigError: there is no key or no `=`.
    """
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ConfigError(f"{option} is {text!r}; accepted: KEY=VALUE", key=option)
    return key.strip(), value


def run_command(command: Callable[[], int], verbosity: int) -> int:
    """Run a command and turn what it raises into a message and an exit code; `-v` lets the traceback through."""
    try:
        return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except MarlSb3Error as error:
        exit_code = EXIT_USAGE if isinstance(error, (ConfigError, EnvError, CheckpointError)) else EXIT_FAILED
        return _failed(error, str(error), exit_code, verbosity)
    except Exception as error:
        hint = "" if verbosity else " (-v shows where)"
        return _failed(error, f"{type(error).__name__}: {error}{hint}", EXIT_FAILED, verbosity)


def _failed(error: Exception, message: str, exit_code: int, verbosity: int) -> int:
    if verbosity:
        import traceback

        traceback.print_exception(error)
    print(f"error: {message}", file=sys.stderr)
    return exit_code


def setup_logging(verbosity: int, console: Console) -> None:
    """Show the package's log: warnings, with -v also infos, with -vv everything."""
    import logging

    from rich.logging import RichHandler

    levels = (logging.WARNING, logging.INFO, logging.DEBUG)
    logger = logging.getLogger("marl_sb3")
    logger.handlers = [RichHandler(console=console, show_path=False, show_time=False)]
    logger.setLevel(levels[min(verbosity, 2)])


def callable_module(module_name: str, target: str) -> None:
    """Let a command's module be called like a function of the library.

    `marl_sb3.train` is both the module behind `python -m marl_sb3.train` and the function `marl_sb3.train(...)`:
    importing the module binds the package's attribute to it, whatever was there before.

    Args:
        module_name: the module.
        target: `module:function` that a call goes to, imported at the first call.
    """
    target_module, _, name = target.partition(":")

    class CallableModule(types.ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(target_module), name)(*args, **kwargs)

    sys.modules[module_name].__class__ = CallableModule

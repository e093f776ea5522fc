"""What the commands have in common, and their command lines; nothing heavy is imported."""

from __future__ import annotations

from marl_sb3.cli.command import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    run_command,
    setup_logging,
)
from marl_sb3.cli.parser import CommandParser, add_env_option, add_run, add_verbosity, found_run, named_env
from marl_sb3.cli.values import algorithm_name, assignment, assignments, integer

__all__ = [
    "EXIT_DONE",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_USAGE",
    "CommandParser",
    "add_env_option",
    "add_run",
    "add_verbosity",
    "algorithm_name",
    "assignment",
    "assignments",
    "found_run",
    "integer",
    "named_env",
    "run_command",
    "setup_logging",
]

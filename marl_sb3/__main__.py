"""`marl-sb3` and `python -m marl_sb3`: list the commands; `marl-sb3 train ...` is `python -m marl_sb3.train ...`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from marl_sb3.cli import COMMANDS, CommandParser, command_named


def build_parser() -> CommandParser:
    """The command line."""
    width = max(map(len, COMMANDS))
    descriptions = {name: command_named(name).description for name in COMMANDS}
    listed = "\n".join(f"  {name:<{width}}  {description}" for name, description in descriptions.items())
    parser = CommandParser(
        "marl-sb3",
        "COMMAND ...",
        description="Multi-agent reinforcement learning with Stable-Baselines3.",
        epilog=f"commands\n{listed}\n\nmarl-sb3 COMMAND --help describes its options. python -m marl_sb3.COMMAND\n"
        "is the same as marl-sb3 COMMAND.",
    )
    parser.option("COMMAND", "command", "one of these below, then its arguments", choices=COMMANDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that is named first; without one, list them. Returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        build_parser().print_help()
        return 0
    command = arguments[0]
    if command not in COMMANDS:  # the parsers of all commands are made only where they are needed
        command = build_parser().parse_args(arguments[:1]).command
    return command_named(command)(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())

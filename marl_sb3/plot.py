"""`python -m marl_sb3.plot`: learning curves of runs, over seeds."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from marl_sb3.cli import EXIT_DONE, CommandParser, add_verbosity, integer

_EPILOG = """\
Runs that differ in nothing but the seed are one curve: the mean over the
runs, with a band that holds it with 95 % (bootstrap, as rliable does).
Groups differ in colour, agents in line and marker.

examples
  python -m marl_sb3.plot runs/arena
  python -m marl_sb3.plot runs/arena --group-by learning_rate --out curves.svg
  python -m marl_sb3.plot 'runs/*/*' --metric env_runners/episode_len_mean
  python -m marl_sb3.plot runs/arena mappo.json --statistic iqm --out all.html
  python -m marl_sb3.plot runs/arena --format marl-eval --out arena.json

exit codes: 1 failed, 2 wrong command line or no such runs, 130 interrupted
"""


def build_parser() -> CommandParser:
    """Make the parser of `plot`."""
    parser = CommandParser(
        "python -m marl_sb3.plot",
        "RUN ... [options]",
        description="Plot learning curves of runs, over seeds.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run folder, a folder of runs, a pattern, or a .json of marl-eval"
    )
    parser.option("--out FILE", "a .png, .svg, .pdf or .html file; default: curves.png", type=Path)
    parser.repeated("--metric NAME", "metric, or a pattern; may be repeated; default: the returns")
    parser.repeated("--group-by SETTING", "one curve for each value of it; may be repeated; default: all that differ")
    parser.option(
        "--x AXIS",
        "steps: env steps; agent_steps; seconds; default: steps",
        choices=["steps", "agent_steps", "seconds"],
        default="steps",
    )
    parser.option(
        "--statistic NAME",
        "over the runs: mean, or iqm, the interquartile mean; default: mean",
        choices=["mean", "iqm"],
        default="mean",
    )
    parser.option("--smooth K", "moving average over K iterations; default: 1, none", type=integer, default=1)
    parser.option("--title TEXT", "title of the figure; default: none", default="")
    parser.option(
        "--format NAME", "marl-eval: write the data as JSON in its form, no figure; default: a figure",
        choices=["marl-eval"],
    )  # fmt: skip
    parser.section("other options")
    add_verbosity(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    return build_parser().run(_plot, argv)


def _plot(arguments: argparse.Namespace) -> int:
    from marl_sb3.files import named_by_user
    from marl_sb3.results import group_by_settings, read_records

    out = arguments.out or Path("curves.json" if arguments.format else "curves.png")
    if not arguments.format:
        from marl_sb3.results import require_drawable

        require_drawable(out)
    records = [record for path in arguments.runs for record in read_records(path)]
    groups = group_by_settings(records, arguments.group_by or ())
    for line in groups.warnings:
        print(f"warning: {line}", file=sys.stderr)
    if arguments.format:
        from marl_sb3.results import write_marl_eval

        for metric in arguments.metric or ():
            groups.require_metric(metric)
        with named_by_user(out):
            write_marl_eval(groups, out, arguments.metric or ())
    else:
        from marl_sb3.results import draw_up, write_figure

        figure = draw_up(groups, arguments.metric or (), arguments.x, arguments.statistic, arguments.smooth)
        for line in figure.notes:
            print(f"note: {line}", file=sys.stderr)
        with named_by_user(out):
            write_figure(figure, out, arguments.title)
    print(out)
    return EXIT_DONE


if __name__ == "__main__":
    sys.exit(main())

"""`python -m marl_sb3.plot`: learning curves of runs, over seeds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from marl_sb3.cli import EXIT_DONE, Section, Verbosity, command
from marl_sb3.output import print_text

_EPILOG = """\
Runs that differ only in the seed are one curve: the mean over the
runs, with its 95 % band (bootstrap, as in rliable).
Groups differ in colour, agents in line and marker.

examples
  python -m marl_sb3.plot runs/arena
  python -m marl_sb3.plot runs/arena --group-by learning_rate --out curves.svg
  python -m marl_sb3.plot 'runs/*/*' --metric env_runners/episode_len_mean
  python -m marl_sb3.plot runs/arena mappo.json --statistic iqm --out all.html
  python -m marl_sb3.plot runs/arena --format marl-eval --out arena.json

exit codes: 1 failed, 2 wrong command line or no such runs, 130 interrupted
"""


@command("plot RUN ... [options]", "Plot learning curves of runs, over seeds.", _EPILOG)
def main(
    runs: Annotated[Sequence[str], "RUN", "a run folder, a folder of runs, a pattern, or a .json of marl-eval"],
    *,
    out: Annotated[Path | None, "--out FILE", "a .png, .svg, .pdf or .html file; default: curves.png"],
    metrics: Annotated[Sequence[str], "--metric NAME", "metric, or a pattern; may be repeated; default: the returns"],
    group_by: Annotated[
        Sequence[str], "--group-by SETTING", "one curve for each value of it; may be repeated; default: all that differ"
    ],
    x: Annotated[
        Literal["steps", "agent_steps", "seconds"], "--x AXIS", "steps: env steps; agent_steps; seconds; default: steps"
    ] = "steps",
    statistic: Annotated[
        Literal["mean", "iqm"], "--statistic NAME", "over the runs: mean, or iqm, the interquartile mean; default: mean"
    ] = "mean",
    smooth: Annotated[int, "--smooth K", "moving average over K iterations; default: 1, none"] = 1,
    title: Annotated[str, "--title TEXT", "title of the figure; default: the envs"] = "",
    format: Annotated[
        Literal["marl-eval"] | None,
        "--format NAME",
        "marl-eval: write the data as JSON in its form, no figure; default: a figure",
    ] = None,
    verbosity: Annotated[Verbosity, Section("other options")],
) -> int:
    """Draw the curves, or write their data; returns the exit code."""
    from marl_sb3.files.atomic import named_by_user
    from marl_sb3.results.reading import read_records
    from marl_sb3.results.records import group_by_settings

    out = out or Path("curves.json" if format else "curves.png")
    if not format:
        from marl_sb3.results.drawing import require_drawable

        require_drawable(out)
    records = [record for path in runs for record in read_records(path)]
    groups = group_by_settings(records, group_by)
    for line in groups.warnings:
        print_text(f"warning: {line}", stderr=True)
    if format:
        from marl_sb3.results.exchange import write_marl_eval

        for metric in metrics:
            groups.require_metric(metric)
        with named_by_user(out):
            write_marl_eval(groups, out, metrics)
    else:
        from marl_sb3.results.curves import draw_up
        from marl_sb3.results.drawing import write_figure

        figure = draw_up(groups, metrics, x, statistic, smooth)
        for line in figure.notes:
            print_text(f"note: {line}", stderr=True)
        with named_by_user(out):
            write_figure(figure, out, title)
    print_text(out)
    return EXIT_DONE

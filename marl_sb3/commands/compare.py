"""`python -m marl_sb3.compare`: is one experiment better than another?"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from marl_sb3.cli import EXIT_DONE, Section, Verbosity, command
from marl_sb3.output import print_text

if TYPE_CHECKING:
    from marl_sb3.extensions.display.page import Page
    from marl_sb3.tools.viewing.comparison import Comparison

_LONGEST_WHOLE = 40  # characters of a setting that is never folded in a table

_EPILOG = """\
Each argument is an experiment: all runs that it names, which should differ in
their seeds alone. The others are compared with the first one by the last value
of the metric: difference of the means with Welch's interval, probability of
improvement with a bootstrap interval, interquartile mean, and how soon a
threshold was reached. With fewer than 3 runs of each, nothing is decided.

examples
  python -m marl_sb3.compare runs/ppo runs/a2c
  python -m marl_sb3.compare 'runs/arena/2026*' mappo.json --out a.html
  python -m marl_sb3.compare runs/a runs/b --threshold 15 --json

exit codes: 1 failed, 2 wrong command line or no such runs, 130 interrupted
"""


@command("compare A B ... [options]", "Compare experiments of several seeds each.", _EPILOG)
def main(
    runs: Annotated[Sequence[str], "A B", "run folders, folders of runs, patterns, or .json of marl-eval"],
    *,
    metric: Annotated[str | None, "--metric NAME", "what is compared; default: env_runners/episode_return_mean"],
    mode: Annotated[Literal["max", "min"], "--mode MODE", "max: more is better; min: less is; default: max"] = "max",
    threshold: Annotated[
        float | None,
        "--threshold X",
        "also print when runs reached this value; default: the mean of the weakest experiment",
    ],
    out: Annotated[Path | None, "--out FILE", "also a page, FILE.html; default: none"],
    as_json: Annotated[bool, "--json", "print one JSON object alone; default: tables"],
    verbosity: Annotated[Verbosity, Section("other options")],
) -> int:
    """Print the comparison, and write its page; returns the exit code."""
    from marl_sb3.errors import ConfigError
    from marl_sb3.results.drawing import require_drawable
    from marl_sb3.results.records import RETURN
    from marl_sb3.tools.viewing.comparison import compare

    if out is not None:
        require_drawable(out, [".html"])
    if len(set(runs)) < len(runs):
        raise ConfigError("an experiment is given twice; accepted: different ones", key="run")
    found = compare(dict(zip(_labels(runs), runs, strict=True)), metric or RETURN, mode=mode, threshold=threshold)
    if out is not None:
        from marl_sb3.files.atomic import named_by_user

        with named_by_user(out):
            _page(found).write(out)
    if as_json:
        print_text(json.dumps(found.to_plain(), allow_nan=False))
        return EXIT_DONE
    _print(found)
    if out is not None:
        print_text(out)
    return EXIT_DONE


def _labels(paths: Sequence[str]) -> list[str]:
    """What experiments are called: by their paths, without the folder that all are in, and a `*` at the end."""
    plain = [path.rstrip("*/") or Path.cwd().name for path in paths]
    for labels in ([Path(each).name for each in plain], plain):
        if len(set(labels)) == len(paths) and (labels is plain or len({Path(each).parent for each in plain}) == 1):
            return labels
    return list(paths)


def _print(found: "Comparison") -> None:
    from marl_sb3.extensions.display.screen import standard_console
    from marl_sb3.tools.viewing.comparison import summary, tables

    console, (groups, pairs, settings) = standard_console(), tables(found)
    longest = max((len(name) for name, *_ in settings.rows), default=0)
    # A number that is cut is another number, and a folded name reads as two.
    of_numbers, of_names = range(1, len(groups.head)), range(longest <= _LONGEST_WHOLE)
    for table, whole in ((groups, of_numbers), (pairs, of_numbers), (settings, of_names)):
        if table.rows:
            table.print(console, whole)
            console.print()
    for line in found.notes:
        console.print(f"note: {line}", soft_wrap=True)
    console.print(summary(found), soft_wrap=True)


def _page(found: "Comparison") -> "Page":
    """Make the page of a comparison: verdict, curves, performance profiles, settings."""
    from marl_sb3.extensions.display.page import Page, note
    from marl_sb3.results.drawing import with_notes
    from marl_sb3.tools.viewing.comparison import summary, tables

    page = Page(f"{found.figure.title}: {' against '.join(sample.label for sample in found.samples)}")
    groups, pairs, settings = tables(found)
    page.add("Which is better", note(summary(found)), pairs.html(), *map(note, found.notes))
    of_means = "Intervals of means are Student's t; the bands of the curves, by bootstrap, are narrower for few runs."
    page.add("Experiments", groups.html(), note(of_means))
    page.add("Learning curves", *with_notes(page, found.figure))
    which = "above" if found.mode == "max" else "below"
    explained = f"The share of runs that end above each value: a curve that lies {which} another is better everywhere."
    page.add("Performance profile", note(explained), *with_notes(page, found.profile_figure))
    page.add("Settings in which they differ", settings.html() if settings.rows else note("none but the seed"))
    return page

"""`python -m marl_sb3.report`: a page about a run or several, or their table in Markdown."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from marl_sb3.cli import EXIT_DONE, OfRunForLog, command
from marl_sb3.errors import refuse
from marl_sb3.files.atomic import named_by_user, write_whole
from marl_sb3.output import print_text
from marl_sb3.startup import without_collections

_EPILOG = """\
RUN is a run folder. Of a FOLDER of runs, or the name of an env, whose runs are
in runs/, all runs are on the page. The page is one file, which loads nothing
when it is opened; it needs the extra report.

examples
  python -m marl_sb3.report runs/arena/20260101-120000-abcd
  python -m marl_sb3.report runs/arena --out arena.html
  python -m marl_sb3.report runs --markdown --out benchmark.md

exit codes: 0 done, 1 failed, 2 wrong command line or run, 130 interrupted
"""


@command("report RUN|FOLDER ... [options]", "Write a page about runs: curves, tables, hints on what is wrong.", _EPILOG)
def main(
    paths: Annotated[Sequence[str], "RUN|FOLDER", "run folders, folders of runs, names of envs"],
    *,
    out: Annotated[
        Path | None, "--out FILE", "the file; default: report.html in the folder, or with --markdown, standard output"
    ],
    as_markdown: Annotated[bool, "--markdown", "a table of all runs, as zoo's benchmark.md; default: an HTML page"],
    env: OfRunForLog,
) -> int:
    """Write the page or the table; returns the exit code."""
    with without_collections():
        from marl_sb3.tools.viewing.report import html_page, markdown, read_runs

    accepted = (".md",) if as_markdown else (".html", ".htm")
    if out is not None and (out.suffix.lower() not in accepted or out.is_dir()):
        refuse("--out", str(out), f"a file that ends in {' or '.join(accepted)}")
    runs, warnings = read_runs(paths, env.named())
    for warning in warnings:
        print_text(f"warning: {warning}", stderr=True)
    if as_markdown and out is None:
        print_text(markdown(runs), end="")
        return EXIT_DONE
    if out is None:
        first = Path(paths[0])
        out = (first if first.is_dir() else runs[0].folder.parent) / "report.html"
    page = None if as_markdown else html_page(runs)
    with named_by_user(out):
        if page is None:
            write_whole(out, markdown(runs))
        else:
            page.write(out)
    print_text(f"report: {out}")
    return EXIT_DONE

"""`python -m marl_sb3.new`: the files of an env of one's own, which trains at once."""

from pathlib import Path
from typing import Annotated, Literal

from marl_sb3.cli import EXIT_DONE, Verbosity, command
from marl_sb3.output import print_text

_EPILOG = """\
The folder has the env, in NAME.py, a test of it, settings for train and a page
with the commands. --kind turns is a board game with action masks.

examples
  python -m marl_sb3.new my_env
  python -m marl_sb3.new my_game --kind turns --out games/my_game

exit codes: 0 written, 2 there is such a folder, or no module can have this name
"""


@command("new NAME [options]", "Begin your own env: its code, a test and settings.", _EPILOG)
def main(
    name: Annotated[str, "NAME", "name of the new module, such as my_env"],
    *,
    kind: Annotated[
        Literal["parallel", "turns"],
        "--kind",
        "whether agents act at the same time, or in turns; default: parallel",
    ] = "parallel",
    out: Annotated[Path | None, "--out DIR", "the folder, which may not exist yet; default: NAME"],
    verbosity: Verbosity,
) -> int:
    """Write the files, and print what to do with them; returns the exit code."""
    from marl_sb3.tools.scaffolding import write_project

    folder = Path(name) if out is None else out
    for path in write_project(name, kind, folder):
        print_text(path)
    print_text(f"{folder / 'README.md'} has the commands that test and train it", stderr=True)
    return EXIT_DONE

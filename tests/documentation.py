"""The pages of the documentation, their fenced blocks, and how to run these as a reader would.

A page runs from its top to its bottom, in an empty folder:

- `python`: all blocks of a page share one namespace. A block whose first line is `# name.py` is written to that file.
- `yaml`: must be valid; a block whose first line is `# name.yml` is written to that file.
- `bash`: every line is a command of this package, or `python FILE.py`; it runs in this process and must return 0.
  A line that ends with `&` runs beside those after it, and must have ended when the page has.
- `text`, and MyST's directives: shown, never run.

In a path, `<run>` and `<study>` stand for the newest run and the newest study in the folder before it.
A block that no test can run has `<!-- not run: why -->` on the line above it; `<!-- needs: MODULE -->` stands above one
that needs a package which the tests do not install.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any
from unittest import mock

import yaml

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

SHOWN = ("text",)  # and directives
_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>.*)$")
_NOT_RUN = re.compile(r"^ *<!-- not run: (?P<why>.+) -->$")
_NEEDS = re.compile(r"^ *<!-- needs: (?P<module>\w+) -->$")
_FILE_NAME = re.compile(r"^# (?P<name>\w+\.(?:py|ya?ml))\n")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    page: Path  # the file
    line: int  # of its first line in the page, from 1
    language: str  # what the fence names
    text: str  # without the fences and their indentation
    not_run: str | None  # why no test runs it; None: it is run, or only shown
    needs: str | None  # a module without which it is not run

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_shown(self) -> bool:
        return self.language in SHOWN or self.language.startswith("{")

    @property
    def is_run(self) -> bool:
        can_run = self.needs is None or importlib.util.find_spec(self.needs) is not None
        return can_run and self.not_run is None and not self.is_shown

    @property
    def file_name(self) -> str | None:
        found = _FILE_NAME.match(self.text)
        return found["name"] if found else None

    def commands(self) -> list[str]:
        """The command lines of a `bash` block, continued lines joined, comments and empty lines left out."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line for line in lines if shlex.split(line, comments=True)]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    lines = iter(enumerate(page.read_text(encoding="utf-8").splitlines(), start=1))
    found, before = [], ""
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening:
            text = "\n".join(_until(lines, opening["fence"])) + "\n"
            why, needed = _NOT_RUN.match(before), _NEEDS.match(before)
            excuses = why["why"] if why else None, needed["module"] if needed else None
            found.append(Block(page, number + 1, opening["language"].strip(), dedent(text), *excuses))
        before = line
    return found


def _until(lines: Iterator[tuple[int, str]], fence: str) -> Iterator[str]:
    for _, line in lines:
        if line.strip() == fence:
            return
        yield line


def run_page(page: Path, folder: Path) -> dict[str, Any]:
    """Run the blocks of a page, in a folder that is the working directory and on `sys.path`; returns the namespace."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    modules = set(sys.modules)
    try:
        with ThreadPoolExecutor() as beside:
            started: dict[Future[int], str] = {}
            for block in blocks(page):
                if block.is_run:
                    _run(
                        block, folder, namespace, lambda line: started.update({beside.submit(run_command, line): line})
                    )
            for future, line in started.items():
                assert future.result(timeout=60) == 0, f"{page.name}: {line}"
    finally:
        for name in set(sys.modules) - modules:
            if (folder / f"{name}.py").exists():  # another page may have a file of this name
                del sys.modules[name]
    return namespace


def _run(block: Block, folder: Path, namespace: dict[str, Any], start: Callable[[str], None]) -> None:
    if block.language == "yaml":
        yaml.safe_load(block.text)
    if block.language == "bash":
        for command in block.commands():
            if command.endswith(" &"):
                start(_without_placeholders(command.removesuffix(" &"), folder))
                continue
            code = run_command(_without_placeholders(command, folder))
            assert code == 0, f"{block}: {command}: exit code {code}"
    elif block.file_name is not None:
        (folder / block.file_name).write_text(block.text, encoding="utf-8")
        importlib.invalidate_caches()
    elif block.language == "python":
        # Line numbers in tracebacks are those of the page.
        exec(compile("\n" * (block.line - 1) + block.text, str(block.page), "exec"), namespace)


def run_command(command: str) -> int:
    """Run `python -m marl_sb3.NAME ...` or `python FILE.py ...` in this process; returns its exit code.

    Raises:
        ValueError: it is another command.
    """
    words = shlex.split(command, comments=True)
    if ">" in words:
        command, file = shlex.join(words[: words.index(">")]), Path(words[-1])
        with file.open("w", encoding="utf-8") as output, redirect_stdout(output):
            return run_command(command)
    try:
        if words[:2] == ["python", "-m"] and words[2].partition(".")[0] == "marl_sb3":
            return int(importlib.import_module(words[2]).main(words[3:]))
        if words[0] == "python" and words[1].endswith(".py"):
            with mock.patch.object(sys, "argv", words[1:]):
                runpy.run_path(words[1], run_name="__main__")
            return 0
    except SystemExit as ending:
        return int(ending.code or 0)
    raise ValueError(f"{command!r} cannot be run by a test; write <!-- not run: why --> above its block")


def _without_placeholders(command: str, folder: Path) -> str:
    return re.sub(r"([\w/.-]+)/<(?:run|study)>", lambda found: str(_newest(folder / found[1])), command)


def _newest(folder: Path) -> Path:
    runs = [path for path in folder.iterdir() if path.is_dir()]
    return max(runs, key=lambda path: path.stat().st_mtime_ns).relative_to(Path.cwd())

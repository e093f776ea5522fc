"""Write the pages of the reference that follow from the code: `python docs/generate.py`.

The commands come from their argparse parsers, the settings from `TrainConfig`, the checks from their registry. A test
compares the pages.
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any

from marl_sb3.checkup.checks.registry import CHECKS
from marl_sb3.checkup.finding import Severity
from marl_sb3.config.schema import SECTIONS, TrainConfig

HERE = Path(__file__).parent
PACKAGE = HERE.parent / "marl_sb3"


def commands_page() -> str:
    """All commands with their options."""
    intro = (
        "# Commands\n\n"
        "`python -m marl_sb3.NAME --help` prints what this page shows, and `--version` the version. "
        "[The run\nfolder](run_folder.md#exit-codes) lists the exit codes.\n"
    )
    return intro + "".join(_command(name) for name in command_names())


def command_names() -> list[str]:
    """The modules that can be run: those with a parser, in the order in which one needs them."""
    found = {path.stem for path in PACKAGE.glob("*.py") if "build_parser" in path.read_text(encoding="utf-8")}
    usual = [name for name in ("train", "evaluate", "export", "tune", "doctor") if name in found]
    return usual + sorted(found.difference(usual))


def _command(name: str) -> str:
    parser: argparse.ArgumentParser = importlib.import_module(f"marl_sb3.{name}").build_parser()
    usual = (argparse._HelpAction, argparse._VersionAction)
    actions = [action for action in parser._actions if not isinstance(action, usual)]
    rows = [_row(action) for action in sorted(actions, key=lambda action: bool(action.option_strings))]
    table = "\n".join(["| option | what |", "| --- | --- |", *rows])
    text = f"\n## {name}\n\n{parser.description}\n\n{table}\n"
    return text + (f"\n```text\n{parser.epilog.strip()}\n```\n" if parser.epilog else "")


def _row(action: argparse.Action) -> str:
    value = action.metavar or ("" if action.nargs == 0 else "|".join(map(str, action.choices or ())))
    names = action.option_strings or [str(action.metavar or action.dest)]
    shown = f"{', '.join(names)} {value if action.option_strings else ''}".strip()
    return f"| `{_in_cell(shown)}` | {_in_cell(str(action.help or '') % {'default': action.default})} |"


def settings_page() -> str:
    """All fields of a configuration, with their defaults."""
    rows = [
        f"| `{name}` | {_default(item)} | {_in_cell(meaning)} |"
        for name, item, meaning in _documented_settings(TrainConfig)
        if name not in ("env", "hyperparameters", "sources", "notes")
    ]
    intro = (
        "# Settings\n\n"
        "A settings file has these for each env, beside the hyperparameters of the algorithm by SB3's names.\n"
        "`--set KEY=VALUE` changes one; see [change settings](../how_to/settings.md). `env.NAME` in `--set` is an\n"
        "entry of `env_kwargs`. A name with a dot is in a section: `checkpoints: {every: 5}` in a file,\n"
        "`--set checkpoints.every=5`; the flat names `checkpoint_every` and `evaluation_interval` mean\n"
        "the same.\n\n"
    )
    return intro + "\n".join(["| setting | default | what |", "| --- | --- | --- |", *rows]) + "\n"


def _documented_settings(section: type, prefix: str = "") -> Iterator[tuple[str, Field[Any], str]]:
    """Each setting by its name, with its entry in the docstring of its section."""
    listed = str(section.__doc__).partition("Attributes:\n")[2]
    entries = dict(re.findall(r"^ {8}(\w+): (.+(?:\n {12}.+)*)", listed, flags=re.MULTILINE))
    for item in fields(section):
        if item.name in SECTIONS:
            yield from _documented_settings(SECTIONS[item.name], f"{item.name}.")
        else:
            yield f"{prefix}{item.name}", item, " ".join(entries[item.name].split())


def _default(item: Field[Any]) -> str:
    value = item.default_factory() if item.default_factory is not MISSING else item.default
    if value is None or value == {}:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def checks_page() -> str:
    """All checks of `doctor`, the worst first."""
    order = list(Severity)
    checks = sorted(CHECKS, key=lambda check: order.index(check.severity))
    rows = [
        f"| `{check.id}` | {check.severity} | {' | '.join(map(_in_cell, (check.title, check.why, check.remedy)))} |"
        for check in checks
    ]
    intro = (
        "# Checks of doctor\n\n"
        "What `python -m marl_sb3.doctor` looks for; see [examine an env](../how_to/doctor.md). A test plants each of\n"
        "these in a small env and wants it found, and nothing else.\n\n"
    )
    header = ["| check | severity | what is wrong | why it matters | what to do |", "| --- | --- | --- | --- | --- |"]
    return intro + "\n".join([*header, *rows]) + "\n"


PAGES = {"checks.md": checks_page, "commands.md": commands_page, "settings.md": settings_page}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / "reference" / name).write_text(page(), encoding="utf-8")

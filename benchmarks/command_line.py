"""The command-line options of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path


def parser(doc: str | None, repeats: int | None = 3) -> argparse.ArgumentParser:
    """Make a parser with the options that every benchmark has.

    Args:
        doc: the docstring of the benchmark, shown by `--help`.
        repeats: default of `--repeats`; None: the benchmark has no such option.
    """
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if repeats is not None:
        add_count(made, "--repeats", repeats, "turns of each side")
    made.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to this file; default: no file")
    return made


def add_count(options: argparse.ArgumentParser, flag: str, default: int, what: str, metavar: str = "N") -> None:
    """Add an option whose value is an integer of at least 1; `what` is its help text without the default."""
    options.add_argument(flag, type=positive, default=default, metavar=metavar, help=f"{what}; default: {default}")


def add_names(options: argparse.ArgumentParser, flag: str, known: Iterable[str], metavar: str = "NAME,...") -> None:
    """Add an option that chooses some of the known names, separated by commas; the default is all of them."""
    names = list(known)
    options.add_argument(
        flag, type=_some_of(names), default=names, metavar=metavar, help=f"some of {','.join(names)}; default: all"
    )


def positive(text: str) -> int:
    """Parse an integer of at least 1, for `argparse`."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not accepted; at least 1")
    return number


def _some_of(accepted: list[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        chosen = text.split(",")
        for name in chosen:
            if name not in accepted:
                raise argparse.ArgumentTypeError(f"unknown {name!r}; accepted: {','.join(accepted)}")
        return chosen

    return names

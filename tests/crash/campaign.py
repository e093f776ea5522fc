"""What all harnesses share that disturb something, again and again, and compare it with what was not disturbed."""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Tally:
    """What has been done, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)  # kills, resumes, runs and so on, by name
    mismatches: list[str] = field(default_factory=list)  # what differs, or must not be

    def add(self, other: Tally) -> None:
        """Add what another one has counted."""
        self.counts += other.counts
        self.mismatches += other.mismatches


class Disturber(threading.Thread):
    """Disturbs what runs meanwhile, at random moments.

    Args:
        disturb: called with random numbers; returns the name of what it has done, or None.
        most: how many times at most.
        mean_s: mean of the time between two.
        rng: of the moments.
    """

    def __init__(
        self, disturb: Callable[[random.Random], str | None], most: int, mean_s: float, rng: random.Random
    ) -> None:
        super().__init__(daemon=True)
        self.counts: Counter[str] = Counter()
        self._disturb, self._most, self._mean_s, self._rng = disturb, most, mean_s, rng
        self._is_over = threading.Event()

    def run(self) -> None:
        while self.counts.total() < self._most and not self._is_over.wait(self._rng.expovariate(1 / self._mean_s)):
            if (done := self._disturb(self._rng)) is not None:
                self.counts[done] += 1

    def end(self) -> Counter[str]:
        """Stop; returns what was done."""
        self._is_over.set()
        self.join()
        return self.counts


def command(carry_out: Callable[[argparse.Namespace, Path], Tally], argv: Sequence[str] | None, **defaults: int) -> int:
    """Run a harness; returns its exit code: 1 if something differs.

    Args:
        carry_out: what it does, in a folder.
        argv: its command line; None: that of this process.
        defaults: its options, and `--seed`.
    """
    parser = argparse.ArgumentParser(description=sys.modules[carry_out.__module__].__doc__.partition("\n")[0])  # type: ignore[union-attr]
    for name, default in {**defaults, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    with tempfile.TemporaryDirectory() as folder:
        tally = carry_out(parser.parse_args(argv), Path(folder))
    print(json.dumps(tally.counts), *tally.mismatches[:50], sep="\n")
    return bool(tally.mismatches)

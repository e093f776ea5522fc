"""Train cases for some seconds each, and print what they cost: what the sides of `against_jax.py` share.

It runs in the environment of each side, and so imports nothing but the standard library.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Training:
    """A training that can go on."""

    call: Callable[[], object]  # trains for so many env steps, rollouts and updates
    env_steps: int


Make = Callable[[str, Mapping[str, Any], int], Training]  # from an env's name, hyperparameters with SB3's names, a seed


def side_parser(doc: str | None, what: str) -> argparse.ArgumentParser:
    """Make a parser with the options of every side; `what` is the help text of its JSON argument."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trained", type=json.loads, metavar="JSON", help=what)
    parser.add_argument("--seconds", type=float, default=2.0, help="for which each case is measured; default: 2")
    parser.add_argument("--seed", type=int, default=0, help="default: 0")
    return parser


def print_versions(packages: Iterable[str]) -> None:
    """Print the first line of a side."""
    print(json.dumps({"versions": {name: importlib.metadata.version(name) for name in packages}}), flush=True)


def print_costs(make: Make, arguments: argparse.Namespace) -> None:
    """Train case by case, and print a line for each."""
    for case in arguments.trained:
        print(json.dumps({"case": case["name"], **cost(make, case, arguments.seconds, arguments.seed)}), flush=True)


def cost(make: Make, case: Mapping[str, Any], seconds: float, seed: int) -> dict[str, float]:
    """Train a case for so many seconds after a first call that is not counted; at least one call is counted.

    Returns:
        env steps of the counted calls, their seconds and seconds of processor time, and how much longer than one of
        them it took to make the training and to call it for the first time, compiling included.
    """
    began_s = time.perf_counter()
    training = make(case["env"], case["hyperparameters"], seed)
    training.call()
    first_s, calls = time.perf_counter() - began_s, 0
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    while (took_s := time.perf_counter() - began_s) < seconds or not calls:
        training.call()
        calls += 1
    cpu_s = time.process_time() - began_cpu_s
    preparing_s = max(0.0, first_s - took_s / calls)
    return {"env_steps": calls * training.env_steps, "seconds": took_s, "cpu_s": cpu_s, "preparing_s": preparing_s}

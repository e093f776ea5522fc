"""Kill trainings at random moments, resume them, and compare what they leave with a training that nobody disturbed.

    python tests/crash/kill_harness.py --kills 100

A third of the kills hit a call inside the save of a checkpoint; the others a random time, the cutting of the logs at a
resume, or the start. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue

from forked import ForkServer
from run_records import differences
from shims import GENERATORS
from trained_processes import wait
from trials import CHECKPOINT_EVERY, POLICIES, Case, Kill, Tally, Trial, sum_of, train_reference

FULL_AT_KB = (4, 8, 20, 60, 100, 140, 180, 220, 260)
NO_SPACE = r"error: OSError: \[Errno 28\] No space left on device: '.*'.*"


def plan(kills: int, rng: random.Random, real_every: int = 8) -> list[list[Kill]]:
    """So many kills, a third of them inside saves, in portions for one trial each."""
    in_saves = math.ceil(kills / 3)
    kinds = ["save"] * in_saves + rng.choices(["cut", "start", "time"], weights=[3, 2, 6], k=kills - in_saves)
    rng.shuffle(kinds)
    left = [Kill(kind, real=number % real_every == 0) for number, kind in enumerate(kinds)]
    portions = []
    while left:
        size = rng.randint(2, 8)
        portions.append(left[:size])
        left = left[size:]
    return portions


def _work(
    jobs: SimpleQueue[tuple[int, Case, list[Kill]]],
    references: Mapping[Case, Path],
    folder: Path,
    options: argparse.Namespace,
) -> dict[Case, Tally]:
    """Take jobs until there are none; one fork server for all of them."""
    tallies = {case: Tally() for case in references}
    with ForkServer() as server, suppress(Empty):
        while True:
            number, case, kills = jobs.get_nowait()
            own = folder / f"trial-{number}"
            own.mkdir()
            rng = random.Random(f"{options.seed}-{number}")
            done = Trial(case, references[case], own, server, rng, options.break_rng).carry_out(kills)
            tallies[case] = tallies[case].add(done)
            print(f"trial {number}, {case}: {done.numbers()}", file=sys.stderr, flush=True)
    return tallies


def campaign(options: argparse.Namespace, folder: Path) -> dict[Case, Tally]:
    """All kills of all cases, so many processes at a time."""
    cases = [Case(*names) for names in product(options.policies, options.vectorizer)]
    with ForkServer() as server:
        references = {case: train_reference(case, folder / str(case), server) for case in cases}
        full = full_disks(references, folder, server) if options.tmpfs else {}
    jobs: SimpleQueue[tuple[int, Case, list[Kill]]] = SimpleQueue()
    for number, kills in enumerate(plan(options.kills, random.Random(options.seed))):
        jobs.put((number, cases[number % len(cases)], kills))
    with ThreadPoolExecutor(options.jobs) as pool:
        working = [pool.submit(_work, jobs, references, folder, options) for _ in range(options.jobs)]
        parts = [each.result() for each in working]
    return {case: sum_of([*(part[case] for part in parts), full.get(case, Tally())]) for case in cases}


# --- Full disks ------------------------------------------------------------------------------------------------------


def full_disks(references: Mapping[Case, Path], folder: Path, server: ForkServer) -> dict[Case, Tally]:
    """Train on disks that get full, give them more space, and resume; root alone may mount them."""
    tallies = {case: Tally() for case in references}
    for number, (size_kb, case) in enumerate(product(FULL_AT_KB, references)):
        disk = folder / f"disk-{number}"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kb}k", "tmpfs", str(disk)], check=True)
        try:
            tallies[case] = tallies[case].add(_fill(case, references[case], disk, server))
        finally:
            subprocess.run(["umount", str(disk)], check=True)
    return tallies


def _fill(case: Case, reference: Path, disk: Path, server: ForkServer) -> Tally:
    run, output = disk / "run", disk.with_suffix(".txt")
    command = case.command(disk.parent)
    tally = Tally(full_disks=1, runs=1)
    code = wait(server.start([*command, "--run-dir", str(run)], {}, output))
    said = output.read_text()
    if code != 1 or "Traceback" in said or not re.fullmatch(NO_SPACE, said.strip().splitlines()[-1]):
        tally.mismatches.append(f"{disk}: exit code {code}: {said}")
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
    if list(run.glob("checkpoints/ckpt-*")):
        tally.resumes += 1
        command = ["--resume", str(run), "--quiet"]
    else:
        tally.anew += 1
        run = disk / "again" if (run / "config.yaml").exists() else run
        command = [*command, "--run-dir", str(run)]
    code = wait(server.start(command, {}, output))
    found = differences(reference, run) if code == 0 else [f"exit code {code}: {output.read_text()}"]
    tally.mismatches += [f"{run}: {each}" for each in found]
    return tally


# --- The command -----------------------------------------------------------------------------------------------------


def build_parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="Kill trainings, resume them, compare them with undisturbed ones.")
    parser.add_argument("--kills", type=int, default=100, help="default: 100")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: 0")
    parser.add_argument("--policies", type=_names(POLICIES), default=list(POLICIES), help="default: all")
    parser.add_argument(
        "--vectorizer", type=_names(CHECKPOINT_EVERY), default=["batched", "sync"], help="default: batched,sync"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes that train at a time; default: 2")
    parser.add_argument("--break-rng", choices=GENERATORS, help="resume without one generator: has to be found out")
    parser.add_argument("--tmpfs", action="store_true", help="train on full disks too; root alone may mount them")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers and mismatches there")
    return parser


def _names(accepted: Iterable[str]) -> Callable[[str], list[str]]:
    def names(text: str) -> list[str]:
        unknown = [name for name in text.split(",") if name not in accepted]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r}; accepted: {', '.join(accepted)}")
        return text.split(",")

    return names


def print_table(tallies: Mapping[Case, Tally], seconds: float) -> None:
    """A line per case, and their sum."""
    rows = {
        **{str(case): tally.numbers() for case, tally in tallies.items()},
        "all": sum_of(tallies.values()).numbers(),
    }
    columns = list(rows["all"])
    print(" " * 20 + "".join(f"{name.replace('_', ' '):>13}" for name in columns))
    for title, numbers in rows.items():
        print(f"{title:20}" + "".join(f"{numbers[name]:13}" for name in columns))
    print(f"{seconds:.0f} seconds")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 1 if something differs."""
    options = build_parser().parse_args(argv)
    began_s = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    tallies = campaign(options, folder)
    seconds = time.monotonic() - began_s
    print_table(tallies, seconds)
    mismatches = sum_of(tallies.values()).mismatches
    for mismatch in mismatches[:50]:
        print(mismatch)
    if options.json is not None:
        by_case = {str(case): tally.numbers() for case, tally in tallies.items()}
        options.json.write_text(json.dumps({"cases": by_case, "mismatches": mismatches, "seconds": seconds}, indent=1))
    if mismatches:
        print(f"{len(mismatches)} mismatches; the runs are in {folder}")
        return 1
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

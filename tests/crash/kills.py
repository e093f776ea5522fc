"""Kill commands that train at random moments, go on with them, and compare what they leave with undisturbed ones.

    python tests/crash/kills.py --kills 100

Runs of one process are killed inside the save of a checkpoint, while their logs are cut, at their start, or at any
time; of the others any process is killed, or stopped where those that hang are replaced. Exit code 1: something
differs, or a process is left over.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import psutil
from forked import ForkServer, run_really
from kinds import KINDS, PLAIN, REFUSAL, Kind
from shims import MOMENTS

CALLS_OF_A_SAVE = 74  # roughly, with one policy
START_S = {True: 4.0, False: 0.2}  # roughly, until the first iteration is done; of a real process, and of a forked one
ITERATION_S = 0.04  # roughly
MOST_STARTS = 200
_LATE, _OF_COMMAND = 0.8, 0.3  # share of kills after the command has started processes; share of those that hit it
ENDED = (-signal.SIGKILL, 130)  # by a kill, by an interruption


@dataclass
class Tally:
    """What has been done, and what went wrong."""

    counts: Counter[str] = field(default_factory=Counter)  # kills, resumes, runs and so on, by name
    mismatches: list[str] = field(default_factory=list)  # what differs, or must not be

    def add(self, other: Tally) -> None:
        """Add what another one has counted."""
        self.counts += other.counts
        self.mismatches += other.mismatches


@dataclass(frozen=True)
class Kill:
    """One kill."""

    # of the one process: inside a `save`, in the `cut` of the logs at a resume, at the `start`, or at any `time` after
    # it; of `any` process at any time; `none`
    how: str
    real: bool = False  # whether it is of processes of the system, and not of forked ones


def processes_in(folder: Path) -> list[psutil.Process]:
    """All processes that work in a folder."""
    return [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]


class Trial:
    """Commands of one kind that are killed, go on, and are compared when they have come to their end.

    Args:
        kind: of the commands.
        reference: the runs that nobody disturbed.
        folder: an empty folder to work in.
        server: starts the processes that need not be real ones.
        rng: chooses the moments.
    """

    def __init__(self, kind: Kind, reference: Path, folder: Path, server: ForkServer, rng: random.Random) -> None:
        self.tally = Tally()
        self._kind, self._reference, self._server, self._rng = kind, reference, server, rng
        self._folder, self._output = folder.resolve(), folder / "output.txt"
        self._begin()

    def _begin(self) -> None:
        self._root = self._folder / f"runs-{self.tally.counts['runs']}"
        self._command = self._kind.begin(self._folder, self._root.name)
        self._left = [self._root / each for each in self._kind.runs]
        self._is_first = True  # the command, which trains all of them, and not only the first one that is left

    @property
    def _resuming(self) -> bool:
        return self._command[1] == "--resume"

    def carry_out(self, kills: Sequence[Kill]) -> Tally:
        """Kill so often; what comes to its end before is compared, and another begins."""
        left = list(kills)
        for _ in range(MOST_STARTS):
            compared = self.tally.counts["runs"]
            code, said = self._start_once(left)
            self._go_on(code, said)
            if not left and self.tally.counts["runs"] > compared:
                return self.tally
        self._complain(f"not over after {MOST_STARTS} starts")
        return self.tally

    def _complain(self, words: str) -> None:
        self.tally.mismatches.append(f"{self._root}: {words}")

    # --- Kills ---

    def _start_once(self, left: list[Kill]) -> tuple[int, str]:
        """Run the command and kill, once or more often; its exit code, and what it has said."""
        if all(kill.how == "cut" for kill in left) and not self._resuming:  # only a run that is resumed has logs to cut
            left[:] = [Kill("time", kill.real) for kill in left]
        kill = next((kill for kill in left if self._resuming or kill.how != "cut"), Kill("none"))
        process = self._start(kill)
        done = list(self._kill_any(process, kill, left))
        self._kill_it(process, kill)
        try:
            code = process.wait(120.0)
        except subprocess.TimeoutExpired:
            self._complain("it hangs")
            process.kill()
            code = process.wait()
        if kill.how != "any" and code == -signal.SIGKILL:
            done = [kill.how]
            left.remove(kill)
        self.tally.counts.update([*done, *["kills"] * len(done), *["real"] * (kill.real and len(done))])
        if alive := psutil.wait_procs(processes_in(self._folder), timeout=10.0)[1]:
            self._complain(f"{alive} are left over")
        return code, self._output.read_text(errors="replace")

    def _start(self, kill: Kill) -> Any:
        shims: dict[str, Any] = {}
        if kill.how in ("save", "cut"):
            call = self._rng.randint(1, 4 * CALLS_OF_A_SAVE if kill.how == "save" else 4)
            shims["kill"] = {"place": kill.how, "call": call, "moment": self._rng.choice(MOMENTS)}
        self._output.write_bytes(b"")
        run: Any = run_really if kill.real else self._server.run
        name, *arguments = self._command
        return run(["-m", f"marl_sb3.{name}", *arguments], self._output, folder=self._folder, shims=shims)

    def _kill_it(self, process: Any, kill: Kill) -> None:
        """Kill the one process, unless it does so itself."""
        if kill.how == "time":  # soon after some more iterations than there are
            rows = _iterations(self._left[0]) + self._rng.randint(1, 6)
            while process.poll() is None and _iterations(self._left[0]) < rows:
                time.sleep(0.001)
        if kill.how in ("start", "time"):
            time.sleep(self._rng.uniform(0.0, START_S[kill.real] if kill.how == "start" else ITERATION_S))
            process.send_signal(signal.SIGKILL)

    def _kill_any(self, process: Any, kill: Kill, left: list[Kill]) -> Iterator[str]:
        """Kill any processes of the command, one after the other, until it ends; what was done."""
        time.sleep(START_S[kill.real] / 2 if kill.how == "any" else 0.0)
        while kill.how == "any" and kill in left:
            over_s = time.monotonic() + self._rng.expovariate(1 / self._kind.mean_s)
            needs_others = self._rng.random() < _LATE
            while process.poll() is None and time.monotonic() < over_s:
                time.sleep(0.01)
            while process.poll() is None and needs_others and not self._others(process):
                time.sleep(0.01)
            if process.poll() is not None:
                return
            others = self._others(process)
            victim = process.pid if not others or self._rng.random() < _OF_COMMAND else self._rng.choice(sorted(others))
            is_command = victim == process.pid
            signals = [signal.SIGTERM, signal.SIGINT] if is_command else []
            with suppress(psutil.NoSuchProcess):  # workers that hang are replaced at once, and what starts them is not
                if self._kind.may_hang and not is_command and others[victim].ppid() in others:
                    signals = [signal.SIGSTOP]
            number = self._rng.choice([signal.SIGKILL, *signals])
            with suppress(ProcessLookupError):
                os.kill(victim, number)
                left.remove(kill)
                yield f"{signal.Signals(number).name} of {'the command' if is_command else 'another'}"

    def _others(self, command: Any) -> dict[int, psutil.Process]:
        """The processes of the command but for its own, by number."""
        return {each.pid: each for each in processes_in(self._folder) if each.pid != command.pid}

    # --- What a user does next ---

    def _go_on(self, code: int, said: str) -> None:
        """Choose the next command: one that goes on, or begins anew what had no checkpoint yet, or the first one."""
        is_training, refused = self._command[0] == "train", code == 2 and self._resuming
        self.tally.counts["resumes"] += self._resuming and code in (0, *ENDED)
        if code in (-signal.SIGTERM, -signal.SIGINT) and not list(
            self._folder.glob(f"**/{self._root.name}/**/result.jsonl")
        ):
            code = 130  # nothing was trained yet, nor the signal's handler set
        if "Traceback" in said or "inexact" in said:
            self._complain(said[-500:])
        if code == 0:
            self._left = [] if self._is_first else self._left[1:]
        if code == 0 and not self._left:
            self.tally.counts["runs"] += 1
            self.tally.mismatches += self._kind.differences(self._reference, self._root)
            self._begin()
        elif refused and not list(self._left[0].glob("checkpoints/ckpt-*")):
            self._begin_anew(self._left[0], said)
        elif code not in (0, *ENDED) and not (code == 1 and len(self._kind.runs) > 1):  # one of several was killed
            self._complain(f"exit code {code}: {said.strip()[-500:]}")
            self._begin()
        elif is_training:
            self._command, self._is_first = ["train", "--resume", str(self._left[0]), "--quiet"], False

    def _begin_anew(self, run: Path, said: str) -> None:
        """As the message says, from the settings of the run; or from the first command, if they are not there."""
        self.tally.counts["anew"] += 1
        config = run / "config.yaml"
        expected = REFUSAL.format(folder=run / "checkpoints", config=config)
        if not config.exists():
            expected = (
                f"error: {run} is not a run folder: it {'has no config.yaml' if run.exists() else 'does not exist'}"
            )
        if not said.replace("\n", "").startswith(expected):
            self._complain(f"it was said {said!r}, not {expected!r}")
        if config.exists():
            settings = Path(shutil.move(config, self._folder / "settings.yaml"))
            shutil.rmtree(run)
            self._command = ["train", "--hparams", str(settings), "--run-dir", str(run), "--quiet"]
        else:
            shutil.rmtree(self._root, ignore_errors=True)
            self._begin()


def _iterations(run: Path) -> int:
    """Rows of the run's log."""
    path = run / "result.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def train_reference(kind: Kind, folder: Path, server: ForkServer) -> Path:
    """Run the command without a disturbance; the folder of its runs."""
    folder.mkdir(parents=True, exist_ok=True)
    (name, *arguments), output = kind.begin(folder, "reference"), folder / "output.txt"
    if server.run(["-m", f"marl_sb3.{name}", *arguments], output, folder=folder).wait(600.0) != 0:
        raise RuntimeError(output.read_text())
    return folder / "reference"


# --- The command -----------------------------------------------------------------------------------------------------


def plan(kills: int, rng: random.Random, real_every: int = 7) -> Iterator[tuple[str, list[Kill]]]:
    """So many kills of all kinds in turn, in portions for one trial each; of one process a third inside saves."""
    for number, name in enumerate(cycle(KINDS)):
        size = min(kills, rng.randint(2, 8), KINDS[name].most)
        hows = (
            rng.choices(["save", "cut", "start", "time"], weights=[6, 3, 3, 6], k=size)
            if name in PLAIN
            else ["any"] * size
        )
        yield name, [Kill(how, real=number % real_every == 0) for how in hows]
        kills -= size
        if kills == 0:
            return


def campaign(options: argparse.Namespace, folder: Path) -> Tally:
    """All kills; what each trial has done is printed."""
    total, references = Tally(), {}
    with ForkServer() as server:
        for number, (name, kills) in enumerate(plan(options.kills, random.Random(options.seed))):
            if name not in references:
                references[name] = train_reference(KINDS[name], folder / name, server)
            (own := folder / f"trial-{number}").mkdir()
            rng = random.Random(f"{options.seed}-{number}")
            tally = Trial(KINDS[name], references[name], own, server, rng).carry_out(kills)
            total.add(tally)
            print(f"{name}: {dict(tally.counts)}", *tally.mismatches, sep="\n", file=sys.stderr, flush=True)
    return total


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


if __name__ == "__main__":
    sys.exit(command(campaign, None, kills=100))

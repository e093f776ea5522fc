"""One run that is killed, resumed and compared, and what is counted of it."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from pathlib import Path
from typing import Any

from forked import ForkServer
from run_records import differences
from shims import MOMENTS
from trained_processes import RealTraining, Training, wait

ITERATIONS, N_ENVS, N_STEPS = 12, 4, 16
SMALL = ["--n-envs", f"{N_ENVS}", "--timesteps", f"{ITERATIONS * N_ENVS * N_STEPS}", "--seed", "3", "--quiet"]
SMALL += ["--set", f"n_steps={N_STEPS}", "--set", "batch_size=32", "--set", "n_epochs=2"]
SMALL += ["--set", "policy_kwargs.net_arch=[8,8]", "--set", "env.max_timesteps=20", "--set", "checkpoint_keep=2"]

MAPPED = """\
arena:
  policies:
    explorer: {agents: [agent1], learning_rate: 0.01}
    hunter: {agents: [agent2]}
  policies_to_train: [explorer]
"""
POLICIES = {"shared": ["--policies", "shared"], "per_agent": ["--policies", "per_agent"], "mapped": []}
CHECKPOINT_EVERY = {"batched": 1, "sync": 2, "supersuit": 1}

CALLS_OF_A_SAVE = 74  # roughly, with one policy
START_S = {True: 4.0, False: 0.2}  # roughly, until the first iteration is done; of a real process, and of a forked one
ITERATION_S = 0.04  # roughly
REFUSAL = "error: {folder} holds no valid checkpoint: the run ended before its first; train --hparams {config} starts"


@dataclass(frozen=True)
class Case:
    """What is trained."""

    policies: str  # `shared`, `per_agent`, or `mapped`: two policies of which one is not trained
    vectorizer: str  # what steps the envs

    def __str__(self) -> str:
        return f"{self.policies}-{self.vectorizer}"

    def command(self, folder: Path) -> list[str]:
        """Arguments of the training; a file that they need goes into the folder."""
        every = ["--checkpoint-every", str(CHECKPOINT_EVERY[self.vectorizer])]
        file = folder / "mapped.yml"
        if self.policies == "mapped":
            file.write_text(MAPPED)
        hparams = ["--hparams", str(file)] if self.policies == "mapped" else []
        return ["arena", *SMALL, *every, "--vectorizer", self.vectorizer, *hparams, *POLICIES[self.policies]]


@dataclass(frozen=True)
class Kill:
    """One kill."""

    kind: str  # inside a `save`, in the `cut` of the logs at a resume, at the `start`, or at any `time` after it
    real: bool = False  # whether it is of a `python -m marl_sb3.train`, and not of a forked process


@dataclass
class Tally:
    """What has happened."""

    kills: int = 0  # processes that died of SIGKILL
    inside_saves: int = 0  # of them, inside the save of a checkpoint
    inside_cuts: int = 0  # of them, while the logs were cut
    at_start: int = 0  # of them, at the start
    real: int = 0  # of them, real processes
    resumes: int = 0  # `--resume`s that went on
    anew: int = 0  # runs killed before their first checkpoint, which had to start anew
    runs: int = 0  # runs that came to their end
    full_disks: int = 0  # trainings that ran out of space
    mismatches: list[str] = field(default_factory=list)  # what differs, or went wrong

    def add(self, other: Tally) -> Tally:
        """The sum."""
        return Tally(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    def count(self, kill: Kill) -> None:
        """One process has died."""
        self.kills += 1
        self.real += kill.real
        self.inside_saves += kill.kind == "save"
        self.inside_cuts += kill.kind == "cut"
        self.at_start += kill.kind == "start"

    def numbers(self) -> dict[str, int]:
        """By name."""
        return {name: len(value) if isinstance(value, list) else value for name, value in asdict(self).items()}


def sum_of(tallies: Iterable[Tally]) -> Tally:
    """Of all of them."""
    return reduce(Tally.add, tallies, Tally())


class Trial:
    """Runs of one case that are killed, resumed, and compared when they are complete.

    Args:
        case: what is trained.
        reference: the run folder of a training that nobody disturbed.
        folder: an empty folder to work in.
        server: starts the processes that need not be real ones.
        rng: chooses the moments.
        broken: a random generator that resumed processes do not bring back.
    """

    def __init__(
        self,
        case: Case,
        reference: Path,
        folder: Path,
        server: ForkServer,
        rng: random.Random,
        broken: str | None = None,
    ) -> None:
        self.tally = Tally()
        self._case, self._reference, self._folder, self._server, self._rng = case, reference, folder, server, rng
        self._broken = broken
        self._first = case.command(folder)
        self._folders = 0
        self._begin(self._first)

    def _begin(self, command: Sequence[str]) -> None:
        self._folders += 1
        self.run = self._folder / f"run-{self._folders}"
        self._command = [*command, "--run-dir", str(self.run)]

    @property
    def _resuming(self) -> bool:
        return self._command[0] == "--resume"

    def carry_out(self, kills: Sequence[Kill], max_starts: int = 200) -> Tally:
        """Kill so often; a run that comes to its end before is compared, and another begins."""
        left = list(kills)
        for _ in range(max_starts):
            chosen = self._choose(left)
            died, over = self._start_once(chosen)
            if chosen is not None and died:
                self.tally.count(chosen)
                left.remove(chosen)
            elif over and not left:
                return self.tally
        self.tally.mismatches.append(f"{self.run}: not over after {max_starts} starts")
        return self.tally

    def _choose(self, left: list[Kill]) -> Kill | None:
        """The next kill; only a run that is resumed has logs to cut."""
        for kill in left:
            if self._resuming or kill.kind != "cut":
                return kill
        if left:
            left[0] = Kill("time", left[0].real)
        return left[0] if left else None

    def _start_once(self, kill: Kill | None) -> tuple[bool, bool]:
        """Start or resume the run; whether it died of the kill, and whether it is over."""
        training = self._start(kill)
        if kill is not None and kill.kind in ("start", "time"):
            self._kill_some_time(training, kill)
        code = wait(training)
        return code == -signal.SIGKILL, self._after(code, training.output.read_text(errors="replace"))

    def _start(self, kill: Kill | None) -> Training:
        shims: dict[str, Any] = {"break": self._broken} if self._broken and self._resuming else {}
        if kill is not None and kill.kind in ("save", "cut"):
            shims["kill"] = self._call(kill.kind)
        output = self._folder / "output.txt"
        if kill is not None and kill.real:
            return RealTraining(self._command, shims, output)
        return self._server.start(self._command, shims, output)

    def _call(self, place: str) -> dict[str, Any]:
        last = 4 * CALLS_OF_A_SAVE if place == "save" else 4
        return {"place": place, "call": self._rng.randint(1, last), "moment": self._rng.choice(MOMENTS)}

    def _kill_some_time(self, training: Training, kill: Kill) -> None:
        """At the start, or soon after some more iterations than there are."""
        if kill.kind == "start":
            time.sleep(self._rng.uniform(0.0, START_S[kill.real]))
        else:
            rows = _iterations(self.run) + self._rng.randint(1, 6)
            while training.poll() is None and _iterations(self.run) < rows:
                time.sleep(0.001)
            time.sleep(self._rng.uniform(0.0, ITERATION_S))
        training.send_signal(signal.SIGKILL)

    def _after(self, code: int, said: str) -> bool:
        """Do what a user does next; whether the run is over."""
        if code == -signal.SIGKILL:
            self.tally.resumes += self._resuming
            self._command = ["--resume", str(self.run), "--quiet"]
            return False
        if code == 2 and self._resuming and not list(self.run.glob("checkpoints/ckpt-*")):
            self._start_anew(said)
            return False
        if code == 0:
            self._compare()
        else:
            self.tally.mismatches.append(f"{self.run}: exit code {code}: {said.strip()[-500:]}")
        self._begin(self._first)
        return True

    def _start_anew(self, said: str) -> None:
        """There was no checkpoint yet: take the command from the message, or the first one if there is no folder."""
        self.tally.anew += 1
        config = self.run / "config.yaml"
        if not config.exists():
            why = "has no config.yaml" if self.run.exists() else "does not exist"
            self._expect(said, f"error: {self.run} is not a run folder: it {why}")
            self._command = [*self._first, "--run-dir", str(self.run)]
            return
        self._expect(said, REFUSAL.format(folder=self.run / "checkpoints", config=config))
        self._begin(["--hparams", str(config), "--quiet"])

    def _expect(self, said: str, message: str) -> None:
        if not said.replace("\n", "").startswith(message) or "Traceback" in said:
            self.tally.mismatches.append(f"{self.run}: it was said {said!r}, not {message!r}")

    def _compare(self) -> None:
        self.tally.runs += 1
        self.tally.resumes += self._resuming
        self.tally.mismatches += [f"{self.run}: {each}" for each in differences(self._reference, self.run)]


def _iterations(run: Path) -> int:
    """Rows of the run's log."""
    try:
        return (run / "result.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def train_reference(case: Case, folder: Path, server: ForkServer) -> Path:
    """Train without a disturbance; the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [*case.command(folder), "--run-dir", str(folder / "reference")]
    training = server.start(command, {}, folder / "output.txt")
    if wait(training) != 0:
        raise RuntimeError(training.output.read_text())
    return folder / "reference"

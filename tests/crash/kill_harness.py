"""Kill trainings at random moments, resume them, and compare what they leave with a training that nobody disturbed.

    python tests/crash/kill_harness.py --kills 100

A third of the kills hit a call inside the save of a checkpoint; the others a random time, the cutting of the logs at a
resume, or the start. Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import math
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, product
from pathlib import Path
from typing import Any

from campaign import Tally, command
from forked import ForkServer, run_really
from run_records import differences
from shims import MOMENTS

ITERATIONS, N_ENVS, N_STEPS = 8, 4, 16
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
CHECKPOINT_EVERY = {"batched": 1, "sync": 2}

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


class Trial:
    """Runs of one case that are killed, resumed, and compared when they are complete.

    Args:
        case: what is trained.
        reference: the run folder of a training that nobody disturbed.
        folder: an empty folder to work in.
        server: starts the processes that need not be real ones.
        rng: chooses the moments.
    """

    def __init__(self, case: Case, reference: Path, folder: Path, server: ForkServer, rng: random.Random) -> None:
        self.tally = Tally()
        self._reference, self._folder, self._server, self._rng = reference, folder, server, rng
        self._first = case.command(folder)
        self._folders = count(1)
        self._begin(self._first)

    def _begin(self, arguments: Sequence[str]) -> None:
        self.run = self._folder / f"run-{next(self._folders)}"
        self._arguments = [*arguments, "--run-dir", str(self.run)]

    @property
    def _resuming(self) -> bool:
        return self._arguments[0] == "--resume"

    def carry_out(self, kills: Sequence[Kill], max_starts: int = 200) -> Tally:
        """Kill so often; a run that comes to its end before is compared, and another begins."""
        left = list(kills)
        for _ in range(max_starts):
            chosen = self._choose(left)
            code, said = self._start_once(chosen)
            if chosen is not None and code == -signal.SIGKILL:
                self.tally.counts.update(["kills", chosen.kind, *(["real"] if chosen.real else [])])
                left.remove(chosen)
            if self._is_over(code, said) and not left:
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

    def _start_once(self, kill: Kill | None) -> tuple[int, str]:
        """Start or resume the run; its exit code, and what it has said."""
        kind, real = ("", False) if kill is None else (kill.kind, kill.real)
        shims: dict[str, Any] = {}
        if kind in ("save", "cut"):
            call = self._rng.randint(1, 4 * CALLS_OF_A_SAVE if kind == "save" else 4)
            shims["kill"] = {"place": kind, "call": call, "moment": self._rng.choice(MOMENTS)}
        output = self._folder / "output.txt"
        output.write_bytes(b"")
        run = run_really if real else self._server.run
        training: Any = run(["-m", "marl_sb3.train", *self._arguments], output, shims=shims)
        if kind == "start":
            time.sleep(self._rng.uniform(0.0, START_S[real]))
            training.send_signal(signal.SIGKILL)
        elif kind == "time":  # soon after some more iterations than there are
            rows = _iterations(self.run) + self._rng.randint(1, 6)
            while training.poll() is None and _iterations(self.run) < rows:
                time.sleep(0.001)
            time.sleep(self._rng.uniform(0.0, ITERATION_S))
            training.send_signal(signal.SIGKILL)
        return training.wait(120.0), output.read_text(errors="replace")

    def _is_over(self, code: int, said: str) -> bool:
        """Do what a user does next; whether the run is over."""
        counts, mismatches, is_resumed = self.tally.counts, self.tally.mismatches, self._resuming
        if code == 2 and is_resumed and not list(self.run.glob("checkpoints/ckpt-*")):
            self._start_anew(said)
            return False
        if code in (0, -signal.SIGKILL):
            counts["resumes"] += is_resumed
        if code == -signal.SIGKILL:
            self._arguments = ["--resume", str(self.run), "--quiet"]
            return False
        if code == 0:
            counts["runs"] += 1
            mismatches += [f"{self.run}: {each}" for each in differences(self._reference, self.run)]
        else:
            mismatches.append(f"{self.run}: exit code {code}: {said.strip()[-500:]}")
        self._begin(self._first)
        return True

    def _start_anew(self, said: str) -> None:
        """There was no checkpoint yet: take the command from the message, or the first one if there is no folder."""
        self.tally.counts["anew"] += 1
        config = self.run / "config.yaml"
        if config.exists():
            expected = REFUSAL.format(folder=self.run / "checkpoints", config=config)
        else:
            why = "has no config.yaml" if self.run.exists() else "does not exist"
            expected = f"error: {self.run} is not a run folder: it {why}"
        if not said.replace("\n", "").startswith(expected) or "Traceback" in said:
            self.tally.mismatches.append(f"{self.run}: it was said {said!r}, not {expected!r}")
        if config.exists():
            self._begin(["--hparams", str(config), "--quiet"])
        else:
            self._arguments = [*self._first, "--run-dir", str(self.run)]


def _iterations(run: Path) -> int:
    """Rows of the run's log."""
    try:
        return (run / "result.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def train_reference(case: Case, folder: Path, server: ForkServer) -> Path:
    """Train without a disturbance; the run folder."""
    folder.mkdir(parents=True, exist_ok=True)
    run, output = folder / "reference", folder / "output.txt"
    if server.start([*case.command(folder), "--run-dir", str(run)], {}, output).wait() != 0:
        raise RuntimeError(output.read_text())
    return run


# --- The command -----------------------------------------------------------------------------------------------------


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


def campaign(options: argparse.Namespace, folder: Path) -> Tally:
    """All kills, in trainings of all cases in turn."""
    total, cases = Tally(), [Case(*names) for names in product(POLICIES, CHECKPOINT_EVERY)]
    with ForkServer() as server:
        references = [train_reference(case, folder / str(case), server) for case in cases]
        for number, kills in enumerate(plan(options.kills, random.Random(options.seed))):
            own, of_case = folder / f"trial-{number}", number % len(cases)
            own.mkdir()
            rng = random.Random(f"{options.seed}-{number}")
            total.add(Trial(cases[of_case], references[of_case], own, server, rng).carry_out(kills))
            print(f"trial {number}, {cases[of_case]}: {dict(total.counts)}", file=sys.stderr, flush=True)
    return total


if __name__ == "__main__":
    sys.exit(command(campaign, None, kills=100))

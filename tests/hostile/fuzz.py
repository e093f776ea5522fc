"""Load thousands of mutated checkpoints and data sets and see that nothing but errors in words comes of it.

    python tests/hostile/fuzz.py --mutants 10000 [--seed S] [--workers 2]

A checkpoint is loaded in one of five ways: by `MultiAgentAlgorithm.load`, by `set_state` of an algorithm that is built,
by `--init-from`, by `restore` and by `resume_run`. What loads has to train for an iteration, or say why not with an
error of marl_sb3. A tenth of the mutants are data sets, read in the ways of `data_sets.py`. Hangs, crashes of the
interpreter and what an audit hook sees are found. Exits with 1 on any finding.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import itertools
import logging
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from audit import watched
from bases import BASES, Base, make_run
from checkpoint_source import Files, Source, read_files, write_files
from data_sets import FUNCTIONS, make_outside, make_recording
from mutants import CONFIG, Dice, Mutant, make_config_mutant, make_mutant, spoil_data_set
from stable_baselines3.common.utils import set_random_seed

from marl_sb3 import load_policies, load_run
from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.errors import CheckpointError, ConfigError, EnvRaisedError, MarlSb3Error
from marl_sb3.extensions.store.checkpoint_format import read_checkpoint
from marl_sb3.extensions.transfer.initial_weights import InitFrom, init_from
from marl_sb3.runs.run import Run, SavedRun
from marl_sb3.runs.start import resume_run

HANG_SECONDS = 60  # of a mutant altogether, the iteration after it included
MOST_NUMBERS = 2**20  # of a rollout or in the epochs of an update: more is not trained with
_BOUND = 6000 * 2**20  # bytes of address space beyond the start: a bomb ends itself rather than the machine
_NEEDS_POLICIES = "was made of classes or functions: pass `policies`"  # the one `ConfigError` that `load` documents
_ODD_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]")
# What our own code, or Gymnasium for an env that it knows, imports when it is first needed.
_LATE = ("marl_sb3.core.envs.converted", "gymnasium.envs.classic_control.cartpole", "pygame")
_LATE += ("marl_sb3.envs.open_spiel",)


@dataclass
class Outcome:
    """What came of a mutant."""

    kind: str  # its family
    what: str  # was changed, and how it was loaded
    result: str = "loaded"  # `refused`, `loaded`, or `wrong`: what must not be
    details: str = ""  # of what must not be
    seen: list[str] = field(default_factory=list)  # by the audit hook

    def wrong(self, details: str) -> None:
        """Note what must not be."""
        self.result, self.details = "wrong", details


class Workplace:
    """The valid checkpoints, and where mutants are put."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bases = [read_files(folder / f"base-{number}") for number in range(len(BASES))]
        self.run = read_files(next((folder / "run" / "checkpoints").iterdir()))
        self.config = (folder / "run" / CONFIG).read_text()
        self.logs = {name: (folder / "run" / name).read_bytes() for name in ("result.jsonl", "progress.csv")}

    @staticmethod
    def prepare(folder: Path) -> None:
        """Make the valid checkpoints."""
        for number, base in enumerate(BASES):
            base.save(folder / f"base-{number}")
        make_run(folder / "run")
        make_recording(folder / "episodes")
        make_outside(folder / "outside")

    def source(self, files: Files) -> Source:
        """A checkpoint to mutate, and those of other trainings."""
        return Source(files, [other for other in [*self.bases, self.run] if other is not files])


# --- One mutant ------------------------------------------------------------------------------------------------------


def trial(place: Workplace, seed: int, index: int, scratch: Path) -> Outcome:
    """Make the mutant of this number and load it."""
    dice = Dice(seed, index, 1)
    if index % 10 == 9:
        mutant = make_config_mutant(place.config, seed, index // 10)
        return load_as_run(place, mutant, dice.one_of(["restore", "resume"]), scratch)
    if index % 10 == 8:
        mutant = make_mutant(place.source(place.run), seed, index // 10)
        way = dice.one_of(["restore", "restore best", "resume", "policies", "policies by the configuration"])
        return load_as_run(place, mutant, way, scratch)
    if index % 10 == 7:
        return read_data_set(place, dice, scratch)
    number = dice.number(len(BASES))
    mutant = make_mutant(place.source(place.bases[number]), seed, index)
    way = dice.one_of(["load", "load", "load", "set_state", "set_state", "init_from"])
    return load(BASES[number], mutant, way, scratch, goes_on=index % 4 == 0)


def load(base: Base, mutant: Mutant, way: str, scratch: Path, *, goes_on: bool) -> Outcome:
    """Load a checkpoint into an algorithm; `goes_on`: an algorithm that has refused it still trains."""
    outcome = Outcome(mutant.kind, f"{base.name}: {way}; {mutant.what}")
    folder = scratch / "ckpt-000002"
    write_files(mutant.files, folder)
    if way == "load":
        attempt(outcome, lambda: base.load(folder), (CheckpointError,))
        return outcome
    algorithm = base.build()

    def set_state() -> Any:
        algorithm.set_state(read_checkpoint(folder))
        return algorithm

    def start() -> Any:
        init_from(algorithm, [InitFrom(folder)])
        return algorithm

    if way == "set_state":
        attempt(outcome, set_state, (CheckpointError,))
    else:  # which knows checkpoints of other policies, too, and says that they do not fit
        attempt(outcome, start, (CheckpointError, ConfigError))
    if outcome.result == "refused" and goes_on:
        use(outcome, algorithm)
    return outcome


def load_as_run(place: Workplace, mutant: Mutant, way: str, scratch: Path) -> Outcome:
    """Restore or resume a run folder."""
    outcome = Outcome(mutant.kind, f"run: {way}; {mutant.what}")
    folder = scratch / "run"
    of_config = CONFIG in mutant.files
    config = mutant.files if of_config else {CONFIG: place.config.encode()}
    write_files({**place.logs, **config}, folder)
    write_files(place.run if of_config else mutant.files, folder / "checkpoints" / "ckpt-000002")
    # An env may raise what it likes about its own arguments.
    accepted = (CheckpointError, ConfigError, EnvRaisedError) if of_config else (CheckpointError,)
    ways: dict[str, Callable[[], Run | PolicyBundle]] = {
        "restore": lambda: load_run(folder, "latest"),
        "restore best": lambda: load_run(folder, "best"),
        "resume": lambda: resume_run(folder),
        "policies": lambda: load_policies(folder, "latest"),
        "policies by the configuration": lambda: SavedRun.open(folder, makes_env=False).policies(),
    }
    attempt(outcome, ways[way], accepted, folder if way == "resume" else None)
    return outcome


def read_data_set(place: Workplace, dice: Dice, scratch: Path) -> Outcome:
    """Read recorded episodes in one way."""
    folder, way = scratch / "episodes", dice.one_of([*FUNCTIONS])
    shutil.copytree(place.folder / "episodes", folder)
    outcome = Outcome("data set", f"{way}; {spoil_data_set(folder, place.folder / 'outside', dice)}")
    attempt(outcome, lambda: (FUNCTIONS[way](folder), None)[1], (ConfigError,), folder)
    return outcome


def attempt(
    outcome: Outcome, load: Callable[[], Any], accepted: tuple[type[Exception], ...], writable: Path | None = None
) -> None:
    """Load, and note what came of it."""
    loaded, raised = None, None
    with watched(writable) as seen:
        try:
            loaded = load()
        except BaseException as error:
            raised = error
    outcome.seen = list(seen)
    if raised is None:
        if loaded is not None:
            use(outcome, loaded)
        return
    message = str(raised)
    outcome.result = "refused"
    documented = isinstance(raised, ConfigError) and _NEEDS_POLICIES in message
    if not isinstance(raised, accepted) and not documented:
        outcome.wrong(_traceback(raised))
    elif len(message) > 4000 or _ODD_CHARACTERS.search(message):
        outcome.wrong(f"a message of {len(message)} characters: {message[:500]!r}")


def use(outcome: Outcome, loaded: Any) -> None:
    """Act with policies, or train for an iteration."""
    from marl_sb3.callbacks import RewardHistogramCallback

    algorithm = loaded.algorithm if isinstance(loaded, Run) else loaded
    try:
        if isinstance(loaded, PolicyBundle):
            loaded.predict({agent: loaded.spaces[of].observation.sample() for agent, of in loaded.policy_of.items()})
        elif _is_short(algorithm):
            steps = algorithm.n_steps * algorithm.env.num_envs
            algorithm.learn(steps, callback=[RewardHistogramCallback()], reset_num_timesteps=False)
    except MarlSb3Error:
        pass
    except BaseException as error:
        outcome.wrong(f"after it: {_traceback(error)}")
    finally:
        with contextlib.suppress(Exception):
            algorithm.env.close()
        if isinstance(loaded, Run):
            loaded.files.unlock()


def _is_short(algorithm: Any) -> bool:
    """Whether an iteration ends soon: nothing limits the settings in a checkpoint."""
    epochs = sum(getattr(policy, "n_epochs", 1) for policy in algorithm.policies.values())
    return bool(algorithm.n_steps * algorithm.env.num_envs * max(1, epochs) < MOST_NUMBERS)


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-5))[-1500:]


# --- Processes -------------------------------------------------------------------------------------------------------


def set_up_process() -> None:
    """Neither logs nor warnings of what is meant to be wrong; one thread."""
    import torch

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    faulthandler.enable()


def warm_up(place: Workplace) -> None:
    """Import what is imported late, on the ways to errors too: the audit hook hears of imports."""
    for module in _LATE:
        importlib.import_module(module)
    for base, files in zip(BASES, place.bases, strict=True):
        for way in ("load", "set_state", "init_from"):
            with tempfile.TemporaryDirectory(dir=place.folder) as scratch:
                outcome = load(base, Mutant("valid", "", files), way, Path(scratch), goes_on=False)
                assert outcome.result == "loaded", outcome
    for way in ("restore", "resume"):
        with tempfile.TemporaryDirectory(dir=place.folder) as scratch:
            outcome = load_as_run(place, Mutant("valid", "", {CONFIG: place.config.encode()}), way, Path(scratch))
            assert outcome.result == "loaded", outcome
    for read in FUNCTIONS.values():
        with tempfile.TemporaryDirectory(dir=place.folder) as scratch:
            read(shutil.copytree(place.folder / "episodes", Path(scratch) / "episodes"))
    for index in range(25):
        one(place, 2**31, index)


def one(place: Workplace, seed: int, index: int) -> Outcome:
    """A mutant in a scratch folder of its own."""
    set_random_seed(0)  # the last mutant has left other states of the generators
    scratch = Path(tempfile.mkdtemp(dir=place.folder, prefix="scratch-"))
    try:
        return trial(place, seed, index, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def apart(place: Workplace, seed: int, index: int, results: Connection) -> None:
    """A mutant in a process of its own, which may die of it; a bomb ends itself rather than the machine."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    soft = _BOUND + (1024 * int(found[1]) if found else 0)
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    results.send(one(place, seed, index))


def run_all(place: Workplace, seed: int, mutants: int, workers: int) -> dict[int, Outcome]:
    """All mutants, so many at a time; what kills its process, or takes too long, is wrong."""
    fork, outcomes = multiprocessing.get_context("fork"), dict[int, Outcome]()
    waiting, running = iter(range(mutants)), dict[Connection, tuple[int, Any, float]]()
    while len(outcomes) < mutants:
        for index in itertools.islice(waiting, workers - len(running)):
            results, end = fork.Pipe(duplex=False)
            process = fork.Process(target=apart, args=(place, seed, index, end), daemon=True)
            process.start()
            end.close()
            running[results] = index, process, time.monotonic() + HANG_SECONDS
        over = wait([*running], timeout=1)
        for results, (index, process, until) in [*running.items()]:
            outcome = Outcome("of any kind", f"mutant {index}")
            if results in over:
                try:
                    outcome = results.recv()
                except EOFError:
                    process.join()
                    outcome.wrong(f"the interpreter died: exit code {process.exitcode}")
            elif time.monotonic() > until:
                process.kill()
                outcome.wrong(f"hangs for {HANG_SECONDS} s")
            else:
                continue
            process.join()
            results.close()
            del running[results]
            outcomes[index] = outcome
    return outcomes


# --- Report ----------------------------------------------------------------------------------------------------------


def table(outcomes: dict[int, Outcome]) -> str:
    """A row per kind of mutation."""
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in outcomes.values():
        by_kind[outcome.kind][outcome.result] += 1
        by_kind[outcome.kind]["seen"] += bool(outcome.seen)
    columns = ("refused", "loaded", "wrong", "seen")
    rows = [f"{kind:24}" + "".join(f"{row[name]:>9}" for name in columns) for kind, row in sorted(by_kind.items())]
    return "\n".join([f"{'kind':24}" + "".join(f"{name:>9}" for name in columns), *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=int, help="this mutant alone, in this process")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        set_up_process()
        Workplace.prepare(Path(name))
        place = Workplace(Path(name))
        warm_up(place)
        if arguments.only is None:
            outcomes = run_all(place, arguments.seed, arguments.mutants, arguments.workers)
        else:
            outcomes = {arguments.only: one(place, arguments.seed, arguments.only)}
    print(table(outcomes))
    found = {index: outcome for index, outcome in outcomes.items() if outcome.result == "wrong" or outcome.seen}
    for index, outcome in sorted(found.items())[:12]:
        print(f"--- mutant {index}, {outcome.kind}: {outcome.what}", outcome.details, *outcome.seen[:5], sep="\n")
    print(f"{len(outcomes)} mutants of seed {arguments.seed}: {len(found)} findings")
    return 1 if found or len(outcomes) < (1 if arguments.only is not None else arguments.mutants) else 0


if __name__ == "__main__":
    sys.exit(main())

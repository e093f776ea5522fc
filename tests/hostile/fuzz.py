"""Load thousands of mutated checkpoints and see that nothing but `CheckpointError` comes of it.

    python tests/hostile/fuzz.py --mutants 10000 [--seed S] [--workers 2] [--json FILE]

Each is loaded in one of five ways: by `MultiAgentAlgorithm.load`, by `set_state` of an algorithm that is built, by
`--init-from`, by `restore` and by `resume_run`. What loads has to train for an iteration, or say why not with an error
of marl_sb3. Time, crashes of the interpreter and what an audit hook sees are measured. Exits with 1 on any finding.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import importlib
import json
import logging
import multiprocessing
import os
import queue
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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from audit import watched
from bases import BASES, Base, make_run
from checkpoint_source import Dice, Source
from mutant_files import Files, Mutant, read_files
from mutate import make_mutant
from mutate_config import CONFIG, make_config_mutant
from mutate_files import flipped_bytes, tensor_header
from mutate_state import state_fields, state_leaf
from stable_baselines3.common.utils import set_random_seed

from marl_sb3.acting.bundle import PolicyBundle
from marl_sb3.errors import CheckpointError, ConfigError, EnvRaisedError, MarlSb3Error
from marl_sb3.learners.load import load_policies
from marl_sb3.runs.run import Run, SavedRun, load_run
from marl_sb3.runs.start import resume_run
from marl_sb3.storage.checkpoint_format import read_checkpoint
from marl_sb3.transfer.init_from import InitFrom, init_from

MAX_SECONDS = 1.0
MOST_NUMBERS = 2**20  # of a rollout or in the epochs of an update: more is not trained with
MAX_SECONDS_OF_YAML = 5.0  # PyYAML takes one for 30,000 bytes
HANG_SECONDS = 60  # of a mutant altogether, the iteration after it included
_BOUND = 6000 * 2**20  # bytes of address space beyond the start: a bomb ends itself rather than the machine
_NEEDS_POLICIES = "was made of classes or functions: pass `policies`"  # the one `ConfigError` that `load` documents


# What our own code, or Gymnasium for an env that it knows, imports when it is first needed.
_LATE = ("marl_sb3.envs.single_agent", "gymnasium.envs.classic_control.cartpole", "pygame")


@dataclass
class Outcome:
    """What came of a mutant.

    Attributes:
        index: its number.
        kind: its family.
        what: was changed.
        way: base, and how it was loaded.
        result: `refused`, `loaded`, or `other`: what must not be.
        error: what was raised, in a line.
        details: a traceback, of what must not be.
        after: what came of the iteration after it, if it was loaded.
        seconds: of loading.
        seen: by the audit hook.
    """

    index: int
    kind: str
    what: str
    way: str
    result: str = ""
    error: str = ""
    details: str = ""
    after: str = ""
    seconds: float = 0.0
    seen: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[str]:
        """What is wrong about it."""
        found = []
        if self.result == "other":
            found.append("other")
        if self.seen:
            found.append("audit")
        if self.seconds > (MAX_SECONDS_OF_YAML if self.kind.startswith(CONFIG) else MAX_SECONDS):
            found.append("slow")
        return found


# --- One mutant ------------------------------------------------------------------------------------------------------


@dataclass
class Workplace:
    """The valid checkpoints, and where mutants are put."""

    folder: Path

    def __post_init__(self) -> None:
        self.bases = [read_files(self.folder / f"base-{number}") for number in range(len(BASES))]
        self.run_files = read_files(next((self.folder / "run" / "checkpoints").iterdir()))
        self.config = (self.folder / "run" / CONFIG).read_text()
        self.logs = {name: (self.folder / "run" / name).read_bytes() for name in ("result.jsonl", "progress.csv")}

    @staticmethod
    def prepare(folder: Path) -> None:
        """Make the valid checkpoints."""
        for number, base in enumerate(BASES):
            base.save(folder / f"base-{number}")
        make_run(folder / "run")

    def source(self, files: Files) -> Source:
        """A checkpoint to mutate, and those of other trainings."""
        return Source(files, [other for other in [*self.bases, self.run_files] if other is not files])


def plan(workplace: Workplace, seed: int, index: int) -> tuple[Mutant, str, Base | None]:
    """The mutant of this number, how it is loaded, and what it was; None: a run folder."""
    dice, run = Dice(seed, index, 1), workplace.run_files
    if index % 10 == 9:
        return make_config_mutant(workplace.config, seed, index // 10), dice.one_of(["restore", "resume"]), None
    if index % 10 == 8:
        way = dice.one_of(["restore", "restore best", "resume", "policies", "policies by the configuration"])
        return make_mutant(workplace.source(run), seed, index // 10), way, None
    number = dice.number(len(BASES))
    mutant = make_mutant(workplace.source(workplace.bases[number]), seed, index)
    return mutant, dice.one_of(["load", "load", "load", "set_state", "set_state", "init_from"]), BASES[number]


def trial(workplace: Workplace, seed: int, index: int, scratch: Path) -> Outcome:
    """Make a mutant and load it."""
    mutant, way, base = plan(workplace, seed, index)
    if base is None:
        return run_trial(workplace, index, mutant, way, scratch)
    return load_trial(base, index, mutant, way, scratch)


def load_trial(base: Base, index: int, mutant: Mutant, way: str, scratch: Path) -> Outcome:
    """Load a checkpoint into an algorithm."""
    outcome = Outcome(index, mutant.kind, mutant.what, f"{base.name}: {way}")
    folder = scratch / "ckpt-000002"
    mutant.write(folder)
    if way == "load":
        measured(outcome, lambda: base.load(folder), (CheckpointError,))
        return outcome
    algorithm = base.build()

    def set_state() -> Any:
        algorithm.set_state(read_checkpoint(folder))
        return algorithm

    def start() -> Any:
        init_from(algorithm, [InitFrom(folder)])
        return algorithm

    if way == "set_state":
        measured(outcome, set_state, (CheckpointError,))
    else:  # which knows checkpoints of other policies, too, and says that they do not fit
        measured(outcome, start, (CheckpointError, ConfigError))
    if outcome.result == "refused" and index % 4 == 0:
        _train(outcome, algorithm)  # what has refused a checkpoint goes on
    return outcome


def run_trial(workplace: Workplace, index: int, mutant: Mutant, way: str, scratch: Path) -> Outcome:
    """Restore or resume a run folder."""
    outcome = Outcome(index, mutant.kind, mutant.what, f"run: {way}")
    folder = scratch / "run"
    (folder / "checkpoints").mkdir(parents=True)
    for name, data in workplace.logs.items():
        (folder / name).write_bytes(data)
    if CONFIG in mutant.files:
        mutant.write(scratch / "config")
        (scratch / "config" / CONFIG).rename(folder / CONFIG)
        Mutant("", "", workplace.run_files).write(folder / "checkpoints" / "ckpt-000002")
        # An env may raise what it likes about its own arguments.
        accepted: tuple[type[Exception], ...] = (CheckpointError, ConfigError, EnvRaisedError)
    else:
        (folder / CONFIG).write_text(workplace.config)
        mutant.write(folder / "checkpoints" / "ckpt-000002")
        accepted = (CheckpointError,)
    ways: dict[str, Callable[[], Run | PolicyBundle]] = {
        "restore": lambda: load_run(folder, "latest"),
        "restore best": lambda: load_run(folder, "best"),
        "resume": lambda: resume_run(folder),
        "policies": lambda: load_policies(folder, "latest"),
        "policies by the configuration": lambda: SavedRun.open(folder, makes_env=False).policies(),
    }
    measured(outcome, ways[way], accepted, folder if way == "resume" else None)
    return outcome


def measured(
    outcome: Outcome, load: Callable[[], Any], accepted: tuple[type[Exception], ...], writable: Path | None = None
) -> None:
    """Load, and note what it took and what came of it."""
    cpu, wall = time.process_time(), time.perf_counter()
    loaded, raised = None, None
    with watched(writable) as seen:
        try:
            loaded = load()
        except BaseException as error:
            raised = error
    # On a busy machine others take the time; what sleeps takes none of the processor.
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    outcome.seconds = cpu if wall < 10 * MAX_SECONDS else wall
    outcome.seen = list(seen)
    if raised is not None:
        _judge(outcome, raised, accepted)
    else:
        outcome.result = "loaded"
        if isinstance(loaded, PolicyBundle):
            return _act(outcome, loaded)
        _train(outcome, loaded.algorithm if isinstance(loaded, Run) else loaded)
        if isinstance(loaded, Run):
            loaded.files.unlock()


def _judge(outcome: Outcome, error: BaseException, accepted: tuple[type[Exception], ...]) -> None:
    message = str(error)
    outcome.error = f"{type(error).__name__}: {message}"[:300]
    documented = isinstance(error, ConfigError) and _NEEDS_POLICIES in message
    if not isinstance(error, accepted) and not documented:
        outcome.result, outcome.details = "other", _traceback(error)
    elif len(message) > 4000 or re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\ud800-\udfff]", message):
        outcome.result, outcome.details = "other", f"a message of {len(message)} characters: {message[:500]!r}"
    else:
        outcome.result = "refused"


def _act(outcome: Outcome, bundle: PolicyBundle) -> None:
    """An action of each agent."""
    observations = {
        agent: bundle.spaces[policy_id].observation.sample() for agent, policy_id in bundle.policy_of.items()
    }
    try:
        bundle.predict(observations)
        outcome.after = "ran"
    except BaseException as error:
        outcome.result, outcome.after = "other", f"after it, {type(error).__name__}: {error}"[:300]
        outcome.details = _traceback(error)


def _train(outcome: Outcome, algorithm: Any) -> None:
    """One iteration, and callbacks that remember what the checkpoint says."""
    from marl_sb3.callbacks import RewardHistogramCallback

    try:
        if not _is_short(algorithm):
            outcome.after = "too long"
            return
        if outcome.index % 2:
            algorithm.train_iteration()
        else:
            steps = algorithm.n_steps * algorithm.env.num_envs
            algorithm.learn(steps, callback=[RewardHistogramCallback()], reset_num_timesteps=False)
        outcome.after = "ran"
    except MarlSb3Error as error:
        outcome.after = f"{type(error).__name__}"
    except BaseException as error:
        outcome.result, outcome.after = "other", f"after it, {type(error).__name__}: {error}"[:300]
        outcome.details = _traceback(error)
    finally:
        with contextlib.suppress(Exception):
            algorithm.env.close()


def _is_short(algorithm: Any) -> bool:
    """Whether an iteration ends soon: nothing limits the settings in a checkpoint."""
    epochs = sum(getattr(policy, "n_epochs", 1) for policy in algorithm.policies.values())
    return bool(algorithm.n_steps * algorithm.env.num_envs * max(1, epochs) < MOST_NUMBERS)


def _traceback(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, limit=-5))[-1500:]


def _address_space() -> int:
    """Bytes of address space in use."""
    found = re.search(r"VmSize:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return 1024 * int(found[1]) if found else 0


# --- Workers ---------------------------------------------------------------------------------------------------------


def worker(folder: Path, seed: int, first: int, mutants: int, step: int, results: Any) -> None:
    """Every `step`-th mutant from `first` on; a process of its own, which may die of one."""
    set_up_process()
    faulthandler.enable()
    workplace = Workplace(folder)
    warm_up(workplace, folder)
    soft = _address_space() + _BOUND
    resource.setrlimit(resource.RLIMIT_AS, (soft, soft))
    for index in range(first, mutants, step):
        results.put(("begin", index, None))
        results.put(("end", index, one(workplace, seed, index, folder)))
        if _address_space() > soft - _BOUND // 2:
            return  # half of it is gone, to threads that were started, say: the next ones get a new process


def set_up_process() -> None:
    """Neither logs nor warnings of what is meant to be wrong; one thread."""
    import torch

    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)


def warm_up(workplace: Workplace, folder: Path) -> None:
    """Import what is imported late, on the ways to errors too: the audit hook hears of imports."""
    for number in range(len(BASES)):
        for way in ("load", "set_state", "init_from"):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                valid = Mutant("valid", "", workplace.bases[number])
                outcome = load_trial(BASES[number], 0, valid, way, Path(scratch))
                assert outcome.result == "loaded", outcome
                assert outcome.after == "ran", outcome
    for way in ("restore", "resume"):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            valid = Mutant("valid", "", {CONFIG: workplace.config.encode()})
            outcome = run_trial(workplace, 0, valid, way, Path(scratch))
            assert outcome.result == "loaded", outcome
    for module in _LATE:
        importlib.import_module(module)
    for seed, way in enumerate(("load", "set_state", "restore", "resume") * 3):
        for family in (flipped_bytes, tensor_header, state_fields, state_leaf):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                bad = family(workplace.source(workplace.run_files), Dice(seed))
                if way in ("restore", "resume"):
                    run_trial(workplace, 0, bad, way, Path(scratch))
                else:
                    load_trial(BASES[1], 0, bad, way, Path(scratch))


def one(workplace: Workplace, seed: int, index: int, folder: Path) -> Outcome:
    """A mutant in a scratch folder of its own; twice if it was slow, and the faster time counts."""
    outcome = _one(workplace, seed, index, folder)
    if outcome.findings == ["slow"]:
        outcome.seconds = min(outcome.seconds, _one(workplace, seed, index, folder).seconds)
    return outcome


def _one(workplace: Workplace, seed: int, index: int, folder: Path) -> Outcome:
    set_random_seed(0)  # the last mutant has left other states of the generators
    scratch = Path(tempfile.mkdtemp(dir=folder, prefix="scratch-"))
    try:
        return trial(workplace, seed, index, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass
class _Worker:
    """A process and what it is at."""

    process: Any
    results: Any
    first: int
    index: int = -1
    since: float = 0.0


def run_all(folder: Path, seed: int, mutants: int, workers: int, report: Callable[[Outcome], None]) -> None:
    """All mutants, in processes that are started again when they die or hang."""
    context = multiprocessing.get_context("fork")  # what has been imported need not be imported again

    def start(first: int) -> _Worker:
        results = context.Queue()
        process = context.Process(target=worker, args=(folder, seed, first, mutants, workers, results), daemon=True)
        process.start()
        return _Worker(process, results, first, since=time.monotonic() + 120)

    running = [start(first) for first in range(min(workers, mutants))]
    while running:
        for place, each in enumerate(running):
            try:
                kind, index, outcome = each.results.get(timeout=0.2)
            except queue.Empty:
                fault = _fault(each)
                if fault is None:
                    continue
                each.process.kill()
                each.process.join()
                if fault:
                    report(_dead(folder, seed, each.index, fault))
                following = each.index + workers
                running[place : place + 1] = [start(following)] if following < mutants else []
                break
            each.index, each.since = index, time.monotonic()
            if kind == "end":
                report(outcome)


def _fault(each: _Worker) -> str | None:
    """Why a worker does not answer; empty if it is done, None if it is only busy."""
    if each.process.exitcode is None:
        return f"hangs for {HANG_SECONDS} s" if time.monotonic() - each.since > HANG_SECONDS else None
    return f"the interpreter died: exit code {each.process.exitcode}" if each.process.exitcode else ""


def _dead(folder: Path, seed: int, index: int, fault: str) -> Outcome:
    if index < 0:
        raise SystemExit(f"a worker {fault} before its first mutant")
    mutant, way, base = plan(Workplace(folder), seed, index)
    return Outcome(index, mutant.kind, mutant.what, f"{base.name if base else 'run'}: {way}", "other", fault)


# --- Report ----------------------------------------------------------------------------------------------------------

_COLUMNS = ("tried", "refused", "loaded", "then ran", "then error", "other", "audit", "slowest s")


def table(outcomes: list[Outcome]) -> str:
    """A row per kind of mutation."""
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[outcome.kind].append(outcome)
    lines = [f"{'kind':28}" + "".join(f"{name:>11}" for name in _COLUMNS)]
    for kind, rows in [*sorted(by_kind.items()), ("all", outcomes)]:
        results = Counter(row.result for row in rows)
        loaded = [row for row in rows if row.result == "loaded"]
        cells = [
            len(rows),
            results["refused"],
            results["loaded"],
            sum(row.after == "ran" for row in loaded),
            sum(row.after != "ran" for row in loaded),
            results["other"],
            sum(bool(row.seen) for row in rows),
            f"{max(row.seconds for row in rows):.3f}",
        ]
        lines.append(f"{kind:28}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def findings(outcomes: list[Outcome], shown: int = 12) -> str:
    """The first few of what must not be, one of each sort."""
    sorts: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        for finding in outcome.findings:
            sorts[f"{finding}: {_sort(outcome, finding)}"].append(outcome)
    lines = []
    for sort, rows in list(sorts.items())[:shown]:
        first = rows[0]
        lines += [f"--- {sort} ({len(rows)} times)", f"mutant {first.index}, {first.way}; {first.kind}: {first.what}"]
        lines += [f"{first.seconds:.2f} s; {first.error}; {first.after}", first.details]
        lines += first.seen[:5]
    return "\n".join(lines)


def _sort(outcome: Outcome, finding: str) -> str:
    if finding == "audit":
        return outcome.seen[0].split("(")[0][:60]
    if finding == "other":
        last = outcome.details.strip().splitlines()[-1:] or [outcome.error]
        return re.sub(r"\d+", "N", last[0])[:80]
    return outcome.kind


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--patient", action="store_true", help="do not mind what takes long: the machine may be busy")
    parser.add_argument("--json", type=Path, help="write every outcome there")
    parser.add_argument("--only", type=int, help="this mutant alone, in this process")
    arguments = parser.parse_args()
    started, outcomes = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        folder = Path(name)
        set_up_process()
        Workplace.prepare(folder)
        if arguments.only is not None:
            workplace = Workplace(folder)
            warm_up(workplace, folder)
            outcomes = [one(workplace, arguments.seed, arguments.only, folder)]
            print(json.dumps(asdict(outcomes[0]), indent=1))
        else:
            run_all(folder, arguments.seed, arguments.mutants, arguments.workers, outcomes.append)
    outcomes.sort(key=lambda outcome: outcome.index)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=0))
    print(table(outcomes))
    if arguments.patient:
        for outcome in outcomes:
            outcome.seconds = 0.0
    found = [outcome for outcome in outcomes if outcome.findings]
    print(findings(outcomes))
    print(
        f"{len(outcomes)} mutants of seed {arguments.seed} in {time.monotonic() - started:.0f} s: {len(found)} findings"
    )
    return 1 if found or len(outcomes) < (1 if arguments.only is not None else arguments.mutants) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Who trains what a benchmark has to train: a process claims a training, trains, evaluates, and goes on.

Any number of processes and machines may work in one folder. A training belongs to the process that made its newest
claim, a file that only one process can make, and that shows that it is alive. The claim of a process that has died is
followed by another one, with the next number, and the run goes on from its newest checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import psutil
from msgspec import Meta, Struct
from rich.progress import Progress, TaskID

from marl_sb3.core.acting.by_agent import PolicyBundle
from marl_sb3.core.config.values import counted
from marl_sb3.core.learners.learner import available_cores
from marl_sb3.core.metrics.names import finite_or_none, flatten
from marl_sb3.core.training.callback import TrainingCallback
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.errors import ConfigError, MarlSb3Error, described
from marl_sb3.evaluation.opponents import RANDOM
from marl_sb3.evaluation.played import metrics_of
from marl_sb3.evaluation.playing import EvaluationPlan, play, seats_of
from marl_sb3.extensions.display.tables import progress_bars
from marl_sb3.extensions.remote.processes.worker import ending
from marl_sb3.files.atomic import write_whole
from marl_sb3.files.regular import read_json
from marl_sb3.results.result_log import last_result
from marl_sb3.runs.building import make_envs
from marl_sb3.runs.execution import execute
from marl_sb3.runs.folder import RunFolder, remove_run
from marl_sb3.runs.jobs import Jobs
from marl_sb3.runs.run import SavedRun
from marl_sb3.runs.start import prepare, resume_own
from marl_sb3.systems import end_this_at_once
from marl_sb3.tools.benchmarking.outcome import how_it_ended
from marl_sb3.tools.benchmarking.plan import Benchmark, Training

HEARTBEAT_S = 10.0  # time between the signs of life of a process that trains
STALE_S = 60.0  # without one, it counts as dead
_SETTLE_S = (
    0.2  # after a claim that follows another one: whoever has looked for the lock of its run has let it go by then
)
_MOST_ENVS = 20  # of random agents
_CLAIM = re.compile(r"\.claim-[1-9]")
MOST_CLAIMS = 3  # a training whose processes die so often has failed
POLL_S = 0.5  # time between looks at the trainings
_numbers = itertools.count()  # make the names of all logs of this process unique


# --- Claims ----------------------------------------------------------------------------------------------------------


class _Owner(Struct):
    """Who has made a claim, as its file says, which may come from elsewhere."""

    host: str | None = None
    pid: Annotated[int, Meta(ge=0, lt=2**31)] | None = None


class Claims:
    """Who trains what, as this process sees it."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, float]] = {}  # the last sign of life of each claim, and when we noticed it

    def may_claim(self, training: Training) -> bool:
        """Whether nobody who is alive has claimed it."""
        newest = _newest(training)
        return newest is None or self._is_stale(newest, training.folder)

    def claim(self, training: Training) -> Path | None:
        """Claim a training; None if somebody else has it, it has ended, or its processes have died too often."""
        newest = _newest(training)  # looked up once: a claim that is made from now on is not ours to follow
        if not training.is_open or (newest is not None and not self._is_stale(newest, training.folder)):
            return None
        number = 1 if newest is None else _number(newest) + 1
        if newest is not None and number > MOST_CLAIMS:
            _fail(training, newest, f"its process has died {MOST_CLAIMS} times")
            return None
        claim = training.beside(f"claim-{number}")
        claim.parent.mkdir(parents=True, exist_ok=True)
        try:
            with claim.open("x", encoding="utf-8") as file:
                json.dump({"host": socket.gethostname(), "pid": os.getpid()}, file)
        except FileExistsError:
            return None
        if not training.is_open:  # it has ended since we looked
            _release(training, claim)
            return None
        if number > 1:
            time.sleep(_SETTLE_S)
        return claim

    def _is_stale(self, claim: Path, folder: Path) -> bool:
        try:
            alive_ns, owner = claim.lstat().st_mtime_ns, _Owner()
            with suppress(ConfigError):  # it is being written, or damaged: its age counts
                owner = read_json(claim, _Owner, "claim")
        except FileNotFoundError:  # it was just released, and perhaps there is already another one of this number
            return False
        now_s = time.monotonic()  # the clocks of machines differ
        noticed_ns, since_s = self._seen.get(claim, (-1, now_s))
        if alive_ns != noticed_ns:
            since_s = now_s
        self._seen[claim] = alive_ns, since_s
        is_here = owner.host == socket.gethostname()
        is_dead = is_here and owner.pid is not None and not psutil.pid_exists(owner.pid)
        return (is_dead or now_s - since_s > STALE_S) and _is_free(folder)


def _claims_of(training: Training) -> list[Path]:
    """Return its claims, the newest last; copies that other programs make of one have other names."""
    found = training.folder.parent.glob(f"{training.folder.name}.claim-*")
    return sorted((path for path in found if _CLAIM.fullmatch(path.suffix)), key=_number)


def _newest(training: Training) -> Path | None:
    return next(reversed(_claims_of(training)), None)


def _number(claim: Path) -> int:
    return int(claim.suffix.rpartition("-")[2])


def _release(training: Training, claim: Path) -> None:
    """Remove a claim and earlier ones, the claim itself last. Later claims belong to other processes and stay."""
    for each in _claims_of(training):
        if _number(each) <= _number(claim):
            each.unlink(missing_ok=True)


def _fail(training: Training, claim: Path, why: str) -> None:
    """Note that a training has failed; nobody tries it again before the benchmark is continued."""
    write_whole(training.failure_file, why)
    _release(training, claim)


def _is_free(folder: Path) -> bool:
    """Whether no process of this machine trains a run any more, as one may whose parent was killed."""
    files = RunFolder(folder)
    if not files.config_file.exists():
        return True
    try:
        files.lock()
    except ConfigError:
        return False
    files.unlock()
    return True


@contextmanager
def _alive(training: Training, claim: Path) -> Iterator[None]:
    """Show within the context that the process of a claim is alive; if another claim has followed it, the process ends.

    That happens to a process that was stopped for a while, and must not write to the run of another one.
    """
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT_S):
            with suppress(FileNotFoundError):
                os.utime(claim)
            if _newest(training) not in (claim, None):
                end_this_at_once()

    thread = threading.Thread(target=beat, name="sign of life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


# --- Work ------------------------------------------------------------------------------------------------------------


def work(benchmark: Benchmark, on_end: Callable[[Training], None] = lambda training: None) -> bool:
    """Claim and run trainings until all are done or claimed by others; returns whether one was interrupted.

    A training that fails does not end the others.

    Args:
        on_end: called when a training has ended.
    """
    claims = Claims()
    while True:
        for training in benchmark.open():
            if (claim := claims.claim(training)) is not None:
                break
        else:
            return False
        with _alive(training, claim):
            try:
                interrupted = not _train(training)
            except Exception as error:
                _fail(training, claim, f"{described(error)}\n{''.join(traceback.format_exception(error))}")
                interrupted = False
            except BaseException:
                _release(training, claim)
                raise
        _release(training, claim)
        if interrupted:
            return True
        on_end(training)


def _train(training: Training) -> bool:
    """Train and evaluate; returns False if it was interrupted."""
    file, files = training.beside("processor.json"), RunFolder(training.folder)
    if files.checkpoints.names():
        run = resume_own(files.path, training.config)
    else:
        remove_run(files.path, training.config.env)  # it was ended before its first checkpoint
        file.unlink(missing_ok=True)
        run = prepare(training.config, files.path)
    clock = _ProcessorTime(file, run.checkpoint)
    execute(run, [clock])
    if run.interrupted:
        return False
    result = last_result(run.folder) or {}
    saved, of_env = SavedRun.open(run.folder, training.config.env), training.env
    plan = EvaluationPlan.of_run(saved.config, of_env.episodes)
    with closing(make_envs(saved.config, n_envs=plan.n_envs, seed=plan.seed)) as env:
        policies = saved.policies(of_env.checkpoint, env)
        found = evaluated(policies, env, plan, of_env.against)
    if not of_env.random_file.exists():  # whoever comes first, it is the same
        plan = replace(plan, seed=0, n_envs=min(plan.n_episodes, _MOST_ENVS))
        with closing(make_envs(saved.config, n_envs=plan.n_envs, seed=plan.seed)) as env:
            at_random = evaluated(policies, env, plan, of_env.against, at_random=True)
        write_whole(of_env.random_file, _json(at_random))
    about = {
        "env_steps": run.algorithm.num_timesteps,
        "seconds": result.get("time_total_s"),
        "processor_seconds": clock.total_s,
        "checkpoint": policies.checkpoint,
    }
    write_whole(training.result_file, _json({**about, **found}))
    file.unlink(missing_ok=True)
    return True


def _json(content: Mapping[str, Any]) -> str:
    return json.dumps(finite_or_none(content), allow_nan=False, indent=1)


class _ProcessorTime(TrainingCallback):
    """Adds up the processor time of a training, whatever the number of resumes.

    It is in a file of its own: the run's checkpoints are those of a run that is trained alone.

    Args:
        file: gets the time at each checkpoint.
        checkpoint: the name of that from which the training goes on; None: it begins.
    """

    def __init__(self, file: Path, checkpoint: str | None) -> None:
        super().__init__()
        self._file = file
        self._at = read_json(file, dict[str, float], "list of times") if os.path.lexists(file) else {}
        self.total_s = self._since_s = self._at.get(checkpoint or "", 0.0)
        self._since_s -= time.process_time()
        # Of this object: `has_hook` takes the methods of the package's own classes for no hooks.
        self.on_checkpoint_saved = self._note  # type: ignore[method-assign]

    def _note(self, path: Path) -> None:
        self.total_s = self._since_s + time.process_time()
        self._at[path.name] = self.total_s
        write_whole(self._file, json.dumps(self._at))


# --- Evaluation ------------------------------------------------------------------------------------------------------


def evaluated(
    policies: PolicyBundle,
    env: MultiAgentVecEnv,
    plan: EvaluationPlan,
    against: Sequence[str],
    *,
    at_random: bool = False,
) -> dict[str, Any]:
    """Let policies play as `python -m marl_sb3.evaluate` does.

    Args:
        against: see `BenchmarkEnv`.
        at_random: let random agents play in their places.

    Returns:
        The `metrics` by flat name; `episodes`, lists of what each of them came to, by marl-eval's names, but against
        opponents; and whether the actions were the most likely ones, `deterministic`.
    """
    options: dict[str, Any] = {
        "n_episodes": plan.n_episodes,
        "deterministic": plan.deterministic,
        "seed": plan.seed,
    }
    if not against:
        alone = play(policies, env, acting=() if at_random else None, **options)
        of_agents = {agent: alone.agent_returns(agent) for agent in env.agents}
        means = {agent: mean(each) for agent, each in of_agents.items() if each}
        metrics = flatten(alone.metrics)
        if at_random:  # no policy has a metric of its own
            metrics = {"episode_return_mean": mean(alone.returns()), **flatten({"agent_episode_returns_mean": means})}
        metrics["return_per_agent_mean"] = mean(means.values()) if means else None
        episodes = {"return": alone.returns(), "episode_length": alone.lengths()}
        episodes |= {f"return_{agent}": returns for agent, returns in of_agents.items()}
        return {"deterministic": plan.deterministic, "metrics": metrics, "episodes": episodes}
    metrics = {}
    for who in against:
        games = {}
        for seat in seats_of(env.agents, None):
            everybody = {agent: RANDOM if agent in seat else who for agent in env.agents}
            acting, others = ((), everybody) if at_random else (seat, who)
            games[seat] = play(policies, env, acting=acting, against=others, **options)
        metrics |= flatten({who: metrics_of(games)})
    return {"deterministic": plan.deterministic, "metrics": metrics, "episodes": {}}


# --- All processes of this machine ------------------------------------------------------------------------------------


class WorkersEndError(MarlSb3Error, RuntimeError):
    """The processes that work on a benchmark end at once, again and again."""


def run_benchmark(
    benchmark: Benchmark, processes: int | None, options: Sequence[str], say: Callable[[str], None], *, quiet: bool
) -> None:
    """Train everything in processes of this machine; processes elsewhere may work in the same folder.

    Args:
        processes: None: as many as there are cores.
        options: of `python -m marl_sb3.benchmark FILE`, for each process.
        say: prints a line.
        quiet: show no bars.

    Raises:
        ConfigError: a setting does not fit; nothing is trained then.
        WorkersEndError: see there.
        KeyboardInterrupt: raised again after all trainings of this machine have saved and ended.
    """
    benchmark.begin()
    waiting = benchmark.open()
    at_once = max(1, min(processes or available_cores(), len(waiting)))
    done = len(benchmark.trainings) - len(waiting)
    say(f"{counted(len(benchmark.trainings), 'training')}, {done} done, {at_once} at a time; folder: {benchmark.shown}")
    if not waiting:
        return
    jobs = Jobs(at_once)
    bars = progress_bars()
    bars.disable = bars.disable or quiet
    with bars:
        # Bars would draw over lines that go another way.
        look = _ProgressView(
            benchmark, waiting, bars, say if bars.disable else partial(bars.console.print, soft_wrap=True)
        )
        jobs.run([partial(_keep_working, jobs, benchmark, options)] * at_once, look, POLL_S)
        look()


def _keep_working(jobs: Jobs, benchmark: Benchmark, options: Sequence[str]) -> None:
    """Have a process work while there is something to do, and wait while only others have something to do."""
    claims, logs = Claims(), benchmark.folder / "workers"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / f"{socket.gethostname()}-{os.getpid()}-{next(_numbers)}.log"
    arguments = [benchmark.file, "--folder", str(benchmark.folder), "--worker", *options]
    while not jobs.is_ending and (before := benchmark.open()):
        if not any(map(claims.may_claim, before)):
            time.sleep(POLL_S)
            continue
        code = jobs.run_command("benchmark", arguments, log, "ab")
        has_worked = not code or len(benchmark.open()) < len(before)
        if (words := jobs.note_end(log, None if has_worked else ending(code))) is not None:
            raise WorkersEndError(words)


class _ProgressView:
    """Shows how far the trainings are: a line for each that has ended, and bars on a terminal."""

    def __init__(
        self, benchmark: Benchmark, waiting: Sequence[Training], bars: Progress, say: Callable[[str], None]
    ) -> None:
        self._waiting, self._bars, self._say = list(waiting), bars, say
        number = len(benchmark.trainings)
        self._all = bars.add_task("trainings", total=number, completed=number - len(waiting))
        self._running: dict[Training, TaskID] = {}

    def __call__(self) -> None:
        """Look once."""
        for training in [each for each in self._waiting if not each.is_open]:
            self._waiting.remove(training)
            if training in self._running:
                self._bars.remove_task(self._running.pop(training))
            self._bars.advance(self._all)
            self._say(how_it_ended(training))
        if self._bars.disable:
            return
        for training in self._waiting:
            result = last_result(training.folder)
            steps = (result or {}).get("num_env_steps_sampled_lifetime")
            if isinstance(steps, int):
                if training not in self._running:
                    steps_in_all = training.config.n_timesteps
                    self._running[training] = self._bars.add_task(str(training), total=steps_in_all, unit="env steps")
                self._bars.update(self._running[training], completed=steps)

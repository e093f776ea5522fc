"""Check a search, begin it or go on with it, and run its trials."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path

from marl_sb3.envs.registry import EnvFactory
from marl_sb3.errors import ConfigError
from marl_sb3.runs.folder import TRACEBACK_FILE
from marl_sb3.runs.preview import Preview, preview
from marl_sb3.tuning.run_jobs import run_jobs, study_lock
from marl_sb3.tuning.search import Search, read_search, require_integer
from marl_sb3.tuning.study import TuneStudy
from marl_sb3.tuning.trial import TrialQueue
from marl_sb3.tuning.trial_attributes import ERROR, INTERRUPTED, KILLED, WORKER
from marl_sb3.tuning.workers import SearchError

_log = logging.getLogger(__name__)

_MAX_FIRST_FAILURES = 5  # without any trial that has got anywhere: it is not the settings then

Watcher = Callable[[TuneStudy], None]


def study_folder(env: str, name: str, root: Path = Path("runs")) -> Path:
    """Where a study is kept: `runs/tune/<env>/<name>`."""
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in env)
    return root / "tune" / safe / name


def new_name() -> str:
    """A name for a study that has none: UTC time and 4 hex digits."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


def open_study(
    search: Search, folder: Path, factory: EnvFactory | None = None, where: str = "the space, "
) -> TuneStudy:
    """Check a search, and begin it or go on with it.

    Args:
        search: what is searched.
        folder: the study's.
        factory: makes the env, where the id in the search is only its name.
        where: what parameters are chosen from, for messages.

    Raises:
        ConfigError: a setting, a range, the objective or the budget is wrong, the storage cannot be opened, or the
            folder holds a study of something else; nothing has been run then.
    """
    before = read_search(folder, search.env, search.storage)
    if before is not None:
        other = before.same_as(search)
        if other:
            raise ConfigError(
                f"study {search.name!r} exists with another {', '.join(other)}; accepted: another --study name, or "
                f"what {folder / 'study.yaml'} says",
                key="study",
            )
    notes = _check(search, factory, where)
    folder.mkdir(parents=True, exist_ok=True)
    with study_lock(folder):
        study = TuneStudy(search, folder, factory)
        study.continued = before is not None or bool(study.trials)
        study.begin()
        search.write(folder)
    for note in notes:
        _log.warning("%s", note)
    return study


def _check(search: Search, factory: EnvFactory | None, where: str) -> list[str]:
    """Build the trials at the ends of all ranges, without running them; returns what the user should know of them."""
    space, objective = search.space, search.parsed_objective()
    if search.sampler == "grid":
        space.combinations()
    objective.require_enough(search.evaluations)
    searched = any(parameter.name.rpartition(".")[2] == "batch_size" for parameter in space.parameters)
    uneven: dict[tuple[str, int], set[int]] = {}
    for settings in space.corners():
        config = search.trial_config(settings, 0, where)
        try:
            seen = preview(config, factory)
            objective.require_known(seen.metric_names)
            if searched:
                _require_distinct_minibatches(seen)
        except ConfigError as error:
            shown = ", ".join(f"{name}={value}" for name, value in settings.items())
            raise ConfigError(f"{error} (in a trial with {shown})", key=error.key) from error
        for policy_id, (batch_size, rollout) in seen.minibatches.items():
            if batch_size < rollout and rollout % batch_size:
                uneven.setdefault((policy_id, rollout), set()).add(batch_size)
    return [
        f"policy {policy_id}: the last minibatch of an epoch is smaller where batch_size is "
        f"{', '.join(map(str, sorted(sizes)))}: a rollout has {rollout} agent steps"
        for (policy_id, rollout), sizes in uneven.items()
    ]


def _require_distinct_minibatches(seen: Preview) -> None:
    """Refuse to choose among minibatches that are larger than the rollout: all of them are the same."""
    for policy_id, (batch_size, rollout) in seen.minibatches.items():
        if batch_size > rollout:
            words = (
                f"policy {policy_id!r}: batch_size is {batch_size}, larger than its rollout of {rollout} agent steps"
            )
            raise ConfigError(f"{words}; accepted in a search: 2 to {rollout}", key="batch_size")


def require_trainable_preset(study: TuneStudy) -> None:
    """Refuse settings with which the preset cannot be trained: there would be nothing to compare the winner with.

    Raises:
        ConfigError: with what is wrong.
    """
    try:
        preview(study.search.trial_config({}, seed=0), study.factory)
    except ConfigError as error:
        raise ConfigError(f"the preset: {error}", key=error.key) from error


def run_search(study: TuneStudy, workers: int = 1, watch: Watcher | None = None) -> None:
    """Run trials until there are none left; killed workers are replaced, and their trials tried once again.

    Args:
        study: from `open_study`.
        workers: processes; each gets its share of the cores.
        watch: called twice a second, and at the end.

    Raises:
        ConfigError: another process is running this study, or the workers cannot import the env.
        SearchError: workers cannot be started, or every trial fails.
        KeyboardInterrupt: passed on, when the workers have ended.
    """
    require_integer("workers", workers, 1)

    before = {trial.number for trial in study.trials if trial.state.is_finished()}

    def look() -> None:
        if watch is not None:
            watch(study)
        _require_any_success(study, before)

    run_jobs(study, TrialQueue(study), workers, look)


def _require_any_success(study: TuneStudy, before: Collection[int]) -> None:
    """End a search in which nothing works, after the first trials; those of an earlier search do not count."""
    trials = [trial for trial in study.trials if trial.state.is_finished() and trial.number not in before]
    failed = [trial for trial in trials if trial.user_attrs.get(ERROR, INTERRUPTED) != INTERRUPTED]
    if len(failed) >= _MAX_FIRST_FAILURES and len(failed) == len(trials):
        last = failed[-1]
        killed = last.user_attrs[ERROR] == KILLED
        log = study.folder / "workers" / f"{last.user_attrs.get(WORKER)}.log"
        where = log if killed else study.folder_of(last) / TRACEBACK_FILE
        words = f"all {len(failed)} trials have failed, the last one with {last.user_attrs[ERROR]}"
        raise SearchError(f"{words}; see {where}")

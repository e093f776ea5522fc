"""Population based training: all trials are members of a population, and the worst copy the best on the way.

It is that of Jaderberg et al., "Population Based Training of Neural Networks", 2017 (https://arxiv.org/abs/1711.09846),
by generations: each member is trained up to its next evaluation, and when all of a generation are, the members in the
lowest quantile copy one of the highest, with weights, optimizers and logs, and go on from there with other settings.
Each member's part of a generation is a trial of the queue, so that workers, kills and retries are those of any search.
What is decided follows from the seed of the search and the values of the generation alone, and not from who was done
first: the same seed finds the same with any number of workers, and after any kill.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from marl_sb3.core.vec_env.seeding import Stream, spawned
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.store.checkpoint_folder import checkpoints_of
from marl_sb3.files.atomic import remove_folder, replaced_folder
from marl_sb3.runs.folder import TRACEBACK_FILE, remove_run
from marl_sb3.tools.tuning import trial as key
from marl_sb3.tools.tuning.space import Space
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trial import value_of

# What a copy of a run does not have: locks, and what is of the one run only.
_NOT_COPIED = frozenset({".lock", "policies", "tracking.json", "wandb", TRACEBACK_FILE})


def exploit(member: int, values: Sequence[float | None], quantile: float, rng: np.random.Generator) -> int | None:
    """Choose whom a member copies: by truncation selection, one of the best if it is one of the worst.

    Args:
        values: of all members, more is better; None: the training has failed, which is worse than any value.
        quantile: the share of the members that are the best, and of those that are the worst: at least one.

    Returns:
        The member to copy, which has a better value; None if this one goes on by itself.
    """
    ranked = sorted(range(len(values)), key=lambda each: (values[each] is None, -(values[each] or 0.0), each))
    n = max(1, int(quantile * len(values)))
    own = values[member]
    if own is not None and member not in ranked[-n:]:
        return None
    known = [(each, value) for each in ranked[:n] if (value := values[each]) is not None]
    better = [each for each, value in known if own is None or value > own]
    return int(rng.choice(better)) if better else None


def explore(params: Mapping[str, Any], space: Space, resample: float, rng: np.random.Generator) -> dict[str, Any]:
    """Change all parameters of a member that was copied, within the space; see `Parameter.perturbed`.

    Args:
        params: as Optuna stores them.
        resample: the probability with which a parameter is drawn anew.

    Returns:
        The new parameters, without those that the sampler of the trial has to draw.
    """
    return {
        parameter.name: parameter.perturbed(params[parameter.name], rng)
        for parameter in space.parameters
        if parameter.is_perturbed and rng.random() >= resample
    }


# --- Generations ------------------------------------------------------------------------------------------------------


def require_one_folder(study: TuneStudy) -> None:
    """Refuse a population that a search of another folder trains, too: members copy folders of each other.

    Raises:
        ConfigError: the database has trials of another folder, of this machine or of another one.
    """
    workers = study.queue.workers()
    others = [trial for trial in study.trials if trial.user_attrs.get(key.WORKER) not in {None, *workers}]
    if others and study.search.storage is not None:
        trial = others[0]
        there = trial.user_attrs.get(key.FOLDER, "another folder")
        words = f"trial {trial.number} is trained in {there}, this search is in {study.folder}"
        accepted = "accepted with --sampler pbt, whose members copy run folders: one folder, or another --study name"
        raise ConfigError(f"study {study.search.name!r}: {words}; {accepted}", key="storage")


def enqueue_generation(study: TuneStudy) -> bool:
    """Enqueue the trials of the next generation that are missing; False if the last one is trained, or none can go on.

    It may be killed at any time: what is missing is decided again, as it was.

    Raises:
        ConfigError: see `require_one_folder`.
    """
    require_one_folder(study)  # two searches that start at the same time find each other here
    search, known = study.search, study.queue.latest(key.GENERATION, key.MEMBER)
    for generation in range(search.generations):
        trials = [known.get((generation, member)) for member in range(search.trials)]
        if all(trial is not None and trial.state.is_finished() for trial in trials):
            continue
        before = [known[generation - 1, member] for member in range(search.trials)] if generation else []
        if generation and all(trial.state != TrialState.COMPLETE for trial in before):
            return False
        _free_checkpoints(study, generation - 2)
        for member in (member for member, trial in enumerate(trials) if trial is None):
            _enqueue(study, generation, member, before)
        return True
    _free_checkpoints(study, search.generations - 2)
    return False


def _enqueue(study: TuneStudy, generation: int, member: int, before: Sequence[FrozenTrial]) -> None:
    """Enqueue the trial of a member: of the first generation, or as follows from the trials of the one before."""
    search = study.search
    stored: dict[str, Any] = {key.MEMBER: member, key.GENERATION: generation}
    if generation + 1 < search.generations:
        stored[key.GOES_ON] = True
    if not before:
        preset = search.preset_params()  # the first member begins with it, the sampler draws all others
        study.queue.enqueue(preset if member == 0 and preset is not None else {}, **stored)
        return
    seed = spawned(search.seed, Stream.POPULATION, generation * search.trials + member)
    rng, sign = np.random.default_rng(seed), search.objectives()[0].sign
    values = [None if trial.state != TrialState.COMPLETE else value_of(trial) for trial in before]
    copied = exploit(member, [value and sign * value for value in values], search.pbt_quantile, rng)
    source = before[member if copied is None else copied]
    params: Mapping[str, Any] = source.params
    if copied is not None:
        stored[key.COPIED] = copied
        params = explore(params, study.space, search.pbt_resample, rng)
    study.queue.enqueue(params, **{**stored, key.PARENT: source.number})


def _free_checkpoints(study: TuneStudy, generation: int) -> None:
    """Remove checkpoints and policies of all generations up to this one: nobody copies these any more."""
    for trial in study.trials:
        if trial.user_attrs[key.GENERATION] <= generation:
            for name in ("checkpoints", "policies"):
                if (folder := study.folder_of(trial) / name).is_dir() and not folder.is_symlink():
                    remove_folder(folder)


def copy_run(source: Path, target: Path, env: str) -> None:
    """Copy the folder of a run, with its newest checkpoint only, to go on with it there.

    Links are copied as such, which a resume refuses: the study may be of somebody else.
    """
    newest = set(checkpoints_of(source).names()[-1:])

    def left_out(folder: str, names: list[str]) -> set[str]:
        if Path(folder) == source:
            return set(names) & _NOT_COPIED
        return set(names) - newest if Path(folder) == source / "checkpoints" else set()

    remove_run(target, env)
    with replaced_folder(target) as fresh:  # a part of a run would be no run, which the next attempt cannot remove
        shutil.copytree(source, fresh, symlinks=True, ignore=left_out, dirs_exist_ok=True)


# --- Who copied whom --------------------------------------------------------------------------------------------------


def copies_table(study: TuneStudy) -> tuple[list[str], list[list[Any]]]:
    """The head and the rows of `copies.csv`: a row for each copy that a member has made so far, in their order.

    Its columns: after how many env steps; in which generation which member copied whom; the numbers of the trial that
    went on so, and of the one it went on from; the value that the member had, and that of the one it copied; of each
    parameter the value that was copied, and what it was changed to.
    """
    names = [parameter.name for parameter in study.space.parameters]
    head = ["env_steps", "generation", "member", "copied", "trial", "copied_trial", "value", "copied_value"]
    known, trials, rows = study.queue.latest(key.GENERATION, key.MEMBER), study.trials, []
    for (generation, member), trial in sorted(known.items()):
        if key.COPIED not in trial.user_attrs or trial.state == TrialState.WAITING:
            continue
        left, source = known[generation - 1, member], trials[trial.user_attrs[key.PARENT]]
        places = [generation, member, source.user_attrs[key.MEMBER], trial.number, source.number]
        values = [key.rounded(value_of(each)) for each in (left, source)]
        old, new = (study.space.settings(each.params) for each in (source, trial))
        pairs = [key.value_text(of_one[name]) if name in of_one else None for name in names for of_one in (old, new)]
        rows.append([source.user_attrs.get(key.ENV_STEPS), *places, *values, *pairs])
    return [*head, *(f"{part}{name}" for name in names for part in ("copied_", ""))], rows


def copies_in_words(study: TuneStudy) -> tuple[list[str], list[list[Any]]]:
    """The head and the rows of a table for people: `copies_table`, with what has changed in one column."""
    rows = []
    for env_steps, _, member, copied, _, _, value, copied_value, *pairs in copies_table(study)[1]:
        changes = zip(study.space.parameters, pairs[::2], pairs[1::2], strict=True)
        words = [f"{parameter.name} {old} to {new}" for parameter, old, new in changes if old not in (None, new)]
        rows.append([env_steps, member, copied, value, copied_value, ", ".join(words)])
    return ["env steps", "member", "copied", "its value before", "value of the other", "changed then"], rows

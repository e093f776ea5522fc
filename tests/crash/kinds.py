"""Commands that train, for tests that end them: what they are, what goes on with them, and what they have to leave."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState
from run_records import differences

from marl_sb3.tools.tuning.storage import open_storage
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, INDEX, KILLED

ITERATIONS, N_ENVS, N_STEPS = 8, 4, 16
REFUSAL = "error: {folder} holds no valid checkpoint: the run ended before its first; train --hparams {config} starts"


@dataclass(frozen=True)
class Kind:
    """A command and what it trains.

    Attributes:
        line: the command and its arguments, but for the folder of the runs.
        runs: folders of its runs, each of which `train --resume` goes on with; none: the command itself does.
        files: of the working folder, by name.
        mean_s: between two kills of any process, in seconds.
        most: kills in a row; the third death of a training of a benchmark is its end.
        may_hang: whether processes may be stopped, too, because they are replaced when they hang.
    """

    line: str
    runs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict, hash=False)
    mean_s: float = 0.5
    most: int = 8
    may_hang: bool = False

    def command(self, folder: Path) -> list[str]:
        """The name of the command and its arguments, but for the folder of the runs; its files are written."""
        for name, text in self.files.items():
            (folder / name).write_text(text)
        return [each.replace("FOLDER", str(folder)) for each in shlex.split(self.line)]

    def begin(self, folder: Path, runs: str) -> list[str]:
        """The first command, which trains into a folder below the working one."""
        option = {"train": "--run-dir", "benchmark": "--folder", "tune": "--study"}
        command = self.command(folder)
        return [*command, option[command[0]], runs if command[0] == "tune" else str(folder / runs)]

    def differences(self, reference: Path, runs: Path) -> list[str]:
        """In what the runs of two folders differ."""
        if self.line.startswith("tune"):
            return list(_different_trials(reference, runs))
        if not any(reference.glob("**/config.yaml")):
            return [f"{reference} has no run"]
        folders = [path.parent.relative_to(reference) for path in sorted(reference.glob("**/config.yaml"))]
        return [f"{each}: {found}" for each in folders for found in differences(reference / each, runs / each)]


def _different_trials(reference: Path, study: Path) -> Iterator[str]:
    """Trials that were trained to their end have the same parameters, seed and value; but for those killed twice."""
    expected, found = (
        {
            trial.user_attrs[INDEX]: (trial.params, trial.user_attrs["seed"], trial.value)
            for trial in each
            if _ended(trial)
        }
        for each in map(_trials, (reference, study))
    )
    given_up = {
        trial.user_attrs[INDEX]
        for trial in _trials(study)
        if trial.user_attrs.get(ERROR) == KILLED and trial.user_attrs.get(DEATHS) == 1
    }
    if not expected:
        yield "no trial has ended"
    for index in expected.keys() - given_up:
        if found.get(index) != expected[index]:
            yield f"trial {index} is {found.get(index)}, was {expected[index]}"
    yield from (f"trial {each.number} is {each.state.name}" for each in _trials(study) if not each.state.is_finished())


def _trials(study: Path) -> list[Any]:
    storage = open_storage(study.parent / "runs" / "tune" / "arena" / study.name, None)
    return optuna.load_study(study_name=study.name, storage=storage).trials


def _ended(trial: Any) -> bool:
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


# --- The kinds -------------------------------------------------------------------------------------------------------

_TINY = "--set policy_kwargs.net_arch=[8,8] --set n_epochs=2 --set batch_size=32 --quiet"
_SMALL = f"--n-envs {N_ENVS} --set n_steps={N_STEPS} --set env.max_timesteps=20 {_TINY}"


def _train(arguments: str, iterations: int = ITERATIONS, **more: Any) -> Kind:
    length = f"--timesteps {iterations * N_ENVS * N_STEPS} --seed 3 --set checkpoint_keep=2"
    return Kind(f"train {arguments} {length}", **{"runs": ("",), **more})


def _workers(arguments: str) -> Kind:
    """Hung workers are noticed soon, and replaced as often as it takes."""
    never = "--set worker_timeout_s=0.4 --set max_worker_restarts=1000"
    few = f"--set n_steps=20 --set batch_size=40 --set n_epochs=1 {never} --checkpoint-every 5 --quiet"
    return _train(f"{arguments} {few} --set policy_kwargs.net_arch=[8]", 40, mean_s=0.3, may_hang=True)


_MAPPED = """\
arena:
  policies:
    explorer: {agents: [agent1], learning_rate: 0.01}
    hunter: {agents: [agent2]}
  policies_to_train: [explorer]
"""
_POLICIES = {
    "shared": "--policies shared",
    "per_agent": "--policies per_agent",
    "mapped": "--hparams FOLDER/mapped.yml",
}
CHECKPOINT_EVERY = {"batched": 1, "sync": 2}
# One run in one process, which can be killed at single calls.
PLAIN: Mapping[str, Kind] = {
    f"{policies}-{vectorizer}": _train(
        f"arena {_SMALL} --checkpoint-every {every} --vectorizer {vectorizer} {_POLICIES[policies]}",
        files={"mapped.yml": _MAPPED} if policies == "mapped" else {},
    )
    for policies, (vectorizer, every) in product(_POLICIES, CHECKPOINT_EVERY.items())
}
_SETTINGS = f"n_envs: {N_ENVS}, n_steps: {N_STEPS}, batch_size: 32, checkpoint_every: 1, policy_kwargs.net_arch: [8]"
_BENCHMARK = f"{{algos: [ppo], envs: [arena], seeds: [0, 1], settings: {{n_timesteps: 2560, {_SETTINGS}}}}}"
_SEARCH = "tune arena --sampler random --evaluations 2 --evaluation-episodes 2 --set n_envs=4 --workers 2 --no-confirm"
# Several processes, of which any can be killed.
SEVERAL: Mapping[str, Kind] = {
    "workers-sync": _workers("arena --n-envs 4 --vectorizer sync --workers 2"),
    "workers-batched": _workers("arena --n-envs 6 --vectorizer batched --workers 3 --policies per_agent"),
    "workers-turns": _workers("classic/rps-v2 --n-envs 4 --workers 2"),
    "workers-gymnasium": _workers("CartPole-v1 --n-envs 3 --workers 3"),
    "runners": _train(f"arena {_SMALL} --checkpoint-every 1 --runners 2", 40),
    "seeds": _train(f"arena {_SMALL} --checkpoint-every 1 --seeds 2", 40, runs=("seed-3", "seed-4")),
    "benchmark": Kind("benchmark FOLDER/b.yml --quiet", files={"b.yml": _BENCHMARK}, most=2),
    "search": Kind(f"{_SEARCH} --pruner none --trials 4 --timesteps 1000"),
    "pruned": Kind(f"{_SEARCH} --pruner asha --trials 4 --timesteps 1000"),
    "population": Kind(f"{_SEARCH.replace('random', 'pbt')} --trials 4 --timesteps 1000"),
}
KINDS: Mapping[str, Kind] = {**PLAIN, **SEVERAL}

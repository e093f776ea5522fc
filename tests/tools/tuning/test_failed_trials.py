"""A trial that fails, or is pruned, is a result of its search; what the user can mend is not."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from searches import SMALL, in_this_process, states, stored, work_on
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.errors import ConfigError
from marl_sb3.tools.tuning import workers
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.finals import outcome_words
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, INTERRUPTED


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RuntimeError("bad \udcff thing"), r"RuntimeError: bad \udcff thing"),
        (SystemExit("enough"), "SystemExit: enough"),
    ],
)
def test_any_error_is_that_of_its_trial_alone(
    error: BaseException, text: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = workers.prepare, []

    def fails_once(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise error
        return original(*arguments)

    monkeypatch.setattr(workers, "prepare", fails_once)
    study = in_this_process()
    assert states(study) == ["COMPLETE", "FAIL", "COMPLETE"]
    failed = study.trials[1]
    assert failed.user_attrs[ERROR] == text
    assert type(error).__name__ in (study.folder_of(failed) / "traceback.txt").read_text()


@pytest.mark.parametrize(
    "why", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=["disk full", "Ctrl-C"]
)
def test_what_the_user_can_change_is_no_trials_fault(
    why: BaseException, in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise why

    study = prepare_study(**{**SMALL, "trials": 1, "pruner": "none"}, study="s")
    with monkeypatch.context() as patch:
        patch.setattr(workers, "prepare", fails)
        for _ in range(2):
            with pytest.raises(type(why)):
                work_on(study)
    work_on(study)
    assert states(study) == ["FAIL", "FAIL", "COMPLETE"]
    assert stored(study, ERROR) == [INTERRUPTED, INTERRUPTED, None]
    assert study.trials[2].user_attrs[DEATHS] == 0


class Prunes(optuna.pruners.BasePruner):
    """Gives one trial up, whatever its values are."""

    def __init__(self, number: int) -> None:
        self.number = number

    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.number == self.number)


@pytest.mark.parametrize(
    ("evaluations", "number", "expected"),
    [(2, 1, ["COMPLETE", "PRUNED", "COMPLETE"]), (1, 0, ["COMPLETE"] * 3)],
    ids=["hopeless", "trained to its end"],
)
def test_a_trial_that_is_hopeless_before_its_end_is_given_up(
    evaluations: int, number: int, expected: list[str], in_tmp: Path
) -> None:
    study = prepare_study(**{**SMALL, "evaluations": evaluations})
    study.optuna.pruner = Prunes(number)
    work_on(study)
    assert states(study) == expected
    assert len(study.trials[number].intermediate_values) == 1


def test_evaluations_of_a_training_that_was_rolled_back_do_not_count(in_tmp: Path) -> None:
    class Faulty(ArenaEnv):
        steps = 0

        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            type(self).steps += 1
            if type(self).steps == 4 * 50 + 2:  # in the third of four rollouts
                rewards = dict.fromkeys(rewards, float("nan"))
            return observations, rewards, *rest

    settings = {"n_envs": 4, "n_steps": 20, "n_epochs": 1, "on_nan": "rollback", "checkpoint_every": 1}
    options = {"settings": settings, "timesteps": 320, "evaluations": 4, "evaluation_episodes": 1, "trials": 1}
    study = prepare_study(
        Faulty, **{**SMALL, **options, "space": {"batch_size": {"choices": [20]}}, "over": "mean_of_last_4"}
    )
    Faulty.steps = 0
    work_on(study)
    (trial,) = study.trials
    rows = [json.loads(line) for line in (study.folder_of(trial) / "result.jsonl").read_text().splitlines()]
    values = [row["evaluation"]["env_runners"]["episode_return_mean"] for row in rows]
    assert trial.user_attrs.get(ERROR) is None
    assert (trial.state.name, len(values), len(trial.intermediate_values)) == ("COMPLETE", 4, 4)
    assert trial.value == pytest.approx(np.mean(values))


# --- Objectives that tell nothing -------------------------------------------------------------------------------------


class Hunt(ScriptedEnv):
    """Of what the last action of `a` brings it, `b` loses a share."""

    share, length = 0.5, 4

    def __init__(self, **options: Any) -> None:
        super().__init__(dict.fromkeys("ab", (self.length, "terminated")), **options)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        observations, _, *rest = super().step(actions)
        won = float(actions["a"]) if self.step_count == self.length else 0.0
        return observations, {"a": won, "b": -self.share * won}, *rest


class Long(Hunt):
    share, length = 1.0, 100


def searched(env: Any, **options: Any) -> Any:
    settings = {"n_envs": 4, "n_steps": 20, "n_epochs": 1, "policy_kwargs.net_arch": [8], "batch_size": 40}
    space = {"learning_rate": {"choices": [1e-3, 1e-2]}}
    own = {"settings": settings, "space": space, "timesteps": 640, "study": "s", "confirm_seeds": 0, "trials": 2}
    return marl_sb3.tune(env, **{**SMALL, **own, **options})


def test_a_sum_that_means_nothing_ends_the_search_at_once(in_tmp: Path) -> None:
    words = "that of a is higher where the others' are lower, in 100 % of "
    with pytest.raises(ConfigError, match=f"--objective sum does not tell how good policies are: .*{words}"):
        searched(Hunt)
    lines = Path("runs/tune").glob("*/s/trials/00000/result.jsonl")
    assert 1 <= len(next(lines).read_text().splitlines()) < 8


def test_too_few_episodes_are_said_and_equal_trials_have_no_finalists(
    in_tmp: Path, caplog: pytest.LogCaptureFixture
) -> None:
    study = searched(Long, confirm_seeds=2)
    why = "all 2 trials have the same value in all evaluations, 0.00, so that none was trained again"
    assert outcome_words(study) == f"The preset is kept: {why}."
    words = "too few episodes with different returns have ended to tell whether the agents' returns oppose each other"
    assert caplog.messages[-1] == f"{words}: it may be that --objective sum does not tell how good policies are"
    assert not (study.folder / "confirm").exists()
    assert (study.folder / "best.yml").is_file()

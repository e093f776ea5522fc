"""Searches that train elsewhere: what comes back, and what happens if it does not. Ray itself is not needed."""

from __future__ import annotations

import asyncio
import io
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from searches import SMALL, claimed, finished, pretend, states, stored, work_on

from marl_sb3.errors import ConfigError
from marl_sb3.runs.jobs import Jobs
from marl_sb3.tools.tuning.api import prepare_study
from marl_sb3.tools.tuning.ray import PruningServer, packed, unpack
from marl_sb3.tools.tuning.study import TuneStudy
from marl_sb3.tools.tuning.trial import DEATHS, ERROR, KILLED
from marl_sb3.tools.tuning.trials import run_trial, run_trials
from marl_sb3.tools.tuning.workers import TrainedRun, TrainerLostError, work


@pytest.fixture
def study(in_tmp: Path) -> TuneStudy:
    return prepare_study(**{**SMALL, "trials": 1}, study="s")


def test_a_trial_whose_process_has_ended_is_tried_once_again(study: TuneStudy) -> None:
    def lost(*_: Any) -> Any:
        raise TrainerLostError("its node is gone")

    for _ in range(2):
        run_trial(study, claimed(study, "worker"), lost)
    assert states(study) == ["FAIL"] * 2
    assert stored(study, ERROR) == [KILLED] * 2
    assert study.trials[1].user_attrs[DEATHS] == 1
    assert study.queue.claim("worker") is None


def test_a_result_of_another_machine_says_whether_the_returns_oppose_each_other(study: TuneStudy) -> None:
    run_trial(study, claimed(study, "worker"), lambda training: TrainedRun(opposed="their sum is 0"))
    assert (states(study), stored(study, ERROR)) == (["FAIL"], ["ConfigError: their sum is 0"])
    with pytest.raises(ConfigError, match="--objective sum does not tell how good policies are: their sum is 0"):
        run_trials(study)


def test_threads_draw_their_own_parameters(in_tmp: Path) -> None:
    """A thread draws while another one has begun its trial: each has the sampler of its own trial."""
    one, other = (prepare_study(**{**SMALL, "trials": 4, "sampler": "random"}, study=name) for name in "st")
    work_on(one, pretend)
    both_train = threading.Barrier(2)

    def train(*arguments: Any) -> Any:
        both_train.wait()
        return pretend(*arguments)

    jobs = [partial(work, other, other.queue, run_trial, f"worker {number}", train) for number in range(2)]
    Jobs(2).run(jobs, lambda: None, 0.01)
    assert sorted(finished(one), key=str) == sorted(finished(other), key=str)


def test_a_pruning_server_that_was_started_again_forgets_questions() -> None:
    async def asked() -> list[Any]:
        server = PruningServer()
        await server.answer("lost", goes_on=False)
        asking = asyncio.ensure_future(server.ask("job", {"iteration": 1}))
        await asyncio.sleep(0)
        questions = [await server.question("job"), await server.question("job")]
        await server.answer("job", goes_on=True)
        return [*questions, await asking]

    assert asyncio.run(asked()) == [{"iteration": 1}, None, True]


def test_a_run_folder_comes_back_whole(tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "checkpoints" / "ckpt-000001").mkdir(parents=True)
    (there / "config.yaml").write_text("env: arena")
    (there / "checkpoints" / "ckpt-000001" / "state.json").write_bytes(bytes(range(256)))
    unpack(packed(there), tmp_path / "trials" / "00000")
    here = tmp_path / "trials" / "00000"
    names = [sorted(str(path.relative_to(each)) for path in each.rglob("*")) for each in (there, here)]
    assert names[0] == names[1]
    assert (here / "checkpoints" / "ckpt-000001" / "state.json").read_bytes() == bytes(range(256))


def test_nothing_is_written_outside_the_run_folder(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("../../outside", "")
        archive.writestr(f"{tmp_path}/outside", "")
    unpack(buffer.getvalue(), tmp_path / "trials" / "00000")
    assert [path.name for path in tmp_path.iterdir()] == ["trials"]
    assert [path.name for path in (tmp_path / "trials").iterdir()] == ["00000"]

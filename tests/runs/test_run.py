"""A run in the hands of Python: its history, its policies, how well they play."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from small_runs import shown
from small_trainings import without_clock
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3 import MultiAgentCallback
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.metrics.statistics import table
from marl_sb3.errors import ConfigError
from marl_sb3.results.result_log import read_results

RETURN = "env_runners/episode_return_mean"
SMALL = {"n_steps": 10, "batch_size": 20, "n_epochs": 1, "env.max_timesteps": 7}


class Frame:
    """Stands for a `pandas.DataFrame`."""

    def __init__(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        self.rows, self.columns = rows, columns


@pytest.fixture
def pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("pandas")
    module.DataFrame = Frame  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", module)


@pytest.fixture
def no_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)


@pytest.mark.usefixtures("no_pandas")
def test_rows_have_all_names_in_the_order_of_their_first_appearance() -> None:
    assert table([{"b": 1}, {"a": 2, "b": 3}]) == [{"b": 1, "a": None}, {"b": 3, "a": 2}]
    assert table([{"b": 1, "a": 2}], ["a", "b"]) == [{"a": 2, "b": 1}]
    assert table([]) == []


@pytest.mark.usefixtures("pandas")
def test_with_pandas_a_table_is_a_data_frame() -> None:
    frame = table([{"b": 1}, {"a": 2}])
    assert isinstance(frame, Frame)
    assert (frame.columns, frame.rows) == (["b", "a"], [{"b": 1, "a": None}, {"b": None, "a": 2}])


@pytest.mark.usefixtures("no_pandas")
def test_history_has_a_row_per_iteration_and_a_column_per_metric(in_tmp: Path) -> None:
    class Records(MultiAgentCallback):
        def on_iteration_end(self, result: dict[str, Any]) -> bool:
            self.logger.record("mine/iteration", self.algorithm.iteration)
            return True

    options: dict[str, Any] = {"settings": SMALL, "run_dir": "run", "callback": Records()}
    run = marl_sb3.train("arena", timesteps=60, n_envs=2, seed=1, **options)
    assert [row["iteration"] for row in run.history] == [1, 2, 3]
    assert run.results[-1] == run.result
    assert run.result is not None
    assert run.result["mine"] == {"iteration": 3}
    assert run.history[-1] == flatten(run.results[-1])
    with (in_tmp / "run" / "result.jsonl").open("a") as file:
        file.write('{"iteration": 4, "num_')  # of a process that is writing, or was killed
    assert len(run.history) == 3


def test_a_damaged_history_is_named(in_tmp: Path) -> None:
    (in_tmp / "config.yaml").write_text("arena: {}\n")
    for text, why in (("{\n", "line 1 is not valid JSON"), ("{}\n3\n", "line 2 is not a mapping")):
        (in_tmp / "result.jsonl").write_text(text)
        with pytest.raises(ConfigError, match=f"result.jsonl, {why}"):
            read_results(Path())
    (in_tmp / "result.jsonl").unlink()
    assert read_results(Path()) == []


def test_a_run_that_is_loaded_has_what_the_trained_one_has(run_folder: Path) -> None:
    run = marl_sb3.load_run(run_folder)
    assert isinstance(run, marl_sb3.Run)
    assert run.config.seed == 1
    assert run.result is not None
    assert run.result["iteration"] == 4
    assert run.checkpoint is not None
    assert run.best_checkpoint == run_folder / "checkpoints" / run.checkpoint
    assert run.policies is run.algorithm.policies
    assert run.policy_files == {"shared": run_folder / "policies" / "shared.zip"}
    assert marl_sb3.load_run(run_folder.parent, "latest").checkpoint == "ckpt-000004"
    run.close()


def test_its_evaluation_gives_the_figures_of_the_command(
    run_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = marl_sb3.load_run(run_folder)
    assert without_clock(run.evaluate()) == without_clock(shown(capsys, run_folder)["env_runners"])
    expected = shown(capsys, run_folder, "--episodes", 2, "--deterministic")["env_runners"]
    assert without_clock(run.evaluate(2, deterministic=True)) == without_clock(expected)
    assert without_clock(run.evaluate(3, seed=5)) != without_clock(run.evaluate(3, seed=6))


def test_a_run_that_was_trained_evaluates_its_latest_policies(in_tmp: Path) -> None:
    run = marl_sb3.train(ScriptedEnv, timesteps=12, n_envs=2, seed=1, settings={"n_steps": 6, "batch_size": 6})
    assert run.evaluate(4)["num_episodes"] == 4
    again = marl_sb3.load_run(run.folder, "latest", env=ScriptedEnv)
    assert without_clock(again.evaluate(4)) == without_clock(run.evaluate(4))
    with pytest.raises(ConfigError, match="n_episodes is 0; accepted"):
        run.evaluate(0)
    with pytest.raises(ConfigError, match="seed is -1; accepted: an integer of at least 0, or null"):
        run.evaluate(1, seed=-1)


def test_its_text_is_one_line_that_says_what_it_is(run_folder: Path) -> None:
    run = marl_sb3.load_run(run_folder)
    value = run.results[-1]["env_runners"]["episode_return_mean"]
    words = f"arena, ppo, policies shared, 240 of 240 env steps, return {value:,.2f}, {run.checkpoint}"
    assert repr(run) == f"<Run {run_folder}: {words}>"


def test_a_device_that_does_not_exist_is_no_fault_of_the_run_folder(run_folder: Path) -> None:
    with pytest.raises(marl_sb3.ConfigError, match="load_run: device is 'gpu'; accepted: auto"):
        marl_sb3.load_run(run_folder, device="gpu")

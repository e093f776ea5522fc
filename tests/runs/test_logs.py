"""The files of a run: JSON lines of the results as they are, and a CSV whose columns stay in place."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.logger import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from marl_sb3 import ConfigError
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.training.results import ResultLogger
from marl_sb3.results.result_log import read_results
from marl_sb3.runs.logs import CsvFormat, EventsFormat, JsonLinesFormat, truncate_logs


def write(folder: Path, *rows: dict[str, Any]) -> None:
    """Record rows as callbacks do, through SB3's logger."""
    logger = ResultLogger(None, [JsonLinesFormat(folder), CsvFormat(folder)])
    for step, row in enumerate(rows):
        for name, value in row.items():
            logger.record(name, value)
        logger.write_result({}, step)
    logger.close()


def json_lines(tmp_path: Path, *rows: dict[str, Any]) -> list[dict[str, Any]]:
    write(tmp_path, *rows)
    lines = (tmp_path / "result.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def csv_table(tmp_path: Path, *rows: dict[str, Any]) -> list[list[str]]:
    write(tmp_path, *rows)
    with (tmp_path / "progress.csv").open(newline="") as file:
        return list(csv.reader(file))


# JSON lines


def test_names_are_nested_at_their_slashes(tmp_path: Path) -> None:
    row = {"iteration": 1, "a/b/c": 2, "a/d": 3, "e/f": 4}
    assert json_lines(tmp_path, row) == [{"iteration": 1, "a": {"b": {"c": 2}, "d": 3}, "e": {"f": 4}}]


def test_each_iteration_is_a_line_with_what_it_recorded(tmp_path: Path) -> None:
    assert json_lines(tmp_path, {"a": 1}, {"b": 2}) == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((nothing, None) for nothing in (float("nan"), float("inf"), -np.inf, np.float32("nan"), None)),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.array([1.5]), 1.5),
        (np.arange(3), [0, 1, 2]),
    ],
)
def test_numpys_numbers_are_written_as_such_and_what_is_not_finite_as_null(
    tmp_path: Path, value: Any, expected: Any
) -> None:
    assert json_lines(tmp_path, {"x/y": value}) == [{"x": {"y": expected}}]


@pytest.mark.parametrize("names", [("a", "a/b"), ("a/b", "a")])
def test_a_name_that_is_also_a_folder_loses_neither_value(tmp_path: Path, names: tuple[str, str]) -> None:
    values = {"a": 1, "a/b": 2}
    assert json_lines(tmp_path, {name: values[name] for name in names}) == [{"a": 1, "a/": {"b": 2}}]


def test_a_line_is_in_the_file_before_the_next_iteration(tmp_path: Path) -> None:
    output = JsonLinesFormat(tmp_path)
    output.write_result({"a": 1}, {}, 0)
    assert (tmp_path / "result.jsonl").read_text() == '{"a": 1}\n'
    output.close()


def test_excluded_names_stay_out(tmp_path: Path) -> None:
    logger = ResultLogger(None, [JsonLinesFormat(tmp_path), CsvFormat(tmp_path)])
    logger.record("kept", 1)
    logger.record("histogram", np.arange(3), exclude=("json", "csv", "stdout"))
    logger.record("of json", 2, exclude="csv")
    logger.record("of csv", 3, exclude="json")
    logger.write_result({}, 0)
    logger.close()
    assert json.loads((tmp_path / "result.jsonl").read_text()) == {"kept": 1, "of json": 2}
    assert (tmp_path / "progress.csv").read_text() == "kept,of csv\n1,3\n"


RESULT = {"iteration": 1, "steps": {"red/1": 2, "red": {"2": 3}}, "score": None}


def test_a_result_is_written_as_it_is_and_what_was_recorded_beside_it(tmp_path: Path) -> None:
    logger = ResultLogger(None, [JsonLinesFormat(tmp_path), CsvFormat(tmp_path)])
    for name, value in {"mine": 4, "steps/own": 5, "steps/red": 6, "score": 7.0}.items():
        logger.record(name, value)
    logger.write_result({**RESULT, "picture": Figure(None, close=False)}, step=2)
    logger.write_result(RESULT, step=4)
    logger.close()
    written = {**RESULT, "steps": {**RESULT["steps"], "own": 5, "red/": 6}, "mine": 4}
    assert read_results(tmp_path) == [written, RESULT]
    head, first, second = csv.reader((tmp_path / "progress.csv").read_text().splitlines())
    assert head == [*flatten(RESULT), "mine", "steps/own", "steps/red"]
    assert (first, second) == (["1", "2", "3", "", "4", "5", "6"], ["1", "2", "3", "", "", "", ""])
    before = (tmp_path / "progress.csv").read_bytes()
    with (tmp_path / "progress.csv").open("a") as file:
        file.write("9,9\ncut o")
    truncate_logs(tmp_path, iteration=1, env_steps=2)
    assert (tmp_path / "progress.csv").read_bytes() == before


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("result.jsonl", b'{"iteration": 1}\n{"iter\n', "result.jsonl, line 2 is not valid JSON"),
        ("result.jsonl", b"[1]\n", "result.jsonl, line 1 is not a mapping"),
        ("result.jsonl", b"\xff\n", "result.jsonl, line 1 is not valid JSON"),
        ("result.jsonl", b'{"iteration": "x"}\n', "result.jsonl is damaged: an iteration is 'x'"),
        ("events.out.tfevents.1", b"\x02" + bytes(11) + b"\xff\xff" + bytes(4), "tfevents.1 is damaged: "),
    ],
)
def test_a_damaged_log_is_named_and_stays_as_it_is(file: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        truncate_logs(tmp_path, iteration=5, env_steps=5)
    assert (tmp_path / file).read_bytes() == content


# TensorBoard


def scalars(tmp_path: Path, result: dict[str, Any], most: int, always: tuple[str, ...] = ()) -> dict[str, float]:
    output = EventsFormat(tmp_path, most, always)
    output.write_result(result, {}, 7)
    output.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    return {tag: events.Scalars(tag)[0].value for tag in events.Tags()["scalars"]}


def test_metrics_of_many_agents_and_policies_become_quantiles(tmp_path: Path) -> None:
    returns = {f"a{number}": float(number) for number in range(101)}
    result = {
        "env_runners": {"agent_episode_returns_mean": {**returns, "late": None}, "agent_steps": {"a": 1, "b": 2}},
        "learners": {f"p{number}": {"policy_loss": number / 10, "curr_lr": 1.0} for number in range(11)},
    }
    found = scalars(tmp_path, result, 10, ("env_runners/agent_episode_returns_mean/a7",))
    of_all = {f"quantile_{percent}": percent for percent in (0, 10, 50, 90, 100)}
    assert found == {
        **{f"env_runners/agent_episode_returns_mean/{name}": value for name, value in of_all.items()},
        **{f"learners/policy_loss/{name}": pytest.approx(value / 100) for name, value in of_all.items()},
        **{f"learners/curr_lr/{name}": 1.0 for name in of_all},
        "env_runners/agent_steps/a": 1.0,
        "env_runners/agent_steps/b": 2.0,
        "env_runners/agent_episode_returns_mean/a7": 7.0,  # which decides which checkpoint is the best
    }


def test_as_many_agents_as_the_setting_allows_keep_their_metrics(tmp_path: Path) -> None:
    result = {"env_runners": {"agent_steps": {"a": 1, "b": 2}}}
    assert set(scalars(tmp_path, result, 2)) == {"env_runners/agent_steps/a", "env_runners/agent_steps/b"}


def test_a_log_without_later_entries_is_not_written_anew(tmp_path: Path) -> None:
    scalars(tmp_path, {"x": 1}, 1)
    (events,) = tmp_path.glob("events*")
    before = events.stat()
    truncate_logs(tmp_path, iteration=7, env_steps=7)
    assert (events.stat().st_ino, events.stat().st_size) == (before.st_ino, before.st_size)
    truncate_logs(tmp_path, iteration=6, env_steps=6)
    assert events.stat().st_size < before.st_size


# CSV


def test_columns_stay_where_they_first_appeared(tmp_path: Path) -> None:
    table = csv_table(tmp_path, {"b": 1, "a": 2}, {"a": 3, "b": 4}, {"a": 5})
    assert table == [["b", "a"], ["1", "2"], ["4", "3"], ["", "5"]]


def test_a_new_name_becomes_a_column_of_all_rows(tmp_path: Path) -> None:
    table = csv_table(tmp_path, {"a": 1}, {"a": 2, "x": 3, "y": 4}, {"a": 5, "z": 6})
    assert table == [["a", "x", "y", "z"], ["1", "", "", ""], ["2", "3", "4", ""], ["5", "", "", "6"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["progress.csv", "result.jsonl"]


@pytest.mark.parametrize("text", ["1,5", 'she said "no"', "two\nlines", "a\u2028b\x0bc", " x ", ""])
def test_any_text_survives_and_survives_a_new_column(tmp_path: Path, text: str) -> None:
    assert csv_table(tmp_path, {text or "empty": text}, {"new": 1}) == [
        [text or "empty", "new"],
        [text, ""],
        ["", "1"],
    ]


def test_numbers_are_written_in_full_and_the_rest_is_empty(tmp_path: Path) -> None:
    row = {
        "third": 1 / 3,
        "nan": float("nan"),
        "none": None,
        "big": 10**20,
        "np": np.float64(0.1),
        "list": np.arange(2),
    }
    table = csv_table(tmp_path, row)
    assert table[1] == ["0.3333333333333333", "", "", "100000000000000000000", "0.1", "[0, 1]"]


def test_a_file_that_is_there_is_continued_in_its_columns(tmp_path: Path) -> None:
    csv_table(tmp_path, {"a": 1, "b": 2})
    table = csv_table(tmp_path, {"b": 3, "a": 4}, {"c": 5})
    assert table == [["a", "b", "c"], ["1", "2", ""], ["4", "3", ""], ["", "", "5"]]

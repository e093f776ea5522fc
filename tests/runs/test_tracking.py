"""Trackers get what the run logs, under the same names, once; what they do changes nothing of the training."""

from __future__ import annotations

import builtins
import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_runs import assert_same_runs, broken, rows, start
from stable_baselines3.common.logger import Image
from tracker_files import Steps, mlflow_runs, trackio_runs, wandb_runs

import marl_sb3
from marl_sb3 import ConfigError, MultiAgentCallback
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.training.results import ResultLogger
from marl_sb3.runs import tracking
from marl_sb3.runs.trackers import TRACKERS, Entry, Start, mlflow_name
from marl_sb3.runs.tracking import TrackerOutput
from marl_sb3.train import main as train

# --- Any tracker -----------------------------------------------------------------------------------------------------


class Remembering:
    """A tracker whose runs are in this process."""

    name: ClassVar[str] = "trackio"
    package: ClassVar[str] = "json"  # is installed
    runs: ClassVar[dict[str, dict[str, Any]]] = {}
    place = "here"

    def open(self, start: Start, known: Mapping[str, str]) -> int | None:
        self.remembered = dict(known) or {"id": f"run{len(self.runs)}"}
        new: dict[str, Any] = {"steps": [], "saved": [], "exits": []}
        self.run = self.runs.setdefault(self.remembered["id"], new)
        self.run["settings"] = start.settings
        return None

    def log(self, entry: Entry) -> None:
        self.run["steps"].append((entry.step, entry))

    def save(self, checkpoint: Path) -> None:
        assert (checkpoint / "manifest.json").exists()
        self.run["saved"].append(checkpoint.name)

    def close(self, *, failed: bool) -> None:
        self.run["exits"].append(failed)


@pytest.fixture
def tracker(monkeypatch: pytest.MonkeyPatch) -> type[Remembering]:
    """The one that `trackio` means in this test."""
    monkeypatch.setattr(Remembering, "runs", {})
    monkeypatch.setitem(TRACKERS, "trackio", Remembering)
    return Remembering


def steps_of(run: Mapping[str, Any]) -> list[int]:
    return [step for step, _ in run["steps"]]


def whole(results: list[dict[str, Any]]) -> Steps:
    """What a tracker gets of the iterations of a run, without what the clock decides."""
    kept = [{name: value for name, value in each.items() if _is_number(value)} for each in results]
    return [(each["num_env_steps_sampled_lifetime"], each) for each in kept]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def test_it_gets_all_metrics_settings_and_checkpoints(in_tmp: Path, tracker: type[Remembering]) -> None:
    start("run", track="trackio")
    (run,) = tracker.runs.values()
    expected = whole(rows("run"))
    assert len(expected) == 8
    assert [(step, {name: entry.numbers[name] for name in expected[0][1]}) for step, entry in run["steps"]] == expected
    sampled = [name for _, entry in run["steps"] for name in entry.samples]
    assert set(sampled) == {"env_runners/episode_rewards/agent1", "env_runners/episode_rewards/agent2"}
    assert run["saved"] == ["ckpt-000002", "ckpt-000004", "ckpt-000006", "ckpt-000008"]
    assert (run["settings"]["env"], run["settings"]["hyperparameters"]["n_epochs"]) == ("arena", 1)
    assert run["exits"] == [False]
    assert json.loads(Path("run/tracking.json").read_text()) == {"trackio": {"id": "run0", "step": 320}}


def test_a_run_is_the_same_with_and_without_it(in_tmp: Path, tracker: type[Remembering]) -> None:
    start("without")
    start("with", track=["trackio", "tensorboard"])
    assert_same_runs("without", "with")


def test_a_resumed_run_goes_on_in_the_same_run_without_steps_twice(in_tmp: Path, tracker: type[Remembering]) -> None:
    broken("run", track="trackio")  # crashes after the log of step 200, the last checkpoint is that of step 160
    marl_sb3.train(resume="run", progress_bar=False)
    (run,) = tracker.runs.values()
    assert steps_of(run) == [40, 80, 120, 160, 200, 240, 280, 320]
    assert run["exits"] == [True, False]


def test_what_it_has_missed_is_sent_from_the_log_of_the_run(in_tmp: Path, tracker: type[Remembering]) -> None:
    broken("run")
    assert train(["--resume", "run", "--quiet", "--track", "trackio"]) == 0
    (run,) = tracker.runs.values()
    expected = whole(rows("run"))
    assert [(step, {name: entry.numbers[name] for name in expected[0][1]}) for step, entry in run["steps"]] == expected


def test_a_complete_run_that_is_extended_stays_in_its_run(in_tmp: Path, tracker: type[Remembering]) -> None:
    start("run", 2, track="trackio")
    marl_sb3.train(resume="run", timesteps=80, progress_bar=False)
    (run,) = tracker.runs.values()
    assert steps_of(run) == [40, 80, 120, 160]


def fails_to_open(self: Remembering, start: Start, known: Mapping[str, str]) -> int | None:
    torch.manual_seed(5)  # a tracker may draw random numbers
    raise ConnectionError("cannot reach\nthe server")


def fails_to_log(self: Remembering, entry: Entry) -> None:
    if entry.step == 80:
        raise OSError(28, "No space left on device")


def fails(self: Remembering, *_: Any, **__: Any) -> None:
    raise SystemExit("at work")


@pytest.mark.parametrize(
    ("method", "function", "words"),
    [
        ("open", fails_to_open, "ConnectionError: cannot reach the server"),
        ("log", fails_to_log, "No space left on device"),
        ("save", fails, "SystemExit: at work"),
        ("close", fails, "SystemExit: at work"),
    ],
)
def test_a_run_goes_on_without_a_tracker_that_fails(
    method: str,
    function: Any,
    words: str,
    in_tmp: Path,
    tracker: type[Remembering],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracker, method, function)
    start("without", 4)
    start("with", 4, track="trackio")
    assert_same_runs("without", "with")
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert words in warning
    assert "the training goes on without it" in warning


def test_one_that_never_answers_does_not_hold_a_run_up(
    in_tmp: Path, tracker: type[Remembering], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    release = threading.Event()
    monkeypatch.setattr(tracker, "open", lambda *_: release.wait() and None)
    monkeypatch.setattr(tracking, "OPEN_S", 0.1)
    monkeypatch.setattr(tracking, "UNREACHED_S", 0.1)
    started_s = time.monotonic()
    start("run", 2, track="trackio")
    assert time.monotonic() - started_s < 10
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "no answer" in warning
    release.set()


# --- Bad input, and what is not there --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_one_that_is_not_installed_is_named_with_its_extra(
    name: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda package: None)
    assert train(["arena", "--track", name]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{name} needs {name}, which is not installed; install it with: pip install" in error
    assert f"'.[{name}]'" in error
    assert not any(in_tmp.iterdir())


def test_a_folder_of_its_name_is_no_package(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TRACKERS["wandb"], "package", "wandb_folder")
    monkeypatch.syspath_prepend(in_tmp)
    (in_tmp / "wandb_folder").mkdir()
    with pytest.raises(ConfigError, match=r"track: track wandb needs wandb_folder, which is not installed"):
        start("run", settings={"track": ["wandb"]})


@pytest.mark.parametrize("value", ["neptune", ["wandb", "x"], 3])
def test_the_setting_names_what_it_accepts(value: Any, in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match="accepted: wandb, mlflow, trackio or tensorboard, a list of these, or null"):
        start("run", track=value)


@pytest.mark.parametrize("text", ["[]", "{", '{"trackio": {"id": 3, "step": 1}}', '{"trackio": {"id": "x"}}', "\xff"])
def test_a_damaged_memory_is_refused(text: str, in_tmp: Path, tracker: type[Remembering]) -> None:
    start("run", 2, track="trackio")
    Path("run/tracking.json").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=r"tracking\.json is damaged"):
        marl_sb3.train(resume="run", timesteps=40)


def test_without_trackers_none_is_imported(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refusing(name: str, *arguments: Any, **more: Any) -> Any:
        assert name.partition(".")[0] not in TRACKERS
        return real(name, *arguments, **more)

    threads = threading.active_count()
    monkeypatch.setattr(builtins, "__import__", refusing)
    start("run", 2, track="tensorboard", callback=[Counted(threads)])
    assert not Path("run/tracking.json").exists()


class Counted(MultiAgentCallback):
    """No thread is there for trackers."""

    def __init__(self, threads: int) -> None:
        super().__init__()
        self.threads = threads

    def on_iteration_logged(self, result: Any) -> None:
        assert not any("tracker" in thread.name for thread in threading.enumerate())


# --- Entries ---------------------------------------------------------------------------------------------------------


def test_each_kind_of_value_has_its_place_in_an_entry(tmp_path: Path) -> None:
    entries: list[Entry] = []
    output = TrackerOutput("wandb", entries.append, tmp_path, 50)
    logger = ResultLogger(None, [output])
    (tmp_path / "media").mkdir()
    film = tmp_path / "media" / "film-000003.gif"
    film.write_bytes(b"GIF89a")
    picture = np.zeros((2, 3, 3), dtype=np.uint8)
    logger.record("dumped", 1)
    logger.dump(5)
    logger.record("sample", np.arange(4.0))
    logger.record("one", np.array([2.5]))
    logger.record("nan", float("nan"))
    logger.record("flag", True)
    logger.record("text", "words")
    logger.record("hidden", 1.0, exclude="wandb")
    logger.record("env_runners/media/film", Image(picture, "HWC"))
    logger.record("picture", Image(picture, "HWC"))
    logger.write_result({"iteration": 3, "env_runners": {"x": 0.5, "y": None}}, 10)
    (entry,) = entries
    assert entry.step == 10
    assert entry.numbers == {"dumped": 1, "one": 2.5, "flag": True, "iteration": 3, "env_runners/x": 0.5}
    assert {name: list(sample) for name, sample in entry.samples.items()} == {"sample": [0, 1, 2, 3]}
    assert entry.films == {"env_runners/media/film": film}
    assert [*entry.pictures] == ["picture"]


def test_of_many_agents_the_quantiles_are_sent(tmp_path: Path) -> None:
    entries: list[Entry] = []
    result = {"agent_steps": {f"a{index}": index for index in range(5)}}
    TrackerOutput("wandb", entries.append, tmp_path, 4).write_result(result, {}, 1)
    assert entries[0].numbers == {f"agent_steps/quantile_{100 * index // 4}": index for index in (0, 2, 4)} | {
        "agent_steps/quantile_10": 0.4,
        "agent_steps/quantile_90": 3.6,
    }


@pytest.mark.parametrize(
    ("name", "accepted"),
    [("a/b_1.c-d e:f", "a/b_1.c-d e:f"), ("agent#1/é", "agent_1/é"), ("a//b", "a/_/b"), ("../x", "_/x"), ("a/", "a/_")],
)
def test_names_that_mlflow_refuses_are_changed(name: str, accepted: str) -> None:
    assert mlflow_name(name) == accepted


# --- The trackers themselves, where they are installed ---------------------------------------------------------------


class Filming(MultiAgentCallback):
    """A film of each episode."""

    def on_episode_end(self, episode: Any) -> None:
        episode.media["film"] = np.zeros((2, 16, 16, 3), dtype=np.uint8)


@pytest.fixture
def offline(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All trackers write below the folder of the test."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(in_tmp / "staged"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{in_tmp}/mlflow.db")
    for variable in ("WANDB_PROJECT", "WANDB_DIR", "MLFLOW_EXPERIMENT_NAME", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(variable, raising=False)
    return in_tmp


def read_back(name: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Id -> what the tracker has of each of its runs."""
    if name == "wandb":
        return wandb_runs(folder / "run")
    if name == "mlflow":
        return mlflow_runs(folder / "mlflow.db")
    from trackio.utils import TRACKIO_DIR  # read from the environment when it was imported

    return trackio_runs(TRACKIO_DIR / "marl_sb3_tests.db")


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
def test_the_tracker_has_what_the_run_logged_after_a_crash_and_a_resume(
    name: str, offline: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip(name)
    broken("run", track=name, track_project="marl_sb3_tests")
    marl_sb3.train(resume="run", callback=[Filming()], progress_bar=False)
    assert [
        record.message for record in caplog.records if record.levelno == logging.WARNING and name in record.message
    ] == []
    memory = json.loads(Path("run/tracking.json").read_text())[name]
    run = read_back(name, offline)[memory["name" if name == "trackio" else "id"]]
    expected = whole([flatten(json.loads(line)) for line in Path("run/result.jsonl").read_text().splitlines()])
    assert steps_of(run) == [step for step, _ in expected] == [40, 80, 120, 160, 200, 240, 280, 320]
    for (step, found), (_, values) in zip(run["steps"], expected, strict=True):
        clocks = {each for each in values if each.startswith(("time", "throughput", "perf", "env_runners/episode_dur"))}
        assert {each: found[each] for each in values.keys() - clocks} == {
            each: pytest.approx(values[each], rel=1e-12) for each in values.keys() - clocks
        }, step
    assert {"ckpt-000002", "ckpt-000004", "ckpt-000006", "ckpt-000008"} <= {*run["saved"]}
    assert json.loads(json.dumps(run["settings"]))["n_envs"] in (2, "2")
    if name == "mlflow":
        assert run["media"] == [f"film-{iteration:06}.gif" for iteration in (6, 7, 8)]  # 5 was sent before the crash
        assert run["files"] == ["config.yaml"]
        assert run["exits"] == ["FINISHED"]
    else:
        assert [any(each.startswith("env_runners/media/film") for each in found) for _, found in run["steps"]] == [
            step > 200 for step in steps_of(run)
        ]


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("name", "words"), [("wandb", "no API key"), ("trackio", "could not create a remote client")])
def test_one_that_cannot_be_used_costs_a_warning(
    name: str, words: str, offline: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip(name)
    monkeypatch.setenv("HOME", str(offline))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("TRACKIO_SERVER_URL", "http://127.0.0.1:9?write_token=x")
    if name == "wandb":
        import wandb

        monkeypatch.setenv("WANDB_MODE", "online")
        wandb.teardown()  # it has read the environment
    start("without", 2)
    start("with", 2, track=name)
    assert_same_runs("without", "with")
    (warning,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert words in warning

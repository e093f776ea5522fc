"""`python -m marl_sb3.evaluate`, as a user types it."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from films import frames_of_gif, frames_of_mp4
from forked import ForkServer
from PIL import Image
from refusals import refusal
from small_runs import shown
from small_trainings import without_clock
from waiting import read_all

import marl_sb3
from marl_sb3 import load_run
from marl_sb3.core.metrics.names import flatten
from marl_sb3.core.vec_env.separate_envs import SyncVecEnv
from marl_sb3.evaluate import main
from marl_sb3.evaluation.playing import evaluate_policies, evaluation_seed
from marl_sb3.runs import run as run_module
from marl_sb3.runs.run import SavedRun

MODULE = ["-m", "marl_sb3.evaluate"]


def test_json_is_one_object_with_the_names_of_a_result(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, run_folder, "--episodes", 7)
    line = json.loads((run_folder / "result.jsonl").read_text().splitlines()[-1])
    assert set(flatten(found["env_runners"])) == set(flatten(line["env_runners"]))
    assert found["run"] == str(run_folder)
    assert re.fullmatch(r"ckpt-00000\d", found["checkpoint"])
    assert (found["n_episodes"], found["n_envs"], found["deterministic"]) == (7, 3, False)
    assert found["seed"] == evaluation_seed(1)
    assert found["env_runners"]["num_episodes"] == 7
    assert "video" not in found


def test_figures_are_those_of_the_library(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(capsys, run_folder, "--episodes", 6, "--seed", 5, "--checkpoint", "latest", "--n-envs", 2)
    run = load_run(run_folder, "latest")
    env = marl_sb3.make_vec_env("arena", n_envs=2, max_timesteps=9)
    expected = evaluate_policies(run.algorithm, env, n_episodes=6, seed=5)  # as the run says, like the command
    assert without_clock(found["env_runners"]) == without_clock(expected)
    assert found["checkpoint"] == run.checkpoint
    for agent, figures in found["agent_episode_returns"].items():
        assert figures["mean"] == pytest.approx(expected["agent_episode_returns_mean"][agent])
        assert figures["ci95"][0] <= figures["mean"] <= figures["ci95"][1]
        assert figures["n"] == 6
    assert found["episode_return"]["max"] == pytest.approx(expected["episode_return_max"])


@pytest.mark.parametrize(
    ("option", "deterministic", "words"),
    [
        ([], False, "sampled actions (the run has evaluation.deterministic: false)"),  # the arena's preset
        (["--deterministic"], True, "the most likely actions (--deterministic)"),
        (["--stochastic"], False, "sampled actions (--stochastic)"),
        (
            ["--stochastic-policies=shared"],
            {"shared": False},
            "sampled actions of shared, the most likely ones of all others (--stochastic-policies)",
        ),
    ],
)
def test_actions_are_those_of_the_run_unless_an_option_says_otherwise(
    run_folder: Path, capsys: pytest.CaptureFixture[str], option: list[str], deterministic: Any, words: str
) -> None:
    found = shown(capsys, run_folder, "--episodes", 6, *option)
    assert (found["deterministic"], found["actions"]) == (deterministic, words)
    run = load_run(run_folder)
    env = marl_sb3.make_vec_env("arena", n_envs=3, max_timesteps=9)
    expected = evaluate_policies(run.algorithm, env, 6, deterministic, seed=found["seed"])
    assert without_clock(found["env_runners"]) == without_clock(expected)
    assert main([str(run_folder), "--episodes", "1", *option]) == 0
    assert f"1 episode in 1 env, {words}, seed" in capsys.readouterr().out


def test_a_checkpoint_can_be_chosen(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [shown(capsys, run_folder, "--checkpoint", which)["checkpoint"] for which in ("latest", "3")]
    assert found == ["ckpt-000004", "ckpt-000003"]


def test_a_folder_of_runs_is_the_newest_which_is_said(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run_folder.parent), "--episodes", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == f"newest run in {run_folder.parent}: {run_folder}\n"
    assert json.loads(captured.out)["run"] == str(run_folder)


def test_an_env_is_its_newest_run(run_folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run_folder, in_tmp / "runs" / "sisl_pursuit-v5" / "one")
    assert main(["sisl/pursuit-v5", "--episodes", "1", "--json"]) == 0
    assert capsys.readouterr().err == "newest run in sisl/pursuit-v5: runs/sisl_pursuit-v5/one\n"


def test_an_unknown_setting_of_the_run_is_named_with_its_file(run_folder: Path, in_tmp: Path, capsys: Any) -> None:
    shutil.copytree(run_folder, "later")
    with Path("later/config.yaml").open("a") as file:
        file.write("  of_a_later_version: 3\n")
    assert main(["later"]) == 2
    words = "later/config.yaml, arena.of_a_later_version: unknown hyperparameter 'of_a_later_version' of PPO"
    assert words in capsys.readouterr().err


def test_table_has_the_returns_and_the_rest(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    figures = shown(capsys, run_folder, "--episodes", 4, "--stochastic")
    assert main([str(run_folder), "--episodes", "4", "--stochastic"]) == 0
    captured = capsys.readouterr()
    first, why, header, *rows = captured.out.splitlines()
    assert why == figures["checkpoint_why"]
    assert why.startswith(f"{figures['checkpoint']} is the best by env_runners/episode_return_mean (")
    checkpoint, seed = figures["checkpoint"], evaluation_seed(1)
    assert first == f"{run_folder}, {checkpoint}: 4 episodes in 3 envs, sampled actions (--stochastic), seed {seed}"
    assert re.split(r"\s{2,}", header) == ["per episode", "mean", "SD", "min", "max", "95 % CI of the mean"]
    names = ["return of agent1", "return of agent2", "sum of returns", "episode length"]
    assert [re.split(r"\s{2,}", row)[0] for row in rows] == [*names, "new_fields_discovered", "num_collisions"]
    for row, name in ((rows[0], "agent1"), (rows[1], "agent2")):
        of_agent = figures["agent_episode_returns"][name]
        numbers = [f"{of_agent[key]:,.2f}" for key in ("mean", "sd", "min", "max")]
        interval = " to ".join(f"{bound:,.2f}" for bound in of_agent["ci95"])
        assert re.split(r"\s{2,}", row.strip())[1:] == [*numbers, interval]
    assert captured.err == ""
    assert "\x1b" not in captured.out


@pytest.mark.parametrize(
    ("width", "header"),
    [(64, "per episode mean SD min max"), (40, "per episode mean SD"), (16, "per epis… mean")],
)
def test_a_narrow_table_leaves_figures_out_and_cuts_none(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, header: str
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert main([str(run_folder), "--episodes", "2"]) == 0
    _, _, shown_header, *rows = capsys.readouterr().out.splitlines()
    assert shown_header.split() == header.split()
    assert len(rows) == 6  # none is broken into two
    figures = [row.split()[-1] for row in rows]
    assert all(re.fullmatch(r"-?[0-9]+\.[0-9]{2}", figure) for figure in figures), rows


def test_one_episode_has_no_interval(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run_folder), "--episodes", "1"]) == 0
    row = capsys.readouterr().out.splitlines()[3]
    assert re.split(r"\s{2,}", row.strip())[2] == re.split(r"\s{2,}", row.strip())[-1] == "-"


# Videos


@pytest.mark.parametrize(("name", "episodes"), [("film.gif", 1), ("a/b.mp4", 2)])
def test_film_has_whole_episodes(
    run_folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], name: str, episodes: int
) -> None:
    options = ["--video-episodes", episodes] if episodes > 1 else []
    frames = episodes * 10  # those of 9 steps, and the one before the first
    found = shown(capsys, run_folder, "--episodes", 5, "--video", name, *options)
    assert found["video"] == {"file": name, "episodes": episodes, "frames": frames}
    if name.endswith("gif"):
        assert sum(frames_of_gif(Path(name))[1]) == frames * 100  # the arena's 10 frames per second
        with Image.open(name) as image:
            assert image.size == (400, 446)  # and a caption below
    else:
        assert len(frames_of_mp4(Path(name))[0]) == frames
    assert [path.name for path in Path(name).parent.iterdir()] == [Path(name).name]


def test_filmed_episodes_are_among_those_that_count(run_folder: Path, in_tmp: Path, capsys: Any) -> None:
    plain = shown(capsys, run_folder, "--episodes", 4, "--stochastic")
    filmed = shown(capsys, run_folder, "--episodes", 4, "--stochastic", "--video", "film.gif")
    filmed.pop("video")
    assert without_clock(plain) == without_clock(filmed)
    assert main([str(run_folder), "--episodes", "4", "--video", "film.gif"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "video: film.gif, an episode of env 0, 10 frames"


# Runs of other envs


@pytest.fixture(scope="module")
def own_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "own"
    settings = {"n_steps": 6, "batch_size": 6}
    marl_sb3.train("toy_envs:ScriptedEnv", timesteps=12, n_envs=2, seed=1, settings=settings, run_dir=folder)
    return folder


def test_there_are_few_enough_envs_for_env_0_to_play_what_is_filmed(
    own_run: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--env", "toy_envs:ScriptedEnv", "--episodes", 5, "--video", "film.gif", "--video-episodes"]
    assert [shown(capsys, own_run, *options, n)["n_envs"] for n in (1, 2, 3, 5)] == [2, 2, 1, 1]


def test_an_env_of_ones_own_has_to_be_named(own_run: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(own_run)]) == 2
    assert "toy_envs:ScriptedEnv" in capsys.readouterr().err
    found = shown(capsys, own_run, "--env", "toy_envs:ScriptedEnv", "--video", "film.gif")
    assert found["episode_return"] == {"n": 20, "mean": 9.0, "sd": 0.0, "min": 9.0, "max": 9.0, "ci95": [9.0, 9.0]}
    assert frames_of_gif(Path("film.gif"))[1] == [200] * 4  # 5 frames per second


def test_what_an_env_prints_stays_out_of_the_json(
    run_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from marl_sb3.envs.arena.compiled import BatchedArena

    def reset(self: BatchedArena, *arguments: Any) -> None:
        print("hello from the env")
        original(self, *arguments)

    original = BatchedArena.reset
    monkeypatch.setattr(BatchedArena, "reset", reset)
    assert shown(capsys, run_folder, "--episodes", 2)["n_episodes"] == 2


def test_only_the_envs_of_the_evaluation_are_made_and_they_are_closed(
    own_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[int] = []
    monkeypatch.setattr(marl_sb3.MultiAgentAlgorithm, "__init__", lambda *_, **__: pytest.fail("a training was built"))
    monkeypatch.setattr(SyncVecEnv, "close", lambda self: closed.append(self.num_envs))
    shown(capsys, own_run, "--env", "toy_envs:ScriptedEnv", "--episodes", 3, "--n-envs", 1)
    assert closed == [1]


# What is refused

WRONG = [
    ("--episodes 0", "--episodes is 0; accepted: an integer of at least 1"),
    ("--episodes ten", "argument --episodes: received 'ten'; accepted: an integer, such as 100000"),
    ("--n-envs -1", "--n-envs is -1; accepted"),
    ("--stochastic --deterministic", "--stochastic and --deterministic are given; accepted: one of them"),
    ("--stochastic-policies agent1", "evaluation.deterministic has policy 'agent1'; accepted: shared"),
    ("--stochastic-policies a --stochastic", "--stochastic and --stochastic-policies are given; accepted: one of them"),
    ("--seed -1", "--seed is -1; accepted: an integer of at least 0"),
    ("--video film.webm", "the file's name ends in '.webm'; accepted: gif, mp4"),
    ("--video /dev/null/film.gif", "video: cannot write to /dev/null/film.gif: Not a directory (/dev/null)"),
    (f"--video {'x' * 300}.gif", "File name too long"),
    ("--video-episodes 2", "--video-episodes needs --video FILE"),
    ("--video film.gif --video-episodes 0", "--video-episodes is 0; accepted"),
    ("--video film.gif --video-episodes 21", "--video-episodes is 21; accepted: 1 to --episodes, 20"),
    (
        "--video film.gif --video-episodes 3 --n-envs 8",
        "in 8 envs env 0 plays 2 of the 20 episodes; accepted: --n-envs up to 6",
    ),
    ("--video film.gif --n-envs 21", "in 21 envs env 0 plays 0 of the 20 episodes; accepted: --n-envs up to 20"),
    ("--checkpoint 99", "99"),
    ("--checkpoint bset", "bset"),
    ("--epsiodes 3", "unrecognized arguments: --epsiodes 3"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_command_line_is_refused_in_words(
    run_folder: Path, in_tmp: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert message in refusal(main, [str(run_folder), *line.split()], capsys)
    assert list(in_tmp.iterdir()) == []


def test_what_is_no_run_folder_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "empty").mkdir()
    for folder in ("nowhere", "empty"):
        assert main([folder]) == 2
        assert f"{folder} is not a run folder" in capsys.readouterr().err


def test_an_env_that_cannot_be_filmed_is_refused(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "blind_env.py").write_text(
        "from toy_envs import ScriptedEnv\n"
        "class Env(ScriptedEnv):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
    )
    settings = {"n_steps": 6, "batch_size": 6}
    marl_sb3.train("blind_env:Env", timesteps=12, n_envs=2, seed=1, settings=settings, run_dir="run")
    assert main(["run", "--env", "blind_env:Env", "--video", "film.gif"]) == 2
    assert "a video needs an env that takes render_mode='rgb_array'" in capsys.readouterr().err
    assert not Path("film.gif").exists()


# The process


def test_a_terminal_sees_how_it_goes_and_the_output_stays_clean(
    run_folder: Path, in_tmp: Path, server: ForkServer
) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    options = [str(run_folder), "--episodes", "6", "--json", "--video", "film.gif"]
    process = server.run([*MODULE, *options], "out", os.ttyname(theirs), environment=environment)
    os.close(theirs)
    progress = read_all(ours)
    assert process.wait() == 0
    assert json.loads(Path("out").read_text())["n_episodes"] == 6
    assert "episodes" in progress
    assert "video frames" in progress
    assert "10 of 10" in progress


def test_config_of_the_run_is_read_only(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")}
    shown(capsys, run_folder, "--episodes", 2)
    assert {path: path.stat().st_mtime_ns for path in run_folder.rglob("*")} == before
    assert yaml.safe_load((run_folder / "config.yaml").read_text())["arena"]["seed"] == 1


def test_a_checkpoint_that_a_training_removes_meanwhile_is_looked_for_again(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(run_folder, tmp_path / "run"))
    original, read = run_module.read_bundle, list[str]()

    def removed_first(found: Any, *arguments: Any) -> Any:
        read.append(found.name)
        if len(read) == 1:
            shutil.rmtree(folder / "checkpoints" / found.name)
        return original(found, *arguments)

    monkeypatch.setattr(run_module, "read_bundle", removed_first)
    assert SavedRun.open(folder).policies("latest").checkpoint == read[1] < read[0]

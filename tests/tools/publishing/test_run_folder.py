"""A run as others get it: it acts as the run, its card says what it reaches, and the Hub's client reads the card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import ModelCard
from refusals import refusal
from signing_keys import keys_in
from stand_in_hub import served
from toy_envs import ScriptedEnv

import marl_sb3
from marl_sb3.export import main
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.publishing.folder import write_run_folder

# huggingface_hub 2.4 sends large files without Xet in a way that its httpx2 calls old.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


def names_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_a_run_goes_to_the_hub_and_comes_back(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out, options = tmp_path / "out", ["--hub", "me/arena", "--private", "--message", "first", "--episodes", "3"]
    with served(tmp_path / "home", monkeypatch) as hub:
        assert main([str(run_folder), *options, "--out", str(out), "--checkpoint", "3", "--reference", "best=90"]) == 0
        repo = hub.repos["me/arena"]
        assert (repo.private, repo.messages) == (True, ["initial commit", "first"])
        address = f"hf:me/arena@{repo.branches['main']}"
        assert capsys.readouterr().out.splitlines() == [f"{out}: ckpt-000003, its settings, and a model card", address]
        theirs, ours = marl_sb3.load_policies(address), marl_sb3.load_policies(run_folder, "3")
        observations = {"agent1": np.array([3, 50]), "agent2": np.array([7, 8])}
        assert theirs.checkpoint == ours.checkpoint == "ckpt-000003"
        assert theirs.value(observations) == ours.value(observations)
        loaded = marl_sb3.load_run(address)
        assert [result["iteration"] for result in loaded.results] == [1, 2, 3]  # as far as the checkpoint
        loaded.close()
    card = ModelCard.load(out / "README.md")
    assert card.data.library_name == "marl_sb3"
    assert {"reinforcement-learning", "multi-agent", "ppo", "arena"} <= {*card.data.tags}
    returns = {each.metric_name: each for each in card.data.eval_results}
    assert [*returns] == ["sum of returns", "return of agent1", "return of agent2"]
    played = marl_sb3.load_run(run_folder, "3")
    again = played.evaluate(3)
    played.close()
    assert returns["sum of returns"].metric_value == pytest.approx(again["episode_return_mean"], abs=1e-3)
    assert returns["sum of returns"].metric_args["ci95_low"] < again["episode_return_mean"]
    assert re.search(r"\| sum of returns \|( [^|]+ \|){3} -?[\d.]+ \| -?[\d.]+ to ", card.text)  # of random agents
    assert "| reference, sum of returns: best | 90.00 |" in card.text
    assert "python -m marl_sb3.evaluate hf:me/arena --episodes 3 --seed" in card.text
    assert "3 envs, sampled actions, seed" in card.text
    assert "deterministic=False)" in card.text
    assert 'src="https://huggingface.co/me/arena/resolve/main/replay.mp4"' in card.text
    assert "Policies of arena, max_timesteps = 9, trained with" in card.text
    assert f"| marl_sb3 | {marl_sb3.__version__} |" in card.text


def test_a_dry_run_writes_the_folder_and_asks_nobody(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    options = ["--hub", "me/arena", "--revision", "v2", "--dry-run", "--episodes", "0"]
    assert main([str(run_folder), *options, "--out", str(tmp_path / "out")]) == 0
    files = {"config.yaml", "result.jsonl", "README.md"}
    inside = names_in(tmp_path / "out")
    assert {name for name in inside if "/" not in name} == files
    assert {name.split("/")[1] for name in inside - files} == {"ckpt-000002"}
    card = ModelCard.load(tmp_path / "out" / "README.md")  # what the training has logged
    assert "python -m marl_sb3.watch hf:me/arena@v2\n" in card.text
    assert "hf download me/arena config.yaml --local-dir . --revision v2\n" in card.text
    (logged,) = card.data.eval_results
    expected = marl_sb3.load_run(run_folder).results[1]["env_runners"]["episode_return_mean"]
    assert (logged.metric_value, logged.metric_args) == (pytest.approx(expected, abs=1e-3), None)


def test_a_signed_run_comes_back_from_the_hub_verified(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, out = keys_in(tmp_path), tmp_path / "out"
    options = ["--hub", "me/arena", "--episodes", "0", "--out", str(out), "--sign", str(keys.private)]
    with served(tmp_path / "home", monkeypatch) as hub:
        assert main([str(run_folder), *options]) == 0
        assert marl_sb3.load_policies("hf:me/arena", verify=keys.public).policies
        files = hub.repos["me/arena"].commits[hub.repos["me/arena"].branches["main"]]
        hub.repos["me/arena"].commit("main", {**files, "README.md": files["README.md"] + b"\nIt wins always.\n"})
        with pytest.raises(marl_sb3.CheckpointError, match=r"is not what was signed: .*Hash mismatch for 'README.md'"):
            marl_sb3.load_run("hf:me/arena", verify=keys.public)


class Hunt(ScriptedEnv):
    """What `a` is paid for its first action, `b` loses; it draws nothing."""

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        observations, _, *rest = super().step(actions)
        return observations, {"a": float(actions["a"]), "b": -float(actions["a"])}, *rest

    def render(self) -> Any:
        raise NotImplementedError("nothing to see")


def test_a_game_is_played_against_random_agents_on_each_side(in_tmp: Path) -> None:
    marl_sb3.register_env("hunt", Hunt)
    settings = {"learning_starts": 5, "n_steps": 3, "checkpoints.every": 2, "policy_kwargs.net_arch": [4]}
    marl_sb3.train("hunt", algo="dqn", timesteps=720, n_envs=20, seed=3, settings=settings, run_dir="run")
    assert list(Path("run").rglob("replay-000.safetensors"))
    write_run_folder(SavedRun.open("run"), None, Path("out"), episodes=4)
    assert not {name for name in names_in(Path("out")) if "replay" in name}  # no buffer, and no film
    card = ModelCard.load("out/README.md")
    rates = {each.metric_name: each.metric_value for each in card.data.eval_results if each.metric_type == "win_rate"}
    assert {*rates} == {"a: won", "b: won"}
    assert "Against random agents, each side 4 episodes" in card.text
    assert "python -m marl_sb3.evaluate FOLDER --episodes 4" in card.text
    assert "--against random" in card.text
    assert marl_sb3.load_policies("out").policies


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--hub", "arena"], "--hub is 'arena'; accepted: OWNER/NAME"),
        (["--private"], "--private is for the Hub; accepted: with --hub OWNER/NAME"),
        (["--hub", "me/arena", "--format", "onnx"], "--format is onnx; accepted with --hub: run"),
        (["--episodes", "3"], "--episodes is of --format run; accepted: with it"),
        (["--format", "run", "--reference", "best=high"], "--reference best is 'high'; accepted: a number"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: list[str], words: str, run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refusal(main, [str(run_folder), *options, "--out", str(tmp_path / "out")], capsys)
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_not_replaced(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--format", "run", "--episodes", "0", "--out", str(tmp_path)]
    (tmp_path / "thesis.txt").touch()
    assert "exists already; --force replaces it" in refusal(main, [str(run_folder), *options], capsys)
    said = refusal(main, [str(run_folder), *options, "--force"], capsys)
    assert f"--out: {tmp_path} is something else; accepted: a new folder, or one of an export" in said
    assert names_in(tmp_path) == {"thesis.txt"}
    out = [*options[:-1], str(tmp_path / "out")]
    assert main([str(run_folder), *out]) == main([str(run_folder), *out, "--force"]) == 0

"""`train --seeds`: several seeds, each an ordinary run; a table of the means; failures and Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from forked import ForkServer
from refusals import refusal
from small_runs import assert_same_runs

import marl_sb3
from marl_sb3.errors import ConfigError
from marl_sb3.results.result_log import last_result, read_results
from marl_sb3.runs.jobs import MOST_DEATHS, Jobs
from marl_sb3.train import main

TINY = ["arena", "--n-envs", "2", "--timesteps", "120", "--policies", "per_agent"]
TINY += ["--set", "n_steps=20", "--set", "batch_size=20", "--set", "n_epochs=1", "--set", "env.max_timesteps=15"]


def test_each_seed_is_the_run_that_is_trained_alone(
    in_tmp: Path, forked_seeds: ForkServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--seeds", "5,7", "--set", "evaluation.interval=3", "--run-dir", "several"]) == 0
    out = capsys.readouterr().out
    assert main([*TINY, "--seed", "7", "--set", "evaluation.interval=3", "--run-dir", "alone", "--quiet"]) == 0
    assert_same_runs("alone", "several/seed-7")
    assert sorted(path.name for path in Path("several").iterdir()) == ["seed-5", "seed-7", "settings.yaml"]

    lines = out.splitlines()
    assert lines[0] == "arena: 120 env steps in 2 envs, ppo, policies per_agent, 2 seeds"
    values = [read_results(Path(f"several/seed-{seed}"))[-1]["env_runners"]["episode_return_mean"] for seed in (5, 7)]
    assert {line.partition(", ")[0] for line in lines if line.startswith("seed ")} == {
        f"seed {seed}: return {value:.2f}" for seed, value in zip((5, 7), values, strict=True)
    }
    rows = [line.split() for line in lines if line.startswith(("sum of returns", "return of agent1"))]
    assert len(rows) == 4  # of the training and of the evaluation
    assert rows[0][3] == f"{sum(values) / 2:.2f}"
    assert {"training, latest episodes, over 2 seeds:", "evaluation of the last iteration, over 2 seeds:"} < {*lines}
    assert lines[-1] == "several"


def test_seeds_count_from_the_seed_and_their_runs_resume(in_tmp: Path, forked_seeds: ForkServer) -> None:
    assert main([*TINY, "--seeds", "2", "--seed", "3", "--run-dir", "several", "--quiet"]) == 0
    assert sorted(path.name for path in Path("several").glob("seed-*")) == ["seed-3", "seed-4"]
    run = marl_sb3.train(resume="several/seed-3", timesteps=40, progress_bar=False)
    assert run.algorithm.num_timesteps == 160
    assert yaml.safe_load(Path("several/settings.yaml").read_text())["arena"]["seed"] is None


FAILS = """
from marl_sb3.envs.arena import ArenaEnv

class Env(ArenaEnv):
    def reset(self, seed=None, options=None):
        if seed is not None:
            import pathlib, sys
            if "--seed 2 " in " ".join(sys.argv) + " " and pathlib.Path("fail").exists():
                raise RuntimeError("it broke")
        return super().reset(seed, options)
"""


def test_a_seed_that_fails_is_reported_and_the_others_are_trained(
    in_tmp: Path, forked_seeds: ForkServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (in_tmp / "breaking.py").write_text(FAILS)
    (in_tmp / "fail").touch()
    assert main(["breaking:Env", *TINY[1:], "--seeds", "1,2,3", "--run-dir", "several"]) == 1
    out = capsys.readouterr().out
    (failed,) = [line for line in out.splitlines() if "failed" in line]
    assert failed.startswith("seed 2: failed with exit code 1: error: env 0")
    assert "it broke" in failed
    assert failed.endswith("log: several/seed-2.log")
    assert "training, latest episodes, over 2 seeds:" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--seeds 0", "argument --seeds: received '0'; accepted: a number of seeds of at least 1, such as 5, or diff"),
        ("--seeds 1,1", "argument --seeds: received '1,1'; accepted: a number of seeds"),
        ("--seeds 1,x", "argument --seeds: received '1,x'; accepted: a number of seeds"),
        ("--seeds 1,2 --seed 1", "--seeds and --seed are given; accepted: one of them"),
        ("--seeds 2 --resume x", "--seeds and --resume are given; accepted: one of them"),
        ("--seeds 2 --ray", "--seeds and --ray are given; accepted: one of them"),
        ("--seeds 2 --set gamma=5", "--set gamma: gamma is 5; accepted: a number from 0 to 1"),
        ("--seeds 4294967296,1", "seed is 4294967296; accepted: an integer from 0 to 4294967295"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_is_written(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], options: str, message: str
) -> None:
    assert message in refusal(main, ["arena", *options.split()], capsys)
    assert list(in_tmp.iterdir()) == []


def test_processes_fail_only_where_one_after_the_other_dies(tmp_path: Path) -> None:
    """All may be killed at a time, as where memory is short."""
    jobs, logs = Jobs(8), [tmp_path / str(number) for number in range(8)]
    logs[0].write_text("killed")
    assert {jobs.note_end(log, "signal SIGKILL") for log in logs} == {None}
    words = [jobs.note_end(logs[0], "signal SIGKILL") for _ in range(MOST_DEATHS)]
    assert str(words[-1]).startswith(
        "worker processes end with signal SIGKILL again and again, the last one saying 'kill"
    )
    assert set(words[:-1]) == {None}


def test_the_function_trains_one_run(in_tmp: Path) -> None:
    with pytest.raises(ConfigError, match="accepted: seed=S, in a loop over the seeds, or the command train --seeds"):
        marl_sb3.train("arena", seeds=[1, 2])


def test_the_last_result_is_found_in_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "result.jsonl"
    assert last_result(tmp_path) is None
    for text, expected in [("", None), ('{"a": 1', None), ('{"a": 1}\n{"a"', 1), ('{"a": 1}\n{"a": 2}\n', 2)]:
        log.write_text(text)
        result = last_result(tmp_path)
        assert (None if result is None else result["a"]) == expected
    log.write_text('{"a": 1}\n{"a": 2, "b": "' + "x" * 200_000 + '"}\n')
    assert (last_result(tmp_path) or {})["a"] == 2

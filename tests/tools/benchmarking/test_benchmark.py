"""Benchmarks: trained by several processes, interrupted and continued, and what is written of them."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from forked import ForkServer
from odd_files import PUT, in_time, put
from refusals import refusal
from small_runs import assert_same_runs, broken
from waiting import wait_for

from marl_sb3.benchmark import main
from marl_sb3.errors import ConfigError
from marl_sb3.evaluate import main as evaluate
from marl_sb3.results.reading import read_records
from marl_sb3.results.result_log import last_result
from marl_sb3.tools.benchmarking.outcome import how_it_ended, tables, write_outcome
from marl_sb3.tools.benchmarking.plan import Training, read_benchmark
from marl_sb3.tools.benchmarking.working import MOST_CLAIMS, STALE_S, Claims, work
from marl_sb3.train import main as train

SETTINGS = "{n_timesteps: 320, n_envs: 2, n_steps: 20, batch_size: 20, n_epochs: 1, policy_kwargs.net_arch: [8]}"
TINY = f"""
algos: {{ppo: {{learning_rate: lin_3e-4}}, slow: {{algo: ppo, learning_rate: 1.0e-5}}}}
envs: {{arena: {{env.max_timesteps: 15, checkpoints.every: 2, references: {{known: 12.5}}}}}}
seeds: [7, 8]
episodes: 4
settings: {SETTINGS}
"""
RUNS = Path("runs/benchmark-tiny")


def one(text: str = TINY) -> Training:
    """Write a benchmark of a single training."""
    Path("tiny.yml").write_text(text.replace("[7, 8]", "[7]").replace(", slow: {algo: ppo, learning_rate: 1.0e-5}", ""))
    return read_benchmark("tiny.yml", trust_file=True).trainings[-1]


@pytest.fixture
def training(in_tmp: Path) -> Training:
    """The only one of a benchmark, and the folder for it."""
    made = one()
    made.folder.parent.mkdir(parents=True)
    return made


@pytest.fixture
def let_claims_grow_old(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Puts the clock of this process forward."""
    times = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: times[-1])
    return lambda: times.append(times[-1] + STALE_S + 1)


# --- As a whole ------------------------------------------------------------------------------------------------------


def test_processes_share_the_trainings_and_each_is_the_run_that_is_trained_alone(
    in_tmp: Path, forked_seeds: ForkServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("tiny.yml").write_text(TINY)
    assert main(["tiny.yml", "--processes", "2"]) == 0
    out = capsys.readouterr().out
    folders = sorted(RUNS.glob("arena/*/seed-?"))
    assert [str(folder.relative_to(RUNS / "arena")) for folder in folders] == [
        *("ppo/seed-7", "ppo/seed-8", "slow/seed-7", "slow/seed-8")
    ]
    done = [log.read_text().splitlines() for log in (RUNS / "workers").iterdir()]
    assert len(done) == 2
    lines = [line for line in out.splitlines() if line.startswith("arena, ")]
    assert sorted(line for of_one in done for line in of_one) == sorted(lines)  # none was trained twice
    assert not list(RUNS.glob("arena/*/*.claim-*"))

    same = RUNS / "arena/slow/seed-8"
    command = f"--hparams {RUNS}/arena/slow/settings.yaml --seed 8 --run-dir alone --quiet"
    assert train(command.split()) == 0
    assert_same_runs("alone", str(same))
    capsys.readouterr()
    assert evaluate([str(same), "--checkpoint=latest", "--episodes=4", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)["env_runners"]
    result = json.loads((RUNS / "arena/slow/seed-8.result.json").read_text())
    assert result["metrics"]["episode_return_mean"] == played["episode_return_mean"]
    assert result["env_steps"] == 320

    finals = [json.loads(file.read_text())["metrics"]["episode_return_mean"] for file in RUNS.glob("arena/ppo/*.json")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (RUNS / "table.md").read_text().splitlines()]
    assert rows[2][:5] == ["arena", "ppo", "2", "320", "sum of returns, sampled actions"]
    mean, low, high = sum(finals) / 2, min(finals), max(finals)
    assert rows[2][5] == f"{mean:.2f} ({low:.2f} to {high:.2f})"
    random = json.loads((RUNS / "arena/random.json").read_text())["metrics"]["episode_return_mean"]
    assert rows[2][6] == f"{random:.2f}"
    assert rows[4][:6] == ["arena", "known", "", "", "sum of returns, sampled actions", "12.50"]

    by_algo = json.loads((RUNS / "marl_eval.json").read_text())["arena"]["arena"]
    assert {algo: list(runs) for algo, runs in by_algo.items()} == {
        "ppo": ["seed_7", "seed_8"],
        "slow": ["seed_7", "seed_8"],
    }
    assert by_algo["slow"]["seed_8"]["absolute_metrics"]["return_agent2"] == result["episodes"]["return_agent2"]
    steps = [
        [step["step_count"] for name, step in run.items() if name != "absolute_metrics"]
        for runs in by_algo.values()
        for run in runs.values()
    ]
    assert all(each == steps[0] for each in steps)
    assert steps[0][-1] == 320
    assert len(read_records(RUNS)) == 4  # as plot and compare take it

    assert train(["--resume", str(same), "--timesteps", "40", "--quiet"]) == 0
    assert capsys.readouterr().err == ""  # it knows of no benchmark

    assert main(["tiny.yml", "--out", "pages/tiny.html"]) == 0  # all are done
    assert "4 trainings, 4 done" in capsys.readouterr().out
    page = Path("pages/tiny.html").read_text()
    assert re.findall("<h[12]>([^<]*)</h[12]>", page) == ["Benchmark tiny", "arena"]
    table = page.partition("<table>")[2].partition("</table>")[0]
    shown = [re.findall("<t[dh][^>]*>([^<]*)</t[dh]>", line) for line in table.splitlines()[1:]]
    assert [line for line in shown if line] == [line[1:] for line in (rows[0], *rows[2:])]
    legend = page.partition('<div class="key">')[2].partition("</div>")[0]
    assert re.findall('value="([^"]*)"', legend) == ["group ppo", "group slow"]
    Path("tiny.yml").write_text(TINY.replace("gamma", "").replace("1.0e-5", "2.0e-5"))
    assert "slow has trainings with hyperparameters.learning_rate 1e-05, and tiny.yml now has 2e-05" in refusal(
        main, ["tiny.yml"], capsys
    )


FAILS = """
import pathlib
from marl_sb3.envs.arena import ArenaEnv

class Env(ArenaEnv):
    def step(self, actions):
        if pathlib.Path("fail").exists():
            raise RuntimeError("it broke")
        return super().step(actions)
"""


def test_a_training_that_fails_does_not_end_the_others_and_is_tried_again_by_the_next_call(
    in_tmp: Path, forked_seeds: ForkServer, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("breaking.py").write_text(FAILS)
    Path("fail").touch()
    one(TINY.replace("{arena: {", "{breaking:Env: {env.max_timesteps: 15}, arena: {"))
    assert main(["tiny.yml", "--trust-file", "--processes", "1"]) == 1
    out = capsys.readouterr().out
    failures = [line for line in out.splitlines() if "failed" in line]
    assert len(failures) == 2  # when it happens, and at the end
    assert failures[0].startswith("breaking:Env, ppo, seed 7: failed: EnvRaisedError: env 0")
    file = Path(failures[0].rpartition("; see ")[2])
    assert "Traceback" in file.read_text()
    assert "1 training, " not in out
    assert (RUNS / "arena/ppo/seed-7.result.json").exists()
    Path("fail").unlink()
    assert main(["tiny.yml", "--trust-file", "--processes", "1"]) == 0
    assert "2 trainings, 1 done" in capsys.readouterr().out
    assert not file.exists()


# --- Claims ----------------------------------------------------------------------------------------------------------


def claim_of_the_dead(training: Training, number: int = 1) -> None:
    dead = os.fork()
    if dead == 0:
        os._exit(0)
    os.waitpid(dead, 0)
    training.beside(f"claim-{number}").write_text(json.dumps({"host": socket.gethostname(), "pid": dead}))


@pytest.mark.parametrize("step", [210, 30])
def test_the_run_of_a_dead_process_goes_on_exactly(training: Training, step: int) -> None:
    """After 30 env steps there is no checkpoint yet: it begins anew."""
    broken(str(training.folder), step, settings={"learning_rate": "lin_3e-4", "n_parallel_updates": 1})
    spent_s = 1000.0 if step > 80 else 0.0
    training.beside("processor.json").write_text('{"ckpt-000004": 1000.0}')
    claim_of_the_dead(training)
    assert not work(read_benchmark("tiny.yml"))
    assert (training.folder / "resumes.jsonl").exists() == (step > 80)
    assert (last_result(training.folder) or {})["num_env_steps_sampled_lifetime"] == 320
    assert not work(read_benchmark("tiny.yml", Path("whole")))
    assert_same_runs(str(training.folder), "whole/arena/ppo/seed-7")
    result = json.loads(training.result_file.read_text())
    assert spent_s < result["processor_seconds"] < spent_s + 100


def test_a_training_whose_processes_die_again_and_again_has_failed(training: Training) -> None:
    claim_of_the_dead(training, MOST_CLAIMS)
    assert not work(read_benchmark("tiny.yml"))
    assert training.failure_file.read_text() == "its process has died 3 times"
    assert not training.beside(f"claim-{MOST_CLAIMS}").exists()


def test_a_claim_of_another_machine_holds_while_it_shows_that_it_is_alive(
    training: Training, let_claims_grow_old: Callable[[], None]
) -> None:
    claims, theirs = Claims(), training.beside("claim-1")
    theirs.write_text(json.dumps({"host": "elsewhere", "pid": 2**31 - 1}))  # no process of this machine has it
    assert not claims.may_claim(training)
    let_claims_grow_old()
    os.utime(theirs, (5.0, 5.0))
    assert claims.claim(training) is None
    let_claims_grow_old()
    assert (claims.claim(training) or theirs).name == "seed-7.claim-2"
    assert Claims().claim(training) is None  # this process has it


def test_a_claimed_run_that_is_still_written_to_is_left_alone(training: Training, server: ForkServer) -> None:
    command = f"-m marl_sb3.train arena --timesteps 10000000 --run-dir {training.folder}"
    process = server.run(command.split(), "out")
    wait_for((training.folder / "config.yaml").exists)
    claim_of_the_dead(training)
    assert not Claims().may_claim(training)
    process.kill()
    process.wait()
    assert Claims().may_claim(training)


def test_of_all_who_claim_at_the_same_time_one_has_it(in_tmp: Path) -> None:
    one(TINY.replace("[7, 8]", "100"))
    benchmark, all_at_once = read_benchmark("tiny.yml"), threading.Barrier(4)

    def claim_all() -> list[bool]:
        claims, got = Claims(), []
        for training in benchmark.trainings:
            all_at_once.wait()
            got.append(claims.claim(training) is not None)
        return got

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = [each.result() for each in [threads.submit(claim_all) for _ in range(4)]]
    finally:
        sys.setswitchinterval(before)
    assert [sum(got) for got in zip(*found, strict=True)] == [1] * 100


def test_copies_of_claims_that_other_programs_make_are_none(training: Training) -> None:
    for suffix in ("claim-x", "claim-1~", "claim-1.swp", "claim-10", f"claim-{10**24}"):
        training.beside(suffix).touch()
    assert Claims().claim(training) == training.beside("claim-1")


# --- Folders of strangers --------------------------------------------------------------------------------------------


OF_STRANGERS = ["[]", "{}", "}", "[" * 100_000, '{"metrics": {"episode_return_mean": "x"}}', "[1e999]", "\xff"]
GOOD = {"env_steps": 5, "seconds": 1.0, "processor_seconds": None, "deterministic": True, "metrics": {}, "episodes": {}}


def test_what_is_no_result_of_a_training_is_refused_in_words(training: Training) -> None:
    wrong = [{**GOOD, **each} for each in ({"env_steps": "z"}, {"seconds": -1e308}, {"metrics": [1]})]
    for text in (*OF_STRANGERS, *map(json.dumps, wrong)):
        training.result_file.write_text(text)
        with pytest.raises(ConfigError, match=r"seed-7\.result\.json is no result of a training: "):
            how_it_ended(training)
    training.result_file.write_text(json.dumps({**GOOD, "episodes": {"return": 3.0}}))  # of one episode
    for text in OF_STRANGERS:
        training.env.random_file.write_text(text)
        with pytest.raises(ConfigError, match=r"random\.json is no result of random agents: "):
            (tables(read_benchmark("tiny.yml")))
    training.env.random_file.unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml"):  # there is no run
        write_outcome(read_benchmark("tiny.yml"))


def test_damaged_claims_hold_until_they_are_old(training: Training, let_claims_grow_old: Callable[[], None]) -> None:
    here = socket.gethostname()
    owners: list[Any] = [{"host": here}, *({"host": here, "pid": pid} for pid in ("x", None, -1, 10**20))]
    for text in (*OF_STRANGERS, *map(json.dumps, owners)):
        claims = Claims()
        training.beside("claim-1").write_text(text)
        assert not claims.may_claim(training), text[:50]
        let_claims_grow_old()
        assert claims.may_claim(training), text[:50]


@pytest.mark.parametrize("kind", PUT)
def test_odd_files_in_the_places_of_a_benchmark_are_refused(
    kind: str, training: Training, outside: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training.folder.mkdir()
    settings = training.folder.with_name("settings.yaml")
    settings.touch()
    places = [*map(training.beside, ("result.json", "failed", "processor.json")), settings, training.env.random_file]
    places += [RUNS / name for name in ("table.md", "marl_eval.json", "workers")]
    for path in (*places, training.folder, training.folder.parent, training.env.folder):
        put(kind, path, outside)
        with in_time():
            error = refusal(main, ["tiny.yml"], capsys)
        assert error.startswith("error: cannot use the folder of a benchmark runs/benchmark-tiny: it is a"), error
        assert f"{path.name})" in error, error
        path.unlink()
    training.folder.parent.mkdir(parents=True)
    put(kind, training.beside("claim-1"), outside)
    with in_time():
        assert not Claims().may_claim(training)


def test_a_folder_that_is_no_run_of_the_benchmark_is_not_removed(
    training: Training, capsys: pytest.CaptureFixture[str]
) -> None:
    training.folder.mkdir()
    (training.folder / "thesis.txt").write_text("years of work")
    training.folder.with_name("settings.yaml").touch()
    for settings in (None, "{}", "CartPole-v1: {}"):
        if settings is not None:
            (training.folder / "config.yaml").write_text(settings)
        assert "seed-7 is in the place of a run of 'arena', and is none" in refusal(main, ["tiny.yml"], capsys)
        assert not work(read_benchmark("tiny.yml"))
        assert "is in the place of a run" in training.failure_file.read_text()
        training.failure_file.unlink()
    assert (training.folder / "thesis.txt").exists()

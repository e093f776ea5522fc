"""`python -m marl_sb3.train`, as a user types it."""

from __future__ import annotations

import errno
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from forked import ForkServer
from refusals import refusal
from waiting import read_all, wait_for

import marl_sb3
from marl_sb3.envs.arena import ArenaEnv
from marl_sb3.systems import CAN_FORK
from marl_sb3.train import main

TINY = ["arena", "--n-envs", "2", "--timesteps", "60", "--seed", "1"]
TINY += ["--set", "n_steps=10", "--set", "batch_size=20", "--set", "n_epochs=1"]
MODULE = ["-m", "marl_sb3.train"]


def test_the_name_of_the_command_is_also_the_function_of_the_library(in_tmp: Path) -> None:
    run = marl_sb3.train("arena", timesteps=20, n_envs=2, settings={"n_steps": 10, "batch_size": 20})
    assert run.result is not None


def test_the_function_prints_what_the_command_prints(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def lines() -> list[str]:
        return [re.sub(r"[\d,]+ env steps/s|\d:\d+:\d+|-(?= env steps/s| left)", "N", each) for each in printed()]

    def printed() -> list[str]:
        return capsys.readouterr().out.replace("by_function", "by_command").splitlines()

    settings = {"n_steps": 10, "batch_size": 20, "n_epochs": 1}
    marl_sb3.train("arena", timesteps=20, n_envs=2, seed=1, settings=settings, run_dir="by_function")
    of_function = lines()
    assert main([*TINY, "--timesteps", "20", "--run-dir", "by_command"]) == 0
    assert lines() == [*of_function, "by_command"]


def test_the_function_is_quiet_without_a_progress_bar(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marl_sb3.train("arena", timesteps="0.01k", n_envs=1, n_steps=10, batch_size=10, progress_bar=False)
    assert capsys.readouterr() == ("", "")


def test_what_only_this_process_can_make_is_evaluated_by_no_command(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def own() -> Any:
        return ArenaEnv(max_timesteps=9)

    marl_sb3.train(own, timesteps=10, n_envs=1, n_steps=10, batch_size=10)
    assert "python -m marl_sb3" not in capsys.readouterr().out


def test_output_that_is_no_terminal_gets_plain_lines(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TINY) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "arena: 60 env steps in 2 envs, ppo, policies shared, seed 1"
    folder = lines[1].removeprefix("run folder: ")
    assert Path(folder, "config.yaml").is_file()
    assert lines[2].startswith(
        "iteration 1: 20 of 60 env steps, no episode has ended yet; the longest runs for 10 env steps, "
    )
    assert "no episode has ended yet; the longest runs for 30 env steps" in lines
    assert any(line.startswith("policy shared") for line in lines)
    assert lines[-2:] == [f"evaluate with: python -m marl_sb3.evaluate {folder}", folder]
    assert "\x1b" not in "".join(lines)


def test_the_slow_path_is_said_in_one_line_with_its_reason(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    why, remedy = "(weight decay); faster with ", "policy_kwargs.optimizer_kwargs={weight_decay: 0}"
    slow = [*TINY, "--set", "policy_kwargs.optimizer_kwargs={weight_decay: 0.1}"]
    forced = [*slow, "--set", "update_path=torch"]
    for options, said in ((slow, 1), ([*slow, "-v"], 1), (forced, 0), (TINY, 0), ([*slow, "--set", remedy], 0)):
        assert main(options) == 0
        output = capsys.readouterr()
        assert (output.out + output.err).count(why + remedy) == said


@pytest.mark.parametrize(
    "line",
    [
        "arena --timesteps 40000 --seed 2",
        "arena --timesteps 40000 --seed 2 --policies per_agent",
        "CartPole-v1 --timesteps 16k --seed 2 --set n_steps=125",
    ],
)
def test_nothing_looks_wrong_at_the_end_of_a_training_that_learns(
    line: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line.split(), "--set", "evaluation.interval=0"]) == 0
    assert "looks wrong" not in capsys.readouterr().out


def test_what_looks_wrong_is_said_at_the_end(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each episode is worth the same, whatever is done."""
    tiny = "--n-envs 1 --timesteps 120 --set n_steps=10 --set batch_size=10 --set n_epochs=1 --set ent_coef=0"
    assert main(["toy_envs:ScriptedEnv", *tiny.split(), "--run-dir", "run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = next(place for place, line in enumerate(lines) if line.startswith("looks wrong: "))
    assert lines[first].startswith("looks wrong: all agents: the return is always the same, 3 (usual: different numb")
    assert [line for line in lines if "looks wrong" in line or line.endswith("python -m marl_sb3.report run")] == (
        lines[first : first + (2 if lines[first + 1].startswith("what it") else 3)]
    )


def test_a_number_and_an_algorithm_may_be_written_as_people_do(
    in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--timesteps", "2e1", "--algo", "PPO", "--n-envs", "1", "--set", "batch_size=10"]
    assert main([*TINY, *options]) == 0
    assert capsys.readouterr().out.startswith("arena: 20 env steps in 1 env, ppo, policies shared, seed 1\n")


def test_quiet_prints_the_run_folder_alone(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--quiet", "--run-dir", "here"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "here\n"
    assert captured.err == ""


def test_a_stop_condition_is_reported(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TINY, "--stop", "iteration=1"]) == 0
    assert "stopped: iteration is 1, at least 1" in capsys.readouterr().out


@pytest.mark.parametrize("taken_away", ["--stop=none", "--set=stop=null"])
def test_a_stop_condition_that_is_met_again_is_named_and_can_be_taken_away(
    taken_away: str, in_tmp: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*TINY, "--stop", "iteration=1", "--run-dir=met"]) == 0
    assert "stops after one iteration" not in capsys.readouterr().err
    assert main(["--resume=met", "--timesteps=200"]) == 0
    printed = capsys.readouterr().err
    assert printed.count("with --resume, --stop none") == 1
    assert "a stop condition is met already: iteration is 1, at least 1; with --resume, --stop none" in printed
    assert main(["--resume=met", "--timesteps=200", taken_away]) == 0
    assert "stopped" not in capsys.readouterr().out
    assert "iteration: 1" not in (in_tmp / "met/config.yaml").read_text(encoding="utf-8")


def test_no_stop_condition_replaces_that_of_a_file(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "mine.yaml").write_text("arena: {stop: {iteration: 1}}\n")
    for words in (["--stop=none"], ["--set=stop=null"]):
        assert main(["--hparams=mine.yaml", *words, "--print-config"]) == 0
        assert "iteration: 1" not in capsys.readouterr().out


WRONG = [
    ("", "no env given"),
    ("arena --n-envs two", "argument --n-envs: received 'two'; accepted: an integer, such as 100000, 1e5 or 100k"),
    ("arena --timesteps 1.5", "argument --timesteps: received '1.5'; accepted: an integer"),
    ("arena --polcies shared", "unrecognized arguments: --polcies shared"),
    ("arena --policies each", "argument --policies: invalid choice: 'each'"),
    ("arena --set gamma", "--set is 'gamma'; accepted: KEY=VALUE"),
    ("arena --set =3", "--set is '=3'; accepted: KEY=VALUE"),
    ("arena --set gamma=[1", "--set gamma: cannot read the value '[1'"),
    ("arena --set algorithm=ppo", "--set algorithm: unknown hyperparameter 'algorithm' of PPO; did you mean"),
    ("arena --set self=1", "--set self: unknown hyperparameter 'self' of PPO"),
    (
        "arena --stop iteration",
        "--stop is 'iteration'; accepted: METRIC=NUMBER, such as env_runners/episode_return_mean",
    ),
    ("arena --policies share", "did you mean shared? (see"),
    ("arena --algo pppo", "AlgorithmInfo; did you mean ppo?"),
    ("arena --set on_nan=stp", "on_nan is 'stp'; accepted: stop or rollback; did you mean stop?"),
    ("arena --vectorizer batch", "did you mean batched?"),
    ("arena --stop timesteps_total=9", "metric 'timesteps_total'; it is num_env_steps_sampled_lifetime here"),
    ("arena --stop training_iteration=9", "metric 'training_iteration'; it is iteration here"),
    ("arena --stop learners/__all_modules__/x=9", "it is learners/POLICY/NAME of each policy here"),
    ("arena --stop return=15", "unknown metric 'return'; did you mean env_runners/episode_return_mean, "),
    ("arena --stop zzz=15", "accepted: iteration, num_env_steps_sampled_lifetime, "),
    ("arena --set agent1.gamma=0.9", "'agent1'; accepted: shared; with policies per_agent each agent has its own"),
    (
        "arena --set policy_kwargs.net_arch=64,64",
        "--set policy_kwargs.net_arch: net_arch is '64,64'; accepted: a list of",
    ),
    ("arena --set net_arch=[64,0]", "net_arch is [64, 0]; accepted: a list of layer widths such as [64, 64], or {pi:"),
    ("arena --hparams .", ". is a folder; accepted: a file"),
    ("--resume nowhere --seed 0", "--seed cannot change a resumed run; accepted with --resume: ENV, --env, "),
    ("--resume nowhere --trust-pickle", "--trust-pickle cannot change a resumed run; accepted with --resume: ENV, "),
    ("arena --env CartPole-v1", "ENV is 'arena' and --env is 'CartPole-v1'; accepted: one of them"),
    ("arena --agents none", "argument --agents: received 'none'; accepted: all, or an integer of at least 1"),
    (
        "arena --policies per_agent --set agent2.algo=sac",
        "--set agent2.algo: policy 'agent2', agents agent2: the action space is Discrete(4); accepted by SAC: Box",
    ),
    (
        "CartPole-v1 --algo maskable_ppo",
        "--algo: policy 'shared': action masks missing for MaskablePPO: the env gives none",
    ),
    (
        "arena --policies per_agent --set agent1.n_envs=3",
        "--set agent1.n_envs: policy 'agent1': 'n_envs' is a setting of the whole run, which policies share",
    ),
    ("CartPole-v1 --algo dqn --set buffer_size=1e15", "--set buffer_size: the replay buffers need more memory than is"),
]


@pytest.mark.parametrize(("line", "message"), WRONG)
def test_a_wrong_command_line_is_refused_in_words(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert message in refusal(main, line.split(), capsys)
    assert list(in_tmp.iterdir()) == []


LONG_NAME = "x" * 300


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--run-dir file/run", "cannot write to the run folder file/run: Not a directory"),
        (f"--run-dir {LONG_NAME}", f"--run-dir: cannot use {LONG_NAME}: File name too long"),
        ("--run-dir forbidden/run", "cannot write to the run folder forbidden/run: Permission denied"),
        ("--run-dir read-only/run", "cannot write to the run folder read-only/run: Read-only file system"),
    ],
)
def test_a_run_folder_that_cannot_be_written_is_refused(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    def make(path: str, *arguments: Any) -> None:  # who runs the tests may be permitted everything
        for word, number in (("forbidden", errno.EACCES), ("read-only", errno.EROFS)):
            if word in str(path):
                raise OSError(number, os.strerror(number), str(path))
        original(path, *arguments)

    original = os.mkdir
    monkeypatch.setattr(os, "mkdir", make)
    Path("file").touch()
    assert main([*TINY, *line.split()]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    assert [path.name for path in in_tmp.iterdir()] == ["file"]


def test_a_full_disk_is_no_wrong_command_line(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: str, *_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(os, "mkdir", full)
    assert main([*TINY, "--run-dir", "run"]) == 1
    assert "No space left on device" in capsys.readouterr().err


def test_verbose_lets_the_traceback_through(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["arenaa", "-v"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_an_env_that_breaks_its_contract_ends_with_code_2(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "nan_env.py").write_text(
        "from toy_envs import ScriptedEnv\n"
        "class Env(ScriptedEnv):\n"
        "    def _reward(self, agent):\n"
        "        return float('nan') if agent == 'b' and self.episode == 2 else 1.0\n"
    )
    assert main(["nan_env:Env", "--quiet", "--set", "n_steps=4", "--set", "batch_size=4"]) == 2
    lines = capsys.readouterr().err.splitlines()
    said = [line for line in lines if " compiling " not in line]  # by the first process after kernels have changed
    assert said == ["error: env 0, episode 1, step 1, agent 'b': reward is nan, not a finite number"]


LONG = ["arena", "--n-envs", "2", "--timesteps", "10000000", "--seed", "1"]
LONG += ["--set", "n_steps=50", "--set", "batch_size=100", "--run-dir", "run"]


def has_iterated(folder: Path) -> bool:
    log = folder / "run" / "result.jsonl"
    return log.exists() and log.read_text().count("\n") >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_with_what_was_learned(
    tmp_path: Path, number: signal.Signals, server: ForkServer
) -> None:
    process = server.run([*MODULE, *LONG], tmp_path / "out", tmp_path / "err", folder=tmp_path)
    wait_for(lambda: has_iterated(tmp_path))
    process.send_signal(number)
    assert process.wait() == 130
    out, err = (tmp_path / "out").read_text(), (tmp_path / "err").read_text()
    err = "\n".join(line.rstrip() for line in err.split("\n"))
    assert err in ("", f"WARNING  {number.name}: finishing the iteration and saving; once more stops at once\n")
    assert f"stopped: {number.name}" in out
    assert out.splitlines()[-1] == "run"
    assert (tmp_path / "run" / "policies" / "shared.zip").is_file()


def test_the_end_prints_paths_in_full_and_evaluations(
    in_tmp: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    folder = "a long name of a folder, " * 4 + "that nobody can read if it is cut"
    options = ["--run-dir", folder, "--set", "evaluation_interval=1", "--set", "evaluation_duration=2"]
    assert main([*TINY, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"checkpoint: {folder}/checkpoints/ckpt-000003" in lines
    assert f"policy shared: {folder}/policies/shared.zip" in lines
    assert "means over the latest episodes; evaluation of iteration 3:" in lines
    assert any(line.startswith("evaluation of iteration 3: return ") for line in lines)
    assert not [line for line in lines if line.startswith("continue with")]


def test_of_many_agents_and_policies_few_are_shown(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "crowd.py").write_text(
        "from toy_envs import ScriptedEnv\n"
        "def env(**kwargs):\n"
        "    return ScriptedEnv({f'a{i}': (3, 'truncated') for i in range(20)}, **kwargs)\n"
    )
    options = ["--policies", "per_agent", "--n-envs", "1", "--timesteps", "6", "--set", "n_steps=6"]
    options += ["--set", "batch_size=3", "--set", "n_epochs=1", "--set", "policy_kwargs.net_arch=[2]"]
    for agents, shown in (["8"], 8), (["all"], 20):
        assert main(["crowd:env", *options, "--agents", *agents, "--run-dir", agents[0]]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert sum(line.startswith("return of a") for line in lines) == shown
        assert f"policies: {agents[0]}/policies (20 SB3 zips)" in lines


@pytest.mark.skipif(not CAN_FORK, reason="it takes a signal of POSIX")
def test_a_closed_terminal_ends_the_run_with_what_was_learned(in_tmp: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "hanging_up.py").write_text(
        "import os, signal\n"
        "from toy_envs import ScriptedEnv\n"
        "class Env(ScriptedEnv):\n"
        "    def step(self, actions):\n"
        "        if self.episode == 4:\n"
        "            os.kill(os.getpid(), signal.SIGHUP)\n"
        "        return super().step(actions)\n"
    )
    options = ["--n-envs", "1", "--set", "n_steps=6", "--set", "batch_size=4", "--run-dir", "run", "--timesteps", "60"]
    assert main(["hanging_up:Env", *options]) == 130
    assert [path.name for path in Path("run/checkpoints").glob("ckpt-*")] == ["ckpt-000002"]
    assert Path("run/policies/shared.zip").is_file()
    assert "continue with: python -m marl_sb3.train --resume run --env hanging_up:Env\n" in capsys.readouterr().out


def test_a_terminal_gets_the_live_view(tmp_path: Path, server: ForkServer) -> None:
    import pty

    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    errors = tmp_path / "errors"
    process = server.run([*MODULE, *TINY], os.ttyname(theirs), errors, folder=tmp_path, environment=environment)
    os.close(theirs)
    shown = read_all(ours)
    assert process.wait() == 0, errors.read_text()
    assert "60 of 60 env steps" in shown
    assert "rollout" in shown
    assert "agent steps/s" in shown
    assert "return of agent1" in shown
    assert "new_fields_discovered" in shown

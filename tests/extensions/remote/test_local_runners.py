"""Shards in processes of this machine: the bits of shards in this process, also if runners are killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from crashing_envs import Talking
from sharded_trainings import made, trained, undisturbed
from toy_envs import ScriptedEnv
from waiting import is_running, wait_for

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, RaySettings, make_sharded_vec_env
from marl_sb3.errors import ConfigError
from marl_sb3.extensions.remote import sharded
from marl_sb3.train import main


def runner_processes(algorithm: MultiAgentAlgorithm) -> list[int]:
    pool: Any = algorithm.parts.runner._runners._pool  # type: ignore[attr-defined]
    return [worker.process for worker in pool.workers.values()]


class Disturbs(MultiAgentCallback):
    """Sends a signal to a runner after each of the first `times` iterations."""

    def __init__(self, number: int, times: int) -> None:
        super().__init__()
        self.number, self.times, self.iterations = number, times, 0

    def on_iteration_end(self, result: Any) -> bool:
        self.iterations += 1
        algorithm: Any = self.model
        if self.iterations <= self.times:
            os.kill(runner_processes(algorithm)[0], self.number)
        return True


@pytest.mark.parametrize(
    ("kind", "runners"),
    [
        *(("lengths", 1), ("lengths", 2), ("central critic of a memory", 2)),
        *(("central critics of actions", 2), ("qmix", 2)),
    ],
)
def test_any_number_of_runners_gives_the_same_bits(kind: str, runners: int) -> None:
    assert trained(made(kind, runners)) == undisturbed(kind)


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_envs_that_share_their_spaces_leave_the_draws_of_the_training_as_they_are(algo: str) -> None:
    """All envs of the arena in a process have the same space, from which runners and the training draw."""
    found = set()
    for runners in (None, 2):
        env = make_sharded_vec_env("arena", 4, 2, seed=1, runners=runners, max_timesteps=7, height=4)
        small = {"n_steps": 8, "batch_size": 8} if algo == "ppo" else {"learning_starts": 4, "buffer_size": 60}
        found.add(trained(MultiAgentAlgorithm(env, seed=3, algorithm=algo, device="cpu", **small)))
    assert len(found) == 1


@pytest.mark.parametrize(
    ("number", "times", "timeout_s"),
    # On a busy machine a healthy runner may count as hung, too: it is replaced, and that changes nothing either.
    [(signal.SIGKILL, 2, 60.0), (signal.SIGSTOP, 1, 2.0)],
    ids=["killed", "stopped"],
)
def test_a_runner_that_ends_or_hangs_is_replaced_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, number: int, times: int, timeout_s: float
) -> None:
    disturbs = Disturbs(number, times)
    monkeypatch.setattr(sharded, "ROUND_TIMEOUT_S", timeout_s)
    assert trained(made(runners=2), disturbs) == undisturbed()
    assert disturbs.iterations == 4


def test_what_envs_log_reaches_this_process(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ponds")
    talking = made(runners=1, env=Talking)
    with pytest.warns(UserWarning, match="the water is low"):
        talking.train_iteration()
    assert any(message.startswith("level ") for message in caplog.messages)
    talking.env.close()


def test_runners_end_with_the_envs() -> None:
    algorithm = made(runners=2)
    algorithm.start_runners()
    processes = runner_processes(algorithm)
    assert [os.getpgid(process) for process in processes] == processes  # Ctrl-C does not reach them
    algorithm.env.close()
    wait_for(lambda: not any(map(is_running, processes)))


def test_an_env_that_cannot_be_sent_is_refused() -> None:
    class Holding(ScriptedEnv):
        lock = threading.Lock()

    with pytest.raises(ConfigError, match=r"the env or a policy cannot be sent to another process: .*lock"):
        made(runners=1, env=Holding).start_runners()
    with pytest.raises(ConfigError, match="runners and ray are both given"):
        make_sharded_vec_env("arena", 4, 2, ray=RaySettings(), runners=2)


def test_the_command_trains_and_resumes_with_any_runners(in_tmp: Path) -> None:
    short = ["arena", "--n-envs", "4", "--seed", "1", "--quiet", "--set", "n_steps=10", "--set", "batch_size=20"]
    short += ["--set", "learning_rate=3e-4"]  # no schedule, which would lead to another end
    assert main([*short, "--runners", "2", "--timesteps", "120", "--run-dir", "whole"]) == 0
    assert main([*short, "--set", "n_shards=4", "--timesteps", "80", "--run-dir", "resumed"]) == 0
    assert main(["--resume", "resumed", "--timesteps", "40", "--quiet", "--runners", "1"]) == 0
    weights = [Path(run, "checkpoints", "ckpt-000003", "policy-000.safetensors") for run in ("whole", "resumed")]
    assert weights[0].read_bytes() == weights[1].read_bytes()

"""Shards in processes of this machine: the bits of shards in this process, also if runners are killed."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from crashing_envs import Talking
from test_shards import ENVS, PLANS, POLICIES, SHARDS, SMALL, STEPS, Breaks, Curriculum, E, Watches, digest
from toy_envs import NoisyEnv, ScriptedEnv
from waiting import is_running, wait_for

from marl_sb3 import MultiAgentAlgorithm, MultiAgentCallback, RaySettings, make_sharded_vec_env
from marl_sb3.core.metrics.names import flatten
from marl_sb3.errors import ConfigError, EnvError
from marl_sb3.extensions.remote.processes.messages import WorkerTracebackError
from marl_sb3.extensions.remote.ray import RunnerSettings
from marl_sb3.train import main


def made(runners: Any, kind: str = "ppo", env: Any = NoisyEnv, **env_kwargs: Any) -> MultiAgentAlgorithm:
    if env is NoisyEnv:
        env, of_kind = ENVS.get(kind, (env, {"plans": PLANS}))
        env_kwargs = {**of_kind, **env_kwargs}
    vec = make_sharded_vec_env(env, E, SHARDS, seed=1, runners=runners, **env_kwargs)
    return MultiAgentAlgorithm(vec, seed=3, **{**SMALL, **POLICIES[kind]})


def trained(algorithm: MultiAgentAlgorithm, callback: MultiAgentCallback | None = None) -> str:
    algorithm.learn(4 * STEPS * E, callback=callback)
    state, _ = algorithm.get_state()
    algorithm.env.close()
    return digest(algorithm) + repr([{**flatten(state[part])} for part in ("policies", "random")])


def runner_processes(algorithm: MultiAgentAlgorithm) -> list[int]:
    pool: Any = algorithm.parts.runner._runners._pool  # type: ignore[attr-defined]
    return [worker.process for worker in pool.workers.values()]


class Disturbs(MultiAgentCallback):
    """Sends a signal to a runner after each of the first `times` iterations."""

    def __init__(self, number: int, times: int) -> None:
        super().__init__()
        self.number, self.times = number, times
        self.restarts: list[int] = []

    def on_iteration_end(self, result: Any) -> bool:
        self.restarts.append(result["fault_tolerance"]["num_worker_restarts"])
        algorithm: Any = self.model
        if len(self.restarts) <= self.times:
            os.kill(runner_processes(algorithm)[0], self.number)
        return True


@pytest.mark.parametrize("kind", ["lengths", "central critic of a memory", "central critics of actions", "qmix"])
def test_any_number_of_runners_gives_the_same_bits(kind: str) -> None:
    numbers = (None, 1, 2) if kind == "lengths" else (None, 2)
    assert len({trained(made(runners, kind)) for runners in numbers}) == 1


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_envs_that_share_their_spaces_leave_the_draws_of_the_training_as_they_are(algo: str) -> None:
    """All envs of the arena in a process have the same space, from which runners and the training draw."""
    found = set()
    for runners in (None, 2):
        env = make_sharded_vec_env("arena", 4, 2, seed=1, runners=runners, max_timesteps=7, height=4)
        small = {"n_steps": 8, "batch_size": 8} if algo == "ppo" else {"learning_starts": 4, "buffer_size": 60}
        found.add(trained(MultiAgentAlgorithm(env, seed=3, algorithm=algo, device="cpu", **small)))
    assert len(found) == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_runner_that_ends_or_hangs_is_replaced_and_changes_nothing(number: int) -> None:
    # On a busy machine a healthy runner may count as hung, too: it is replaced, and that changes nothing either.
    times, timeout_s = (2, 60.0) if number == signal.SIGKILL else (1, 2.0)
    disturbs = Disturbs(number, times)
    algorithm = made(RunnerSettings(2, round_timeout_s=timeout_s))
    assert trained(algorithm, disturbs) == trained(made(None))
    assert len(disturbs.restarts) == 4


def test_an_exception_of_an_env_names_shard_env_and_step_and_has_its_traceback() -> None:
    algorithm = made(2, env=Breaks, script=None)
    words = (
        r"shard 1 \(envs 2 to 3, .*env 1, episode 0, step 3, seed \d+: step\(\) raised ZeroDivisionError: of the env"
    )
    with pytest.raises(EnvError, match=words) as found:
        algorithm.train_iteration()
    assert isinstance(found.value.__cause__, WorkerTracebackError)
    assert 'raise ZeroDivisionError("of the env")' in str(found.value.__cause__)
    algorithm.env.close()


def test_calls_reach_the_envs_and_what_these_log_reaches_this_process(caplog: pytest.LogCaptureFixture) -> None:
    algorithm, watches = made(2, env=Curriculum, script=None), Watches()
    algorithm.env.configure([1, 2], bonus=3.0)
    algorithm.learn(2 * STEPS * E, callback=watches)
    assert watches.rewards[-1].tolist() == [[0, 0], [3, 3], [3, 3], [0, 0]]
    with pytest.raises(AttributeError, match="shard 1"):
        algorithm.env.call("not_there", [3])
    algorithm.env.close()
    caplog.set_level("INFO", logger="ponds")
    talking = made(1, env=Talking)
    with pytest.warns(UserWarning, match="the water is low"):
        talking.train_iteration()
    assert any(message.startswith("level ") for message in caplog.messages)
    talking.env.close()


def test_runners_end_with_the_envs() -> None:
    algorithm = made(2)
    algorithm.start_runners()
    processes = runner_processes(algorithm)
    assert [os.getpgid(process) for process in processes] == processes  # Ctrl-C does not reach them
    algorithm.env.close()
    wait_for(lambda: not any(map(is_running, processes)))


def test_an_env_that_cannot_be_sent_is_refused() -> None:
    class Holding(ScriptedEnv):
        lock = threading.Lock()

    with pytest.raises(ConfigError, match=r"the env or a policy cannot be sent to another process: .*lock"):
        made(1, env=Holding, script=None).start_runners()
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

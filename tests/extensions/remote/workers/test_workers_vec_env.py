"""What holds for workers alone: any number of them, errors from another process, and wrong settings."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from typing import Any

import numpy as np
import pytest
from crashing_envs import Failing, Modules, Numbers, OncePerProcess, Talking
from gymnasium import spaces
from toy_envs import ScriptedEnv

from marl_sb3 import make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.core.vec_env.interface import MultiAgentVecEnv
from marl_sb3.errors import ConfigError, EnvError, EnvRaisedError, VecEnvOrderError
from marl_sb3.extensions.remote.processes.messages import WorkerTracebackError

TURNS = {"script": {"a": (6, "truncated"), "b": (4, "terminated")}, "skips": {"a": [1, 3], "b": [0, 2]}, "masked": True}
LATE = {"script": {"a": (5, "truncated"), "b": (3, "terminated")}, "joins": {"b": 2}, "infos": False}


def plain_step(vec: MultiAgentVecEnv) -> dict[str, Any]:
    """The latest step as plain data."""
    step = vec.latest
    arrays = [*step.observations, *(mask for mask in step.action_masks if mask is not None)]
    arrays += [step.rewards, step.terminated, step.truncated, step.acted, step.to_act, step.episode_done]
    return {
        "arrays": [array.tolist() for array in arrays],
        "finals": {place: np.asarray(seen).tolist() for place, seen in step.final_observations.items()},
        "infos": [repr(step.infos[index]) for index in range(vec.num_envs)],
        "resets": repr(sorted(step.reset_infos.items())),
    }


def played(vec: MultiAgentVecEnv, steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """The next steps, with random actions that are allowed."""
    rng = np.random.default_rng(seed)
    seen = []
    for _ in range(steps):
        masks = vec.latest.action_masks[0]
        allowed = np.ones((vec.num_envs, len(vec.agents), 3), bool) if masks is None else masks
        vec.step([np.where(allowed, rng.random(allowed.shape), -1).argmax(axis=2)])
        seen.append(plain_step(vec))
    return seen


@pytest.mark.parametrize("n_workers", [1, 3, 5])
@pytest.mark.parametrize("arguments", [TURNS, LATE], ids=["turns and masks", "late"])
def test_any_number_of_workers_gives_the_same_steps(arguments: dict[str, Any], n_workers: int) -> None:
    workers, here = (
        make_vec_env(ScriptedEnv, n_envs=5, seed=3, n_workers=number, episode_horizon=7, **arguments)
        for number in (n_workers, 0)
    )
    for vec in (workers, here):
        vec.reset()
    assert plain_step(workers) == plain_step(here)
    assert played(workers, 12) == played(here, 12)
    workers.close()


@pytest.mark.parametrize("vectorizer", ["sync", "batched"])
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 3), (3, 2)])
def test_a_state_fits_any_number_of_workers(vectorizer: str, before: int, after: int) -> None:
    one, other = (
        make_vec_env("arena", n_envs=3, seed=seed, n_workers=number, vectorizer=vectorizer, max_timesteps=9)
        for seed, number in ((1, before), (2, after))
    )
    one.reset()
    one.configure([2], max_timesteps=30)
    played(one, 12)
    assert other.set_state(StateReader(one.get_state())) == {}
    assert other.latest.observations[0].tolist() == one.latest.observations[0].tolist()
    assert played(other, 20) == played(one, 20)
    for vec in (one, other):
        vec.close()


@pytest.mark.usefixtures("real_fork_servers")
def test_workers_import_no_more_than_they_need_and_end_with_the_vec_env() -> None:
    vec = make_vec_env(Modules, n_envs=3, n_workers=3)
    processes = vec.call("process", range(3))
    assert len({*processes, os.getpid()}) == 4
    (modules,) = vec.call("modules", [0])
    assert {"torch", "stable_baselines3", "supersuit"}.isdisjoint(modules)
    assert vec.call("num_frozen", [0]) > [0]  # collections do not look at them
    assert vec.call("variable", [0], "OPENBLAS_NUM_THREADS") == [os.environ.get("OPENBLAS_NUM_THREADS", "1")]
    assert [os.getpgid(process) for process in processes] == processes  # Ctrl-C does not reach them
    assert vec.health is not None
    assert (vec.health.num_healthy_workers, vec.health.num_worker_restarts) == (3, 0)
    vec.close()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
    with pytest.raises(VecEnvOrderError, match="the vec env is closed"):
        vec.reset()


def test_a_vec_env_that_is_forgotten_ends_its_workers() -> None:
    vec = make_vec_env(Modules, n_envs=1, n_workers=1)
    vec.reset()
    (process,) = vec.call("process", [0])
    del vec
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.parametrize("error", [KeyError, SystemExit])
def test_an_exception_of_an_env_is_the_same_with_its_traceback(error: type[BaseException]) -> None:
    errors = []
    for n_workers in (0, 2):
        vec = make_vec_env(Failing, n_envs=4, seed=0, n_workers=n_workers, error=error)
        vec.reset()
        vec.step([np.zeros((4, 2), int)])
        words = rf"^env 2, episode 0, step 2, seed \d+: step\(\) raised {error.__name__}: '?wheel"
        with pytest.raises(EnvRaisedError, match=words) as info:
            vec.step([np.zeros((4, 2), int)])
        errors.append(info.value)
        vec.close()
    assert str(errors[0]) == str(errors[1])
    assert isinstance(errors[1].__cause__, WorkerTracebackError)
    assert 'raise self.error("wheel")' in str(errors[1].__cause__)


class Cancelled(BaseException):
    """No `Exception`, as in some libraries."""


class MuteError(Exception):
    """Cannot say its text."""

    def __str__(self) -> str:
        raise RecursionError


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, Cancelled])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_env_that_interrupts_does_so_from_a_worker_too(error: type[BaseException], n_workers: int) -> None:
    vec = make_vec_env(Failing, n_envs=4, seed=0, n_workers=n_workers, error=error)
    vec.reset()
    vec.step([np.zeros((4, 2), int)])
    with pytest.raises(error, match="wheel"):
        vec.step([np.zeros((4, 2), int)])
    if vec.health is not None:
        assert vec.health.num_worker_restarts == 0
    vec.close()


def test_an_interrupt_that_cannot_be_pickled_is_still_one() -> None:
    class Stopped(KeyboardInterrupt):
        pass

    vec = make_vec_env(Failing, n_envs=4, seed=0, n_workers=1, error=Stopped)
    vec.reset()
    vec.step([np.zeros((4, 2), int)])
    with pytest.raises(KeyboardInterrupt, match="Stopped: wheel"):
        vec.step([np.zeros((4, 2), int)])
    vec.close()


@pytest.mark.parametrize("n_workers", [0, 2])
def test_an_exception_without_a_text_is_told_with_its_place(n_workers: int) -> None:
    vec = make_vec_env(Failing, n_envs=4, seed=0, n_workers=n_workers, error=MuteError)
    vec.reset()
    vec.step([np.zeros((4, 2), int)])
    words = r"^env 2, episode 0, step 2, seed \d+: step\(\) raised MuteError: \(its text is unknown: its __str__ "
    with pytest.raises(EnvRaisedError, match=words):
        vec.step([np.zeros((4, 2), int)])
    vec.close()


def test_warnings_and_log_messages_reach_the_main_process(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ponds")
    vec = make_vec_env(Talking, n_envs=4, n_workers=2)
    vec.reset()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        vec.step([np.zeros((4, 2), int)])
    assert [str(each.message) for each in warned] == ["the water is low"]  # once, not once from each worker
    assert caplog.messages == ["level 0", "level 1", "level 2", "level 3"]
    vec.close()

    class ClosingBadly(Numbers):
        def close(self) -> None:
            raise OSError("the door is stuck")

    make_vec_env(ClosingBadly, n_envs=1, n_workers=1).close()
    assert caplog.messages[-1].startswith(
        "env 0, before its first episode: close() raised OSError: the door is stuck ("
    )


def test_warnings_of_a_class_of_a_script_come_with_any_answer(caplog: pytest.LogCaptureFixture) -> None:
    class Low(UserWarning):
        pass

    class Dry(Numbers):
        def step(self, actions: Any) -> Any:
            warnings.warn(f"low {self.step_count}", Low, stacklevel=1)
            return super().step(actions if self.step_count == 0 else 1 / 0)

        def unsendable(self) -> Any:
            logging.getLogger("ponds").warning("nobody can have it")
            return threading.Lock()

    vec = make_vec_env(Dry, n_envs=1, n_workers=1)
    vec.reset()
    with pytest.warns(UserWarning, match="low 0"):
        vec.step([np.zeros((1, 2), int)])
    with pytest.raises(EnvError, match="what the envs return cannot be sent from a worker"):
        vec.call("unsendable", [0])
    assert caplog.messages == ["nobody can have it"]
    with pytest.raises(EnvRaisedError, match="ZeroDivisionError"), pytest.warns(UserWarning, match="low 1"):
        vec.step([np.zeros((1, 2), int)])
    vec.close()


def test_what_travels_with_a_factory() -> None:
    speed = 3

    class Local(Numbers):
        def speed(self) -> int:
            return speed

    vec = make_vec_env(Local, n_envs=2, n_workers=2)
    assert vec.call("speed", [1]) == [3]
    assert vec.call("has_wrapper", [0], Local) == [True]
    vec.call("set_wrapper_attr", [0, 1], "rule", lambda value: value + speed)
    assert vec.call("rule", [1], 4) == [7]
    with pytest.raises(ConfigError, match=r"^call\(\): an argument cannot be sent to a worker: TypeError: can"):
        vec.call("set_wrapper_attr", [0], "lock", threading.Lock())
    vec.close()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_workers": 3}, r"^n_workers is 3, but n_envs is 2; accepted: at most 2 workers, or auto$"),
        ({"n_workers": -1}, r"^n_workers is -1; accepted: an integer of at least 0, or auto$"),
        ({"n_workers": "all"}, r"^n_workers is 'all'; accepted: an integer of at least 0, or auto$"),
        ({"n_workers": 2, "worker_timeout_s": 0}, "^worker_timeout_s is 0; accepted: seconds: a number above 0"),
        ({"n_workers": 2, "vectorizer": "supersuit"}, "^vectorizer is 'supersuit', which has no workers; accepted"),
        ({"n_workers": 2, "vectorizer": "batched"}, "^the env has no batched version"),
        ({"n_workers": 2, "speed": 3}, "^unknown env argument 'speed'; the env takes: env_index, arguments$|speed"),
        (
            {"n_workers": 1, "lock": threading.Lock()},
            "^n_workers: the env factory Numbers or an argument of the env can",
        ),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    factory = OncePerProcess if "speed" in settings else Numbers
    with pytest.raises(ConfigError, match=message):
        make_vec_env(factory, n_envs=2, **settings)


def test_an_env_that_starts_once_per_process_needs_a_worker_of_its_own() -> None:
    with pytest.raises(
        ConfigError,
        match=r"^n_workers is 1, but only one such env can be made in a process: env 1: making .*:OncePerProcess "
        r"raised RuntimeError: the simulator runs already \(.*\); accepted: n_workers=2, one for each env$",
    ):
        make_vec_env(OncePerProcess, n_envs=2, n_workers=1)
    vec = make_vec_env(OncePerProcess, n_envs=2, n_workers=2)
    vec.reset()
    vec.close()


def test_auto_is_one_for_each_core_but_no_more_than_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    vec = make_vec_env(Modules, n_envs=2, n_workers="auto")
    assert len(set(vec.call("process", [0, 1]))) == 2
    vec.close()


PARTS = spaces.Tuple([spaces.Discrete(3, start=1), spaces.Dict(aim=spaces.Box(-1, 1, (2,)))])


class OfParts(ScriptedEnv):
    """Accepts actions of several parts alone."""

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return PARTS

    def step(self, actions: Any) -> Any:
        assert all(PARTS.contains(action) for action in actions.values())
        return super().step(actions)


def test_workers_get_actions_of_several_parts() -> None:
    workers, here = (make_vec_env(OfParts, n_envs=3, seed=3, n_workers=number) for number in (2, 0))
    vectors = np.tile(np.array([2, 0.5, -1], np.float32), (3, 2, 1))
    for vec in (workers, here):
        vec.reset()
        vec.step([vectors])
    assert plain_step(workers) == plain_step(here)
    assert repr(workers.call("received", range(3))) == repr(here.call("received", range(3)))
    assert here.call("received", [0])[0][0]["a"][0] == 3

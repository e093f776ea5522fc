"""What holds for workers alone: any number of them, errors from another process, and wrong settings."""

from __future__ import annotations

import logging
import os
import threading
import warnings
from contextlib import closing
from typing import Any

import pytest
from crashing_envs import Failing, Modules, Numbers, OncePerProcess, Talking
from toy_envs import ScriptedEnv
from worker_vec_envs import both, plain_step, played, restarts, workers_of, zero_step

from marl_sb3 import make_vec_env
from marl_sb3.core.state.state import StateReader
from marl_sb3.errors import ConfigError, EnvError, EnvRaisedError, VecEnvOrderError
from marl_sb3.extensions.remote.processes.messages import WorkerTracebackError

TURNS = {"script": {"a": (6, "truncated"), "b": (4, "terminated")}, "skips": {"a": [1, 3], "b": [0, 2]}, "masked": True}
LATE = {"script": {"a": (5, "truncated"), "b": (3, "terminated")}, "joins": {"b": 2}, "infos": False}


@pytest.mark.parametrize("n_workers", [1, 3, 5])
@pytest.mark.parametrize("arguments", [TURNS, LATE], ids=["turns and masks", "late"])
def test_any_number_of_workers_gives_the_same_steps(arguments: dict[str, Any], n_workers: int) -> None:
    with both(ScriptedEnv, n_workers, n_envs=5, episode_horizon=7, **arguments) as (workers, here):
        assert plain_step(workers) == plain_step(here)
        assert played(workers, 12) == played(here, 12)


@pytest.mark.parametrize("vectorizer", ["sync", "batched"])
@pytest.mark.parametrize(("before", "after"), [(2, 0), (0, 3), (3, 2)])
def test_a_state_fits_any_number_of_workers(vectorizer: str, before: int, after: int) -> None:
    options: Any = {"n_envs": 3, "vectorizer": vectorizer, "max_timesteps": 9}
    made = make_vec_env("arena", seed=2, n_workers=after, **options)
    with workers_of("arena", n_workers=before, **options) as one, closing(made) as other:
        one.configure([2], max_timesteps=30)
        played(one, 12)
        assert other.set_state(StateReader(one.get_state())) == {}
        assert other.latest.observations[0].tolist() == one.latest.observations[0].tolist()
        assert played(other, 20) == played(one, 20)


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
    vec = make_vec_env(Modules, n_workers=1)
    vec.reset()
    (process,) = vec.call("process", [0])
    del vec
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


class Cancelled(BaseException):
    """No `Exception`, as in some libraries."""


class MuteError(Exception):
    """Cannot say its text."""

    def __str__(self) -> str:
        raise RecursionError


PLACE = r"^env 2, episode 0, step 2, seed \d+: step\(\) raised "


@pytest.mark.parametrize(
    ("error", "raised", "words"),
    [
        (KeyError, EnvRaisedError, f"{PLACE}KeyError: 'wheel"),
        (SystemExit, EnvRaisedError, f"{PLACE}SystemExit: wheel"),
        (MuteError, EnvRaisedError, rf"{PLACE}MuteError: \(its text is unknown: its __str__ "),
        *((error, error, "wheel") for error in (KeyboardInterrupt, GeneratorExit, Cancelled)),
    ],
)
def test_what_an_env_raises_is_the_same_from_a_worker_with_its_traceback(
    error: type[BaseException], raised: type[BaseException], words: str
) -> None:
    with both(Failing, error=error) as (workers, here):
        errors = []
        for vec in (workers, here):
            zero_step(vec)
            with pytest.raises(raised, match=words) as info:
                zero_step(vec)
            errors.append(info.value)
        assert str(errors[0]) == str(errors[1])
        assert isinstance(errors[0].__cause__, WorkerTracebackError)
        assert 'raise self.error("wheel")' in str(errors[0].__cause__)
        assert restarts(workers) == 0


def test_an_interrupt_that_cannot_be_pickled_is_still_one() -> None:
    class Stopped(KeyboardInterrupt):
        pass

    with workers_of(Failing, n_workers=1, error=Stopped) as vec:
        zero_step(vec)
        with pytest.raises(KeyboardInterrupt, match="Stopped: wheel"):
            zero_step(vec)


def test_warnings_and_log_messages_reach_the_main_process(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="ponds")
    with workers_of(Talking) as vec, warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("default")
        zero_step(vec)
    assert [str(each.message) for each in warned] == ["the water is low"]  # once, not once from each worker
    assert caplog.messages == ["level 0", "level 1", "level 2", "level 3"]

    class ClosingBadly(Numbers):
        def close(self) -> None:
            raise OSError("the door is stuck")

    make_vec_env(ClosingBadly, n_workers=1).close()
    words = "env 0, before its first episode: close() raised OSError: the door is stuck ("
    assert caplog.messages[-1].startswith(words)


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

    with workers_of(Dry, n_envs=1, n_workers=1) as vec:
        with pytest.warns(UserWarning, match="low 0"):
            zero_step(vec)
        with pytest.raises(EnvError, match="what the envs return cannot be sent from a worker"):
            vec.call("unsendable", [0])
        assert caplog.messages == ["nobody can have it"]
        with pytest.raises(EnvRaisedError, match="ZeroDivisionError"), pytest.warns(UserWarning, match="low 1"):
            zero_step(vec)


def test_what_travels_with_a_factory() -> None:
    speed = 3

    class Local(Numbers):
        def speed(self) -> int:
            return speed

    with workers_of(Local, n_envs=2) as vec:
        assert vec.call("speed", [1]) == [3]
        assert vec.call("has_wrapper", [0], Local) == [True]
        vec.call("set_wrapper_attr", [0, 1], "rule", lambda value: value + speed)
        assert vec.call("rule", [1], 4) == [7]
        with pytest.raises(ConfigError, match=r"^call\(\): an argument cannot be sent to a worker: TypeError: can"):
            vec.call("set_wrapper_attr", [0], "lock", threading.Lock())


@pytest.mark.parametrize(
    ("env", "settings", "message"),
    [
        (Numbers, {"n_workers": 3}, r"^n_workers is 3, but n_envs is 2; accepted: at most 2 workers, or auto$"),
        (Numbers, {"n_workers": -1}, r"^n_workers is -1; accepted: an integer of at least 0, or auto$"),
        (Numbers, {"n_workers": "all"}, r"^n_workers is 'all'; accepted: an integer of at least 0, or auto$"),
        (Numbers, {"worker_timeout_s": 0}, "^worker_timeout_s is 0; accepted: seconds: a number above 0"),
        (Numbers, {"vectorizer": "supersuit"}, "^vectorizer is 'supersuit', which has no workers; accepted"),
        (Numbers, {"vectorizer": "batched"}, "^the env has no batched version"),
        (OncePerProcess, {"speed": 3}, "^unknown env argument 'speed'; the env takes: env_index, arguments$|speed"),
        (
            Numbers,
            {"n_workers": 1, "lock": threading.Lock()},
            "^n_workers: the env factory Numbers or an argument of the env can",
        ),
        (
            OncePerProcess,
            {"n_workers": 1},
            r"^env 1: making .*:OncePerProcess "
            r"raised RuntimeError: the simulator runs already \(.*\); this process has made other envs before; "
            r"accepted, if it can make only one: n_workers=2, one for each env$",
        ),
    ],
)
def test_wrong_settings_are_refused(env: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vec_env(env, n_envs=2, **{"n_workers": 2, **settings})


def test_an_env_that_starts_once_per_process_may_have_a_worker_of_its_own() -> None:
    with workers_of(OncePerProcess, n_envs=2):
        pass


def test_auto_is_one_for_each_core_but_no_more_than_envs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(64)))
    with closing(make_vec_env(Modules, n_envs=2, n_workers="auto")) as vec:
        assert len(set(vec.call("process", [0, 1]))) == 2

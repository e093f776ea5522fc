"""What is done to a training from inside its process: SIGKILL at a certain call, a random generator left out.

`python shims.py SPEC ARGUMENT...` is `python -m marl_sb3.train ARGUMENT...` with the shims of SPEC, which is JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ATOMIC, SYSTEMS = "marl_sb3.files.atomic", "marl_sb3.systems"


@dataclass(frozen=True)
class Place:
    """Where a process can be killed: calls that change what is on the disk, on behalf of one module or function."""

    within: str  # its full name
    # by the module that makes them, and the module of the standard library that they are of
    calls: Mapping[str, Mapping[str, tuple[str, ...]]]


PLACES = {
    "save": Place(
        "marl_sb3.extensions.store.checkpoint_folder",
        {
            "marl_sb3.extensions.store.checkpoint_format": {"os": ("open", "write")},
            ATOMIC: {"os": ("mkdir",), "shutil": ("rmtree",)},
            SYSTEMS: {"os": ("open", "fsync", "replace")},
            "marl_sb3.files.regular": {"os": ("open",)},  # to find the best of those that there are
        },
    ),
    "cut": Place("marl_sb3.runs.logs.truncate_logs", {SYSTEMS: {"os": ("replace",)}}),
    "policies": Place(
        "marl_sb3.runs.execution.save_policies",
        {ATOMIC: {"os": ("mkdir",), "shutil": ("rmtree",)}, SYSTEMS: {"os": ("replace",)}},
    ),
}
MOMENTS = ("before", "during", "after")
GENERATORS = ("torch", "numpy", "env")

Hit = Callable[..., Any]  # (name of the call, the call, its arguments) -> what the call returns


class Watched:
    """A module of the standard library, as one module of the package sees it, with some calls going through `hit`.

    Args:
        module: of the standard library.
        names: of the calls.
        hit: what they go through.
        within: full name of the module or function on whose behalf; None: whoever calls.
    """

    def __init__(self, module: Any, names: tuple[str, ...], hit: Hit, within: str | None = None) -> None:
        self._module, self._names, self._hit, self._within = module, names, hit, within

    def __getattr__(self, name: str) -> Any:
        original = getattr(self._module, name)
        if name not in self._names or not self._is_meant():
            return original
        return lambda *args, **kwargs: self._hit(name, original, *args, **kwargs)

    def _is_meant(self) -> bool:
        frame = sys._getframe()
        while self._within not in (None, name := frame.f_globals.get("__name__"), f"{name}.{frame.f_code.co_name}"):
            if frame.f_back is None:
                return False
            frame = frame.f_back
        return True


def install(spec: Mapping[str, Any]) -> None:
    """Put the shims of a specification in place.

    Args:
        spec: `{"kill": {"place", "call", "moment"}, "fail": {"place", "calls": [first, last], "errno"}, "break": a
            generator, "interrupt_at_step": number}`, or some of these.
    """
    if "kill" in spec:
        watch(spec["kill"]["place"], killer(spec["kill"]["call"], spec["kill"]["moment"]))
    if "fail" in spec:
        watch(spec["fail"]["place"], failer(spec["fail"]["calls"], spec["fail"]["errno"]))
    if "break" in spec:
        _BREAKS[spec["break"]]()
    if "interrupt_at_step" in spec:
        _interrupt_at(spec["interrupt_at_step"])


def watch(place: str, hit: Hit) -> None:
    """Let all calls of a place go through `hit`."""
    within = PLACES[place].within
    for module_name, parts in PLACES[place].calls.items():
        module = importlib.import_module(module_name)
        for part, names in parts.items():
            setattr(module, part, Watched(getattr(module, part), names, hit, within))


def killer(number: int, moment: str) -> Hit:
    """What kills the process at the call of this number, counted from 1."""
    calls = 0

    def hit(name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != number:
            return original(*args, **kwargs)
        if moment == "after":
            original(*args, **kwargs)
        elif moment == "during":
            _half(name, original, *args)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("a process that was killed goes on")

    return hit


def failer(calls: Sequence[int], code: int) -> Hit:
    """What makes the calls of these numbers, from the first to the last, fail as the system would."""
    number = 0

    def hit(name: str, original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal number
        number += name != "rmtree"
        if calls[0] <= number <= calls[1] and name != "rmtree":
            names = () if name in ("write", "fsync") else (str(args[0]),)  # open files have no name for the system
            raise OSError(code, os.strerror(code), *names)
        return original(*args, **kwargs)

    return hit


def _half(name: str, original: Any, *args: Any) -> None:
    """Half of a write; one file of a folder that is to be removed. The others are done or not."""
    if name == "write":
        original(args[0], args[1][: len(args[1]) // 2])
    elif original is shutil.rmtree and Path(args[0]).is_dir():
        next(path for path in sorted(Path(args[0]).iterdir())).unlink()


def _keep_torch() -> None:
    import torch

    _leave_alone(torch.get_rng_state, torch.set_rng_state)


def _keep_numpy() -> None:
    import numpy as np

    _leave_alone(np.random.get_state, np.random.set_state)


def _leave_alone(get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
    """One generator stays where it stands in the resumed process."""
    from marl_sb3.core.state.randomness import ProcessRandomness

    original = ProcessRandomness.read_state

    def all_but_one(self: ProcessRandomness, saved: Any) -> Callable[[], None]:
        put_back = original(self, saved)

        def put_back_all_but_one() -> None:
            kept = get()
            put_back()
            put(kept)

        return put_back_all_but_one

    ProcessRandomness.read_state = all_but_one  # type: ignore[method-assign]


def _other_env_seed() -> None:
    """The envs' episodes to come get seeds of another run."""
    from marl_sb3.core.state.state import StateReader
    from marl_sb3.core.training.runner import LocalRunner

    original = LocalRunner.read_state

    def with_other_seed(self: LocalRunner, saved: Any) -> Any:
        running = saved.value("running")
        changed = {"running": {**running, "run_seed": running["run_seed"] + 1}, "left_out": None}
        return original(self, StateReader(changed, saved.where, saved.num_envs, saved.files))

    LocalRunner.read_state = with_other_seed  # type: ignore[method-assign]


_BREAKS = {"torch": _keep_torch, "numpy": _keep_numpy, "env": _other_env_seed}


def _interrupt_at(step: int) -> None:
    """Ctrl-C in the step of this number, in the middle of a rollout."""
    from marl_sb3.callbacks import StopOnSignal

    original, steps = StopOnSignal._on_step, 0

    def on_step(self: StopOnSignal) -> bool:
        nonlocal steps
        steps += 1
        if steps == step:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self)

    StopOnSignal._on_step = on_step  # type: ignore[method-assign]


if __name__ == "__main__":
    install(json.loads(sys.argv.pop(1)))
    runpy.run_module("marl_sb3.train", run_name="__main__", alter_sys=True)

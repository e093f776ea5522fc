"""Envs that do to their process what envs should not do; factories and classes that workers can import."""

from __future__ import annotations

import gc
import logging
import multiprocessing
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from toy_envs import ScriptedEnv
from waiting import wait_for

LONG = {"a": (7, "terminated"), "b": (9, "truncated")}


class Numbers(ScriptedEnv):
    """Shows numbers that follow from the seed and the actions; agents a and b end one after the other."""

    def __init__(self, env_index: int = 0, **arguments: Any) -> None:
        super().__init__({"script": LONG, **arguments}["script"], env_index=env_index, infos=False)

    def process(self) -> int:
        """Where it is."""
        return os.getpid()

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.rng = np.random.default_rng(seed)
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.rng = np.random.default_rng([int(self.rng.integers(2**30)), *map(int, actions.values())])
        return super().step(actions)

    def observation(self, agent: str) -> np.ndarray:
        return np.random.default_rng(self.rng.bit_generator.state["state"]["state"] % 2**32).random(3, np.float32)


class Fatal(Numbers):
    """Env 1 ends or stops its process in one step, as often as there are files for it in a folder.

    Args:
        at: the step; -1: when it is made.
    """

    def __init__(self, folder: str, how: str = "kill", at: int = 4, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.folder, self.how, self.at = Path(folder), how, at
        self._end_process(-1)

    def step(self, actions: Any) -> Any:
        self._end_process(self.step_count)
        return super().step(actions)

    def _end_process(self, step: int) -> None:
        for file in self.folder.glob("*") if (self.env_index, step) == (1, self.at) else ():
            file.unlink()
            HOW[self.how]()


HOW = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: os._exit(3),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "sleep": lambda: time.sleep(1000),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


class AlwaysFatal(Numbers):
    """Every env ends its process in its third step."""

    def step(self, actions: Any) -> Any:
        if self.step_count == 2:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(actions)


class Unrepeatable(Numbers):
    """Env 1 shows other numbers each time."""

    def observation(self, agent: str) -> np.ndarray:
        return np.random.default_rng().random(3, np.float32) if self.env_index == 1 else super().observation(agent)


class UnrepeatableGame(gymnasium.Env[Any, Any]):
    """Shows other numbers each time, and pays 1 for each of five steps."""

    observation_space = gymnasium.spaces.Box(0, 1, (2, 2))
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, **_: Any) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return np.random.default_rng().random((2, 2), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return np.random.default_rng().random((2, 2), np.float32), 1.0, self.steps == 5, False, {}


class OncePerProcess(Numbers):
    """A second one cannot be made in the same process."""

    made: ClassVar[list[int]] = []

    def __init__(self, env_index: int = 0) -> None:
        if self.made:
            raise RuntimeError("the simulator runs already")
        self.made.append(env_index)
        super().__init__(env_index)


class Talking(Numbers):
    """Warns in its first step, and logs."""

    def step(self, actions: Any) -> Any:
        if self.step_count == 0:
            warnings.warn("the water is low", UserWarning, stacklevel=1)
            logging.getLogger("ponds").info("level %d", self.env_index)
            logging.getLogger("ponds.fish").debug("silent")
        return super().step(actions)


class Failing(Numbers):
    """Env 2 raises an exception in its second step."""

    def __init__(self, error: type[BaseException] = KeyError, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.error = error

    def step(self, actions: Any) -> Any:
        if self.env_index == 2 and self.step_count == 1:
            raise self.error("wheel")
        return super().step(actions)


class Modules(Numbers):
    """Says what its process has imported, and what its environment is."""

    def modules(self) -> list[str]:
        return list(sys.modules)

    def num_frozen(self) -> int:
        return gc.get_freeze_count()

    def folder(self) -> str:
        return os.getcwd()

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)


class Parent(Numbers):
    """Has a child process, which has inherited all that a process can inherit."""

    def __init__(self, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,), daemon=True)
        self.child.start()

    def child_process(self) -> int:
        return self.child.pid or 0


class Printing(Numbers):
    """Writes a line to standard output in each step, and another one past Python."""

    def step(self, actions: Any) -> Any:
        print(f"env {self.env_index} → step {self.step_count}")
        os.write(1, b"from below\n")
        return super().step(actions)


class Asleep(Numbers):
    """Its first step does not end."""

    def step(self, actions: Any) -> Any:
        self.sleep_long()
        return super().step(actions)

    def sleep_long(self) -> None:
        time.sleep(1000)


class SlowToBuild(ScriptedEnv):
    """Is built when there is a file.

    Args:
        begun: a file that it makes.
        go: the file that it waits for.
    """

    def __init__(self, begun: str, go: str) -> None:
        super().__init__()
        Path(begun).touch()
        wait_for(Path(go).exists)


class SlowUntil(Numbers):
    """Takes its time for each step until there is a file."""

    def __init__(self, seen: str, env_index: int = 0) -> None:
        super().__init__(env_index)
        self.seen = Path(seen)

    def step(self, actions: Any) -> Any:
        if not self.seen.exists():
            time.sleep(0.01)
        return super().step(actions)


class ChangesFolder(ScriptedEnv):
    """Changes the working folder of its process in every reset."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        os.chdir(self.folder)
        return super().reset(seed, options)

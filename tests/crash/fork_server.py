"""A process that has imported everything, and forks a child for each command: that starts in milliseconds.

`python fork_server.py DESCRIPTOR LISTENER ADDRESS` talks over the connection DESCRIPTOR, and over those that are made
to the socket ADDRESS, at which the descriptor LISTENER listens. `("fork", command)` is answered by `("pid", number)`,
and by `("exit", number, code)` when the child has ended, with a code as `subprocess` has it. `("signal", number,
signal)` goes to a child of the connection that still runs. Children end with their connection, and everything with the
first. The fork servers of a child, and trainings that it starts with `--seeds`, are forked here, too.
"""

from __future__ import annotations

import builtins
import contextlib
import gc
import importlib
import io
import os
import runpy
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any

SMALL = ["--timesteps", "8", "--seed", "0", "--set", "n_steps=4", "--set", "batch_size=4", "--quiet"]


@dataclass(frozen=True)
class Command:
    """A command, as `subprocess.Popen` would start it."""

    # of Python: `-m MODULE ARGUMENT...` or `FILE ARGUMENT...`, with `-W error::CATEGORY` before them
    arguments: Sequence[str]
    folder: str  # it works in
    environment: Mapping[str, str]  # all of it; variables that Python reads when it starts have no effect
    path: Sequence[str]  # where it finds modules, after its own folder
    output: str  # a file, a pipe with a name or a terminal, by path
    errors: str | None  # the same; None: where the output goes
    parent: int  # what it takes for its parent, by number
    shims: Mapping[str, Any] = field(default_factory=dict)  # what is done to it, see `shims.py`
    new_session: bool = False  # a terminal's Ctrl-C is not for it
    descriptors: Sequence[int] = ()  # open files that it gets, which follow the command; an argument may name one


def warm_up() -> None:
    """Train and search a little, which loads what is only loaded when it is needed: kernels, TensorBoard, Optuna."""
    import torch

    import marl_sb3.evaluate
    import marl_sb3.tune  # noqa: F401
    from marl_sb3 import tune
    from marl_sb3.envs.arena import ArenaEnv
    from marl_sb3.train import main

    class Own(ArenaEnv):
        """No worker can import it: the search is in this process."""

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        os.chdir(folder)
        torch_path = ["--set", "update_path=torch"]  # whose optimizers import torch._dynamo, which takes a second
        for number, options in enumerate((["--policies", "per_agent"], ["--vectorizer", "sync"], torch_path)):
            assert main(["arena", "--n-envs", "2", *SMALL, *options, "--run-dir", str(number)]) == 0
            assert main(["--resume", str(number), "--timesteps", "8", "--quiet"]) == 0
        settings = {"n_envs": 2, "n_steps": 4, "batch_size": 4}
        tune(Own, trials=1, timesteps=8, seed=0, evaluations=1, evaluation_episodes=1, settings=settings, study="one",
             confirm_seeds=0)  # fmt: skip
        os.chdir("/")


class Server:
    """Starts children until the first connection is closed."""

    def __init__(self, first: Connection, listener: socket.socket) -> None:
        self._first, self._connections = first, [first]
        self._children: dict[int, tuple[Connection, Command]] = {}
        self._listener = listener
        self._ended, wake = os.pipe()  # has something to read when a child has ended
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Answer requests."""
        while self._connections[:1] == [self._first]:
            for source in wait([*self._connections, self._listener, self._ended]):
                if source is self._listener:
                    self._connections.append(Connection(self._listener.accept()[0].detach()))
                elif source == self._ended:
                    os.read(self._ended, 4096)
                    self._collect()
                else:
                    self._listen_to(source)
        for child in self._children:
            os.kill(child, signal.SIGKILL)

    def _listen_to(self, connection: Any) -> None:
        try:
            request, *arguments = connection.recv()
            getattr(self, f"_{request}")(connection, *arguments)
        except (EOFError, OSError):  # the other side is gone
            self._connections.remove(connection)
            for child, (owner, _) in self._children.items():
                if owner is connection:
                    os.kill(child, signal.SIGKILL)

    def _fork(self, connection: Connection, command: Command) -> None:
        is_ready, ready = os.pipe()
        numbers = {str(number): recv_handle(connection) for number in command.descriptors}
        child = os.fork()
        if child == 0:
            for each in (*self._connections, self._listener):
                each.close()
            os.close(is_ready)
            arguments = [str(numbers.get(argument, argument)) for argument in command.arguments]
            _run_to_the_end(replace(command, arguments=arguments), ready)
        for number in (ready, *numbers.values()):
            os.close(number)
        os.read(is_ready, 1)  # nothing, when the child has closed it: it has opened its files
        os.close(is_ready)
        self._children[child] = (connection, command)
        connection.send(("pid", child))

    def _signal(self, connection: Connection, child: int, number: int) -> None:
        if child in self._children:
            os.kill(child, number)

    def _collect(self) -> None:
        """Tell of the children that have ended."""
        for child, (connection, _) in list(self._children.items()):
            number, status = os.waitpid(child, os.WNOHANG)
            if number:
                del self._children[child]
                with contextlib.suppress(OSError):  # who started it is gone
                    connection.send(("exit", child, os.waitstatus_to_exitcode(status)))


# --- In the child ----------------------------------------------------------------------------------------------------


def _run_to_the_end(command: Command, ready: int) -> None:
    """Become the command; does not return."""
    code = 1
    try:
        _become(command)
        os.close(ready)
        code = _run(list(command.arguments))
    except SystemExit as left:
        code = _exit_code(left)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _become(command: Command) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if command.new_session:
        os.setsid()
    _redirect(command)
    os.chdir(command.folder)
    os.environ.clear()
    os.environ.update(command.environment)
    own, getppid = os.getpid(), os.getppid
    os.getppid = lambda: command.parent if os.getpid() == own else getppid()
    sys.path[:] = ["", *command.path]
    importlib.invalidate_caches()
    if "OMP_NUM_THREADS" in os.environ:
        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _fork_workers()
    if command.shims:
        importlib.import_module("shims").install(command.shims)


def _fork_workers() -> None:
    from forked import Client, forked_subprocess

    from marl_sb3.extensions.remote.processes import fork_server
    from marl_sb3.runs import jobs

    fork_server.subprocess = jobs.subprocess = forked_subprocess(Client.of(ADDRESS))


def _redirect(command: Command) -> None:
    for path, descriptors in ((os.devnull, [0]), (command.output, [1, 2]), (command.errors, [2])):
        if path is not None:
            opened = _opened(path)
            for descriptor in descriptors:
                os.dup2(opened, descriptor)
            os.close(opened)
    # New ones: whether they are terminals is asked when they are opened.
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOCTTY | os.O_APPEND)
    except OSError:
        if path.startswith("/proc/"):
            raise SystemExit(1) from None  # it was open in the process that asked for this one, and that has died
        raise


def _run(arguments: list[str]) -> int:
    if arguments[0] == "-P":
        arguments.pop(0)
    while arguments[0] == "-W":
        _, option = arguments.pop(0), arguments.pop(0)
        action, _, category = option.partition("::")
        warnings.filterwarnings(action, category=vars(builtins)[category])  # type: ignore[arg-type]
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        return int(importlib.import_module(arguments[1]).main(arguments[2:]))
    sys.argv = arguments
    sys.path[0] = str(Path(arguments[0]).parent)
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


def _exit_code(left: SystemExit) -> int:
    if left.code is None or isinstance(left.code, int):
        return left.code or 0
    print(left.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent.parent))
    importlib.import_module("compiling_once").compile_once()  # as the processes that run the tests do
    gc.disable()
    warm_up()
    gc.freeze()
    gc.enable()
    ADDRESS = sys.argv[3]
    first = Connection(int(sys.argv[1]))
    server = Server(first, socket.socket(fileno=int(sys.argv[2])))
    first.send("ready")
    server.serve()
    os._exit(0)  # without taking PyTorch down in order, which takes a second

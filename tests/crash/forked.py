"""Commands as processes that start in milliseconds: they are forked from one that has imported everything."""

from __future__ import annotations

import json
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

from fork_server import Command

from marl_sb3.signals import ENDS_WITH_INPUT

_POLL_S = 0.002


class ForkedProcess:
    """A child of a fork server, with the methods of `subprocess.Popen`.

    Attributes:
        pid: its number.
        returncode: None while it runs, as far as `poll` and `wait` know.
        output: the file that its output goes into.
        stdout: to read from, where a pipe was asked for.
    """

    stdout: IO[Any] | None = None
    stderr: IO[Any] | None = None

    def __init__(self, server: Client, pid: int, output: Path) -> None:
        self._server, self.pid, self.output = server, pid, output
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            self.returncode = self._server.exit_code(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = 120.0) -> int:
        """Its exit code.

        Raises:
            subprocess.TimeoutExpired: it still runs after so many seconds.
        """
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise subprocess.TimeoutExpired(str(self.output), timeout or 0.0)
            time.sleep(_POLL_S)
        return code

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait(None)

    def send_signal(self, number: int) -> None:
        """Nothing happens if it has ended."""
        self._server.send_signal(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Client:
    """Asks a fork server to start commands.

    Args:
        connection: to the server.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._codes: dict[int, int] = {}
        self._lock = threading.Lock()

    @classmethod
    def of(cls, address: str) -> Client:
        """A client of the server that listens at an address."""
        end = socket.socket(socket.AF_UNIX)
        end.connect(address)
        return cls(Connection(end.detach()))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()  # which ends its children

    def run(
        self,
        arguments: Sequence[str],
        output: Path | str,
        errors: Path | str | None = None,
        folder: Path | str | None = None,
        environment: Mapping[str, str] | None = None,
        shims: Mapping[str, Any] | None = None,
        new_session: bool = False,
        descriptors: Sequence[int] = (),
    ) -> ForkedProcess:
        """Start a `Command`, in the folder and with the variables of this process where none are given."""
        command = Command(
            arguments=list(arguments),
            folder=os.fspath(folder or Path.cwd()),
            environment=dict(os.environ if environment is None else environment),
            path=[path for path in sys.path if path],
            output=os.path.abspath(output),
            errors=None if errors is None else os.path.abspath(errors),
            parent=os.getpid(),
            shims=shims or {},
            new_session=new_session,
            descriptors=list(descriptors),
        )
        with self._lock:
            pid = self._ask("pid", "fork", command)
            self._codes.pop(pid, None)  # of an earlier one with this number
            return ForkedProcess(self, pid, Path(output))

    def start(self, arguments: Sequence[str], shims: Mapping[str, Any], output: Path) -> ForkedProcess:
        """Start `python -m marl_sb3.train` with these arguments; what the output had before is lost."""
        output.write_bytes(b"")
        return self.run(["-m", "marl_sb3.train", *arguments], output, shims=shims)

    def exit_code(self, pid: int) -> int | None:
        """Of a child; None: it runs."""
        with self._lock:
            while self._connection.poll():
                self._note(*self._connection.recv())
            return self._codes.get(pid)

    def send_signal(self, pid: int, number: int) -> None:
        """To a child, if it runs."""
        with self._lock:
            self._connection.send(("signal", pid, number))

    def _ask(self, answer: str, *request: Any) -> Any:
        """Send a request; what ends before it is answered is noted."""
        self._connection.send(request)
        for descriptor in getattr(request[-1], "descriptors", ()):
            send_handle(self._connection, descriptor, os.getpid())
        while (message := self._connection.recv())[0] != answer:
            self._note(*message)
        return message[1]

    def _note(self, kind: str, pid: int, code: int) -> None:
        assert kind == "exit"
        self._codes[pid] = code


def run_really(
    arguments: Sequence[str],
    output: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    shims: Mapping[str, Any] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process of the system, which takes seconds; see `Client.run`. One with shims has to train."""
    start = [str(Path(__file__).with_name("shims.py")), json.dumps(shims), *arguments[2:]] if shims else arguments
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, *start], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )


class ForkServer(Client):
    """A fork server and the first of its clients; a context manager, which waits until it is ready.

    Attributes:
        address: of the socket for further clients, who may connect at once, and are answered when it is ready.
    """

    def __init__(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        super().__init__(ours)
        self._folder = tempfile.TemporaryDirectory(prefix="forks-")
        file, self.address = Path(__file__).with_name("fork_server.py"), str(Path(self._folder.name, "socket"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen()
        numbers = [theirs.fileno(), listener.fileno()]
        # Kernels are compiled for the processes that are here already; their number of threads is their own business.
        command = [sys.executable, "-W", "ignore", str(file), *map(str, numbers), self.address]
        self._process = subprocess.Popen(command, pass_fds=numbers, stdin=subprocess.DEVNULL)
        theirs.close()
        listener.close()

    def __enter__(self) -> ForkServer:
        assert self._connection.recv() == "ready"
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()  # which ends it, and its children
        self._process.wait()
        self._folder.cleanup()


class Commands:
    """Runs commands in processes of their own, in one folder; nothing is registered in them."""

    def __init__(self, server: ForkServer, folder: Path) -> None:
        self.server, self.folder = server, folder

    def __call__(self, line: str) -> tuple[int, str]:
        """Run `NAME ARGUMENT...`; returns the exit code and the output."""
        name, *words = shlex.split(line)
        output = self.folder / "output.txt"
        output.write_bytes(b"")
        process = self.server.run(["-m", f"marl_sb3.{name}", *words], output, folder=self.folder)
        return process.wait(), output.read_text()


def forked_subprocess(client: Client) -> Any:
    """`subprocess`, as a module may see it: `Popen` forks what `sys.executable` would run, and starts the rest."""

    def popen(command: Sequence[str], **options: Any) -> Any:
        if command[0] != sys.executable:
            return subprocess.Popen(command, **options)
        mode = "r" if options.pop("text", False) else "rb"
        ends: dict[str, int] = {}
        for name in ("stdout", "stderr"):
            if options[name] == subprocess.PIPE:
                ends[name], theirs = os.pipe()
                options[name] = os.fdopen(theirs, "wb")
        process = _start(client, command, **options)
        for name, ours in ends.items():
            options[name].close()
            setattr(process, name, os.fdopen(ours, mode))
        return process

    return SimpleNamespace(**{**vars(subprocess), "Popen": popen})


def _start(
    client: Client,
    command: Sequence[str],
    *,
    stdout: IO[Any],
    stderr: IO[Any],
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: int = subprocess.DEVNULL,  # a forked process reads nothing
    start_new_session: bool = False,
    process_group: int | None = None,
    pass_fds: Sequence[int] = (),
) -> ForkedProcess:
    env = {name: value for name, value in env.items() if name != ENDS_WITH_INPUT}
    output, errors = (f"/proc/{os.getpid()}/fd/{number}" for number in (stdout.fileno(), stderr.fileno()))
    apart = start_new_session or process_group is not None
    return client.run(command[1:], output, errors, cwd, env, new_session=apart, descriptors=pass_fds)

"""Ray: check its address, connect to a cluster or start a Ray on this machine, and a pool of Ray's actors."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from marl_sb3.errors import ConfigError, install_words, require_known
from marl_sb3.extensions.remote.processes.messages import Failed, MessageLog, pass_on
from marl_sb3.extensions.remote.processes.pool import Lost, Make, ProcessPool, unsendable
from marl_sb3.extensions.remote.ray import RaySettings
from marl_sb3.systems import without_hangup

_log = logging.getLogger(__name__)

LOCAL, AUTO = "local", "auto"
_CONNECT_TIMEOUT_S = 3.0
_PROBE_TIMEOUT_S = 20.0


def require_ray(address: str) -> Any:
    """Return the module `ray`; refuse an address of another form, and a process without Ray.

    Raises:
        ConfigError: names what is missing.
    """
    host, _, port = address.rpartition(":")
    if address not in (LOCAL, AUTO) and (not host or not port.isdecimal() or "/" in host):
        raise _refused(f"--ray is {address!r}; accepted: local, auto, or HOST:PORT of a cluster's head")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:
        # Ray reads it when it is imported: a Ray of one's own then listens on the loopback interface alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise _refused(f"Ray is not installed ({error}); {install_words('ray')}; or leave out --ray") from error
    return ray


def answering(address: str) -> str:
    """Return the `HOST:PORT` of a cluster that answers.

    Ray itself would try for minutes and then end the process.

    Raises:
        ConfigError: there is no cluster at the address, or it needs a token.
    """
    cluster = _cluster_of_this_machine() if address == AUTO else address
    host, _, port = cluster.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise _refused(f"ray: there is no cluster at {address!r}: {error}; {_ACCEPTED}") from error
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", cluster]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _refused(f"ray: no Ray cluster answers at {address!r}; {_ACCEPTED}") from error
    said = (probe.stderr or probe.stdout).strip()
    if probe.returncode == 0:
        return cluster
    if "AuthenticationError" in said:
        raise _refused(
            f"ray: the cluster at {address!r} wants its token; accepted: with RAY_AUTH_MODE=token in the environment, "
            "and the token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    last = said.rpartition("\n")[2] or "it does not answer as Ray does"
    raise _refused(f"ray: no Ray cluster answers at {address!r}: {last}; {_ACCEPTED}")


def _cluster_of_this_machine() -> str:
    from ray._private import services
    from ray._private.authentication import authentication_token_setup as token

    cluster = None
    with suppress(ConnectionError, ValueError, OSError):
        cluster = services.canonicalize_bootstrap_address(AUTO)
    if cluster is None:
        raise _refused("--ray is 'auto', but no Ray cluster runs on this machine; accepted: local, or HOST:PORT")
    if "RAY_ADDRESS" not in os.environ:  # as `ray.init` does: the token is for the clusters of this machine alone
        token.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return str(cluster)


_ACCEPTED = "accepted: local, auto, or HOST:PORT of a cluster"


def _refused(words: str) -> ConfigError:
    return ConfigError(words, key="ray.address")


# --- Connections -----------------------------------------------------------------------------------------------------


class Connection:
    """A connection to Ray; `close` ends it, and with it a Ray that was started for it.

    If this process is connected to Ray already, that connection is used, and is not ended.

    Args:
        settings: of the run.
        processes: number of processes that are wanted. A Ray of its own has the CPUs for them, and at least those of
            the machine.

    Raises:
        ConfigError: Ray is not installed, the address has no cluster, the cluster has other versions, or Ray does
            not accept the `runtime_env`.
    """

    def __init__(self, settings: RaySettings, processes: int) -> None:
        self.ray = require_ray(settings.address)  # the module
        self.options: dict[str, Any] = {"num_cpus": settings.num_cpus}  # Ray's options of such a process
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of a Ray of its own: sockets and logs
        self._is_own = not self.ray.is_initialized()
        try:
            if self._is_own:
                with _undisturbed():
                    self._connect(settings, processes)
            else:
                self.options["runtime_env"] = self._runtime_env(settings)
        except BaseException as error:
            self.close()
            if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # from Ray's handler of the signal
                raise KeyboardInterrupt from error
            if isinstance(error, ConfigError) or not isinstance(error, (Exception, SystemExit)):
                raise
            raise _refused(f"ray: cannot connect to {settings.address!r}: {_first_line(error)}") from error

    def _connect(self, settings: RaySettings, processes: int) -> None:
        # The whole connection gets the runtime_env: Ray uploads its local folders for a connection alone.
        common = {"runtime_env": self._runtime_env(settings), "log_to_driver": False, "configure_logging": False}
        if settings.address == LOCAL:
            self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            cpus = max(os.cpu_count() or 1, math.ceil(processes * settings.num_cpus))
            of_connection = {
                "address": LOCAL,
                "include_dashboard": False,
                "num_cpus": cpus,
                "_temp_dir": self._folder.name,
            }
        else:
            of_connection = {"address": answering(settings.address)}
        self.ray.init(**common, **of_connection)
        self.ray._private.worker.print_to_stdstream = _log_message

    def _runtime_env(self, settings: RaySettings) -> Mapping[str, Any] | None:
        if settings.runtime_env is None:
            return None
        from ray.runtime_env import RuntimeEnv

        known = sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_"))
        for name in sorted(set(settings.runtime_env) - RuntimeEnv.known_fields):
            require_known(name, known, f"ray: runtime_env: unknown field {name!r}", "ray_runtime_env")
        try:
            return dict(RuntimeEnv(**settings.runtime_env))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"ray: runtime_env: {_first_line(error)}", key="ray_runtime_env") from error

    def close(self) -> None:
        """End the connection."""
        try:
            if self._is_own:
                self.ray.shutdown()
        except KeyboardInterrupt:  # a second Ctrl-C: what has begun to end takes no more than seconds
            self.ray.shutdown()
            raise
        finally:
            if self._folder is not None:
                self._folder.cleanup()


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep Ray from logging hints, from replacing the handler of SIGTERM, and SIGHUP from the processes that it starts.

    When a terminal is closed, this process has to save the training before they end. Ray itself keeps SIGINT from them.
    """
    logger = logging.getLogger("ray")
    level, before = logger.level, signal.getsignal(signal.SIGTERM)
    logger.setLevel(logging.ERROR)
    try:
        with without_hangup():
            yield
    finally:
        logger.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _log_message(message: Mapping[str, Any], **_: Any) -> None:
    """Log what Ray prints about processes that have ended: standard output is for the name of the run folder."""
    for line in message["lines"]:
        _log.debug("Ray: %s", line)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


# --- Actors ----------------------------------------------------------------------------------------------------------


class ServingActor:
    """A Ray actor that serves an object."""

    def __init__(self, make: Make, argument: Any) -> None:
        self._log = MessageLog()
        self._log.install()
        self._served = make(argument)

    def call(self, method: str, *arguments: Any) -> tuple[Any, Sequence[tuple[Any, ...]]]:
        """Call a method of the object; returns its result or `Failed`, and what was logged."""
        try:
            return getattr(self._served, method)(*arguments), self._log.taken()
        except Exception as error:
            return Failed(error), self._log.taken()


class RayPool(ProcessPool):
    """A `ProcessPool` of Ray actors.

    Args:
        connection: is closed with the pool.
        make: makes what each actor serves.
    """

    def __init__(self, connection: Connection, make: Make) -> None:
        super().__init__()
        self._connection, self._make = connection, make
        self._ray = connection.ray
        self._options = {**connection.options, "max_restarts": 0, "max_task_retries": 0}
        self._actors: dict[int, Any] = {}
        self._asked: dict[Any, int] = {}  # reference -> process
        self._argument: Any = None  # it is the same for all actors

    def begin(self, argument: Any) -> int:
        """Begin to start an actor."""
        if self._argument is None:
            try:
                self._argument = self._ray.put(argument)
            except (TypeError, AttributeError, ValueError) as error:  # what pickle raises; Ray adds pages to it
                raise unsendable(error.__cause__ or error.__context__ or error) from error
        process = next(self._numbers)
        actor = self._ray.remote(ServingActor).options(**self._options)
        self._actors[process] = actor.remote(self._make, self._argument)
        self.send(process, "versions")
        return process

    def send(self, process: int, method: str, *arguments: Any) -> None:
        """Send a message."""
        self._asked[self._actors[process].call.remote(method, *arguments)] = process

    def share(self, value: Any) -> Any:
        """Put the value into Ray's store."""
        return self._ray.put(value)

    def poll(self, timeout_s: float) -> Sequence[tuple[int, Any]]:
        """Return answers that have arrived; if there are none, wait for one."""
        waiting = list(self._asked)
        if not waiting:
            return []
        ready, waiting = self._ray.wait(waiting, num_returns=1, timeout=timeout_s, fetch_local=False)
        if waiting:
            more, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=0, fetch_local=False)
            ready += more
        return [(self._asked.pop(reference), self._result(reference)) for reference in ready]

    def _result(self, reference: Any) -> Any:
        errors = self._ray.exceptions
        try:
            result, messages = self._ray.get(reference)
        except errors.RayTaskError as error:
            return Failed(RuntimeError(f"a runner raised: {_words(error)}"))
        except errors.RayError as error:
            return Lost(_words(error))
        pass_on(messages)
        return result

    def end(self, process: int) -> None:
        """Kill an actor."""
        self._ray.kill(self._actors.pop(process))
        self._asked = {reference: asked for reference, asked in self._asked.items() if asked != process}

    def close(self) -> None:
        """Kill all actors, and end the connection."""
        for process in list(self._actors):
            self.end(process)
        self._connection.close()


def _words(error: BaseException) -> str:
    """Return what an exception of Ray says, on one line and without the stacks of its inner workings."""
    *_, last = ["", *str(error).strip().splitlines()[1:]]
    last, *_ = re.split(r" (?:Worker exit type|Node Id):", last if ": " in last else "")
    return " ".join(f"{type(error).__name__}: {_first_line(error)} {last}".split())[:400]

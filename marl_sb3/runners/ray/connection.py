"""Connect to a Ray cluster, or start a Ray of one's own on this machine."""

from __future__ import annotations

import logging
import math
import os
import signal
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from marl_sb3.config.ray import RaySettings
from marl_sb3.errors import ConfigError
from marl_sb3.runners.ray.address import LOCAL, answering, require_ray

_log = logging.getLogger(__name__)


class Connection:
    """A connection to Ray; `close` ends it, and with it a Ray that was started for it.

    If this process is connected to Ray already, that connection is used, and is not ended.

    Args:
        settings: of the run.
        processes: number of processes that are wanted. A Ray of its own has the CPUs for them, and at least those of
            the machine.

    Attributes:
        ray: the module.
        options: Ray's options of such a process.

    Raises:
        ConfigError: Ray is not installed, nobody answers at the address, the cluster has other versions, or Ray does
            not accept the `runtime_env`.
    """

    def __init__(self, settings: RaySettings, processes: int) -> None:
        self.ray = require_ray(settings.address)
        self.options: dict[str, Any] = {"num_cpus": settings.num_cpus}
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of a Ray of its own: sockets and logs
        self._is_own = not self.ray.is_initialized()
        with self._refusals_named(settings.address):
            if not self._is_own:
                self.options["runtime_env"] = self._runtime_env(settings)
                return
            with _signals_preserved(), _silent():
                self._connect(settings, processes)

    def _connect(self, settings: RaySettings, processes: int) -> None:
        # The whole connection gets the runtime_env: Ray uploads its local folders for a connection alone.
        common = {"runtime_env": self._runtime_env(settings), "log_to_driver": False, "configure_logging": False}
        if settings.address == LOCAL:
            self._folder = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)
            cpus = max(os.cpu_count() or 1, math.ceil(processes * settings.num_cpus))
            own = {"address": LOCAL, "include_dashboard": False, "num_cpus": cpus, "_temp_dir": self._folder.name}
        else:
            own = {"address": answering(settings.address)}
        self.ray.init(**common, **own)
        self.ray._private.worker.print_to_stdstream = _log_message

    def _runtime_env(self, settings: RaySettings) -> Mapping[str, Any] | None:
        if settings.runtime_env is None:
            return None
        from ray.runtime_env import RuntimeEnv

        unknown = sorted(set(settings.runtime_env) - RuntimeEnv.known_fields)
        if unknown:
            accepted = ", ".join(sorted(name for name in RuntimeEnv.known_fields if not name.startswith("_")))
            raise ConfigError(
                f"ray: runtime_env: unknown field {unknown[0]!r}; accepted: {accepted}", key="ray_runtime_env"
            )
        try:
            return dict(RuntimeEnv(**settings.runtime_env))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"ray: runtime_env: {_first_line(error)}", key="ray_runtime_env") from error

    @contextmanager
    def _refusals_named(self, address: str) -> Iterator[None]:
        """Close the connection on an error; say in words what Ray refuses."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, SystemExit) and error.code == signal.SIGTERM:  # from Ray's handler of the signal
                raise KeyboardInterrupt from error
            if isinstance(error, ConfigError) or not isinstance(error, (Exception, SystemExit)):
                raise
            raise ConfigError(f"ray: cannot connect to {address!r}: {_first_line(error)}", key="ray.address") from error

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
def _signals_preserved() -> Iterator[None]:
    """Keep the handler of SIGTERM, which Ray replaces, and SIGHUP from the processes that are started.

    When a terminal is closed, this process has to save the training before they end. Ray itself keeps SIGINT from them.
    """
    before = signal.getsignal(signal.SIGTERM)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _log_message(message: Mapping[str, Any], **_: Any) -> None:
    """Log what Ray prints about processes that have ended: standard output is for the name of the run folder."""
    for line in message["lines"]:
        _log.debug("Ray: %s", line)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray from logging hints."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

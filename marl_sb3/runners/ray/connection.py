"""Connect to a Ray cluster, or start a Ray of one's own on this machine."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from typing import Any

from marl_sb3.errors import ConfigError

LOCAL = "local"
_CONNECT_TIMEOUT_S = 3.0
_PROBE_TIMEOUT_S = 20.0


class Connection:
    """A connection to Ray; `close` ends it, and with it a Ray that was started for it.

    Args:
        address: `local` for a Ray of its own, `auto` for the cluster that runs on this machine or that the environment
            variable RAY_ADDRESS names, or `HOST:PORT` of a cluster. If this process is connected to Ray already, that
            connection is used, and is not ended.
        num_cpus: CPUs that a Ray of its own may share out, at least those of the machine.

    Attributes:
        ray: the module.

    Raises:
        ConfigError: Ray is not installed, nobody answers at the address, or the cluster has other versions.
    """

    def __init__(self, address: str, num_cpus: float) -> None:
        _require_form(address)
        self.ray = _import_ray(address)
        self._is_own = not self.ray.is_initialized()
        if self._is_own:
            self._connect(address, num_cpus)

    def _connect(self, address: str, num_cpus: float) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        try:
            if address == LOCAL:
                cpus = max(os.cpu_count() or 1, int(num_cpus + 0.999))
                self.ray.init(address=LOCAL, include_dashboard=False, num_cpus=cpus, **quiet)
            else:
                self.ray.init(address=_answering(address), **quiet)
        except (ConnectionError, RuntimeError, ValueError, SystemExit) as error:
            self.close()
            raise ConfigError(f"ray: cannot connect to {address!r}: {_first_line(error)}", key="ray.address") from error

    def close(self) -> None:
        """End the connection."""
        if self._is_own:
            self.ray.shutdown()


def require_ray(address: str) -> None:
    """Refuse an address of another form, and a process without Ray, before anything is made for either.

    Raises:
        ConfigError: names what is missing.
    """
    _require_form(address)
    _import_ray(address)


def _require_form(address: str) -> None:
    host, _, port = address.rpartition(":")
    if address not in (LOCAL, "auto") and (not host or not port.isdecimal() or "/" in host):
        raise ConfigError(
            f"--ray is {address!r}; accepted: local, auto, or HOST:PORT of a cluster's head", key="ray.address"
        )


def _import_ray(address: str) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address == LOCAL:
        # Ray reads it when it is imported: a Ray of one's own then listens on the loopback interface alone.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise ConfigError(
            f"Ray is not installed ({error}); accepted: pip install 'marl_sb3[ray]', or no --ray", key="ray.address"
        ) from error
    return ray


def _answering(address: str) -> str:
    """Return the address of a cluster that answers; Ray itself would try for minutes and then end the process."""
    found = _cluster_of_this_machine() if address == "auto" else address
    host, _, port = found.rpartition(":")
    with _no_answer_in_words(address):
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
        command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", found]
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
        if probe.returncode != 0:
            said = (probe.stderr or probe.stdout).strip().splitlines()
            raise ConnectionError(said[-1] if said else "it is no Ray cluster")
    return found


@contextlib.contextmanager
def _no_answer_in_words(address: str) -> Any:
    try:
        yield
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"ray: no Ray cluster answers at {address!r}", key="ray.address") from error
    except OSError as error:
        words = f"ray: nobody answers at {address!r}: {error}"
        raise ConfigError(f"{words}; accepted: local, auto, or HOST:PORT of a cluster", key="ray.address") from error


def _cluster_of_this_machine() -> str:
    from ray._private import services

    try:
        found = services.canonicalize_bootstrap_address("auto")
    except (ConnectionError, ValueError, OSError) as error:
        found = None
        raise ConfigError(_NO_CLUSTER, key="ray.address") from error
    if found is None:
        raise ConfigError(_NO_CLUSTER, key="ray.address")
    return str(found)


_NO_CLUSTER = "--ray is 'auto', but no Ray cluster runs on this machine; accepted: local, or HOST:PORT"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

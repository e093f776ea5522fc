"""Check an address of Ray: its form, that Ray is installed, and that a cluster answers there."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

from marl_sb3.errors import ConfigError, install_words

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
        ConfigError: nobody answers, or the cluster wants a token.
    """
    found = _cluster_of_this_machine() if address == AUTO else address
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise _refused(f"ray: nobody answers at {address!r}: {error}; {_ACCEPTED}") from error
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", found]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise _refused(f"ray: no Ray cluster answers at {address!r}; {_ACCEPTED}") from error
    if probe.returncode != 0:
        raise _refused(_of_probe(address, (probe.stderr or probe.stdout).strip()))
    return found


def _of_probe(address: str, said: str) -> str:
    """Say in words why Ray's health check failed."""
    if "AuthenticationError" in said:
        return (
            f"ray: the cluster at {address!r} wants its token; accepted: with RAY_AUTH_MODE=token in the environment, "
            "and the token in ~/.ray/auth_token or RAY_AUTH_TOKEN"
        )
    last = said.rpartition("\n")[2] or "it does not answer as Ray does"
    return f"ray: no Ray cluster answers at {address!r}: {last}; {_ACCEPTED}"


def _cluster_of_this_machine() -> str:
    from ray._private import services
    from ray._private.authentication import authentication_token_setup as token

    try:
        found = services.canonicalize_bootstrap_address(AUTO)
    except (ConnectionError, ValueError, OSError) as error:
        raise _refused(_NO_CLUSTER) from error
    if found is None:
        raise _refused(_NO_CLUSTER)
    if "RAY_ADDRESS" not in os.environ:  # as `ray.init` does: the token is for the clusters of this machine alone
        token.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    return str(found)


_ACCEPTED = "accepted: local, auto, or HOST:PORT of a cluster"
_NO_CLUSTER = "--ray is 'auto', but no Ray cluster runs on this machine; accepted: local, or HOST:PORT"


def _refused(words: str) -> ConfigError:
    return ConfigError(words, key="ray.address")

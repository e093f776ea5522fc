"""The server: connections and their times, and how it ends."""

from __future__ import annotations

import errno
import select
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from echo_server import ASKED, CERTIFICATE, LIMITS, ROUTES, connected, error_of, raw, served
from scraping import scraped
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from waiting import wait_for

from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.guard import Limits, Listening, json_response
from marl_sb3.tools.serving.http import Server


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served() as server:
        yield server.address


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with a certificate of localhost and its key."""
    file = tmp_path_factory.mktemp("tls") / "both.pem"
    file.write_text(CERTIFICATE)
    return file


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_slow_heads_and_bodies_are_ended(address: str) -> None:
    begun = time.monotonic()
    assert raw(address, b"GET /echo HTTP/1.1\r\nHost: loc") == raw(address, b"") == b""
    body = b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n1"
    answer = raw(address, body)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the body has not arrived; accepted: within 0.3 s" in answer
    assert time.monotonic() - begun < 3


def test_a_head_that_does_not_end_is_refused(address: str) -> None:
    assert raw(address, b"GET /echo HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 70_000)[:12] in (
        b"HTTP/1.1 431",
        b"HTTP/1.1 400",
    )


@pytest.mark.parametrize("odd", ["POST /talk HTTP/1.1\r\n", "GET /talk HTTP/1.1\r\n" + "a: b\r\n" * 200])
def test_upgrades_to_a_websocket_that_cannot_be_are_answered(address: str, odd: str) -> None:
    upgrade = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\r\n"
    assert raw(address, (odd + upgrade).encode()).startswith(b"HTTP/1.1 4")


def test_a_client_that_does_not_read_its_answer_is_left() -> None:
    asked = 'marl_sb3_http_requests_total{route="/large",status="200"}'
    with served() as server, connected(server.address) as idle:
        idle.sendall(b"POST /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: scraped(server.address).get(asked) == 1)


def test_a_request_for_which_there_is_no_room_is_refused() -> None:
    head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    body = f"{head}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode()
    with served(limits=Limits(connections=2)) as server, ExitStack() as held:
        connections = [held.enter_context(connected(server.address)) for _ in range(2)]
        for connection in connections:
            connection.sendall(body)
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # it is in a request now
        refused = httpx.get(f"{server.address}/page")
        assert (refused.status_code, error_of(refused)) == (503, "all 2 connections are in use")
        for connection in connections:
            connection.sendall(b"123456789")
            while connection.recv(100):
                pass
        assert httpx.get(f"{server.address}/page").status_code == 200


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_connections_that_are_silent_make_room_for_others(secure: bool, certificate: Path) -> None:
    verify = ssl.create_default_context(cafile=certificate)
    tls, limits = certificate if secure else None, Limits(seconds=300, connections=4)
    with served(tls=tls, limits=limits) as server, ExitStack() as held:
        silent = [held.enter_context(connected(server.address)) for _ in range(12)]
        assert httpx.get(f"{server.address}/page", verify=verify).status_code == 200
        closed: list[Any] = []  # also before the handshake
        wait_for(lambda: closed.extend(select.select(silent, [], [], 0)[0]) or len(set(closed)) >= 7)


def test_a_server_without_descriptors_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, left = socket.socket.accept, [5]

    def exhausted(listening: socket.socket) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    monkeypatch.setattr("marl_sb3.tools.serving.http._ACCEPT_AGAIN_S", 0.01)
    with served() as server:
        assert httpx.get(f"{server.address}/page").status_code == 200
    assert caplog.text.count("a connection is not accepted: [Errno 24] Too many open files") == 5


# --- The server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, r"--host is '0.0.0.0'.*; accepted: with --token TOKEN"),
        ({"tls_cert": Path("missing.pem")}, "PEM files of a certificate and its key"),
        ({"tls_cert": Path(__file__)}, "PEM files of a certificate and its key"),
        ({"tls_key": Path("key.pem")}, "--tls-key is given without --tls-cert"),
    ],
)
def test_what_cannot_be_served_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Server(ROUTES, Listening(**settings), LIMITS)


def test_a_taken_port_is_refused(address: str) -> None:
    port = int(address.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1 port {port}: .*--port 0"):
        Server(ROUTES, Listening(port=port), LIMITS)


def test_https_with_a_certificate_and_its_key_in_one_file(certificate: Path) -> None:
    with served(tls=certificate) as server:
        assert server.address.startswith("https://127.0.0.1:")
        verified = ssl.create_default_context(cafile=certificate)
        assert httpx.get(f"{server.address}/echo", verify=verified).json() == {"bytes": 0}
        with pytest.raises(httpx.ConnectError, match="certificate verify failed"):
            httpx.get(f"{server.address}/echo")


def test_requests_in_flight_are_answered_when_the_server_ends() -> None:
    answers: list[Any] = []
    with served() as server:
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{server.address}/slow").json()))
        asking.start()
        assert ASKED.wait(30)
    asking.join()
    assert answers == ["done"]


def test_requests_that_come_just_before_the_end_are_answered() -> None:
    """The server's loop is busy while their clients connect: some connections are accepted, and some wait for that."""
    is_blocked, goes_on = threading.Event(), threading.Event()

    async def blocking(_: Request) -> Response:
        is_blocked.set()
        goes_on.wait(30)
        return json_response("done")

    with Server([Route("/blocking", blocking), *ROUTES], Listening(), LIMITS) as server, ExitStack() as held:
        blocked = held.enter_context(connected(server.address))
        blocked.sendall(b"GET /blocking HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert is_blocked.wait(30)
        late = [held.enter_context(connected(server.address)) for _ in "123"]
        for connection in late:
            connection.sendall(b"GET /page HTTP/1.1\r\nHost: localhost\r\n\r\n")
        server._uvicorn.end(signal.SIGINT)
        time.sleep(0.2)  # uvicorn looks every 0.1 s whether it is to end: the time has come when it goes on
        goes_on.set()
        for connection in (blocked, *late):
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
    assert server._error is None


def test_a_server_that_is_to_end_before_it_has_begun_ends() -> None:
    server = served()
    (uvicorn := server._uvicorn).should_exit = True
    uvicorn.on_started = lambda: None
    (thread := server._thread).start()
    thread.join(5)
    assert not thread.is_alive()
    assert server._error is None

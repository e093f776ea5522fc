"""The guards of an app, and the server it runs in."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from serve_faults import CERTIFICATE
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.http import (
    Limits,
    Listening,
    RequestError,
    Server,
    is_loopback,
    json_response,
    served_hosts,
)

TOKEN = "0123456789abcdef"
LIMITS = Limits(body_bytes=1000, seconds=0.3, connections=4)


async def echo(request: Request) -> Response:
    return json_response({"bytes": len(await request.body())})


async def failing(request: Request) -> Response:
    if request.query_params.get("how") == "config":
        raise ConfigError("x is 1; accepted: 2", key="x")
    if request.query_params.get("how") == "request":
        raise RequestError("too much", 413, agent="a")
    raise KeyError("secret")


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())
    await websocket.close()


ASKED = threading.Event()


async def slow(_: Request) -> Response:
    ASKED.set()
    await asyncio.sleep(0.3)
    return json_response("done")


ROUTES = [
    Route("/echo", echo, methods=["GET", "POST"]),
    Route("/fail", failing),
    Route("/page", echo),
    Route("/slow", slow),
    WebSocketRoute("/talk", talk),
]


def served(token: str | None = None, limits: Limits = LIMITS, tls: Path | None = None, **settings: Any) -> Server:
    return Server(ROUTES, Listening(token=token, tls_cert=tls), limits, **settings)


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


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    with served(TOKEN, public=["/page"]) as server:
        yield server.address


def error_of(response: httpx.Response) -> str:
    message: str = response.json()["error"]["message"]
    return message


def connected(address: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), timeout=5)


def raw(address: str, data: bytes) -> bytes:
    """What a server answers to bytes, until it closes the connection."""
    with connected(address) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


# --- Tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
        ({"Authorization": f"bearer {TOKEN}"}, 200),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": "Bearer \xe4"}, 401),
        ({"Authorization": f"Basic {TOKEN}"}, 401),
    ],
)
def test_requests_show_their_token(guarded: str, headers: dict[str, str], status: int) -> None:
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    assert httpx.get(f"{guarded}/echo", headers=encoded).status_code == status
    assert httpx.get(f"{guarded}/echo?token={TOKEN}").status_code == 401  # addresses end up in logs


def test_a_refusal_says_what_is_accepted(guarded: str) -> None:
    response = httpx.get(f"{guarded}/echo")
    assert error_of(response) == "a token is missing; accepted: Authorization: Bearer TOKEN"
    assert response.headers["www-authenticate"] == "Bearer"


def test_public_paths_need_no_token(guarded: str) -> None:
    assert httpx.get(f"{guarded}/page").status_code == 200
    assert httpx.get(f"{guarded}/page/more").status_code == 401


@pytest.mark.parametrize("token", ["", "short", "with space in it", "x" * 201, "täglich-neu"])
def test_weak_tokens_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="accepted: 8 to 200 letters"):
        served(token)


def test_websockets_show_their_token_as_browsers_can(guarded: str) -> None:
    url = guarded.replace("http", "ws") + "/talk"
    with connect(f"{url}?token={TOKEN}") as websocket:
        websocket.send("hello")
        assert websocket.recv() == "hello"
    with connect(url, subprotocols=["marl-sb3", f"token.{TOKEN}"]) as websocket:  # type: ignore[list-item]
        assert websocket.subprotocol == "marl-sb3"
    for wrong in (url, f"{url}?token=wrong", f"{url}?other={TOKEN}"):
        with pytest.raises(InvalidStatus) as refused:
            connect(wrong)
        assert refused.value.response.status_code == 401


# --- Foreign pages ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"])
def test_own_names_are_served(address: str, host: str) -> None:
    assert httpx.get(f"{address}/echo", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("localhost.evil.example:80", 403), ("a b", 400)])
def test_other_names_are_refused(address: str, host: str, status: int) -> None:
    response = httpx.get(f"{address}/echo", headers={"Host": host})
    assert response.status_code == status
    with pytest.raises(InvalidStatus) as refused:
        connect(address.replace("http", "ws") + "/talk", additional_headers={"Host": host})
    assert refused.value.response.status_code == 400  # websockets adds its own Host: there are two


def test_pages_of_other_servers_are_refused(address: str) -> None:
    own, foreign = {"Origin": address}, {"Origin": "http://evil.example"}
    assert httpx.post(f"{address}/echo", headers=own).status_code == 200
    for headers in (foreign, {"Origin": "null"}, {"Origin": f"{address}0"}):
        for method in ("POST", "PUT", "PATCH", "DELETE"):  # whatever the route takes
            assert httpx.request(method, f"{address}/echo", headers=headers).status_code == 403
    websocket = address.replace("http", "ws") + "/talk"
    with connect(websocket, origin=address):  # type: ignore[arg-type]
        pass
    with pytest.raises(InvalidStatus):
        connect(websocket, origin="http://evil.example")  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_what_a_foreign_page_may_post_without_asking_is_refused(address: str, kind: str) -> None:
    """For these types of content, browsers do not ask the server before they send a request."""
    asked = {"Content-Type": kind, "Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"}
    for left_out in ((), ("Sec-Fetch-Site",), ("Origin",)):  # by old browsers; by those that are set to send none
        headers = {name: value for name, value in asked.items() if name not in left_out}
        assert httpx.post(f"{address}/echo", content=b"{}", headers=headers).status_code == 403
    neighbour = {"Content-Type": kind, "Sec-Fetch-Site": "same-site"}  # another port of this machine
    assert httpx.post(f"{address}/echo", content=b"{}", headers=neighbour).status_code == 403
    for site in ("same-origin", "none"):
        assert httpx.post(f"{address}/echo", headers={"Content-Type": kind, "Sec-Fetch-Site": site}).status_code == 200
    assert httpx.get(f"{address}/page", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link


def test_a_page_of_the_same_name_without_tls_is_foreign_to_a_server_with_it(address: str, certificate: Path) -> None:
    assert httpx.post(f"{address}/echo", headers={"Origin": address.replace("http", "https")}).status_code == 200
    assert httpx.post(f"{address}/echo", headers={"Origin": address.replace("http", "ftp")}).status_code == 403
    with served(tls=certificate) as server:
        verify = ssl.create_default_context(cafile=certificate)
        for scheme, status in (("https", 200), ("http", 403)):
            headers = {"Origin": f"{scheme}://{server.address.partition('://')[2]}"}
            assert httpx.post(f"{server.address}/echo", headers=headers, verify=verify).status_code == status


def test_only_a_server_with_a_token_is_served_by_any_name() -> None:
    assert served_hosts("0.0.0.0") == ("*",)
    assert served_hosts("127.0.0.2") == ("localhost", "127.0.0.1", "[::1]", "127.0.0.2")
    assert [is_loopback(host) for host in ("localhost", "::1", "127.1.2.3", "0.0.0.0", "10.0.0.1", "here")] == [
        *[True] * 3,
        *[False] * 3,
    ]


# --- Limits ----------------------------------------------------------------------------------------------------------


def test_bodies_are_read_to_their_limit(address: str) -> None:
    assert httpx.post(f"{address}/echo", content=b"x" * 1000).json() == {"bytes": 1000}
    declared = httpx.post(f"{address}/echo", content=b"x" * 1001)
    assert (declared.status_code, error_of(declared)) == (413, "the body has 1001 bytes; accepted: at most 1000")
    in_chunks = httpx.post(f"{address}/echo", content=iter([b"x" * 600] * 2))
    assert in_chunks.status_code == 413


def test_slow_heads_and_bodies_are_ended(address: str) -> None:
    begun = time.monotonic()
    assert raw(address, b"GET /echo HTTP/1.1\r\nHost: loc").startswith(b"HTTP/1.1 408")
    assert raw(address, b"").startswith(b"HTTP/1.1 408")
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


def test_a_connection_for_which_there_is_no_room_is_refused() -> None:
    head = "POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    body = f"{head}Expect: 100-continue\r\nContent-Length: 9\r\n\r\n".encode()
    with served(limits=Limits(connections=2)) as server, ExitStack() as held:
        connections = [held.enter_context(connected(server.address)) for _ in range(2)]
        for connection in connections:
            connection.sendall(body)
            assert connection.recv(100).startswith(b"HTTP/1.1 100")  # it is in a request now
        assert b"all 2 connections are in use" in raw(server.address, b"")
        for connection in connections:
            connection.sendall(b"123456789")
            while connection.recv(100):
                pass
        assert httpx.get(f"{server.address}/page").status_code == 200


@pytest.mark.parametrize("secure", [False, True], ids=["http", "https"])
def test_connections_that_are_silent_make_room_for_others_and_are_ended(secure: bool, certificate: Path) -> None:
    verify = ssl.create_default_context(cafile=certificate)
    with served(tls=certificate if secure else None, limits=Limits(seconds=0.5, connections=4)) as server:
        with ExitStack() as held:
            silent = [held.enter_context(connected(server.address)) for _ in range(12)]
            assert httpx.get(f"{server.address}/page", verify=verify).status_code == 200
            for connection in silent[:8]:
                assert connection.recv(100) == b""
            for connection in silent[8:]:  # also before the handshake
                assert connection.recv(100)[:12] in (b"", b"HTTP/1.1 408")
        assert httpx.get(f"{server.address}/page", verify=verify).status_code == 200


def test_a_server_without_descriptors_goes_on_and_does_not_fill_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    accept, left = socket.socket.accept, [5]

    def exhausted(listening: socket.socket) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", exhausted)
    with served() as server:
        assert httpx.get(f"{server.address}/page").status_code == 200
    assert left == [0]
    assert 1 <= caplog.text.count("a connection is not accepted: [Errno 24] Too many open files") < 5


# --- Errors ----------------------------------------------------------------------------------------------------------


def test_errors_are_json(address: str) -> None:
    assert httpx.get(f"{address}/fail?how=config").json() == {"error": {"message": "x is 1; accepted: 2", "key": "x"}}
    refused = httpx.get(f"{address}/fail?how=request")
    assert (refused.status_code, refused.json()) == (413, {"error": {"message": "too much", "agent": "a"}})
    assert error_of(httpx.get(f"{address}/nowhere")) == "there is no /nowhere"
    wrong = httpx.put(f"{address}/echo")
    assert wrong.status_code == 405
    assert "PUT is not accepted here; accepted: " in error_of(wrong)


def test_an_unexpected_error_tells_the_client_nothing(address: str, caplog: pytest.LogCaptureFixture) -> None:
    response = httpx.get(f"{address}/fail")
    assert (response.status_code, error_of(response)) == (500, "the server failed; its log says why")
    assert "/fail failed: KeyError: 'secret'" in caplog.text


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
    server._uvicorn.should_exit = True
    server._uvicorn.on_started = lambda: None
    server._thread.start()
    server._thread.join(5)
    assert not server._thread.is_alive()
    assert server._error is None


_PROGRAM = """
import asyncio, sys
from starlette.routing import Route
from marl_sb3.cli.running import run_command
from marl_sb3.tools.serving.http import Limits, Listening, Server, json_response

async def slow(_):
    print("asked", flush=True)
    await asyncio.sleep(0.3)
    return json_response("done")

server = Server([Route("/slow", slow)], Listening(), Limits())
sys.exit(run_command(lambda: server.run(lambda at: print(at, flush=True)), 0))
"""


def test_sigterm_ends_a_command_cleanly() -> None:
    with subprocess.Popen([sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        address, answers = command.stdout.readline().strip(), []
        asking = threading.Thread(target=lambda: answers.append(httpx.get(f"{address}/slow").json()))
        asking.start()
        assert command.stdout.readline() == "asked\n"
        os.kill(command.pid, signal.SIGTERM)
        assert command.wait(10) == 130
        asking.join()
    assert answers == ["done"]

"""Metrics in Prometheus's format: their text, and what every server counts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest
from scraping import scraped
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket
from waiting import wait_for
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from marl_sb3.tools.serving.guard import Limits, Listening, RequestError
from marl_sb3.tools.serving.http import Server

TOKEN = "0123456789abcdef"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


def of(name: str) -> str:
    return f"marl_sb3_http_requests_total{{{name}}}"


# --- What every server counts ----------------------------------------------------------------------------------------


async def answer(request: Request) -> Response:
    if request.query_params.get("how") == "failing":
        raise KeyError("secret")
    if request.query_params.get("how") == "refused":
        raise RequestError("no", 410)
    return Response(str(request.scope["is_trusted"]))


async def talk(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.receive_text()


@pytest.fixture
def address() -> Iterator[str]:
    routes = [*(Route(path, answer) for path in ("/health", "/of/{agent}")), WebSocketRoute("/talk", talk)]
    with Server(routes, Listening(token=TOKEN), Limits(body_bytes=100, seconds=0.2)) as server:
        yield server.address


def test_requests_are_counted_by_route_and_status(address: str, caplog: pytest.LogCaptureFixture) -> None:
    with httpx.Client(base_url=address, headers=SHOWN) as client:
        for path in ("/of/a", "/of/b", "/of/a?how=refused", "/of/a?how=failing", "/nowhere", "/nowhere/2"):
            client.get(path)
        client.post("/of/a")
        client.post("/health", content=b"x" * 101)
    httpx.get(f"{address}/of/a")  # without the token; clients must not make routes, refused or not
    found = scraped(address, headers=SHOWN)
    counted = {name: value for name, value in found.items() if name.startswith("marl_sb3_http_requests_total")}
    assert counted == {
        of('route="/of/{agent}",status="200"'): 2,
        of('route="/of/{agent}",status="410"'): 1,
        of('route="/of/{agent}",status="500"'): 1,
        of('route="/of/{agent}",status="405"'): 1,
        of('route="other",status="404"'): 2,
        of('route="other",status="401"'): 1,
        of('route="/health",status="413"'): 1,
    }
    assert found['marl_sb3_http_request_duration_seconds_count{route="/of/{agent}"}'] == 5
    assert found["marl_sb3_http_requests_in_flight"] == 1  # this one
    assert found["process_resident_memory_bytes"] > 1e6
    assert "secret" in caplog.text
    with connect(f"{address.replace('http', 'ws')}/talk?token={TOKEN}") as websocket:
        assert scraped(address, headers=SHOWN)["marl_sb3_websockets"] == 1
        websocket.send("bye")
    with pytest.raises(InvalidStatus):
        connect(f"{address.replace('http', 'ws')}/talk")
    wait_for(lambda: scraped(address, headers=SHOWN)["marl_sb3_websockets"] == 0)
    found = scraped(address, headers=SHOWN)
    assert found[of('route="/talk",status="101"')] == found[of('route="/talk",status="401"')] == 1


def test_probes_need_no_token_and_are_told_nothing_else(address: str) -> None:
    assert httpx.get(f"{address}/ready").json() == {"status": "ready"}
    assert [httpx.get(f"{address}/health", headers=headers).text for headers in ({}, SHOWN)] == ["False", "True"]
    assert httpx.get(f"{address}/health", headers={"Host": "evil.example"}).status_code == 403
    assert httpx.get(f"{address}/metrics").status_code == 401


# --- The end ---------------------------------------------------------------------------------------------------------


def test_a_server_that_drains_goes_on_answering_and_says_that_it_is_not_ready() -> None:
    routes = [Route("/health", answer)]
    with Server(routes, Listening(), Limits()) as server, httpx.Client(base_url=server.address) as client:
        assert "connection" not in client.get("/health").headers
        (uvicorn := server._uvicorn).drain_s = 0.5
        uvicorn.end(15)
        ends_s = time.monotonic() + 0.5
        assert client.get("/ready").status_code == 503
        assert "is ending" in client.get("/ready").json()["error"]["message"]
        assert scraped(server.address)["marl_sb3_ready"] == 0
        wait_for(lambda: client.get("/health").headers.get("connection") == "close")  # clients come again elsewhere
        server._thread.join(5)
        assert time.monotonic() >= ends_s
        with pytest.raises(httpx.ConnectError):
            client.get("/health")


@pytest.mark.parametrize(("signals", "most_s"), [([2], 15.0), ([15, 15], 75.0)], ids=["Ctrl-C", "twice"])
def test_only_a_single_sigterm_waits_and_not_for_long(
    signals: list[int], most_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounds: list[float] = []
    monkeypatch.setattr("marl_sb3.tools.serving.http.end_within", bounds.append)
    with Server([], Listening(), Limits()) as server:
        (uvicorn := server._uvicorn).drain_s = 60.0
        for number in signals:
            uvicorn.end(number)
        (thread := server._thread).join(5)
        assert not thread.is_alive()
        assert bounds == [most_s]

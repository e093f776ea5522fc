"""A server with routes that show what its guard and its connections do."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.guard import Limits, Listening, RequestError, json_response
from marl_sb3.tools.serving.http import Server

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

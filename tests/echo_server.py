"""A server with routes that show what its guard and its connections do."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path
from typing import Any

import httpx
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from marl_sb3.errors import ConfigError
from marl_sb3.tools.serving.guard import Limits, Listening, RequestError, json_response
from marl_sb3.tools.serving.http import Server

# Of localhost, signed by itself, until 2126; its key is no secret.
CERTIFICATE = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg9t+dCHCafsl0790l
ezHn1XLRKh1XA5cc2mdaI5tyoBKhRANCAASEAJ8fislCwc2tJbDTIc95JwJTA8a2
5BVeGLcNuct6rw1Zqfzs35Ne39eUQxEc5J2f94Yxea08VhdD8ruFk66R
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUVYrOU1oubn4B9SBA9jfkx6VTuzUwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMzIzMDgzNFoYDzIxMjYxMDMw
MjMwODM0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASEAJ8fislCwc2tJbDTIc95JwJTA8a25BVeGLcNuct6rw1Zqfzs35Ne
39eUQxEc5J2f94Yxea08VhdD8ruFk66Ro28wbTAdBgNVHQ4EFgQUXyjnJuPzOsCU
DBuSElGWeohwRSowHwYDVR0jBBgwFoAUXyjnJuPzOsCUDBuSElGWeohwRSowDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIhAJ4WYkYuShwa+h27sJ4/F8TjGFONxDvFwCojWgWwznG6AiAR
pcs4wcIJy8i1fJDdAEK8SyFjUKU9PwgLr8KzFqoC/g==
-----END CERTIFICATE-----
"""
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


async def large(_: Request) -> Response:
    return StreamingResponse(bytes(65536) for _ in range(1000))


ASKED = threading.Event()


async def slow(_: Request) -> Response:
    ASKED.set()
    await asyncio.sleep(0.3)
    return json_response("done")


ROUTES = [
    Route("/echo", echo, methods=["GET", "POST"]),
    Route("/fail", failing),
    Route("/page", echo),
    Route("/large", large, methods=["POST"]),
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

"""A server with its guards: what everything of this package that listens has in common.

Nobody but the user of this machine is served by default. A web page that the user visits runs on this machine as well:
its requests are refused by the `Host` and `Origin` that browsers send, so that no name of a foreign server that is made
to point here (DNS rebinding) can be used.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import math
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar
from urllib.parse import parse_qsl

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect
from typing_extensions import override
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from marl_sb3.errors import ConfigError, MarlSb3Error, described
from marl_sb3.extensions.display import one_line
from marl_sb3.signals import ENDING, handled
from marl_sb3.systems import take_port_alone
from marl_sb3.tools.serving.metrics import (
    CONTENT_TYPE,
    OTHER_ROUTE,
    Family,
    RequestMetrics,
    exposition,
    gauge,
    process_families,
)

T = TypeVar("T")

_log = logging.getLogger(__name__)

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
# Whether the process lives, and whether it accepts requests: what starts and routes to servers asks without a token.
_PROBES = ("/health", "/ready")
_SUBPROTOCOL = "marl-sb3"  # of a WebSocket that offers its token as another one
_TOKEN_PREFIX = "token."
_MOST_SHOWN = 500  # characters of a message about what was sent
_MAX_HEAD_BYTES = 65_536  # of a request line with its headers
_ACCEPT_AGAIN_S = 0.05  # after a connection could not be accepted
_LAST_REQUESTS_S = 0.2  # at the end, for the requests of connections that have sent none yet
_TLS_TIMES = ("ssl_handshake_timeout", "ssl_shutdown_timeout")
_CLOSING = (b"connection", b"close")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,200}")  # what HTTP allows in a Bearer token


@dataclass(frozen=True)
class Limits:
    """How much a client may ask for."""

    body_bytes: int = 8_000_000  # size of the body of a request, and of a message of a WebSocket
    batch: int = 1024  # observations of an agent in one request
    # time for a TLS handshake, for a request's head, for its body, for 64 kB of an answer to be read, and for the
    # answers that are due when the server ends
    seconds: float = 10.0
    # connections at a time. Where there is no room, a new one takes the place of the oldest that has not sent a
    # request; if all have, it is refused.
    connections: int = 256


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and what clients have to show.

    Raises:
        ConfigError: other machines can reach the host and there is no token; the token is too short, or has characters
            that HTTP does not allow in it; there is a key without a certificate.
    """

    host: str = "127.0.0.1"  # name or address
    port: int = 0  # 0: any free one; `address` of the server has it
    # what requests have to show: `Authorization: Bearer TOKEN`; WebSockets, for which browsers send no such header,
    # `?token=TOKEN`, or the subprotocols `marl-sb3` and `token.TOKEN`. None: nothing
    token: str | None = None
    tls_cert: Path | None = None  # PEM file of the certificate and those that signed it; None: no TLS
    tls_key: Path | None = None  # PEM file of its key; None: it is in the same file

    def __post_init__(self) -> None:
        if self.token is None and not is_loopback(self.host):
            words = f"--host is {self.host!r}, which other machines can reach"
            raise ConfigError(f"{words}; accepted: with --token TOKEN, or --host 127.0.0.1", key="--host")
        if self.token is not None and not _TOKEN.fullmatch(self.token):
            accepted = "8 to 200 letters, digits and any of . _ ~ + / = -"
            raise ConfigError(f"the token is not accepted; accepted: {accepted}", key="--token")
        if self.tls_key is not None and self.tls_cert is None:
            raise ConfigError("--tls-key is given without --tls-cert; accepted: both", key="--tls-key")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def served_hosts(host: str) -> tuple[str, ...]:
    """Return the names by which a server at `host` may be asked for.

    Other machines may know it by any name; there it is the token that keeps foreign web pages out.
    """
    return (*LOOPBACK_HOSTS, host) if is_loopback(host) else (ANY_HOST,)


class RequestError(MarlSb3Error):
    """A request is refused.

    Args:
        message: what is wrong and what is accepted.
        status: status code of the answer.
        more: further fields of the answer: `agent`, `key`, `accepted`.
    """

    def __init__(self, message: str, status: int = 400, **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.more = more


def read_message(text: bytes | str, kind: type[T], what: str) -> T:
    """Read JSON that somebody has sent.

    Args:
        kind: the msgspec struct that it is to be.
        what: start of the message of an error.

    Raises:
        RequestError: it is no such JSON.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeError) as error:
        # A name in the message is what somebody has sent: of any length, with what terminals obey.
        raise RequestError(f"{what}: {one_line(str(error).replace('`', ''))[:_MOST_SHOWN]}") from error
    except RecursionError as error:
        raise RequestError(f"{what}: it is nested too deep") from error


# --- Answers ---------------------------------------------------------------------------------------------------------


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON; `content` is plain data or msgspec structs."""
    return Response(msgspec.json.encode(content), status, headers, "application/json")


def error_response(message: str, status: int, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """Answer `{"error": {"message": ...}}`; fields of `more` that are None are left out."""
    fields = {name: value for name, value in more.items() if value is not None}
    return json_response({"error": {"message": message, **fields}}, status, headers)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(str(error), error.status, **error.more)


async def _misused(_: Request, error: Exception) -> Response:
    more = {name: getattr(error, name, None) for name in ("agent", "key", "accepted")}
    return error_response(str(error), 400, **more)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    words = {404: f"there is no {request.url.path:.200}"}
    if "Allow" in headers:
        words[405] = f"{request.method} is not accepted here; accepted: {headers['Allow']}"
    return error_response(words.get(error.status_code, error.detail), error.status_code, headers)


_HANDLERS: Mapping[Any, Any] = {RequestError: _refused, ConfigError: _misused, HTTPException: _http_error}


# --- The guard -------------------------------------------------------------------------------------------------------


class Guard:
    """ASGI middleware that refuses requests before an app sees them, and hands on the others with their whole body.

    Args:
        app: the app below.
        listening: with its token, and its host, the names of which requests may ask for.
        limits: of a request.
        public: paths that need no token; `scope["is_trusted"]` says whether the request has shown it.
        metrics: count requests.
        paths: of the routes, by which refused requests are counted.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        listening: Listening,
        limits: Limits,
        public: Sequence[str],
        metrics: RequestMetrics,
        paths: Collection[str],
    ) -> None:
        self._app, self._token, self._limits, self._public = app, listening.token, limits, public
        self._metrics, self._paths = metrics, paths
        self._hosts = frozenset(host.lower() for host in served_hosts(listening.host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Guard one request, WebSocket, or the lifespan of the app."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._count_request(scope, receive, send)
        else:
            await self._count_websocket(scope, receive, send)

    async def _count_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        status, begun_s = "gone", time.perf_counter()

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        self._metrics.in_flight += 1
        try:
            await self._check(scope, receive, watched)
        finally:
            self._metrics.in_flight -= 1
            self._metrics.answered(self._route_of(scope), status, time.perf_counter() - begun_s)

    async def _count_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = "403"  # what uvicorn answers if it is closed before it was accepted

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = "101"
                self._metrics.websockets += 1
            elif message["type"] == "websocket.http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self._check(scope, receive, watched)
        finally:
            self._metrics.websockets -= status == "101"
            self._metrics.requests[self._route_of(scope), status] += 1

    def _route_of(self, scope: Scope) -> str:
        """Return the path of the route as the app has it: clients choose what is in the place of parameters."""
        route = scope.get("route")  # of what came as far as the app
        path: str = scope["path"] if route is None else route.path
        return path if path in self._paths else OTHER_ROUTE

    async def _check(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or answer."""
        try:
            headers = Headers(scope=scope)
            self._check_host(scope, headers)
            self._check_token(scope, headers)
            if scope["type"] == "http":
                receive = await self._with_body(headers, receive)
        except RequestError as error:
            await _refuse(error, scope, receive, send)
        except _DisconnectedError:
            pass
        else:
            await self._answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the app answer; if it fails, say so without details, which are in the log."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            if message["type"] == "websocket.accept" and _SUBPROTOCOL in scope.get("subprotocols", ()):
                # Beside a token: browsers close a connection that offered subprotocols, and of which none is accepted.
                message["subprotocol"] = message.get("subprotocol") or _SUBPROTOCOL
            try:
                await send(message)
            except RuntimeError as error:
                if "closed" not in str(error):
                    raise
                raise _DisconnectedError from error  # uvloop's connection was reset before uvicorn was told

        try:
            await self._app(scope, receive, watched)
        except (WebSocketDisconnect, _DisconnectedError):
            pass  # the client has gone
        except Exception as error:
            _log.error("%s failed: %s", scope["path"], described(error), exc_info=error)
            if begun:
                raise
            await _refuse(RequestError("the server failed; its log says why", 500), scope, receive, send)

    # --- Who asks ----------------------------------------------------------------------------------------------------

    def _check_host(self, scope: Scope, headers: Headers) -> None:
        """Refuse names that are not the server's, and web pages of other servers."""
        given = headers.getlist("host")
        host = given[0].lower() if len(given) == 1 else ""
        match = _HOST.fullmatch(host)
        if match is None:
            raise RequestError("the header Host is not one name; accepted: NAME or NAME:PORT", key="Host")
        if ANY_HOST not in self._hosts and match[1] not in self._hosts:
            accepted = ", ".join(sorted(self._hosts))
            raise RequestError(f"the header Host is {host:.200}; accepted: {accepted}", 403, key="Host")
        # A page by HTTPS may be one of a server without TLS: of a proxy in front of it. The other way, anybody on the
        # way could have made the page.
        schemes = ("https",) if scope["scheme"] in ("https", "wss") else ("http", "https")
        pages = [f"{scheme}://{host}" for scheme in schemes]
        for origin in headers.getlist("origin"):
            if origin.lower() not in pages:
                words = f"the request comes from a page of {origin:.200}; accepted: pages of {' and '.join(pages)}"
                raise RequestError(words, 403, key="Origin")
        # Only browsers send it, also where they are set to send no Origin.
        site = headers.get("sec-fetch-site", "none")
        if scope["type"] == "http" and scope["method"] not in ("GET", "HEAD") and site not in ("same-origin", "none"):
            raise RequestError("the request comes from a page of another server", 403, key="Sec-Fetch-Site")

    def _check_token(self, scope: Scope, headers: Headers) -> None:
        scope["is_trusted"] = self._token is None
        if self._token is None:
            return
        shown = [value[7:] for value in headers.getlist("authorization") if value[:7].lower() == "bearer "]
        accepted = "Authorization: Bearer TOKEN"
        if scope["type"] == "websocket":
            shown += [value for name, value in parse_qsl(scope["query_string"].decode("latin-1")) if name == "token"]
            shown += [
                name.removeprefix(_TOKEN_PREFIX) for name in scope["subprotocols"] if name.startswith(_TOKEN_PREFIX)
            ]
            accepted += f", ?token=TOKEN, or the subprotocols {_SUBPROTOCOL} and {_TOKEN_PREFIX}TOKEN"
        expected = self._token.encode()
        scope["is_trusted"] = any(hmac.compare_digest(value.encode(errors="replace"), expected) for value in shown)
        if not scope["is_trusted"] and scope["path"] not in self._public:
            words = "the token is wrong" if shown else "a token is missing"
            raise RequestError(f"{words}; accepted: {accepted}", 401)

    # --- The body ----------------------------------------------------------------------------------------------------

    async def _with_body(self, headers: Headers, receive: Receive) -> Receive:
        """Read the body; returns what gives it to the app."""
        limit, seconds = self._limits.body_bytes, self._limits.seconds
        declared = headers.get("content-length", "")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
            raise _too_large(declared, limit)
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(seconds):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _DisconnectedError
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise _too_large(f"more than {limit}", limit)
        except TimeoutError:
            words = f"the body has not arrived; accepted: within {seconds:g} s"
            raise RequestError(words, 408) from None
        messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def given() -> Message:
            return messages.pop() if messages else await receive()

        return given


class _DisconnectedError(Exception):
    """The client has gone before its request was complete, or before its answer was."""


def _too_large(size: str, limit: int) -> RequestError:
    return RequestError(f"the body has {size:.30} bytes; accepted: at most {limit}", 413)


async def _refuse(error: RequestError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a refused request and close its connection, so that the rest of its body is not read."""
    headers = {"connection": "close"} if scope["type"] == "http" else {}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    response = error_response(str(error), error.status, headers, **error.more)
    if scope["type"] == "http" or "websocket.http.response" in scope.get("extensions", {}):
        await response(scope, receive, send)
    else:
        await send({"type": "websocket.close", "code": 1008, "reason": str(error)[:120]})


# --- The server ------------------------------------------------------------------------------------------------------


class _TimedProtocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, with limits for what comes before a request: time and size of its head."""

    limits: ClassVar[Limits]  # of all connections of the server
    # its connections that have not sent the head of a request, the oldest first, with what drops them
    silent: ClassVar[dict[Any, Callable[[], object]]]
    metrics: ClassVar[RequestMetrics]  # count what is refused before it is a request
    _timer: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.silent[self] = transport.abort
        self._start()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.get_protocol() is not self:  # it is a WebSocket now
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
            self._head_bytes = 0
            self.silent.pop(self, None)
            return
        self._head_bytes += len(data)
        if self._head_bytes > _MAX_HEAD_BYTES:
            self._end(431, f"the head of the request is too large; accepted: at most {_MAX_HEAD_BYTES} bytes")
        elif self._timer is None:
            self._start()

    def handle_websocket_upgrade(self, *request: Any) -> None:
        self._stop()
        self.silent.pop(self, None)
        super().handle_websocket_upgrade(*request)
        if not getattr(self.transport.get_protocol(), "handshake_initiated", True):
            # What websockets cannot parse, such as the method POST, uvicorn leaves without an answer.
            self._end(400, "the request for a WebSocket is not accepted; accepted: GET with at most 128 short headers")

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.silent.pop(self, None)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait for a client that does not read its answer, but not for ever."""
        super().pause_writing()
        self._stop()
        self._timer = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop()

    def _start(self) -> None:
        words = f"the head of the request has not arrived; accepted: within {self.limits.seconds:g} s"
        self._timer = self.loop.call_later(self.limits.seconds, self._end, 408, words)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self, status: int, message: str) -> None:
        """Answer what is no request yet, and close the connection."""
        self._stop()
        if not self.transport.is_closing():
            self.metrics.refused(status)
            self.transport.write(_refusal(status, message))
            self.transport.close()


def _refusal(status: int, message: str) -> bytes:
    """Return an answer to what is no request yet; the connection is closed after it."""
    body = msgspec.json.encode({"error": {"message": message}})
    first = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    head = f"{first}content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
    return head.encode() + body


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, which accepts connections itself, leaves the signals to its caller, and says when it serves.

    asyncio's servers would know of a connection only after its TLS handshake: no limit would hold before.

    Args:
        limits: of connections, and of the time for their handshake.
        metrics: count connections that are refused.
    """

    on_started: Callable[[], None]
    drain_s = 0.0  # how long requests are still accepted after SIGTERM
    caught: int | None = None
    _ends_s = math.inf
    _accepting: asyncio.Task[None]

    def __init__(self, config: uvicorn.Config, limits: Limits, metrics: RequestMetrics) -> None:
        super().__init__(config)
        self._limits, self._metrics = limits, metrics
        self._silent: dict[Any, Callable[[], object]] = {}
        kind = {"limits": limits, "silent": self._silent, "metrics": metrics}
        self._protocol: Any = type("TimedProtocol", (_TimedProtocol,), kind)
        self._opening: set[asyncio.Task[None]] = set()
        self._warned_s = -math.inf

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        (listening,) = sockets or []
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening))
        self.on_started()

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await _cancelled([self._accepting])
        (listening,) = sockets or []
        with suppress(OSError):  # until none waits; others may go on coming
            for _ in range(0 if self.force_exit else self._limits.connections):
                self._admit(listening.accept()[0])
        listening.close()
        ends_s = time.monotonic() + _LAST_REQUESTS_S
        await asyncio.sleep(0)  # connections begin to open: see `_accept`
        while self._silent and not self.force_exit and time.monotonic() < ends_s:
            await asyncio.sleep(_ACCEPT_AGAIN_S / 5)
        await _cancelled(list(self._opening))
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:  # no descriptors are left, most likely
                self._warn(f"a connection is not accepted: {error}")
                self._drop_oldest_silent()
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self._admit(connection)
            await asyncio.sleep(0)  # it begins now: one that is cancelled before would not close the connection

    def _admit(self, connection: socket.socket) -> None:
        """Serve a connection if there is room; a new one takes the place of the oldest silent one."""
        connections = self.server_state.connections
        if len(connections) >= self._limits.connections and not self._drop_oldest_silent():
            self._refuse(connection)
            return
        state, shared = self.lifespan.state, self.server_state
        protocol = self._protocol(config=self.config, server_state=shared, app_state=state)
        connections.add(protocol)
        task = asyncio.create_task(self._open(connection, protocol))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        self._silent[protocol] = task.cancel

    async def _open(self, connection: socket.socket, protocol: Any) -> None:
        """Give a connection to its protocol, after the TLS handshake if there is one."""
        secure: Any = self.config.ssl
        times = {} if secure is None else dict.fromkeys(_TLS_TIMES, self._limits.seconds)
        try:
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=secure, **times)
        except OSError:  # the handshake failed or took too long, which is the client's affair
            self._forget(protocol)
        except asyncio.CancelledError:
            self._forget(protocol)
            raise

    def _drop_oldest_silent(self) -> bool:
        """Drop the connection that has sent no request for longest; returns whether there is one."""
        for protocol, drop in self._silent.items():
            self._forget(protocol)
            drop()
            return True
        return False

    def _forget(self, protocol: Any) -> None:
        self._silent.pop(protocol, None)
        self.server_state.connections.discard(protocol)

    def _refuse(self, connection: socket.socket) -> None:
        """Close a connection for which there is no room."""
        self._metrics.refused(503)
        with connection, suppress(OSError):
            if self.config.ssl is None:
                connection.send(_refusal(503, f"all {self._limits.connections} connections are in use"))

    def _warn(self, message: str) -> None:
        """Log a message, at most once a second."""
        now_s = time.monotonic()
        if now_s - self._warned_s >= 1:
            self._warned_s = now_s
            _log.warning(message)

    def end(self, number: int, _: Any = None) -> None:
        """End after the requests in flight, after SIGTERM not before `drain_s`; the second signal ends at once."""
        self.force_exit = self.caught is not None
        is_drained = number == signal.SIGTERM and not self.force_exit
        self._ends_s = time.monotonic() + (self.drain_s if is_drained else 0.0)
        self.caught = number

    @property
    def is_ending(self) -> bool:
        """Whether it will end soon, and clients should go elsewhere."""
        return self.should_exit or self.caught is not None

    @override
    async def on_tick(self, counter: int) -> bool:
        self.should_exit |= time.monotonic() >= self._ends_s
        ends = await super().on_tick(counter)
        if self.is_ending and _CLOSING not in self.server_state.default_headers:
            # A client whose connection stays open could send a request at the moment at which it is closed.
            self.server_state.default_headers = [*self.server_state.default_headers, _CLOSING]
        return ends


async def _cancelled(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        ConfigError: the port is taken or not permitted, or the host is not this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigError(f"--host is {host!r}: {error}; accepted: a name or an address of this machine") from error
    listening = socket.socket(family, kind, protocol)
    try:
        take_port_alone(listening)
        listening.bind(address)
        listening.listen(1024)
    except OSError as error:
        listening.close()
        words = f"cannot listen on {host} port {port}: {error.strerror}; accepted: --port 0 for any free one"
        raise ConfigError(words, key="--port") from error
    return listening


Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


class Server:
    """Routes with the guards that all servers of the package have, on a port.

    Within a context, a thread of this process serves; `run` serves in this thread. A handler that raises a
    `RequestError` or a `ConfigError` answers with JSON, as all refusals do; one that raises another exception answers
    500, and the log has its traceback. Each server has two routes more: `/metrics` in Prometheus's text format, and
    `/ready`, which answers 503 while requests should go elsewhere.

    Args:
        routes: of Starlette.
        listening: where, and for whom.
        limits: of requests, connections and time.
        public: paths that need no token, such as a page without data; `/health` and `/ready` never need one.
        lifespan: context of the app: what it needs while it serves.
        measured: returns further metrics.
        unready: returns why requests cannot be answered, or None; it is asked until the server begins to end.

    Attributes:
        address: such as `http://127.0.0.1:41234`.

    Raises:
        ConfigError: the port is taken, or the certificate cannot be used.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        listening: Listening,
        limits: Limits,
        *,
        public: Sequence[str] = (),
        lifespan: Lifespan | None = None,
        measured: Callable[[], Sequence[Family]] = tuple,
        unready: Callable[[Request], str | None] = lambda _: None,
    ) -> None:
        self._measured, self._unready, self._metrics = measured, unready, RequestMetrics()
        routes = [*routes, Route("/metrics", self._show_metrics), Route("/ready", self._show_ready)]
        paths, public = {route.path for route in routes if hasattr(route, "path")}, (*public, *_PROBES)
        checked: dict[str, Any] = {"listening": listening, "limits": limits, "public": public}
        guard = Middleware(Guard, **checked, metrics=self._metrics, paths=paths)
        app = Starlette(routes=routes, middleware=[guard], exception_handlers=_HANDLERS, lifespan=lifespan)
        config = uvicorn.Config(
            app,
            ws="auto",
            ws_max_size=limits.body_bytes,
            lifespan="on",
            log_config=None,
            log_level="critical",  # what clients send wrongly is no message; the guard logs its own errors
            access_log=False,
            workers=1,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=math.ceil(limits.seconds),
            ssl_certfile=listening.tls_cert,
            ssl_keyfile=listening.tls_key,
        )
        try:
            config.load()
        except OSError as error:  # of ssl, too
            words = f"--tls-cert {listening.tls_cert} and --tls-key {listening.tls_key} cannot be used: {error}"
            raise ConfigError(f"{words}; accepted: PEM files of a certificate and its key", key="--tls-cert") from error
        self._uvicorn = _Uvicorn(config, limits, self._metrics)
        self._socket = _listen(listening.host, listening.port)
        name = f"[{listening.host}]" if ":" in listening.host else listening.host
        scheme = "https" if listening.tls_cert else "http"
        self.address = f"{scheme}://{name}:{self._socket.getsockname()[1]}"
        self._started, self._error = threading.Event(), None
        self._thread = threading.Thread(target=self._serve_in_thread, name="marl_sb3-server", daemon=True)

    async def _show_metrics(self, _: Request) -> Response:
        connections = len(self._uvicorn.server_state.connections)
        families = [
            *self._metrics.families(),
            gauge("marl_sb3_connections", "Open connections.", connections),
            gauge("marl_sb3_ready", "1: requests are accepted; 0: the server is ending.", not self._uvicorn.is_ending),
            *self._measured(),
            *process_families(),
        ]
        return Response(exposition(families), media_type=CONTENT_TYPE)

    async def _show_ready(self, request: Request) -> Response:
        why = "the server is ending" if self._uvicorn.is_ending else self._unready(request)
        if why is not None:
            raise RequestError(why, 503)
        return json_response({"status": "ready"})

    def run(self, on_started: Callable[[str], None], drain_s: float = 0.0) -> None:
        """Serve in this thread until a signal asks for the end; requests in flight are answered first.

        Args:
            on_started: gets the address when clients can connect.
            drain_s: seconds for which requests are still accepted after SIGTERM, while `/ready` answers 503 and each
                answer closes its connection.

        Raises:
            KeyboardInterrupt: a signal has ended the server.
        """
        self._uvicorn.drain_s = drain_s
        self._uvicorn.on_started = lambda: on_started(self.address)
        with handled(ENDING, self._uvicorn.end):
            self._serve()
        if self._uvicorn.caught is not None:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._uvicorn.on_started = self._started.set
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            self._thread.join()
            raise self._error
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        self._thread.join()

    _error: BaseException | None

    def _serve_in_thread(self) -> None:
        try:
            self._serve()
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()

    def _serve(self) -> None:
        with self._socket:
            try:
                self._uvicorn.run([self._socket])
            except SystemExit as error:  # how uvicorn says that the lifespan of the app has failed
                raise RuntimeError("the server could not start; the log says why") from error

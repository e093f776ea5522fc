"""A server on a port: limits of connections and of time, its thread or its signals, its end, and whether it is ready.

What is asked of it passes a `Guard` first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from http import HTTPStatus
from typing import Any, ClassVar, Self

import msgspec
import uvicorn
from prometheus_client.core import Metric
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from typing_extensions import override
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from marl_sb3.errors import ConfigError
from marl_sb3.signals import ENDING, handled
from marl_sb3.startup import end_within
from marl_sb3.systems import take_port_alone
from marl_sb3.tools.serving.guard import HANDLERS, Guard, Limits, Listening, RequestError, json_response
from marl_sb3.tools.serving.metrics import CONTENT_TYPE, RequestMetrics, exposition, gauge

_log = logging.getLogger(__name__)

# Whether the process is alive, and whether it accepts requests: what starts and routes to servers asks without a token.
_PROBES = ("/health", "/ready")
_MAX_HEAD_BYTES = 65_536  # of a request line with its headers
_ACCEPT_AGAIN_S = 0.05  # after a connection could not be accepted
_LAST_THREADS_S = 5.0  # after the last answers, for what still runs in threads
_LAST_REQUESTS_S = 0.2  # at the end, for the requests of connections that have sent none yet
_TLS_TIMES = ("ssl_handshake_timeout", "ssl_shutdown_timeout")
_CLOSING = (b"connection", b"close")


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
    """Return the bytes of an answer to an incomplete request; the connection is closed after it."""
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
        self.limits, self._metrics = limits, metrics
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
            for _ in range(0 if self.force_exit else self.limits.connections):
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
                if time.monotonic() - self._warned_s >= 1:  # at most once a second
                    self._warned_s = time.monotonic()
                    _log.warning("a connection is not accepted: %s", error)
                self._drop_oldest_silent()
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self._admit(connection)
            await asyncio.sleep(0)  # it begins now: one that is cancelled before would not close the connection

    def _admit(self, connection: socket.socket) -> None:
        """Serve a connection if there is room; a new one takes the place of the oldest silent one."""
        connections = self.server_state.connections
        if len(connections) >= self.limits.connections and not self._drop_oldest_silent():
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
        times = {} if secure is None else dict.fromkeys(_TLS_TIMES, self.limits.seconds)
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
                connection.send(_refusal(503, f"all {self.limits.connections} connections are in use"))

    def end(self, number: int, _: Any = None) -> None:
        """End after the requests in flight, after SIGTERM not before `drain_s`; the second signal ends at once."""
        self.force_exit = self.caught is not None
        is_drained = number == signal.SIGTERM and not self.force_exit
        drain_s = self.drain_s if is_drained else 0.0
        self._ends_s = time.monotonic() + drain_s
        if self.caught is None:
            end_within(drain_s + self.limits.seconds + _LAST_THREADS_S)
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
        lifespan: Callable[[Any], AbstractAsyncContextManager[None]] | None = None,
        measured: Callable[[], Sequence[Metric]] = tuple,
        unready: Callable[[Request], str | None] = lambda _: None,
    ) -> None:
        self._measured, self._unready, self._metrics = measured, unready, RequestMetrics()
        routes = [*routes, Route("/metrics", self._show_metrics), Route("/ready", self._show_ready)]
        paths, public = {route.path for route in routes if hasattr(route, "path")}, (*public, *_PROBES)
        checked: dict[str, Any] = {"listening": listening, "limits": limits, "public": public}
        guard = Middleware(Guard, **checked, metrics=self._metrics, paths=paths)
        app = Starlette(routes=routes, middleware=[guard], exception_handlers=HANDLERS, lifespan=lifespan)
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
        self._thread.join(self._uvicorn.limits.seconds + _LAST_THREADS_S)

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

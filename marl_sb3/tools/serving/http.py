"""A server on a port: connections that wait, its thread or its signals, its end, and whether it is ready.

uvicorn speaks HTTP and ends after the requests in flight. What is asked of it passes a `Guard` first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Self

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
_ACCEPT_AGAIN_S = 0.5  # after a connection could not be accepted: no descriptors were free
_LAST_REQUESTS_S = 0.1  # at the end, for connections that have just come
_LAST_THREADS_S = 5.0  # after the last answers, for what still runs in threads
_TLS_TIMES = ("ssl_handshake_timeout", "ssl_shutdown_timeout")
_CLOSING = (b"connection", b"close")


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """uvicorn's protocol, where heads have a limit, and all that is asked for a WebSocket has an answer.

    Of the parsers, httptools has no limit, and h11 a lower one of its own.
    """

    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._head_bytes = self._head_bytes + len(data) if _waits(self) else 0
        if self._head_bytes > _MAX_HEAD_BYTES:
            self.transport.abort()

    def handle_websocket_upgrade(self, *request: Any) -> None:
        super().handle_websocket_upgrade(*request)
        if not getattr(self.transport.get_protocol(), "handshake_initiated", True):  # websockets could not parse it
            self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
            self.transport.close()


def _waits(connection: Any) -> bool:
    """Whether a connection waits for its client: to send the head of a request, or to read what was answered."""
    if not hasattr(connection, "cycle"):  # a WebSocket
        return False
    return connection.cycle is None or connection.cycle.response_complete or connection.flow.write_paused


class _Uvicorn(uvicorn.Server):
    """uvicorn's server, where connections may not wait for ever, signals are its caller's, and SIGTERM leaves time.

    Args:
        limits: of connections and TLS handshakes, and of the time that they may wait.
    """

    on_started: Callable[[], None]
    drain_s = 0.0  # how long requests are still accepted after SIGTERM
    caught: int | None = None
    _ends_s = math.inf
    _accepting: asyncio.Task[None]

    def __init__(self, config: uvicorn.Config, limits: Limits) -> None:
        super().__init__(config)
        self.limits = limits
        # connection that waits, its latest request, bytes that its client has not read -> since when
        self._waiting_since_s: dict[tuple[Any, Any, int], float] = {}
        self._opening: OrderedDict[asyncio.Task[None], None] = OrderedDict()  # connections before and in a handshake

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
        await asyncio.sleep(_LAST_REQUESTS_S)  # connections that have come are accepted
        for listening in sockets or []:
            with suppress(NotImplementedError):  # of Windows
                asyncio.get_running_loop().remove_reader(listening)
            with suppress(OSError):  # none waits any more; without this, those that have just come would be reset
                for _ in range(self.limits.connections):
                    self._admit(listening.accept()[0])
            listening.close()
        await asyncio.sleep(_LAST_REQUESTS_S)  # their requests are read
        self._accepting.cancel()  # not before: one that it has accepted would be lost with it
        await asyncio.wait([self._accepting])
        for opening in self._opening:
            opening.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listening: socket.socket) -> None:
        """Accept connections; without free descriptors, asyncio's servers would fill the log and answer nobody."""
        loop = asyncio.get_running_loop()
        while listening.fileno() >= 0:
            try:
                connection, _ = await loop.sock_accept(listening)
            except OSError as error:
                _log.warning("a connection is not accepted: %s", error)
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            self._admit(connection)
            await asyncio.sleep(0)  # it begins now: one that is cancelled before would not close the connection

    def _admit(self, connection: socket.socket) -> None:
        if len(self._opening) >= self.limits.connections:
            self._opening.popitem(last=False)[0].cancel()  # the one whose handshake began first
        opening = asyncio.create_task(self._open(connection))
        self._opening[opening] = None
        opening.add_done_callback(lambda done: self._opening.pop(done, None))

    async def _open(self, connection: socket.socket) -> None:
        """Give a connection to its protocol, after the TLS handshake if there is one."""
        config, secure = self.config, self.config.ssl
        times = {} if secure is None else dict.fromkeys(_TLS_TIMES, self.limits.seconds)
        protocol = _Protocol(config=config, server_state=self.server_state, app_state=self.lifespan.state)
        with suppress(OSError):  # the handshake failed or took too long, which is the client's affair
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: protocol, connection, ssl=secure, **times)

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
        self._close_waiting()
        self.should_exit |= time.monotonic() >= self._ends_s
        ends = await super().on_tick(counter)
        if self.is_ending and _CLOSING not in self.server_state.default_headers:
            # A client whose connection stays open could send a request at the moment at which it is closed.
            self.server_state.default_headers = [*self.server_state.default_headers, _CLOSING]
        return ends

    def _close_waiting(self) -> None:
        """Close connections that have waited too long, and of more than there may be the longest silent ones."""
        connections, since_s, now_s = self.server_state.connections, self._waiting_since_s, time.monotonic()
        waiting: list[Any] = [each for each in connections if _waits(each)]
        keys = [(each, each.cycle, each.transport.get_write_buffer_size()) for each in waiting]
        self._waiting_since_s = {key: since_s.get(key, now_s) for key in keys}
        known = sorted(since_s.keys() & keys, key=lambda key: (key[1] is not None, since_s[key]))  # new ones may stay
        too_many = len(connections) - self.limits.connections
        for number, key in enumerate(known):
            if number < too_many or now_s - since_s[key] > self.limits.seconds:
                key[0].transport.abort()


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
        self._uvicorn = _Uvicorn(config, limits)
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
            self._uvicorn.run([self._socket])

"""The guard of a server: it checks token, host, origin and size of a request, and refuses it before the app sees it.

Nobody but the user of this machine is served by default. A web page that the user visits runs on this machine as well:
its requests are refused by the `Host` and `Origin` that browsers send, so that no name of a foreign server that is made
to point here (DNS rebinding) can be used.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

from marl_sb3.errors import ConfigError, MarlSb3Error, described
from marl_sb3.extensions.display.text import one_line
from marl_sb3.tools.serving.metrics import OTHER_ROUTE, RequestMetrics

T = TypeVar("T")

_log = logging.getLogger(__name__)

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
ANY_HOST = "*"
_SUBPROTOCOL = "marl-sb3"  # of a WebSocket that offers its token as another one
_TOKEN_PREFIX = "token."
_MOST_SHOWN = 500  # characters of a message about what was sent
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{8,200}")  # what HTTP allows in a Bearer token


@dataclass(frozen=True)
class Limits:
    """How much a client may ask for."""

    body_bytes: int = 8_000_000  # size of the body of a request, and of a message of a WebSocket
    batch: int = 1024  # observations of an agent in one request
    # time for a request's head, for its body, for a client that reads nothing of its answer, and for the answers that
    # are due when the server ends
    seconds: float = 10.0
    # connections at a time. Of more, the oldest ones without a request are closed; more requests are refused.
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
    if isinstance(error, RequestError):
        return error_response(str(error), error.status, **error.more)
    more = {name: getattr(error, name, None) for name in ("agent", "key", "accepted")}
    return error_response(str(error), 400, **more)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    words = {404: f"there is no {request.url.path:.200}"}
    if "Allow" in headers:
        words[405] = f"{request.method} is not accepted here; accepted: {headers['Allow']}"
    return error_response(words.get(error.status_code, error.detail), error.status_code, headers)


HANDLERS: Mapping[Any, Any] = {RequestError: _refused, ConfigError: _refused, HTTPException: _http_error}


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
            return
        is_http, begun_s = scope["type"] == "http", time.perf_counter()
        status = unanswered = "gone" if is_http else "403"  # what uvicorn answers to a WebSocket that is not accepted

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "websocket.accept":
                status = "101"
                self._metrics.websockets += 1
                if _SUBPROTOCOL in scope.get("subprotocols", ()):
                    # Beside a token: browsers close a connection of whose subprotocols none is accepted.
                    message["subprotocol"] = message.get("subprotocol") or _SUBPROTOCOL
            elif message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = str(message["status"])
            try:
                await send(message)
            except RuntimeError as error:
                if "closed" not in str(error):
                    raise
                raise ClientDisconnect from error  # uvloop's connection was reset before uvicorn was told

        self._metrics.in_flight += is_http
        try:
            await self._app(scope, await self._checked(scope, receive), watched)
        except RequestError as error:
            await _refuse(error, scope, receive, watched)
        except (WebSocketDisconnect, ClientDisconnect):
            pass
        except Exception as error:
            _log.error("%s failed: %s", scope["path"], described(error), exc_info=error)
            if status != unanswered:
                raise
            await _refuse(RequestError("the server failed; its log says why", 500), scope, receive, watched)
        finally:
            # The path of the route with the names of its parameters, not with the values that clients choose.
            path: str = scope["path"] if "route" not in scope else scope["route"].path  # of what came to the app
            route = path if path in self._paths else OTHER_ROUTE
            if is_http:
                self._metrics.in_flight -= 1
                self._metrics.answered(route, status, time.perf_counter() - begun_s)
            else:
                self._metrics.websockets -= status == "101"
                self._metrics.requests[route, status] += 1

    async def _checked(self, scope: Scope, receive: Receive) -> Receive:
        """Refuse a request before anything of it is looked at; returns what gives its body to the app."""
        if self._metrics.in_flight > self._limits.connections:
            raise RequestError(f"all {self._limits.connections} connections are in use", 503)
        headers = Headers(scope=scope)
        self._check_host(scope, headers)
        self._check_token(scope, headers)
        return await self._with_body(scope, headers, receive) if scope["type"] == "http" else receive

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

    async def _with_body(self, scope: Scope, headers: Headers, receive: Receive) -> Receive:
        """Read the body; returns what gives it to the app."""
        limit, seconds = self._limits.body_bytes, self._limits.seconds
        declared = headers.get("content-length", "")
        if declared.isdigit() and (len(declared) > 15 or int(declared) > limit):
            raise _too_large(declared, limit)
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > limit:
                        raise _too_large(f"more than {limit}", limit)
        except TimeoutError:
            words = f"the body has not arrived; accepted: within {seconds:g} s"
            raise RequestError(words, 408) from None
        messages: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def given() -> Message:
            return messages.pop() if messages else await receive()

        return given


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

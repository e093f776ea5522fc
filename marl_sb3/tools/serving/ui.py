"""The page that shows episodes live, the WebSocket behind it, and the films that viewers have made."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from marl_sb3.runs import SavedRun
from marl_sb3.tools.serving.http import RequestError
from marl_sb3.tools.serving.live import LiveEpisode, Problem, ViewerGoneError

_PAGE = Path(__file__).parent / "page"
# The page and what it loads. They hold no data, and a browser asks for them before it can send a token.
PAGE_FILES = {"/": "index.html", **{f"/{name}": name for name in ("page.css", "page.js", "draw.js", "icon.svg")}}

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # a page of another version would not understand the server
}
_SEND_S = 30.0  # that a viewer may take to receive a message
_TRY_LATER, _BAD_DATA = 1013, 1008  # codes of RFC 6455 and its registry


def ui_routes(run: SavedRun, most_viewers: int = 8) -> list[BaseRoute]:
    """Return the routes of the page: `/` and its files, `/live`, `/films/...`.

    Args:
        run: the run.
        most_viewers: how many may watch at once, each with an episode of its own.
    """
    viewers: dict[str, LiveEpisode] = {}

    async def page(request: Request) -> Response:
        return FileResponse(_PAGE / PAGE_FILES[request.url.path], headers=_HEADERS)

    async def film(request: Request) -> Response:
        viewer = viewers.get(request.path_params["viewer"])
        path = None if viewer is None else viewer.film(request.path_params["name"])
        if path is None:
            return PlainTextResponse("there is no such film", status_code=404)
        return FileResponse(path, media_type="image/gif", headers=_HEADERS)

    async def live(websocket: WebSocket) -> None:
        protocols = websocket.scope.get("subprotocols", ())
        await websocket.accept("marl-sb3" if "marl-sb3" in protocols else None)
        if len(viewers) >= most_viewers:
            words = f"{most_viewers} viewers are watching, as many as may at once; close one of the pages"
            await websocket.send_text(msgspec.json.encode(Problem(words, is_final=True)).decode())
            await websocket.close(_TRY_LATER)
            return
        name = secrets.token_urlsafe(16)
        viewer = viewers[name] = LiveEpisode(run, _sender(websocket))
        try:
            await websocket.send_text(msgspec.json.encode({"type": "films", "folder": f"films/{name}/"}).decode())
            viewer.start()
            await listen(websocket, viewer)
        except (WebSocketDisconnect, RuntimeError):  # the latter: the socket was closed while it was written to
            pass
        finally:
            del viewers[name]
            await asyncio.shield(asyncio.to_thread(viewer.close))

    pages: list[BaseRoute] = [Route(path, page, methods=["GET"]) for path in PAGE_FILES]
    return [*pages, Route("/films/{viewer}/{name}", film, methods=["GET"]), WebSocketRoute("/live", live)]


async def listen(websocket: WebSocket, viewer: LiveEpisode) -> None:
    """Pass commands on until the viewer leaves."""
    while True:
        await asyncio.sleep(0)  # commands that came together are not obeyed in one go: the viewer may have left
        message = await websocket.receive()
        if message["type"] == "websocket.disconnect":
            return
        text = message.get("text")
        if text is None:
            await websocket.close(_BAD_DATA)
            return
        try:
            viewer.put(text)
        except RequestError as error:
            await websocket.send_text(msgspec.json.encode(Problem(str(error))).decode())


def _sender(websocket: WebSocket) -> Callable[[str | bytes], None]:
    """Return a function for other threads that sends a message and waits until it is on its way."""
    loop = asyncio.get_running_loop()

    def send(message: str | bytes) -> None:
        sending = websocket.send_bytes(message) if isinstance(message, bytes) else websocket.send_text(message)
        try:
            asyncio.run_coroutine_threadsafe(sending, loop).result(_SEND_S)
        except Exception as error:  # whatever it is, the viewer gets nothing any more
            raise ViewerGoneError("the viewer has left") from error

    return send

"""The page that shows episodes live, the WebSocket behind it, and the films that viewers have made."""

from __future__ import annotations

import asyncio
import io
import logging
import queue
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread

import msgspec
import torch
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect
from typing_extensions import override

from marl_sb3.errors import MarlSb3Error, described
from marl_sb3.evaluation.board import marks_of
from marl_sb3.evaluation.game import Control, Game, GamePlan
from marl_sb3.evaluation.opponents import Rival
from marl_sb3.evaluation.session import Film, GameSession, Moment, Stage, ViewerCommand, ViewerLeftError
from marl_sb3.evaluation.viewed_env import View, view_if_drawn
from marl_sb3.extensions.display.video import DEFAULT_FPS
from marl_sb3.runs.evaluate import game_plan
from marl_sb3.runs.rivals import named_apart, rivals_in
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.serving.guard import RequestError, read_message
from marl_sb3.types import AgentID, Array, PolicyID

_log = logging.getLogger(__name__)

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
_END_S = 5.0  # that a game may take to end: code of an opponent may never return
_BUSY_S = 10.0  # after which a viewer whose command is not obeyed hears why
_TRY_LATER, _BAD_DATA = 1013, 1008  # codes of RFC 6455 and its registry
_MOST_WAITING = 1000  # commands that have not been obeyed yet
_MOST_CHARACTERS = 10_000  # of a command


# --- A viewer --------------------------------------------------------------------------------------------------------


class AgentCard(Struct):
    """An agent, its policy, and how a person acts for it."""

    agent: AgentID
    policy: PolicyID
    control: Control
    mark: str  # what it has on the board, such as `red`; empty: nobody knows


class OpponentCard(Struct):
    """Somebody who can be chosen to play against."""

    name: str
    about: str


class Hello(Struct, tag="hello"):
    """What there is to play; the first message."""

    env: str
    run: str
    agents: list[AgentCard]
    checkpoints: list[str]
    opponents: list[OpponentCard]  # "begin" takes their names
    seed: int | None  # of `begin` without one; None: a new one each time, since all episodes start alike


class ErrorMessage(Struct, tag="problem"):
    """Something went wrong; after an `is_final` one, nothing follows."""

    message: str
    is_final: bool = False


class SocketStage(Stage):
    """Plays the env of a run for one viewer, in a thread of its own, from `start` to `close`.

    Args:
        run: the run.
        send: gets every message, in the thread: JSON, and pictures as bytes, each before its moment. It may take its
            time, which slows the game down, and raises `ViewerLeftError` if nobody listens any more.
        rivals: who may be chosen to play against, beside those that the run has; the first one plays first.
        search: how many positions policies look at before each action, see `evaluation.searching`; 0: none.
    """

    most_per_s = 30.0
    selects = True

    def __init__(
        self, run: SavedRun, send: Callable[[str | bytes], None], rivals: Sequence[Rival] = (), search: int = 0
    ) -> None:
        self._run, self._send, self._rivals, self._search = run, send, rivals, search
        self._commands: queue.Queue[ViewerCommand | None] = queue.Queue(_MOST_WAITING)
        self._session: GameSession | None = None  # of the thread
        self._thread = Thread(target=self._play, name="live episode", daemon=True)
        self._ended = False
        self._busy_since_s: float | None = None  # since when no command is looked for; None: one is

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def put(self, text: str) -> None:
        """Obey a command, soon.

        Raises:
            RequestError: it is no command, too many are waiting, or it waits for a game that stands still.
        """
        command = read_message(text[:_MOST_CHARACTERS], ViewerCommand, "not a command")
        try:
            self._commands.put_nowait(command)
        except queue.Full as error:
            raise RequestError(f"{_MOST_WAITING} commands are waiting; this one was dropped") from error
        busy_s = 0.0 if self._busy_since_s is None else time.monotonic() - self._busy_since_s
        if busy_s >= _BUSY_S:
            words = "an opponent, a policy or the env has not answered"
            raise RequestError(f"{words} for {busy_s:.0f} s; this is done when it has")

    def film(self, name: str) -> Path | None:
        """Return the file of a film; None if there is none of this name."""
        return None if self._session is None else self._session.films.get(name)

    def close(self) -> None:
        """End the game, and remove the films; a game that does not end in time is left to itself."""
        self._ended = True
        with suppress(queue.Full):  # then the thread is awake and sees `_ended`
            self._commands.put_nowait(None)
        if self._thread.ident is not None:
            self._thread.join(_END_S)
        if self._session is not None:
            self._session.close()

    def _play(self) -> None:
        torch.set_num_threads(self._run.config.n_threads)  # PyTorch counts them for each thread
        with suppress(ViewerLeftError):
            try:
                plan = self._plan()
                with closing(Game(plan, partial(view_if_drawn, plan.env))) as game:
                    fps = float(game.env.metadata.get("render_fps") or DEFAULT_FPS)
                    self._session = GameSession(game, self, fps / 2 if game.viewed.scene is not None else fps)
                    self._session.play()
            except MarlSb3Error as error:
                self._say(ErrorMessage(str(error), is_final=True))
            except (Exception, SystemExit) as error:  # a thread would end by the latter without a word
                _log.exception("a live episode has ended")
                self._say(ErrorMessage(described(error), is_final=True))

    def _plan(self) -> GamePlan:
        plan = game_plan(self._run)
        given = {rival.name for rival in self._rivals}
        others = [rival for rival in rivals_in(self._run) if rival.name not in given]
        rivals = named_apart([*self._rivals, *others], plan.name)
        against = rivals[0].name if self._rivals else ""
        return replace(plan, rivals=rivals, against=against, search=self._search)

    def _say(self, message: Struct) -> None:
        self._send(msgspec.json.encode(message).decode())

    @override
    def begin(self, game: Game) -> None:
        policy_of, files = game.policies.policy_of, self._run.files
        marks = dict(zip(game.env.agents, marks_of(game.viewed), strict=False))
        cards = [
            AgentCard(agent, policy_of[agent], game.controls[agent], marks.get(agent, "")) for agent in game.env.agents
        ]
        numbers = [str(int(name.rpartition("-")[2])) for name in files.checkpoints.names()]
        seed = None if game.starts_alike else game.plan.seed
        rivals = [OpponentCard(rival.name, rival.about) for rival in game.plan.rivals] if len(cards) > 1 else []
        self._say(Hello(self._run.config.env, files.path.name, cards, numbers, rivals, seed))

    @override
    def next_command(self, timeout_s: float | None) -> ViewerCommand | None:
        self._busy_since_s = None
        try:
            command = self._commands.get(timeout=timeout_s)
        except queue.Empty:
            return None
        finally:
            self._busy_since_s = time.monotonic()
        if command is None or self._ended:
            raise ViewerLeftError("the viewer has left")
        return command

    @override
    def show(self, moment: Moment, view: View | None) -> None:
        if view is not None and view.image is not None:
            self._send(_as_file(view.image))
        moment.scene = None if view is None else view.scene
        self._say(moment)

    @override
    def hold_s(self, moment: Moment) -> float:
        return 4.0 if moment.taken else 1.5

    @override
    def fail(self, error: MarlSb3Error, remedy: str = "") -> None:
        self._say(ErrorMessage(f"{error}. {remedy}" if remedy else str(error)))

    @override
    def offer(self, film: Film) -> None:
        self._say(film)


def _as_file(picture: Array) -> bytes:
    """Return a picture as PNG if it has few colours, which JPEG would blur; else as JPEG."""
    from PIL import Image

    image, file = Image.fromarray(picture), io.BytesIO()
    if image.getcolors(256) is not None:
        image.save(file, "PNG", compress_level=1)
    else:
        image.save(file, "JPEG", quality=88)
    return file.getvalue()


# --- Routes ----------------------------------------------------------------------------------------------------------


def ui_routes(run: SavedRun, rivals: Sequence[Rival] = (), search: int = 0, most_viewers: int = 8) -> list[BaseRoute]:
    """Return the routes of the page: `/` and its files, `/live`, `/films/...`.

    Args:
        run: the run.
        rivals, search: see `SocketStage`.
        most_viewers: how many may watch at once, each with an episode of its own.
    """
    viewers: dict[str, SocketStage] = {}

    async def page(request: Request) -> Response:
        return FileResponse(_PAGE / PAGE_FILES[request.url.path], headers=_HEADERS)

    async def film(request: Request) -> Response:
        viewer = viewers.get(request.path_params["viewer"])
        path = None if viewer is None else viewer.film(request.path_params["name"])
        if path is None:
            return PlainTextResponse("there is no such film", status_code=404)
        return FileResponse(path, media_type="image/gif", headers=_HEADERS)

    async def live(websocket: WebSocket) -> None:
        await websocket.accept()
        if len(viewers) >= most_viewers:
            words = f"{most_viewers} viewers are watching, as many as may at once; close one of the pages"
            await websocket.send_text(msgspec.json.encode(ErrorMessage(words, is_final=True)).decode())
            await websocket.close(_TRY_LATER)
            return
        name = secrets.token_urlsafe(16)
        viewer = viewers[name] = SocketStage(run, _sender(websocket), rivals, search)
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


async def listen(websocket: WebSocket, viewer: SocketStage) -> None:
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
            await websocket.send_text(msgspec.json.encode(ErrorMessage(str(error))).decode())


def _sender(websocket: WebSocket) -> Callable[[str | bytes], None]:
    """Return a function for other threads that sends a message and waits until it is on its way."""
    loop = asyncio.get_running_loop()

    def send(message: str | bytes) -> None:
        sending = websocket.send_bytes(message) if isinstance(message, bytes) else websocket.send_text(message)
        try:
            asyncio.run_coroutine_threadsafe(sending, loop).result(_SEND_S)
        except Exception as error:  # whatever it is, the viewer gets nothing any more
            raise ViewerLeftError("the viewer has left") from error

    return send

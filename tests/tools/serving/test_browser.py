"""The page of `serve --ui`: its protocol here, and the page itself in a real browser (marker `browser`)."""

from __future__ import annotations

import asyncio
import io
import json
import queue
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from live_envs import small_run
from PIL import Image
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from marl_sb3.evaluation.opponents import Rival
from marl_sb3.evaluation.session import ViewerLeftError
from marl_sb3.runs.rivals import rival_of
from marl_sb3.runs.run import SavedRun
from marl_sb3.tools.serving.guard import Limits, Listening, RequestError
from marl_sb3.tools.serving.http import Server
from marl_sb3.tools.serving.ui import PAGE_FILES, SocketStage, listen, ui_routes

TOKEN = "a-token-of-tests"


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return small_run(tmp_path_factory.mktemp("run") / "run", "arena", **{"env.max_timesteps": 15})


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> SavedRun:
    return small_run(tmp_path_factory.mktemp("run") / "run", "classic/tictactoe-v3", algo="maskable_ppo")


@contextmanager
def served(run: SavedRun, port: int = 0, token: str | None = None, **more: Any) -> Iterator[str]:
    where, limits = Listening(port=port, token=token), Limits(seconds=1)
    with Server(ui_routes(run, **more), where, limits, public=[*PAGE_FILES]) as server:
        yield server.address


def live_of(address: str) -> str:
    return f"ws{address.removeprefix('http')}/live"


# --- Without a browser -----------------------------------------------------------------------------------------------


def test_a_viewer_plays_over_a_websocket_and_fetches_a_film(arena: SavedRun) -> None:
    with served(arena, most_viewers=1) as address, connect(f"{live_of(address)}") as socket:
        folder = json.loads(socket.recv())["folder"]
        assert json.loads(socket.recv())["type"] == "hello"
        for command in ({"do": "pause"}, {"do": "film"}, {"do": "step"}, {"do": "film", "on": False}, {}):
            socket.send(json.dumps(command))
        found: dict[str, Any] = {}
        while {"film", "problem"} - found.keys():
            message = json.loads(socket.recv(timeout=20))
            found[message["type"]] = message
        assert "not a command" in found["problem"]["message"]
        assert httpx.get(f"{address}/{folder}{found['film']['name']}").content[:6] == b"GIF89a"
        assert httpx.get(f"{address}/{folder}other.gif").status_code == 404
        with connect(live_of(address)) as second:
            assert "1 viewers are watching" in json.loads(second.recv())["message"]


def test_nothing_is_sent_to_a_viewer_that_has_left(arena: SavedRun) -> None:
    """Its commands came in one piece; that the connection was reset, the server hears in the next turn of its loop."""
    sent: list[str] = []

    class Left:
        gone = False

        async def receive(self) -> dict[str, str]:
            if len(sent) == 1:
                asyncio.get_running_loop().call_soon(setattr, self, "gone", True)
            return {"type": "websocket.receive", "text": "no command"}

        async def send_text(self, text: str) -> None:
            if self.gone:
                raise WebSocketDisconnect
            sent.append(text)

    viewer = SocketStage(arena, lambda _: None)
    with pytest.raises(WebSocketDisconnect):
        asyncio.run(listen(Left(), viewer))  # type: ignore[arg-type]
    assert len(sent) <= 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"do": "fly"}', '{"do": "pace", "steps_per_s": 0}', '{"do": "step", "more": 1}', "\ud800"]
)
def test_what_is_no_command_is_refused(arena: SavedRun, text: str) -> None:
    with pytest.raises(RequestError, match="not a command"):
        SocketStage(arena, lambda _: None).put(text)


def has_ended(viewer: SocketStage, most_s: float = 20.0) -> bool:
    viewer._thread.join(most_s)
    return not viewer._thread.is_alive()


def test_a_game_ends_when_nobody_listens(arena: SavedRun) -> None:
    def send(_: str | bytes) -> None:
        raise ViewerLeftError("gone")

    viewer = SocketStage(arena, send)
    viewer.start()
    assert has_ended(viewer)


class Busy:
    """Thinks until it is told to stop."""

    asked, stop = Event(), Event()

    def act(self, observation: Any, mask: Any, rng: Any) -> int:
        self.asked.set()
        self.stop.wait(20)
        return 0


def test_a_viewer_hears_of_an_opponent_that_thinks_and_leaves(arena: SavedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marl_sb3.tools.serving.ui._END_S", 0.1)
    monkeypatch.setattr("marl_sb3.tools.serving.ui._BUSY_S", 0.0)
    viewer = SocketStage(arena, lambda _: None, [Rival("busy", lambda _: Busy())])
    viewer.start()
    assert Busy.asked.wait(20)
    with pytest.raises(RequestError, match=r"a policy or the env has not answered for \d s; this is done when"):
        viewer.put('{"do": "pause"}')
    viewer.close()
    assert not has_ended(viewer, 0.0)
    Busy.stop.set()
    assert has_ended(viewer)


def test_an_env_that_ends_the_process_ends_its_game(arena: SavedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(_: Any) -> Any:
        raise SystemExit(3)

    monkeypatch.setattr(SocketStage, "_plan", plan)
    sent: list[str | bytes] = []
    viewer = SocketStage(arena, sent.append)
    viewer.start()
    assert has_ended(viewer)
    (problem,) = map(json.loads, sent)
    assert (problem["message"], problem["is_final"]) == ("SystemExit: 3", True)


def test_pictures_are_sent_as_files_before_their_moments(tmp_path: Path) -> None:
    sent = queue.Queue[str | bytes]()
    viewer = SocketStage(small_run(tmp_path / "run", "live_envs:Pictured"), sent.put)
    viewer.start()
    messages = [sent.get(timeout=20) for _ in range(3)]
    viewer.close()
    hello, picture, moment = messages
    assert json.loads(hello)["agents"][0]["control"]["starts"] == [2]
    assert isinstance(picture, bytes)
    assert Image.open(io.BytesIO(picture)).size == (16, 12)
    assert (json.loads(moment)["type"], json.loads(moment)["step"]) == ("moment", 0)


def test_a_run_that_cannot_be_played_says_so(arena: SavedRun) -> None:
    sent: list[str | bytes] = []
    viewer = SocketStage(SavedRun(arena.files, replace(arena.config, env_kwargs={"height": "three"})), sent.append)
    viewer.start()
    assert has_ended(viewer)
    (problem,) = map(json.loads, sent)
    assert problem["is_final"]
    assert "height must be an integer" in problem["message"]


@pytest.fixture(scope="module")
def league(arena: SavedRun) -> SavedRun:
    """The same run with two members of a league, of which one is damaged, and beside them a link and half a member."""
    folder, (*_, latest) = arena.files.path / "league", arena.files.checkpoints.names()
    for member in ("shared@10", "shared@9", ".unfinished-shared@12"):
        shutil.copytree(arena.files.checkpoints.path / latest, folder / member)
    (folder / "shared@9" / "state.json").write_text("{")
    (folder / "shared@11").symlink_to(folder / "shared@10")
    listed = [
        {"policy": "shared", "iteration": 9, "rating": None},
        {"policy": "shared", "iteration": 10, "rating": 12.4},
    ]
    (folder / "members.json").write_text(json.dumps(listed))
    return arena


def told(socket: Any, kind: str, **fields: Any) -> dict[str, Any]:
    """The next message of a kind with these fields."""
    while True:
        message = json.loads(text) if isinstance(text := socket.recv(timeout=20), str) else {}
        if message.get("type") == kind and fields.items() <= message.items():
            return message  # type: ignore[no-any-return]


def test_a_viewer_chooses_by_name_who_plays_against(league: SavedRun) -> None:
    with served(league, rivals=[rival_of("random", league)]) as address, connect(live_of(address)) as socket:
        offered = [(each["name"], each["about"]) for each in told(socket, "hello")["opponents"]]
        assert offered == [
            ("random", ""),
            ("league/shared@9", ""),
            ("league/shared@10", "rating 12"),
            ("checkpoint latest", ""),
            ("checkpoint best", ""),
            ("checkpoint 2", ""),
        ]
        assert told(socket, "moment")["players"] == {"agent1": "run", "agent2": "random"}
        for name, words in [
            ("league/shared@9", "shared@9: state.json has 1 bytes"),
            ("league/../../run", "unknown opponent 'league/../../run'; accepted: random, league/shared@9"),
            (str(league.files.path), "unknown opponent"),
        ]:
            socket.send(json.dumps({"do": "begin", "against": name}))
            assert words in told(socket, "problem")["message"]
        socket.send(json.dumps({"do": "begin", "against": "league/shared@10"}))
        assert told(socket, "moment", against="league/shared@10")["tally"] == ""
        socket.send(json.dumps({"do": "take", "agent": "agent1"}))
        assert told(socket, "moment", taken=["agent1"])["players"] == {"agent1": "You", "agent2": "league/shared@10"}


def test_the_page_needs_no_token_and_what_it_shows_does(arena: SavedRun) -> None:
    with served(arena, token=TOKEN) as address:
        for path in PAGE_FILES:
            answer = httpx.get(address + path)
            assert answer.status_code == 200
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert not re.search(r"(src|href)=\"(https?:)?//|import .*https?:", answer.text)  # nothing from elsewhere
        assert httpx.get(f"{address}/films/-/-").status_code == 401
        with pytest.raises(InvalidStatus, match="401"), connect(live_of(address)):
            pass
        with connect(live_of(address), subprotocols=["marl-sb3", f"token.{TOKEN}"]) as socket:  # type: ignore[list-item]
            assert json.loads(socket.recv())["type"] == "films"


# --- In a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as engines:
        installed = shutil.which("chromium") or shutil.which("google-chrome")  # None: playwright's own
        yield engines.chromium.launch(executable_path=installed, args=["--no-sandbox"])


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[[str], Any]]:
    """Open a page; in the end, none of the pages may have had an error."""
    contexts, errors = [], []

    def open_page(address: str) -> Any:
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.set_default_timeout(10_000)
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for text in errors if "WebSocket" not in text and "401" not in text] == []


def step_of(page: Any) -> int:
    return int(re.search(r"step (\d+)", page.locator("#clock").inner_text())[1])  # type: ignore[index]


def shows(page: Any, selector: str, words: str) -> None:
    page.locator(selector).filter(has_text=words).wait_for()


@pytest.mark.browser
def test_it_loads_plays_and_a_key_moves_the_agent(arena: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(arena) as address:
        page = opened(address)
        shows(page, "#connection", "Connected")
        page.wait_for_function("() => /step [2-9]/.test(document.getElementById('clock').textContent)")
        page.get_by_role("button", name="Restart").click()
        page.get_by_role("button", name="Take over agent1").click()
        shows(page, "#state", "Your move")
        before = step_of(page)
        page.keyboard.press("ArrowRight")
        shows(page, "#clock", f"step {before + 1}")
        page.get_by_role("button", name="down").click()
        shows(page, "#clock", f"step {before + 2}")
        page.get_by_role("button", name="Take over agent2").click()
        shows(page, "#person-title", "You play agent1 and agent2")
        page.keyboard.press("Space")  # pauses, and gives no agent back
        shows(page, "#play", "Play")
        shows(page, "#person-title", "You play agent1 and agent2")
        assert "agent1 in row" in page.locator("#stage").get_attribute("aria-label")
        pixels = page.evaluate(
            "() => { const c = document.getElementById('stage'); const d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height).data; return new Set(new Uint32Array(d.buffer)).size; }"
        )
        assert pixels > 3


@pytest.mark.browser
def test_two_viewers_play_apart_and_reconnect_after_a_restart(arena: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(arena) as address:
        pages = [opened(address) for _ in range(2)]
        for page, seed in zip(pages, ("1", "2"), strict=True):
            shows(page, "#connection", "Connected")
            page.get_by_label("Seed").fill(seed)
            page.get_by_role("button", name="Begin").click()
        for page, seed in zip(pages, ("1", "2"), strict=True):
            shows(page, "#clock", f"seed {seed}")
    for page in pages:
        shows(page, "#connection", "Not connected")
    with served(arena, port=int(address.rpartition(":")[2])):
        for page, seed in zip(pages, ("1", "2"), strict=True):
            shows(page, "#connection", "Connected")
            shows(page, "#clock", f"seed {seed}")  # as they were


@pytest.mark.browser
def test_a_film_is_saved(arena: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(arena) as address:
        page = opened(address)
        page.get_by_role("button", name="Record").click()
        page.get_by_role("button", name=re.compile(r"Save GIF \([3-9]")).wait_for()
        with page.expect_download() as download:
            page.locator("#film").click()
        assert Path(download.value.path()).read_bytes()[:6] == b"GIF89a"


@pytest.mark.browser
def test_it_asks_for_the_token(arena: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(arena, token=TOKEN) as address:
        page = opened(address)
        page.get_by_label("Token", exact=True).fill(TOKEN)
        page.get_by_role("button", name="Connect").click()
        shows(page, "#connection", "Connected")
        shows(opened(f"{address}/#token={TOKEN}"), "#connection", "Connected")


def click(page: Any, across: float, down: float) -> None:
    """Click the picture at a place in shares of its sides."""
    box = page.locator("#stage").bounding_box()
    place = {"x": across * box["width"], "y": down * box["height"]}
    page.locator("#stage").hover(position=place)
    assert page.locator("#stage").evaluate("stage => getComputedStyle(stage).cursor") == "pointer"
    page.locator("#stage").click(position=place)


@pytest.mark.browser
def test_a_click_beside_an_agent_moves_it_there(arena: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(arena) as address:
        page = opened(address)
        page.get_by_role("button", name="Restart").click()
        shows(page, "#clock", "step 0")
        page.get_by_role("button", name="Take over agent1").click()
        shows(page, "#state", "Your move")
        page.get_by_role("button", name="Restart").click()
        shows(page, "#clock", "step 0")
        for step, (column, row) in enumerate([(1, 0), (1, 1), (2, 1)], start=1):
            click(page, (column + 0.5) / 10, (row + 0.5) / 10)
            shows(page, "#clock", f"step {step}")
            assert f"agent1 in row {row + 1}, column {column + 1}" in page.locator("#stage").get_attribute("aria-label")
        page.locator("#stage").hover(position={"x": 3, "y": 3})  # nothing is beside it
        assert page.locator("#stage").evaluate("stage => getComputedStyle(stage).cursor") == "auto"


@pytest.mark.browser
@pytest.mark.parametrize("way", ["click", "button", "key"])
def test_a_board_is_played_to_its_result(way: str, board: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(board) as address:
        page = opened(address)
        for agent in ("player_1", "player_2"):
            page.get_by_role("button", name=f"Take over {agent}").click()
            shows(page, "#person-title", agent)
        page.get_by_role("button", name="Restart").click()
        shows(page, "#clock", "step 0")
        moves = [(0, 0), (0, 2), (1, 1), (1, 2), (2, 2)]  # row, column; the first player has the diagonal
        for step, (row, column) in enumerate(moves):
            shows(page, "#state", f"Your move, player_{step % 2 + 1}")
            if way == "click":
                click(page, (column + 0.5) / 3, (row + 0.5) / 3)
            elif way == "button":
                pad = page.get_by_role("group", name=f"player_{step % 2 + 1}")
                pad.get_by_role("button", name=f"row {row + 1}, column {column + 1}").click()
            else:
                page.keyboard.press(str(3 * row + column + 1))
        shows(page, "#score", "X, moves first")
        shows(page, "#result", "Episode 1: player_1 won. Returns: player_1 1, player_2 \N{MINUS SIGN}1")
        shows(page, "#said", "player_1 won")


@pytest.mark.browser
def test_a_person_plays_against_a_checkpoint_and_sees_the_score(board: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(board) as address:
        page = opened(address)
        shows(page, "#connection", "Connected")
        page.get_by_role("button", name="Pause").click()
        page.get_by_role("button", name="Step").click()
        page.get_by_role("button", name="Take over player_1").click()
        shows(page, "#person-title", "You play player_1 (X, moves first)")
        shows(page, "#opponent", "none: policies play the other agents")
        shows(page, "#joined", "does not count as yours")
        page.get_by_role("button", name="New game").click()
        page.wait_for_selector("#joined", state="hidden")
        page.get_by_label("Opponent").select_option("checkpoint latest")
        page.get_by_role("button", name="Begin").click()
        shows(page, "#score", "checkpoint latest")
        for step in range(0, 9, 2):
            page.wait_for_function(
                f"() => /step {step} /.test(document.getElementById('clock').textContent)"
                " || !document.getElementById('tally').hidden"
            )
            if page.locator("#tally").is_visible():
                break
            page.get_by_role("group", name="player_1").locator("button:enabled").first.click()
        shows(page, "#tally", "checkpoint latest")
        assert re.match(r"You \d : \d checkpoint latest", page.locator("#tally").inner_text())
        shows(page, "#result", "Episode 1:")


@pytest.mark.browser
def test_games_that_start_alike_get_new_seeds(board: SavedRun, opened: Callable[[str], Any]) -> None:
    with served(board) as address:
        page = opened(address)
        seeds = set()
        for _ in range(3):
            page.get_by_role("button", name="Restart").click()
            shows(page, "#why", "All episodes start alike: actions are sampled")
            page.wait_for_function(
                "seeds => !seeds.includes(document.getElementById('clock').textContent.split('seed ')[1])",
                arg=[*seeds],
            )
            seeds.add(page.locator("#clock").inner_text().split("seed ")[1])
        assert len(seeds) == 3


@pytest.mark.browser
def test_an_env_that_cannot_be_drawn_says_why(tmp_path: Path, opened: Callable[[str], Any]) -> None:
    with served(small_run(tmp_path / "run", "live_envs:Undrawn")) as address:
        page = opened(address)
        shows(page, "#undrawn", "This env cannot be drawn")
        shows(page, "#score", "agent")

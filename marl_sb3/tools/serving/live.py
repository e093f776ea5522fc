"""Episodes played live for one viewer, in a thread and at a pace: commands go in, moments and pictures come out."""

from __future__ import annotations

import logging
import queue
import secrets
import tempfile
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, Literal

import msgspec
import torch
from msgspec import Meta, Struct

from marl_sb3.core.mapping import Deterministic
from marl_sb3.errors import ConfigError, EnvError, MarlSb3Error, described
from marl_sb3.extensions.display import DEFAULT_FPS, VideoFile
from marl_sb3.runs import SavedRun
from marl_sb3.tools.serving.board import Board
from marl_sb3.tools.serving.game import Control, Insight, LiveGame
from marl_sb3.tools.serving.http import RequestError, read_message
from marl_sb3.types import AgentID, PolicyID

_LOG = logging.getLogger(__name__)

_SHOWN_PER_S = 30.0  # moments at most; env steps in between are not shown
_HOLD_S, _PERSONS_HOLD_S = 1.5, 4.0  # for which the end of an episode is shown, without and with persons in it
_MOST_WAITING = 1000  # commands that have not been obeyed yet
_MOST_CHARACTERS = 10_000  # of a command
_FILMS_KEPT = 4


class ViewerGoneError(MarlSb3Error):
    """What `send` raises if nobody listens any more."""


class Command(Struct, forbid_unknown_fields=True):
    """What a viewer asks for, in JSON: `do`, and the fields that it needs."""

    do: Literal["play", "pause", "step", "begin", "pace", "select", "take", "release", "act", "wait", "film"]
    agent: AgentID = ""
    action: float | Annotated[list[float], Meta(max_length=64)] = 0  # as the env takes it
    on: bool = True  # "wait": the env waits for persons; "film": one is made
    steps_per_s: Annotated[float, Meta(ge=0.1, le=1000)] = 10  # env steps
    # "begin". None: as in evaluations; a new seed and sampled actions where all episodes start alike.
    seed: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    deterministic: bool | None = None
    checkpoint: Annotated[str, Meta(max_length=40)] | None = None  # None: as `evaluate` chooses


class AgentCard(Struct):
    """An agent, its policy, and how a person acts for it."""

    agent: AgentID
    policy: PolicyID
    control: Control


class Hello(Struct, tag="hello"):
    """What there is to play; the first message."""

    env: str
    run: str
    agents: list[AgentCard]
    checkpoints: list[str]
    seed: int | None  # of `begin` without one; None: a new one each time, since all episodes start alike


class Moment(Struct, tag="moment"):
    """The game after a step, a reset or a command."""

    episode: int
    step: int
    is_over: bool
    result: str  # who has won, once it is over; empty: nobody knows
    returns: dict[AgentID, float]
    actions: dict[AgentID, Any]  # of the latest step
    to_act: list[AgentID]
    masks: dict[AgentID, list[bool]]  # of the persons' agents
    boards: dict[AgentID, Board]  # of the persons' agents that act next
    insight: Insight | None  # of the agent that is looked at
    scene: dict[str, Any] | None  # None: nothing new, or a picture that was sent before
    playing: bool
    steps_per_s: float
    seed: int
    checkpoint: str
    checkpoint_why: str
    selected: AgentID
    taken: list[AgentID]
    waits: bool
    awaited: list[AgentID]  # agents whose persons have to choose an action before the next step
    film_frames: int | None  # None: no film is being made
    why_not_drawn: str


class Film(Struct, tag="film"):
    """A film that can be fetched."""

    name: str
    frames: int


class Problem(Struct, tag="problem"):
    """Something went wrong; after an `is_final` one, nothing follows."""

    message: str
    is_final: bool = False


class LiveEpisode:
    """Plays the env of a run for one viewer, in a thread of its own, from `start` to `close`.

    Args:
        run: the run.
        send: gets every message, in the thread: JSON, and pictures as bytes, each before its moment. It may take its
            time, which slows the game down, and raises `ViewerGoneError` if nobody listens any more.
    """

    _game: LiveGame  # of the thread

    def __init__(self, run: SavedRun, send: Callable[[str | bytes], None]) -> None:
        self._run = run
        self._send = send
        self._commands: queue.Queue[Command | None] = queue.Queue(_MOST_WAITING)
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the films
        self._films: dict[str, Path] = {}
        self._thread = Thread(target=self._live, name="live episode", daemon=True)
        self._ended = False
        self._said = set[str]()
        self._playing, self._waits, self._steps_per_s = True, False, DEFAULT_FPS
        self._shown_s = self._due_s = 0.0  # when it was shown, when the next step is due: time.perf_counter()

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def put(self, text: str) -> None:
        """Obey a command, soon.

        Raises:
            RequestError: it is no command, or too many are waiting.
        """
        command = read_message(text[:_MOST_CHARACTERS], Command, "not a command")
        try:
            self._commands.put_nowait(command)
        except queue.Full as error:
            raise RequestError(f"{_MOST_WAITING} commands are waiting; this one was dropped") from error

    def film(self, name: str) -> Path | None:
        """Return the file of a film; None if there is none of this name."""
        return self._films.get(name)

    def close(self) -> None:
        """End the game, and remove the films."""
        self._ended = True
        with suppress(queue.Full):  # then the thread is awake and sees `_ended`
            self._commands.put_nowait(None)
        if self._thread.ident is not None:
            self._thread.join()
        if self._folder is not None:
            self._folder.cleanup()

    # --- The thread --------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        torch.set_num_threads(self._run.config.n_threads)  # PyTorch counts them for each thread
        with suppress(ViewerGoneError):
            try:
                with closing(LiveGame(self._run)) as self._game:
                    self._welcome()
                    while not self._ended:
                        self._obey_or_advance()
            except ViewerGoneError:
                raise
            except MarlSb3Error as error:
                self._say(Problem(str(error), is_final=True))
            except Exception as error:
                _LOG.exception("a live episode has ended")
                self._say(Problem(described(error), is_final=True))

    def _welcome(self) -> None:
        game, config = self._game, self._run.config
        fps = float(game.env.metadata.get("render_fps") or DEFAULT_FPS)
        self._steps_per_s = fps / 2 if game.shown.scene is not None else fps
        self._selected = game.env.agents[0]
        self._begin(Command("begin"))
        cards = [AgentCard(agent, game.policies.policy_of[agent], game.controls[agent]) for agent in game.env.agents]
        numbers = [str(int(name.rpartition("-")[2])) for name in self._run.files.checkpoints.names()]
        seed = None if game.starts_alike else game.plan.seed
        self._say(Hello(config.env, self._run.files.path.name, cards, numbers, seed))
        self._show(looks=True)

    def _obey_or_advance(self) -> None:
        """Obey the next command, or take the next step, whichever is due first."""
        waits_for_persons = self._waits and self._game.awaited()
        timeout_s = max(0.0, self._due_s - time.perf_counter())
        try:
            command = self._commands.get(timeout=timeout_s if self._playing and not waits_for_persons else None)
        except queue.Empty:
            self._advance()
            return
        if command is None:
            return
        try:
            getattr(self, f"_{command.do}")(command)  # `do` is one of those in `Command`
        except MarlSb3Error as error:
            self._say(Problem(str(error)))
        self._show(looks=command.do in ("begin", "step"))

    def _advance(self) -> None:
        game, now_s = self._game, time.perf_counter()
        chooses = self._waits and bool(game.persons)
        game.shown.shows = chooses or not self._playing or now_s - self._shown_s >= 1 / _SHOWN_PER_S
        try:
            game.advance()
        except MarlSb3Error as error:  # the env's fault
            self._playing, game.shown.film = False, None
            self._say(Problem(f"{error}. Begin anew to go on."))
            return
        if chooses:
            game.forget_choices()
        if game.shown.film_is_full:
            self._finish_film()
        hold_s = _PERSONS_HOLD_S if game.persons else _HOLD_S
        self._due_s = now_s + (hold_s if game.is_over else 0 if chooses else 1 / self._steps_per_s)
        if game.shown.shows or game.is_over or not game.step:
            self._show(looks=True)

    def _show(self, looks: bool) -> None:
        """Send the moment.

        Args:
            looks: whether there is something new to see.
        """
        game, film = self._game, self._game.shown.film
        view = (game.shown.latest if game.step else game.shown.first) if looks else None
        if isinstance(view, bytes):
            self._send(view)
        masks = {agent: mask.tolist() for agent in game.persons if (mask := game.mask(agent)) is not None}
        to_act = [] if game.is_over else [agent for agent, *_ in game.to_act]
        boards = {agent: self._board(agent) for agent in to_act if agent in game.persons}
        self._shown_s = time.perf_counter() if looks else self._shown_s
        self._say(
            Moment(
                episode=game.episode,
                step=game.step,
                is_over=game.is_over,
                result=game.result(),
                returns=dict(zip(game.env.agents, game.returns.tolist(), strict=True)),
                actions=game.latest_actions,
                to_act=to_act,
                masks=masks,
                boards={agent: board for agent, board in boards.items() if board is not None},
                insight=game.insight(self._selected),
                scene=view if isinstance(view, dict) else None,
                playing=self._playing,
                steps_per_s=self._steps_per_s,
                seed=self._seed,
                checkpoint=game.policies.checkpoint or "",
                checkpoint_why=game.policies.checkpoint_why,
                selected=self._selected,
                taken=list(game.persons),
                waits=self._waits,
                awaited=game.awaited() if self._waits else [],
                film_frames=None if film is None else film.num_frames,
                why_not_drawn="" if game.shown.scene is not None else game.shown.why_not,
            )
        )

    def _board(self, agent: AgentID) -> Board | None:
        try:
            return self._game.board(agent)
        except EnvError as error:  # the env's fault, which is said once
            if str(error) not in self._said:
                self._said.add(str(error))
                self._say(Problem(str(error)))
            return None

    def _say(self, message: Struct) -> None:
        self._send(msgspec.json.encode(message).decode())

    # --- Commands ----------------------------------------------------------------------------------------------------

    def _play(self, _: Command) -> None:
        self._playing = True

    def _pause(self, _: Command) -> None:
        self._playing = False

    def _step(self, _: Command) -> None:
        self._playing = False
        if self._waits and self._game.awaited():
            raise ConfigError(f"{', '.join(self._game.awaited())}: choose an action")
        self._advance()

    def _begin(self, command: Command) -> None:
        plan, alike = self._game.plan, self._game.starts_alike
        deterministic: Deterministic | None = command.deterministic
        seed = command.seed
        if seed is None:
            seed = secrets.randbelow(1_000_000) if alike else plan.seed
        if deterministic is None:
            deterministic = False if alike else plan.deterministic
        self._game.begin(seed, deterministic, command.checkpoint)
        self._seed, self._due_s = seed, time.perf_counter() + 1 / self._steps_per_s

    def _pace(self, command: Command) -> None:
        self._steps_per_s, self._due_s = command.steps_per_s, 0.0

    def _require_agent(self, command: Command) -> None:
        if command.agent not in self._game.controls:
            raise ConfigError(f"unknown agent {command.agent!r:.100}; accepted: {', '.join(self._game.controls)}")

    def _select(self, command: Command) -> None:
        self._require_agent(command)
        self._selected = command.agent

    def _take(self, command: Command) -> None:
        self._select(command)
        self._game.take(command.agent)
        self._playing, self._waits = True, bool(self._game.controls[command.agent].sizes)

    def _release(self, command: Command) -> None:
        self._require_agent(command)
        self._game.persons.pop(command.agent, None)

    def _act(self, command: Command) -> None:
        self._require_agent(command)
        self._game.act(command.agent, command.action)

    def _wait(self, command: Command) -> None:
        self._waits = command.on

    def _film(self, command: Command) -> None:
        shown = self._game.shown
        if command.on and shown.why_not:
            raise ConfigError(f"this env cannot be filmed: {shown.why_not}")
        if command.on and shown.film is None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="marl_sb3-films-")
            shown.film = VideoFile(Path(self._folder.name) / f"{time.monotonic_ns()}.gif")
            shown.film.fps = float(self._game.env.metadata.get("render_fps") or DEFAULT_FPS)
        elif not command.on and shown.film is not None:
            self._finish_film()

    def _finish_film(self) -> None:
        shown = self._game.shown
        film, shown.film, shown.film_is_full = shown.film, None, False
        if film is None:
            return
        film.finish()
        while len(self._films) >= _FILMS_KEPT:
            self._films.pop(next(iter(self._films))).unlink(missing_ok=True)
        self._films[film.path.name] = film.path
        self._say(Film(film.path.name, film.num_frames))

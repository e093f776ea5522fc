"""Episodes played live for one viewer, at a pace: commands come from a stage, and moments go to it.

A stage is where somebody watches: a window, a terminal, or a page of a browser behind a socket.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from marl_sb3.core.metrics.episodes import Episode
from marl_sb3.errors import ConfigError, EnvError, MarlSb3Error, require_known
from marl_sb3.evaluation.board import Board, board_of
from marl_sb3.evaluation.game import Game, Insight
from marl_sb3.evaluation.viewed_env import View
from marl_sb3.extensions.display.video import DEFAULT_FPS, VideoFile
from marl_sb3.types import AgentID

LEAST_PER_S, MOST_PER_S = 0.1, 1000.0  # env steps
_FILMS_KEPT = 4


class ViewerLeftError(MarlSb3Error):
    """The viewer wants to see no more, or has gone."""


class ViewerCommand(Struct, forbid_unknown_fields=True):
    """What a viewer asks for: `do`, and the fields that it needs."""

    do: Literal["play", "pause", "step", "begin", "pace", "select", "take", "release", "act", "wait", "film"]
    agent: AgentID = ""
    action: float | Annotated[list[float], Meta(max_length=64)] = 0  # as the env takes it
    on: bool = True  # "wait": the env waits for persons; "film": one is made
    steps_per_s: Annotated[float, Meta(ge=LEAST_PER_S, le=MOST_PER_S)] = 10  # env steps
    # "begin". None: as in the plan; a new seed and sampled actions where all episodes start alike.
    seed: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    deterministic: bool | None = None
    checkpoint: Annotated[str, Meta(max_length=40)] | None = None  # None: as `evaluate` chooses
    # the name of a rival, empty: none; None: as in the plan
    against: Annotated[str, Meta(max_length=400)] | None = None
    swaps: bool | None = None  # whether the sides swap after each episode; None: as in the plan


class Moment(Struct, tag="moment"):
    """The game after a step, a reset or a command."""

    episode: int
    step: int
    is_over: bool
    result: str  # who has won, once it is over; empty: nobody knows
    tally: str  # how often the sides have won so far; empty: nobody knows
    against: str  # the name of the rival; empty: there is none
    players: dict[AgentID, str]  # the names of who plays
    changed: bool  # whether persons have come or gone since the start of the episode
    returns: dict[AgentID, float]
    actions: dict[AgentID, Any]  # of the latest step
    to_act: list[AgentID]
    masks: dict[AgentID, list[bool]]  # of the persons' agents
    boards: dict[AgentID, Board]  # of the persons' agents that act next
    insight: Insight | None  # of the agent that is looked at
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
    scene: Any = None  # for pages, which draw it; None: nothing new, or a picture that was sent before


class Film(Struct, tag="film"):
    """A film that can be fetched."""

    name: str
    frames: int


class Stage(ABC):
    """Where a viewer sees moments, and where commands come from."""

    most_per_s: ClassVar[float]  # moments at most; env steps in between are not shown
    selects: ClassVar[bool] = False  # whether it shows what the policy of one of the agents computes

    def begin(self, game: Game) -> None:  # noqa: B027 - most need nothing
        """See what there is to play, before the first moment."""

    @abstractmethod
    def show(self, moment: Moment, view: View | None) -> None:
        """Show a moment; without a view, nothing but words and numbers have changed.

        Raises:
            ViewerLeftError: nobody looks any more.
        """

    @abstractmethod
    def next_command(self, timeout_s: float | None) -> ViewerCommand | None:
        """Wait for a command; None if there is none within the time, which may be endless.

        Raises:
            ViewerLeftError: the viewer has left.
        """

    @abstractmethod
    def hold_s(self, moment: Moment) -> float:
        """Return for how long the end of an episode is shown."""

    def fail(self, error: MarlSb3Error, remedy: str = "") -> None:
        """Say what went wrong with a command or in the env, and what helps; or raise it, which ends the game."""
        raise error

    def offer(self, film: Film) -> None:  # noqa: B027 - most make none
        """Say that a film can be fetched."""


class GameSession:
    """Plays a game for a viewer.

    Args:
        game: the game.
        stage: where it is shown.
        steps_per_s: env steps per second, until a command changes it.
        n_episodes: after as many it ends; None: when the viewer leaves. If there are none, episodes that all start
            alike are varied.
        clock: returns seconds.

    Attributes:
        episodes: those that were complete, if their number is given.
        films: name -> file, until `close`.
    """

    def __init__(
        self,
        game: Game,
        stage: Stage,
        steps_per_s: float,
        n_episodes: int | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._game, self._stage, self._clock = game, stage, clock
        self._steps_per_s, self._n_episodes = steps_per_s, n_episodes
        self._playing, self._waits = True, False
        self._is_stuck = False  # whether env or rival have failed, so that there is no next step
        self._selected = game.env.agents[0] if stage.selects else ""
        self._shown_s = self._stepped_s = 0.0  # when it was shown, when the latest step was taken, by the clock
        self._said = set[str]()
        self._folder: tempfile.TemporaryDirectory[str] | None = None  # of the films
        self.films: dict[str, Path] = {}
        self.episodes: list[Episode] = []

    def play(self) -> None:
        """Play until the viewer leaves, or all episodes are over."""
        with suppress(ViewerLeftError):
            fault = self._begin_first()
            self._stage.begin(self._game)
            self._show(looks=True)
            if fault is not None:
                self._stage.fail(fault)
            while not self._obey_or_advance():
                pass

    def _begin_first(self) -> MarlSb3Error | None:
        """Begin as planned. If the rival fails, begin without it, so that the viewer may choose another one."""
        try:
            self._begin(ViewerCommand("begin"))
        except MarlSb3Error as error:
            if not self._game.plan.against:
                raise
            try:
                self._begin(ViewerCommand("begin", against=""))
            except MarlSb3Error:  # of policies that cannot play alone
                raise error from None
            return error
        return None

    def close(self) -> None:
        """Remove the films."""
        if self._folder is not None:
            self._folder.cleanup()

    def _obey_or_advance(self) -> bool:
        """Obey the next command, or take the next step, whichever is due first; returns whether that was all."""
        waits_for_persons = self._waits and self._game.awaited()
        shown_s = 0.0 if self._waits and self._game.persons else 1 / self._steps_per_s  # the latest step, at least
        shown_s = self._stage.hold_s(self._moment) if self._game.is_over else shown_s
        timeout_s = max(0.0, self._stepped_s + shown_s - self._clock())
        command = self._stage.next_command(timeout_s if self._goes_on and not waits_for_persons else None)
        if command is None:
            if self._game.is_over and self._game.episode == self._n_episodes:
                return True
            self._advance()
            return False
        try:
            self._obey(command)
        except MarlSb3Error as error:
            self._stage.fail(error)
        if command.do != "step":  # which shows itself
            self._show(looks=command.do == "begin")
        return False

    @property
    def _goes_on(self) -> bool:
        return self._playing and not self._is_stuck

    def _advance(self) -> None:
        game, now_s = self._game, self._clock()
        chooses = self._waits and bool(game.persons)
        game.viewed.looks = chooses or not self._goes_on or now_s - self._shown_s >= 1 / self._stage.most_per_s
        self._stepped_s = now_s
        try:
            game.advance()
        except MarlSb3Error as error:  # the env's fault, or the rival's
            self._is_stuck, game.viewed.film = True, None
            self._stage.fail(error, "Begin anew to go on.")
            self._show(looks=False)
            return
        if self._n_episodes is not None:
            self.episodes += game.finished
        if chooses:
            game.forget_choices()
        if game.viewed.film_is_full:
            self._finish_film()
        if game.viewed.looks or game.is_over or not game.step:
            self._show(looks=True)

    def _show(self, *, looks: bool) -> None:
        """Show the moment.

        Args:
            looks: whether there is something new to see.
        """
        game, film = self._game, self._game.viewed.film
        masks = {agent: mask.tolist() for agent in game.persons if (mask := game.mask(agent)) is not None}
        to_act = [] if game.is_over else game.to_act
        boards = {agent: self._board(agent) for agent in to_act if agent in game.persons}
        self._shown_s = self._clock() if looks else self._shown_s
        self._moment = Moment(
            episode=game.episode,
            step=game.step,
            is_over=game.is_over,
            result=game.result,
            tally=game.score.tally(),
            against=game.against,
            players=game.players,
            changed=game.changed,
            returns=game.returns,
            actions=game.latest_actions,
            to_act=to_act,
            masks=masks,
            boards={agent: board for agent, board in boards.items() if board is not None},
            insight=game.insight(self._selected) if self._selected else None,
            playing=self._goes_on,
            steps_per_s=self._steps_per_s,
            seed=self._seed,
            checkpoint=game.policies.checkpoint or "",
            checkpoint_why=game.policies.checkpoint_why,
            selected=self._selected,
            taken=list(game.persons),
            waits=self._waits,
            awaited=game.awaited() if self._waits else [],
            film_frames=None if film is None else film.num_frames,
            why_not_drawn="" if game.viewed.scene is not None else game.viewed.why_not,
        )
        self._stage.show(self._moment, (game.viewed.latest if game.step else game.viewed.first) if looks else None)

    def _board(self, agent: AgentID) -> Board | None:
        try:
            return board_of(self._game.viewed, agent)
        except EnvError as error:  # the env's fault, which is said once
            if str(error) not in self._said:
                self._said.add(str(error))
                self._stage.fail(error)
            return None

    # --- Commands ----------------------------------------------------------------------------------------------------

    def _obey(self, command: ViewerCommand) -> None:
        game, agent = self._game, command.agent
        if command.do in ("select", "take", "release", "act"):
            require_known(agent, game.controls, f"unknown agent {agent!r:.100}")
        match command.do:
            case "play" | "pause":
                self._playing, self._is_stuck = command.do == "play", False
            case "step":
                self._playing = False
                if self._waits and (awaited := game.awaited()):
                    raise ConfigError(f"{', '.join(awaited)}: choose an action")
                self._advance()
            case "begin":
                self._begin(command)
            case "pace":
                self._steps_per_s = command.steps_per_s
            case "select":
                self._selected = agent
            case "take":
                self._selected = agent
                game.take(agent)
                self._playing, self._waits = True, bool(game.controls[agent].sizes)
                self._is_stuck = False
            case "release":
                game.release(agent)
            case "act":
                game.act(agent, command.action)
            case "wait":
                self._waits = command.on
            case "film":
                (self._begin_film if command.on else self._finish_film)()

    def _begin(self, command: ViewerCommand) -> None:
        plan = self._game.plan
        alike = self._n_episodes is None and self._game.starts_alike
        seed = command.seed if alike or command.seed is not None else plan.seed
        seed = secrets.randbelow(1_000_000) if seed is None else seed
        deterministic = False if alike else plan.deterministic
        chosen = deterministic if command.deterministic is None else command.deterministic
        against = plan.against if command.against is None else command.against
        swaps = plan.swaps if command.swaps is None else command.swaps
        self._game.begin(seed, chosen, command.checkpoint, against, swaps)
        self._seed, self._stepped_s, self._is_stuck = seed, self._clock(), False

    def _begin_film(self) -> None:
        viewed = self._game.viewed
        if viewed.why_not:
            raise ConfigError(f"this env cannot be filmed: {viewed.why_not}")
        if viewed.film is None:
            self._folder = self._folder or tempfile.TemporaryDirectory(prefix="marl_sb3-films-")
            viewed.film = VideoFile(Path(self._folder.name) / f"{time.monotonic_ns()}.gif")
            viewed.film.fps = float(self._game.env.metadata.get("render_fps") or DEFAULT_FPS)

    def _finish_film(self) -> None:
        viewed = self._game.viewed
        film, viewed.film, viewed.film_is_full = viewed.film, None, False
        if film is None:
            return
        film.finish()
        while len(self.films) >= _FILMS_KEPT:
            self.films.pop(next(iter(self.films))).unlink(missing_ok=True)
        self.films[film.path.name] = film.path
        self._stage.offer(Film(film.path.name, film.num_frames))
